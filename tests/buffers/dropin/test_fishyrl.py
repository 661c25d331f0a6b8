"""The windows of FishyRL's buffer equal the records, without the bugs of the original."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.buffers import NotEnoughData, SequenceReplayBuffer, SpecMismatch
from stepwell.buffers.base.errors import StoreCorrupt
from stepwell.buffers.dropin.fishyrl import (
    IndependentVectorizedBuffer,
    Ratio,
    SequentialBuffer,
    convert_samples_to_tensors,
)
from stepwell.buffers.sampling.requests import Borders, Sequences
from stepwell.buffers.storage.checkpoint import pack
from support.examples import by_tier, examples

N = 3
NEXT, SAME, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED
Record: TypeAlias = "dict[str, np.ndarray]"


class Row(NamedTuple):
    """A stored row with a unique number."""

    number: int
    env: int
    reward: float
    terminated: bool
    truncated: bool
    has_action: bool
    is_first: bool
    extra: int


def obs_of(number: int, env: int) -> list[float]:
    return [number, env, number / 4]


def record_of(
    number: int,
    terminated: np.ndarray | None = None,
    truncated: np.ndarray | None = None,
    *,
    envs: int = N,
    dtypes: tuple[str, str] = ("float64", "bool"),
) -> Record:
    """A record of all envs whose values identify the number and the env."""
    numbers = number * envs + np.arange(envs)
    no = np.zeros(envs, np.bool_)
    return {
        "obs": np.array([obs_of(n, e) for e, n in enumerate(numbers.tolist())], np.float32),
        "rewards": (numbers / 3).astype(dtypes[0]),
        "terminations": (no if terminated is None else terminated).astype(dtypes[1]),
        "truncations": (no if truncated is None else truncated).astype(dtypes[1]),
        "actions": np.stack([numbers, -numbers], axis=1).astype(np.float32),
        "lives": numbers.astype(np.int16),
    }


@dataclass
class Model:
    """The rows of each env, in order."""

    mode: AutoresetMode
    envs: int = N
    rows: list[list[Row]] = field(default_factory=list)
    is_open: list[bool] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rows = [[] for _ in range(self.envs)]
        self.is_open = [False] * self.envs

    def add(self, record: Record, mask: np.ndarray, finals: dict[int, int]) -> None:
        for env in np.flatnonzero(mask).tolist():
            number = int(record["obs"][env, 0])
            reward = float(record["rewards"][env])
            ended = bool(record["terminations"][env]), bool(record["truncations"][env])
            extra = int(record["lives"][env])
            first = not self.is_open[env]
            if self.mode is not SAME or not any(ended):
                row = Row(number, env, reward, *ended, not any(ended), first, extra)
                self.rows[env].append(row)
                self.is_open[env] = not any(ended)
                continue
            self.rows[env] += [
                Row(finals[env], env, reward, *ended, False, first, extra),
                Row(number, env, 0, False, False, True, True, extra),
            ]
            self.is_open[env] = True

    def cut(self) -> None:
        self.is_open = [False] * self.envs

    def windows(self, length: int, borders: str = "cross") -> set[int]:
        """The numbers of the first rows of all windows."""
        found: set[int] = set()
        for rows in self.rows:
            for start in range(len(rows) - length + 1):
                window = rows[start : start + length]
                if borders == "cross" or not any(row.is_first for row in window[1:]):
                    found.add(window[0].number)
        return found

    def window(self, number: int, length: int) -> list[Row]:
        """The window whose first row has this number."""
        for rows in self.rows:
            for start, row in enumerate(rows):
                if row.number == number:
                    return rows[start : start + length]
        raise AssertionError(f"no row {number} was stored")


def check_drawn(
    batch: Record, model: Model, length: int, dtypes: tuple[str, str] = ("float64", "bool")
) -> list[int]:
    """Compare every value of a batch with the model and return the numbers of the first rows."""
    expected = {"obs": "float32", "rewards": dtypes[0], "terminations": dtypes[1]}
    expected |= {"truncations": dtypes[1], "actions": "float32", "lives": "int16"}
    assert {k: str(v.dtype) for k, v in batch.items() if k != "is_first"} == expected
    numbers: list[int] = batch["obs"][:, 0, 0].astype(int).tolist()
    for place, number in enumerate(numbers):
        rows = model.window(number, length)
        assert len(rows) == length
        follows = [row.is_first for row in rows[1:]] + [False]
        ended = [row.terminated or row.truncated for row in rows]
        cut = [f and not e for f, e in zip(follows, ended, strict=True)]
        assert batch["obs"][place].tolist() == [obs_of(row.number, row.env) for row in rows]
        rewards = np.array([row.reward for row in rows]).astype(dtypes[0])
        assert (batch["rewards"][place] == rewards).all()
        assert batch["terminations"][place].tolist() == [row.terminated for row in rows]
        assert batch["truncations"][place].tolist() == [
            row.truncated or is_cut for row, is_cut in zip(rows, cut, strict=True)
        ]
        assert batch["lives"][place].tolist() == [row.extra for row in rows]
        assert batch["actions"][place].tolist() == [
            [row.extra, -row.extra] if row.has_action else [0, 0] for row in rows
        ]
        if "is_first" in batch:
            assert batch["is_first"][place].tolist() == [row.is_first for row in rows]
    return numbers


class Player:
    """Makes the same calls on a buffer and its model."""

    def __init__(self, buffer: IndependentVectorizedBuffer, model: Model) -> None:
        self.buffer, self.model, self.number = buffer, model, 0
        self.dtypes: tuple[str, str] = ("float64", "bool")

    def add(self, mask: list[bool], terminated: list[bool], truncated: list[bool]) -> None:
        flags = np.array(terminated), np.array(truncated)
        record = record_of(self.number, *flags, dtypes=self.dtypes)
        self.number += 1
        finals = {env: self.number * N + env for env in range(N)}
        given: list[np.ndarray | None] = [
            np.array(obs_of(finals[env], env), np.float32) if (flags[0] | flags[1])[env] else None
            for env in range(N)
        ]
        self.number += 1
        self.buffer.add(
            record,
            None if all(mask) else np.array(mask),
            final_obs=given if self.model.mode is SAME else None,
        )
        self.model.add(record, np.array(mask), finals)
        for values in record.values():
            values[...] = 0  # it was copied


FLAGS = st.lists(st.sampled_from([False] * 5 + [True]), min_size=N, max_size=N)
ADDS = st.tuples(
    st.sampled_from([[True] * N] * 3 + [[True, False, True], [False, True, False], [False] * N]),
    FLAGS,
    FLAGS,
)
Add: TypeAlias = "tuple[list[bool], list[bool], list[bool]]"
CALLS = st.lists(
    ADDS
    | st.lists(ADDS, min_size=5, max_size=30)
    | st.sampled_from(["flush", "sample", "cut", "restore", "reset"]),
    max_size=20,
)
Call: TypeAlias = "Add | list[Add] | str"


def play(player: Player, call: Call) -> None:
    buffer, model = player.buffer, player.model
    if call == "flush":
        buffer.flush()
    elif call == "cut":
        buffer.cut()
        model.cut()
    elif call == "reset":
        buffer.reset()
        player.model = Model(model.mode)
    elif call == "restore":
        state = buffer.state_dict()
        player.buffer = IndependentVectorizedBuffer(N, 10_000, autoreset_mode=model.mode)
        player.buffer.load_state_dict(state)
        model.cut()
    elif call == "sample":
        if any(model.rows):
            batch = buffer.sample(4, 1, flags=["is_first"])
            check_drawn(batch, model, 1, player.dtypes)
    elif isinstance(call, list):
        for each in call:
            player.add(*each)
    else:
        assert isinstance(call, tuple)
        player.add(*call)


@given(
    CALLS,
    st.sampled_from([NEXT, SAME, DISABLED]),
    st.integers(1, 6),
    st.sampled_from([("float64", "bool"), ("float32", "bool"), ("int16", "uint8")]),
)
@settings(max_examples=by_tier(30, 100, 200))
def test_windows_equal_the_records(
    calls: list[Call], mode: AutoresetMode, length: int, dtypes: tuple[str, str]
) -> None:
    buffer = IndependentVectorizedBuffer(N, 10_000, seed=0, autoreset_mode=mode)
    player = Player(buffer, Model(mode))
    player.dtypes = dtypes
    for call in calls:
        play(player, call)
    buffer, model = player.buffer, player.model
    kinds: tuple[Borders, ...] = ("cross", "inside")
    assert buffer.size == sum(map(len, model.rows))
    for borders in kinds:
        expected = model.windows(length, borders)
        buffer.flush()
        assert buffer.replay.count(Sequences(1, length, borders)) == len(expected)
        if expected:
            batch = buffer.sample(64, length, borders=borders, flags=("is_first",))
            assert set(check_drawn(batch, model, length, dtypes)) <= expected
        else:
            with pytest.raises(NotEnoughData, match=rf"\b{length} rows"):
                buffer.sample(64, length, borders=borders)


@pytest.mark.proof
@given(st.lists(ADDS, min_size=40, max_size=120), st.integers(5, 25), st.integers(1, 5))
@settings(max_examples=examples(40))
def test_a_full_buffer_returns_correct_windows_of_the_newest_rows(
    adds: list[Add], capacity: int, length: int
) -> None:
    buffer = IndependentVectorizedBuffer(N, capacity, seed=0)
    player = Player(buffer, Model(NEXT))
    for number, each in enumerate(adds):
        player.add(*each)
        if number % 9 == 0:
            buffer.flush()
    buffer.flush()
    rows = sum(map(len, player.model.rows))
    total = N * capacity
    assert buffer.size == min(rows, total)
    assert buffer.is_full == (rows >= total)
    assert len(buffer.replay) <= total + total // 15 + 2
    newest = {row.number for stream in player.model.rows for row in stream[-1:]}
    seen: set[int] = set()
    for _ in range(20):
        batch = buffer.sample(64, length, flags=["is_first"])
        check_drawn(batch, player.model, length)
        seen |= set(batch["obs"][:, -1, 0].astype(int).tolist())
    if length == 1:
        assert newest & seen


def filled(steps: int, episode: int, **arguments: Any) -> Player:
    """A buffer and its model after ``steps`` records of envs whose episodes end together."""
    capacity = arguments.pop("capacity", 1_000)
    buffer = IndependentVectorizedBuffer(N, capacity, seed=0, **arguments)
    player = Player(buffer, Model(arguments.get("autoreset_mode", NEXT)))
    extend(player, steps, episode)
    return player


def extend(player: Player, steps: int, episode: int) -> None:
    for step in range(steps):
        player.add([True] * N, [step % episode == episode - 1] * N, [False] * N)


def test_final_obs_is_required_only_under_same_step() -> None:
    """F1."""
    ended = np.array([False, True, False])
    buffer = IndependentVectorizedBuffer(N, 100, autoreset_mode=SAME)
    buffer.add(record_of(0))
    for final in (None, [None] * N):
        with pytest.raises(ValueError, match=r"final_obs: .*env 1\b.*SAME_STEP"):
            buffer.add(record_of(1, ended), final_obs=final)
    with pytest.raises(ValueError, match=r"final_obs: .*\(3,\).*\(2,\)"):
        buffer.add(record_of(1, ended), final_obs=[None, np.zeros(2), None])
    with pytest.raises(ValueError, match=r"final_obs: .*float32.*float64"):
        buffer.add(record_of(1, ended), final_obs=[None, np.zeros(3), None])
    assert buffer.size == N
    buffer.add(record_of(1, ended), final_obs=np.zeros((N, 3), np.float32))
    assert buffer.size == 2 * N + 1
    for mode in (NEXT, DISABLED):
        other = IndependentVectorizedBuffer(N, 100, autoreset_mode=mode)
        with pytest.raises(ValueError, match=r"final_obs: .*SAME_STEP"):
            other.add(record_of(0), final_obs=np.zeros((N, 3), np.float32))
    with pytest.raises(ValueError, match=r"autoreset_mode: .*AutoresetMode.*'NextStep'"):
        IndependentVectorizedBuffer(N, 100, autoreset_mode="NextStep")  # type: ignore[arg-type]


def test_a_folder_is_continued(tmp_path: Path) -> None:
    """F2, F6."""
    player = filled(40, 7, path=tmp_path / "a")
    player.buffer.close()
    with IndependentVectorizedBuffer(N, 1_000, path=tmp_path / "a") as buffer:
        assert buffer.size == 40 * N
        player.buffer = buffer
        player.model.cut()
        check_drawn(buffer.sample(64, 5, flags=["is_first"]), player.model, 5)
        extend(player, 40, 7)
        check_drawn(buffer.sample(64, 50, flags=["is_first"]), player.model, 50)
        with pytest.raises(ValueError, match=rf"reset: .*RAM.*{re.escape(str(tmp_path / 'a'))}"):
            buffer.reset()
        with pytest.raises(ValueError, match=r"rewards: .*float64.*int64"):
            buffer.add(record_of(0) | {"rewards": np.zeros(N, np.int64)})
    with SequenceReplayBuffer.open(tmp_path / "a", read_only=True) as replay:
        assert {episode.rows for episode in replay.iter_episodes()} == {7, 5}


def test_a_folder_with_other_rows_is_refused(tmp_path: Path) -> None:
    filled(3, 2, path=tmp_path / "a").buffer.close()
    with IndependentVectorizedBuffer(N, 10, path=tmp_path / "a") as buffer:
        with pytest.raises(ValueError, match=r"experience: .*\blives\b.*\bactions;"):
            buffer.add({k: v for k, v in record_of(0).items() if k != "lives"})
    with SequenceReplayBuffer(tmp_path / "b") as replay:
        envs = gym.make("CartPole-v1")
        from stepwell.buffers import Spec

        replay.bind(Spec.from_spaces(envs.observation_space, envs.action_space), {})
    for _ in range(2):  # it is not locked
        with pytest.raises(SpecMismatch, match=re.escape(str(tmp_path / "b"))):
            IndependentVectorizedBuffer(N, 10, path=tmp_path / "b")


def test_a_wrong_mask_and_too_few_rows_are_refused() -> None:
    """F3: rows of envs 0 and 1 went to rings 2 and 3. F4: "a must be a positive integer"."""
    buffer = IndependentVectorizedBuffer(N, 100)
    wrong: tuple[Any, ...] = ([True, False], np.ones(N), [True] * (N + 1))
    for mask in wrong:
        got = re.escape(f"{np.asarray(mask).dtype} ({len(mask)},)")
        with pytest.raises(ValueError, match=rf"mask: .*\b3 bools.*{got}"):
            buffer.add(record_of(0), mask)
    compact = {key: values[:2] for key, values in record_of(0).items()}
    with pytest.raises(ValueError, match=r"^obs: .*\(3, 3\).*\(2, 3\)"):
        buffer.add(compact, np.array([False, True, True]))
    with pytest.raises(NotEnoughData, match=r"sequence_length=64\b.*\b64 rows"):
        buffer.sample(16, sequence_length=64)
    buffer = filled(32, 10).buffer
    with pytest.raises(NotEnoughData, match=r"sequence_length=64\b.*\b32\b.*\b3 envs"):
        buffer.sample(16, sequence_length=64)
    with pytest.raises(NotEnoughData, match=r"\b11 rows.*\b10\b"):
        buffer.sample(16, sequence_length=11, borders="inside")


@pytest.mark.parametrize(
    ("before", "change", "message"),
    [
        (5, {"rewards": np.zeros(N, np.int64)}, r"rewards: .*float64.*int64"),
        (5, {"lives": np.full(N, 0.5)}, r"lives: .*int16.*float64"),
        (5, {"lives": np.zeros(N, np.int32)}, r"lives: .*int16.*int32"),
        (5, {"obs": np.zeros((N, 3))}, r"obs: .*float32.*float64"),
        (5, {"obs": np.zeros((N, 4), np.float32)}, r"obs: .*\(3, 3\).*\(3, 4\)"),
        (5, {"actions": np.zeros((N, 1), np.float32)}, r"actions: .*\(3, 2\).*\(3, 1\)"),
        (5, {"terminations": np.zeros(N)}, r"terminations: .*bool.*float64"),
        (5, {"new": np.zeros(N)}, r"experience: .*\bobs, .*\blives\b.*\bobs, .*\bnew\b"),
        # The first record
        (0, {"rewards": None}, r"experience: .*\bobs, actions\b.*\brewards;"),
        (0, {"actions": None, "obs": None}, r"experience: .*\bobs, actions;"),
        (0, {"lives": np.array(["a"] * N)}, r"lives: .*<U1 \(3,\)"),
        (0, {"lives": np.array(1)}, r"lives: .*int64 \(\)"),
        (0, {"rewards": np.zeros((N, 1))}, r"rewards: .*\(3, 1\)"),
        (0, {"truncations": np.full(N, 2)}, r"truncations: .*\b2 to 2\b"),
        (0, {"obs": np.zeros((2, 3), np.float32)}, r"obs: .*\(3, 3\).*\(2, 3\)"),
    ],
)
def test_wrong_values_and_those_unlike_the_first_are_refused_and_nothing_changes(
    before: int, change: dict[str, np.ndarray | None], message: str
) -> None:
    """F5: values were cast to the first value's dtype, so that 0.5 became 0."""
    player = filled(before, 3)
    record = {k: v for k, v in (record_of(99) | change).items() if v is not None}
    with pytest.raises(ValueError, match=message):
        player.buffer.add(record)
    extend(player, 5, 3)
    batch = player.buffer.sample(100, 4, flags=["is_first"])
    assert set(check_drawn(batch, player.model, 4)) <= player.model.windows(4)


@pytest.mark.proof
def test_a_state_has_the_size_of_the_stored_rows_and_does_not_change() -> None:
    """F6: it had the full-capacity arrays, not copied. F9: only arrays and plain data."""
    player = filled(1, 100, capacity=100_000)
    state = player.buffer.state_dict()
    assert len(pack(state)) < 2_000
    player = filled(50, 7)
    state = player.buffer.state_dict()
    before = pack(state)
    extend(player, 2_000, 7)
    assert pack(state) == before


@pytest.mark.proof
@pytest.mark.parametrize("is_on_disk", [False, True])
def test_a_restored_buffer_draws_the_same_samples(tmp_path: Path, is_on_disk: bool) -> None:
    path = tmp_path / "a" if is_on_disk else None
    player = filled(200, 7, path=path, capacity=50)
    player.buffer.sample(8, 4)
    state = player.buffer.state_dict()
    following = [player.buffer.sample(8, 4) for _ in range(3)]
    player.buffer.close()
    with IndependentVectorizedBuffer(N, 50, seed=5, path=path) as again:
        again.load_state_dict(state)
        assert again.size == 50 * N
        for batch in following:
            restored = again.sample(8, 4)
            assert all((restored[key] == batch[key]).all() for key in batch)


def test_an_invalid_state_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    player = filled(30, 7)
    state = player.buffer.state_dict()
    wrong = [
        (IndependentVectorizedBuffer(2, 10), state, r"state_dict: .*\b2 envs\b.*\b3\b"),
        (player.buffer, {"_buffers": [], "_rng": {}}, r"state_dict: .*_buffers, _rng.*FishyRL"),
        (player.buffer, state | {"rows": state["rows"][:-9]}, r"packed chunks: .*\bbytes\b"),
        (IndependentVectorizedBuffer(N, 10), state | {"generator": {}}, r"generator: .*PCG64"),
        (
            IndependentVectorizedBuffer(N, 10, path=tmp_path / "a"),
            state,
            r"state_dict: .*path=.*/a\b.*\bRAM\b",
        ),
    ]
    for buffer, given_state, message in wrong:
        size = buffer.size
        with pytest.raises((ValueError, StoreCorrupt), match=message):
            buffer.load_state_dict(given_state)
        assert buffer.size == size
    check_drawn(player.buffer.sample(20, 4), player.model, 4)
    empty = IndependentVectorizedBuffer(N, 1_000)
    player.buffer.load_state_dict(empty.state_dict())
    assert player.buffer.size == 0


def test_unknown_flags_are_refused() -> None:
    player = filled(10, 3)
    with pytest.raises(ValueError, match=r"flags: .*is_first, is_last, cut, mask.*'first'"):
        player.buffer.sample(4, 2, flags=["first"])
    padded = player.buffer.sample(40, 9, borders="pad_after", flags=["mask", "is_last", "cut"])
    assert not padded["mask"].all()
    assert (padded["mask"].sum(1) <= 3).all()


def test_sequential_buffer_equals_the_model_of_one_env(tmp_path: Path) -> None:
    one = SequentialBuffer(10, True, 0)
    model = Model(NEXT, envs=1)
    for step in range(35):
        record = record_of(step, np.array([step % 6 == 5]), envs=1)
        one.add({key: values[0] for key, values in record.items()})
        model.add(record, np.array([True]), {})
        assert one.size == min(step + 1, 10)
    assert (one.is_full, one.capacity) == (True, 10)
    check_drawn(one.sample(64, sequence_length=7, flags=["is_first"]), model, 7)
    other = SequentialBuffer(10)
    other.load_state_dict(one.state_dict())
    assert (other.sample(8, 3)["obs"] == one.sample(8, 3)["obs"]).all()
    for call in other.cut, other.flush, other.reset:
        call()
    assert other.size == 0
    with SequentialBuffer(10, path=tmp_path / "a", autoreset_mode=SAME) as kept:
        for step in range(5):
            record = record_of(step, np.array([step == 2]), envs=1)
            final = np.array([-1, -1, -1], np.float32) if step == 2 else None
            kept.add({key: values[0] for key, values in record.items()}, final_obs=final)
        assert kept.size == 6
        assert kept.replay.path == tmp_path / "a"


def test_ratio_returns_whole_numbers_and_0_for_a_ratio_of_0() -> None:
    """F7: ZeroDivisionError."""
    assert [Ratio(0.0)(step) for step in (5, 100)] == [0, 0]
    ratio = Ratio(0.3)
    assert ratio(5) == 1
    again = Ratio(7.0)
    again.load_state_dict(json.loads(json.dumps(ratio.state_dict())))
    assert [again(step) for step in range(6, 30)] == [ratio(step) for step in range(6, 30)]
    with pytest.raises(ValueError, match=r"state_dict: .*Ratio\.state_dict.*_ratio.*_step"):
        again.load_state_dict({"_ratio": 0.5, "_step": 3})
    with pytest.raises(ValueError, match=r"ratio: .*>= 0.*-1\.0"):
        Ratio(-1.0)


def test_samples_become_tensors() -> None:
    torch = pytest.importorskip("torch")
    samples = filled(20, 7).buffer.sample(4, 3)
    tensors = convert_samples_to_tensors(samples, device="cpu")
    assert set(tensors) == set(samples)
    for key, tensor in tensors.items():
        assert (tensor.numpy() == samples[key]).all()
        assert str(tensor.dtype) == f"torch.{samples[key].dtype}"
    halves = convert_samples_to_tensors({"obs": samples["obs"]}, dtype=torch.float16)
    assert halves["obs"].dtype == torch.float16
