"""An env of stable-retro becomes one whose episodes are right."""

from __future__ import annotations

import gc
import json
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.utils.env_checker import check_env

from demo_rom import write_demo
from stepwell.wrappers.make_vector_env import make_vec
from stepwell.wrappers.nes import from_retro

stable_retro: Any = pytest.importorskip("stable_retro", reason="needs stable-retro")

ALL = stable_retro.Actions.ALL  # its default swallows START
NAME = "StepwellTest-Nes-v0"
INFO = {
    "frame": {"address": 0x10, "type": "<u2"},
    "state": {"address": 0x12, "type": "|u1"},
    "lives": {"address": 0x13, "type": "|u1"},
}
SCENARIO = {
    "reward": {"variables": {"lives": {"penalty": 5.0}}},
    "done": {"variables": {"state": {"op": "equal", "reference": 2}}},
    "crop": [8, 16, 224, 200],
}
BUTTONS = ("B", "", "SELECT", "START", "UP", "DOWN", "LEFT", "RIGHT", "A")

AnyEnv = gymnasium.Env[Any, Any]


@pytest.fixture(scope="module", autouse=True)
def quick_collections() -> None:
    """Each test collects garbage, to release its emulator: all that is there before is passed over.

    After thousands of other tests a walk over it takes seconds.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture
def integrations(tmp_path: Path) -> Iterator[Path]:
    """A folder with the demonstration as an integration, registered with stable-retro."""
    folder = tmp_path / NAME
    rom, _ = write_demo(folder)
    rom.rename(folder / "rom.nes")
    files = {"data": {"info": INFO}, "scenario": SCENARIO, "metadata": {}}
    for name, found in files.items():
        (folder / f"{name}.json").write_text(json.dumps(found), encoding="utf-8")
    (folder / "rom.sha").write_text("0" * 40, encoding="utf-8")
    stable_retro.data.Integrations.add_custom_path(str(tmp_path))
    yield tmp_path
    stable_retro.data.Integrations.clear_custom_paths()
    gc.collect()


def make_retro(**settings: Any) -> AnyEnv:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        env: AnyEnv = stable_retro.make(
            NAME,
            inttype=stable_retro.data.Integrations.ALL,
            **{"render_mode": "rgb_array", "use_restricted_actions": ALL, **settings},
        )
    return env


@pytest.fixture
def make(integrations: Path) -> Iterator[Callable[..., AnyEnv]]:
    made: list[AnyEnv] = []

    def make_one(**settings: Any) -> AnyEnv:
        while made:  # a process may have one emulator
            made.pop().close()
        made.append(make_retro(**settings))
        return made[-1]

    yield make_one
    for env in made:
        env.close()


def held(*names: str) -> np.ndarray[Any, Any]:
    return np.array([name in names for name in BUTTONS], np.int8)


NOTHING, START, SELECT = held(), held("START"), held("SELECT")


def game_over(env: AnyEnv) -> list[tuple[int, float, bool]]:
    """Start the game, and lose all lives: (frame, reward, terminated) of each step."""
    seen = []
    for number in range(400):
        action = START if number < 40 else (SELECT if number % 2 else NOTHING)
        _, reward, terminated, _, info = env.step(action)
        seen.append((info["frame"], float(reward), terminated))
        if terminated:
            return seen
    raise AssertionError("the game did not end")


def test_what_comes_back_passes_gymnasiums_check(make: Callable[..., AnyEnv]) -> None:
    """R1, N1, N3."""
    check_env(from_retro(make()), skip_render_check=True)


def test_every_reset_starts_the_same_episode(make: Callable[..., AnyEnv]) -> None:
    """R1: without a `.state` file the game went on."""
    env = from_retro(make())
    starts, episodes = [], []
    with pytest.raises(ResetNeeded, match=r"step .*first .*reset\(\)"):
        env.step(NOTHING)
    for _ in range(3):
        observation, info = env.reset(seed=4)
        starts.append((observation.tobytes(), info))
        episodes.append(game_over(env))
        with pytest.raises(ResetNeeded, match=r"step .*end.*reset\(\)"):  # N3: it goes on silently
            env.step(NOTHING)
    assert starts[0] == starts[1] == starts[2]
    assert episodes[0] == episodes[1] == episodes[2]
    assert episodes[0][-1][2]
    assert sum(reward for _, reward, _ in episodes[0]) == -15


def test_a_start_state_that_the_env_has_is_kept(make: Callable[..., AnyEnv]) -> None:
    env = make()
    base: Any = env.unwrapped
    env.reset()
    for _ in range(30):
        env.step(START)
    base.initial_state = base.em.get_state()
    _, _, _, _, at_the_state = env.step(NOTHING)
    _, info = from_retro(env).reset()
    assert info["frame"] == at_the_state["frame"]
    assert info["state"] == 1


def test_observations_and_pictures_are_the_callers_own(make: Callable[..., AnyEnv]) -> None:
    """N1: stable-retro's observation is the array that it renders, here a cropped view."""
    env = from_retro(make())
    first, _ = env.reset()
    assert first.shape == (200, 224, 3)
    assert first.flags.c_contiguous
    assert first.flags.owndata
    second = env.step(NOTHING)[0]
    assert not np.shares_memory(first, second)
    picture: Any = env.render()
    assert np.array_equal(picture, second)
    second[:] = picture[:] = 1
    assert env.render().max() > 1


def test_the_variables_are_python_ints_from_the_first_frame_on(make: Callable[..., AnyEnv]) -> None:
    """E5."""
    env = from_retro(make())
    _, info = env.reset()
    before = info
    for _ in range(10):  # the program clears the RAM first
        before = env.step(NOTHING)[4]
    _, reward, terminated, truncated, after = env.step(NOTHING)
    assert set(info) == set(after) == set(INFO)
    assert {type(number) for number in [*info.values(), *after.values()]} == {int}
    assert after["frame"] == before["frame"] + 1
    assert (type(reward), type(terminated), type(truncated)) == (float, bool, bool)


@pytest.mark.parametrize("action", [5, np.int64(5), np.array(5)], ids=["int", "scalar", "array"])
def test_an_action_is_left_alone(make: Callable[..., AnyEnv], action: Any) -> None:
    env = from_retro(make(use_restricted_actions=stable_retro.Actions.DISCRETE))
    env.reset()
    env.step(action)
    assert action == 5


def test_metadata_says_what_it_is_and_wrappers_inside_stay(make: Callable[..., AnyEnv]) -> None:
    inner = gymnasium.wrappers.TransformReward(make(), lambda reward: 2 * float(reward))
    env = from_retro(gymnasium.wrappers.TimeLimit(inner, 3))
    env.reset()
    assert [env.step(NOTHING)[3] for _ in range(3)] == [False, False, True]
    assert env.metadata["render_fps"] == 60
    assert env.render_mode == "rgb_array"
    recipe = json.loads(json.dumps(env.metadata["stepwell"]))
    versions = recipe.pop("versions")
    assert versions == {"stable-retro": stable_retro.__version__.strip()}
    assert recipe == {
        "maker": "from_retro",
        "id": NAME,
        "state": None,
        "scenario": None,
        "info": None,
        "actions": "Actions.ALL",
        "observations": "Observations.IMAGE",
        "players": 1,
        "wrappers": ["TransformReward", "TimeLimit"],
    }


def test_a_closed_env_refuses_calls_and_releases_the_emulator(make: Callable[..., AnyEnv]) -> None:
    env = from_retro(make())
    env.reset()
    env.close()
    env.close()
    for call in (env.reset, lambda: env.step(NOTHING), env.render):
        with pytest.raises(ClosedEnvironmentError, match=r"close\(\)"):
            call()
    from_retro(make_retro()).close()


def closed(make: Callable[..., AnyEnv]) -> AnyEnv:
    env = make()
    env.close()
    return env


def played(make: Callable[..., AnyEnv], seen: str) -> AnyEnv:
    env = make(obs_type=stable_retro.Observations[seen])
    env.reset()
    return env


def rewarding_each(make: Callable[..., AnyEnv]) -> AnyEnv:
    env = make(players=2)
    env.unwrapped.multi_rewards = True  # type: ignore[attr-defined]
    return env


@pytest.mark.parametrize(
    ("env", "error", "words"),
    [
        (lambda _: None, TypeError, "stable-retro.*got NoneType; .*from_gym"),
        (lambda _: "Name-Nes-v0", TypeError, "stable-retro.*got str; .*from_gym"),
        (lambda _: gymnasium.make("CartPole-v1"), TypeError, "got CartPoleEnv; .*from_gym"),
        (lambda make: from_retro(make()), TypeError, "stable-retro.*StableRetroEnv"),
        (closed, ValueError, "^env: .*stable-retro.*closed"),
        # R1: the state at power-on is lost.
        (partial(played, seen="IMAGE"), ValueError, "start state.*from_retro"),
        (partial(played, seen="RAM"), ValueError, "start state.*from_retro"),
        (rewarding_each, ValueError, "2 players.*multi_rewards"),
    ],
    ids=range(8),
)
def test_what_cannot_be_adapted_is_refused(
    env: Any, error: type[Exception], words: str, make: Callable[..., AnyEnv]
) -> None:
    given = env(make)
    with pytest.raises(error, match=words):
        from_retro(given)


@pytest.mark.usefixtures("integrations")
@pytest.mark.parametrize("is_adapted", [True, False])
def test_each_env_gets_a_process_of_its_own(
    is_adapted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def one() -> AnyEnv:
        return from_retro(make_retro()) if is_adapted else make_retro()

    monkeypatch.setattr("stepwell.wrappers.make_vector_env.available_cores", lambda: 2)
    envs: Any = make_vec(one, 3)
    assert envs.num_workers == 3
    assert envs.reset(seed=0)[0].shape == (3, 200, 224, 3)
    assert not is_adapted or envs.metadata["stepwell"]["env"]["id"] == NAME
    envs.close()
    for num_workers in (0, 2):
        with pytest.raises(ValueError, match=rf"expected 3.*got {num_workers}.*num_workers=3"):
            make_vec(one, 3, num_workers=num_workers)
        gc.collect()  # the emulator that was made before the refusal
