"""Places of groups: each group has exactly one, also after places were given up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.collectors.distributed.actor_pool import Placement


@given(st.integers(1, 40), st.integers(1, 12), st.data())
def test_each_group_has_one_place(groups: int, places: int, data: st.DataObject) -> None:
    placement = Placement(groups, min(groups, places))
    gone = data.draw(st.lists(st.sampled_from(placement.places), unique=True))
    for place in gone[: len(placement.places) - 1]:
        placement.give_up(place)
        assert place not in placement.places
        held = [placement.groups_of(other) for other in placement.places]
        assert sorted(group for each in held for group in each) == list(range(groups))
        assert all(list(each) == sorted(each) for each in held)
        for group in range(groups):
            assert group in placement.groups_of(placement.place_of(group))
        assert max(map(len, held)) - min(map(len, held)) <= max(1, len(gone))


def test_the_only_place_cannot_be_given_up() -> None:
    with pytest.raises(ValueError, match="place 0"):
        Placement(3, 1).give_up(0)
