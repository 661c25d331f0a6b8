"""One vector step after the other: the policy chooses, the envs step, what arrives is passed on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from stepwell.collectors.callbacks import Callbacks
from stepwell.collectors.episode_counter import EpisodeCounter
from stepwell.collectors.policies.actions import Choice, PolicyCaller
from stepwell.collectors.replay_writer import ReplayWriter
from stepwell.collectors.step_result import StepResult
from stepwell.collectors.vector_stepper import Stepper

if TYPE_CHECKING:
    from stepwell.collectors.rollout_writer import RolloutWriter
    from stepwell.collectors.stepper_groups import StepperGroups

__all__ = ["StepLoop"]


class StepLoop:
    """Counts the rows that arrive, shows them to callbacks and passes them to who keeps them.

    Args:
        stepper: Steps the envs.
        call: Calls the policy.
        tally: Counts.
        callbacks: Told of what was counted.
        make_recorder: Makes who records, once the policy has chosen for the first time, before the
            envs are stepped; None where nothing is recorded.
    """

    def __init__(
        self,
        stepper: Stepper | StepperGroups,
        call: PolicyCaller,
        tally: EpisodeCounter,
        callbacks: Callbacks,
        make_recorder: Callable[[], ReplayWriter] | None,
    ) -> None:
        self._stepper = stepper
        self._call = call
        self._tally = tally
        self._callbacks = callbacks
        self._make_recorder = make_recorder
        self._uncounted: list[StepResult] = []  # until it is known which episodes ended
        self._counted: list[StepResult] = []  # and not kept yet
        self._unsure: np.ndarray | None = None
        self.recorder: ReplayWriter | None = None
        self.writer: RolloutWriter | None = None
        """Of rollouts that follow each other; None where what comes is not part of one."""
        self.restart_clock()

    @property
    def has_uncounted(self) -> bool:
        """Only the next step tells whether an episode has ended with the newest rows."""
        return bool(self._uncounted)

    def restart_clock(self) -> None:
        """Measure from now on where the time goes."""
        self.env_seconds = self.policy_seconds = self.write_seconds = 0.0

    def reset(self, seed: int | Sequence[int]) -> None:
        """Reset all envs; env i gets ``seed + i``, or the i-th seed. What there is was stored."""
        began = time.perf_counter()
        if self.recorder is not None:
            self.recorder.cut()
        if self.writer is not None:
            self.writer.forget()
        self._counted, self._uncounted, self._unsure = [], [], None
        self._uncounted = self._stepper.reset(seed)
        self._count()
        self.env_seconds += time.perf_counter() - began

    def step(self) -> None:
        """One vector step: the rows before it are written while the envs step."""
        began = time.perf_counter()
        unsure, env_ids = self._unsure, self._stepper.env_ids
        choice = self._call(self._stepper.observation, self._stepper.is_first, env_ids)
        if self.recorder is None and self._make_recorder is not None:
            self.recorder = self._make_recorder()
        decided = time.perf_counter()
        self._stepper.send(choice.action)
        sent = time.perf_counter()
        if unsure is None:
            self._write(choice, env_ids)
        written = time.perf_counter()
        arrivals = self._stepper.receive()
        received = time.perf_counter()
        if unsure is not None:
            self._resolve(self._stepper.went_on(unsure))
            self._write(choice, env_ids)
        self._take(arrivals)
        self.policy_seconds += decided - began
        self.env_seconds += sent - decided + received - written
        self.write_seconds += written - sent

    def step_rollout(self) -> None:
        """A vector step for the writer, or what is left of one that it waits for."""
        assert self.writer is not None
        if not (self.writer.has_all_of(self._stepper.env_ids) and self.gather()):
            self.step()
        # A policy's state belongs to what came last only until it is called again.
        if self.writer.is_nearly_complete or self._call.state is not None:
            self._observe()

    def resume(self, writer: RolloutWriter) -> None:
        """Tell a writer the envs' newest rows, unless they are about to be told anyway."""
        if writer.is_empty and not self._counted:
            for arrival in self._stepper.newest:
                writer.observe(arrival)

    def gather(self) -> bool:
        """Wait for what is under way, where it needs no other action; whether something came."""
        began = time.perf_counter()
        arrivals = self._stepper.gather()
        self._take(arrivals)
        self.env_seconds += time.perf_counter() - began
        return bool(arrivals)

    def settle(self) -> None:
        """Store all there is, the newest rows too, from which no action was chosen yet."""
        if self._uncounted and self._unsure is not None:
            self._resolve(self._unsure)
        self._observe()
        if self.recorder is not None:
            self.recorder.flush()

    def drain(self) -> None:
        """Wait for what is under way, and forget what it brings."""
        self._stepper.drain()

    def _take(self, arrivals: list[StepResult]) -> None:
        """Take over what has arrived, and count it once it is known what ended."""
        if not arrivals:
            return
        self._uncounted = arrivals
        self._unsure = self._stepper.unsure
        if self._unsure is None:
            self._count()

    def _count(self) -> None:
        """Keep of the newest rows those that are to be recorded."""
        arrivals, self._uncounted = self._uncounted, []
        lost = len(self._tally.lost)
        for arrival in arrivals:
            counted = self._tally.count(arrival)
            self._callbacks.note(arrival)
            if counted is not None:
                self._counted.append(counted)
        if self.recorder is not None and len(self._tally.lost) > lost:
            self.recorder.cut(self._tally.lost[lost:])
        self._callbacks.call()

    def _resolve(self, going_on: np.ndarray) -> None:
        """Now it is known which episodes did not end with the newest rows."""
        self._uncounted[-1] = self._uncounted[-1].going_on(going_on)
        self._count()

    def _write(self, choice: Choice, env_ids: np.ndarray | None) -> None:
        self._observe()
        if self.writer is not None:
            self.writer.act(choice.leaves, choice.state, env_ids)
        if self.recorder is not None:
            self.recorder.act(choice.leaves, env_ids)

    def _observe(self) -> None:
        """Begin the newest rows, each once, whatever happens."""
        arrivals, self._counted = self._counted, []
        for arrival in arrivals:
            if self.writer is not None:
                self.writer.observe(arrival)
            if self.recorder is not None:
                self.recorder.observe(arrival)
