"""What named columns are in a row, and the other way round."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self, cast

import numpy as np

from stepwell.buffers.dropin.ring import row_field
from stepwell.buffers.sampling.batch import Batch
from stepwell.buffers.spec import Codec, Field, Spec

__all__ = ["FLAGS", "ArrivalRows", "Column"]

FLAGS = ("is_first", "is_last", "cut", "mask")
"""What can be asked for beside the columns."""

_PER_ENV = ("rewards", "terminations", "truncations")
_NEEDED = ("obs", "actions", *_PER_ENV)
_FIELDS = {"obs": "observation", "actions": "action", "rewards": "reward"}
# Batches give rewards as float32, which holds all of these.
_EXACT_REWARDS = frozenset("float32 float16 bool int8 uint8 int16 uint16".split())


class Column(NamedTuple):
    """One column.

    Args:
        key: Its name.
        dtype: Its dtype.
        shape: Shape of one env's value.
    """

    key: str
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]


class ArrivalRows:
    """The columns of rows that are made before each step: what arrived, and what was chosen.

    ``obs``, ``rewards``, ``terminations``, ``truncations`` and ``actions`` have their places in a
    row; other columns are stored as ``info/...``. Rewards that float32 cannot hold are stored as
    ``info/rewards`` too.

    Args:
        columns: In the order in which they are handed out.
    """

    def __init__(self, columns: Sequence[Column]) -> None:
        self.columns = {column.key: column for column in columns}
        self._are_rewards_exact = self.columns["rewards"].dtype.name in _EXACT_REWARDS
        self._info = [(key, "info/" + key) for key in self.columns if self._is_info(key)]

    @classmethod
    def of(cls, experience: Mapping[str, np.ndarray]) -> Self:
        """The columns of the first rows.

        Args:
            experience: Arrays [N, ...] by name.

        Raises:
            ValueError: A column is missing, or holds no numbers.
        """
        missing = [key for key in _NEEDED if key not in experience]
        if missing:
            raise ValueError(
                f"experience: expected the keys {', '.join(_NEEDED)}, got none of the name "
                f"{', '.join(missing)}; give all of them"
            )
        columns: list[Column] = []
        for key, values in experience.items():
            array = np.asarray(values)
            if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8 or not array.ndim:
                raise ValueError(
                    f"{key}: expected an array of numbers with one entry for each env, got "
                    f"{array.dtype} {array.shape}; leave the key out or make numbers of it"
                )
            if key in _PER_ENV and array.ndim != 1:
                raise ValueError(
                    f"{key}: expected one number for each env, got shape {array.shape}; reshape it"
                )
            columns.append(Column(key, array.dtype, array.shape[1:]))
        return cls(columns)

    @classmethod
    def from_json(cls, described: object) -> Self:
        """The columns that `to_json` described."""
        entries = cast("list[tuple[str, str, list[int]]]", described)
        return cls([Column(key, np.dtype(dtype), tuple(shape)) for key, dtype, shape in entries])

    def to_json(self) -> list[list[object]]:
        """Plain data."""
        return [[c.key, c.dtype.name, list(c.shape)] for c in self.columns.values()]

    def spec(self, path: str | os.PathLike[str] | None, codec: Codec | None) -> Spec:
        """The fields of a row.

        Args:
            path: Folder of the store; None in RAM.
            codec: How observations are kept; None for what fits.
        """
        obs, actions = self.columns["obs"], self.columns["actions"]
        fields = [
            row_field("observation", obs.dtype, obs.shape, path=path, codec=codec),
            row_field("action", actions.dtype, actions.shape, path=path),
            Field("reward", "float64", (), "narrow"),
        ]
        for key, name in self._info:
            column = self.columns[key]
            fields.append(row_field(name, column.dtype, column.shape, path=path))
        return Spec(tuple(fields), "observation", "action")

    def checked(self, experience: Mapping[str, np.ndarray], num_envs: int) -> dict[str, np.ndarray]:
        """Rows of all envs as declared.

        Args:
            experience: Arrays [N, ...] by name.
            num_envs: Number of envs N.

        Raises:
            ValueError: It has other columns, or one is of another shape, or of a dtype of which the
                first one does not hold every value.
        """
        if experience.keys() != self.columns.keys():
            raise ValueError(
                f"experience: expected the keys {', '.join(self.columns)}, got "
                f"{', '.join(experience) or 'none'}; give the same ones each time"
            )
        found: dict[str, np.ndarray] = {}
        for key, dtype, shape in self.columns.values():
            values, wanted = experience[key], (num_envs, *shape)
            if type(values) is not np.ndarray or values.dtype != dtype or values.shape != wanted:
                values = as_column(key, values, dtype, wanted)
            found[key] = values
        for key in ("terminations", "truncations"):
            flags = found[key]
            if flags.dtype != np.bool_ and not np.isin(flags, (0, 1)).all():
                raise ValueError(
                    f"{key}: expected only 0 and 1, got {flags.min()} to {flags.max()}; give flags"
                )
        return found

    def arrived(self, given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The fields that come with an observation."""
        rows = {
            "observation": given["obs"],
            "reward": given["rewards"].astype(np.float64, copy=False),
        }
        for key, name in self._info:
            rows[name] = given[key]
        return rows

    def handed_out(self, batch: Batch, flags: Sequence[str]) -> dict[str, np.ndarray]:
        """A batch as columns [B, L, ...], in their own dtypes."""
        truncated = batch.truncated.copy()
        # Where the recording stopped and another episode follows, a learner that looks for flags
        # must see one, and may bootstrap.
        truncated[:, :-1] |= batch.cut[:, :-1] & batch.is_first[:, 1:]
        known: dict[str, np.ndarray] = {
            "obs": batch.observation,
            "actions": batch.action,
            "rewards": batch.reward,
            "terminations": batch.terminated,
            "truncations": truncated,
            **batch.info,
        }
        columns: dict[str, np.ndarray] = {
            key: known[key].astype(column.dtype, copy=False) for key, column in self.columns.items()
        }
        return columns | {name: getattr(batch, name) for name in flags}

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields that are needed to hand out all columns."""
        rewards = ("reward",) if self._are_rewards_exact else ()
        return ("observation", "action", *rewards, *(name for _, name in self._info))

    def _is_info(self, key: str) -> bool:
        return key not in _NEEDED or (key == "rewards" and not self._are_rewards_exact)


def as_column(
    what: str, values: object, dtype: np.dtype[np.generic], shape: tuple[int, ...]
) -> np.ndarray:
    """Values as an array of exactly this shape, in a dtype that holds every one.

    Raises:
        ValueError: The shape is another one, or the dtype does not hold what the values' own does.
    """
    array = np.asarray(values)
    if array.shape != shape:
        raise ValueError(
            f"{what}: expected shape {shape}, got {array.shape}; give an array of all envs, each "
            f"with the same shape"
        )
    if array.dtype == dtype:
        return array
    is_wider = array.dtype.kind == dtype.kind or array.dtype.itemsize < dtype.itemsize
    if not (is_wider and np.can_cast(array.dtype, dtype, "safe")):
        raise ValueError(
            f"{what}: expected {dtype} like the first one, got {array.dtype}; convert it as it is "
            f"meant first, from the first row on"
        )
    return array.astype(dtype)
