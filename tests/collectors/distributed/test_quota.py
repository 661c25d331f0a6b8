"""Shares of a call: nothing is lost, nothing is done twice."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from stepwell.collectors.distributed.group_life import is_empty, shares_of, what_is_left
from stepwell.collectors.distributed.messages import Call, CallKind


@given(st.sampled_from(["steps", "episodes"]), st.integers(1, 10_000), st.integers(1, 50))
def test_amounts_are_split_evenly(kind: CallKind, amount: int, groups: int) -> None:
    shares = shares_of(Call(3, kind, amount, (), 7), groups)
    amounts = [share.amount for share in shares]
    assert sum(amounts) == amount
    assert max(amounts) - min(amounts) <= 1
    assert amounts == sorted(amounts, reverse=True)
    assert {(share.number, share.kind, share.version) for share in shares} == {(3, kind, 7)}
    assert [is_empty(share) for share in shares] == [not part for part in amounts]


@given(st.lists(st.integers(0, 99), min_size=1, max_size=60), st.integers(1, 9))
def test_seeds_are_dealt_out_in_turns(seeds: list[int], groups: int) -> None:
    shares = shares_of(Call(0, "seeds", seeds=tuple(seeds)), groups)
    dealt = [shares[k % groups].seeds[k // groups] for k in range(len(seeds))]
    assert dealt == seeds
    assert sum(len(share.seeds) for share in shares) == len(seeds)


def test_each_group_has_all_rows_of_a_rollout_and_a_run_has_no_end() -> None:
    assert [share.amount for share in shares_of(Call(0, "rollout", 16), 3)] == [16, 16, 16]
    assert not any(map(is_empty, shares_of(Call(0, "run"), 2)))


@given(st.lists(st.integers(0, 5), min_size=1), st.data())
def test_seeds_that_are_left_are_those_not_played(seeds: list[int], data: st.DataObject) -> None:
    is_played = data.draw(st.lists(st.booleans(), min_size=len(seeds), max_size=len(seeds)))
    played = [seed for seed, done in zip(seeds, is_played, strict=True) if done]
    call = Call(0, "seeds", seeds=tuple(seeds))
    left = what_is_left(call, 10, len(played), [*played, None])
    assert Counter(left.seeds) == Counter(seeds) - Counter(played)


def test_steps_and_episodes_that_are_left() -> None:
    assert what_is_left(Call(0, "steps", 100), 101, 0, []).amount == 0
    assert what_is_left(Call(0, "episodes", 5), 64, 2, [1, 2]).amount == 3
    assert what_is_left(Call(0, "rollout", 16), 8, 0, []).amount == 16
