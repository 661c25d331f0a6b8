"""Changes of stored episodes, gathered and checked before any of them is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from stepwell.buffers.dropin.memmap.declared import DeclaredField, as_array
from stepwell.buffers.dropin.memmap.episode_folder import EpisodeFolder
from stepwell.buffers.dropin.memmap.episode_rows import EpisodeRows
from stepwell.buffers.dropin.memmap.staging import check_step, checked_metas, checked_names
from stepwell.buffers.dropin.memmap.updates import Changes

__all__ = ["Revision", "chosen_slots", "revise", "revise_metas", "revise_step"]


class Revision:
    """Changes that are made together.

    Args:
        folder: Where the episodes are.
    """

    def __init__(self, folder: EpisodeFolder) -> None:
        self._folder = folder
        self._rows = EpisodeRows(folder)
        self._changes = Changes({}, {})

    @property
    def episodes(self) -> int:
        """How many there are: their slots are 0 to one less."""
        return len(self._rows.numbers)

    def update(self, slots: np.ndarray, name: str, value: object, *, is_one: bool) -> None:
        """Set a field of whole episodes, as `ReplayBuffer.update` tells.

        Args:
            slots: [E] which episodes.
            name: The field.
            value: What it is set to: ``[E or 1, T, *shape]``, or ``[E or 1, *shape]``.
            is_one: The value comes without the axis of the episodes.
        """
        config = self._folder.config
        is_step = name in config.fields
        field = (config.fields if is_step else config.meta_fields)[name]
        array = as_array(f"field {name!r}", value, field.dtype)
        if array.ndim == 0:
            array = array[None, None]
        elif is_one:
            array = array[None]
        lead = 1 + is_step
        if array.ndim < lead:
            raise ValueError(
                f"field {name!r}: expected values for episodes and their steps, (episodes, time, "
                f"*{field.shape}), got shape {array.shape}"
            )
        values = _broadcast(field, array, len(slots), lead)
        if is_step:
            self.steps(slots, name, 0, values)
        else:
            self.metas(slots, name, values)

    def steps(self, slots: np.ndarray, name: str, first: int, values: np.ndarray) -> None:
        """Set consecutive steps of a field.

        Args:
            slots: [E] which episodes.
            name: The field.
            first: The first of the steps; those after an episode's end are left out.
            values: [E, T, *shape].
        """
        most = self._folder.config.max_timesteps
        if first + values.shape[1] > most:
            raise ValueError(
                f"field {name!r}: expected at most max_timesteps={most} steps, got "
                f"{first + values.shape[1]}"
            )
        values = np.array(values)  # the caller's array may change
        columns = self._changes.steps.setdefault(name, {})
        lengths = self._rows.lengths[slots].tolist()
        numbers = self._rows.numbers[slots].tolist()
        if not first and not self._folder.updates.reaches(name, values.shape[1]):
            # Mostly: nothing of what was changed before shows below.
            cut = [v[:n] for v, n in zip(values, lengths, strict=True)]
            columns.update(zip(numbers, cut, strict=True))
            return
        for place, (number, length) in enumerate(zip(numbers, lengths, strict=True)):
            part = values[place, : max(0, length - first)]
            if len(part):
                columns[number] = self._joined(name, number, first, part)

    def one_step(
        self, slots: np.ndarray, step: int, name: str, value: object, lead: tuple[int, ...]
    ) -> None:
        """Set one step of a field.

        Args:
            slots: [E] which episodes.
            step: Which of their steps.
            name: The field.
            value: What it is set to, ``[*lead, *shape]``.
            lead: ``(E,)``, or nothing for one episode.
        """
        check_step(step, int(self._rows.lengths[slots].min(initial=1 << 60)))
        field = self._folder.config.fields[name]
        self.steps(slots, name, step, field.values(value, lead).reshape(-1, 1, *field.shape))

    def metas(self, slots: np.ndarray, name: str, values: np.ndarray) -> None:
        """Set a field of episodes.

        Args:
            slots: [E] which episodes.
            name: The field.
            values: [E, *shape].
        """
        numbers = self._rows.numbers[slots].tolist()
        pairs = zip(numbers, np.array(values), strict=True)
        self._changes.metas.setdefault(name, {}).update(pairs)

    def make(self) -> None:
        """Make the changes, all or none; when it returns they are durable."""
        if any(self._changes.steps.values()) or any(self._changes.metas.values()):
            self._folder.change(self._changes)

    def _joined(self, name: str, number: int, first: int, part: np.ndarray) -> np.ndarray:
        """All that is changed of an episode's steps, from its first step on."""
        before = self._folder.updates.of(name, number)
        stop = first + len(part)
        if before is None or first > len(before):
            if not first:
                return part
            before = self._rows.wholes([name], np.array([number]))[name][0, :stop]
        if not first and stop >= len(before):
            return part
        return np.concatenate([before[:first], part, before[stop:]])


def chosen_slots(indices: Any, episodes: int) -> tuple[np.ndarray, bool]:
    """Slots [E] of the episodes that are meant, and whether a single number means one.

    Args:
        indices: A number, a list, an array, a slice, or None for all.
        episodes: How many there are.

    Raises:
        ValueError: There is no such episode, or one is named twice.
    """
    if indices is None or isinstance(indices, slice):
        every = np.arange(episodes)
        return every if indices is None else every[indices], False
    given = np.asarray(indices.detach().cpu() if hasattr(indices, "detach") else indices)
    slots = np.atleast_1d(given)
    if slots.ndim != 1 or (slots.dtype.kind not in "iu" and slots.size):
        raise ValueError(
            f"indices: expected a number, a list or array of numbers, or a slice, got {indices!r}"
        )
    slots = slots.astype(np.int64)
    if len(slots) and not (0 <= int(slots.min()) and int(slots.max()) < episodes):
        raise ValueError(
            f"indices: expected episodes from 0 to {episodes - 1}, got {slots.tolist()}: only what "
            f"is stored can be changed"
        )
    if len(np.unique(slots)) < len(slots):
        raise ValueError(f"indices: expected each episode once, got {slots.tolist()}")
    return slots, given.ndim == 0


def _broadcast(field: DeclaredField, array: np.ndarray, count: int, lead: int) -> np.ndarray:
    """Values as [count, *shape] or [count, T, *shape]."""
    array = field.with_trailing(array, lead)
    own = array.shape[lead:]
    wanted = (count, *array.shape[1:lead], *field.shape)
    # What lacks axes of the field's own is the same in all of its elements.
    aligned = array.reshape(*array.shape[:lead], *(1,) * (len(field.shape) - len(own)), *own)
    try:
        return np.broadcast_to(aligned, wanted)
    except ValueError:
        raise ValueError(
            f"field {field.name!r}: expected values of shape {wanted}, or such that can be "
            f"broadcast to it, got {array.shape}"
        ) from None


def revise(folder: EpisodeFolder, indices: Any, data: Mapping[str, object]) -> None:
    """Change fields of stored episodes; `ReplayBuffer.update` tells how.

    Raises:
        ValueError: Something does not fit; nothing was changed.
    """
    checked_names("update", data, {**folder.config.fields, **folder.config.meta_fields})
    revision = Revision(folder)
    slots, is_one = chosen_slots(indices, revision.episodes)
    for name, value in data.items():
        revision.update(slots, name, value, is_one=is_one)
    revision.make()


def revise_step(
    folder: EpisodeFolder,
    indices: Any,
    step: int,
    name: str,
    value: object,
    lead: tuple[int, ...],
) -> None:
    """Change one step of stored episodes.

    Args:
        folder: Where they are.
        indices: Slots [E] of the episodes.
        step: Which of their steps.
        name: The field.
        value: ``[*lead, *shape]``.
        lead: ``(E,)``, or nothing for one episode.

    Raises:
        ValueError: Something does not fit; nothing was changed.
    """
    checked_names("store_datapoint", {name: value}, folder.config.fields)
    revision = Revision(folder)
    slots, _ = chosen_slots(indices, revision.episodes)
    revision.one_step(slots, step, name, value, lead)
    revision.make()


def revise_metas(folder: EpisodeFolder, indices: Any, name: str, values: object) -> None:
    """Change a field of stored episodes, values ``[E, *shape]``.

    Raises:
        ValueError: Something does not fit; nothing was changed.
    """
    revision = Revision(folder)
    slots, _ = chosen_slots(indices, revision.episodes)
    checked = checked_metas({name: values}, folder.config, (len(slots),))
    revision.metas(slots, name, checked[name])
    revision.make()
