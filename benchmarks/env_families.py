r"""The table of env families in docs/envs.md: what was collected, and compared with bare envs.

    pip install minigrid miniworld highway-env 'gymnasium[box2d,jax]' \
        gymnasium-robotics 'mujoco<3.4' 'shimmy[dm-control]' mpe2 'pettingzoo[butterfly,sisl]'
    python benchmarks/env_families.py           # measures and writes the page
    python benchmarks/env_families.py --write   # the page alone, from the last figures

Two envs of each registered id are collected, in worker processes. A log around each bare env
writes down what it got and what it gave, and every value is compared with the stored rows. Then a
bare env plays the log again from its seeds. Figures are kept in benchmarks/env_families.json;
families that are not installed are listed as such.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import copy
import functools
import importlib
import importlib.util
import json
import multiprocessing
import os
import pickle
import pkgutil
import re
import sys
import tempfile
import uuid
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.wrappers.utils import create_zero_array

import stepwell as sw
from rounds import into_page, result, table
from stepwell.buffers import End

RESULTS = Path(__file__).parent / "env_families.json"
PAGE = Path(__file__).parents[1] / "docs" / "envs.md"
NUM_ENVS, STEPS = 2, 120
GAMES = ("mpe2.", "pettingzoo.butterfly.", "pettingzoo.sisl.")


class Family(NamedTuple):
    """Registered ids that begin with one of these words, or whose entry point does."""

    name: str
    begins: tuple[str, ...]
    package: str
    install: str
    is_registered_on_import: bool = False


FAMILIES = (
    Family("Classic control", ("gymnasium.envs.classic_control",), "gymnasium", "gymnasium"),
    Family("Toy text", ("gymnasium.envs.toy_text",), "gymnasium", "gymnasium"),
    Family(
        *("Functional JAX", ("gymnasium.envs.phys2d", "gymnasium.envs.tabular"), "flax"),
        "gymnasium[jax]",
    ),
    Family("Box2D", ("gymnasium.envs.box2d",), "Box2D", "gymnasium[box2d]"),
    Family("MuJoCo", ("gymnasium.envs.mujoco",), "mujoco", "gymnasium[mujoco]"),
    Family("Atari, by `make_vec`", ("ale_py",), "ale_py", "ale-py", True),
    Family("Minigrid, BabyAI", ("minigrid",), "minigrid", "minigrid", True),
    Family("MiniWorld", ("miniworld",), "miniworld", "miniworld", True),
    Family(
        *("Gymnasium-Robotics", ("gymnasium_robotics",), "gymnasium_robotics"),
        *("gymnasium-robotics", True),
    ),
    Family("dm_control, by Shimmy", ("dm_control/",), "shimmy", "shimmy[dm-control]", True),
    Family("PettingZoo, parallel", GAMES, "pettingzoo", "pettingzoo[butterfly,sisl]"),
    Family("highway-env", ("highway_env",), "highway_env", "highway-env", True),
)


def ids_of(family: Family) -> list[str]:
    """The registered ids of a family; none if its package is not installed."""
    if importlib.util.find_spec(family.package) is None:
        return []
    if family.begins == GAMES:
        return [
            found.name
            for game in GAMES
            for found in pkgutil.iter_modules(importlib.import_module(game[:-1]).__path__, game)
            if re.search(r"_v\d+$", found.name)
        ]
    if family.is_registered_on_import:
        gym.register_envs(importlib.import_module(family.package))
    return [
        name
        for name, spec in gym.registry.items()
        if str(spec.entry_point).startswith(family.begins) or name.startswith(family.begins)
    ]


def log_in(folder: str) -> Callable[[Any], None]:
    """What writes values to a new file, each at once: a worker process may be stopped."""
    file = (Path(folder) / f"{uuid.uuid4().hex}.pickle").open("wb", buffering=0)
    return functools.partial(pickle.dump, file=file)


class Log(gym.Wrapper[Any, Any, Any, Any]):
    """Writes down what passes between a bare env and whoever steps it."""

    def __init__(self, env: Any, folder: str) -> None:
        super().__init__(env)
        self._write = log_in(folder)

    def reset(self, **kwargs: Any) -> Any:
        """Begin a play in the log."""
        observation, info = self.env.reset(**kwargs)
        self._write((kwargs.get("seed"), observation))
        return observation, info

    def step(self, action: Any) -> Any:
        """Go on with it."""
        given = copy.deepcopy(action)
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._write((given, observation, reward, terminated, truncated))
        return observation, reward, terminated, truncated, info


class GameLog:
    """The same around a parallel env of PettingZoo, with the joint rows of docs/agents.md."""

    def __init__(self, game: Any, folder: str) -> None:
        self._game, self._write = game, log_in(folder)
        self._names = sorted(game.possible_agents)

    def __getattr__(self, name: str) -> Any:
        """All else is the game's."""
        return getattr(self._game, name)

    def _joint(self, observations: dict[str, Any]) -> dict[str, Any]:
        agents = {
            name: observations[name]
            if name in observations
            else create_zero_array(self._game.observation_space(name))
            for name in self._names
        }
        return {"agents": agents, "present": [name in self._game.agents for name in self._names]}

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        """Begin a play in the log."""
        observations, infos = self._game.reset(seed=seed, options=options)
        self._write((seed, self._joint(observations)))
        return observations, infos

    def step(self, actions: Any) -> Any:
        """Go on with it."""
        given = copy.deepcopy(actions)
        result = self._game.step(actions)
        observations, rewards, terminated, truncated, _ = result
        reward = np.array([rewards.get(name, 0.0) for name in self._names]).sum()
        is_over = not self._game.agents
        is_cut = any(truncated[name] and not terminated[name] for name in truncated)
        ends = is_over and not is_cut, is_over and is_cut
        self._write((given, self._joint(observations), reward, *ends))
        return result


def made(name: str, folder: str | None = None) -> Any:
    """The env of an id; under a log, if there is a folder for it."""
    if name.startswith(GAMES):
        game = importlib.import_module(name).parallel_env()
        return sw.from_pettingzoo(game if folder is None else GameLog(game, folder))
    env = gym.make(name)
    return env if folder is None else Log(env, folder)


class Play(NamedTuple):
    """What an env got and gave from one reset to the next."""

    seed: int
    first: Any
    steps: list[tuple[Any, Any, Any, bool, bool]]


def logged(folder: Path) -> list[list[Play]]:
    """The plays of each env that took a step; one is only made for its spaces."""
    found = []
    for path in sorted(folder.glob("*.pickle")):
        plays: list[Play] = []
        with path.open("rb") as file:
            while file.peek(1):
                entry = pickle.load(file)
                if len(entry) == 2:
                    seed, observation = entry
                    plays.append(Play(seed, observation, []))
                else:
                    plays[-1].steps.append(entry)
        found.append([play for play in plays if play.steps])
    return [plays for plays in found if plays]


def same(stored: Any, given: Any) -> bool:
    """Whether two values of a space are equal; NaN is equal to NaN."""
    if isinstance(given, dict):
        return stored.keys() == given.keys() and all(same(stored[k], given[k]) for k in given)
    if isinstance(given, tuple | list) and not hasattr(stored, "dtype"):
        return len(stored) == len(given) and all(map(same, stored, given))
    if isinstance(given, str) or given is None:
        return bool(stored == given)
    stored, given = np.asarray(stored), np.asarray(given)
    is_float = given.dtype.kind == "f"
    return stored.shape == given.shape and np.array_equal(stored, given, equal_nan=is_float)


def compare(replay: Any, episode: Any, play: Play) -> int:
    """Compare a stored episode with the log of its env; return the rows that were the same.

    Raises:
        AssertionError: A value differs.
    """
    assert episode.steps == len(play.steps), "differs in the number of steps"
    observations = replay.decode("observation", episode.observation)
    actions = replay.decode("action", episode.action)
    terminated = truncated = False
    assert same(observations[0], play.first), "differs in the observation of row 0"
    for row, (action, observation, reward, terminated, truncated) in enumerate(play.steps, 1):
        stored = actions[row - 1]
        if isinstance(action, dict):  # agents that were not there took none
            stored = {name: stored[name] for name in action}
        assert same(stored, action), f"differs in the action of row {row - 1}"
        assert same(observations[row], observation), f"differs in the observation of row {row}"
        assert same(episode.reward[row], reward), f"differs in the reward of row {row}"
        is_last = row == len(play.steps)
        assert is_last or not (terminated or truncated), f"differs in the end, row {row}"
    assert bool(episode.end & End.TERMINATED) == bool(terminated), "differs in terminated"
    assert bool(episode.end & End.TRUNCATED) == bool(truncated), "differs in truncated"
    return int(episode.steps) + 1


def repeats(env: Any, plays: list[Play]) -> bool:
    """Whether a bare env gives the same again from the same seeds and actions, play by play."""
    for play in plays:
        observation, _ = env.reset(seed=play.seed)
        if not same(observation, play.first):
            return False
        for action, *before in play.steps:
            observation, reward, terminated, truncated, _ = env.step(action)
            if not same([observation, reward, terminated, truncated], before):
                return False
    return True


def collected(name: str) -> tuple[Any, list[list[Play]]]:
    """A replay of two envs in worker processes, and the logs of the envs."""
    replay = sw.SequenceReplayBuffer()
    with tempfile.TemporaryDirectory() as folder:
        envs = sw.make_vec(functools.partial(made, name, folder), NUM_ENVS)
        with sw.Collector(envs, "random", replay, seed=0) as collector:
            collector.collect(steps=STEPS)
        return replay, logged(Path(folder))


def measured(family: Family, name: str) -> dict[str, Any]:
    """Rows of an id that were the same, or why there are none."""
    warnings.simplefilter("ignore")
    os.environ["MUJOCO_GL"] = "off"  # dm_control would connect to the display, and then be forked
    gym.logger.min_level = gym.logger.ERROR
    ids_of(family)  # registers them in this process
    try:
        bare = [made(name) for _ in range(NUM_ENVS)]
    except Exception as error:
        return {"id": name, "not made": reason(error)}
    try:
        replay, logs = collected(name)
    except Exception as error:
        return {"id": name, "refused": reason(error)}
    try:
        assert len(logs) == NUM_ENVS, "differs in the number of envs"
        by_seed = {play.seed: play for plays in logs for play in plays}
        episodes = list(replay.iter_episodes())
        assert len(by_seed) == len(episodes), "differs in the number of episodes"
        assert sum(episode.steps for episode in episodes) >= STEPS, "differs in the number of steps"
        rows = sum(compare(replay, one, by_seed[one.metadata["seed"]]) for one in episodes)
        is_repeated = all(map(repeats, bare, logs))
        return {"id": name, "rows": rows, "repeats": is_repeated}
    except AssertionError as error:
        return {"id": name, "differs": reason(error)}
    finally:
        for env in bare:
            env.close()


def reason(error: Exception) -> str:
    """The first words of an error."""
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    line = re.sub(r"(/[^/\s'\"]+){2,}/", ".../", line)  # no folders of this machine
    return line.replace("|", "/")[:110]


def short(text: str) -> str:
    """The first sentence of a reason."""
    return re.split(r"(?:[.;:]|, for)\s|\s\(", text.strip("('\""))[0].rstrip(".")


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
            f"{kind}: {short(case[kind])}"
            for case in cases
            for kind in ("refused", "differs", "not made")
            if kind in case
        )
        told = [f"{count} {text}" for text, count in why.most_common(3)]
        if len(why) > 3:
            told.append(f"{sum(why.values()) - sum(n for _, n in why.most_common(3))} others")
        if not cases:
            told = [f"not installed: `pip install '{family['install']}'`"]
        counts = (len(cases), len(same), sum(same), sum(case.get("repeats", 0) for case in cases))
        rows.append((family["family"], *(f"{count:,}" for count in counts), "; ".join(told)))
    head = ("family", "ids", "all rows the same", "rows compared", "repeated", "the others")
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
