"""Transitions of episodes and rollouts with their true next observations; nested dicts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ..curation.episode_writer import TransitionColumns
from ..replay.rollout import Rollout
from ..rows.episode import Episode
from ..rows.step_columns import stacks_of
from ..sampling.batch import map_tree, named_leaves


def episode_steps(episode: Episode) -> TransitionColumns:
    """The transitions of an episode, with whole stacks of frames."""
    # Where an episode lost its first rows, steps without a whole stack are left out.
    deepest = max(field.stack for field in episode.spec.fields)
    first = deepest - 1 if episode.first_row > 0 else 0
    fields: dict[str, np.ndarray] = {}
    next_observation: dict[str, np.ndarray] = {}
    for field in episode.spec.fields:
        rows = episode.fields[field.name]
        if field.stack > 1:
            rows = stacks_of(rows, field)
        is_result = field.kind in ("reward", "info")
        fields[field.name] = rows[first + 1 :] if is_result else rows[first:-1]
        if field.kind == "observation":
            next_observation[field.name] = rows[first + 1 :]
    last = slice(first + 1, None)
    ends = episode.terminated[last], episode.truncated[last], episode.cut[last]
    return TransitionColumns(fields, next_observation, *ends)


def rollout_steps(rollout: Rollout) -> list[TransitionColumns]:
    """The transitions of each env of a rollout; an episode open at its end is marked as cut."""
    # Where the MDP terminated and the last observation is not known, it is zeros.
    behind = dict(named_leaves("observation", rollout.bootstrap.observation))
    fields: dict[str, Any] = dict(named_leaves("observation", rollout.observation))
    following = {name: following_rows(rollout, rows, behind[name]) for name, rows in fields.items()}
    fields |= dict(named_leaves("action", rollout.action))
    fields |= {f"extra/{name}": rows for name, rows in rollout.extras.items()}
    fields["reward"] = rollout.reward.astype(np.float64)
    fields |= {f"info/{name}": rows for name, rows in rollout.info.items()}
    found: list[TransitionColumns] = []
    for env in range(rollout.num_envs):
        steps = np.flatnonzero(rollout.mask[:, env])

        def of(tree: Any, env: int = env, steps: np.ndarray = steps) -> Any:
            return map_tree(lambda rows: rows[steps, env], tree)

        terminated, truncated, cut = of((rollout.terminated, rollout.truncated, rollout.cut))
        cut[-1:] |= ~(terminated | truncated)[-1:]
        found.append(TransitionColumns(of(fields), of(following), terminated, truncated, cut))
    return found


def following_rows(rollout: Rollout, rows: np.ndarray, behind: Any) -> np.ndarray:
    """The row after each row [T, N, ...]: the next one, or that [K, ...] behind an open end."""
    # The result is new memory: zeros where the MDP terminated and the last observation is not
    # known.
    found = np.zeros_like(rows)
    found[:-1] = rows[1:]
    ends = rollout.terminated | rollout.truncated | rollout.cut
    # The row of a NEXT_STEP reset has the true last observation of the episode before.
    is_kept = np.zeros_like(ends)
    is_kept[:-1] = ~rollout.mask[1:] & ~rollout.is_first[1:]
    found[(ends | ~rollout.mask) & ~is_kept] = 0
    if behind is not None:
        found[rollout.bootstrap.step, rollout.bootstrap.env] = behind
    return found


def leaves_below(key: tuple[str, ...], value: object) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The arrays of a nested value, each with the path of keys to it; None has none."""
    if isinstance(value, Mapping):
        for part, below in value.items():
            yield from leaves_below((*key, str(part)), below)
    elif isinstance(value, tuple | list):
        for place, below in enumerate(value):
            yield from leaves_below((*key, str(place)), below)
    elif value is not None:
        yield key, value


def nested(columns: Mapping[tuple[str, ...], Any]) -> dict[str, Any]:
    """Nested dicts from values by path: ``{("next", "a"): 2}`` is ``{"next": {"a": 2}}``."""
    tree: dict[str, Any] = {}
    for key, array in columns.items():
        below = tree
        for part in key[:-1]:
            below = below.setdefault(part, {})
        below[key[-1]] = array
    return tree
