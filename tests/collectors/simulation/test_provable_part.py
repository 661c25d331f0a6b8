"""What can be proved of a full ring, and of a filtered store."""

from __future__ import annotations

from typing import Any

import pytest

import stepwell as sw
from stepwell.buffers import SequenceReplayBuffer, copy_episodes
from support.replayed import proofs, recorded

pytest.importorskip("cv2", reason="needs OpenCV")
pytest.importorskip("ale_py", reason="needs ale-py")

RESEED_STEPS, LONGEST = 100, 30


def pong(backend: Any) -> Any:
    return sw.make_atari("Pong", 2, backend=backend, max_frames=4 * LONGEST, size=(12, 12))


def ring(backend: Any) -> SequenceReplayBuffer:
    """A ring that has evicted rows twice as many as it has."""
    replay = SequenceReplayBuffer(capacity=400)
    envs, policy = pong(backend), sw.RandomPolicy()
    with sw.Collector(envs, policy, replay, seed=3, reseed_steps=RESEED_STEPS) as collector:
        for _ in range(6):  # so that chunks are small
            collector.collect(steps=200)
    return replay


def lost_rows(replay: SequenceReplayBuffer) -> dict[int, list[int]]:
    """The numbers of rows of the episodes that cannot be proved, by stream; others are equal."""
    found = proofs(replay)
    assert {one.reason for one in found.values()} <= {"equal", "unreachable"}
    assert sum(one.rows for one in found.values() if one.is_equal) > 0
    lost: dict[int, list[int]] = {0: [], 1: []}
    for episode in replay.iter_episodes():
        if not found[episode.id].is_equal:
            lost[episode.stream].append(episode.rows)
    return lost


@pytest.mark.proof
def test_of_a_ring_of_chains_a_part_of_the_oldest_chain_is_lost() -> None:
    lost = lost_rows(ring("native"))
    assert any(lost.values())
    assert max(map(sum, lost.values())) <= RESEED_STEPS + LONGEST + 1


@pytest.mark.proof
def test_of_a_ring_of_seeded_episodes_those_without_first_rows_are_lost() -> None:
    replay = ring("python")
    late = [one for one in replay.iter_episodes() if one.first_row]
    assert late
    lost = lost_rows(replay)
    assert sum(map(len, lost.values())) == len(late)
    assert max(map(len, lost.values())) <= 1


def without(replay: SequenceReplayBuffer, gone: int) -> SequenceReplayBuffer:
    copy = SequenceReplayBuffer()
    copy_episodes(replay, copy, keep=lambda one: one.id != gone)
    return copy


@pytest.mark.proof
def test_of_a_filtered_store_of_chains_the_rest_of_a_chain_is_lost() -> None:
    replay = recorded(pong("native"), 400, reseed_steps=RESEED_STEPS)
    gone = next(one for one in replay.iter_episodes() if one.id > 4 and "seed" in one.metadata)
    lost = lost_rows(without(replay, gone.id))
    assert 0 < sum(lost[gone.stream]) <= RESEED_STEPS + LONGEST + 1
    assert lost[1 - gone.stream] == []


@pytest.mark.proof
def test_of_a_filtered_store_of_seeded_episodes_nothing_is_lost() -> None:
    replay = recorded(pong("python"), 200, reseed_steps=RESEED_STEPS)
    assert lost_rows(without(replay, 5)) == {0: [], 1: []}
