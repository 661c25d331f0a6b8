"""The result of one vector step in a single form, and the fields read from its info."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np

from ...buffers.replay.writer import as_dtype_of
from ...buffers.rows.episode import checked_facts

MetadataOrFunction: TypeAlias = (
    "Mapping[str, object] | Callable[[int, Mapping[str, object]], Mapping[str, object]]"
)
"""JSON-able facts for every episode, or a function that returns those of one: it is called with the
index of the env and the info of its reset."""


_NOTHING: Mapping[str, object] = {}


class StepResult(NamedTuple):
    """The result of one vector step in a single form, for every autoreset mode."""

    # It holds the first half of a row for each of n envs; the other half is the action that the
    # policy chooses from it. Flags are None where no row has them, as in nearly every step.

    env_ids: np.ndarray | None  # [n] indices of the envs; None for all in order
    # Observation [n, ...] by field name, then the declared info fields
    leaves: Mapping[str, np.ndarray]
    reward: np.ndarray  # [n] float64, 0 where an episode begins
    is_first: np.ndarray | None = None  # [n] bool: the row of a reset
    terminated: np.ndarray | None = None  # [n] bool: the MDP ended with this row
    truncated: np.ndarray | None = None  # [n] bool: the env's clock ended the episode with this row
    # About the episodes that begin, by env index
    metadata: Mapping[int, Mapping[str, object]] | None = None
    restarts: int = 0  # rows that begin an episode because a worker died, or the env raised

    @property
    def steps(self) -> int:
        """Number of env steps that led to these rows; a reset is none."""
        firsts = 0 if self.is_first is None else int(np.count_nonzero(self.is_first))
        return len(self.reward) - firsts

    def only(self, keep: np.ndarray, env_ids: np.ndarray) -> StepResult:
        """The rows marked in ``keep`` [n], where ``env_ids`` [n] are the envs of all rows."""

        def kept(flags: np.ndarray | None) -> np.ndarray | None:
            return None if flags is None else flags[keep]

        return self._replace(
            env_ids=env_ids[keep],
            leaves={name: rows[keep] for name, rows in self.leaves.items()},
            reward=self.reward[keep],
            is_first=kept(self.is_first),
            terminated=kept(self.terminated),
            truncated=kept(self.truncated),
            restarts=0,
        )

    def renumbered(self, env_ids: np.ndarray) -> StepResult:
        """The same result, in which env i is called ``env_ids[i]``."""
        return self._replace(
            env_ids=env_ids if self.env_ids is None else env_ids[self.env_ids],
            metadata=self.metadata
            and {int(env_ids[env]): facts for env, facts in self.metadata.items()},
        )


class InfoReader:
    """Reads declared fields from a vector env's info, whichever keys are there at a step."""

    # ``missing`` has the value that means "not there", by field name: a number or an array of them,
    # which also determines the field's dtype and shape. ``declared`` has others of the envs.

    def __init__(
        self, missing: Mapping[str, object] | None, declared: Mapping[str, object] = _NOTHING
    ) -> None:
        given = missing or {}
        if not isinstance(given, Mapping):
            raise TypeError(
                f"info: expected a mapping of names to the value that means 'not there', such as "
                f"{{'lives': -1}}, got {given!r}"
            )
        fields = {**declared, **given}
        self.missing = {name: np.asarray(value) for name, value in fields.items()}
        for name, value in self.missing.items():
            if value.dtype.kind not in "biufc":
                raise TypeError(
                    f"info field {name!r}: expected a number or an array of them that stands for a "
                    f"missing value, got {fields[name]!r}"
                )

    def read(self, info: Mapping[str, object], num_envs: int) -> dict[str, np.ndarray]:
        """The declared fields ``[N, ...]`` as ``info/<name>``, in their dtypes and shapes."""
        return {
            f"info/{name}": self._column(name, missing, info, num_envs)
            for name, missing in self.missing.items()
        }

    def _column(
        self, name: str, missing: np.ndarray, info: Mapping[str, object], num_envs: int
    ) -> np.ndarray:
        column = np.empty((num_envs, *missing.shape), missing.dtype)
        column[...] = missing
        all_true = np.ones(num_envs, np.bool_)
        mask = np.asarray(info.get(f"_{name}", all_true), np.bool_)
        if name not in info or not mask.any():
            return column
        for values, places in _by_dtype(info[name], np.flatnonzero(mask)):
            column[places] = as_dtype_of(name, values, missing)
        return column


class EpisodeMetadata:
    """Gives the metadata of episodes as they begin: the user's, or what a function returns."""

    # They are JSON-able, with no key that the Collector itself writes.

    def __init__(self, metadata: MetadataOrFunction | None) -> None:
        metadata = {} if metadata is None else metadata
        if not isinstance(metadata, Mapping) and not callable(metadata):
            raise TypeError(
                f"metadata: expected a mapping of facts, or a function of env index and info that "
                f"returns one, got {metadata!r}"
            )
        self._function = metadata
        self._constant = checked_facts(metadata) if isinstance(metadata, Mapping) else None

    def of(self, env: int, info: Mapping[str, Any], place: int) -> Mapping[str, object]:
        """Facts about an episode that begins; ``place`` is its env's row in the reset's info."""
        if self._constant is not None:
            return self._constant
        function = cast("Callable[..., Mapping[str, object]]", self._function)
        return checked_facts(function(env, info_of(info, place)))


def info_of(info: Mapping[str, Any], place: int) -> dict[str, object]:
    """One env's part of a vector env's info; keys that the env did not give are left out."""
    found: dict[str, object] = {}
    masks = {f"_{key}" for key in info}
    for key, values in info.items():
        mask = info.get(f"_{key}")
        if key in masks:
            continue
        if mask is not None and not np.asarray(mask)[place]:
            continue
        found[key] = (
            info_of(values, place) if isinstance(values, Mapping) else _value_at(values, place)
        )
    return found


def value_of(info: Mapping[str, Any], key: str, place: int) -> object:
    """One env's value of one key of a vector env's info; None where the env gave none."""
    mask = info.get(f"_{key}")
    if key not in info or (mask is not None and not mask[place]):
        return None
    return _value_at(info[key], place)


def _value_at(values: Any, place: int) -> object:
    """One env's value in an array over all envs; numpy scalars become plain numbers."""
    if isinstance(values, np.ndarray) and not values.ndim:  # one for all envs
        return cast("object", values.item())
    if not isinstance(values, np.ndarray | list | tuple) or len(values) <= place:
        return cast("object", values)
    value = values[place]
    return value.item() if isinstance(value, np.generic) else cast("object", value)


def _by_dtype(values: object, places: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Groups of values of one dtype and shape, each with the rows where they belong."""
    array = values if isinstance(values, np.ndarray) else np.asarray(values, object)
    if array.ndim == 0:  # a nested info, which is a dict for all envs
        return [(np.asarray([values], object), places)]
    if not array.dtype.hasobject:
        return [(array[places], places)]
    # A masked array as it is, for `as_dtype_of` to refuse.
    return [(np.asanyarray(array[place])[None], np.array([place])) for place in places]
