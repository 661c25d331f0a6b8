"""Wrong arguments of public classes are refused in one sentence, before anything changes."""

import copy
import math
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args

import gymnasium as gym
import numpy as np
import pytest

import stepwell as sw
from stepwell.buffers import (
    DiskStorage,
    EpisodeBuffer,
    EpisodeWriter,
    Field,
    NotEnoughData,
    SequenceReplayBuffer,
    Spec,
    Transitions,
    copy_episodes,
    repair,
    verify,
)
from stepwell.buffers.sampling import requests
from stepwell.buffers.sampling.requests import Draw
from stepwell.buffers.testing import check_format

SPEC = Spec.from_spaces(gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(2))
NUMBER: Any = 5
TRANSITION: dict[str, Any] = {
    "observation": np.zeros((2, 4), np.float32),
    "action": np.zeros(2, np.int64),
    "reward": np.zeros(2),
    "next_observation": np.ones((2, 4), np.float32),
    "terminated": np.zeros(2, np.bool_),
    "truncated": np.zeros(2, np.bool_),
}
COLUMNS: dict[str, Any] = {
    "observation": np.zeros((4, 4), np.float32),
    "action": np.zeros(3, np.int64),
    "reward": np.zeros(3),
}


@pytest.mark.parametrize("name", ["num_envs", "chunk_rows", "capacity"])
@pytest.mark.parametrize("value", [0, 1.5, "2", True])
def test_numbers_of_an_episode_buffer_are_whole(name: str, value: Any) -> None:
    arguments: dict[str, Any] = {"num_envs": 2, name: value}
    with pytest.raises(ValueError, match=rf"(?s){name}.*{value!r}"):
        EpisodeBuffer(SPEC, **arguments)


def test_an_episode_buffer_needs_a_spec() -> None:
    with pytest.raises(TypeError, match=r"spec.*NoneType"):
        EpisodeBuffer(None, 2)  # type: ignore[arg-type]


@pytest.mark.parametrize("env_ids", [[0, 0], [0, 2], [-1, 0], [0.0, 1.0], [[0, 1]], "0", True])
def test_env_ids_are_different_indices(env_ids: Any) -> None:
    buffer = EpisodeBuffer(SPEC, 2)
    with pytest.raises(ValueError, match=r"(?s)env_ids.*0 to 1"):
        buffer.add(**TRANSITION, env_ids=env_ids)
    assert buffer.take(everything=True) == []


@pytest.mark.parametrize("metadata", [{0: {"a": {1}}}, {0: 5}, [{"a": 1}]])
def test_metadata_of_a_transition_are_json(metadata: Any) -> None:
    buffer = EpisodeBuffer(SPEC, 2)
    with pytest.raises(TypeError, match="metadata"):
        buffer.add(**TRANSITION, metadata=metadata)
    assert buffer.take(everything=True) == []


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"terminated": "yes"}, "terminated"),
        ({"terminated": np.array([False, False, True])}, "terminated"),
        ({"truncated": 1}, "truncated"),
        ({"metadata": {"a": {1}}}, "metadata"),
        ({"metadata": {"a": float("nan")}}, "metadata"),
    ],
)
def test_arguments_of_an_episode_of_arrays(changed: dict[str, Any], name: str) -> None:
    replay = SequenceReplayBuffer()
    with replay.writer(SPEC) as writer, pytest.raises(TypeError, match=name):
        writer.add_episode(**{**COLUMNS, "terminated": True, **changed})
    assert replay.episodes == 0


def test_a_writer_needs_a_replay() -> None:
    with pytest.raises(TypeError, match=r"replay.*str"):
        EpisodeWriter("runs/x")  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", ["a", -1, 1.5])
def test_the_seed_of_a_replay(seed: Any) -> None:
    with pytest.raises(ValueError, match=rf"(?s)seed.*{seed!r}"):
        SequenceReplayBuffer(seed=seed)


def test_the_capacity_of_a_replay_is_a_number() -> None:
    with pytest.raises(ValueError, match=r"capacity.*'10'"):
        SequenceReplayBuffer(capacity="10")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["capacity", "capacity_bytes"])
@pytest.mark.parametrize("value", [10**20, 1e20, (1 << 62) + 1])
def test_a_capacity_that_could_not_be_read_again_is_refused_before_any_file(
    name: str, value: Any, tmp_path: Path
) -> None:
    limits: dict[str, Any] = {name: value}
    message = rf"^{name}: expected a whole number up to {1 << 62}, got {re.escape(repr(value))}$"
    with pytest.raises(ValueError, match=message):
        SequenceReplayBuffer(tmp_path / "store", **limits)
    with pytest.raises(ValueError, match=message):
        DiskStorage.create(tmp_path / "store", SPEC, **limits)
    assert not (tmp_path / "store").exists()


def test_the_greatest_capacity_can_be_read_again(tmp_path: Path) -> None:
    DiskStorage.create(tmp_path / "store", SPEC, capacity=1 << 62).close()
    with DiskStorage.open(tmp_path / "store", read_only=True) as storage:
        assert storage.capacity == 1 << 62


@pytest.mark.parametrize(
    ("codecs", "error"), [({"observation": "zip"}, ValueError), (["zip"], TypeError)]
)
def test_the_codecs_of_a_replay(codecs: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"(?s)codec.*'zip'"):
        SequenceReplayBuffer(codecs=codecs)


def test_the_path_of_a_replay(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"path.*\b5$"):
        SequenceReplayBuffer(5)  # type: ignore[arg-type]
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ValueError, match=r"notes\.txt\b.*\bfile\b"):
        SequenceReplayBuffer(tmp_path / "notes.txt")


@pytest.mark.parametrize(
    "call",
    [
        lambda path: copy_episodes(NUMBER, SequenceReplayBuffer()),
        lambda path: copy_episodes([SequenceReplayBuffer(), NUMBER], SequenceReplayBuffer()),
        lambda path: copy_episodes(SequenceReplayBuffer(), NUMBER),
        lambda path: check_format(NUMBER, path),
    ],
    ids=["source", "one source", "target", "format"],
)
def test_a_number_is_no_replay_and_no_format(
    call: Callable[[Path], object], tmp_path: Path
) -> None:
    with pytest.raises(TypeError, match=r"^(source|target|format): .*\bint$"):
        call(tmp_path)


@pytest.mark.parametrize("call", [repair, verify, DiskStorage.open])
def test_a_number_is_no_folder(call: Callable[[Any], object]) -> None:
    with pytest.raises(TypeError, match=r"^path: .*\b5$"):
        call(5)


def test_chunks_need_a_spec() -> None:
    with pytest.raises(NotEnoughData, match="bind"):
        SequenceReplayBuffer().add([])


@pytest.mark.parametrize("call", ["sample", "count", "loader", "epoch"])
def test_a_request_is_a_request(call: str) -> None:
    replay = SequenceReplayBuffer(seed=0)
    replay.bind(SPEC, {})
    method: Callable[..., object] = getattr(replay, call)
    with pytest.raises(TypeError, match=r"request.*int"):
        method(5)


@pytest.mark.parametrize("gamma", [2, -0.1, "a"])
def test_gamma_is_a_share(gamma: Any) -> None:
    replay = SequenceReplayBuffer(seed=0)
    with replay.writer(SPEC) as writer:
        writer.add_episode(**COLUMNS, terminated=True)
    with pytest.raises(ValueError, match=rf"(?s)gamma.*{gamma!r}"):
        replay.sample(Transitions(2, gamma=gamma))


# --- draws ---


@pytest.fixture(scope="module")
def drawn_from() -> SequenceReplayBuffer:
    replay = SequenceReplayBuffer(seed=0)
    with replay.writer(SPEC) as writer:
        for step in range(40):
            row = np.full(4, step, np.float32)
            writer.add(row, 0, 0.0, row + 1, step % 10 == 9, False)
    return replay


@pytest.mark.parametrize("draw", ["sample_transitions", "sample_sequences", "sample_episodes"])
@pytest.mark.parametrize("rng", [0, np.int64(3), "seed", np.random.RandomState(0), np.random])
def test_a_source_of_randomness_is_a_generator(
    drawn_from: SequenceReplayBuffer, draw: str, rng: Any
) -> None:
    arguments = [2, 3] if draw == "sample_sequences" else [2]
    with pytest.raises(TypeError, match=r"rng: .*Generator.*default_rng"):
        getattr(drawn_from, draw)(*arguments, rng=rng)


@pytest.mark.parametrize("value", [None, -1, 1.5, "zero", True, [0]])
def test_seeds_strides_and_shards_of_an_epoch_are_whole_numbers(
    drawn_from: SequenceReplayBuffer, value: Any
) -> None:
    each = {"seed": value}, {"stride": value}, {"shard": (value, 2)}, {"shard": value}
    wrong: dict[str, Any]
    for wrong in each:
        (name,) = wrong
        with pytest.raises(ValueError, match=rf"{name}: expected"):
            drawn_from.epoch(Transitions(4), **wrong)


@pytest.mark.parametrize("value", [None, "one", True, -1, math.nan, math.inf, [0.4]])
def test_exponents_and_discounts_of_draws_are_numbers(
    drawn_from: SequenceReplayBuffer, value: Any
) -> None:
    for name in ("beta", "gamma"):
        with pytest.raises(ValueError, match=rf"{name}: expected a number"):
            drawn_from.sample_transitions(4, draw="priorities", **{name: value})
    with pytest.raises(ValueError, match=r"priority_alpha: expected a number"):
        SequenceReplayBuffer(priority_alpha=value)
    if value is not None:
        with pytest.raises(ValueError, match=r"new_priority: expected a number"):
            SequenceReplayBuffer(new_priority=value)


@pytest.mark.parametrize("value", [True, 1, "reward", [1], {"reward": 1}])
def test_names_of_fields_are_a_list_of_texts(drawn_from: SequenceReplayBuffer, value: Any) -> None:
    for name in ("state", "fields"):
        with pytest.raises(ValueError, match=rf"{name}: expected a list of names"):
            drawn_from.sample_sequences(4, 3, **{name: value})


@pytest.mark.parametrize("value", [None, 1, ["steps"], "priority"])
def test_a_draw_mode_is_one_of_those_that_are_named(
    drawn_from: SequenceReplayBuffer, value: Any
) -> None:
    with pytest.raises(ValueError, match=r"draw: expected one of steps, .*priorities"):
        drawn_from.sample_transitions(4, draw=value)


@pytest.mark.parametrize("draw", get_args(Draw))
def test_each_mode_that_a_request_names_has_a_draw_of_its_own(
    drawn_from: SequenceReplayBuffer, draw: Any
) -> None:
    assert len(drawn_from.sample_transitions(4, draw=draw).ids) == 4


def test_a_mode_without_a_draw_of_its_own_is_refused(
    drawn_from: SequenceReplayBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "Draw", Literal["steps", "oldest"])
    with pytest.raises(ValueError, match=r"draw='oldest'"):
        drawn_from.sample_transitions(4, draw="oldest")  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("has_graph", [False, True])
def test_priorities_may_be_tensors(
    drawn_from: SequenceReplayBuffer, dtype: str, has_graph: bool
) -> None:
    torch = pytest.importorskip("torch")
    ids = drawn_from.sample_transitions(8, draw="priorities").ids
    values = torch.ones(8, requires_grad=has_graph).to(getattr(torch, dtype)) * 2
    assert drawn_from.update_priorities(ids, values) == 0


WRONG_NAMES = [
    ("obs", "batch.observation"),
    ("next_obs", "batch.next_observation"),
    ("actions", "batch.action"),
    ("rewards", "batch.reward"),
    ("done", "batch.terminated or .truncated"),
    ("weight", "batch.weights"),
    ("indices", "batch.ids"),
    ("to", "bridges.to_torch"),
    ("nonsense", "one of these"),
]


@pytest.mark.parametrize(("wrong", "right"), WRONG_NAMES)
def test_a_name_of_another_library_is_answered_with_that_of_a_batch(
    drawn_from: SequenceReplayBuffer, wrong: str, right: str
) -> None:
    batch: Any = drawn_from.sample_transitions(4)
    with pytest.raises(AttributeError, match=rf"'{wrong}'.*observation, action.*{right}"):
        getattr(batch, wrong)
    with pytest.raises(TypeError, match=rf"'{wrong}'.*{right}"):
        batch[wrong]
    assert not hasattr(batch, "__array__")
    assert pickle.loads(pickle.dumps(batch)).ids.tolist() == batch.ids.tolist()
    assert copy.deepcopy(batch).ids.tolist() == batch.ids.tolist()


@pytest.mark.parametrize(
    ("draw", "wrong", "right"),
    [
        ("sample_transitions", "n_steps", "n_step"),
        ("sample_transitions", "seed", "rng"),
        ("sample_sequences", "seq_len", "length"),
        ("sample_episodes", "filter", "where"),
        ("sample_episodes", "nonsense", "leave it out"),
    ],
)
def test_an_argument_of_another_library_is_answered_with_that_of_the_draw(
    drawn_from: SequenceReplayBuffer, draw: str, wrong: str, right: str
) -> None:
    arguments = [4, 2] if draw == "sample_sequences" else [4]
    with pytest.raises(TypeError, match=rf"{draw}: .*batch_size.*{wrong}=3.*{right}"):
        getattr(drawn_from, draw)(*arguments, **{wrong: 3})


@pytest.mark.parametrize(
    ("name", "right"),
    [("push", "writer"), ("sample_batch", "sample_transitions"), ("size", r"len\(replay\)")],
)
def test_a_method_of_another_library_is_answered_with_that_of_a_replay(
    drawn_from: Any, name: str, right: str
) -> None:
    with pytest.raises(AttributeError, match=rf"'{name}'.*{right}"):
        getattr(drawn_from, name)
    with pytest.raises(TypeError, match=r"sample_transitions\(32\)"):
        drawn_from.sample(32)
    wrongs: list[Any] = [lambda: drawn_from[0], lambda: next(iter(drawn_from))]
    for wrong in wrongs:
        with pytest.raises(TypeError, match=r"iter_episodes"):
            wrong()


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("ReplayBuffer", "SequenceReplayBuffer"),
        ("PrioritizedReplayBuffer", 'draw="priorities"'),
        ("make", "make_vec"),
        ("load", r"SequenceReplayBuffer\.open"),
    ],
)
def test_a_name_of_another_package_is_answered_with_that_of_this_one(name: str, right: str) -> None:
    with pytest.raises(AttributeError, match=rf"'{name}'.*{right}"):
        getattr(sw, name)


def test_a_number_in_place_of_a_path_is_answered_with_the_capacity() -> None:
    with pytest.raises(TypeError, match=r"path: .*10000.*capacity=10000"):
        SequenceReplayBuffer(10_000)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("observation", "action"),
    [("reward", {}), ({}, "reward"), ("nothing", {}), ({"a": ["reward"]}, {}), (None, {}), (1, {})],
)
def test_a_spec_whose_structure_has_other_fields_is_refused_before_any_file(
    observation: Any, action: Any, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=r"^(observation|action): expected names of fields"):
        DiskStorage.create(
            tmp_path / "a", Spec((Field("reward", "float64", (), "raw"),), observation, action)
        )
    assert not (tmp_path / "a").exists()
