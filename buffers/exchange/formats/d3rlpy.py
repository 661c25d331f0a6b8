"""d3rlpy's own file, as ``ReplayBuffer.load`` reads it, written and read with h5py alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from gymnasium import spaces

from ...base.optional_libraries import load_library
from ...base.untrusted_files import GivenFiles, MemoryBudget
from ...rows.episode import End, Episode
from ...rows.step_columns import Rounded, split
from ...spec.space_json import space_of
from ...spec.spec import Field, Spec, flatten
from .episode_reader import NO_METADATA
from .flat_hdf5 import INSTALL, FlatHdf5Import, StepTable, TableReader, reader_of
from .format import Format, Reader, Source, Writer
from .hdf5_columns import NewHdf5, as_text, put_column, read_column

_VERSION: Final = "2.1"
COLUMNS: Final = ("observations", "actions", "rewards", "terminated")
_CHANNELS: Final = (1, 3, 4)


@dataclass(frozen=True, slots=True)
class D3rlpyExport:
    """Options for writing a d3rlpy file.

    Args:
        compress: Deflate the columns, which HDF5 decompresses transparently.
        stack: Write frame-stacked observations in full, as the env gave them; else single frames,
            of which d3rlpy's FrameStackTransitionPicker makes stacks.
        channels_first: Write images (H, W, C) of bytes as (C, H, W), as d3rlpy's networks want.
    """

    compress: bool = True
    stack: bool = False
    channels_first: bool = True


class D3rlpyFormat(Format):
    """An HDF5 file of version 2.1: ``observations_0``, ``actions_0``, ``rewards_0``, ..."""

    # d3rlpy has no place for the last observations of terminated episodes, infos, extras, streams
    # and metadata; rewards are float32.

    name = "d3rlpy"
    about = "a file that d3rlpy's ReplayBuffer.load reads, for offline learning"
    install = INSTALL
    kind = "file"
    export_options = D3rlpyExport
    import_options = FlatHdf5Import

    def writer(self, source: Source, options: D3rlpyExport) -> Writer:
        """A writer of one file."""
        return _D3rlpyWriter(source, options)

    def reader(self, files: GivenFiles, options: FlatHdf5Import) -> Reader:
        """Open a data set; one of flat columns, as d3rlpy 1 and D4RL wrote it, is read too."""
        return reader_of(files, options, "d3rlpy", lambda file: _FileReader(file, files))

    def loading(self, path: Path, out: str) -> str:
        """The lines that load it where d3rlpy is."""
        return (
            f"import d3rlpy\n"
            f'with open("{path}", "rb") as file:\n'
            f"    dataset = d3rlpy.dataset.ReplayBuffer.load(file, "
            f"d3rlpy.dataset.InfiniteBuffer())"
        )


class D3rlpyEncoder:
    """Makes d3rlpy's columns from episodes; with ``channels_first`` images are (C, H, W)."""

    def __init__(self, spec: Spec, stack: bool, channels_first: bool) -> None:
        self.spec = spec
        self._stack = stack
        self._channels_first = channels_first
        self.parts = [spec[name] for name, _ in flatten(spec.observation, spec.observation)]
        """The fields of the observation, in d3rlpy's order."""
        self.action = _checked_action(spec)
        """The field of the action."""
        self.rewards = Rounded("rewards", "float32")

    @property
    def is_single(self) -> bool:
        """The observation is one array, not a list of them."""
        return isinstance(self.spec.observation, str)

    def columns(self, episode: Episode) -> dict[str, Any]:
        """The four parts of d3rlpy's ``Episode``, N rows each; views where possible."""
        # `observations` [N, ...], or a list of such arrays where the observation has several parts;
        # `actions` [N, 1] whole numbers, or [N, A] floats; `rewards` [N, 1] float32; and
        # `terminated`: the MDP ended with the last row.
        #
        # A terminated episode of T steps has N = T rows. Another one has N = T + 1: the last row
        # holds the final observation, for which d3rlpy has no other place, with an action and a
        # reward of 0. It is the next observation of the last transition, and does not begin one.
        columns = split(episode, stack=self._stack)
        terminated = bool(episode.end & End.TERMINATED) and episode.steps > 0
        pad = int(not terminated)
        rows = episode.steps + pad
        observations = [self._converted(columns[field.name], field)[:rows] for field in self.parts]
        action = columns[self.action.name]
        if action.dtype.kind == "i" and len(action) and action.min() < 0:
            raise ValueError(
                f"field 'action': expected whole numbers from 0 on, as d3rlpy counts actions, got "
                f"{action.min()}; leave such episodes out, or record with a wrapper that shifts "
                f"them"
            )
        reward = self.rewards.cast(columns["reward"]).reshape(-1, 1)
        return {
            "observations": observations[0] if self.is_single else observations,
            "actions": _padded(action.reshape(len(action), *(self.action.shape or (1,))), pad),
            "rewards": _padded(reward, pad),
            "terminated": terminated,
        }

    def notes(self) -> list[str]:
        """Notes about the observations and the rewards so far, one clause each."""
        found: list[str] = []
        for field in self.parts:
            if field.stack > 1 and not self._stack:
                first = (
                    ""
                    if field.stack_padding == "zero"
                    else ("; that pads with zeros, where the env repeated the first frame")
                )
                found.append(
                    f"{field.name} holds single frames: stacks are made by "
                    f"d3rlpy.dataset.FrameStackTransitionPicker({field.stack}){first}"
                )
            if self._is_image(field):
                found.append(f"{field.name} has its channels first, as d3rlpy's networks want it")
        if not self.is_single:
            names = ", ".join(field.name for field in self.parts)
            found.append(f"observations are lists of arrays: {names}")
        return [*found, *self.rewards.notes]

    def _is_image(self, field: Field) -> bool:
        """True if its channels are last, and are moved."""
        shape = field.shape
        is_image = len(shape) == 3 and shape[2] in _CHANNELS and shape[0] not in _CHANNELS
        return self._channels_first and is_image and field.dtype == "uint8"

    def _converted(self, rows: np.ndarray, field: Field) -> np.ndarray:
        """Frames [T, ...], or stacks of them [T, k, ...], as d3rlpy takes them."""
        k = field.stack if self._stack else 1
        stacks = rows if k > 1 else rows[:, None]
        if self._is_image(field):
            stacks = np.moveaxis(stacks, -1, 2)
        # Channels, or numbers, of all frames of a stack behind each other.
        inner = stacks.shape[2:]
        if len(inner) == 2:
            return stacks
        return stacks.reshape(len(stacks), k * (inner[0] if inner else 1), *inner[1:])


class D3rlpyReader(TableReader):
    """Reads d3rlpy's episodes, of which ``columns`` gives the four parts of each."""

    # Of N rows that end with a termination N steps are made, with an observation of zeros behind
    # them, which is what d3rlpy's own transitions have there. Of N other rows N - 1 steps are made:
    # what the last action led to is not known.

    unknown = (
        "last observations of terminated episodes are zeros, {} in all, as in d3rlpy's own "
        "transitions, which keep none"
    )
    dropped = (
        "episodes without a termination are read as truncated, {} in all, without the action and "
        "the reward of the last row: d3rlpy makes no transition of it"
    )

    def __init__(
        self,
        total: int,
        columns: Callable[[int], Mapping[str, Any]],
        where: str,
        budget: Callable[[object], MemoryBudget],
    ) -> None:
        super().__init__(where, budget, NO_METADATA)
        self._total = total
        self._columns = columns
        self.episodes = total
        self.spec = self._begin()
        names = [name for name in self.spec.names if name.startswith("observation/")]
        if names:  # a Tuple
            self.spec = replace(self.spec, observation=names)

    def _tables(self) -> Iterator[StepTable]:
        for number in range(self._total):
            columns = self._columns(number)
            shown, action = columns["observations"], columns["actions"]
            named = {"observation": shown}
            if isinstance(shown, list | tuple):
                named = {f"observation/{place}": part for place, part in enumerate(shown)}
            rows = action.shape[0] if action.shape else 0
            terminated, truncated = np.zeros(rows, bool), np.zeros(rows, bool)
            (terminated if columns["terminated"] else truncated)[-1:] = True
            yield StepTable(
                f"{self._where}: episode {number}",
                {**named, "action": action},
                columns["rewards"],
                {},
                terminated,
                truncated,
            )


class _D3rlpyWriter:
    def __init__(self, source: Source, options: D3rlpyExport) -> None:
        self._h5py = load_library("h5py", "format d3rlpy", install=INSTALL)
        self._source = source
        self._options = options
        self._encoder = D3rlpyEncoder(source.spec, options.stack, options.channels_first)
        self._new: NewHdf5 | None = None
        self._file: Any = None
        self._number = 0
        self._lost = self._taken = 0

    @property
    def notes(self) -> Sequence[str]:
        found = self._encoder.notes()
        declared = self._declared()
        if declared > self._taken > 0:
            found.append(
                f"d3rlpy counts the actions up to the largest one taken, {self._taken:,}, of "
                f"{declared:,} that the env has: give its ReplayBuffer action_size={declared}"
            )
        if self._lost:
            found.append(
                f"last observations of terminated episodes are left out, {self._lost:,} in all, as "
                f"d3rlpy has no place for them"
            )
        return found

    def begin(self, path: Path) -> None:
        self._new = NewHdf5(self._h5py, path)
        self._file = self._new.file
        self._file["columns"] = list(COLUMNS)
        self._file["version"] = _VERSION

    def write(self, episode: Episode) -> None:
        columns = self._encoder.columns(episode)
        number, is_compressed = self._number, self._options.compress
        terminated = columns.pop("terminated")
        for name, rows in columns.items():
            if isinstance(rows, list):
                for place, part in enumerate(rows):
                    put_column(self._file, f"{name}_{number}_{place}", part, is_compressed)
            else:
                put_column(self._file, f"{name}_{number}", rows, is_compressed)
        self._file[f"terminated_{number}"] = terminated
        if columns["actions"].dtype.kind in "iu":
            self._taken = max(self._taken, int(columns["actions"].max()) + 1)
        self._lost += terminated
        self._number += 1
        if self._new is not None:
            self._new.check()

    def finish(self) -> None:
        self._file["num_episodes"] = self._number
        self.close()

    def close(self) -> None:
        if self._new is not None:
            self._new.close()

    def _declared(self) -> int:
        """The number of actions that the env has; 0 if it is unknown, or not counted."""
        try:
            space = space_of(self._source.sessions, "action")
        except ValueError:
            return 0
        return int(space.start + space.n) if isinstance(space, spaces.Discrete) else 0


class _FileReader(D3rlpyReader):
    """Reads one file; see `Reader`."""

    def __init__(self, file: Any, files: GivenFiles) -> None:
        self._path, self._file = files.path, file
        total = self._read_total(files.budget(files.path))
        super().__init__(total, self._episode, str(files.path), files.budget)

    def close(self) -> None:
        self._file.close()

    def _read_total(self, budget: MemoryBudget) -> int:
        """The number of episodes of a file whose structure is right."""
        file, path = self._file, self._path
        if "version" not in file or "num_episodes" not in file:
            raise ValueError(
                f"{path}: expected a file that d3rlpy 2 has dumped, or flat columns observations, "
                f"actions, rewards and terminals, got {', '.join(list(file)[:8]) or 'none'}; read "
                f"it with h5py, and write episodes with add_episode of a replay's writer()"
            )
        version = as_text(read_column(file["version"], budget))
        names = read_column(file["columns"], budget) if "columns" in file else ()
        found = [as_text(name) for name in np.atleast_1d(names).tolist()]
        if version != _VERSION or sorted(found) != sorted(COLUMNS):
            raise ValueError(
                f"{path}: expected version {_VERSION} with {', '.join(COLUMNS)}, got {version} "
                f"with {', '.join(found)}; load it by d3rlpy, and dump plain episodes"
            )
        total = np.asarray(read_column(file["num_episodes"], budget))
        if total.shape or total.dtype.kind not in "iu" or total < 0:
            raise ValueError(f"{path}: expected num_episodes as a whole number, got {total}")
        return int(total)

    def _episode(self, number: int) -> dict[str, Any]:
        """The datasets of an episode."""
        found: dict[str, Any] = {}
        for name in COLUMNS:
            key = f"{name}_{number}"
            parts = [self._file[key]] if key in self._file else []
            while key not in self._file and f"{key}_{len(parts)}" in self._file:
                parts.append(self._file[f"{key}_{len(parts)}"])
            if not parts:
                raise ValueError(f"{self._path}: expected {key}, got none; the file is damaged")
            found[name] = parts[0] if key in self._file else parts
        budget = self._budget(f"{self._path}: episode {number}")
        found["terminated"] = bool(read_column(found["terminated"], budget))
        return found


def _checked_action(spec: Spec) -> Field:
    if isinstance(spec.action, str):
        field = spec[spec.action]
        kind = field.numpy_dtype.kind
        if (kind in "iu" and not field.shape) or (kind == "f" and len(field.shape) < 2):
            return field
    fields = spec.of_kind("action")
    got = ", ".join(f"{field.dtype} {field.shape} ({field.name})" for field in fields)
    raise ValueError(
        f"action: expected one whole number, or one vector of floats, the kinds that "
        f"d3rlpy supports, got {got or 'none'}; choose another format"
    )


def _padded(rows: np.ndarray, pad: int) -> np.ndarray:
    """The rows, and zeros behind them."""
    return np.concatenate([rows, np.zeros((pad, *rows.shape[1:]), rows.dtype)])
