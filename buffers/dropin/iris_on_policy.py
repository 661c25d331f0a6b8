"""What an IRIS agent has just played, until it goes into the replay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stepwell.buffers.dropin.declared import as_declared
from stepwell.buffers.dropin.flags import ended_by
from stepwell.buffers.dropin.ring import check_whole

if TYPE_CHECKING:  # which imports this module
    from stepwell.buffers.dropin.iris import IRISReplayBuffer

__all__ = ["IRISOnPolicyBuffer"]


_REAL = np.dtype(np.float64)


class _Declared(NamedTuple):
    """Dtype and shape of one step's value."""

    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]


class IRISOnPolicyBuffer:
    """Keeps up to so many steps of one env, in lists, until they go into the replay.

    What observations and actions are is declared by the first ones: the later ones have the same
    dtype and shape, and so have the arrays. It stays declared when the buffer is cleared.

    Args:
        max_steps: Steps to keep; one more is refused.
        obs_shape: Shape of an observation, uint8, if it is to be declared now.
        action_size: Length A of an action, float32, if it is to be declared now.

    Raises:
        ValueError: A number is no whole one, or too small.

    Example:
        >>> import numpy as np
        >>> from stepwell.buffers.dropin.iris import IRISReplayBuffer
        >>> replay = IRISReplayBuffer(1000, (3, 8, 8), action_size=2, seq_len=2, batch_size=4)
        >>> current = IRISOnPolicyBuffer(max_steps=100)
        >>> for step in range(5):
        ...     image = np.full((3, 8, 8), step, np.uint8)
        ...     current.add(image, np.zeros(2, np.float32), 1.0, step == 4)
        >>> current.get_arrays()[0].shape
        (5, 3, 8, 8)
        >>> current.flush_into(replay, final_obs=np.full((3, 8, 8), 5, np.uint8))
        >>> len(current), len(replay), replay.sample_sequence()[0].shape
        (0, 5, (4, 3, 3, 8, 8))
    """

    def __init__(
        self,
        max_steps: int = 1000,
        *,
        obs_shape: Sequence[int] | None = None,
        action_size: int | None = None,
    ) -> None:
        check_whole("max_steps", max_steps, 1)
        if action_size is not None:
            check_whole("action_size", action_size, 1)
        self.max_steps = max_steps
        self._observation = (
            None if obs_shape is None else _Declared(np.dtype(np.uint8), tuple(obs_shape))
        )
        self._action = (
            None if action_size is None else _Declared(np.dtype(np.float32), (action_size,))
        )
        self.clear()

    def add(
        self,
        obs: object,
        action: object,
        reward: float,
        terminal: float,
        *,
        truncated: bool = False,
        final_obs: object = None,
    ) -> None:
        """Take up a step; everything is copied.

        Args:
            obs: What the action was chosen from.
            action: What was done.
            reward: What it brought.
            terminal: The episode ended with it, terminated or truncated.
            truncated: It was the clock that ended it; ``terminal`` is True then, too.
            final_obs: With the last step of an episode: what it ended with, like ``obs``.

        Raises:
            ValueError: There are ``max_steps`` steps already, or something is not like the first
                one. Nothing was taken up.
        """
        if len(self) >= self.max_steps:
            raise ValueError(
                f"expected at most max_steps={self.max_steps} steps, got one more; call "
                f"flush_into(replay) or clear() before, or raise max_steps"
            )
        terminated, is_truncated = ended_by("terminal", terminal, truncated=truncated)
        if final_obs is not None and not terminal:
            raise ValueError(
                "final_obs: expected one only with the last step of an episode, got one with a "
                "step that ends nothing; leave it out"
            )
        observation, observed = _declared("obs", obs, self._observation)
        chosen, acted = _declared("action", action, self._action)
        last = None if final_obs is None else _declared("final_obs", final_obs, observed)[0]
        gain = reward if type(reward) is float else float(as_declared("reward", reward, _REAL, ()))
        self._observation, self._action = observed, acted
        self.observations.append(observation)
        self.actions.append(chosen)
        self.rewards.append(gain)
        self.terminals.append(float(terminated or is_truncated))
        self._truncated.append(is_truncated)
        self._last.append(last)

    def clear(self) -> None:
        """Forget all steps."""
        self.observations: list[np.ndarray] = []
        self.actions: list[np.ndarray] = []
        self.rewards: list[float] = []
        self.terminals: list[float] = []
        self._truncated: list[bool] = []
        self._last: list[np.ndarray | None] = []

    def get_arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Copies of all steps.

        Returns:
            Observations ``[T, ...]`` and actions ``[T, ...]`` in their dtypes, rewards [T] and
            terminals [T] float64. Of what was never declared there are ``[0]``.
        """
        return (
            _stacked(self.observations, self._observation),
            _stacked(self.actions, self._action),
            np.array(self.rewards, np.float64),
            np.array(self.terminals, np.float64),
        )

    def flush_into(
        self, replay: IRISReplayBuffer, *, env: int = 0, final_obs: object = None
    ) -> None:
        """Add all steps to a replay, and forget them here.

        An episode that goes on stays open there: the next flush for the same env continues it.

        Args:
            replay: Where they go.
            env: Index of the env that played them.
            final_obs: Where the newest step is the last one of its episode: what it ended with, if
                that was not given with the step.

        Raises:
            ValueError: A step is not what the replay takes, or there is no such env, or the newest
                step ends nothing. Nothing was added.
        """
        last = list(self._last)
        if final_obs is not None:
            if not len(self) or not self.terminals[-1]:
                raise ValueError(
                    "final_obs: expected it where the newest step is the last one of its episode, "
                    "got it where it is not; leave it out"
                )
            last[-1] = _declared("final_obs", final_obs, self._observation)[0]
        ends = [terminal > 0 for terminal in self.terminals]
        for step in zip(self.observations, self.actions, ends, last, strict=True):
            replay.check(*step, env=env)
        for number, observation in enumerate(self.observations):
            replay.add(
                observation,
                self.actions[number],
                self.rewards[number],
                ends[number],
                env=env,
                truncated=self._truncated[number],
                final_obs=last[number],
            )
        self.clear()

    def __len__(self) -> int:
        """Number of steps."""
        return len(self.observations)


def _declared(what: str, value: object, declared: _Declared | None) -> tuple[np.ndarray, _Declared]:
    """A copy of a value as it was declared, or as it declares itself."""
    if declared is None:
        array = np.array(value)
        if array.dtype.kind not in "biuf":
            raise ValueError(f"{what}: expected numbers, got {array.dtype}; convert them first")
        return array, _Declared(array.dtype, array.shape)
    return as_declared(what, value, *declared).copy(), declared


def _stacked(values: list[np.ndarray], declared: _Declared | None) -> np.ndarray:
    if declared is None:
        return np.zeros(0)
    out = np.empty((len(values), *declared.shape), declared.dtype)
    for place, value in enumerate(values):
        out[place] = value
    return out
