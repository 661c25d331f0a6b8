"""PlaNet's episodes as rows, in which each reward stands beside the observation it came with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from stepwell.buffers.dropin.ring import row_field
from stepwell.buffers.episode import Chunk, End
from stepwell.buffers.errors import SpecMismatch
from stepwell.buffers.spec import Codec, Field, Spec

__all__ = ["Played", "Steps", "as_chunk", "as_steps", "check_rows", "spec_of"]

_NAMES = ("observation", "action", "reward", "info/r", "info/t")


class Played(Protocol):
    """An episode that is over; its arrays are those of `planet.Episode`."""

    x: np.ndarray
    u: np.ndarray
    r: np.ndarray
    t: np.ndarray
    truncated: bool


class Steps(NamedTuple):
    """An episode in the dtypes of the store.

    Args:
        fields: Arrays ``[T + 1, ...]`` by name.
        end: How it ended.
        steps: How many, T.
    """

    fields: Mapping[str, np.ndarray]
    end: End
    steps: int


def spec_of(episode: Played, path: Path | None, codec: Codec | None) -> Spec:
    """The fields of an episode's rows.

    Batches give a row's reward as float32, so ``info/r`` has it once more, exactly.
    """
    x, u, t = episode.x, _actions(episode), episode.t
    fields = (
        row_field("observation", x.dtype, x.shape[1:], path=path, codec=codec),
        row_field("action", u.dtype, u.shape[1:], path=path),
        Field("reward", "float64", (), "narrow"),
        Field("info/r", "float64", (), "narrow"),
        Field("info/t", t.dtype.name, (), "narrow"),
    )
    return Spec(fields, "observation", "action")


def check_rows(spec: Spec) -> None:
    """Refuse a store of other rows.

    Raises:
        SpecMismatch: It is one.
    """
    names = tuple(field.name for field in spec.fields)
    if names != _NAMES:
        raise SpecMismatch(
            f"the folder holds other data: expected the fields {', '.join(_NAMES)}, got "
            f"{', '.join(names)}; give another folder"
        )


def as_steps(episode: Played, spec: Spec) -> Steps:
    """An episode as the store takes it.

    Raises:
        ValueError: It has another shape, or numbers that the dtype does not hold.
    """
    fields = {field.name: field for field in spec.fields}
    x = _exactly("x", episode.x, fields["observation"])
    u = _exactly("u", _actions(episode), fields["action"])
    r = _exactly("r", episode.r.reshape(-1), fields["info/r"])
    t = _exactly("t", episode.t.reshape(-1), fields["info/t"])
    arrived = _behind_nothing(r)
    rows = {
        "observation": x,
        "action": np.concatenate([u, np.zeros_like(u[:1])]),
        "reward": arrived,
        "info/r": arrived,
        "info/t": _behind_nothing(t),
    }
    if episode.truncated:
        end = End.TRUNCATED
    else:
        end = End.TERMINATED if t[-1] else End.NONE
    return Steps(rows, end, len(u))


def as_chunk(steps: Steps, number: int) -> Chunk:
    """The chunk that an episode is stored as.

    Args:
        steps: The episode.
        number: Its id.
    """
    return Chunk(number, 0, 0, steps.end, steps.fields)


def _actions(episode: Played) -> np.ndarray:
    """The actions ``[T, A]``, also where each is one number."""
    return episode.u[:, None] if episode.u.ndim == 1 else episode.u


def _behind_nothing(values: np.ndarray) -> np.ndarray:
    """The values that steps brought, in the rows that the steps led to."""
    return np.concatenate([np.zeros_like(values[:1]), values])


def _exactly(what: str, array: np.ndarray, field: Field) -> np.ndarray:
    """An array in a field's dtype."""
    dtype = field.numpy_dtype
    if array.shape[1:] != field.shape:
        raise ValueError(
            f"{what}: expected {dtype} {field.shape} as in the first episode, got {array.dtype} "
            f"{array.shape[1:]}; make them alike"
        )
    if array.dtype == dtype:
        return array
    with np.errstate(invalid="ignore"):
        converted = array.astype(dtype)
    if not np.array_equal(converted, array, equal_nan=array.dtype.kind == "f"):
        raise ValueError(
            f"{what}: expected numbers that {dtype}, the first episode's, holds, got "
            f"{array.dtype}; convert them as they are meant first"
        )
    return converted
