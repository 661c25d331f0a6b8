"""After any sequence of calls, a buffer returns what a list of episodes would return."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from stepwell.buffers.dropin.memmap import ReplayBuffer

torch: Any = pytest.importorskip("torch", reason="needs PyTorch: pip install 'stepwell[torch]'")

MAX_TIMESTEPS = 7
FIELDS: dict[str, Any] = {
    "state": ("float", (2,), 0.5),
    "action": "int",
    "flag": "bool",
    "pixels": ("uint8", (9, 9), 3),
    "one": ("float", 1),
}
METAS: dict[str, Any] = {"task": "int", "score": ("float", 2, -1.0)}
# Dtype, shape and default of each
STORED: dict[str, tuple[Any, tuple[int, ...], float]] = {
    "state": (np.float32, (2,), 0.5),
    "action": (np.int32, (), 0),
    "flag": (np.bool_, (), False),
    "pixels": (np.uint8, (9, 9), 3),
    "one": (np.float32, (1,), 0),
    "task": (np.int32, (), 0),
    "score": (np.float32, (2,), -1),
}
Values = dict[str, np.ndarray]


def full(name: str, lead: tuple[int, ...]) -> np.ndarray:
    dtype, shape, default = STORED[name]
    return np.full((*lead, *shape), default, dtype)


class Model:
    """Episodes in a list, in the order in which they were stored."""

    def __init__(self, max_episodes: int, circular: bool) -> None:
        self.max_episodes, self.circular = max_episodes, circular
        self.episodes: list[tuple[Values, Values]] = []

    def add(self, steps: Values, metas: Values, length: int) -> None:
        all_steps = {name: steps.get(name, full(name, (length,))).copy() for name in FIELDS}
        all_metas = {name: np.array(metas.get(name, full(name, ()))) for name in METAS}
        self.episodes.append((all_steps, all_metas))

    @property
    def room(self) -> int:
        most = self.max_episodes
        return most if self.circular else most - len(self.episodes)

    @property
    def slots(self) -> list[tuple[Values, Values]]:
        """The stored episodes, by slot."""
        by_slot: dict[int, tuple[Values, Values]] = {}
        for number, episode in enumerate(self.episodes):
            by_slot[number % self.max_episodes] = episode
        return [by_slot[slot] for slot in sorted(by_slot)]


class BufferMachine(RuleBasedStateMachine):
    """Drives a buffer and the model with the same calls."""

    @initialize(max_episodes=st.integers(1, 4), circular=st.booleans())
    def begin(self, max_episodes: int, circular: bool) -> None:
        self.root = Path(tempfile.mkdtemp())
        self.folder = self.root / "buffer"
        self.options: dict[str, Any] = {
            "max_episodes": max_episodes,
            "max_timesteps": MAX_TIMESTEPS,
            "fields": FIELDS,
            "meta_fields": METAS,
            "circular": circular,
        }
        self.buffer = ReplayBuffer(self.folder, **self.options)
        self.model = Model(max_episodes, circular)
        self.tag = 0

    def teardown(self) -> None:
        if hasattr(self, "root"):
            self.read_with_another_buffer()
            self.read_batches()
            self.buffer.close()
            shutil.rmtree(self.root)

    def values(self, names: list[str], lead: tuple[int, ...]) -> Values:
        """Values that were not used before, as far as the dtype can represent them."""
        found: Values = {}
        for name in names:
            dtype, each, _ = STORED[name]
            shape = (*lead, *each)
            self.tag += 1
            numbers = np.arange(int(np.prod(shape))) * 7 + self.tag
            found[name] = numbers.reshape(shape).astype(dtype)
        return found

    @property
    def no_room(self) -> str:
        """A pattern for the error of an episode that does not fit."""
        most = self.model.max_episodes
        return rf"max_episodes={most}\b.*\b{most}\b"

    @rule(
        length=st.integers(0, MAX_TIMESTEPS),
        names=st.lists(st.sampled_from(list(FIELDS)), min_size=1, unique=True),
        early=st.lists(st.sampled_from(list(METAS)), unique=True),
        late=st.lists(st.sampled_from(list(METAS)), unique=True),
        aborts=st.booleans(),
        as_tensors=st.booleans(),
    )
    def play(
        self,
        length: int,
        names: list[str],
        early: list[str],
        late: list[str],
        aborts: bool,
        as_tensors: bool,
    ) -> None:
        if self.model.room < 1:
            with pytest.raises(ValueError, match=self.no_room), self.buffer.one_episode():
                pass
            return
        steps = self.values(names, (length,))
        first, last = self.values(early, ()), self.values(late, ())
        try:
            with self.buffer.one_episode(**first) as later:
                for t in range(length):
                    row: dict[str, Any] = {name: steps[name][t] for name in names}
                    if as_tensors:
                        row = {name: torch.as_tensor(value) for name, value in row.items()}
                    self.buffer.store(**row)
                check_trajectories(self.buffer, self.model)  # the open episode hides no other
                later.update(last)
                if aborts:
                    raise KeyboardInterrupt
        except KeyboardInterrupt:
            return
        if length:
            self.model.add(steps, first | last, length)

    @rule(
        length=st.integers(1, MAX_TIMESTEPS),
        names=st.lists(st.sampled_from(list(FIELDS)), min_size=1, unique=True),
        metas=st.lists(st.sampled_from(list(METAS)), unique=True),
    )
    def store_whole(self, length: int, names: list[str], metas: list[str]) -> None:
        steps, of_it = self.values(names, (length,)), self.values(metas, ())
        if self.model.room < 1:
            with pytest.raises(ValueError, match=self.no_room):
                self.buffer.store_episode(**steps, **of_it)
            return
        self.buffer.store_episode(**steps, **of_it)
        self.model.add(steps, of_it, length)

    @rule(how=st.sampled_from(["close", "drop", "overwrite"]))
    def reopen(self, how: str) -> None:
        if how == "overwrite":
            self.buffer = ReplayBuffer(self.folder, **self.options, overwrite=True)
            self.model.episodes.clear()
            return
        if how == "close":
            self.buffer.close()
        self.buffer = ReplayBuffer(self.folder, **self.options)

    @rule()
    def read_with_another_buffer(self) -> None:
        with ReplayBuffer.from_folder(self.folder, read_only=True) as reader:
            check_trajectories(reader, self.model)

    @rule()
    def read_batches(self) -> None:
        check_batches(self.buffer, self.model)

    @invariant()
    def contents_equal_the_model(self) -> None:
        if hasattr(self, "buffer"):
            check_trajectories(self.buffer, self.model)


def check_batches(buffer: ReplayBuffer, model: Model) -> None:
    if not model.slots:
        with pytest.raises(ValueError, match=rf"{re.escape(str(buffer.folder))}, .*\b0\b"):
            buffer.dataloader(1)
        return
    check_timesteps(buffer, model)
    for n in (1, 3):
        check_transitions(buffer, model, n)


def check_trajectories(buffer: ReplayBuffer, model: Model) -> None:
    assert (len(buffer), buffer.num_episodes) == (len(model.slots), len(model.slots))
    left = model.slots
    for batch in buffer.dataloader(2, return_mask=True) if left else ():
        some, left = left[:2], left[2:]
        longest = max(len(steps["action"]) for steps, _ in some)
        assert len(batch["_lens"]) == len(some)
        for place, (steps, metas) in enumerate(some):
            length = len(steps["action"])
            assert batch["_lens"][place] == length
            assert batch["_mask"][place].tolist() == [t < length for t in range(longest)]
            for name, values in steps.items():
                padded = np.zeros((longest, *values.shape[1:]), values.dtype)
                padded[:length] = values
                assert_same(batch[name][place], padded)
            for name, value in metas.items():
                assert_same(batch[name][place], value)
    assert not left


def check_timesteps(buffer: ReplayBuffer, model: Model) -> None:
    task = model.slots[0][1]["task"]
    wanted = [
        (steps, metas, t)
        for steps, metas in model.slots
        for t in range(len(steps["action"]))
        if metas["task"] == task
    ]
    options: dict[str, Any] = {"filter_meta": {"task": int(task)}, "fieldname_map": {"state": "s"}}
    for batch in buffer.dataloader(3, timestep_level=True, **options):
        for place in range(len(batch["s"])):
            steps, metas, t = wanted.pop(0)
            for name, values in steps.items():
                assert_same(batch["s" if name == "state" else name][place], values[t])
            assert_same(batch["score"][place], metas["score"])
    assert not wanted


def check_transitions(buffer: ReplayBuffer, model: Model, n: int) -> None:
    wanted = [
        (steps, metas, t) for steps, metas in model.slots for t in range(len(steps["action"]) - 1)
    ]
    options: dict[str, Any] = {"sequence_fields": ("action", "pixels")}
    options["fieldname_map"] = {"seq_action": "chunk"}
    if n == 1:
        options |= {"current_fields": ("state", "pixels"), "next_fields": ("flag",)}
    for batch in buffer.dataloader(4, n_steps=n, **options):
        for place in range(len(batch["n_step_lens"])):
            steps, metas, t = wanted.pop(0)
            taken = min(n, len(steps["action"]) - t - 1)
            assert batch["n_step_lens"][place] == taken
            for name in options.get("current_fields", FIELDS):
                assert_same(batch[name][place], steps[name][t])
            for name in options.get("next_fields", FIELDS):
                assert_same(batch[f"next_{name}"][place], steps[name][t + taken])
            for name in options["sequence_fields"]:
                padded = np.zeros((n, *steps[name].shape[1:]), steps[name].dtype)
                padded[:taken] = steps[name][t : t + taken]
                key = "chunk" if name == "action" else f"seq_{name}"
                assert_same(batch[key][place], padded)
            assert_same(batch["task"][place], metas["task"])
    assert not wanted


def assert_same(got: Any, expected: np.ndarray) -> None:
    """Equal, of the same dtype and shape."""
    array = np.asarray(got)
    assert (array.dtype, array.shape) == (expected.dtype, expected.shape)
    assert (array == expected).all()


def test_a_buffer_equals_a_list_of_episodes_after_any_calls() -> None:
    run_state_machine_as_test(BufferMachine, settings=hypothesis.settings(stateful_step_count=20))
