"""Calls the user's functions, which only look."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from stepwell.buffers import Layout
from stepwell.buffers.sampling.batch import map_tree
from stepwell.buffers.spec import unflatten
from stepwell.collectors.episode_counter import EpisodeCounter
from stepwell.collectors.report import EpisodeReport, StepReport
from stepwell.collectors.step_result import StepResult

__all__ = ["Callbacks"]


class Callbacks:
    """Calls the user's functions, once all is counted.

    Args:
        tally: Counts what arrives.
        layout: How observations are nested.
        on_step: Called with the rows that each step or reset brings.
        on_episode: Called with each episode that counts, when it ends.

    Raises:
        TypeError: One of them is nothing to call.
    """

    def __init__(
        self,
        tally: EpisodeCounter,
        layout: Layout,
        on_step: Callable[[StepReport], None] | None,
        on_episode: Callable[[EpisodeReport], None] | None,
    ) -> None:
        for name, given in (("on_step", on_step), ("on_episode", on_episode)):
            if given is not None and not callable(given):
                raise TypeError(f"{name}: expected a function or None, got {given!r}")
        self._tally = tally
        self._layout = layout
        self._on_step = on_step
        self._on_episode = on_episode
        self._steps: list[StepReport] = []

    def note(self, arrival: StepResult) -> None:
        """An arrival was counted a moment ago."""
        if self._on_step is None:
            return
        envs = self._tally.envs_of(arrival)
        nothing = np.zeros(len(envs), np.bool_)

        def flags(given: np.ndarray | None) -> np.ndarray:
            return _locked(nothing if given is None else given)

        self._steps.append(
            StepReport(
                _locked(envs),
                map_tree(_locked, unflatten(self._layout, arrival.leaves)),
                _locked(arrival.reward),
                flags(arrival.is_first),
                flags(arrival.terminated),
                flags(arrival.truncated),
                _locked(self._tally.numbers(envs)),
                self._tally.total_steps,
            )
        )

    def call(self) -> None:
        """Tell what was noted: steps first, then the episodes that ended with them."""
        steps, self._steps = self._steps, []
        ended = self._tally.newly_ended()
        if self._on_step is not None:
            for step in steps:
                self._on_step(step)
        if self._on_episode is not None:
            for episode in ended:
                self._on_episode(episode)


def _locked(array: np.ndarray) -> np.ndarray:
    view = array.view()
    view.flags.writeable = False
    return view
