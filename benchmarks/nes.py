"""Speed of collecting every row, relative to NES emulators alone.

    python benchmarks/nes.py                              # our own test game, all backends
    python benchmarks/nes.py --backend cynes --rounds 3
    python benchmarks/nes.py --rom game.nes --game game.toml

The limit is the emulator alone: a loop that presses random buttons, in as many processes at the
same time as the envs use ("x 2"). Ratios are taken round by round to the limit with as many
processes, and once more in CPU time, which other programs of the machine disturb less.
"""

from __future__ import annotations

import argparse
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
from stepwell.wrappers.nes.starts import play_boot

FRAME_SKIP = 4
EPISODE_FRAMES = 3_600
Work = Callable[[int], int]  # plays so many frames, returns how many it played
HEAD = (
    *("backend", "candidate, number of processes", "frames/s", "a CPU second"),
    *("ratio to bare: median", "min", "max", "by CPU"),
)


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


@dataclass
class Candidate:
    """One line of the table, with the CPU time that it took in all processes together."""

    title: str
    limit: str
    work: Work
    played: int = 0
    cpu_seconds: float = 0.0

    def play(self, frames: int) -> int:
        """Do the work, and record its time and CPU time."""
        began = rounds.cpu_seconds()
        played = self.work(frames)
        self.cpu_seconds += rounds.cpu_seconds() - began
        self.played += played
        return played

    @property
    def per_cpu_second(self) -> float:
        """Frames."""
        return self.played / self.cpu_seconds


def candidates(setting: Setting, folder: Path, stack: contextlib.ExitStack) -> list[Candidate]:
    """All candidates; a limit is compared with itself."""
    many = setting.workers
    makers: list[tuple[str, Callable[[], Work]]] = [
        ("bare", lambda: bare(setting, screens=False)),
        ("bare, screens copied", lambda: bare(setting, screens=True)),
        ("NesEnv, RGB", lambda: stepping(setting)),
    ]
    found: list[Candidate] = []
    # Before the envs: a forked process should have no copy of their pipes.
    for size in dict.fromkeys((1, many)):
        for name, make in makers:
            processes = Processes(make, size)
            stack.callback(processes.close)
            found.append(Candidate(f"{name} x {size}", f"bare x {size}", processes))
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
        title = f"make_nes, {setting.num_envs} envs, {name} x {many}"
        found.append(Candidate(title, f"bare x {many}", work))
    return found


def compare(setting: Setting, seconds: float, count: int) -> list[tuple[str, ...]]:
    """Measure one backend; each candidate plays about as long."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        lines = candidates(setting, Path(name) / "store-1", stack)
        trial = rounds.rates({line.title: partial(line.work, 480) for line in lines}, 1)
        frames = {name: _whole(speeds[0] * seconds, setting) for name, speeds in trial.items()}
        timed = {line.title: partial(line.play, frames[line.title]) for line in lines}
        measured = rounds.rates(timed, count)
    of_limits = {line.title: line.per_cpu_second for line in lines}
    rows: list[tuple[str, ...]] = []
    for line in lines:
        low, middle, high = rounds.ratios(measured, line.title, line.limit)
        speeds = (f"{np.median(measured[line.title]):,.0f}", f"{line.per_cpu_second:,.0f}")
        by_cpu = line.per_cpu_second / of_limits[line.limit]
        ratios = (f"{middle:.3f}", f"{low:.3f}", f"{high:.3f}", f"{by_cpu:.3f}")
        rows.append((setting.backend, line.title, *speeds, *ratios))
    return rows


def _whole(frames: float, setting: Setting) -> int:
    """Frames that all processes and all envs can share equally."""
    unit = 2 * FRAME_SKIP * setting.num_envs * setting.workers
    return max(1, round(frames / unit)) * unit


def main() -> None:
    """Print one table."""
    there = installed_backends()
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--backend", nargs="+", choices=list(there), default=list(there))
    parser.add_argument("--rom", type=Path, help="a cartridge; our own test game if left out")
    parser.add_argument("--game", type=Path, help="its RAM map")
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each candidate, each round")
    options = parser.parse_args()
    print(rounds.machine("stepwell", "gymnasium", "numpy", "zstandard", *options.backend))
    rows: list[tuple[str, ...]] = []
    # The game belongs to an example; a script only imports modules of its folder.
    sys.path.append(str(Path(__file__).parents[1] / "examples"))
    from demo_rom import write_demo

    with tempfile.TemporaryDirectory() as name:
        rom, game = (options.rom, options.game) if options.rom else write_demo(name)
        for backend in options.backend:
            setting = Setting(rom, game, backend, options.num_envs, options.workers)
            rows += compare(setting, options.seconds, options.rounds)
    print(rounds.table(HEAD, rows))


if __name__ == "__main__":
    main()
