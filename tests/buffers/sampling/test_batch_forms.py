"""Batches in reused memory, of selected fields, with the time axis first; and seeds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pytest

from stepwell.buffers import End
from stepwell.buffers.sampling.requests import Episodes, Request, Sequences, Transitions
from support.models.replay_histories import Kind, a_replay, busy_history
from support.rows.replay_rows import Played, Step

ROW_WISE = ("ids", "weights", "lengths")  # [B] for both orders of the axes

REQUESTS: list[Request] = [
    Sequences(12, 5),
    Sequences(12, 5, stack=True),
    Sequences(12, 5, "cross", align="transition", burn_in=2, stack=True),
    Sequences(12, 5, "pad_after", burn_in=3, state=("memory",)),
    Sequences(12, 5, "pad_before", align="transition"),
    Sequences(1, 1),
    Transitions(12),
    Transitions(12, n_step=3, stack=False),
    Sequences(12, 5, "pad_after", align="transition", time_major=True),
]


@pytest.fixture
def played() -> Iterator[Played]:
    with a_replay(Kind(False, 120, 3, "repeat")) as played:
        for step in busy_history(40):
            played.add(step)
        yield played


def arrays(value: Any, name: str = "") -> Iterator[tuple[str, np.ndarray]]:
    """All arrays of a batch, each with its path in it."""
    if is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            if field.name != "memory":
                yield from arrays(getattr(value, field.name), field.name)
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from arrays(part, f"{name}/{key}")
    elif isinstance(value, np.ndarray):
        yield name, value


def copies(batch: Any) -> dict[str, np.ndarray]:
    return {name: array.copy() for name, array in arrays(batch)}


def drawn(played: Played, request: Request, seed: int, **options: Any) -> Any:
    return played.replay.sample(request, rng=np.random.default_rng(seed), **options)


def assert_same(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> None:
    assert list(one) == list(other)
    for name, array in one.items():
        assert array.dtype == other[name].dtype, name
        assert array.shape == other[name].shape, name
        assert (array == other[name]).all(), name


@pytest.mark.parametrize("request_", REQUESTS, ids=str)
def test_a_refilled_batch_equals_a_new_one(played: Played, request_: Request) -> None:
    batch = drawn(played, request_, 0)
    for seed in range(1, 8):
        expected = copies(drawn(played, request_, seed))
        held = dict(arrays(batch))
        for array in batch.memory.values():  # of which padding must become zeros
            array[...] = np.full((), 1, array.dtype)
        batch = drawn(played, request_, seed, out=batch)
        assert_same(copies(batch), expected)
        for name, array in arrays(batch):
            if name.startswith("observation") or isinstance(request_, Sequences):
                is_new = name in ("ids", "weights", "lengths", "mask") or name.startswith("state")
                is_new |= array.dtype == np.bool_ and getattr(request_, "time_major", False)
                assert is_new or np.shares_memory(array, held[name]), name


@pytest.mark.parametrize(
    ("other", "got"),
    [
        (Sequences(13, 5), r"\(13, 5\)"),
        (Sequences(12, 6), r"\(12, 6\)"),
        (Sequences(12, 5, burn_in=1), r"\(12, 6\)"),
        (Sequences(12, 5, align="transition"), r"\(12, 6\)"),
        (Sequences(12, 5, fields=["reward"]), r"got [^;]*reward float32 \(12, 5\)"),
    ],
    ids=str,
)
def test_memory_of_another_form_is_refused_and_unchanged(
    played: Played, other: Request, got: str
) -> None:
    batch = drawn(played, other, 0)
    before = copies(batch)
    state = played.replay.state_dict()
    with pytest.raises(ValueError, match=rf"^out: .*reward float32 \(12, 5\).*{got}"):
        played.replay.sample(Sequences(12, 5), out=batch)
    assert_same(copies(batch), before)
    assert played.replay.state_dict() == state


def test_memory_of_another_kind_of_batch_is_refused(played: Played) -> None:
    sequences, steps = Sequences(12, 5), Transitions(12)
    of_sequences, of_steps = r"\(12, 5, 4, 32\)", r"\(12, 4, 4, 32\)"
    with pytest.raises((ValueError, TypeError), match=f"^out: .*{of_sequences}.*{of_steps}"):
        played.replay.sample(sequences, out=drawn(played, steps, 0))
    with pytest.raises((ValueError, TypeError), match=f"^out: .*{of_steps}.*{of_sequences}"):
        played.replay.sample(steps, out=drawn(played, sequences, 0))


@pytest.mark.parametrize("request_", [*REQUESTS, Episodes(4), Episodes(4, stack=True)], ids=str)
@pytest.mark.parametrize("names", [["observation/place", "action"], ["info", "extra/code"]])
def test_selected_fields_equal_those_of_a_full_batch(
    played: Played, request_: Request, names: list[str]
) -> None:
    whole = drawn(played, request_, 5)
    assert len(whole) == request_.batch_size
    full = dict(arrays(whole))
    some = drawn(played, request_._replace(fields=names), 5)
    found = dict(arrays(some))
    for name, array in found.items():
        assert (array == full[name]).all(), name
    wanted = {name.replace("extra/", "extras/") for name in names}
    left_out = {
        name
        for name in full
        if name.partition("/")[0] in ("observation", "action", "reward", "info", "extras")
        and not {name, name.partition("/")[0]} & wanted
    }
    assert not left_out & set(found)
    assert set(full) - set(found) - left_out <= {"next_observation/frame", "next_observation/place"}
    assert (some.reward is None) == ("reward" not in names)
    assert (some.action is None) == ("action" not in names)
    assert (some.observation is None) == (not any(n.startswith("observation") for n in names))


@pytest.mark.parametrize("names", [["rewards"], ["observation/nothing"], ["extra/"], [""]])
@pytest.mark.parametrize("request_", [Sequences(2, 2), Transitions(2), Episodes(2)], ids=str)
def test_unknown_fields_are_refused(played: Played, request_: Request, names: list[str]) -> None:
    with pytest.raises(ValueError, match=rf"^fields .*{names[0]!r}.*\breward\b"):
        played.replay.sample(request_._replace(fields=names))


@pytest.mark.parametrize(
    "request_", [*REQUESTS[:6], Episodes(4), Episodes(4, "transition")], ids=str
)
def test_time_major_arrays_are_transposed(played: Played, request_: Any) -> None:
    plain = dict(arrays(drawn(played, request_, 6)))
    turned = dict(arrays(drawn(played, request_._replace(time_major=True), 6)))
    assert list(plain) == list(turned)
    for name, array in plain.items():
        expected = array
        if name not in ROW_WISE and not name.startswith("state"):
            expected = np.moveaxis(array, 0, 1)
        assert turned[name].shape == expected.shape, name
        assert (turned[name] == expected).all(), name
        if isinstance(request_, Sequences) and not request_.stack:
            assert turned[name].flags.c_contiguous, name


@pytest.mark.parametrize("request_", REQUESTS, ids=str)
def test_a_batch_belongs_to_the_caller(played: Played, request_: Request) -> None:
    """I7, trap 21: writing into it, or adding rows, changes nothing elsewhere."""
    expected = copies(drawn(played, request_, 9))
    first = drawn(played, request_, 9)
    for array in first.memory.values():
        array[...] = np.full((), 1, array.dtype)
    assert_same(copies(drawn(played, request_, 9)), expected)
    held = drawn(played, request_, 9)
    played.add(*(Step(7, 40, End.TERMINATED) for _ in range(12)))
    assert_same(copies(held), expected)


def test_calls_with_keywords_equal_their_requests(played: Played) -> None:
    def rng() -> np.random.Generator:
        return np.random.default_rng(4)

    replay = played.replay
    sequences = replay.sample_sequences(
        6, 4, borders="pad_after", draw="recent", align="transition", burn_in=1, rng=rng()
    )
    request = Sequences(6, 4, "pad_after", "recent", "transition", 1)
    assert_same(copies(sequences), copies(replay.sample(request, rng=rng())))
    transitions = replay.sample_transitions(6, n_step=2, gamma=0.5, draw="ends", rng=rng())
    same = replay.sample(Transitions(6, 2, 0.5, "ends"), rng=rng())
    assert_same(copies(transitions), copies(same))
    episodes = replay.sample_episodes(3, align="transition", rng=rng())
    assert_same(copies(episodes), copies(replay.sample(Episodes(3, "transition"), rng=rng())))


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Sequences(0, 3), r"^batch_size: .*>= 1.*\b0$"),
        (Sequences(3, 0), r"^length: .*>= 1.*\b0$"),
        (Sequences(3, 2.5), r"^length: .*>= 1.*\b2\.5$"),  # type: ignore[arg-type]
        (Sequences(3, 3, burn_in=-1), "^burn_in: .*>= 0.* -1$"),
        (Sequences(3, 3, borders="around"), "^borders: .*pad_after.*'around'$"),  # type: ignore[arg-type]
        (Sequences(3, 3, draw="best"), "^draw: .*newest.*'best'$"),  # type: ignore[arg-type]
        (Sequences(3, 3, align="left"), "^align: .*transition.*'left'$"),  # type: ignore[arg-type]
        (Sequences(3, 3, state=("nothing",)), "^state .*'nothing'.*memory"),
        (Sequences(3, 3, draw="newest", where={"number": 1}), "^where: .*draw='newest'"),
        (Sequences(3, 3, draw="priorities", where={"number": 1}), "^where: .*draw='priorities'"),
        (Sequences(3, 3, "cross", where={"number": 1}), '^where: .*borders="cross"'),
        (Sequences(3, 3, "cross", "ends"), r"draw=['\"]ends['\"]: .*cross"),
        (Sequences(3, 3, "cross", "episodes"), r"draw=['\"]episodes['\"]: .*cross"),
        (Sequences(3, 3, "pad_after", "newest"), r"draw=['\"]newest['\"].*pad_after"),
        (Sequences(3, 3, "pad_before", "newest"), r"draw=['\"]newest['\"].*pad_before"),
        (Transitions(3, n_step=0), r"^n_step: .*>= 1.*\b0$"),
        (Transitions(3, gamma=1.5), r"^gamma: .*\b0 to 1\b.*\b1\.5$"),
        (Transitions(3, gamma=float("nan")), r"^gamma: .*\b0 to 1\b.*\bnan$"),
    ],
    ids=str,
)
def test_invalid_requests_are_refused(played: Played, request_: Request, message: str) -> None:
    played.replay.sample(Sequences(1, 1))
    state = played.replay.state_dict()
    with pytest.raises(ValueError, match=message):
        played.replay.sample(request_)
    assert played.replay.state_dict() == state


def test_the_repr_of_a_batch_is_one_line(played: Played) -> None:
    shown = repr(played.replay.sample(Sequences(12, 5)))
    assert shown.startswith("Batch(burn_in=0; observation/")
    assert "lengths, ids: int64 (12,)" in shown
    assert "\n" not in shown
    assert "mask: bool (12, 5)" in shown
    transitions = repr(played.replay.sample(Transitions(12)))
    assert "next_observation/" in transitions
    assert "discount" in transitions
