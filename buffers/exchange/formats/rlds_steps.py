"""Episodes in the form of RLDS: steps with their observation and the result of their action."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypedDict

import numpy as np

from ...replay.replay import SequenceReplayBuffer
from ...rows.episode import Episode
from ...rows.step_columns import with_stacks
from ...spec.spec import Layout, unflatten


class RldsEpisode(TypedDict):
    """An episode in the form of RLDS."""

    steps: RldsSteps
    episode_metadata: dict[str, object]


def rlds_episodes(replay: SequenceReplayBuffer, *, stack: bool = False) -> Iterator[RldsEpisode]:
    """Yield the episodes of a replay in the form of RLDS.

    Args:
        replay: The replay; its episodes are read one at a time.
        stack: Give frame-stacked observations in full, as the env gave them; else single frames.

    Yields:
        ``{"steps": RldsSteps, "episode_metadata": {...}}``. An episode of T env steps has T + 1
        steps, each a dict of ``observation``, ``action``, ``reward`` (float64), ``discount``
        (float32), ``is_first``, ``is_last`` and ``is_terminal``, with ``info`` and ``extra`` where
        they were recorded. ``reward`` and ``discount`` of a step are the results of its action.
        The last step holds the final observation; its action, reward and discount are 0. An episode
        that ends without ``is_terminal`` was truncated or cut, as its metadata say.

    Raises:
        ValueError: ``stack=True``, and an episode lost its first rows.

    Example:
        >>> import gymnasium as gym
        >>> import stepwell as sw
        >>> replay = sw.SequenceReplayBuffer()
        >>> envs = gym.make_vec("CartPole-v1", num_envs=2)
        >>> with sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector:
        ...     collected = collector.collect(episodes=2)
        >>> for episode in rlds_episodes(replay):
        ...     *others, last = episode["steps"]
        ...     print(last["is_last"], last["is_terminal"], others[-1]["discount"])
        True True 0.0
        True True 0.0
    """
    for episode in replay.iter_episodes():
        yield {
            "steps": RldsSteps(episode, stack=stack),
            "episode_metadata": episode_metadata(episode),
        }


def episode_metadata(episode: Episode) -> dict[str, object]:
    """The stream of an episode, how it ended, and its metadata."""
    return {
        "stream": episode.stream,
        "first_row": episode.first_row,
        "terminated": bool(episode.terminated[-1]),
        "truncated": bool(episode.truncated[-1]),
        "cut": bool(episode.cut[-1]),
        "metadata": dict(episode.metadata),
    }


class RldsSteps:
    """The steps of an episode, iterable many times."""

    def __init__(self, episode: Episode, *, stack: bool = False) -> None:
        self.arrays = step_arrays(episode, stack=stack)
        """[T + 1, ...] by field name, and of ``discount`` and the flags."""
        spec = episode.spec
        self._layout: dict[str, Layout] = {
            "observation": spec.observation,
            "action": spec.action,
            **{name: name for name in ("reward", "discount", "is_first", "is_last", "is_terminal")},
        }
        for kind in ("info", "extra"):
            fields = spec.of_kind(kind)
            if fields:
                self._layout[kind] = {field.key: field.name for field in fields}

    def __len__(self) -> int:
        """Number of steps: one more than the env's."""
        return len(self.arrays["is_last"])

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Each step as a nested dict of arrays and numbers."""
        for place in range(len(self)):
            step = {name: rows[place] for name, rows in self.arrays.items()}
            yield {name: unflatten(part, step) for name, part in self._layout.items()}


def step_arrays(episode: Episode, *, stack: bool = False) -> dict[str, np.ndarray]:
    """The steps of an episode of T env steps as arrays [T + 1, ...] by field name."""
    # `reward` is that of the step's action; further names are `discount` (float32), `is_first`,
    # `is_last` and `is_terminal`.
    rows = with_stacks(episode) if stack else dict(episode.fields)
    rows["reward"] = np.concatenate([episode.reward[1:], np.zeros(1)])
    discount = np.ones(episode.rows, np.float32)
    discount[-1] = 0
    discount[-2:-1] = not episode.terminated[-1]
    return {
        **rows,
        "discount": discount,
        "is_first": episode.is_first,
        "is_last": episode.is_last,
        "is_terminal": episode.terminated,
    }
