"""Bytes a step of a store and of an archive, and the cost of a proof.

    python benchmarks/provenance.py                             # all envs, half an hour
    python benchmarks/provenance.py --only Pong CartPole --rounds 3
    python benchmarks/provenance.py --before ../earlier/src     # is collecting as fast as there?
    pip install 'gymnasium[mujoco]'                             # for HalfCheetah

Each round collects a new store of each env with random actions, proves it, archives it and restores
it, so that drift affects all alike. Costs are CPU time of this process and its workers, with the
making of the envs, and are compared round by round to that of collecting the same rows. The bare
emulator plays as many frames with random actions, in one process for each core, and returns the
last picture of each step in grey: times as fast as it says how much of a restore is the emulator.

With --before, two processes for each env, one of each tree, collect in turns in short bursts: a
figure is the 25 % quantile of the bursts, and the ratio of each burst to the one beside it.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

import rounds
import stepwell as sw

_BURSTS = 40  # of each tree, by default
_PACKAGES = ("stepwell", "numpy", "zstandard", "ale-py", "cynes", "gymnasium", "mujoco")


@dataclass(frozen=True)
class Setting:
    """The demo cartridge, and a folder on the disk to be measured."""

    rom: Path
    game: Path
    folder: Path


@dataclass(frozen=True)
class Case:
    """A row of the first table.

    Args:
        make: Makes the envs.
        steps: Env steps of a store.
        needs: A package that the env needs and Stepwell does not.
        has_rom: The env is made of the cartridge.
        game: The Atari game that the bare emulator plays.
    """

    make: Callable[[Setting], VectorEnv[Any, Any, Any]]
    steps: int
    needs: str = "stepwell"
    has_rom: bool = False
    game: str = ""


def _atari(game: str, **settings: Any) -> Callable[[Setting], VectorEnv[Any, Any, Any]]:
    return lambda setting: sw.make_atari(game, 8, **settings)


def _gymnasium(name: str) -> Callable[[Setting], VectorEnv[Any, Any, Any]]:
    return lambda setting: sw.make_vec(name, 8, num_workers=0)


def _demo(setting: Setting) -> VectorEnv[Any, Any, Any]:
    return sw.make_nes(setting.rom, 8, game=setting.game, actions="game", noop_max=30)


CASES: dict[str, Case] = {
    "Pong": Case(_atari("Pong"), 100_000, game="Pong"),
    "Pong, native": Case(_atari("Pong", backend="native"), 100_000),
    "Seaquest": Case(_atari("Seaquest"), 100_000, game="Seaquest"),
    "Montezuma": Case(_atari("MontezumaRevenge"), 100_000, game="MontezumaRevenge"),
    "demo cartridge": Case(_demo, 50_000, "cynes", has_rom=True),
    "CartPole": Case(_gymnasium("CartPole-v1"), 100_000),
    "HalfCheetah": Case(_gymnasium("HalfCheetah-v5"), 100_000, "mujoco"),
}
"""Rows of the first table, by the names for ``--only``."""


# --- what a store, an archive and a proof cost ----------------------------------------------------


def measure(name: str, case: Case, setting: Setting, steps: int) -> dict[str, float]:
    """One round of an env: bytes, and CPU seconds and seconds of each part.

    Raises:
        ValueError: An episode could not be proved.
    """
    found: dict[str, float] = {}
    rom = setting.rom if case.has_rom else None
    with tempfile.TemporaryDirectory(dir=setting.folder) as folder:
        store, archive = Path(folder) / "store", Path(folder) / "store.swa"
        with _timed("collecting", found), sw.SequenceReplayBuffer(store) as written:
            envs = case.make(setting)
            with sw.Collector(envs, sw.RandomPolicy(), written, seed=0) as collector:
                found["steps"] = collector.collect(steps=steps).steps
        found["store bytes"] = _size(store)
        with sw.SequenceReplayBuffer.open(store, read_only=True) as replay:
            with _timed("proof", found):
                failed = [p for p in sw.resimulate(replay, rom=rom) if not p.is_equal]
            if failed:
                raise ValueError(f"{name}: {len(failed)} episodes are not proved: {failed[0]}")
            sw.archive(replay, archive, is_proved=False)
            found["archive bytes"] = archive.stat().st_size
        with _timed("restoring", found):
            with sw.SequenceReplayBuffer(Path(folder) / "restored") as restored:
                sw.restore(archive, restored, rom=rom)
    if case.game:
        cores = os.cpu_count() or 1
        with multiprocessing.Pool(cores) as pool:
            pool.map(partial(_play_bare, case.game), [10] * cores)  # all are there
            begin = time.perf_counter()
            pool.map(partial(_play_bare, case.game), [round(found["steps"]) // cores] * cores, 1)
            found["bare emulator"] = time.perf_counter() - begin
    return found


def _play_bare(game: str, steps: int) -> None:
    """Play steps of 4 frames by ale-py alone, with the default sticky actions."""
    import ale_py
    from ale_py.roms import get_rom_path

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    emulator = ale_py.ALEInterface()
    path = get_rom_path(re.sub(r"(?<!^)(?=[A-Z])", "_", game).lower())
    assert path is not None
    emulator.loadROM(path)
    actions = emulator.getMinimalActionSet()
    for number in np.random.default_rng(0).integers(len(actions), size=steps).tolist():
        for _ in range(4):
            emulator.act(actions[number])
        if emulator.game_over():
            emulator.reset_game()
        emulator.getScreenGrayscale()


@contextlib.contextmanager
def _timed(what: str, found: dict[str, float]) -> Any:
    cpu, wall = rounds.cpu_seconds(), time.perf_counter()
    yield
    found[f"{what}, CPU"] = rounds.cpu_seconds() - cpu
    found[what] = time.perf_counter() - wall


def _size(folder: Path) -> int:
    """Bytes of a store's files on disk."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def envs_table(measured: Mapping[str, list[dict[str, float]]]) -> str:
    """The first table."""
    head = (
        *("env", "steps", "store, bytes a step", ".swa, bytes a step", "smaller by"),
        *("collected rows/s", "proved rows/s", "CPU of a proof", "of restoring"),
        "restoring to the bare emulator",
    )
    lines: list[tuple[str, ...]] = []
    for name, found in measured.items():
        figures = {key: np.array([each[key] for each in found]) for key in found[0]}
        store, swa = figures["store bytes"], figures["archive bytes"]
        speeds = (figures["steps"] / figures[what] for what in ("collecting", "proof"))
        costs = (
            figures[f"{what}, CPU"] / figures["collecting, CPU"] for what in ("proof", "restoring")
        )
        lines.append(
            (
                *(name, f"{np.median(figures['steps']):,.0f}"),
                *(_number(np.median(each / figures["steps"])) for each in (store, swa)),
                f"{np.median(store / swa):,.0f} times",
                *(f"{np.median(speed):,.0f}" for speed in speeds),
                *(f"{np.median(c):.2f} ({c.min():.2f}-{c.max():.2f})" for c in costs),
                f"{np.median(figures['bare emulator'] / figures['restoring']):.2f}"
                if "bare emulator" in figures
                else "",
            )
        )
    return rounds.table(head, lines)


def _number(value: Any) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


# --- the speed of collecting, before and after ----------------------------------------------------


@dataclass(frozen=True)
class TreeCase:
    """A row of the second table.

    Args:
        make: Makes the envs.
        steps: Env steps of a burst.
        most: The highest ratio of CPU time that the goal allows.
        is_stored: The rows go to disk; otherwise to RAM.
    """

    make: Callable[[], VectorEnv[Any, Any, Any]]
    steps: int
    most: float
    is_stored: bool


TREE_CASES: dict[str, TreeCase] = {
    "CartPole x 8, to RAM": TreeCase(
        lambda: sw.make_vec("CartPole-v1", 8, num_workers=0), 8_000, 1.03, is_stored=False
    ),
    "Pong x 8, to disk": TreeCase(lambda: sw.make_atari("Pong", 8), 2_000, 1.01, is_stored=True),
    "Pong x 8, native, to disk": TreeCase(
        lambda: sw.make_atari("Pong", 8, backend="native"), 2_000, 1.01, is_stored=True
    ),
}
"""Rows of the second table."""


def serve(name: str, folder: str) -> None:
    """Collect a burst for each line of the standard input; both trees run this."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    case = TREE_CASES[name]
    place = Path(folder) / "store" if case.is_stored else None
    replay = sw.SequenceReplayBuffer(place, capacity=200_000)
    with sw.Collector(case.make(), sw.RandomPolicy(), replay, seed=0) as collector:
        collector.collect(steps=case.steps)
        print(json.dumps(sw.__file__), file=answers, flush=True)
        for line in sys.stdin:
            cpu, wall = rounds.cpu_seconds(), time.perf_counter()
            steps = collector.collect(steps=int(line)).steps
            cpu, wall = rounds.cpu_seconds() - cpu, time.perf_counter() - wall
            print(json.dumps({"CPU": cpu / steps, "time": wall / steps}), file=answers, flush=True)


class Tree:
    """The process that collects with one tree.

    Args:
        name: Name of the case.
        folder: An empty folder for its store.
        source: Its folder ``src``; None is the one that runs.
    """

    def __init__(self, name: str, folder: str, source: Path | None) -> None:
        env = dict(os.environ)
        if source is not None:
            env["PYTHONPATH"] = os.pathsep.join(
                filter(None, (str(source.resolve()), env.get("PYTHONPATH", "")))
            )
        self._steps = TREE_CASES[name].steps
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve", name, folder],
            env=env,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.file = str(self._answer())

    def burst(self, steps: int | None = None) -> dict[str, float]:
        """Seconds a step, by clock."""
        assert self._process.stdin is not None
        print(steps or self._steps, file=self._process.stdin, flush=True)
        found: dict[str, float] = self._answer()
        return found

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ChildProcessError("the process of a tree failed, as it says above")
        return json.loads(line)


def compare_trees(
    name: str, folder: Path, before: Path, count: int, steps: int | None
) -> list[dict[str, dict[str, float]]]:
    """The bursts of both trees, side by side.

    Raises:
        ValueError: Both processes run the same tree.
        ChildProcessError: A process failed.
    """
    found: list[dict[str, dict[str, float]]] = []
    with contextlib.ExitStack() as stack:
        trees: dict[str, Tree] = {}
        for which, source in {"before": before, "now": None}.items():
            made = stack.enter_context(tempfile.TemporaryDirectory(dir=folder))
            trees[which] = Tree(name, made, source)
            stack.callback(trees[which].close)
        if trees["before"].file == trees["now"].file:
            raise ValueError(f"--before: expected another tree, got {trees['now'].file} in both")
        for number in range(count):
            order = list(trees) if number % 2 else list(trees)[::-1]
            taken = {which: trees[which].burst(steps) for which in order}
            found.append({which: taken[which] for which in trees})
    return found


def trees_table(measured: Mapping[str, list[dict[str, dict[str, float]]]]) -> str:
    """The second table."""
    head = (
        *("collecting", "clock", "before, us a step", "now", "now to before"),
        *("of neighbors: median", "25 %", "75 %", "goal"),
    )
    lines: list[tuple[str, ...]] = []
    for name, bursts in measured.items():
        for clock in ("CPU", "time"):
            before, now = (
                np.array([burst[which][clock] for burst in bursts]) for which in ("before", "now")
            )
            lowest = [float(np.quantile(each, 0.25)) for each in (before, now)]
            ratio = lowest[1] / lowest[0]
            pairs = np.quantile(now / before, (0.5, 0.25, 0.75))
            most = TREE_CASES[name].most
            verdict = "met" if round(ratio, 2) <= most else "**missed**"
            lines.append(
                (
                    *(name, clock, *(f"{1e6 * each:.1f}" for each in lowest), f"{ratio:.3f}"),
                    *(f"{each:.3f}" for each in pairs),
                    f"{most:.2f}: {verdict}" if clock == "CPU" else "",
                )
            )
    return rounds.table(head, lines)


# --- both -----------------------------------------------------------------------------------------


def measured_envs(
    names: Iterable[str], setting: Setting, count: int, steps: int | None
) -> dict[str, list[dict[str, float]]]:
    """All rounds of the first table; an env whose package is missing is left out, and named."""
    found: dict[str, list[dict[str, float]]] = {}
    for name in names:
        if importlib.util.find_spec(CASES[name].needs) is None:
            print(f"{name}: not measured, {CASES[name].needs} is not installed", file=sys.stderr)
        else:
            found[name] = []
    for number in range(count):
        for name, done in found.items():
            done.append(measure(name, CASES[name], setting, steps or CASES[name].steps))
            print(f"{name}: round {number + 1} of {count}", file=sys.stderr, flush=True)
    return found


def main() -> None:
    """Measure, and print the tables."""
    parser = rounds.options(__doc__, 5)
    names = (*CASES, *TREE_CASES)
    parser.add_argument("--only", nargs="+", metavar="ENV", choices=names, default=list(names))
    parser.add_argument("--bursts", type=int, default=_BURSTS, help=f"default: {_BURSTS}")
    parser.add_argument("--steps", type=int, help="of each store and burst, in place of its own")
    parser.add_argument("--before", type=Path, metavar="SRC", help="src/ of an earlier checkout")
    parser.add_argument("--folder", type=Path, default=Path(), help="on the disk to be measured")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        serve(*options.serve)
        return
    try:
        figures = measured(options)
    except (ValueError, ChildProcessError) as error:
        sys.exit(str(error))
    if figures["envs"]:
        print(envs_table(figures["envs"]))
    if figures["trees"]:
        print(trees_table(figures["trees"]))
    rounds.save(options.json, figures)


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """All figures: of the envs, or with --before of the trees."""
    # The game belongs to an example; a script only imports modules of its folder.
    sys.path.append(str(Path(__file__).parents[1] / "examples"))
    from demo_rom import write_demo

    with tempfile.TemporaryDirectory(dir=options.folder, prefix="benchmark-") as name:
        folder = Path(name)
        envs: dict[str, Any] = {}
        trees: dict[str, Any] = {}
        if options.before is None:
            chosen = [each for each in CASES if each in options.only]
            setting = Setting(*write_demo(folder / "demo"), folder)
            envs = measured_envs(chosen, setting, options.rounds, options.steps)
        else:
            for each in TREE_CASES:
                if each in options.only:
                    trees[each] = compare_trees(
                        each, folder, options.before, options.bursts, options.steps
                    )
                    print(f"{each}: measured", file=sys.stderr, flush=True)
    return rounds.result(
        rounds.installed(*_PACKAGES), rounds=options.rounds, envs=envs, trees=trees
    )


if __name__ == "__main__":
    main()
