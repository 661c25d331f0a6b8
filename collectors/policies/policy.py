"""Policies: the protocols, and a random policy."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias, cast, runtime_checkable

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from ...buffers import Tree
from ...buffers.base.forks import load_generator
from ...buffers.base.untrusted_json import items, mapping, member, whole
from ...buffers.sampling.batch import map_tree

PolicyResult: TypeAlias = "Tree | tuple[Tree, Mapping[str, np.ndarray]]"
"""The actions, or the actions and a dict of extra arrays ``[N, ...]`` to store with them."""

RecurrentResult: TypeAlias = "tuple[Tree, Any] | tuple[Tree, Any, Mapping[str, np.ndarray]]"
"""The actions and the new state, and possibly a dict of extra arrays ``[N, ...]``."""


class Policy(Protocol):
    """Anything that maps observations to actions.

    A plain function will do. Extras are stored as separate fields; the first call determines their
    names, dtypes and shapes.

    Example:
        >>> import stepwell as sw
        >>> def policy(observation, is_first):
        ...     action = (observation[:, 2] > 0).astype(np.int64)  # where the pole leans
        ...     return action, {"angle": observation[:, 2]}
        >>> replay = sw.SequenceReplayBuffer()
        >>> envs = sw.make_vec("CartPole-v1", num_envs=2)
        >>> with sw.Collector(envs, policy, replay, seed=0) as collector:
        ...     report = collector.collect(steps=20)
        >>> replay.spec.names
        ['observation', 'action', 'reward', 'extra/angle']
    """

    # Any: a policy is written for its env's observations, arrays or nested ones.
    def __call__(self, observation: Any, is_first: np.ndarray, /) -> PolicyResult:
        """Choose an action for each env.

        Args:
            observation: Observations ``[N, ...]``, nested like the env's space. Where an episode
                has just ended this is its last observation, and the action will not be used. They
                are a copy: the policy may write into them.
            is_first: [N] bool: an episode begins with this observation: forget what came before.

        Returns:
            Actions ``[N, ...]`` in the dtype of the action space; or a pair of them and a dict of
            extra arrays ``[N, ...]``.
        """
        ...


class RecurrentPolicy(Protocol):
    """A policy whose state is an argument and a result; the Collector keeps a row of it per env.

    The state is an array ``[N, ...]``, or a nested dict or tuple of them.

    A policy whose state holds its last action (R2D2, Dreamer) should also have a method
    ``on_override(action, state)``. It is called where `WarmUp`, `EpsilonGreedy` or `GaussianNoise`
    replace actions that the policy returned, and returns the state with the actions ``[n, ...]``
    that are taken instead.

    Example:
        A policy that counts the rows of each episode:

        >>> import stepwell as sw
        >>> class EveryOther:
        ...     def initial_state(self, num_envs):
        ...         return np.zeros(num_envs, np.int64)
        ...     def __call__(self, observation, is_first, state):
        ...         return state % 2, state + 1
        >>> envs = sw.make_vec("CartPole-v1", num_envs=2)
        >>> with sw.Collector(envs, EveryOther(), seed=0) as collector:
        ...     rollout = collector.rollout(steps=4)
        >>> rollout.action[:, 0].tolist(), rollout.state[:, 0].tolist()
        ([0, 1, 0, 1], [0, 1, 2, 3])
    """

    def initial_state(self, num_envs: int, /) -> Any:
        """The state with which an episode begins, for each of N envs."""
        ...

    def __call__(self, observation: Any, is_first: np.ndarray, state: Any, /) -> RecurrentResult:
        """Choose an action for each env, and return the new state.

        Args:
            observation: Observations ``[n, ...]``, as for `Policy`.
            is_first: [n] bool: an episode begins; its state is the initial one already.
            state: The state of these envs, arrays ``[n, ...]``; the policy may write into them.

        Returns:
            The actions and the new state, or these and a dict of extra arrays ``[n, ...]``. Dtypes
            and shapes of the state stay those of `initial_state`.
        """
        ...


AnyPolicy: TypeAlias = "Policy | RecurrentPolicy"


class ValuePolicy(Protocol):
    """A policy that also returns the value of observations, without choosing an action.

    `Collector.rollout` calls it once, at its end, for the observations to bootstrap from. A policy
    with a state gets that as well: ``value(observation, state)``.

    Example:
        >>> import stepwell as sw
        >>> class Actor:
        ...     def __call__(self, observation, is_first):
        ...         return np.zeros(len(observation), np.int64)
        ...     def value(self, observation):
        ...         return np.full(len(observation), 2.5, np.float32)
        >>> envs = sw.make_vec("CartPole-v1", num_envs=2)
        >>> with sw.Collector(envs, Actor(), seed=0) as collector:
        ...     rollout = collector.rollout(steps=4)
        >>> rollout.bootstrap.value
        array([2.5, 2.5], dtype=float32)
    """

    def __call__(self, observation: Any, is_first: np.ndarray, /) -> PolicyResult:
        """Choose an action for each env, as any `Policy`."""
        ...

    def value(self, observation: Any, /) -> np.ndarray:
        """Values [K] float of K observations ``[K, ...]``."""
        ...


def as_recurrent(policy: object) -> RecurrentPolicy | None:
    """The policy if it has a state, else None."""
    has_state = callable(getattr(policy, "initial_state", None))
    return cast("RecurrentPolicy", policy) if has_state else None


def value_of(policy: object) -> Callable[..., object] | None:
    """The policy's method ``value``, or None."""
    # Only a method counts: a network may have a layer of that name, which takes no numpy arrays.
    found = getattr(policy, "value", None)
    return cast("Callable[..., object]", found) if inspect.isroutine(found) else None


def override_hook_of(policy: object) -> Callable[[Any, Any], Any] | None:
    """The policy's method ``on_override``, or None; see `RecurrentPolicy`."""
    found = getattr(policy, "on_override", None)
    return cast("Callable[[Any, Any], Any]", found) if inspect.isroutine(found) else None


def state_of(policy: object) -> object:
    """The policy's own ``state_dict()``; None where it has none and draws from no generator."""
    method = getattr(policy, "state_dict", None)
    if inspect.isroutine(method) and hasattr(policy, "load_state_dict"):
        return method()
    if isinstance(policy, SeededPolicy):
        raise TypeError(
            f"policy: expected one with state_dict and load_state_dict, as it draws from a "
            f"generator that begin() gave it, got {type(policy).__name__} without; give it both"
        )
    return None


def load_state_of(policy: object, state: object) -> None:
    """Give a policy the state that `state_of` took of another one of its kind."""
    if (state is None) != (state_of(policy) is None):
        raise ValueError(
            f"policy: expected one of the kind that the state was taken of, got a "
            f"{type(policy).__name__}; give the same policy"
        )
    if state is not None:
        cast("Any", policy).load_state_dict(state)


def not_begun(owner: str) -> ValueError:
    """The error of a policy that is used before its `begin`."""
    return ValueError(
        f"{owner} knows no action space: expected a call of begin() first, got none; give the "
        f"policy to a Collector, or call begin(action_space, rng)"
    )


@runtime_checkable
class SeededPolicy(Protocol):
    """A policy that gets the action space and a random generator before a Collector begins.

    `RandomPolicy` is one. The generator follows from the Collector's seed, so that a run with the
    same seed chooses the same actions.
    """

    def begin(self, action_space: spaces.Space[object], rng: np.random.Generator) -> None:
        """Prepare for a new Collector.

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
        self._numbers = np.empty(0, np.int64)
        self._blocks: dict[int, _Block] = {}

    def begin(self, action_space: spaces.Space[object], rng: np.random.Generator) -> None:
        """Draw from this space with this generator from now on."""
        self._space = action_space
        self._rng = rng
        self._numbers = np.empty(0, np.int64)
        self._blocks = {}

    def __call__(self, observation: Tree, is_first: np.ndarray, /) -> Tree:
        """Random actions for each env, shape ``[N, ...]``."""
        n = len(is_first)
        space = self._space
        if space is None:
            raise not_begun("RandomPolicy")
        if isinstance(space, spaces.Discrete):
            if len(self._numbers) < n:
                self._draw_numbers(space, n)
            drawn, self._numbers = self._numbers[:n], self._numbers[n:]
            return drawn
        if n not in self._blocks:
            self._blocks[n] = _Block(space, n, int(self._rng.integers(1 << 31)))
        return self._blocks[n].next()

    def state_dict(self) -> dict[str, object]:
        """The state to go on drawing from as if it had never stopped."""
        return {
            "generator": self._rng.bit_generator.state,
            "numbers": self._numbers.copy(),
            "blocks": {str(n): block.state_dict() for n, block in self._blocks.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of `state_dict`, after `begin`.

        Raises:
            ValueError: It is no such state.
        """
        space = self._space
        if space is None:
            raise not_begun("RandomPolicy")
        told = mapping(state, "state of a RandomPolicy")
        numbers = member(told, "numbers")
        if not isinstance(numbers, np.ndarray) or numbers.ndim != 1:
            raise ValueError("numbers: expected an array of one axis")
        blocks: dict[int, _Block] = {}
        for key, block in mapping(member(told, "blocks"), "blocks").items():
            n = whole(int(key), "number of envs", 1)
            blocks[n] = _Block(space, n, 0)
            blocks[n].load_state_dict(block)
        load_generator(self._rng, member(told, "generator"))
        self._numbers, self._blocks = numbers, blocks

    def _draw_numbers(self, space: spaces.Discrete, n: int) -> None:
        """Draw ahead, for many steps of n envs: a call of numpy costs more than its numbers."""
        # Of 4 bytes or more, the same ones come in one call or in several. Of smaller ones numpy
        # takes several from one random word, and drops the rest of it at the end of each call.
        steps = 1 if space.dtype.itemsize < 4 else _steps_ahead(n)
        low, high = space.start, space.start + space.n
        more = self._rng.integers(low, high, size=n * steps, dtype=space.dtype)
        self._numbers = np.concatenate((self._numbers, more)) if len(self._numbers) else more


class _Block:
    """Samples of a space for n envs, drawn for many steps at once where that changes none."""

    def __init__(self, space: spaces.Space[object], n: int, seed: int) -> None:
        batched = batch_space(space, n)
        leaves = _leaf_spaces(batched)
        self._n, self._steps = n, 1
        if all(map(_is_drawn_in_order, leaves)):
            self._steps = _steps_ahead(sum(math.prod(leaf.shape or ()) for leaf in leaves))
        self._space = batched if self._steps == 1 else batch_space(space, n * self._steps)
        self._space.seed(seed)
        self._drawn: Tree = np.empty(0)
        self._taken = self._steps
        self._before = self._generators()  # before the newest samples were drawn

    def next(self) -> Tree:
        """The actions ``[n, ...]`` of the next step."""
        if self._taken == self._steps:
            self._before = self._generators()
            self._drawn, self._taken = cast("Tree", self._space.sample()), 0
        start, self._taken = self._taken * self._n, self._taken + 1
        if self._steps == 1:
            return self._drawn
        return cast("Tree", map_tree(lambda rows: rows[start : start + self._n], self._drawn))

    def state_dict(self) -> dict[str, object]:
        leaves = _leaf_spaces(self._space)
        kinds = spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary
        if any(type(leaf) not in kinds for leaf in leaves):
            raise TypeError(
                f"RandomPolicy: expected an action space of plain parts to take its state, got "
                f"{self._space}; write a policy with state_dict and load_state_dict for it"
            )
        return {"generators": self._before, "taken": self._taken}

    def load_state_dict(self, state: object) -> None:
        told = mapping(state, "block")
        leaves = _leaf_spaces(self._space)
        for leaf, one in zip(
            leaves, items(member(told, "generators"), "generators", len(leaves)), strict=True
        ):
            load_generator(leaf.np_random, one)
        self._before = self._generators()
        self._drawn = cast("Tree", self._space.sample())
        self._taken = whole(member(told, "taken"), "taken", 0, self._steps)

    def _generators(self) -> list[Any]:
        return [leaf.np_random.bit_generator.state for leaf in _leaf_spaces(self._space)]


def _steps_ahead(values: int) -> int:
    """Number of steps that are drawn at once, for so many values in each."""
    return max(1, min(64, (1 << 16) // max(1, values)))


def _leaf_spaces(space: spaces.Space[Any]) -> list[spaces.Space[Any]]:
    """The plain spaces in a nested one."""
    if isinstance(space, spaces.Dict):
        return [leaf for part in space.spaces.values() for leaf in _leaf_spaces(part)]
    if isinstance(space, spaces.Tuple):
        return [leaf for part in space.spaces for leaf in _leaf_spaces(part)]
    return [space]


def _is_drawn_in_order(leaf: spaces.Space[Any]) -> bool:
    """Test whether a sample of many rows has the values of many samples of one row."""
    # Of a Box, the values of each kind of bounds are drawn together, so that there may be only one.
    if type(leaf) is spaces.Box:
        bounds = leaf.bounded_below, leaf.bounded_above
        return all(bool(each.all() or not each.any()) for each in bounds)
    return type(leaf) is spaces.MultiDiscrete
