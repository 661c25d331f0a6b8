"""Our own replay, filled with the rows that the peers get."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

import stepwell as sw
from peers import Call, Rows
from stepwell.buffers import Chunk, Codec, End, EpisodeBuffer, Field, Spec

__all__ = ["atari", "prioritized", "replay_of", "sequences", "transitions", "writing"]


def replay_of(
    rows: Rows,
    *,
    stack: int = 1,
    path: Path | None = None,
    threads: int | None = None,
    chunk_rows: int = 512,
    codec: Codec = "raw",
) -> sw.SequenceReplayBuffer:
    """Rows in RAM or in a folder; with a stack the rows are the single frames of it."""
    replay = sw.SequenceReplayBuffer(path, seed=0, threads=threads)
    replay.bind(_spec(rows.observation, stack, codec), {})
    ends = (np.flatnonzero(rows.is_end) + 1).tolist()
    for episode, (start, stop) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        fields: dict[str, np.ndarray] = {
            "observation": rows.observation[start:stop],
            "action": rows.action[start:stop],
            "reward": rows.reward[start:stop].astype(np.float64),
        }
        replay.add(Chunk(episode, 0, 0, End.TERMINATED, fields).split(chunk_rows))
    return replay


def atari(
    game: str, steps: int, threads: int | None, codec: Codec = "zstd"
) -> sw.SequenceReplayBuffer:
    """Real frames of a random player, compressed."""
    replay = sw.SequenceReplayBuffer(seed=0, threads=threads, codecs={"observation": codec})
    with sw.Collector(sw.make_atari(game, 8), sw.RandomPolicy(), replay, seed=0) as collector:
        collector.collect(steps=steps)
    return replay


def sequences(replay: sw.SequenceReplayBuffer, batch: int, length: int) -> dict[str, Call]:
    """All fields, as a new result and into the memory of an earlier one."""
    out = replay.sample_sequences(batch, length)
    return {
        "stepwell": lambda: replay.sample_sequences(batch, length),
        "stepwell, out=": lambda: replay.sample_sequences(batch, length, out=out),
    }


def transitions(replay: sw.SequenceReplayBuffer, batch: int) -> dict[str, Call]:
    """All fields, as a new result and into the memory of an earlier one."""
    out = replay.sample_transitions(batch)
    return {
        "stepwell": lambda: replay.sample_transitions(batch),
        "stepwell, out=": lambda: replay.sample_transitions(batch, out=out),
    }


def prioritized(replay: sw.SequenceReplayBuffer, batch: int) -> dict[str, Call]:
    """Draw by priority with importance weights, and update the priorities of the drawn items."""
    rng = np.random.default_rng(0)
    out = replay.sample_transitions(batch, draw="priorities")
    for _ in range(len(replay) // 1_000):
        drawn = replay.sample_transitions(1_000, draw="priorities", fields=("reward",))
        replay.update_priorities(drawn.ids, rng.random(1_000))
    priorities = rng.random(batch)

    def fresh() -> object:
        drawn = replay.sample_transitions(batch, draw="priorities")
        replay.update_priorities(drawn.ids, priorities)
        return drawn

    def into() -> object:
        drawn = replay.sample_transitions(batch, draw="priorities", out=out)
        replay.update_priorities(drawn.ids, priorities)
        return drawn

    return {"stepwell": fresh, "stepwell, out=": into}


def writing(steps: Iterator[Mapping[str, np.ndarray]], capacity: int, num_envs: int) -> Call:
    """Add one vector step, and store the chunks that are due, in a full replay."""
    step = next(steps)
    spec = _spec(step["observation"], 1)
    replay = sw.SequenceReplayBuffer(capacity=capacity, seed=0)
    replay.bind(spec, {})
    buffer = EpisodeBuffer(spec, num_envs)
    is_first = np.ones(num_envs, np.bool_)

    def add() -> None:
        nonlocal is_first
        step = next(steps)
        values = {"observation": step["observation"], "reward": step["reward64"]}
        buffer.observe(
            values,
            is_first=is_first if is_first.any() else None,
            terminated=step["terminated"],
            truncated=step["truncated"],
            owned=True,
        )
        buffer.act({"action": step["action"]})
        if buffer.is_due:
            replay.add(buffer.take())
        is_first = step["terminated"] | step["truncated"]

    for _ in range(2 * capacity // num_envs):
        add()
    return add


def _spec(observation: np.ndarray, stack: int, codec: Codec = "raw") -> Spec:
    dtype, shape = str(observation.dtype), observation.shape[1:]
    return Spec(
        (
            Field("observation", dtype, shape, codec, stack=stack, stack_padding="repeat"),
            Field("action", "int64", (), "narrow"),
            Field("reward", "float64", (), "narrow"),
        ),
        observation="observation",
        action="action",
    )
