"""Who chooses the actions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias, cast, runtime_checkable

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from stepwell.buffers import Tree

__all__ = ["Policy", "PolicyResult", "RandomPolicy", "SeededPolicy"]

PolicyResult: TypeAlias = "Tree | tuple[Tree, Mapping[str, np.ndarray]]"
"""The actions, or the actions and a dict of extra arrays ``[N, ...]`` to store beside them."""


class Policy(Protocol):
    """Anything that maps observations to actions.

    A plain function will do. Extras are stored as fields of their own; the first call settles their
    names, dtypes and shapes.
    """

    # Any: a policy is written for its env's observations, arrays or nested ones.
    def __call__(self, observation: Any, is_first: np.ndarray, /) -> PolicyResult:
        """Choose an action for each env.

        Args:
            observation: Observations ``[N, ...]``, nested like the env's space. Where an episode
                has just ended this is its last observation, and the action will not be used. Do
                not write into it: it is stored after the call.
            is_first: [N] bool: an episode begins with this observation: forget what came before.

        Returns:
            Actions ``[N, ...]`` in the dtype of the action space; or a pair of them and a dict of
            extra arrays ``[N, ...]``.
        """
        ...


@runtime_checkable
class SeededPolicy(Protocol):
    """A policy that the Collector tells the action space and gives a generator before it begins."""

    def begin(self, action_space: spaces.Space[object], rng: np.random.Generator) -> None:
        """Get ready for a new Collector.

        Args:
            action_space: One env's action space.
            rng: Generator derived from the Collector's seed, for this policy alone.
        """
        ...


class RandomPolicy:
    """Draws actions uniformly from the action space, from the Collector's seed.

    Unbounded Box dimensions are drawn as gymnasium's ``Box.sample`` draws them.

    Example:
        >>> import numpy as np
        >>> from gymnasium import spaces
        >>> policy = RandomPolicy()
        >>> policy.begin(spaces.Discrete(3), np.random.default_rng(0))
        >>> policy(np.zeros((4, 2)), np.ones(4, bool))
        array([2, 1, 1, 0])
    """

    def __init__(self) -> None:
        self._space: spaces.Space[object] | None = None
        self._rng = np.random.default_rng()
        self._batched: dict[int, spaces.Space[object]] = {}

    def begin(self, action_space: spaces.Space[object], rng: np.random.Generator) -> None:
        """Draw from this space with this generator from now on."""
        self._space = action_space
        self._rng = rng
        self._batched = {}

    def __call__(self, observation: Tree, is_first: np.ndarray, /) -> Tree:
        """Random actions for each env, shape ``[N, ...]``."""
        n = len(is_first)
        space = self._space
        if space is None:
            raise ValueError(
                "RandomPolicy knows no action space: expected a call of begin() first, got none; "
                "give the policy to a Collector, or call begin(action_space, rng)"
            )
        if isinstance(space, spaces.Discrete):
            return self._rng.integers(space.start, space.start + space.n, size=n, dtype=space.dtype)
        if n not in self._batched:
            batched = batch_space(space, n)
            batched.seed(int(self._rng.integers(1 << 31)))
            self._batched[n] = batched
        return cast("Tree", self._batched[n].sample())
