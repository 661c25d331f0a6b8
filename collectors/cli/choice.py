"""`stepwell filter` and `stepwell drop`: which episodes of a store go into a new one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import rich.box
import rich.console
import rich.table

from stepwell.buffers import SequenceReplayBuffer
from stepwell.buffers.curation.selection import EpisodeSelection
from stepwell.buffers.curation.stored_episode import StoredEpisode, stored_episodes
from stepwell.collectors.cli.copy import CopyJob, copy_stores
from stepwell.collectors.cli.facts import spread_of
from stepwell.collectors.cli.selection import ids_in_words

__all__ = ["ChoiceJob", "choose"]

_KEYS_SHOWN = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceJob:
    """All that was said on the command line.

    Args:
        command: "filter" keeps what is selected, "drop" leaves it out.
        source: Folder of the store.
        out: Folder of the new store; not needed for a dry run.
        selection: The conditions.
        is_dry: Show what would be done, and write nothing.
        is_quiet: Show neither progress nor summary.
        as_json: Print one JSON object instead of the summary.
    """

    command: str
    source: Path
    out: Path | None
    selection: EpisodeSelection
    is_dry: bool
    is_quiet: bool
    as_json: bool


def choose(job: ChoiceJob) -> None:
    """Write the new store, or show what would be in it.

    Raises:
        ValueError: Something in the job makes no sense; nothing was written.
        StepwellError: There is no store, or it is damaged.
    """
    if job.out is None and not job.is_dry:
        raise ValueError(
            "expected --out with the folder of the new store, or --dry-run, got neither: give one"
        )
    keep = _keep_of(job)
    _refuse_unknown(job)
    if job.is_dry or job.out is None:
        _show(job, keep)
        return
    copy_stores(
        CopyJob(
            command=job.command,
            sources=[job.source],
            out=job.out,
            keep=keep,
            conditions=job.selection.to_json(),
            is_quiet=job.is_quiet,
            as_json=job.as_json,
        )
    )


def _keep_of(job: ChoiceJob) -> Callable[[StoredEpisode], bool]:
    if job.command == "filter":
        return job.selection
    return lambda episode: not job.selection(episode)


def _refuse_unknown(job: ChoiceJob) -> None:
    """Refuse ids and keys that no episode has: a slip of the pen must not pass for a result."""
    where, ids = job.selection.where, job.selection.ids or ()
    wanted = set(where) if isinstance(where, Mapping) else set[str]()
    with SequenceReplayBuffer.open(job.source, read_only=True) as replay:
        numbers = np.unique(replay.storage.table.records["episode"])
        for span in ids:
            if not ((numbers >= span.start) & (numbers < span.stop)).any():
                there = ids_in_words(numbers.tolist(), 60) or "none"
                raise ValueError(
                    f"--episodes: no episode of {job.source} has the id "
                    f"{ids_in_words(list(span), 40)}, expected one of {there}: give others"
                )
        if not wanted:
            return
        known: set[str] = set()
        for episode in stored_episodes(replay.storage):
            known |= set(episode.metadata)
            if wanted <= known:
                return
    shown = ", ".join(sorted(known)[:_KEYS_SHOWN]) or "none"
    raise ValueError(
        f"--where: no episode of {job.source} has the key {sorted(wanted - known)[0]!r} in its "
        f"metadata, expected one of these: {shown}; give another"
    )


@dataclass(slots=True)
class _Pile:
    """Episodes that have the same fate."""

    ids: list[int] = field(default_factory=list[int])
    steps: list[int] = field(default_factory=list[int])
    returns: list[float] = field(default_factory=list[float])

    def put(self, episode: StoredEpisode) -> None:
        self.ids.append(episode.id)
        self.steps.append(episode.steps)
        self.returns.append(episode.total_reward)

    def to_json(self) -> dict[str, object]:
        return {
            "episodes": self.ids,
            "steps": sum(self.steps),
            "lengths": spread_of(np.array(self.steps)),
            "returns": spread_of(np.array(self.returns)),
        }


def _show(job: ChoiceJob, keep: Callable[[StoredEpisode], bool]) -> None:
    """Print what would be kept and what dropped."""
    kept, dropped = _Pile(), _Pile()
    with SequenceReplayBuffer.open(job.source, read_only=True) as replay:
        for episode in stored_episodes(replay.storage):
            (kept if keep(episode) else dropped).put(episode)
    if job.as_json:
        said = {"kept": kept.to_json(), "dropped": dropped.to_json()}
        rich.console.Console(soft_wrap=True).out(json.dumps(said), highlight=False)
    elif not job.is_quiet:
        console = rich.console.Console(emoji=False, highlight=False)
        if not console.is_terminal:
            console.width = 120
        console.print(_table(kept, dropped))
        console.print("nothing was written: leave out --dry-run for that")


def _table(kept: _Pile, dropped: _Pile) -> rich.table.Table:
    table = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("")
    for name in ("episodes", "steps", "mean return", "from", "to"):
        table.add_column(name, justify="right")
    table.add_column("ids", overflow="fold")
    for name, pile in (("kept", kept), ("dropped", dropped)):
        table.add_row(
            *(name, f"{len(pile.ids):,}", f"{sum(pile.steps):,}"),
            *_returns(pile.returns),
            ids_in_words(pile.ids, 50),
        )
    return table


def _returns(numbers: Sequence[float]) -> tuple[str, str, str]:
    """Mean, least and greatest."""
    spread = spread_of(np.array(numbers))
    if spread is None:
        return "", "", ""
    return f"{spread['mean']:,.1f}", f"{spread['min']:,.6g}", f"{spread['max']:,.6g}"
