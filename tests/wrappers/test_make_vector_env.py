"""make_vec and vectorize: arguments, results and recipes."""

import json
import sys
import types
import warnings
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import FrameStackObservation, RecordEpisodeStatistics, TransformObservation
from numpy.testing import assert_equal

from stepwell.wrappers.frames import FrameStack
from stepwell.wrappers.make_vector_env import make_vec
from stepwell.wrappers.recipe import jsonable, spec_of
from stepwell.wrappers.seeded_resets import SeededResets
from support.envs.fakes import CounterEnv, FrameEnv


def recipe(env: Any, **arguments: Any) -> dict[str, Any]:
    """The recipe of a vector env that is made and closed."""
    envs = make_vec(env, **{"num_workers": 0, **arguments})
    envs.close()
    found: dict[str, Any] = envs.metadata["stepwell"]
    return found


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(
    "env",
    [
        "CartPole-v1",
        "CartPole",
        "gymnasium:CartPole-v1",
        gym.spec("CartPole-v1"),
        partial(gym.make, "CartPole-v1"),
    ],
    ids=["id", "newest", "module", "spec", "factory"],
)
def test_an_env_may_be_given_in_any_form(env: Any, num_workers: int) -> None:
    envs = make_vec(env, 3, num_workers=num_workers)
    theirs = gym.make_vec("CartPole-v1", 3, vectorization_mode="sync", wrappers=[SeededResets])
    assert_equal(envs.reset(seed=1), theirs.reset(seed=1))
    assert_equal(envs.step(np.zeros(3, np.int64)), theirs.step(np.zeros(3, np.int64)))
    assert envs.metadata["stepwell"]["id"] == "CartPole-v1"
    assert envs.metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP
    envs.close()
    theirs.close()


def test_a_built_env_becomes_a_vector_of_one() -> None:
    env = CounterEnv(4, tag=8)
    envs = make_vec(env)
    assert_equal(envs.reset()[0], [[0, 0, 8]])
    assert "stepwell" not in CounterEnv.metadata
    envs.close()
    with pytest.raises(ValueError, match=r"num_envs=1.*num_envs=2.*num_workers=None"):
        make_vec(env, 2)
    with pytest.raises(ValueError, match=r"num_envs=1.*num_envs=None.*num_workers=1"):
        make_vec(env, num_workers=1)


def test_a_vector_env_comes_back_as_it_is() -> None:
    envs = SyncVectorEnv([CounterEnv] * 3)
    assert make_vec(envs) is envs
    assert make_vec(envs, 3) is envs
    assert envs.metadata["stepwell"]["num_envs"] == 3
    with pytest.raises(ValueError, match=r"num_envs.*\b3\b.*got 2"):
        make_vec(envs, 2)
    with pytest.raises(ValueError, match=r"wrappers.*num_workers.*got .*SyncVectorEnv"):
        make_vec(envs, num_workers=2)
    envs.close()


def test_the_recipe_of_another_maker_is_kept() -> None:
    envs = SyncVectorEnv([CounterEnv])
    envs.metadata = {**envs.metadata, "stepwell": {"maker": "make_atari"}}
    assert make_vec(envs).metadata["stepwell"] == {"maker": "make_atari"}
    envs.close()


@pytest.mark.proof
def test_ale_py_vector_envs_get_their_own_metadata_back() -> None:
    """ale-py 0.12.1 writes the autoreset mode into a dict that all its vector envs share."""
    from ale_py.vector_env import AtariVectorEnv

    first = AtariVectorEnv("pong", 1, autoreset_mode=AutoresetMode.SAME_STEP)
    second = AtariVectorEnv("pong", 1)
    assert make_vec(first).metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    assert make_vec(second).metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP
    first.close()
    second.close()


@pytest.mark.proof
def test_an_atari_id_gives_what_gymnasium_make_gives() -> None:
    """Trap 7: gymnasium's own make_vec of this id gives (4, 84, 84)."""
    envs = make_vec("ALE/Pong-v5", 2, num_workers=0)
    assert envs.single_observation_space == gym.make("ALE/Pong-v5").observation_space
    assert envs.single_observation_space.shape == (210, 160, 3)
    assert envs.metadata["stepwell"]["frame_skip"] == 4
    assert "ale-py" in envs.metadata["stepwell"]["versions"]
    envs.close()


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("CartPole-v9", "'CartPole-v9'.*CartPole-v1.*CartPole-v0"),
        ("cartpole-v1", "'cartpole-v1'.*CartPole-v1"),
        ("Pong-v5", "'Pong-v5'.*ALE/Pong-v5"),
        ("ALE/Pnog-v5", "'ALE/Pnog-v5'.*ALE/Pong-v5"),
        ("SuperMarioBros-v0", r'make_nes\("game.nes"\).*docs/nes.md'),
        ("SuperMarioBros-Nes-v0", r'make_nes\("game.nes"\)'),
        ("zzzzzz", "'zzzzzz'.*`stepwell envs`"),
        ("not an id!", "'not an id!'"),
        ("no_such_module:X-v0", "no_such_module"),
    ],
)
def test_an_unknown_id_is_one_sentence_with_the_nearest_names(env_id: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        make_vec(env_id)
    assert "\n" not in str(caught.value)
    assert caught.value.__suppress_context__


# The recipe


def test_the_recipe_is_json_and_the_same_with_and_without_workers() -> None:
    arguments: dict[str, Any] = {
        "num_envs": 2,
        "env_kwargs": {"sutton_barto_reward": True},
        "wrappers": [lambda env: FrameStackObservation(env, 3)],  # pyright: ignore
    }
    here, there = (recipe("CartPole-v1", num_workers=w, **arguments) for w in (0, 1))
    assert here == there == json.loads(json.dumps(here))
    assert here.pop("versions")["gymnasium"] == gym.__version__
    assert here == {
        "maker": "make_vec",
        "id": "CartPole-v1",
        "kwargs": {"sutton_barto_reward": True},
        "wrappers": [
            {"name": "TimeLimit", "kwargs": {"max_episode_steps": 500}},
            {"name": "FrameStackObservation", "kwargs": {"stack_size": 3, "padding_type": "reset"}},
        ],
        "frame_skip": 1,
        "frame_stack": 3,
        "stack_padding": "repeat",
    }


def stacked(padding: Any) -> Any:
    return lambda env: FrameStackObservation(env, 2, padding_type=padding)  # pyright: ignore


@pytest.mark.parametrize(
    ("wrappers", "expected"),
    [
        ([], (None, None)),
        ([stacked("reset")], (2, "repeat")),
        ([stacked("zero")], (2, "zero")),
        ([stacked(np.full((4, 4), 9, np.uint8))], (None, None)),
        ([partial(FrameStack, size=3, padding="zero")], (3, "zero")),
        ([stacked("zero"), RecordEpisodeStatistics], (2, "zero")),
        (
            [stacked("zero"), lambda e: TransformObservation(e, abs, e.observation_space)],
            (None,) * 2,
        ),
    ],
    ids=["none", "repeat", "zero", "custom", "ours", "below statistics", "below a transform"],
)
def test_a_known_stack_is_in_the_recipe_and_an_unknown_one_is_not(
    wrappers: Any, expected: tuple[Any, Any]
) -> None:
    found = recipe(FrameEnv, wrappers=wrappers)
    assert (found.get("frame_stack"), found.get("stack_padding")) == expected


def test_no_recipe_holds_an_address() -> None:
    odd = {1: {np.int64(3).dtype, 4}, "a": (lambda: 0, object(), np.arange(2)), "b": np.float32}
    text = json.dumps(jsonable(odd))
    assert "0x" not in text
    assert json.loads(text)["a"][2] == [0, 1]


def test_a_spec_names_wrappers_by_their_public_module() -> None:
    """A stored spec must not depend on the file that a wrapper is in."""
    text = spec_of(FrameStack(gym.make("CartPole-v1"), 3))
    assert text is not None
    assert '"stepwell.wrappers:FrameStack"' in text
    env = gym.make(EnvSpec.from_json(text))
    assert env.observation_space.shape == (3, 4)


class Traced(CounterEnv):
    """Says that it computes with JAX, as gymnasium's functional envs do."""

    def __init__(self) -> None:
        super().__init__()
        self.metadata = {**self.metadata, "jax": True}


def windowed(monkeypatch: pytest.MonkeyPatch) -> type[CounterEnv]:
    """Envs beside an open window of pyglet."""
    gl = types.ModuleType("pyglet.gl")
    gl.current_context = object()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pyglet.gl", gl)
    return CounterEnv


@pytest.mark.parametrize("of", [lambda _: Traced, windowed], ids=["JAX", "pyglet"])
def test_envs_that_would_hang_or_die_in_a_fork_are_not_forked(
    of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = of(monkeypatch)
    envs = make_vec(env, 2)
    assert isinstance(envs, SyncVectorEnv)
    envs.close()
    if sys.platform == "linux":
        with pytest.raises(ValueError, match="num_workers=0"):
            make_vec(env, 2, num_workers=2)


@pytest.mark.parametrize(
    ("env", "arguments", "is_told"),
    [
        ("BreakoutNoFrameskip-v4", {}, True),
        ("ale_py:PongNoFrameskip-v4", {"env_kwargs": {"render_mode": "rgb_array"}}, True),
        ("PongNoFrameskip-v4", {"env_kwargs": {"frameskip": 4}}, False),
        ("PongNoFrameskip-v4", {"env_kwargs": {"obs_type": "ram"}}, False),
        ("PongNoFrameskip-v4", {"wrappers": [RecordEpisodeStatistics]}, False),
        ("Pong-v4", {}, False),
        ("ALE/Pong-v5", {}, False),
    ],
)
def test_a_game_without_the_usual_preprocessing_is_told(
    env: str, arguments: dict[str, Any], is_told: bool
) -> None:
    gym.register_envs(pytest.importorskip("ale_py"))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", UserWarning)
        envs = make_vec(env, 1, num_workers=0, **arguments)
    has_screens = envs.single_observation_space.shape == (210, 160, 3)
    envs.close()
    texts = [str(one.message) for one in told if "raw" in str(one.message)]
    assert len(texts) == is_told
    if is_told:
        game = env.removeprefix("ale_py:").removesuffix("NoFrameskip-v4")
        assert has_screens
        assert f"make_atari('{game}', 8) or `stepwell collect {game}`" in texts[0]
        assert told[0].filename == __file__
