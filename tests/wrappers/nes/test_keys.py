"""`NesEnv.get_keys_to_action`, and `on_frame`."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell.wrappers.nes.buttons import VECTOR, keys_of
from support.envs.nes_backends import needs_a_backend
from support.envs.nes_envs import env_of

CODES = {"x": 120, "z": 122, "right": 0x4000004F}


@needs_a_backend
def test_each_action_is_on_the_keys_of_its_buttons(demo: tuple[Path, Path]) -> None:
    with env_of(demo, actions=["NOOP", "RIGHT", "RIGHT+A", "A+B"]) as env:
        assert env.get_keys_to_action() == {
            (CODES["right"],): 1,
            (CODES["x"], CODES["right"]): 2,
            (CODES["x"], CODES["z"]): 3,
        }


@needs_a_backend
@pytest.mark.parametrize("allow_opposites", [False, True])
def test_bit_vectors_are_on_all_combinations_that_the_console_takes(
    demo: tuple[Path, Path], allow_opposites: bool
) -> None:
    with env_of(demo, actions="multibinary", allow_opposites=allow_opposites) as env:
        found = env.get_keys_to_action()
        assert len(found) == (255 if allow_opposites else 16 * 9 - 1)
        for keys, action in found.items():
            assert env.action_space.contains(action)
            bits = np.asarray(action).tolist()
            mask = sum(button for button, bit in zip(VECTOR, bits, strict=True) if bit)
            assert keys == keys_of(int(mask))


def test_the_codes_of_the_keys_are_those_of_pygame() -> None:
    pygame: Any = pytest.importorskip("pygame", reason="needs pygame")
    names = ("x", "z", "RSHIFT", "RETURN", "UP", "DOWN", "LEFT", "RIGHT")
    codes = tuple(getattr(pygame, f"K_{name}") for name in names)
    assert keys_of(0xFF) == codes


@needs_a_backend
def test_gymnasium_plays_a_cartridge_with_these_keys(
    demo: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    pygame: Any = pytest.importorskip("pygame", reason="needs pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    with warnings.catch_warnings():  # that matplotlib, for its plots, is not installed
        warnings.simplefilter("ignore")
        from gymnasium.utils.play import play
    seen: list[int] = []

    def callback(before: Any, after: Any, action: Any, *rest: Any) -> None:
        seen.append(int(action))
        if len(seen) == 3:
            pygame.event.post(pygame.event.Event(pygame.KEYDOWN, key=pygame.K_RIGHT))
        if len(seen) == 5:
            pygame.event.post(pygame.event.Event(pygame.KEYDOWN, key=pygame.K_x))
        if len(seen) == 8:
            pygame.event.post(pygame.event.Event(pygame.QUIT))

    actions = ["NOOP", "RIGHT", "RIGHT+A"]
    with env_of(demo, actions=actions, render_mode="rgb_array") as env:
        play(env, fps=1000, callback=callback)
    assert seen == [0] * 3 + [1] * 2 + [2] * 3


@needs_a_backend
def test_each_frame_of_a_step_is_shown_once_in_order(demo: tuple[Path, Path]) -> None:
    with env_of(demo, frame_skip=4) as env, env_of(demo, render_mode="rgb_array") as single:
        frames: list[Any] = []
        env.render_mode = "rgb_array"
        env.on_frame = lambda: frames.append(env.render())
        env.reset()
        single.reset()
        for action in (1, 2, 1):
            env.step(action)
            expected = [single.step(action)[0] for _ in range(4)]
            assert np.array_equal(frames[-4:], expected)
        assert len(frames) == 12
        env.on_frame = None
        env.step(1)
        assert len(frames) == 12
