"""Copies keep the actions of left-out episodes that copied ones need to be played again."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.buffers import SequenceReplayBuffer, copy_episodes
from stepwell.buffers.curation.stored_episode import StoredEpisode
from support.models.chain_model import SPEC, ChainModel, Rows, random_plan


def recorded(seed: int, model: ChainModel, capacity: int | None = None) -> SequenceReplayBuffer:
    """A replay with the rows of a random plan."""
    replay = SequenceReplayBuffer(capacity=capacity)
    replay.bind(SPEC, model.begin_session())
    for step in random_plan(seed):
        if step == "session":
            replay.bind(SPEC, model.begin_session())
        elif isinstance(step, Rows):
            if step.is_cut:
                model.cut(step.stream)
            chunk = model.chunk(step.stream, step.rows, step.end, is_seeded=step.is_seeded)
            replay.add([chunk])
    return replay


def random_share(rng: random.Random) -> Callable[[StoredEpisode], bool]:
    share = rng.choice([0.2, 0.7, 1.0])
    return lambda episode: rng.random() < share


def check(model: ChainModel, replay: SequenceReplayBuffer, *, has_capacity: bool) -> None:
    model.check_chains(replay.storage)
    kept = model.kept_rows(replay.storage.ledger)
    if not has_capacity:
        assert kept <= model.needed(replay.storage)


@settings(deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    sources=st.integers(1, 2),
    capacity=st.sampled_from([None, None, 60, 200]),
    most=st.sampled_from([None, None, 40, 150]),
    on_disk=st.booleans(),
)
def test_copies_of_copies_keep_what_chains_need(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    sources: int,
    capacity: int | None,
    most: int | None,
    on_disk: bool,
) -> None:
    folder, rng = tmp_path_factory.mktemp("copies"), random.Random(seed)
    models = [ChainModel(first_label=1_000 * number) for number in range(sources)]
    replays = [recorded(seed + number, each, capacity) for number, each in enumerate(models)]
    both = ChainModel.merged(models)
    with ExitStack() as stack:
        for number in range(3):
            target = SequenceReplayBuffer(folder / str(number) if on_disk else None, capacity=most)
            stack.callback(target.close)
            try:
                copy_episodes(replays, target, keep=random_share(rng), duplicates="keep")
            except ValueError:
                return  # nothing was chosen
            check(both, target, has_capacity=most is not None)
            replays = [target]


@settings(deadline=None)
@given(seed=st.integers(0, 1 << 32), on_disk=st.booleans())
def test_a_copy_of_stores_that_are_read_as_one_keeps_what_chains_need(
    tmp_path_factory: pytest.TempPathFactory, seed: int, on_disk: bool
) -> None:
    folder, share = tmp_path_factory.mktemp("joined"), random.Random(seed).choice([0.2, 0.7, 1.0])
    models = [ChainModel(first_label=1_000 * number) for number in range(3)]
    paths = [folder / str(number) for number in range(3)]
    for number, model in enumerate(models):
        with SequenceReplayBuffer(paths[number]) as part:
            copy_episodes(recorded(seed + number, model), part)
    with ExitStack() as stack:
        both = stack.enter_context(SequenceReplayBuffer.open(paths, read_only=True))
        parts = [stack.enter_context(SequenceReplayBuffer.open(path)) for path in paths]
        targets: list[SequenceReplayBuffer] = []
        for name, source in (("joined", both), ("merged", parts)):
            rng = random.Random(seed)
            target = SequenceReplayBuffer(folder / name if on_disk else None)
            targets.append(stack.enter_context(target))
            try:
                copy_episodes(
                    source,
                    target,
                    keep=lambda _, rng=rng: rng.random() < share,  # type: ignore[misc]
                    duplicates="keep",
                )
            except ValueError:
                return  # nothing was chosen
        check(ChainModel.merged(models, sessions=1), targets[0], has_capacity=False)
        joined, merged = targets
        assert joined.digest() == merged.digest()
        assert stored_of(joined) == stored_of(merged)
    if on_disk:
        with SequenceReplayBuffer.open(folder / "joined", read_only=True) as again:
            check(ChainModel.merged(models, sessions=1), again, has_capacity=False)


def stored_of(replay: SequenceReplayBuffer) -> list[object]:
    """Place and metadata of every chunk and of all kept actions, and the sessions but the last."""
    storage = replay.storage
    chunks = [storage.encoded(position) for position in range(len(storage.index))]
    return [
        [(each.episode, each.stream, each.data) for each in chunks],
        [(each.stream, each.first_row, each.rows, dict(each.metadata)) for each in storage.ledger],
        [dict(session) for session in replay.sessions[:-1]],
    ]
