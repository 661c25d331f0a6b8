"""Stores to export, drawn by hypothesis, and what it means that a round trip is exact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import strategies as st

from stepwell.buffers import Chunk, Codec, End, Episode, Field, SequenceReplayBuffer, Spec
from stepwell.buffers.bridges import ImportReport, import_episodes
from stepwell.buffers.rows.step_columns import layout_of
from stepwell.buffers.spec.spec import Layout

__all__ = [
    "Wanted",
    "assert_same",
    "episodes_of",
    "imported",
    "noisy_store",
    "refused",
    "store_of",
    "stores",
    "tagged_store",
]

ENDS = (End.NONE, End.PENDING, End.TERMINATED, End.TRUNCATED, End.TERMINATED | End.TRUNCATED)
IMAGE, VECTOR = (
    Field("observation", "uint8", (6, 5, 3), "zstd"),
    Field("observation", "float32", (3,), "raw"),
)
PICTURES = [
    Field("observation", "uint8", shape, "zstd")
    for shape in ((16, 17), (16, 18, 3), (17, 16, 1), (16, 16, 4), (3, 16, 18), (1, 16, 17))
]
METADATA: list[dict[str, object]] = [{}, {"seed": 5}, {"task": "door", "list": [1, {"a": 2}]}]
DISCRETE = Field("action", "int64", (), "narrow")
REWARD = Field("reward", "float64", (), "narrow")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The properties of stores that a format can hold."""

    # The observation may be any of these; a tuple of several is a Dict.
    observations: Sequence[tuple[Field, ...]] = (
        (IMAGE,),
        (VECTOR,),
        (Field("observation", "int32", (), "narrow"),),
        (
            Field("observation/picture", "uint8", (4, 4), "zstd"),
            Field("observation/inner/x", "float16", (2,), "raw"),
            Field("observation/inner/on", "bool", (), "narrow"),
        ),
    )
    # Likewise.
    actions: Sequence[tuple[Field, ...]] = (
        (DISCRETE,),
        (Field("action", "float32", (2,), "raw"),),
        (Field("action/a", "int64", (), "narrow"), Field("action/b", "float64", (1,), "raw")),
    )
    # Each of these fields may be there.
    more: Sequence[Field] = (
        Field("info/lives", "int64", (), "narrow"),
        Field("info/seen", "bool", (2,), "narrow"),
        Field("extra/log_prob", "float32", (), "raw"),
        Field("extra/state", "float64", (2, 2), "raw"),
    )


@st.composite
def stores(draw: st.DrawFn, wanted: Wanted | None = None) -> SequenceReplayBuffer:
    """A replay in RAM: up to 6 episodes of up to 9 rows of up to 3 streams.

    Some are cut, some wait for an action, some lost their first rows, some have a single row; a
    worker may have died in the last row. Metadata are nested JSON.
    """
    wanted = wanted or Wanted()
    observation = draw(st.sampled_from(wanted.observations))
    action = draw(st.sampled_from(wanted.actions))
    more = [field for field in wanted.more if draw(st.booleans())]
    if len(observation) == 1 and observation[0].shape and draw(st.booleans()):
        padding: Literal["zero", "repeat"] = draw(st.sampled_from(["zero", "repeat"]))
        k = draw(st.integers(2, 4))
        plain = observation[0]
        observation = (Field(plain.name, plain.dtype, plain.shape, plain.codec, k, padding),)

    def names(fields: Sequence[Field]) -> list[str]:
        return [field.name for field in fields]

    spec = Spec(
        (*observation, *action, REWARD, *more),
        layout_of(names(observation), "observation"),
        layout_of(names(action), "action"),
    )
    codecs: Mapping[str, Codec] = draw(st.sampled_from([{}, {"observation": "raw"}]))
    replay = SequenceReplayBuffer(codecs=codecs)
    replay.bind(spec, {"recipe": {"id": "Tagged-v0"}, "seed": 7})
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    for number in range(draw(st.integers(1, 6))):
        rows = draw(st.integers(1, 9))
        first_row = draw(st.sampled_from([0, 0, 0, 0, 3]))
        end = draw(st.sampled_from(ENDS))
        if rows == 1 and not first_row:
            end &= End.PENDING  # no step was taken that could have ended it
        fields = {field.name: _column(field, rows, rng) for field in spec.fields}
        if not first_row:
            fields["reward"][0] = 0
        if end is not End.NONE or draw(st.booleans()):
            for name in fields:
                if name.split("/")[0] in ("action", "extra"):
                    fields[name][-1] = 0
        metadata: dict[str, object] = draw(st.sampled_from(METADATA))
        stream = draw(st.integers(0, 2))
        replay.add([Chunk(number, stream, first_row, end, fields, metadata, first_row > 0)])
    return replay


def tagged_store(
    observation: Field = IMAGE, *, action: Field = DISCRETE, episodes: int = 6
) -> SequenceReplayBuffer:
    """Episodes of 1, 2, ... steps with all kinds of ends, in 2 streams; rows contain their place.

    The first elements of an observation are its stream, its episode and its row; an action is the
    row modulo 4, a reward the episode and the row, as in 3.25 for row 1 (quarters) of episode 3.
    """
    spec = Spec((observation, action, REWARD), "observation", "action")
    replay = SequenceReplayBuffer()
    replay.bind(spec, {"recipe": {"id": "Tagged-v0"}})
    ends = (End.TERMINATED, End.TRUNCATED, End.NONE, End.TERMINATED | End.TRUNCATED, End.PENDING)
    for number in range(episodes):
        rows = np.arange(number + 2)
        shown = np.zeros((len(rows), *observation.shape), observation.numpy_dtype)
        flat = shown.reshape(len(rows), -1)
        flat[:, 0], flat[:, 1], flat[:, 2] = number % 2, number, rows
        acted = np.zeros((len(rows), *action.shape), action.numpy_dtype)
        acted[:-1] = (rows[:-1] % 4).reshape(-1, *[1] * len(action.shape))
        reward = np.where(rows > 0, number + rows / 4, 0.0)
        fields = {"observation": shown, "action": acted, "reward": reward}
        end = ends[number % len(ends)]
        replay.add([Chunk(number, number % 2, 0, end, fields, {"number": number})])
    return replay


def episodes_of(replay: SequenceReplayBuffer) -> list[Episode]:
    return list(replay.iter_episodes())


def store_of(
    fields: Sequence[Field],
    rows: Mapping[str, np.ndarray] | None = None,
    *,
    count: int = 2,
    observation: Layout = "observation",
    action: Layout = "action",
    end: End = End.TERMINATED,
) -> SequenceReplayBuffer:
    """A replay of one episode of `count` rows, which are zeros where they are not given."""
    replay = SequenceReplayBuffer()
    replay.bind(Spec(tuple(fields), observation, action), {})
    zeros = {field.name: np.zeros((count, *field.shape), field.numpy_dtype) for field in fields}
    replay.add([Chunk(0, 0, 0, end, {**zeros, **(rows or {})}, {})])
    return replay


def noisy_store() -> SequenceReplayBuffer:
    """Twenty episodes of pictures that do not compress, 200 kB each."""
    rng = np.random.default_rng(0)
    replay = tagged_store(Field("observation", "uint8", (40, 50), "raw"), episodes=0)
    for number in range(20):
        rows = {
            "observation": rng.integers(0, 256, (100, 40, 50), np.uint8),
            "action": np.zeros(100, np.int64),
            "reward": np.zeros(100),
        }
        replay.add([Chunk(number, 0, 0, End.TRUNCATED, rows, {})])
    return replay


def imported(
    format_: str, place: Path | str, **more: Any
) -> tuple[SequenceReplayBuffer, ImportReport]:
    """A data set in a new replay, and the report of its import."""
    replay = SequenceReplayBuffer()
    return replay, import_episodes(format_, place, replay, **more)


def refused(format_: str, place: Path | str, match: str, **more: Any) -> None:
    """Assert that an import is refused with a message that matches."""
    with pytest.raises(ValueError, match=match):
        imported(format_, place, **more)


def assert_same(back: SequenceReplayBuffer, replay: SequenceReplayBuffer) -> None:
    """Every bit of every row, and all that is known of the episodes and of their runs."""
    assert back.spec == replay.spec
    assert list(back.sessions[: len(replay.sessions)]) == list(replay.sessions)
    assert list(map(_content, episodes_of(back))) == list(map(_content, episodes_of(replay)))


def _content(episode: Episode) -> dict[str, Any]:
    """All of an episode but its id, which is new."""
    return {
        "stream": episode.stream,
        "first_row": episode.first_row,
        "end": episode.end,
        "metadata": dict(episode.metadata),
        **{
            name: (rows.dtype.str, rows.shape, rows.tobytes())
            for name, rows in episode.fields.items()
        },
    }


def _column(field: Field, rows: int, rng: np.random.Generator) -> np.ndarray:
    shape = (rows, *field.shape)
    if field.numpy_dtype.kind == "f":
        return rng.normal(size=shape).astype(field.numpy_dtype)
    return rng.integers(0, 2 if field.numpy_dtype.kind == "b" else 7, shape).astype(
        field.numpy_dtype
    )
