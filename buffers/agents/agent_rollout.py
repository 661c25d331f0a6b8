"""Rollouts of joint rows as rollouts of single agents, each in a column of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from ..replay.rollout import Bootstrap, Rollout
from ..sampling.batch import map_tree, named_leaves
from .joint_rows import (
    REWARD,
    TERMINATED,
    TRUNCATED,
    agents_of,
    chosen_agents,
    of_agent,
    same_form,
    stacked,
)

__all__ = ["agent_rollout"]


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
