"""Reads Minari data sets, after checking their files."""

from __future__ import annotations

import contextlib
import importlib
import itertools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from ....base.optional_libraries import load_library
from ....base.untrusted_files import GivenFiles, MemoryBudget, parse_object
from ....base.untrusted_json import whole
from ....spec.open_spaces import FixedSpace, encode_batch, fixed_space
from ....spec.space_json import spaces_facts
from ....spec.spec import Field, Spec, field_of, flatten, marks
from ..episode_reader import NO_STREAMS, EpisodeReader, FoundEpisode, end_of, plain
from ..hdf5_columns import datasets_of, open_given, take_column
from ..parquet_columns import batches_of, open_file, whole_file
from ..pictures import picture_bytes
from .names import FACTS, MinariImport, declared
from .writer import HDF5_NAME, INSTALL

_GROUP = 64  # episodes of one file that are read at once


class MinariReader(EpisodeReader):
    """Reads one data set, given its folder or the ``data`` in it; see `Reader`."""

    def __init__(self, files: GivenFiles, options: MinariImport) -> None:
        super().__init__()
        path = files.path
        data = path if (path / "metadata.json").exists() else path / "data"
        if path.is_file():
            raise ValueError(
                f"{path}: expected the folder of a Minari data set, got a file; one of flat "
                f"columns, as D4RL's, is imported from the format hdf5"
            )
        if not (data / "metadata.json").exists():
            raise FileNotFoundError(
                f"{path}: expected a Minari data set, got none; one that is not on this machine is "
                f"fetched by `minari download ID`"
            )
        given = files if data != path else files.at(data.absolute().parent)
        self._data = data
        self._files = _CheckedData(given, data)
        self.episodes, self.steps = self._files.episodes, self._files.steps
        notes = [NO_STREAMS]
        storage = _storage_of(data)
        is_jpeg = bool(storage.jpeg_encoding and _is_jpeg(storage, data))
        if is_jpeg:
            notes.insert(0, _LOSSY)
        if storage.jpeg_encoding and not is_jpeg:  # written before Minari had JPEG
            storage = type(storage)(
                data, storage.observation_space, storage.action_space, jpeg_encoding=False
            )
        self._storage = storage
        try:
            self._observation = fixed_space(storage.observation_space, "observation")
            self._action = fixed_space(storage.action_space, "action")
            spec = Spec.from_spaces(self._observation, self._action)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{data}: Stepwell has no field for such values: {error}") from error
        infos: dict[str, np.ndarray] = {}
        self._late: set[str] = set()
        """Infos without a row for the reset."""
        if self.episodes:
            self._files.check(0)
            first = next(iter(storage.get_episodes([0])))
            if storage.FORMAT != "hdf5":  # which reads several episodes only if all have the same
                self._files.reward_dtypes.add(np.asarray(first["rewards"]).dtype.name)
            spec, changes = _as_stored(spec, self._columns(spec, first, f"{data}: episode 0"))
            notes += changes
            if options.infos:
                infos = _kept_everywhere(_first_infos(first), storage, data)
                self._late = {n for n, rows in infos.items() if len(rows) == len(first["rewards"])}
                notes += _info_notes(first, infos, self._late)
        self.spec: Spec = spec.with_more(
            [field_of(f"info/{name}", rows.dtype, rows.shape[1:]) for name, rows in infos.items()]
        )
        facts, own_notes = self._facts()
        self.sessions = (facts,)
        for note in (*notes, *own_notes):
            self._notes.add(note)

    def _found(self) -> Iterator[FoundEpisode]:
        # Arrow reads several files at once only if all have the same columns.
        group = _GROUP if self._storage.FORMAT == "hdf5" else 1
        total = self._files.episodes
        for start in range(0, total, group):
            numbers = range(start, min(start + group, total))
            for number in numbers:
                self._files.check(number)
            facts = self._storage.get_episode_metadata(numbers)
            columns = self._storage.get_episodes(numbers)
            for number, one, fact in zip(numbers, columns, facts, strict=True):
                yield self._episode(number, one, fact)

    def _facts(self) -> tuple[dict[str, object], list[str]]:
        """The facts of a session that the data set declares, and notes on those left out."""
        spaces_ = spaces_facts(self._observation, self._action)
        notes = [] if spaces_ else ["the declared spaces are left out, as they are too large"]
        found, wrong = declared(self._files.about)
        if wrong:
            names = ", ".join(sorted(wrong)[:20])
            notes.append(f"metadata left out, as they are too long or of another type: {names}")
        env_spec = found.pop("env_spec", None)
        dtypes = self._files.reward_dtypes
        return {
            "recipe": {"source": "minari"},
            **spaces_,
            **({} if env_spec is None else {"env_spec": env_spec}),
            **({"reward_dtype": dtypes.pop()} if len(dtypes) == 1 else {}),
            **({FACTS: found} if found else {}),
        }, notes

    def _episode(
        self, number: int, columns: Mapping[str, Any], facts: Mapping[str, Any]
    ) -> FoundEpisode:
        """An episode of T steps, and T + 1 observations and infos."""
        where = f"{self._data}: episode {number}"
        named = self._columns(self.spec, columns, where)
        infos = dict(_leaves(columns["infos"] or {}))
        for field in self.spec.of_kind("info"):
            rows = np.asarray(infos[field.key])
            if field.key in self._late:  # the info of step t belongs to observation t + 1
                rows = np.concatenate([np.zeros((1, *field.shape), rows.dtype), rows])
            named[field.name] = rows
        steps = len(named["reward"])
        marked: dict[str, np.ndarray] = {}
        for name in ("terminations", "truncations"):
            given = np.asarray(columns[name]).reshape(-1)
            marked[name] = marks(f"{where}: {name}", given, (steps,))
        end = end_of(marked, where, "write each episode separately")
        return FoundEpisode(where, named, end, _metadata(facts))

    def _columns(self, spec: Spec, columns: Mapping[str, Any], where: str) -> dict[str, np.ndarray]:
        """Observations, actions and rewards by field name."""
        reward = np.asarray(columns["rewards"])
        if reward.dtype.kind not in "biuf" or reward.ndim < 1 or reward.size != len(reward):
            raise ValueError(
                f"{where}: rewards: expected one number a step, which is what a reward is here, "
                f"got {reward.dtype} {reward.shape}; write the data set with one number as the "
                f"reward, and the others as an info"
            )
        steps = len(reward)
        reward = reward.reshape(-1)
        named = {"reward": reward}
        for layout, tree, space, count in (
            (spec.observation, "observations", self._observation, steps + 1),
            (spec.action, "actions", self._action, steps),
        ):
            try:
                values = _encoded(space, columns[tree], count)
                named |= {name: np.asarray(rows) for name, rows in flatten(layout, values)}
            except ValueError as error:
                raise ValueError(f"{where}: {tree}: {error}; fix it") from error
        return named


def _encoded(space: Any, values: Any, rows: int) -> Any:
    """Arrays for the texts and the like in the columns of a space; all others as they are."""
    if isinstance(space, FixedSpace):
        return encode_batch(space, values, rows)
    if isinstance(space, spaces.Dict) and isinstance(values, Mapping):
        parts = space.spaces
        return {key: _encoded(parts.get(key), value, rows) for key, value in values.items()}
    if isinstance(space, spaces.Tuple) and isinstance(values, tuple):
        pairs = itertools.zip_longest(space.spaces, values)
        return tuple(_encoded(part, value, rows) for part, value in pairs)
    return values


def _storage_of(data: Path) -> Any:
    """Minari's own reader of a folder."""
    found = load_library(
        "minari.dataset.minari_storage",
        "format minari",
        install=INSTALL,
        package="minari",
        at_least="0.5.4",
    )
    try:
        return found.MinariStorage.read(data)
    except ImportError as error:
        raise ImportError(f"format minari: {error}: pip install {INSTALL}") from error
    except Exception as error:  # its files and its env can raise anything
        raise ValueError(
            f"{data}: expected a data set that the installed Minari can read, got "
            f"{type(error).__name__}: {error}; inspect it with `minari show`"
        ) from error


_LOSSY: Final = (
    "LOSSY: the images of this data set were stored as JPEG, so that they are not those which the "
    "env showed; record again with jpeg_encoding=False if that matters"
)
_NOT_METADATA: Final = ("id", "total_steps")


def _as_stored(spec: Spec, named: Mapping[str, np.ndarray]) -> tuple[Spec, list[str]]:
    """The fields with their stored dtypes and shapes, and notes where the spaces differ."""
    fields: list[Field] = []
    notes: list[str] = []
    for field in spec.fields:
        dtype, shape = named[field.name].dtype, named[field.name].shape[1:]
        if field.name != "reward" and (dtype.name, shape) != (field.dtype, field.shape):
            notes.append(
                f"{field.name} is stored as {dtype} {shape}, and kept so: its space says "
                f"{field.dtype} {field.shape}"
            )
            field = field_of(field.name, dtype, shape)
        fields.append(field)
    return replace(spec, fields=tuple(fields)), notes


def _metadata(facts: Mapping[str, Any]) -> dict[str, object]:
    """Minari's facts about an episode as plain values."""
    return {key: plain(value) for key, value in facts.items() if key not in _NOT_METADATA}


def _leaves(infos: Mapping[str, Any], parent: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in infos.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{parent}{key}/")
        else:
            yield f"{parent}{key}", value


def _first_infos(first: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The infos of the first episode that are numbers of one shape, a row for each step."""
    steps = len(first["rewards"])
    infos = {name: np.asarray(value) for name, value in _leaves(first["infos"] or {})}
    return {
        name: rows
        for name, rows in infos.items()
        if rows.dtype.kind in "biuf" and rows.ndim and len(rows) in (steps, steps + 1)
    }


def _kept_everywhere(
    found: dict[str, np.ndarray], storage: Any, data: Path
) -> dict[str, np.ndarray]:
    """The infos that have the same form in all episodes, from the files' metadata."""
    first: dict[str, object] | None = None
    for now in _info_forms(storage, data) if found else ():
        first = now if first is None else first
        found = {
            name: rows for name, rows in found.items() if name in now and now[name] == first[name]
        }
    return found


def _info_forms(storage: Any, data: Path) -> Iterator[dict[str, object]]:
    """The kind of column of each info, for each episode."""
    if storage.FORMAT == "hdf5":
        h5py = load_library("h5py", "Minari's format hdf5", install=INSTALL)
        with h5py.File(data / HDF5_NAME, "r") as file:
            for number in range(storage.total_episodes):
                group = file[f"episode_{number}"]
                found: dict[str, object] = {}
                for column in datasets_of(group.get("infos", {})):
                    name = column.name.removeprefix(f"{group.name}/infos/")
                    rows = len(column) - len(group["rewards"]) if column.ndim else None
                    found[name] = (column.dtype.str, column.shape[1:], rows)
                yield found
        return
    arrow = load_library("pyarrow.dataset", "Minari's format arrow", install=INSTALL)
    for number in range(storage.total_episodes):
        schema = _schema(arrow, storage, data, number)
        infos = schema.field("infos").type if "infos" in schema.names else ()
        yield {field.name: (str(field.type), field.metadata) for field in infos}


def _schema(arrow: Any, storage: Any, data: Path, number: int) -> Any:
    """The schema of an episode's files."""
    found = arrow.dataset(
        str(data / str(number)), format=storage.FORMAT, ignore_prefixes=list(_IGNORED_PREFIXES)
    )
    return found.schema


def _info_notes(
    first: Mapping[str, Any], kept: Collection[str], late: Collection[str]
) -> list[str]:
    names = [name for name, _ in _leaves(first["infos"] or {}) if name not in kept]
    notes: list[str] = []
    if names:
        notes.append(
            f"infos left out, as they are not numbers or not alike in all episodes: "
            f"{', '.join(names)}"
        )
    names = [name for name in kept if name in late]
    if names:
        notes.append(f"infos without a row for the reset, which zeros replace: {', '.join(names)}")
    return notes


def _image_places(space: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The leaves that Minari would store as JPEG, each as its path of keys."""
    found = load_library("minari.dataset.minari_storage", "format minari", install=INSTALL)
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            yield from _image_places(part, (*path, key))
    elif isinstance(space, spaces.Tuple):
        for number, part in enumerate(space.spaces):
            yield from _image_places(part, (*path, str(number)))
    elif found.is_image_space(space):
        yield path


def _is_jpeg(storage: Any, data: Path) -> bool:
    """True if an image leaf of the first episode is bytes of JPEG, rather than an array."""
    # Minari 0.5.2 and older wrote arrays, and the metadata does not say so.
    places = itertools.chain(
        _image_places(storage.observation_space, ("observations",)),
        _image_places(storage.action_space, ("actions",)),
    )
    place = next(places, None)
    if place is None or not storage.total_episodes:
        return False
    if storage.FORMAT == "hdf5":
        h5py = load_library("h5py", "Minari's format hdf5", install=INSTALL)
        with h5py.File(data / HDF5_NAME, "r") as file:
            node = file["episode_0"]
            for key in place:
                node = node[key] if key in node else node[f"_index_{key}"]
            return bool(node.ndim < 3)  # the rows of an array of images have two or three axes
    arrow = load_library("pyarrow.dataset", "Minari's format arrow", install=INSTALL)
    kind = _schema(arrow, storage, data, 0).field(place[0]).type
    for key in place[1:]:
        kind = kind.field(key).type
    return str(kind) in ("binary", "large_binary")


_FORMATS: Final = ("hdf5", "arrow", "parquet")
_MOST: Final = 2**31
_BATCH_ROWS: Final = 1024
_SPACES: Final = ("observation_space", "action_space")
_IGNORED_PREFIXES: Final = ("_", ".", "metadata.json")


class _CheckedData:
    """An untrusted folder ``data``."""

    # Minari makes the env that a data set names, which may be any function of any module, where the
    # data set lacks its spaces; it follows HDF5's links into other files; and it unpacks all data.
    # So everything is checked first.

    def __init__(self, given: GivenFiles, data: Path) -> None:
        self._given = given
        self._data = data
        file = data / "metadata.json"
        metadata = given.read_json(file)
        given_spaces = [name for name in _SPACES if name in metadata]
        for name in given_spaces:
            parse_object(str(metadata[name]), f"{file}: {name}")
        # Where a space is missing Minari will make the env to learn it.
        if given_spaces != list(_SPACES):
            _check_env(parse_object(str(metadata.get("env_spec")), f"{file}: env_spec"), file)
        self.about: Mapping[str, Any] = metadata
        """The content of ``metadata.json``."""
        self.reward_dtypes: set[str] = set()
        """The dtypes of all rewards, as far as they are known before the episodes are read."""
        self.format = metadata.get("data_format")
        if self.format not in _FORMATS:
            raise ValueError(
                f"{file}: expected data_format {', '.join(_FORMATS)}, got {self.format!r}; fetch "
                f"the data set again"
            )
        self.episodes, self.steps = (
            whole(metadata.get(name), f"{file}: {name}", 0, _MOST)
            for name in ("total_episodes", "total_steps")
        )
        if self.format == "hdf5":
            self._check_file()
        else:
            # Of the other formats only the files are checked here: each episode is, before it is
            # read.
            for number in range(self.episodes):
                for _ in self._files(number):
                    pass

    def check(self, number: int) -> None:
        """Check that an episode can be read, and that there is memory for it."""
        if self.format == "hdf5":  # its single file was checked already
            return
        self._given.read_json(self._data / str(number) / "metadata.json")
        budget = self._given.budget(f"{self._data}: episode {number}")
        arrow = load_library("pyarrow", "Minari's format arrow", install=INSTALL)
        for file in self._files(number):
            with whole_file(arrow, file):
                for batch in self._batches(file):
                    # The offsets of lists are read from the file: they may point anywhere.
                    batch.validate(full=True)
                    budget.take(batch.nbytes)
                    _check_flags(batch, file)
                    for column in batch.columns:
                        _take_pictures(column, budget)

    def _check_file(self) -> None:
        """Check all of ``main_data.hdf5``."""
        h5py = load_library("h5py", "Minari's format hdf5", install=INSTALL)
        path = self._data / HDF5_NAME
        with contextlib.closing(open_given(h5py, self._given, path)) as file:
            for name in file:
                budget = self._given.budget(f"{path}: {name}")
                if not isinstance(file[name], h5py.Group):
                    raise ValueError(f"{path}: expected a group {name!r}, got a dataset; remove it")
                for column in datasets_of(file[name]):
                    take_column(column, budget)
                    if column.name == f"/{name}/rewards":
                        self.reward_dtypes.add(column.dtype.name)

    def _files(self, number: int) -> Iterator[Path]:
        """The files of an episode that Minari reads."""
        folder = self._data / str(number)
        if not folder.is_dir():
            raise ValueError(
                f"{folder}: expected a folder of files for each episode, got none; fetch the data "
                f"set again"
            )
        for file in sorted(folder.iterdir()):
            self._given.file(file)
            if not file.name.startswith(_IGNORED_PREFIXES):
                yield file

    def _batches(self, file: Path) -> Iterator[Any]:
        if self.format == "parquet":
            arrow = load_library("pyarrow", "Minari's format parquet", install=INSTALL)
            parquet = load_library("pyarrow.parquet", "Minari's format parquet", install=INSTALL)
            with open_file((arrow, parquet), self._given, file) as opened:
                yield from batches_of(opened, self._given, _BATCH_ROWS)
            return
        ipc = load_library("pyarrow.ipc", "Minari's format arrow", install=INSTALL)
        with file.open("rb") as raw, ipc.open_file(raw) as opened:
            for place in range(opened.num_record_batches):
                yield opened.get_batch(place)


def _check_flags(batch: Any, file: Path) -> None:
    """Raise where a reward or a flag is missing, which Minari would read as NaN or False."""
    for name in ("rewards", "terminations", "truncations"):
        if name in batch.schema.names and batch.column(name)[: len(batch) - 1].null_count:
            raise ValueError(
                f"{file}: {name}: expected a value in each row but the last, got nulls; fix them, "
                f"or leave that episode out"
            )


def _check_env(env: dict[str, Any], file: Path) -> None:
    """Raise for an env whose description differs from gymnasium's registry."""
    # Minari makes it to learn its spaces, which calls what it names as its entry point.
    id_ = str(env.get("id"))
    if id_.startswith("ALE/"):
        with contextlib.suppress(ImportError):
            importlib.import_module("ale_py")  # registers its envs
    known = gym.registry.get(id_)
    same = known is not None and (env.get("entry_point"), env.get("kwargs") or {}) == (
        known.entry_point,
        known.kwargs,
    )
    if not same or env.get("additional_wrappers"):
        raise ValueError(
            f"{file}: expected observation_space and action_space, or an env_spec that gymnasium "
            f"has registered just so, got {id_[:80]!r}: to make that env could run anything; add "
            f"the spaces, as minari.serialization writes them"
        )


def _take_pictures(array: Any, budget: MemoryBudget) -> None:
    """Count the memory of JPEG files that Minari decodes."""
    kind = str(array.type)
    if kind.startswith("struct<"):
        for place in range(array.type.num_fields):
            _take_pictures(array.field(place), budget)
    elif "binary" in kind:
        for value in array:
            budget.take(picture_bytes(value.as_py() or b""))
