"""Runs a file of CleanRL with one import line replaced, and writes down what it did.

Called with JSON as its argument: ``file``, ``arguments``, ``module`` (that has the replay buffer;
None leaves the file as it is) and ``result``, an `.npz` file that gets

- ``env/I/E/...``: episode E of the I-th env as that env itself returned it: outside of everything
  that the file wraps it in, and inside of the vector env; the last one may have no step;
- ``NAME/E/...``: episode E in the replay of the file's buffer NAME;
- ``weights/NAME``: the parameters of each network at the end.
"""

from __future__ import annotations

import importlib
import json
import re
import runpy
import sys
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np

from stepwell.wrappers import patch_gymnasium

IMPORT = re.compile(
    r"^from (?:stable_baselines3\.common|cleanrl_utils)\.buffers import ReplayBuffer$", re.MULTILINE
)
LENGTHS = (3, 1, 1, 5, 2)
# Ends of episodes, in turns: (terminated, truncated).
ENDS = ((True, False), (False, True), (False, True), (True, True))


class Planned(gym.Env[Any, Any]):
    """Short episodes of all ends; observations come in one array that is used again.

    Args:
        is_constant: All observations are equal: no change shows that an episode ended.
        is_continuous: Actions are a Box, and observations float64, as in MuJoCo.
    """

    def __init__(self, is_constant: bool = False, is_continuous: bool = False) -> None:
        dtype = np.float64 if is_continuous else np.float32
        self.observation_space = gym.spaces.Box(-1e6, 1e6, (3,), dtype)
        box = gym.spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = box if is_continuous else gym.spaces.Discrete(3)
        self._is_constant = is_constant
        self._array = np.zeros(3, dtype)
        self._episode, self._step = -1, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._episode, self._step = self._episode + 1, 0
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        self._step += 1
        is_over = self._step == LENGTHS[self._episode % len(LENGTHS)]
        ends = ENDS[self._episode % len(ENDS)] if is_over else (False, False)
        return self._observation(), self._step / 10, *ends, {}

    def _observation(self) -> Any:
        if not self._is_constant:
            self._array[:] = self._episode / 3, self._step, self._episode - self._step / 7
        return self._array


class Logged(gym.Wrapper[Any, Any, Any, Any]):
    """Keeps copies of all that an env returned, and of the actions."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.episodes: list[dict[str, list[Any]]] = []

    def reset(self, **options: Any) -> Any:
        observation, info = self.env.reset(**options)
        rows: dict[str, list[Any]] = {"observation": [np.array(observation)]}
        self.episodes.append(rows | {"action": [], "reward": [], "terminated": [], "truncated": []})
        return observation, info

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        values = np.array(result[0]), np.array(action), *map(float, result[1:4])
        names = "observation", "action", "reward", "terminated", "truncated"
        for name, value in zip(names, values, strict=True):
            self.episodes[-1][name].append(value)
        return result


def main(file: str, arguments: list[str], module: str | None, result: str) -> None:
    for name, kind in (("Planned", {}), ("Constant", {"is_constant": True})):
        for suffix, options in (("", kind), ("Box", kind | {"is_continuous": True})):
            gym.register(f"{name}{suffix}-v0", partial(Planned, **options))
    patch_gymnasium()
    logs: list[Logged] = []
    vector: Any = gym.vector
    patched = vector.SyncVectorEnv

    def logged(make: Any) -> Any:
        logs.append(Logged(make()))
        return logs[-1]

    vector.SyncVectorEnv = lambda fns: patched([lambda fn=fn: logged(fn) for fn in fns])
    changed = Path(Path(file).name)
    text = Path(file).read_text(encoding="utf-8")
    if module is not None:
        text, count = IMPORT.subn(f"from {module} import ReplayBuffer", text)
        assert count == 1, f"{file}: {count} lines import a ReplayBuffer"
    changed.write_text(text, encoding="utf-8")
    if "import hf_hub_download" in text:
        put_a_teacher_in_place_of_the_hub()
    sys.argv = [str(changed), *arguments]
    found = runpy.run_path(str(changed), run_name="__main__")

    rows: dict[str, Any] = {}
    for number, log in enumerate(logs):
        for episode, played in enumerate(log.episodes):
            rows |= {f"env/{number}/{episode}/{key}": part for key, part in played.items()}
    for name, value in found.items():
        if isinstance(value, type):
            continue
        if hasattr(value, "replay"):
            rows |= stored(name, value)
        if hasattr(value, "state_dict") and hasattr(value, "parameters"):
            flat = [part.detach().numpy().ravel() for part in value.parameters()]
            rows[f"weights/{name}"] = np.concatenate(flat)
    np.savez(result, **rows)


def stored(name: str, buffer: Any) -> dict[str, Any]:
    buffer.flush()
    rows: dict[str, Any] = {}
    for number, episode in enumerate(buffer.replay.iter_episodes()):
        rows |= {
            f"{name}/{number}/observation": episode.observation,
            f"{name}/{number}/action": episode.action[:-1],
            f"{name}/{number}/reward": episode.reward[1:],
            f"{name}/{number}/terminated": episode.terminated[1:],
            f"{name}/{number}/truncated": episode.truncated[1:],
        }
    return rows


def put_a_teacher_in_place_of_the_hub() -> None:
    """A teacher is downloaded; here it is a network with random weights. Nothing is filmed."""
    import torch

    network = importlib.import_module("cleanrl.dqn_atari").QNetwork(
        SimpleNamespace(single_action_space=gym.spaces.Discrete(4))
    )
    torch.save(network.state_dict(), "teacher.cleanrl_model")
    hub: Any = ModuleType("huggingface_hub")
    hub.hf_hub_download = lambda **_: "teacher.cleanrl_model"
    sys.modules["huggingface_hub"] = hub
    wrappers: Any = gym.wrappers
    wrappers.RecordVideo = lambda env, folder: env


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
