"""`stepwell info`: a store on one screen."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

import numpy as np
import rich.box
import rich.console
import rich.table
import rich.text

from stepwell.buffers.storage.disk.publish import check_complete
from stepwell.collectors.cli.errors import printable
from stepwell.collectors.cli.facts import (
    StoreFacts,
    digest_of,
    facts_of,
    size_in_words,
    spread_of,
)
from stepwell.collectors.cli.recipe import recipe_in_words
from stepwell.collectors.report import format_bytes

__all__ = ["histogram", "show_store"]

_BAR = "▏▎▍▌▋▊▉█"
_BINS = 8


def show_store(folder: Path, *, with_digest: bool, as_json: bool) -> None:
    """Print what a store holds.

    Args:
        folder: Folder of the store.
        with_digest: Read all rows for their fingerprint.
        as_json: Print one JSON object instead.

    Raises:
        StoreNotFound: There is no store in the folder, or it is not complete.
    """
    check_complete(folder)
    facts = facts_of(folder)
    digest = digest_of(folder) if with_digest else None
    if as_json:
        plain = rich.console.Console(soft_wrap=True)
        plain.out(json.dumps({**facts.to_json(), "digest": digest}), highlight=False)
        return
    console = rich.console.Console(emoji=False, highlight=False)
    if not console.is_terminal:
        console.width = 120
    console.print(_overview(facts, digest))
    console.print(_fields(facts))
    console.print(_sessions(facts))
    for name, numbers in (("return", facts.returns), ("length", facts.lengths)):
        for line in histogram(name, numbers, min(console.width, 80)):
            console.print(line, no_wrap=True, crop=True)


def histogram(name: str, numbers: np.ndarray, width: int) -> list[str]:
    """A line for each range of values that there are, with a bar.

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
    room = max(8, width - label_width - 8 - len(f"{counts.max():,}"))
    lines = [name]
    for label, count in zip(labels, counts.tolist(), strict=True):
        lines.append(f"  {label:>{label_width}}  {_bar(count / counts.max() * room)} {count:,}")
    return lines


def _bins(numbers: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Edges and names of ranges: of whole numbers where the values are whole."""
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


def _overview(facts: StoreFacts, digest: str | None) -> rich.table.Table:
    table = rich.table.Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, text in _overview_lines(facts, digest):
        table.add_row(name, _cell(text))
    return table


def _cell(text: object) -> rich.text.Text:
    """A text of a store, which may be anything: neither markup, nor a command to a terminal."""
    return rich.text.Text(printable(str(text)))


def _overview_lines(facts: StoreFacts, digest: str | None) -> Iterator[tuple[str, str]]:
    yield "store", facts.path
    yield "env", _env(facts)
    steps = f"{facts.steps:,}"
    if facts.total_steps > facts.steps:
        steps += f" of {facts.total_steps:,} ever stored"
    yield "steps", f"{steps}{_limit(facts)}"
    counts = (("terminated", facts.terminated), ("truncated", facts.truncated), ("cut", facts.cut))
    ends = ", ".join(f"{count:,} {name}" for name, count in counts if count)
    beheaded = f"; {facts.beheaded:,} without beginning" if facts.beheaded else ""
    yield "episodes", f"{facts.episodes:,}{': ' if ends else ''}{ends}{beheaded}"
    if facts.lost_chunks:
        yield "lost", f"{facts.lost_chunks:,} damaged chunks, which a repair took out"
    yield "return", _spread(facts.returns)
    yield "length", _spread(facts.lengths)
    yield (
        "size",
        ", ".join(size_in_words(facts.disk_bytes, facts.raw_bytes, facts.stored_bytes)),
    )
    yield "made by", _versions(facts)
    if digest is not None:
        yield "digest", digest


def _env(facts: StoreFacts) -> str:
    recipe = facts.sessions[0].get("recipe") if facts.sessions else None
    return recipe_in_words(_mapping(recipe))


def _versions(facts: StoreFacts) -> str:
    """What the newest run was made with, rather than the newest copy of it."""
    played = [one for one in facts.sessions if "copied_from" not in one]
    newest = (played or facts.sessions or [{}])[-1]
    versions = _mapping(newest.get("versions"))
    return ", ".join(f"{name} {number}" for name, number in versions.items()) or "unknown"


def _mapping(fact: object) -> Mapping[str, object]:
    """A fact about a run that is a mapping; what a store tells may be anything."""
    return cast("Mapping[str, object]", fact) if isinstance(fact, Mapping) else {}


def _limit(facts: StoreFacts) -> str:
    steps = f", keeps {facts.capacity:,} at most" if facts.capacity else ""
    most = facts.capacity_bytes
    return steps + (f", keeps {format_bytes(most)} at most" if most else "")


def _spread(numbers: np.ndarray) -> str:
    spread = spread_of(numbers)
    if spread is None:
        return "no whole episode yet"
    return (
        f"mean {spread['mean']:,.1f} ± {spread['std']:,.1f}, {spread['min']:,.6g} to "
        f"{spread['max']:,.6g}"
    )


def _fields(facts: StoreFacts) -> rich.table.Table:
    table = _table("field", "dtype", "shape", "kept as", "as the env gives it")
    for field in facts.spec.fields:
        stack = (
            f"stack of {field.stack}, {field.stack_padding} before it" if field.stack > 1 else ""
        )
        cells = (field.name, field.dtype, field.shape, field.codec, stack)
        table.add_row(*map(_cell, cells))
    return table


def _sessions(facts: StoreFacts) -> rich.table.Table:
    table = _table("run", "began", "envs", "seed", "policy")
    for number, session in enumerate(facts.sessions):
        began = str(session.get("began", ""))[:16].replace("T", " ")
        cells = (number, began, session.get("num_envs", ""), session.get("seed", ""))
        table.add_row(*map(_cell, (*cells, _maker(session))))
    return table


def _maker(session: Mapping[str, object]) -> str:
    """The policy that played, or the stores that were copied."""
    if "copied_from" not in session:
        return str(session.get("policy", "")).removeprefix("stepwell.collectors.policies.policy.")
    copied = session["copied_from"]
    sources = map(_mapping, cast("list[object]", copied) if isinstance(copied, list) else [])
    names = ", ".join(Path(str(source.get("path", "RAM"))).name for source in sources)
    return f"{session.get('command', 'copy')} of {names}"


def _table(*columns: str) -> rich.table.Table:
    table = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.title = None
    for name in columns:
        table.add_column(name, overflow="fold")
    return table
