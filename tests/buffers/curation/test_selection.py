"""A selection keeps the episodes that meet all of its conditions."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from stepwell.buffers import MemoryStorage
from stepwell.buffers.curation.selection import EpisodeSelection
from stepwell.buffers.curation.stored_episode import StoredEpisode, stored_episodes
from support.rows.labelled_rows import SPEC, Player


@pytest.fixture(scope="module")
def episodes() -> list[StoredEpisode]:
    storage = MemoryStorage(SPEC)
    Player(storage, 0).play(120)
    return list(stored_episodes(storage))


@pytest.mark.parametrize(
    ("conditions", "rule"),
    [
        ({"ids": (range(3, 4), range(10, 21))}, lambda e: e.id == 3 or 10 <= e.id <= 20),
        ({"min_return": -2, "max_return": 0}, lambda e: -2 <= e.total_reward <= 0),
        ({"min_steps": 7, "max_steps": 7}, lambda e: e.steps == 7),
        ({"has_ended": True}, lambda e: e.has_ended),
        ({"has_ended": False}, lambda e: not e.has_ended),
        ({"where": {"number": 5}}, lambda e: e.id == 5),
        ({"where": lambda m: m["number"] % 2}, lambda e: e.id % 2),
        (
            {"has_ended": True, "min_steps": 5, "ids": (range(40),), "where": {"store": 0}},
            lambda e: e.has_ended and e.steps >= 5 and e.id < 40,
        ),
    ],
)
def test_kept_episodes_meet_every_condition(
    conditions: dict[str, Any], rule: Any, episodes: list[StoredEpisode]
) -> None:
    selection = EpisodeSelection(**conditions)
    kept = [one.id for one in episodes if selection(one)]
    assert kept == [one.id for one in episodes if rule(one)]
    assert 0 < len(kept)
    assert len(kept) < len(episodes) or conditions == {"where": {"store": 0}}
    assert not selection.is_empty
    nothing = EpisodeSelection()
    assert nothing.is_empty
    assert all(map(nothing, episodes))


def test_to_json_gives_plain_data() -> None:
    def odd(metadata: object) -> bool:
        return bool(metadata)

    selection = EpisodeSelection(
        where={"task": "door"}, ids=(range(3, 4), range(7, 9)), max_steps=5
    )
    assert selection.to_json() == {
        "where": {"task": "door"},
        "ids": [[3, 3], [7, 8]],
        "max_steps": 5,
    }
    top: Any = np.int64(3)
    assert json.dumps(EpisodeSelection(top=top).to_json()) == '{"top": 3, "sort": "return"}'
    worst = {"bottom": "5%", "sort": "level", "include_cut": True}
    assert EpisodeSelection(**worst).to_json() == worst  # type: ignore[arg-type]
    assert str(EpisodeSelection(where=odd).to_json()["where"]).endswith("odd")
    assert EpisodeSelection(has_ended=False, min_return=0).to_json() == {
        "has_ended": False,
        "min_return": 0,
    }


@pytest.mark.parametrize(
    ("conditions", "error", "message"),
    [
        ({"min_return": float("nan")}, ValueError, r"^min_return: .*\bnan\b"),
        ({"max_return": float("nan")}, ValueError, r"^max_return: .*\bnan\b"),
        ({"min_return": 10**400}, ValueError, r"^min_return: .*1\.798e\+308\b"),
        ({"max_return": Fraction(-(10**400), 3)}, ValueError, r"^max_return: .*1\.798e\+308\b"),
        ({"min_steps": 10**5_000}, ValueError, r"^min_steps: .*1\.798e\+308\b"),
        ({"min_return": 2, "max_return": 1}, ValueError, r"^min_return: .*max_return=1\b.*\b2\b"),
        ({"min_steps": 9, "max_steps": 8}, ValueError, r"^min_steps: .*max_steps=8\b.*\b9\b"),
        ({"where": "task=door"}, TypeError, "^where: .*mapping.*'task=door'$"),
        ({"top": 0}, ValueError, r"^top: .*\b0\b"),
        ({"top": True}, ValueError, "^top: .*True"),
        ({"top": "0%"}, ValueError, "^top: .*'0%'"),
        ({"top": "101%"}, ValueError, "^top: .*'101%'"),
        ({"bottom": "ten"}, ValueError, "^bottom: .*'ten'"),
        ({"top": 1, "bottom": 1}, ValueError, "top=1 and bottom=1"),
        ({"top": 1, "sort": 3}, ValueError, "^sort: .*3"),
        ({"sort": "return"}, ValueError, "^sort='return': .*top"),
        ({"include_cut": True}, ValueError, "^include_cut: .*top"),
    ],
)
def test_invalid_conditions_are_refused(
    conditions: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        EpisodeSelection(**conditions)
