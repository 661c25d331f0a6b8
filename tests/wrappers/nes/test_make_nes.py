"""`make_nes`: every pixel against a slow model, and what ends up in a store."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, VectorEnv

from stepwell.wrappers.nes import make_nes
from stepwell.wrappers.nes.cartridge import Image
from stepwell.wrappers.nes.emulators import NesBackend
from stepwell.wrappers.testing import assert_vector_env
from support.envs.nes_backends import ANY, NOOP, console_of, each_backend, needs_a_backend
from support.envs.nes_envs import ACTIONS, BUTTONS, LOSE, NOTHING, env_of, episode, random_actions
from support.models.nes_model import SlowGame

cv2 = pytest.importorskip("cv2", reason="needs OpenCV")
pytestmark = needs_a_backend


@contextmanager
def envs_of(
    demo: tuple[Path, Path], num_envs: int = 1, backend: NesBackend = ANY, **settings: Any
) -> Iterator[VectorEnv[Any, Any, Any]]:
    arguments: dict[str, Any] = {"game": demo[1], "actions": ACTIONS, "num_workers": 0, **settings}
    envs = make_nes(demo[0], num_envs, backend=backend, **arguments)
    try:
        yield envs
    finally:
        envs.close()


class Shown:
    """A stack of pictures, made step by step with nothing but OpenCV."""

    def __init__(
        self,
        hidden: tuple[int, int, int, int],  # what the backend's screens leave out
        *,
        crop: tuple[int, int, int, int] = (0, 0, 0, 0),  # pixels of the 240 x 256 picture
        size: tuple[int, int] | None = (84, 84),  # rows and columns, or None
        grayscale: bool = True,  # whether the luma is shown
        stack: int = 4,  # how many
    ) -> None:
        self.hidden, self.crop, self.size, self.grayscale = hidden, crop, size, grayscale
        self.stack: list[Image] = []
        self.length = stack

    def one(self, screen: Image) -> Image:
        whole = np.zeros((240, 256, 3), np.uint8)
        known = np.zeros((240, 256), bool)
        top, bottom, left, right = self.hidden
        whole[top : 240 - bottom, left : 256 - right] = screen
        known[top : 240 - bottom, left : 256 - right] = True
        top, bottom, left, right = self.crop
        window = np.s_[top : 240 - bottom, left : 256 - right]
        rows, columns = known[window].any(axis=1), known[window].any(axis=0)
        image = np.ascontiguousarray(whole[window][rows][:, columns])
        if self.grayscale:
            image = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
        if self.size is not None:
            image = cv2.resize(image, self.size[::-1], interpolation=cv2.INTER_AREA)
        return np.asarray(image, np.uint8)

    def begin(self, screen: Image) -> Image:
        image = self.one(screen)
        self.stack = [np.zeros_like(image)] * (self.length - 1) + [image]
        return np.stack(self.stack)

    def step(self, screen: Image) -> Image:
        self.stack = [*self.stack[1:], self.one(screen)]
        return np.stack(self.stack)


SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "no pool": {"pool": "none"},
    "colour": {"grayscale": False},
    "whole": {"size": None, "grayscale": False, "frame_stack": 1},
    "overscan": {"crop": "overscan"},
    "named": {"crop": "scenario", "size": (64, 80)},
    "numbers": {"crop": (40, 9, 3, 20), "size": (60, 50), "frame_stack": 2},
    "large": {"size": (300, 300), "frame_skip": 2},
    "bounded": {"reward_clip": 0.5},
}
CROPS = {None: (0, 0, 0, 0), "overscan": (8, 8, 8, 8), "scenario": (32, 8, 8, 8)}


@each_backend
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_observations_are_those_of_a_slow_model(
    demo: tuple[Path, Path], backend: NesBackend, settings: dict[str, Any]
) -> None:
    """Frames of a bare console, maximum, OpenCV's gray and area, zeros before the first.

    The game ends in the middle, and goes on in the next episode as the mode NEXT_STEP has it.
    """
    skip, pool = settings.get("frame_skip", 4), settings.get("pool", "max")
    actions = [*random_actions(8, seed=1), *[LOSE, NOTHING] * 3, *random_actions(8, seed=2)]
    with envs_of(demo, backend=backend, **settings) as envs, console_of(backend) as console:
        assert envs.metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP
        power_on = console.save()
        game = SlowGame(console, pool=pool)
        crop = settings.get("crop")
        shown = Shown(
            console.hidden,
            crop=crop if isinstance(crop, tuple) else CROPS[crop],
            size=settings.get("size", (84, 84)),
            grayscale=settings.get("grayscale", True),
            stack=settings.get("frame_stack", 4),
        )
        expected = shown.begin(game.first)
        observation, _ = envs.reset(seed=0)
        np.testing.assert_array_equal(observation[0], expected)
        assert envs.single_observation_space.shape == expected.shape
        over = False
        for action in actions:
            observation, reward, terminated, truncated, info = envs.step(np.array([action]))
            if over:
                console.load(power_on)
                game = SlowGame(console, pool=pool)
                wanted, expected = (0.0, False, False), shown.begin(game.first)
            else:
                seen = game.step([BUTTONS[action]] * skip)
                wanted = (seen.reward, seen.terminated, seen.truncated)
                expected = shown.step(seen.picture)
            np.testing.assert_array_equal(observation[0], expected)
            bound = settings.get("reward_clip", np.inf)
            assert reward[0] == pytest.approx(np.clip(wanted[0], -bound, bound), abs=1e-9)
            if bound < np.inf and not over:
                assert info["raw_reward"][0] == pytest.approx(wanted[0], abs=1e-9)
            assert (terminated[0], truncated[0]) == wanted[1:]
            over = bool(wanted[1] or wanted[2])
        assert observation.dtype == np.uint8


@each_backend
def test_any_number_of_workers_gives_the_same_envs(
    demo: tuple[Path, Path], backend: NesBackend
) -> None:
    """C4, R1: emulators are built in the workers, several in each; chance is each env's own."""
    chance: dict[str, Any] = {"noop_max": 8, "sticky": 0.25, "frame_skip": 2, "max_frames": 24}
    rng = np.random.default_rng(0)
    actions = rng.integers(len(ACTIONS), size=(18, 3))
    played: list[list[Any]] = []
    for num_workers in (0, 1, 2):
        with envs_of(demo, 3, backend, num_workers=num_workers, **chance) as envs:
            played.append([envs.reset(seed=4), *map(envs.step, actions)])
        np.testing.assert_equal(played[-1], played[0])


@each_backend
def test_stepwells_own_checker_finds_nothing(demo: tuple[Path, Path], backend: NesBackend) -> None:
    with envs_of(demo, 2, backend, max_frames=60, size=(12, 12)) as envs:
        report = assert_vector_env(envs, steps=60)
    assert (report.autoreset, report.final_observation) == ("next_step", "true")


# --- crops ---


@each_backend
@pytest.mark.parametrize("crop", [(236, 0, 0, 0), (0, 235, 0, 0), (0, 0, 250, 0), (0, 0, 0, 251)])
def test_a_crop_that_leaves_only_what_a_backend_hides_is_an_error_or_a_picture(
    demo: tuple[Path, Path], backend: NesBackend, crop: tuple[int, int, int, int]
) -> None:
    if backend != "stable-retro":
        with envs_of(demo, backend=backend, crop=crop) as envs:
            assert envs.reset()[0].shape == (1, 4, 84, 84)
        return
    with (
        pytest.raises(ValueError, match=rf"^crop: .*got {re.escape(str(crop))}") as error,
        envs_of(demo, 1, backend, crop=crop),
    ):
        pass
    assert "\n" not in str(error.value)


# --- rewards, lives, RAM ---


def test_a_lost_life_can_end_the_learners_episode(demo: tuple[Path, Path]) -> None:
    """E6: the game continues, and its own end is reported."""
    lose = [LOSE, NOTHING, NOTHING] * 5
    with envs_of(demo, life_loss="end", size=(9, 9)) as envs:
        envs.reset()
        ends = []
        for action in lose:
            _, _, terminated, _, info = envs.step(np.array([action]))
            ends.append((bool(terminated[0]), bool(info["game_over"][0]), int(info["lives"][0])))
    # A life, the step that resets, a step; the third loss is the game's end, and a real reset.
    assert ends[:3] == [(True, False, 2), (False, False, 2), (False, False, 2)]
    assert ends[3:7:3] == [(True, False, 1), (True, True, 0)]
    assert ends[7] == (False, False, 3)


# --- the recipe, and nonsense ---

CHOICES: dict[str, Any] = {
    "crop": [32, 8, 8, 8],
    "size": [84, 84],
    "grayscale": False,
    "frame_stack": 2,
    "frame_skip": 3,
    "pool": "none",
    "noop_max": 7,
    "sticky": 0.125,
    "boot": ["NOOP 20, START 3, NOOP 5", "NOOP 20, START 3, RIGHT 9"],
    "start_rule": "cycle",
    "max_frames": 500,
    "stuck_frames": 50,
    "life_loss": "end",
    "reward_clip": 3.0,
    "allow_opposites": True,
}


@each_backend
def test_every_choice_reaches_the_envs_and_is_in_the_recipe(
    demo: tuple[Path, Path], backend: NesBackend
) -> None:
    with envs_of(demo, 2, backend) as envs:
        defaults = envs.metadata["stepwell"]
    given = {**CHOICES, "crop": "scenario"}
    with envs_of(demo, 2, backend, actions=["LEFT+RIGHT", "NOOP"], **given) as envs:
        info = envs.reset(seed=0)[1]
        recipe = envs.metadata["stepwell"]
    assert info["start"].tolist() == [0, 0]
    assert info["noops"].max() > 0
    assert json.loads(json.dumps(recipe)) == recipe
    assert recipe["versions"][backend]
    assert len(recipe["cartridge"]["sha256"]) == 64
    assert recipe["game"]["vars"]["score"]["type"] == ">n2"
    assert recipe.items() >= {**CHOICES, "actions": ["RIGHT+LEFT", "NOOP"]}.items()
    assert recipe.keys() == defaults.keys()
    usual = {
        "maker": "make_nes",
        "backend": backend,
        "frame_skip": 4,
        "pool": "max",
        "crop": None,
        "size": [84, 84],
        "grayscale": True,
        "frame_stack": 4,
        "stack_padding": "zero",
        "noop_max": 0,
        "sticky": 0.0,
        "reward_clip": None,
        "life_loss": "ignore",
        "max_frames": None,
        "stuck_frames": None,
        "actions": ACTIONS,
        "ram_obs": False,
        "final_observation": "true",
    }
    assert {name: defaults[name] for name in usual} == usual


def test_the_amount_of_info_and_the_start_reach_the_envs(demo: tuple[Path, Path]) -> None:
    with envs_of(demo, 1, info="all") as envs:
        assert "reward_terms" in envs.reset()[1]
    with envs_of(demo, 1, info="none") as envs:
        assert "lives" not in envs.reset()[1]
    with env_of(demo, frame_skip=4) as env:
        episode(env, [1] * 12)
        snapshot = env.snapshot()
    for num_workers in (0, 2):
        with envs_of(demo, 2, start=snapshot, num_workers=num_workers) as envs:
            observation, info = envs.reset()
            assert info["world_x"].tolist() == [16, 16]
            np.testing.assert_array_equal(observation[0], observation[1])
            assert len(envs.metadata["stepwell"]["start"]) == 1


NONSENSE: list[tuple[dict[str, Any], str]] = [
    ({"crop": "borders"}, "crop: .*'overscan', 'scenario'.*got 'borders'"),
    ({"crop": (1, 2, 3)}, r"crop: .*got \(1, 2, 3\)"),
    ({"crop": (-1, 0, 0, 0)}, r"crop: .*0.*got \(-1, 0, 0, 0\)"),
    ({"crop": (120, 120, 0, 0)}, r"crop: .*240.*256.*got \(120, 120, 0, 0\)"),
    ({"crop": (0, 0, 1.5, 0)}, r"crop: .*got \(0, 0, 1\.5, 0\)"),
    ({"size": (84,)}, r"size: .*got \(84,\)"),
    ({"size": (0, 84)}, r"size: .*1.*got \(0, 84\)"),
    ({"frame_stack": 0}, "frame_stack: .*1.*got 0"),
    ({"life_loss": "reset"}, "life_loss: .*'ignore'.*'end'.*got 'reset'"),
    ({"life_loss": "end", "game": None}, r"life_loss='end': .*lives.*got none"),
    ({"life_loss": "end", "info": "none"}, "life_loss='end': .*info='vars' or 'all', got none"),
    ({"reward_clip": 0}, "reward_clip: .*0.*got 0"),
    ({"reward_clip": float("nan")}, "reward_clip: .*0.*got nan"),
    ({"ram_obs": True, "crop": "overscan"}, "ram_obs: .*got crop"),
    ({"start": []}, r"start: .*Snapshot.*got \[\]"),
    ({"num_workers": -1}, "num_workers: .*0.*got -1"),
]


@pytest.mark.parametrize(
    ("settings", "message", "num_workers"),
    [*((*row, 0) for row in NONSENSE), *((*row, 2) for row in NONSENSE[-4:])],
    ids=lambda value: str(value)[:40],
)
def test_invalid_arguments_are_refused_with_and_without_workers(
    demo: tuple[Path, Path], settings: dict[str, Any], message: str, num_workers: int
) -> None:
    with (
        pytest.raises(ValueError, match=message) as error,
        envs_of(demo, 2, **{"num_workers": num_workers, **settings}),
    ):
        pass
    assert "\n" not in str(error.value)


def test_render_shows_whole_screens_in_colour(demo: tuple[Path, Path]) -> None:
    with envs_of(demo, 2, render_mode="rgb_array") as envs, console_of(ANY) as console:
        envs.reset()
        game = SlowGame(console)
        game.step([NOOP] * 4)
        envs.step(np.array([NOTHING, NOTHING]))
        screens = envs.render()
        assert screens is not None
        for screen in screens:
            np.testing.assert_array_equal(screen, console.screen())
