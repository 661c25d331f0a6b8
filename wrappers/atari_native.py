"""The native backend of make_atari: ale-py's own vector env, in C++ threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from ale_py.env import AtariEnv
from ale_py.vector_env import AtariVectorEnv

from stepwell.wrappers.atari_settings import AtariSettings
from stepwell.wrappers.emulator import emulator_of, quiet_emulators

__all__ = ["NativeAtari"]

Step = tuple[
    npt.NDArray[np.uint8],
    npt.NDArray[np.int32],
    npt.NDArray[np.bool_],
    npt.NDArray[np.bool_],
    dict[str, Any],
]


class NativeAtari(AtariVectorEnv):
    """ale-py's `AtariVectorEnv` under `make_atari`'s settings, less the traps that can be disarmed.

    Its frames and ends are ale-py's. On top: metadata of its own (ale-py writes into a dict that
    all vector envs share), entropy for a first reset without a seed (ale-py seeds every env with
    the same second of the clock), an error for an action out of range (ale-py waits for ever), the
    number of no-ops in `info["noops"]` and, when clipping, the raw reward in `info["raw_reward"]`.

    Args:
        settings: What was chosen.
        num_envs: Number of envs, N.
        num_threads: Number of threads; 0 leaves it to ale-py.

    Raises:
        ValueError: This backend cannot do what the settings ask for.
    """

    def __init__(self, settings: AtariSettings, num_envs: int, num_threads: int = 0) -> None:
        _check(settings)
        self.metadata = dict(type(self).metadata)
        rows, columns = settings.size or _screen_size(settings.game)
        super().__init__(
            settings.game,
            num_envs,
            num_threads=num_threads,
            max_num_frames_per_episode=settings.max_frames,
            repeat_action_probability=settings.sticky,
            full_action_space=settings.full_actions,
            img_height=rows,
            img_width=columns,
            grayscale=settings.grayscale,
            stack_num=settings.frame_stack,
            frameskip=settings.frame_skip,
            maxpool=settings.pool == "max",
            noop_max=settings.noop_max + 1,  # ale-py leaves the greatest number out
            reward_clipping=False,
            use_fire_reset=settings.fire_reset,
        )
        actions = [action.name for action in self.ale.get_action_set()]
        self._num_actions = len(actions)
        self._fires = settings.fire_reset and "FIRE" in actions
        self._clips = settings.clip_rewards
        self._ended = np.zeros(num_envs, np.bool_)  # these are reset by the next step
        self._was_reset = False

    def reset(  # type: ignore[override]  # ale-py leaves the type of observations open
        self,
        *,
        seed: int | list[int] | npt.NDArray[np.int64] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[npt.NDArray[np.uint8], dict[str, Any]]:
        """Reset the envs; the first time with fresh entropy where no seed is given."""
        if seed is None and not self._was_reset:
            entropy = np.random.SeedSequence().generate_state(self.num_envs)
            seed = (entropy >> 1).astype(np.int64)
        elif isinstance(seed, list):
            seed = np.asarray(seed, np.int64)
        observation, info = super().reset(seed=seed, options=options)
        self._was_reset = True
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, np.bool_))
        self._ended &= ~mask
        self._add_noops(info, mask)
        return observation, info

    def step(self, actions: npt.NDArray[np.int64]) -> Step:
        """Step all envs; one whose episode has ended is reset instead."""
        self.send(actions)
        return self.recv()

    def send(self, actions: npt.NDArray[np.int64]) -> None:
        """Begin a step in the threads; `recv` gives what comes of it.

        Args:
            actions: Integers [N], each within the action space.

        Raises:
            ValueError: The actions have another shape or dtype, or one is out of range.
        """
        actions = np.asarray(actions)
        count = self._num_actions
        whole = actions.shape == (self.num_envs,) and actions.dtype.kind in "iu"
        if not whole or actions.min() < 0 or actions.max() >= count:
            raise ValueError(
                f"actions: expected {self.num_envs} integers from 0 to {count - 1}, "
                f"got {actions.dtype} {actions.tolist()}"
            )
        super().send(actions.astype(np.int64, copy=False))

    def recv(self) -> Step:
        """Wait for the step that `send` began."""
        observation, reward, terminated, truncated, info = super().recv()
        if self._ended.any():
            self._add_noops(info, self._ended)
        self._ended = terminated | truncated
        if self._clips:
            info["raw_reward"] = reward
            reward = np.sign(reward)
        return observation, reward, terminated, truncated, info

    def _add_noops(self, info: dict[str, Any], mask: npt.NDArray[np.bool_]) -> None:
        """Record the no-ops of the envs that were just reset, in Gymnasium's masked form."""
        info["noops"] = np.where(mask, info["episode_frame_number"] - self._fires, 0)
        info["_noops"] = mask.copy()


def _check(settings: AtariSettings) -> None:
    """Refuse what ale-py's vector env cannot do, or does in another sense."""
    if settings.life_loss != "ignore":
        raise ValueError(
            f"life_loss={settings.life_loss!r}: expected 'ignore' on the native backend, which can "
            "end an episode at a lost life only by resetting the whole game; use backend='python'"
        )
    for name in ("mode", "difficulty"):
        if getattr(settings, name) is not None:
            raise ValueError(
                f"{name}={getattr(settings, name)}: expected None on the native backend, which "
                "plays every game as it comes; use backend='python'"
            )


def _screen_size(game: str) -> tuple[int, int]:
    quiet_emulators()
    return emulator_of(AtariEnv(game)).getScreenDims()
