"""The host: what is collected, learned, evaluated and kept, and when; also over interruptions."""

from __future__ import annotations

import ast
import csv
import importlib.util
import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import stepwell as sw
from stepwell.collectors import EpisodeReport

pytest.importorskip("torch", reason="needs PyTorch: pip install 'stepwell[torch]'")

import torch

from dreamer import train
from dreamer.agent import Models
from dreamer.checkpoint import load_checkpoint, load_models, save_checkpoint
from dreamer.config import Config
from dreamer.observations import Observations
from dreamer.progress import Progress
from support.libraries.dreamer_agents import COUNTER, TINY, agent

CATCH = "stepwell/Catch-v0"
EVALUATED = [40, 60, 92, 120]  # at the end of the prefill, then when each 30 steps have passed
HOST_LINES = 40  # what the train loop may have


class CountingProgress(Progress):
    """Counts the calls, and stops the training after so many gradient steps."""

    def __init__(self, folder: Path, steps: int, stop_after: int | None = None) -> None:
        super().__init__(folder, steps, tensorboard=False, show=False)
        self.learned: list[int] = []  # env steps at each gradient step
        self.episodes: list[EpisodeReport] = []
        self._stop_after = stop_after

    def losses(self, metrics: dict[str, torch.Tensor], env_steps: int) -> None:  # type: ignore[override]
        super().losses(metrics, env_steps)
        self.learned.append(env_steps)
        if len(self.learned) == self._stop_after:
            raise KeyboardInterrupt

    def episode(self, report: EpisodeReport) -> None:
        super().episode(report)
        self.episodes.append(report)


def run(
    folder: Path,
    config: Config = TINY,
    stop_after: int | None = None,
    env: str = COUNTER,
    look: Callable[[Models], None] = lambda _: None,
) -> CountingProgress:
    """Train in the folder, and continue a run that is there."""
    torch.manual_seed(0)
    envs, models = agent(folder / "replay", config, env)
    progress = CountingProgress(folder, config.steps, stop_after)
    with models.utilities.replay as replay:
        if (folder / "replay" / "checkpoint-latest.bin").exists():
            progress.resumed(**load_checkpoint(models))
        stopped = False
        with progress:
            try:
                train.train_loop(envs, models, config, progress, env, folder / "best.pt")
            except KeyboardInterrupt:
                stopped = True
        assert stopped == (stop_after is not None)
        if not stopped:
            assert replay.steps >= config.steps
        look(models)
    return progress


def curve(folder: Path) -> list[tuple[int, float, float]]:
    with (folder / "curve.csv").open() as file:
        rows = list(csv.DictReader(file))
    return [(int(r["steps"]), float(r["seconds"]), float(r["mean_return"])) for r in rows]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_the_host_code_is_short() -> None:
    (function,) = ast.parse(inspect.getsource(train.train_loop)).body
    assert isinstance(function, ast.FunctionDef)
    assert ast.get_docstring(function)
    body = function.body[1:]
    lines = (body[-1].end_lineno or 0) - body[0].lineno + 1
    assert 20 < lines <= HOST_LINES


def test_after_the_prefill_each_env_step_gives_a_quarter_of_a_gradient_step(tmp_path: Path) -> None:
    progress = run(tmp_path)
    assert progress.learned == [*range(44, 121, 4)]
    assert progress.state()["updates"] == 20


def test_the_prefill_is_random_and_the_rest_is_the_agents(tmp_path: Path) -> None:
    run(tmp_path)
    with sw.SequenceReplayBuffer.open(tmp_path / "replay", read_only=True) as replay:
        policies = [str(session["policy"]).split(".")[-1] for session in replay.sessions]
        assert policies == ["RandomPolicy", "DreamerPolicy"]
        assert replay.steps == 120


def test_sequences_may_be_longer_than_episodes(tmp_path: Path) -> None:
    config = replace(TINY, pretrain_steps=80, length=30)  # of episodes of 26 rows
    assert len(run(tmp_path, config).learned) == 10


def test_the_first_evaluation_is_that_of_the_untrained_agent_and_the_last_one_of_the_final(
    tmp_path: Path,
) -> None:
    run(tmp_path, replace(TINY, steps=100))
    assert [steps for steps, _, _ in curve(tmp_path)] == [40, 60, 92, 100]
    assert (tmp_path / "best.pt").exists()


def test_a_run_shorter_than_its_prefill_is_random_and_has_an_evaluation(tmp_path: Path) -> None:
    progress = run(tmp_path, replace(TINY, steps=10))
    assert progress.learned == []
    assert [steps for steps, _, _ in curve(tmp_path)] == [10]
    assert (tmp_path / "best.pt").exists()


def test_a_ratio_of_0_learns_nothing(tmp_path: Path) -> None:
    assert run(tmp_path, replace(TINY, replay_ratio=0)).learned == []


def test_actions_are_drawn(tmp_path: Path) -> None:
    """An untrained actor finds both actions alike."""
    run(tmp_path, replace(TINY, replay_ratio=0))
    with sw.SequenceReplayBuffer.open(tmp_path / "replay", read_only=True) as replay:
        for episode in replay.iter_episodes():
            assert set(episode.action[:-1].tolist()) == {0, 1}


def test_without_a_prefill_the_agent_begins(tmp_path: Path) -> None:
    config = replace(TINY, pretrain_steps=0, replay_ratio=0.05, steps=80)
    assert len(run(tmp_path, config).learned) == 4


def test_too_few_rows_for_a_sequence_are_an_error_at_once(tmp_path: Path) -> None:
    config = replace(TINY, num_envs=8, pretrain_steps=40, collect_steps=8, length=64)
    with pytest.raises(sw.NotEnoughData, match=r"\b64\b"):
        run(tmp_path, config)


def scores(
    means: Iterator[float], played: list[torch.Tensor]
) -> Callable[[train.EvaluationEnvs, Models], sw.Evaluation]:
    """A `EvaluationEnvs.play` that returns these means, and records a parameter of the agents."""

    def play(self: train.EvaluationEnvs, models: Models) -> sw.Evaluation:
        found, mean = original(self, models), next(means)
        played.append(models.world_model.rssm.first_hidden.detach().clone())
        return replace(
            found, episodes=tuple(replace(one, total_reward=mean) for one in found.episodes)
        )

    original = train.EvaluationEnvs.play
    return play


def test_evaluations_are_greedy(tmp_path: Path) -> None:
    """An untrained actor finds all actions alike: one that draws would score about 12."""
    progress = run(tmp_path, replace(TINY, steps=10))
    assert progress.best in (0, 25)


def test_episodes_are_reported(tmp_path: Path) -> None:
    progress = run(tmp_path)
    assert [report.steps for report in progress.episodes] == [25, 25]


def test_checkpoints_are_kept_when_due_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[int] = []

    def save(models: Models, more: dict[str, object]) -> None:
        kept.append(models.utilities.replay.steps)
        save_checkpoint(models, more)

    monkeypatch.setattr(train, "save_checkpoint", save)
    run(tmp_path, replace(TINY, steps=110))
    assert kept == [40, 60, 80, 100, 112]


def test_the_curve_never_runs_ahead_of_the_best_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(train, "save_models", stop)
        run(tmp_path, stop_after=1_000)
    assert not (tmp_path / "curve.csv").exists()
    run(tmp_path)
    assert [steps for steps, _, _ in curve(tmp_path)] == EVALUATED


def test_the_best_agent_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[torch.Tensor] = []
    monkeypatch.setattr(
        train.EvaluationEnvs, "play", scores(iter([1.0, 3.0, 2.0, 3.0, 0.0]), played)
    )
    run(tmp_path, replace(TINY, world_lr=0.1, steps=150))
    assert [mean for _, _, mean in curve(tmp_path)] == [1, 3, 2, 3, 0]
    _, models = agent(tmp_path / "other")
    load_models(tmp_path / "best.pt", models, include_optimizers=False)
    assert len({tuple(hidden.tolist()) for hidden in played}) == 5
    assert torch.equal(models.world_model.rssm.first_hidden, played[3])


def test_evaluations_are_from_seeds_that_stay_the_same(tmp_path: Path) -> None:
    _, models = agent(tmp_path / "replay")
    with train.EvaluationEnvs(COUNTER, 3) as eval_envs:
        first, second = eval_envs.play(models), eval_envs.play(models)
    seeds = [episode.seed for episode in first.episodes]
    assert seeds == [1_000_000, 1_000_001, 1_000_002]
    assert seeds == [episode.seed for episode in second.episodes]


@pytest.mark.parametrize("stop_after", [1, 5, 6, 19])
def test_a_run_that_was_stopped_goes_on_to_the_same_numbers(
    tmp_path: Path, stop_after: int
) -> None:
    run(tmp_path, stop_after=stop_after)
    before = curve(tmp_path)
    progress = run(tmp_path)
    assert progress.state()["updates"] == 20  # those that were lost are taken again
    assert [steps for steps, _, _ in curve(tmp_path)] == EVALUATED
    assert curve(tmp_path)[: len(before)] == before
    seconds = [seconds for _, seconds, _ in curve(tmp_path)]
    assert seconds == sorted(seconds)


def test_the_best_agent_of_before_stays_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train.EvaluationEnvs, "play", scores(iter([1.0, 9.0, 8.0, 2.0]), []))
    run(tmp_path, stop_after=9)
    before = (tmp_path / "best.pt").read_bytes()
    run(tmp_path)
    assert [mean for _, _, mean in curve(tmp_path)] == [1, 9, 8, 2]
    assert (tmp_path / "best.pt").read_bytes() == before


def test_an_evaluation_that_was_missed_is_done_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> sw.Evaluation:
        raise KeyboardInterrupt

    run(tmp_path, stop_after=4)  # at 56 steps
    with monkeypatch.context() as patch:
        patch.setattr(train.EvaluationEnvs, "play", stop)
        run(tmp_path, stop_after=1_000)  # by the evaluation at 60
    assert [steps for steps, _, _ in curve(tmp_path)] == [40]
    run(tmp_path)
    assert [steps for steps, _, _ in curve(tmp_path)] == EVALUATED


def test_after_the_end_there_is_nothing_to_do(tmp_path: Path) -> None:
    run(tmp_path)
    before = curve(tmp_path), (tmp_path / "best.pt").read_bytes()
    assert run(tmp_path, replace(TINY, steps=60)).learned == []
    assert run(tmp_path).learned == []
    assert (curve(tmp_path), (tmp_path / "best.pt").read_bytes()) == before


def test_more_steps_go_on_from_the_end(tmp_path: Path) -> None:
    run(tmp_path, replace(TINY, steps=100))
    progress = run(tmp_path)
    assert progress.learned == [*range(104, 121, 4)]
    assert [steps for steps, _, _ in curve(tmp_path)] == [40, 60, 92, 100, 120]


def test_no_row_is_joined_to_one_of_another_run(tmp_path: Path) -> None:
    """FishyRL's F2: windows led from one run's last observation into the next run's first."""
    run(tmp_path, stop_after=5)
    run(tmp_path, stop_after=7)
    run(tmp_path)
    begun: list[tuple[int, float]] = []
    with sw.SequenceReplayBuffer.open(tmp_path / "replay", read_only=True, seed=0) as replay:
        assert len(replay.sessions) == 4  # of which the first is the prefill
        for episode in replay.iter_episodes():
            seen = episode.observation
            assert np.ptp(seen[:, 0]) == 0
            np.testing.assert_array_equal(seen[:, 1], np.arange(len(seen)))
            begun.append((episode.stream, float(seen[0, 0])))
        batch = replay.sample(sw.Sequences(500, TINY.length, borders="cross"))
    assert len(set(begun)) == len(begun) >= 8  # each run has seeds of its own
    joined = np.diff(batch.observation[..., 1]) == 1
    joined &= np.diff(batch.observation[..., 0]) == 0
    assert not joined.all()
    np.testing.assert_array_equal(batch.is_first[:, 1:], ~joined)


def test_a_run_stopped_before_its_first_checkpoint_does_every_gradient_step(tmp_path: Path) -> None:
    config = replace(TINY, save_every=1_000)
    run(tmp_path, config, stop_after=10)
    assert not (tmp_path / "replay" / "checkpoint-latest.bin").exists()
    progress = run(tmp_path, config)
    assert len(progress.learned) == 20
    assert [steps for steps, _, _ in curve(tmp_path)] == EVALUATED


@pytest.mark.parametrize(
    ("name", "observation", "vector"),
    [
        ("CartPole-v1", (3, 4), 2),
        ("Pendulum-v1", (3, 3), 1),
        (CATCH, (3, 32, 32, 1), 3),
    ],
)
def test_envs_come_with_their_actions(name: str, observation: tuple[int, ...], vector: int) -> None:
    envs, actions = train.get_environments_and_actions(name, 3)
    try:
        seen, _ = envs.reset(seed=0)
        assert seen.shape == observation
        assert actions.output_dim == vector
        taken = actions.to_env(actions.dist(torch.zeros(3, actions.input_dim)).sample())
        assert envs.single_action_space.contains(taken[0])
    finally:
        envs.close()


def test_an_atari_screen_is_a_picture() -> None:
    envs, actions = train.get_environments_and_actions("ALE/Pong-v5", 2)
    envs.close()
    assert Observations(envs.single_observation_space).shapes == (0, ((3, 64, 64),))
    assert actions.output_dim == 6


def test_an_unknown_env_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"env id 'Nothing-v0'"):
        train.get_environments_and_actions("Nothing-v0")


def test_a_film_has_a_frame_for_the_reset_and_one_for_each_step(tmp_path: Path) -> None:
    envs, models = agent(tmp_path / "replay", env=CATCH)
    envs.close()
    frames, fps = train.evaluate(CATCH, models, seed=3)
    env = gym.make(CATCH, render_mode="rgb_array")
    env.reset(seed=3)
    np.testing.assert_array_equal(frames[0], env.render())
    assert fps == env.metadata["render_fps"]
    steps, ended = 0, False
    while not ended:
        _, _, ended, _, _ = env.step(1)
        steps += 1
    assert frames.shape == (steps + 1, 256, 256, 3)
    assert frames.dtype == np.uint8


@pytest.mark.skipif(importlib.util.find_spec("av") is None, reason="needs PyAV")
def test_a_film_may_be_a_file(tmp_path: Path) -> None:
    envs, models = agent(tmp_path / "replay", env=CATCH)
    envs.close()
    frames, _ = train.evaluate(CATCH, models, 3, tmp_path / "film.mp4")
    assert (tmp_path / "film.mp4").stat().st_size > 1_000
    assert len(frames) > 10


@pytest.mark.parametrize("env", ["Pendulum-v1", CATCH])
def test_the_loop_takes_numbers_and_pictures(tmp_path: Path, env: str) -> None:
    config = replace(TINY, steps=60, eval_every=100, replay_ratio=0.1)
    assert len(run(tmp_path, config, env=env).learned) == 2
