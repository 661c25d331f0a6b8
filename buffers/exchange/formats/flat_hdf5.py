"""HDF5 files of flat columns: D4RL's, d3rlpy 1's, and robomimic's demonstrations; read only."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import numpy as np

from ...base.optional_libraries import load_library
from ...base.untrusted_files import GivenFiles, MemoryBudget
from ...base.untrusted_json import parse
from ...rows.episode import End
from ...rows.step_columns import are_equal, has_final_row, inferred_spec
from ...spec.spec import Spec
from .episode_reader import NO_STREAMS, EpisodeReader, FoundEpisode, plain
from .format import Format, Reader
from .hdf5_columns import as_text, datasets_of, open_given, read_column, read_rows

INSTALL: Final = "'stepwell[d3rlpy]'"
_DEMO: Final = re.compile(r"(.*?)(\d*)")
_MOST_TEXT: Final = 1 << 12
_LAYOUTS: Final = (
    "observations, actions, rewards and terminals of all steps (D4RL, d3rlpy 1), or data/demo_0, "
    "... with obs and actions (robomimic)"
)

_ADVICE: Final = (
    "read its columns with h5py, and write whole episodes with add_episode of a replay's writer()"
)
_BREAKS: Final = (
    "episodes end where an observation does not follow from the row before, {}, though no end is "
    "marked there: they are read as cut"
)
_INNER: Final = (
    "dones before the last row of a demonstration are left out, {}, as robomimic also marks states "
    "of success"
)
_PADDED: Final = "infos of last observations are zeros, in {} episodes"


@dataclass(frozen=True, slots=True)
class FlatHdf5Import:
    """Options for reading a file of flat columns.

    Args:
        max_episode_steps: Steps after which a time limit ended an episode, for files that mark
            terminals alone, as D4RL's first ones did.
    """

    max_episode_steps: int | None = None


class FlatHdf5Format(Format):
    """Columns of all steps in a row, or of each demonstration."""

    # `observations`, `actions`, `rewards`, `terminals`, and if they are there `timeouts` or
    # `episode_terminals`, `next_observations` and `infos/name`; or `data/demo_0/obs/name`,
    # `actions`, `rewards`, `dones` and `next_obs/name`.

    name = "hdf5"
    about = "a file of flat columns, as D4RL, robomimic and d3rlpy 1 wrote them; read only"
    install = INSTALL
    kind = "file"
    import_options = FlatHdf5Import

    def reader(self, files: GivenFiles, options: FlatHdf5Import) -> Reader:
        """Open a data set."""
        return reader_of(files, options, "hdf5")


@dataclass(slots=True)
class StepTable:
    """Columns of N consecutive rows, each of an observation and the action that followed."""

    where: str  # its name, for error messages
    columns: dict[str, Any]  # datasets or arrays by field name, without the reward
    rewards: Any  # None for zeros
    following: dict[str, Any]  # observations after each action, by field name; may be empty
    terminated: np.ndarray  # [N]; the MDP ended with the row's action
    truncated: np.ndarray  # [N]; another end
    metadata: dict[str, object] = field(default_factory=dict)  # facts about the episodes


class TableReader(EpisodeReader):
    """Reads tables of steps, in files or in memory; the first one determines the Spec.

    What an action led to is the observation of the next row of its episode. The last one of an
    episode is in the table's ``following``; else it is not known: an episode that terminated there
    ends with zeros, and another one without its last action.
    """

    unknown: ClassVar[str] = (
        "last observations of terminated episodes are zeros, {}, as the file has none"
    )
    """The note on last observations that are not known; ``{}`` is their number."""
    dropped: ClassVar[str] = (
        "last actions and rewards of episodes that did not terminate are left out, {}, as the file "
        "does not say what they led to"
    )
    """The note on last actions."""

    def __init__(self, where: str, budget: Callable[[object], MemoryBudget], *notes: str) -> None:
        super().__init__(*notes)
        self._where = where
        self._budget = budget
        self._forms: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
        for clause in (self.unknown, self.dropped, _BREAKS, _INNER, _PADDED):
            self._notes.count(clause, 0)

    def check(self) -> None:
        """Raise if a table is not like the first one."""
        for table in self._tables():
            self._fitting(table)

    def _tables(self) -> Iterator[StepTable]:
        raise NotImplementedError

    def _begin(self) -> Spec:
        """The Spec of the first table."""
        first = next(self._tables(), None)
        if first is None:
            raise ValueError(f"{self._where}: expected at least one episode, got none")
        self._forms = _forms(self._fitting(first).columns)
        empty = {
            name: np.empty((int(not name.startswith("action")), *shape), dtype)
            for name, (dtype, shape) in self._forms.items()
        }
        return inferred_spec({**empty, "reward": np.empty(0)}, self._where)

    def _found(self) -> Iterator[FoundEpisode]:
        for given in self._tables():
            table = self._fitting(given)
            ends = np.flatnonzero(table.terminated | table.truncated) + 1
            rows = len(table.terminated)
            edges = [0, *ends.tolist(), *([rows] if not len(ends) or ends[-1] < rows else [])]
            for start, stop in itertools.pairwise(edges):
                yield from self._between(table, start, stop)

    def _between(self, table: StepTable, start: int, stop: int) -> Iterator[FoundEpisode]:
        """The episodes in some rows, of which only the last one may have ended there."""
        where = f"{table.where}: rows {start:,} to {stop - 1:,}"
        budget = self._budget(where)
        columns = {
            name: read_rows(node, start, stop, budget).reshape(stop - start, *self._forms[name][1])
            for name, node in table.columns.items()
        }
        following = {n: read_rows(node, start, stop, budget) for n, node in table.following.items()}
        columns["reward"] = np.zeros(stop - start)
        if table.rewards is not None:
            columns["reward"] = read_rows(table.rewards, start, stop, budget).reshape(-1)
        last = End.NONE
        for flag, marks in ((End.TERMINATED, table.terminated), (End.TRUNCATED, table.truncated)):
            last |= flag if marks[stop - 1] else End.NONE
        follows = np.ones(stop - start - 1, bool)
        for name, rows in following.items():
            follows &= are_equal(rows[:-1], columns[name][1:])
        breaks = (np.flatnonzero(~follows) + 1).tolist()
        self._notes.count(_BREAKS, len(breaks))
        for first, end in itertools.pairwise([0, *breaks, stop - start]):
            part = {name: rows[first:end] for name, rows in columns.items()}
            after = {name: rows[end - 1 : end] for name, rows in following.items()}
            ended = last if end == stop - start else End.NONE
            found = FoundEpisode(where, part, ended, table.metadata)
            self._complete(found, after)
            yield found

    def _complete(self, found: FoundEpisode, after: dict[str, np.ndarray]) -> None:
        """Make T + 1 observations and infos, and T of all others, of rows with both."""
        part = found.columns
        if not after and not found.end & End.TERMINATED:  # the last observation is the last row's
            self._notes.count(self.dropped)
            for name in part:
                if not has_final_row(name):
                    part[name] = part[name][:-1]
            if not len(part["reward"]):
                found.end = End.NONE
            return
        self._notes.count(self.unknown, not after)
        self._notes.count(_PADDED, any(name.startswith("info/") for name in part))
        for name, rows in part.items():
            if has_final_row(name):
                part[name] = np.concatenate([rows, after.get(name, np.zeros_like(rows[:1]))])

    def _fitting(self, table: StepTable) -> StepTable:
        """The table, if its columns fit each other, and the first table's."""
        rows = len(table.terminated)
        if not rows:
            raise ValueError(f"{table.where}: expected at least one row, got none; remove it")
        shown = {n: node for n, node in table.columns.items() if n.startswith("observation")}
        reward = {} if table.rewards is None else {"reward": table.rewards}
        for name, node in [*table.columns.items(), *table.following.items(), *reward.items()]:
            called = getattr(node, "name", name)
            if not hasattr(node, "shape"):
                raise ValueError(f"{table.where}: expected {called} as a dataset, got a group")
            if node.dtype.kind not in "biufc" or node.shape[:1] != (rows,):
                raise ValueError(
                    f"{table.where}: expected {called} as numbers of {rows:,} rows, as many as "
                    f"there are ends, got {node.dtype} {node.shape}; fix it"
                )
        if table.following and _forms(table.following) != _forms(shown):
            raise ValueError(
                f"{table.where}: expected next observations like the observations, got others; "
                f"leave them out"
            )
        for node in reward.values():
            if node.dtype.kind not in "biuf" or node.shape not in ((rows,), (rows, 1)):
                raise ValueError(
                    f"{table.where}: expected rewards of one number a step, got {node.dtype} "
                    f"{node.shape}; write one number, and the others as infos"
                )
        forms = _forms(table.columns)
        if self._forms and forms != self._forms:
            raise ValueError(
                f"{table.where}: expected columns as in the first table, {_told(self._forms)}, "
                f"got {_told(forms)}; leave it out"
            )
        return table


class FlatHdf5Reader(TableReader):
    """Reads one file of D4RL's, d3rlpy 1's or robomimic's layout."""

    def __init__(self, file: Any, files: GivenFiles, options: FlatHdf5Import) -> None:
        super().__init__(str(files.path), files.budget, NO_STREAMS)
        self._limit = options.max_episode_steps
        if self._limit is not None and self._limit < 1:
            raise ValueError(f"option max_episode_steps: expected 1 or more, got {self._limit}")
        self._path = files.path
        self._facts: dict[str, object] = {}
        self._file = file
        self._demos: list[str] = []
        if _is_robomimic(file):
            self._demos = sorted(file["data"], key=_in_order)
            self._masks = self._read_masks()
            self._note_env()
        elif not _is_columns(file):
            known = "num_episodes" in file and "version" in file
            raise ValueError(
                f"{self._path}: expected {_LAYOUTS}; got {', '.join(list(file)[:8]) or 'none'}; "
                f"{'import it from the format d3rlpy' if known else _ADVICE}"
            )
        self._kept = self._kept_infos()
        self.spec = self._begin()
        facts = {"hdf5": self._facts} if self._facts else {}
        self.sessions = ({"recipe": {"source": "hdf5"}, **facts},)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _tables(self) -> Iterator[StepTable]:
        if not self._demos:
            yield self._flat()
        for name in self._demos:
            yield self._demo(name)

    def _flat(self) -> StepTable:
        file, where = self._file, str(self._path)
        ends = {}
        for name in ("terminals", "timeouts", "episode_terminals"):
            if name in file:
                ends[name] = self._flags(file[name], where)
                if len(ends[name]) != len(ends["terminals"]):
                    raise ValueError(
                        f"{where}: expected /{name} of {len(ends['terminals']):,} rows, as many as "
                        f"/terminals has, got {len(ends[name]):,}; fix it"
                    )
        terminated = ends["terminals"]
        # `timeouts` are time limits, also where the MDP ended; `episode_terminals` are all ends.
        truncated = ends.get("timeouts", ends.get("episode_terminals", terminated)) & (
            ~terminated if "timeouts" not in ends else True
        )
        if self._limit is not None and len(ends) == 1:
            truncated = _limited(terminated, self._limit)
        elif self._limit is not None:
            self._notes.add(f"max_episode_steps is not used, as the file has {[*ends][-1]}")
        elif len(ends) == 1:
            self._notes.add(
                "no timeouts are marked: an episode that a time limit ended continues into the "
                "next one unless the file has next_observations; give the option "
                "max_episode_steps if the env had a limit"
            )
        columns = _columns("observation", file["observations"]) | _columns(
            "action", file["actions"]
        )
        following = {}
        if "next_observations" in file:
            following = _columns("observation", file["next_observations"])
        columns |= {name: node for name, node in self._infos().items() if name in self._kept}
        used = {"observations", "actions", "rewards", "next_observations", *ends}
        self._note_others(file, {*used, "infos", "metadata", "version", "discrete_action"})
        self._note_facts()
        return StepTable(where, columns, file["rewards"], following, terminated, truncated)

    def _demo(self, name: str) -> StepTable:
        demo, where = self._file["data"][name], f"{self._path}: data/{name}"
        for needed in ("obs", "actions"):
            if not isinstance(demo, Mapping) or needed not in demo:
                raise ValueError(
                    f"{where}: expected obs and actions, got no {needed!r}; robomimic's "
                    f"dataset_states_to_obs.py adds observations to recorded states"
                )
        columns = _columns("observation", demo["obs"]) | _columns("action", demo["actions"])
        following = _columns("observation", demo["next_obs"]) if "next_obs" in demo else {}
        if self._kept and "states" in demo:
            columns["info/states"] = demo["states"]
        if "rewards" not in demo:
            self._notes.add("rewards are zeros where a demonstration has none")
        terminated = np.zeros(len(demo["actions"]), bool)
        if "dones" in demo:
            terminated = self._flags(demo["dones"], where)
            # A demonstration is one episode: rows that are done before its last one, such as those
            # of a success that lasts, are counted for a note and do not end it.
            self._notes.count(_INNER, int(terminated[:-1].sum()))
            terminated[:-1] = False
            self._notes.add(
                "demonstrations whose last row is done are read as terminated, though robomimic "
                "may mark only their end"
            )
        used = {"obs", "next_obs", "actions", "rewards", "dones", "states"}
        self._note_others(demo, used, "of demonstrations ")
        masks = [mask for mask, members in self._masks.items() if name in members]
        truncated = np.zeros(len(terminated), bool)
        rewards = demo["rewards"] if "rewards" in demo else None
        about: dict[str, object] = {"demo": name, **({"masks": masks} if masks else {})}
        return StepTable(where, columns, rewards, following, terminated, truncated, about)

    def _flags(self, node: Any, where: str) -> np.ndarray:
        """Flags [N], bool."""
        is_column = hasattr(node, "shape") and node.shape in (node.shape[:1], (*node.shape[:1], 1))
        if is_column and node.shape and node.dtype.kind in "biuf":
            found = read_column(node, self._budget(f"{where}: {node.name}")).reshape(-1)
            marks: np.ndarray = found == 1
            if (marks | (found == 0)).all():
                return marks
        raise ValueError(f"{where}: expected {node.name} as one 0 or 1 a row, got others; fix it")

    def _kept_infos(self) -> set[str]:
        """The infos that are numbers, a row for each step, alike in all demonstrations."""
        if not self._demos:
            found = self._infos()
            rows = len(self._file["terminals"])
            return {n for n, node in found.items() if node.shape[:1] == (rows,)}
        forms: list[Any] = []
        for name in self._demos:
            demo = self._file["data"][name]
            node: Any = demo.get("states") if isinstance(demo, Mapping) else None
            is_column = hasattr(node, "shape") and node.dtype.kind in "biuf"
            is_like = is_column and node.shape[:1] == getattr(demo.get("actions"), "shape", ())[:1]
            forms.append((node.dtype, node.shape[1:]) if is_like and node.shape else None)
        return {"info/states"} if forms[0] and len(set(forms)) == 1 else set()

    def _infos(self) -> dict[str, Any]:
        infos = self._file.get("infos")
        columns = _columns("info", infos) if isinstance(infos, Mapping) else {}
        return {name: node for name, node in columns.items() if node.dtype.kind in "biufc"}

    def _read_masks(self) -> dict[str, set[str]]:
        """The demonstrations of each filter key."""
        masks = self._file.get("mask")
        if not isinstance(masks, Mapping):
            return {}
        budget = self._budget(f"{self._path}: mask")
        found = {}
        for node in datasets_of(masks):
            names = np.atleast_1d(read_column(node, budget)).reshape(-1).tolist()
            found[node.name.removeprefix("/mask/")] = {as_text(one) for one in names}
        return found

    def _note_others(self, group: Any, used: set[str], of: str = "") -> None:
        columns = {n.split("/")[1] for n in self._kept} if of else set()
        left = [str(name) for name in group if name not in used | columns]
        for name in ("infos", "states"):
            if name in group and not self._kept:
                left.append(name)
        if left:
            self._notes.add(
                f"columns {of}left out, as they have no meaning here: {', '.join(left[:20])}"
            )

    def _note_facts(self) -> None:
        """Keep short texts and single numbers of ``metadata/``."""
        metadata = self._file.get("metadata")
        if not isinstance(metadata, Mapping):
            return
        left = []
        budget = self._budget(f"{self._path}: metadata")
        for node in datasets_of(metadata):
            name = node.name.removeprefix("/")
            value = read_column(node, budget) if node.size == 1 else None
            value = value.reshape(-1)[0] if isinstance(value, np.ndarray) else value
            fact = _plain(value)
            if fact is None:
                left.append(name)
            else:
                self._facts[name] = fact
        if left:
            self._notes.add(
                f"metadata left out, as they are no short texts: {', '.join(left[:20])}"
            )

    def _note_env(self) -> None:
        text = _plain(self._file["data"].attrs.get("env_args"), 1 << 16)
        if isinstance(text, str):
            try:
                self._facts["env_args"] = parse(text.encode())
            except ValueError:
                self._notes.add("data/env_args is left out, as it is no JSON")


def reader_of(
    files: GivenFiles,
    options: FlatHdf5Import,
    format_: str,
    other: Callable[[Any], Reader] | None = None,  # makes the reader of a file without such columns
) -> Reader:
    """The reader of an HDF5 file, which is closed after an error."""
    h5py = load_library("h5py", f"format {format_}", install=INSTALL)
    file = open_given(h5py, files, files.path)
    try:
        if other is None or _is_columns(file) or _is_robomimic(file):
            return FlatHdf5Reader(file, files, options)
        return other(file)
    except BaseException:
        file.close()
        raise


def _is_columns(file: Any) -> bool:
    return all(name in file for name in ("observations", "actions", "rewards", "terminals"))


def _is_robomimic(file: Any) -> bool:
    return isinstance(file.get("data"), Mapping) and len(file["data"]) > 0


def _in_order(name: str) -> tuple[str, int]:
    """``demo_2`` before ``demo_10``."""
    word, digits = _DEMO.fullmatch(name).groups()  # type: ignore[union-attr]
    return word, int(digits or -1)


def _columns(kind: str, node: Any) -> dict[str, Any]:
    """The datasets of an observation or action by field name."""
    if hasattr(node, "shape"):
        return {kind: node}
    found: dict[str, Any] = {}
    for name in node:
        found |= _columns(f"{kind}/{name}", node[name])
    return found


def _forms(columns: Mapping[str, Any]) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
    # Files have no spaces: whole numbers [N, 1] are read as those of a Discrete action.
    found = {name: (node.dtype, node.shape[1:]) for name, node in columns.items()}
    dtype, shape = found.get("action", (np.dtype(float), ()))
    return found | ({"action": (dtype, ())} if dtype.kind in "iu" and shape == (1,) else {})


def _told(forms: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]) -> str:
    return ", ".join(f"{name} {dtype} {shape}" for name, (dtype, shape) in forms.items())


def _limited(terminated: np.ndarray, limit: int) -> np.ndarray:
    """[N] bool: a limit of so many steps ended the episode there."""
    found = np.zeros_like(terminated)
    begins = np.flatnonzero(np.concatenate([[True], terminated[:-1]]))
    for start, stop in itertools.pairwise([*begins.tolist(), len(terminated)]):
        found[start + limit - 1 : stop : limit] = True
    return found


def _plain(value: Any, most: int = _MOST_TEXT) -> object:
    """A short text, or a number, as plain data; None for others."""
    is_number = isinstance(value, np.generic) and value.dtype.kind in "biuf"
    found = plain(value) if is_number or isinstance(value, bytes | str) else None
    return None if isinstance(found, str) and len(found) > most else found
