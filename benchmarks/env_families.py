"""The table of env families in docs/envs.md: what was collected, and compared with bare envs.

    pip install minigrid 'gymnasium[box2d]' mujoco gymnasium-robotics     # what is to be compared
    python benchmarks/env_families.py           # measures and writes the page
    python benchmarks/env_families.py --write   # the page alone, from the last figures

Two envs of each registered id are collected. Then a bare env is reset with the seed of each stored
episode and takes its stored actions, and every value is compared with the stored row. Figures are
kept in benchmarks/env_families.json; families that are not installed are listed as such.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import importlib
import importlib.util
import json
import multiprocessing
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

import stepwell as sw
from rounds import into_page, result, table
from stepwell.buffers import End

RESULTS = Path(__file__).parent / "env_families.json"
PAGE = Path(__file__).parents[1] / "docs" / "envs.md"
NUM_ENVS, STEPS = 2, 120


class Family(NamedTuple):
    """Registered ids whose entry point begins with one of these words."""

    name: str
    entry_points: tuple[str, ...]
    package: str
    install: str
    is_registered_on_import: bool = False


FAMILIES = (
    Family("Classic control", ("gymnasium.envs.classic_control",), "gymnasium", "gymnasium"),
    Family("Toy text", ("gymnasium.envs.toy_text",), "gymnasium", "gymnasium"),
    Family("Box2D", ("gymnasium.envs.box2d",), "Box2D", "gymnasium[box2d]"),
    Family("MuJoCo", ("gymnasium.envs.mujoco",), "mujoco", "gymnasium[mujoco]"),
    Family("Atari, by `make_vec`", ("ale_py",), "ale_py", "ale-py", True),
    Family("Minigrid, BabyAI", ("minigrid",), "minigrid", "minigrid", True),
    Family("MiniWorld", ("miniworld",), "miniworld", "miniworld", True),
    Family(
        *("Gymnasium-Robotics", ("gymnasium_robotics",), "gymnasium_robotics"),
        *("gymnasium-robotics", True),
    ),
)


def ids_of(family: Family) -> list[str]:
    """The registered ids of a family; none if its package is not installed."""
    if importlib.util.find_spec(family.package) is None:
        return []
    if family.is_registered_on_import:
        gym.register_envs(importlib.import_module(family.package))
    return [
        name
        for name, spec in gym.registry.items()
        if str(spec.entry_point).startswith(family.entry_points)
    ]


def leaves(space: Any, value: Any, name: str) -> Iterator[tuple[str, np.ndarray]]:
    """The arrays of a nested value, by the names that their columns have."""
    if isinstance(space, gym.spaces.Dict):
        for key, part in space.items():
            yield from leaves(part, value[key], f"{name}/{key}")
    elif isinstance(space, gym.spaces.Tuple):
        for place, part in enumerate(space):
            yield from leaves(part, value[place], f"{name}/{place}")
    else:
        yield name, np.asarray(value)


def nested(space: Any, row: dict[str, np.ndarray], name: str) -> Any:
    """The nested value out of its columns."""
    if isinstance(space, gym.spaces.Dict):
        return {key: nested(part, row, f"{name}/{key}") for key, part in space.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(nested(part, row, f"{name}/{key}") for key, part in enumerate(space))
    return row[name]


def require_same(what: str, stored: Any, expected: Any) -> None:
    """Raise if two values differ; NaN is equal to NaN.

    Raises:
        AssertionError: They differ in a shape or a value.
    """
    assert np.shape(stored) == np.shape(expected), f"differs in the shape of {what}"
    try:
        np.testing.assert_array_equal(stored, expected)
    except AssertionError:
        raise AssertionError(f"differs in {what}") from None


def compare(env: Any, episode: Any) -> int:
    """Play an episode in a bare env; return how many rows were the same.

    Raises:
        AssertionError: A value differs.
    """
    observation, _ = env.reset(seed=int(episode.metadata["seed"]))
    reward, terminated, truncated = 0.0, False, False
    for row in range(episode.steps + 1):
        for name, value in leaves(env.observation_space, observation, "observation"):
            require_same(f"{name}, row {row}", episode.fields[name][row], value)
        require_same(f"reward, row {row}", episode.reward[row], reward)
        if row == episode.steps:
            break
        is_over = bool(terminated or truncated)
        assert not is_over, f"differs in the end, row {row}"
        columns = {name: column[row] for name, column in episode.fields.items()}
        action = nested(env.action_space, columns, "action")
        observation, reward, terminated, truncated, _ = env.step(action)
    require_same("terminated", bool(episode.end & End.TERMINATED), bool(terminated))
    require_same("truncated", bool(episode.end & End.TRUNCATED), bool(truncated))
    return int(episode.steps) + 1


def collected(name: str) -> list[Any]:
    """The episodes of two envs, by stream and time."""
    replay = sw.SequenceReplayBuffer()
    with sw.Collector(sw.make_vec(name, NUM_ENVS), "random", replay, seed=0) as collector:
        collector.collect(steps=STEPS)
    return list(replay.iter_episodes())


def measured(family: Family, name: str) -> dict[str, Any]:
    """Rows of an id that were the same, or why there are none."""
    warnings.simplefilter("ignore")
    gym.logger.min_level = gym.logger.ERROR
    ids_of(family)  # registers them in this process
    try:
        env = gym.make(name)
    except Exception as error:
        return {"id": name, "not made": reason(error)}
    try:
        episodes = collected(name)
    except Exception as error:
        return {"id": name, "refused": reason(error)}
    try:
        assert sum(episode.steps for episode in episodes) >= STEPS, "differs in the number of steps"
        return {"id": name, "rows": sum(compare(env, episode) for episode in episodes)}
    except AssertionError as error:
        return {"id": name, "differs": reason(error)}
    finally:
        env.close()


def reason(error: Exception) -> str:
    """The first words of an error."""
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    line = re.sub(r"(/[^/\s'\"]+){2,}/", ".../", line)  # no folders of this machine
    return line.replace("|", "/")[:110]


def measure(only: list[str], most: int | None = None) -> list[dict[str, Any]]:
    """Compare the ids of these families, at most so many of each, in two processes."""
    found = []
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
        for family in FAMILIES:
            if only and family.package not in only:
                continue
            ids = ids_of(family)
            registered = len(ids)
            ids = ids[:: max(1, -(-registered // most))] if most else ids  # evenly spaced
            cases = list(pool.map(measured, [family] * len(ids), ids))
            found.append(
                {
                    "family": family.name,
                    "install": family.install,
                    "registered": registered,
                    "cases": cases,
                }
            )
            print(family.name, len(ids), flush=True)
    return found


def block(figures: dict[str, Any]) -> str:
    """The table, and with what it was measured."""
    rows: list[tuple[str, ...]] = []
    for family in figures["families"]:
        cases = family["cases"]
        same = [case["rows"] for case in cases if "rows" in case]
        why = collections.Counter(
            f"{kind}: {case[kind]}"
            for case in cases
            for kind in ("refused", "differs", "not made")
            if kind in case
        )
        told = [f"{count} {text}" for text, count in why.most_common(3)]
        if len(why) > 3:
            told.append(f"{sum(why.values()) - sum(n for _, n in why.most_common(3))} others")
        if not cases:
            told = [f"not installed: `pip install '{family['install']}'`"]
        counts = (str(family["registered"]), str(len(cases)), str(len(same)), f"{sum(same):,}")
        rows.append((family["family"], *counts, "; ".join(told)))
    head = ("family", "ids", "tried", "all rows the same", "rows compared", "the others")
    source = f"`{figures['command']}`, commit {figures['commit']}, {figures['date']}"
    return f"{table(head, rows)}\n\n{source}, {figures['machine']}."


def page(figures: dict[str, Any]) -> str:
    """docs/envs.md with the table of these figures."""
    return into_page(PAGE.read_text("utf-8"), "env families", block(figures))


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="the page alone; measure nothing")
    parser.add_argument("--only", nargs="+", default=[], help="packages; prints, writes nothing")
    parser.add_argument("--most", type=int, help="ids of each family, evenly spaced; default all")
    arguments = parser.parse_args()
    if arguments.only:
        sys.stdout.write(json.dumps(measure(arguments.only, arguments.most), indent=1) + "\n")
        return
    if not arguments.write:
        figures = result(("gymnasium", "numpy"), families=measure([], arguments.most))
        RESULTS.write_text(json.dumps(figures, indent=1) + "\n")
    PAGE.write_text(page(json.loads(RESULTS.read_text())), encoding="utf-8")


if __name__ == "__main__":
    main()
