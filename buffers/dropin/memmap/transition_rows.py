"""Rows of transitions, made of episodes whose fields only the user can tell apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from stepwell.buffers.dropin.memmap.declared import to_plain
from stepwell.buffers.dropin.memmap.original import OriginalEpisode
from stepwell.buffers.dropin.memmap.original_config import OriginalConfig, OriginalField
from stepwell.buffers.dropin.transition_writer import OBSERVED, spec_of
from stepwell.buffers.episode import Chunk, End
from stepwell.buffers.spec import Field, Spec, default_codec

__all__ = ["RowNames", "TransitionRows"]

_ONE: Final = ((), (1,))


@dataclass(frozen=True, slots=True, kw_only=True)
class RowNames:
    """What the fields of a step are.

    Args:
        observation: What the action was chosen from.
        action: What was chosen.
        reward: What it brought.
        terminated: Whether the MDP ended with it; None where no field tells.
        truncated: Whether the env's clock ended the episode with it; None where no field tells.
    """

    observation: str
    action: str
    reward: str
    terminated: str | None = None
    truncated: str | None = None


class TransitionRows:
    """StepLoop original episodes into chunks of rows, as a `TransitionWriter` would.

    A step's reward and flags are what its action brought, so they go with the next row. What an
    episode ended with was never stored: in its last row the observation before is repeated, and
    ``info/observed`` is False there. Other fields become ``extra/<name>``, meta fields become the
    metadata. A step with a flag ends an episode; steps behind it begin another one.

    Args:
        config: What the original's fields are.
        names: What they are for.

    Raises:
        ValueError: There is no such field, one has two purposes, or cannot have its own.
    """

    def __init__(self, config: OriginalConfig, names: RowNames) -> None:
        fields = {field.name: field for field in config.fields}
        self._names = names
        self._flags = {"terminated": names.terminated, "truncated": names.truncated}
        used = _checked_names(fields, names, self._flags)
        self._extras = [name for name in fields if name not in used]
        base = spec_of(
            _row_field("observation", fields[names.observation]),
            _row_field("action", fields[names.action]),
        )
        self.spec: Spec = base.with_more(
            [_row_field(f"extra/{name}", fields[name]) for name in self._extras]
        )

    def chunks(self, episode: OriginalEpisode, first_id: int) -> Iterator[Chunk]:
        """The rows of an episode: one chunk, or more where flags end it before its last step.

        Args:
            episode: What the original stored.
            first_id: Id of the first chunk's episode; the others follow.

        Raises:
            ValueError: A flag is neither 0 nor 1.
        """
        flags = {name: _flag(name, field, episode) for name, field in self._flags.items() if field}
        over = np.zeros(episode.steps, np.bool_)
        for flag in flags.values():
            over |= flag
        over[-1] = True
        start = 0
        metadata = {name: to_plain(value) for name, value in episode.metadata.items()}
        for number, last in enumerate(np.flatnonzero(over).tolist()):
            end = End.NONE
            for name, flag in flags.items():
                end |= End[name.upper()] if flag[last] else End.NONE
            rows = self._rows(episode.fields, start, last + 1)
            yield Chunk(first_id + number, 0, 0, end, rows, metadata)
            start = last + 1

    def _rows(
        self, fields: Mapping[str, np.ndarray], start: int, stop: int
    ) -> dict[str, np.ndarray]:
        """One more row than steps: the last one is what the last action led to."""
        names = self._names
        steps = slice(start, stop)
        observation = fields[names.observation][steps]
        reward = fields[names.reward][steps].reshape(-1).astype(np.float64)
        rows = {
            "observation": np.concatenate([observation, observation[-1:]]),
            "action": _with_zeros(fields[names.action][steps]),
            "reward": np.concatenate([np.zeros(1), reward]),
            OBSERVED.name: np.arange(stop - start + 1) < stop - start,
        }
        extras = {f"extra/{name}": _with_zeros(fields[name][steps]) for name in self._extras}
        return rows | extras


def _checked_names(
    fields: Mapping[str, OriginalField], names: RowNames, flags: Mapping[str, str | None]
) -> set[str]:
    """The fields that have a purpose."""
    main = {"observation": names.observation, "action": names.action, "reward": names.reward}
    purposes = main | {purpose: name for purpose, name in flags.items() if name is not None}
    taken: dict[str, str] = {}
    for purpose, name in purposes.items():
        if name not in fields:
            raise ValueError(
                f"{purpose}: expected one of the fields {', '.join(fields)}, got {name!r}; name "
                f"the one that it is"
            )
        if name in taken:
            raise ValueError(
                f"{purpose}: expected another field than that of {taken[name]}, got {name!r} for "
                f"both; name two"
            )
        taken[name] = purpose
        if purpose not in ("observation", "action") and fields[name].shape not in _ONE:
            raise ValueError(
                f"{purpose}: expected a field of one number a step, got {name!r} of shape "
                f"{fields[name].shape}; name another one"
            )
    return set(taken)


def _row_field(name: str, field: OriginalField) -> Field:
    return Field(name, field.dtype.name, field.shape, default_codec(field.dtype, field.shape))


def _flag(purpose: str, name: str, episode: OriginalEpisode) -> np.ndarray:
    """A field [T] as what it says of each step."""
    values = episode.fields[name].reshape(-1)
    odd = values[(values != 0) & (values != 1)]
    if odd.size:
        raise ValueError(
            f"{purpose}: expected 0 or 1 in field {name!r} at every step, got {odd[0]} in slot "
            f"{episode.slot}; name a field that tells the ends"
        )
    flag: np.ndarray = values.astype(np.bool_)
    return flag


def _with_zeros(values: np.ndarray) -> np.ndarray:
    """Values of steps, and zeros for the row in which nothing was chosen."""
    return np.concatenate([values, np.zeros_like(values[:1])])
