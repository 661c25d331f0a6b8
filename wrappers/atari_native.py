"""The native backend of make_atari: ale-py's own vector env, in C++ threads."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, cast

import ale_py
import numpy as np
import numpy.typing as npt
from ale_py import roms
from ale_py.vector_env import AtariVectorEnv

from stepwell.wrappers.ale_env import LARGEST_SEED, quiet_emulators
from stepwell.wrappers.atari_settings import AtariSettings

if TYPE_CHECKING:
    from pathlib import Path

IDLE_FRAMES = 600  # no game that ale-py brings ends sooner when nothing is pressed
PLAIN_GAME = "pong"  # plays no frames inside its reset

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

    ale-py does not tell the number of no-ops, only how many frames were played. Some games play
    frames inside their reset, to select their mode: usually a fixed number, which is subtracted.
    Where it is random (Double Dunk), a second vector env of a plain game is seeded and reset
    together with this one, since the draw depends on the seed alone and not on the game.

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
        # What each emulator's count of frames was before the reset, if the next step resets it.
        self._frames = np.zeros(num_envs, np.int32)
        self._drawing = None
        if self._reset_frames is None or (self._reset_frames and settings.noop_max > IDLE_FRAMES):
            self._drawing = NativeAtari(_plain(settings, self._fires), num_envs, num_threads)

    def reset(  # type: ignore[override]  # ale-py leaves the type of observations open
        self,
        *,
        seed: int | list[int] | npt.NDArray[np.int64] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[npt.NDArray[np.uint8], dict[str, Any]]:
        """Reset the envs; the first time with fresh entropy where no seed is given.

        Raises:
            ValueError: A seed is not in 0 .. 2**31 - 1.
        """
        if seed is None and not self._was_reset:
            entropy = np.random.SeedSequence().generate_state(self.num_envs)
            seed = (entropy >> 1).astype(np.int64)
        elif isinstance(seed, list):
            seed = np.asarray(seed, np.int64)
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, np.bool_))
        _check_seed(seed, int(np.sum(mask)))
        observation, info = super().reset(seed=seed, options=options)
        self._was_reset = True
        self._ended &= ~mask
        if seed is not None:  # the game is loaded again, which resets it
            self._frames = np.where(mask, self._reset_frames or 0, self._frames)
        self._add_noops(info, mask, seed)
        self._frames = info["frame_number"]
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
        self._frames = info["frame_number"]
        if self._clips:
            info["raw_reward"] = reward
            reward = np.sign(reward)
        return observation, reward, terminated, truncated, info

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


def _check_seed(seed: int | npt.NDArray[np.int64] | None, count: int) -> None:
    """Refuse what the python backend refuses; ale-py leaves an env with a negative seed unseeded.

    Args:
        seed: One for each of `count` envs, or that of the first, counted up for the others.
        count: How many envs are reset.
    """
    if seed is None:
        return
    last = seed + count - 1 if isinstance(seed, int) else seed
    if np.any(np.less(seed, 0)) or np.any(np.greater(last, LARGEST_SEED)):
        given = f"{seed} for {count} envs" if isinstance(seed, int) else seed.tolist()
        raise ValueError(f"seed: expected 0 to {LARGEST_SEED} for every env, got {given}")


@functools.cache
def _facts(game: str) -> tuple[tuple[int, int], int | None]:
    """The screen's rows and columns, and the frames played inside a reset; None if random."""
    quiet_emulators()
    ale = ale_py.ALEInterface()
    ale.setFloat("repeat_action_probability", 0.9)  # what depends on luck shall differ
    ale.setInt("random_seed", 0)
    ale.loadROM(cast("Path", roms.get_rom_path(game)))  # resets the game, too
    counts = {ale.getEpisodeFrameNumber()}
    if counts != {0}:
        for _ in range(4):
            ale.reset_game()
            counts.add(ale.getEpisodeFrameNumber())
    return ale.getScreenDims(), counts.pop() if len(counts) == 1 else None


def _plain(settings: AtariSettings, fires: bool) -> AtariSettings:
    """A plain game, as cheap as can be, that begins with the same numbers of no-ops."""
    return dataclasses.replace(
        settings, game=PLAIN_GAME, fire_reset=fires, size=(1, 1), grayscale=True, frame_stack=1
    )
