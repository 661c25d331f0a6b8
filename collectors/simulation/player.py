"""Plays chains of stored episodes again, several side by side."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Self, TypeVar

import numpy as np

from ...buffers import End, Unprovable
from ...buffers.base.number_checks import check_whole
from ...buffers.base.progress import Part, Status, rate
from ...buffers.provenance.chains import Chain, Play
from ...wrappers.workers.processes import available_cores
from .lanes import Lanes, LanesInWorkers, PlayedPart, Segment, open_lanes
from .remake import EnvMaker

_T = TypeVar("_T")
PIECE_ROWS, _PIECE_BYTES = 256, 4 << 20


class PlayedRows(NamedTuple):
    """Consecutive rows of a stored episode, as its env showed them when it was played again."""

    chain: Chain
    play: Play
    first_row: int  # its index in the episode
    fields: Mapping[str, np.ndarray]  # [rows, ...]: observations, reward and info fields by name
    end: End  # TERMINATED and TRUNCATED, if the last row has them
    is_last: bool  # no more rows of this episode follow
    why: str = ""  # the episode's last row was not reached; empty if it was
    where: tuple[str, int] | None = None  # then the field, or "env", and the row that stopped it

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.fields["reward"]) if self.fields else 0


def played_status(name: str = "") -> Callable[[int, int], Status]:
    """The progress of playing: a function of the env steps that were played, and those of all."""
    # ``name`` is that of the store, if it is to be shown.
    began = time.perf_counter()

    def status(steps: int, all_steps: int) -> Status:
        seconds = time.perf_counter() - began
        parts = [Part(name, 2)] if name else []
        parts += [
            Part(f"{steps:,} / {all_steps:,} steps"),
            Part(f"{rate(steps / max(seconds, 1e-9))} steps/s", 3),
        ]
        return Status(parts, min(1.0, steps / max(1, all_steps)), seconds)

    return status


def steps_of(chains: Iterable[Chain]) -> int:
    """Env steps of some chains."""
    return sum(chain.steps for chain in chains)


class Closing(Iterator[_T]):
    """An iterator of what a generator yields, and a context manager that stops it."""

    def __init__(self, found: Generator[_T]) -> None:
        self._found = found

    def __next__(self) -> _T:
        return next(self._found)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop; closing twice has no effect."""
        self._found.close()


class Player(Closing[PlayedRows]):
    """Plays chains again, the longest first; a context manager that closes the envs."""

    # The rows of a chain come in order, those of different chains in any order, but the same one
    # each time for the same number of lanes.

    def __init__(
        self,
        chains: Iterable[Chain],  # all of one session's envs
        maker: EnvMaker,
        # Number of chains to play at a time, each in a worker process; None is the number of cores.
        # One is played in this process, if the maker is given by the user.
        lanes: int | None = None,
        # Called with the env steps so far, and of all players
        progress: Callable[[int, int], None] | None = None,
        *,
        before: int = 0,  # env steps of the players before
        all_steps: int | None = None,  # of all players; None: there is one
    ) -> None:
        chains = list(chains)
        if lanes is not None:
            check_whole("lanes", lanes, 1)
        self._lanes = min(available_cores() if lanes is None else lanes, max(1, len(chains)))
        self._maker = maker
        self._progress = progress
        self._steps = before
        self._all_steps = steps_of(chains) if all_steps is None else all_steps
        self._queue = sorted(chains, key=lambda chain: -chain.steps)[::-1]
        self._skipped: set[int] = set()
        # Of each piece of an episode but the last
        self.piece_rows = max(1, min(PIECE_ROWS, _PIECE_BYTES // max(1, maker.spec.row_bytes)))
        super().__init__(self._run())

    def skip(self, chain: Chain) -> None:
        """Play no more of a chain; rows that were played already are not handed out."""
        self._skipped.add(id(chain))

    def _run(self) -> Generator[PlayedRows]:
        if not self._queue:
            return
        maker = self._maker
        lanes = open_lanes(maker.lane, maker.form, self._lanes, is_bounded=not maker.is_given)
        try:
            parts = [self._parts_of_lane() for _ in range(lanes.count)]
            asked: list[list[_Part]] = []
            for lane in range(lanes.count):
                asked.append(self._ask(lanes, lane, parts[lane]))
            while any(asked):
                for lane in range(lanes.count):
                    if not asked[lane]:
                        continue
                    played, done = asked[lane], lanes.take(lane)
                    asked[lane] = self._ask(lanes, lane, parts[lane])
                    yield from self._results(played, done)
        finally:
            lanes.close()

    def _ask(self, lanes: Lanes | LanesInWorkers, lane: int, parts: Iterator[_Part]) -> list[_Part]:
        """Ask a lane to play the next parts."""
        chosen: list[_Part] = []
        rows = 0
        for part in parts:
            chosen.append(part)
            rows += part.segment.rows
            if rows >= self.piece_rows:
                break
        if chosen:
            lanes.ask(lane, [part.segment for part in chosen])
        return chosen

    def _parts_of_lane(self) -> Iterator[_Part]:
        """The parts that a lane plays: one chain after the other, as it needs them."""
        while self._queue:
            chain = self._queue.pop()
            for part in self.parts_of(chain):
                if id(chain) in self._skipped:
                    break
                yield part

    def parts_of(self, chain: Chain) -> Iterator[_Part]:
        """The parts of a chain, in order."""
        for number, one in enumerate(chain.plays):
            seed = chain.seed if number == 0 else None
            rows = one.steps + 1
            pieces = zip(
                range(0, rows, self.piece_rows), one.actions(self.piece_rows), strict=False
            )
            for row, actions in pieces:
                stop = min(row + self.piece_rows, rows)
                segment = Segment(
                    stop - row,
                    actions,
                    is_begin=row == 0,
                    seed=seed if row == 0 else None,
                    options=self._maker.options(one.metadata) if row == 0 else None,
                )
                yield _Part(chain, one, row, segment, stop == rows)

    def _results(self, parts: list[_Part], done: list[PlayedPart]) -> Iterator[PlayedRows]:
        for part, result in zip(parts, done, strict=True):
            chain, one = part.chain, part.play
            self._steps += part.segment.rows - part.segment.is_begin
            if self._progress is not None:
                self._progress(self._steps, self._all_steps)
            if id(chain) in self._skipped:
                continue
            stop = part.row + result.rows
            why, where = "", None
            if result.error:
                where, why = ("env", stop), f"the env failed at row {stop}: {result.error}"
            elif result.is_outside:
                where = "action", stop - 1
                why = f"the action of row {stop - 1} is not in the action space"
            elif result.rows < part.segment.rows or (result.end and not part.is_last):
                where = "end", stop - 1
                why = f"the env ended the episode at row {stop - 1}"
            is_last = part.is_last or bool(why)
            yield PlayedRows(chain, one, part.row, result.fields, result.end, is_last, why, where)
            if why or (part.is_last and result.end != one.end & (End.TERMINATED | End.TRUNCATED)):
                self.skip(chain)


def check_repeats(chain: Chain, maker: EnvMaker, last: PlayedRows) -> None:
    """Play a chain up to some rows twice, with new envs; Unprovable: they show other rows."""
    segments: list[Segment] = []
    for part in Player([chain], maker, 1).parts_of(chain):
        segments.append(part.segment)
        if part.play is last.play and part.row >= last.first_row:
            break
    lanes = open_lanes(maker.lane, maker.form, 1, is_bounded=not maker.is_given)
    try:
        lanes.ask(0, segments, name="repeats")
        if lanes.take(0):
            return
    finally:
        lanes.close()
    raise Unprovable(
        f"the env ignores its seed: expected the same rows from two resets with seed {chain.seed} "
        f"and the same actions, got others; this is no damage, and none of its episodes can be "
        f"proved"
    )


@dataclass(frozen=True, slots=True)
class _Part:
    chain: Chain
    play: Play
    row: int
    segment: Segment
    is_last: bool
