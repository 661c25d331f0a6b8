"""Envs of the old `gym` become correct gymnasium envs; each behaviour of old envs is a fake."""

from __future__ import annotations

import json
import sys
import warnings
from collections import namedtuple
from collections.abc import Callable
from typing import Any, cast

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import ClosedEnvironmentError, ResetNeeded, UnsupportedMode
from gymnasium.utils.env_checker import check_env
from gymnasium.utils.passive_env_checker import data_shares_objects
from gymnasium.vector import SyncVectorEnv

import support.libraries.old_gym_fakes as old
from stepwell.wrappers import from_gym
from stepwell.wrappers.env_results import owned_info
from stepwell.wrappers.old_gym import OldGymEnv, modern_space
from support.libraries.old_gym_fakes import JoypadSpace, MixedEnv, NewerEnv, OldEnv, Wrapper

Make = Callable[..., Any]
ENVS: dict[str, Make] = {
    "0.21": OldEnv,
    "0.26": NewerEnv,
    "wrapped": lambda: Wrapper(OldEnv()),
    "joypad": lambda: JoypadSpace(Wrapper(OldEnv()), [0, 5, 9, 17]),
    "newer wrapped": lambda: Wrapper(Wrapper(NewerEnv())),
    "mixed": MixedEnv,
}


def adapted(env: object, **words: Any) -> OldGymEnv:
    return cast(OldGymEnv, from_gym(env, **words))


def answering(step: Callable[[OldEnv, old.Frame], Any]) -> OldGymEnv:
    """Return an adapted env after reset, whose steps return the results of the function."""
    env = adapted(OldEnv(step=step))
    env.reset()
    return env


def reset_of(space: Any, observation: object) -> Any:
    """The first observation of an adapted env with that space, whose reset returns the other."""
    return from_gym(drawing(observation_space=space, reset=lambda: observation)).reset()[0]


@pytest.mark.parametrize("make", ENVS.values(), ids=ENVS)
def test_gymnasiums_checker_finds_nothing_wrong(make: Make) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*does not have a spec.*|.*not having a spec.*")
        warnings.filterwarnings("ignore", ".*symmetric and normalized.*")
        check_env(adapted(make()))


def test_the_old_gym_is_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gym", None)  # to import it would fail
    adapted(OldEnv()).reset()


# What step returns

GIVEN: list[tuple[tuple[Any, ...], tuple[Any, ...]]] = [
    ((1, False, {"a": 1}), (1.0, False, False, {"a": 1})),
    ((1, True, {}), (1.0, True, False, {})),
    ((1, True, None), (1.0, True, False, {})),
    ((1, True, {"TimeLimit.truncated": True}), (1.0, False, True)),
    ((1, True, {"TimeLimit.truncated": np.bool_(True)}), (1.0, False, True)),
    ((1, True, {"TimeLimit.truncated": False}), (1.0, True, False)),  # both came at once
    ((1, False, {"TimeLimit.truncated": True}), (1.0, False, False)),  # done decides
    ((1, True, {"discount": np.float32(1)}), (1.0, False, True)),  # as dm_env tells a time limit
    ((1, True, {"discount": 1.0, "TimeLimit.truncated": False}), (1.0, True, False)),
    *(((1, True, {"discount": value}), (1.0, True, False)) for value in (0.0, 0.99, None, [1, 0])),
    ((1, False, {"discount": 1.0}), (1.0, False, False)),
    ((1, False, True, {"a": 1}), (1.0, False, True, {"a": 1})),
    ((1, np.bool_(True), np.int64(0), {}), (1.0, True, False, {})),
    *(((1, done, {}), (1.0, True, False)) for done in (np.bool_(True), 1, np.array([True]), 1.0)),
    *(((reward, False, {}), (2.0,)) for reward in (2, np.float32(2), np.array(2), np.array([2.0]))),
]


@pytest.mark.parametrize(("given", "expected"), GIVEN)
def test_four_or_five_values_become_gymnasiums_five(
    given: tuple[Any, ...], expected: tuple[Any, ...]
) -> None:
    result = answering(lambda _, screen: (screen, *given)).step(0)[1:]
    assert result[: len(expected)] == expected
    assert [type(one) for one in result] == [float, bool, bool, dict]


NO_RESULTS: list[tuple[tuple[Any, ...] | None, str]] = [
    ((None, False, {}), "reward.*got None"),
    (("2", False, {}), "reward.*got '2'"),
    ((np.zeros(2), False, {}), r"reward.*got float64 \(2,\)"),
    ((0, None, {}), "done.*got None"),
    ((0, False, [1]), "info.*dict.*list"),
    ((0.0, False), "step.*4 or 5.*got tuple of 3;"),
    (None, "step.*4 or 5.*got NoneType;"),
]


@pytest.mark.parametrize(("result", "message"), NO_RESULTS)
def test_other_results_are_refused(result: tuple[Any, ...] | None, message: str) -> None:
    env = answering(lambda _, screen: None if result is None else (screen, *result))
    with pytest.raises(ValueError, match=message):
        env.step(0)


# Live buffers


def test_observations_are_copies_in_order_whatever_the_strides() -> None:
    """N1: nes-py returns its live screen, with negative strides."""
    env = adapted(OldEnv(length=9))
    seen = [env.reset(seed=1)[0]] + [env.step(t % 3)[0] for t in range(5)]
    assert [frame[0, 0, 0] for frame in seen] == [0, 1, 2, 3, 4, 5]
    assert all(frame.flags.c_contiguous and frame.flags.owndata for frame in seen)
    assert [frame[0, 0].tolist() for frame in seen[1:3]] == [[1, 0, 7], [2, 1, 7]]
    np.testing.assert_array_equal(seen[-1], env.old_env.screen)


def test_buffers_inside_infos_are_copied_too() -> None:
    env = adapted(MixedEnv())
    env.reset()
    infos = [env.step({})[4] for _ in range(3)]
    assert [info["map"][0] for info in infos] == [1, 2, 3]
    assert [info["deep"]["maps"][0][0] for info in infos] == [1, 2, 3]
    assert not data_shares_objects(infos[0], infos[1])


def test_masked_entries_of_infos_stay_masked() -> None:
    kept = owned_info({"map": np.ma.array([1, 2], mask=[False, True])})["map"]
    assert kept.tolist() == [1, None]


# Observations that do not fit


SCREEN = old.Box(0, 255, (6, 5, 3), np.uint8)
UNFIT = [
    (SCREEN, np.zeros((5, 6, 3), np.uint8), r"uint8 \(6, 5, 3\).*got uint8 \(5, 6, 3\);"),
    (SCREEN, np.zeros((6, 5, 3), np.float32), r"got float32 \(6, 5, 3\);"),
    (SCREEN, [[0]], "got list;"),
    (old.MultiBinary(2), np.ma.array([1, 0], np.int8, mask=[False, True]), "observation.*masked"),
    (old.Discrete(3), 3, r"observation .*Discrete\(3\).*got 3"),
    (old.Discrete(3), 1.0, r"got 1\.0"),
    (old.StartingDiscrete(3, 5), 8, "got 8"),
    (old.MultiBinary(2), np.zeros(2, np.uint8), r"observation .*int8 \(2,\).*got uint8"),
    (old.Tuple([old.Discrete(2)]), (0, 1), "observation .*tuple of 1.*got .*2"),
    (old.Tuple([old.Discrete(2)]), (2,), r"observation\[0\] .*got 2"),
    (old.Dict({"a": old.Discrete(2)}), {"b": 0}, r"observation .*\['a'\].*got \['b'\]"),
    (old.Dict({"a": old.Discrete(2)}), 0, r"observation .*\['a'\].*got int"),
    (old.Dict({"a": old.Discrete(2)}), {"a": 2}, r"observation\['a'\] .*got 2"),
]


@pytest.mark.parametrize(("space", "observation", "message"), UNFIT)
def test_what_does_not_fit_is_refused_with_its_place_and_not_cast(
    space: Any, observation: object, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        reset_of(space, observation)


def test_a_tuple_that_the_space_asks_for_is_no_pair_of_observation_and_info() -> None:
    space = old.Tuple([old.Discrete(2), old.Dict({"a": old.Discrete(2)})])
    observation = (1, {"a": 0})
    assert reset_of(space, observation) == observation
    assert reset_of(space, (observation, {"b": 3})) == observation


# Seeds and options


class Both(NewerEnv):
    seed: Any = OldEnv.seed


def deprecated(kind: type[OldEnv], error: bool) -> OldEnv:
    """An env with the method that gym 0.22 to 0.25 give each env."""

    def seed(self: Any, seed: int | None = None) -> None:
        if error:
            raise DeprecationWarning("gym 0.25 says so")
        OldEnv.seed(self, seed)

    seed.__module__ = "gym.core"
    env: OldEnv = type("Env", (kind,), {"seed": seed})()
    return env


@pytest.mark.parametrize(
    ("make", "seeded_by"),
    [
        (OldEnv, ["seed"]),
        (lambda: Wrapper(OldEnv()), ["seed"]),
        (lambda: JoypadSpace(OldEnv(), [0, 1]), ["seed"]),
        (NewerEnv, ["reset"]),
        (lambda: Wrapper(NewerEnv()), ["reset"]),
        (lambda: Wrapper(Wrapper(NewerEnv())), ["reset"]),
        (Both, ["seed", "reset"]),
        (lambda: Wrapper(deprecated(NewerEnv, True)), ["reset"]),
        (lambda: deprecated(OldEnv, False), ["seed"]),  # it seeds what such an env draws from
    ],
)
def test_a_seed_reaches_the_env_by_the_way_it_takes_seeds(make: Make, seeded_by: list[str]) -> None:
    env = adapted(make())
    assert env.metadata["stepwell"]["seeded_by"] == seeded_by
    first = env.reset(seed=7)[0]
    assert env.old_env.seeds == [7] * len(seeded_by)
    assert env.old_env.action_space.seeds == [7]
    assert env.np_random_seed == 7
    drawn = env.np_random.random()
    other = [env.reset()[0] for _ in range(4)]
    assert any((first != one).any() for one in other)
    np.testing.assert_array_equal(env.reset(seed=7)[0], first)
    assert env.np_random.random() == drawn


def test_options_reach_an_env_that_takes_them_and_are_refused_elsewhere() -> None:
    newer = adapted(Wrapper(NewerEnv()))
    newer.reset(options={"level": 3})
    assert newer.old_env.options == [{"level": 3}]
    older = adapted(OldEnv())
    older.reset(options={})
    with pytest.raises(ValueError, match=r"options.*got \{'level': 3\}"):
        older.reset(options={"level": 3})


# Order of calls


@pytest.mark.parametrize("kind", [OldEnv, NewerEnv])
def test_a_step_before_or_after_an_episode_is_refused_until_a_reset(kind: Make) -> None:
    """N3."""
    env = adapted(kind(length=1))
    with pytest.raises(ResetNeeded, match=r"step .*first .*reset\(\)"):
        env.step(0)
    assert env.old_env.actions == []
    env.reset()
    env.step(0)
    with pytest.raises(ResetNeeded, match=r"step .*end.*reset\(\)"):
        env.step(0)
    env.reset()
    env.step(0)


@pytest.mark.parametrize("call", [OldGymEnv.reset, lambda e: e.step(0), OldGymEnv.render])
def test_nothing_reaches_a_closed_env(call: Callable[[OldGymEnv], Any]) -> None:
    env = adapted(OldEnv())
    env.reset()
    env.close()
    with pytest.raises(ClosedEnvironmentError, match=r"close\(\)"):
        call(env)


def test_a_limit_truncates_and_restarts_with_each_episode() -> None:
    env = adapted(OldEnv(length=9), max_episode_steps=2)
    for _ in range(2):
        env.reset()
        assert env.step(0)[2:4] == (False, False)
        assert env.step(0)[2:4] == (False, True)
        with pytest.raises(ResetNeeded):
            env.step(0)


# Spaces and actions


# As Crafter's, where gym is absent.
BoxSpace = namedtuple("BoxSpace", "low high shape dtype")
DiscreteSpace = namedtuple("DiscreteSpace", "n")
NEW_SPACES: list[spaces.Space[Any]] = [
    spaces.Discrete(3, start=2, dtype=np.int32),
    spaces.MultiDiscrete([2, 3], start=[1, 5]),
    spaces.Dict({"a": spaces.Tuple([spaces.Box(0, 1, (2,))]), "b": spaces.MultiBinary(2)}),
]
SPACES = [
    (old.Box(0, 255, (2, 3), np.uint8), spaces.Box(0, 255, (2, 3), np.uint8)),
    (old.Box(-np.inf, np.inf, (3,), np.float32), spaces.Box(-np.inf, np.inf, (3,), np.float32)),
    (old.Box(-1, 1, (), np.float64), spaces.Box(-1, 1, (), np.float64)),
    (old.Discrete(4), spaces.Discrete(4)),
    (old.StartingDiscrete(4, -2), spaces.Discrete(4, start=-2)),
    (old.MultiDiscrete([2, 3]), spaces.MultiDiscrete([2, 3])),
    (old.MultiDiscrete([2, 3], np.int32), spaces.MultiDiscrete([2, 3], dtype=np.int32)),
    (old.MultiBinary(8), spaces.MultiBinary(8)),
    (BoxSpace(0, 255, (2, 3), np.uint8), spaces.Box(0, 255, (2, 3), np.uint8)),
    (DiscreteSpace(4), spaces.Discrete(4)),
    (old.MultiBinary([2, 3]), spaces.MultiBinary([2, 3])),
    (
        old.Dict({"b": old.Tuple([old.Discrete(2)]), "a": old.MultiBinary(1)}),
        spaces.Dict({"b": spaces.Tuple([spaces.Discrete(2)]), "a": spaces.MultiBinary(1)}),
    ),
    *((one, one) for one in NEW_SPACES),  # an old env with new spaces
]


@pytest.mark.parametrize(("space", "expected"), SPACES)
def test_a_space_becomes_gymnasiums(space: object, expected: spaces.Space[Any]) -> None:
    made = modern_space(space, "observation_space")
    assert made == expected
    assert made.dtype == expected.dtype
    assert isinstance(made, type(expected))


@pytest.mark.parametrize("action", [2, np.int64(2), np.array(2), np.uint8(2)])
def test_a_whole_number_reaches_the_old_env_as_an_int(action: object) -> None:
    env = adapted(JoypadSpace(OldEnv(), [0, 1, 9]))
    env.reset()
    env.step(action)
    assert env.old_env.actions == [9]


def test_other_actions_are_passed_on_unchanged() -> None:
    taken: list[Any] = []

    class Watched(MixedEnv):
        def step(self, action: Any) -> Any:
            taken.append(action)
            return super().step(action)

    env = adapted(Watched())
    env.reset()
    action = env.action_space.sample()
    env.step(action)
    assert taken[-1] is action


# Rendering and metadata


def drawing(**facts: Any) -> OldEnv:
    env = OldEnv()
    vars(env).update(facts)
    return env


@pytest.mark.parametrize(
    ("make", "mode"),
    [
        (OldEnv, "rgb_array"),  # and opens no window
        (lambda: JoypadSpace(Wrapper(OldEnv()), [0]), "rgb_array"),
        (lambda: NewerEnv(render_mode="rgb_array"), "rgb_array"),
        (lambda: NewerEnv(render_mode="human"), "human"),
        (lambda: drawing(metadata={"render.modes": ["human"]}), None),
    ],
    ids=["0.21", "joypad", "chosen", "window", "window alone"],
)
def test_a_picture_is_shown_where_the_env_can_show_one(make: Make, mode: str | None) -> None:
    env = adapted(make())
    env.reset()
    assert env.render_mode == mode
    if mode is None:
        with pytest.raises(UnsupportedMode, match=r"'rgb_array'.*\['human'\]"):
            env.render()
        return
    picture = cast(Any, env.render())
    if mode == "human":
        assert picture is None
        return
    np.testing.assert_array_equal(picture, env.old_env.screen)
    assert picture.flags.c_contiguous
    assert not np.shares_memory(picture, env.old_env.memory)


def test_the_metadata_names_what_was_adapted() -> None:
    found = adapted(Wrapper(JoypadSpace(OldEnv(), [0])), max_episode_steps=np.int64(9)).metadata
    assert found.keys() == {"render_modes", "render_fps", "stepwell"}  # the new names
    assert (found["render_modes"], found["render_fps"]) == (["human", "rgb_array"], 60)
    assert "stepwell" not in OldEnv.metadata
    assert json.loads(json.dumps(found["stepwell"])) == {
        "maker": "from_gym",
        "id": "support.libraries.old_gym_fakes:OldEnv",
        "wrappers": [
            "support.libraries.old_gym_fakes:JoypadSpace",
            "support.libraries.old_gym_fakes:Wrapper",
        ],
        "versions": {"numpy": np.__version__},
        "seeded_by": ["seed"],
        "max_episode_steps": 9,
    }


def test_versions_are_those_of_the_packages_that_the_classes_come_from() -> None:
    class Tagged(OldEnv):
        __module__ = "gymnasium.old.envs"

    class Mine(Tagged):  # the user's, of an installed package's
        pass

    versions = adapted(Wrapper(Mine())).metadata["stepwell"]["versions"]
    assert versions == {"gymnasium": gymnasium.__version__, "numpy": np.__version__}


# What is no old env


def spaced(space: object) -> OldEnv:
    return drawing(observation_space=space)


def untyped() -> old.Box:
    space = old.Box(0, 1, (2,), None)
    space.dtype = None
    return space


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (gymnasium.make("CartPole-v1"), "TimeLimit.* old gym"),
        (from_gym(OldEnv()), "OldGymEnv.* old gym"),
        (OldEnv, "class OldEnv"),
        (type("Nes", (OldEnv,), {"observation_space": 0, "action_space": 0}), "class Nes"),
        ("SuperMarioBros-v0", "str .*reset.*step.*observation_space.*action_space"),
        (lambda: OldEnv(), "function .*reset.*step"),
        (None, "NoneType .*reset"),
        (SyncVectorEnv([lambda: from_gym(OldEnv())]), r"from_gym.* vector env"),
        (Wrapper(type("E", (), {"num_envs": 2})), r"from_gym.* vector env"),
        (Wrapper(old.PassiveEnvChecker(OldEnv())), r"gym\.make\(\.\.\., disable_env_checker=True"),
        (spaced(old.Graph()), r"observation_space .*old_gym_fakes\.Graph"),
        (spaced(old.Dict({"a": old.Tuple([old.Graph()])})), r"\['a'\]\[0\] .*old_gym_fakes\.Graph"),
        (spaced(None), "observation_space .*NoneType"),
        (spaced(type("Box", (), {"low": 0, "dtype": "uint8"})()), "'high'"),
        (spaced(untyped()), "observation_space .*dtype"),
    ],
)
def test_what_is_no_old_env_is_refused(given: object, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        from_gym(given)


@pytest.mark.parametrize("limit", [0, -1, 2.0, True, "9"])
def test_a_limit_that_is_no_number_of_steps_is_refused(limit: Any) -> None:
    with pytest.raises(ValueError, match=rf"max_episode_steps.*got {limit!r}"):
        from_gym(OldEnv(), max_episode_steps=limit)


def test_an_env_that_names_itself_as_its_inner_env_is_no_endless_chain() -> None:
    fake = OldEnv()
    vars(fake)["env"] = fake
    assert adapted(fake).metadata["stepwell"]["wrappers"] == []


@pytest.mark.parametrize("values", [4, 5])
def test_a_half_migrated_env_of_any_space_is_adapted(values: int) -> None:
    """Its class is gymnasium's, its `reset` or `step` still old."""

    class Half(gymnasium.Env[Any, Any]):
        observation_space, action_space = spaces.Text(3), spaces.Discrete(2)

        def reset(self) -> Any:  # type: ignore[override]
            return "new"

        def step(self, action: Any) -> Any:
            return ("end", 1, True, {}) if values == 4 else ("end", 1, True, False, {})

    env = from_gym(Half())
    assert env.reset(seed=0) == ("new", {})
    assert env.step(1) == ("end", 1.0, True, False, {})
