"""The rows of an env that the caller's loop steps, on their way into a replay."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.vector import AutoresetMode

from ...buffers import SequenceReplayBuffer
from ...buffers.base.number_checks import is_whole
from ...buffers.replay.writer import check_flush_seconds
from ...wrappers.fixed_spaces import FixedVectorSpaces, with_fixed_vector_spaces
from ..policies.policy_caller import ChoiceChecker
from .curves import Curves
from .result_reader import RawStep, ResultReader
from .session import RecordedWriter, Session, SpaceWatch, spec_of_rows, stacks_are_known
from .step_loop import EpisodeCounter, StepMachine
from .step_result import EpisodeMetadata, InfoReader, MetadataOrFunction
from .vector_envs import Vector, declared_info, is_ale, refuse_bad_reset

ReplayOrPath: TypeAlias = "SequenceReplayBuffer | str | os.PathLike[str]"
_NO_ENVS = np.empty(0, np.int64)
_LARGEST_SEED = 2**63 - 1
_FINISH_SECONDS = 10.0


class BegunStep(NamedTuple):
    """The actions and extras ``[n, ...]`` of a step by name, and their envs, all when None."""

    leaves: Mapping[str, np.ndarray]
    env_ids: np.ndarray | None


class BegunReset(NamedTuple):
    """A reset of the envs marked in ``chosen`` [N], of all when None, with seeds by env."""

    chosen: np.ndarray | None
    seeds: Mapping[int, int]
    has_options: bool


class RecordedSteps:
    """Checks what the caller's loop does with an env, and gives its rows to a `StepMachine`."""

    # Each step is two calls: `begin_step` checks the actions before the env gets them, and
    # `finish_step` writes the rows, all or none of them. What the env does between is a block of
    # ``with recording``. Whatever happens there, the rows so far stay whole, and the next call must
    # be a reset. Options not explained are `Collector`'s.

    def __init__(
        self,
        envs: Vector,  # or a single env, as a vector of one that is never stepped
        replay: ReplayOrPath,  # or the folder of a store
        *,
        info: Mapping[str, object] | None,
        metadata: MetadataOrFunction | None,
        frame_stack: int | None,
        flush_seconds: float,  # no row waits longer than this, plus a step, to be stored durably
        log: object = None,
        is_single: bool = False,  # the env is a single one
        # Name of what chooses the actions, for the facts of the session
        policy: str = "the caller's loop",
        # Rows are stored by `flush` alone, so that `discard` can drop them, until there are so many
        # bytes of them.
        held_bytes: int = 0,
    ) -> None:
        if not isinstance(replay, SequenceReplayBuffer | str | os.PathLike):
            raise TypeError(
                f"replay: expected a SequenceReplayBuffer or a path, got {type(replay).__name__}; "
                f"make one, or name a folder"
            )
        check_flush_seconds(flush_seconds)
        fixed = with_fixed_vector_spaces(envs)
        self._fixed = fixed if isinstance(fixed, FixedVectorSpaces) else None
        """Converts what the caller's envs take and return, where a space of theirs needs it."""
        self._envs = envs = fixed
        reader = InfoReader(info, declared_info(envs))
        self.reads_infos = bool(reader.missing)
        """The infos of steps are needed."""
        episode_metadata = EpisodeMetadata(metadata)
        with contextlib.ExitStack() as on_error:
            self._owns_replay = not isinstance(replay, SequenceReplayBuffer)
            if not isinstance(replay, SequenceReplayBuffer):
                replay = SequenceReplayBuffer(replay)
                on_error.callback(replay.close)
            self.replay = replay
            self.spec = spec_of_rows(envs, replay, reader, frame_stack)
            # Rows are written before the caller gets them, but stacks may be compared later.
            keeps_stacks = any(field.stack > 1 for field in self.spec.fields)
            self.reader = ResultReader(
                envs,
                self.spec.observation,
                reader,
                episode_metadata,
                copies=keeps_stacks and not stacks_are_known([envs], self.spec),
            )
            self._counter = EpisodeCounter(self.reader.num_envs)  # for the curves
            self._curves = Curves(log, replay)
            on_error.pop_all()
        self._checker = ChoiceChecker(
            envs.single_action_space, self.spec, "the loop gave", "the loop", is_single=is_single
        )
        session = Session(
            replay,
            self.spec,
            [envs],
            self._checker,
            {"policy": policy, "seed": None, "reseed_steps": None, "missing": reader.missing},
            flush_seconds,
            SpaceWatch(self.spec, envs.single_observation_space),
            is_recorded=True,
            held_bytes=held_bytes,
        )
        self._machine = StepMachine(session, None if log is None else self._counter)
        if log is not None:
            self._machine.tell_curves = self._curves.counted
        self._extras: dict[str, np.ndarray] = {}
        self._no_actions: dict[str, np.ndarray] = {}
        self._was_reset = False
        self._is_closed = False
        self._process = os.getpid()

    def __enter__(self) -> None:
        """The env steps, or is reset."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._machine.fail(error)

    def log_extras(self, arrays: Mapping[str, object]) -> None:
        """Note extras of the coming action, ``[n, ...]`` by name: all, or none on an error."""
        self._checker.refuse_unknown(arrays)
        n = self.reader.rows
        checked = {name: self._checker.extra(name, rows, n) for name, rows in arrays.items()}
        self._extras.update((name, rows.copy()) for name, rows in checked.items())

    def begin_step(self, action: object) -> BegunStep:
        """Check the actions of a step; nothing has changed if they are refused."""
        reader = self.reader
        machine = self._machine
        if machine.needs_reset or (reader.any_ended and reader.mode is AutoresetMode.DISABLED):
            raise self._reset_needed()
        if self._fixed is not None:
            action = self._fixed.encoded_actions(action)
        _, leaves = self._checker.check(action, self._extras, reader.rows)
        if machine.replay_writer is None:
            machine.begin()
            self._no_actions = {name: rows[:0].copy() for name, rows in leaves.items()}
        elif machine.replay_writer.is_closed:
            raise ClosedEnvironmentError(
                "the replay is closed: expected an open one; close it behind the recorded env"
            )
        # Copied, as the envs may write into their actions.
        leaves = {name: rows.copy() for name, rows in leaves.items()}
        self._extras = {}
        machine.needs_reset = True  # until the step's rows are written
        reader.begin_step()
        return BegunStep(leaves, reader.env_ids)

    def finish_step(self, begun: BegunStep, step: RawStep) -> None:
        """Write the rows of a step before the caller gets its results."""
        machine, reader = self._machine, self.reader
        if self._fixed is not None:
            step = self._fixed.encoded_step(step)
        with machine.guard:
            results = reader.of_step(step)
            machine.chosen(begun.leaves, begun.env_ids)
            machine.stepped(results, reader)
            machine.release()
            machine.needs_reset = False
        self._counter.ended.clear()  # the curves have them

    def begin_reset(self, seed: object, options: Mapping[str, object] | None) -> BegunReset:
        """Check a reset; nothing has changed if it is refused."""
        if self._is_closed:
            raise self._closed()
        num_envs, chosen = self.reader.num_envs, None
        if options is not None and options.get("reset_mask") is not None:
            chosen = np.array(options["reset_mask"], np.bool_)
            if chosen.shape != (num_envs,):
                raise ValueError(
                    f"options['reset_mask']: expected bool ({num_envs},), got shape {chosen.shape}"
                )
            if chosen.all():
                chosen = None
            elif self._machine.needs_reset:
                raise self._reset_needed()
        if chosen is None:
            refuse_bad_reset(self._envs, self._was_reset, bool(self.reader.ended.any()))
        seeds = _seeds_by_env(seed, num_envs, chosen, by_place=is_ale(self._envs))
        has_options = bool(set(options or ()) - {"reset_mask"})
        self._extras = {}
        self._machine.needs_reset = True
        return BegunReset(chosen, seeds, has_options)

    def finish_reset(self, begun: BegunReset, observation: object, info: Any) -> None:
        """Write the rows of a reset before the caller gets its results."""
        machine, (chosen, seeds, has_options) = self._machine, begun
        if self._fixed is not None:
            observation, info = self._fixed.encoded_reset((observation, info))
        with machine.guard:
            self.reader.reset_seeds.has_options = has_options
            if chosen is None:
                machine.reset()
                result = self.reader.of_reset(observation, info, seeds)
            else:
                machine.cut()
                result = self.reader.of_some_resets(observation, info, chosen, seeds)
            self.reader.reset_seeds.has_options = False
            # Without the options nobody can play the episode again, nor those after it. A number
            # that is left out in the stream says so: the row of a reset that no row follows takes
            # one.
            for _ in range(1 + has_options):
                machine.chosen(self._no_actions, _NO_ENVS)  # stores what is due
                machine.started([result])
                machine.release()
            self._was_reset = True
            machine.needs_reset = False

    def flush(self) -> None:
        """Store all rows durably."""
        self._machine.flush()

    def discard(self) -> bool:
        """Drop all rows since the last flush; the next call must be a reset."""
        # False if there were too many to hold them back: then some are stored, and none is dropped.
        writer = self._machine.replay_writer
        if isinstance(writer, RecordedWriter) and not writer.discard():
            return False
        self._machine.forget()
        return True

    def close(self) -> None:
        """Store all rows, and end the session; closing twice has no effect."""
        if self._is_closed or os.getpid() != self._process:
            return
        self._is_closed = self._machine.needs_reset = True
        try:
            self._machine.close()
        finally:
            with contextlib.ExitStack() as stack:
                if self._owns_replay:
                    stack.callback(self.replay.close)
                stack.callback(self._curves.close)

    def finish(self) -> None:
        """Close when the env is dropped, or the process ends."""
        if self._is_closed or os.getpid() != self._process:
            return
        # The garbage collector may run while this thread writes to the replay, or draws from it:
        # then another thread waits until that is done.
        try:
            thread = threading.Thread(target=self.close, name="stepwell-record-close")
            thread.start()
        except RuntimeError:  # the process ends
            self.close()
            return
        thread.join(_FINISH_SECONDS)

    def _reset_needed(self) -> Exception:
        if self._is_closed:
            return self._closed()
        if self._machine.needs_reset:
            why = "the newest step or reset failed" if self._was_reset else "it was never reset"
            return ResetNeeded(f"the recorded env cannot step, as {why}: call reset() first")
        ended = np.flatnonzero(self.reader.ended).tolist()
        return ResetNeeded(
            f"episodes of envs {ended} have ended: expected a reset of them before the next step, "
            f"got none; call reset(), of a vector env with options={{'reset_mask': ended}}"
        )

    def _closed(self) -> Exception:
        return ClosedEnvironmentError(
            "the recorded env is closed: expected an open one; record a new one"
        )


def _seeds_by_env(
    seed: object, num_envs: int, chosen: np.ndarray | None, *, by_place: bool
) -> dict[int, int]:
    """The whole-number seeds, by env, of a reset of the ``chosen`` [N], of all when None."""
    # ``by_place``: seeds are counted over the envs that are reset, not over all.
    envs: Sequence[int] = range(num_envs) if chosen is None else np.flatnonzero(chosen).tolist()
    places = range(len(envs)) if by_place else envs
    found: dict[int, int] = {}
    for env, place in zip(envs, places, strict=True):
        each: Any = None
        if is_whole(seed):
            each = seed + place
        elif isinstance(seed, list | tuple | np.ndarray) and place < len(seed):
            each = seed[place]
        if is_whole(each) and 0 <= each <= _LARGEST_SEED:
            found[env] = int(each)
    return found
