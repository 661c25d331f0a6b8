"""Episodes as d3rlpy has them: as many observations as actions, and no final one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stepwell.buffers.curation.step_columns import frames_of, split, stacks_of
from stepwell.buffers.episode import End, Episode
from stepwell.buffers.spec import Field, Layout, Spec

__all__ = ["D3rlpyColumns", "D3rlpyRows"]

_CHANNELS = (1, 3, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class D3rlpyColumns:
    """The four parts of d3rlpy's ``Episode``.

    Of an episode of T steps that was terminated there are N = T rows. Of another one there are
    N = T + 1: the last one holds the final observation, which d3rlpy has no other place for, with
    an action and a reward of 0; it is the next observation of the last transition, and begins
    none.

    Args:
        observations: [N, ...], or a list of such arrays where the observation has several parts.
        actions: [N, 1] whole numbers, or [N, A] floats.
        rewards: [N, 1] float32.
        terminated: The MDP ended with the last row.
    """

    observations: np.ndarray | list[np.ndarray]
    actions: np.ndarray
    rewards: np.ndarray
    terminated: bool


class D3rlpyRows:
    """Makes d3rlpy's columns of episodes, and frames of observations again.

    Args:
        spec: The fields of every row.
        stack: Give frame-stacked observations in full; else single frames.
        channels_first: Give images (H, W, C) of bytes as (C, H, W).

    Raises:
        ValueError: d3rlpy has nothing for such actions.
    """

    def __init__(self, spec: Spec, stack: bool, channels_first: bool) -> None:
        self.spec = spec
        self._stack = stack
        self._channels_first = channels_first
        self.parts = [spec[name] for name in _leaves(spec.observation)]
        """The fields of the observation, in d3rlpy's order."""
        self.action = _checked_action(spec)
        """The field of the action."""

    @property
    def is_single(self) -> bool:
        """The observation is one array, not a list of them."""
        return isinstance(self.spec.observation, str)

    def columns(self, episode: Episode) -> D3rlpyColumns:
        """An episode's columns; views where possible.

        Raises:
            ValueError: An action lies below 0, or stacks are wanted and not known.
        """
        steps = split(episode)
        terminated = bool(episode.end & End.TERMINATED) and steps.steps > 0
        pad = int(not terminated)
        rows = steps.steps + pad
        observations = [
            self._shown(steps.observation[field.name], field, episode.first_row)[:rows]
            for field in self.parts
        ]
        action = steps.action[self.action.name]
        if action.dtype.kind == "i" and len(action) and action.min() < 0:
            raise ValueError(
                f"field 'action': expected whole numbers from 0 on, as d3rlpy counts actions, got "
                f"{action.min()}; leave such episodes out, or record with a wrapper that shifts "
                f"them"
            )
        with np.errstate(over="ignore"):
            reward = steps.reward.astype(np.float32)
        return D3rlpyColumns(
            observations=observations[0] if self.is_single else observations,
            actions=_padded(action.reshape(len(action), *(self.action.shape or (1,))), pad),
            rewards=_padded(reward.reshape(-1, 1), pad),
            terminated=terminated,
        )

    def frames(self, shown: np.ndarray, field: Field) -> np.ndarray:
        """Observations [N, ...] as they are stored, of those that `columns` gave.

        Raises:
            ValueError: They are others.
        """
        k = field.stack if self._stack else 1
        shape = field.shape
        if self._is_image(field):
            height, width, channels = shape
            apart = shown.reshape(len(shown), k, channels, height, width)
            stacks = np.moveaxis(apart, 2, -1)
        else:
            stacks = shown.reshape(len(shown), k, *shape)
        return frames_of(stacks, field) if k > 1 else stacks[:, 0]

    def notes(self) -> list[str]:
        """What the user should know of the observations."""
        found: list[str] = []
        for field in self.parts:
            if field.stack > 1 and not self._stack:
                first = (
                    ""
                    if field.stack_padding == "zero"
                    else ("; that pads with zeros, where the env repeated the first frame")
                )
                found.append(
                    f"{field.name} holds single frames: stacks are made by "
                    f"d3rlpy.dataset.FrameStackTransitionPicker({field.stack}){first}"
                )
            if self._is_image(field):
                found.append(f"{field.name} has its channels first, as d3rlpy's networks want it")
        if not self.is_single:
            names = ", ".join(field.name for field in self.parts)
            found.append(f"observations are lists of arrays: {names}")
        return found

    def _is_image(self, field: Field) -> bool:
        """Whether its channels stand last, and are moved."""
        shape = field.shape
        is_image = len(shape) == 3 and shape[2] in _CHANNELS and shape[0] not in _CHANNELS
        return self._channels_first and is_image and field.dtype == "uint8"

    def _shown(self, frames: np.ndarray, field: Field, first_row: int) -> np.ndarray:
        """Frames [T, ...] as d3rlpy takes them."""
        k = field.stack if self._stack else 1
        stacks = stacks_of(frames, field, first_row) if k > 1 else frames[:, None]
        if self._is_image(field):
            stacks = np.moveaxis(stacks, -1, 2)
        # Channels, or numbers, of all frames of a stack behind each other.
        inner = stacks.shape[2:]
        if len(inner) == 2:
            return stacks
        return stacks.reshape(len(stacks), k * (inner[0] if inner else 1), *inner[1:])


def _leaves(layout: Layout) -> list[str]:
    if isinstance(layout, str):
        return [layout]
    parts: Sequence[Layout] = list(layout.values()) if isinstance(layout, Mapping) else list(layout)
    return [name for part in parts for name in _leaves(part)]


def _checked_action(spec: Spec) -> Field:
    """The one field of the action.

    Raises:
        ValueError: There are several, or it is none that d3rlpy knows.
    """
    names = _leaves(spec.action)
    field = spec[names[0]] if names else None
    is_one = isinstance(spec.action, str) and field is not None
    if is_one and field is not None:
        kind = field.numpy_dtype.kind
        if (kind in "iu" and not field.shape) or (kind == "f" and len(field.shape) < 2):
            return field
    got = ", ".join(f"{spec[name].dtype} {spec[name].shape} ({name})" for name in names)
    raise ValueError(
        f"action: expected one whole number, or one vector of floats, as d3rlpy has nothing else, "
        f"got {got or 'none'}; choose another format"
    )


def _padded(rows: np.ndarray, pad: int) -> np.ndarray:
    """The rows, and zeros behind them."""
    if not pad:
        return rows
    return np.concatenate([rows, np.zeros((pad, *rows.shape[1:]), rows.dtype)])
