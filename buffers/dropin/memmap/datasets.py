"""What a buffer holds as datasets that PyTorch's DataLoader takes, read a batch at a time."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stepwell.buffers.dropin.memmap.dataset_base import EpisodeDataset, Items, Source, Values
from stepwell.buffers.dropin.memmap.episode_rows import EpisodeRows

__all__ = [
    "Items",
    "ReplayDataset",
    "ReplayDatasetNStep",
    "ReplayDatasetTimeWindow",
    "ReplayDatasetTimestep",
    "ReplayDatasetTrajectory",
]


class ReplayDatasetTrajectory(EpisodeDataset):
    """Whole episodes.

    Args:
        replay_buffer: The buffer, or its folder.
        fields: Names of the fields of steps to give out; None for all.
        fieldname_map: Other names for what is given out.
        include_metadata: Give the fields of episodes too.
        filter_meta: Only episodes of which these fields have these values.
        filter_fields: Not for whole episodes.
        return_indices: Give the episode's slot, ``_index``.
        slice_by_episode_len: Only the episode's own steps; else ``max_timesteps``, with the fields'
            defaults after its end.
        return_episode_lens: Give the number of steps, ``_lens``.

    Raises:
        ValueError: An argument names no field, or arguments do not go together.
        ImportError: PyTorch is not installed.
    """

    def __init__(
        self,
        replay_buffer: Source,
        fields: Sequence[str] | None = None,
        fieldname_map: Mapping[str, str] | None = None,
        include_metadata: bool = True,
        filter_meta: Mapping[str, object] | None = None,
        filter_fields: Mapping[str, object] | None = None,
        return_indices: bool = False,
        slice_by_episode_len: bool = True,
        return_episode_lens: bool = True,
    ) -> None:
        if filter_fields is not None:
            raise ValueError(
                "filter_fields: expected a dataset of steps, got whole episodes; give "
                "timestep_level=True or n_steps, or leave it out"
            )
        if not slice_by_episode_len and not return_episode_lens:
            raise ValueError(
                "slice_by_episode_len=False: expected return_episode_lens=True, for nothing else "
                "tells where an episode ends"
            )
        super().__init__(
            replay_buffer, fieldname_map, include_metadata, filter_meta, return_indices
        )
        self.fields = self._known("fields", fields, tuple(self._config.fields))
        self.slice_by_episode_len = slice_by_episode_len
        self.return_episode_lens = return_episode_lens

    @property
    def padded(self) -> frozenset[str]:
        """Names, as they are handed out, of what is padded in time."""
        return frozenset(self._name(name) for name in self.fields)

    def _read(self, places: np.ndarray) -> Values:
        chosen = self._places[places]
        rows = self.rows
        numbers, lengths = rows.numbers[chosen], rows.lengths[chosen]
        values = rows.wholes(self.fields, numbers)
        if not self.slice_by_episode_len:
            values = {name: self._filled(name, v, lengths) for name, v in values.items()}
        values |= rows.metas(self._metas, numbers)
        if self.return_episode_lens:
            values["_lens"] = lengths
        if self.return_indices:
            values["_index"] = rows.slots[chosen]
        return values

    def _lengths_of(self, places: np.ndarray) -> Sequence[int] | None:
        if not self.slice_by_episode_len:
            return None
        lengths: list[int] = self._rows.lengths[self._places[places]].tolist()
        return lengths

    def _filled(self, name: str, values: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        field, most = self._config.fields[name], self._config.max_timesteps
        filled = field.filled((len(values), most))
        is_step = np.arange(most) < lengths[:, None]
        filled[is_step] = values[is_step[:, : values.shape[1]]]
        return filled


ReplayDataset = ReplayDatasetTrajectory


class ReplayDatasetTimestep(EpisodeDataset):
    """Single steps of all episodes.

    Args:
        replay_buffer: The buffer, or its folder.
        fields: Names of the fields of steps to give out; None for all.
        fieldname_map: Other names for what is given out.
        return_indices: Give the episode's slot and the step, ``_indices`` [2].
        include_metadata: Give the fields of the step's episode too.
        filter_meta: Only episodes of which these fields have these values.
        filter_fields: Only steps of which these fields, of one number each, have these values.

    Raises:
        ValueError: An argument names no field.
        ImportError: PyTorch is not installed.
    """

    def __init__(
        self,
        replay_buffer: Source,
        fields: Sequence[str] | None = None,
        fieldname_map: Mapping[str, str] | None = None,
        return_indices: bool = False,
        include_metadata: bool = True,
        filter_meta: Mapping[str, object] | None = None,
        filter_fields: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(
            replay_buffer, fieldname_map, include_metadata, filter_meta, return_indices
        )
        self.fields = self._known("fields", fields, tuple(self._config.fields))
        self._index = self._steps(1, filter_fields)

    @property
    def timepoints(self) -> Any:
        """Slot and step of each item, a tensor [N, 2] int64."""
        return self._timepoints(self._index)

    def __len__(self) -> int:
        return len(self._index)

    def _read(self, places: np.ndarray) -> Values:
        rows = self.rows
        which, steps = self._index.at(places)
        chosen = self._places[which]
        numbers = rows.numbers[chosen]
        values = rows.points(self.fields, numbers, steps)
        values |= rows.metas(self._metas, numbers)
        if self.return_indices:
            values["_indices"] = np.stack([rows.slots[chosen], steps], 1)
        return values


class ReplayDatasetNStep(EpisodeDataset):
    """Transitions of up to n steps: from step t to t + n, or to the episode's last stored step.

    Every step but an episode's last one begins one.

    Args:
        replay_buffer: The buffer, or its folder.
        n_steps: n >= 1.
        current_fields: Given of step t; None for all.
        next_fields: Given of the later step, as ``next_`` and their names; None for all.
        sequence_fields: Given of step t and those up to the later one, without it, as ``seq_`` and
            their names, [n, ...] with zeros behind; None for none.
        fieldname_map: Other names for what is given out.
        return_indices: Give the episode's slot and the step, ``_indices`` [2].
        include_metadata: Give the fields of the episode too.
        filter_meta: Only episodes of which these fields have these values.
        filter_fields: Only steps t of which these fields, of one number each, have these values.

    Raises:
        ValueError: An argument names no field.
        ImportError: PyTorch is not installed.
    """

    def __init__(
        self,
        replay_buffer: Source,
        n_steps: int,
        current_fields: Sequence[str] | None = None,
        next_fields: Sequence[str] | None = None,
        sequence_fields: Sequence[str] | None = None,
        fieldname_map: Mapping[str, str] | None = None,
        return_indices: bool = False,
        include_metadata: bool = True,
        filter_meta: Mapping[str, object] | None = None,
        filter_fields: Mapping[str, object] | None = None,
    ) -> None:
        if isinstance(n_steps, bool) or int(n_steps) != n_steps or n_steps < 1:
            raise ValueError(f"n_steps: expected a whole number >= 1, got {n_steps!r}")
        super().__init__(
            replay_buffer,
            fieldname_map,
            include_metadata,
            filter_meta,
            return_indices,
            min_episode_len=2,
        )
        self.n_steps = int(n_steps)
        every = tuple(self._config.fields)
        self.current_fields = self._known("current_fields", current_fields, every)
        self.next_fields = self._known("next_fields", next_fields, every)
        self.sequence_fields = self._known("sequence_fields", sequence_fields, ())
        self._index = self._steps(2, filter_fields)

    @property
    def timepoints(self) -> Any:
        """Slot and step of each item, a tensor [N, 2] int64."""
        return self._timepoints(self._index)

    def __len__(self) -> int:
        return len(self._index)

    def _read(self, places: np.ndarray) -> Values:
        rows = self.rows
        which, steps = self._index.at(places)
        chosen = self._places[which]
        numbers = rows.numbers[chosen]
        taken = np.minimum(self.n_steps, rows.lengths[chosen] - steps - 1)
        runs = rows.spans(self.sequence_fields, numbers, steps, self.n_steps)
        single = [name for name in self.current_fields if name not in runs]
        now, later = self._pairs(rows, single, numbers, steps, steps + taken)
        now |= {name: runs[name][:, 0].copy() for name in self.current_fields if name in runs}
        values = {name: now[name] for name in self.current_fields}
        values |= {f"next_{name}": later[name] for name in self.next_fields}
        is_after = np.arange(self.n_steps) >= taken[:, None]
        for name in self.sequence_fields:
            runs[name][is_after] = 0
            values[f"seq_{name}"] = runs[name]
        values["n_step_lens"] = taken
        values |= rows.metas(self._metas, numbers)
        if self.return_indices:
            values["_indices"] = np.stack([rows.slots[chosen], steps], 1)
        return values

    def _pairs(
        self,
        rows: EpisodeRows,
        single: Sequence[str],
        numbers: np.ndarray,
        now: np.ndarray,
        later: np.ndarray,
    ) -> tuple[Values, Values]:
        """Both steps of each item: at once where the same fields are wanted of both."""
        batch = len(numbers)
        if set(single) != set(self.next_fields):
            return (
                rows.points(single, numbers, now),
                rows.points(self.next_fields, numbers, later),
            )
        both = rows.points(single, np.tile(numbers, 2), np.concatenate([now, later]))
        return (
            {name: values[:batch] for name, values in both.items()},
            {name: values[batch:] for name, values in both.items()},
        )


class ReplayDatasetTimeWindow(EpisodeDataset):
    """A random window of each episode, padded with zeros where the episode is shorter.

    Args:
        replay_buffer: The buffer, or its folder.
        window_length: Steps of a window, >= 1.
        fields: Names of the fields of steps to give out; None for all.
        fieldname_map: Other names for what is given out.
        include_metadata: Give the fields of the episode too.
        filter_meta: Only episodes of which these fields have these values.
        return_indices: Give the episode's slot, ``_index``, and the window's first step,
            ``_start``.
        seed: Of the windows; None draws one from the system. Each worker process has a generator of
            its own.

    Raises:
        ValueError: An argument names no field.
        ImportError: PyTorch is not installed.
    """

    def __init__(
        self,
        replay_buffer: Source,
        window_length: int,
        fields: Sequence[str] | None = None,
        fieldname_map: Mapping[str, str] | None = None,
        include_metadata: bool = True,
        filter_meta: Mapping[str, object] | None = None,
        return_indices: bool = False,
        *,
        seed: int | None = None,
    ) -> None:
        if (
            isinstance(window_length, bool)
            or int(window_length) != window_length
            or window_length < 1
        ):
            raise ValueError(f"window_length: expected a whole number >= 1, got {window_length!r}")
        super().__init__(
            replay_buffer, fieldname_map, include_metadata, filter_meta, return_indices
        )
        self.window_length = int(window_length)
        self.fields = self._known("fields", fields, tuple(self._config.fields))
        self._seed = np.random.SeedSequence(seed)
        self._rng = np.random.default_rng(self._seed)
        self._rng_worker = -1

    def _read(self, places: np.ndarray) -> Values:
        chosen = self._places[places]
        rows = self.rows
        numbers, lengths = rows.numbers[chosen], rows.lengths[chosen]
        taken = np.minimum(self.window_length, lengths)
        start = self._generator().integers(0, lengths - taken + 1)
        values = rows.spans(self.fields, numbers, start, self.window_length)
        values |= rows.metas(self._metas, numbers)
        values["_lens"] = taken
        values["_reaches_episode_end"] = start + taken >= lengths
        if self.return_indices:
            values["_index"], values["_start"] = rows.slots[chosen], start
        return values

    def _generator(self) -> np.random.Generator:
        """The generator of this process; a worker's depends on DataLoader's seed and its number."""
        info = importlib.import_module("torch.utils.data").get_worker_info()
        if info is not None and info.seed != self._rng_worker:
            self._rng_worker = info.seed
            self._rng = np.random.default_rng([*self._seed.generate_state(2).tolist(), info.seed])
        return self._rng
