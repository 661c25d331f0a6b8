"""JAX: compiled functions as policies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from ..base.optional_libraries import load_library


def jax_policy(
    function: Callable[[Any, Any, Any, Any], Any],
    params: Any = None,
    *,
    value: Callable[[Any, Any], Any] | None = None,
) -> JaxPolicy:
    """A policy for a `Collector` or `evaluate` from a function that JAX can compile.

    With `JaxEnvs` it is compiled into the loop that steps them; with any other envs it is called
    for each step, and gets and returns numpy arrays.

    Args:
        function: A function of (params, key, observation, is_first) that returns actions
            ``[N, ...]``, or a pair of them and a dict of extras ``[N, ...]``: log-probabilities,
            values. ``observation`` is ``[N, ...]``, ``is_first`` [N] bool. The key is another one
            for each step, and follows from the Collector's seed.
        params: The function's first argument: arrays, nested as JAX takes them. They may be
            replaced in the attribute ``params`` between calls; nothing is compiled again then.
        value: A function of (params, observation) that returns the values [K] of observations
            ``[K, ...]``, from which rollouts bootstrap.

    Raises:
        ImportError: JAX is not installed.
        TypeError: One of the functions cannot be called.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import stepwell as sw
        >>> def act(weights, key, observation, is_first):
        ...     logits = observation @ weights
        ...     action = jax.random.categorical(key, logits)
        ...     log_prob = jax.nn.log_softmax(logits)[jnp.arange(len(action)), action]
        ...     return action, {"log_prob": log_prob}
        >>> policy = sw.bridges.jax_policy(act, jnp.zeros((4, 2)))
        >>> envs = sw.make_vec("CartPole-v1", num_envs=2, num_workers=0)
        >>> with sw.Collector(envs, policy, seed=0) as collector:
        ...     rollout = collector.rollout(steps=8)
        >>> rollout.action.shape, sorted(rollout.extras)
        ((8, 2), ['log_prob'])
    """
    return JaxPolicy(function, params, value)


class JaxPolicy:
    """A compiled function as a policy; `jax_policy` makes one.

    Attributes:
        params: The function's parameters.
        function: The function.
        key: Its key; step n gets ``fold_in(key, n)``.
        steps: Number n of the next step.
    """

    def __init__(
        self,
        function: Callable[[Any, Any, Any, Any], Any],
        params: Any,
        value: Callable[[Any, Any], Any] | None,
    ) -> None:
        for name, given in (("function", function), ("value", value)):
            if not callable(given) and not (name == "value" and given is None):
                raise TypeError(f"{name}: expected a function, got {type(given).__name__}")
        self._jax: Any = load_library("jax", "jax_policy", install="'stepwell[jax]'")
        self.function = function
        self.params = params
        self.steps = 0
        self.key = self._jax.random.key(0)

        self._once = self._jax.jit(self.choose)
        if value is not None:
            compiled = self._jax.jit(value)
            # Set only where there is one: that is how a Collector knows.
            self.value = lambda observation: np.asarray(compiled(self.params, observation))

    def choose(
        self, params: Any, key: Any, number: Any, observation: Any, is_first: Any, one: Any
    ) -> Any:
        """The function's result for observations ``[N, ...]`` of a step, for JAX to compile."""
        # On a CPU it is compiled by itself, as the body of a loop: the same bits, whatever comes
        # before or behind it. For that `one` is the number 1, unknown to the compiler.
        jax, jnp = self._jax, self._jax.numpy
        seen = observation, is_first

        def chosen(number: Any, seen: Any) -> Any:
            return self.function(params, jax.random.fold_in(key, number), *seen)

        if jax.default_backend() != "cpu":  # elsewhere such a loop waits for the host
            return chosen(number, seen)
        like = jax.eval_shape(chosen, number, seen)
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)
        many = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], seen)

        def body(index: Any, before: Any) -> Any:
            # What does not depend on the index would be moved out of the loop.
            now = jax.tree.map(
                lambda leaf: jax.lax.dynamic_index_in_dim(leaf, index, 0, False), many
            )
            return chosen(number + index.astype(jnp.uint32), now)

        return jax.lax.fori_loop(0, one, body, nothing)

    def begin(self, action_space: spaces.Space[object], rng: np.random.Generator) -> None:
        """Take a new key from the generator, and count steps from 0 on."""
        self.key = self._jax.random.key(int(rng.integers(1 << 32)))
        self.steps = 0

    def __call__(self, observation: Any, is_first: np.ndarray, /) -> Any:
        """Actions ``[N, ...]``, or a pair of them and extras, as numpy arrays."""
        number = np.uint32(self.steps)
        chosen = self._once(self.params, self.key, number, observation, is_first, np.int32(1))
        self.steps += 1
        found = self._jax.device_get(chosen)
        if isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], Mapping):
            return found[0], dict(found[1])
        return found
