"""Models of Stable-Baselines3 as policies of a Collector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from ...base.forks import load_generator
from ...sampling.batch import map_tree
from .models import (
    ActionForm,
    DeviceTensors,
    ObservationForm,
    check_not_normalised,
    is_on_policy,
    load_sb3,
)

_NAME = "sb3_policy"


def sb3_policy(model: Any, *, deterministic: bool = False) -> SB3Actor | SB3Explorer:
    """Make a policy that acts as a model does while it learns, or in evaluation.

    It refers to the model, so it follows the model's training.

    Args:
        model: A model of Stable-Baselines3: PPO and A2C return the extras ``"value"`` and
            ``"log_prob"`` that `to_sb3_rollout` needs, and for Box actions ``"raw_action"``, the
            action before clipping, which the log-probability belongs to. DQN, SAC, TD3 and DDPG
            explore as in ``learn``, and return no extras.
        deterministic: Choose the best action, without exploring.

    Raises:
        ImportError: Stable-Baselines3 is not installed, or too old.
        TypeError: It is not such a model, or has a recurrent state, or takes masks of actions.
        ValueError: Its action space is not supported, or an on-policy model has an env in
            VecNormalize.

    Example:
        >>> import stepwell as sw
        >>> from stable_baselines3 import PPO
        >>> model = PPO("MlpPolicy", "CartPole-v1", seed=0)
        >>> envs = sw.make_vec("CartPole-v1", num_envs=4, num_workers=0)
        >>> with sw.Collector(envs, sb3_policy(model), seed=0) as collector:
        ...     rollout = collector.rollout(16)
        >>> rollout.extras["log_prob"].shape, sorted(rollout.extras)
        ((16, 4), ['log_prob', 'value'])
        >>> greedy = sb3_policy(model, deterministic=True)
        >>> len(sw.evaluate("CartPole-v1", greedy, episodes=2).episodes)
        2
    """
    if not is_on_policy(model, _NAME):
        return SB3Explorer(model, deterministic)
    check_not_normalised(model, _NAME)
    return SB3Actor(model, deterministic)


class SB3Actor:
    """An on-policy model (PPO, A2C) as a policy; made by `sb3_policy`.

    Actions are drawn with torch's generator, as in SB3: the model's ``seed`` determines them.
    """

    def __init__(self, model: Any, deterministic: bool) -> None:
        self._model = model
        self._is_deterministic = deterministic
        self._torch = load_sb3("common.buffers", _NAME).th
        self._observations = ObservationForm(model.observation_space)
        self._actions = ActionForm(model.action_space)
        self._to_tensors = DeviceTensors(model.device)
        self._noise = _Noise(model, model.n_steps)

    def begin(self, action_space: spaces.Space[Any], rng: np.random.Generator) -> None:
        """Check that the envs take the model's actions; the generator is not needed."""
        _check_action_space(self._model, action_space)

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the model's weights and torch's generator are the learner's to keep.

        Raises:
            TypeError: The model explores by noise that depends on its state.
        """
        _refuse_memory(self._model)
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing is to be loaded."""

    def __call__(
        self, observation: Any, is_first: np.ndarray, /
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Actions ``[N, ...]`` for the envs, and the extras that SB3 keeps with them."""
        model = self._model
        seen = self._seen(observation)
        self._noise.renew(model.policy, len(is_first))
        with self._torch.no_grad():
            chosen, values, log_probs = model.policy(seen, self._is_deterministic)
        raw = chosen.cpu().numpy()
        extras = {
            "value": values.cpu().numpy().reshape(-1),
            "log_prob": log_probs.cpu().numpy().reshape(-1),
        }
        if not self._actions.is_box:
            return self._actions.for_envs(raw), extras
        if model.policy.squash_output:
            bounded = model.policy.unscale_action(raw)
        else:
            bounded = np.clip(raw, model.action_space.low, model.action_space.high)
        return self._actions.for_envs(bounded), {**extras, "raw_action": raw}

    def value(self, observation: Any, /) -> np.ndarray:
        """Values [K] float32 of K observations ``[K, ...]``."""
        seen = self._seen(observation)
        with self._torch.no_grad():
            values = self._model.policy.predict_values(seen)
        found: np.ndarray = values.cpu().numpy().reshape(-1)
        return found

    def _seen(self, observation: Any) -> Any:
        """The observations as tensors, for a model that is not in training mode."""
        seen = self._to_tensors(self._observations.fit(observation, 1))
        if self._model.policy.training:  # only then, as it is slow
            self._model.policy.set_training_mode(False)
        return seen


class SB3Explorer:
    """An off-policy model (DQN, SAC, TD3, DDPG) as a policy; made by `sb3_policy`.

    Until ``learning_starts`` steps were counted (`count_sb3_steps`) actions are drawn uniformly.
    Then DQN draws one with the probability ``exploration_rate``, for each env separately, where SB3
    draws for all envs or none; others add their ``action_noise``. Uniform draws and DQN's come from
    the Collector's seed, SAC's own from torch's generator, action noise from numpy's global one, as
    SB3's classes of noise take it from there.
    """

    def __init__(self, model: Any, deterministic: bool) -> None:
        self._model = model
        self._is_deterministic = deterministic
        self._rng = np.random.default_rng()
        self._observations = ObservationForm(model.observation_space)
        self._actions = ActionForm(model.action_space)
        frequency = getattr(model.train_freq, "frequency", 1)
        self._noise = _Noise(model, frequency)
        self._action_noise: Any = None  # one for each env, made when their number is known

    def begin(self, action_space: spaces.Space[Any], rng: np.random.Generator) -> None:
        """Check that the envs take the model's actions, and draw from the generator."""
        _check_action_space(self._model, action_space)
        self._rng = rng

    def state_dict(self) -> dict[str, Any]:
        """The state of its own generator; the model and other generators are the learner's.

        Raises:
            TypeError: The model explores by noise that has a memory, or depends on its state.
        """
        _refuse_memory(self._model)
        return {"generator": self._rng.bit_generator.state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of `state_dict`, after `begin`."""
        load_generator(self._rng, state.get("generator"))

    def __call__(self, observation: Any, is_first: np.ndarray, /) -> np.ndarray:
        """Actions ``[N, ...]`` for the envs; noise with a memory is reset where ``is_first``."""
        n, model = len(is_first), self._model
        seen = self._observations.fit(observation, 1)
        if self._is_deterministic:
            return self._chosen(seen, deterministic=True)
        is_warm = model.use_sde and model.use_sde_at_warmup  # noise of states from the beginning
        if model.num_timesteps < model.learning_starts and not is_warm:
            return self._bounded(self._uniform(n), is_first)
        if not hasattr(model, "exploration_rate"):
            if model.use_sde:
                self._noise.renew(model.actor, n)
            return self._bounded(self._chosen(seen, deterministic=False), is_first)
        is_random = self._rng.random(n) < model.exploration_rate
        random = self._uniform(n)
        if is_random.all():
            return random
        return np.where(is_random, random, self._chosen(seen, deterministic=True))

    def _chosen(self, seen: Any, *, deterministic: bool) -> np.ndarray:
        """The network's action, within the bounds of the action space."""
        normalise = self._model.get_vec_normalize_env()
        if normalise is not None:
            seen = normalise.normalize_obs(seen)
        seen = map_tree(_writable, seen)
        action, _ = self._model.policy.predict(seen, deterministic=deterministic)
        return self._actions.for_envs(np.asarray(action))

    def _uniform(self, n: int) -> np.ndarray:
        space = self._model.action_space
        if isinstance(space, spaces.Discrete):
            return self._rng.integers(0, space.n, size=n, dtype=self._actions.dtype)
        drawn: np.ndarray = self._rng.uniform(space.low, space.high, size=(n, *space.shape))
        # Rounded to the space's dtype a number may lie beyond the bounds.
        found: np.ndarray = np.clip(drawn.astype(self._actions.dtype), space.low, space.high)
        return found

    def _bounded(self, action: np.ndarray, is_first: np.ndarray) -> np.ndarray:
        """The actions with the model's noise, if it has any."""
        if self._model.action_noise is None:
            return action
        noise, n = self._action_noise, len(is_first)
        if noise is None or noise.n_envs != n:
            module = load_sb3("common.noise", _NAME)
            given = self._model.action_noise
            base = given.base_noise if isinstance(given, module.VectorizedActionNoise) else given
            noise = self._action_noise = module.VectorizedActionNoise(base, n)
        if is_first.any():
            noise.reset(np.flatnonzero(is_first).tolist())
        scaled = self._model.policy.scale_action(action) + noise()
        unscaled = self._model.policy.unscale_action(np.clip(scaled, -1, 1))
        return self._actions.for_envs(np.asarray(unscaled))


class _Noise:
    """Draws new matrices of state-dependent exploration as often as SB3 does."""

    def __init__(self, model: Any, rows: int) -> None:
        self._is_used = bool(model.use_sde)
        self._every = int(model.sde_sample_freq)
        self._rows = rows  # calls in one of the model's rollouts
        self._calls = self._envs = 0

    def renew(self, policy: Any, num_envs: int) -> None:
        """Before each call of the policy."""
        if not self._is_used:
            return
        row = self._calls % self._rows
        # In the first row SB3 may draw twice: so the same seeds give the same actions.
        if row == 0 or num_envs != self._envs:
            policy.reset_noise(num_envs)
        if self._every > 0 and row % self._every == 0:
            policy.reset_noise(num_envs)
        self._envs = num_envs
        self._calls += 1


def _refuse_memory(model: Any) -> None:
    """Refuse a model whose exploration has a state that is kept nowhere."""
    noise = getattr(model, "action_noise", None)
    has_memory = noise is not None and type(noise).__name__ != "NormalActionNoise"
    if model.use_sde or has_memory:
        got = "use_sde=True" if model.use_sde else type(noise).__name__
        raise TypeError(
            f"policy: expected a model whose noise has no memory, to take the state of its "
            f"exploration, got one with {got}; use NormalActionNoise, or give the Collector a "
            f"policy with state_dict and load_state_dict"
        )


def _check_action_space(model: Any, space: spaces.Space[Any]) -> None:
    if space != model.action_space:
        raise ValueError(
            f"{_NAME}: expected envs that take the actions of the model, {model.action_space}, got "
            f"{space}; make the model with an env that takes the same actions"
        )


def _writable(array: np.ndarray) -> np.ndarray:
    """The array, or a copy: torch warns about arrays that are not writeable."""
    return array if array.flags.writeable else array.copy()
