"""Checks values to store or change, and keeps open episodes in RAM until they end.

`EpisodeBuffer`, which writes the rows of the other drop-ins, does not fit here: these steps have no
action and no observation after the last step, a step may change until its episode ends, and an
episode is stored as one chunk or not at all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping
from typing import Any

import numpy as np

from stepwell.buffers.dropin.memmap.config import (
    Config,
    MemmapField,
    as_array,
    as_numpy,
    check_names,
)
from stepwell.buffers.dropin.memmap.episode_folder import EpisodeFolder, NewEpisode, SlotReader
from stepwell.buffers.dropin.memmap.updates import Changes
from stepwell.buffers.whole_numbers import whole_number

__all__ = ["Edit", "OpenEpisodes", "batch_size_of", "whole_episode"]

_FIRST_ROWS = 64


class OpenEpisodes:
    """One open episode, or a batch of open episodes of equal length.

    Args:
        folder: Stores them when they end.
    """

    def __init__(self, folder: EpisodeFolder) -> None:
        self._folder = folder
        self._config = folder.config
        self._is_in_context = False
        self.discard()

    def discard(self) -> None:
        """Drop the open episodes."""
        self._is_open = False
        self._count: int | None = None  # None: one episode, whose values have no batch axis
        self._lead: tuple[int, ...] = ()
        self._rows: dict[str, np.ndarray] = {}
        self._metas: dict[str, np.ndarray] = {}
        self.steps = 0
        """Steps of each open episode so far."""

    @contextlib.contextmanager
    def context(
        self, count: int | None, metas: Mapping[str, object]
    ) -> Generator[dict[str, object]]:
        """Open episodes, and store them on leaving; an exception drops them.

        Args:
            count: Size of the batch; None for one episode without a batch axis.
            metas: Fields of the episodes.

        Yields:
            A dict for fields of the episodes that become known later.

        Raises:
            ValueError: There is no room, or an episode is open already.
        """
        if count is not None:
            whole_number("batch_size", count, 1)
        if self._is_open or self._is_in_context:
            raise ValueError(
                f"one episode at a time: expected no open episode, got one of {self.steps} steps; "
                f"end it with advance_episode(), or discard_episode()"
            )
        later: dict[str, object] = {}
        self.set_metas(count, metas)
        self._is_in_context = True
        try:
            yield later
            self._metas |= _converted_metas(later, self._config, self._lead)
        except BaseException:
            self.discard()
            raise
        finally:
            self._is_in_context = False
        self._store()

    def add(self, count: int | None, step: Mapping[str, object]) -> dict[str, np.ndarray]:
        """Add a step to each open episode, and open them first if there are none.

        Args:
            count: Size of the batch; None for one episode without a batch axis.
            step: Values by field; missing fields, and those that are None, get the default.

        Returns:
            The step as arrays by field.

        Raises:
            ValueError: A value does not fit, other episodes are open, or there is no room; nothing
                was added.
        """
        lead = self._checked_lead(count)
        fields, most = self._config.fields, self._config.max_timesteps
        check_names("store", step, fields)
        if self.steps >= most:
            raise ValueError(
                f"an episode got one step more than max_timesteps: expected at most {most}; make "
                f"it larger, or end the episode before"
            )
        values = {
            name: field.full(lead) if step.get(name) is None else field.convert(step[name], lead)
            for name, field in fields.items()
        }
        self._open(count)
        self._reserve(self.steps + 1)
        for name, value in values.items():
            self._rows[name][..., self.steps, :] = value.reshape(*lead, -1)
        self.steps += 1
        return values

    def set_metas(self, count: int | None, metas: Mapping[str, object]) -> None:
        """Set fields of the open episodes, and open them first if there are none.

        Args:
            count: Size of the batch; None for one episode without a batch axis.
            metas: Values by field.

        Raises:
            ValueError: A value does not fit, other episodes are open, or there is no room; nothing
                was changed.
        """
        converted = _converted_metas(metas, self._config, self._checked_lead(count))
        self._open(count)
        self._metas |= converted

    def set_step(self, step: int, name: str, value: object) -> None:
        """Change one value of a step.

        Raises:
            ValueError: There is no such step or field, or the value does not fit.
        """
        check_names("store_datapoint", {name: value}, self._config.fields)
        _check_step(step, self.steps)
        array = self._config.fields[name].convert(value, self._lead)
        self._rows[name][..., step, :] = array.reshape(*self._lead, -1)

    def advance(self, count: int) -> None:
        """End the open episodes and store them; does nothing without any.

        Raises:
            ValueError: The number of open episodes differs, or they have no steps.
        """
        if not self._is_open:
            return
        whole_number("batch_size", count, 1)
        if not self.steps:
            raise ValueError(
                "advance_episode: expected an episode of at least one step, got fields of episodes "
                "alone; store a step, or discard_episode()"
            )
        batch = 1 if self._count is None else self._count
        if count != batch:
            raise ValueError(
                f"advance_episode: expected batch_size={batch}, as many as were stored together, "
                f"got {count}"
            )
        if self._is_in_context:
            raise ValueError(
                "advance_episode: expected a call outside of one_episode, which ends the episode "
                "itself; leave one of the two out"
            )
        self._store()

    def is_at(self, slot: int) -> bool:
        """True if a slot is that of the one open episode, and not of a stored one."""
        total, most = self._folder.total, self._config.max_episodes
        return self._is_open and self._count is None and slot == total < most

    def _checked_lead(self, count: int | None) -> tuple[int, ...]:
        """Axes before those of a field, after checking that a batch fits the open episodes."""
        if not self._is_open:
            self._folder.check_room(1 if count is None else count)
        elif self._count != count:
            got, expected = (
                "1 episode, by store()" if n is None else f"{n} episodes"
                for n in (count, self._count)
            )
            raise ValueError(f"expected steps for {expected}, got steps for {got}; end those first")
        return () if count is None else (count,)

    def _open(self, count: int | None) -> None:
        if not self._is_open:
            self._is_open, self._count = True, count
            self._lead = () if count is None else (count,)
            fields = self._config.meta_fields
            self._metas = {name: field.full(self._lead) for name, field in fields.items()}

    def _reserve(self, steps: int) -> None:
        """Make room for a number of steps in the arrays [*lead, rows, values]."""
        for name, field in self._config.fields.items():
            rows = self._rows.get(name)
            room = 0 if rows is None else rows.shape[-2]
            if steps <= room:
                return
            most = min(self._config.max_timesteps, max(_FIRST_ROWS, 2 * room))
            more = np.empty((*self._lead, most, int(np.prod(field.shape))), field.dtype)
            if rows is not None:
                more[..., :room, :] = rows
            self._rows[name] = more

    def _store(self) -> None:
        """Store the open episodes; those without steps are dropped."""
        rows = self._rows
        places: list[tuple[int, ...]] = [()]
        if self._count is not None:
            places = [(place,) for place in range(self._count)]
        fields, length = self._config.fields, self.steps
        episodes = [
            NewEpisode(
                {n: r[place][:length].reshape(length, *fields[n].shape) for n, r in rows.items()},
                {name: values[place] for name, values in self._metas.items()},
            )
            for place in places
        ]
        self.discard()
        if length:
            self._folder.add(episodes)


class Edit:
    """Changes of stored episodes, which are checked before any of them is made.

    Args:
        folder: The folder of the episodes.
        indices: Their slots: a number, a list, an array, a slice, or None for all.

    Raises:
        ValueError: There is no such episode, or a slot is given twice.
    """

    def __init__(self, folder: EpisodeFolder, indices: Any) -> None:
        self._folder = folder
        self._reader = SlotReader(folder)
        self._changes = Changes({}, {})
        self._slots, self._is_one = _chosen_slots(indices, len(self._reader.numbers))

    def set_fields(self, data: Mapping[str, object]) -> None:
        """Set fields of the whole episodes, see `ReplayBuffer.update`.

        Raises:
            ValueError: A name is unknown, or a value does not fit.
        """
        config = self._folder.config
        check_names("update", data, {**config.fields, **config.meta_fields})
        for name, value in data.items():
            is_step = name in config.fields
            field = (config.fields if is_step else config.meta_fields)[name]
            array = as_array(f"field {name!r}", value, field.dtype)
            if array.ndim == 0:
                array = array[None, None]
            elif self._is_one:
                array = array[None]
            if array.ndim < 1 + is_step:
                raise ValueError(
                    f"field {name!r}: expected values for episodes and their steps, (episodes, "
                    f"time, *{field.shape}), got shape {array.shape}"
                )
            values = _broadcast(field, array, len(self._slots), 1 + is_step)
            if is_step:
                self._set_steps(name, 0, values)
            else:
                self._set_metas(name, values)

    def set_step(self, step: int, name: str, value: object, lead: tuple[int, ...]) -> None:
        """Set a field of one step of each episode.

        Args:
            step: Position in the episodes.
            name: The field.
            value: ``[*lead, *shape]``.
            lead: ``(E,)``, or empty for one episode.

        Raises:
            ValueError: There is no such step or field, or the value does not fit.
        """
        check_names("store_datapoint", {name: value}, self._folder.config.fields)
        _check_step(step, int(self._reader.lengths[self._slots].min(initial=1 << 60)))
        field = self._folder.config.fields[name]
        self._set_steps(name, step, field.convert(value, lead).reshape(-1, 1, *field.shape))

    def set_metas(self, name: str, values: object) -> None:
        """Set a field of the episodes, values ``[E, *shape]``.

        Raises:
            ValueError: There is no such field, or the values do not fit.
        """
        lead = (len(self._slots),)
        self._set_metas(name, _converted_metas({name: values}, self._folder.config, lead)[name])

    def commit(self) -> None:
        """Make the changes, all or none; they are durable when this returns."""
        if any(self._changes.steps.values()) or any(self._changes.metas.values()):
            self._folder.change(self._changes)

    def _set_steps(self, name: str, first: int, values: np.ndarray) -> None:
        """Set steps of a field from a first one on, values [E, T, *shape].

        Values after an episode's end are left out.
        """
        most = self._folder.config.max_timesteps
        if first + values.shape[1] > most:
            raise ValueError(
                f"field {name!r}: expected at most max_timesteps={most} steps, got "
                f"{first + values.shape[1]}"
            )
        values = np.array(values)  # the caller may change its array later
        columns = self._changes.steps.setdefault(name, {})
        lengths = self._reader.lengths[self._slots].tolist()
        numbers = self._reader.numbers[self._slots].tolist()
        if not first and not self._folder.updates.exceeds(name, values.shape[1]):
            # The usual case: the new values replace all earlier changes.
            cut = [v[:n] for v, n in zip(values, lengths, strict=True)]
            columns.update(zip(numbers, cut, strict=True))
            return
        for place, (number, length) in enumerate(zip(numbers, lengths, strict=True)):
            part = values[place, : max(0, length - first)]
            if len(part):
                columns[number] = self._joined(name, number, first, part)

    def _set_metas(self, name: str, values: np.ndarray) -> None:
        numbers = self._reader.numbers[self._slots].tolist()
        pairs = zip(numbers, np.array(values), strict=True)
        self._changes.metas.setdefault(name, {}).update(pairs)

    def _joined(self, name: str, number: int, first: int, part: np.ndarray) -> np.ndarray:
        """New values joined with the earlier changes of an episode, from its first step on."""
        before = self._folder.updates.of(name, number)
        stop = first + len(part)
        if before is None or first > len(before):
            if not first:
                return part
            before = self._reader.episodes([name], np.array([number]))[name][0, :stop]
        if not first and stop >= len(before):
            return part
        return np.concatenate([before[:first], part, before[stop:]])


def whole_episode(config: Config, data: Mapping[str, object]) -> NewEpisode:
    """Check and convert a whole episode.

    Args:
        config: The buffer's configuration.
        data: Fields of steps ``[T, ...]`` and fields of the episode.

    Raises:
        ValueError: A name is unknown, or a value does not fit.
    """
    check_names("store_episode", data, {**config.fields, **config.meta_fields})
    converted = {
        name: config.fields[name].convert(value, (-1,))
        for name, value in data.items()
        if name in config.fields
    }
    lengths = {name: len(values) for name, values in converted.items()}
    steps = next(iter(lengths.values()), 0)
    if len(set(lengths.values())) != 1 or not steps:
        raise ValueError(
            f"all fields must have the same time dimension: expected at least one step, and as "
            f"many in each field of steps, got {lengths or 'none of ' + ', '.join(config.fields)}"
        )
    if steps > config.max_timesteps:
        raise ValueError(
            f"an episode of {steps} steps: expected at most max_timesteps={config.max_timesteps}; "
            f"make it larger"
        )
    all_steps = {
        name: converted[name] if name in converted else field.full((steps,))
        for name, field in config.fields.items()
    }
    metas = {name: value for name, value in data.items() if name in config.meta_fields}
    defaults = {name: field.full(()) for name, field in config.meta_fields.items()}
    return NewEpisode(all_steps, defaults | _converted_metas(metas, config, ()))


def batch_size_of(data: Mapping[str, object]) -> int:
    """Length of the batch axis of some values.

    Raises:
        ValueError: They have no such axis.
    """
    name, value = next(iter(data.items()))
    sized: Any = value
    try:
        return len(sized)
    except TypeError:
        raise ValueError(
            f"{name!r}: expected values [batch, ...], got {value!r}; store() takes those of one "
            f"episode"
        ) from None


def _converted_metas(
    metas: Mapping[str, object], config: Config, lead: tuple[int, ...]
) -> dict[str, np.ndarray]:
    """Fields of episodes as arrays ``[*lead, *shape]`` of their dtypes, in new memory."""
    if metas:
        check_names("meta fields", metas, config.meta_fields)
    fields = config.meta_fields
    return {name: fields[name].convert(value, lead).copy() for name, value in metas.items()}


def _check_step(step: int, steps: int) -> None:
    if not 0 <= step < steps:
        raise ValueError(f"timestep_index: expected one from 0 to {steps - 1}, got {step}")


def _chosen_slots(indices: Any, episodes: int) -> tuple[np.ndarray, bool]:
    """Slots [E] of some indices, and whether they are a single number.

    Args:
        indices: A number, a list, an array, a slice, or None for all.
        episodes: Number of stored episodes.

    Raises:
        ValueError: There is no such episode, or a slot is given twice.
    """
    if indices is None or isinstance(indices, slice):
        every = np.arange(episodes)
        return every if indices is None else every[indices], False
    array = as_numpy(indices)
    slots = np.atleast_1d(array)
    if slots.ndim != 1 or (slots.dtype.kind not in "iu" and slots.size):
        raise ValueError(
            f"indices: expected a number, a list or array of numbers, or a slice, got {indices!r}"
        )
    slots = slots.astype(np.int64)
    if len(slots) and not (0 <= int(slots.min()) and int(slots.max()) < episodes):
        raise ValueError(
            f"indices: expected episodes from 0 to {episodes - 1}, got {slots.tolist()}: only "
            f"stored episodes can be changed"
        )
    if len(np.unique(slots)) < len(slots):
        raise ValueError(f"indices: expected each episode once, got {slots.tolist()}")
    return slots, array.ndim == 0


def _broadcast(field: MemmapField, array: np.ndarray, count: int, lead: int) -> np.ndarray:
    """Values as [count, *shape] or [count, T, *shape]."""
    array = field.fit_trailing(array, lead)
    own = array.shape[lead:]
    wanted = (count, *array.shape[1:lead], *field.shape)
    # Missing axes of the field's own shape are broadcast, too.
    aligned = array.reshape(*array.shape[:lead], *(1,) * (len(field.shape) - len(own)), *own)
    try:
        return np.broadcast_to(aligned, wanted)
    except ValueError:
        raise ValueError(
            f"field {field.name!r}: expected values that broadcast to the shape {wanted}, got "
            f"{array.shape}; reshape them"
        ) from None
