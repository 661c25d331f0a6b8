"""The random draws of a `NesEnv`: no-ops, sticky buttons, starts; and no others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demo_rom import RAM
from stepwell.wrappers.nes.emulators import NesBackend
from stepwell.wrappers.nes.env import NesEnv
from support.envs.nes_backends import ANY, NOOP, RIGHT, console_of, each_backend, needs_a_backend
from support.envs.nes_envs import NOTHING, env_of, episode, random_actions
from support.models.nes_model import SlowGame

pytestmark = needs_a_backend

# --- E2: chance ---


def test_without_chance_a_seed_changes_nothing(demo: tuple[Path, Path]) -> None:
    """E2: an NES game is deterministic."""
    with env_of(demo, frame_skip=4) as env:
        episodes = [episode(env, random_actions(6, seed=1), seed=seed) for seed in (None, 0, 1, 77)]
    assert all(one == episodes[0] for one in episodes)


@each_backend
def test_noops_are_drawn_by_the_seed_and_are_frames_without_a_button(
    demo: tuple[Path, Path], backend: NesBackend
) -> None:
    """E2: 0 to `noop_max`, recorded in the info."""
    with env_of(demo, backend, noop_max=4) as env:
        shown = {}
        for seed in range(24):
            observation, info = env.reset(seed=seed)
            again = env.reset(seed=seed)
            assert again[1] == info
            assert again[0].tobytes() == observation.tobytes()
            assert info["episode_frame_number"] == 0
            shown[info["noops"]] = observation
    assert sorted(shown) == [0, 1, 2, 3, 4]
    for noops, observation in shown.items():
        with console_of(backend) as console:
            np.testing.assert_array_equal(observation, SlowGame(console, noops=noops).first)


def test_when_the_game_ends_in_the_noops_the_rest_follow_in_a_new_one(
    demo: tuple[Path, Path],
) -> None:
    """E6: a reset never shows a game that is over; the enemy ends this one by itself."""
    dying = "NOOP 20, START 3, NOOP 5, SELECT 1, NOOP 1, SELECT 1, NOOP 185"
    with env_of(demo, boot=dying, noop_max=40, info="vars") as env:
        states = set()
        for seed in range(12):
            _, info = env.reset(seed=seed)
            states.add(info["state"])
            env.step(NOTHING)
    assert states == {1}


def test_sticky_actions_begin_each_episode_with_no_button_held(demo: tuple[Path, Path]) -> None:
    """E2: what was held in the last episode is not held in this one."""
    with env_of(demo, sticky=0.9, ram_obs=True) as env:
        held: list[int] = []
        for seed in range(8):
            env.reset(seed=seed)
            held = [int(env.step(1)[0][RAM["pad"]]) for _ in range(40)]
            assert held == sorted(held)  # nothing, then RIGHT for good
            assert held[0] in (NOOP, RIGHT)
        assert held[-1] == RIGHT


# --- starts ---

SCRIPTS = (
    "NOOP 20, START 3, NOOP 5",
    "NOOP 20, START 3, NOOP 5, RIGHT 30",
    "NOOP 20, START 3, DOWN 9",
)


@each_backend
def test_several_starts_are_cycled_through(demo: tuple[Path, Path], backend: NesBackend) -> None:
    alone = []
    for script in SCRIPTS:
        with env_of(demo, backend, boot=script) as env:
            alone.append(env.reset()[0].tobytes())
    with env_of(demo, backend, boot=list(SCRIPTS), start_rule="cycle") as env:
        for index in (0, 1, 2, 0, 1, 2, 0):
            observation, info = env.reset()
            assert (info["start"], observation.tobytes()) == (index, alone[index])
            env.step(1)


def test_a_start_can_be_asked_for(demo: tuple[Path, Path]) -> None:
    with env_of(demo, boot=list(SCRIPTS)) as env:
        for index in (2, 0, 1, 1):
            assert env.reset(options={"start": index})[1]["start"] == index
        for wrong in (3, -1, "0", True, 1.5):
            with pytest.raises(ValueError, match=rf"options\['start'\]: .*0.*2.*got {wrong!r}"):
                env.reset(options={"start": wrong})
        with pytest.raises(ValueError, match=r"options: .*'start'.*got 'level'"):
            env.reset(options={"level": 1})


@each_backend
def test_snapshots_are_starts_too(
    demo: tuple[Path, Path], backend: NesBackend, tmp_path: Path
) -> None:
    with env_of(demo, backend) as env:
        snapshots, shown = [], []
        env.reset()
        for index in range(2):
            screens = [env.step(1)[0].tobytes() for _ in range(10)]
            snapshots.append(env.snapshot())
            shown.append(screens[-1])
            if backend != "nes-py":
                snapshots[-1].save(tmp_path / f"{index}")
        env.reset()
        with pytest.raises(ValueError, match=r"boot and start: .*got both"):
            NesEnv(demo[0], backend=backend, start=snapshots[0], boot="NOOP 1")
    ways: list[Any] = [snapshots]
    if backend != "nes-py":
        ways.append([tmp_path / "0", str(tmp_path / "1")])
    for start in ways:
        with env_of(demo, backend, start=start, start_rule="cycle") as env:
            for index in (0, 1, 0):
                observation, info = env.reset()
                assert (observation.tobytes(), info["start"]) == (shown[index], index)
                assert info["episode_frame_number"] == 0
    with env_of(demo, backend, start=snapshots[0]) as env:
        assert "start" not in env.reset()[1]


def test_a_script_that_leads_to_an_end_is_refused(demo: tuple[Path, Path]) -> None:
    over = "NOOP 20, START 3, NOOP 5, SELECT 1, NOOP 1, SELECT 1, NOOP 1, SELECT 1, NOOP 2"
    with pytest.raises(ValueError, match=r"start .*the end.*'lives': 0") as error:
        NesEnv(demo[0], backend=ANY, game=demo[1], boot=over)
    assert "\n" not in str(error.value)
