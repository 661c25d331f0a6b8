"""The buffer of memmap-replay-buffer, on a Stepwell store."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any, NoReturn, Self

import numpy as np

from ...base.errors import not_copied
from ...base.number_checks import whole_number
from ...replay.replay import SequenceReplayBuffer
from .config import Config, check_names, parse_fields
from .datasets import Names, Steps, Trajectories, Transitions, make_loader
from .episode_folder import EpisodeFolder, SlotReader


class ReplayBuffer:
    """Episodes of typed fields in a folder, read as episodes, steps or n-step transitions.

    An open episode is kept in RAM and stored as a whole when it ends; it is durable when that call
    returns. An episode that never ends is never visible, and leaves no files.

    An existing folder is continued. All buffers of one process that write into the same folder
    share their episodes; another process may read it at the same time (`from_folder` with
    ``read_only=True``).

    Args:
        folder: Folder of the episodes.
        max_episodes: Number of episodes.
        max_timesteps: Steps of the longest episode.
        fields: Fields of a step: name to ``"float"``, ``"int"``, ``"bool"`` or ``"uint8"``, or to a
            tuple of that, a shape and, optionally, a default.
        meta_fields: Fields of an episode, in the same notation.
        circular: True if a new episode replaces the oldest one when the buffer is full.
        overwrite: Remove the stored episodes.

    Raises:
        ValueError: The folder holds something else or has another configuration, or a field is
            invalid.
        StoreLocked: Another process writes into the folder.

    Example:
        >>> import numpy as np
        >>> buffer = ReplayBuffer(
        ...     "replay_data",
        ...     max_episodes=1000,
        ...     max_timesteps=500,
        ...     fields={"state": ("float", 3), "reward": "float"},
        ...     meta_fields={"task": "int"},
        ...     circular=True,
        ... )
        >>> for task in range(2):
        ...     with buffer.one_episode(task=task):
        ...         for step in range(4):
        ...             buffer.store(state=np.zeros(3), reward=1.0)
        >>> buffer.num_episodes
        2
        >>> buffer.close()
    """

    def __reduce__(self) -> NoReturn:
        not_copied("a ReplayBuffer", "open its folder again, ReplayBuffer.from_folder(folder)")

    def __init__(
        self,
        folder: str | Path,
        max_episodes: int,
        max_timesteps: int,
        fields: Mapping[str, Any],
        meta_fields: Mapping[str, Any] | None = None,
        circular: bool = False,
        overwrite: bool = False,
    ) -> None:
        config = Config(
            whole_number("max_episodes", max_episodes, 1),
            whole_number("max_timesteps", max_timesteps, 1),
            parse_fields("fields", fields),
            parse_fields("meta_fields", meta_fields or {}),
            bool(circular),
        ).checked()
        self._begin(EpisodeFolder.write(Path(folder), config, overwrite=overwrite))

    @classmethod
    def from_folder(cls, folder: str | Path, read_only: bool = False) -> Self:
        """Open the buffer in a folder with its own configuration.

        Args:
            folder: Folder of the episodes.
            read_only: Open for reading only, also while another process writes: the episodes that
                are there now.

        Raises:
            ValueError: The folder holds no buffer.
            StoreLocked: Another process writes into it, and ``read_only`` is False.
        """
        buffer = cls.__new__(cls)
        path = Path(folder)
        buffer._begin(
            EpisodeFolder.read(path)
            if read_only
            else EpisodeFolder.write(path, None, overwrite=False)
        )
        return buffer

    def _begin(self, stored: EpisodeFolder) -> None:
        self.folder = stored.path
        self._stored = stored
        stored.users.add(self)
        self._steps: dict[str, list[np.ndarray]] | None = None  # of the open episode

    @property
    def replay(self) -> SequenceReplayBuffer:
        """The underlying Stepwell replay, with fields ``observation/NAME``."""
        return self._stored.replay

    @property
    def num_episodes(self) -> int:
        """Episodes stored."""
        return self._stored.total - self._stored.oldest

    def __len__(self) -> int:
        return self.num_episodes

    @contextlib.contextmanager
    def one_episode(self, **meta_data: object) -> Generator[dict[str, object]]:
        """Open an episode, and store it on leaving the context; an exception discards it.

        Args:
            **meta_data: Fields of the episode.

        Yields:
            A dict for fields of the episode that become known later.

        Raises:
            ValueError: There is no room, or another episode is open.
        """
        stored, config = self._stored, self._stored.config
        stored.check_writable("one_episode")
        if self._steps is not None:
            raise ValueError(
                "one_episode: expected no open episode, got one; leave its block first"
            )
        stored.check_room()
        metas = _whole_metas(config, meta_data)
        later: dict[str, object] = {}
        self._steps = {name: [] for name in config.fields}
        try:
            yield later
            if later:
                check_names("one_episode", later, config.meta_fields)
                metas |= _converted_metas(config, later)
            steps = {name: np.stack(rows) for name, rows in self._steps.items() if rows}
        finally:
            self._steps = None
        if steps:
            stored.add(steps, metas)

    def store(self, **data: object) -> None:
        """Add a step to the open episode; missing fields, and those that are None, get defaults.

        Raises:
            ValueError: A value does not fit, or no episode is open; nothing was added.
        """
        self._stored.check_writable("store")
        config = self._stored.config
        check_names("store", data, config.fields)
        if self._steps is None:
            raise ValueError(
                "store: expected an open episode, got none; call it within one_episode()"
            )
        most = config.max_timesteps
        if len(next(iter(self._steps.values()))) == most:
            raise ValueError(
                f"store: expected at most max_timesteps={most} steps in an episode, got "
                f"{most + 1}; make it larger"
            )
        values = {
            name: field.full(()) if data.get(name) is None else field.convert(data[name]).copy()
            for name, field in config.fields.items()
        }
        for name, value in values.items():
            self._steps[name].append(value)

    def store_episode(self, **data: object) -> None:
        """Store a whole episode.

        Args:
            **data: Fields of steps ``[T, ...]``, and of the episode; missing ones get defaults.

        Raises:
            ValueError: A value does not fit; nothing was stored.
        """
        stored = self._stored
        stored.check_writable("store_episode")
        config = stored.config
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
                f"all fields must have the same time dimension: expected at least one step, and "
                f"as many in each field of steps, got "
                f"{lengths or 'none of ' + ', '.join(config.fields)}"
            )
        if steps > config.max_timesteps:
            raise ValueError(
                f"an episode of {steps} steps: expected at most "
                f"max_timesteps={config.max_timesteps}; make it larger"
            )
        metas = {name: value for name, value in data.items() if name in config.meta_fields}
        stored.add(
            {
                name: given[name] if name in given else field.full((steps,))
                for name, field in config.fields.items()
            },
            _whole_metas(config, metas),
        )

    def dataloader(
        self,
        batch_size: int,
        n_steps: int | None = None,
        *,
        fields: Names = None,
        current_fields: Names = None,
        next_fields: Names = None,
        sequence_fields: Names = None,
        filter_meta: Mapping[str, object] | None = None,
        fieldname_map: Mapping[str, str] | None = None,
        return_mask: bool = False,
        timestep_level: bool = False,
        to_named_tuple: Names = None,
        **options: Any,
    ) -> Any:
        """A `torch.utils.data.DataLoader` of the episodes that are stored now.

        Its batches are whole episodes, zero padded in time, with their lengths ``_lens``; with
        ``timestep_level`` single steps; with ``n_steps`` transitions. All have the fields of the
        episodes.

        Args:
            batch_size: Items per batch.
            n_steps: Items are transitions of up to ``n_steps`` steps, ``n_step_lens``; the last
                ones of an episode have fewer.
            fields: Fields of steps; None for all.
            current_fields: With ``n_steps``: fields of the first step; None for all.
            next_fields: With ``n_steps``: fields of the step after the last one, with the prefix
                ``next_``; None for all.
            sequence_fields: With ``n_steps``: fields of all its steps, zero padded, with the prefix
                ``seq_``; None for none.
            filter_meta: Only episodes whose fields have these values.
            fieldname_map: Output names by field name.
            return_mask: Add ``_mask`` [B, T] bool to batches of episodes: False after their ends.
            timestep_level: Items are single steps.
            to_named_tuple: Names of the fields of a named tuple, which drops their leading ``_``;
                None for dicts.
            **options: Arguments of DataLoader, such as ``shuffle``, ``drop_last`` or
                ``num_workers``. Each worker opens the folder for itself.

        Raises:
            ValueError: The buffer is empty, or arguments contradict each other.
            ImportError: PyTorch is not installed.
        """
        if n_steps is not None and timestep_level:
            raise ValueError("n_steps and timestep_level: expected one of the two, got both")
        if return_mask and (n_steps is not None or timestep_level):
            raise ValueError("return_mask is only supported for trajectory-level data")
        self._stored.check_open()
        if not self.num_episodes:
            raise ValueError(
                f"the replay buffer is empty: expected at least 1 episode in {self.folder}, got 0; "
                f"store one first"
            )
        # The data set is of the episodes that are there now: those of later are not in it.
        chosen = SlotReader(self._stored), filter_meta, fieldname_map
        dataset: Any
        if n_steps is not None:
            names = current_fields, next_fields, sequence_fields
            dataset = Transitions(n_steps, *names, *chosen)
        elif timestep_level:
            dataset = Steps(fields, *chosen)
        else:
            dataset = Trajectories(fields, *chosen, return_mask=return_mask)
        return make_loader(dataset, to_named_tuple, {"batch_size": batch_size, **options})

    def close(self) -> None:
        """Release the files; an open episode is lost.

        If another buffer of this process has the folder open, closing that one releases them.
        """
        self._stored.leave(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _whole_metas(config: Config, metas: Mapping[str, object]) -> dict[str, np.ndarray]:
    """All fields of an episode; missing ones get defaults."""
    if metas:
        check_names("meta fields", metas, config.meta_fields)
    defaults = {name: field.full(()) for name, field in config.meta_fields.items()}
    return defaults | _converted_metas(config, metas)


def _converted_metas(config: Config, metas: Mapping[str, object]) -> dict[str, np.ndarray]:
    fields = config.meta_fields
    return {name: fields[name].convert(value).copy() for name, value in metas.items()}
