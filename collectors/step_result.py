"""One vector step in any dialect, told in one way: what arrived for which envs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from stepwell.buffers import SpecMismatch

__all__ = ["InfoReader", "StepResult"]


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one vector step brought for n envs: the first halves of their rows.

    Args:
        env_ids: [n] which envs; None for all in order.
        leaves: Observation ``[n, ...]`` by field name, then the declared info fields.
        reward: [n] float64, 0 where an episode begins.
        is_first: [n] bool: the row of a reset; None where none is.
        terminated: [n] bool; None where none is.
        truncated: [n] bool; None where none is.
        metadata: Facts about episodes that begin, by env index.
        restarts: Of these rows, how many begin an episode because a worker process died.
    """

    env_ids: np.ndarray | None
    leaves: Mapping[str, np.ndarray]
    reward: np.ndarray
    is_first: np.ndarray | None
    terminated: np.ndarray | None
    truncated: np.ndarray | None
    metadata: Mapping[int, Mapping[str, object]] | None = None
    restarts: int = 0

    @property
    def steps(self) -> int:
        """Env steps that brought these rows: a reset is none."""
        return len(self.reward) - (0 if self.is_first is None else int(self.is_first.sum()))

    def only(self, keep: np.ndarray, env_ids: np.ndarray) -> StepResult:
        """The rows marked in ``keep`` [n]; ``env_ids`` [n] are those of this arrival."""

        def chosen(flags: np.ndarray | None) -> np.ndarray | None:
            return None if flags is None else flags[keep]

        return StepResult(
            env_ids[keep],
            {name: rows[keep] for name, rows in self.leaves.items()},
            self.reward[keep],
            chosen(self.is_first),
            chosen(self.terminated),
            chosen(self.truncated),
            self.metadata,
        )

    def going_on(self, rows: np.ndarray) -> StepResult:
        """The same, but the episodes of the marked rows [n] did not end."""
        assert self.terminated is not None
        return replace(self, terminated=self.terminated & ~rows)


class InfoReader:
    """Reads declared fields out of a vector env's info, whatever keys come and go.

    Args:
        missing: The value that stands for "not there", by field name; it also tells the field's
            dtype and shape.

    Raises:
        TypeError: A value is no number and no array of numbers.
    """

    def __init__(self, missing: Mapping[str, object]) -> None:
        self.missing = {name: np.asarray(value) for name, value in missing.items()}
        for name, value in self.missing.items():
            if value.dtype.kind not in "biufc":
                raise TypeError(
                    f"info field {name!r}: expected a number or an array of them that stands for a "
                    f"missing value, got {missing[name]!r}"
                )

    def read(self, info: Mapping[str, object], num_envs: int) -> dict[str, np.ndarray]:
        """The declared fields ``[N, ...]`` as ``info/<name>``; undeclared keys are dropped.

        Raises:
            SpecMismatch: A value does not fit the declared dtype and shape.
        """
        return {
            f"info/{name}": self._column(name, missing, info, num_envs)
            for name, missing in self.missing.items()
        }

    def _column(
        self, name: str, missing: np.ndarray, info: Mapping[str, object], num_envs: int
    ) -> np.ndarray:
        column = np.empty((num_envs, *missing.shape), missing.dtype)
        column[...] = missing
        everywhere = np.ones(num_envs, np.bool_)
        mask = np.asarray(info.get(f"_{name}", everywhere), np.bool_)
        if name not in info or not mask.any():
            return column
        for values, places in _alike(info[name], np.flatnonzero(mask)):
            column[places] = _fitting(name, values, missing)
        return column


def _alike(values: object, places: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Values of one dtype and shape, with the places where they belong."""
    array = values if isinstance(values, np.ndarray) else np.asarray(values, object)
    if array.ndim == 0:  # a nested info, which is a dict for all envs
        return [(np.asarray([values], object), places)]
    if not array.dtype.hasobject:
        return [(array[places], places)]
    return [(np.asarray(array[place])[None], np.array([place])) for place in places]


def _fitting(name: str, values: np.ndarray, missing: np.ndarray) -> np.ndarray:
    """The values ``[m, ...]`` in the declared dtype, where that loses nothing."""
    if values.shape[1:] == missing.shape and np.can_cast(values.dtype, missing.dtype, "same_kind"):
        cast = values.astype(missing.dtype)
        if missing.dtype.kind not in "iu" or (cast == values).all():
            return cast
    raise SpecMismatch(
        f"info field {name!r}: expected {missing.dtype} of shape {missing.shape}, got "
        f"{values.dtype} of shape {values.shape[1:]}; declare a missing value of that kind"
    )
