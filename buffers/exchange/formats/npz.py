"""A folder of numpy's own files, one for each episode, readable with numpy alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from ...base.untrusted_files import GivenFiles, MemoryBudget, in_order, parse_object
from ...base.untrusted_json import items, mapping, whole
from ...rows.episode import End, Episode
from ...rows.step_columns import edges_of, frames_of, inferred_spec, split
from ...spec.spec import FieldKind, Spec, key_of, kind_of
from .episode_reader import NO_METADATA, EpisodeReader, FoundEpisode, end_of
from .format import Format, NoOptions, Source

_PLURALS: Final[Mapping[FieldKind, str]] = {
    "observation": "observations",
    "action": "actions",
    "info": "infos",
    "extra": "extras",
    "reward": "rewards",
}
_KINDS: Final[Mapping[str, FieldKind]] = {plural: kind for kind, plural in _PLURALS.items()}
_NEEDED: Final = ("rewards", "terminations", "truncations")
_SIDECAR: Final = "stepwell"
_VERSION: Final = 1
_MADE_BY: Final = "stepwell export"
_ENDS: Final = End.TERMINATED | End.TRUNCATED | End.PENDING


@dataclass(frozen=True, slots=True)
class NpzExport:
    """Options for writing npz files.

    Args:
        compress: Deflate the files.
        stack: Write frame-stacked observations in full, as the env gave them; else single frames.
    """

    compress: bool = True
    stack: bool = False


class NpzFormat(Format):
    """``000000.npz``, ``000001.npz``, ...: T + 1 ``observations``, T rows of all others."""

    # `observations` (or `observations/key`), `actions`, `rewards` [T] float64, `terminations` and
    # `truncations` [T] bool, `infos/name` [T + 1], `extras/name` [T]. The folder `stepwell/` next
    # to the files holds what they lack, so that an import gives the same store again, bit for bit.
    # Without it the files are read on their own.

    name = "npz"
    about = "a file of numpy arrays for each episode; needs only numpy"
    export_options = NpzExport

    def writer(self, source: Source, options: NpzExport) -> _NpzWriter:
        """A writer of one folder."""
        return _NpzWriter(source, options)

    def reader(self, files: GivenFiles, options: NoOptions) -> _NpzReader:
        """Open a data set."""
        return _NpzReader(files)

    def loading(self, path: Path, out: str) -> str:
        """The lines that load the first episode."""
        return f'import numpy as np\nepisode = np.load("{path / "000000.npz"}")'


class _NpzWriter:
    # In the folder `stepwell/`, `store.json` describes the store, and `000017.npz` holds facts of
    # episode 17 and arrays that its file lacks.

    def __init__(self, source: Source, options: NpzExport) -> None:
        self._source = source
        self._options = options
        self._number = 0
        self._folder = Path()
        self.notes: Sequence[str] = ()

    def begin(self, path: Path) -> None:
        self._folder = path
        (path / _SIDECAR).mkdir()
        store = {
            "made_by": _MADE_BY,
            "version": _VERSION,
            "spec": self._source.spec.to_json(),
            "sessions": list(self._source.sessions),
            "episodes": self._source.episodes,
            "steps": self._source.steps,
        }
        (path / _SIDECAR / "store.json").write_text(json.dumps(store), encoding="utf-8")

    def write(self, episode: Episode) -> None:
        columns = split(episode, stack=self._options.stack)
        # Any: numpy's own keywords have types that arrays do not have.
        arrays: dict[str, Any] = {
            _array_name(field.name): columns[field.name]
            for kind in _PLURALS
            for field in episode.spec.of_kind(kind)
        }
        arrays |= {"terminations": episode.terminated[1:], "truncations": episode.truncated[1:]}
        name = f"{self._number:06d}.npz"
        save = np.savez_compressed if self._options.compress else np.savez
        save(self._folder / name, **arrays)
        facts = {
            "stream": episode.stream,
            "first_row": episode.first_row,
            "rows": episode.rows,
            "end": int(episode.end),
            "metadata": dict(episode.metadata),
        }
        text = np.frombuffer(json.dumps(facts).encode(), np.uint8)
        arrays = {"/facts": text, **edges_of(episode)}
        np.savez_compressed(self._folder / _SIDECAR / name, **arrays)
        self._number += 1

    def finish(self) -> None:
        pass

    def close(self) -> None:
        pass


class _NpzReader(EpisodeReader):
    def __init__(self, given: GivenFiles) -> None:
        path = given.path
        if not path.is_dir():
            raise FileNotFoundError(
                f"{path}: expected a folder of npz files, got no folder; name the folder that has "
                f"the files, or import an HDF5 file from the format hdf5"
            )
        self._given = given
        self._files = in_order(path.glob("*.npz"))
        if not self._files:
            raise ValueError(f"{path}: expected files named *.npz, got none")
        self.episodes = len(self._files)
        self._sidecar = path / _SIDECAR
        self._changed = (
            f"the data set was changed since it was exported; remove {self._sidecar} to import the "
            f"files without it"
        )
        store = self._sidecar / "store.json"
        self._has_sidecar = store.exists()
        if self._has_sidecar:
            super().__init__()
            self.spec, self.sessions, episodes, self.steps = _store_of(given, store)
            if episodes not in (None, len(self._files)):
                raise ValueError(
                    f"{path}: expected {episodes:,} files named *.npz, got "
                    f"{len(self._files):,}; {self._changed}"
                )
        else:
            # Another program made the files: the first one tells the fields of all.
            super().__init__(NO_METADATA)
            first = self._files[0]
            arrays = _arrays_of(given, first, given.budget(first))
            self.spec = inferred_spec(_columns_of(arrays), str(first))

    def _found(self) -> Iterator[FoundEpisode]:
        for number, file in enumerate(self._files):
            budget = self._given.budget(file)
            arrays = _arrays_of(self._given, file, budget)
            if self._has_sidecar:
                found = self._facts_of(number, budget)
                found.columns = {
                    name: rows
                    for name, rows in _columns_of(arrays).items()
                    if name in self.spec.names
                }
            else:
                flags = {name: arrays[name] for name in ("terminations", "truncations")}
                end = end_of(flags, str(file), "write each episode to a separate file")
                found = FoundEpisode(str(file), _columns_of(arrays), end)
            for field in self.spec.fields:
                rows = found.columns.get(field.name)
                if field.stack > 1 and rows is not None and rows.ndim == len(field.shape) + 2:
                    found.columns[field.name] = frames_of(rows, field)
            yield found

    def _facts_of(self, number: int, budget: MemoryBudget) -> FoundEpisode:
        """The facts of an episode, and the arrays that its file lacks; without its columns."""
        file = self._sidecar / f"{number:06d}.npz"
        if not file.exists():
            raise ValueError(
                f"{file}: expected facts about episode {number}, got none; {self._changed}"
            )
        try:
            edges = self._given.read_arrays(file, budget)
            if "/facts" not in edges:
                raise ValueError("expected an array '/facts', got others")
            facts = parse_object(edges.pop("/facts").tobytes(), file)
            stream, first_row, end = (
                whole(facts.get(name), name) for name in ("stream", "first_row", "end")
            )
            rows = whole(facts.get("rows"), "rows", 1)
            metadata = mapping(facts.get("metadata"), "metadata")
            if end & ~int(_ENDS):
                raise ValueError(f"end: expected flags of {_ENDS!r}, got {end}")
        except ValueError as error:
            raise ValueError(f"{file}: {error}; {self._changed}") from error
        return FoundEpisode(
            f"episode {number}",
            {},
            End(end),
            metadata,
            edges,
            stream,
            first_row,
            rows - 1,
            self._changed,
        )


def _store_of(
    given: GivenFiles, file: Path
) -> tuple[Spec, Sequence[Mapping[str, object]], int | None, int | None]:
    """The Spec, the sessions, and the numbers of episodes and steps in ``store.json``."""
    data = given.read_json(file)
    version = data.get("version") if data.get("made_by") == _MADE_BY else None
    if type(version) is not int:
        raise ValueError(f"{file}: expected a file of `{_MADE_BY}`, got something else")
    if version > _VERSION:
        raise ValueError(
            f"{file}: expected version {_VERSION} at most, got {version}, which a newer Stepwell "
            f"wrote; update this one"
        )
    try:
        spec = Spec.from_json(data["spec"])
        sessions = [mapping(each, "session") for each in items(data["sessions"], "sessions")]
        episodes, steps = (
            None if data[name] is None else whole(data[name], name)
            for name in ("episodes", "steps")
        )
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise ValueError(
            f"{file}: expected a file of `{_MADE_BY}`, got a damaged one "
            f"({' '.join(str(error).split())[:200]}); restore it from a copy"
        ) from error
    return spec, sessions, episodes, steps


def _arrays_of(given: GivenFiles, file: Path, budget: MemoryBudget) -> dict[str, np.ndarray]:
    arrays = given.read_arrays(file, budget)
    missing = [name for name in _NEEDED if name not in arrays]
    if missing:
        raise ValueError(
            f"{file}: expected arrays observations, actions, {', '.join(_NEEDED)}, got "
            f"{', '.join(arrays) or 'none'}; add {missing[0]!r}"
        )
    return arrays


def _columns_of(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays that are fields, by field name."""
    flags = ("terminations", "truncations")
    return {_field_name(name): rows for name, rows in arrays.items() if name not in flags}


def _array_name(field_name: str) -> str:
    """``infos/lives`` of ``info/lives``."""
    key = key_of(field_name)
    return _PLURALS[kind_of(field_name)] + (f"/{key}" if key else "")


def _field_name(array_name: str) -> str:
    """``info/lives`` of ``infos/lives``; other names as they are."""
    first, slash, key = array_name.partition("/")
    return _KINDS.get(first, first) + slash + key
