"""Sequences at the borders of episodes and streams, one known trap in each test."""

from typing import Any

import numpy as np
import pytest

from stepwell.buffers import Batch, End, NotEnoughData
from stepwell.buffers.sampling.requests import Sequences
from support.models.replay_histories import Kind, a_replay, whole_episodes
from support.models.replay_model import Contents, assert_sequences, by_id, drawn, sequences
from support.rows.replay_rows import Played, Step

BOTH = End.TERMINATED | End.TRUNCATED
WAYS = [End.NONE, End.PENDING, End.TERMINATED, End.TRUNCATED, BOTH]


def checked(played: Played, request: Sequences, stack: int = 1) -> Batch:
    """Draw a batch and check it against the model."""
    items = by_id(sequences(played.episodes, request, stack), request)
    batch = played.replay.sample(request)
    assert isinstance(batch, Batch)
    contents = Contents(played.spec, played.episodes)
    assert_sequences(played.spec, contents, batch, drawn(batch, items), request)
    return batch


def labels(batch: Batch) -> np.ndarray:
    """Stream, episode and row of each place, [B, T, 3]."""
    return np.asarray(batch.observation["place"])


@pytest.mark.parametrize("padding", ["zero", "repeat"])
@pytest.mark.parametrize("borders", ["inside", "cross", "pad_after", "pad_before"])
def test_stacks_are_padded_as_the_source_padded_them(padding: Any, borders: Any) -> None:
    """Trap 8, N6."""
    with a_replay(Kind(False, None, 4, padding)) as played:
        whole_episodes(played, [6, 3, 5])
        batch = checked(played, Sequences(400, 3, borders, stack=True), 4)
        frames, place = np.asarray(batch.observation["frame"]), labels(batch)
        at_reset = batch.mask & (place[..., 2] == 0)
        assert at_reset.any()
        own = frames[at_reset][:, 3]
        filler = own if padding == "repeat" else np.zeros_like(own)
        for number in range(3):
            assert (frames[at_reset][:, number] == filler).all()


@pytest.mark.parametrize("end", WAYS)
@pytest.mark.parametrize("borders", ["inside", "cross", "pad_after", "pad_before"])
@pytest.mark.parametrize("align", ["arrival", "transition"])
def test_flags_distinguish_the_four_kinds_of_ends(end: End, borders: Any, align: Any) -> None:
    """Trap 12: the truth table of terminated and truncated, and of cuts, in all flags."""
    with a_replay(Kind()) as played:
        played.add(Step(0, 5, end, "cut"))
        whole_episodes(played, [6])
        batch = checked(played, Sequences(300, 3, borders, align=align))
        place = labels(batch)
        last = 4 if align == "arrival" else 3
        at_end = batch.mask & (place[..., 1] == 0) & (place[..., 2] == last)
        assert at_end.any()
        inner = batch.mask & (place[..., 1] == 0) & ~at_end
        for name, expected in (
            ("is_last", True),
            ("terminated", bool(end & End.TERMINATED)),
            ("truncated", bool(end & End.TRUNCATED)),
            ("cut", not end.is_final),
        ):
            assert (getattr(batch, name)[at_end] == expected).all(), name
            assert not getattr(batch, name)[inner].any(), name
            assert borders == "cross" or not getattr(batch, name)[~batch.mask].any(), name


@pytest.mark.parametrize("borders", ["inside", "cross", "pad_after", "pad_before"])
def test_the_last_action_is_followed_by_the_true_final_observation(borders: Any) -> None:
    """Trap 13: V(s) = s; the target at a truncation must not use the next reset's observation."""
    with a_replay(Kind()) as played:
        played.add(Step(0, 6, End.TRUNCATED))
        played.add(Step(0, 8, End.TRUNCATED))
        batch = checked(played, Sequences(300, 4, borders, align="transition"))
        final = batch.truncated & batch.mask
        assert final.any()
        then = batch.next_observation["place"]
        assert (then[final][:, 2] == np.where(then[final][:, 1] == 0, 5, 7)).all()
        assert (then[final][:, 1] == labels(batch)[final][:, 1]).all()


def test_the_border_of_a_chunk_is_no_border_of_an_episode() -> None:
    """Trap 14: 7 and 13 rows, in chunks, give what 20 rows in one chunk give."""
    found = []
    for parts in ([20], [7, 13], [1] * 20, [3, 0, 16, 1]):
        with a_replay(Kind()) as played:
            for rows in parts:
                played.add(Step(0, rows, End.PENDING))
            # A chunk without new rows repeats the pending row.
            assert len(played.episodes[0].rows) == 20
            played.add(Step(0, 0, End.NONE))
            batch = checked(played, Sequences(50, 6))
            found.append(labels(batch).tolist())
            inner = labels(batch)[..., 2] < 19
            assert not batch.is_last[inner].any()
            assert not batch.cut[inner].any()
    assert found[0] == found[1] == found[2] == found[3]


def test_the_pair_of_a_final_row_and_a_reset_is_no_transition() -> None:
    """Trap 3 in a batch: no transition goes from a final row to a reset."""
    with a_replay(Kind()) as played:
        whole_episodes(played, [3, 2, 4, 2, 2, 5])
        batch = checked(played, Sequences(400, 7, "cross", align="transition"))
        now, then = labels(batch), batch.next_observation["place"]
        crossing = now[..., 1] != then[..., 1]
        assert (batch.mask == ~crossing).all()
        assert (batch.lengths == batch.mask.sum(axis=1)).all()


@pytest.mark.parametrize("borders", ["pad_after", "pad_before"])
def test_padding_is_zero_and_masked(borders: Any) -> None:
    """I1, I4: an episode shorter than a sequence is padded with zeros and masked."""
    with a_replay(Kind()) as played:
        whole_episodes(played, [3])
        batch = checked(played, Sequences(100, 5, borders))
        assert set(batch.lengths.tolist()) == {1, 2, 3}
        padding = ~batch.mask
        for array in (batch.observation["frame"], batch.action, batch.reward, batch.info["scan"]):
            assert not np.asarray(array)[padding].any()
        for name in ("is_first", "is_last", "terminated", "truncated", "cut"):
            assert not getattr(batch, name)[padding].any()
        ordered = batch.mask if borders == "pad_after" else batch.mask[:, ::-1]
        assert (np.sort(~ordered, axis=1) == ~ordered).all()


@pytest.mark.parametrize("borders", ["inside", "pad_after", "pad_before"])
@pytest.mark.parametrize("burn_in", [1, 4])
def test_burn_in_comes_before_the_rows_to_learn_from(borders: Any, burn_in: int) -> None:
    with a_replay(Kind()) as played:
        whole_episodes(played, [9, 4])
        plain = Sequences(400, 3, borders)
        batch = checked(played, plain._replace(burn_in=burn_in, state=("memory",)))
        assert batch.burn_in == burn_in
        assert batch.reward.shape == (400, burn_in + 3)
        main = {row.tobytes() for row in labels(batch)[:, burn_in:]}
        assert main == {row.tobytes() for row in labels(checked(played, plain))}


def test_a_stack_that_would_need_evicted_frames_is_not_drawn() -> None:
    """N2, N3: the first k - 1 rows after the head mixed the newest and the oldest frames."""
    with a_replay(Kind(False, 64, 4)) as played:
        for _ in range(70):
            played.add(Step(0, 2, End.PENDING))
        head = played.episodes[0].head
        stacked = checked(played, Sequences(1_000, 1, stack=True), 4)
        assert labels(stacked)[..., 2].min() == head + 3
        single = checked(played, Sequences(1_000, 1), 4)
        assert labels(single)[..., 2].min() == head


def test_sequences_longer_than_all_episodes_need_padding_or_crossing() -> None:
    """I1 with E 10 and L 20: no window was valid, without any error."""
    with a_replay(Kind()) as played:
        whole_episodes(played, [10] * 5)
        with pytest.raises(NotEnoughData, match=r"\b20 rows\b.*\b10\b"):
            played.replay.sample_sequences(1, 20)
        for borders in ("cross", "pad_after", "pad_before"):
            checked(played, Sequences(100, 20, borders))


@pytest.mark.parametrize("draw", ["episodes", "ends"])
def test_crossing_sequences_refuse_draw_modes_of_episodes(draw: Any) -> None:
    with a_replay(Kind()) as played:
        whole_episodes(played, [10] * 5)
        with pytest.raises(ValueError, match=rf"draw=['\"]{draw}['\"]: .*cross"):
            played.replay.sample_sequences(1, 3, borders="cross", draw=draw)


@pytest.mark.parametrize("borders", ["inside", "pad_after", "pad_before"])
@pytest.mark.parametrize("align", ["arrival", "transition"])
def test_draw_ends_draws_terminations_and_truncations_but_no_cuts(borders: Any, align: Any) -> None:
    with a_replay(Kind()) as played:
        for end in (End.TERMINATED, End.NONE, End.TRUNCATED, End.PENDING, BOTH):
            played.add(Step(0, 7, end, "cut"))
        batch = checked(played, Sequences(300, 3, borders, "ends", align))
        assert set(labels(batch)[batch.mask][:, 1].tolist()) == {0, 2, 4}
        is_end = (batch.terminated | batch.truncated) & batch.mask
        assert (is_end.sum(axis=1) == 1).all()
