"""JAX: batches and rollouts with JAX arrays, and compiled functions as policies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from ..base.optional_libraries import load_library, tell_jax
from ..sampling.tensors import DTYPES, mapped

_NARROWER = {"int64": "int32", "uint64": "uint32", "float64": "float32", "complex128": "complex64"}


def to_jax(data: object, *, device: Any = None, round_floats: bool = False) -> Any:
    """Convert a batch, minibatch or rollout to JAX arrays: the same type, nested in the same way.

    Every array is copied, so a later draw with ``out=`` cannot change it; large ones cost as little
    as a numpy copy. ``ids`` stay numpy int64, as the replay expects them.

    Unless ``jax_enable_x64`` is set, JAX silently converts 64-bit numbers to 32 bits. Here int64
    becomes int32 and float64 becomes float32 only where every number is represented exactly.

    Args:
        data: A `Batch`, `TransitionBatch`, `Minibatch` or `Rollout`; or arrays nested in mappings
            and tuples.
        device: A JAX device or sharding; JAX's default one when None.
        round_floats: Round float64 to float32, where JAX has no float64.

    Returns:
        The same type with JAX arrays in its fields; Any to type checkers, as its annotations are
        of numpy arrays.

    Raises:
        ImportError: JAX is not installed.
        ValueError: A number cannot be represented exactly.
        TypeError: JAX does not support a dtype.

    Example:
        >>> import stepwell as sw
        >>> replay = sw.SequenceReplayBuffer(seed=0)
        >>> envs = sw.make_vec("CartPole-v1", num_envs=2, num_workers=0)
        >>> with sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector:
        ...     report = collector.collect(steps=100)
        >>> batch = to_jax(replay.sample_transitions(4))  # doctest: +SKIP
        >>> batch.observation.shape, str(batch.action.dtype)  # doctest: +SKIP
        ((4, 4), 'int32')
    """
    jax = load_library("jax", "to_jax", install="'stepwell[jax]'")
    tell_jax()
    has_64_bits = bool(jax.config.jax_enable_x64)

    def convert(array: np.ndarray, path: str) -> Any:
        path = path.removeprefix("/")
        if array.dtype.newbyteorder("=").name not in DTYPES:
            raise TypeError(
                f"{path}: expected numbers that JAX has arrays of, got {array.dtype}; leave the "
                f"field out with fields="
            )
        # Copied here: JAX may share numpy's memory indefinitely, or read it later,
        # even when a copy is requested. This memory has no other owner.
        own = np.array(array, array.dtype.newbyteorder("="), order="C")
        if not has_64_bits:
            own = _narrowed(own, path, round_floats)
        return jax.device_put(own, device)

    return mapped(data, "", convert, left=("ids",))  # as the replay takes them


def _narrowed(array: np.ndarray, path: str, round_floats: bool) -> np.ndarray:
    """The same numbers in 32 bits."""
    narrower = _NARROWER.get(array.dtype.name)
    if narrower is None:
        return array
    with np.errstate(over="ignore", invalid="ignore"):
        found = array.astype(narrower)
    is_float = array.dtype.kind in "fc"
    if not (is_float and round_floats):
        changed = found != array
        if is_float:  # NaN is kept, though it is not equal to itself
            changed &= array == array
        if changed.any():
            advice = "set jax_enable_x64" + (", or pass round_floats=True" if is_float else "")
            raise ValueError(
                f"{path}: expected {array.dtype} numbers that {narrower} holds exactly, as JAX has "
                f"no {array.dtype} now, got {array[changed][0]}; {advice}"
            )
    return found


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

    def state_dict(self) -> dict[str, Any]:
        """The key and the number of the next step; the parameters are the learner's to keep."""
        return {"key": np.asarray(self._jax.random.key_data(self.key)), "steps": self.steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of `state_dict`."""
        try:
            key = self._jax.random.wrap_key_data(np.asarray(state["key"], np.uint32))
            self.key, self.steps = key, int(state["steps"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"key: expected the state of a JaxPolicy, got {error}") from None

    def __call__(self, observation: Any, is_first: np.ndarray, /) -> Any:
        """Actions ``[N, ...]``, or a pair of them and extras, as numpy arrays."""
        number = np.uint32(self.steps)
        chosen = self._once(self.params, self.key, number, observation, is_first, np.int32(1))
        self.steps += 1
        found = self._jax.device_get(chosen)
        if isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], Mapping):
            return found[0], dict(found[1])
        return found
