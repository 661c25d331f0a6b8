"""`NesEnv`: the same first frame each time, observations of one's own, clear refusals."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ClosedEnvironmentError
from gymnasium.utils.env_checker import check_env

from demo_rom import RAM, build_rom
from stepwell.wrappers.nes.buttons import text_of
from stepwell.wrappers.nes.emulators import NesBackend
from stepwell.wrappers.nes.env import NesEnv
from support.envs.nes_backends import each_backend, needs_a_backend
from support.envs.nes_envs import (
    ACTIONS,
    BUTTONS,
    LOSE,
    NOTHING,
    env_of,
    episode,
    ram_of,
    random_actions,
)

pytestmark = needs_a_backend

# --- what gymnasium asks for ---


@each_backend
@pytest.mark.parametrize(
    "settings",
    [{}, {"frame_skip": 4, "noop_max": 5, "sticky": 0.25, "actions": "multibinary"}],
    ids=["plain", "with chance"],
)
def test_gymnasiums_checker_finds_nothing(
    demo: tuple[Path, Path], backend: NesBackend, settings: dict[str, Any]
) -> None:
    """N1: it finds live buffers, for instance; a warning of it would be an error here."""
    with env_of(demo, backend, render_mode="rgb_array", **settings) as env:
        check_env(env, skip_render_check=True)


# --- E1: what a reset is ---


@each_backend
def test_every_reset_shows_what_a_new_env_shows(
    demo: tuple[Path, Path], backend: NesBackend
) -> None:
    """E1, R1: a reset goes back to power-on and the script, not to the console's reset button."""
    actions = random_actions(25, seed=0)
    with env_of(demo, backend) as env:
        first = episode(env, actions)
        assert len({screen for screen, *_ in first}) > 20
        assert episode(env, actions) == first
        assert env.reset()[0].tobytes() == first[0][0]
        over = episode(env, [LOSE, NOTHING] * 3)
        assert over[-1][2]
        assert episode(env, actions) == first
    with env_of(demo, backend) as other:
        assert episode(other, actions) == first


# --- observations, info ---


@each_backend
def test_observations_are_the_callers_own(demo: tuple[Path, Path], backend: NesBackend) -> None:
    """N1: nes-py itself returns the live screen; 61 observations held one frame."""
    with env_of(demo, backend, frame_skip=2, render_mode="rgb_array") as env:
        kept = [env.reset()[0]]
        copies = [kept[0].copy()]
        for action in random_actions(40, seed=2):
            kept.append(env.step(action)[0])
            copies.append(kept[-1].copy())
            rendered = env.render()
            assert rendered is not None
            rendered[:] = 0
        env.reset()
    for one, copied in zip(kept, copies, strict=True):
        np.testing.assert_array_equal(one, copied)
        assert one.flags.c_contiguous
        assert one.flags.writeable
    assert len({one.tobytes() for one in kept}) == len(kept)


@each_backend
def test_ram_can_be_observed(demo: tuple[Path, Path], backend: NesBackend) -> None:
    with env_of(demo, backend, ram_obs=True, frame_skip=4, render_mode="rgb_array") as env:
        observation, info = env.reset()
        assert env.observation_space == gymnasium.spaces.Box(0, 255, (2048,), np.uint8)
        kept = observation.copy()
        assert observation[RAM["lives"]] == info["lives"] == 3
        later, *_, info = env.step(1)
        assert later[RAM["player_x"]] == info["player_x"] == kept[RAM["player_x"]] + 8
        np.testing.assert_array_equal(observation, kept)
        rendered = env.render()
        assert rendered is not None
        assert rendered.ndim == 3


@each_backend
def test_info_holds_the_maps_variables_as_python_ints(
    demo: tuple[Path, Path], backend: NesBackend
) -> None:
    """E5: uint8 scalars would overflow in the first sum."""
    with env_of(demo, backend, frame_skip=4) as env:
        seen = episode(env, random_actions(10, seed=3))
        names = {*env.game.variables, "lives", "episode_frame_number"}
        assert set(seen[0][4]) == names | {"noops"}
        assert all(set(info) == names for *_, info in seen[1:])
        assert {type(value) for *_, info in seen for value in info.values()} == {int}
        assert [info["episode_frame_number"] for *_, info in seen] == list(range(0, 41, 4))


def test_the_amount_of_info_can_be_chosen(demo: tuple[Path, Path]) -> None:
    with env_of(demo, info="none") as env:
        assert [set(info) for *_, info in episode(env, [1, 1])] == [{"noops"}, set(), set()]
    with env_of(demo, info="all", frame_skip=4) as env:
        seen = episode(env, [1] * 14)
    for _, reward, _, _, info in seen:
        assert set(info["reward_terms"]) == {"score", "world_x", "lives"}
        assert sum(info["reward_terms"].values()) == pytest.approx(reward)
    assert seen[-1][4]["reward_terms"]["world_x"] == pytest.approx(0.8)


def test_without_a_map_nothing_is_rewarded_and_nothing_ends(demo: tuple[Path, Path]) -> None:
    with env_of(demo, game=None, boot="NOOP 20, START 3, NOOP 5") as env:
        seen = episode(env, [LOSE, NOTHING] * 4)
    assert len(seen) == 9
    assert {(reward, over, cut) for _, reward, over, cut, _ in seen} == {(0.0, False, False)}
    assert [set(info) for *_, info in seen[1:]] == [{"episode_frame_number"}] * 8


# --- nonsense, closing, provenance ---

NONSENSE: list[tuple[dict[str, Any], str]] = [
    ({"backend": "fceux"}, "backend: .*'cynes'.*got 'fceux'"),
    ({"frame_skip": 0}, "frame_skip: expected"),
    ({"frame_skip": 2.5}, "frame_skip: expected"),
    ({"frame_skip": True}, "frame_skip: expected"),
    ({"pool": "mean"}, "pool: .*'max'.*'none'.*got 'mean'"),
    ({"noop_max": -1}, "noop_max: .*0.*got -1"),
    ({"sticky": 1.0}, r"sticky: .*got 1\.0"),
    ({"sticky": -0.1}, r"sticky: .*got -0\.1"),
    ({"sticky": float("nan")}, "sticky: .*got nan"),
    ({"max_frames": 0}, "max_frames: .*1.*got 0"),
    ({"stuck_frames": 0}, "stuck_frames: .*1.*got 0"),
    ({"stuck_frames": 5, "game": None}, r"stuck_frames: .*got none; .*stuck"),
    ({"info": "some"}, "info: .*'vars'.*'all'.*'none'.*got 'some'"),
    ({"render_mode": "human"}, "render_mode: .*'rgb_array'.*got 'human'"),
    ({"actions": "many"}, "actions: .*'simple'.*got 'many'"),
    ({"actions": []}, "actions: .*got an empty list"),
    ({"actions": ["JUMP"]}, "RIGHT, LEFT.*got 'JUMP'"),
    ({"actions": ["NOOP", "NOOP"]}, "actions: .*got 'NOOP' twice"),
    ({"actions": ["LEFT+RIGHT"]}, r"actions: .*got 'RIGHT\+LEFT'.*allow_opposites=True"),
    ({"actions": ["UP+DOWN+A"]}, r"actions: .*got 'DOWN\+UP\+A'.*allow_opposites=True"),
    ({"actions": "game", "game": None}, "actions='game': .*got none; .*'simple'"),
    ({"boot": "PUSH 3"}, "boot, .*'PUSH 3'.*got 'PUSH'"),
    ({"boot": "START"}, "boot: .*'START 3'.*got 'START'"),
    ({"boot": "START -3"}, "boot: .*'START 3'.*got 'START -3'"),
    ({"boot": []}, r"boot: .*got \[\]"),
    ({"start": []}, r"start: .*Snapshot.*got \[\]"),
    ({"start_rule": "best"}, "start_rule: .*'random'.*'cycle'.*got 'best'"),
    (
        {"game": {"vars": {"x": {"address": 9999, "type": "|u1"}}}},
        r"vars, x, address: .*0x7FF.*got 0x270f",
    ),
    ({"game": {"rom": {"sha256": "0" * 64}}}, "game.nes.*SHA-256 0{64}.*got [0-9a-f]{64}"),
]


@pytest.mark.parametrize(("settings", "message"), NONSENSE, ids=lambda value: str(value)[:40])
def test_invalid_arguments_are_refused_in_one_sentence(
    demo: tuple[Path, Path], settings: dict[str, Any], message: str
) -> None:
    """E3: opposite directions among it."""
    with pytest.raises(ValueError, match=message) as error, env_of(demo, **settings):
        pass
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500


@each_backend
def test_refused_arguments_leave_no_emulator_open(
    demo: tuple[Path, Path], backend: NesBackend
) -> None:
    """R1: stable-retro would have none for the next cartridge."""
    other = build_rom()[:6] + b"\0" + build_rom()[7:]
    for settings, message in NONSENSE:
        if settings.keys() <= {"boot", "start", "start_rule"}:
            with pytest.raises(ValueError, match=message), env_of(demo, backend, **settings):
                pass
    with env_of((other, None), backend) as env:  # type: ignore[arg-type]  # pyright: ignore
        env.reset()


def test_in_bit_vectors_opposite_directions_cancel_each_other(demo: tuple[Path, Path]) -> None:
    """E3: a random vector may press everything."""
    every = np.ones(8, np.int8)
    with env_of(demo, actions="multibinary", ram_obs=True) as env:
        assert env.action_space == gymnasium.spaces.MultiBinary(8)
        env.reset()
        assert env.step(every)[0][RAM["pad"]] == 0b11110000
        names = env.get_action_meanings()
        for index, name in enumerate(names):
            one = np.eye(8, dtype=np.int8)[index]
            assert text_of(int(env.step(one)[0][RAM["pad"]])) == name
    with env_of(demo, actions="multibinary", allow_opposites=True, ram_obs=True) as env:
        env.reset()
        assert env.step(every)[0][RAM["pad"]] == 255


@pytest.mark.parametrize("action", [-1, len(BUTTONS), 1.5, "RIGHT", None, [1, 2]])
def test_an_action_outside_of_the_space_is_refused_and_plays_nothing(
    demo: tuple[Path, Path], action: Any
) -> None:
    with env_of(demo) as env:
        env.reset()
        ram = ram_of(env)
        with pytest.raises(
            ValueError, match=rf"^action: .*0.*{len(BUTTONS) - 1}.*got {re.escape(repr(action))}"
        ):
            env.step(action)
        np.testing.assert_array_equal(ram_of(env), ram)
        env.step(np.int64(1))


@each_backend
def test_closing_twice_is_closing_once(demo: tuple[Path, Path], backend: NesBackend) -> None:
    with env_of(demo, backend, render_mode="rgb_array") as env:
        env.reset()
        env.close()
        env.close()
        for call in (env.reset, env.render, env.snapshot, lambda: env.step(0)):
            with pytest.raises(ClosedEnvironmentError, match=r"NesEnv.*close\(\)"):
                call()


def test_a_crash_is_reported_in_one_sentence_and_a_reset_recovers(demo: tuple[Path, Path]) -> None:
    """C5: cynes shows a constant picture; only its flag reports the crash."""
    pytest.importorskip("cynes", reason="needs cynes")
    rom = build_rom()
    jam = rom.index(b"\xc6\x13")  # where a life is lost: DEC lives
    broken = rom[:jam] + b"\x02" + rom[jam + 1 :]
    (demo[1] / "rom.sha").unlink()
    with NesEnv(broken, backend="cynes", game=demo[1], actions=ACTIONS) as env:
        first = env.reset()[0]
        env.step(1)
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"crashed.*reset"):
                env.step(LOSE)
        np.testing.assert_array_equal(env.reset()[0], first)
        env.step(1)
