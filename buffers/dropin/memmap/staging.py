"""Episodes that are being played: kept in RAM until they are whole."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from stepwell.buffers.dropin.memmap.config import Config
from stepwell.buffers.dropin.memmap.declared import DeclaredField
from stepwell.buffers.dropin.memmap.episode_folder import NewEpisode

__all__ = ["StagedEpisodes", "check_step", "checked_metas", "checked_names", "whole_episode"]

_FIRST_ROWS = 64


class StagedEpisodes:
    """One episode, or several that are as long as one another.

    Args:
        config: What they have.
        count: Episodes; None for one whose values come without an axis for that.
    """

    def __init__(self, config: Config, count: int | None) -> None:
        self.count = count
        self.steps = 0
        self._config = config
        self._lead = () if count is None else (count,)
        self._rows: dict[str, np.ndarray] = {}
        self._metas = {name: f.filled(self._lead) for name, f in config.meta_fields.items()}

    @property
    def episodes(self) -> int:
        """How many there are."""
        return 1 if self.count is None else self.count

    def add(self, given: Mapping[str, object]) -> dict[str, np.ndarray]:
        """Add a step to each.

        Args:
            given: Values by field; those that are None, or left out, get the default.

        Returns:
            The step, arrays by field.

        Raises:
            ValueError: Something does not fit; nothing was changed.
        """
        checked_names("store", given, self._config.fields)
        if self.steps >= self._config.max_timesteps:
            raise ValueError(
                f"an episode got one step more than max_timesteps: expected at most "
                f"{self._config.max_timesteps}; make it larger, or end the episode before"
            )
        step = {
            name: self._value(field, given.get(name)) for name, field in self._config.fields.items()
        }
        self._make_room(self.steps + 1)
        for name, value in step.items():
            self._rows[name][..., self.steps, :] = value.reshape(*self._lead, -1)
        self.steps += 1
        return step

    def put(self, step: int, name: str, value: object) -> None:
        """Change one value of a step that was added.

        Raises:
            ValueError: There is no such step or field, or the value does not fit.
        """
        checked_names("store_datapoint", {name: value}, self._config.fields)
        check_step(step, self.steps)
        field = self._config.fields[name]
        checked = field.values(value, self._lead)
        self._rows[name][..., step, :] = checked.reshape(*self._lead, -1)

    def put_metas(self, given: Mapping[str, object]) -> None:
        """Set fields of the episodes; all of them or none."""
        self._metas |= checked_metas(given, self._config, self._lead)

    def whole(self) -> list[NewEpisode]:
        """The episodes as they are now, in memory that the next step may change."""
        found: list[NewEpisode] = []
        for place in range(self.episodes):
            steps = {
                name: (rows if self.count is None else rows[place])[: self.steps].reshape(
                    self.steps, *self._config.fields[name].shape
                )
                for name, rows in self._rows.items()
            }
            metas = {
                name: values if self.count is None else values[place]
                for name, values in self._metas.items()
            }
            found.append(NewEpisode(steps, metas))
        return found

    def _value(self, field: DeclaredField, given: object) -> np.ndarray:
        return field.filled(self._lead) if given is None else field.values(given, self._lead)

    def _make_room(self, steps: int) -> None:
        """Let the arrays [count, rows, values] have so many rows."""
        for name, field in self._config.fields.items():
            rows = self._rows.get(name)
            there = 0 if rows is None else rows.shape[-2]
            if steps <= there:
                return
            most = self._config.max_timesteps
            more = np.empty(
                (*self._lead, min(most, max(_FIRST_ROWS, 2 * there)), int(np.prod(field.shape))),
                field.dtype,
            )
            if rows is not None:
                more[..., :there, :] = rows
            self._rows[name] = more


def checked_names(what: str, given: Mapping[str, object], known: Mapping[str, object]) -> None:
    """Refuse values without a field, and nothing at all.

    Raises:
        ValueError: With the names that there are.
    """
    if not given:
        raise ValueError(f"{what}: no data, expected some of the fields {', '.join(known)}")
    for name in given:
        if name not in known:
            raise ValueError(
                f"{what}: invalid field name {name!r}, expected some of: "
                f"{', '.join(known) or 'none: no such fields are declared'}"
            )


def checked_metas(
    given: Mapping[str, object], config: Config, lead: tuple[int, ...] = ()
) -> dict[str, np.ndarray]:
    """Values of fields of episodes as arrays ``[*lead, *shape]`` of their dtypes, in new memory.

    Raises:
        ValueError: Something does not fit.
    """
    if given:
        checked_names("meta fields", given, config.meta_fields)
    fields = config.meta_fields
    return {name: fields[name].values(value, lead).copy() for name, value in given.items()}


def whole_episode(config: Config, data: Mapping[str, object]) -> NewEpisode:
    """A whole episode out of what was given of it.

    Args:
        config: What it must have.
        data: Fields of steps ``[T, ...]``, and of the episode.

    Raises:
        ValueError: Something does not fit.
    """
    checked_names("store_episode", data, {**config.fields, **config.meta_fields})
    given = {
        name: config.fields[name].values(value, (-1,))
        for name, value in data.items()
        if name in config.fields
    }
    lengths = {name: len(values) for name, values in given.items()}
    steps = next(iter(lengths.values()), 0)
    if len(set(lengths.values())) != 1 or not steps:
        raise ValueError(
            f"all fields must have the same time dimension: expected one step at least, and as "
            f"many in each field of steps, got {lengths or 'no field of steps'}"
        )
    if steps > config.max_timesteps:
        raise ValueError(
            f"an episode of {steps} steps: expected at most max_timesteps={config.max_timesteps}; "
            f"make it larger"
        )
    all_steps = {
        name: given[name] if name in given else field.filled((steps,))
        for name, field in config.fields.items()
    }
    metas = {name: value for name, value in data.items() if name in config.meta_fields}
    defaults = {name: field.filled(()) for name, field in config.meta_fields.items()}
    return NewEpisode(all_steps, defaults | checked_metas(metas, config))


def check_step(step: int, steps: int) -> None:
    """Refuse a step that an episode does not have.

    Raises:
        ValueError: With how many it has.
    """
    if not 0 <= step < steps:
        raise ValueError(f"timestep_index: expected one from 0 to {steps - 1}, got {step}")
