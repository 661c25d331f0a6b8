"""Converts episodes of memmap-replay-buffer to rows of transitions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from stepwell.buffers.dropin.memmap.config import Config, MemmapField, to_plain
from stepwell.buffers.dropin.memmap.original import OriginalEpisode
from stepwell.buffers.episode import Chunk, End
from stepwell.buffers.spec import Field, Spec, default_codec

__all__ = ["RowNames", "TransitionRows"]

_SCALAR: Final = ((), (1,))
_OBSERVED = Field("info/observed", "bool", (), "narrow")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowNames:
    """The original's fields that become the fields of transitions.

    Args:
        observation: The observation that the action was chosen from.
        action: The action.
        reward: The reward that followed.
        terminated: 1 where the MDP ended with the step; None if there is no such field.
        truncated: 1 where a time limit ended the episode; None if there is no such field.
    """

    observation: str
    action: str
    reward: str
    terminated: str | None = None
    truncated: str | None = None


class TransitionRows:
    """Converts original episodes to rows like those of a Collector.

    Rewards and flags move to the row after their step. The original has no observation after an
    episode's last step: the last row repeats the one before, and its ``info/observed`` is False.
    Other fields of steps become ``extra/<name>``, fields of episodes become the metadata. A step
    with a flag ends an episode; the steps after it start another one.

    Args:
        config: The original's arguments.
        names: Its fields by purpose.

    Raises:
        ValueError: There is no such field, one has two purposes, or a shape does not fit.
    """

    def __init__(self, config: Config, names: RowNames) -> None:
        fields = config.fields
        flags = {"terminated": names.terminated, "truncated": names.truncated}
        self._flags = {flag: name for flag, name in flags.items() if name is not None}
        main = {"observation": names.observation, "action": names.action, "reward": names.reward}
        _check_purposes(fields, main | self._flags)
        self._names = names
        used = {*main.values(), *self._flags.values()}
        self._extras = [name for name in fields if name not in used]
        self.spec = Spec(
            (
                _row_field("observation", fields[names.observation]),
                _row_field("action", fields[names.action]),
                Field("reward", "float64", (), "narrow"),
                _OBSERVED,
                *(_row_field(f"extra/{name}", fields[name]) for name in self._extras),
            ),
            "observation",
            "action",
        )

    def chunks(self, episode: OriginalEpisode, first_id: int) -> Iterator[Chunk]:
        """The rows of an episode: one chunk, or more if flags end it before its last step.

        Args:
            episode: The original's episode.
            first_id: Episode id of the first chunk; the others follow.

        Raises:
            ValueError: A flag is neither 0 nor 1.
        """
        flags = {flag: _as_bools(flag, name, episode) for flag, name in self._flags.items()}
        is_last = np.zeros(episode.steps, np.bool_)
        for values in flags.values():
            is_last |= values
        is_last[-1] = True
        metadata = {name: to_plain(value) for name, value in episode.metadata.items()}
        start = 0
        for number, last in enumerate(np.flatnonzero(is_last).tolist()):
            end = End.NONE
            for flag, values in flags.items():
                end |= End[flag.upper()] if values[last] else End.NONE
            rows = self._rows(episode.fields, slice(start, last + 1))
            yield Chunk(first_id + number, 0, 0, end, rows, metadata)
            start = last + 1

    def _rows(self, fields: Mapping[str, np.ndarray], steps: slice) -> dict[str, np.ndarray]:
        """Rows of some steps: one more than there are steps."""
        observation = fields[self._names.observation][steps]
        reward = fields[self._names.reward][steps].reshape(-1).astype(np.float64)
        rows = {
            "observation": np.concatenate([observation, observation[-1:]]),
            "action": _with_zeros(fields[self._names.action][steps]),
            "reward": np.concatenate([np.zeros(1), reward]),
            _OBSERVED.name: np.arange(len(reward) + 1) < len(reward),
        }
        return rows | {f"extra/{name}": _with_zeros(fields[name][steps]) for name in self._extras}


def _check_purposes(fields: Mapping[str, MemmapField], purposes: Mapping[str, str]) -> None:
    """Raise ValueError for an unknown field, one with two purposes, or one of a wrong shape."""
    used: dict[str, str] = {}
    for purpose, name in purposes.items():
        if name not in fields:
            raise ValueError(
                f"{purpose}: expected one of the fields {', '.join(fields)}, got {name!r}; name "
                f"another one"
            )
        if name in used:
            raise ValueError(
                f"{purpose}: expected another field than that of {used[name]}, got {name!r} for "
                f"both; name two"
            )
        used[name] = purpose
        if purpose not in ("observation", "action") and fields[name].shape not in _SCALAR:
            raise ValueError(
                f"{purpose}: expected a field of one number a step, got {name!r} of shape "
                f"{fields[name].shape}; name another one"
            )


def _row_field(name: str, field: MemmapField) -> Field:
    return Field(name, field.dtype.name, field.shape, default_codec(field.dtype, field.shape))


def _as_bools(flag: str, name: str, episode: OriginalEpisode) -> np.ndarray:
    """A field of flags as bools [T]."""
    values = episode.fields[name].reshape(-1)
    odd = values[(values != 0) & (values != 1)]
    if odd.size:
        raise ValueError(
            f"{flag}: expected 0 or 1 in field {name!r} at every step, got {odd[0]} in slot "
            f"{episode.slot}; name a field that marks the ends"
        )
    bools: np.ndarray = values.astype(np.bool_)
    return bools


def _with_zeros(values: np.ndarray) -> np.ndarray:
    """Values of steps, and zeros for the last row, in which no action was chosen."""
    return np.concatenate([values, np.zeros_like(values[:1])])
