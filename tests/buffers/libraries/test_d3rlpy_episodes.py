"""to_d3rlpy and from_d3rlpy, in memory: with d3rlpy's own classes where it is installed."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from stepwell.buffers import Chunk, End, SequenceReplayBuffer, SpecMismatch
from stepwell.buffers.libraries.d3rlpy_episodes import from_d3rlpy, to_d3rlpy
from support.envs.recorded_envs import recorded, traces
from support.exchanged_stores import VECTOR, episodes_of, tagged_store

HAS_D3RLPY = importlib.util.find_spec("d3rlpy") is not None


@dataclass
class FakeEpisode:
    """Has the attributes of ``d3rlpy.dataset.Episode``."""

    observations: Any
    actions: np.ndarray
    rewards: np.ndarray
    terminated: bool


@pytest.fixture(autouse=True)
def d3rlpy_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace d3rlpy where it is missing, as it pins an older gymnasium."""
    if not HAS_D3RLPY:
        package, dataset = ModuleType("d3rlpy"), ModuleType("d3rlpy.dataset")
        vars(dataset)["Episode"] = FakeEpisode
        monkeypatch.setitem(sys.modules, "d3rlpy", package)
        monkeypatch.setitem(sys.modules, "d3rlpy.dataset", dataset)


def test_a_round_trip_loses_only_final_observations() -> None:
    replay, listed = recorded(traces())
    rows = {name: column[:1] for name, column in episodes_of(replay)[0].fields.items()}
    replay.add([Chunk(999, 0, 0, End.NONE, rows)])  # without a step: it is left out
    back = SequenceReplayBuffer()
    notes = from_d3rlpy(to_d3rlpy(replay), back)
    assert len(notes) == 3
    seen = [one for one in listed if one.steps]
    for episode, one in zip(episodes_of(back), seen, strict=True):
        shown = np.array(one.observations)
        if one.terminated[-1]:
            shown[-1] = 0
        assert np.array_equal(episode.observation, shown)
        assert episode.action.tolist() == [*[int(a) for a in one.actions], 0]
        assert episode.reward.tolist() == [0, *one.rewards]
        assert episode.end == (End.TERMINATED if one.terminated[-1] else End.TRUNCATED)


def test_a_data_set_is_accepted_and_added_to_a_used_replay() -> None:
    replay, _ = recorded(traces())

    class DataSet:
        episodes: Sequence[Any] = to_d3rlpy(replay)

    back = SequenceReplayBuffer()
    from_d3rlpy(DataSet(), back)
    before = back.steps
    from_d3rlpy(DataSet(), back)
    assert (back.steps, before) == (2 * before, replay.steps)


def test_mismatched_rows_are_refused_and_nothing_is_stored() -> None:
    replay, _ = recorded(traces())
    some = to_d3rlpy(replay)
    some[-1] = FakeEpisode(np.zeros((2, 9)), np.zeros((2, 1)), np.zeros((2, 1)), True)
    back = SequenceReplayBuffer()
    with pytest.raises(ValueError, match=r"episode 21\b.*float64 \(5,\).*float64 \(9,\)"):
        from_d3rlpy(some, back)
    assert not back.is_bound
    other = tagged_store(VECTOR)
    with pytest.raises(SpecMismatch, match=r"'observation'.*float32 \(3,\).*float64 \(5,\)"):
        from_d3rlpy(to_d3rlpy(replay), other)
    with pytest.raises(ValueError, match=r"from_d3rlpy.*got none"):
        from_d3rlpy([], SequenceReplayBuffer())


def test_d3rlpy_samples_from_the_episodes() -> None:
    if not HAS_D3RLPY:
        pytest.skip("needs d3rlpy")
    d3rlpy = importlib.import_module("d3rlpy")
    replay, listed = recorded(traces())
    dataset = d3rlpy.dataset.create_infinite_replay_buffer(to_d3rlpy(replay))
    assert dataset.transition_count == replay.steps == sum(one.steps for one in listed)
    assert dataset.sample_transition_batch(8).observations.shape == (8, 5)
