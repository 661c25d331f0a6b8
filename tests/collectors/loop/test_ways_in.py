"""The same rule for what an env returns, in every way into a store: refused, or stored as it is."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

import stepwell as sw
from stepwell.buffers import SpecMismatch

# Gymnasium logs what a worker of its own raised.
pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning")

Make = Callable[[], gym.Env[Any, Any]]
BOX = spaces.Box(-np.inf, np.inf, (2,), np.float32)


class Given(gym.Env[Any, Any]):
    """Returns what it is given; an episode has three steps.

    Args:
        space: The observation space.
        observation: Every observation, but for the first one.
        **given: Other values of a step by name.
    """

    action_space = spaces.Discrete(2)

    def __init__(self, space: Any = BOX, observation: Any = None, **given: Any) -> None:
        self.observation_space = space
        self.given = {
            "observation": space.sample() if observation is None else observation,
            "reward": 1.0,
            "terminated": None,
            "truncated": False,
            "info": {},
            **given,
        }

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        first = self.observation_space.sample()
        return self.given.get("reset", (first, {}))

    def step(self, action: Any) -> Any:
        self.t += 1
        observation, reward, terminated, truncated, info = (
            self.given[name]
            for name in ("observation", "reward", "terminated", "truncated", "info")
        )
        if terminated is None:
            terminated = self.t == 3
        elif callable(terminated):
            terminated = terminated(self.t == 3)
        five = observation, reward, terminated, truncated, info
        return self.given.get("step", five)


def collected(envs: Any, info: Any = None) -> sw.SequenceReplayBuffer:
    replay = sw.SequenceReplayBuffer()
    with sw.Collector(envs, "random", replay, seed=0, info=info) as collector:
        collector.collect(steps=12)
    return replay


def recorded(env: Any, info: Any = None) -> sw.SequenceReplayBuffer:
    replay = sw.SequenceReplayBuffer()
    recorded = sw.record(env, replay, info=info)
    is_vector = isinstance(env, gym.vector.VectorEnv)
    actions = np.zeros(2, np.int64) if is_vector else np.int64(0)
    try:
        recorded.reset(seed=0)
        for step in range(1, 7):
            recorded.step(actions)
            if step % 3 == 0 and not is_vector:
                recorded.reset()
    finally:
        recorded.close()
    return replay


WAYS: dict[str, Callable[..., sw.SequenceReplayBuffer]] = {
    "workers": lambda make, **k: collected(sw.make_vec(make, 2, num_workers=1), **k),
    "num_workers=0": lambda make, **k: collected(sw.make_vec(make, 2, num_workers=0), **k),
    "one env": lambda make, **k: collected(make(), **k),
    "sync": lambda make, **k: collected(SyncVectorEnv([make] * 2), **k),
    "same step": lambda make, **k: collected(
        SyncVectorEnv([make] * 2, autoreset_mode=AutoresetMode.SAME_STEP), **k
    ),
    "async": lambda make, **k: collected(AsyncVectorEnv([make] * 2), **k),
    "record": lambda make, **k: recorded(make(), **k),
    "record sync": lambda make, **k: recorded(SyncVectorEnv([make] * 2), **k),
}
ALL_WAYS = ("300 in uint8", "no reward", "two flags", "an observation alone")
FEW = ("workers", "num_workers=0", "one env", "record")

PARTS = spaces.Dict({"image": spaces.Box(0, 255, (2,), np.uint8), "pose": BOX})
IMAGE, POSE = np.zeros(2, np.uint8), np.zeros(2, np.float32)
MASKED = np.ma.array([1.0, 2.0], mask=[True, False], dtype=np.float32)

# What the env returns, and what the sentence says.
REFUSED: dict[str, tuple[Make, str]] = {
    "300 in uint8": (
        partial(Given, spaces.Box(0, 255, (2,), np.uint8), np.array([0, 300], np.uint16)),
        r"observation.*uint8.*300",
    ),
    "1e39 in float32": (partial(Given, BOX, np.array([1e39, 0])), r"observation.*float32.*1e\+39"),
    "2**24 + 1 in float32": (
        partial(Given, BOX, np.array([2**24 + 1, 0])),
        "can hold, got 16777217",
    ),
    "a reward of 2**53 + 1": (partial(Given, reward=2**53 + 1), "can hold, got 9007199254740993"),
    "floats as an image": (
        partial(Given, spaces.Box(0, 255, (2,), np.uint8), np.zeros(2)),
        r"observation.*uint8.*float64",
    ),
    "a fraction as a number": (partial(Given, spaces.Discrete(5), 0.5), r"observation.*int64.*0.5"),
    "a text": (partial(Given, spaces.Discrete(5), "3"), r"observation.*int64.*'3'"),
    "too large": (partial(Given, spaces.Discrete(5), 2**70), r"observation.*int64.*11805916"),
    "masked": (partial(Given, BOX, MASKED), "observation.*masked"),
    "another shape": (partial(Given, BOX, np.zeros(1, np.float32)), r"observation.*\(2,\).*\(1,\)"),
    "in a Dict": (
        partial(Given, PARTS, {"image": np.array([0, 300]), "pose": POSE}),
        r"observation\['image'\].*uint8.*300",
    ),
    "a missing key": (partial(Given, PARTS, {"image": IMAGE}), "observation.*'pose'.*'image'"),
    "another key": (
        partial(Given, PARTS, {"image": IMAGE, "pose": POSE, "depth": POSE}),
        "observation.*'depth'",
    ),
    "a short tuple": (partial(Given, spaces.Tuple((BOX, BOX)), (POSE,)), "observation.*tuple of 2"),
    "no reward": (partial(Given, reward=None), "reward.*None"),
    "a reward of text": (partial(Given, reward="1.5"), "reward.*'1.5'"),
    "two rewards": (
        partial(Given, reward=[1.0, 2.0]),
        r"reward.*one number.*1.0, 2.0.*VectorReward",
    ),
    "an array of two": (partial(Given, reward=np.ones(2)), r"reward.*one number.*\(2,\)"),
    "a masked reward": (partial(Given, reward=np.ma.masked), "reward.*masked"),
    "two flags": (
        partial(Given, terminated=lambda end: [end, end]),
        r"terminated.*one flag.*\[False, False\]",
    ),
    "a tuple of flags": (partial(Given, truncated=(False, False)), "truncated.*one flag"),
    "a dict of flags": (partial(Given, terminated=lambda end: {"a": end}), "terminated.*'a'"),
    "a flag of text": (partial(Given, terminated=lambda end: str(end)), "terminated.*'False'"),
    "no flag": (partial(Given, terminated=lambda end: None), "terminated.*None"),
    "four values": (partial(Given, step=(POSE, 1.0, False, {})), "step.*truncated.*4 values"),
    "an info of text": (partial(Given, info="none"), "info.*'none'"),
    "an observation alone": (partial(Given, reset=POSE), r"reset.*info.*float32 \(2,\)"),
    "a tuple without info": (partial(Given, reset=(POSE, POSE)), r"reset.*info.*float32 \(2,\)"),
    "no reset": (partial(Given, reset=None), "reset.*info.*None"),
}


CASES = [
    (name, way)
    for name in REFUSED
    for way in (WAYS if name in ALL_WAYS else FEW)  # the others share their code with these
]


@pytest.mark.parametrize(("name", "way"), CASES)
def test_what_does_not_fit_is_refused_in_one_sentence_that_names_it(name: str, way: str) -> None:
    make, message = REFUSED[name]
    with pytest.raises(ValueError, match=message) as caught:
        WAYS[way](make)
    assert "\n" not in str(caught.value)
    assert "env" in str(caught.value)


@pytest.mark.parametrize("way", WAYS)
def test_a_value_that_is_refused_is_not_stored_but_the_rows_before_are(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Late(Given):
        def step(self, action: Any) -> Any:
            result = super().step(action)
            return (np.array([self.t * 200.0 * 1e36, 0]), *result[1:])

    replays: list[sw.SequenceReplayBuffer] = []
    make_replay = sw.SequenceReplayBuffer

    def made() -> sw.SequenceReplayBuffer:
        replays.append(make_replay())
        return replays[-1]

    monkeypatch.setattr(sw, "SequenceReplayBuffer", made)
    with pytest.raises(ValueError, match="float32"):
        WAYS[way](Late)
    (replay,) = replays
    assert replay.steps in (1, 2)
    assert all(np.isfinite(one.observation).all() for one in replay.iter_episodes())


@pytest.mark.parametrize("way", WAYS)
def test_what_fits_is_stored(way: str) -> None:
    """Floats are rounded, numbers of other dtypes kept, and arrays of one number are numbers."""
    space = spaces.Dict({"image": spaces.Box(0, 255, (2,), np.uint8), "pose": BOX})
    make = partial(
        Given,
        space,
        {"image": np.array([0, 255]), "pose": [0.1, 3]},
        reward=np.array([1.5]),
        terminated=lambda end: np.array([end]),
        truncated=0,
        info=None,
    )
    for episode in WAYS[way](make).iter_episodes():
        assert episode.observation["image"][1:].tolist() == [[0, 255]] * episode.steps
        assert np.array_equal(episode.observation["pose"][-1], np.array([0.1, 3], np.float32))
        assert episode.reward[1:].tolist() == [1.5] * episode.steps
        assert episode.steps <= 3
        assert bool(episode.terminated[-1]) == (episode.steps == 3)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("value", [1e39, np.ma.masked_array([1.0], mask=[True])[0], 0.5, None])
def test_infos_that_do_not_fit_are_refused(value: Any, way: str) -> None:
    missing: Any = np.float32(0) if value != 0.5 else -1
    with pytest.raises(SpecMismatch, match="info field 'force'"):
        WAYS[way](partial(Given, info={"force": value}), info={"force": missing})


def test_an_env_of_the_old_api_in_gymnasiums_class_is_told_the_way_that_works() -> None:
    class HalfMigrated(gym.Env[Any, Any]):
        observation_space, action_space = BOX, spaces.Discrete(2)

        def reset(self) -> Any:  # type: ignore[override]
            self.t = 0
            return np.zeros(2, np.float32)

        def step(self, action: Any) -> Any:
            self.t += 1
            return np.full(2, self.t, np.float32), 1.0, self.t == 3, {}

    for way in WAYS.values():
        with pytest.raises(ValueError, match=r"reset.*seed.*from_gym"):
            way(HalfMigrated)
    for name in FEW:
        replay = WAYS[name](lambda: sw.from_gym(HalfMigrated()))
        assert {one.steps for one in replay.iter_episodes() if one.terminated[-1]} == {3}


class OddReset(gym.Env[Any, Any]):
    """Its reset is an attribute of the env."""

    observation_space, action_space = BOX, spaces.Discrete(2)

    def __init__(self, reset: Any) -> None:
        self.t = 0
        self.reset = reset  # type: ignore[method-assign]

    def step(self, action: Any) -> Any:
        self.t += 1
        return np.full(2, self.t, np.float32), 1.0, self.t % 3 == 0, False, {}


def _first(seed: Any = None, options: Any = None) -> Any:
    return np.zeros(2, np.float32), {}


ODD_RESETS = {  # with the error of each; None where it works
    "lambda": (lambda seed=None, options=None: _first(seed, options), None),
    "partial": (partial(_first, seed=3), None),
    "any keyword": (lambda **given: _first(**given), None),
    "no seed": (lambda: _first(), r"env.*expected reset\(seed=\.\.\..*from_gym"),
    "no options": (lambda seed=None: _first(seed), r"env.*expected reset\(seed=\.\.\..*from_gym"),
    "by place": (lambda seed=0, options=0, /: _first(), r"env.*expected reset\(seed=.*from_gym"),
    "builtin": ({}.get, r"env.*expected reset\(seed=\.\.\..*from_gym"),
    "a bug": (
        lambda **given: _first(*cast("Any", len(given))),
        r"argument after \* must be an iterable, not int$",
    ),
}


@pytest.mark.parametrize("way", FEW)
@pytest.mark.parametrize("odd", ODD_RESETS)
def test_a_reset_of_any_kind_gets_seed_and_options_or_is_refused(odd: str, way: str) -> None:
    reset, message = ODD_RESETS[odd]
    if message is None:
        assert WAYS[way](partial(OddReset, reset)).steps
        return
    with pytest.raises((TypeError, ValueError), match=message):
        WAYS[way](partial(OddReset, reset))


def test_vector_envs_of_others_have_one_number_and_flag_for_each_env() -> None:
    """As EnvPool's and others that return arrays of their own."""

    class Pool(SyncVectorEnv):
        changes: dict[str, Any]

        def step(self, actions: Any) -> Any:
            names = ("observation", "reward", "terminated", "truncated", "info")
            result = dict(zip(names, super().step(actions), strict=True))
            return tuple({**result, **self.changes}.values())

    for name, value, message in (
        ("reward", np.array(["1.5", "2"]), "reward.*1.5"),
        ("reward", np.array([1.0, None], object), "reward.*None"),
        ("reward", np.ones((2, 2)), r"reward.*one number.*\(2, 2\)"),
        ("reward", np.ma.array([1.0, 2.0], mask=[False, True]), "reward.*masked"),
        ("terminated", np.zeros((2, 2), np.bool_), r"terminated.*one flag.*\(2, 2\)"),
        ("truncated", np.array(["", ""]), "truncated"),
        (
            "observation",
            np.ma.array(np.zeros((2, 2), np.float32), mask=True),
            "observation.*masked",
        ),
    ):
        envs = Pool([Given] * 2)
        envs.changes = {name: value}
        for way in (collected, recorded):
            with pytest.raises(ValueError, match=message):
                way(envs)
    for given, stored in (
        (np.full((2, 1), 1.5, np.float32), 1.5),
        (np.full(2, 3, np.int32), 3.0),
        (np.full(2, 2**53), 2.0**53),
    ):
        envs = Pool([Given] * 2)
        envs.changes = {"reward": given}
        for episode in collected(envs).iter_episodes():
            assert episode.reward.dtype == np.float64
            assert episode.reward[1:].tolist() == [stored] * episode.steps
