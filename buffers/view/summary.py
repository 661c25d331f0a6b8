"""The contents of a store in numbers and words: for `stepwell info`, the viewer and reports."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np

from stepwell.buffers.digest import Digest
from stepwell.buffers.episode import Chunk, End
from stepwell.buffers.progress import format_bytes
from stepwell.buffers.provenance.chains import chains_of
from stepwell.buffers.replay import SequenceReplayBuffer
from stepwell.buffers.spec import Spec
from stepwell.buffers.storage.chunk_codec import ChunkDecoder
from stepwell.buffers.storage.places import PlacedStorage, open_to_read, placed_bytes
from stepwell.buffers.storage.urls import url_of

__all__ = [
    "SeedCounts",
    "StoreSummary",
    "describe_env",
    "describe_machine",
    "describe_maker",
    "describe_recipe",
    "describe_seed",
    "describe_seeds",
    "describe_size",
    "describe_statistics",
    "describe_versions",
    "digest_of",
    "overview",
    "seeds_of",
    "statistics_of",
    "summary_of",
]

_HIDDEN_AT_ONE = ("frame_skip", "frame_stack")
_NAME_KEYS = ("game", "id", "env")
_NOT_SETTINGS = {*_NAME_KEYS, "cartridge", "maker", "versions"}
_HASH_LETTERS = 12  # of a SHA-256: enough to distinguish files by eye
_ACTIONS_SHOWN = 12


@dataclass(frozen=True, slots=True)
class StoreSummary:
    """Contents of a store, in numbers.

    Args:
        path: Its folder or URL.
        spec: The fields of every row.
        sessions: Facts about the runs that wrote it, oldest first.
        capacity: Maximum number of steps.
        capacity_bytes: Maximum number of bytes.
        steps: Env steps stored now.
        total_steps: Env steps ever stored.
        terminated: Number of terminated episodes.
        truncated: Number of episodes that were truncated and did not terminate.
        cut: Number of episodes whose end was not recorded.
        late_starts: Number of episodes whose first rows were evicted or lost.
        lost_chunks: Chunks that a repair removed.
        returns: Array [E] for the episodes that are stored from beginning to end, by id.
        lengths: Env steps [E] of the same episodes.
        raw_bytes: Bytes of the stored rows uncompressed, each frame counted once.
        stored_bytes: Bytes of the same rows as they are stored.
        ledger_bytes: Bytes of the actions of rows that are gone, which the stored episodes need to
            be played again.
        disk_bytes: Bytes of the folder's files, or of the objects at the URL.
    """

    path: str
    spec: Spec
    sessions: Sequence[Mapping[str, object]]
    capacity: int | None
    capacity_bytes: int | None
    steps: int
    total_steps: int
    terminated: int
    truncated: int
    cut: int
    late_starts: int
    lost_chunks: int
    returns: np.ndarray
    lengths: np.ndarray
    raw_bytes: int
    stored_bytes: int
    ledger_bytes: int
    disk_bytes: int

    @property
    def episodes(self) -> int:
        """Number of episodes with stored rows."""
        return self.terminated + self.truncated + self.cut

    @property
    def compression(self) -> float:
        """Size of the uncompressed rows divided by the size on disk."""
        return self.raw_bytes / self.disk_bytes if self.disk_bytes else 0.0

    def to_json(self) -> dict[str, object]:
        """Return plain data for JSON."""
        return {
            "path": self.path,
            "spec": self.spec.to_json(),
            "sessions": [dict(session) for session in self.sessions],
            "capacity": self.capacity,
            "capacity_bytes": self.capacity_bytes,
            "steps": self.steps,
            "total_steps": self.total_steps,
            "episodes": self.episodes,
            "terminated": self.terminated,
            "truncated": self.truncated,
            "cut": self.cut,
            "late_starts": self.late_starts,
            "lost_chunks": self.lost_chunks,
            "returns": statistics_of(self.returns),
            "lengths": statistics_of(self.lengths),
            "raw_bytes": self.raw_bytes,
            "stored_bytes": self.stored_bytes,
            "ledger_bytes": self.ledger_bytes,
            "disk_bytes": self.disk_bytes,
            "compression": self.compression,
        }


def summary_of(path: Path) -> StoreSummary:
    """Summarize a store; of its rows only the rewards are decoded.

    Raises:
        StoreNotFound: There is no store in the folder.
    """
    with open_to_read(path) as storage:
        records = storage.index.records
        tails = np.sort(records[records["is_tail"] == 1], order="episode")
        ends = tails["end"]
        is_terminated = (ends & End.TERMINATED) != 0
        is_truncated = ((ends & End.TRUNCATED) != 0) & ~is_terminated
        is_whole = (is_terminated | is_truncated) & (tails["head"] == 0)
        whole = tails[is_whole]
        returns = _returns(storage)
        return StoreSummary(
            path=url_of(path) or str(path),
            spec=storage.spec,
            sessions=tuple(storage.sessions),
            capacity=storage.capacity,
            capacity_bytes=storage.capacity_bytes,
            steps=storage.index.steps,
            total_steps=storage.index.total_steps,
            terminated=int(is_terminated.sum()),
            truncated=int(is_truncated.sum()),
            cut=int((~is_terminated & ~is_truncated).sum()),
            late_starts=int((tails["head"] > 0).sum()),
            lost_chunks=storage.lost_chunks,
            returns=np.array(
                [returns[episode] for episode in whole["episode"].tolist()], np.float64
            ),
            lengths=whole["first_row"] + whole["rows"] - 1,
            raw_bytes=storage.index.rows * storage.spec.row_bytes,
            stored_bytes=int(records["nbytes"].sum()),
            ledger_bytes=storage.ledger_bytes,
            disk_bytes=placed_bytes(storage),
        )


def _returns(storage: PlacedStorage) -> dict[int, float]:
    """Sum the stored rewards of each episode."""
    reader = ChunkDecoder(storage.spec)
    place = [field.name for field in storage.spec.fields].index("reward")
    totals: dict[int, float] = {}
    for position in range(storage.index.base, storage.index.base + len(storage.index)):
        record = storage.index.record(position)
        if not record.rows:  # its one row is in the next chunk again
            continue
        buffer, origin = storage.payload(position)
        rewards = np.empty(record.rows, np.float64)
        reader.read(buffer, origin, record.stored_rows, place, 0, rewards)
        with np.errstate(invalid="ignore", over="ignore"):  # inf and -inf: NaN
            totals[record.episode] = totals.get(record.episode, 0.0) + float(rewards.sum())
    return totals


@dataclass(frozen=True, slots=True)
class SeedCounts:
    """Numbers of stored episodes, by what is known of their seeds.

    Args:
        seeded: Episodes that begin with a seed of their own.
        following: Episodes that follow on those before them, whose actions are all known, back to
            a seed.
        unreachable: Episodes that no seed leads to.
        reasons: For each reason why not, the number of these episodes.
    """

    seeded: int
    following: int
    unreachable: int
    reasons: Mapping[str, int]


def seeds_of(path: Path) -> SeedCounts:
    """Count the episodes that can be played again from a seed.

    Raises:
        StoreCorrupt: The store is damaged.
    """
    with open_to_read(path) as storage:
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
    digest = Digest()
    with SequenceReplayBuffer.open(path, read_only=True) as replay:
        for episode in replay.iter_episodes():
            digest.update(
                Chunk(episode.id, episode.stream, episode.first_row, episode.end, episode.fields)
            )
    return digest.hexdigest()


def statistics_of(numbers: np.ndarray) -> dict[str, float] | None:
    """Return mean, standard deviation, minimum and maximum; None for an empty array."""
    if not len(numbers):
        return None
    with np.errstate(all="ignore"):  # some may be infinite
        mean, std = float(numbers.mean()), float(numbers.std())
    return {
        "mean": mean,
        "std": std,
        "min": float(numbers.min()),
        "max": float(numbers.max()),
    }


def describe_size(disk_bytes: int, raw_bytes: int, stored_bytes: int | None = None) -> list[str]:
    """Describe the size of a store, as parts of a line.

    Args:
        disk_bytes: Bytes of its files.
        raw_bytes: Bytes of its rows uncompressed, each frame counted once.
        stored_bytes: Bytes of its rows within the files; None where that is unknown.

    Example:
        >>> describe_size(2_500_000, 352_800_000, 2_400_000)
        ['2.5 MB on disk', 'rows 2.4 MB of it', 'raw 352.8 MB', '141x smaller']
        >>> describe_size(91_757, 16_900, 13_500)[-1]
        '5.43x larger: files reserve space in advance'
    """
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
    """Iterate over names and texts that describe a store, as `stepwell info` shows them.

    Args:
        store: The summary.
        digest: The digest of all rows; None leaves it out.
        seeds: How many episodes can be played again; None leaves it out.
    """
    yield "store", store.path
    yield "env", describe_env(store.sessions)
    steps = f"{store.steps:,}"
    if store.total_steps > store.steps:
        steps += f" of {store.total_steps:,} ever stored"
    yield "steps", f"{steps}{_limit(store)}"
    counts = (("terminated", store.terminated), ("truncated", store.truncated), ("cut", store.cut))
    ends = ", ".join(f"{count:,} {name}" for name, count in counts if count)
    late_starts = f"; {store.late_starts:,} without beginning" if store.late_starts else ""
    yield "episodes", f"{store.episodes:,}{': ' if ends else ''}{ends}{late_starts}"
    if store.lost_chunks:
        yield "lost", f"{store.lost_chunks:,} damaged chunks, which a repair removed"
    yield "return", describe_statistics(store.returns)
    yield "length", describe_statistics(store.lengths)
    yield (
        "size",
        ", ".join(describe_size(store.disk_bytes, store.raw_bytes, store.stored_bytes)),
    )
    if store.ledger_bytes:
        size = format_bytes(store.ledger_bytes)
        yield "kept actions", f"{size}, of rows that are gone, to play these episodes again"
    yield "made by", describe_versions(store.sessions)
    if machine := describe_machine(store.sessions):
        yield "on", machine
    if seeds is not None:
        yield "seeds", describe_seeds(seeds)
    if digest is not None:
        yield "digest", digest


def _limit(store: StoreSummary) -> str:
    steps = f", keeps {store.capacity:,} at most" if store.capacity else ""
    most = store.capacity_bytes
    return steps + (f", keeps {format_bytes(most)} at most" if most else "")


def describe_statistics(numbers: np.ndarray) -> str:
    """Return mean, standard deviation and range of the returns or lengths of whole episodes."""
    values = statistics_of(numbers)
    if values is None:
        return "no whole episode yet"
    return (
        f"mean {values['mean']:,.1f} ± {values['std']:,.1f}, {values['min']:,.6g} to "
        f"{values['max']:,.6g}"
    )


def describe_env(sessions: Sequence[Mapping[str, object]]) -> str:
    """Return the env of the first run that tells one, or else who wrote the rows."""
    recipes = [_mapping(session.get("recipe")) for session in sessions]
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
    versions = _mapping(_newest_run(sessions).get("versions"))
    return ", ".join(f"{name} {number}" for name, number in versions.items()) or "unknown"


def describe_machine(sessions: Sequence[Mapping[str, object]]) -> str:
    """Return the machine of the newest run; empty where a store of an older version has none."""
    facts = _mapping(_newest_run(sessions).get("machine"))
    system = " ".join(str(facts[name]) for name in ("system", "machine") if name in facts)
    python = f"python {facts['python']}" if "python" in facts else ""
    return ", ".join(filter(None, [system, str(facts.get("libc", "")).strip("-"), python]))


def describe_seeds(counts: SeedCounts) -> str:
    """Return in one sentence how many episodes can be played again, and why not the others."""
    text = f"{counts.seeded:,} episodes begin with their own"
    if counts.following:
        text += f", {counts.following:,} follow on these"
    if counts.unreachable:
        reasons = ", ".join(f"{count:,}: {why}" for why, count in counts.reasons.items())
        text += f"; none leads to {counts.unreachable:,} ({reasons})"
    return text


def describe_seed(session: Mapping[str, object]) -> str:
    """Return the seed, with the shard if there are several."""
    shard = session.get("shard")
    of_all = f", shard {'/'.join(map(str, shard))}" if isinstance(shard, list) else ""
    return f"{session.get('seed', '')}{of_all}"


def describe_maker(session: Mapping[str, object]) -> str:
    """Return the policy that played, or the source of a copy, an import or rows of one's own."""
    if "imported_from" in session:
        return f"import of {Path(str(_mapping(session['imported_from']).get('path'))).name}"
    if "copied_from" not in session:
        return str(session.get("policy", session.get("source", ""))).removeprefix(
            "stepwell.collectors.policies.policy."
        )
    copied = session["copied_from"]
    sources = map(_mapping, cast("list[object]", copied) if isinstance(copied, list) else [])
    names = ", ".join(Path(str(source.get("path", "RAM"))).name for source in sources)
    return f"{session.get('command', 'copy')} of {names}"


def describe_recipe(recipe: Mapping[str, object]) -> str:
    """Return the name of the env, then its settings.

    Example:
        >>> describe_recipe({"maker": "make_atari", "game": "pong", "sticky": 0.25, "mode": None})
        'pong, sticky=0.25'
        >>> demo = {"name": "demo.nes", "sha256": "ecd0b80eb430b597f7f7ab7d"}
        >>> describe_recipe({"cartridge": demo, "game": {"name": "Demo"}, "backend": "cynes"})
        'Demo (demo.nes, sha256 ecd0b80eb430), backend=cynes'
    """
    rest = (_setting(key, value) for key, value in recipe.items() if key not in _NOT_SETTINGS)
    return ", ".join(filter(None, [*_names(recipe), *rest])) or "unknown"


def _names(recipe: Mapping[str, object]) -> list[str]:
    if "cartridge" in recipe:
        return [_cartridge(recipe)]
    return [str(recipe[key]) for key in _NAME_KEYS if key in recipe]


def _cartridge(recipe: Mapping[str, object]) -> str:
    """Return the game and the file that it came from."""
    cartridge, game = (
        cast("Mapping[str, object]", fact) if isinstance(fact, Mapping) else {}
        for fact in (recipe["cartridge"], recipe.get("game"))
    )
    file = f"{cartridge.get('name')}, sha256 {_short_hash(cartridge.get('sha256'))}"
    return file if game.get("name", "unknown") == "unknown" else f"{game['name']} ({file})"


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


def _mapping(fact: object) -> Mapping[str, object]:
    """Return a fact about a run that is a mapping; empty if it is not, since it is untrusted."""
    return cast("Mapping[str, object]", fact) if isinstance(fact, Mapping) else {}
