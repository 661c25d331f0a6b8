"""Histograms of several stores, their values in order, and counts of their actions."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from .curves import component_name
from .episode_table import EpisodeTable

_MOST_EXACT = 2**53
_MOST_COMPONENTS, _MOST_ACTIONS = 16, 64
_ACTION_BINS = 16
_BIT = re.compile(r"action\[([0-9]{1,4})\]")
_READ_BYTES = 1 << 26


@dataclass(frozen=True, slots=True)
class Histogram:
    """Numbers of values in ranges, which are the same for several stores."""

    # A value at a border belongs to the range above it, but the greatest one to the last.

    edges: np.ndarray  # borders [bins + 1], rising
    counts: np.ndarray  # [stores, bins]
    left_out: tuple[int, ...]  # [stores]: values that are NaN or infinite
    labels: tuple[str, ...]  # of each range, such as "9 - 19"


def histogram(values: Sequence[np.ndarray], bins: int = 32) -> Histogram:
    """Count each store's values [n] in equal ranges, which are shared by all."""
    # Whole numbers get ranges between whole numbers.
    numbers = [np.asarray(each, np.float64) for each in values]
    finite = [each[np.isfinite(each)] for each in numbers]
    edges, labels = bins_of(np.concatenate(finite) if finite else np.zeros(0), bins)
    counts = [
        np.bincount(np.searchsorted(edges[1:-1], each, side="right"), minlength=len(labels))
        for each in finite
    ]
    left_out = tuple(len(a) - len(b) for a, b in zip(numbers, finite, strict=True))
    return Histogram(edges, np.array(counts).reshape(-1, len(labels)), left_out, tuple(labels))


def course(
    values: np.ndarray, keys: np.ndarray, edges: np.ndarray, window: int
) -> dict[str, list[object]]:
    """Least and greatest finite value of each part of values [m], with their keys, and the mean."""
    # Parts lie between edges [n + 1], perhaps beyond the last value. A mean is that of the last
    # `window` values up to the end of its part. None stands for what has no finite value.
    found: dict[str, list[object]] = {
        name: [] for name in ("low", "low_key", "high", "high_key", "mean")
    }
    for begin, stop in pairwise(np.minimum(edges, len(values)).tolist()):
        finite = begin + np.flatnonzero(np.isfinite(values[begin:stop]))
        for name, choose in (("low", np.argmin), ("high", np.argmax)):
            at = finite[choose(values[finite])] if len(finite) else None
            found[name].append(None if at is None else values[at].item())
            found[f"{name}_key"].append(None if at is None else keys[at].tolist())
        near = values[max(0, stop - window) : stop]
        near = near[np.isfinite(near)]
        with np.errstate(over="ignore"):
            found["mean"].append(float(near.mean()) if begin < stop and len(near) else None)
    return found


def bins_of(numbers: np.ndarray, most: int) -> tuple[np.ndarray, list[str]]:
    """Edges and labels of at most ``most`` equal ranges of finite numbers [n]."""
    # Edges lie between whole numbers, and a few of them have fewer ranges.
    if not len(numbers):
        return np.array([0.0, 1.0]), ["0 - 1"]
    low, high = float(numbers.min()), float(numbers.max())
    if max(-low, high) <= _MOST_EXACT and np.equal(np.rint(numbers), numbers).all():
        span = int(high - low) + 1
        step = -(-span // min(most, span, max(2, len(numbers) // 2)))
        starts = np.arange(low, high + 1, step)
        edges = np.append(starts, high + 1) - 0.5  # the last range may be shorter
        ends = np.minimum(starts + step - 1, high)
        pairs = zip(starts.tolist(), ends.tolist(), strict=True)
        return edges, [f"{a:,.0f}" if a == b else f"{a:,.0f} - {b:,.0f}" for a, b in pairs]
    if low == high:
        return np.array([np.nextafter(low, -np.inf), np.nextafter(low, np.inf)]), [f"{low:,.4g}"]
    part = np.linspace(0, 1, most + 1)
    # Not `linspace` of the two: their difference may be infinite.
    edges = np.unique(np.clip(low * (1 - part) + high * part, low, high))
    pairs = zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    return edges, [f"{a:,.4g} - {b:,.4g}" for a, b in pairs]


@dataclass(frozen=True, slots=True)
class ActionCounts:
    """Counts of each action, in several stores."""

    name: str  # the field, with the component of a vector, such as "action[0]", and its name
    labels: tuple[str, ...]  # [bars]: names of the actions, their numbers, or ranges of a float
    counts: np.ndarray  # [stores, bars]
    rows_read: int  # those of episodes that were evicted meanwhile are not counted
    rows: int  # with an action; more than those where not all were read


def action_counts(
    chosen: Sequence[tuple[EpisodeTable, np.ndarray]],
    limit: int = 200_000,
    names: Sequence[str] | None = None,
) -> list[ActionCounts]:
    """Count the actions of the episodes at some places, for each component that all stores have."""
    # Each number of a Discrete action is a bar, and so for each component of a vector; floats, and
    # more than 64 different numbers, are counted in ranges. A vector's first 16 components are
    # counted, and no action in the last row of an episode that has ended, where none was chosen. Of
    # more rows than `limit` in a store, episodes that are spread evenly are read.
    read = [_actions_of(table, places, limit) for table, places in chosen]
    if not read:
        return []
    total = sum(rows for _, rows in read)
    found: list[ActionCounts] = []
    for name in read[0][0]:
        if all(name in columns for columns, _ in read):
            values = [columns[name] for columns, _ in read]
            labels, counts = _bars(values, names if name == "action" else None)
            place = _BIT.fullmatch(name)
            bit = int(place[1]) if place and names else len(names or ())
            title = f"{name}: {names[bit]}" if names and bit < len(names) else name
            found.append(ActionCounts(title, labels, counts, sum(map(len, values)), total))
    return found


def _bars(
    values: Sequence[np.ndarray], names: Sequence[str] | None
) -> tuple[tuple[str, ...], np.ndarray]:
    """Labels [bars] and counts [stores, bars] of the values of an action."""
    if any(each.dtype.kind == "f" for each in values):
        found = histogram(values, _ACTION_BINS)
        return found.labels, found.counts
    different = [np.unique(each, return_counts=True) for each in values]
    whole = np.unique(np.concatenate([each for each, _ in different]))
    if len(whole) > _MOST_ACTIONS:
        found = histogram(values, _ACTION_BINS)
        return found.labels, found.counts
    if names and (not len(whole) or 0 <= whole[0] <= whole[-1] < len(names)):
        whole = np.arange(len(names))
    counts = np.zeros((len(values), len(whole)), np.int64)
    for store, (numbers, times) in enumerate(different):
        counts[store, np.searchsorted(whole, numbers)] = times
    is_named = names is not None and len(whole) == len(names)
    return tuple(names if names and is_named else map(str, whole.tolist())), counts


def _actions_of(
    table: EpisodeTable, places: np.ndarray, limit: int
) -> tuple[dict[str, np.ndarray], int]:
    """The values of each component of some episodes' actions, and the number of rows, limited."""
    with table.lock:
        fields = [
            field
            for field in table.storage.spec.of_kind("action")
            if field.numpy_dtype.kind != "c" and math.prod(field.shape) > 0
        ]
        limit = min([limit, *(_READ_BYTES // field.row_bytes for field in fields)])
        total = int(table.action_rows(places).sum())
        columns: dict[str, np.ndarray] = {}
        for field in fields:
            rows = table.read_actions(places, field.name, max(1, limit))
            rows = rows.reshape(len(rows), math.prod(field.shape))
            for component in range(min(_MOST_COMPONENTS, rows.shape[1])):
                columns[component_name(field, component)] = rows[:, component]
        return columns, total
