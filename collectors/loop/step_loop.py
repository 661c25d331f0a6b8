"""The state machine of a collection: everything that decides what becomes of a step is here.

One vector step is, in this order (`StepLoop.step`):

1. *choose*: the policy chooses actions from the newest observations.
2. *send*: the envs begin to step.
3. *write*: while they do, the newest rows are written: what was observed, then the actions.
4. *receive*: the step's results, one or two `StepResult`s, from `vector_stepper`.
5. *count*: of each result, steps, returns and ends; then the user's functions are called.

A row is therefore counted at once, and written behind the next step, or by `flush`. Each row is
counted once and written once, whatever happens in between. `StepMachine` does this, without envs: a
recorded env, which the caller's loop steps, tells it the same, and has each row written at once.

Envs on a device take many steps at once, with the policy; then `StepsAhead` stands for both, and
hands out one step after the other. Where an error is raised, or all episodes that count have ended,
those that are left are dropped: nobody has seen them.

What a step returns for an env, by autoreset mode:

====================  =================  ==================  ==================  ==================
event                 NEXT_STEP          SAME_STEP           DISABLED            life_loss_info (1)
====================  =================  ==================  ==================  ==================
an episode ends       its last row       its last row, then  its last row, then  a row that maybe
                                         the reset's row     the reset's (2)     ended it
... and a seed is     its last row, then the reset's: a seeded one, in place    never
due for it (4)        of the automatic one (2); the next row is an ordinary one
the next step         the reset's row;   an ordinary row     an ordinary row     the reset's row,
                      the action is not                                          or an ordinary one:
                      used                                                       it did not end
its worker dies (5)   in every mode the first row of a new episode; the open one is cut
not in the step (3)   nothing; its newest row waits for its action's result
all envs are reset    the first row; open episodes are cut, after all rows were flushed
error or Ctrl-C       whole rows are flushed, a step that was sent is dropped, a reset follows
====================  =================  ==================  ==================  ==================

1. ale-py's ``life_loss_info=True``: an end is known from frame counters, which only a reset sets
   back. Until then the row is *unresolved*: neither counted nor written.
2. By a reset with a mask, which `vector_stepper` sends.
3. ale-py's ``batch_size``, and several vector envs that are stepped in turns.
4. `reset_seeds` says when. In SAME_STEP the env was reset already, and is reset once more.
5. Or the env raises, where that is tolerated.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias, cast

import numpy as np

from ...buffers import Layout
from ...buffers.base.untrusted_json import array_like, items, mapping, member, whole
from ...buffers.replay.writer import ReplayWriter
from ...buffers.spec.spec import kind_of, unflatten
from ..policies.policy_caller import PolicyCaller
from .report import EpisodeReport, StepReport
from .result_reader import ResultReader
from .session import Session
from .step_result import StepResult
from .steps_ahead import StepsAhead
from .vector_stepper import InterleavedSteppers, Stepper

if TYPE_CHECKING:
    from .rollout_writer import RolloutWriter

_LOG = logging.getLogger("stepwell.collectors")
_NO_STATE: Mapping[str, np.ndarray] = {}
_Choice: TypeAlias = "tuple[Mapping[str, np.ndarray], np.ndarray | None, Mapping[str, np.ndarray]]"


@dataclass(eq=False)
class StepMachine:
    """Decides what becomes of the steps that others take; it knows neither envs nor policy."""

    # A `StepLoop` takes the steps itself. For a recorded env the caller's loop does, whose arrays
    # may change after each call: then `release` follows.

    session: Session | None  # None: nothing is stored
    counter: EpisodeCounter | None = None  # None: nobody asks for counts, or gets reports
    layout: Layout = "observation"  # of the observations in reports
    # Called with the rows of each step or reset
    on_step: Callable[[StepReport], None] | None = None
    # Called with each that counts, when it ends
    on_episode: Callable[[EpisodeReport], None] | None = None
    # Called after each count, with the episodes that ended and the total of steps
    tell_curves: Callable[[Sequence[EpisodeReport], int], None] | None = None
    unresolved: list[StepResult] = field(default_factory=list[StepResult])
    """Newest results of which only the next step shows whether an episode ended."""
    needs_reset: bool = True
    """The next call must be a reset of all envs."""
    replay_writer: ReplayWriter | None = None
    """None until the session begins, and once it has ended."""
    rollout_writer: RolloutWriter | None = None
    """Writer of rollouts that follow each other; None outside of them."""
    _counted: list[StepResult] = field(default_factory=list[StepResult])  # and not written yet
    # Of the newest unresolved rows, and what was chosen from them
    _maybe_ended: np.ndarray = field(default_factory=lambda: np.empty(0, np.bool_))
    _choice: _Choice = ({}, None, {})

    def __post_init__(self) -> None:
        check_function("on_step", self.on_step)
        check_function("on_episode", self.on_episode)

    @property
    def waits(self) -> bool:
        """Rows are counted and not written."""
        return bool(self._counted)

    @property
    def guard(self) -> contextlib.AbstractContextManager[None]:
        """Held while rows are written, where others draw or Ctrl-C may come."""
        return contextlib.nullcontext() if self.replay_writer is None else self.replay_writer.guard

    def begin(self) -> None:
        """Begin the session, as the first actions, which show the fields of a row, are known."""
        if self.session is not None:
            self.replay_writer = self.session.begin()

    def reset(self) -> None:
        """All envs are about to be reset: the open episodes end here."""
        self.cut()
        if self.replay_writer is not None:
            self.replay_writer.cut()
        elif self.session is not None:
            self.session.is_cut = True
        if self.rollout_writer is not None:
            self.rollout_writer.forget()
        self._counted = []

    def started(self, results: list[StepResult]) -> None:
        """Count the rows of a reset."""
        self._count(results)

    def chosen(
        self,
        leaves: Mapping[str, np.ndarray],  # [n, ...] of actions and extras by field name
        env_ids: np.ndarray | None,  # [n] envs of these, all when None
        state: Mapping[str, np.ndarray] = _NO_STATE,  # of a recurrent policy, before
    ) -> None:
        """Write the newest rows, and the actions chosen from them, once these rows are resolved."""
        if self.unresolved:
            self._choice = leaves, env_ids, state
            return
        if self._counted:
            self.write()
        if self.rollout_writer is not None:
            self.rollout_writer.act(leaves, state, env_ids)
        if self.replay_writer is not None:
            self.replay_writer.act(leaves, env_ids)

    def stepped(self, results: list[StepResult], reader: ResultReader) -> None:
        """Count the results of a step as soon as it is known which episodes ended."""
        if not results:
            return
        if self.unresolved:
            self._resolve(self._maybe_ended & ~reader.is_first)
            self.chosen(*self._choice)
        if reader.maybe_ended is None:
            self._count(results)
        else:
            self.unresolved, self._maybe_ended = results, reader.maybe_ended

    def write(self) -> None:
        """Write the counted rows, each once, even on an error."""
        rollout, replay = self.rollout_writer, self.replay_writer
        if replay is None and self.session is not None:
            return  # the fields of a row are not known yet
        results, self._counted = self._counted, []
        for result in results:
            if rollout is not None:
                rollout.observe(result)
            if replay is not None:
                replay.observe(
                    result.leaves,
                    result.reward,
                    is_first=result.is_first,
                    terminated=result.terminated,
                    truncated=result.truncated,
                    env_ids=result.env_ids,
                    metadata=result.metadata,
                )

    def release(self) -> None:
        """Write the counted rows, and copy those that must wait: the caller gets their arrays."""
        self.write()
        if self._counted or self.unresolved:
            self._counted = list(map(_copied, self._counted))
            self.unresolved = list(map(_copied, self.unresolved))

    def cut(self) -> None:
        """Count unresolved rows as rows of episodes that continue, as no step will show more."""
        with self.guard:
            if self.unresolved:
                self._resolve(self._maybe_ended)
            self.write()

    def flush(self) -> None:
        """Store all rows but unresolved ones."""
        self.write()
        if self.replay_writer is not None:
            self.replay_writer.flush()

    def finish(self) -> None:
        """Store all rows, including the newest ones, from which no action was chosen yet."""
        self.cut()
        self.flush()

    def forget(self) -> None:
        """Drop the rows that were not written; a reset must follow."""
        self._counted, self.unresolved, self.needs_reset = [], [], True

    def fail(
        self, error: BaseException, *works: Callable[[], None], says_what_is_kept: bool = True
    ) -> None:
        """Store the whole rows after an error, do these works, and add notes about both to it."""
        self.needs_reset, self.rollout_writer = True, None
        # Twice: where the newest rows cannot be stored, those before them can.
        failures = dict.fromkeys(map(_failure_of, (self.finish, self.finish, *works)))
        for failure in failures:
            if failure not in ("", str(error)):
                error.add_note(f"then: {failure}")
        if says_what_is_kept and self.replay_writer is not None:
            error.add_note(f"kept: {self.replay_writer.kept}")

    def close(self) -> None:
        """Store all rows, and end the session."""
        writer = self.replay_writer
        try:
            if writer is None or not writer.is_closed:
                self.finish()
            if writer is not None:
                writer.close()
        finally:
            self.replay_writer = None
            if self.session is not None and writer is not None:
                self.session.end(writer)

    def _resolve(self, continued: np.ndarray) -> None:
        """Count the unresolved results; the episodes of the marked rows [n] did not end."""
        results, self.unresolved = self.unresolved, []
        last = results[-1]
        assert last.terminated is not None
        results[-1] = last._replace(terminated=last.terminated & ~continued)
        self._count(results)

    def _count(self, results: list[StepResult]) -> None:
        """Count the results, keep the rows that are to be written, call the user's functions."""
        counter = self.counter
        if counter is None:
            self._counted += results
            return
        # The functions see everything counted: first the steps, then the episodes that ended.
        lost, ended = len(counter.lost), len(counter.ended)
        reports: list[StepReport] = []
        for result in results:
            counted = counter.count(result)
            if self.on_step is not None:
                reports.append(self._report_of(result, counter))
            if counted is not None:
                self._counted.append(counted)
        if self.replay_writer is not None and len(counter.lost) > lost:
            self.replay_writer.cut(counter.lost[lost:])
        if self.on_step is not None:
            for report in reports:
                self.on_step(report)
        if self.on_episode is not None:
            for episode in counter.ended[ended:]:
                self.on_episode(episode)
        if self.tell_curves is not None:
            self.tell_curves(counter.ended[ended:], counter.total_steps)

    def _report_of(self, result: StepResult, counter: EpisodeCounter) -> StepReport:
        """The result, just counted, for the user's function."""
        # Its arrays cannot be written to, and are copies, as torch writes all the same.
        envs = counter.envs_of(result)
        no_row = np.zeros(len(envs), np.bool_)
        leaves = {
            name: _read_only(rows)
            for name, rows in result.leaves.items()
            if kind_of(name) == "observation"
        }

        def flags(marks: np.ndarray | None) -> np.ndarray:
            return _read_only(no_row if marks is None else marks)

        return StepReport(
            _read_only(envs),
            unflatten(self.layout, leaves),
            _read_only(result.reward),
            flags(result.is_first),
            flags(result.terminated),
            flags(result.truncated),
            _read_only(counter.numbers(envs)),
            counter.total_steps,
        )


@dataclass(eq=False)
class StepLoop:
    """Steps the envs with the policy, and tells the machine what they said."""

    stepper: Stepper | InterleavedSteppers
    policy: PolicyCaller
    counter: EpisodeCounter
    machine: StepMachine
    ahead: StepsAhead | None  # of envs on a device; stepper and policy hand them out
    env_seconds: float = 0.0
    policy_seconds: float = 0.0
    write_seconds: float = 0.0

    def restart_clock(self) -> None:
        """Measure from now on where the time goes."""
        self.env_seconds = self.policy_seconds = self.write_seconds = 0.0

    def reset(self, seed: int | Sequence[int]) -> None:
        """Reset all envs; env i gets ``seed + i``, or the i-th seed."""
        began = time.perf_counter()
        self.machine.reset()
        self.machine.started(self.stepper.reset(seed))
        self.env_seconds += time.perf_counter() - began

    def step(self, most: int = 1) -> None:
        """One vector step; of envs on a device up to ``most`` steps."""
        ahead, counter = self.ahead, self.counter
        if ahead is None:
            self._step()
            return
        began = time.perf_counter()
        ahead.take(most if counter.counts_all or ahead.may_drop else 1)
        self.env_seconds += time.perf_counter() - began
        try:
            while ahead.left and not counter.is_complete:
                self._step()
        finally:
            ahead.drop()

    def _step(self) -> None:
        """One vector step, in the order that the head of this file gives."""
        stepper, machine = self.stepper, self.machine
        env_ids = stepper.env_ids
        began = time.perf_counter()
        reader = stepper.reader
        choice = self.policy(reader.observation, reader.is_first, env_ids)
        if machine.replay_writer is None:
            machine.begin()
        decided = time.perf_counter()
        stepper.send(choice.action)
        sent = time.perf_counter()
        machine.chosen(choice.leaves, env_ids, choice.state)
        written = time.perf_counter()
        results = stepper.receive()
        received = time.perf_counter()
        machine.stepped(results, stepper.reader)
        self.policy_seconds += decided - began
        self.env_seconds += sent - decided + received - written
        self.write_seconds += written - sent

    def begin_rollout(self, writer: RolloutWriter) -> None:
        """Give the writer the envs' newest rows, unless they are about to be written anyway."""
        if writer.is_empty and not self.machine.waits:
            for result in self.stepper.newest:
                writer.observe(result)

    def step_rollout(self, writer: RolloutWriter) -> None:
        """One vector step for the rollout, or only the pending results where those complete it."""
        if not (writer.has_all_of(self.stepper.env_ids) and self.receive_pending()):
            self.step(writer.steps_left)
        # A policy's state belongs to the newest rows only until the policy is called again.
        if writer.is_nearly_complete or self.policy.state is not None:
            self.machine.write()

    def receive_pending(self) -> bool:
        """Receive pending results that need no further action; False where there were none."""
        began = time.perf_counter()
        results = self.stepper.receive_pending()
        self.machine.stepped(results, self.stepper.reader)
        self.env_seconds += time.perf_counter() - began
        return bool(results)

    @property
    def newest_observations(self) -> dict[str, np.ndarray]:
        """The newest observations of all envs, ``[N, ...]`` by field name; none is stepping."""
        results = self.stepper.newest
        names = results[0].leaves
        if results[0].env_ids is None:
            return dict(names)
        return {name: np.concatenate([one.leaves[name] for one in results]) for name in names}


class EpisodeCounter:
    """Counts steps, returns and lengths, and chooses episodes by the order of their *starts*."""

    # Choosing by which ones finish first would favour short episodes.

    def __init__(self, num_envs: int) -> None:
        self._all = np.arange(num_envs)
        self._sums = np.zeros(num_envs)
        self._lengths = np.zeros(num_envs, np.int64)
        self._counts = np.ones(num_envs, np.bool_)
        self._numbers = np.full(num_envs, -1, np.int64)
        self._seeds: list[int | None] = [None] * num_envs
        self._waiting: list[int] | None = None
        self._next_number = 0
        self.total_steps = 0  # including those of episodes that do not count
        self.total_episodes = 0
        self.begin()

    def reserve(self, episodes: int) -> list[int]:
        """Numbers for the given count of episodes."""
        first, self._next_number = self._next_number, self._next_number + episodes
        return list(range(first, self._next_number))

    def begin(self, numbers: Sequence[int] | None = None, *, replaces: bool = True) -> None:
        """Start a new count: of all episodes, or of the next that start, under these numbers."""
        # An episode that begins where one was cut counts in its place; otherwise, without
        # ``replaces``, the env is listed in ``lost``.
        self.steps = 0
        self.rows = 0
        self.ended: list[EpisodeReport] = []
        self.cut = 0
        self.restarts = 0
        self.lost: list[int] = []
        self._replaces = replaces
        self._waiting = None
        if numbers is not None:
            self.extend(numbers)

    def extend(self, numbers: Sequence[int]) -> None:
        """Add to this count so many of the episodes that start from now on."""
        self._waiting = list(numbers)
        self._counts[:] = False
        self.lost = []

    @property
    def counts_all(self) -> bool:
        """Every episode counts, not only so many of them."""
        return self._waiting is None

    @property
    def is_complete(self) -> bool:
        """All episodes that `begin` or `extend` gave numbers for have ended."""
        return self._waiting == [] and not self._counts.any()

    @property
    def returns(self) -> list[float]:
        """Sum of rewards of each episode that ended."""
        return [one.total_reward for one in self.ended]

    @property
    def lengths(self) -> list[int]:
        """Env steps of each episode that ended."""
        return [one.steps for one in self.ended]

    @property
    def num_envs(self) -> int:
        """Number of envs N."""
        return len(self._all)

    def envs_of(self, result: StepResult) -> np.ndarray:
        """[n] indices of a result's envs."""
        return self._all if result.env_ids is None else result.env_ids

    def numbers(self, envs: np.ndarray) -> np.ndarray:
        """[n] numbers of the episodes of the envs' newest rows, -1 where they do not count."""
        found: np.ndarray = self._numbers[envs]
        return found

    def count(self, result: StepResult) -> StepResult | None:
        """Count a result; returns the rows that count, None for none."""
        envs = self._all if result.env_ids is None else result.env_ids
        steps = len(envs)
        if result.is_first is not None:
            first = envs[result.is_first]
            steps -= len(first)
            self.restarts += result.restarts
            if result.restarts:
                open_ones = self._counts[first] & (self._lengths[first] > 0)
                if cut := first[open_ones].tolist():
                    _LOG.warning("envs were restarted: the episodes of envs %s are cut", cut)
            self._start(first.tolist(), result.metadata or {})
        self.total_steps += steps
        if self._waiting is not None:
            keep = self._counts[envs]
            if np.count_nonzero(keep) < len(envs):
                envs, result = envs[keep], result.only(keep, envs)
                steps = result.steps
        if not len(envs):
            return None
        self.rows += len(envs)
        self.steps += steps
        if envs is self._all:  # an index costs more than the sum
            self._sums += result.reward
            self._lengths += 1
        else:
            self._sums[envs] += result.reward
            self._lengths[envs] += 1
        if result.terminated is not None or result.truncated is not None:
            self._end(result, envs)
        return result

    def cut_all(self) -> int:
        """Cut the open episodes, as all envs are reset; returns how many had steps."""
        cut = int(np.count_nonzero((self._lengths > 0) & self._counts))
        self._sums[:] = 0
        self._lengths[:] = 0
        self._counts[:] = True
        self._numbers[:] = -1
        self.cut += cut
        return cut

    def state_dict(self) -> dict[str, object]:
        """The open episodes and the counts since the beginning, between two counts of all."""
        return {
            "sums": self._sums.copy(),
            "lengths": self._lengths.copy(),
            "numbers": self._numbers.copy(),
            "seeds": list(self._seeds),
            "next_number": self._next_number,
            "steps": self.total_steps,
            "episodes": self.total_episodes,
        }

    def load_state_dict(self, state: object) -> None:
        """Continue from a state of `state_dict`."""
        told = mapping(state, "counter")
        own = {"sums": self._sums, "lengths": self._lengths, "numbers": self._numbers}
        given = {name: array_like(member(told, name), name, rows) for name, rows in own.items()}
        if given["lengths"].min() < -1 or given["numbers"].min() < -1:
            raise ValueError("lengths, numbers: expected whole numbers >= -1, got a lower one")
        seeds = items(member(told, "seeds"), "seeds", self.num_envs)
        self._seeds = [None if seed is None else whole(seed, "seed") for seed in seeds]
        self._next_number, self.total_steps, self.total_episodes = (
            whole(member(told, key), key) for key in ("next_number", "steps", "episodes")
        )
        for name, rows in own.items():
            rows[:] = given[name]

    def _start(self, envs: list[int], metadata: Mapping[int, Mapping[str, object]]) -> None:
        """Choose and number the episodes that begin."""
        for env in envs:
            self._seeds[env] = cast("int | None", metadata.get(env, {}).get("seed"))
            if self._waiting is None:
                self._numbers[env] = self._next_number
                self._next_number += 1
            elif not self._counts[env]:
                self._counts[env] = bool(self._waiting)
                self._numbers[env] = self._waiting.pop(0) if self._waiting else -1
            elif not self._replaces:  # here an episode was cut
                self._counts[env], self._numbers[env] = False, -1
                self.cut += int(self._lengths[env] > 0)
                self.lost.append(env)
            length = self._lengths.item(env)
            if length >= 0 and (self._waiting is None or self._counts[env]):
                self.cut += length > 0
                self._sums[env], self._lengths[env] = 0, -1

    def _end(self, result: StepResult, envs: np.ndarray) -> None:
        """Report the episodes that end with these rows."""
        terminated, truncated = result.terminated, result.truncated
        if terminated is None or truncated is None:
            ended = truncated if terminated is None else terminated
        else:
            ended = terminated | truncated
        for place in cast("np.ndarray", ended).nonzero()[0].tolist():
            env = envs.item(place)
            report = EpisodeReport(
                episode=self._numbers.item(env),
                env=env,
                total_reward=self._sums.item(env),
                steps=self._lengths.item(env),
                terminated=terminated is not None and terminated.item(place),
                truncated=truncated is not None and truncated.item(place),
                seed=self._seeds[env],
                total_steps=self.total_steps,
            )
            self.ended.append(report)
            self.total_episodes += 1
            self._sums[env], self._lengths[env] = 0, -1
            if self._waiting is not None:
                self._counts[env] = False


def check_function(name: str, function: object) -> None:
    """Refuse what is neither a function nor None."""
    if function is not None and not callable(function):
        raise TypeError(f"{name}: expected a function or None, got {function!r}")


def _read_only(array: np.ndarray) -> np.ndarray:
    copy = array.copy()
    copy.flags.writeable = False
    return copy


def _copied(result: StepResult) -> StepResult:
    """The same rows in memory that the caller does not have."""
    return result._replace(leaves={name: rows.copy() for name, rows in result.leaves.items()})


def _failure_of(work: Callable[[], None]) -> str:
    """Run it; the message of the error that it raised, or nothing."""
    try:
        work()
    except Exception as error:
        return str(error) or type(error).__name__
    return ""
