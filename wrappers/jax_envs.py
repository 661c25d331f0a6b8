"""Functional environments in JAX as a vector env: gymnax, Brax, MJX, Gymnasium, and your own."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from ..buffers.base.errors import not_copied
from ..buffers.base.number_checks import check_whole
from ..buffers.base.optional_libraries import load_library
from .old_gym import modern_space
from .seeded_resets import seeds_of

_LEAST_ROOM = 16  # steps: to compile a loop takes longer than to make memory for them
_Space = spaces.Space[Any]


class _Result(NamedTuple):
    """The result of a step of one env."""

    state: Any
    observation: Any  # nested like the observation space
    reward: Any  # a number
    terminated: Any  # bool: the MDP ended
    truncated: Any  # bool: the env's own time limit ended the episode
    info: Any  # numbers by name


class _Functions(NamedTuple):
    """The functions and spaces of one env, of whatever kind it is."""

    reset: Callable[[Any], tuple[Any, Any]]  # makes a state and an observation of a key
    step: Callable[[Any, Any, Any], _Result]  # takes a key, a state and an action
    observation_space: _Space
    action_space: _Space
    inner: Any  # the object that was given


class _Carry(NamedTuple):
    """All that N envs carry from one step to the next, on the device."""

    key: Any  # [N] keys of the envs
    state: Any
    observation: Any  # the newest ones [N, ...]
    is_first: Any  # [N] bool: the newest observation is that of a reset
    has_ended: Any  # [N] bool: it ended the episode, so that the next step resets the env
    elapsed: Any  # [N] int32: steps of the episode


class ScannedSteps(NamedTuple):
    """T steps of N envs, and the actions that led to them."""

    action: Any  # [T, N, ...], nested as the policy returned it
    extras: dict[str, np.ndarray]  # [T, N, ...] by name
    observation: Any  # [T, N, ...], nested like the observation space: results of the actions
    reward: np.ndarray  # [T, N] numbers
    terminated: np.ndarray  # [T, N] bool
    truncated: np.ndarray  # [T, N] bool
    info: dict[str, Any]  # [T, N, ...] by name, with masks _name [T, N] where not all envs give it


class JaxEnvs(VectorEnv[Any, Any, Any]):
    """N copies of a functional JAX environment as a vector env that runs on JAX's device.

    A `Collector` steps it many times in one compiled loop where the policy is a `jax_policy`, too:
    the rows come from the device in one transfer. With any other policy, and under a
    `gymnasium.vector.VectorWrapper`, it is stepped like each vector env; the rows are the same.

    Autoreset mode is NEXT_STEP: the step that follows the end of an episode resets the env, and
    ignores its action. So the true last observation is kept, which the automatic resets of gymnax
    and Brax replace. Env i has a key of its own, made from ``seed + i``: what it plays depends on
    no other env, nor on the number of steps of a call.

    ============================  ================================================================
    kind of env                   ends of its episodes
    ============================  ================================================================
    gymnax, 1.0 or newer          terminated as ``step_env`` says, truncated as ``is_truncated``
    Brax, MuJoCo Playground       truncated where ``info["truncation"]``, else terminated if done
    Gymnasium's ``FuncEnv``       terminated as ``terminal`` says; it has no time limit
    any other object              as its ``step`` says
    ============================  ================================================================

    Args:
        env: One of these. Any other object has ``reset(key)``, which returns a state and an
            observation; ``step(key, state, action)``, which returns a state, observation, reward,
            terminated, truncated and a dict of numbers; and ``observation_space`` and
            ``action_space``, Gymnasium's. The functions are those of a single env.
        num_envs: Number of envs N.
        params: Parameters of a gymnax env, the default ones when None, or of a ``FuncEnv``.
        max_episode_steps: Steps after which an episode is truncated, in addition to limits that the
            env itself has; None for no other limit.

    Raises:
        TypeError: The object is no such env, or resets itself.
        ValueError: Its functions return other shapes or dtypes than its spaces say.
        ImportError: JAX is not installed.

    Example:
        >>> import jax.numpy as jnp
        >>> from gymnasium.envs.phys2d.cartpole import CartPoleFunctional
        >>> import stepwell as sw
        >>> def lean(params, key, observation, is_first):
        ...     return (observation[:, 2] > 0).astype(jnp.int32)
        >>> envs = sw.JaxEnvs(CartPoleFunctional(), num_envs=64, max_episode_steps=500)
        >>> replay = sw.SequenceReplayBuffer(seed=0)
        >>> with sw.Collector(envs, sw.bridges.jax_policy(lean), replay, seed=0) as collector:
        ...     report = collector.collect(steps=10_000)
        >>> 10_000 <= report.steps < 10_064
        True
    """

    def __reduce__(self) -> NoReturn:
        not_copied("a vector env on a device", "make one in each process, from a function")

    def __init__(
        self,
        env: object,
        num_envs: int,
        *,
        params: Any = None,
        max_episode_steps: int | None = None,
    ) -> None:
        self._jax: Any = load_library("jax", "JaxEnvs", install="'stepwell[jax]'")
        check_whole("num_envs", num_envs, 1)
        if max_episode_steps is not None:
            check_whole("max_episode_steps", max_episode_steps, 1, hint="; None sets no limit")
        self._env = _functions_of(env, params)
        self._limit = max_episode_steps
        self.num_envs = int(num_envs)
        self.single_observation_space = self._env.observation_space
        self.single_action_space = self._env.action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.autoreset_mode = AutoresetMode.NEXT_STEP
        self.metadata = {"autoreset_mode": self.autoreset_mode, "jax": True}
        self._observed = _check_functions(self._jax, self._env)
        self._is_on_cpu = self._jax.default_backend() == "cpu"
        self._reset_all = self._jax.jit(self._reset_carry)
        self._step_all = self._jax.jit(self._step_alone)
        self._programs: dict[object, dict[int, Any]] = {}
        self._carry: _Carry | None = None

    def __repr__(self) -> str:
        return f"JaxEnvs({type(self._env.inner).__name__}, num_envs={self.num_envs})"

    @property
    def env(self) -> Any:
        """The functional env."""
        return self._env.inner

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all envs.

        Args:
            seed: Env i gets a key of ``seed + i``, or of the i-th seed; when None each goes on with
                the key that it has.
            options: None: there are none.

        Returns:
            Observations ``[N, ...]``, and an empty info.

        Raises:
            ValueError: Options were given, or not one seed for each env.
        """
        if options:
            raise ValueError(f"options: expected none, got {options}; JaxEnvs resets all envs")
        if seed is None and self._carry is not None:
            keys = self._carry.key
        else:
            first = np.random.SeedSequence().generate_state(1).item() >> 1 if seed is None else seed
            seeds: Any = seeds_of(first, self.num_envs)
            numbers = np.array([int(one) % (1 << 32) for one in seeds], np.uint32)
            keys = self._jax.vmap(self._jax.random.key)(numbers)
        carry = self._carry = self._reset_all(keys)
        return self._on_host(carry.observation), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all envs, and reset those whose episode ended in the step before.

        Args:
            actions: ``[N, ...]``, nested like the action space.

        Returns:
            Observations, rewards, terminated and truncated as numpy arrays, and an info of arrays,
            each with a mask ``_name`` that is False where an env was reset.
        """
        self._carry, result = self._step_all(self._started(), actions, np.int32(1))
        has_stepped, done = self._jax.device_get(result)
        info = _with_masks(done.info, has_stepped)
        flags = done.terminated, done.truncated
        return self._on_host(done.observation), done.reward, *flags, info

    def scan(
        self,
        policy: Any,
        steps: int,
        info: tuple[str, ...] = (),
    ) -> ScannedSteps:
        """Let a policy step all envs T times in one compiled loop.

        The loop has memory for a number of steps, and does T of them: it is compiled once for many
        T, not for each.

        Args:
            policy: As `jax_policy` makes it. Its ``steps`` are counted on.
            steps: Number of steps T.
            info: Names of the infos to return, as far as the env has them.

        Returns:
            The steps, as numpy arrays that are views of one transfer.
        """
        begun, key = self._started(), (policy.function, info)
        programs = self._programs.setdefault(key, {})
        room = min((one for one in programs if one >= steps), default=0)
        if not room:
            room = max(_LEAST_ROOM, 1 << (steps - 1).bit_length())
            programs[room] = self._compiled(policy.choose, room, info)
        number, count = np.uint32(policy.steps), np.int32(steps)
        carry, rows = programs[room](begun, policy.params, policy.key, number, count, np.int32(1))
        done = self._jax.tree.map(lambda leaf: leaf[:steps], self._jax.device_get(rows))
        self._carry = carry
        policy.steps += steps
        taken: ScannedSteps
        has_stepped, taken = done
        return taken._replace(
            observation=self._on_host(taken.observation),
            info=_with_masks(taken.info, has_stepped),
        )

    def _started(self) -> _Carry:
        if self._carry is None:
            raise ValueError("JaxEnvs: expected a reset before the first step, got none; reset it")
        return self._carry

    def _compiled(self, choose: Callable[..., Any], room: int, info: tuple[str, ...]) -> Any:
        """The loop of a policy, with memory for so many steps."""
        jax, jnp = self._jax, self._jax.numpy

        def once(carry: _Carry, params: Any, key: Any, number: Any, one: Any) -> tuple[_Carry, Any]:
            chosen = choose(params, key, number, carry.observation, carry.is_first, one)
            is_pair = isinstance(chosen, tuple) and len(chosen) == 2
            has_extras = is_pair and isinstance(chosen[1], Mapping)
            action, extras = chosen if has_extras else (chosen, {})
            carry, (has_stepped, result) = self._step_alone(carry, action, one)
            kept = {name: result.info[name] for name in info if name in result.info}
            result = result._replace(action=action, extras=dict(extras), info=kept)
            return carry, (has_stepped, result)

        def program(
            carry: _Carry, params: Any, key: Any, first: Any, steps: Any, one: Any
        ) -> tuple[_Carry, Any]:
            like = jax.eval_shape(once, carry, params, key, first, one)[1]
            memory = jax.tree.map(lambda leaf: jnp.zeros((room, *leaf.shape), leaf.dtype), like)

            def body(number: Any, both: Any) -> Any:
                carry, memory = both
                carry, row = once(carry, params, key, first + number.astype(jnp.uint32), one)
                write = jax.lax.dynamic_update_index_in_dim
                return carry, jax.tree.map(lambda m, r: write(m, r, number, 0), memory, row)

            done: tuple[_Carry, Any] = jax.lax.fori_loop(0, steps, body, (carry, memory))
            return done

        return jax.jit(program)

    def _reset_carry(self, keys: Any) -> _Carry:
        jax, jnp = self._jax, self._jax.numpy
        keys, now = self._next_keys(keys)
        state, observation = jax.vmap(self._env.reset)(now)
        no = jnp.zeros(self.num_envs, bool)
        yes = jnp.ones(self.num_envs, bool)
        return _Carry(keys, state, observation, yes, no, jnp.zeros(self.num_envs, jnp.int32))

    def _step_carry(self, carry: _Carry, actions: Any) -> tuple[_Carry, Any]:
        """Step all envs, or reset those whose episode has ended; says which have stepped."""
        jax, jnp = self._jax, self._jax.numpy
        keys, now = self._next_keys(carry.key)
        stepped: _Result = jax.vmap(self._env.step)(now, carry.state, actions)
        first = carry.has_ended
        after = stepped.state, stepped.observation

        def with_resets(after: Any) -> Any:
            resets = jax.vmap(self._env.reset)(now)

            def chosen(reset: Any, step: Any) -> Any:
                if jnp.issubdtype(step.dtype, jax.dtypes.prng_key):
                    words = chosen(jax.random.key_data(reset), jax.random.key_data(step))
                    return jax.random.wrap_key_data(words, impl=jax.random.key_impl(step))
                mask = first.reshape(first.shape + (1,) * (jnp.ndim(step) - 1))
                return jnp.where(mask, reset, step)

            return jax.tree.map(chosen, resets, after)

        # Most steps of few envs reset none of them.
        if self._is_on_cpu:  # elsewhere to choose would take longer than both
            after = jax.lax.cond(first.any(), with_resets, lambda same: same, after)
        else:
            after = with_resets(after)
        state, observation = after
        elapsed = jnp.where(first, 0, carry.elapsed + 1)
        terminated, truncated = stepped.terminated & ~first, stepped.truncated & ~first
        if self._limit is not None:
            truncated |= elapsed >= self._limit
        result = ScannedSteps(
            action=None,
            extras={},
            observation=observation,
            reward=jnp.where(first, 0, stepped.reward),
            terminated=terminated,
            truncated=truncated,
            info=stepped.info,
        )
        carry = _Carry(keys, state, observation, first, terminated | truncated, elapsed)
        return carry, (~first, result)

    def _step_alone(self, carry: _Carry, actions: Any, one: Any) -> tuple[_Carry, Any]:
        """Step all envs; on a CPU compiled by itself: the same bits, whatever comes before."""
        # What is compiled together may be rounded otherwise. A loop's body is not compiled together
        # with what is around it, unless the compiler knows that it runs once: so the number 1 is an
        # argument, ``one``.
        jax, jnp = self._jax, self._jax.numpy
        if not self._is_on_cpu:  # elsewhere such a loop waits for the host
            return self._step_carry(carry, actions)
        like = jax.eval_shape(self._step_carry, carry, actions)[1]
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)
        many = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], actions)

        def body(number: Any, both: tuple[_Carry, Any]) -> tuple[_Carry, Any]:
            # What does not depend on the number would be moved out of the loop.
            now = jax.tree.map(
                lambda leaf: jax.lax.dynamic_index_in_dim(leaf, number, 0, False), many
            )
            return self._step_carry(both[0], now)

        done: tuple[_Carry, Any] = jax.lax.fori_loop(0, one, body, (carry, nothing))
        return done

    def _next_keys(self, keys: Any) -> tuple[Any, Any]:
        both = self._jax.vmap(self._jax.random.split)(keys)
        return both[:, 0], both[:, 1]

    def _on_host(self, observation: Any) -> Any:
        """Observations as numpy arrays in the dtypes of the space."""

        def convert(space: _Space, value: Any) -> Any:
            if isinstance(space, spaces.Dict):
                return {name: convert(part, value[name]) for name, part in space.spaces.items()}
            if isinstance(space, spaces.Tuple):
                return tuple(convert(*pair) for pair in zip(space.spaces, value, strict=True))
            return np.asarray(value).astype(space.dtype, copy=False)

        return convert(self.single_observation_space, self._jax.device_get(observation))


def _with_masks(info: Mapping[str, Any], has_stepped: np.ndarray) -> dict[str, Any]:
    """Infos with a mask for each: an env that was reset gives none."""
    return {**info, **dict.fromkeys([f"_{name}" for name in info], has_stepped)}


def _functions_of(env: Any, params: Any) -> _Functions:
    """The functions of an env of any kind that does not reset itself."""
    if hasattr(env, "step_env") and hasattr(env, "reset_env"):
        return _of_gymnax(env, params)
    if all(hasattr(env, name) for name in ("initial", "transition", "observation", "terminal")):
        return _of_func_env(env, params)
    if params is not None:
        raise TypeError(
            f"params: expected None, as {type(env).__name__} is neither a gymnax env nor a "
            f"FuncEnv, got {type(params).__name__}; set them in the env"
        )
    if hasattr(env, "observation_size") and hasattr(env, "action_size"):
        return _of_brax(env)
    names = ("reset", "step", "observation_space", "action_space")
    missing = [name for name in names if not hasattr(env, name)]
    if missing or isinstance(env, type):
        raise TypeError(
            f"env: expected a functional env of gymnax, Brax or Gymnasium, or an object with "
            f"{', '.join(names)}, got {env!r} without {', '.join(missing) or 'an instance'}; "
            f"see stepwell.JaxEnvs"
        )
    for name in ("observation_space", "action_space"):
        if not isinstance(getattr(env, name), spaces.Space):
            raise TypeError(
                f"env.{name}: expected a gymnasium space, got {getattr(env, name)!r}; make one"
            )

    def step(key: Any, state: Any, action: Any) -> _Result:
        return _Result(*env.step(key, state, action))

    return _Functions(env.reset, step, env.observation_space, env.action_space, env)


def _of_gymnax(env: Any, params: Any) -> _Functions:
    if not hasattr(env, "is_truncated"):
        module = type(env).__module__.partition(".")[0]
        cure = (
            "pip install -U gymnax"
            if module == "gymnax"
            else f"give it that method in a subclass, or ask {module} for it"
        )
        raise TypeError(
            f"env: expected an env as of gymnax 1.0 or newer, whose is_truncated(state, params) "
            f"tells time limits from ends, got {type(env).__name__} of {module} without it; {cure}"
        )
    given = env.default_params if params is None else params

    def step(key: Any, state: Any, action: Any) -> _Result:
        observation, state, reward, terminated, info = env.step_env(key, state, action, given)
        return _Result(state, observation, reward, terminated, env.is_truncated(state, given), info)

    def reset(key: Any) -> tuple[Any, Any]:
        observation, state = env.reset_env(key, given)
        return state, observation

    seen = modern_space(env.observation_space(given), "env.observation_space")
    chosen = modern_space(env.action_space(given), "env.action_space")
    return _Functions(reset, step, seen, chosen, env)


def _of_func_env(env: Any, params: Any) -> _Functions:
    more = {} if params is None else {"params": params}

    def reset(key: Any) -> tuple[Any, Any]:
        state = env.initial(key, **more)
        return state, env.observation(state, key, **more)

    def step(key: Any, state: Any, action: Any) -> _Result:
        after = env.transition(state, action, key, **more)
        observation = env.observation(after, key, **more)
        reward = env.reward(state, action, after, key, **more)
        ended = env.terminal(after, key, **more)
        info = env.transition_info(state, action, after, **more)
        return _Result(after, observation, reward, ended, False, info)

    return _Functions(reset, step, env.observation_space, env.action_space, env)


# Wrappers of Brax and MuJoCo Playground that JaxEnvs itself stands for.
_NOT_TAKEN = ("AutoResetWrapper", "VmapWrapper")


def _of_brax(env: Any) -> _Functions:
    layer = env
    while layer is not None:
        kind = type(layer).__name__
        if kind.endswith(_NOT_TAKEN):
            raise TypeError(
                f"env: expected a single env that does not reset itself, got one with a {kind}; "
                f"give the env below it, which may have an EpisodeWrapper"
            )
        layer = vars(layer).get("env")

    def reset(key: Any) -> tuple[Any, Any]:
        state = env.reset(key)
        return state, state.obs

    def step(key: Any, state: Any, action: Any) -> _Result:
        after = env.step(state, action)
        done = after.done.astype(bool)
        truncated = done & (after.info.get("truncation", 0.0) != 0)
        return _Result(
            after, after.obs, after.reward, done & ~truncated, truncated, dict(after.metrics)
        )

    jax: Any = importlib.import_module("jax")
    seen = jax.eval_shape(reset, jax.random.key(0))[1]
    return _Functions(reset, step, _boxes(seen), _brax_actions(env), env)


def _boxes(seen: Any) -> _Space:
    """An unbounded space of observations of these shapes."""
    if isinstance(seen, Mapping):
        return spaces.Dict({name: _boxes(part) for name, part in seen.items()})
    return spaces.Box(-np.inf, np.inf, seen.shape, np.dtype(seen.dtype).type)


def _brax_actions(env: Any) -> _Space:
    """The bounds of the actuators in Brax, else those from -1 to 1."""
    size, inner = int(env.action_size), getattr(env, "unwrapped", env)
    limits = getattr(getattr(getattr(inner, "sys", None), "actuator", None), "ctrl_range", None)
    low, high = np.full(size, -1, np.float32), np.full(size, 1, np.float32)
    if limits is not None and np.shape(limits) == (size, 2):
        low, high = (np.asarray(limits, np.float32)[:, side] for side in (0, 1))
    return spaces.Box(low, high, (size,), np.float32)


def _check_functions(jax: Any, env: _Functions) -> Any:
    """Refuse functions that return something else than the spaces say, without a step."""
    key = jax.random.key(0)
    state, observation = jax.eval_shape(env.reset, key)
    action = _like(jax, env.action_space)
    stepped = jax.eval_shape(env.step, key, state, action)
    for where, found in (("reset", observation), ("step", stepped.observation)):
        _check_leaves(f"env.{where}: observation", env.observation_space, found)
    before, after = (jax.tree.flatten(one) for one in (state, stepped.state))
    if before[1] != after[1]:
        raise ValueError(
            f"env.step: expected a state of the structure that reset returns, {before[1]}, got "
            f"{after[1]}; return the same"
        )
    for one, two in zip(before[0], after[0], strict=True):
        if (one.shape, one.dtype) != (two.shape, two.dtype):
            raise ValueError(
                f"env.step: expected states of the shapes and dtypes that reset returns, such as "
                f"{one.dtype} {one.shape}, got {two.dtype} {two.shape}; convert them"
            )
    for name in ("reward", "terminated", "truncated"):
        shape = np.shape(getattr(stepped, name))
        if shape != ():
            raise ValueError(
                f"env.step: expected one number as {name} of one env, got shape {shape}; "
                f"give the functions of a single env"
            )
    return observation


def _like(jax: Any, space: _Space) -> Any:
    """The shapes and dtypes of a value of a space, as JAX has them."""
    if isinstance(space, spaces.Dict):
        return {name: _like(jax, part) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_like(jax, part) for part in space.spaces)
    dtype = jax.dtypes.canonicalize_dtype(space.dtype)
    return jax.ShapeDtypeStruct(space.shape or (), dtype)


def _check_leaves(what: str, space: _Space, found: Any) -> None:
    if isinstance(space, spaces.Dict | spaces.Tuple):
        is_dict = isinstance(space, spaces.Dict)
        parts: Any = space.spaces if is_dict else dict(enumerate(space.spaces))
        kind = Mapping if is_dict else tuple | list
        if not isinstance(found, kind) or len(found) != len(parts):
            raise ValueError(f"{what}: expected {space}, got {type(found).__name__}; see its space")
        for name, part in parts.items():
            _check_leaves(f"{what}/{name}", part, found[name])
        return
    shape = getattr(found, "shape", None)
    if shape != (space.shape or ()) or not np.can_cast(found.dtype, np.dtype(space.dtype), "safe"):
        got = type(found).__name__ if shape is None else f"{found.dtype} {shape}"
        raise ValueError(
            f"{what}: expected {space.dtype} {space.shape or ()}, as the space {space} says, got "
            f"{got}; correct one of them"
        )
