"""`stepwell info`: the contents of a store on one screen."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, cast

import numpy as np
import rich.table
import rich.text
import typer

from stepwell.buffers import Chunk, Digest, End, SequenceReplayBuffer, Spec
from stepwell.buffers.provenance.chains import chains_of
from stepwell.buffers.storage.chunk_codec import ChunkDecoder
from stepwell.buffers.storage.disk.publish import check_complete, disk_bytes
from stepwell.buffers.storage.disk.storage import DiskStorage
from stepwell.collectors.cli.errors import exit_on_error, printable
from stepwell.collectors.cli.options import Debug, Json
from stepwell.collectors.cli.output import (
    describe_size,
    print_json,
    print_lines,
    statistics_of,
    table,
    table_console,
)
from stepwell.collectors.report import format_bytes

__all__ = [
    "SeedCounts",
    "StoreSummary",
    "describe_recipe",
    "digest_of",
    "histogram",
    "info",
    "seeds_of",
    "summary_of",
]

_BAR = "▏▎▍▌▋▊▉█"
_BINS = 8
_HIDDEN_AT_ONE = ("frame_skip", "frame_stack")
_NAME_KEYS = ("game", "id", "env")
_NOT_SETTINGS = {*_NAME_KEYS, "cartridge", "maker", "versions"}
_HASH_LETTERS = 12  # of a SHA-256: enough to distinguish files by eye
_ACTIONS_SHOWN = 12


def info(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder of a store, or an archive.")
    ],
    digest: Annotated[
        bool,
        typer.Option(
            "--digest", metavar="", help="Compute the digest of all rows; this reads everything."
        ),
    ] = False,
    provenance: Annotated[
        bool,
        typer.Option(
            "--provenance",
            metavar="",
            help="Count the episodes that can be played again from a seed; this reads the facts "
            "of all.",
        ),
    ] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show the contents of a store: fields, runs, episodes, returns, lengths, sizes.

    stepwell info runs/pong
    stepwell info runs/pong --digest
    stepwell info runs/pong --provenance
    stepwell info pong.swa

    A copy has the digest of its source, also with other codecs.
    """
    with exit_on_error(debug):
        if folder.is_file():
            _show_archive(folder, as_json)
            return
        check_complete(folder)
        found = summary_of(folder)
        seeds = seeds_of(folder) if provenance else None
        computed = digest_of(folder) if digest else None
        if as_json:
            counts = None if seeds is None else asdict(seeds)
            print_json({**found.to_json(), "digest": computed, "provenance": counts})
            return
        console = table_console()
        console.print(_overview(found, computed, seeds))
        console.print(_fields(found))
        console.print(_sessions(found))
        for name, numbers in (("return", found.returns), ("length", found.lengths)):
            for line in histogram(name, numbers, min(console.width, 80)):
                console.print(line, no_wrap=True, crop=True)


def _show_archive(path: Path, as_json: bool) -> None:
    """Show the contents of an archive, without the rows that it does not hold."""
    # Imported here: a store does not need it.
    from stepwell.buffers.provenance.archive_file import ArchiveFile
    from stepwell.buffers.provenance.archived_store import ArchivedStore

    with ArchivedStore(ArchiveFile(path)) as archived:
        rows, nbytes = int(archived.table.new_rows.sum()), archived.file.nbytes
        steps, episodes = archived.steps, len(archived.table.episode)
        sessions, spec = archived.facts.sessions, archived.spec
        is_proved, versions = archived.is_proved, archived.versions
    facts: dict[str, object] = {
        "path": str(path),
        "episodes": episodes,
        "steps": steps,
        "archive_bytes": nbytes,
        "raw_bytes": rows * spec.row_bytes,
        "is_proved": is_proved,
        "versions": versions,
        "sessions": [dict(session) for session in sessions],
        "spec": spec.to_json(),
    }
    if as_json:
        print_json(facts)
        return
    proved = "played again and equal" if is_proved else "not proved"
    recipe = sessions[0].get("recipe") if sessions else None
    made_by = ", ".join(f"{name} {text}" for name, text in versions.items())
    print_lines(
        [
            f"archive   {path}",
            f"env       {describe_recipe(_mapping(recipe))}",
            f"steps     {steps:,}",
            f"episodes  {episodes:,}, {proved} when it was made",
            f"size      {format_bytes(nbytes)}, {nbytes / max(1, steps):.2f} bytes a step; raw "
            f"{format_bytes(rows * spec.row_bytes)}",
            f"fields    {printable(spec.summary)}",
            f"made by   {printable(made_by)}",
            f"restore   stepwell restore {path} --out DIR",
        ]
    )


@dataclass(frozen=True, slots=True)
class StoreSummary:
    """Contents of a store, in numbers.

    Args:
        path: Its folder.
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
        disk_bytes: Bytes of the folder's files.
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
    with DiskStorage.open(path, read_only=True) as storage:
        records = storage.index.records
        tails = np.sort(records[records["is_tail"] == 1], order="episode")
        ends = tails["end"]
        is_terminated = (ends & End.TERMINATED) != 0
        is_truncated = ((ends & End.TRUNCATED) != 0) & ~is_terminated
        is_whole = (is_terminated | is_truncated) & (tails["head"] == 0)
        whole = tails[is_whole]
        returns = _returns(storage)
        return StoreSummary(
            path=str(path),
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
            disk_bytes=disk_bytes(path),
        )


def _returns(storage: DiskStorage) -> dict[int, float]:
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
    digest = Digest()
    with SequenceReplayBuffer.open(path, read_only=True) as replay:
        for episode in replay.iter_episodes():
            digest.update(
                Chunk(episode.id, episode.stream, episode.first_row, episode.end, episode.fields)
            )
    return digest.hexdigest()


def histogram(name: str, numbers: np.ndarray, width: int) -> list[str]:
    """Return a line with a bar for each range of values.

    Example:
        >>> for line in histogram("length", np.array([9, 9, 9, 30]), 40):
        ...     print(line)
        length
            9 - 19  ████████████████████████ 3
           20 - 30  ████████ 1
    """
    if len(numbers) < 2 or numbers.min() == numbers.max():
        return []
    edges, labels = _bins(numbers)
    counts, _ = np.histogram(numbers, edges)
    label_width = max(len(label) for label in labels)
    bar_width = max(8, width - label_width - 8 - len(f"{counts.max():,}"))
    lines = [name]
    for label, count in zip(labels, counts.tolist(), strict=True):
        lines.append(
            f"  {label:>{label_width}}  {_bar(count / counts.max() * bar_width)} {count:,}"
        )
    return lines


def _bins(numbers: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Return edges and labels of ranges; the edges are whole if the values are."""
    low, high = float(numbers.min()), float(numbers.max())
    if np.equal(np.mod(numbers, 1), 0).all():
        span = int(high - low) + 1
        step = -(-span // min(_BINS, span, max(2, len(numbers) // 2)))
        starts = np.arange(low, high + 1, step)
        edges = np.append(starts, starts[-1] + step) - 0.5
        ends = starts + step - 1
        pairs = zip(starts.tolist(), ends.tolist(), strict=True)
        return edges, [f"{a:,.0f}" if a == b else f"{a:,.0f} - {b:,.0f}" for a, b in pairs]
    edges = np.linspace(low, high, _BINS + 1)
    pairs = zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    return edges, [f"{a:,.4g} - {b:,.4g}" for a, b in pairs]


def _bar(length: float) -> str:
    full, rest = divmod(round(length * 8), 8)
    bar = "█" * full + (_BAR[rest - 1] if rest else "")
    return bar or ("▏" if length else "")


def _overview(
    store: StoreSummary, digest: str | None, seeds: SeedCounts | None
) -> rich.table.Table:
    grid = rich.table.Table.grid(padding=(0, 2))
    grid.add_column(style="bold")
    grid.add_column(overflow="fold")
    for name, text in _overview_lines(store, digest, seeds):
        grid.add_row(name, _cell(text))
    return grid


def _cell(text: object) -> rich.text.Text:
    """Return untrusted text of a store without markup and control characters."""
    return rich.text.Text(printable(str(text)))


def _overview_lines(
    store: StoreSummary, digest: str | None, seeds: SeedCounts | None
) -> Iterator[tuple[str, str]]:
    yield "store", store.path
    yield "env", _env(store)
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
    yield "return", _statistics(store.returns)
    yield "length", _statistics(store.lengths)
    yield (
        "size",
        ", ".join(describe_size(store.disk_bytes, store.raw_bytes, store.stored_bytes)),
    )
    if store.ledger_bytes:
        size = format_bytes(store.ledger_bytes)
        yield "kept actions", f"{size}, of rows that are gone, to play these episodes again"
    yield "made by", _versions(store)
    if machine := _machine(store):
        yield "on", machine
    if seeds is not None:
        yield "seeds", _seeds(seeds)
    if digest is not None:
        yield "digest", digest


def _env(store: StoreSummary) -> str:
    """Return the env of the first run that tells one, or else who wrote the rows."""
    recipes = [_mapping(session.get("recipe")) for session in store.sessions]
    known = next(filter(_names, recipes), None)
    found = (
        session.get("source", recipe.get("maker"))
        for session, recipe in zip(store.sessions, recipes, strict=True)
    )
    sources = sorted({str(source) for source in found if source is not None})
    if known is None and sources:
        return f"not known; rows of {', '.join(sources)}"
    return describe_recipe(known or (recipes or [{}])[0])


def _newest_run(store: StoreSummary) -> Mapping[str, object]:
    """Return the facts of the newest run; a copy of it does not count."""
    played = [one for one in store.sessions if "copied_from" not in one]
    return (played or store.sessions or [{}])[-1]


def _versions(store: StoreSummary) -> str:
    versions = _mapping(_newest_run(store).get("versions"))
    return ", ".join(f"{name} {number}" for name, number in versions.items()) or "unknown"


def _machine(store: StoreSummary) -> str:
    """Return the machine of the newest run; empty where a store of an older version has none."""
    facts = _mapping(_newest_run(store).get("machine"))
    system = " ".join(str(facts[name]) for name in ("system", "machine") if name in facts)
    python = f"python {facts['python']}" if "python" in facts else ""
    return ", ".join(filter(None, [system, str(facts.get("libc", "")).strip("-"), python]))


def _seeds(counts: SeedCounts) -> str:
    """Return in one sentence how many episodes can be played again, and why not the others."""
    text = f"{counts.seeded:,} episodes begin with their own"
    if counts.following:
        text += f", {counts.following:,} follow on these"
    if counts.unreachable:
        reasons = ", ".join(f"{count:,}: {why}" for why, count in counts.reasons.items())
        text += f"; none leads to {counts.unreachable:,} ({reasons})"
    return text


def _mapping(fact: object) -> Mapping[str, object]:
    """Return a fact about a run that is a mapping; empty if it is not, since it is untrusted."""
    return cast("Mapping[str, object]", fact) if isinstance(fact, Mapping) else {}


def _limit(store: StoreSummary) -> str:
    steps = f", keeps {store.capacity:,} at most" if store.capacity else ""
    most = store.capacity_bytes
    return steps + (f", keeps {format_bytes(most)} at most" if most else "")


def _statistics(numbers: np.ndarray) -> str:
    values = statistics_of(numbers)
    if values is None:
        return "no whole episode yet"
    return (
        f"mean {values['mean']:,.1f} ± {values['std']:,.1f}, {values['min']:,.6g} to "
        f"{values['max']:,.6g}"
    )


def _fields(store: StoreSummary) -> rich.table.Table:
    found = table("field", "dtype", "shape", "codec", "stack")
    for field in store.spec.fields:
        stack = f"{field.stack}, padding {field.stack_padding}" if field.stack > 1 else ""
        cells = (field.name, field.dtype, field.shape, field.codec, stack)
        found.add_row(*map(_cell, cells))
    return found


def _sessions(store: StoreSummary) -> rich.table.Table:
    found = table("run", "began", "envs", "seed", "policy")
    for number, session in enumerate(store.sessions):
        began = str(session.get("began", ""))[:16].replace("T", " ")
        cells = (number, began, session.get("num_envs", ""), _seed(session))
        found.add_row(*map(_cell, (*cells, _maker(session))))
    return found


def _seed(session: Mapping[str, object]) -> str:
    """Return the seed, with the shard if there are several."""
    shard = session.get("shard")
    of_all = f", shard {'/'.join(map(str, shard))}" if isinstance(shard, list) else ""
    return f"{session.get('seed', '')}{of_all}"


def _maker(session: Mapping[str, object]) -> str:
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


# The recipe of an env, in one line.


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
