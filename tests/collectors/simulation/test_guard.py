"""What a store may ask of the envs that are made again: what is in the list, and nothing else.

No case does harm where a guard is missing: values are a little out of their range.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces, wrappers
from gymnasium.envs.registration import EnvSpec, WrapperSpec
from hypothesis import given
from hypothesis import strategies as st

import stepwell as sw
from stepwell import wrappers as our_wrappers
from stepwell.buffers import SequenceReplayBuffer, Spec
from stepwell.collectors.simulation import remake
from stepwell.collectors.simulation.guard import check_recipe
from stepwell.collectors.simulation.remake import maker_of
from stepwell.wrappers.recipe import read_spec, spec_of
from support.replayed import check_all_equal, recorded, rewritten

pytest.importorskip("cv2", reason="needs OpenCV")

Facts = dict[str, Any]
GYMNASIUM, OURS = "gymnasium.wrappers", "stepwell.wrappers"
LACKING = "lacking"


class Picture(gym.Env[Any, Any]):
    """Random pictures."""

    observation_space = spaces.Box(0, 255, (12, 10, 3), np.uint8)
    action_space = spaces.Box(-1, 1, (2,), np.float32)
    metadata: dict[str, Any] = {  # noqa: RUF012  # gymnasium's
        "render_modes": ["rgb_array"],
        "render_fps": 9,
    }

    def __init__(self, render_mode: str | None = None, **more: Any) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        return self._picture(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._picture(), float(action[0]), bool(self.np_random.random() < 0.1), False, {}

    def render(self) -> Any:
        return np.zeros((4, 4, 3), np.uint8)

    def _picture(self) -> np.ndarray:
        return self.np_random.integers(0, 256, (12, 10, 3), np.uint8)


@pytest.fixture(scope="module", autouse=True)
def registered() -> Iterator[None]:
    gym.register("Picture-v0", f"{__name__}:Picture", max_episode_steps=20)
    yield
    del gym.registry["Picture-v0"]


@pytest.fixture(scope="module")
def picture(registered: None) -> tuple[Facts, Spec]:
    replay = recorded(sw.make_vec("Picture-v0", 1, num_workers=0), 5)
    return json.loads(json.dumps(dict(replay.sessions[0]))), replay.spec


@pytest.fixture(scope="module")
def pong() -> tuple[Facts, Spec]:
    replay = recorded(sw.make_atari("Pong", 1, backend="native", size=(30, 40)), 5)
    return json.loads(json.dumps(dict(replay.sessions[0]))), replay.spec


def changed(facts: Facts, wrapped_by: Any = (), **changes: Any) -> Facts:
    """The facts with other wrappers around the env, and other values in its spec."""
    found = {**json.loads(facts["env_spec"]), **changes}
    found["additional_wrappers"] = [
        {"name": name, "entry_point": f"{owner}:{name}", "kwargs": kwargs}
        for owner, name, kwargs in wrapped_by
    ]
    return {**facts, "env_spec": json.dumps(found)}


def check_refused(facts: Facts, spec: Spec, *parts: str) -> None:
    """The facts are refused before anything is made."""

    def never(function: Any) -> None:
        raise AssertionError("an env was made")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(remake, "call_in_bounds", never)
        with pytest.raises(ValueError, match="(?s)" + ".*".join(map(re.escape, parts))) as caught:
            maker_of(facts, spec)
    assert len(str(caught.value)) < 1500


def much(least: int) -> st.SearchStrategy[Any]:
    """Numbers out of a range that ends before this one, and what is no number."""
    others = st.sampled_from([-1, 1.5, True, "9", [], [1, 2, 3], {"a": 1}, {"__tuple__": "x"}])
    return st.integers(least, 2 * least) | others


PAIRS = st.tuples(st.integers(4097, 5000), st.integers(1, 3)).flatmap(st.permutations)
HARMFUL: dict[tuple[str, str, str], st.SearchStrategy[Any]] = {
    (GYMNASIUM, "AtariPreprocessing", "frame_skip"): much(1001),
    (GYMNASIUM, "AtariPreprocessing", "noop_max"): much(1001),
    (GYMNASIUM, "AtariPreprocessing", "screen_size"): much(4097) | PAIRS,
    (GYMNASIUM, "DelayObservation", "delay"): much(1025),
    (GYMNASIUM, "DiscretizeAction", "bins"): st.integers(1025, 2000) | PAIRS,
    (GYMNASIUM, "DiscretizeObservation", "bins"): st.integers(1025, 2000) | PAIRS,
    (GYMNASIUM, "DtypeObservation", "dtype"): st.sampled_from(
        ["object", {"__dtype__": "object"}, {"__dtype__": "U9"}, 3]
    ),
    (GYMNASIUM, "FrameStackObservation", "stack_size"): much(1025),
    (GYMNASIUM, "ObstructView", "obstruction_width"): much(4097),
    (GYMNASIUM, "ObstructView", "obstructed_pixels_ratio"): st.floats(1.1, 9),
    (GYMNASIUM, "RecordEpisodeStatistics", "buffer_length"): st.integers(1048577, 1048600),
    (GYMNASIUM, "RepeatAction", "num_repeats"): much(1001),
    (GYMNASIUM, "ReshapeObservation", "shape"): st.lists(st.just(1), min_size=9, max_size=12),
    (GYMNASIUM, "ResizeObservation", "shape"): much(4097) | PAIRS,
    (GYMNASIUM, "StickyAction", "repeat_action_duration"): st.integers(1001, 2000) | PAIRS,
    (GYMNASIUM, "TimeLimit", "max_episode_steps"): st.sampled_from([0, -1, None, "x", 1.5]),
    (GYMNASIUM, "ClipReward", "no_such_argument"): st.just(1),
    (GYMNASIUM, "TransformReward", "func"): st.just("os:system"),
    (OURS, "AleFrameSkip", "skip"): much(1001),
    (OURS, "Crop", "top"): much(4097),
    (OURS, "FixedSpaces", "lengths"): st.dictionaries(
        st.just("observation"), st.integers(65537, 70000), min_size=1
    ),
    (OURS, "FrameSkip", "skip"): much(1001),
    (OURS, "FrameStack", "size"): much(1025),
    (OURS, "NoopStart", "noop_max"): much(1001),
    (OURS, "Resize", "size"): much(4097) | PAIRS,
    (OURS, "VectorReward", "weights"): st.sampled_from(["os:system", [1.0] * 1025, [], ["x"], 1]),
}


@pytest.mark.parametrize("argument", HARMFUL, ids=".".join)
@given(data=st.data())
def test_arguments_of_wrappers_out_of_their_range_are_refused(
    picture: tuple[Facts, Spec], argument: tuple[str, str, str], data: st.DataObject
) -> None:
    owner, name, key = argument
    value = data.draw(HARMFUL[argument])
    facts = changed(picture[0], [(owner, name, {key: value})])
    check_refused(facts, picture[1], name if key != "dtype" else "", "--env")


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that must not be imported."""
    (tmp_path / "trap_of_a_store.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return "trap_of_a_store"


@pytest.mark.parametrize(
    "change",
    [
        {"entry_point": "TRAP:make"},
        {"id": "TRAP:Picture-v0"},
        {"id": "Unknown-v3", "entry_point": "TRAP:make"},
        {"wrapped_by": [("TRAP", "Wrap", {})]},
        {"wrapped_by": [("TRAP", "TimeLimit", {})]},
    ],
    ids=["entry point", "prefix of the id", "unknown id", "wrapper", "a known name"],
)
def test_no_module_is_imported_that_a_store_names(
    picture: tuple[Facts, Spec], trap: str, change: Facts
) -> None:
    named = json.loads(json.dumps(change).replace("TRAP", trap))
    check_refused(changed(picture[0], **named), picture[1], "expected", "--env")
    assert trap not in sys.modules


@pytest.mark.parametrize(
    ("owner", "name", "kwargs", "parts"),
    [
        ("os", "system", {}, []),
        ("builtins", "print", {}, []),
        (GYMNASIUM, "RecordVideo", {"video_folder": "videos"}, ["neither writes"]),
        (GYMNASIUM, "HumanRendering", {}, ["neither writes"]),
        (GYMNASIUM, "NormalizeReward", {}, []),
        (GYMNASIUM, "MaxAndSkipObservation", {"skip": 2}, ["goes on", "FrameSkip"]),
        (OURS, "make_vec", {}, []),
        (GYMNASIUM, "vector", {}, []),
        (f"{GYMNASIUM}.common", "np", {}, []),
        (f"{GYMNASIUM}.nowhere", "ClipReward", {}, []),
        (GYMNASIUM, "ClipReward", None, []),
        (GYMNASIUM, "TimeLimit", [1], []),
        (GYMNASIUM, "x" * 9000, {}, ["xxx"]),
    ],
)
def test_wrappers_that_write_or_remember_or_are_none_are_refused(
    picture: tuple[Facts, Spec], owner: str, name: str, kwargs: Any, parts: list[str]
) -> None:
    facts = changed(picture[0], [(owner, name, kwargs)], kwargs={"render_mode": "rgb_array"})
    check_refused(facts, picture[1], *parts, "--env")
    assert not Path("videos").exists()


@given(
    counts=st.lists(st.integers(2, 9), min_size=10, max_size=12),
    kinds=st.lists(
        st.sampled_from([(GYMNASIUM, "RepeatAction", "num_repeats"), (OURS, "FrameSkip", "skip")]),
        min_size=12,
        max_size=12,
    ),
)
def test_skips_multiply(picture: tuple[Facts, Spec], counts: list[int], kinds: Any) -> None:
    nested = [(owner, name, {key: n}) for (owner, name, key), n in zip(kinds, counts, strict=False)]
    check_refused(changed(picture[0], nested), picture[1], "1,000", "--env")
    one = {"kwargs": {"frame_skip": 400}}
    check_refused(changed(picture[0], nested[:2], **one), picture[1], "1,000", "--env")


def test_stacks_multiply_and_wrappers_are_counted(picture: tuple[Facts, Spec]) -> None:
    stack, ours = (GYMNASIUM, "FrameStackObservation"), (OURS, "FrameStack")
    for nested in (
        [(*stack, {"stack_size": 40})] * 2,
        [(*stack, {"stack_size": 40}), (*ours, {"size": 40})],
        [(*ours, {"size": 40}), (GYMNASIUM, "DelayObservation", {"delay": 40})],
    ):
        check_refused(changed(picture[0], nested), picture[1], "1,024", "--env")
    many: list[Any] = [(GYMNASIUM, "ClipAction", {})] * 33
    check_refused(changed(picture[0], many), picture[1], "32", "33", "--env")


@pytest.mark.parametrize(
    "kwargs",
    [
        {"frame_skip": 1001},
        {"frameskip": [2, 1001]},
        {"size": 4097},
        {"width": -5000, "height": 3},
        {"screen_size": {"__tuple__": [5000, 10]}},
        {"desc": ["S" * 300] * 300},
        {"desc": [["S"] * 200] * 200},
        {"more": "x" * 70_000},
        3,
    ],
    ids=lambda kwargs: str(kwargs)[:40],
)
def test_arguments_of_envs_that_ask_for_much_are_refused(
    picture: tuple[Facts, Spec], kwargs: Any
) -> None:
    check_refused(changed(picture[0], kwargs=kwargs), picture[1], "env", "--env")


@pytest.mark.parametrize("steps", [None, 21, 0, -1, True, "20", 1e9])
def test_the_time_limit_of_the_registered_env_is_not_loosened(
    picture: tuple[Facts, Spec], steps: Any
) -> None:
    facts = changed(picture[0], max_episode_steps=steps)
    check_refused(facts, picture[1], "Picture-v0", "max_episode_steps", "20", "--env")


def test_a_lower_time_limit_is_kept() -> None:
    envs = sw.make_vec(lambda: gym.make("Picture-v0", max_episode_steps=7), 2, num_workers=0)
    replay = recorded(envs, 40)
    check_all_equal(replay)
    assert max(one.steps for one in replay.iter_episodes()) <= 7


def test_other_limits_are_those_of_the_registered_spec(picture: tuple[Facts, Spec]) -> None:
    facts = changed(
        picture[0],
        order_enforce=False,
        nondeterministic=True,
        reward_threshold=1e9,
        vector_entry_point="os:system",
    )
    env: Any = maker_of(facts, picture[1]).single()
    assert env.has_wrapper_attr("_disable_render_order_enforcing")  # OrderEnforcing is there
    made = env.unwrapped.spec
    assert (made.nondeterministic, made.reward_threshold) == (False, None)
    assert made.vector_entry_point is None


@pytest.mark.parametrize(
    ("name", "kwargs", "parts"),
    [
        ("ClipReward", {"min_reward": -0.5, "max_reward": 0.5}, ["ClipReward"]),
        ("TimeLimit", {"max_episode_steps": 9}, ["max_episode_steps", "9"]),
    ],
)
def test_registered_wrappers_are_not_left_out(name: str, kwargs: Facts, parts: list[str]) -> None:
    own = WrapperSpec(name, f"{GYMNASIUM}:{name}", kwargs)
    gym.register("Limited-v0", f"{__name__}:Picture", additional_wrappers=(own,))
    try:
        replay = recorded(sw.make_vec("Limited-v0", 1, num_workers=0), 30)
        check_all_equal(replay)
        facts = json.loads(json.dumps(dict(replay.sessions[0])))
        without = changed(facts, max_episode_steps=None)
        check_refused(without, replay.spec, "Limited-v0", *parts, "--env")
    finally:
        del gym.registry["Limited-v0"]


@pytest.mark.parametrize(
    "change",
    [
        *({"frame_skip": 1001}, {"noop_max": 1001}, {"noop_max": -1}, {"frame_stack": 1025}),
        *({"size": [4097, 10]}, {"size": "big"}, {"boot": ["NOOP 1"] * 65}, {"game": "game"}),
    ],
    ids=lambda change: str(change)[:30],
)
def test_settings_of_games_out_of_their_range_are_refused(change: Facts) -> None:
    (name,) = change
    maker = "make_nes" if name in ("boot", "game") else "make_atari"
    with pytest.raises(ValueError, match=f"{name}.*--env"):
        check_recipe({"maker": maker, **change})


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"frame_skip": 1001}, ["frame_skip", "--env"]),
        ({"game": "no such game"}, ["no such game"]),
        ({"game": None}, ["None"]),
        ({"backend": "cloud"}, ["backend", "cloud"]),
        ({"sticky": 7}, ["sticky", "7"]),
        ({"life_loss": "end"}, ["life_loss"]),
        ({"grayscale": False}, ["observation"]),
        ({"full_actions": True}, ["action"]),
        ({"new_setting": 1}, ["new_setting"]),
        ({"final_observation": "true"}, ["final_observation"]),
        *(({name: LACKING}, [name]) for name in ("game", "sticky", "mode", "backend")),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_a_recipe_of_atari_is_checked(
    pong: tuple[Facts, Spec], change: Facts, parts: list[str]
) -> None:
    recipe = {**pong[0]["recipe"], **change}
    recipe = {name: value for name, value in recipe.items() if value != LACKING}
    with pytest.raises(ValueError, match=".*".join(parts)):
        maker_of({**pong[0], "recipe": recipe}, pong[1])


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{", "null", '{"id": 3}', '{"id": "CartPole-v1"}', "1"),
        *("[" * 5000, '{"a":' * 900, json.dumps({"id": "A" * 300})),
    ],
    ids=lambda text: text[:20],
)
def test_texts_that_are_no_spec_are_refused(picture: tuple[Facts, Spec], text: str) -> None:
    check_refused({**picture[0], "env_spec": text}, picture[1], "env spec", "--env")


def test_deep_arguments_and_long_words_are_refused(picture: tuple[Facts, Spec]) -> None:
    deep: Any = 1
    for _ in range(40):
        deep = [deep]
    for change in ({"kwargs": {"deep": deep}}, {"id": "A" * 250 + "-v0"}):
        check_refused(changed(picture[0], **change), picture[1], "env spec", "--env")


def test_versions_without_end_are_not_looked_for(
    picture: tuple[Facts, Spec], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def version(name: str) -> str:
        asked.append(name)
        return "1"

    monkeypatch.setattr("importlib.metadata.version", version)
    facts = {**picture[0], "versions": {f"p{n}": "2" * 9000 for n in range(3000)}}
    told = maker_of(facts, picture[1]).differences
    assert 0 < len(asked) <= 100
    assert max(map(len, told)) < 200


# True stores.


def resized(env: Any) -> Any:
    return wrappers.ResizeObservation(env, (6, 8))


TRUE: dict[str, Any] = {
    "AddRenderObservation": lambda e: wrappers.AddRenderObservation(e, render_only=False),
    "AddWhiteNoise": lambda e: wrappers.AddWhiteNoise(e, 0.3),
    "ClipAction": wrappers.ClipAction,
    "ClipReward": lambda e: wrappers.ClipReward(e, -1, 1),
    "DelayObservation": lambda e: wrappers.DelayObservation(e, 2),
    "DiscretizeAction": lambda e: wrappers.DiscretizeAction(e, (3, 4)),
    "DtypeObservation": lambda e: wrappers.DtypeObservation(e, np.float32),
    "FlattenObservation": wrappers.FlattenObservation,
    "FrameStackObservation": lambda e: wrappers.FrameStackObservation(e, 3, padding_type="zero"),
    "GrayscaleObservation": lambda e: wrappers.GrayscaleObservation(e, keep_dim=True),
    "ObstructView": lambda e: wrappers.ObstructView(e, 0.1, 2),
    "RecordEpisodeStatistics": wrappers.RecordEpisodeStatistics,
    "RepeatAction": lambda e: wrappers.RepeatAction(e, 2),
    "RescaleAction": lambda e: wrappers.RescaleAction(
        e, np.zeros(2, np.float32), np.ones(2, np.float32)
    ),
    "RescaleObservation": lambda e: wrappers.RescaleObservation(
        wrappers.DtypeObservation(e, np.float32), np.float32(0), np.float32(1)
    ),
    "ReshapeObservation": lambda e: wrappers.ReshapeObservation(e, (10, 12, 3)),
    "ResizeObservation": resized,
    "StickyAction": lambda e: wrappers.StickyAction(e, 0.25, (1, 3)),
    "TimeAwareObservation": lambda e: wrappers.TimeAwareObservation(e, flatten=False),
    "ours": lambda e: our_wrappers.FrameStack(
        our_wrappers.Grayscale(our_wrappers.Crop(our_wrappers.FrameSkip(e, 2), top=1)), 2
    ),
    "our Resize": lambda e: our_wrappers.Resize(e, (6, 8)),
}


class Rewards(Picture):
    """Has several rewards."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, np.array([reward, 1.0]), terminated, truncated, info


@pytest.mark.parametrize("weights", [[1.0, 0.5], (np.float64(1), 2), np.array([1, 2])])
def test_a_true_store_of_several_rewards_is_proved(
    weights: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = EnvSpec("Rewards-v0", f"{__name__}:Rewards", max_episode_steps=20)
    monkeypatch.setitem(gym.registry, "Rewards-v0", spec)
    several = partial(our_wrappers.VectorReward, weights=weights)
    envs = sw.make_vec(
        lambda: several(gym.make("Rewards-v0", disable_env_checker=True)), 1, num_workers=0
    )
    check_all_equal(recorded(envs, 30))


@pytest.mark.proof
@pytest.mark.parametrize("name", TRUE)
def test_a_true_store_behind_any_wrapper_is_proved(name: str) -> None:
    kwargs = {"render_mode": "rgb_array"} if name == "AddRenderObservation" else {}
    envs = sw.make_vec("Picture-v0", 1, wrappers=[TRUE[name]], num_workers=0, env_kwargs=kwargs)
    check_all_equal(recorded(envs, 30))


def test_tuples_of_earlier_stores_are_mended() -> None:
    replay = recorded(sw.make_vec("Picture-v0", 1, wrappers=[resized], num_workers=0), 30)

    def older(facts: Any) -> Facts:
        return {**facts, "env_spec": read_spec(facts["env_spec"]).to_json()}

    old = rewritten(replay, sessions=older)
    assert "__tuple__" in str(replay.sessions[0]["env_spec"])
    assert "__tuple__" not in str(old.sessions[0]["env_spec"])
    check_all_equal(old)
    env, observation, _ = sw.env_at(old, 0, 0)
    assert observation.shape == (6, 8, 3)
    env.close()


def test_a_spec_of_any_arguments_is_read_as_it_was() -> None:
    kwargs = {
        "a": (1, (2.5, "x"), [3]),
        "b": np.arange(3, dtype=np.int16),
        "c": np.float32(0.5),
        "d": np.uint8,
        "e": {"f": (), "g": None},
    }
    text = cast("str", spec_of(gym.make("Picture-v0", **cast("Any", kwargs))))
    found = read_spec(text).kwargs
    assert found["a"] == (1, (2.5, "x"), [3])
    assert found["b"].dtype == np.int16
    assert found["b"].tolist() == [0, 1, 2]
    assert type(found["c"]) is np.float32
    assert found["d"] is np.uint8
    assert found["e"] == {"f": (), "g": None}
    for wrong in ({1: 2}, {"__tuple__": 3}):
        assert spec_of(gym.make("Picture-v0", a=wrong)) is None


# Envs of modules.


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module that registers an env, whose class is elsewhere."""
    text = (
        "import gymnasium\n"
        "gymnasium.register('Far-v0', 'support.replayed:MoodyEnv', max_episode_steps=9)\n"
    )
    (tmp_path / "far_envs.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "far_envs"
    forget("far_envs")


def forget(module: str) -> None:
    sys.modules.pop(module, None)
    gym.registry.pop("Far-v0", None)


def far(**settings: Any) -> SequenceReplayBuffer:
    replay = recorded(sw.make_vec("far_envs:Far-v0", 2, num_workers=0, **settings), 20)
    forget("far_envs")
    return replay


def test_the_module_of_an_env_is_kept_named_and_not_imported(package: str) -> None:
    replay = far()
    assert replay.sessions[0]["env_module"] == package
    parts = ["Far-v0", "--env far_envs:Far-v0"]
    facts = json.loads(json.dumps(dict(replay.sessions[0])))
    check_refused(facts, replay.spec, *parts)
    assert package not in sys.modules
    check_all_equal(replay, env="far_envs:Far-v0")


def test_the_command_that_is_named_makes_the_env_as_it_was(package: str) -> None:
    kwargs = {"pair": (5, 6)}
    replay = far(env_kwargs=kwargs, wrappers=[lambda e: wrappers.FrameStackObservation(e, 2)])
    check_all_equal(replay, env="far_envs:Far-v0")
    facts = json.loads(json.dumps(dict(replay.sessions[0])))
    found = {**json.loads(facts["env_spec"]), "max_episode_steps": 99}  # it is still guarded
    with pytest.raises(ValueError, match=r"max_episode_steps.* 9\b"):
        maker_of({**facts, "env_spec": json.dumps(found)}, replay.spec, env="far_envs:Far-v0")


@pytest.mark.parametrize("module", ["a; rm -rf b", "$(x)", "__main__", "a b", "x" * 300, 3, []])
def test_a_module_that_is_none_is_not_named(package: str, module: Any) -> None:
    replay = far()
    facts = {**json.loads(json.dumps(dict(replay.sessions[0]))), "env_module": module}
    with pytest.raises(ValueError, match="Far-v0") as caught:
        maker_of(facts, replay.spec)
    assert f"--env {module}" not in str(caught.value)


def test_without_a_module_the_package_of_the_env_is_named(package: str) -> None:
    replay = far()
    facts = json.loads(json.dumps(dict(replay.sessions[0])))
    del facts["env_module"]  # as in stores of earlier versions, and of gymnasium.make
    check_refused(facts, replay.spec, "Far-v0", "module:callable")  # it is imported already
    facts = changed(facts, entry_point="distant.envs:Far")
    check_refused(facts, replay.spec, "Far-v0", "--env distant:Far-v0")
    assert "distant" not in sys.modules


# Processes.


@pytest.mark.proof
def test_envs_are_made_where_processes_must_not_be_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    replay = recorded(sw.make_vec("CartPole-v1", 1, num_workers=0), 5)
    monkeypatch.setitem(sys.modules, "jax", sys)  # it waits forever in a forked process
    check_all_equal(replay)


def test_a_daemonic_process_makes_the_users_envs_only(monkeypatch: pytest.MonkeyPatch) -> None:
    replay = recorded(sw.make_vec("CartPole-v1", 1, num_workers=0), 5)
    monkeypatch.setattr("stepwell.collectors.simulation.lanes.is_daemon", lambda: True)
    with pytest.raises(ValueError, match=r"daemonic.*--env"):
        sw.resimulate(replay)
    check_all_equal(replay, env="CartPole-v1")
