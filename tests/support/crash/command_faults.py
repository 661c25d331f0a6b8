"""Commands that are killed, interrupted, or run out of disk at any call, and what holds then.

A scenario is a command in a folder of its own. Each case takes a fresh copy of that folder, lets a
fault happen at one call, looks at what is there, and runs the command once more without a fault.
"""

from __future__ import annotations

import functools
import random
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import stepwell as sw
from stepwell.buffers import Chunk, DiskStorage, End, copy_episodes, verify
from stepwell.buffers.bridges import export_episodes
from stepwell.buffers.curation import episode_writer
from stepwell.buffers.curation.stored_episode import stored_episodes
from stepwell.buffers.exchange.formats.format import format_of
from stepwell.buffers.provenance.archive_file import opened
from stepwell.collectors.cli.app import main
from support.catalogues import small_catalogue
from support.crash.crash_truth import Wrong, must_succeed, require
from support.crash.disk_faults import NoSyncFiles
from support.crash.failing_calls import FAULTS, Commands, Fault, Outcome
from support.exchanged_stores import tagged_store
from support.format_packages import PACKAGES

__all__ = ["SCENARIOS", "Case", "Scenario", "Yield", "in_small_chunks", "run_cases"]

_SENTENCE = re.compile(r"stepwell: .+\n")
_KEPT = re.compile(r"kept: ([0-9,]+) steps, ([0-9,]+) ended episodes")
# A flush that fails in one of these may or may not be stored.
_FLUSHING = re.compile(r"(pwrite|fdatasync) /out/segment-[0-9]+\.bin")

Tree = Mapping[str, bytes]
Yield = Counter[str]


class Known(NamedTuple):
    """Every bit of an episode."""

    stream: int
    first_row: int
    rows: int
    end: End
    metadata: Mapping[str, object]
    fields: Mapping[str, bytes]

    @property
    def steps(self) -> int:
        return self.rows - (self.first_row == 0)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A command, what it needs, and what must hold after a fault."""

    name: str  # of the scenario
    arguments: str  # of the command
    prepare: Callable[[Path], None]  # makes what the command needs, in the folder that it is given
    check: Callable[[Case], None]  # raises `Wrong` where something does not hold
    target: str = "out"  # what the command makes or changes
    needs: tuple[str, ...] = ()  # modules without which it cannot run


@dataclass(frozen=True, slots=True)
class Case:
    """A fault at a call of a command, and what came of it."""

    scenario: Scenario  # the command
    commands: Commands  # runs commands
    folder: Path  # where it ran
    before: Path  # the folder as it was before
    reference: Path  # a folder in which the command ran without a fault
    fault: Fault  # what happened
    number: int  # at which call
    outcome: Outcome  # how the command ended

    @property
    def target(self) -> Path:
        """Path that the command makes or changes."""
        return self.folder / self.scenario.target

    @property
    def made(self) -> Path:
        """The same, of the command without a fault."""
        return self.reference / self.scenario.target

    @property
    def is_complete(self) -> bool:
        """The command says that it has done everything."""
        return self.outcome.code == 0

    @property
    def call(self) -> str:
        """Name and path of the call."""
        calls = self.outcome.calls
        return calls[self.number].text if self.number < len(calls) else ""

    @property
    def is_removing(self) -> bool:
        """The call removes something, which stays where the call fails."""
        return self.call.startswith(("unlink", "rmdir"))

    @property
    def is_after(self) -> bool:
        """The call opens a result that is complete already."""
        what, _, path = self.call.partition(" ")
        is_in = f"{path}/".startswith(f"/{self.scenario.target}/") and what != "rename"
        return is_in and self.scenario.check is check_all_or_nothing

    def again(self, arguments: str = "") -> None:
        """Run the command, or another one, once more, now that nothing is amiss."""
        what = arguments or self.scenario.arguments
        outcome = self.commands.run(what.split(), self.folder)
        require(outcome.code == 0, f"then {what!r} ended with {outcome.code}: {outcome.err!r}")
        require(not outcome.err, f"then {what!r} said {outcome.err!r}")


def run_cases(
    scenario: Scenario,
    commands: Commands,
    folder: Path,
    *,
    every: int | None = None,
    first: int = 0,
    chosen: Callable[[int], Iterable[int]] | None = None,
    faults: Sequence[Fault] = FAULTS,
    seed: int = 0,
) -> tuple[Yield, list[str]]:
    """Let faults happen at calls of a command; how often it ended how, and what did not hold."""
    # Each fault happens at every n-th call from `first` on, or at those that `chosen` returns,
    # given how many there are; with neither, one call is drawn for each.
    before, reference = folder / "before", folder / "reference"
    before.mkdir(parents=True)
    scenario.prepare(before)
    shutil.copytree(before, reference)
    done = commands.run(scenario.arguments.split(), reference)
    assert done.code == 0, done.err
    rng, counts, wrong = random.Random(f"{scenario.name} {seed}"), Yield(calls=len(done.calls)), []
    for fault in faults:
        calls = sum(call.takes_room or not fault.needs_room for call in done.calls)
        numbers: Iterable[int] = range(first, calls, every) if every else [rng.randrange(calls)]
        if chosen is not None:
            numbers = chosen(calls)
        for number in numbers:
            place = folder / "case"
            shutil.copytree(before, place)
            outcome = commands.run(
                scenario.arguments.split(), place, fault, number, seed=rng.randrange(1 << 30)
            )
            case = Case(scenario, commands, place, before, reference, fault, number, outcome)
            counts["cases"] += 1
            counts[f"{fault.name}: exit {outcome.code}"] += 1
            counts["present" if case.target.exists() else "absent"] += 1
            try:
                _check_end(case)
                scenario.check(case)
            except Wrong as error:
                wrong.append(
                    f"{scenario.name}: {fault.name} at call {number} of {calls}, {case.call}: "
                    f"{error}"
                )
            shutil.rmtree(place)
    return counts, wrong


def _check_end(case: Case) -> None:
    """The command ends as its help says, with one sentence, and leaves no process."""
    outcome, fault = case.outcome, case.fault
    require(not outcome.left, f"processes are left: {outcome.left}")
    if not outcome.fired:  # a run that was shorter
        require(outcome.code == 0, f"exit code {outcome.code} without a fault: {outcome.err!r}")
    elif fault.is_kill:
        require(outcome.code == -9, f"survived with {outcome.code}: {outcome.err!r}")
    elif outcome.code == 0:
        # A folder that is there already need not be made, and what is left may lie there.
        is_made = case.call.startswith("mkdir") and not fault.is_lasting
        is_harmless = fault.is_interrupt or is_made or case.is_removing or case.is_after
        require(is_harmless, "exit code 0: the failure went unnoticed")
        require(not outcome.err, f"done, but said {outcome.err!r}")
    else:
        expected = 130 if fault.is_interrupt else 2
        require(outcome.code == expected, f"exit code {outcome.code}: {outcome.err[-2000:]!r}")
        require(_SENTENCE.fullmatch(outcome.err) is not None, f"said {outcome.err!r}")


# What is in folders


def tree(folder: Path) -> Tree:
    """Every file and folder below one."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b"folder"
        for path in sorted(folder.rglob("*"))
    }


def stored(store: Path) -> dict[int, Known]:
    """Every bit of every episode of a store that must be whole, by id; none where no store is."""
    if not DiskStorage.exists(store):
        return {}
    with must_succeed("verifying"):
        report = verify(store)
    require(report.is_whole, f"damaged: {report.damages}")
    with must_succeed("reading"), sw.SequenceReplayBuffer.open(store, read_only=True) as replay:
        return {
            one.id: Known(
                *(one.stream, one.first_row, one.rows, one.end, dict(one.metadata)),
                {name: rows.tobytes() for name, rows in one.fields.items()},
            )
            for one in replay.iter_episodes()
        }


def content(path: Path) -> object:
    """The contents of a data set, without the times and numbers that a store records."""
    if DiskStorage.exists(path):
        return list(stored(path).values())
    if path.is_dir():
        return {each.name: content(each) for each in path.iterdir() if each.name != "LOCK"}
    if path.suffix == ".swa":  # each of them has another store's name
        with must_succeed("reading"), opened(path) as archived:
            return [
                (one.id, one.end, dict(one.metadata)) for one in stored_episodes(archived.storage)
            ]
    return path.read_bytes()


# The same of folders that change no more.
_tree_before = functools.lru_cache(4)(tree)
_stored_before = functools.lru_cache(4)(stored)
_content_made = functools.lru_cache(4)(content)


def _temporary(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.suffix in (".tmp", ".part")]


# Commands that make something new


def check_all_or_nothing(case: Case) -> None:
    """The result is complete or absent, and nothing else has changed."""
    made, before, now = _content_made(case.made), _tree_before(case.before), tree(case.folder)
    name = case.scenario.target
    changed = [each for each, data in before.items() if now.get(each) != data]
    require(not changed, f"changed {changed}")
    is_there = now.get(name, b"folder") != b"folder" or any(
        each.startswith(f"{name}/") for each in now
    )
    if is_there:
        require(content(case.target) == made, f"{name} is there, but not complete")
    require(is_there or not case.is_complete, "exit code 0, but nothing was made")
    if case.fault.is_failure and not case.fault.is_broken_disk:  # which lets nothing be removed
        require(not is_there or case.is_complete, "failed, but all of it is there")
    new = sorted(now.keys() - before.keys())
    rest = [each for each in new if not (is_there and _belongs(each, name))]
    if case.fault.is_kill and is_there:
        part = f"{name}.part"
        require(set(rest) <= {part, f"{part}/UNFINISHED"}, f"left next to the result: {rest}")
    can_remove = not case.fault.is_broken_disk and not (case.fault.is_failure and case.is_removing)
    if not case.fault.is_kill and can_remove:
        require(not rest, f"left behind: {rest}")
    if not is_there and now != before:  # else the next run is what the first one was
        case.again()
        require(content(case.target) == made, "the next run made something else")
        require(not _temporary(case.folder), f"the next run left {_temporary(case.folder)}")


def _belongs(path: str, target: str) -> bool:
    """Return True for the target, what is in it, and the folders above it."""
    return path == target or path.startswith(f"{target}/") or target.startswith(f"{path}/")


def in_small_chunks(*arguments: str) -> None:
    """Run a command that stores 30 rows at a time, so that it makes more calls."""
    episode_writer._CHUNK_ROWS = 30
    sys.exit(main(arguments))


# Collecting


def check_collected(case: Case) -> None:
    """Flushed rows are stored bit by bit, the error is true, and the next run continues."""
    found, had = stored(case.target), _stored_before(case.before / case.scenario.target)
    whole = _stored_before(case.made)
    for number, one in found.items():
        if one != had.get(number):
            require(number in whole, f"episode {number} was never collected")
            _check_beginning(number, one, whole[number])
    steps = sum(one.steps for one in found.values())
    lost = had.keys() - found.keys()
    require(not lost, f"episodes {sorted(lost)} of earlier runs are gone")
    require(steps >= case.outcome.stored, f"{steps} steps of {case.outcome.stored} flushed")
    if case.is_complete:
        require(found == _stored_before(case.made), "exit code 0, but not all is there")
    elif not case.fault.is_kill:
        _check_sentence(case, {number: found[number] for number in found.keys() - had.keys()})
    if not DiskStorage.exists(case.target):
        case.again()
        require(stored(case.target) == _stored_before(case.made), "the next run made other data")
        return
    case.again(f"{COLLECT} --workers 0 --steps 30 --resume --out {case.scenario.target}")
    after = stored(case.target)
    require(found.items() <= after.items(), "going on has changed what was there")
    more = sum(one.steps for number, one in after.items() if number not in found)
    require(more >= 30, f"going on brought {more} steps")
    require(not _temporary(case.target), f"left behind: {_temporary(case.target)}")


def _check_beginning(number: int, one: Known, whole: Known) -> None:
    """An episode is that of the whole run, or some rows of it that a cut ends."""
    require(
        (one.stream, one.metadata) == (whole.stream, whole.metadata),
        f"episode {number} is another one: {one[:5]}, expected {whole[:5]}",
    )
    start = one.first_row - whole.first_row
    is_cut = start + one.rows < whole.rows
    require(start >= 0 and start + one.rows <= whole.rows, f"rows of episode {number}")
    require(one.end == (End.NONE if is_cut else whole.end), f"end of episode {number}: {one.end}")
    for name, data in whole.fields.items():
        size = len(data) // whole.rows
        # Of the last row the action may not be chosen yet.
        count = one.rows - (is_cut and name == "action")
        expected = data[start * size : (start + count) * size]
        require(one.fields[name][: count * size] == expected, f"{name} of episode {number}")


def _check_sentence(case: Case, new: Mapping[int, Known]) -> None:
    """The number of steps in the error is the number that is stored."""
    kept = _KEPT.search(case.outcome.err)
    said = tuple(int(text.replace(",", "")) for text in kept.groups()) if kept else (0, 0)
    there = sum(one.steps for one in new.values()), sum(one.end.is_final for one in new.values())
    is_true = said == there
    if case.fault.is_failure and _FLUSHING.match(case.call):
        is_true = said[0] <= there[0] and said[1] <= there[1]
    require(is_true, f"said {case.outcome.err!r}, but there are {there}")


# What the commands need


def nothing(folder: Path) -> None:
    """No more than the folder."""


def two_stores(folder: Path) -> None:
    """Two small stores of the same env."""
    for name, steps, seed in (("a", 120, 1), ("b", 80, 2)):
        out = folder / name
        arguments = f"{COLLECT} --workers 0 --steps {steps} --seed {seed} --out {out}"
        assert main(arguments.split()) == 0


def archived_store(folder: Path) -> None:
    """A small store in an archive."""
    two_stores(folder)
    assert main(f"archive {folder}/a --lanes 1 --out {folder}/a.swa --quiet".split()) == 0


def catalogue(folder: Path) -> None:
    """A catalogue with a small data set."""
    small_catalogue(folder / "ours")


def killed_store(folder: Path) -> None:
    """A store of two runs; the second was killed after its first flush."""
    with tempfile.TemporaryDirectory() as scratch:
        store = Path(scratch) / "store"
        assert main(f"{COLLECT} --workers 0 --steps 300 --out {store}".split()) == 0
        with DiskStorage.open(store, files=NoSyncFiles()) as storage:
            _append(storage, collected(100))
            shutil.copytree(store, folder / "out")


def pictures(folder: Path) -> None:
    """A store of pictures."""
    with sw.SequenceReplayBuffer(folder / "store") as target:
        copy_episodes(tagged_store(episodes=3), target)


def data_set(name: str) -> Callable[[Path], None]:
    """The same pictures in a format."""
    return lambda folder: _export(name, folder)


def place_of(name: str) -> str:
    """The name of a data set of a format."""
    if name == "minari":
        return "./set-v0"
    return "data.h5" if format_of(name).kind == "file" else "data"


def _export(name: str, folder: Path) -> None:
    export_episodes(tagged_store(episodes=3), name, f"{folder}/{place_of(name).removeprefix('./')}")


def collected(steps: int) -> sw.SequenceReplayBuffer:
    replay = sw.SequenceReplayBuffer()
    _collect(replay, steps)
    return replay


def _collect(replay: sw.SequenceReplayBuffer, steps: int) -> None:
    envs = sw.make_vec("CartPole-v1", num_envs=2, num_workers=0)
    with sw.Collector(envs, sw.RandomPolicy(), replay, seed=5) as collector:
        collector.collect(steps=steps)


def _append(storage: DiskStorage, source: sw.SequenceReplayBuffer) -> None:
    """Add all episodes, with new ids."""
    for one in source.iter_episodes():
        place = storage.index.next_episode, one.stream, one.first_row, one.end
        storage.add([Chunk(*place, one.fields, one.metadata)])


COLLECT = "collect CartPole-v1 --num-envs 2 --seed 1 --quiet"
_SMALL = f"{__name__}:in_small_chunks"


def _collecting(name: str, more: str, prepare: Callable[[Path], None] = nothing) -> Scenario:
    return Scenario(name, f"{COLLECT} {more} --out out", prepare, check_collected)


def _making(
    name: str, arguments: str, prepare: Callable[[Path], None], target: str = "out"
) -> Scenario:
    command = f"{arguments} --out {target} --quiet"
    return Scenario(name, command, prepare, check_all_or_nothing, target)


def _exchanging(name: str, needs: tuple[str, ...]) -> list[Scenario]:
    place = place_of(name)
    target, check = place.removeprefix("./"), check_all_or_nothing
    export = f"export store --to {name} --out {place} --quiet"
    back = f"import {place} --from {name} --out out --quiet"
    return [
        Scenario(f"export {name}", export, pictures, check, target, needs),
        Scenario(f"import {name}", back, data_set(name), check, needs=needs),
    ]


_ALL = [
    _collecting("collect", "--workers 0 --steps 1100"),
    _collecting("collect with workers", "--workers 2 --steps 1100"),
    _collecting("collect --resume", "--workers 0 --steps 1100 --resume", killed_store),
    _making("copy", "copy a", two_stores),
    _making("merge", f"{_SMALL} merge a b", two_stores),
    _making(
        "filter into a new folder", f"{_SMALL} filter a --min-steps 15", two_stores, "deep/out"
    ),
    _making("archive", "archive a --lanes 1", two_stores, "out.swa"),
    _making("restore", "restore a.swa --lanes 1", archived_store),
    _making(
        "datasets get", "datasets get pole/random --index ours/index.toml --lanes 1", catalogue
    ),
    *(scenario for name, needs in PACKAGES.items() for scenario in _exchanging(name, needs)),
]
SCENARIOS = {scenario.name: scenario for scenario in _ALL}
