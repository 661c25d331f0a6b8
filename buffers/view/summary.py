"""The contents of a store in numbers and words: for `stepwell info`, the viewer and reports."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import cast

import numpy as np

from ..base.progress import format_bytes
from ..base.untrusted_json import mapping_of
from ..provenance.chains import chains_of
from ..replay.replay import SequenceReplayBuffer
from ..rows.episode import End
from ..spec.spec import Spec
from ..storage.disk.folder import ignored_file
from ..storage.disk.publish import disk_bytes
from ..storage.disk.storage import DiskStorage
from .episode_table import EpisodeTable

_HIDDEN_AT_ONE = ("frame_skip", "frame_stack")
_NAME_KEYS = ("game", "id", "env")
_NOT_SETTINGS = {*_NAME_KEYS, "cartridge", "maker", "versions"}
_HASH_LETTERS = 12  # of a SHA-256: enough to distinguish files by eye
_ACTIONS_SHOWN = 12

RUN_COLUMNS = ("run", "began", "envs", "seed", "policy")
FIELD_COLUMNS = ("field", "dtype", "shape", "codec", "stack")


@dataclass(frozen=True, slots=True)
class StoreSummary:
    """Contents of a store, in numbers."""

    path: str
    spec: Spec
    sessions: Sequence[Mapping[str, object]]  # facts about the runs that wrote it, oldest first
    capacity: int | None  # in steps
    capacity_bytes: int | None
    steps: int  # stored now
    total_steps: int  # ever stored
    episodes: int  # with stored rows
    terminated: int
    truncated: int  # episodes that did not terminate
    cut: int  # episodes whose end was not recorded
    late_starts: int  # episodes whose first rows were evicted or lost
    lost_chunks: int  # removed by a repair
    returns: np.ndarray  # [E] of the episodes that are stored from beginning to end, by id
    lengths: np.ndarray  # env steps [E] of the same episodes
    raw_bytes: int  # of the rows uncompressed, each frame counted once
    stored_bytes: int  # of the same rows as they are stored
    disk_bytes: int  # of the folder's files
    ignored: str  # a sentence about a file that only earlier versions read; may be empty

    def to_json(self) -> dict[str, object]:
        """Return plain data for JSON, with the compression: raw bytes divided by those on disk."""
        return {
            **{each.name: getattr(self, each.name) for each in fields(self)},
            "spec": self.spec.to_json(),
            "sessions": [dict(session) for session in self.sessions],
            "returns": statistics_of(self.returns),
            "lengths": statistics_of(self.lengths),
            "compression": self.raw_bytes / self.disk_bytes if self.disk_bytes else 0.0,
        }


def summary_of(path: Path) -> StoreSummary:
    """Summarize a store; of its rows only the rewards are decoded."""
    with (
        DiskStorage.open(path, read_only=True) as storage,
        contextlib.closing(EpisodeTable(storage)) as table,
    ):
        table.read_all_returns()
        # An episode that ended in both ways counts as terminated. One without its first rows has an
        # end, but no return, as rewards are missing.
        is_terminated = (table.ends & End.TERMINATED) != 0
        is_truncated = ((table.ends & End.TRUNCATED) != 0) & ~is_terminated
        is_late = table.first_rows > 0
        is_whole = (is_terminated | is_truncated) & ~is_late
        return StoreSummary(
            path=str(path),
            spec=storage.spec,
            sessions=tuple(storage.sessions),
            capacity=storage.capacity,
            capacity_bytes=storage.capacity_bytes,
            steps=storage.index.steps,
            total_steps=storage.index.total_steps,
            episodes=len(table),
            terminated=int(is_terminated.sum()),
            truncated=int(is_truncated.sum()),
            cut=int((~is_terminated & ~is_truncated).sum()),
            late_starts=int(is_late.sum()),
            lost_chunks=storage.lost_chunks,
            returns=table.returns[is_whole],
            lengths=table.steps[is_whole],
            raw_bytes=storage.index.rows * storage.spec.row_bytes,
            stored_bytes=int(storage.index.records["nbytes"].sum()),
            disk_bytes=disk_bytes(path),
            ignored=ignored_file(path),
        )


@dataclass(frozen=True, slots=True)
class SeedCounts:
    """Numbers of stored episodes, by what is known of their seeds."""

    seeded: int  # begin with a seed of their own
    following: int  # follow on those before them, whose actions are all known, back to a seed
    unreachable: int  # no seed leads to them
    reasons: Mapping[str, int]  # for each reason why not, how many of these


def seeds_of(path: Path) -> SeedCounts:
    """Count the episodes that can be played again from a seed."""
    with DiskStorage.open(path, read_only=True) as storage:
        chains, unreachable = chains_of(storage)
        plays = [[play.episode is not None for play in chain.plays] for chain in chains]
        reasons = Counter(
            re.sub(r"\b(episode|env) \d+\b", r"an \1", one.why) for one in unreachable
        )
    seeded = sum(is_stored[0] for is_stored in plays)
    following = sum(map(sum, plays)) - seeded
    return SeedCounts(seeded, following, len(unreachable), dict(reasons.most_common()))


def digest_of(path: Path) -> str:
    """Compute the digest of all rows: the one that `collect` reports for a store's first run."""
    with SequenceReplayBuffer.open(path, read_only=True) as replay:
        return replay.digest()


def statistics_of(numbers: np.ndarray) -> dict[str, float] | None:
    """Return mean, standard deviation, minimum and maximum; None for an empty array."""
    if not len(numbers):
        return None
    with np.errstate(all="ignore"):  # some may be infinite
        return {name: float(getattr(numbers, name)()) for name in ("mean", "std", "min", "max")}


def describe_size(disk_bytes: int, raw_bytes: int, stored_bytes: int | None = None) -> list[str]:
    """Describe the size of a store, as parts of a line; ``stored_bytes`` may be unknown."""
    # `raw_bytes` are those of its rows uncompressed, each frame counted once; `stored_bytes` those
    # of the rows within the files.
    parts = [f"{format_bytes(disk_bytes)} on disk"]
    if stored_bytes is not None:
        parts.append(f"rows {format_bytes(stored_bytes)} of it")
    parts.append(f"raw {format_bytes(raw_bytes)}")
    if 0 < raw_bytes < disk_bytes:
        parts.append(f"{_times(disk_bytes / raw_bytes)} larger: files reserve space in advance")
    elif disk_bytes and raw_bytes / disk_bytes >= 1.05:
        parts.append(f"{_times(raw_bytes / disk_bytes)} smaller")
    return parts


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}x" if ratio >= 100 else f"{ratio:.3g}x"


def overview(
    store: StoreSummary, digest: str | None = None, seeds: SeedCounts | None = None
) -> Iterator[tuple[str, str]]:
    """Iterate over names and texts that describe a store, as ``stepwell info`` shows them."""
    yield "store", store.path
    yield "env", describe_env(store.sessions)
    # What is as usual, such as no lost chunk, has no line, so that the rest is seen.
    steps = f"{store.steps:,}"
    if store.total_steps > store.steps:
        steps += f" of {store.total_steps:,} ever stored"
    steps += f", keeps {store.capacity:,} at most" if store.capacity else ""
    most = store.capacity_bytes
    yield "steps", steps + (f", keeps {format_bytes(most)} at most" if most else "")
    counts = (("terminated", store.terminated), ("truncated", store.truncated), ("cut", store.cut))
    ends = ", ".join(f"{count:,} {name}" for name, count in counts if count)
    late_starts = f"; {store.late_starts:,} without beginning" if store.late_starts else ""
    yield "episodes", f"{store.episodes:,}{': ' if ends else ''}{ends}{late_starts}"
    if store.lost_chunks:
        yield "lost", f"{store.lost_chunks:,} damaged chunks, which a repair removed"
    yield "return", describe_statistics(store.returns)
    yield "length", describe_statistics(store.lengths)
    sizes = describe_size(store.disk_bytes, store.raw_bytes, store.stored_bytes)
    yield "size", ", ".join(sizes)
    if store.ignored:
        yield "ignored", store.ignored
    yield "made by", describe_versions(store.sessions)
    if machine := describe_machine(store.sessions):
        yield "on", machine
    if seeds is not None:
        yield "seeds", describe_seeds(seeds)
    if digest is not None:
        yield "digest", digest


def describe_statistics(numbers: np.ndarray) -> str:
    """Return mean, standard deviation and range of the returns or lengths of whole episodes."""
    values = statistics_of(numbers)
    if values is None:
        return "no whole episode yet"
    if len(numbers) == 1:
        return f"{values['mean']:,.6g}, of one whole episode"
    return (
        f"mean {values['mean']:,.1f} ± {values['std']:,.1f}, {values['min']:,.6g} to "
        f"{values['max']:,.6g}"
    )


def describe_env(sessions: Sequence[Mapping[str, object]]) -> str:
    """Return the env of the first run that tells one, or else who wrote the rows."""
    recipes = [mapping_of(session.get("recipe")) for session in sessions]
    known = next(filter(_names, recipes), None)
    found = (
        session.get("source", recipe.get("maker"))
        for session, recipe in zip(sessions, recipes, strict=True)
    )
    sources = sorted({str(source) for source in found if source is not None})
    if known is None and sources:
        return f"not known; rows of {', '.join(sources)}"
    return describe_recipe(known or (recipes or [{}])[0])


def _newest_run(sessions: Sequence[Mapping[str, object]]) -> Mapping[str, object]:
    """Return the facts of the newest run; a copy of it does not count."""
    played = [one for one in sessions if "copied_from" not in one]
    return (played or sessions or [{}])[-1]


def describe_versions(sessions: Sequence[Mapping[str, object]]) -> str:
    """Return the versions of the libraries of the newest run."""
    versions = mapping_of(_newest_run(sessions).get("versions"))
    return ", ".join(f"{name} {number}" for name, number in versions.items()) or "unknown"


def describe_machine(sessions: Sequence[Mapping[str, object]]) -> str:
    """Return the machine of the newest run; empty where a store of an older version has none."""
    facts = mapping_of(_newest_run(sessions).get("machine"))
    system = " ".join(str(facts[name]) for name in ("system", "machine") if name in facts)
    python = f"python {facts['python']}" if "python" in facts else ""
    return ", ".join(filter(None, [system, str(facts.get("libc", "")).strip("-"), python]))


def describe_seeds(counts: SeedCounts) -> str:
    """Return in one sentence how many episodes can be played again, and why not the others."""
    text = f"{counts.seeded:,} episodes begin with their own"
    if counts.seeded == 1:
        text = "1 episode begins with its own"
    if counts.following:
        text += f", {counts.following:,} follow on these"
    if counts.unreachable:
        reasons = ", ".join(f"{count:,}: {why}" for why, count in counts.reasons.items())
        text += f"; none leads to {counts.unreachable:,} ({reasons})"
    return text


def run_lines(sessions: Sequence[Mapping[str, object]]) -> list[tuple[str, ...]]:
    """The runs that wrote a store as the lines of a table, by `RUN_COLUMNS`."""
    return [
        (
            str(number),
            str(session.get("began", ""))[:16].replace("T", " "),
            str(session.get("num_envs", "")),
            describe_seed(session),
            describe_maker(session),
        )
        for number, session in enumerate(sessions)
    ]


def field_lines(spec: Spec) -> list[tuple[str, ...]]:
    """The fields of a row as the lines of a table, by `FIELD_COLUMNS`."""
    return [
        (
            field.name,
            field.dtype,
            str(field.shape),
            field.codec,
            f"{field.stack}, padding {field.stack_padding}" if field.stack > 1 else "",
        )
        for field in spec.fields
    ]


def describe_seed(session: Mapping[str, object]) -> str:
    """Return the seed, with the shard if there are several."""
    shard = session.get("shard")
    of_all = f", shard {'/'.join(map(str, shard))}" if isinstance(shard, list) else ""
    return f"{session.get('seed', '')}{of_all}"


def describe_maker(session: Mapping[str, object]) -> str:
    """Return the policy that played, or the source of a copy, an import or rows of one's own."""
    if "imported_from" in session:
        return f"import of {Path(str(mapping_of(session['imported_from']).get('path'))).name}"
    if "copied_from" not in session:
        return str(session.get("policy", session.get("source", ""))).removeprefix(
            "stepwell.collectors.policies.policy."
        )
    copied = session["copied_from"]
    sources = map(mapping_of, cast("list[object]", copied) if isinstance(copied, list) else [])
    names = ", ".join(Path(str(source.get("path", "RAM"))).name for source in sources)
    return f"{session.get('command', 'copy')} of {names}"


def describe_recipe(recipe: Mapping[str, object]) -> str:
    """Return the name of the env, then its settings, as in ``pong, sticky=0.25``."""
    rest = (_setting(key, value) for key, value in recipe.items() if key not in _NOT_SETTINGS)
    return ", ".join(filter(None, [*_names(recipe), *rest])) or "unknown"


def _names(recipe: Mapping[str, object]) -> list[str]:
    """Return the names of the env; of a cartridge's game, and the file that it came from."""
    if "cartridge" not in recipe:
        return [str(recipe[key]) for key in _NAME_KEYS if key in recipe]
    cartridge, game = mapping_of(recipe["cartridge"]), mapping_of(recipe.get("game"))
    file = f"{cartridge.get('name')}, sha256 {_short_hash(cartridge.get('sha256'))}"
    return [file if game.get("name", "unknown") == "unknown" else f"{game['name']} ({file})"]


def _setting(key: str, value: object) -> str:
    """Return one setting; empty for an off or default value."""
    if (
        value is None
        or value is False
        or value in ({}, [])
        or (key in _HIDDEN_AT_ONE and value == 1)
    ):
        return ""
    if value is True:
        return key
    if key == "size" and isinstance(value, list):
        return "x".join(map(str, cast("list[object]", value)))
    return f"{key}={_short(key, value)}"


def _short(key: str, value: object) -> str:
    if not isinstance(value, list):
        return f"'{value}'" if isinstance(value, str) and ", " in value else str(value)
    items = cast("list[object]", value)
    if key == "actions":
        shown = map(str, items[:_ACTIONS_SHOWN])
        return " ".join([*shown, *(["..."] if len(items) > _ACTIONS_SHOWN else [])])
    if key == "start":  # states of a console, by their SHA-256
        return " ".join(map(_short_hash, items))
    if all(isinstance(one, dict) for one in items):  # the wrappers of an env
        wrappers = cast("list[dict[str, object]]", items)
        return " ".join(str(wrapper.get("name", wrapper)) for wrapper in wrappers)
    return str(items)


def _short_hash(text: object) -> str:
    return str(text)[:_HASH_LETTERS]
