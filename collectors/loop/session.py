"""The session of a Collector or a recorded env in a replay: its Spec, streams and writer."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import json
import math
import platform
import sys
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import RLock
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from ...buffers import Chunk, SequenceReplayBuffer, Spec
from ...buffers.replay.writer import ReplayWriter
from ...buffers.spec.open_spaces import original_space
from ...buffers.spec.space_json import spaces_facts
from ...buffers.spec.spec import field_of
from ...buffers.storage.protocol import Storage
from ...wrappers import SeededResets
from ...wrappers.check.watch import Limits, all_limits_of, inside_of, outside_of
from ...wrappers.faults import Tolerant
from ...wrappers.fixed_spaces import FixedSpaces, FixedVectorSpaces
from ...wrappers.versions import module_versions, versions_of
from ..policies.policy_caller import ChoiceChecker
from .step_result import InfoReader
from .vector_envs import Vector, frame_stack_of, has_known_stacks, mode_of, recipe_of

_VECTOR_KWARGS = ("num_envs", "vectorization_mode", "vector_kwargs")


def describe(
    groups: Sequence[Vector],  # after their first reset
    *,
    policy: object,  # or a name for what chose the actions
    seed: int | None,  # that all others are derived from; None where there is none
    session: int,  # the number of the run that the seeds are derived from, too
    reseed_steps: int | None,
    # The value that means "not there", by the name of the info field
    missing: Mapping[str, np.ndarray],
    shard: tuple[int, int] | None = None,  # None where there is one machine only
) -> dict[str, object]:
    """JSON-able facts about a run: the envs, the policy, the seed, the versions and the machine."""
    recipe, rate = recipe_of(groups[0]), groups[0].metadata.get("render_fps")
    is_rate = isinstance(rate, (int, float)) and 0 < rate < math.inf  # for a clip of episodes
    return {
        # As it is read back from a file, so that the two can be compared.
        "recipe": json.loads(json.dumps({k: v for k, v in recipe.items() if k != "versions"})),
        **spaces_facts(groups[0].single_observation_space, groups[0].single_action_space),
        **_env_spec(groups),
        **_vector_wrappers(groups[0]),
        **({"render_fps": rate} if is_rate else {}),
        "num_envs": sum(group.num_envs for group in groups),
        "autoreset": mode_of(groups[0]).name,
        **({} if seed is None else {"seed": str(seed)}),
        "session": session,
        **({} if shard is None else {"shard": list(shard)}),
        "reseed_steps": reseed_steps,
        "missing": {name: _plain(value) for name, value in missing.items()},
        "policy": policy if isinstance(policy, str) else _name(policy),
        "began": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": _versions(groups[0]),
        "machine": dict(machine_facts()),
    }


@functools.cache
def machine_facts() -> Mapping[str, str]:
    """The machine, as far as the numbers that envs compute may depend on it."""
    return {
        "python": platform.python_version(),
        "system": platform.system(),
        "machine": platform.machine(),
        "libc": "-".join(platform.libc_ver()),
    }


def _env_spec(groups: Sequence[Vector]) -> dict[str, object]:
    """Gymnasium's spec of one env, where all envs have the same and it says all about them."""
    if any(getattr(group.unwrapped, "_np_random", None) is not None for group in groups):
        # One generator draws for all envs, as in gymnasium's own CartPoleVectorEnv: no single env
        # plays what one of them has played.
        return {"shared_generator": True}
    texts = {text for group in groups for text in _spec_texts(group)}
    (text,) = texts if len(texts) == 1 else (None,)
    if text is None:
        return {}
    module = groups[0].metadata.get("env_module")
    return {"env_spec": text, **({"env_module": module} if isinstance(module, str) else {})}


def _vector_wrappers(envs: Vector) -> dict[str, object]:
    """Names of the vector wrappers, through which single envs that are made again do not pass."""
    names = [
        type(layer).__name__
        for layer in _layers(envs)
        if not isinstance(layer, RecordEpisodeStatistics)
        and type(layer).__module__.split(".")[0] != "stepwell"
    ]
    return {"vector_wrappers": names} if names else {}


def _spec_texts(envs: Vector) -> set[str | None]:
    """The specs of the single envs as JSON; None for one that is not known."""
    declared = envs.metadata.get("env_spec")
    if isinstance(declared, str):
        return {declared}
    from ...wrappers.recipe import spec_of, spec_text  # loads all of gymnasium's wrappers

    envs = envs.env if isinstance(envs, FixedVectorSpaces) else envs

    if type(envs) is SyncVectorEnv:
        return {spec_of(_without_own(env)) for env in envs.envs}
    if type(envs) is AsyncVectorEnv and envs.spec is not None:
        kwargs = {k: v for k, v in envs.spec.kwargs.items() if k not in _VECTOR_KWARGS}
        try:  # functions among the kwargs are no JSON
            return {spec_text(dataclasses.replace(envs.spec, kwargs=kwargs))}
        except (AttributeError, TypeError, ValueError):
            return {None}
    return {None}


def _without_own(env: Any) -> Any:
    """A single env as the user gave it, without what Stepwell wraps it in."""
    env = env.env if isinstance(env, Tolerant) else env
    if not isinstance(env, SeededResets):
        return env
    inner: Any = env.env
    return inner.env if isinstance(inner, FixedSpaces) and not inner.lengths else inner


def _plain(value: np.ndarray) -> object:
    """An array as JSON: one number where all are the same; what is not finite as text."""
    # Bytes are compared, as 0.0 equals -0.0 and nan nothing.
    if value.size and value.tobytes() == value.reshape(-1)[0].tobytes() * value.size:
        value = value.reshape(-1)[0]
    if value.dtype.kind == "c" or not np.isfinite(value).all():
        return value.astype(np.str_).tolist()
    return value.tolist()


def _name(policy: object) -> str:
    kind = policy if hasattr(policy, "__qualname__") else type(policy)
    return f"{getattr(kind, '__module__', '?')}.{getattr(kind, '__qualname__', '?')}"


def _versions(envs: Vector) -> dict[str, str]:
    """Versions of what all rows depend on, and of the packages of envs that declare none."""
    base = ("stepwell", "gymnasium", "numpy")
    found = dict.fromkeys(base, "unknown")
    found |= module_versions([*base, "zstandard", *(["cv2"] if "cv2" in sys.modules else [])])
    declared = recipe_of(envs).get("versions")
    if isinstance(declared, dict):
        return found | cast("dict[str, str]", declared)
    inner: Any = envs.unwrapped
    layers = [*_layers(envs), inner]
    if isinstance(inner, SyncVectorEnv):
        layers += [*_layers(inner.envs[0]), inner.envs[0].unwrapped]
    return found | versions_of(layers)


def _layers(env: Any) -> Iterator[Any]:
    """The wrappers of an env or vector env, the outermost first."""
    while env is not env.unwrapped and hasattr(env, "env"):
        yield env
        env = env.env


def spec_of_rows(
    envs: Vector, replay: SequenceReplayBuffer | None, info: InfoReader, frame_stack: int | None
) -> Spec:
    """The fields of the rows of envs, without the extras, which the first action shows."""
    # ``frame_stack`` is the number of frames that the user declares; None takes the known one, or 1
    # where the replay holds whole stacks already.
    if frame_stack is None and replay is not None and replay.is_bound:
        shape = envs.single_observation_space.shape
        fields = replay.spec.of_kind("observation")
        if any((one.key, one.shape, one.stack) == ("", shape, 1) for one in fields):
            frame_stack = 1
    stack, padding = frame_stack_of(envs, frame_stack)
    return Spec.from_spaces(
        envs.single_observation_space,
        envs.single_action_space,
        frame_stack=stack,
        stack_padding=padding,
        more=[
            field_of(f"info/{name}", value.dtype, value.shape)
            for name, value in info.missing.items()
        ],
    )


def stacks_are_known(groups: Sequence[Vector], spec: Spec) -> bool:
    """True for envs that are known to stack the frames of these rows right."""
    stack = max((field.stack for field in spec.of_kind("observation")), default=1)
    return all(has_known_stacks(group, stack) for group in groups)


@dataclass(eq=False)
class Session:
    """A session of a Collector or a recorded env in a replay; it begins with the first step."""

    # It holds no reference to the Collector, so that dropping that closes the envs at once.

    replay: SequenceReplayBuffer
    spec: Spec  # of the rows, without the extras
    envs: Sequence[Vector]
    checker: ChoiceChecker  # knows the extras, once it has checked the first actions
    facts: Mapping[str, Any]  # for `describe`; without a number, the session gets the next one
    flush_seconds: float  # no row waits longer than this to be stored
    watch: SpaceWatch
    is_recorded: bool = False  # the envs are recorded, and write while others may do so
    has_digest: bool = True  # compute that of the rows, unless the envs are recorded
    # Of recorded envs: rows are stored by `flush` alone, so that `RecordedWriter` can discard them,
    # until there are so many bytes of them.
    held_bytes: int = 0
    continues: tuple[object, Mapping[str, np.ndarray] | None] | None = None
    """The state of the writer of the run that goes on, and what its envs show."""
    is_cut: bool = False
    """The open episodes of the run that goes on end here, before the session begins."""

    def begin(self) -> ReplayWriter:
        """Bind the replay to the rows' Spec, and make the writer."""
        replay = self.replay
        # Streams are numbered from 0 on. The envs of several sessions that write in turns get
        # different numbers: those of recorded envs, of which each is a session, and a Collector
        # beside them. Others may begin now, so that the numbers must stay these ones.
        with replay.write_lock:
            facts = {"session": len(replay.sessions), **self.facts}
            replay.bind(
                self.spec.with_more(self.checker.extra_fields),
                describe(self.envs, **facts),
                continues=self.continues is not None,
            )
            num_envs = sum(one.num_envs for one in self.envs)
            beside = _sessions.setdefault(replay, weakref.WeakKeyDictionary())
            taken = [one for one in beside.values() if self.is_recorded or one.is_recorded]
            first = min(
                number
                for number in (0, *(one.stop for one in taken))
                if all(number >= one.stop or number + num_envs <= one.first for one in taken)
            )
            target = _Streams(self, first, num_envs)
            kind = RecordedWriter if self.is_recorded else ReplayWriter
            writer = kind(
                target if self.is_recorded or first else replay,
                num_envs,
                self.flush_seconds,
                known_stacks=stacks_are_known(self.envs, self.spec),
                has_digest=self.has_digest and not self.is_recorded,
            )
            if self.continues is not None:
                writer.load_state_dict(*self.continues)
                if self.is_cut:
                    writer.cut()
            beside[writer] = target
            writer.watch = self.watch
            if self.is_recorded:
                replay.attach(writer)
        return writer

    def end(self, writer: ReplayWriter) -> None:
        """Free the streams of the writer, which will not write again."""
        _sessions[self.replay].pop(writer, None)


class SpaceWatch:
    """Tells of observations that are not in their space, once an env, and counts their rows."""

    # It sees chunks rather than rows, which takes hardly any time.

    def __init__(self, spec: Spec, space: gymnasium.Space[object]) -> None:
        self.rows = 0
        """Rows so far that have such an observation."""
        self._space = original_space(space)
        self._limits: dict[str, Limits] = {}
        self._stacks = {field.name for field in spec.fields if field.stack > 1}
        names = _names_of(spec.observation)
        for name, limits in zip(names, all_limits_of(space), strict=True):
            if isinstance(limits, tuple) and name in self._stacks:  # a row has the newest frame
                low, high = (one[-1] if np.ndim(one) else one for one in limits)
                self._limits[name] = low, high
            elif limits is not None:
                self._limits[name] = limits
        self._told = set[int]()
        self._seen: dict[int, tuple[int, int]] = {}

    def __call__(self, chunks: Sequence[Chunk]) -> None:
        """See rows that were stored."""
        if not self._limits or not chunks:
            return
        # All at once first: nearly always all are in the space, and chunks may be short and many.
        is_right = all(
            inside_of(np.concatenate([chunk.fields[name] for chunk in chunks]), limits).all()
            for name, limits in self._limits.items()
        )
        for chunk in chunks:
            episode, stop = self._seen.get(chunk.stream, (-1, 0))
            # The newest row of a chunk may come once more, in the next one. An episode whose rows
            # were discarded begins anew.
            again = int(episode == chunk.episode and stop - chunk.first_row == 1)
            self._seen[chunk.stream] = chunk.episode, chunk.first_row + chunk.rows
            if is_right:
                continue
            wrong = np.zeros(chunk.rows - again, np.bool_)
            for name, limits in self._limits.items():
                wrong |= outside_of(chunk.fields[name][again:], limits)
            self._tell(chunk.stream, wrong, chunk.first_row + again, "an episode")

    def see_rollout(self, columns: Mapping[str, np.ndarray]) -> None:
        """See the rows ``[T, N, ...]`` of a rollout that are stored nowhere else, by field name."""
        wrong: np.ndarray | None = None
        for name, limits in self._limits.items():
            rows = columns[name][:, :, -1] if name in self._stacks else columns[name]
            marks = outside_of(rows.reshape(-1, *rows.shape[2:]), limits).reshape(rows.shape[:2])
            wrong = marks if wrong is None else wrong | marks
        if wrong is not None and np.count_nonzero(wrong):
            for env in range(wrong.shape[1]):
                self._tell(env, wrong[:, env], 0, "a rollout")

    def _tell(self, env: int, wrong: np.ndarray, first_row: int, of: str) -> None:
        """Count the marked rows of an env, and warn of the first one."""
        count = int(np.count_nonzero(wrong))
        self.rows += count
        if count and env not in self._told:
            self._told.add(env)
            row = first_row + int(wrong.argmax())
            warnings.warn(
                f"env {env}: expected observations in {self._space}, got one with a value that is "
                f"NaN or outside of it, in row {row} of {of}; it is stored as it is: correct the "
                f"env, or its space",
                stacklevel=3,
            )


def _names_of(layout: Any) -> list[str]:
    """The fields of nested observations, with the keys of a Dict in the order of the alphabet."""
    if isinstance(layout, str):
        return [layout]
    parts = [layout[k] for k in sorted(layout)] if isinstance(layout, Mapping) else layout
    return [name for part in parts for name in _names_of(part)]


class RecordedWriter(ReplayWriter):
    """A writer whose open episodes can be continued after others have written, by `_Streams`."""

    _replay: _Streams

    @property
    def is_outdated(self) -> bool:
        """False."""
        return False

    def flush(self) -> None:
        """Store all rows, also those that were held back."""
        with self.guard:
            super().flush()
            self._replay.release()

    def close(self) -> None:
        """Store all rows; nothing can be added afterwards."""
        with self.guard:
            super().close()
            self._replay.release()

    def discard(self) -> bool:
        """Drop all rows since the last flush; False where there were too many to hold them back."""
        with self.guard:
            if not self._replay.forget():
                return False
            self.start_over()
            return True


class _Streams:
    """A replay as one of several sessions that write in turns sees it; see `Session`."""

    # The session numbers its streams from 0 on, and its episodes as if no other one wrote; both
    # numbers are replaced where they are taken. All else is the replay's.

    path: Path | None
    capacity: int | None
    storage: Storage
    spec: Spec
    sessions: Sequence[Mapping[str, object]]
    write_lock: RLock

    def __init__(self, session: Session, first: int, num_envs: int) -> None:
        # Weak, as it is held by a registry whose keys are the replays.
        self._replay = weakref.ref(session.replay)
        self.first, self.stop = first, first + num_envs
        self.is_recorded = session.is_recorded
        self._next_episode = session.replay.storage.index.next_episode
        self._is_alone = True
        self._held: list[Chunk] = []
        self._most_held = self._room = session.held_bytes
        self._newest: dict[int, tuple[int, int]] = {}
        """For each stream the session's number of its newest episode, and the stored one."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def add(self, chunks: Sequence[Chunk]) -> None:
        """Store chunks of episodes, or hold them back; else they are durable when it returns."""
        if self._room > 0:
            # Copied: the writer uses the memory of rows again that it has handed on.
            self._held += [
                replace(one, fields={name: rows.copy() for name, rows in one.fields.items()})
                for one in chunks
            ]
            self._room -= sum(rows.nbytes for one in chunks for rows in one.fields.values())
            if self._room > 0:
                return
            chunks, self._held = self._held, []
        self._add(chunks)

    def release(self) -> None:
        """Store the chunks that were held back, and hold back those that follow."""
        chunks, self._held = self._held, []
        self._room = self._most_held
        if chunks:
            self._add(chunks)

    def forget(self) -> bool:
        """Drop the chunks that were held back; False if others before them are stored already."""
        if self._room <= 0:
            return False
        self._held, self._room = [], self._most_held
        return True

    def _add(self, chunks: Sequence[Chunk]) -> None:
        with self._target.write_lock:
            free = self.storage.index.next_episode
            self._is_alone &= free == self._next_episode
            renumbered: list[Chunk] = []
            for chunk in chunks:
                number, stored = self._newest.get(chunk.stream, (-1, -1))
                if chunk.episode != number:
                    stored = chunk.episode if self._is_alone else free
                    free = max(free, stored + 1)
                    self._newest[chunk.stream] = chunk.episode, stored
                stream = chunk.stream + self.first
                is_same = chunk.episode == stored and chunk.stream == stream
                one = chunk if is_same else replace(chunk, episode=stored, stream=stream)
                renumbered.append(one)
            try:
                self._target.add(renumbered)
            except BaseException:
                self._newest = {}  # the writer gives other numbers to what follows
                raise
            self._next_episode = self.storage.index.next_episode

    @property
    def _target(self) -> SequenceReplayBuffer:
        replay = self._replay()
        assert replay is not None  # the writer's owner holds it
        return replay


_sessions: weakref.WeakKeyDictionary[
    SequenceReplayBuffer, weakref.WeakKeyDictionary[ReplayWriter, _Streams]
] = weakref.WeakKeyDictionary()
"""The writers of each replay that may write again, and their streams."""
