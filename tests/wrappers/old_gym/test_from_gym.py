"""Envs of the old `gym` become correct gymnasium envs; each behaviour of old envs is a fake."""

from __future__ import annotations

import sys
import warnings
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

import stepwell as sw
import support.libraries.old_gym_fakes as old
from stepwell.wrappers import from_gym, make_vec
from stepwell.wrappers.old_gym.env import OldGymEnv, modern_space
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


def test_four_values_become_five() -> None:
    env = adapted(OldEnv(length=2))
    env.reset()
    assert env.step(0)[1:] == (1.0, False, False, {"t": 1})
    assert env.step(0)[1:] == (1.0, True, False, {"t": 2})


def test_five_values_stay_as_they_are() -> None:
    env = adapted(NewerEnv(length=1))
    assert env.reset()[1] == {"level": 1}
    assert env.step(0)[1:] == (1.0, False, True, {"t": 1})


@pytest.mark.parametrize(
    ("done", "limit", "expected"),
    [
        (False, None, (False, False)),
        (True, None, (True, False)),
        (True, False, (True, False)),  # gym's TimeLimit says so when both came at once
        (True, True, (False, True)),
        (True, np.bool_(True), (False, True)),
        (False, True, (False, False)),  # done decides
    ],
)
def test_time_limit_truncated_separates_truncated_from_terminated(
    done: bool, limit: object, expected: tuple[bool, bool]
) -> None:
    info = {} if limit is None else {"TimeLimit.truncated": limit}
    env = answering(lambda _, screen: (screen, 0.0, done, info))
    assert env.step(0)[2:4] == expected


@pytest.mark.parametrize("done", [np.bool_(True), 1, np.array([True]), np.array(1), 1.0])
def test_done_is_a_bool(done: object) -> None:
    env = answering(lambda _, screen: (screen, 0, done, {}))
    terminated, truncated = env.step(0)[2:4]
    assert terminated is True
    assert truncated is False


def test_both_flags_of_five_values_are_bools() -> None:
    env = answering(lambda _, screen: (screen, 0, np.bool_(True), np.int64(0), {}))
    assert [type(flag) for flag in env.step(0)[2:4]] == [bool, bool]


@pytest.mark.parametrize(
    "reward", [2, 2.0, np.float32(2), np.int16(2), np.array(2), np.array([2.0]), np.uint8(2)]
)
def test_a_reward_is_a_float(reward: object) -> None:
    env = answering(lambda _, screen: (screen, reward, False, {}))
    assert type(env.step(0)[1]) is float
    assert env.step(0)[1] == 2.0


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ((None, False, {}), "reward.*got None"),
        (("2", False, {}), "reward.*got '2'"),
        ((np.zeros(2), False, {}), r"reward.*got array\("),
        (({}, False, {}), "reward.*got {}"),
        ((0, None, {}), "done.*got None"),
        ((0, False, [1]), "info.*dict.*list"),
    ],
)
def test_values_of_other_types_are_refused(result: tuple[object, ...], message: str) -> None:
    env = answering(lambda _, screen: (screen, *result))
    with pytest.raises(ValueError, match=message):
        env.step(0)


@pytest.mark.parametrize(
    ("result", "got"), [((0, 0.0, False), "tuple of 3"), (None, "NoneType"), ((), "tuple of 0")]
)
def test_another_number_of_values_is_refused(result: object, got: str) -> None:
    env = answering(lambda _, screen: result)
    with pytest.raises(ValueError, match=rf"step.*4 or 5.*got {got};"):
        env.step(0)


def test_no_info_counts_as_an_empty_one() -> None:
    env = answering(lambda _, screen: (screen, 0, False, None))
    assert env.step(0)[4] == {}


# Live buffers


def test_observations_are_copies_in_order_whatever_the_strides() -> None:
    """N1: nes-py returns its live screen, with negative strides."""
    env = adapted(OldEnv(length=9))
    seen = [env.reset(seed=1)[0]] + [env.step(t % 3)[0] for t in range(5)]
    assert [frame[0, 0, 0] for frame in seen] == [0, 1, 2, 3, 4, 5]
    assert all(frame.flags.c_contiguous and frame.flags.owndata for frame in seen)
    assert [frame[0, 0].tolist() for frame in seen[1:3]] == [[1, 0, 7], [2, 1, 7]]
    np.testing.assert_array_equal(seen[-1], env.old_env.screen)


def test_an_observation_may_be_written_into() -> None:
    env = adapted(OldEnv())
    env.reset()[0][...] = 99
    assert env.old_env.screen.max() < 256
    assert env.old_env.memory[1:].max() == 0


@pytest.mark.parametrize(
    "shape", [(3, 4, 3), (3, 4, 4), (3, 4, 1), (3, 4, 5), (4,), (2, 3), (2, 3, 4, 2), (0, 4, 3)]
)
@pytest.mark.parametrize("turned", [slice(None), slice(None, None, -1)])
def test_arrays_of_any_shape_and_strides_are_copied_exactly(
    shape: tuple[int, ...], turned: slice
) -> None:
    live = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)[..., turned]
    fake = OldEnv()
    fake.observation_space = old.Box(0, 255, shape, np.uint8)
    fake.reset = lambda: live  # type: ignore[method-assign]
    observation = from_gym(fake).reset()[0]
    np.testing.assert_array_equal(observation, live)
    assert observation.flags.c_contiguous
    assert not np.shares_memory(observation, live)


def test_a_screen_that_is_stored_column_by_column_is_turned_to_rows() -> None:
    live = np.asfortranarray(np.arange(30, dtype=np.uint8).reshape(6, 5))
    fake = OldEnv()
    fake.observation_space = old.Box(0, 255, (6, 5), np.uint8)
    fake.reset = lambda: live  # type: ignore[method-assign]
    observation = from_gym(fake).reset()[0]
    np.testing.assert_array_equal(observation, live)
    assert observation.flags.c_contiguous


def test_a_number_that_counts_from_elsewhere_than_zero_is_taken() -> None:
    fake = OldEnv()
    fake.observation_space = old.StartingDiscrete(3, 5)
    fake.reset = lambda: np.int32(7)  # type: ignore[method-assign]
    observation = from_gym(fake).reset()[0]
    assert observation == 7
    assert type(observation) is int


def test_buffers_inside_dicts_and_tuples_are_copied_too() -> None:
    env = adapted(MixedEnv())
    seen = [env.reset()[0]] + [env.step({})[0] for _ in range(3)]
    assert [one["screen"][0, 0] for one in seen] == [0, 1, 2, 3]
    np.testing.assert_allclose([one["inner"][0][0] for one in seen], [0, 0.01, 0.02, 0.03])
    assert [one["inner"][1] for one in seen] == [1, 2, 3, 4]
    assert all(one in env.observation_space for one in seen)


def test_buffers_inside_infos_are_copied_too() -> None:
    env = adapted(MixedEnv())
    env.reset()
    infos = [env.step({})[4] for _ in range(3)]
    assert [info["map"][0] for info in infos] == [1, 2, 3]
    assert [info["deep"]["maps"][0][0] for info in infos] == [1, 2, 3]
    assert not data_shares_objects(infos[0], infos[1])


def test_the_collector_stores_each_frame_that_was_shown() -> None:
    """N1, end to end: distinct frames in the store are those that were on the screen."""
    shown: list[bytes] = []

    class Watched(OldEnv):
        def reset(self) -> Any:
            frame = super().reset()
            shown.append(frame.tobytes())
            return frame

        def step(self, action: Any) -> Any:
            result = super().step(action)
            shown.append(self.screen.tobytes())
            return result

    replay = sw.SequenceReplayBuffer()
    with sw.Collector(from_gym(Watched(length=30)), sw.RandomPolicy(), replay, seed=0) as collector:
        collector.collect(episodes=2)
        stored = [frame for one in replay.iter_episodes() for frame in one.observation]
    assert [np.asarray(frame).tobytes() for frame in stored] == shown[: len(stored)]
    assert len(stored) == 62
    assert len({frame.tobytes() for frame in stored}) == len(set(shown[:62])) > 55


# Observations that do not fit


@pytest.mark.parametrize(
    ("observation", "got"),
    [
        (np.zeros((5, 6, 3), np.uint8), r"uint8 \(5, 6, 3\)"),
        (np.zeros((6, 5, 3), np.float32), r"float32 \(6, 5, 3\)"),
        (np.zeros((6, 5, 3), np.int8), r"int8 \(6, 5, 3\)"),
        ([[0]], "list"),
        (None, "NoneType"),
    ],
)
def test_an_observation_of_another_form_than_the_space_is_refused_not_cast(
    observation: object, got: str
) -> None:
    env = answering(lambda _, screen: (observation, 0, False, {}))
    with pytest.raises(ValueError, match=rf"observation.*uint8 \(6, 5, 3\).*got {got};"):
        env.step(0)


@pytest.mark.parametrize(
    ("space", "observation", "message"),
    [
        (old.Discrete(3), 3, r"observation .*Discrete\(3\).*got 3"),
        (old.Discrete(3), -1, "got -1"),
        (old.Discrete(3), 1.0, r"got 1\.0"),
        (old.Discrete(3), np.array([1]), "got array"),
        (old.StartingDiscrete(3, 5), 1, "got 1"),
        (old.StartingDiscrete(3, 5), 8, "got 8"),
        (old.MultiBinary(2), np.zeros(2, np.uint8), r"observation .*int8 \(2,\).*got uint8"),
        (old.Tuple([old.Discrete(2)]), (0, 1), "observation .*tuple of 1.*got .*2"),
        (old.Tuple([old.Discrete(2)]), 0, "observation .*tuple of 1.*got int"),
        (old.Tuple([old.Discrete(2)]), (2,), r"observation\[0\] .*got 2"),
        (old.Dict({"a": old.Discrete(2)}), {"b": 0}, r"observation .*\['a'\].*got \['b'\]"),
        (
            old.Dict({"a": old.Discrete(2)}),
            {"a": 0, "b": 0},
            r"observation .*\['a'\].*got \['a', 'b'\]",
        ),
        (old.Dict({"a": old.Discrete(2)}), 0, r"observation .*\['a'\].*got int"),
        (old.Dict({"a": old.Discrete(2)}), {"a": 2}, r"observation\['a'\] .*got 2"),
    ],
)
def test_what_does_not_fit_is_named_with_its_place(
    space: Any, observation: object, message: str
) -> None:
    fake = OldEnv()
    fake.observation_space = space
    fake.reset = lambda: observation  # type: ignore[method-assign]
    with pytest.raises(ValueError, match=message):
        from_gym(fake).reset()


def test_a_tuple_that_the_space_asks_for_is_no_pair_of_observation_and_info() -> None:
    fake = OldEnv()
    fake.observation_space = old.Tuple([old.Discrete(2), old.Dict({"a": old.Discrete(2)})])
    observation = (1, {"a": 0})
    fake.reset = lambda: observation  # type: ignore[method-assign]
    assert from_gym(fake).reset() == (observation, {})
    fake.reset = lambda: (observation, {"b": 3})  # type: ignore[method-assign]
    assert from_gym(fake).reset() == (observation, {"b": 3})


# Seeds and options


@pytest.mark.parametrize(
    ("make", "seeded_by"),
    [
        (OldEnv, ["seed"]),
        (lambda: Wrapper(OldEnv()), ["seed"]),
        (lambda: JoypadSpace(OldEnv(), [0, 1]), ["seed"]),
        (NewerEnv, ["reset"]),
        (lambda: Wrapper(NewerEnv()), ["reset"]),
        (lambda: Wrapper(Wrapper(NewerEnv())), ["reset"]),
    ],
)
def test_a_seed_reaches_the_env_by_the_way_it_takes_seeds(make: Make, seeded_by: list[str]) -> None:
    env = adapted(make())
    assert env.metadata["stepwell"]["seeded_by"] == seeded_by
    first = env.reset(seed=7)[0]
    assert env.old_env.seeds == [7]
    other = [env.reset()[0] for _ in range(4)]
    assert any((first != one).any() for one in other)
    np.testing.assert_array_equal(env.reset(seed=7)[0], first)


def test_a_reset_without_a_seed_seeds_nothing() -> None:
    env = adapted(OldEnv())
    env.reset()
    assert env.old_env.seeds == []
    assert env.old_env.action_space.seeds == []


def test_both_ways_are_used_where_there_are_two() -> None:
    class Both(NewerEnv):
        def seed(self, seed: int | None = None) -> list[int | None]:
            return OldEnv.seed(self, seed)

    env = adapted(Both())
    env.reset(seed=3)
    assert env.metadata["stepwell"]["seeded_by"] == ["seed", "reset"]
    assert env.old_env.seeds == [3, 3]


def test_gyms_own_deprecated_seed_is_left_alone_where_reset_takes_a_seed() -> None:
    def seed(self: Any, seed: int | None = None) -> None:
        raise DeprecationWarning("gym 0.25 says so")

    seed.__module__ = "gym.core"
    env = type("Env", (NewerEnv,), {"seed": seed})()
    assert adapted(Wrapper(env)).metadata["stepwell"]["seeded_by"] == ["reset"]


def test_gyms_own_deprecated_seed_is_used_where_there_is_no_other_way() -> None:
    """gym 0.22 to 0.25: it seeds the generator that such an env draws from."""

    def seed(self: Any, seed: int | None = None) -> None:
        self.seeds.append(seed)

    seed.__module__ = "gym.core"
    env = adapted(type("Env", (OldEnv,), {"seed": seed})())
    env.reset(seed=4)
    assert env.old_env.seeds == [4]


def test_an_innermost_reset_that_takes_any_keywords_is_given_the_seed() -> None:
    class Open(OldEnv):
        def reset(self, **kwargs: Any) -> Any:
            self.seeds.append(kwargs)  # type: ignore[arg-type]
            return super().reset()

    env = adapted(Wrapper(Open()))
    env.reset(seed=4)
    assert env.old_env.seeds == [4, {"seed": 4}]


def test_an_env_that_takes_no_seed_says_so() -> None:
    env = adapted(MixedEnv())
    env.reset(seed=3)
    assert env.metadata["stepwell"]["seeded_by"] == []


def test_the_old_action_space_is_seeded_too() -> None:
    env = adapted(OldEnv())
    env.reset(seed=11)
    assert env.old_env.action_space.seeds == [11]


def test_the_adapters_own_generator_follows_the_seed() -> None:
    env = adapted(OldEnv())
    env.reset(seed=5)
    first = env.np_random.integers(2**40)
    env.reset(seed=5)
    assert env.np_random.integers(2**40) == first
    assert env.np_random_seed == 5


def test_options_reach_an_env_that_takes_them_and_are_refused_elsewhere() -> None:
    newer = adapted(Wrapper(NewerEnv()))
    newer.reset(options={"level": 3})
    assert newer.old_env.options == [{"level": 3}]
    older = adapted(OldEnv())
    older.reset(options={})
    with pytest.raises(ValueError, match=r"options.*got \{'level': 3\}"):
        older.reset(options={"level": 3})


def test_a_wrapper_in_between_that_takes_no_seed_is_not_given_one() -> None:
    env = adapted(Wrapper(JoypadSpace(NewerEnv(), [0, 1])))
    env.reset(seed=3)
    assert env.old_env.seeds == []


# Order of calls


def test_a_step_before_the_first_reset_is_refused() -> None:
    """N3."""
    env = adapted(OldEnv())
    with pytest.raises(ResetNeeded, match=r"step .*first .*reset\(\)"):
        env.step(0)
    assert env.old_env.actions == []


@pytest.mark.parametrize("kind", [OldEnv, NewerEnv])
def test_a_step_after_the_end_is_refused_until_a_reset(kind: Make) -> None:
    """N3."""
    env = adapted(kind(length=1))
    env.reset()
    env.step(0)
    with pytest.raises(ResetNeeded, match=r"step .*end.*reset\(\)"):
        env.step(0)
    env.reset()
    env.step(0)


def test_a_second_close_is_harmless() -> None:
    env = adapted(OldEnv())
    env.close()
    env.close()
    assert not env.old_env.is_open


def test_an_env_without_a_close_can_be_closed() -> None:
    adapted(MixedEnv()).close()


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


def test_an_end_on_the_last_allowed_step_is_both() -> None:
    """As under gymnasium's TimeLimit."""
    env = adapted(OldEnv(length=2), max_episode_steps=2)
    env.reset()
    env.step(0)
    assert env.step(0)[2:4] == (True, True)


@pytest.mark.parametrize("limit", [0, -1, 2.0, True, "9"])
def test_a_limit_that_is_no_number_of_steps_is_refused(limit: Any) -> None:
    with pytest.raises(ValueError, match=rf"max_episode_steps.*got {limit!r}"):
        from_gym(OldEnv(), max_episode_steps=limit)


# Spaces and actions


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


def test_a_space_that_inherits_from_gyms_counts_as_that() -> None:
    class Buttons(old.Discrete):
        pass

    assert modern_space(Buttons(7), "action_space") == spaces.Discrete(7)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (
            old.Graph(),
            r"observation_space .*old_gym_fakes\.Graph",
        ),
        (
            old.Dict({"a": old.Tuple([old.Graph()])}),
            r"observation_space\['a'\]\[0\] .*old_gym_fakes\.Graph",
        ),
        (None, "observation_space .*NoneType"),
        (type("Box", (), {"low": 0, "dtype": "uint8"})(), "'high'"),
        (old.Box(0, 1, (2,), None), "observation_space .*dtype"),
    ],
)
def test_a_space_that_gymnasium_does_not_have_is_refused(space: object, message: str) -> None:
    if isinstance(space, old.Box):
        space.dtype = None
    fake = OldEnv()
    fake.observation_space = space
    with pytest.raises(TypeError, match=message):
        from_gym(fake)


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


def test_the_old_keys_of_metadata_get_their_new_names() -> None:
    env = adapted(OldEnv())
    assert env.metadata["render_modes"] == ["human", "rgb_array"]
    assert env.metadata["render_fps"] == 60
    assert not env.metadata.keys() & {"render.modes", "video.frames_per_second"}
    assert "stepwell" not in OldEnv.metadata


def test_the_new_keys_of_metadata_stay() -> None:
    env = adapted(NewerEnv())
    assert env.metadata["render_modes"] == ["human", "rgb_array"]
    assert env.metadata["render_fps"] == 30


@pytest.mark.parametrize("make", [OldEnv, lambda: JoypadSpace(Wrapper(OldEnv()), [0])])
def test_an_old_env_renders_a_picture_and_opens_no_window(make: Make) -> None:
    env = adapted(make())
    env.reset()
    assert env.render_mode == "rgb_array"
    picture = cast(Any, env.render())
    np.testing.assert_array_equal(picture, env.old_env.screen)
    assert picture.flags.c_contiguous
    assert not np.shares_memory(picture, env.old_env.memory)


def test_an_env_that_can_only_open_a_window_does_not() -> None:
    fake = OldEnv()
    fake.metadata = {"render.modes": ["human"]}
    env = adapted(fake)
    env.reset()
    assert env.render_mode is None
    with pytest.raises(UnsupportedMode, match=r"'rgb_array'.*\['human'\]"):
        env.render()


@pytest.mark.parametrize("env", [MixedEnv(), NewerEnv(), Wrapper(NewerEnv())])
def test_an_env_that_was_built_without_a_render_mode_has_none(env: object) -> None:
    assert from_gym(env).render_mode is None


def test_a_render_mode_that_was_chosen_with_the_env_is_kept() -> None:
    env = adapted(NewerEnv(render_mode="rgb_array"))
    env.reset()
    assert env.render_mode == "rgb_array"
    assert not np.shares_memory(cast(Any, env.render()), env.old_env.memory)
    window = adapted(NewerEnv(render_mode="human"))
    window.reset()
    assert window.render_mode == "human"
    assert window.render() is None


def test_the_metadata_names_what_was_adapted() -> None:
    facts = adapted(Wrapper(JoypadSpace(OldEnv(), [0])), max_episode_steps=9).metadata["stepwell"]
    assert facts == {
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
    ],
)
def test_what_is_no_old_env_is_refused(given: object, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        from_gym(given)


def test_an_env_that_names_itself_as_its_inner_env_is_no_endless_chain() -> None:
    fake = OldEnv()
    vars(fake)["env"] = fake
    assert adapted(fake).metadata["stepwell"]["wrappers"] == []


def test_a_vector_env_is_refused() -> None:
    for envs in (
        SyncVectorEnv([lambda: from_gym(OldEnv())]),
        Wrapper(type("E", (), {"num_envs": 2})),
    ):
        with pytest.raises(TypeError, match=r"from_gym.* vector env"):
            from_gym(envs)


def test_gyms_own_checker_is_refused_with_the_option_that_disables_it() -> None:
    with pytest.raises(TypeError, match=r"checker.*gym\.make\(\.\.\., disable_env_checker=True"):
        from_gym(Wrapper(old.PassiveEnvChecker(OldEnv())))


# Many


@pytest.mark.parametrize("num_workers", [0, 2])
def test_many_run_side_by_side_and_show_the_same_as_one(num_workers: int) -> None:
    def make() -> gymnasium.Env[Any, Any]:
        return from_gym(JoypadSpace(OldEnv(length=3), [0, 5, 9]))

    envs = make_vec(make, 4, num_workers=num_workers)
    try:
        observation, _ = envs.reset(seed=20)
        rows = [np.array(observation)]
        for action in ([0, 1, 2, 0], [1, 1, 1, 1]):
            rows.append(np.array(envs.step(np.array(action))[0]))
    finally:
        envs.close()
    for index in range(4):
        env = make()
        expected = [env.reset(seed=20 + index)[0]]
        expected += [env.step([[0, 1, 2, 0], [1, 1, 1, 1]][t][index])[0] for t in range(2)]
        np.testing.assert_array_equal([row[index] for row in rows], expected)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_vector_envs_recipe_names_the_old_env(num_workers: int) -> None:
    envs = make_vec(lambda: from_gym(OldEnv()), 2, num_workers=num_workers)
    envs.close()
    recipe = envs.metadata["stepwell"]
    assert recipe["maker"] == "make_vec"
    assert recipe["env"]["maker"] == "from_gym"
    assert recipe["env"]["id"] == "support.libraries.old_gym_fakes:OldEnv"
    assert "versions" not in recipe["env"]


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
