"""`stepwell collect`: from arguments that were read to a store on disk."""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import rich.console

from stepwell.buffers import SequenceReplayBuffer, StepwellError
from stepwell.buffers.storage.disk.files import Files
from stepwell.buffers.storage.disk.folder import StoreFolder
from stepwell.buffers.storage.disk.storage import DiskStorage
from stepwell.collectors.cli.facts import disk_bytes_of, size_in_words
from stepwell.collectors.cli.fields import missing_values
from stepwell.collectors.cli.make import EnvRequest, make_envs
from stepwell.collectors.cli.nes import refuse_endless
from stepwell.collectors.cli.policy import load_policy
from stepwell.collectors.cli.progress import Goal, LiveLine, packed, progress_parts, summary
from stepwell.collectors.collector import Collector
from stepwell.collectors.replay_writer import kept_since
from stepwell.collectors.report import CollectReport

__all__ = ["DEFAULT_NUM_ENVS", "CollectJob", "collect_into"]

# The same on every machine, since the data depends on it.
DEFAULT_NUM_ENVS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectJob:
    """All that was said on the command line.

    Args:
        envs: What to collect from; ``num_envs`` 0 stands for "not said".
        out: Folder of the store.
        goal: When to stop.
        policy: "random", or "module:callable".
        seed: None goes on with the store's seed, or draws one.
        info: Info fields to store, each with its value for "not there", None to look it up.
        metadata: Facts to note about every episode.
        resume: Continue a store that exists.
        capacity: Steps to keep at most.
        capacity_bytes: Bytes to keep at most.
        is_quiet: Show neither progress nor summary.
        as_json: Print one JSON object instead of the summary.
    """

    envs: EnvRequest
    out: Path
    goal: Goal
    policy: str
    seed: int | None
    info: dict[str, int | float | bool | None]
    metadata: dict[str, object]
    resume: bool
    capacity: int | None
    capacity_bytes: int | None
    is_quiet: bool
    as_json: bool


def collect_into(job: CollectJob) -> None:
    """Collect, and say what came of it.

    Raises:
        ValueError: Something in the job makes no sense; nothing was written.
        StepwellError: The store cannot take these rows.
    """
    _refuse_nonsense(job)
    policy = load_policy(job.policy)
    screen = rich.console.Console(stderr=True, quiet=job.is_quiet or job.as_json)
    with contextlib.ExitStack() as stack:
        replay = stack.enter_context(_replay_of(job))
        job, seed = _as_before(job, replay)
        line = stack.enter_context(LiveLine(screen))
        line.say(f"making {job.envs.num_envs} envs of {job.envs.env} ...")
        info = missing_values(job.info, job.envs)
        envs = make_envs(job.envs)
        stack.callback(envs.close)  # the Collector closes them too, once there is one
        collector = stack.enter_context(
            Collector(envs, policy, replay, seed=seed, info=info, metadata=job.metadata)
        )
        steps, episodes = job.goal
        report = collector.collect(
            steps=steps,
            episodes=episodes,
            progress=lambda report: line.show(progress_parts(report, job.goal)),
        )
        facts = replay.sessions[-1]
    store = replay.storage
    raw_bytes = store.table.rows * store.spec.row_bytes
    stored_bytes = int(store.table.records["nbytes"].sum())
    size = size_in_words(disk_bytes_of(job.out), raw_bytes, stored_bytes)
    _tell(job, report, seed, facts, size)


def _refuse_nonsense(job: CollectJob) -> None:
    """Refuse what can be refused without making anything."""
    if (job.goal.steps is None) == (job.goal.episodes is None):
        got = "neither" if job.goal.steps is None else "both"
        raise ValueError(f"expected either --steps or --episodes, got {got}; give one of them")
    if not job.resume:
        _refuse_store(job.out, DiskStorage.exists(job.out))
    if job.out.is_symlink() and not job.out.exists():
        raise ValueError(
            f"--out {job.out} is a link to nothing: expected a folder, a link to one, or a new "
            f"name; make the folder that it names, or choose another name"
        )
    if job.goal.episodes is not None:
        refuse_endless(job.envs.env, job.envs.knobs)


def _refuse_store(out: Path, is_store: bool) -> None:
    if is_store:
        raise ValueError(
            f"--out {out} holds a store already: expected a new or empty folder; add to it "
            f"with --resume, or choose another folder"
        )


@contextlib.contextmanager
def _replay_of(job: CollectJob) -> Generator[SequenceReplayBuffer]:
    """The store; a new one that got no step is taken away again."""
    was_there = job.out.exists()
    replay = SequenceReplayBuffer(job.out, capacity=job.capacity, capacity_bytes=job.capacity_bytes)
    was_store = replay.is_bound
    first_episode = replay.storage.table.next_episode if was_store else 0
    try:
        with replay:
            if not job.resume:
                _refuse_store(job.out, was_store)  # somebody may have made it just now
            yield replay
    except BaseException as error:
        if replay.is_bound:
            kept = kept_since(replay, first_episode)
            # Also of an interrupt after the last step, of which the Collector knows nothing.
            error.add_note(f"kept: {kept}")
            if kept.startswith("0 steps") and not was_store:
                _take_away(job.out, was_there)
        raise


def _take_away(out: Path, was_there: bool) -> None:
    """Remove a new store in which is no step; a folder that was there is empty again."""
    folder = StoreFolder(out, Files())
    with contextlib.suppress(StepwellError, OSError), contextlib.closing(folder.lock()):
        with DiskStorage.open(out, read_only=True) as storage:
            if storage.table.total_steps:  # another process was quick
                return
        for pattern in ("manifest.json*", "segment-*.bin*", "LOCK"):
            for path in out.glob(pattern):
                path.unlink()
        if not was_there:
            out.rmdir()


def _as_before(job: CollectJob, replay: SequenceReplayBuffer) -> tuple[CollectJob, int]:
    """Fill in what was not said, from the store's last run where there is one."""
    # A session that tells of a copy has no seed.
    before = next((dict(one) for one in reversed(replay.sessions) if "seed" in one), {})
    num_envs = job.envs.num_envs or cast("int", before.get("num_envs", DEFAULT_NUM_ENVS))
    drawn = cast("str", before.get("seed", secrets.randbits(32)))
    seed = int(drawn) if job.seed is None else job.seed
    return replace(job, envs=replace(job.envs, num_envs=num_envs)), seed


def _tell(
    job: CollectJob, report: CollectReport, seed: int, facts: Any, size: Sequence[str]
) -> None:
    if job.as_json:
        said = {"env": job.envs.env, "num_envs": job.envs.num_envs, "seed": seed}
        rich.console.Console(soft_wrap=True).out(
            json.dumps({**report.to_json(), **said, "session": facts}), highlight=False
        )
    elif not job.is_quiet:
        console = rich.console.Console(emoji=False, highlight=False, soft_wrap=True)
        width = console.width if console.is_terminal else 1000
        for parts in summary(report, seed, size):
            for line in packed(parts, width):
                console.print(line)
