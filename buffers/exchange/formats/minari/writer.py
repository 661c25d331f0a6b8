"""Writes Minari data sets."""

from __future__ import annotations

import contextlib
import importlib
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from ....base.optional_libraries import load_library
from ....base.untrusted_json import mapping_of
from ....rows.episode import Episode
from ....rows.step_columns import split
from ....spec.open_spaces import AnyText, FixedSpace, decode_batch
from ....spec.space_json import DTYPES, space_from_json
from ....spec.spec import Field, Layout, Spec, Tree, unflatten
from ..file_columns import any_values, space_of
from ..format import STACK_OPTION, Source, stack_notes
from ..hdf5_columns import NewHdf5, put_column
from .names import FACTS, MinariExport, dataset_id, declared

# The version of the layout written here: older ones read every image as a JPEG.
_MINARI_VERSION: Final = "0.5.4"
_UNFINISHED: Final = "unfinished"
_NAMESPACE_FILE: Final = "namespace_metadata.json"


class MinariWriter:
    """Writes one data set; see `Writer`."""

    def __init__(self, source: Source, options: MinariExport) -> None:
        self._serialization = load_library(
            "minari.serialization",
            "format minari",
            install=INSTALL,
            package="minari",
            at_least=_MINARI_VERSION,
        )
        source.check_transitions("Minari")
        self._source = source
        self._options = options
        is_hdf5 = options.data_format == "hdf5"
        self._files = (_Hdf5File if is_hdf5 else _ArrowFiles)(options.compress)
        _check_fields(source.spec, is_hdf5)
        self._known: _KnownEnv | None = None
        if options.env is not None:
            self._known = _known_env(source.spec, source.sessions, options.env)
        self._spaces = _SeenSpaces(source.spec, options.stack)
        facts = [one[FACTS] for one in source.sessions if isinstance(one.get(FACTS), Mapping)]
        self._declared, _ = declared(mapping_of(facts[-1] if facts else None))
        self._reward = _reward_dtype(source.sessions)
        self._path = Path()
        self._episodes = self._steps = 0  # written so far
        self._cuts = self._stepless = 0

    @property
    def notes(self) -> Sequence[str]:
        """Notes for the user of the data set, one clause each."""
        stacked = [] if self._options.stack else stack_notes(self._source.spec, STACK_OPTION)
        unknown = (
            "the env's spaces are not known: their bounds are those of dtypes, and actions are "
            "those that were seen; give the option env where Gymnasium has the env"
        )
        found = [unknown if self._known is None else self._known.note, *stacked]
        if self._cuts:
            found.append(
                f"{_count_of(self._cuts)} cut by the end of the recording: marked as truncated in "
                f"the last step, as Minari's own collector does it"
            )
        if self._stepless:
            found.append(
                f"{_count_of(self._stepless)} without a step: left out, as Minari cannot read it"
            )
        return [note for note in found if note]

    def begin(self, path: Path) -> None:
        """Make the folders."""
        self._path = path
        # Minari reads a folder with "data" in it as a data set, and fails on an unexpected name.
        (path / _UNFINISHED).mkdir()
        self._files.begin(path / _UNFINISHED)

    def write(self, episode: Episode) -> None:
        """Write an episode."""
        if episode.steps == 0:  # Minari could not read it back
            self._stepless += 1
        else:
            columns = split(episode, stack=self._options.stack)
            seen = episode.spec.of_kind("observation", "action")
            self._spaces.look({field.name: columns[field.name] for field in seen})
            arrays = _arrays_of(episode, columns)
            if self._known is not None:
                pairs = ("observations", self._known.observation), ("actions", self._known.action)
                arrays |= {name: _with_texts(space, arrays[name]) for name, space in pairs}
            arrays["rewards"] = self._rewards(columns["reward"])
            self._files.put(self._episodes, arrays, episode.metadata)
            self._episodes += 1
            self._steps += episode.steps
            self._cuts += not episode.end.is_final

    def finish(self) -> None:
        """Write the totals, and register the data set with Minari."""
        self._files.close()
        folder = self._path / _UNFINISHED
        part = self._path.parent
        target = part.with_name(part.name.removesuffix(".part"))
        id_ = dataset_id(target, self._options.root)
        size = 0
        for _ in range(2):  # Minari counts this file, and the folders
            metadata = json.dumps(self._metadata(id_, size / 1e6))
            (folder / "metadata.json").write_text(metadata, encoding="utf-8")
            size = sum(each.stat().st_size for each in folder.rglob("*"))
        self._make_namespaces(target, id_)
        folder.rename(self._path / "data")

    def close(self) -> None:
        """Close the file."""
        self._files.close()

    def _rewards(self, rewards: np.ndarray) -> np.ndarray:
        """The rewards in the dtype that the data set had, so that Minari can extend this one."""
        with np.errstate(invalid="ignore"):
            found = rewards.astype(self._reward)
            is_same = np.array_equal(found.astype(np.float64), rewards, equal_nan=True)
        if is_same or self._options.data_format == "hdf5":
            return found if is_same else rewards
        raise ValueError(
            f"reward: expected {self._reward}, as the data set declares that they were imported "
            f"from, got others; choose data_format=hdf5"
        )

    def _metadata(self, id_: str, megabytes: float) -> dict[str, object]:
        """The values of ``metadata.json``, under Minari's keys."""
        options, known, needed = self._options, self._known, self._options.requirements
        observation = self._spaces.observation(None if known is None else known.observation)
        action = self._spaces.action(None if known is None else known.action)
        serialized = self._serialization.serialize_space
        given = {
            "env_spec": None if known is None else known.env_spec,
            "author": options.author and [options.author],
            "author_email": options.author_email and [options.author_email],
            "code_permalink": options.code_permalink,
            "algorithm_name": options.algorithm_name,
            "description": options.description,
            "requirements": needed and [word.strip() for word in needed.split(",")],
        }
        own: dict[str, object] = {
            "dataset_id": id_,
            "minari_version": _MINARI_VERSION,
            "data_format": options.data_format,
            "jpeg_encoding": False,
            "total_episodes": self._episodes,
            "total_steps": self._steps,
            "dataset_size": round(megabytes, 1),
            "observation_space": serialized(_written(observation)),
            "action_space": serialized(_written(action)),
        }
        optional = {**self._declared, **{key: value for key, value in given.items() if value}}
        return {**optional, **own}

    def _make_namespaces(self, target: Path, id_: str) -> None:
        """Mark the folders between the root and the data set as Minari does."""
        folder = target.absolute().parents[id_.count("/")]
        for namespace in id_.split("/")[:-1]:
            folder /= namespace
            file = folder / _NAMESPACE_FILE
            if not file.exists():
                file.write_text("{}", encoding="utf-8")


def _count_of(episodes: int) -> str:
    return f"{episodes:,} episode{'s' * (episodes > 1)}"


def _check_fields(spec: Spec, is_hdf5: bool) -> None:
    """Reject rows that Minari's files cannot hold."""
    keys = [*_keys(spec.observation), *_keys(spec.action)]
    for field in spec.fields:
        why = ""
        if field.numpy_dtype.kind not in "biuf":
            why = f"expected whole numbers, floats or bool, got {field.dtype}; leave it out"
        elif field.name.startswith("info/extra/"):
            why = (
                "expected another name, as policy extras are stored under infos as extra: rename it"
            )
        elif not is_hdf5:
            if 0 in field.shape:
                why = "arrow has no columns of size 0: choose data_format=hdf5"
        elif field.kind not in ("info", "extra"):
            if strange := [key for key in keys if "/" in key or key in ("", ".")]:
                why = (
                    f"HDF5 cannot hold the key {strange[0]!r}: choose data_format=arrow, or rename "
                    f"it"
                )
        elif any(other.name.startswith(f"{field.name}/") for other in spec.fields):
            why = "HDF5 cannot hold it together with fields below it: choose data_format=arrow"
        if why:
            raise ValueError(f"field {field.name!r}: {why}")


def _keys(layout: Layout) -> Iterator[str]:
    """All keys of Dict spaces."""
    if isinstance(layout, Mapping):
        yield from layout
        for part in layout.values():
            yield from _keys(part)
    elif not isinstance(layout, str):
        for part in layout:
            yield from _keys(part)


INSTALL: Final = "'stepwell[minari]'"
HDF5_NAME: Final = "main_data.hdf5"
_ATTRIBUTE_TEXT: Final = 8 << 10  # characters of an attribute, which may have 64 KiB at most
_ARROW_ROWS: Final = 131_072


def _arrays_of(episode: Episode, columns: Mapping[str, np.ndarray]) -> dict[str, Tree]:
    """An episode of T steps in Minari's layout, of its rows as `split` returns them."""
    # `observations` [T + 1, ...] and `actions` [T, ...], nested as the spaces are, stacks may be
    # views; `rewards` [T] float64, `terminations` and `truncations` [T] bool; `infos` [T + 1, ...]
    # by name, with `/` between the parts of nested ones.
    spec, truncated = episode.spec, episode.truncated[1:]
    if not episode.end.is_final:
        truncated[-1] = True
    infos = {field.key: episode.fields[field.name] for field in spec.of_kind("info")}
    extras = {field.name: episode.fields[field.name] for field in spec.of_kind("extra")}
    return {
        "observations": unflatten(spec.observation, columns),
        "actions": unflatten(spec.action, columns),
        "rewards": columns["reward"],
        "terminations": episode.terminated[1:],
        "truncations": truncated,
        "infos": {**infos, **extras},
    }


class _Hdf5File:
    """``main_data.hdf5``: a group for each episode."""

    def __init__(self, compress: bool) -> None:
        self._h5py = load_library("h5py", "Minari's format hdf5", install=INSTALL)
        self._compress = compress
        self._new: NewHdf5 | None = None
        self._file: Any = None

    def begin(self, folder: Path) -> None:
        self._new = NewHdf5(self._h5py, folder / HDF5_NAME, track_order=True)
        self._file = self._new.file

    def put(self, number: int, arrays: Mapping[str, Tree], facts: Mapping[str, Any]) -> None:
        group = self._file.create_group(f"episode_{number}")
        counts = {"id": number, "total_steps": len(arrays["rewards"])}
        group.attrs.update({**_attributes(facts), **counts})
        for name, tree in arrays.items():
            self._tree(group, name, tree)
        if self._new is not None:
            self._new.check()

    def close(self) -> None:
        """Close the file."""
        if self._new is not None:
            self._new.close()

    def _tree(self, group: Any, name: str, tree: Any) -> None:
        if isinstance(tree, np.ndarray):
            put_column(group, name, tree, self._compress)
            return
        if isinstance(tree, list):
            if any("\0" in text for text in tree):
                raise ValueError(
                    f"{name}: expected texts without the character 0, which HDF5 cannot hold; "
                    f"choose data_format=arrow"
                )
            group.create_dataset(name, data=tree, dtype=self._h5py.string_dtype("utf-8"))
            return
        inner = group.create_group(name)
        for key, part in _parts(tree, "_index_").items():
            self._tree(inner, key, part)


class _ArrowFiles:
    """A folder for each episode: a file of one batch of T + 1 rows, and ``metadata.json``."""

    def __init__(self, compress: bool) -> None:
        self._pa = load_library("pyarrow", "Minari's format arrow", install=INSTALL)
        self._ipc = load_library("pyarrow.ipc", "Minari's format arrow", install=INSTALL)
        self._options = self._ipc.IpcWriteOptions(compression="zstd" if compress else None)
        self._folder = Path()

    def begin(self, folder: Path) -> None:
        self._folder = folder

    def put(self, number: int, arrays: Mapping[str, Tree], facts: Mapping[str, Any]) -> None:
        steps = len(arrays["rewards"])
        if steps >= _ARROW_ROWS:
            raise ValueError(
                f"an episode has {steps:,} steps, expected {_ARROW_ROWS - 1:,} at most, since "
                f"Minari reads longer ones of its format arrow in parts: choose data_format=hdf5"
            )
        # A batch is as long as its observations; Minari ignores the last row of all other columns.
        columns = {
            name: self._tree(tree, int(name != "observations"))
            for name, tree in arrays.items()
            if name != "infos"
        }
        infos = cast("Mapping[str, np.ndarray]", arrays["infos"])
        if infos:
            columns["infos"] = self._infos(infos)
        batch = self._pa.RecordBatch.from_pydict(columns)
        folder = self._folder / str(number)
        folder.mkdir()
        with self._ipc.new_file(
            str(folder / "part-0.arrow"), batch.schema, options=self._options
        ) as file:
            file.write_batch(batch)
        metadata = {**facts, "id": number, "total_steps": steps}
        (folder / "metadata.json").write_text(json.dumps(metadata), encoding="utf-8")

    def close(self) -> None:
        """Do nothing: each file is closed already."""

    def _tree(self, tree: Any, pad: int) -> Any:
        if isinstance(tree, np.ndarray):
            return self._column(tree, pad)
        if isinstance(tree, list):
            return self._pa.array([*tree, *[None] * pad])
        named = _parts(tree)
        arrays = [self._tree(part, pad) for part in named.values()]
        return self._pa.StructArray.from_arrays(arrays, names=list(named))

    def _column(self, rows: np.ndarray, pad: int) -> Any:
        if pad:
            rows = np.concatenate([rows, np.zeros((pad, *rows.shape[1:]), rows.dtype)])
        flat = self._pa.array(np.ascontiguousarray(rows).reshape(-1))
        if rows.ndim == 1:
            return flat
        return self._pa.FixedSizeListArray.from_arrays(flat, rows[0].size)

    def _infos(self, infos: Mapping[str, np.ndarray]) -> Any:
        arrays = [self._column(rows, 0) for rows in infos.values()]
        fields = [
            self._pa.field(
                name,
                array.type,
                metadata={"shape": ",".join(map(str, rows.shape[1:]))} if rows.ndim > 1 else None,
            )
            for (name, rows), array in zip(infos.items(), arrays, strict=True)
        ]
        return self._pa.StructArray.from_arrays(arrays, fields=fields)


def _parts(tree: Mapping[str, Any] | Sequence[Any], prefix: str = "") -> Mapping[str, Any]:
    """The parts of a Dict by their keys, of a Tuple by their places."""
    if isinstance(tree, Mapping):
        return tree
    return {f"{prefix}{place}": part for place, part in enumerate(tree)}


def _attributes(facts: Mapping[str, Any], parent: str = "") -> dict[str, Any]:
    """Facts as attributes of HDF5: nested ones by path, lists as JSON; None is left out."""
    found: dict[str, Any] = {}
    for key, value in facts.items():
        if isinstance(value, Mapping):
            found |= _attributes(value, f"{parent}{key}/")
        elif isinstance(value, list):
            found[f"{parent}{key}"] = _list_attribute(value)
        elif isinstance(value, int) and not -(2**63) <= value < 2**64:
            found[f"{parent}{key}"] = str(value)
        elif value is not None:
            found[f"{parent}{key}"] = value
    return {  # without texts that HDF5 cannot store as an attribute
        key: value
        for key, value in found.items()
        if not (isinstance(value, str) and (len(value) > _ATTRIBUTE_TEXT or "\0" in value))
    }


def _list_attribute(value: list[Any]) -> Any:
    """Numbers of one kind as an array, as Minari's own recorder stores them; others as JSON."""
    if (
        value
        and len({type(one) for one in value}) == 1
        and isinstance(value[0], bool | int | float)
    ):
        array = np.array(value)
        if array.dtype.kind in "bif" and array.nbytes < _ATTRIBUTE_TEXT:
            return array
    return json.dumps(value)


Space: TypeAlias = "spaces.Space[Any]"

_WIDEST: Final = 2**62


@dataclass(frozen=True, slots=True)
class _KnownEnv:
    """The known facts about the env whose rows are stored."""

    observation: Space  # stacks in full
    action: Space
    env_spec: str | None  # gymnasium's `EnvSpec` as JSON; Minari makes the env of it
    note: str = ""  # a caveat for the user


def _plain_spec(text: object) -> str | None:
    """An env spec as gymnasium writes it: with lists for tuples, and without values of NumPy."""
    if not isinstance(text, str) or "__dtype__" in text:
        return None
    if "__tuple__" not in text:
        return text

    def plain(pairs: dict[str, Any]) -> Any:
        return pairs["__tuple__"] if pairs.keys() == {"__tuple__"} else pairs

    return json.dumps(json.loads(text, object_hook=plain))


def _known_env(
    spec: Spec, sessions: Sequence[Mapping[str, object]], wanted: str
) -> _KnownEnv | None:
    """The env of the rows, recorded or of the ``wanted`` id; None if the store does not say it."""
    # A recorded env whose rows differ from the Spec is ignored.
    if wanted != "recorded":
        return _env_of_id(spec, wanted)
    session = next((one for one in reversed(sessions) if one.get("spaces")), {})
    recorded = cast("Mapping[str, Mapping[str, Any]]", session.get("spaces", {}))
    if not recorded:
        return None
    observation, action = (space_from_json(recorded[part]) for part in ("observation", "action"))
    if not _fits(spec, observation, action):  # not written by a Collector
        return None
    env_spec = _plain_spec(session.get("env_spec"))
    if env_spec is not None:
        return _KnownEnv(observation, action, env_spec)
    recipe = cast("Mapping[str, Any]", session.get("recipe", {}))
    if recipe.get("maker") == "given" and recipe.get("env") in gym.registry:
        note = f"recover_environment() makes {recipe['env']} without its wrappers (unknown)"
        return _KnownEnv(observation, action, gym.spec(recipe["env"]).to_json(), note)
    note = "the store does not record how its env is made, so recover_environment() fails"
    return _KnownEnv(observation, action, None, note)


def _env_of_id(spec: Spec, id_: str) -> _KnownEnv:
    """The spaces and spec of the user's env, which is created and closed for that."""
    try:
        if id_.startswith("ALE/"):
            importlib.import_module("ale_py")  # registers its envs
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            env = gym.make(id_)
        with contextlib.closing(env):
            observation, action = env.observation_space, env.action_space
            env_spec = None if env.spec is None else env.spec.to_json()
    except Exception as error:  # the env's code can raise anything
        raise ValueError(
            f"option env: expected the id of a Gymnasium env that can be made, got {id_!r} "
            f"({error}); give another, or none"
        ) from error
    if not _fits(spec, observation, action):
        raise ValueError(
            f"option env: expected an env whose rows are like the stored ones, got {id_!r} with "
            f"{observation} and {action}; give another, or none"
        )
    return _KnownEnv(observation, action, env_spec)


class _SeenSpaces:
    """Spaces inferred from rows: dtypes, shapes and the integers seen."""

    def __init__(self, spec: Spec, stack: bool) -> None:
        self._spec = spec
        self._stack = stack
        self._low: dict[str, Any] = {}
        self._high: dict[str, Any] = {}

    def look(self, columns: Mapping[str, np.ndarray]) -> None:
        """Note the integers in an episode's observations or actions, by field name."""
        for name, rows in columns.items():
            if rows.dtype.kind not in "iu" or not _is_count_of(self._spec[name]) or not len(rows):
                continue
            low, high = rows.min(axis=0), rows.max(axis=0)
            self._low[name] = np.minimum(self._low.get(name, low), low)
            self._high[name] = np.maximum(self._high.get(name, high), high)

    def observation(self, known: Space | None) -> Space:
        """The observation space; of single frames where stacks are not written in full."""
        layout = self._spec.observation
        if known is None:
            return space_of(layout, self._leaf)
        if isinstance(layout, str) and self._spec[layout].stack > 1 and not self._stack:
            stacked = cast("spaces.Box", known)
            dtype = cast("Any", stacked.dtype)
            return spaces.Box(stacked.low[-1], stacked.high[-1], dtype=dtype)
        return known

    def action(self, known: Space | None) -> Space:
        """The action space; not a known one that lacks actions which were seen."""
        layout = self._spec.action
        if isinstance(known, spaces.Discrete) and isinstance(layout, str) and layout in self._low:
            last = int(known.start) + int(known.n) - 1
            if self._low[layout] < known.start or self._high[layout] > last:
                known = None
        return space_of(layout, self._leaf) if known is None else known

    def _leaf(self, name: str) -> Space:
        field = self._spec[name]
        dtype: Any = field.numpy_dtype
        shape = field.source_shape if self._stack else field.shape
        if field.name in self._low:
            low, high = self._low[field.name], self._high[field.name]
            if not shape and int(high) - min(0, int(low)) < _WIDEST:
                start = min(0, int(low))
                return spaces.Discrete(int(high) - start + 1, start=start)
            if shape and low.min() >= 0 and high.max() < np.iinfo(dtype).max:
                return spaces.MultiDiscrete(high + 1, dtype=dtype)
        return any_values(shape, dtype)


def _is_count_of(field: Field) -> bool:
    """True if its space may be Discrete or MultiDiscrete."""
    if not field.shape:
        return field.dtype == "int64" and field.stack == 1  # the dtype of every Discrete space
    return field.kind == "action"


def _fits(spec: Spec, observation: Space, action: Space) -> bool:
    """True if such an env makes rows like these."""
    stacked = [field for field in spec.fields if field.stack > 1]
    k = stacked[0].stack if stacked else 1
    try:
        other = Spec.from_spaces(observation, action, frame_stack=k)
    except (TypeError, ValueError):
        return False
    if other.observation != spec.observation or other.action != spec.action:
        return False
    names = [f.name for f in other.fields if f.name != "reward"]
    return all(
        (spec[name].shape, spec[name].stack) == (other[name].shape, other[name].stack)
        # A Minari data set may hold, and so declare, int32 in a Discrete space.
        and np.can_cast(spec[name].dtype, other[name].dtype, "same_kind")
        for name in names
    )


def _reward_dtype(sessions: Sequence[Mapping[str, object]]) -> np.dtype[Any]:
    """The dtype of the rewards, if all runs that recorded rows declare the same one."""
    dtypes = {one.get("reward_dtype") for one in sessions if "recipe" in one}
    (found,) = dtypes if len(dtypes) == 1 else (None,)
    return np.dtype(str(found) if found in DTYPES else "float64")


def _with_texts(space: Space, tree: Any) -> Any:
    """Rows in which texts are texts, not arrays of their characters."""
    if _is_text(space):
        return decode_batch(space, tree)
    if isinstance(tree, Mapping) and isinstance(space, spaces.Dict):
        return {key: _with_texts(space.spaces[key], part) for key, part in tree.items()}
    if isinstance(tree, tuple) and isinstance(space, spaces.Tuple):
        return tuple(_with_texts(*pair) for pair in zip(space.spaces, tree, strict=True))
    return tree


def _written(space: Space) -> Space:
    """The space of the rows that `_with_texts` returns."""
    if _is_text(space):
        return cast("FixedSpace", space).original
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: _written(part) for key, part in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([_written(part) for part in space.spaces])
    return space


def _is_text(space: Space) -> bool:
    """True for texts of known characters, which are all that Minari has."""
    original = getattr(space, "original", None)
    return isinstance(original, spaces.Text) and not isinstance(original, AnyText)
