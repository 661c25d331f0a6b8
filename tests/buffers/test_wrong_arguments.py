"""Wrong arguments of public classes are refused in one sentence, before anything changes."""

import copy
import math
import pickle
import re
from pathlib import Path
from typing import Any, get_args

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
from stepwell.buffers.bridges import as_sheeprl_replay, as_tianshou_replay, to_d3rlpy
from stepwell.buffers.dropin import dreamer, frame_history, iris
from stepwell.buffers.dropin.fishyrl import IndependentVectorizedBuffer
from stepwell.buffers.sampling.requests import Draw
from stepwell.buffers.testing import check_format

SPEC = Spec.from_spaces(gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(2))
EMPTY = SequenceReplayBuffer()
TRANSITION: dict[str, Any] = {
    "observation": np.zeros((2, 4), np.float32),
    "action": np.zeros(2, np.int64),
    "reward": np.zeros(2),
    "next_observation": np.ones((2, 4), np.float32),
    "terminated": np.zeros(2, np.bool_),
    "truncated": np.zeros(2, np.bool_),
}


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


NOTES = Path("notes.txt")
DREAMER: dict[str, Any] = {"obs_shape": (4,), "size": 9, "action_size": 2, "seq_len": 3}
WRONG: list[tuple[Any, list[Any], dict[str, Any], type[Exception], str]] = [
    (EpisodeBuffer, [None, 2], {}, TypeError, r"spec.*NoneType"),
    *(
        (EpisodeBuffer, [SPEC], given, ValueError, rf"(?s){name}.*{value!r}")
        for name in ("num_envs", "chunk_rows", "capacity")
        for value in (0, 1.5, "2", True)
        for given in [{"num_envs": 2, name: value}]
    ),
    (EpisodeWriter, ["runs/x"], {}, TypeError, r"replay.*str"),
    *(
        (SequenceReplayBuffer, [], {"seed": seed}, ValueError, rf"(?s)seed.*{seed!r}")
        for seed in ("a", -1, 1.5)
    ),
    (SequenceReplayBuffer, [], {"codecs": {"action": "zip"}}, ValueError, r"(?s)codec.*'zip'"),
    (SequenceReplayBuffer, [], {"codecs": ["zip"]}, TypeError, r"(?s)codec.*'zip'"),
    (SequenceReplayBuffer, [5], {}, TypeError, r"path.*\b5$"),
    (SequenceReplayBuffer, [10_000], {}, TypeError, r"path: .*10000.*capacity=10000"),
    (SequenceReplayBuffer, [NOTES], {}, ValueError, r"notes\.txt\b.*\bfile\b"),
    (SequenceReplayBuffer, [], {"buffer_size": 3}, TypeError, r"=3; did you mean capacity\?"),
    (SequenceReplayBuffer, [], {"max_size": 3}, TypeError, r"=3; did you mean capacity\?"),
    (SequenceReplayBuffer, [], {"alpha": 3}, TypeError, r"did you mean priority_alpha\?"),
    (EMPTY.add, [[]], {}, NotEnoughData, "bind"),
    (copy_episodes, [5, EMPTY], {}, TypeError, r"^source: .*\bint\b"),
    (copy_episodes, [[EMPTY, 5], EMPTY], {}, TypeError, r"^source: .*\bint\b"),
    (copy_episodes, [EMPTY, 5], {}, TypeError, r"^target: .*\bint\b"),
    (check_format, [5, NOTES], {}, TypeError, r"^format: .*\bint$"),
    *(
        (call, [5], {}, TypeError, r"^path: .*\b5$")
        for call in (repair, verify, DiskStorage.open, SequenceReplayBuffer.open)
    ),
    *(
        (bridge, ["runs/x"], {}, TypeError, r"^replay: .*\bstr\b")
        for bridge in (as_sheeprl_replay, as_tianshou_replay, to_d3rlpy)
    ),
    # Drop-ins
    *(
        (dreamer.ReplayBuffer, [], given, ValueError, rf"^{name}: .*>= 1.*{re.escape(repr(value))}")
        for name in ("size", "action_size", "seq_len", "batch_size", "num_envs")
        for value in (0, 2.5, True, "3")
        for given in [{**DREAMER, "batch_size": 4, name: value}]
    ),
    *(
        (kind, [9, shape, 2, 3, 4], {}, ValueError, rf"obs_shape: .*1.*{re.escape(repr(shape))}$")
        for kind in (dreamer.ReplayBuffer, iris.IRISReplayBuffer)
        for shape in (4, (3, -4), (3, 0), (3, 4.0), (True, 3), "ab", None)
    ),
    *(
        (frame_history.ReplayBuffer, [], given, ValueError, rf"^{name}: .*>= 1.*{value}$")
        for name, value in (("size", 0), ("frame_history_len", 0), ("num_envs", 0), ("size", 2.5))
        for given in [{"size": 10, "frame_history_len": 2, name: value}]
    ),
    (IndependentVectorizedBuffer, [0, 10], {}, ValueError, r"num_buffers: .*>= 1.*\b0\b"),
    (IndependentVectorizedBuffer, [2, 0], {}, ValueError, r"capacity: .*>= 1.*\b0\b"),
    (IndependentVectorizedBuffer, [2, 1.5], {}, ValueError, r"capacity: .*>= 1.*\b1\.5\b"),
]


@pytest.mark.parametrize(
    ("call", "arguments", "named", "error", "match"), WRONG, ids=range(len(WRONG))
)
def test_a_wrong_argument_is_named(
    call: Any, arguments: list[Any], named: dict[str, Any], error: type[Exception], match: str
) -> None:
    NOTES.touch()
    with pytest.raises(error, match=match):
        call(*arguments, **named)


@pytest.mark.parametrize("value", ["lots", "0", "-5", "10 steps", "", -1, 2.5, True])
def test_the_capacity_of_a_replay_is_a_number(value: Any) -> None:
    for name in ("capacity", "capacity_bytes", "cache_bytes"):
        limits: dict[str, Any] = {name: value}
        with pytest.raises(ValueError, match=rf"^{name}: expected .*got {value!r}"):
            SequenceReplayBuffer(**limits)


@pytest.mark.parametrize(("text", "steps"), [("100k", 100_000), ("1M", 10**6), ("1e5", 10**5)])
def test_a_capacity_is_read_as_on_the_command_line(text: str, steps: int) -> None:
    assert SequenceReplayBuffer(capacity=text).capacity == steps
    replay = SequenceReplayBuffer(capacity_bytes="1kB", cache_bytes="2MiB")
    observation = np.random.default_rng(0).random((501, 4)).astype(np.float32)
    with pytest.raises(ValueError, match="expected at most capacity_bytes=1000:"):
        with replay.writer(SPEC) as writer:
            writer.add_episode(observation, np.zeros(500, int), np.zeros(500), terminated=True)


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


# --- draws ---


@pytest.fixture(scope="module")
def drawn_from() -> SequenceReplayBuffer:
    replay = SequenceReplayBuffer(seed=0)
    with replay.writer(SPEC) as writer:
        for step in range(40):
            row = np.full(4, step, np.float32)
            writer.add(row, 0, 0.0, row + 1, step % 10 == 9, False)
    return replay


GENERATOR = r"rng: .*Generator.*default_rng"


WRONG_DRAWS: list[tuple[str, list[Any], dict[str, Any], str]] = [
    *((draw, [5], {}, r"request.*int") for draw in ("sample", "count", "loader", "epoch")),
    *(
        ("sample_transitions", [2], {"rng": rng}, GENERATOR)
        for rng in (0, np.int64(3), "seed", np.random.RandomState(0), np.random)
    ),
    ("sample_sequences", [2, 3], {"rng": 0}, GENERATOR),
    ("sample_episodes", [2], {"rng": 0}, GENERATOR),
    *(
        ("epoch", [Transitions(4)], {name: value}, rf"{name}: expected")
        for name in ("seed", "stride", "shard")
        for value in (None, -1, 1.5, "zero", True, [0])
    ),
    ("epoch", [Transitions(4)], {"shard": (1.5, 2)}, "shard: expected"),
    *(
        ("sample_transitions", [4], {"draw": "priorities", name: value}, rf"{name}: expected a")
        for name in ("beta", "gamma")
        for value in (None, "one", True, -1, math.nan, math.inf, [0.4])
    ),
    ("sample_transitions", [4], {"gamma": 2}, "gamma.*2"),
    *(
        ("sample_sequences", [4, 3], {name: value}, rf"{name}: expected a list of names")
        for name in ("state", "fields")
        for value in (True, 1, "reward", [1], {"reward": 1})
    ),
    *(
        (
            "sample_transitions",
            [4],
            {"draw": value},
            r"draw: expected one of steps, .*priorities",
        )
        for value in (None, 1, ["steps"], "priority")
    ),
    # Names of other libraries
    *(
        ("sample_transitions", [4], {"draw": draw}, rf"got '{draw}'; did you mean {right}\?$")
        for draw, right in (
            ("prioritized", "priorities"),
            ("per", "priorities"),
            ("Priority", "priorities"),
            ("uniform", "steps"),
            ("latest", "newest"),
            ("episode", "episodes"),
        )
    ),
    ("sample_sequences", [4, 2], {"borders": "pad"}, r"borders: .*did you mean pad_after\?$"),
    ("sample_transitions", [4], {"n_steps": 3}, "batch_size.*n_steps=3.*n_step"),
    ("sample_transitions", [4], {"seed": 3}, "batch_size.*seed=3.*rng"),
    ("sample_transitions", [4], {"size": 3}, "batch_size.*size=3.*batch_size"),
    ("sample_sequences", [4, 2], {"seq_len": 3}, "batch_size.*seq_len=3.*length"),
    ("sample_episodes", [4], {"filter": 3}, "batch_size.*filter=3.*where"),
    ("sample_episodes", [4], {"nonsense": 3}, "batch_size.*nonsense=3.*leave it out"),
    ("sample_sequences", [4], {"seq_len": 3}, r"got .*seq_len.*; .*length"),
    ("sample_sequences", [4], {"sequence_length": 3}, r"got .*sequence_length.*; .*length"),
    ("sample_sequences", [], {"length": 4, "n": 3}, r"got .*n.*; .*batch_size"),
    ("sample_sequences", [], {"length": 4, "num": 3}, r"got .*num.*; .*batch_size"),
    ("sample_transitions", [], {"size": 3}, r"got .*size.*; .*batch_size"),
    ("sample_episodes", [], {"num_samples": 3}, r"got .*num_samples.*; .*batch_size"),
    ("sample", [], {}, "^request: expected"),
    ("sample_sequences", [4], {}, "^length: expected"),
    ("sample_transitions", [], {}, "^batch_size: expected"),
    ("sample_episodes", [], {}, "^batch_size: expected"),
    ("sample", [], {"batch_size": 3}, r"got .*batch_size.*; .*sample_transitions\(32\)"),
]


@pytest.mark.parametrize(
    ("draw", "arguments", "named", "match"), WRONG_DRAWS, ids=range(len(WRONG_DRAWS))
)
def test_a_wrong_argument_of_a_draw_is_named(
    drawn_from: SequenceReplayBuffer,
    draw: str,
    arguments: list[Any],
    named: dict[str, Any],
    match: str,
) -> None:
    with pytest.raises((TypeError, ValueError), match=match) as caught:
        getattr(drawn_from, draw)(*arguments, **named)
    if match.startswith("^"):
        return
    is_type = match == GENERATOR or match.startswith(("request", "batch_size", "got .*"))
    assert isinstance(caught.value, TypeError) == is_type


@pytest.mark.parametrize("value", [None, "one", True, -1, math.nan, math.inf, [0.4]])
def test_exponents_of_priorities_are_numbers(value: Any) -> None:
    with pytest.raises(ValueError, match=r"priority_alpha: expected a number"):
        SequenceReplayBuffer(priority_alpha=value)
    if value is not None:
        with pytest.raises(ValueError, match=r"new_priority: expected a number"):
            SequenceReplayBuffer(new_priority=value)


@pytest.mark.parametrize("draw", get_args(Draw))
def test_each_mode_that_a_request_names_has_a_draw_of_its_own(
    drawn_from: SequenceReplayBuffer, draw: Any
) -> None:
    assert len(drawn_from.sample_transitions(4, draw=draw).ids) == 4


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
    ("rewards", "batch.reward"),
    ("done", "batch.terminated or batch.truncated"),
    ("weight", "batch.weights"),
    ("indices", "batch.ids"),
    ("log_probs", 'batch.extras["log_prob"]'),
    ("batch_size", "batch.reward.shape"),
    ("to", "stepwell.bridges.to_torch(batch, device)"),
    ("device", "stepwell.bridges.to_torch(batch, device)"),
]


@pytest.mark.parametrize(("wrong", "right"), WRONG_NAMES)
def test_a_name_of_another_library_is_answered_with_that_of_a_batch(
    drawn_from: SequenceReplayBuffer, wrong: str, right: str
) -> None:
    for batch in (drawn_from.sample_transitions(4), drawn_from.sample_sequences(4, 2)):
        kind = type(batch).__name__
        message = f"^{kind} has no '{wrong}': expected {re.escape(right)}"
        with pytest.raises(AttributeError, match=rf"{message}$"):
            getattr(batch, wrong)
        with pytest.raises(KeyError) as error:
            batch[wrong]
        assert re.match(message, error.value.args[0])
        assert getattr(batch, wrong, None) is None


def test_parts_of_batches_have_the_names_of_stored_fields() -> None:
    left, right = np.arange(8, dtype=np.float32), (np.zeros(8), np.ones(8))
    spaces = gym.spaces.Dict(
        left=gym.spaces.Box(0, 9, ()),
        right=gym.spaces.Tuple([gym.spaces.Box(0, 9, (), np.float64)] * 2),
    )
    replay = SequenceReplayBuffer(seed=0)
    kinds: dict[str, Any] = {
        "info": {"room/level": np.int64(0)},
        "extras": {"value": np.float32(0)},
    }
    with replay.writer(Spec.from_spaces(spaces, gym.spaces.Discrete(2)), **kinds) as writer:
        for step in range(7):
            before, after = (
                {"left": left[at], "right": tuple(part[at] for part in right)}
                for at in (step, step + 1)
            )
            given: dict[str, Any] = {
                "info": {"room/level": step},
                "extras": {"value": np.float32(step)},
            }
            writer.add(before, 0, 0.0, after, step == 6, False, **given)
    for batch in (replay.sample_transitions(4), replay.sample_sequences(4, 2)):
        assert batch["observation"] is batch.observation
        assert batch["observation/left"] is batch.observation["left"]
        assert batch["observation/right/1"] is batch.observation["right"][1]
        assert batch["info/room/level"] is batch.info["room/level"]
        assert batch["extra/value"] is batch.extras["value"]
        for wrong in "left observation/up observation/right/2 info/x memory reward/0".split():
            with pytest.raises(KeyError, match=rf"has no '{wrong}': expected"):
                batch[wrong]
        places: list[Any] = [0, slice(2)]
        for place in places:
            with pytest.raises(TypeError, match=r"name of a field.*batch\['reward'\]"):
                batch[place]


def test_a_batch_without_such_a_name_is_copied_and_pickled(
    drawn_from: SequenceReplayBuffer,
) -> None:
    batch: Any = drawn_from.sample_transitions(4)
    with pytest.raises(AttributeError, match=r"'nonsense': expected one of action, .*weights$"):
        _ = batch.nonsense
    assert not hasattr(batch, "__array__")
    assert pickle.loads(pickle.dumps(batch)).ids.tolist() == batch.ids.tolist()
    assert copy.deepcopy(batch).ids.tolist() == batch.ids.tolist()


def test_names_of_rollouts_and_episodes(drawn_from: SequenceReplayBuffer) -> None:
    episode: Any = drawn_from.episode(0)
    envs = sw.make_vec("CartPole-v1", 2, num_workers=0)
    with sw.Collector(envs, "random", seed=0) as collector:
        rollout: Any = collector.rollout(steps=4)
    minibatch: Any = next(rollout.minibatches(4))
    for owner, wrong, right in (
        (episode, "rewards", "episode.reward"),
        (rollout, "obs", "rollout.observation"),
        (minibatch, "advantages", "minibatch.advantage"),
        (minibatch, "to", "stepwell.bridges.to_torch(minibatch, device)"),
    ):
        with pytest.raises(AttributeError, match=f"'{wrong}': expected {re.escape(right)}$"):
            getattr(owner, wrong)
    assert minibatch["reward"] is minibatch.reward


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("push", "writer"),
        ("sample_batch", "sample_transitions"),
        ("size", r"len\(replay\)"),
        ("iterate_episodes", "iter_episodes"),
        ("buffer_size", "capacity"),
    ],
)
def test_a_method_of_another_library_is_answered_with_that_of_a_replay(
    drawn_from: Any, name: str, right: str
) -> None:
    with pytest.raises(AttributeError, match=rf"'{name}'.*{right}"):
        getattr(drawn_from, name)
    assert not hasattr(drawn_from, name)
    draws: list[Any] = [lambda: drawn_from.sample(32), lambda: drawn_from.sample(32, env=None)]
    for draw in draws:
        with pytest.raises(TypeError, match=r"sample_transitions\(32\)"):
            draw()
    with pytest.raises(TypeError, match=r"sample: .*got None, env; leave it out"):
        drawn_from.sample(Transitions(4), None, env=None)
    row = np.zeros(4)
    adds: list[Any] = [
        lambda: drawn_from.add(row, row, 0, 0.0, False, [{}]),
        lambda: drawn_from.add(row),
        lambda: drawn_from.add({"obs": row}),
    ]
    for add in adds:
        with pytest.raises(TypeError, match=r"^add: .*replay\.writer\(env\)\.add\(observation"):
            add()
    wrongs: list[Any] = [lambda: drawn_from[0], lambda: next(iter(drawn_from))]
    for wrong in wrongs:
        with pytest.raises(TypeError, match=r"iter_episodes"):
            wrong()


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("ReplayBuffer", ": expected SequenceReplayBuffer"),
        ("PrioritizedReplayBuffer", 'draw="priorities"'),
        ("make", "make_vec"),
        ("load", r"SequenceReplayBuffer\.open"),
        ("open_dataset", r"SequenceReplayBuffer\.open"),
        ("collect", r"Collector\(envs, policy, replay\)\.collect"),
        ("to_torch", r": expected stepwell\.bridges\.to_torch$"),
        ("EpisodeBuffer", r": expected stepwell\.buffers\.EpisodeBuffer$"),
        ("SequenceReplay", r": did you mean SequenceReplayBuffer\?$"),
        ("nonsense", "'nonsense'$"),
    ],
)
def test_a_name_of_another_package_is_answered_with_that_of_this_one(name: str, right: str) -> None:
    with pytest.raises(AttributeError, match=rf"'{name}'.*{right}" if right[0] != "'" else right):
        getattr(sw, name)
    assert not hasattr(sw, name)


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
