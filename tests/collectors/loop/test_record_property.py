"""A recorded loop stores what a Collector with the same actions stores, and sees the bare env."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

import stepwell as sw
from stepwell.collectors.loop.collector import Seeds
from support.envs.fakes import TraceEnv
from support.examples import examples
from support.models.model import Model, assert_episode, assert_stored
from support.models.plans import CHUNK_ROWS, FLUSH_SECONDS, MODES, PLANS, Plan, makers, small_chunks

CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("steps"), st.integers(1, 25)),
        st.tuples(st.sampled_from(["reset", "reset twice", "flush"]), st.just(0)),
    ),
    min_size=1,
    max_size=6,
)
DISABLED = AutoresetMode.DISABLED

Call = tuple[str, int]


def vector(
    plans: Sequence[Plan], mode: AutoresetMode, kind: Any = SyncVectorEnv, **more: Any
) -> Any:
    return kind(makers(plans), autoreset_mode=mode, **more)


def spoil(*arrays: Any) -> None:
    """Write into arrays, as a loop may do."""
    for array in arrays:
        if isinstance(array, np.ndarray) and array.flags.writeable and not array.dtype.hasobject:
            array[...] = 1


def exactly(one: Any, other: Any) -> bool:
    """Two values are of the same types, dtypes and numbers."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(exactly(one[k], other[k]) for k in one)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(exactly, one, other))
    if isinstance(one, np.ndarray):
        if one.dtype.hasobject:
            return one.shape == other.shape and all(map(exactly, one.tolist(), other.tolist()))
        return bool(one.dtype == other.dtype and one.tobytes() == other.tobytes())
    return bool(one == other)


class Loop:
    """A loop of a vector env's owner, which checks what it sees against a bare env."""

    def __init__(self, env: Any, bare: Any, mode: AutoresetMode) -> None:
        self.env, self.bare, self.mode = env, bare, mode
        self.observation: Any = None

    def both(self, method: str, *arguments: Any, **options: Any) -> Any:
        results = [
            getattr(env, method)(
                *(np.copy(each) for each in arguments), **{k: _again(v) for k, v in options.items()}
            )
            for env in (self.bare, self.env)
        ]
        assert exactly(*results)
        return results[1]

    def reset(self, seed: int | None) -> None:
        observation, _ = self.both("reset", seed=seed)
        self.observation = observation.copy()
        spoil(observation)

    def step(self) -> None:
        action = TraceEnv.choose(self.observation)
        observation, reward, terminated, truncated, info = self.both("step", action)
        ended = terminated | truncated
        self.observation = observation.copy()
        spoil(observation, reward, terminated, truncated, *info.get("final_obs", ()), action)
        if self.mode is DISABLED and ended.any():
            observation, _ = self.both("reset", options={"reset_mask": ended})
            self.observation = observation.copy()
            spoil(observation)

    def steps(self, number: int) -> None:
        for _ in range(number):
            self.step()


def _again(value: Any) -> Any:
    """A value for a second call: gymnasium's vector envs take the mask out of the options."""
    return {key: part.copy() for key, part in value.items()} if isinstance(value, dict) else value


@given(PLANS, MODES, CALLS, CHUNK_ROWS, FLUSH_SECONDS, st.booleans())
@settings(max_examples=examples(150))
def test_stored_rows_equal_those_of_single_envs(
    plans: list[Plan],
    mode: AutoresetMode,
    calls: list[Call],
    chunk_rows: int,
    flush_seconds: float,
    copy: bool,
) -> None:
    """With resets in the middle of episodes, and at their ends."""
    seeds = Seeds(5, 0)
    model = Model(
        [TraceEnv(plan, tag) for tag, plan in enumerate(plans)], TraceEnv.choose, mode=mode
    )
    replay = sw.SequenceReplayBuffer()
    with small_chunks(chunk_rows):
        env = sw.record(vector(plans, mode, copy=copy), replay, flush_seconds=flush_seconds)
        loop = Loop(env, vector(plans, mode, copy=copy), mode)
        for kind, number in [("reset", 0), *calls, ("steps", 1)]:
            if kind == "steps":
                loop.steps(number)
                for _ in range(number):
                    model._turn()
            elif kind == "flush":
                env.flush()
            else:
                for _ in range(1 + (kind == "reset twice")):
                    seed = seeds.next_envs_seed(len(plans))
                    loop.reset(seed)
                    model.reset(seed)
        env.close()
    assert_stored(replay, model.episodes)
    for stream in range(len(plans)):
        numbers: list[Any] = [
            one.metadata["stream_episode"] for one in replay.iter_episodes() if one.stream == stream
        ]
        assert numbers == sorted(set(numbers))


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=60), CHUNK_ROWS, FLUSH_SECONDS, st.booleans()
)
@settings(max_examples=examples(100))
def test_several_envs_are_recorded_into_one_replay(
    turns: list[int], chunk_rows: int, flush_seconds: float, on_disk: bool
) -> None:
    """Each is a session with a stream of its own, however their steps are interleaved."""
    plans: list[Plan] = [[(3, "terminated"), (4, "truncated")], [(5, "both")], [(2, "terminated")]]
    models = [
        Model([TraceEnv(plan, tag)], TraceEnv.choose, mode=AutoresetMode.NEXT_STEP)
        for tag, plan in enumerate(plans)
    ]
    replay = sw.SequenceReplayBuffer()
    with small_chunks(chunk_rows):
        envs = [
            sw.record(TraceEnv(plan, tag), replay, flush_seconds=flush_seconds)
            for tag, plan in enumerate(plans)
        ]
        newest: list[Any] = [None] * 3
        for turn in turns:
            env, model = envs[turn], models[turn]
            if newest[turn] is None:
                seed = None if model.current else 7
                if seed is not None:
                    model.reset(seed)
                else:
                    model._turn()
                newest[turn] = env.reset(seed=seed)[0]
                continue
            model._turn()
            action = TraceEnv.choose(newest[turn])
            spoil(newest[turn])
            newest[turn], _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                newest[turn] = None
        for env in envs:
            env.close()
    wanted: dict[Any, list[Any]] = {}
    for model in models:
        for one in model.episodes:
            tag = float(one.observations[0][0])
            wanted.setdefault(tag, []).append(one)
    found: dict[Any, list[Any]] = {}
    for stored in replay.iter_episodes() if replay.is_bound else ():
        found.setdefault(float(np.asarray(stored.observation)[0, 0]), []).append(stored)
    assert found.keys() == wanted.keys()
    for tag, episodes in found.items():
        assert len({one.stream for one in episodes}) == 1
        assert len({one.metadata["session"] for one in episodes}) == 1
        for one, other in zip(episodes, wanted[tag], strict=True):
            other.stream = one.stream
            assert_episode(one, other)
            assert one.metadata["stream_episode"] == other.number
    if replay.is_bound:
        assert len({one.stream for each in found.values() for one in each}) == len(found)
