"""Texts, sequences, graphs and alternatives of envs are stored and read back exactly."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import Env, spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from typer.testing import CliRunner

import stepwell as sw
from stepwell.buffers import Episode
from stepwell.collectors.cli.app import app
from stepwell.wrappers import FixedSpaces
from support.envs.open_spaces import ACTION, OBSERVATION, OpenEnv, plain, reward_of, value_at

MODES = [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED]


def _vector(kind: Any, mode: AutoresetMode, **more: Any) -> Callable[[], Any]:
    return lambda: kind([OpenEnv, OpenEnv], autoreset_mode=mode, **more)


ENVS: dict[str, Callable[[], Any]] = {
    **{f"SyncVectorEnv {mode.name}": _vector(SyncVectorEnv, mode) for mode in MODES},
    **{
        f"AsyncVectorEnv {mode.name}": _vector(AsyncVectorEnv, mode, shared_memory=False)
        for mode in MODES[:2]
    },
    "make_vec in this process": lambda: sw.make_vec(OpenEnv, 2, num_workers=0),
    "make_vec in workers": lambda: sw.make_vec(OpenEnv, 2, num_workers=2),
    "a single env": OpenEnv,
}


def check(replay: sw.SequenceReplayBuffer, episodes: list[Episode], *, seeded: bool) -> int:
    """Compare episodes with what their seeds and actions say; the number of rows."""
    rows = 0
    for episode in episodes:
        observations = replay.decode("observation", episode.observation)
        actions = replay.decode("action", _head(episode.action))
        seed = int(episode.fields["info/own_seed"][0])
        assert (episode.fields["info/own_seed"] == seed).all()
        if seeded and "seed" in episode.metadata:
            assert episode.metadata["seed"] == seed
        for step, observation in enumerate(observations):
            assert plain(observation) == plain(value_at(OBSERVATION, seed, step))
        for step, action in enumerate(actions):
            assert ACTION.contains(action)
            assert episode.reward[step + 1] == reward_of(action)
        rows += len(observations)
    return rows


def _head(tree: Any) -> Any:
    """All rows but the last, which has no action."""
    if isinstance(tree, dict):
        return {key: _head(part) for key, part in tree.items()}
    if isinstance(tree, tuple):
        return tuple(_head(part) for part in tree)
    return tree[:-1]


@pytest.mark.proof
@pytest.mark.parametrize("name", ENVS)
def test_a_collector_stores_what_the_envs_gave_and_took(name: str, tmp_path: Path) -> None:
    with sw.SequenceReplayBuffer(tmp_path / "store") as replay:
        with sw.Collector(ENVS[name](), "random", replay, seed=0, info={"own_seed": -1}) as made:
            made.collect(steps=30)
    with sw.SequenceReplayBuffer.open(tmp_path / "store", read_only=True) as again:
        episodes = list(again.iter_episodes())
        assert check(again, episodes, seeded=True) == sum(one.steps + 1 for one in episodes) >= 36
        assert sum(one.end != 0 for one in episodes) >= 5
        batch = again.sample_sequences(3, length=2)
        missions = again.decode("observation/mission", batch.observation["mission"])
        assert np.shape(missions) == (3, 2)
        known = {
            text
            for one in episodes
            for text in again.decode("observation/mission", one.observation["mission"])
        }
        assert {text for row in missions for text in row} <= known
        mask, length = (batch.observation["objects"][key] for key in ("mask", "length"))
        np.testing.assert_array_equal(mask.sum(-1), length)


@pytest.mark.proof
@pytest.mark.parametrize("name", ENVS)
def test_a_recorded_loop_sees_its_own_values_and_they_are_stored(name: str) -> None:
    replay = sw.SequenceReplayBuffer()
    inner = ENVS[name]()
    if name.startswith("make_vec"):
        pytest.skip("its envs give arrays already")
    env = sw.record(inner, replay, info={"own_seed": -1})
    env.action_space.seed(0)
    seen, _ = env.reset(seed=5)
    single = name == "a single env"
    assert isinstance(seen["mission"] if single else seen["mission"][0], str)
    for _ in range(12):
        result = env.step(env.action_space.sample())
        ended = np.asarray(result[2])
        if single and ended:
            env.reset()
        elif "DISABLED" in name and ended.any():
            env.reset(options={"reset_mask": ended})
    env.close()
    episodes = list(replay.iter_episodes())
    assert check(replay, episodes, seeded=False) >= 13
    assert {one.end != 0 for one in episodes} >= {True}


def test_a_writer_takes_original_values() -> None:
    replay = sw.SequenceReplayBuffer()
    actions = [value_at(ACTION, 1, step) for step in range(4)]
    with replay.writer((OBSERVATION, ACTION), info={"own_seed": 9}) as writer:
        for step in range(4):
            now, later = (value_at(OBSERVATION, 9, step + more) for more in (0, 1))
            gain = reward_of(actions[step])
            writer.add(now, actions[step], gain, later, step == 3, False)
    (episode,) = replay.iter_episodes()
    assert episode.steps == 4
    assert check(replay, [episode], seeded=False) == 5


def test_a_writer_takes_values_of_several_envs_and_whole_episodes() -> None:
    replay = sw.SequenceReplayBuffer()
    rows = spaces.Dict({"say": spaces.Text(5), "n": spaces.Discrete(3)}), spaces.Text(4)
    with replay.writer(rows, 2) as writer:
        now = {"say": ("a", "bb"), "n": np.array([0, 1])}
        later = {"say": ["c", ""], "n": np.array([2, 1])}
        writer.add(now, ["x", "y"], [1.0, 2.0], later, [True, False], [False, True])
        say = {"say": ["p", "q", "r"], "n": np.array([0, 1, 2])}
        writer.add_episode(say, ["go", "stop"], [0.0, 1.0], terminated=True)
    told = [replay.decode("observation/say", one.observation["say"]) for one in _all(replay)]
    assert told == [["a", "c"], ["bb", ""], ["p", "q", "r"]]
    assert [replay.decode("action", _head(one.action)) for one in _all(replay)] == [
        ["x"],
        ["y"],
        ["go", "stop"],
    ]


def _all(replay: sw.SequenceReplayBuffer) -> list[Episode]:
    return sorted(replay.iter_episodes(), key=lambda one: one.id)


def test_more_room_is_given_by_a_wrapper_and_a_longer_value_stops_the_run_with_its_rows_kept() -> (
    None
):
    class Long(OpenEnv):
        def __init__(self) -> None:
            super().__init__(spaces.Sequence(spaces.Discrete(3)), spaces.Discrete(2), length=80)

        def step(self, action: Any) -> Any:
            _, *others = super().step(action)
            return tuple([1] * self.t), *others

    replay = sw.SequenceReplayBuffer()
    with pytest.raises(ValueError, match=r"64 items, got 65.*FixedSpaces.*'observation': 65"):
        with sw.Collector(Long(), "random", replay, seed=0) as collector:
            collector.collect(steps=80)
    assert replay.steps == 64
    wide = sw.SequenceReplayBuffer()
    envs = sw.make_vec(Long, 1, wrappers=[lambda env: FixedSpaces(env, {"observation": 80})])
    with sw.Collector(envs, "random", wide, seed=0) as collector:
        collector.collect(steps=80)
    episode = next(wide.iter_episodes())
    assert wide.decode("observation", episode.observation)[80] == (1,) * 80


@pytest.mark.proof
def test_episodes_of_such_envs_are_played_again() -> None:
    for maker in (OpenEnv, lambda: SyncVectorEnv([OpenEnv, OpenEnv])):
        replay = sw.SequenceReplayBuffer()
        with sw.Collector(maker(), "random", replay, seed=0) as collector:
            collector.collect(steps=20)
        report = sw.resimulate(replay, env=OpenEnv)
        assert [proof.is_equal for proof in report] == [True] * replay.episodes


def test_a_part_that_no_session_recorded_is_refused() -> None:
    replay = sw.SequenceReplayBuffer()
    with pytest.raises(ValueError, match="observation"):
        replay.decode("observation", np.zeros(3))
    with replay.writer((OBSERVATION, ACTION)) as writer:
        writer.add(value_at(OBSERVATION, 0, 0), value_at(ACTION, 0, 0), 0.0, None, False, False)
    with pytest.raises(ValueError, match=r"observation/mision.*mission"):
        replay.decode("observation/mision", np.zeros(3))


OPEN = {
    "Text": spaces.Text(4),
    "Sequence": spaces.Sequence(spaces.Tuple((spaces.Discrete(2), spaces.Text(3)))),
    "Graph": spaces.Graph(spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(3)),
    "OneOf": spaces.OneOf((spaces.Discrete(3), spaces.Tuple((spaces.Text(2), spaces.Discrete(2))))),
}
NESTED: dict[str, Callable[[Any], Any]] = {
    "itself": lambda space: space,
    "in a Tuple": lambda space: spaces.Tuple((spaces.Discrete(3), space)),
    "two in a Tuple": lambda space: spaces.Tuple((space, space)),
    "in a Tuple in a Dict": lambda space: spaces.Dict({"a": spaces.Tuple((space,))}),
    "in a Dict in a Tuple": lambda space: spaces.Tuple((spaces.Dict({"a": space}),)),
}


@pytest.mark.proof
@pytest.mark.parametrize("nesting", NESTED)
@pytest.mark.parametrize("name", OPEN)
def test_open_actions_reach_the_env_wherever_they_are(name: str, nesting: str) -> None:
    space = NESTED[nesting](OPEN[name])

    class Takes(Env[Any, Any]):
        observation_space, action_space = space, space

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            self.t = 0
            return space.sample(), {}

        def step(self, action: Any) -> Any:
            assert space.contains(action)
            self.t += 1
            return space.sample(), 1.0, self.t == 3, False, {}

    given: list[Any] = [sw.make_vec(Takes, 2, num_workers=0), SyncVectorEnv([Takes] * 2), Takes()]
    if nesting == "in a Tuple":
        given.append(sw.make_vec(Takes, 2, num_workers=1))
    for envs in given:
        replay = sw.SequenceReplayBuffer()
        with sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector:
            collector.collect(steps=8)
        for episode in replay.iter_episodes():
            taken = replay.decode("action", episode.action)
            assert all(space.contains(one) for one in taken[:-1])
    env = sw.record(sw.make_vec(Takes, 2, num_workers=0), replay := sw.SequenceReplayBuffer())
    env.reset(seed=0)
    for _ in range(4):
        env.step(env.action_space.sample())
    env.close()
    assert replay.steps == 6


@pytest.mark.proof
def test_a_store_of_missions_goes_through_every_command(tmp_path: Path) -> None:
    pytest.importorskip("minigrid", reason="needs minigrid: pip install minigrid")
    env, run = "minigrid:BabyAI-GoToRedBall-v0", partial(CliRunner().invoke, app)
    store, archive, again = tmp_path / "store", tmp_path / "x.swa", tmp_path / "again"
    collect = ["collect", env, "--num-envs", "2", "--steps", "150", "--seed", "1"]
    for words in (
        [*collect, "--workers", "0", "--out", str(store)],
        ["info", str(store)],
        ["verify", str(store)],
        ["verify", "--replay", str(store), "--env", env],
        ["report", str(store), "-o", str(tmp_path / "report.html")],
        ["filter", str(store), "--ended", "--out", str(tmp_path / "ended")],
        ["archive", str(store), "-o", str(archive), "--env", env],
        ["restore", str(archive), "--out", str(again), "--env", env],
    ):
        done = run(words)
        assert done.exit_code == 0, (words, done.output)
    with sw.SequenceReplayBuffer.open(again, read_only=True) as replay:
        for episode in replay.iter_episodes():
            missions = replay.decode("observation/mission", episode.observation["mission"])
            assert set(missions) <= {"go to the red ball", "go to a red ball"}
