"""Checks values to store, and keeps the open episode in RAM until it ends.

`EpisodeBuffer`, which writes the rows of the other drop-ins, does not fit here: these steps have no
action and no observation after the last step, and an episode is stored as one chunk or not at all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping

import numpy as np

from .config import Config, check_names
from .episode_folder import EpisodeFolder

__all__ = ["OpenEpisode", "store_whole"]


class OpenEpisode:
    """The episode that is being written, if there is one; the folder stores it when it ends."""

    def __init__(self, folder: EpisodeFolder) -> None:
        self._folder = folder
        self._config = folder.config
        self._steps: dict[str, list[np.ndarray]] | None = None

    @contextlib.contextmanager
    def context(self, metas: Mapping[str, object]) -> Generator[dict[str, object]]:
        """Open an episode, and store it on leaving; an exception drops it."""
        # The dict is for fields of the episode that become known later.
        if self._steps is not None:
            raise ValueError(
                "one_episode: expected no open episode, got one; leave its block first"
            )
        self._folder.check_room()
        converted = _whole_metas(self._config, metas)
        later: dict[str, object] = {}
        self._steps = {name: [] for name in self._config.fields}
        try:
            yield later
            if later:
                check_names("one_episode", later, self._config.meta_fields)
                converted |= _converted_metas(self._config, later)
            steps = {name: np.stack(rows) for name, rows in self._steps.items() if rows}
        finally:
            self._steps = None
        if steps:
            self._folder.add(steps, converted)

    def add(self, step: Mapping[str, object]) -> None:
        """Add a step; missing fields, and those that are None, get defaults."""
        fields, most = self._config.fields, self._config.max_timesteps
        check_names("store", step, fields)
        if self._steps is None:
            raise ValueError(
                "store: expected an open episode, got none; call it within one_episode()"
            )
        if len(next(iter(self._steps.values()))) == most:
            raise ValueError(
                f"store: expected at most max_timesteps={most} steps in an episode, got "
                f"{most + 1}; make it larger"
            )
        values = {
            name: field.full(()) if step.get(name) is None else field.convert(step[name]).copy()
            for name, field in fields.items()
        }
        for name, value in values.items():
            self._steps[name].append(value)


def store_whole(folder: EpisodeFolder, data: Mapping[str, object]) -> None:
    """Check, convert and store a whole episode: fields of steps ``[T, ...]`` and of the episode."""
    config = folder.config
    check_names("store_episode", data, {**config.fields, **config.meta_fields})
    given = {
        name: config.fields[name].convert(value, (-1,))
        for name, value in data.items()
        if name in config.fields
    }
    lengths = {name: len(values) for name, values in given.items()}
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
    metas = {name: value for name, value in data.items() if name in config.meta_fields}
    folder.add(
        {
            name: given[name] if name in given else field.full((steps,))
            for name, field in config.fields.items()
        },
        _whole_metas(config, metas),
    )


def _whole_metas(config: Config, metas: Mapping[str, object]) -> dict[str, np.ndarray]:
    """All fields of an episode; missing ones get defaults."""
    if metas:
        check_names("meta fields", metas, config.meta_fields)
    defaults = {name: field.full(()) for name, field in config.meta_fields.items()}
    return defaults | _converted_metas(config, metas)


def _converted_metas(config: Config, metas: Mapping[str, object]) -> dict[str, np.ndarray]:
    fields = config.meta_fields
    return {name: fields[name].convert(value).copy() for name, value in metas.items()}
