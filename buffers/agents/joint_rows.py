"""The parts of joint rows that belong to one agent, and rollouts of them, a column for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from ..replay.rollout import Bootstrap, Rollout
from ..sampling.batch import map_tree, named_leaves

REWARD, TERMINATED, TRUNCATED = "agent_reward", "agent_terminated", "agent_truncated"
ENDS = (REWARD, TERMINATED, TRUNCATED)
"""Info fields [A] of joint rows: what the step into the row gave to each agent."""


def agents_of(observation: object, info: Mapping[str, object]) -> list[str]:
    """Names of all agents in the order of the axis A, which is that of the sorted names."""
    keys = sorted(cast("Mapping[str, object]", observation)) if _is_dict(observation) else None
    agents = cast("Mapping[str, object]", observation)["agents"] if keys == _KEYS else None
    if not _is_dict(agents):
        raise ValueError(
            f"observation: expected a dict of {_KEYS}, got "
            f"{type(observation).__name__ if keys is None else keys}; collect from envs of "
            f"from_pettingzoo"
        )
    missing = [name for name in ENDS if name not in info]
    if missing:
        raise ValueError(
            f"info: expected the fields {', '.join(ENDS)}, got {', '.join(info) or 'none'}; "
            f"collect from envs of from_pettingzoo, and keep {missing[0]!r}"
        )
    return sorted(cast("Mapping[str, object]", agents))


_KEYS = ["agents", "present"]


def _is_dict(value: object) -> bool:
    return isinstance(value, Mapping)


def chosen_agents(agents: Sequence[str] | None, known: Sequence[str]) -> list[str]:
    """The chosen agents, all of them when None is given."""
    if agents is None:
        return list(known)
    if isinstance(agents, str):
        raise ValueError(f"agents: expected a list of names, got {agents!r}; put it in a list")
    unknown = [name for name in agents if name not in known]
    if unknown or not agents or len(set(agents)) < len(agents):
        raise ValueError(
            f"agents: expected different ones of {', '.join(known)}, got {list(agents)}; correct it"
        )
    return list(agents)


def same_form(agents: Sequence[str], forms: Sequence[object], what: str) -> None:
    """Refuse agents whose fields differ, as they cannot be in one array."""
    for name, form in zip(agents, forms, strict=True):
        if form != forms[0]:
            raise ValueError(
                f"agents: expected agents with equal {what}s, got {forms[0]} of {agents[0]!r} and "
                f"{form} of {name!r}; choose agents=[...] with equal ones"
            )


def of_agent(
    array: np.ndarray,  # ``[..., A, ...]`` or any other
    place: Any,  # on the axis A
    axis: int,  # number of axes before A
    count: int,  # number of agents A
) -> np.ndarray:
    """An agent's part of an extra or info field: its own of A, or what is the same for all."""
    if array.ndim > axis and array.shape[axis] == count:
        found: np.ndarray = array[(slice(None),) * axis + (place,)]
        return found
    return array


def stacked(trees: Sequence[Any], axis: int) -> Any:
    """Values of agents with equal fields as one, with a new axis for the agents."""
    leaves = [[leaf for _, leaf in named_leaves("", tree)] for tree in trees]
    columns = iter([np.stack(column, axis) for column in zip(*leaves, strict=True)])
    return map_tree(lambda leaf: next(columns), trees[0])


class AgentEnds(NamedTuple):
    """The ends of agents: their own, or that of the episode if they are present in its last row."""

    terminated: np.ndarray  # bool: no value follows
    truncated: np.ndarray  # bool: a time limit ended the agent, or the episode

    @classmethod
    def of(
        cls,
        own: tuple[np.ndarray, np.ndarray],  # `agent_terminated` and `agent_truncated`
        present: np.ndarray,
        joint: tuple[np.ndarray, np.ndarray],  # `terminated` and `truncated` of the rows
    ) -> AgentEnds:
        """Ends in given rows, arrays of bool of any equal shape."""
        goes_on = present & ~(own[0] | own[1])
        return cls(own[0] | (goes_on & joint[0]), own[1] | (goes_on & joint[1]))

    @property
    def any(self) -> np.ndarray:
        """bool: the agent ended."""
        found: np.ndarray = self.terminated | self.truncated
        return found


def agent_rollout(rollout: Rollout, agents: Sequence[str] | None) -> Rollout:
    """A rollout with a column for each env and agent; see `per_agent`."""
    seen = cast("Mapping[str, Any]", rollout.observation)
    known = agents_of(seen, rollout.info)
    chosen = chosen_agents(agents, known)
    acted = cast("Mapping[str, Any]", rollout.action)
    for what, parts in (("observation", seen["agents"]), ("action", acted)):
        same_form(chosen, [_form(parts[name]) for name in chosen], what)
    places = np.array([known.index(name) for name in chosen])
    columns = _Columns(places, len(known))
    present = seen["present"][..., places].astype(np.bool_)
    mask = rollout.mask[..., None] & present
    own = [rollout.info[name][..., places].astype(np.bool_) for name in (TERMINATED, TRUNCATED)]
    # Those that have not ended are present in the row after: they end as the episode does.
    goes_on = mask & ~(own[0] | own[1])
    terminated = mask & (own[0] | (goes_on & rollout.terminated[..., None]))
    truncated = mask & (own[1] | (goes_on & rollout.truncated[..., None]))
    cut = mask & rollout.cut[..., None] & ~(terminated | truncated)
    is_first = np.repeat(rollout.is_first[..., None], len(chosen), axis=2)
    is_first[1:] |= mask[1:] & ~(mask[:-1] & ~(terminated | truncated | cut)[:-1])
    agent = np.broadcast_to(places, mask.shape)
    return Rollout(
        observation=columns.trees(seen["agents"], chosen),
        action=columns.trees(acted, chosen),
        reward=columns.fold(rollout.info[REWARD][..., places].astype(np.float32)),
        is_first=columns.fold(is_first),
        terminated=columns.fold(terminated),
        truncated=columns.fold(truncated),
        cut=columns.fold(cut),
        mask=columns.fold(mask),
        info={
            **{
                name: columns.of(array)
                for name, array in rollout.info.items()
                if name not in (REWARD, TERMINATED, TRUNCATED)
            },
            "agent": columns.fold(agent),
        },
        extras={name: columns.of(array) for name, array in rollout.extras.items()},
        bootstrap=_bootstrap(rollout, columns, chosen, mask, terminated, truncated | cut),
        state=map_tree(columns.of, rollout.state),
        initial_state=map_tree(columns.of_envs, rollout.initial_state),
        episode_returns=rollout.episode_returns,
        episode_lengths=rollout.episode_lengths,
        rng=rollout.rng,
    )


class _Columns:
    """Arrays ``[T, N, ...]`` as ``[T, N * C, ...]`` of C chosen agents."""

    def __init__(
        self,
        places: np.ndarray,  # [C] on the axis A
        count: int,  # of all agents, A
    ) -> None:
        self.places, self.count = places, count

    def fold(self, array: np.ndarray) -> np.ndarray:
        """``[T, N, C, ...]`` as ``[T, N * C, ...]``, in new memory."""
        shape = (array.shape[0], array.shape[1] * array.shape[2], *array.shape[3:])
        return np.ascontiguousarray(array).reshape(shape).copy()

    def trees(self, parts: Mapping[str, Any], chosen: Sequence[str]) -> Any:
        """Nested values of agents by name, ``[T, N, ...]``."""
        return map_tree(self.fold, stacked([parts[name] for name in chosen], 2))

    def of(self, array: np.ndarray) -> np.ndarray:
        """``[T, N, A, ...]``, or an array that is the same for all agents."""
        part = of_agent(array, self.places, 2, self.count)
        if part is array:
            part = np.repeat(array[:, :, None], len(self.places), axis=2)
        return self.fold(part)

    def of_envs(self, array: np.ndarray) -> np.ndarray:
        """The same of an array without the axis T."""
        found: np.ndarray = self.of(array[None])[0]
        return found


def _bootstrap(
    rollout: Rollout,
    columns: _Columns,
    chosen: Sequence[str],
    mask: np.ndarray,  # [T, N, C] bool: a step was taken
    terminated: np.ndarray,  # [T, N, C] bool: no value follows
    stops: np.ndarray,  # [T, N, C] bool: truncated or cut
) -> Bootstrap:
    """The open ends of all agents."""
    is_last = np.zeros(mask.shape, np.bool_)
    is_last[-1] = True
    step, env, agent = np.nonzero(mask & ~terminated & (stops | is_last))
    joint = rollout.bootstrap
    entry = np.full(rollout.mask.shape, -1)
    entry[joint.step, joint.env] = np.arange(len(joint.step))
    found = entry[step, env]
    ended = rollout.terminated | rollout.truncated | rollout.cut
    lost = np.flatnonzero((found < 0) & (ended[step, env] | (step == len(mask) - 1)))
    if len(lost):
        row, column, name = step[lost[0]], env[lost[0]], chosen[int(agent[lost[0]])]
        raise ValueError(
            f"row {row} of env {column}: expected the observation after it, as agent {name!r} was "
            f"truncated there, got an episode that terminated; let the episode be truncated, too"
        )
    after = np.minimum(step + 1, len(mask) - 1)

    def following(rows: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Values after the open ends: of an entry of the joint ones, or of the next row."""
        if not len(ends):
            picked: np.ndarray = rows[after, env, agent]
            return picked
        is_open = (found >= 0).reshape(-1, *(1,) * (rows.ndim - 3))
        return np.where(is_open, ends[np.maximum(found, 0), agent], rows[after, env, agent])

    seen = cast("Mapping[str, Any]", rollout.observation)["agents"]
    open_ends = cast("Mapping[str, Any]", joint.observation)["agents"]
    rows = stacked([seen[name] for name in chosen], 2)
    ends = iter(
        leaf for _, leaf in named_leaves("", stacked([open_ends[name] for name in chosen], 1))
    )
    state = joint.state
    if state is not None:
        raise ValueError(
            "state: expected a policy without a recurrent state, got one with; compute the "
            "advantages of each agent from its rows, or keep the state in the extras"
        )
    return Bootstrap(
        step=step,
        env=env * len(chosen) + agent,
        observation=map_tree(lambda leaf: following(leaf, next(ends)), rows),
        state=None,
        value=None,
    )


def _form(tree: Any) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(name, leaf.dtype.name, leaf.shape[2:]) for name, leaf in named_leaves("", tree)]
