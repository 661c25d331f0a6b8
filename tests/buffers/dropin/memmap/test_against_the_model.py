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

from stepwell.buffers.dropin.memmap import ReplayBuffer, ReplayDatasetTimeWindow, updates

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
DTYPES = {"float": np.float32, "int": np.int32, "bool": np.bool_, "uint8": np.uint8}
SHAPES = {"state": (2,), "action": (), "flag": (), "pixels": (9, 9), "one": (1,)}
META_SHAPES = {"task": (), "score": (2,)}
DEFAULTS = {"state": 0.5, "action": 0, "flag": False, "pixels": 3, "one": 0, "task": 0, "score": -1}
KINDS = {"state": "float", "action": "int", "flag": "bool", "pixels": "uint8", "one": "float"}
META_KINDS = {"task": "int", "score": "float"}
Values = dict[str, np.ndarray]


def dtype_of(name: str) -> Any:
    return DTYPES[(KINDS | META_KINDS)[name]]


def full(name: str, lead: tuple[int, ...]) -> np.ndarray:
    shape = (SHAPES | META_SHAPES)[name]
    return np.full((*lead, *shape), DEFAULTS[name], dtype_of(name))


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

    @property
    def lengths(self) -> list[int]:
        return [len(steps["action"]) for steps, _ in self.slots]


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
        self.reader = ReplayBuffer.from_folder(self.folder, read_only=True)
        self.model = Model(max_episodes, circular)
        self.tag = 0

    def teardown(self) -> None:
        if hasattr(self, "root"):
            self.read_with_another_buffer()
            self.read_batches()
            self.buffer.close()
            self.reader.close()
            shutil.rmtree(self.root)

    def values(self, names: list[str], lead: tuple[int, ...]) -> Values:
        """Values that were not used before, as far as the dtype can represent them."""
        found: Values = {}
        for name in names:
            shape = (*lead, *(SHAPES | META_SHAPES)[name])
            count = int(np.prod(shape))
            self.tag += 1
            found[name] = (np.arange(count) * 7 + self.tag).reshape(shape).astype(dtype_of(name))
        return found

    def no_room(self, count: int) -> str:
        """A pattern for the error of ``count`` episodes that do not fit."""
        most, room = self.model.max_episodes, self.model.room
        if count > most:
            return rf"max_episodes={most}\b.*\b{count}\b"
        return rf"\b{count}\b.*max_episodes={most}\b.*\b{room}\b"

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
            with pytest.raises(ValueError, match=self.no_room(1)), self.buffer.one_episode():
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
            with pytest.raises(ValueError, match=self.no_room(1)):
                self.buffer.store_episode(**steps, **of_it)
            return
        self.buffer.store_episode(**steps, **of_it)
        self.model.add(steps, of_it, length)

    @rule(
        count=st.integers(1, 5),
        length=st.integers(1, MAX_TIMESTEPS),
        names=st.lists(st.sampled_from(list(FIELDS)), min_size=1, unique=True),
        metas=st.lists(st.sampled_from(list(METAS)), unique=True),
    )
    def play_several(self, count: int, length: int, names: list[str], metas: list[str]) -> None:
        of_them = self.values(metas, (count,))
        if self.model.room < count:
            with (
                pytest.raises(ValueError, match=self.no_room(count)),
                self.buffer.batched_episode(count, **of_them),
            ):
                pass
            return
        steps = self.values(names, (length, count))
        with self.buffer.batched_episode(count, **of_them):
            for t in range(length):
                self.buffer.store_batch(**{name: steps[name][t] for name in names})
        for each in range(count):
            mine = {name: values[:, each] for name, values in steps.items()}
            self.model.add(mine, {name: v[each] for name, v in of_them.items()}, length)

    @rule(
        data=st.data(),
        names=st.lists(st.sampled_from([*FIELDS, *METAS]), min_size=1, unique=True),
        length=st.integers(1, MAX_TIMESTEPS),
        how=st.sampled_from(["all", "slice", "list", "number"]),
    )
    def update(self, data: st.DataObject, names: list[str], length: int, how: str) -> None:
        count = len(self.model.slots)
        every = list(range(count))
        indices: Any = None
        if how == "slice":
            begin = data.draw(st.integers(0, count))
            indices, every = slice(begin, None), every[begin:]
        elif how == "list":
            every = data.draw(st.permutations(every))[: data.draw(st.integers(0, count))]
            indices = np.array(every, np.int64)
        elif how == "number":
            if not count:
                return
            indices = data.draw(st.integers(0, count - 1))
            every = [indices]
        given: Values = {}
        for name in names:
            lead = (len(every), length) if name in FIELDS else (len(every),)
            given |= self.values([name], lead)
        passed = {n: v[0] for n, v in given.items()} if how == "number" else given
        if indices is None:
            self.buffer.update(**passed)
        else:
            self.buffer.update(indices, **passed)
        for place, slot in enumerate(every):
            steps, metas = self.model.slots[slot]
            for name, values in given.items():
                if name in METAS:
                    metas[name] = values[place]
                else:
                    stop = min(length, len(steps[name]))
                    steps[name][:stop] = values[place, :stop]

    @rule(data=st.data(), name=st.sampled_from(list(FIELDS)))
    def change_a_step(self, data: st.DataObject, name: str) -> None:
        if not self.model.slots:
            return
        slot = data.draw(st.integers(0, len(self.model.slots) - 1))
        step = data.draw(st.integers(0, self.model.lengths[slot] - 1))
        value = self.values([name], ())[name]
        self.buffer.store_datapoint(slot, step, name, value)
        self.model.slots[slot][0][name][step] = value

    @rule(how=st.sampled_from(["close", "drop", "discard", "overwrite", "clear"]))
    def reopen(self, how: str) -> None:
        if how == "clear":
            self.buffer.clear()
            self.model.episodes.clear()
            return
        if how == "overwrite":
            self.buffer = ReplayBuffer(self.folder, **self.options, overwrite=True)
            self.model.episodes.clear()
            return
        if self.model.room:
            self.buffer.store(action=9)  # never ended
        if how == "discard":
            self.buffer.discard_episode()
        elif how == "close":
            self.buffer.close()
        self.buffer = ReplayBuffer(self.folder, **self.options)

    @rule()
    def read_with_another_buffer(self) -> None:
        self.reader.refresh()
        check_contents(self.reader, self.model)

    @rule()
    def read_batches(self) -> None:
        check_batches(self.buffer, self.model)

    @invariant()
    def contents_equal_the_model(self) -> None:
        if hasattr(self, "buffer"):
            check_contents(self.buffer, self.model)


def check_contents(buffer: ReplayBuffer, model: Model) -> None:
    slots, lengths = model.slots, model.lengths
    assert (len(buffer), buffer.num_episodes) == (len(slots), len(slots))
    assert buffer.episode_index == len(model.episodes) % model.max_episodes
    assert buffer.episode_lens.tolist() == lengths + [0] * (model.max_episodes - len(lengths))
    everything = buffer.get_all_data()
    assert bool(everything) == bool(slots)
    for slot, (steps, metas) in enumerate(slots):
        for name, values in metas.items():
            assert_same(everything[name][slot], values)
            assert_same(buffer.meta_data[name][slot], values)
        for name, values in steps.items():
            whole = full(name, (max(lengths),))
            whole[: len(values)] = values
            assert_same(everything[name][slot], whole)
    whole = full("state", (model.max_episodes, MAX_TIMESTEPS))
    for slot, (steps, _) in enumerate(slots):
        whole[slot, : lengths[slot]] = steps["state"]
    assert_same(buffer.data["state"][:], whole)
    if slots:
        name, last = "pixels", len(slots) - 1
        assert_same(buffer.data[name][last, : lengths[last]], slots[last][0][name])
        assert_same(everything["episode_lens"], np.array(lengths, np.int32))


def check_batches(buffer: ReplayBuffer, model: Model) -> None:
    slots = model.slots
    if not slots:
        with pytest.raises(ValueError, match=rf"{re.escape(str(buffer.folder))}, .*\b0\b"):
            buffer.dataset()
        return
    check_trajectories(buffer, model)
    check_timesteps(buffer, model)
    for n in (1, 3):
        check_transitions(buffer, model, n)
    check_windows(buffer, model)


def check_trajectories(buffer: ReplayBuffer, model: Model) -> None:
    left = list(enumerate(model.slots))
    for batch in buffer.dataloader(2, return_mask=True, return_indices=True):
        some, left = left[:2], left[2:]
        longest = max(len(steps["action"]) for _, (steps, _) in some)
        assert batch["_index"].tolist() == [slot for slot, _ in some]
        for place, (_, (steps, metas)) in enumerate(some):
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
    wanted = [
        (slot, t)
        for slot, (steps, metas) in enumerate(model.slots)
        for t in range(len(steps["action"]))
        if steps["flag"][t] and metas["task"] == model.slots[0][1]["task"]
    ]
    dataset = buffer.dataset(
        timestep_level=True,
        return_indices=True,
        filter_fields={"flag": True},
        filter_meta={"task": int(model.slots[0][1]["task"])},
        fieldname_map={"state": "s"},
    )
    assert len(dataset) == len(wanted)
    for batch in buffer.dataloader(3, dataset=dataset, timestep_level=True):
        for place, (slot, t) in enumerate(batch["_indices"].tolist()):
            assert (slot, t) == wanted.pop(0)
            steps, metas = model.slots[slot]
            for name, values in steps.items():
                assert_same(batch["s" if name == "state" else name][place], values[t])
            assert_same(batch["score"][place], metas["score"])
    assert not wanted


def check_transitions(buffer: ReplayBuffer, model: Model, n: int) -> None:
    wanted = [(slot, t) for slot, length in enumerate(model.lengths) for t in range(length - 1)]
    options: dict[str, Any] = {"sequence_fields": ("action", "pixels"), "return_indices": True}
    if n == 1:
        options |= {"current_fields": ("state", "pixels"), "next_fields": ("flag",)}
    if not wanted:
        assert len(buffer.dataset(n_steps=n)) == 0
        return
    for batch in buffer.dataloader(4, n_steps=n, **options):
        for place, (slot, t) in enumerate(batch["_indices"].tolist()):
            assert (slot, t) == wanted.pop(0)
            steps, metas = model.slots[slot]
            taken = min(n, len(steps["action"]) - t - 1)
            assert batch["n_step_lens"][place] == taken
            for name in options.get("current_fields", FIELDS):
                assert_same(batch[name][place], steps[name][t])
            for name in options.get("next_fields", FIELDS):
                assert_same(batch[f"next_{name}"][place], steps[name][t + taken])
            for name in options["sequence_fields"]:
                padded = np.zeros((n, *steps[name].shape[1:]), steps[name].dtype)
                padded[:taken] = steps[name][t : t + taken]
                assert_same(batch[f"seq_{name}"][place], padded)
            assert_same(batch["task"][place], metas["task"])
    assert not wanted


def check_windows(buffer: ReplayBuffer, model: Model) -> None:
    length = 3
    dataset = ReplayDatasetTimeWindow(buffer, length, return_indices=True, seed=len(buffer))
    slots = list(range(len(model.slots)))
    for batch in buffer.dataloader(2, dataset=dataset):
        for place, slot in enumerate(batch["_index"].tolist()):
            assert slot == slots.pop(0)
            steps, _ = model.slots[slot]
            start, rows = int(batch["_start"][place]), len(steps["action"])
            taken = min(length, rows)
            assert 0 <= start <= rows - taken
            assert batch["_lens"][place] == taken
            assert bool(batch["_reaches_episode_end"][place]) == (start + taken == rows)
            for name, values in steps.items():
                padded = np.zeros((length, *values.shape[1:]), values.dtype)
                padded[:taken] = values[start : start + taken]
                assert_same(batch[name][place], padded)
    assert not slots


def assert_same(got: Any, expected: np.ndarray) -> None:
    """Equal, of the same dtype and shape."""
    array = np.asarray(got)
    assert (array.dtype, array.shape) == (expected.dtype, expected.shape)
    assert (array == expected).all()


def test_a_buffer_equals_a_list_of_episodes_after_any_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(updates, "_SPARE_BYTES", 200)  # files of updates are rewritten often
    run_state_machine_as_test(BufferMachine, settings=hypothesis.settings(stateful_step_count=20))
