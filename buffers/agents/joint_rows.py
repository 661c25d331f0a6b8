"""The parts of joint rows that belong to one agent: names, places, ends and stacked fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from ..sampling.batch import map_tree, named_leaves

__all__ = ["ENDS", "AgentEnds", "agents_of", "chosen_agents", "of_agent", "same_form", "stacked"]

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
