"""Record an env that returns its live screen buffer, with Minari and Stepwell, and compare.

pip install 'stepwell[nes]' 'minari[create,hdf5]' pillow
python examples/live_buffers.py --steps 120 --out runs/live_buffers
"""

import argparse
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import cv2
import gymnasium as gym
import numpy as np

import stepwell as sw
from demo_rom import write_demo
from stepwell.wrappers import FrameStack

NEEDS = ("cynes", "minari", "h5py", "jax", "PIL")  # Minari needs the last three
Frames = Sequence[np.ndarray]


class NaiveEnv(gym.Env[np.ndarray, np.int64]):
    """A straightforward env on cynes, whose observation is always the emulator's own array."""

    observation_space = gym.spaces.Box(0, 255, (240, 256, 3), np.uint8)
    action_space = gym.spaces.Discrete(256)  # a bit for each button

    def __init__(self, rom: str) -> None:
        self.nes = import_module("cynes").NES(rom)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Press the console's reset button."""
        super().reset(seed=seed)
        self.nes.reset()
        return self.nes.step(), {}

    def step(self, action: np.int64) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Play a frame."""
        self.nes.controller = int(action)
        return self.nes.step(), 0.0, False, False, {}


class FrameRecorder(gym.Wrapper[Any, Any, Any, Any]):
    """Copies each frame when it is returned, and passes on the original array."""

    def __init__(self, env: gym.Env[Any, Any], start: int, right: int) -> None:
        super().__init__(env)
        self.start, self.right = start, right
        self.frames: list[np.ndarray] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Record the first frame."""
        observation, info = self.env.reset(seed=seed)
        self.frames = [observation.copy()]
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Record another frame."""
        result = self.env.step(action)
        self.frames.append(result[0].copy())
        return result

    def button(self) -> int:
        """Return the next action: START on the title screen, then RIGHT."""
        now = len(self.frames)
        return self.right if now > 27 else self.start if now in (20, 21) else 0


def recorded(env: FrameRecorder, steps: int) -> tuple[Frames, Frames]:
    """Record one episode with Minari and Stepwell at once, and return the frames of both."""
    replay = sw.SequenceReplayBuffer()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MINARI_DATASETS_PATH"] = folder  # instead of the home folder
        minari = import_module("minari").DataCollector(env, jpeg_encoding=False)  # exact
        with sw.Collector(minari, lambda *_: np.array([env.button()]), replay) as collector:
            collector.collect(steps=steps)
            dataset = minari.create_dataset("live/buffer-v0")
            by_minari: Frames = next(dataset.iterate_episodes()).observations
        by_stepwell: Frames = list(next(replay.iter_episodes()).observation)
    return by_minari, by_stepwell


def stacked_by(stack: Callable[..., Any], env: FrameRecorder, steps: int) -> Frames:
    """Return the last stack of four frames that a wrapper gives."""
    wrapper, frames = stack(env, 4), []
    wrapper.reset(seed=0)
    for _ in range(steps):
        frames = wrapper.step(env.button())[0]
    return frames


def distinct(frames: Frames) -> int:
    """Count the distinct frames."""
    return len({np.asarray(frame).tobytes() for frame in frames})


def picture(rows: dict[str, Frames], shown: Frames) -> np.ndarray:
    """Draw six moments, one row per label; red edges mark frames that differ from the screen."""
    image = np.full((26 + 130 * len(rows), 132 + 138 * 6, 3), 255, np.uint8)
    moments = np.linspace(0, len(shown) - 1, 7).astype(int)[1:]
    for column, moment in enumerate(moments):
        left = 132 + 138 * column
        cv2.putText(image, f"step {moment}", (left, 17), 0, 0.5, (40, 40, 40))
        for row, frames in enumerate(rows.values()):
            top, is_true = 26 + 130 * row, np.array_equal(frames[moment], shown[moment])
            image[top : top + 126, left : left + 134] = (70, 160, 40) if is_true else (40, 40, 220)
            image[top + 3 : top + 123, left + 3 : left + 131] = frames[moment][::2, ::2, ::-1]
    for row, (label, frames) in enumerate(rows.items()):
        for line, text in enumerate((label, f"{distinct(frames)} distinct")):
            cv2.putText(image, text, (8, 84 + 130 * row + 26 * line), 0, 0.5, (40, 40, 40))
    return image


def main() -> None:
    """Print a few lines for each env, and save a picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--out", type=Path, default=Path("runs/live_buffers"))
    options = parser.parse_args()
    if missing := [name for name in NEEDS if find_spec(name) is None]:
        install = "pip install 'stepwell[nes]' 'minari[create,hdf5]' pillow"
        sys.exit(f"{', '.join(missing)} cannot be imported, so first: {install}")
    rom, steps = str(write_demo(options.out)[0]), options.steps
    makes: dict[str, Callable[[], FrameRecorder]] = {
        "cynes": lambda: FrameRecorder(NaiveEnv(rom), 16, 1)
    }
    if find_spec("nes_py"):  # its own env, unchanged: since version 9 a gymnasium env
        nes_env: Any = import_module("nes_py").NESEnv
        makes["nes-py"] = lambda: FrameRecorder(nes_env(rom), 8, 128)
    for name, make in makes.items():
        env = make()
        with warnings.catch_warnings(action="ignore"):  # Minari warns about missing metadata
            by_minari, by_stepwell = recorded(env, steps)
        shown = env.frames[: steps + 1]
        rows = {"shown": shown, f"Minari {version('minari')}": by_minari, "Stepwell": by_stepwell}
        print(f"{name} {version(name)}, an episode of {len(shown)} frames")
        for label, frames in rows.items():
            print(f"    {label + ':':14} {len(frames)} frames, {distinct(frames)} distinct")
        for stack in (gym.wrappers.FrameStackObservation, FrameStack):
            count = distinct(stacked_by(stack, make(), steps))
            print(
                f"    a stack of 4 frames by {stack.__module__.partition('.')[0]}: {count} distinct"
            )
        file = options.out / f"live_buffers_{name}.png"
        cv2.imwrite(str(file), picture(rows, shown), [cv2.IMWRITE_PNG_COMPRESSION, 9])


if __name__ == "__main__":
    main()
