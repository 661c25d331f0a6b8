"""Played with the real gym 0.26 and nes-py 8 in a process of its own: prints what it saw as JSON.

python old_gym_scenario.py game.nes
"""

import importlib
import json
import sys
import warnings
from typing import Any

import numpy as np
from gymnasium.utils.env_checker import check_env

import stepwell as sw
from stepwell.wrappers import from_gym, patch_nes_py

# Buttons of each action, as lists for nes-py's JoypadSpace; action 0 presses nothing.
ACTIONS = [["NOOP"], ["right"], ["right", "A"], ["left"], ["start"]]
FRAME_LO, STEPS = 0x10, 60


def imported(module: str) -> Any:
    """A module that the interpreter of the type checkers does not have."""
    return importlib.import_module(module)


def failure_before_mending(rom: str) -> str:
    """The error of nes-py 8 for any ROM under NumPy 2."""
    try:
        imported("nes_py").NESEnv(rom)
    except OverflowError as error:
        return str(error)
    return "none"


def old_env(rom: str) -> Any:
    """As users of nes-py 8 build it."""
    return imported("nes_py.wrappers").JoypadSpace(imported("nes_py").NESEnv(rom), ACTIONS)


def checked(rom: str) -> bool:
    """Run gymnasium's checker on the adapted env; True if it finds nothing wrong."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", ".*not having a spec.*")
        check_env(from_gym(old_env(rom)))
    return True


def refused_with_gyms_checker(rom: str) -> str:
    """The error for an env that gym wrapped in its own checker."""
    checker = imported("gym.wrappers.env_checker").PassiveEnvChecker
    try:
        from_gym(checker(old_env(rom)))
    except TypeError as error:
        return str(error)
    return "nothing"


def through_gym_make(rom: str) -> list[Any]:
    """An env of gym's registry, made as numpy 2 needs it, with gym's own limit of 5 steps."""
    gym, nes_env = imported("gym"), imported("nes_py").NESEnv
    gym.register("Demo-v0", entry_point=nes_env, max_episode_steps=5, kwargs={"rom_path": rom})
    env = from_gym(gym.make("Demo-v0", apply_api_compatibility=True, disable_env_checker=True))
    env.reset(seed=1)
    return [env.step(0)[2:4] for _ in range(5)]


def watch(nes: Any, shown: list[bytes]) -> None:
    """Note each screen of nes-py's env, before anybody else sees it."""

    def watched(method: Any) -> Any:
        def call(*args: Any) -> Any:
            result = method(*args)
            shown.append(nes.screen.tobytes())
            return result

        return call

    nes.step, nes.reset = watched(nes.step), watched(nes.reset)


def collected(rom: str) -> dict[str, Any]:
    """Frames shown, distinct ones, and what the store has of them."""
    env: Any = from_gym(old_env(rom), max_episode_steps=STEPS)
    shown: list[bytes] = []
    watch(env.old_env.unwrapped, shown)
    replay = sw.SequenceReplayBuffer()
    with sw.Collector(env, sw.RandomPolicy(), replay, seed=0) as collector:
        collector.collect(episodes=1)
        rows = [np.asarray(frame).tobytes() for frame in next(replay.iter_episodes()).observation]
    return {
        "rows": len(rows),
        "equal": rows == shown[: len(rows)],
        "distinct_shown": len(set(shown[: len(rows)])),
        "distinct_stored": len(set(rows)),
    }


def ram_facts(rom: str) -> dict[str, Any]:
    """Reads and writes of the RAM after `patch_nes_py`."""
    env: Any = from_gym(old_env(rom))
    env.reset()
    for _ in range(10):  # the game clears its RAM first
        env.step(0)
    ram = env.old_env.unwrapped.ram
    before = ram[FRAME_LO]
    env.step(0)
    counted = ram[FRAME_LO] - before
    ram[0x700] = 300
    return {"kind": type(before).__name__, "counted": counted % 256, "written": ram[0x700]}


def in_workers(rom: str) -> list[Any]:
    """The recipe's part about the old env, and whether 4 envs in 2 workers show the same."""
    envs = sw.make_vec(lambda: from_gym(old_env(rom)), 4, num_workers=2)
    rows = envs.reset(seed=0)[0]
    for t in range(20):
        rows = envs.step(np.full(4, t % 5))[0]
    envs.close()
    return [envs.metadata["stepwell"], bool((rows == rows[0]).all()), int(rows.max())]


def main() -> None:
    """Run all parts on the ROM and print one JSON object."""
    rom = sys.argv[1]
    facts: dict[str, Any] = {"before": failure_before_mending(rom)}
    patch_nes_py()
    patch_nes_py()
    for part in (
        checked, refused_with_gyms_checker, through_gym_make, collected, ram_facts, in_workers
    ):  # fmt: skip
        facts[part.__name__] = part(rom)
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
