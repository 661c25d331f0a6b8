"""An EpisodeTable says of every episode what `stored_episodes` says, one after the other."""

from __future__ import annotations

import json
import math
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.buffers import (
    Chunk,
    DiskStorage,
    End,
    EpisodeSelection,
    Field,
    MemoryStorage,
    NotEnoughData,
    Spec,
    Storage,
    StoreCorrupt,
)
from stepwell.buffers.curation.stored_episode import stored_episodes
from stepwell.buffers.storage import field_locator
from stepwell.buffers.view import episode_table, histograms
from stepwell.buffers.view.episode_table import EpisodeTable, end_word, shown
from stepwell.buffers.view.histograms import action_counts, histogram
from support.disk_stores import spoil
from support.models.episode_order import in_order

CODECS = ("narrow", "raw", "zstd")
WHOLE = [0.0, 1.0, -1.0, 21.0, 300.0]
FRACTIONS = [0.1, 0.3, -0.7, 1e-9, 1e9, 1 / 3]
ODD = [math.nan, math.inf, -math.inf, -0.0, 2.0**53, 1e300]
VALUES = [1, 2, 2.0, True, "2", "door", None, [1], {"a": 1}, 10**30, math.nan, -3]


def spec_of(codec: str = "narrow") -> Spec:
    fields = (
        Field("observation", "float32", (3,), "raw"),
        Field("action", "int64", (), "narrow"),
        Field("reward", "float64", (), codec),  # type: ignore[arg-type]
    )
    return Spec(fields, "observation", "action")


@dataclass
class History:
    """Adds chunks to a storage as envs would, at random."""

    storage: Storage  # the storage
    rewards: Sequence[float]  # the rewards that are drawn
    rng: np.random.Generator
    open: dict[int, tuple[int, int, dict[str, object]]] = field(default_factory=dict)
    episodes: int = 0

    def add(self, stream: int, rows: int, end: End) -> None:
        """Add a chunk of so many new rows to the env's episode, or to a new one."""
        number, first_row, metadata = self.open.pop(stream, (self.episodes, 0, {}))
        if number == self.episodes:
            self.episodes += 1
            metadata = {"number": number, "level": VALUES[number % len(VALUES)]}
            if number % 5 == 0:
                metadata = {}
        rewards = self.rng.choice(np.array(self.rewards), rows)
        rewards[: first_row == 0] = 0
        fields: dict[str, np.ndarray] = {
            "observation": np.zeros((rows, 3), np.float32),
            "action": self.rng.integers(0, 4, rows),
            "reward": rewards,
        }
        self.storage.add([Chunk(number, stream, first_row, end, fields, metadata)])
        if not end.is_final:
            next_row = first_row + rows - (end == End.PENDING)
            self.open[stream] = number, next_row, metadata

    def lose(self, part: float) -> None:
        """Lose one of the chunks."""
        index = self.storage.index
        if len(index):
            self.storage.lose(index.base + int(part * (len(index) - 1)))

    def drop(self, part: float) -> None:
        """Evict some of the chunks."""
        rows = self.storage.index.records["row_id"]
        if len(rows):
            self.storage.drop_before(int(rows[int(part * (len(rows) - 1))]))


ENDS = st.sampled_from([End.NONE, End.NONE, End.PENDING, End.TERMINATED, End.TRUNCATED])
ADD = st.tuples(st.just("add"), st.integers(0, 2), st.integers(1, 30), ENDS)
EVENTS = st.one_of(
    *[ADD] * 6,
    st.tuples(st.just("lose"), st.floats(0, 1)),
    st.tuples(st.just("drop"), st.floats(0, 1)),
    st.tuples(st.just("read"), st.integers(1, 40)),
    st.tuples(st.just("select"), st.floats(-3, 3)),
    st.just(("refresh",)),
)
REWARDS = st.sampled_from([WHOLE, FRACTIONS, [*WHOLE, *FRACTIONS, *ODD]])


def bits(values: Sequence[float] | np.ndarray) -> list[str]:
    """Exact texts of floats, also of NaN."""
    return [float(value).hex() for value in values]


def rows_of(table: EpisodeTable) -> Iterator[tuple[object, ...]]:
    """The columns of a table, place by place."""
    for k in range(len(table)):
        yield (
            *(int(table.ids[k]), int(table.streams[k]), int(table.first_rows[k])),
            *(int(table.rows[k]), int(table.steps[k]), int(table.ends[k])),
            repr(table.metadata(k)),
        )


def by_the_model(storage: Storage) -> Iterator[tuple[object, ...]]:
    """The same facts of each stored episode, one after the other."""
    for one in stored_episodes(storage):
        yield (
            *(one.id, one.stream, one.first_row, one.rows, one.steps, int(one.end)),
            repr(one.metadata),
        )


def newest_by_the_model(storage: Storage) -> list[bool]:
    """True if no later chunk is in the stream of the episode."""
    records = storage.index.records
    newest = {
        int(record["stream"]): (int(record["episode"]), int(record["head"]))
        for record in records
        if not record["end"] & End.LOST
    }
    return [newest[one.stream] == (one.id, one.first_row) for one in stored_episodes(storage)]


def check(table: EpisodeTable, *, has_all: bool) -> None:
    """Compare a table that was refreshed with the model."""
    storage = table.storage
    assert list(rows_of(table)) == list(by_the_model(storage))
    assert table.is_newest.tolist() == newest_by_the_model(storage)
    with np.errstate(all="ignore"):
        true = [one.total_reward for one in stored_episodes(storage)]
    unknown = 0
    for place, (found, expected) in enumerate(zip(table.returns, true, strict=True)):
        if bits([found]) != bits([expected]):
            assert math.isnan(found)
            unknown += 1
            assert table.find(int(table.ids[place]), int(table.first_rows[place])) == place
    assert unknown <= len(table) - table.returns_known
    assert not (has_all and unknown)
    assert not has_all or table.returns_known == len(table)


def play(history: History, table: EpisodeTable, events: Sequence[tuple[Any, ...]]) -> None:
    """Let the events happen, and compare the table after each refresh and at the end."""
    for name, *more in events:
        if name in ("add", "lose", "drop"):
            getattr(history, name)(*more)
        elif name == "read":
            table.read_returns(*more)
        elif name == "select":
            check_selection(table, EpisodeSelection(min_return=more[0]))
            check_selection(table, EpisodeSelection(where={"level": VALUES[int(more[0])]}))
            check_selection(table, EpisodeSelection(bottom=3, sort="level", include_cut=True))
        else:
            table.refresh()
            check(table, has_all=False)
    table.refresh()
    check(table, has_all=False)
    table.read_all_returns()
    check(table, has_all=True)
    assert not table.refresh()


def check_selection(table: EpisodeTable, selection: EpisodeSelection) -> None:
    """Compare a selection with what `EpisodeSelection` chooses itself."""
    table.refresh()
    with np.errstate(all="ignore"):
        choice = selection.choose(stored_episodes(table.storage))
    found = table.select(selection)
    assert found.places.tolist() == [k for k, chosen in enumerate(choice.is_chosen) if chosen]
    assert found.sentence == choice.sentence


@pytest.mark.proof
@given(
    st.lists(EVENTS, max_size=40),
    REWARDS,
    st.sampled_from(CODECS),
    st.sampled_from([None, 80]),
    st.integers(0, 9),
)
@settings(max_examples=150)
def test_a_table_follows_its_storage(
    events: list[tuple[Any, ...]],
    rewards: list[float],
    codec: str,
    capacity: int | None,
    seed: int,
) -> None:
    storage = MemoryStorage(spec_of(codec), capacity=capacity)
    history = History(storage, rewards, np.random.default_rng(seed))
    play(history, EpisodeTable(storage), events)


def some_history(
    seed: int, steps: int = 200, rewards: Sequence[float] = (*WHOLE, *FRACTIONS), **more: Any
) -> History:
    """A history of many events, without hypothesis."""
    storage = MemoryStorage(spec_of(), **more)
    history = History(storage, rewards, np.random.default_rng(seed))
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        end = End(int(rng.choice([0, 0, 1, 2, 4])))
        history.add(int(rng.integers(3)), int(rng.integers(1, 20)), end)
    return history


# Selections


def level(value: object) -> Any:
    """A function of the metadata, as `where` takes it."""
    return lambda metadata: metadata.get("level") == value


EXACT = [2, 2.0, 0.3, -1, 10**300, -(10**300), 2**53 + 1, Fraction(1, 3), math.inf, True]
SELECTIONS = st.fixed_dictionaries(
    {},
    optional={
        "where": st.one_of(
            st.sampled_from(VALUES).map(lambda value: {"level": value}),
            st.sampled_from(VALUES).map(level),
            st.just({}),
        ),
        "ids": st.lists(
            st.one_of(
                st.builds(range, st.integers(-3, 40), st.integers(-3, 60)),
                st.builds(range, st.integers(0, 9), st.integers(0, 60), st.integers(2, 4)),
                st.just(range(-(10**30), 10**30)),
            ),
            max_size=4,
        ).map(tuple),
        "has_ended": st.booleans(),
        "include_cut": st.booleans(),
        "others": st.booleans(),
        "sort": st.sampled_from(["return", "steps", "id", "level", "number", "none"]),
        "number": st.one_of(st.integers(1, 30), st.sampled_from(["10%", "33.3%", "100%"])),
        "ranks": st.sampled_from(["top", "bottom"]),
        "return": st.lists(st.sampled_from(EXACT), min_size=1, max_size=2),
        "steps": st.lists(st.sampled_from([0, 3, 7.5, 30, Fraction(7, 2)]), min_size=1, max_size=2),
    },
)


def selection_of(wish: dict[str, Any]) -> EpisodeSelection:
    """The selection of a drawn wish, without what does not fit together."""
    wish = dict(wish)
    ranks, number = wish.pop("ranks", "top"), wish.pop("number", None)
    if number is None:
        wish.pop("sort", None)
        wish.pop("include_cut", None)
    else:
        wish[ranks] = number
    for name in ("return", "steps"):
        ends = sorted(wish.pop(name, []))
        for end, value in zip(("min", "max"), ends, strict=False):
            wish[f"{end}_{name}"] = value
    return EpisodeSelection(**wish)


HISTORIES = [
    some_history(0, 60).storage,
    some_history(1, 90, capacity=400).storage,
    MemoryStorage(spec_of()),
]
TABLES = [EpisodeTable(storage) for storage in HISTORIES]  # keep what they have read


@pytest.mark.proof
@given(SELECTIONS, st.integers(0, len(TABLES) - 1))
@settings(max_examples=200)
def test_a_selection_is_that_of_the_model(wish: dict[str, Any], number: int) -> None:
    check_selection(TABLES[number], selection_of(wish))
    check_selection(EpisodeTable(HISTORIES[number]), selection_of(wish))


def test_a_selection_reads_only_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    table = EpisodeTable(HISTORIES[0])
    read: list[str] = []
    monkeypatch.setattr(episode_table, "read_chunks", lambda *_: read.append("rows"))
    monkeypatch.setattr(table._copier, "metadata", lambda _: read.append("metadata"))
    assert len(table.select(EpisodeSelection(min_steps=3, has_ended=True)).places)
    assert read == []


def test_a_function_sees_only_episodes_that_meet_the_other_conditions() -> None:
    seen: list[object] = []

    def where(metadata: Any) -> bool:
        seen.append(metadata.get("number"))
        return True

    table = EpisodeTable(HISTORIES[0])
    table.select(EpisodeSelection(where=where, ids=(range(1, 4),)))
    assert seen == [one.metadata.get("number") for one in stored_episodes(HISTORIES[0])][1:4]


# Orders


def value_of(table: EpisodeTable, place: int, sort: str) -> Any:
    names = {"return": "returns", "stream": "streams", "first_row": "first_rows", "id": "ids"}
    if sort == "end":
        return end_word(int(table.ends[place]))
    if sort in ("steps", "rows", *names):
        return getattr(table, names.get(sort, sort))[place].item()
    return table.metadata(place).get(sort)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize(
    "sort",
    ["id", "stream", "first_row", "rows", "steps", "return", "end", "level", "number", "none"],
)
def test_an_order_is_that_of_the_model(sort: str, descending: bool) -> None:
    storage = some_history(3, 60, [*WHOLE, *WHOLE, *WHOLE, *ODD], capacity=500).storage
    table = EpisodeTable(storage)
    for places in (np.arange(len(table)), np.arange(len(table))[::-2], np.zeros(0, np.int64)):
        found = table.order(places, sort, descending=descending)
        expected = in_order(
            places.tolist(), lambda place: value_of(table, place, sort), descending=descending
        )
        assert found.tolist() == expected
    if sort == "return":
        assert 0 < np.isnan(table.returns).sum() < len(table) - 5


# Storages that change, or are damaged


def test_known_returns_are_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    history = some_history(0, 60)
    table = EpisodeTable(history.storage)
    table.read_all_returns()
    chunks: list[int] = []
    original = field_locator.read_chunks

    def counting(storage: Any, decoder: Any, those: np.ndarray, name: str) -> np.ndarray:
        chunks.extend(those.tolist())
        return original(storage, decoder, those, name)

    monkeypatch.setattr(episode_table, "read_chunks", counting)
    history.add(0, 3, End.TERMINATED)
    assert table.refresh()
    table.read_all_returns()
    added = len(history.storage.index) - 1
    assert added in chunks
    assert all(
        history.storage.index.record(k).episode == history.storage.index.record(added).episode
        for k in chunks
    )


def damaged_store(path: Path) -> None:
    """A store of three episodes in three chunks each, of which one has a wrong byte."""
    with DiskStorage.create(path, spec_of()) as writer:
        history = History(writer, WHOLE, np.random.default_rng(0))
        for _ in range(3):
            for end in (End.NONE, End.NONE, End.TERMINATED):
                history.add(0, 4, end)
        spoil(writer, 4)


def test_a_damaged_chunk_is_an_error_that_names_its_rows(tmp_path: Path) -> None:
    damaged_store(tmp_path / "a")
    with DiskStorage.open(tmp_path / "a", read_only=True) as storage:
        table = EpisodeTable(storage)
        for read in (
            table.read_all_returns,
            lambda: table.select(EpisodeSelection(min_return=3)),
            lambda: table.order(np.arange(3), "return"),
            lambda: action_counts([(table, np.arange(3))]),
        ):
            with pytest.raises(StoreCorrupt, match=r"\bepisode 1\b"):
                read()


def test_a_damaged_chunk_is_left_out_where_the_storage_skips_it(tmp_path: Path) -> None:
    damaged_store(tmp_path / "a")
    with DiskStorage.open(tmp_path / "a", read_only=True, on_corrupt="skip") as storage:
        table = EpisodeTable(storage)
        assert len(table) == 3
        table.read_all_returns()
        assert table.ids.tolist() == [0, 1, 1, 2]
        assert (table.first_rows.tolist(), table.rows.tolist()) == ([0, 0, 8, 0], [12, 4, 4, 12])
        check(table, has_all=True)
        assert (table.find(1), table.find(1, 9)) == (1, 2)
        with pytest.raises(KeyError, match=r"episode 1: .*\b0 to 3, 8 to 11\b.*\b5\b"):
            table.find(1, 5)
    with DiskStorage.open(tmp_path / "a", read_only=True, on_corrupt="skip") as storage:
        table = EpisodeTable(storage)
        assert len(table.select(EpisodeSelection(min_return=-1e9)).places) == 4
    with DiskStorage.open(tmp_path / "a", read_only=True, on_corrupt="skip") as storage:
        table = EpisodeTable(storage)
        assert len(table.order(np.arange(3), "return")) == 3
        assert math.isnan(table.returns[1])
        assert storage.lost_chunks == 1
    with DiskStorage.open(tmp_path / "a", read_only=True, on_corrupt="skip") as storage:
        (found,) = action_counts([(EpisodeTable(storage), np.arange(3))])
        assert (found.rows_read, found.rows) == (22, 33)


def test_an_episode_that_is_not_stored_is_refused() -> None:
    history = some_history(0, 60, capacity=200)
    table = EpisodeTable(history.storage)
    for number in (99999, -1, 10**30):
        with pytest.raises(KeyError, match=rf"episode {number}\b.*\b\d+ episodes"):
            table.find(number)
    gone = table.find(int(table.ids[0]))
    for _ in range(60):
        history.add(0, 20, End.TERMINATED)
    for read in (table.episode, table.metadata):
        with pytest.raises(NotEnoughData, match=rf"episode {table.ids[gone]}\b.*refresh"):
            read(gone)
    (found,) = action_counts([(table, np.arange(len(table)))])
    assert 0 <= found.rows_read < found.rows
    assert not table.read_returns() or table.returns_known < len(table)
    assert table.refresh()
    check(table, has_all=False)


def test_threads_read_while_others_select_and_refresh() -> None:
    history = some_history(0, 100)
    table = EpisodeTable(history.storage)
    stop = threading.Event()
    errors: list[BaseException] = []

    def reading() -> None:
        try:
            while not stop.is_set():
                table.read_returns(50)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=reading) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(60):
        history.add(0, 5, End.TERMINATED)
        with table.lock:
            table.refresh()
            found = table.select(EpisodeSelection(top=5)).places
            assert len(table.order(found, "return")) == 5
    stop.set()
    for thread in threads:
        thread.join()
    assert errors == []
    table.read_all_returns()
    check(table, has_all=True)


# Metadata


def test_keys_of_hostile_metadata_are_bounded() -> None:
    storage = MemoryStorage(spec_of())
    rows: dict[str, np.ndarray] = {
        "observation": np.zeros((2, 3), np.float32),
        "action": np.zeros(2, np.int64),
        "reward": np.zeros(2),
    }
    for number in range(40):
        more = {f"key {number} {k}": k for k in range(50)}
        more |= {"x" * 1000: 1, "list": [1]}  # type: ignore[dict-item]
        storage.add([Chunk(number, 0, 0, End.TERMINATED, rows, more)])
    table = EpisodeTable(storage)
    keys = table.metadata_keys(10_000)
    assert len(keys) == 256
    assert "list" not in keys
    assert max(map(len, keys)) < 64


@pytest.mark.parametrize(
    "value",
    [
        "x" * 10**6,
        {str(k): {str(j): ["y" * 999] * 99 for j in range(99)} for k in range(999)},
        10**4000,
        {"x" * 9999: math.inf},
    ],
)
def test_shown_facts_are_small_and_plain(value: object) -> None:
    text = json.dumps(shown(value, depth=2), allow_nan=False)
    assert len(text) < 300_000
    assert len(json.dumps(shown(value, depth=0))) < 10_000


# Counts


FLOATS = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.integers(-50, 50).map(float),
    st.just(2.0**60),
)


@pytest.mark.proof
@given(st.lists(st.lists(FLOATS, max_size=30), max_size=3), st.integers(1, 20))
@settings(max_examples=150)
def test_a_histogram_counts_each_finite_value_once(values: list[list[float]], bins: int) -> None:
    found = histogram([np.array(each, np.float64) for each in values], bins)
    edges = found.edges.tolist()
    assert len(edges) == len(found.labels) + 1 <= bins + 1
    assert all(a < b for a, b in pairwise(edges))
    assert found.counts.shape == (len(values), len(edges) - 1)
    for store, numbers in enumerate(values):
        finite = [x for x in numbers if math.isfinite(x)]
        assert found.left_out[store] == len(numbers) - len(finite)
        for k, (a, b) in enumerate(pairwise(edges)):
            is_last = k == len(edges) - 2
            count = sum(a <= x < b or (is_last and x == b) for x in finite)
            assert found.counts[store, k] == count
        assert found.counts[store].sum() == len(finite)
    if finite_all := [x for each in values for x in each if math.isfinite(x)]:
        is_whole = all(x == round(x) and abs(x) <= 2**53 for x in finite_all)
        assert not is_whole or all(edge % 1 == 0.5 for edge in edges)


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([], ("0 - 1",)),
        ([3], ("3",)),
        ([0.5, 0.5], ("0.5",)),
        ([1, 2], ("1", "2")),
        ([1, 2, 3, 4, 5], ("1 - 3", "4 - 5")),
        ([1e300, -1e300], ("-1e+300 - 0", "0 - 1e+300")),
        ([-1.7e308, 1.7e308], ("-1.7e+308 - 0", "0 - 1.7e+308")),
    ],
)
def test_histograms_of_odd_data(values: list[float], labels: tuple[str, ...]) -> None:
    found = histogram([np.array(values, np.float64)], 2)
    assert found.labels == labels
    assert found.counts.sum() == len(values)


def counts_by_the_model(table: EpisodeTable, places: Sequence[int]) -> Counter[int]:
    """The actions of the episodes, one after the other."""
    counts: Counter[int] = Counter()
    for place in places:
        episode = table.episode(place)
        actions = episode.read(episode.first_row, episode.first_row + episode.rows)["action"]
        has_none = episode.end & (End.TERMINATED | End.TRUNCATED | End.PENDING)
        counts.update((actions[:-1] if has_none else actions).tolist())
    return counts


@pytest.mark.parametrize("seed", range(4))
def test_actions_are_counted_as_by_the_model(seed: int) -> None:
    tables = [EpisodeTable(some_history(seed + k, 80, capacity=700).storage) for k in range(2)]
    chosen = [(tables[0], np.arange(len(tables[0]))), (tables[1], np.arange(0, 9, 2))]
    (found,) = action_counts(chosen, names=["NOOP", "LEFT", "RIGHT", "FIRE", "never"])
    assert found.labels == ("NOOP", "LEFT", "RIGHT", "FIRE", "never")
    true = [counts_by_the_model(table, places.tolist()) for table, places in chosen]
    assert [dict(enumerate(each)) for each in found.counts.tolist()] == [
        {k: each[k] for k in range(5)} for each in true
    ]
    assert found.rows == found.rows_read == sum(map(Counter.total, true))


def test_counted_rows_are_bounded_and_spread() -> None:
    table = EpisodeTable(some_history(0, 400).storage)
    places = np.arange(len(table))
    for limit in (1, 7, 100, 1000):
        (found,) = action_counts([(table, places)], limit)
        assert 0 < found.rows_read <= limit
        assert found.rows_read == found.counts.sum() < found.rows
    taken = episode_table._spread(np.full(1000, 10), 1000)
    assert len(taken) == 100
    assert max(np.diff(taken)) < 40
    assert taken[0] < 20
    assert taken[-1] > 980


def table_of(actions: dict[str, np.ndarray], episodes: int = 1) -> EpisodeTable:
    """A table of equal episodes with these fields of actions."""
    count = len(next(iter(actions.values())))
    rows: dict[str, np.ndarray] = {**actions, "reward": np.zeros(count)}
    fields = [Field(name, str(one.dtype), one.shape[1:], "raw") for name, one in rows.items()]
    layout: Any = {name.removeprefix("action/"): name for name in actions}
    storage = MemoryStorage(Spec(tuple(fields), {}, layout if len(layout) > 1 else "action"))
    for number in range(episodes):
        storage.add([Chunk(number, 0, 0, End.TERMINATED, rows)])
    return EpisodeTable(storage)


def test_components_of_vectors_are_counted_and_floats_in_ranges() -> None:
    table = table_of(
        {
            "action/buttons": np.array([[0, 5], [1, 5], [1, 7], [0, 0]], np.int8),
            "action/stick": np.array([-1, 0.5, math.nan, 0], np.float32),
        }
    )
    first, second, stick = action_counts([(table, np.array([0]))], names=["A"])
    assert [(each.name, each.labels, each.counts.tolist()) for each in (first, second)] == [
        ("action/buttons[0]", ("0", "1"), [[1, 2]]),
        ("action/buttons[1]", ("5", "7"), [[2, 1]]),
    ]
    assert (stick.name, stick.counts.sum(), stick.rows_read) == ("action/stick", 2, 3)


def test_bits_of_a_vector_have_names() -> None:
    table = table_of({"action": np.array([[0, 1], [1, 1], [0, 0]], np.int8)})
    found = action_counts([(table, np.array([0]))], names=["A", "B"])
    assert [(each.name, each.labels) for each in found] == [
        ("action[0]: A", ("0", "1")),
        ("action[1]: B", ("1",)),
    ]


def test_wide_actions_are_read_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_of({"action": np.zeros((101, 1000))}, episodes=5)
    monkeypatch.setattr(histograms, "_READ_BYTES", 8000 * 220)
    found = action_counts([(table, np.arange(5))])
    assert len(found) == 16
    assert found[-1].name == "action[15]"
    assert {(each.rows_read, each.rows) for each in found} == {(200, 500)}
