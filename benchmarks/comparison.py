"""What recorders and replays keep of an env: the measured cells of docs/comparison.md.

    pip install 'stepwell[peers]'                   # lerobot needs an environment of its own
    python benchmarks/comparison.py                 # some minutes
    python benchmarks/comparison.py --write         # the pages alone, from the last figures

Each library plays the same envs in a process of its own. Figures are kept in
benchmarks/comparison.json; libraries that are not installed keep theirs, with the versions
that were measured. The tables of docs/comparison.md and README.md are written from this file.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from comparison_peers import RECORDERS, Recorded
from rounds import into_page, table

FRAME_BYTES = 84 * 84
ENDS_STEPS, KILL_STEPS, STACK_STEPS, IMAGE_STEPS = 400, 1_000, 1_000, 300
CASES = ("ends", "live", "kill", "stack", "stack, best", "images", "images, best")
CHECKOUT = Path(__file__).parents[1]
RESULTS = CHECKOUT / "benchmarks" / "comparison.json"
COLUMNS = ("Stepwell", "Gymnasium", "Minari", "SB3", "TorchRL", "Tianshou", "sheeprl", "LeRobot")
READ = {
    "N envs at once": "yes yes no yes yes yes yes no",
    "transitions, n-step": "yes - no yes yes yes no no",
    "sequences inside episodes": "yes - no no yes no yes yes",
    "priorities": "yes - no no yes yes no no",
    "hindsight goals": "yes - no yes yes yes no no",
    "larger than RAM": "yes - yes no yes no yes yes",
    "data sets of other libraries": "yes - no no reads no no scripts",
    "viewer": "yes videos no no no no no yes",
    "actors on several machines": "yes - no no yes yes yes no",
    "episodes played again as a proof": "yes - no no no no no no",
    "trains agents": "no no no yes yes yes yes yes",
    "public data sets": "made_here - yes no reads no no yes",
    "replay on a GPU": "no - no no yes no no no",
}
"""Cells that were read, in the order of the columns; docs/comparison.md has the sources."""


class Probe(gym.Env[np.ndarray, np.int64]):
    """Episodes of 3 to 6 steps that tell their observations: env, episode, step.

    Args:
        number: Of the env.
        reuses: Every observation is the same array, as emulators return their screen.
        kill_after: Steps after which the process kills itself.
    """

    observation_space = gym.spaces.Box(0, 1e6, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, number: int, reuses: bool = False, kill_after: int = 0) -> None:
        self._row = np.array([number, -1, 0], np.float32)
        self._reuses, self._left = reuses, kill_after

    def _observation(self) -> np.ndarray:
        return self._row if self._reuses else self._row.copy()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin the next episode."""
        super().reset(seed=seed)
        self._row[1] += 1
        self._row[2] = 0
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Count; even episodes terminate, odd ones are truncated."""
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self._row[2] += 1
        is_end = self._row[2] == length_of(self._row[1])
        is_odd = self._row[1] % 2 == 1
        return self._observation(), 1.0, bool(is_end and not is_odd), bool(is_end and is_odd), {}


def length_of(episode: np.ndarray) -> np.ndarray:
    """Steps of an episode of `Probe`."""
    return 3 + episode % 4


class Seen(gym.Wrapper[Any, Any, Any, Any]):
    """Notes each observation that an env returned."""

    digests: set[bytes]

    def __init__(self, env: gym.Env[Any, Any], digests: set[bytes]) -> None:
        super().__init__(env)
        self.digests = digests

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        """Reset."""
        observation, info = self.env.reset(**arguments)
        self.digests.add(digest(observation))
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step."""
        result: tuple[Any, Any, bool, bool, dict[str, Any]] = self.env.step(action)
        self.digests.add(digest(result[0]))
        return result


def digest(rows: np.ndarray) -> bytes:
    """Of an observation's bytes."""
    return hashlib.sha1(np.ascontiguousarray(rows).tobytes()).digest()


def pong(digests: set[bytes], stacked: bool) -> gym.Env[Any, Any]:
    """Pong: stacks of four grey frames, or its screen in colours."""
    import ale_py

    gym.register_envs(ale_py)
    env: gym.Env[Any, Any] = gym.make("ALE/Pong-v5", frameskip=4 - 3 * stacked)
    if stacked:
        env = gym.wrappers.AtariPreprocessing(env)
        return gym.wrappers.FrameStackObservation(Seen(env, digests), 4, padding_type="zero")
    return Seen(env, digests)


def ends(recorded: Recorded) -> dict[str, float]:
    """Judge the rows of `Probe`: shares of rows and of ends that are right."""
    env, episode, step = recorded.observation.astype(float).T
    following = recorded.next_observation
    is_end = step + 1 == length_of(episode)
    wanted = np.stack([env, episode, step + 1], 1)
    right = (following == wanted).all(1)
    flags = (recorded.terminated == (is_end & (episode % 2 == 0))) & (
        recorded.truncated == (is_end & (episode % 2 == 1))
    )
    known = (env < 2) & (step < length_of(episode)) & (episode >= 0)
    distinct = len(np.unique(recorded.observation[known], axis=0))
    return {
        "rows": len(step),
        "distinct": distinct,
        "ends": int(is_end.sum()),
        "true last observations": int(right[is_end].sum()),
        "true next observations": int(right.sum()),
        "true flags": int(flags.sum()),
    }


def run(name: str, case: str, folder: Path) -> dict[str, float]:
    """One case of one library, in this process."""
    recorder = RECORDERS[name]
    kind, best = case.split(",")[0], case.endswith("best")
    if kind in ("ends", "live", "kill"):
        kill = KILL_STEPS // recorder.num_envs if kind == "kill" else 0
        makers = [
            functools.partial(Probe, number, kind == "live", kill * (number == 0))
            for number in range(recorder.num_envs)
        ]
        steps = 10 * KILL_STEPS if kind == "kill" else ENDS_STEPS
        return ends(recorder.record(makers, steps, folder, best))
    digests: set[bytes] = set()
    stacked = kind == "stack"
    steps = STACK_STEPS if stacked else IMAGE_STEPS
    recorded = recorder.record([lambda: pong(digests, stacked)], steps, folder, best)
    frames = recorded.observation
    if stacked:
        frames = frames[:, -1] if frames.ndim == 4 else frames
    exact = sum(digest(frame) in digests for frame in frames)
    return {"rows": len(frames), "exact": exact, "bytes": recorded.num_bytes}


def measured(name: str, case: str) -> dict[str, Any]:
    """One case of one library, in processes of their own."""
    with tempfile.TemporaryDirectory(prefix="comparison-") as folder:
        program = [sys.executable, __file__, "--run", name, case, folder]
        done = subprocess.run(program, capture_output=True, text=True)
        if case != "kill":
            return answer(done)
        if done.returncode != -signal.SIGKILL:
            raise ChildProcessError(f"{name} was not killed: {done.stderr}")
        if RECORDERS[name].recover is None:
            return {"rows": 0, "where": "RAM"}
        program[4] = "recover"
        return {"rows": 0, **answer(subprocess.run(program, capture_output=True, text=True))}


def answer(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The last line of a process, or the last line of its error."""
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1][:300]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def cases_of(name: str) -> list[str]:
    """The cases that a library is measured with: to LeRobot, stacks of four are no images."""
    return [case for case in CASES if name != "LeRobot" or not case.startswith("stack")]


def pages(results: Mapping[str, Any]) -> dict[Path, str]:
    """The pages with the tables of these results."""
    page, readme = CHECKOUT / "docs" / "comparison.md", CHECKOUT / "README.md"
    text = into_page(page.read_text("utf-8"), "measured", measured_tables(results))
    return {
        page: into_page(text, "read", short_table(READ)),
        readme: into_page(readme.read_text("utf-8"), "comparison", short_table(summary(results))),
    }


def measured_tables(results: Mapping[str, Any]) -> str:
    """What was counted and weighed, a line for each library."""
    counted: list[tuple[str, ...]] = []
    weighed: list[tuple[str, ...]] = []
    for name, result in results.items():
        recorder, cases = RECORDERS[name], result["cases"]
        ends, live = cases["ends"], cases["live"]
        counted.append(
            (
                f"{name} {result['versions'][recorder.package]}",
                f"{ends['true last observations']} of {ends['ends']}",
                f"{ends['true flags']} of {ends['rows']}",
                f"{live['true next observations']} of {live['rows']}",
                f"{cases['kill']['rows']} of {KILL_STEPS:,}",
            )
        )
        for best, settings in enumerate(dict.fromkeys((recorder.default, recorder.best))):
            suffix = ", best" if best else ""
            stack, images = cases.get("stack" + suffix), cases["images" + suffix]
            weighed.append(
                (
                    name,
                    settings,
                    f"{a_step(stack):,}" if stack else "",
                    f"{a_step(images):,}",
                    f"{images['exact']} of {images['rows']}",
                )
            )
    head = ("library", "true last observations", "both flags right")
    sizes = ("library", "kept as", "bytes a step, stacks", "bytes a step, screen", "screens exact")
    first = table((*head, "env that reuses its array", "read after `kill -9`"), counted)
    return f"\n{first}\n\n{table(sizes, weighed)}\n"


def a_step(case: Mapping[str, Any]) -> int:
    """Bytes of a step."""
    return round(int(case["bytes"]) / int(case["rows"]))


def summary(results: Mapping[str, Any]) -> dict[str, str]:
    """The rows of README.md: measured answers, and some that were read."""

    def answers(of: Callable[[str, Mapping[str, Any]], str]) -> str:
        words = (of(name, results[name]["cases"]) if name in results else "-" for name in COLUMNS)
        return " ".join(words)

    def share(case: str, part: str, whole: str) -> Callable[[str, Mapping[str, Any]], str]:
        def word(name: str, cases: Mapping[str, Any]) -> str:
            if name == "LeRobot" and case == "live":
                return "your_loop's"  # which gives it the frames
            return "yes" if cases[case][part] >= cases[case][whole] - 1 else "no"  # 1: a cut

        return word

    def least(name: str, cases: Mapping[str, Any]) -> str:
        both = [cases["images"], cases["images, best"]]
        return f"{min(a_step(case) for case in both if case['exact'] == case['rows']):,}"

    def once(name: str, cases: Mapping[str, Any]) -> str:
        both = [cases[case] for case in ("stack", "stack, best") if case in cases]
        if not both:
            return "your_loop's"  # which gives it the frames
        exact = [a_step(case) for case in both if case["exact"] == case["rows"]]
        return "yes" if min(exact) < 2 * FRAME_BYTES else "no"

    def survives(name: str, cases: Mapping[str, Any]) -> str:
        return f"{cases['kill']['rows']:,}"

    return {
        "true last observation": answers(share("ends", "true last observations", "ends")),
        "truncated apart from terminated": answers(share("ends", "true flags", "rows")),
        "right where an env reuses its array": answers(
            share("live", "true next observations", "rows")
        ),
        "each frame of a stack kept once": answers(once),
        "images exact by default": answers(share("images", "exact", "rows")),
        "bytes a step, Pong's screen, exact": answers(least),
        f"steps read after `kill -9` at step {KILL_STEPS:,}": answers(survives),
        **{
            name: READ[name]
            for name in (
                "N envs at once",
                "sequences inside episodes",
                "priorities",
                "data sets of other libraries",
                "viewer",
                "actors on several machines",
                "episodes played again as a proof",
                "trains agents",
                "public data sets",
            )
        },
    }


def short_table(rows: Mapping[str, str]) -> str:
    """A table of words: one for each column."""
    lines = [
        (name, *(cell.replace("_", " ").replace("-", "") for cell in words.split()))
        for name, words in rows.items()
    ]
    return f"\n{table(('', *COLUMNS), lines)}\n"


def main() -> None:
    """Measure, or write the pages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(RECORDERS), default=list(RECORDERS))
    parser.add_argument("--write", action="store_true", help="the pages alone; measure nothing")
    parser.add_argument("--run", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        warnings.simplefilter("ignore")
        name, case, folder = arguments.run
        if case == "recover":
            recover = RECORDERS[name].recover
            assert recover is not None
            found: Mapping[str, Any] = {"rows": recover(Path(folder))}
        else:
            found = run(name, case, Path(folder))
        print(json.dumps(found))
        return
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in () if arguments.write else arguments.only:
        package = RECORDERS[name].package
        try:
            versions = {one: version(one) for one in dict.fromkeys((package, "gymnasium"))}
        except PackageNotFoundError:
            print(f"{name}: not installed (pip install {package})")
            continue
        found = {case: measured(name, case) for case in cases_of(name)}
        print(name, json.dumps(found), flush=True)
        results[name] = {"versions": versions, "cases": found}
    if not arguments.write:
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    for path, written in pages(results).items():
        path.write_text(written, encoding="utf-8")


if __name__ == "__main__":
    main()
