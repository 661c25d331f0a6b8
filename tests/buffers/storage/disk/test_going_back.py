"""An exact checkpoint: the store is as it was, and goes on as one that was never stopped."""

from __future__ import annotations

import copy
import shutil
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.buffers import (
    DiskStorage,
    End,
    SequenceReplayBuffer,
    verify,
)
from stepwell.buffers.testing import Recording
from support.disk_stores import copy_of, create, reopen
from support.examples import examples
from support.models.chunk_model import same_records

ENDS = [End.NONE, End.PENDING, End.TERMINATED]


class Run:
    """A learner of its own kind: it adds random chunks, and draws by priorities."""

    def __init__(self, storage: DiskStorage, seed: int = 0) -> None:
        self.replay = SequenceReplayBuffer(seed=1)
        self.replay._use(storage)
        self.recording = Recording()
        self.rng = np.random.default_rng(seed)

    @property
    def storage(self) -> DiskStorage:
        assert isinstance(self.replay.storage, DiskStorage)
        return self.replay.storage

    def add(self, calls: int) -> None:
        for _ in range(calls):
            self.replay.add(
                [
                    self.recording.chunk(
                        int(self.rng.integers(3)),
                        int(self.rng.integers(1, 20)),
                        ENDS[self.rng.integers(3)],
                    )
                    for _ in range(self.rng.integers(1, 4))
                ]
            )

    def learn(self) -> list[list[int]]:
        """The ids of what was drawn."""
        if len(self.replay) < 50:
            return []
        batches = [self.replay.sample_transitions(6, draw="priorities") for _ in range(3)]
        for number, batch in enumerate(batches):
            self.replay.update_priorities(batch.ids, np.arange(6.0) + number + 1)
        return [batch.ids.tolist() for batch in batches]

    def note(self) -> tuple[Any, ...]:
        return copy.deepcopy((self.recording, self.rng.bit_generator.state))

    def go_back_to(self, noted: tuple[Any, ...]) -> None:
        self.recording, self.rng.bit_generator.state = copy.deepcopy(noted)
        self.replay.load_checkpoint(exact=True)
        self.storage.continue_episodes()


def assert_same(one: SequenceReplayBuffer, other: SequenceReplayBuffer) -> None:
    mine, others = one.storage.index, other.storage.index
    assert (mine.base, mine.counters, mine.skipped) == (
        others.base,
        others.counters,
        others.skipped,
    )
    assert (mine.steps, mine.episodes) == (others.steps, others.episodes)
    assert one.sessions == other.sessions
    assert one.nbytes == other.nbytes
    records, expected = mine.records.copy(), others.records.copy()
    records["segment"] = expected["segment"] = 0  # numbers of files are never used again
    assert same_records(records, expected)
    assert one.digest() == other.digest()


SIZES: st.SearchStrategy[dict[str, int | None]] = st.sampled_from(
    [
        {"capacity": None, "segment_bytes": 20_000},
        {"capacity": 150, "segment_bytes": 20_000},
        {"capacity": 400, "segment_bytes": 100_000},
        {"capacity_bytes": 1 << 20, "segment_bytes": 20_000},
        {"capacity": None, "segment_bytes": 1 << 20},
    ]
)


@settings(max_examples=examples(60))
@given(
    sizes=SIZES,
    before=st.integers(0, 40),
    after=st.integers(0, 60),
    interrupted=st.lists(st.tuples(st.sampled_from(["stay", "close", "kill"]), st.integers(0, 40))),
    seed=st.integers(0, 1000),
)
def test_a_run_that_goes_back_is_one_that_was_never_stopped(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: dict[str, int | None],
    before: int,
    after: int,
    interrupted: list[tuple[str, int]],
    seed: int,
) -> None:
    folder = tmp_path_factory.mktemp("back")
    whole, run = (Run(create(folder / name, **sizes), seed) for name in ("whole", "run"))
    for each in (whole, run):
        each.storage.append_session({"seed": 1})
        each.add(before)
        each.learn()
    run.replay.save_checkpoint({"updates": 3})
    noted = run.note()
    for how, calls in (*interrupted, ("kill", 0)):
        run.storage.append_session({"seed": 2})
        run.add(calls)
        run.learn()
        if how != "stay":
            path = run.storage.path
            killed = copy_of(path) if how == "kill" else path
            run.replay.close()
            run = Run(reopen(killed))
        run.go_back_to(noted)
        assert_same(run.replay, whole.replay)
    for each in (whole, run):
        each.add(after)
    assert_same(run.replay, whole.replay)
    assert run.learn() == whole.learn()
    run.replay.close()
    whole.replay.close()
    assert verify(run.storage.path).is_whole
    shutil.rmtree(folder)
