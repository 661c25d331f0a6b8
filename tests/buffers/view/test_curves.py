"""Curves hide no value of an episode's rows, and name actions only where a store says the names."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

import stepwell as sw
from stepwell.buffers import Chunk, End, Field, MemoryStorage, Spec
from stepwell.buffers.curation.stored_episode import StoredEpisode, stored_episodes
from stepwell.buffers.spec.open_spaces import fixed_space
from stepwell.buffers.spec.space_json import spaces_facts
from stepwell.buffers.view import curves as module
from stepwell.buffers.view.curves import (
    action_names,
    curve_names,
    curves,
    left_out,
    text_names,
    values_at,
)
from support.examples import examples

FIELDS = (
    Field("observation/joints", "float32", (2, 2), "raw"),
    Field("observation/camera", "uint8", (16, 16), "zstd"),
    Field("observation/near", "bool", (), "raw"),
    Field("action", "int64", (), "narrow"),
    Field("reward", "float64", (), "narrow"),
    Field("info/count", "uint64", (), "raw"),
    Field("extra/value", "float64", (3,), "raw"),
    Field("extra/wave", "complex64", (), "raw"),
)
SPEC = Spec(
    FIELDS,
    {"joints": FIELDS[0].name, "camera": FIELDS[1].name, "near": FIELDS[2].name},
    "action",
)
ROW_BYTES = SPEC.row_bytes - FIELDS[1].row_bytes  # without the image
NUMBERS = [0.0, 1.0, -1.0, 0.1, 1e300, 2.0**53 + 2, -0.0, math.nan, math.inf, -math.inf]


def rows_of(count: int, seed: int, numbers: Sequence[float] = NUMBERS) -> dict[str, np.ndarray]:
    """Random rows of every field."""
    rng = np.random.default_rng(seed)
    finite = [x for x in numbers if abs(x) < 1e30 or x != x]
    return {
        "observation/joints": rng.choice(finite, (count, 2, 2)).astype(np.float32),
        "observation/camera": rng.integers(0, 256, (count, 16, 16), np.uint8),
        "observation/near": rng.random(count) < 0.5,
        "action": rng.integers(-(2**62), 2**62, count),
        "reward": rng.choice(numbers, count),
        "info/count": rng.integers(2**63, 2**64 - 1, count, np.uint64),
        "extra/value": rng.choice(numbers, (count, 3)),
        "extra/wave": (rng.random(count) + 1j * rng.choice(finite, count)).astype(np.complex64),
    }


def episode_of(rows: Mapping[str, np.ndarray], end: End, first_row: int = 0) -> StoredEpisode:
    """An episode in several chunks, perhaps without its first rows."""
    storage = MemoryStorage(SPEC)
    count = len(rows["reward"])
    begins = [*range(0, count, 7)]
    chunks: list[Chunk] = []
    for begin in begins:
        part = {name: each[begin : begin + 7] for name, each in rows.items()}
        flags = end if begin == begins[-1] else End.NONE
        chunks.append(Chunk(0, 0, first_row + begin, flags, part, {}, first_row > 0 and not begin))
    storage.add(chunks)
    (episode,) = stored_episodes(storage)
    return episode


def column(rows: Mapping[str, np.ndarray], name: str, end: End) -> list[Any]:
    """The model: the values of a curve as plain numbers; None where no action was chosen."""
    if name == "return so far":
        total, found = 0.0, []
        for reward in rows["reward"].tolist():
            total += reward
            found.append(total)
        return found
    field, _, place = name.partition("[")
    part = ""
    if field.endswith((".real", ".imag")):
        field, part = field[:-5], field[-4:]
    values = rows[field]
    if place:
        index: tuple[Any, ...] = tuple(map(int, place.strip("]").split(",")))
        values = values[(slice(None), *index)]
    if part:
        values = getattr(values, part)
    found = [int(one) if isinstance(one, bool) else one for one in values.tolist()]
    if end & (End.TERMINATED | End.TRUNCATED | End.PENDING) and field.startswith(
        ("action", "extra")
    ):
        found[-1] = None
    return found


def is_finite(value: Any) -> bool:
    return value is not None and (isinstance(value, int) or math.isfinite(value))


def parts_of(values: Sequence[Any], points: int) -> list[list[Any]]:
    """The values of each part, of which none differs by more than one row."""
    count = min(points, len(values))
    borders = [k * len(values) // count for k in range(count + 1)]
    return [list(values[a:b]) for a, b in pairwise(borders)]


def check(
    rows: Mapping[str, np.ndarray], end: End, first_row: int, begin: int, stop: int, points: int
) -> None:
    """Compare all curves of some rows, counted from the first stored one, with the model."""
    episode = episode_of(rows, end, first_row)
    names = curve_names(SPEC)
    found = curves(episode, names, first_row + begin, first_row + stop, points)
    json.dumps(found, allow_nan=False)
    assert found["stop"] == first_row + stop
    lines: Any = found["curves"]
    assert list(lines) == names
    for name in names:
        values = column(rows, name, end)[begin:stop]
        parts = parts_of(values, points)
        starts = [first_row + begin]
        for part in parts[:-1]:
            starts.append(starts[-1] + len(part))
        assert found["rows"] == starts
        low = [min(filter(is_finite, part), default=None) for part in parts]
        high = [max(filter(is_finite, part), default=None) for part in parts]
        line = lines[name]
        if stop - begin <= points:
            assert same(line["values"], low)
        else:
            assert same(line["low"], low)
            assert same(line["high"], high)
        odd = [str(x) for x in values if x is not None and not is_finite(x)]
        assert line.get("not_finite", {}) == {x: odd.count(x) for x in set(odd)}


def same(found: Sequence[Any], expected: Sequence[Any]) -> bool:
    """Equal numbers, of the same kind."""
    return [*map(repr, map(plus_zero, found))] == [*map(repr, map(plus_zero, expected))]


def plus_zero(value: Any) -> Any:
    return 0.0 if value == 0 and isinstance(value, float) else value


@given(
    st.integers(1, 40),
    st.integers(0, 9),
    st.sampled_from([End.TERMINATED, End.TRUNCATED, End.PENDING, End.NONE]),
    st.sampled_from([0, 5]),
    st.data(),
)
@settings(max_examples=examples(200))
def test_curves_are_those_of_the_model(
    count: int, seed: int, end: End, first_row: int, data: st.DataObject
) -> None:
    begin = data.draw(st.integers(0, count - 1))
    stop = data.draw(st.integers(begin + 1, count))
    points = data.draw(st.integers(1, 50))
    check(rows_of(count, seed), end, first_row, begin, stop, points)


@pytest.mark.parametrize("rows", [1, 2, 3, 7])
def test_blocks_of_any_size_give_the_same_curves(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_READ_BYTES", rows * ROW_BYTES)
    for points in (1, 3, 4, 25, 100):
        for end in (End.TERMINATED, End.NONE):
            check(rows_of(25, 1), end, 0, 0, 25, points)
            check(rows_of(25, 2, NUMBERS[:7]), end, 3, 4, 23, points)


def test_names_of_curves_leave_images_out() -> None:
    assert curve_names(SPEC) == [
        *("return so far", "reward", "action"),
        *("observation/joints[0,0]", "observation/joints[0,1]"),
        *("observation/joints[1,0]", "observation/joints[1,1]", "observation/near"),
        *("info/count", "extra/value[0]", "extra/value[1]", "extra/value[2]"),
        *("extra/wave.real", "extra/wave.imag"),
    ]
    assert left_out(SPEC) == ""


def test_wide_fields_are_shortened_which_is_said() -> None:
    wide = [Field(f"extra/{k}", "float32", (100,), "raw") for k in range(40)]
    spec = Spec((*FIELDS, *wide), SPEC.observation, SPEC.action)
    names = curve_names(spec)
    assert len(names) == len(set(names)) == 256
    assert "extra/0[15]" in names
    assert "extra/0[16]" not in names
    text = left_out(spec)
    assert "256 of 654" in text
    assert "16 of 100 components of extra/0" in text
    assert "extra/0[99]" in text
    assert len(text) < 2000


@pytest.mark.parametrize(
    "name",
    [
        *("", "reward[0]", "observation/joints", "observation/joints[0]", "extra/wave"),
        *("observation/joints[0,2]", "observation/joints[0,0,0]", "observation/joints[-1,0]"),
        *("extra/value[3]", "extra/value[999999999999]", "extra/value[0", "extra/value[0].real"),
        *("observation/camera", "observation/camera[0,0]", "info/none", "x" * 10**5),
    ],
)
def test_a_curve_that_is_none_is_refused(name: str) -> None:
    episode = episode_of(rows_of(3, 0), End.TERMINATED)
    with pytest.raises(ValueError, match="return so far, reward, action") as caught:
        curves(episode, [name])
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"begin": 1}, r"episode 0\b.*\b2 up to 5\b.*\b1 up to 5\b"),
        ({"stop": 6}, r"episode 0\b.*\b2 up to 5\b.*\b2 up to 6\b"),
        ({"begin": 4, "stop": 4}, r"\b4 up to 4\b"),
        ({"points": 0}, r"points\b.*\b0$"),
        ({"points": 10**9}, r"points\b.*\b1000000000$"),
        ({"names": ["reward"] * 65}, r"\b64 curves\b.*\b65\b"),
    ],
)
def test_numbers_out_of_range_are_refused(more: dict[str, Any], message: str) -> None:
    episode = episode_of(rows_of(3, 0), End.TERMINATED, 2)
    with pytest.raises(ValueError, match=message):
        curves(episode, **{"names": ["reward"], **more})


@pytest.mark.parametrize("end", [End.TERMINATED, End.PENDING, End.NONE])
def test_values_of_a_row_are_exact(end: End) -> None:
    rows = rows_of(9, 3)
    episode = episode_of(rows, end, 4)
    for row in range(9):
        found = values_at(episode, 4 + row)
        json.dumps(found, allow_nan=False)
        assert "observation/camera" not in found
        assert len(found) == len(FIELDS) - 1
        has_action = row < 8 or end == End.NONE
        assert (found["action"] is not None) == (found["extra/value"] is not None) == has_action
        assert found["info/count"] == str(rows["info/count"][row])
        assert found["observation/near"] is bool(rows["observation/near"][row])
        reward = rows["reward"][row].item()
        is_plain = math.isfinite(reward)
        assert found["reward"] == (reward if is_plain else str(reward))
    with pytest.raises(ValueError, match=r"\b4\b.*\b12\b.*\b13\b"):
        values_at(episode, 13)


def test_values_of_wide_fields_are_cut() -> None:
    spec = Spec(
        (Field("reward", "float64", (), "raw"), Field("info/x", "int8", (500,), "raw")), {}, {}
    )
    storage = MemoryStorage(spec)
    wide = np.ones((1, 500), np.int8)
    storage.add([Chunk(0, 0, 0, End.NONE, {"reward": np.zeros(1), "info/x": wide})])
    (episode,) = stored_episodes(storage)
    assert values_at(episode, 0)["info/x"] == [*[1] * 64, "… 436 more"]


WORDS = (
    spaces.Dict({"mission": spaces.Text(600), "pair": spaces.Tuple([spaces.Text(4)])}),
    spaces.Text(5),
)
SAID, SAYS = fixed_space(WORDS[0]), fixed_space(WORDS[1], "action")


def test_texts_are_shown_in_one_piece_and_are_no_curves() -> None:
    spec = Spec.from_spaces(SAID, SAYS)
    texts = text_names([spaces_facts(SAID, SAYS)], spec)
    assert texts == ["observation/mission", "observation/pair/0", "action"]
    assert curve_names(spec, texts) == ["return so far", "reward"]
    assert left_out(spec, texts) == ""
    with sw.SequenceReplayBuffer() as replay:
        with replay.writer(WORDS) as writer:
            first = {"mission": "fetch", "pair": ("a",)}
            writer.add(first, "go", 1.0, {"mission": "e" * 600, "pair": ("key",)}, True, False)
        (episode,) = stored_episodes(replay.storage)
        shown = [values_at(episode, row, texts) for row in range(2)]
    assert shown[0] == {
        "reward": 0.0,
        "observation/mission": "fetch",
        "observation/pair/0": "a",
        "action": "go",
    }
    assert shown[1]["observation/mission"] == "e" * 512 + " … 88 more"
    assert shown[1]["action"] is None


@pytest.mark.parametrize(
    "facts",
    [
        {"spaces": 3},
        {"spaces": {"observation": {"type": "Dict", "spaces": 3}}},
        {"spaces": {"info": spaces_facts(SAID, SAYS)}},
    ],
)
def test_wrong_facts_about_texts_are_ignored(facts: dict[str, Any]) -> None:
    assert text_names([facts], SPEC) == []


# Names of actions


def spec_of_action(shape: tuple[int, ...] = (), dtype: str = "int64") -> Spec:
    return Spec((Field("action", dtype, shape, "narrow"),), {}, "action")


def session(recipe: object, n: object = 2, **more: object) -> dict[str, object]:
    space = {"type": "Discrete", "dtype": "int64", "n": n, "start": 0}
    return {"recipe": recipe, "spaces": {"action": space}, **more}


NES = {"maker": "make_nes", "actions": ["NOOP", "RIGHT"], "is_multibinary": False}
BITS = {"maker": "make_nes", "actions": ["A", "B"], "is_multibinary": True}
PONG = ["NOOP", "FIRE", "RIGHT", "LEFT", "RIGHTFIRE", "LEFTFIRE"]
ATARI = {"maker": "make_atari", "game": "pong", "full_actions": False}
GYM = {
    "maker": "make_vec",
    "id": "ALE/Pong-v5",
    "kwargs": {"game": "pong", "full_action_space": False},
    "wrappers": [{"name": "AtariPreprocessing"}],
}
IN_GYM = {"maker": "make_vec", "id": "Nes-v0", "wrappers": [], "env": NES}


@pytest.mark.parametrize(
    ("sessions", "names"),
    [
        ([session(NES)], ["NOOP", "RIGHT"]),
        ([session(IN_GYM)], ["NOOP", "RIGHT"]),
        ([session(NES), session(NES), {"source": "rows of one's own"}], ["NOOP", "RIGHT"]),
        ([session(NES), session({**NES, "actions": ["NOOP", "LEFT"]})], None),
        ([session(NES, 3)], None),
        ([session(BITS)], None),
        ([session({**IN_GYM, "wrappers": [{"name": "SwapActions"}]})], None),
        ([session(NES, vector_wrappers=["SwapActions"])], None),
        ([session({**NES, "actions": ["NOOP", 3]})], None),
        ([session({**NES, "actions": ["x"] * 10**5}, 10**5)], None),
        ([session({**NES, "actions": ["x" * 10**6, "y"]})], ["x" * 64, "y"]),
        ([session({**ATARI, "game": "../../etc/passwd"}, 6)], None),
        ([session([1]), session(None), {}], None),
        ([session({**IN_GYM, "wrappers": [{"name": ["TimeLimit"]}, 3]})], None),
        ([], None),
    ],
)
def test_names_of_actions_are_those_that_the_runs_say(
    sessions: list[dict[str, object]], names: list[str] | None
) -> None:
    assert action_names(sessions, spec_of_action()) == names


def test_each_bit_of_a_multibinary_action_has_a_name() -> None:
    sessions: list[dict[str, object]] = [{"recipe": BITS}]
    assert action_names(sessions, spec_of_action((2,), "int8")) == ["A", "B"]
    assert action_names(sessions, spec_of_action((3,), "int8")) is None
    assert action_names(sessions, spec_of_action((2,), "float32")) is None


@pytest.mark.parametrize(
    ("recipe", "n", "names"),
    [
        (ATARI, 6, PONG),
        (GYM, 6, PONG),
        ({**GYM, "wrappers": [{"name": "Unknown"}]}, 6, None),
        ({**ATARI, "full_actions": None}, 6, None),
        (ATARI, 18, None),
    ],
)
def test_names_of_ataris_actions_are_those_of_ale_py(
    recipe: dict[str, object], n: int, names: list[str] | None
) -> None:
    pytest.importorskip("ale_py")
    assert action_names([session(recipe, n)], spec_of_action()) == names


@pytest.mark.proof
@pytest.mark.parametrize("full_actions", [False, True])
def test_names_of_a_game_are_those_that_its_env_has(full_actions: bool) -> None:
    pytest.importorskip("ale_py")
    from stepwell.wrappers.ale_env import action_meanings

    replay = sw.SequenceReplayBuffer()
    envs = sw.make_atari("breakout", 1, full_actions=full_actions, num_workers=0)
    with sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector:
        true = action_meanings(envs.envs[0])  # type: ignore[attr-defined]
        collector.collect(steps=4)
    assert action_names(replay.storage.sessions, replay.storage.spec) == true
    assert len(true) == (18 if full_actions else 4)
