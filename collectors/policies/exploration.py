"""Wrappers of policies that replace some actions by exploring ones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import numpy as np
from gymnasium import spaces

from ...buffers import Layout, Spec
from ...buffers.base.forks import load_generator
from ...buffers.base.number_checks import whole_number
from ...buffers.base.untrusted_json import mapping, member, whole
from ...buffers.spec.spec import flatten, unflatten
from .as_policy import GivenPolicy, as_policy
from .policy import (
    RandomPolicy,
    SeededPolicy,
    as_recurrent,
    load_state_of,
    not_begun,
    override_hook_of,
    state_of,
    value_of,
)
from .policy_caller import split_extras, split_state

EXPLORED = "explored"
OverrideHook = Callable[[Any, Any], Any]


class _PolicyResult(NamedTuple):
    action: object
    state: tuple[object, ...]  # the new one alone, or nothing
    extras: Mapping[str, object]

    def result(self) -> object:
        """The same as a policy returns it."""
        rest = (*self.state, self.extras) if self.extras else self.state
        return (self.action, *rest) if rest else self.action


class _Exploring:
    """A policy around another one, whose optional methods are this one's too."""

    # Set only where the inner policy has them: that is how a Collector knows.
    initial_state: Callable[[int], Any]
    value: Callable[..., Any]
    on_override: OverrideHook

    def __init__(self, policy: GivenPolicy) -> None:
        self._policy = as_policy(policy)
        self._call = cast("Callable[..., object]", self._policy)
        inner = as_recurrent(self._policy)
        self._is_recurrent = inner is not None
        if inner is not None:
            self.initial_state = inner.initial_state
        if (value := value_of(self._policy)) is not None:
            self.value = value
        if (hook := override_hook_of(self._policy)) is not None:
            self.on_override = hook

    def _begin_inner(
        self, action_space: spaces.Space[object], rng: np.random.Generator
    ) -> np.random.Generator:
        """Begin the inner policy with its own generator; returns another one for this policy."""
        outer, inner = rng.spawn(2)
        if isinstance(self._policy, SeededPolicy):
            self._policy.begin(action_space, inner)
        return outer

    def _ask(
        self, layout: Layout, observation: object, is_first: np.ndarray, state: tuple[object, ...]
    ) -> _PolicyResult:
        """Call the inner policy and split its result; one with a state must return a new one."""
        result = self._call(observation, is_first, *state)
        if self._is_recurrent:
            action, after, extras = split_state(result)
            return _PolicyResult(action, (after,), extras)
        action, extras = split_extras(layout, result)
        return _PolicyResult(action, (), extras)

    def _overridden(self, answer: _PolicyResult) -> _PolicyResult:
        """The same with the state after these actions, where the policy has `on_override`."""
        if answer.state and (hook := override_hook_of(self._policy)) is not None:
            return answer._replace(state=(hook(answer.action, answer.state[0]),))
        return answer


class _Replacing(_Exploring, ABC):
    """One that takes random actions in place of some."""

    def __init__(self, policy: GivenPolicy, mark: bool) -> None:
        super().__init__(policy)
        self._mark = mark
        self._random = RandomPolicy()
        self._layout: Layout | None = None  # the nesting of actions
        self.rows = 0
        """Rows so far; set it to continue where an earlier run stopped."""

    def _begin_random(self, action_space: spaces.Space[object], rng: np.random.Generator) -> None:
        self._layout = Spec.from_spaces(action_space, action_space).action
        self._random.begin(action_space, rng)

    @abstractmethod
    def _is_random(self, count: int) -> np.ndarray:
        """The rows [n] bool in which the action is a random one."""

    def __call__(self, observation: Any, is_first: np.ndarray, /, *state: Any) -> Any:
        """The actions ``[n, ...]``, with the state and extras that the policy returns."""
        if self._layout is None:
            raise not_begun(type(self).__name__)
        where = self._is_random(len(is_first))  # a wrong epsilon is refused before the policy acts
        answer = self._ask(self._layout, observation, is_first, state)
        self.rows += len(is_first)
        if where.any():
            drawn = self._random(None, where)  # type: ignore[arg-type]  # it looks at n alone
            mixed = _mixed(self._layout, answer.action, drawn, where)
            answer = self._overridden(answer._replace(action=mixed))
        extras = dict(answer.extras)
        if self._mark or EXPLORED in extras:  # an inner policy that marks must stay right
            extras[EXPLORED] = where | extras.get(EXPLORED, False)
            answer = answer._replace(extras=extras)
        return answer.result()

    def state_dict(self) -> dict[str, object]:
        """The state to go on from as if it had never stopped, with that of the policy inside."""
        parts = {"random": self._random.state_dict(), "policy": state_of(self._policy)}
        return {"rows": self.rows, **parts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of `state_dict`, after `begin`.

        Raises:
            ValueError: It is no such state.
        """
        self._random.load_state_dict(mapping(member(state, "random"), "random"))
        load_state_of(self._policy, member(state, "policy"))
        self.rows = whole(member(state, "rows"), "rows")


class WarmUp(_Replacing):
    """Draws the first actions uniformly from the action space, then lets the policy choose.

    The policy is called for every row all the same, so that its state and its extras stay current.
    Both belong to its own choice: an extra such as a log-prob is that of the action which the
    policy chose, not of the random one that is stored with it. A learner that needs the latter must
    leave these rows out; ``mark=True`` marks them. A policy whose state holds its last action is
    given the one that is taken; see `RecurrentPolicy`.

    A new Collector continues the count where the last one stopped.

    Args:
        policy: Any policy, or what a Collector takes as one; its ``initial_state`` and ``value``
            are this one's too.
        steps: Number of rows with random actions: the first ones, over all envs. A row from which
            no step is taken, at the end of an episode, counts too.
        mark: Add the extra ``explored`` [n] bool: the row's action is not the policy's.

    Raises:
        ValueError: The number of steps is not a whole number >= 0.

    Example:
        >>> import gymnasium as gym
        >>> import stepwell as sw
        >>> def left(observation, is_first):
        ...     return np.zeros(len(is_first), np.int64)
        >>> policy = sw.WarmUp(left, steps=100)
        >>> envs = gym.make_vec("CartPole-v1", num_envs=4)
        >>> with sw.Collector(envs, policy, seed=0) as collector:
        ...     report = collector.collect(steps=200)
        >>> policy.rows >= 200
        True
    """

    def __init__(self, policy: GivenPolicy, steps: int, *, mark: bool = False) -> None:
        super().__init__(policy, mark)
        self._steps = whole_number("steps", steps, 0)

    def begin(self, action_space: spaces.Space[object], rng: np.random.Generator) -> None:
        """Draw from this space with this generator from now on; the inner policy begins too."""
        self._begin_random(action_space, self._begin_inner(action_space, rng))

    def _is_random(self, count: int) -> np.ndarray:
        return np.arange(self.rows, self.rows + count) < self._steps


class EpsilonGreedy(_Replacing):
    """Replaces the action of each env, with probability epsilon, by a uniformly random one.

    The random one may be the policy's own, as usual: with n actions the policy's is taken with
    probability ``1 - epsilon + epsilon / n``. Source: Mnih et al. 2015, "Human-level control
    through deep reinforcement learning", algorithm 1. Of nested actions all parts are replaced.

    The policy is called for every row all the same, so that its state and its extras stay current.
    Both belong to its own choice: an extra such as a log-prob is that of the action which the
    policy chose, under the policy alone, not of the one that is stored with it, nor under the
    mixture. ``mark=True`` marks the rows in which the two differ. A policy whose state holds its
    last action is given the one that is taken; see `RecurrentPolicy`.

    A new Collector continues the count of rows where the last one stopped.

    Args:
        policy: Any policy, or what a Collector takes as one; its ``initial_state`` and ``value``
            are this one's too.
        epsilon: Probability from 0 to 1, or a function of the number of rows before, over all envs,
            that returns it.
        mark: Add the extra ``explored`` [n] bool: the row's action was drawn at random.

    Raises:
        ValueError: Epsilon is no probability; from a function, when the policy is called.

    Example:
        >>> import gymnasium as gym
        >>> import stepwell as sw
        >>> def left(observation, is_first):
        ...     return np.zeros(len(is_first), np.int64)
        >>> policy = sw.EpsilonGreedy(left, lambda rows: max(0.05, 1 - rows / 1000), mark=True)
        >>> replay = sw.SequenceReplayBuffer()
        >>> envs = gym.make_vec("CartPole-v1", num_envs=4)
        >>> with sw.Collector(envs, policy, replay, seed=0) as collector:
        ...     report = collector.collect(steps=400)
        >>> episode = next(replay.iter_episodes())
        >>> bool((episode.action[:-1] == 1)[~episode.fields["extra/explored"][:-1]].any())
        False
    """

    def __init__(
        self, policy: GivenPolicy, epsilon: float | Callable[[int], float], *, mark: bool = False
    ) -> None:
        if not callable(epsilon):
            _check_probability(epsilon)
        super().__init__(policy, mark)
        self._epsilon = epsilon
        self._rng: np.random.Generator | None = None

    def begin(self, action_space: spaces.Space[object], rng: np.random.Generator) -> None:
        """Draw from this space with this generator from now on; the inner policy begins too."""
        self._rng, actions = self._begin_inner(action_space, rng).spawn(2)
        self._begin_random(action_space, actions)

    def _is_random(self, count: int) -> np.ndarray:
        epsilon = self._epsilon(self.rows) if callable(self._epsilon) else self._epsilon
        _check_probability(epsilon)
        assert self._rng is not None  # the layout is there, so begin was called
        return self._rng.random(count) < epsilon

    def state_dict(self) -> dict[str, object]:
        """The state to go on from as if it had never stopped, with that of the policy inside."""
        generator = None if self._rng is None else self._rng.bit_generator.state
        return {**super().state_dict(), "generator": generator}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of `state_dict`, after `begin`.

        Raises:
            ValueError: It is no such state.
        """
        if self._rng is None:
            raise not_begun("EpsilonGreedy")
        load_generator(self._rng, member(state, "generator"))
        super().load_state_dict(state)


class GaussianNoise(_Exploring):
    """Adds independent normal noise to the actions and clips the sum to the space's bounds.

    The exploration of TD3 (Fujimoto et al. 2018, "Addressing function approximation error in
    actor-critic methods", algorithm 1), and what most implementations of DDPG do. An extra such
    as a log-prob is that of the action before the noise; a policy whose state holds its last action
    is given the one with it; see `RecurrentPolicy`.

    Args:
        policy: Any policy for a Box of floats; its ``initial_state`` and ``value`` are this one's
            too.
        scale: Standard deviation, in the units of the action (TD3: a tenth of the largest action);
            a number, or an array that fits the action's shape.

    Raises:
        ValueError: The scale is negative or not finite.

    Example:
        >>> import stepwell as sw
        >>> policy = sw.GaussianNoise(lambda observation, is_first: np.zeros((2, 1), "f4"), 0.2)
        >>> policy.begin(spaces.Box(-2, 2, (1,)), np.random.default_rng(0))
        >>> policy(np.zeros((2, 3)), np.ones(2, bool)).round(2)
        array([[ 0.29],
               [-0.18]], dtype=float32)
    """

    def __init__(self, policy: GivenPolicy, scale: float | np.ndarray) -> None:
        self._scale = np.asarray(scale, np.float64)
        if not (np.isfinite(self._scale) & (self._scale >= 0)).all():
            raise ValueError(
                f"GaussianNoise: expected a scale that is finite and >= 0, got {scale}"
            )
        super().__init__(policy)
        self._space: spaces.Box | None = None
        self._rng = np.random.default_rng()

    def begin(self, action_space: spaces.Space[object], rng: np.random.Generator) -> None:
        """Draw noise for this space with this generator from now on; the policy inside begins too.

        Raises:
            TypeError: The space is no Box of floats.
            ValueError: The scale does not fit the shape of its actions.
        """
        if not isinstance(action_space, spaces.Box) or action_space.dtype.kind != "f":
            raise TypeError(
                f"GaussianNoise: expected an action space Box of floats, got {action_space}; use "
                f"EpsilonGreedy or WarmUp for others"
            )
        try:
            np.broadcast_to(self._scale, action_space.shape)
        except ValueError:
            raise ValueError(
                f"GaussianNoise: expected a scale that fits actions of shape {action_space.shape}, "
                f"got one of shape {self._scale.shape}"
            ) from None
        self._rng = self._begin_inner(action_space, rng)
        self._space = action_space

    def __call__(self, observation: Any, is_first: np.ndarray, /, *state: Any) -> Any:
        """The noisy actions ``[n, ...]``, with the state and extras that the policy returns."""
        space = self._space
        if space is None:
            raise not_begun("GaussianNoise")
        answer = self._ask("action", observation, is_first, state)
        rows = np.asarray(answer.action)
        shape = (len(is_first), *space.shape)
        if rows.shape != shape or not np.can_cast(rows.dtype, space.dtype, "safe"):
            raise ValueError(
                f"policy returned an action of shape {rows.shape} and dtype {rows.dtype}, expected "
                f"{shape} and {space.dtype} for {space}; convert it in the policy"
            )
        noisy = rows + self._rng.normal(size=shape) * self._scale
        clipped = np.clip(noisy, space.low, space.high).astype(space.dtype)
        return self._overridden(answer._replace(action=clipped)).result()

    def state_dict(self) -> dict[str, object]:
        """The state to go on from as if it had never stopped, with that of the policy inside."""
        own = self._rng.bit_generator.state
        return {"generator": own, "policy": state_of(self._policy)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of `state_dict`, after `begin`.

        Raises:
            ValueError: It is no such state.
        """
        load_generator(self._rng, member(state, "generator"))
        load_state_of(self._policy, member(state, "policy"))


def _mixed(layout: Layout, chosen: object, drawn: object, where: np.ndarray) -> object:
    """The chosen actions ``[n, ...]``, but in the rows ``where`` [n] the drawn ones."""
    try:
        leaves = dict(flatten(layout, chosen))
    except ValueError as error:
        raise ValueError(f"policy returned another structure of actions: {error}") from None
    mixed: dict[str, np.ndarray] = {}
    for name, leaf in flatten(layout, drawn):
        new, rows = np.asarray(leaf), np.asarray(leaves[name])
        if rows.shape != new.shape:
            raise ValueError(
                f"policy returned {name} of shape {rows.shape}, expected {new.shape}; correct the "
                f"policy"
            )
        # In the common dtype: a drawn action must not be cast to a smaller one of the policy's.
        mixed[name] = np.where(where.reshape(-1, *[1] * (new.ndim - 1)), new, rows)
    return unflatten(layout, mixed)


def _check_probability(epsilon: float) -> None:
    if not hasattr(epsilon, "__float__") or not 0 <= epsilon <= 1:
        raise ValueError(f"EpsilonGreedy: expected epsilon from 0 to 1, got {epsilon}")
