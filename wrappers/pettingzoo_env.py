"""Adapt envs of PettingZoo, which have many agents, to Gymnasium: one row for all agents."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers.utils import create_zero_array

from ..buffers.spec.exact_values import one_number
from .env_results import AdaptedEnv, layers_of, owned_array, owned_info, owned_observation
from .versions import versions_of

AnyInfo = dict[str, Any]
_NEEDED = ("reset", "step", "observation_space", "action_space")


def from_pettingzoo(env: object) -> gymnasium.Env[Any, Any]:
    """Adapt an env of PettingZoo to Gymnasium's API: one step of all agents is one step.

    With A possible agents, in the order of their sorted names, as in Gymnasium's Dict spaces:

    | value | adapted |
    |---|---|
    | observation | Dict: ``"agents"``, a Dict by name, and ``"present"``, MultiBinary(A) |
    | action | Dict by name; the actions of agents that are not present are ignored |
    | reward | float: the sum over all agents |
    | ``info["agent_reward"]`` | [A] float64 |
    | ``info["agent_terminated"]``, ``info["agent_truncated"]`` | [A] bool |
    | ``info["<agent>/<key>"]`` | what the env said about one agent |

    An agent is present in a row if it acts there. In the row in which it ended it is not present,
    and has its true last observation, reward and flags; after that its observation is zeros. Agents
    may come later, and come back. A reward for an agent that did not act is kept and counted.

    The episode ends when no agent is left. It is truncated if one of those that ended in the last
    step was truncated and not terminated; else it is terminated. A `Collector` and `record` store
    the three info fields without being asked, as ``metadata["stepwell"]["info"]`` declares them.

    Args:
        env: A ``ParallelEnv`` with ``possible_agents``. Or an ``AECEnv``, which is converted by
            PettingZoo's ``aec_to_parallel`` if its metadata says ``is_parallelizable``, else by
            ``turn_based_aec_to_parallel``: then one agent acts at a step, and the actions of the
            others have no effect. `pettingzoo` is imported for these alone.

    Returns:
        An env whose ``parallel_env`` is the parallel env.

    Raises:
        TypeError: `env` is another object, or a class.
        ValueError: The agents are not known beforehand, or have names that fields cannot have.
            `step` and `reset` raise it where the env breaks the rules of PettingZoo's
            ``parallel_api_test``.

    Example:
        >>> class Race:
        ...     possible_agents = ["red", "blue"]
        ...     def observation_space(self, agent):
        ...         return gymnasium.spaces.Box(0, 9, (), np.float32)
        ...     def action_space(self, agent):
        ...         return gymnasium.spaces.Discrete(2)
        ...     def reset(self, seed=None, options=None):
        ...         self.agents, self.at = ["red", "blue"], {"red": 0, "blue": 0}
        ...         return {a: np.float32(0) for a in self.agents}, {}
        ...     def step(self, actions):
        ...         for agent, action in actions.items():
        ...             self.at[agent] += action
        ...         ended = {a: self.at[a] == 2 for a in self.agents}
        ...         seen = {a: np.float32(self.at[a]) for a in self.agents}
        ...         rewards = {a: float(ended[a]) for a in self.agents}
        ...         going = {a: False for a in self.agents}
        ...         self.agents = [a for a in self.agents if not ended[a]]
        ...         return seen, rewards, ended, going, {}
        >>> env = from_pettingzoo(Race())
        >>> observation, info = env.reset(seed=0)
        >>> env.step({"red": 1, "blue": 1})[1:4]
        (0.0, False, False)
        >>> observation, reward, terminated, truncated, info = env.step({"red": 1, "blue": 0})
        >>> observation["present"], reward, terminated, info["agent_terminated"]  # blue goes on
        (array([1, 0], dtype=int8), 1.0, False, array([False,  True]))
    """
    return PettingZooEnv(env)


class PettingZooEnv(AdaptedEnv):
    """The env that `from_pettingzoo` returns."""

    def __init__(self, env: object) -> None:
        super().__init__(_as_parallel(env))
        parallel = self.parallel_env = self._inner
        self._agents = _agents_of(parallel)  # by name, in the order of the axis A
        seen = {name: parallel.observation_space(agent) for name, agent in self._agents.items()}
        chosen = {name: parallel.action_space(agent) for name, agent in self._agents.items()}
        count = len(self._agents)
        self.observation_space = spaces.Dict(
            {"agents": spaces.Dict(seen), "present": spaces.MultiBinary(count)}
        )
        self.action_space = spaces.Dict(chosen)
        self.render_mode = getattr(parallel, "render_mode", None)
        self.metadata = self._metadata(env)
        self._seen = seen
        self._nothing = {name: create_zero_array(space) for name, space in seen.items()}
        self._present = np.zeros(count, np.bool_)

    def reset(
        self, *, seed: int | None = None, options: AnyInfo | None = None
    ) -> tuple[Any, AnyInfo]:
        """Reset all agents."""
        self._check_open()
        super().reset(seed=seed)
        self._is_over = None
        observations, infos = _several(self.parallel_env.reset(seed=seed, options=options), 2)
        present = self._present_now()
        if not present.any():
            raise ValueError(
                "reset left no agent: expected some in env.agents, got none; correct the env"
            )
        observation = self._joint(observations, present, present)
        self._present, self._is_over = present, False
        nothing = np.zeros(len(present), np.bool_)
        return observation, self._info(np.zeros(len(present)), nothing, nothing, infos)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, AnyInfo]:
        """Step the agents that are present."""
        self._check_begun()
        actions = self._actions(action)
        self._is_over = None  # a step that fails leaves the env in an unknown state
        result = _several(self.parallel_env.step(actions), 5)
        observations, rewards, terminations, truncations, infos = result
        acted, present = self._present, self._present_now()
        self._check_keys("rewards", rewards, acted)
        agents = self._agents.items()
        reward = np.array([one_number(rewards.get(a, 0), f"reward of {k!r}") for k, a in agents])
        terminated = self._flags("terminations", terminations, acted)
        truncated = self._flags("truncations", truncations, acted)
        ended = terminated | truncated
        self._check_agents(acted, present, ended)
        observation = self._joint(observations, present | ended, present)
        info = self._info(reward, terminated, truncated, infos)
        self._present = present
        is_over = self._is_over = not present.any()
        is_cut = bool((truncated & ~terminated).any())
        return observation, float(reward.sum()), is_over and not is_cut, is_over and is_cut, info

    def render(self) -> Any:
        """Render the env in its `render_mode`; returns a copy of an array."""
        self._check_open()
        picture = self.parallel_env.render()
        return owned_array(picture) if isinstance(picture, np.ndarray) else picture

    def __str__(self) -> str:
        return f"<from_pettingzoo({self.parallel_env!s})>"

    def _names(self, marks: np.ndarray) -> list[str]:
        return [name for name, mark in zip(self._agents, marks, strict=True) if mark]

    def _present_now(self) -> np.ndarray:
        """[A] bool: the agents in env.agents."""
        now = list(self.parallel_env.agents)
        unknown = [agent for agent in now if agent not in self._agents.values()]
        if unknown:
            raise ValueError(
                f"agent {unknown[0]!r} came: expected one of possible_agents "
                f"{list(self._agents.values())}, got another; add it to them"
            )
        return np.array([agent in now for agent in self._agents.values()], np.bool_)

    def _actions(self, action: Any) -> dict[Any, Any]:
        """The actions of the agents that are present, by agent."""
        given = cast("Mapping[str, Any]", action if isinstance(action, Mapping) else {})
        missing = [name for name in self._names(self._present) if name not in given]
        if missing:
            raise ValueError(
                f"action: expected a dict with an action of each agent that is present, got none "
                f"of {missing[0]!r}; give one"
            )
        return {
            self._agents[name]: int(given[name])
            if isinstance(cast("spaces.Dict", self.action_space)[name], spaces.Discrete)
            else given[name]
            for name in self._names(self._present)
        }

    def _joint(
        self, observations: Mapping[Any, Any], seen: np.ndarray, present: np.ndarray
    ) -> AnyInfo:
        """The observation of all agents: zeros of those that are not seen."""
        self._check_keys("observations", observations, seen)
        parts = {
            name: owned_observation(
                self._seen[name],
                observations[agent] if is_seen else self._nothing[name],
                f"{name}'s observation",
            )
            for (name, agent), is_seen in zip(self._agents.items(), seen, strict=True)
        }
        return {"agents": parts, "present": present.astype(np.int8)}

    def _flags(self, what: str, flags: Mapping[Any, Any], acted: np.ndarray) -> np.ndarray:
        """[A] bool: the flags of agents that acted."""
        self._check_keys(what, flags, acted)
        found = [bool(flags.get(agent, False)) for agent in self._agents.values()]
        marks: np.ndarray = np.array(found, np.bool_) & acted
        return marks

    def _check_keys(self, what: str, given: Mapping[Any, Any], needed: np.ndarray) -> None:
        missing = [
            name
            for (name, agent), is_needed in zip(self._agents.items(), needed, strict=True)
            if is_needed and given.get(agent) is None
        ]
        if missing:
            raise ValueError(
                f"{what} lack agent {missing[0]!r}: expected those of {self._names(needed)}, got "
                f"{list(given)}; let the env return one for each agent that acted or came"
            )

    def _check_agents(self, acted: np.ndarray, present: np.ndarray, ended: np.ndarray) -> None:
        """Refuse agents that go without an end, or stay after it."""
        for marks, got, cure in (
            (acted & ~present & ~ended, "left without an end", "set terminated or truncated"),
            (present & ended, "is in env.agents after its end", "remove it from env.agents"),
        ):
            names = self._names(marks)
            if names:
                raise ValueError(
                    f"agent {names[0]!r} {got}: expected an agent to leave env.agents in the step "
                    f"in which it is terminated or truncated, got agents "
                    f"{self._names(present)} and ends of {self._names(ended)}; {cure}, as "
                    f"pettingzoo.test.parallel_api_test demands"
                )

    def _info(
        self,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        infos: Mapping[Any, Any],
    ) -> AnyInfo:
        found: AnyInfo = {
            f"{name}/{key}": value
            for name, agent in self._agents.items()
            for key, value in owned_info(infos.get(agent)).items()
        }
        found["agent_reward"] = reward
        found["agent_terminated"], found["agent_truncated"] = terminated, truncated
        return found

    def _metadata(self, env: object) -> AnyInfo:
        count = len(self._agents)
        layers = list(layers_of(env, "env", "aec_env"))
        names = [f"{type(layer).__module__}:{type(layer).__qualname__}" for layer in layers]
        known: Mapping[str, Any] = getattr(self.parallel_env, "metadata", None) or {}
        return {
            **known,
            "render_modes": [str(mode) for mode in known.get("render_modes") or []],
            "stepwell": {
                "maker": "from_pettingzoo",
                "id": names[-1],
                "wrappers": names[-2::-1],
                "converter": None if self.parallel_env is env else type(self.parallel_env).__name__,
                "agents": list(self._agents),
                "info": {
                    "agent_reward": [0.0] * count,
                    "agent_terminated": [False] * count,
                    "agent_truncated": [False] * count,
                },
                "versions": versions_of([self.parallel_env, *layers]),
            },
        }


def _as_parallel(env: object) -> Any:
    """The parallel env itself, or that of an AEC env."""
    if isinstance(env, gymnasium.Env):
        raise TypeError(
            f"{type(env).__qualname__} needs no adapter: expected an env of PettingZoo, got a "
            f"gymnasium env; use it directly"
        )
    missing = [name for name in _NEEDED if not callable(getattr(env, name, None))]
    if isinstance(env, type) or missing:
        got = f"the class {env.__qualname__}" if isinstance(env, type) else type(env).__qualname__
        lacks = f" without the methods {', '.join(missing)}" if missing else ""
        raise TypeError(
            f"from_pettingzoo adapts an env object: expected a ParallelEnv or an AECEnv, got {got}"
            f"{lacks}; build the env first, and adapt it before other libraries wrap it"
        )
    if not hasattr(env, "agent_iter"):  # AEC envs have it, parallel ones do not
        return env
    conversions: Any = importlib.import_module("pettingzoo.utils.conversions")
    metadata: Mapping[str, Any] = getattr(env, "metadata", None) or {}
    if metadata.get("is_parallelizable", False):
        return conversions.aec_to_parallel(env)
    return conversions.turn_based_aec_to_parallel(env)


def _agents_of(env: Any) -> dict[str, Any]:
    """Names of the possible agents, sorted, with the agents."""
    possible = getattr(env, "possible_agents", None)
    if not possible:
        raise ValueError(
            f"possible_agents of {env!s}: expected a list of all agents that may come, got "
            f"{possible!r}; set it before the env is adapted, as rows have a place for each"
        )
    agents = {str(agent): agent for agent in possible}
    if len(agents) < len(possible):
        raise ValueError(
            f"possible_agents: expected different names, got {list(possible)}; rename some"
        )
    bad = [name for name in agents if not name or "/" in name]
    if bad:
        raise ValueError(
            f"possible_agents: expected names without a slash, which divides the names of fields, "
            f"got {bad[0]!r}; rename the agent"
        )
    return dict(sorted(agents.items()))


def _several(result: Any, count: int) -> tuple[Mapping[Any, Any], ...]:
    """The dicts by agent that reset or step returned."""
    parts: tuple[Any, ...] = result if isinstance(result, tuple) else ()
    if len(parts) != count or not all(isinstance(part, Mapping) for part in parts):
        got = ", ".join(type(part).__name__ for part in parts) or type(result).__name__
        raise ValueError(
            f"{'reset' if count == 2 else 'step'} returned an invalid result: expected {count} "
            f"dicts by agent, got {got}; correct the env"
        )
    return parts
