"""The native backend of make_atari: ale-py's vector env, in C++ threads."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, NoReturn, cast

import ale_py
import numpy as np
import numpy.typing as npt
from ale_py import roms
from ale_py.vector_env import AtariVectorEnv
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from ..buffers.base.errors import not_copied
from .ale_env import LARGEST_SEED, quiet_emulators
from .atari_settings import AtariSettings
from .seeded_resets import seeds_of

if TYPE_CHECKING:
    from pathlib import Path

IDLE_FRAMES = 600  # no game of ale-py ends earlier without input
PLAIN_GAME = "pong"  # plays no frames inside its reset

Step = tuple[
    npt.NDArray[np.uint8],
    npt.NDArray[np.int32],
    npt.NDArray[np.bool_],
    npt.NDArray[np.bool_],
    dict[str, Any],
]


class NativeAtari(AtariVectorEnv):
    """ale-py's `AtariVectorEnv` with `make_atari`'s settings and several corrections."""

    # Frames and ends are ale-py's. Corrected are: metadata per object (ale-py modifies a dict that
    # all vector envs share), entropy for a first reset without a seed (ale-py seeds every env with
    # the clock in seconds), an error for an action out of range (ale-py waits forever), the number
    # of no-ops in `info["noops"]` and, with clipping, the raw reward in `info["raw_reward"]`. With
    # 0 threads ale-py chooses their number.
    # ale-py does not return the number of no-ops, only the number of frames played. Some games play
    # frames inside their reset, to select their mode: usually a fixed number, which is subtracted.
    # If it is random (Double Dunk), a second vector env of a simple game is seeded and reset
    # together with this one, since the draw depends on the seed alone and not on the game.

    def __reduce__(self) -> NoReturn:
        not_copied("a vector env of ale-py", "make one in each process, from a function")

    def __init__(self, settings: AtariSettings, num_envs: int, num_threads: int = 0) -> None:
        _check(settings)
        self.metadata = dict(type(self).metadata)
        screen, self._reset_frames = _facts(settings.game)
        rows, columns = settings.size or screen
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
            stack_num=settings.frame_stack or 1,
            frameskip=settings.frame_skip,
            maxpool=settings.pool == "max",
            noop_max=settings.noop_max + 1,  # ale-py excludes the maximum
            reward_clipping=False,
            use_fire_reset=settings.fire_reset,
        )
        self._is_stacked = settings.frame_stack is not None
        if not self._is_stacked:
            shape = cast("tuple[int, ...]", self.single_observation_space.shape)[1:]
            self.single_observation_space = spaces.Box(0, 255, shape, np.uint8)
            self.observation_space = batch_space(self.single_observation_space, num_envs)
        actions = [action.name for action in self.ale.get_action_set()]
        self._num_actions = len(actions)
        self._fires = settings.fire_reset and "FIRE" in actions
        self._clips = settings.clip_rewards
        self._ended = np.zeros(num_envs, np.bool_)  # these are reset by the next step
        self._was_reset = False
        # Each emulator's frame count before the reset, for envs that the next step resets.
        self._frames = np.zeros(num_envs, np.int32)
        self._drawing = None
        if self._reset_frames is None or (self._reset_frames and settings.noop_max > IDLE_FRAMES):
            # A simple, small game that starts with the same numbers of no-ops.
            facts: Any = {"game": PLAIN_GAME, "size": (1, 1), "grayscale": True, "frame_stack": 1}
            plain = dataclasses.replace(settings, fire_reset=self._fires, **facts)
            self._drawing = NativeAtari(plain, num_envs, num_threads)

    def reset(  # type: ignore[override]  # ale-py leaves the type of observations open
        self,
        *,
        seed: int | list[int] | npt.NDArray[np.int64] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[npt.NDArray[np.uint8], dict[str, Any]]:
        """Reset the envs; a first reset without a seed uses fresh entropy."""
        if seed is None and not self._was_reset:
            entropy = np.random.SeedSequence().generate_state(self.num_envs)
            seed = (entropy >> 1).astype(np.int64)
        elif isinstance(seed, list):
            seed = np.asarray(seed, np.int64)
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, np.bool_))
        count = int(np.sum(mask))
        seeds: Any = () if seed is None else seeds_of(seed, count)
        if not all(0 <= one <= LARGEST_SEED for one in seeds):  # ale-py ignores a negative one
            given = np.asarray(seed).tolist()
            raise ValueError(
                f"seed: expected 0 to {LARGEST_SEED} for every env, got {given} for {count} envs"
            )
        observation, info = super().reset(seed=seed, options=options)
        self._was_reset = True
        self._ended &= ~mask
        if seed is not None:  # the game is loaded again, which resets it
            self._frames = np.where(mask, self._reset_frames or 0, self._frames)
        self._add_noops(info, mask, seed)
        self._frames = info["frame_number"]
        return self._unstacked(observation), info

    def step(self, actions: npt.NDArray[np.int64]) -> Step:
        """Step all envs; one whose episode has ended is reset instead."""
        self.send(actions)
        return self.recv()

    def send(self, actions: npt.NDArray[np.int64]) -> None:
        """Start a step of integer actions [N] in the threads; `recv` returns its results."""
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
        """Wait for the step that `send` started."""
        observation, reward, terminated, truncated, info = super().recv()
        if self._ended.any():
            self._add_noops(info, self._ended)
        self._ended = terminated | truncated
        self._frames = info["frame_number"]
        if self._clips:
            info["raw_reward"] = reward
            reward = np.sign(reward)
        return self._unstacked(observation), reward, terminated, truncated, info

    def _unstacked(self, observation: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Observations without the axis of a stack, unless there is one."""
        axes = len(cast("tuple[int, ...]", self.observation_space.shape))
        is_extra = not self._is_stacked and observation.ndim > axes
        return observation[:, 0] if is_extra else observation

    def _add_noops(
        self,
        info: dict[str, Any],
        mask: npt.NDArray[np.bool_],
        seed: int | npt.NDArray[np.int64] | None = None,
    ) -> None:
        """Record the no-ops of the envs that were just reset, in Gymnasium's masked form."""
        if self._drawing is None:
            noops = info["frame_number"] - self._frames - self._reset_frames - self._fires
        else:
            noops = self._drawing.reset(seed=seed, options={"reset_mask": mask})[1]["noops"]
        info["noops"] = np.where(mask, noops, 0)
        info["_noops"] = mask.copy()


def _check(settings: AtariSettings) -> None:
    """Raise for settings that ale-py's vector env lacks or interprets differently."""
    if settings.life_loss != "ignore":
        raise ValueError(
            f"life_loss={settings.life_loss!r}: expected 'ignore' on the native backend, which can "
            "end an episode at a lost life only by resetting the whole game; use backend='python'"
        )
    for name in ("mode", "difficulty"):
        if getattr(settings, name) is not None:
            raise ValueError(
                f"{name}={getattr(settings, name)}: expected None on the native backend, which "
                "plays every game in its default variant; use backend='python'"
            )


@functools.cache
def _facts(game: str) -> tuple[tuple[int, int], int | None]:
    """Return the screen size, and the frames played inside a reset (None if random)."""
    quiet_emulators()
    ale = ale_py.ALEInterface()
    ale.setFloat("repeat_action_probability", 0.9)  # makes random counts differ
    ale.setInt("random_seed", 0)
    ale.loadROM(cast("Path", roms.get_rom_path(game)))  # also resets the game
    counts = {ale.getEpisodeFrameNumber()}
    if counts != {0}:
        for _ in range(4):
            ale.reset_game()
            counts.add(ale.getEpisodeFrameNumber())
    return ale.getScreenDims(), counts.pop() if len(counts) == 1 else None
