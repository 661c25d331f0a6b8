"""The replay of `stepwell verify --replay`: options, progress, and what was found."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np

from ...buffers import SequenceReplayBuffer
from ...buffers.base.progress import Status
from .make_envs import AtariBackend, id_or_factory
from .options import format_ids, parse_ids, stored_ids, whole_number
from .output import LiveLine, Part, plural

if TYPE_CHECKING:
    from ..simulation.remake import AtariBackend as PlayedBackend
    from ..simulation.remake import EnvSource
    from ..simulation.resimulate import EpisodeProof

__all__ = ["DIFFERS", "UNREACHABLE", "ReplayOptions", "ReplayReport", "replay_store"]

DIFFERS, UNREACHABLE = 1, 3
"""Exit codes: a row is not what the env showed; episodes cannot be played again."""

_MOST_LINES, _IDS_LENGTH = 20, 60


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """Options of the replay."""

    ids: tuple[range, ...] | None  # of episodes; None for all
    sample: int | None  # number of them to draw
    lanes: int | None  # number of episodes to play at a time
    env: EnvSource | None
    rom: Path | None
    backend: PlayedBackend | None  # to play Atari games on

    @classmethod
    def parse(
        cls,
        *,
        is_asked: bool,
        episodes: str | None,
        sample: str | None,
        lanes: str | None,
        env: str | None,
        rom: Path | None,
        backend: AtariBackend | None,
    ) -> Self | None:
        """The options; None where no replay is asked for, and then none may be given."""
        given = {
            "--episodes": episodes,
            "--sample": sample,
            "--lanes": lanes,
            "--env": env,
            "--rom": rom,
            "--backend": backend,
        }
        names = [name for name, value in given.items() if value is not None]
        if not is_asked:
            if names:
                raise ValueError(f"{names[0]}: expected --replay with it, got none; add --replay")
            return None
        if backend == "auto":
            raise ValueError("--backend: expected native or python, got auto; name one")
        return cls(
            None if episodes is None else parse_ids("--episodes", episodes),
            whole_number("--sample", sample),
            whole_number("--lanes", lanes),
            None if env is None else id_or_factory(env, "--env"),
            rom,
            backend,
        )


@dataclass(slots=True)
class ReplayReport:
    """The result of the replay of a store."""

    path: Path
    equal: int = 0  # episodes that are proved
    rows: int = 0  # of these episodes
    played_steps: int = 0
    seconds: float = 0.0
    # The proofs of episodes that differ
    differing: list[EpisodeProof] = field(default_factory=lambda: list["EpisodeProof"]())
    # Ids of episodes that cannot be played, by the reason
    unreachable: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    unreachable_rows: int = 0
    # Number of episodes by the note on their proof
    notes: dict[str, int] = field(default_factory=dict[str, int])
    # Versions and facts of the machine that have changed since
    changes: list[str] = field(default_factory=list[str])

    @property
    def exit_code(self) -> int:
        """0 if every row is proved."""
        if self.differing:
            return DIFFERS
        return UNREACHABLE if self.unreachable else 0

    def add(self, proof: EpisodeProof) -> None:
        """Count a proof."""
        if proof.reason == "unreachable":
            self.unreachable.setdefault(proof.why, []).append(proof.episode)
            self.unreachable_rows += proof.rows
        elif proof.reason == "differs":
            self.differing.append(proof)
        else:
            self.equal += 1
            self.rows += proof.rows
            if proof.why:
                self.notes[proof.why] = self.notes.get(proof.why, 0) + 1

    def lines(self) -> list[str]:
        """The report as text."""
        lost = sum(map(len, self.unreachable.values()))
        episodes = self.equal + len(self.differing) + lost
        found: list[str] = []
        for proof in sorted(self.differing, key=lambda one: one.episode)[:_MOST_LINES]:
            name, row = proof.first_difference or ("", 0)
            found.append(f"- episode {proof.episode}, row {row}, {name}: {proof.why}")
        if len(self.differing) > _MOST_LINES:
            found.append(f"- and {len(self.differing) - _MOST_LINES:,} more that differ")
        by_count = sorted(self.unreachable.items(), key=lambda one: -len(one[1]))
        for why, ids in by_count[:_MOST_LINES]:
            names = format_ids(sorted(ids), _IDS_LENGTH)
            found.append(f"- {plural(len(ids), 'episode')} unreachable ({names}): {why}")
        if len(by_count) > _MOST_LINES:
            more = sum(len(ids) for _, ids in by_count[_MOST_LINES:])
            found.append(f"- and {plural(more, 'more episode')} unreachable")
        rate = self.played_steps / self.seconds if self.seconds else 0.0
        parts = [
            f"{self.path}: {self.equal:,} of {plural(episodes, 'episode')} proved",
            f"{plural(self.rows, 'row')} equal",
            *([f"{len(self.differing):,} DIFFER"] if self.differing else []),
            *([f"{lost:,} unreachable ({plural(self.unreachable_rows, 'row')})"] if lost else []),
            f"{plural(self.played_steps, 'step')} played in {self.seconds:.1f} s ({rate:,.0f}/s)",
        ]
        found.append(", ".join(parts))
        found += [f"  {plural(count, 'episode')}: {why}" for why, count in self.notes.items()]
        if self.differing and self.changes:
            found.append(f"  changed since they were recorded: {'; '.join(self.changes)}")
        return found

    def to_json(self) -> dict[str, object]:
        """The report as plain data."""
        return {
            "equal": self.equal,
            "rows": self.rows,
            "steps": self.played_steps,
            "seconds": round(self.seconds, 3),
            "differing": [
                {
                    "episode": proof.episode,
                    "field": None if proof.first_difference is None else proof.first_difference[0],
                    "row": None if proof.first_difference is None else proof.first_difference[1],
                    "why": proof.why,
                }
                for proof in sorted(self.differing, key=lambda one: one.episode)
            ],
            "unreachable": [
                {"why": why, "episodes": sorted(ids)} for why, ids in self.unreachable.items()
            ],
            "unreachable_rows": self.unreachable_rows,
            "notes": self.notes,
            "changed": self.changes,
        }


def replay_store(folder: Path, options: ReplayOptions, *, is_silent: bool) -> ReplayReport:
    """Play the episodes of a store again, with a live line that shows the progress."""
    # Imported here: a comparison of checksums does not need it.
    from ..simulation.player import played_status
    from ..simulation.resimulate import resimulate

    report = ReplayReport(folder)
    began = time.perf_counter()
    with (
        LiveLine(is_silent=is_silent) as line,
        SequenceReplayBuffer.open(folder, read_only=True) as replay,
    ):
        played = played_status(str(folder))

        def status(steps: int, all_steps: int) -> Status:
            shown, bad = played(steps, all_steps), len(report.differing)
            more = [Part(f"{bad:,} differ", style="red")] if bad else []
            return shown._replace(parts=[*shown.parts, *more])

        show = line.reporter(status)

        def count(steps: int, all_steps: int) -> None:
            report.played_steps = steps
            show(steps, all_steps)

        ids: list[int] = np.unique(replay.storage.index.records["episode"]).tolist()
        with resimulate(
            replay,
            episodes=None if options.ids is None else stored_ids(options.ids, ids, folder),
            sample=options.sample,
            lanes=options.lanes,
            env=options.env,
            rom=options.rom,
            backend=options.backend,
            progress=count,
        ) as proofs:
            changes = {one: None for maker in proofs.makers for one in maker.differences}
            report.changes = list(changes)
            for proof in proofs:
                report.add(proof)
    report.seconds = time.perf_counter() - began
    return report
