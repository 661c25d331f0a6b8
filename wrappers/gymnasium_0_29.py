"""Run files that were written for Gymnasium 0.29, on request.

From a shell: ``python -m stepwell.wrappers.gymnasium_0_29 FILE [ARGUMENT ...]`` runs a file as
``python FILE [ARGUMENT ...]`` does, after a call of `patch_gymnasium`.
"""

from __future__ import annotations

import copy
import inspect
import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from .frames import FrameStack
from .pixels import Grayscale

_USAGE = "usage: python -m stepwell.wrappers.gymnasium_0_29 FILE [ARGUMENT ...]"
_BAD_INPUT = 2  # exit code, as of stepwell
_OLD_NAMES = {"final_obs": "final_observation", "final_info": "final_info"}


def patch_gymnasium() -> None:
    """Patch Gymnasium in this process, so that files written for version 0.29 run as they did.

    CleanRL's files are such files. With Gymnasium 1 they stop at the first truncation (``KeyError:
    'final_observation'``), take the reset after an episode for a step, and miss two wrappers.
    Four things are patched, and stay so until the process ends:

    - ``gymnasium.vector.SyncVectorEnv``, called without ``autoreset_mode``, resets an env in the
      step that ends its episode. Then ``info["final_observation"]`` and ``info["final_info"]`` are
      arrays [N] of objects, with None for envs that go on, and ``info["_final_observation"]`` and
      ``info["_final_info"]`` are their masks. The last observation is a copy, which is right also
      if the env reuses its array. Called with ``autoreset_mode``, it does what Gymnasium 1 does.
    - ``gymnasium.wrappers.GrayScaleObservation(env, keep_dim=False)`` has the gray levels of 0.29.
    - ``gymnasium.wrappers.FrameStack(env, num_stack)`` stacks observations in a plain array.
    - Atari's ids are registered, such as ``"BreakoutNoFrameskip-v4"``.

    Call it before the file imports these names; a second call has no effect.

    Example:
        >>> patch_gymnasium()  # doctest: +SKIP
        >>> envs = gymnasium.vector.SyncVectorEnv([make_env])  # doctest: +SKIP
    """
    # Imported here because it takes a tenth of a second.
    import ale_py

    gymnasium.register_envs(ale_py)
    vector: Any = gymnasium.vector
    wrappers: Any = gymnasium.wrappers
    vector.SyncVectorEnv = SameStepVectorEnv
    wrappers.GrayScaleObservation = gray_scale_observation
    wrappers.FrameStack = frame_stack


class SameStepVectorEnv(SyncVectorEnv[Any, Any]):
    """The `SyncVectorEnv` of Gymnasium 0.29: same-step resets, and infos as they were.

    Args:
        env_fns: Functions that make the envs.
        copy: Return copies of the observations.
        observation_mode: As in Gymnasium 1.
        autoreset_mode: None, or a mode of Gymnasium 1, in which infos are those of Gymnasium 1.

    Example:
        >>> envs = SameStepVectorEnv([lambda: gymnasium.make("CartPole-v1", max_episode_steps=1)])
        >>> _ = envs.reset(seed=0)
        >>> observation, _, _, truncated, info = envs.step(np.array([0]))
        >>> truncated[0], info["final_observation"][0] is not None, info["final_info"][0]
        (np.True_, True, {})
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gymnasium.Env[Any, Any]]],
        copy: bool = True,
        observation_mode: Any = "same",
        autoreset_mode: str | AutoresetMode | None = None,
    ) -> None:
        self._has_old_infos = autoreset_mode is None
        mode = AutoresetMode.SAME_STEP if autoreset_mode is None else autoreset_mode
        super().__init__(env_fns, copy, observation_mode, mode)

    def _add_info(
        self, vector_infos: dict[str, Any], env_info: dict[str, Any], env_num: int
    ) -> dict[str, Any]:
        if not self._has_old_infos or "final_obs" not in env_info:
            return super()._add_info(vector_infos, env_info, env_num)
        for key, old in _OLD_NAMES.items():  # called before the env is reset
            if old not in vector_infos:
                vector_infos[old] = np.full(self.num_envs, None, object)
                vector_infos[f"_{old}"] = np.zeros(self.num_envs, np.bool_)
            vector_infos[old][env_num] = copy.deepcopy(env_info[key])
            vector_infos[f"_{old}"][env_num] = True
        return vector_infos


def gray_scale_observation(
    env: gymnasium.Env[Any, Any], keep_dim: bool = False
) -> gymnasium.Env[Any, Any]:
    """Convert a uint8 RGB image [H, W, 3] to gray levels [H, W], or [H, W, 1] with ``keep_dim``."""
    gray = Grayscale(env)
    if not keep_dim:
        return gray
    shape = gray.observation_space.shape or ()
    return gymnasium.wrappers.ReshapeObservation(gray, (*shape, 1))


def frame_stack(env: gymnasium.Env[Any, Any], num_stack: int) -> gymnasium.Env[Any, Any]:
    """Stack the newest ``num_stack`` observations; the first of an episode fills the stack."""
    return FrameStack(env, num_stack, padding="repeat")


def main() -> None:
    """Run the file that the command line names."""
    if sys.argv[1:2] in (["-h"], ["--help"]):
        sys.stdout.write(f"{_USAGE}\n\n{inspect.cleandoc(patch_gymnasium.__doc__ or '')}\n")
        return
    if len(sys.argv) < 2 or not Path(sys.argv[1]).is_file():
        found = f"no file {sys.argv[1]!r}" if len(sys.argv) > 1 else "no argument"
        sys.stderr.write(
            f"{_USAGE}\nFILE: expected the path of a Python file, got {found}; name one\n"
        )
        raise SystemExit(_BAD_INPUT)
    patch_gymnasium()
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
