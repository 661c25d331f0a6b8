"""Every drop-in buffer returns the transitions of one env whose values identify the step.

Each sampled tuple is compared with the list of episodes that was stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from gymnasium import spaces

from stepwell.buffers import SequenceReplayBuffer
from stepwell.buffers.dropin.dreamer import ReplayBuffer as DreamerBuffer
from stepwell.buffers.dropin.fishyrl import IndependentVectorizedBuffer
from stepwell.buffers.dropin.frame_history import ReplayBuffer as FrameBuffer
from stepwell.buffers.dropin.iris import IRISOnPolicyBuffer, IRISReplayBuffer
from stepwell.buffers.dropin.memmap import ReplayBuffer as MemmapBuffer

ENVS = 3
LENGTHS = ((1, 9, 2, 30, 5), (12, 1, 1, 25, 3), (4, 40, 7, 2, 8))
"""Episode lengths of each env."""


class Step(NamedTuple):
    """A step, identified by env, episode and step number; its values are computed from them."""

    env: int
    episode: int
    step: int

    @property
    def is_last(self) -> bool:
        return self.step == LENGTHS[self.env][self.episode] - 1

    @property
    def is_truncated(self) -> bool:
        """Some episodes end at a time limit."""
        return self.is_last and self.episode % 3 == 1

    @property
    def observation(self) -> np.ndarray:
        return np.array([self.episode, self.step, self.env], np.uint8)

    @property
    def following(self) -> Step:
        """The next step of the episode; after the last step it holds the final observation."""
        return self._replace(step=self.step + 1)

    @property
    def code(self) -> int:
        """A positive number that no other step has."""
        return 1 + (self.env * 8 + self.episode) * 64 + self.step

    @property
    def action(self) -> np.ndarray:
        return np.array([self.code, -self.code], np.float32)

    @property
    def reward(self) -> float:
        return self.code / 4

    @property
    def done(self) -> float:
        return float(self.is_last)


def step_of(observation: np.ndarray) -> Step:
    """The step that an observation identifies."""
    episode, step, env = observation.reshape(-1).tolist()
    return Step(env, episode, step)


def stream(env: int) -> Iterator[Step]:
    for episode, length in enumerate(LENGTHS[env]):
        for step in range(length):
            yield Step(env, episode, step)


def interleaved_steps() -> Iterator[Step]:
    """All steps of all envs, interleaved at random."""
    envs = [stream(env) for env in range(ENVS)]
    rng = np.random.default_rng(0)
    while envs:
        following = envs[rng.integers(len(envs))]
        step = next(following, None)
        if step is None:
            envs.remove(following)
        else:
            yield step


def final_observation(step: Step) -> np.ndarray | None:
    return step.following.observation if step.is_last else None


def assert_in_one_episode(
    observations: np.ndarray, actions: np.ndarray, rewards: np.ndarray, terminals: np.ndarray
) -> None:
    """A window [L(+1), ...] equals the steps of an episode."""
    step = step_of(observations[0])
    for t in range(len(actions)):
        assert step_of(observations[t]) == step
        assert actions[t].tolist() == step.action.tolist()
        assert rewards[t] == step.reward
        assert terminals[t] == step.done
        step = step.following
    if len(observations) > len(actions):
        assert step_of(observations[-1]) == step


def _sb3(name: str, path: str, **more: Any) -> tuple[Any, Any]:
    pytest.importorskip("torch", reason="needs PyTorch")
    from stepwell.buffers.dropin import sb3

    space, goal = spaces.Box(-1, 1, (2,)), spaces.Box(-1, 1, (3,))
    is_dict = name in ("DictReplayBuffer", "HerReplayBuffer")
    whole: Any = spaces.Dict(achieved_goal=goal, desired_goal=goal) if is_dict else space
    if name == "RolloutBuffer":
        import torch

        given: dict[str, Any] = {"replay": SequenceReplayBuffer(path)}
        ends: tuple[Any, ...] = ([0.0], [False], torch.zeros(1), torch.zeros(1))
    else:
        given, ends = {"path": path}, ([0.0], [False], [{}])
    env = (None,) if name == "HerReplayBuffer" else ()
    buffer = getattr(sb3, name)(9, whole, spaces.Discrete(2), *env, device="cpu", **given, **more)
    seen: Any = (
        {key: np.zeros((1, 3), np.float32) for key in whole} if is_dict else np.zeros((1, 2))
    )
    steps = (seen,) if name == "RolloutBuffer" else (seen, seen)
    return buffer, lambda: buffer.add(*steps, np.zeros(1, int), *ends)


def _fishyrl(path: str) -> tuple[Any, Any]:
    buffer = IndependentVectorizedBuffer(1, 9, path=path)
    row = {"obs": np.zeros((1, 2)), "actions": np.zeros((1, 2)), "rewards": np.zeros(1)}
    flags = {name: np.zeros(1, bool) for name in ("terminations", "truncations")}
    return buffer, lambda: buffer.add({**row, **flags})


def _imaged(kind: Any, path: str) -> tuple[Any, Any]:
    buffer, image = kind(9, (3, 8, 8), 2, 2, 2, path=path), np.zeros((3, 8, 8), np.uint8)
    seen = image if kind is IRISReplayBuffer else {"image": image}
    return buffer, lambda: buffer.add(seen, np.zeros(2), 0.0, False)


def _frames(path: str) -> tuple[Any, Any]:
    buffer = FrameBuffer(9, 2, path=path)

    def step() -> None:
        buffer.store_effect(buffer.store_frame(np.zeros((4, 4, 1), np.uint8)), 0, 0.0, False)

    return buffer, step


MADE_WITH_A_PATH: dict[str, Callable[[str], tuple[Any, Any]]] = {
    "dreamer": partial(_imaged, DreamerBuffer),
    "iris": partial(_imaged, IRISReplayBuffer),
    "fishyrl": _fishyrl,
    "frame_history": _frames,
    "sb3": partial(_sb3, "ReplayBuffer"),
    "sb3 n-step": partial(_sb3, "NStepReplayBuffer"),
    "sb3 dict": partial(_sb3, "DictReplayBuffer"),
    "sb3 her": partial(_sb3, "HerReplayBuffer"),
    "sb3 rollout": partial(_sb3, "RolloutBuffer"),
}


@pytest.mark.parametrize("name", MADE_WITH_A_PATH)
def test_a_folder_is_made_by_the_first_step_where_it_was_named(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("first", "other"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / "first")
    for is_used in (False, True):
        buffer, step = MADE_WITH_A_PATH[name]("runs/a")
        repr(buffer)
        assert not list(tmp_path.glob("*/*"))
        if is_used:
            if name in ("sb3", "sb3 her"):
                monkeypatch.chdir(tmp_path / "other")
            step()
        if name == "sb3 rollout":
            buffer.flush()
        (buffer.replay if name == "sb3 rollout" else buffer).close()
    assert [path.name for path in tmp_path.glob("*/*")] == ["runs"]
    assert (tmp_path / "first" / "runs" / "a").is_dir()


def dreamer(borders: Any = "inside") -> DreamerBuffer:
    buffer = DreamerBuffer(
        1_000, (3, 1, 1), 2, seq_len=6, batch_size=40, borders=borders, num_envs=ENVS, seed=0
    )
    for step in interleaved_steps():
        image = {"image": step.observation.reshape(3, 1, 1)}
        last = final_observation(step)
        buffer.add(
            image,
            step.action,
            step.reward,
            step.done,
            env=step.env,
            truncated=step.is_truncated,
            final_obs=None if last is None else {"image": last.reshape(3, 1, 1)},
        )
    return buffer


def test_dreamer_windows_are_inside_episodes() -> None:
    buffer = dreamer()
    for _ in range(10):
        drawn = buffer.sample()
        for b in range(40):
            assert_in_one_episode(*(part[:, b] for part in drawn))


def test_dreamer_windows_that_cross_episodes_follow_the_stream() -> None:
    buffer = dreamer("cross")
    crossed = 0
    for _ in range(10):
        observations, actions, rewards, terminals = drawn = buffer.sample()
        for b in range(40):
            rows = [row for s in stream(step_of(observations[0, b]).env) for row in rows_of(s)]
            first = rows.index(step_of(observations[0, b]))
            for t, row in enumerate(rows[first : first + 6]):
                assert step_of(observations[t, b]) == row
                is_final_row = row.step == LENGTHS[row.env][row.episode]
                crossed += is_final_row
                assert terminals[t, b] == (is_final_row or row.done)
                assert actions[t, b].tolist() == ([0, 0] if is_final_row else row.action.tolist())
                assert rewards[t, b] == (0 if is_final_row else row.reward)
                assert drawn.batch.is_first[t, b] == (row.step == 0)
    assert crossed > 50


def rows_of(step: Step) -> Iterator[Step]:
    """The rows that a step adds to its stream: two for the last step of an episode."""
    yield step
    if step.is_last:
        yield step.following


def test_iris_windows_and_frames_come_from_episodes() -> None:
    buffer = IRISReplayBuffer(1_000, (3, 1, 1), 2, seq_len=5, batch_size=40, num_envs=ENVS, seed=0)
    for step in interleaved_steps():
        last = final_observation(step)
        buffer.add(
            step.observation.reshape(3, 1, 1),
            step.action,
            step.reward,
            bool(step.done),
            env=step.env,
            truncated=step.is_truncated,
            final_obs=None if last is None else last.reshape(3, 1, 1),
        )
    for length in (None, 1, 20):
        drawn = buffer.sample_sequence(length)
        assert drawn[0].shape[:2] == (40, (length or 5) + 1)
        for b in range(40):
            assert_in_one_episode(*(part[b] for part in drawn))
    known = {tuple(row.observation) for s in interleaved_steps() for row in rows_of(s)}
    frames = buffer.sample_frames(300)
    assert {tuple(frame.reshape(-1)) for frame in frames} <= known
    observation, action, reward, terminal = buffer.sample_single()
    one = (np.asarray(part)[None] for part in (observation, action, reward, terminal))
    assert_in_one_episode(*one)


def test_iris_on_policy_steps_are_flushed_unchanged() -> None:
    replay = IRISReplayBuffer(1_000, (3, 1, 1), 2, seq_len=2, batch_size=60, num_envs=ENVS, seed=0)
    current = IRISOnPolicyBuffer(max_steps=7)
    for env in range(ENVS):
        for step in stream(env):
            image = step.observation.reshape(3, 1, 1)
            current.add(image, step.action, step.reward, step.is_last)
            if step.is_last or len(current) == 7:
                last = final_observation(step)
                current.flush_into(
                    replay, env=env, final_obs=None if last is None else last.reshape(3, 1, 1)
                )
                assert len(current) == 0
    assert len(replay) == sum(map(sum, LENGTHS))
    drawn = replay.sample_sequence()
    for b in range(60):
        assert_in_one_episode(*(part[b] for part in drawn))


def test_frame_stacks_come_from_one_episode() -> None:
    buffer = FrameBuffer(1_000, 4, num_envs=ENVS, seed=0)
    for step in interleaved_steps():
        place = buffer.store_frame(step.observation.reshape(1, 1, 3), env=step.env)
        assert_stack(buffer.encode_recent_observation(env=step.env), step)
        last = final_observation(step)
        buffer.store_effect(
            place,
            step.code,
            step.reward,
            bool(step.done),
            truncated=step.is_truncated,
            final_frame=None if last is None else last.reshape(1, 1, 3),
        )
    assert buffer.can_sample(sum(map(sum, LENGTHS)))
    observations, actions, rewards, following, done = buffer.sample(sum(map(sum, LENGTHS)))
    steps = [step_of(stack[0, 0, 9:]) for stack in observations]
    assert sorted(steps) == sorted(interleaved_steps())  # each once
    for b, step in enumerate(steps):
        assert_stack(observations[b], step)
        assert_stack(following[b], step.following)
        assert (actions[b], rewards[b], done[b]) == (step.code, step.reward, step.done)


def assert_stack(stack: np.ndarray, step: Step) -> None:
    """The stack (1, 1, 12) holds four frames, oldest first, with zeros before the reset."""
    assert stack.shape == (1, 1, 12)
    for place in range(4):
        frame = stack[0, 0, 3 * place : 3 * place + 3].tolist()
        before = step.step - (3 - place)
        expected = step._replace(step=before).observation.tolist() if before >= 0 else [0, 0, 0]
        assert frame == expected


def test_fishyrl_windows_follow_the_streams() -> None:
    buffer = IndependentVectorizedBuffer(ENVS, 1_000, seed=0)
    rows = [[row for step in stream(env) for row in rows_of(step)] for env in range(ENVS)]
    for place in range(max(map(len, rows))):
        mask = [place < len(rows[env]) for env in range(ENVS)]
        at_place = [rows[env][min(place, len(rows[env]) - 1)] for env in range(ENVS)]
        buffer.add(experience(at_place), mask=mask)
    crossed = 0
    for _ in range(10):
        batch = buffer.sample(30, sequence_length=6)
        for b in range(30):
            first = step_of(batch["obs"][b, 0])
            start = rows[first.env].index(first)
            window = rows[first.env][start : start + 6]
            expected = experience(window)
            crossed += window[0].episode != window[-1].episode
            for name, values in expected.items():
                if name == "actions":  # no action follows a final observation
                    is_final = [row.step == LENGTHS[row.env][row.episode] for row in window]
                    values[is_final] = 0
                assert batch[name][b].tolist() == values.tolist(), name
                assert batch[name].dtype == values.dtype
    assert crossed > 30


def experience(rows: list[Step]) -> dict[str, np.ndarray]:
    """A record of FishyRL: observations, the reward and flags that came with them, and actions."""
    came_from = [row._replace(step=row.step - 1) if row.step else None for row in rows]
    return {
        "obs": np.stack([row.observation for row in rows]),
        "rewards": np.array([s.reward if s else 0 for s in came_from], np.float32),
        "terminations": np.array([bool(s and s.is_last and not s.is_truncated) for s in came_from]),
        "truncations": np.array([bool(s and s.is_truncated) for s in came_from]),
        "actions": np.stack([row.action for row in rows]),
    }


def memmap(folder: Path) -> MemmapBuffer:
    buffer = MemmapBuffer(
        folder,
        max_episodes=20,
        max_timesteps=50,
        fields={"observation": ("uint8", 3), "action": ("float", 2), "reward": "float"},
        meta_fields={"env": "int"},
    )
    for env in range(ENVS):
        for episode, length in enumerate(LENGTHS[env]):
            with buffer.one_episode(env=env):
                for step in (Step(env, episode, number) for number in range(length)):
                    buffer.store(
                        observation=step.observation, action=step.action, reward=step.reward
                    )
    return buffer


def test_memmap_loaders_return_the_episodes(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs PyTorch")
    buffer = memmap(tmp_path / "a")
    seen: list[Step] = []
    for batch in buffer.dataloader(4, return_mask=True):
        for b in range(len(batch["_lens"])):
            length = int(batch["_lens"][b])
            parts = [batch[name][b].numpy() for name in ("observation", "action", "reward")]
            steps = [step_of(row) for row in parts[0][:length]]
            assert length == LENGTHS[steps[0].env][steps[0].episode]
            assert batch["_mask"][b].tolist() == [t < length for t in range(len(parts[0]))]
            assert int(batch["env"][b]) == steps[0].env
            assert all((part[length:] == 0).all() for part in parts)
            assert_rows(steps, parts[1], parts[2])
            seen += steps
    assert sorted(seen) == sorted(interleaved_steps())


def test_memmap_steps_and_n_steps_come_from_episodes(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs PyTorch")
    buffer = memmap(tmp_path / "a")
    steps: list[Step] = []
    for batch in buffer.dataloader(16, timestep_level=True):
        found = [step_of(row.numpy()) for row in batch["observation"]]
        assert_rows(found, batch["action"].numpy(), batch["reward"].numpy())
        steps += found
    assert sorted(steps) == sorted(interleaved_steps())
    begun: list[Step] = []
    for batch in buffer.dataloader(16, n_steps=3, sequence_fields=("reward",), shuffle=True):
        for b in range(len(batch["n_step_lens"])):
            step, count = step_of(batch["observation"][b].numpy()), int(batch["n_step_lens"][b])
            begun.append(step)
            last = LENGTHS[step.env][step.episode] - 1
            assert count == min(3, last - step.step)
            assert step_of(batch["next_observation"][b].numpy()) == step._replace(
                step=step.step + count
            )
            rewards = [step._replace(step=step.step + k).reward for k in range(count)]
            assert batch["seq_reward"][b].tolist() == rewards + [0] * (3 - count)
    assert sorted(begun) == sorted(step for step in interleaved_steps() if not step.is_last)


def assert_rows(steps: list[Step], actions: np.ndarray, rewards: np.ndarray) -> None:
    for number, step in enumerate(steps):
        assert step.step < LENGTHS[step.env][step.episode]
        assert actions[number].tolist() == step.action.tolist()
        assert rewards[number] == step.reward
