"""Stepwell's buffers for Stable-Baselines3, beside SB3's own on the same calls."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.buffers import SequenceReplayBuffer
from stepwell.buffers.episode_buffer import EpisodeBuffer

pytest.importorskip("stable_baselines3", reason="needs stable_baselines3")

import torch
from stable_baselines3.common import buffers as theirs

from stepwell.buffers.dropin import sb3 as ours

SEEN: dict[str, spaces.Space[Any]] = {
    "vector": spaces.Box(-9, 9, (3,)),
    "double": spaces.Box(-9, 9, (2, 2), np.float64),
    "number": spaces.Discrete(5),
    "numbers": spaces.MultiDiscrete([3, 4]),
    "bits": spaces.MultiBinary(4),
    "image": spaces.Box(0, 255, (2, 8, 8), np.uint8),
    "large": spaces.Box(0, 255, (1, 40, 40), np.uint8),
    "dict": spaces.Dict({"a": spaces.Box(-1, 1, (2,)), "n": spaces.Discrete(3)}),
}
ACTS: dict[str, spaces.Space[Any]] = {
    "number": spaces.Discrete(3),
    "numbers": spaces.MultiDiscrete([3, 4]),
    "bits": spaces.MultiBinary(2),
    "box": spaces.Box(-1, 1, (2,)),
    "wide": spaces.Box(-2, 2, (1, 3), np.float64),
}
Step = tuple[Any, Any, np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]


def drawn(space: Any, n: int, rng: np.random.Generator) -> Any:
    """Observations or actions of n envs."""
    if isinstance(space, spaces.Dict):
        return {key: drawn(part, n, rng) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Discrete):
        return rng.integers(0, space.n, n)
    if isinstance(space, spaces.MultiDiscrete):
        return rng.integers(0, space.nvec, (n, len(space.nvec)))
    if isinstance(space, spaces.MultiBinary):
        return rng.integers(0, 2, (n, *space.shape), np.int8)
    assert isinstance(space, spaces.Box)
    if space.dtype == np.uint8:
        return rng.integers(0, 256, (n, *space.shape), np.uint8)
    return rng.random((n, *space.shape)).astype(space.dtype)


def mixed(first: Any, second: Any, is_second: np.ndarray) -> Any:
    if isinstance(first, dict):
        return {key: mixed(first[key], second[key], is_second) for key in first}
    found = first.copy()
    found[is_second] = second[is_second]
    return found


def played(
    seen: spaces.Space[Any], acts: spaces.Space[Any], n: int, steps: int, seed: int
) -> list[Step]:
    """Steps of envs that end, run out of time, and are sometimes reset without either."""
    rng = np.random.default_rng(seed)
    now, found = drawn(seen, n, rng), []
    for _ in range(steps):
        then = drawn(seen, n, rng)
        done, is_late = rng.random(n) < 0.2, rng.random(n) < 0.5
        infos = [{"TimeLimit.truncated": bool(flag)} for flag in done & is_late]
        gain = rng.normal(size=n).astype(np.float32)
        found.append((now, then, drawn(acts, n, rng), gain, done, infos))
        now = mixed(then, drawn(seen, n, rng), done | (rng.random(n) < 0.05))
    return found


def both(seen: Any, acts: Any, size: int, n: int, **options: Any) -> tuple[Any, Any]:
    name = "DictReplayBuffer" if isinstance(seen, spaces.Dict) else "ReplayBuffer"
    if "n_steps" in options:
        name = "NStepReplayBuffer"
    return tuple(  # type: ignore[return-value]
        getattr(module, name)(size, seen, acts, device="cpu", n_envs=n, **options)
        for module in (theirs, ours)
    )


def tensors(batch: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in batch._asdict().items():
        if isinstance(value, dict):
            found |= {f"{name}/{key}": part for key, part in value.items()}
        elif value is not None:
            found[name] = value
    return found


def assert_equal(batch: Any, expected: Any) -> None:
    got, wanted = tensors(batch), tensors(expected)
    assert type(batch) is type(expected)
    assert got.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert got[name].dtype == tensor.dtype, name
        assert torch.equal(got[name], tensor), name


def seed_global(seed: int) -> None:
    """SB3 draws from NumPy's global generator."""
    np.random.seed(seed)  # noqa: NPY002


def sampled(buffer: Any, count: int, seed: int = 0) -> Any:
    seed_global(seed)
    return buffer.sample(count)


@pytest.mark.parametrize("acts", ACTS)
@pytest.mark.parametrize("seen", SEEN)
@settings(max_examples=8)
@given(
    n=st.integers(1, 3),
    size=st.integers(1, 25),
    steps=st.integers(1, 40),
    handles=st.booleans(),
    seed=st.integers(0, 99),
)
def test_it_gives_what_sb3_gives(
    seen: str, acts: str, n: int, size: int, steps: int, handles: bool, seed: int
) -> None:
    their, our = both(SEEN[seen], ACTS[acts], size, n, handle_timeout_termination=handles)
    for number, step in enumerate(played(SEEN[seen], ACTS[acts], n, steps, seed)):
        for buffer in their, our:
            buffer.add(*copy.deepcopy(step))
        assert (our.pos, our.full, our.size()) == (their.pos, their.full, their.size())
        if number % 7 == 0:
            assert_equal(sampled(our, 16, number), sampled(their, 16, number))
    every = np.arange(their.size())
    for seed in range(3):
        seed_global(seed)
        expected = their._get_samples(every)
        seed_global(seed)
        assert_equal(our._get_samples(every), expected)
    assert our.buffer_size == their.buffer_size


@given(steps=st.integers(1, 30), n_steps=st.integers(2, 5), seed=st.integers(0, 99))
def test_n_step_returns_are_those_of_sb3(steps: int, n_steps: int, seed: int) -> None:
    options = {"n_steps": n_steps, "gamma": 0.9}
    their, our = both(SEEN["vector"], ACTS["number"], 24, 2, **options)
    for step in played(SEEN["vector"], ACTS["number"], 2, steps, seed):
        for buffer in their, our:
            buffer.add(*step)
    assert_equal(sampled(our, 64), sampled(their, 64))


def model_rows(seen: Any, acts: Any, n: int, steps: list[Step]) -> Any:
    """The rows that `EpisodeBuffer.add` makes of the steps, one by one."""
    our = both(seen, acts, 10, n)[1]
    replay = SequenceReplayBuffer(seed=0)
    replay.bind(our._spec, {})
    rows = EpisodeBuffer(our._spec, n, store=replay.add)
    for now, then, action, gain, done, infos in steps:
        late = np.array([info["TimeLimit.truncated"] for info in infos])
        chosen = action.astype(np.float32).astype(action.dtype)  # as SB3 keeps them
        rows.add(now, chosen, gain, then, done & ~late, done & late)
    replay.add(rows.take(everything=True))
    return by_stream(replay)


def by_stream(replay: SequenceReplayBuffer) -> Any:
    return sorted(
        (
            *(each.stream, each.metadata["stream_episode"], int(each.end)),
            *((name, rows.dtype.str, rows.tobytes()) for name, rows in each.fields.items()),
        )
        for each in replay.iter_episodes()
    )


@pytest.mark.parametrize("acts", ACTS)
@pytest.mark.parametrize("seen", SEEN)
@settings(max_examples=5)
@given(n=st.integers(1, 3), steps=st.integers(1, 40), every=st.integers(1, 9), seed=st.integers(0))
def test_the_replay_has_the_rows_of_an_episode_buffer(
    seen: str, acts: str, n: int, steps: int, every: int, seed: int
) -> None:
    given_steps = played(SEEN[seen], ACTS[acts], n, steps, seed)
    our = both(SEEN[seen], ACTS[acts], 1000, n)[1]
    for number, step in enumerate(given_steps):
        our.add(*copy.deepcopy(step))
        if number % every == 0:
            our.flush()
    our.flush()
    assert by_stream(our.replay) == model_rows(SEEN[seen], ACTS[acts], n, given_steps)
