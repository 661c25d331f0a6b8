"""Properties of a console on every emulator."""

from __future__ import annotations

import hashlib
import importlib.metadata
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demo_rom import RAM, STATE, build_rom
from stepwell.wrappers.nes.buttons import Button
from stepwell.wrappers.nes.cartridge import Cartridge
from stepwell.wrappers.nes.emulators import BACKENDS, NesBackend, installed_backends, open_console
from support.envs.nes_backends import (
    BOOT,
    INSTALLED,
    NOOP,
    RIGHT,
    SELECT,
    START,
    console_of,
    each_backend,
    fingerprint_of,
    peek,
    play,
    random_frames,
    trajectory,
)
from support.envs.nes_envs import env_of, episode, random_actions

ROM = build_rom()
MIRRORED = ROM[:6] + bytes([ROM[6] ^ 1]) + ROM[7:]  # another cartridge, with the same program
# The stack page holds what the emulator's memory held at power-on: it differs between emulators.
STACK = slice(0x100, 0x200)
# Hash of the RAM (without the stack) after each frame of an episode, behind the boot script.
GOLDEN = "e46c7f53694d386e496187813d81cb4e0ecde00bc79a45a10c14ef924d624064"


def elsewhere(method: str, backend: NesBackend, frames: list[int], data: bytes = ROM) -> str:
    """The fingerprint that another process finds."""
    with multiprocessing.get_context(method).Pool(1) as pool:
        return pool.apply_async(fingerprint_of, (backend, frames, data)).get(timeout=60)


# --- the same game on each, again and again ---


@each_backend
def test_golden_ram_and_return_are_the_same_on_every_backend(
    demo: tuple[Path, Path], backend: NesBackend
) -> None:
    """E4: one constant stands for 984 frames; two lives lost, a coin, the whole way."""
    with env_of(demo, backend, ram_obs=True) as env:
        seen = episode(env, random_actions(984, seed=4))
    digest = hashlib.sha256()
    for ram, *_ in seen[1:]:
        digest.update(np.delete(np.frombuffer(ram, np.uint8), STACK).tobytes())
    assert digest.hexdigest() == GOLDEN
    assert (len(seen), *seen[-1][2:4]) == (985, True, False)
    assert sum(reward for _, reward, *_ in seen) == pytest.approx(76.8)
    kept = {name: seen[-1][4][name] for name in ("lives", "score", "world_x", "state")}
    assert kept == {"lives": 1, "score": 1, "world_x": 768, "state": STATE["cleared"]}


@pytest.mark.proof
@each_backend
def test_sixty_fresh_emulators_agree_frame_for_frame(backend: NesBackend) -> None:
    """C1: the first frame of a fresh cynes may not be one; here it always is."""
    frames = [NOOP] * 12
    assert len({fingerprint_of(backend, frames) for _ in range(60)}) == 1


@each_backend
def test_a_forked_process_plays_its_own_game(backend: NesBackend) -> None:
    """R1: a child inherits its parent's emulator, and must not use it."""
    frames = [*BOOT, *random_frames(60, seed=2)]
    with console_of(backend) as console:
        play(console, [START, RIGHT, RIGHT])
        before = console.ram()
        there = [elsewhere("fork", backend, frames, data) for data in (ROM, MIRRORED)]
        np.testing.assert_array_equal(console.ram(), before)
    assert [fingerprint_of(backend, frames, data) for data in (ROM, MIRRORED)] == there


# --- buttons ---


@each_backend
def test_all_256_combinations_reach_the_pad(backend: NesBackend) -> None:
    """N2: also those that no joypad can do; SELECT and START act a frame later."""
    with console_of(backend) as console:
        play(console, BOOT[:20])
        for buttons in range(256):
            console.frame(buttons)
            assert peek(console, "pad") == buttons


@each_backend
def test_buttons_do_not_stay_held(backend: NesBackend) -> None:
    """C5: a frame without buttons has none, though cynes keeps them."""
    with console_of(backend) as console:
        play(console, [*BOOT, RIGHT])
        there = peek(console, "player_x")
        play(console, [NOOP] * 3)
        assert peek(console, "player_x") == there


# --- screens and RAM ---


@each_backend
def test_the_screen_is_rgb_and_the_whole_picture_but_for_its_edges(backend: NesBackend) -> None:
    """E4: colours differ between emulators, but red is red: the title is blue, its end green."""
    with console_of(backend) as console:
        top, bottom, left, right = console.hidden
        rows, columns, _ = console.screen_shape
        assert (rows + top + bottom, columns + left + right) == (240, 256)
        play(console, BOOT[:20])
        sky = console.screen()[100 - top, 4]
        assert sky.argmax() == 2
        play(console, [*BOOT[20:], *[SELECT, NOOP] * 3, NOOP])
        assert peek(console, "state") == STATE["game_over"]
        assert console.screen()[100 - top, 4].argmax() == 0


# --- states ---


NO_STATES: list[Callable[[Any], object]] = [
    lambda state: None,
    lambda state: b"",
    lambda state: b"0123456789",
    lambda state: bytes(13_574),
    lambda state: state[:-1],
    lambda state: state + b"\0",
    lambda state: np.frombuffer(state, np.uint8).astype(np.float64),
    lambda state: np.zeros(10, np.uint8),
    lambda state: state.hex(),
]


@each_backend
@pytest.mark.parametrize("broken", range(len(NO_STATES)))
def test_what_is_no_state_of_the_emulator_is_refused(backend: NesBackend, broken: int) -> None:
    """C2: cynes itself takes ten bytes or a float array, and goes wild."""
    with console_of(backend) as console:
        play(console, [*BOOT, *[RIGHT] * 20])
        state, ram = console.save(), console.ram()
        if not isinstance(state, bytes):  # an opaque one cannot be cut
            state = bytes(4096)
        other = NO_STATES[broken](state)
        if isinstance(other, bytes) and len(other) == len(state) and backend != "nes-py":
            other += b"\0"
        with pytest.raises(ValueError, match=rf"^state: .*{backend}.*got "):
            console.load(other)
        np.testing.assert_array_equal(console.ram(), ram)


# --- several in one process ---


@each_backend
def test_reading_one_console_after_playing_another_reads_the_right_one(backend: NesBackend) -> None:
    """R1: a screen or RAM that is read late is still that console's."""
    games = [[*BOOT, *[RIGHT] * 20], [*BOOT, *[int(Button.DOWN)] * 10]]
    alone = []
    for frames in games:
        with console_of(backend) as console:
            alone.append(trajectory(console, frames)[-1])
    with console_of(backend) as first, console_of(backend) as second:
        play(first, games[0])
        play(second, games[1])
        for index in (0, 1, 0, 1):
            console = (first, second)[index]
            ram, screen = alone[index]
            assert peek(console, "player_x") == ram[RAM["player_x"]]
            assert (console.ram().tobytes(), console.screen().tobytes()) == (ram, screen)
            console.save()
    assert alone[0] != alone[1]


def test_stable_retro_refuses_a_second_cartridge_while_one_is_open() -> None:
    pytest.importorskip("stable_retro", reason="needs stable-retro")
    with console_of("stable-retro") as console:
        with pytest.raises(RuntimeError, match=r"stable-retro.*got 1 open"):
            open_console(Cartridge.read(MIRRORED), "stable-retro")
        play(console, BOOT)
        assert peek(console, "state") == STATE["playing"]


# --- what there is, and what is refused ---


def test_the_installed_backends_have_their_packages_versions() -> None:
    for name, version in installed_backends().items():
        assert importlib.metadata.version(name) == version


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'cynes', 'nes-py', 'stable-retro'.*'fceux'"):
        open_console(Cartridge.read(ROM), "fceux")  # type: ignore[arg-type]  # pyright: ignore


@pytest.mark.parametrize("backend", [name for name in BACKENDS if name not in INSTALLED])
def test_a_missing_backend_names_the_package_to_install(backend: NesBackend) -> None:
    extra = {"cynes": "nes", "nes-py": "nes-py", "stable-retro": "retro"}[backend]
    with pytest.raises(
        ImportError, match=rf"'{backend}'.*pip install 'stepwell\[{extra}\]'"
    ) as error:
        open_console(Cartridge.read(ROM), backend)
    assert "\n" not in str(error.value)


@each_backend
def test_a_board_that_the_emulator_does_not_know_is_refused_before_it_sees_it(
    backend: NesBackend,
) -> None:
    """C5: cynes would raise UnicodeDecodeError, stable-retro nothing."""
    data = ROM[:6] + bytes([0xF1, 0xF0]) + ROM[8:]  # mapper 255
    with pytest.raises(ValueError, match=r"mapper.*255"):
        open_console(Cartridge.read(data), backend)
