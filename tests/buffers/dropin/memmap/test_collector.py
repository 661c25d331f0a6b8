"""A collector returns and stores appended values unchanged, or refuses them as a whole."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.buffers.dropin.memmap import EpisodeCollector, ReplayBuffer

SHAPES = {"state": (2, 3), "action": (), "value": (1,)}
META = {"task": (), "goal": (2,)}

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="needs PyTorch: pip install 'stepwell[torch]'"
)
needs_original = pytest.mark.skipif(
    importlib.util.find_spec("memmap_replay_buffer") is None,
    reason="needs memmap-replay-buffer: pip install memmap-replay-buffer==0.2.3",
)


class RecordingBuffer:
    """A buffer that only records the episodes it is given."""

    fieldnames = frozenset(SHAPES)
    meta_fieldnames = frozenset(META)
    shapes = SHAPES
    meta_shapes = META

    def __init__(self) -> None:
        self.episodes: list[dict[str, Any]] = []

    def store_episodes(self, episodes: Sequence[Mapping[str, Any]]) -> None:
        self.episodes += map(dict, episodes)


@pytest.fixture
def buffer() -> RecordingBuffer:
    return RecordingBuffer()


@pytest.fixture
def collector(buffer: RecordingBuffer) -> EpisodeCollector:
    return EpisodeCollector(buffer, num_groups=3)


def step(t: int, groups: int = 3) -> dict[str, Any]:
    """Values that identify the step and the group."""
    numbers = np.arange(groups)
    state = np.zeros((groups, 2, 3), np.float32)
    state[:, 0, 0], state[:, 1, 2] = t, numbers
    return {
        "state": state,
        "action": numbers * 1000 + t,
        "value": (numbers + t / 64)[:, None].astype(np.float32),
    }


def trajectory(name: str, steps: int, group: int) -> np.ndarray:
    """The values of a field of one group."""
    return np.stack([step(t)[name][group] for t in range(steps)])


def snapshot(collector: EpisodeCollector) -> Any:
    """The state of a collector."""
    names = [*collector._steps, *collector._meta]
    values = {name: [np.asarray(one).tolist() for one in collector.groups(name)] for name in names}
    return len(collector), collector.lens.tolist(), values


@pytest.mark.parametrize("kind", ["arrays", "tensors", "lists"])
@pytest.mark.parametrize("has_time_axis", [False, True])
def test_appended_steps_are_returned_by_group(
    kind: str, has_time_axis: bool, collector: EpisodeCollector
) -> None:
    make: Callable[[np.ndarray], Any] = {
        "arrays": lambda values: values,
        "tensors": lambda values: importlib.import_module("torch").from_numpy(values),
        "lists": lambda values: list(values),
    }[kind]
    if kind == "tensors":
        pytest.importorskip("torch")
    for t in range(5):
        values = {
            name: value[:, None] if has_time_axis else value for name, value in step(t).items()
        }
        collector.append(**{name: make(value) for name, value in values.items()})
    assert len(collector) == 5
    for name, shape in SHAPES.items():
        expected = np.stack([trajectory(name, 5, group) for group in range(3)])
        env_major, time_major = collector.env_major(name), collector.time_major(name)
        assert tuple(env_major.shape) == (3, 5, *shape)
        assert tuple(time_major.shape) == (5, 3, *shape)
        assert (np.asarray(env_major) == expected).all()
        assert (np.asarray(time_major) == expected.swapaxes(0, 1)).all()
        assert (np.asarray(collector.all_data()[name]) == expected).all()
        for group, values in enumerate(collector.groups(name)):
            assert (np.asarray(values) == expected[group]).all()
        assert hasattr(env_major, "detach") == (kind == "tensors")


def test_values_keep_their_dtypes(collector: EpisodeCollector) -> None:
    collector.append(**step(0))
    found = {name: values.dtype for name, values in collector.all_data().items()}
    assert found == {"state": np.float32, "action": np.int64, "value": np.float32}


@given(st.data())
def test_collector_equals_the_model_after_any_appends_and_ends(data: st.DataObject) -> None:
    groups = data.draw(st.integers(1, 4))
    buffer = RecordingBuffer()
    collector = EpisodeCollector(buffer, groups)
    model: list[list[dict[str, Any]]] = [[] for _ in range(groups)]
    over = [False] * groups
    stored: list[list[dict[str, Any]]] = []
    for t in range(data.draw(st.integers(1, 15))):
        if all(over):
            collector.store(task=t, goal=np.arange(groups * 2).reshape(groups, 2))
            stored += model
            model, over = [[] for _ in range(groups)], [False] * groups
        collector.append(**step(t, groups))
        for group in range(groups):
            if not over[group]:
                model[group].append({name: value[group] for name, value in step(t, groups).items()})
        ends = np.array(data.draw(st.lists(st.booleans(), min_size=groups, max_size=groups)))
        collector.end(ends if data.draw(st.booleans()) else np.flatnonzero(ends).tolist())
        over = [a or bool(b) for a, b in zip(over, ends, strict=True)]
        assert collector.lens.tolist() == [len(rows) for rows in model]
        assert len(collector) == max(len(rows) for rows in model)
    for name, shape in SHAPES.items():
        expected = np.zeros((groups, len(collector), *shape))
        for group, rows in enumerate(model):
            expected[group, : len(rows)] = [row[name] for row in rows]
            assert (collector.groups(name)[group] == [row[name] for row in rows]).all()
        assert (collector.env_major(name) == expected).all()
        assert (collector.time_major(name) == expected.swapaxes(0, 1)).all()
    assert collector.mask.sum() == sum(map(len, model))
    collector.store()
    stored += model
    assert len(buffer.episodes) == len(stored)
    for episode, rows in zip(buffer.episodes, stored, strict=True):
        for name in SHAPES:
            assert (episode[name] == [row[name] for row in rows]).all()
    assert collector.lens.tolist() == [0] * groups


def test_appended_arrays_are_copied(collector: EpisodeCollector) -> None:
    """O2: the original keeps references, so that one reused array gives equal steps."""
    live = step(0)
    for t in range(3):
        for name, values in step(t).items():
            live[name][...] = values
        collector.append(**live)
    advantages = np.ones((3, 3, 1))
    collector.clear()
    collector.extend(value=advantages)
    advantages[:] = 7
    assert (collector.env_major("value") == 1).all()
    collector.env_major("value")[:] = 9
    assert (collector.env_major("value") == 1).all(), "returned arrays are copies"


@needs_torch
def test_appended_tensors_are_copied(collector: EpisodeCollector) -> None:
    import torch

    live = torch.zeros(3)
    for t in range(3):
        live[:] = t
        collector.append(action=live)
    assert collector.time_major("action")[:, 0].tolist() == [0, 1, 2]


def test_trajectories_are_added_to_the_appended_steps(collector: EpisodeCollector) -> None:
    for t in range(4):
        collector.append(state=step(t)["state"])
    value = np.arange(4 * 3).reshape(4, 3, 1)
    collector.extend(value=value, task=5)
    assert (collector.time_major("value") == value).all()
    assert (collector.env_major("value") == value.swapaxes(0, 1)).all()
    assert collector.time_major("task").tolist() == [5, 5, 5]
    assert len(collector) == 4


def test_trajectories_without_appended_steps_are_steps(
    collector: EpisodeCollector, buffer: RecordingBuffer
) -> None:
    collector.extend(action=np.arange(6).reshape(2, 3), value=np.zeros((2, 3, 1)))
    assert len(collector) == 2
    collector.append(action=np.array([6, 7, 8]), value=np.zeros((3, 1)))
    collector.store()
    assert [episode["action"].tolist() for episode in buffer.episodes] == [
        [0, 3, 6],
        [1, 4, 7],
        [2, 5, 8],
    ]


META_FORMS: list[tuple[Any, list[Any]]] = [
    (4, [4, 4, 4]),
    (np.int32(4), [4, 4, 4]),
    (np.array([4]), [4, 4, 4]),
    ([1, 2, 3], [1, 2, 3]),
    (np.array([1, 2, 3]), [1, 2, 3]),
    (np.array([[1], [2], [3]]), [1, 2, 3]),
]


@pytest.mark.parametrize(("value", "expected"), META_FORMS, ids=range(len(META_FORMS)))
@pytest.mark.parametrize("by", ["append", "store", "extend"])
def test_metadata_is_for_all_groups_or_for_each(
    value: Any, expected: list[Any], by: str, collector: EpisodeCollector, buffer: RecordingBuffer
) -> None:
    if by == "append":
        collector.append(action=np.zeros(3), task=value)
        collector.store()
    elif by == "extend":
        collector.extend(action=np.zeros((1, 3)), task=value)
        collector.store()
    else:
        collector.append(action=np.zeros(3), task=9)
        collector.store(task=value)
    assert [int(episode["task"]) for episode in buffer.episodes] == expected
    assert all(np.shape(episode["task"]) == () for episode in buffer.episodes)


def test_metadata_with_a_shape_is_not_taken_for_one_value_per_group(
    buffer: RecordingBuffer,
) -> None:
    pair = EpisodeCollector(buffer, 2)
    for goal in (np.array([5.0, 6.0]), np.array([[5.0, 6.0], [7.0, 8.0]])):
        pair.append(action=np.zeros(2), goal=goal)
        pair.store()
    assert [episode["goal"].tolist() for episode in buffer.episodes] == [
        [5, 6],
        [5, 6],
        [5, 6],
        [7, 8],
    ]


def test_metadata_alone_adds_no_step(collector: EpisodeCollector) -> None:
    collector.append(task=3)
    assert len(collector) == 0
    collector.append(action=np.zeros(3))
    assert [int(value) for value in collector.groups("task")] == [3, 3, 3]


def test_the_last_metadata_is_used(collector: EpisodeCollector) -> None:
    for task in range(3):
        collector.append(action=np.zeros(3), task=task)
    assert collector.env_major("task").tolist() == [2, 2, 2]


BAD_APPENDS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"stat": np.zeros((3, 2, 3))}, KeyError, r"'stat'.* action, goal, state, task, value"),
    ({"action": np.zeros(3), "tusk": 1}, KeyError, r"'tusk'.* action, goal, state, task, value"),
    ({"action": np.zeros(2)}, ValueError, r"'action'.*\b3 groups.*\(3\).*\(2,\)"),
    ({"action": 0.0}, ValueError, r"'action'.*\(3\).*\(\)"),
    ({"action": np.zeros((3, 2))}, ValueError, r"'action'.*\(3\).*\(3, 2\)"),
    ({"state": np.zeros((3, 3, 2))}, ValueError, r"'state'.*\(3, 2, 3\).*\(3, 3, 2\)"),
    ({"state": np.zeros((3, 6))}, ValueError, r"'state'.*\(3, 2, 3\).*\(3, 6\)"),
    ({"state": np.zeros((3, 2, 2, 3))}, ValueError, r"'state'.*\(3, 2, 2, 3\).*\bextend\b"),
    ({"state": np.zeros((1, 2, 3))}, ValueError, r"'state'.*\(3, 2, 3\).*\(1, 2, 3\)"),
    ({"value": np.zeros(3)}, ValueError, r"'value'.*\(3, 1\).*\(3,\)"),
    ({"action": np.zeros(3), "task": np.zeros(2)}, ValueError, r"'task'.*\b3 groups.*\(2,\)"),
    ({"action": np.zeros(3), "goal": 5}, ValueError, r"'goal'.*\(2,\).*\b3 groups.*\(\)"),
    ({"action": np.zeros(3), "goal": np.zeros(3)}, ValueError, r"'goal'.*\(2,\).*\(3,\)"),
]


@pytest.mark.parametrize(("data", "error", "problem"), BAD_APPENDS, ids=range(len(BAD_APPENDS)))
@pytest.mark.parametrize("is_first", [True, False])
def test_a_step_that_does_not_fit_changes_nothing(
    data: dict[str, Any],
    error: type[Exception],
    problem: str,
    is_first: bool,
    collector: EpisodeCollector,
) -> None:
    """M9: a misspelt field is refused; the original keeps the fields before the mistake."""
    if not is_first:
        collector.append(**step(0))
    before = snapshot(collector)
    with pytest.raises(error, match=problem):
        collector.append(**({} if is_first else step(1)) | data)
    assert snapshot(collector) == before


def test_every_step_has_the_same_fields(collector: EpisodeCollector) -> None:
    collector.append(action=np.zeros(3), value=np.zeros((3, 1)))
    before = snapshot(collector)
    for data, problem in (
        ({"action": np.zeros(3)}, r"action, value.*'value'"),
        ({**step(0)}, r"action, value.*'state'"),
    ):
        with pytest.raises(ValueError, match=problem):
            collector.append(**data)
    assert snapshot(collector) == before


@needs_torch
def test_a_field_is_tensors_at_all_steps_or_at_none(collector: EpisodeCollector) -> None:
    import torch

    collector.append(action=torch.zeros(3))
    with pytest.raises(ValueError, match=r"'action'.*tensors"):
        collector.append(action=np.zeros(3))
    assert len(collector) == 1


BAD_TRAJECTORIES: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"value": np.zeros((2, 3, 1))}, ValueError, r"'value'.*\(4, 3, 1\).*\(2, 3, 1\)"),
    ({"value": np.zeros((3, 4, 1))}, ValueError, r"'value'.*\(4, 3, 1\).*\(3, 4, 1\)"),
    ({"value": np.zeros((4, 3))}, ValueError, r"'value'.*\(4, 3, 1\).*\(4, 3\)"),
    ({"value": 0.0}, ValueError, r"'value'.*\(4, 3, 1\).*\(\)"),
    ({"action": np.zeros((4, 3))}, ValueError, r"'action'.*\b4 steps"),
    (
        {"value": np.zeros((4, 3, 1)), "state": np.zeros((4, 3, 3, 2))},
        ValueError,
        r"'state'.*\(4, 3, 2, 3\).*\(4, 3, 3, 2\)",
    ),
    (
        {"value": np.zeros((4, 3, 1)), "task": [1, 2]},
        ValueError,
        r"'task'.*\(\).*\b3 groups.*\(2,\)",
    ),
    ({"values": np.zeros((4, 3, 1))}, KeyError, r"'values'.* action, goal, state, task, value"),
]


@pytest.mark.parametrize(
    ("data", "error", "problem"), BAD_TRAJECTORIES, ids=range(len(BAD_TRAJECTORIES))
)
def test_trajectories_that_do_not_fit_change_nothing(
    data: dict[str, Any], error: type[Exception], problem: str, collector: EpisodeCollector
) -> None:
    for t in range(4):
        collector.append(action=step(t)["action"])
    before = snapshot(collector)
    with pytest.raises(error, match=problem):
        collector.extend(**data)
    assert snapshot(collector) == before


def test_trajectories_of_different_lengths_are_refused(collector: EpisodeCollector) -> None:
    with pytest.raises(ValueError, match=r"'value'.*\(4, 3, 1\).*\(5, 3, 1\)"):
        collector.extend(action=np.zeros((4, 3)), value=np.zeros((5, 3, 1)))
    with pytest.raises(ValueError, match=r"'action'.*\(time, 3\).*\(0, 3\)"):
        collector.extend(action=np.zeros((0, 3)))
    assert len(collector) == 0


def test_other_fields_are_ignored_with_strict_false(buffer: RecordingBuffer) -> None:
    loose = EpisodeCollector(buffer, 3, strict=False)
    loose.append(action=np.zeros(3), log_prob=np.zeros(7))
    loose.extend(value=np.zeros((1, 3, 1)), advantage=None)
    loose.store(colour="red")
    assert [sorted(episode) for episode in buffer.episodes] == [["action", "value"]] * 3


def test_only_the_given_fields_are_collected(buffer: RecordingBuffer) -> None:
    some = EpisodeCollector(buffer, 3, fieldnames=("action",), meta_fieldnames=())
    with pytest.raises(KeyError, match=r"'state'.* action"):
        some.append(**step(0))
    with pytest.raises(KeyError, match=r"'task'.* action"):
        some.append(action=np.zeros(3), task=1)
    with pytest.raises(ValueError, match=r"^fieldnames: .*action, state, value.*'colour'"):
        EpisodeCollector(buffer, 3, fieldnames=("colour",))
    with pytest.raises(ValueError, match=r"^meta_fieldnames: .*goal, task.*'action'"):
        EpisodeCollector(buffer, 3, meta_fieldnames=("action",))
    with pytest.raises(ValueError, match=r"num_groups: .*>= 1.*\b0\b"):
        EpisodeCollector(buffer, 0)


def test_groups_that_end_early_are_stored_with_their_length(
    collector: EpisodeCollector, buffer: RecordingBuffer
) -> None:
    """M13: in the original all groups have one common length."""
    for t in range(5):
        collector.append(**step(t))
        collector.end(np.array([t == 1, False, t == 3]))
    collector.extend()
    assert collector.lens.tolist() == [2, 5, 4]
    assert collector.mask.sum(1).tolist() == [2, 5, 4]
    collector.store(task=[7, 8, 9])
    for group, steps in enumerate((2, 5, 4)):
        for name in SHAPES:
            assert (buffer.episodes[group][name] == trajectory(name, steps, group)).all()
        assert int(buffer.episodes[group]["task"]) == 7 + group


def test_a_step_after_the_end_of_all_groups_is_refused(collector: EpisodeCollector) -> None:
    with pytest.raises(ValueError, match=r"groups: .*\b1 step.*\b0\b"):
        collector.end([0])
    collector.append(**step(0))
    collector.end([0, 2])
    collector.append(**step(1))
    collector.end([])
    collector.end([0, 1])
    assert collector.lens.tolist() == [1, 2, 1]
    with pytest.raises(ValueError, match=r"append: .*\b3\b.*\bstore\b.*\bclear\b"):
        collector.append(**step(2))
    for wrong in ([3], [-1], [0.5], np.array([True]), "0"):
        with pytest.raises(
            ValueError, match=rf"groups: .*3 bools.* 0 to 2.*{re.escape(repr(wrong))}"
        ):
            collector.end(wrong)
    collector.clear()
    collector.append(**step(0))
    assert collector.lens.tolist() == [1, 1, 1]


def test_an_empty_collector_cannot_be_stored_or_read(
    collector: EpisodeCollector, buffer: RecordingBuffer
) -> None:
    for call in (collector.store, collector.all_data):
        with pytest.raises(ValueError, match=r"collector.*\b1 step.*\b0\b"):
            call()
    assert buffer.episodes == []


def test_store_refuses_step_fields_and_unknown_fields(collector: EpisodeCollector) -> None:
    collector.append(**step(0))
    for data, problem in (
        ({"action": np.zeros(3)}, r"action .* goal, task"),
        ({"tusk": 3}, r"'tusk'.* action, goal, state, task, value"),
    ):
        with pytest.raises(KeyError, match=problem):
            collector.store(**data)
    assert len(collector) == 1


def test_fields_without_values_are_errors(collector: EpisodeCollector) -> None:
    collector.append(action=np.zeros(3))
    for read in (collector.groups, collector.env_major, collector.time_major):
        with pytest.raises(KeyError, match=r"'value'.* action"):
            read("value")
        with pytest.raises(KeyError, match=r"'colour'.* action, goal, state, task, value"):
            read("colour")


def real(folder: str = "buffer", **more: Any) -> ReplayBuffer:
    fields = {"state": ("float", (2, 3)), "action": "int", "value": ("float", 1)}
    meta_fields = {"task": "int", "goal": ("float", 2)}
    return ReplayBuffer(folder, 5, 9, fields=fields, meta_fields=meta_fields, **more)


def test_episodes_that_the_buffer_refuses_stay_in_the_collector() -> None:
    """M8, M10: if one value or one episode does not fit, none is stored."""
    with closing(real()) as buffer:
        collector = buffer.create_collector(num_groups=3)
        collector.append(**step(0) | {"action": np.array([1, 2, 2**40])})
        with pytest.raises(ValueError, match=r"'action'.*int32.*1099511627776"):
            collector.store()
        assert (buffer.num_episodes, len(collector)) == (0, 1)
        collector.clear()
        full = r"\b3\b.*max_episodes=5\b.*\b2\b"
        for is_full in (False, True):
            collector.append(**step(0))
            with pytest.raises(ValueError, match=full) if is_full else nullcontext():
                collector.store()
        assert (buffer.num_episodes, len(collector)) == (3, 1)


def test_collected_episodes_are_stored_in_the_buffer() -> None:
    with closing(real()) as buffer:
        collector = buffer.create_collector(num_groups=3)
        for t in range(5):
            collector.append(**step(t))
            collector.end([1] if t == 2 else [])
        collector.store(task=np.array([4, 5, 6]), goal=np.zeros(2))
        assert buffer.episode_lens.tolist() == [5, 3, 5, 0, 0]
        assert buffer.meta_data["task"][:3].tolist() == [4, 5, 6]
        for group, steps in enumerate((5, 3, 5)):
            for name in SHAPES:
                found = np.asarray(buffer.data[name][group, :steps])
                assert (found == trajectory(name, steps, group)).all()


@needs_torch
@pytest.mark.parametrize("kind", ["arrays", "tensors"])
def test_the_loader_returns_each_step_of_each_group_once(
    kind: str, collector: EpisodeCollector
) -> None:
    import torch

    for t in range(5):
        values = step(t)
        if kind == "tensors":
            values = {name: torch.from_numpy(value) for name, value in values.items()}
        collector.append(**values)
        collector.end([2] if t == 1 else [])
    batches = list(collector.dataloader(batch_size=5))
    assert [len(batch["action"]) for batch in batches] == [5, 5, 2]
    rows = [(g, t) for g, steps in enumerate((5, 5, 2)) for t in range(steps)]
    for name in SHAPES:
        found = torch.cat([batch[name] for batch in batches]).numpy()
        assert (found == np.stack([step(t)[name][g] for g, t in rows])).all()
    shuffled = torch.cat([b["action"] for b in collector.dataloader(batch_size=4, shuffle=True)])
    assert sorted(shuffled.tolist()) == sorted(g * 1000 + t for g, t in rows)


@needs_torch
def test_the_loader_accepts_the_originals_options(collector: EpisodeCollector) -> None:
    for t in range(4):
        collector.append(**step(t) | {"action": np.array([t % 2, 1, 0])})
    loader = collector.dataloader(
        batch_size=3,
        fields=("state", "action"),
        filter_fields={"action": 1},
        to_named_tuple=("action", "state"),
        drop_last=True,
    )
    batches = list(loader)
    assert [type(batch).__name__ for batch in batches] == ["Batch", "Batch"]
    assert batches[0]._fields == ("action", "state")
    assert all((batch.action == 1).all() for batch in batches)
    assert tuple(batches[0].state.shape) == (3, 2, 3)
    assert [list(batch) for batch in collector.dataloader(2, fields=("value",))] == [["value"]] * 6
    assert [len(b["action"]) for b in collector.dataloader(99, filter_fields={"action": 5})] == []
    item = collector.dataloader(2).dataset[3]
    assert item["action"] == 1
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"filter_fields": {"state": 1}}, r"filter_fields: .*'state'.*\(2, 3\)"),
        ({"to_named_tuple": ("action", "_action")}, r"to_named_tuple: .*'action'"),
    ]
    for options, problem in wrong:
        with pytest.raises(ValueError, match=problem):
            collector.dataloader(2, **options)
    with pytest.raises(KeyError, match=r"'colour'.* state, action, value"):
        collector.dataloader(2, fields=("colour",))
    with pytest.raises(ValueError, match=r"to_named_tuple: .* state, action, value.*'colour'"):
        next(iter(collector.dataloader(2, to_named_tuple=("colour",))))


@needs_torch
@pytest.mark.full
def test_workers_return_named_batches() -> None:
    """The batch class of the original is created in the loader, so it cannot be pickled."""
    collector = EpisodeCollector(RecordingBuffer(), 3)
    collector.append(**step(0))
    loader = collector.dataloader(
        2,
        to_named_tuple=("action",),
        num_workers=1,
        multiprocessing_context="forkserver",
    )
    assert [batch.action.tolist() for batch in loader] == [[0, 1000], [2000]]


@needs_original
@needs_torch
def test_results_equal_those_of_the_original() -> None:
    import torch

    Original: Any = importlib.import_module("memmap_replay_buffer").ReplayBuffer
    fields = {"state": ("float", (2, 3)), "action": "int", "value": ("float", 1)}
    meta = {"task": "int", "goal": ("float", 2)}
    theirs_in = Original("theirs", 5, 9, fields=fields, meta_fields=meta)
    with closing(real()) as ours_in:
        ours, theirs = (one.create_collector(num_groups=3) for one in (ours_in, theirs_in))
        for one in (ours, theirs):
            for t in range(4):
                values = {n: torch.from_numpy(v) for n, v in step(t).items() if n != "value"}
                one.append(**{n: v[:, None] for n, v in values.items()}, task=3)
            one.extend(value=torch.arange(12.0).reshape(4, 3, 1))
        for name in (*SHAPES, "task"):
            for method in ("env_major", "time_major"):
                a, b = (getattr(one, method)(name) for one in (ours, theirs))
                assert np.array_equal(np.asarray(a), np.asarray(b)), (name, method)
            for a, b in zip(ours.groups(name), theirs.groups(name), strict=True):
                assert np.array_equal(np.asarray(a), np.asarray(b)), name
        assert ours.all_data().keys() == theirs.all_data().keys()
        options: dict[str, Any] = {"batch_size": 5, "to_named_tuple": ("action", "value")}
        pairs = zip(ours.dataloader(**options), theirs.dataloader(**options), strict=True)
        for mine, other in pairs:
            assert mine._fields == other._fields
            assert all(torch.equal(a, b) for a, b in zip(mine, other, strict=True))
        for one in (ours, theirs):
            one.store(goal=torch.arange(6.0).reshape(3, 2))
        assert (len(ours), len(theirs)) == (0, 0)
        mine, other = ours_in.get_all_data(), theirs_in.get_all_data()
        assert mine.keys() == other.keys()
        assert all(torch.equal(mine[name], other[name]) for name in other)
