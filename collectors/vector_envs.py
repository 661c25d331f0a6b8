"""What is known of the vector envs that exist: what they promise, and where they go wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
from gymnasium.vector import (
    AsyncVectorEnv,
    AutoresetMode,
    SyncVectorEnv,
    VectorEnv,
    VectorWrapper,
)

__all__ = [
    "FrameClock",
    "Vector",
    "hands_out_copies",
    "is_ale",
    "is_partial",
    "mode_of",
    "refuse_bad_reset",
    "split_step",
]

# What gymnasium's generics would have us spell out says nothing here.
Vector = VectorEnv[Any, Any, Any]
_Info = Mapping[str, Any]


class FrameClock:
    """The frame counters of ale-py envs: a reset sets one of them back, and only a reset."""

    def __init__(self, num_envs: int) -> None:
        self._frames = np.zeros(num_envs, np.int64)
        self._episode_frames = np.zeros(num_envs, np.int64)

    def forget(self) -> None:
        """Before a reset of all envs: nothing can move on from here."""
        self._frames[:] = 0
        self._episode_frames[:] = 1 << 40

    def set(self, info: _Info, envs: np.ndarray | slice) -> None:
        """Note the counters of some envs."""
        self._frames[envs] = info["frame_number"]
        self._episode_frames[envs] = info["episode_frame_number"]

    def moved_on(self, info: _Info, envs: np.ndarray | slice) -> np.ndarray:
        """Envs in which both counters went on alike, so no reset lies between."""
        frames = info["frame_number"] - self._frames[envs]
        episode_frames = info["episode_frame_number"] - self._episode_frames[envs]
        return np.asarray(frames == episode_frames)


def mode_of(envs: Vector) -> AutoresetMode:
    """What the envs do when an episode ends.

    Raises:
        ValueError: They do not say it.
    """
    # The attribute first: ale-py notes its mode in a dict that all vector envs share.
    mode = getattr(envs.unwrapped, "autoreset_mode", None)
    if not isinstance(mode, AutoresetMode):
        mode = envs.metadata.get("autoreset_mode")
    if not isinstance(mode, AutoresetMode):
        raise ValueError(
            "envs.metadata['autoreset_mode']: expected a gymnasium.vector.AutoresetMode, got "
            f"{mode!r}; set it to what the env does (stepwell.check_vector_env finds out)"
        )
    return mode


def is_ale(envs: Vector) -> bool:
    """Whether rows come from ale-py's own vector env, under whatever vector wrappers."""
    return any(kind.__name__ == "AtariVectorEnv" for kind in type(envs.unwrapped).__mro__)


def is_partial(envs: Vector) -> bool:
    """Whether the envs answer a few at a time."""
    inner: Any = envs.unwrapped
    return is_ale(envs) and bool(inner.batch_size < envs.num_envs)


def split_step(envs: Vector) -> tuple[Callable[[Any], None], Callable[[], Any]]:
    """A call that begins a step and one that finishes it."""
    # Looked up on the outermost class: the inner env's would step past its wrappers.
    if hasattr(type(envs), "send") and hasattr(type(envs), "recv"):
        return envs.send, envs.recv  # type: ignore[attr-defined]
    if type(envs) is AsyncVectorEnv:
        return envs.step_async, envs.step_wait
    waiting: list[Any] = []
    return waiting.append, lambda: envs.step(waiting.pop())


def hands_out_copies(envs: Vector) -> bool:
    """Whether observations are surely never written again; all others are copied at once."""
    if type(envs) in (SyncVectorEnv, AsyncVectorEnv):
        return bool(cast("SyncVectorEnv[Any, Any]", envs).copy)
    is_own = type(envs).__module__.split(".")[0] in ("ale_py", "stepwell")
    return is_own and not isinstance(envs, VectorWrapper)


def refuse_bad_reset(envs: Vector, was_reset: bool, has_ended: bool) -> None:
    """Refuse a reset of all envs that they are known to do wrong.

    Args:
        envs: The vector env.
        was_reset: It was reset before.
        has_ended: The newest row of some env ended its episode.

    Raises:
        ValueError: The reset would mix up rows.
    """
    inner: Any = envs.unwrapped
    if was_reset and is_partial(envs):
        raise ValueError(
            f"envs with batch_size={inner.batch_size} of {envs.num_envs}: expected one reset in "
            "all, got a second, which ale-py mixes up with steps under way; make new envs, or "
            "leave batch_size out"
        )
    if type(inner) is AsyncVectorEnv and not inner.shared_memory and has_ended:
        raise ValueError(
            "AsyncVectorEnv with shared_memory=False: expected a reset while all episodes are "
            "under way, got one after an end, which gymnasium would follow by a second reset; "
            "make the envs with shared_memory=True"
        )
