"""Speed of collecting every row, relative to NES emulators alone.

    python benchmarks/nes.py                              # our own test game, all backends
    python benchmarks/nes.py --backend cynes --rounds 3
    python benchmarks/nes.py --rom game.nes --game game

The limit is the emulator alone: a loop that presses random buttons, in as many processes at the
same time as the envs use. Compared is the CPU time of all processes.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

import rounds
import stepwell as sw
from stepwell.wrappers.nes import Cartridge, Game, installed_backends
from stepwell.wrappers.nes.buttons import action_set, parse_boot
from stepwell.wrappers.nes.emulators import NesBackend, open_console
from stepwell.wrappers.nes.snapshot import play_boot

FRAME_SKIP = 4
EPISODE_FRAMES = 3_600
Work = Callable[[int], int]  # plays so many frames, returns how many it played


@dataclass(frozen=True)
class Setting:
    """The cartridge and the settings of the measurement."""

    rom: Path
    game: Path | None
    backend: NesBackend
    num_envs: int
    workers: int


def bare(setting: Setting, *, screens: bool) -> Work:
    """The emulator alone; with screens, a copy of the screen after each frame."""
    game = Game.load(setting.game)
    console = open_console(Cartridge.read(setting.rom), setting.backend)
    play_boot(console, parse_boot(game.boot or ""))
    start, rng = console.save(), np.random.default_rng(0)
    buttons = action_set("game" if game.actions else "simple", game_actions=game.actions).buttons

    def work(frames: int) -> int:
        for frame in range(0, frames, FRAME_SKIP):
            if frame % EPISODE_FRAMES == 0:
                console.load(start)
            held = buttons[rng.integers(len(buttons))]
            for _ in range(FRAME_SKIP):
                console.frame(held)
                if screens:
                    console.screen()
        return frames

    return work


def stepping(setting: Setting) -> Work:
    """One `NesEnv`: rewards, ends and info from the RAM, RGB observations."""
    game = Game.load(setting.game)
    actions = "game" if game.actions else "simple"
    env = sw.NesEnv(
        setting.rom, backend=setting.backend, game=game, actions=actions, frame_skip=FRAME_SKIP
    )
    env.reset(seed=0)
    rng, count = np.random.default_rng(0), len(env.get_action_meanings())

    def work(frames: int) -> int:
        for _ in range(frames // FRAME_SKIP):
            *_, terminated, truncated, _ = env.step(rng.integers(count))
            if terminated or truncated:
                env.reset()
        return frames

    return work


class Processes:
    """The same work in several processes at once: all of them wait, work, and wait again.

    Args:
        make: Called in each process for its work.
        size: How many processes.
    """

    def __init__(self, make: Callable[[], Work], size: int) -> None:
        self._pipes: list[Connection] = []
        context = multiprocessing.get_context("fork")
        for _ in range(size):
            ours, theirs = context.Pipe()
            context.Process(target=_serve, args=(make, theirs), daemon=True).start()
            self._pipes.append(ours)

    def __call__(self, frames: int) -> int:
        """Play a number of frames in all."""
        for pipe in self._pipes:
            pipe.send(frames // len(self._pipes))
        return sum(pipe.recv() for pipe in self._pipes)

    def close(self) -> None:
        """Stop the processes."""
        for pipe in self._pipes:
            pipe.send(None)


def _serve(make: Callable[[], Work], pipe: Connection) -> None:
    work = make()
    while (frames := pipe.recv()) is not None:
        pipe.send(work(frames))


def vector(setting: Setting) -> VectorEnv[Any, Any, Any]:
    """`make_nes` with its defaults."""
    game = Game.load(setting.game)
    return sw.make_nes(
        setting.rom,
        setting.num_envs,
        backend=setting.backend,
        game=game,
        actions="game" if game.actions else "simple",
        frame_skip=FRAME_SKIP,
        num_workers=setting.workers,
    )


def without_storage(setting: Setting, stack: contextlib.ExitStack) -> Work:
    """Step the vector env with random actions."""
    envs = vector(setting)
    stack.callback(envs.close)
    envs.action_space.seed(0)
    envs.reset(seed=0)

    def work(frames: int) -> int:
        steps, resets = 0, 0
        while (steps - resets) * FRAME_SKIP < frames:
            *_, terminated, truncated, _ = envs.step(envs.action_space.sample())
            steps += envs.num_envs
            resets += int((terminated | truncated).sum())  # its next step plays no frame
        return (steps - resets) * FRAME_SKIP

    return work


def collecting(
    setting: Setting, folder: Path | None, stack: contextlib.ExitStack, *, groups: int = 1
) -> Work:
    """Collect every row into RAM or into a folder; of several vector envs each steps in turn."""
    replay = sw.SequenceReplayBuffer(folder)
    envs = [vector(setting) for _ in range(groups)]
    collector = sw.Collector(envs, sw.RandomPolicy(), replay, seed=0)
    stack.callback(collector.close)
    # An episode's last step may be shorter than the skip: a frame or two of hundreds.
    return lambda frames: collector.collect(steps=frames // FRAME_SKIP).frames


def candidates(setting: Setting, folder: Path, stack: contextlib.ExitStack) -> dict[str, Work]:
    """All candidates by name; the first is the limit."""
    many = setting.workers
    makers: list[tuple[str, Callable[[], Work]]] = [
        ("bare", lambda: bare(setting, screens=False)),
        ("bare, screens copied", lambda: bare(setting, screens=True)),
        ("NesEnv, RGB", lambda: stepping(setting)),
    ]
    found: dict[str, Work] = {}
    # Before the envs: a forked process should have no copy of their pipes.
    for name, make in makers:
        processes = Processes(make, many)
        stack.callback(processes.close)
        found[name] = processes
    ours: list[tuple[str, Work]] = [
        ("nothing kept", without_storage(setting, stack)),
        ("into RAM", collecting(setting, None, stack)),
        ("into a folder", collecting(setting, folder, stack)),
        (
            "two in turns, into a folder",
            collecting(setting, folder.with_name("store-2"), stack, groups=2),
        ),
    ]
    for name, work in ours:
        found[f"make_nes, {setting.num_envs} envs, {name}"] = work
    return found


def compare(setting: Setting, seconds: float, count: int) -> list[rounds.Row]:
    """Measure one backend; each candidate plays about as long."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        works = candidates(setting, Path(name) / "store-1", stack)
        trial = rounds.rates({name: partial(work, 480) for name, work in works.items()}, 1)
        return rounds.compare(
            *("nes", f"{setting.backend}, {setting.workers} processes"),
            candidates={
                name: partial(work, _whole(trial[name][0] * seconds, setting))
                for name, work in works.items()
            },
            limit="bare",
            count=count,
            goals={f"make_nes, {setting.num_envs} envs, into a folder": 0.95},
        )


def _whole(frames: float, setting: Setting) -> int:
    """Frames that all processes and all envs can share equally."""
    unit = 2 * FRAME_SKIP * setting.num_envs * setting.workers
    return max(1, round(frames / unit)) * unit


def main() -> None:
    """Print one table."""
    there = installed_backends()
    parser = rounds.options(__doc__, 7)
    parser.add_argument("--backend", nargs="+", choices=list(there), default=list(there))
    parser.add_argument("--rom", type=Path, help="a cartridge; our own test game if left out")
    parser.add_argument("--game", type=Path, help="its RAM map")
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seconds", type=float, default=1.0, help="of each candidate, each round")
    options = parser.parse_args()
    rows: list[rounds.Row] = []
    # The game belongs to an example; a script only imports modules of its folder.
    sys.path.append(str(Path(__file__).parents[1] / "examples"))
    from demo_rom import write_demo

    with tempfile.TemporaryDirectory() as name:
        rom, game = (options.rom, options.game) if options.rom else write_demo(name)
        for backend in options.backend:
            setting = Setting(rom, game, backend, options.num_envs, options.workers)
            rows += compare(setting, options.seconds, options.rounds)
    packages = ["stepwell", "gymnasium", "numpy", "zstandard", *options.backend]
    rounds.report(rows, packages, options.json)


if __name__ == "__main__":
    main()
