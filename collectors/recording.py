"""The rows of an env that the caller's loop steps, on their way into a replay."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, NoReturn, TypeAlias

import numpy as np
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.vector import AutoresetMode

from ..buffers import SequenceReplayBuffer
from ..buffers.replay_writer import ReplayWriter, check_flush_seconds
from ..buffers.whole_numbers import is_whole
from ..wrappers.fixed_spaces import FixedVectorSpaces, with_fixed_vector_spaces
from .policies.policy_caller import ChoiceChecker
from .result_reader import RawStep, ResultReader
from .session_facts import describe
from .session_writer import (
    RecordedWriter,
    SpaceWatch,
    begin_session,
    end_session,
    note_kept,
    spec_of_rows,
    stacks_are_known,
)
from .step_result import (
    EpisodeMetadata,
    InfoReader,
    MetadataOrFunction,
    StepResult,
)
from .vector_envs import Vector, declared_info, is_ale, refuse_bad_reset

__all__ = ["BegunReset", "BegunStep", "Recording", "ReplayOrPath"]

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


class Recording:
    """Writes what an env returns to the caller's loop; options not explained are `Collector`'s."""

    # Each step is two calls: `begin_step` checks the actions before the env gets them, and
    # `finish_step` writes the rows, all or none of them. Whatever happens in between, the rows so
    # far stay whole, and the next call must be a reset.

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a recorded env cannot be pickled or copied: expected each row to be stored once, got "
            "a copy; copy env.unwrapped, or record an env of its own in each process"
        )

    def __init__(
        self,
        envs: Vector,  # or a single env, as a vector of one that is never stepped
        replay: ReplayOrPath,  # or the folder of a store
        *,
        info: Mapping[str, object] | None,
        metadata: MetadataOrFunction | None,
        frame_stack: int | None,
        flush_seconds: float,  # no row waits longer than this, plus a step, to be stored durably
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
        self._flush_seconds = flush_seconds
        self._policy, self._held_bytes = policy, held_bytes
        self._info = InfoReader.of(info, declared_info(envs))
        facts = EpisodeMetadata(metadata)
        with contextlib.ExitStack() as on_error:
            self._owns_replay = not isinstance(replay, SequenceReplayBuffer)
            if not isinstance(replay, SequenceReplayBuffer):
                replay = SequenceReplayBuffer(replay)
                on_error.callback(replay.close)
            self.replay = replay
            self.spec = spec_of_rows(envs, replay, self._info, frame_stack)
            self._known_stacks = stacks_are_known([envs], self.spec)
            # Rows are written before the caller gets them, but stacks may be compared later.
            keeps_stacks = not self._known_stacks and any(f.stack > 1 for f in self.spec.fields)
            self.reader = ResultReader(
                envs, self.spec.observation, self._info, facts, copies=keeps_stacks
            )
            on_error.pop_all()
        self._checker = ChoiceChecker(
            envs.single_action_space, self.spec, "the loop gave", "the loop", is_single=is_single
        )
        self._extras: dict[str, np.ndarray] = {}
        self._writer: ReplayWriter | None = None
        self._no_actions: dict[str, np.ndarray] = {}
        self._waiting: list[StepResult] = []
        """Rows of resets before the first step, which determines the fields of a row."""
        self._unresolved: list[StepResult] = []
        self._maybe_ended: np.ndarray | None = None
        self._was_reset = False
        self._needs_reset = True
        self._is_closed = False
        self._process = os.getpid()

    @property
    def reads_infos(self) -> bool:
        """The infos of steps are needed."""
        return bool(self._info.missing)

    def log_extras(self, arrays: Mapping[str, object]) -> None:
        """Note extras of the coming action, ``[n, ...]`` by name: all, or none on an error."""
        self._checker.refuse_unknown(arrays)
        n = self.reader.rows
        checked = {name: self._checker.extra(name, rows, n) for name, rows in arrays.items()}
        self._extras.update((name, rows.copy()) for name, rows in checked.items())

    def begin_step(self, action: object) -> BegunStep:
        """Check the actions of a step; nothing has changed if they are refused."""
        reader = self.reader
        if self._needs_reset or (reader.any_ended and reader.mode is AutoresetMode.DISABLED):
            raise self._reset_needed()
        if self._fixed is not None:
            action = self._fixed.encoded_actions(action)
        _, leaves = self._checker.check(action, self._extras, reader.rows)
        if self._writer is None:
            self._begin_session()
        elif self._writer.is_closed:
            raise ClosedEnvironmentError(
                "the replay is closed: expected an open one; close it behind the recorded env"
            )
        # Copied, as the envs may write into their actions.
        leaves = {name: rows.copy() for name, rows in leaves.items()}
        self._extras = {}
        self._needs_reset = True  # until the step's rows are written
        reader.begin_step()
        return BegunStep(leaves, reader.env_ids)

    def finish_step(self, begun: BegunStep, step: RawStep) -> None:
        """Write the rows of a step before the caller gets its results."""
        writer = self._writer
        assert writer is not None
        try:
            if self._fixed is not None:
                step = self._fixed.encoded_step(step)
            with writer.guard:
                results = self.reader.of_step(step)
                if self._unresolved:
                    assert self._maybe_ended is not None
                    self._resolve(writer, self.reader.continued(self._maybe_ended))
                writer.act(begun.leaves, begun.env_ids)
                if self.reader.maybe_ended is None:
                    for result in results:
                        result.write_to(writer)
                else:
                    self._maybe_ended = self.reader.maybe_ended
                    self._unresolved = list(map(_copied, results))
                self._needs_reset = False
        except BaseException as error:
            self.fail(error)
            raise

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
            elif self._needs_reset:
                raise self._reset_needed()
        if chosen is None:
            refuse_bad_reset(self._envs, self._was_reset, bool(self.reader.ended.any()))
        seeds = _seeds_by_env(seed, num_envs, chosen, by_place=is_ale(self._envs))
        has_options = bool(set(options or ()) - {"reset_mask"})
        self._extras = {}
        self._needs_reset = True
        return BegunReset(chosen, seeds, has_options)

    def finish_reset(self, begun: BegunReset, observation: object, info: Any) -> None:
        """Write the rows of a reset before the caller gets its results."""
        try:
            if self._fixed is not None:
                observation, info = self._fixed.encoded_reset((observation, info))
            with contextlib.nullcontext() if self._writer is None else self._writer.guard:
                self._finish_reset(begun, observation, info)
                self._was_reset = True
                self._needs_reset = False
        except BaseException as error:
            self.fail(error)
            raise

    def fail(self, error: BaseException) -> None:
        """Store the whole rows after an error, and add a note about them to it."""
        self._needs_reset = True
        if self._writer is not None:
            # Twice: where the newest rows cannot be stored, those before them can.
            note_kept(error, [self._writer.flush, self._writer.flush], self._writer)

    def flush(self) -> None:
        """Store all rows durably."""
        if self._writer is not None:
            self._writer.flush()

    def discard(self) -> bool:
        """Drop all rows since the last flush; the next call must be a reset."""
        # False if there were too many to hold them back: then some are stored, and none is dropped.
        if isinstance(self._writer, RecordedWriter) and not self._writer.discard():
            return False
        self._waiting, self._unresolved = [], []
        self._needs_reset = True
        return True

    def close(self) -> None:
        """Store all rows, and end the session; closing twice has no effect."""
        if self._is_closed or os.getpid() != self._process:
            return
        self._is_closed = self._needs_reset = True
        writer, self._writer = self._writer, None
        try:
            if writer is not None and not writer.is_closed:
                with writer.guard:
                    self._resolve(writer, self._maybe_ended)
                writer.close()
        finally:
            if writer is not None:
                end_session(self.replay, writer)
            if self._owns_replay:
                self.replay.close()

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

    def _begin_session(self) -> None:
        """Bind the replay to the rows' Spec, now that the extras are known."""
        spec = self.spec.with_more(self._checker.extra_fields)
        # Other sessions may begin at the same time: the number in the facts must stay this one's.
        with self.replay.write_lock:
            facts = describe(
                [self._envs],
                policy=self._policy,
                seed=None,
                session=len(self.replay.sessions),
                reseed_steps=None,
                missing=self._info.missing,
            )
            writer = begin_session(
                self.replay,
                spec,
                facts,
                self._flush_seconds,
                known_stacks=self._known_stacks,
                is_recorded=True,
                held_bytes=self._held_bytes,
            )
            writer.watch = SpaceWatch(spec, self._envs.single_observation_space)
            self.replay.attach(writer)
        self._no_actions = {
            field.name: np.empty((0, *field.source_shape), field.numpy_dtype)
            for field in spec.fields
            if field.is_chosen
        }
        with writer.guard:
            # Rows of which the extras were not known yet have waited here.
            waiting, self._waiting = self._waiting, []
            self._writer = writer
            for result in waiting:
                result.write_to(writer)

    def _finish_reset(self, begun: BegunReset, observation: object, info: Any) -> None:
        chosen, seeds, has_options = begun
        if self._writer is not None:
            # It is not known whether they ended; they do not go on in any case.
            self._resolve(self._writer, self._maybe_ended)
        if chosen is None:
            self._waiting = []
            read = partial(self.reader.of_reset, observation, info, seeds)
        else:
            read = partial(self.reader.of_some_resets, observation, info, chosen, seeds)
        result = read(has_options=has_options)
        # Without the options nobody can play the episode again, nor those after it. A number that
        # is left out in the stream says so: the row of a reset that no row follows takes one.
        rows = [result] * (1 + has_options)
        if self._writer is None:
            self._waiting += map(_copied, rows)
            return
        for one in rows:
            self._writer.act(self._no_actions, _NO_ENVS)  # stores what is due
            one.write_to(self._writer)

    def _resolve(self, writer: ReplayWriter, continued: np.ndarray | None) -> None:
        """Write the rows of which it was not known whether they ended their episodes."""
        # ``continued`` [n] bool marks the episodes that did not end with the newest of them.
        results, self._unresolved = self._unresolved, []
        if results and continued is not None:
            results[-1] = results[-1].without_end(continued)
        for result in results:
            result.write_to(writer)

    def _reset_needed(self) -> Exception:
        if self._is_closed:
            return self._closed()
        if self._needs_reset:
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


def _copied(result: StepResult) -> StepResult:
    """The same rows in memory that the caller does not have."""
    return result._replace(leaves={name: rows.copy() for name, rows in result.leaves.items()})


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
