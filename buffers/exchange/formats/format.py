"""A data set format: its protocol, its writer and reader of episodes, its options; all by name."""

from __future__ import annotations

import difflib
import importlib
import inspect
import json
import re
import time
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import (
    Any,
    ClassVar,
    Final,
    NamedTuple,
    Protocol,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from ...base.untrusted_files import GivenFiles
from ...rows.episode import Episode
from ...spec.spec import Spec
from ...storage.disk.publish import Kind

ReportT = TypeVar("ReportT", bound=Any)
_FORMATS: Final = {
    "minari": "minari:MinariFormat",
    "d3rlpy": "d3rlpy:D3rlpyFormat",
    "hdf5": "flat_hdf5:FlatHdf5Format",
    "dreamerv3": "dreamer_v3:DreamerV3Format",
    "npz": "npz:NpzFormat",
    "parquet": "parquet:ParquetFormat",
    "lerobot": "lerobot:LeRobotFormat",
    "rlds": "rlds:RldsFormat",
    "memmap-replay-buffer": "memmap:MemmapFormat",
}
# As they are called elsewhere.
_MEANT: Final = {
    "hdf5": "d4rl h5 h5py hdf",
    "dreamerv3": "dreamer",
    "npz": "np numpy npy",
    "parquet": "arrow csv datasets hf huggingface pandas polars",
    "rlds": "tensorflow tf tfds tfrecord",
    "memmap-replay-buffer": "memmap mmap",
}
_LIVE: Final = {
    **dict.fromkeys(("torch", "pytorch", "pt"), "to_torch(batch)"),
    "jax": "to_jax(batch)",
    "sb3": "as_sb3_replay(replay, model)",
    "tensordict": "to_tensordict(batch)",
    "torchrl": "as_torchrl_replay(replay)",
    "tianshou": "as_tianshou_replay(replay)",
}
STACK_OPTION: Final = "option stack=true writes stacks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The store that is exported, as a writer sees it before the first episode.

    Args:
        spec: The fields of every row.
        sessions: Facts about the runs that gathered them; ``recipe`` describes the envs.
        episodes: Number of episodes to write.
        steps: Their env steps.
        transitions: Those of them whose observations before and after are stored: of an episode
            that lost its first rows one step fewer.
    """

    spec: Spec
    sessions: Sequence[Mapping[str, object]]
    episodes: int
    steps: int
    transitions: int

    def check_transitions(self, library: str) -> None:
        """Refuse a store without one, for a library that cannot read an empty data set back."""
        if not self.transitions:
            raise ValueError(
                f"export to {library}: expected at least one env step with the observations before "
                f"and after it, got none; collect more"
            )


class Writer(Protocol):
    """Writes one data set. Creating it raises if the rows cannot be written."""

    @property
    def notes(self) -> Sequence[str]:
        """Notes for the user of the data set, one clause each; there may be more at the end."""
        ...

    def begin(self, path: Path) -> None:
        """Begin the data set at the path of an existing empty folder, or empty file."""
        ...

    def write(self, episode: Episode) -> None:
        """Write an episode.

        Raises:
            ValueError: The format cannot hold it.
        """
        ...

    def finish(self) -> None:
        """Write the remaining rows. The data set is complete then; the caller renames it."""
        ...

    def close(self) -> None:
        """Close files; called last, also after an error. Can be called twice."""
        ...


class Reader(Protocol):
    """Reads one data set, one episode after the other.

    `Episode.id` counts from 0; the import assigns new ones.
    """

    @property
    def spec(self) -> Spec:
        """The fields of every row."""
        ...

    @property
    def sessions(self) -> Sequence[Mapping[str, object]]:
        """Facts about the runs that recorded it; empty if they are unknown."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """Facts that the data set does not hold, or not exactly; there may be more at the end."""
        ...

    @property
    def episodes(self) -> int | None:
        """The number of episodes, if it is known before they are read."""
        ...

    @property
    def steps(self) -> int | None:
        """Their env steps, if they are known before they are read."""
        ...

    def __iter__(self) -> Iterator[Episode]:
        """The episodes, in the order in which they were written.

        Raises:
            ValueError: The data set has another format, or is damaged.
        """
        ...

    def close(self) -> None:
        """Close files. Can be called twice."""
        ...


@dataclass(frozen=True, slots=True)
class NoOptions:
    """A format without options."""


class Format(Protocol):
    """A data set format. Creating one imports no library."""

    name: ClassVar[str]
    """Its name in `export_episodes` and after ``--to``."""
    about: ClassVar[str]
    """One line: the library of the format, and its purpose."""
    install: ClassVar[str | None] = None
    """The argument of ``pip install``, if more than Stepwell is needed, such as
    ``'stepwell[minari]'`` with its quotes."""
    kind: ClassVar[Kind] = "folder"
    """A data set is a folder, or a file."""
    export_options: ClassVar[type[Any] | None] = None
    """A frozen dataclass of options for writing, all with defaults; the class's docstring, with
    Google's ``Args:``, is what users read about them. None for a format that is only read."""
    import_options: ClassVar[type[Any]] = NoOptions
    """The same for reading."""

    def place(self, out: str, options: Any) -> Path:
        """The path at which a data set of that name lies: the name itself, by default.

        Raises:
            ValueError: The name is not valid for this format.
        """
        return Path(out)

    def writer(self, source: Source, options: Any) -> Writer:
        """Return a writer; no file is created yet. By default, the format is only read.

        Raises:
            ValueError: The format cannot hold these rows, or an option is invalid.
            ImportError: A library is missing.
        """
        raise NotImplementedError(f"{self.name} is only read: export to another format")

    def reader(self, files: GivenFiles, options: Any) -> Reader:
        """Open the data set at the files' path, as `place` returns it.

        The data set may be hostile: only what ``files`` allows is opened, and memory is allocated
        after its size was checked.

        Raises:
            FileNotFoundError: There is no such path.
            ValueError: It is not a data set of this format.
            ImportError: A library is missing.
        """
        ...

    def loading(self, path: Path, out: str) -> str:
        """Lines of Python that load the data set; none, by default."""
        return ""


def format_names() -> list[str]:
    """Names of all formats.

    Example:
        >>> "minari" in format_names()
        True
    """
    return list(_FORMATS)


def format_of(name: str | Format) -> Format:
    """The format of that name, or the one given; the libraries that it needs are not imported."""
    if not isinstance(name, str):
        if not hasattr(name, "name"):
            raise TypeError(f"format: expected a name or a Format, got {type(name).__name__}")
        return name
    if name not in _FORMATS:
        key = name.lower()
        near = [right for right, names in _MEANT.items() if key in names.split()]
        near += difflib.get_close_matches(key, _FORMATS, 1)
        hint = f"did you mean {near[0]!r}?" if near else "see `stepwell formats`"
        if key in _LIVE:
            hint = f"it needs no file: stepwell.bridges.{_LIVE[key]}"
        if name in ("iris", "diamond"):
            hint = f"examples/exports/{name}.py writes it"
        raise ValueError(f"format: expected one of {', '.join(_FORMATS)}, got {name!r}; {hint}")
    module, _, made = _FORMATS[name].partition(":")
    found = importlib.import_module(f"stepwell.buffers.exchange.formats.{module}")
    format_: Format = getattr(found, made)()
    return format_


def stack_notes(spec: Spec, cure: str, names: Mapping[str, str] | None = None) -> list[str]:
    """A note for each field whose frames an export does not stack, with the names there."""
    return [
        f"{(names or {}).get(field.name, field.name)} holds single frames, of the env's stacks of "
        f"{field.stack}; {cure}"
        for field in spec.fields
        if field.stack > 1
    ]


def counted(report: ReportT, episode: Episode, began: float) -> ReportT:
    """The report of an export or import with an episode more, and the time since it began."""
    return replace(
        report,
        episodes=report.episodes + 1,
        steps=report.steps + max(0, episode.rows - (episode.first_row == 0)),
        seconds=time.perf_counter() - began,
    )


def episode_facts(episode: Episode) -> dict[str, object]:
    """The stream of an episode, how it ended, and its metadata."""
    return {
        "stream": episode.stream,
        "first_row": episode.first_row,
        "terminated": bool(episode.terminated[-1]),
        "truncated": bool(episode.truncated[-1]),
        "cut": bool(episode.cut[-1]),
        "metadata": dict(episode.metadata),
    }


def parse_options(options: type[Any], given: Mapping[str, object], owner: str) -> Any:
    """The options with given values, where "3" and "false" are read as the type that is wanted."""
    # The fields of the dataclass `options` all have defaults. They are of types bool, int, float,
    # str, a Literal of texts, or one of them or None.
    hints = get_type_hints(options)
    names = [field.name for field in fields(options)]
    unknown = [name for name in given if name not in names]
    if unknown:
        raise ValueError(
            f"{owner} has no option {unknown[0]!r}, expected "
            f"{'one of ' + ', '.join(names) if names else 'none at all'}; see `stepwell formats`"
        )
    values = {
        name: _converted(value, hints[name], f"option {name} of {owner}")
        for name, value in given.items()
    }
    return options(**values)


class OptionHelp(NamedTuple):
    """The valid values of an option, its default as text, and its purpose."""

    values: str
    default: str
    about: str


def option_help(options: type[Any]) -> dict[str, OptionHelp]:
    """The help of each option, which stands in the ``Args:`` of its dataclass."""
    hints = get_type_hints(options)
    about = _arguments(options.__doc__ or "")
    return {
        field.name: OptionHelp(
            _type_name(hints[field.name]), _written(field.default), about.get(field.name, "")
        )
        for field in fields(options)
    }


def _converted(value: object, hint: Any, what: str) -> object:
    """A value converted to the type of its option."""
    wanted = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    if value in (None, "none") and type(None) in wanted:
        return None
    for kind in wanted:
        if get_origin(kind) is typing.Literal:
            if value in get_args(kind):
                return value
        elif kind is str:
            if isinstance(value, str):
                return value
        elif kind in (bool, int, float):
            found = _read(value)
            # In Python True is an int, and 1 a float; the given type is kept.
            if type(found) is kind or (kind is float and type(found) is int):
                return kind(found)
    raise ValueError(f"{what}: expected {_type_name(hint)}, got {value!r}; give another")


def _read(value: object) -> Any:
    """The JSON value of a text; other values as they are."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value.lower() if value.lower() in ("true", "false") else value)
    except ValueError:
        return value


def _type_name(hint: Any) -> str:
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(_type_name(part) for part in get_args(hint))
    if get_origin(hint) is typing.Literal:
        return " or ".join(map(str, get_args(hint)))
    names = {type(None): "none", str: "text", bool: "true or false"}
    return names.get(hint) or str(hint.__name__)


def _written(value: object) -> str:
    """A value in command line notation."""
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _arguments(doc: str) -> dict[str, str]:
    """The description of each argument in a Google docstring."""
    _, _, rest = inspect.cleandoc(doc).partition("Args:\n")
    section = re.split(r"(?m)^(?=\S)", rest, maxsplit=1)[0]
    found = re.findall(r"(?m)^ {4}(\w+):(.*(?:\n {5,}.*)*)", section)
    return {name: " ".join(words.split()) for name, words in found}
