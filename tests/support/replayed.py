"""Stores to be played again: recorded in small, and written anew with something changed."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gymnasium as gym
import numpy as np

import stepwell as sw
from stepwell.buffers import Chunk, End, SequenceReplayBuffer
from stepwell.buffers.curation.stored_episode import StoredEpisode, stored_episodes
from stepwell.collectors import EpisodeProof

Change = Callable[[Chunk], Chunk | None]


class RandomBoxes:
    """Random numbers in [-1, 1) for every part of an action."""

    def begin(self, space: Any, rng: np.random.Generator) -> None:
        self._space, self._rng = space, rng

    def __call__(self, observation: Any, is_first: np.ndarray) -> np.ndarray:
        shape = (len(is_first), *self._space.shape)
        return self._rng.uniform(-1, 1, shape).astype(self._space.dtype)


def recorded(envs: Any, steps: int = 300, **settings: Any) -> SequenceReplayBuffer:
    """A replay in RAM of what a random policy played."""
    replay = SequenceReplayBuffer()
    policy = settings.pop("policy", None) or sw.RandomPolicy()
    goal = settings.pop("goal", {"steps": steps})
    with sw.Collector(envs, policy, replay, seed=3, **settings) as collector:
        collector.collect(**goal)
    return replay


def whole_episodes(replay: SequenceReplayBuffer) -> Iterator[tuple[StoredEpisode, Chunk]]:
    """Each stored episode, with all of its rows in one chunk."""
    for episode in stored_episodes(replay.storage):
        (chunk,) = episode.chunks(1 << 20)
        yield episode, chunk


def rewritten(
    replay: SequenceReplayBuffer,
    change: Change = lambda chunk: chunk,
    sessions: Callable[[Mapping[str, object]], Mapping[str, object]] = lambda facts: facts,
) -> SequenceReplayBuffer:
    """The same episodes, each in one chunk, after a change; None leaves an episode out."""
    first, *more = map(sessions, replay.sessions)
    new = SequenceReplayBuffer()
    new.bind(replay.spec, first)
    for facts in more:
        new.storage.append_session(facts)
    for _, chunk in whole_episodes(replay):
        changed = change(chunk)
        if changed is not None:
            new.storage.add([changed])
    return new


def as_recorded_before(replay: SequenceReplayBuffer) -> SequenceReplayBuffer:
    """The replay as version 0.1 would have stored it: with fewer facts."""
    kept = ("recipe", "spaces", "env_spec", "num_envs", "seed", "session", "policy", "versions")

    def older(chunk: Chunk) -> Chunk:
        facts = {k: v for k, v in chunk.metadata.items() if k in ("seed", "stream_episode")}
        return changed_chunk(chunk, metadata=facts)

    return rewritten(replay, older, lambda facts: {k: facts[k] for k in kept if k in facts})


def changed_chunk(chunk: Chunk, **changes: Any) -> Chunk:
    """The chunk with other attributes."""
    names = ("episode", "stream", "first_row", "end", "fields", "metadata", "starts_late")
    return Chunk(**{**{name: getattr(chunk, name) for name in names}, **changes})


def with_lie(chunk: Chunk, name: str, row: int, rng: np.random.Generator) -> Chunk:
    """The chunk, in which one value of one row is another one."""
    if name == "end":
        return changed_chunk(chunk, end=_other_end(chunk.end, rng))
    rows = chunk.fields[name].copy()
    flat = rows[row : row + 1].reshape(-1)
    place = int(rng.integers(len(flat)))
    if flat.dtype.kind in "iu":
        bound = 2 if name.startswith("action") else 200
        flat[place] = (int(flat[place]) + 1 + int(rng.integers(bound - 1))) % bound
    elif flat.dtype.kind == "b":
        flat[place] = not flat[place]
    else:
        flat[place] = np.nextafter(flat[place], flat.dtype.type(9e9))
    return changed_chunk(chunk, fields={**chunk.fields, name: rows})


def _other_end(end: End, rng: np.random.Generator) -> End:
    flags = (End.NONE, End.TERMINATED, End.TRUNCATED, End.TERMINATED | End.TRUNCATED)
    others = [flag for flag in flags if flag != end & ~End.PENDING]
    return others[int(rng.integers(len(others)))]


def proofs(replay: SequenceReplayBuffer, **settings: Any) -> dict[int, EpisodeProof]:
    """The proof of each episode."""
    settings.setdefault("lanes", 1)
    with sw.resimulate(replay, **settings) as found:
        listed = list(found)
    by_id = {proof.episode: proof for proof in listed}
    assert len(by_id) == len(listed)
    return by_id


def check_all_equal(replay: SequenceReplayBuffer, **settings: Any) -> None:
    """Every episode is proved, with all of its rows."""
    found = proofs(replay, **settings)
    assert [one for one in found.values() if not one.is_equal] == []
    stored = {episode.id: episode.rows for episode in stored_episodes(replay.storage)}
    assert {proof.episode: proof.rows for proof in found.values()} == stored
    assert stored


class TinyEnv(gym.Env[Any, Any]):
    """Two states, which the action chooses."""

    observation_space = gym.spaces.Discrete(2)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        return np.int64(0), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.int64(action), 0.0, False, False, {}


class MoodyEnv(gym.Env[Any, Any]):
    """An env that does what its argument says, within limits that do no harm.

    Args:
        mood: "calm", or what to do in a step: "sleep" for a while, "hoard" memory, "abort" the
            process, or draw from a generator that no seed reaches: "global", or its "own". With
            "init " before it, when it is made.
        pair: Must be a tuple.
    """

    observation_space = gym.spaces.Box(0, 1, (2,), np.float64)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, mood: str = "calm", pair: tuple[int, ...] = (1, 2)) -> None:
        if not isinstance(pair, tuple):
            raise TypeError("pair must be a tuple")
        self.mood = mood
        self.own = np.random.default_rng()
        if mood.startswith("init "):
            self._do(mood.removeprefix("init "))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._do(self.mood)
        return self._observation(), 0.0, bool(self.np_random.random() < 0.2), False, {}

    def _do(self, mood: str) -> None:
        if mood == "sleep":
            time.sleep(5)
        elif mood == "hoard":
            self.hoard = np.empty(1 << 28)
        elif mood == "abort":
            os.abort()

    def _observation(self) -> np.ndarray:
        if self.mood == "global":
            return np.random.random(2)  # noqa: NPY002  # which no seed of the env reaches
        return (self.own if self.mood == "own" else self.np_random).random(2)


def register_moody() -> str:
    """Register the env, and return its id."""
    if "Moody-v0" not in gym.registry:
        gym.register("Moody-v0", "support.replayed:MoodyEnv")
    return "Moody-v0"


def moody(mood: str, replay: SequenceReplayBuffer | None = None) -> SequenceReplayBuffer:
    """A store of a calm env, whose facts were changed to name another mood."""
    if replay is None:
        replay = recorded(sw.make_vec(register_moody(), 2, num_workers=0), 30)

    def changed(facts: Mapping[str, object]) -> Mapping[str, object]:
        found = json.loads(str(facts["env_spec"]))
        found["kwargs"]["mood"] = mood
        recipe: Any = facts["recipe"]
        kwargs = {**recipe["kwargs"], "mood": mood}
        return {**facts, "env_spec": json.dumps(found), "recipe": {**recipe, "kwargs": kwargs}}

    return rewritten(replay, sessions=changed)
