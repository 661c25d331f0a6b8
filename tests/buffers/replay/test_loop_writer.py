"""`SequenceReplayBuffer.writer`: rows one by one, and whole episodes, agree with plain lists."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

import stepwell as sw
from stepwell.buffers import (
    OBSERVED,
    Chunk,
    End,
    Episode,
    EpisodeBuffer,
    Field,
    NotEnoughData,
    SequenceReplayBuffer,
    Spec,
    SpecMismatch,
)
from stepwell.buffers.replay.writer import ReplayWriter
from support.examples import examples
from support.programs import run_python

DICT = spaces.Dict(
    {"camera": spaces.Box(0, 255, (2, 2), np.uint8), "state": spaces.Box(-9, 9, (3,), np.float32)}
)
BOX = spaces.Box(-1, 1, (2,), np.float32)
STACK = 3
PLAIN = spaces.Box(-9, 9, (1,), np.float32), spaces.Discrete(5)


@dataclass
class Played:
    """One episode as plain lists: T + 1 observations and infos, T of the rest."""

    stream: int
    observations: list[Any]
    infos: list[int]
    actions: list[Any] = field(default_factory=list[Any])
    rewards: list[float] = field(default_factory=list[float])
    values: list[np.float32] = field(default_factory=list[np.float32])
    end: End = End.NONE
    is_last_known: bool = True
    loose: tuple[Any, Any] | None = None
    """The action and the value of a last step whose result never came."""

    def rows(self, spec: Spec, *, loose: bool = True) -> dict[str, bytes]:
        """The bytes of every field, as they should be stored."""
        count = len(self.observations)
        is_dict = spec.observation != "observation"
        action, value = np.zeros(2, np.float32) if is_dict else np.int64(0), np.float32(0)
        if self.loose is not None and loose:
            action, value = self.loose
        stored = {
            "reward": np.array([0.0, *self.rewards]),
            "extra/value": np.array([*self.values, value], np.float32),
            "action": np.stack([*self.actions, action]),
            "info/lives": np.array(self.infos, np.int64),
            OBSERVED.name: np.array([True] * (count - 1) + [self.is_last_known]),
        }
        if not is_dict:
            stored["observation"] = np.stack(self.observations)
        else:
            for key in ("camera", "state"):
                stored[f"observation/{key}"] = np.stack([each[key] for each in self.observations])
        return {name: stored[name].tobytes() for name in spec.names}


def stored_rows(episode: Episode) -> dict[str, bytes]:
    return {name: rows.tobytes() for name, rows in episode.fields.items()}


class Script:
    """Draws what each env plays, and gives it to a writer in any order; keeps lists of it."""

    def __init__(self, draw: st.DataObject, spec: Spec, num_envs: int) -> None:
        self.draw, self.spec, self.n = draw, spec, num_envs
        self.is_dict = spec.observation != "observation"
        self.is_stacked = not self.is_dict and spec["observation"].stack > 1
        self.is_marked = OBSERVED.name in spec.names
        self.open: list[Played | None] = [None] * num_envs
        self.is_late = [False] * num_envs
        self.done: list[Played] = []
        self.count = 0
        self.has_loose = False

    def observation(self) -> Any:
        self.count += 1
        if self.is_dict:
            return {
                "camera": np.full((2, 2), self.count % 256, np.uint8),
                "state": np.full(3, self.count, np.float32),
            }
        return np.full(2, self.count % 251, np.uint8)

    def given(self, played: Played, place: int) -> Any:
        """An observation as the caller has it: for stacks, in full."""
        if not self.is_stacked:
            return played.observations[place]
        frames = played.observations[max(0, place + 1 - STACK) : place + 1]
        padding = [np.zeros_like(frames[0])] * (STACK - len(frames))
        return np.stack([*padding, *frames])

    def info(self, lives: int) -> dict[str, object]:
        """The env's info: other keys too, and nothing where the value is missing."""
        return {"other": "text"} if lives == -1 else {"lives": lives, "other": None}

    def action(self) -> Any:
        number = self.draw.draw(st.integers(0, 4))
        return np.full(2, number / 4, np.float32) if self.is_dict else np.int64(number)

    def step(self, writer: ReplayWriter, envs: list[int], *, as_group: bool) -> None:
        """One transition of each of some envs, in one call or one call each."""
        calls: list[dict[str, Any]] = []
        is_known = self.draw.draw(st.booleans())
        ends = [self.draw.draw(st.sampled_from((0, 0, 0, 1, 2, 3))) for _ in envs]
        if any(ends) and not self.is_marked:
            is_known = True
        for env, end in zip(envs, ends, strict=True):
            played = self.open[env]
            if played is None:
                lives = self.draw.draw(st.integers(-1, 2))
                played = self.open[env] = Played(env, [self.observation()], [lives])
            before = len(played.observations) - 1
            after = played.observations[before] if not is_known and end else self.observation()
            lives = played.infos[before] if not is_known and end else 1
            played.observations.append(after)
            played.infos.append(lives)
            played.actions.append(self.action())
            played.rewards.append(float(self.draw.draw(st.integers(-2, 2))))
            played.values.append(np.float32(self.count / 2))
            call = {
                "observation": self.given(played, before),
                "action": played.actions[-1],
                "reward": played.rewards[-1],
                "next_observation": self.given(played, before + 1) if is_known else None,
                "terminated": bool(end & 1),
                "truncated": bool(end & 2),
                "extras": {"value": played.values[-1]},
                "info": self.info(played.infos[before]),
                "next_info": self.info(played.infos[before + 1]) if is_known else None,
            }
            calls.append(call)
            self.is_late[env] = not is_known and not end
            if end:
                played.end, played.is_last_known = End(end), is_known
                self.done.append(played)
                self.open[env] = None
        if not as_group:
            for env, call in zip(envs, calls, strict=True):
                writer.add(**call, env_ids=env)
            return
        whole = {name: self.together([each[name] for each in calls]) for name in calls[0]}
        for name in ("info", "next_info"):  # a key that only some have is missing in none
            given = [dict(each[name] or {}) for each in calls]
            column = np.array([each.get("lives", -1) for each in given])
            whole[name] = {"lives": column} if calls[0][name] is not None else None
        whole["extras"] = {"value": np.stack([each["extras"]["value"] for each in calls])}
        writer.add(**whole, env_ids=envs)

    def together(self, values: list[Any]) -> Any:
        if values[0] is None:
            return None
        if isinstance(values[0], dict):
            return {key: np.stack([each.get(key, 0) for each in values]) for key in values[0]}
        return np.stack(values)

    def cut(self, env: int) -> None:
        """The env's episode ends here; what came last is known only where it can be marked."""
        played, self.open[env] = self.open[env], None
        if played is None:
            return
        if self.is_late[env] and self.is_marked:
            played.observations[-1] = played.observations[-2]
            played.infos[-1] = played.infos[-2]
            played.is_last_known = False
        elif self.is_late[env]:
            for rows in (played.observations, played.infos, played.rewards):
                rows.pop()
            self.has_loose = True
            played.loose = played.actions.pop(), played.values.pop()
        self.is_late[env] = False
        if played.actions:
            self.done.append(played)

    def whole(self, writer: ReplayWriter, played: Played) -> None:
        """Give an episode at once."""
        observation: Any = np.stack(played.observations) if not self.is_dict else None
        if observation is None:
            observation = {
                key: np.stack([each[key] for each in played.observations])
                for key in ("camera", "state")
            }
        infos = np.array(played.infos)
        if not played.is_last_known:
            infos = infos[:-1]
            observation = (
                {key: rows[:-1] for key, rows in observation.items()}
                if isinstance(observation, dict)
                else observation[:-1]
            )
        action = np.stack(played.actions)
        writer.add_episode(
            observation=observation,
            action=action,
            reward=played.rewards,
            terminated=bool(played.end & End.TERMINATED),
            truncated=bool(played.end & End.TRUNCATED),
            extras={"value": np.array(played.values)},
            info={"lives": infos, "other": None},
            env=played.stream,
        )
        for rows in (action, *(observation.values() if self.is_dict else [observation])):
            rows[...] = 1  # the caller's own again

    def expected(self, *, loose: bool = True) -> list[tuple[int, End, dict[str, bytes]]]:
        return [
            (each.stream, each.end, each.rows(self.spec, loose=loose))
            for each in sorted(self.done, key=lambda each: each.stream)
        ]

    def new_episode(self, env: int) -> Played:
        steps = self.draw.draw(st.integers(1, 6))
        end = self.draw.draw(st.sampled_from((End.NONE, End.TERMINATED, End.TRUNCATED)))
        played = Played(env, [self.observation() for _ in range(steps + 1)], [2] * (steps + 1))
        played.actions = [self.action() for _ in range(steps)]
        played.rewards = [float(step) for step in range(steps)]
        played.values = [np.float32(step) for step in range(steps)]
        played.end = end
        return played


def spec_of(kind: str, *, is_marked: bool) -> Spec:
    more = [OBSERVED] if is_marked else []
    if kind == "dict":
        return Spec.from_spaces(DICT, BOX, more=more)
    frames = STACK if kind == "stack" else 1
    space = spaces.Box(0, 255, (STACK, 2) if kind == "stack" else (2,), np.uint8)
    return Spec.from_spaces(space, spaces.Discrete(5), frame_stack=frames, more=more)


@contextlib.contextmanager
def new_replay(*, on_disk: bool) -> Iterator[tuple[SequenceReplayBuffer, Path | None]]:
    if not on_disk:
        yield SequenceReplayBuffer(seed=0), None
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        with SequenceReplayBuffer(path, seed=0) as replay:
            yield replay, path


def by_stream(replay: SequenceReplayBuffer) -> list[tuple[int, End, dict[str, bytes]]]:
    found = [
        (e.stream, e.end & ~End.PENDING, stored_rows(e))
        for e in replay.iter_episodes()
        if e.steps  # else the result of its only step never came
    ]
    return sorted(found, key=lambda each: each[0])  # stable: the order within a stream counts


def options() -> dict[str, Any]:
    return {"info": {"lives": -1}, "extras": {"value": np.float32(0)}}


@settings(max_examples=examples(60), deadline=None)
@given(
    draw=st.data(),
    kind=st.sampled_from(("plain", "stack", "dict")),
    num_envs=st.integers(1, 3),
    is_marked=st.booleans(),
    on_disk=st.booleans(),
    chunk_rows=st.sampled_from((1, 2, 3, 16)),
)
def test_rows_in_any_order_are_the_whole_episodes_and_the_lists(
    draw: st.DataObject, kind: str, num_envs: int, is_marked: bool, on_disk: bool, chunk_rows: int
) -> None:
    spec = spec_of(kind, is_marked=is_marked)
    with (
        new_replay(on_disk=on_disk) as (replay, path),
        new_replay(on_disk=on_disk) as (other, _),
        mock.patch("stepwell.buffers.rows.episode_buffer._rows_by_size", return_value=chunk_rows),
        mock.patch("stepwell.buffers.replay.writer._WHOLE_ROWS", chunk_rows),
    ):
        with replay.writer(spec, num_envs, **options()) as writer:
            script = Script(draw, replay.spec, num_envs)
            for _ in range(draw.draw(st.integers(0, 25))):
                what = draw.draw(st.sampled_from(("step",) * 6 + ("flush", "cut", "whole", "draw")))
                env = draw.draw(st.integers(0, num_envs - 1))
                if what == "step":
                    envs = draw.draw(st.permutations(range(num_envs)))
                    count = draw.draw(st.integers(1, num_envs))
                    script.step(writer, envs[:count], as_group=draw.draw(st.booleans()))
                elif what == "flush":
                    writer.flush()
                elif what == "cut":
                    writer.cut([env])
                    script.cut(env)
                elif what == "whole":
                    script.cut(env)
                    script.done.append(script.new_episode(env))
                    script.whole(writer, script.done[-1])
                else:
                    with contextlib.suppress(NotEnoughData):
                        replay.sample_transitions(2)
        for env in range(num_envs):
            script.cut(env)
        assert by_stream(replay) == script.expected()
        numbers = [e.metadata["stream_episode"] for e in replay.iter_episodes() if e.stream == 0]
        assert numbers == sorted(set(numbers))  # type: ignore[type-var]
        with other.writer(spec, num_envs, **options()) as second:
            for played in script.done:
                script.whole(second, played)
        assert by_stream(other) == script.expected(loose=False)
        if not script.has_loose:
            assert other.digest() == replay.digest()
        replay.close()
        other.close()
        if path is not None:
            with SequenceReplayBuffer.open(path) as again:
                assert by_stream(again) == script.expected()


def transitions(episodes: list[Episode]) -> list[tuple[float, int, float, float]]:
    """(observation, action, reward, next observation) of each step of one stream."""
    found: list[tuple[float, int, float, float]] = []
    for one in episodes:
        rows = one.fields
        found += [
            (
                rows["observation"][t].item(),
                rows["action"][t].item(),
                rows["reward"][t + 1].item(),
                rows["observation"][t + 1].item(),
            )
            for t in range(one.steps)
        ]
    return found


@pytest.mark.proof
@settings(max_examples=60, deadline=None)
@given(draw=st.data(), on_disk=st.booleans(), chunk_rows=st.sampled_from((1, 2, 3, 16)))
def test_no_step_is_lost_where_others_store_episodes_meanwhile(
    draw: st.DataObject, on_disk: bool, chunk_rows: int
) -> None:
    n = 2
    played: list[list[tuple[float, int, float, float]]] = [[] for _ in range(n)]
    ends, others, count = 0, 0, 0
    with (
        new_replay(on_disk=on_disk) as (replay, _),
        mock.patch("stepwell.buffers.rows.episode_buffer._rows_by_size", return_value=chunk_rows),
    ):
        newest: list[float | None] = [None] * n
        with replay.writer(PLAIN, n) as writer:
            for _ in range(draw.draw(st.integers(0, 30))):
                what = draw.draw(st.sampled_from(("step",) * 5 + ("flush", "other", "whole")))
                env = draw.draw(st.integers(0, n - 1))
                count += 1
                if what == "step":
                    start = newest[env]
                    start = count - 0.5 if start is None else start
                    end = draw.draw(st.sampled_from((False, False, True)))
                    row = np.full(1, start, np.float32), np.full(1, count, np.float32)
                    writer.add(row[0], count % 5, count, row[1], end, False, env_ids=env)
                    played[env].append((start, count % 5, count, count))
                    newest[env], ends = (None if end else count), ends + end
                elif what == "flush":
                    writer.flush()
                elif what == "whole":
                    rows = np.array([[count], [count + 0.25]], np.float32)
                    writer.add_episode(rows, [1], [2], terminated=True, env=env)
                    played[env].append((count, 1, 2, count + 0.25))
                    newest[env], ends = None, ends + 1
                else:
                    stream = draw.draw(st.sampled_from((env, 7)))
                    replay.add([foreign(replay, stream)])
                    others += 1
        episodes = [e for e in replay.iter_episodes() if e.metadata != {"who": "another"}]
        for env in range(n):
            assert transitions([e for e in episodes if e.stream == env]) == played[env]
        assert sum(e.end.is_final for e in episodes) == ends
        assert all(e.reward[0] == 0 for e in episodes)
        assert sum(e.metadata == {"who": "another"} for e in replay.iter_episodes()) == others
        for env in range(n):
            numbers = [e.metadata["stream_episode"] for e in episodes if e.stream == env]
            assert len(set(numbers)) == len(numbers)


def foreign(replay: SequenceReplayBuffer, stream: int) -> Chunk:
    """An episode that another writer stores."""
    rows = {name: np.zeros((2, *replay.spec[name].shape)) for name in replay.spec.names}
    rows = {name: array.astype(replay.spec[name].dtype) for name, array in rows.items()}
    number = replay.storage.index.next_episode
    return Chunk(number, stream, 0, End.TERMINATED, rows, {"who": "another"})


def test_the_rest_of_an_episode_that_others_split_cannot_be_played_again() -> None:
    replay = SequenceReplayBuffer(seed=0)
    replay.bind(Spec.from_spaces(*PLAIN), {})
    writer = ReplayWriter(replay, 1, 1e9)

    def row(value: int, **flags: np.ndarray) -> None:
        metadata = {0: {"seed": 3, "task": "door"}} if "is_first" in flags else None
        writer.observe(
            {"observation": np.full((1, 1), value, np.float32)},
            np.ones(1) * value,
            metadata=metadata,
            **flags,
        )

    row(0, is_first=np.array([True]))
    for value in (1, 2):
        writer.act({"action": np.array([value])}, None)
        row(value)
    writer.flush()
    replay.add([foreign(replay, 0)])
    assert writer.is_outdated
    writer.act({"action": np.array([3])}, None)
    row(3, terminated=np.array([True]))
    row(4, is_first=np.array([True]))
    writer.act({"action": np.array([4])}, None)
    row(5)
    writer.flush()
    assert not writer.is_outdated
    first, _, rest, last = replay.iter_episodes()
    assert first.metadata == {"stream_episode": 0, "session": 0, "seed": 3, "task": "door"}
    assert rest.metadata == {"stream_episode": 1, "task": "door"}
    assert (rest.reward.tolist(), rest.end) == ([0, 3], End.TERMINATED)
    assert last.metadata["stream_episode"] == 2


def walk(writer: ReplayWriter, steps: int, *, begin: int = 0, end: bool = False) -> None:
    """Steps of one env that counts."""
    for t in range(begin, begin + steps):
        rows = np.full(1, t, np.float32), np.full(1, t + 1, np.float32)
        writer.add(rows[0], t % 5, 1.0, rows[1], end and t == begin + steps - 1, False)


def test_a_block_ends_with_all_rows_stored_and_noted(tmp_path: Path) -> None:
    with SequenceReplayBuffer(tmp_path / "store") as replay:
        with replay.writer(PLAIN, metadata={"robot": "arm"}) as writer:
            walk(writer, 3, end=True)
            assert replay.steps == 0
        assert replay.steps == 3
        assert writer.is_closed
        (episode,) = replay.iter_episodes()
        assert episode.metadata == {"stream_episode": 0, "session": 0, "robot": "arm"}
        (session,) = replay.sessions
        assert session["num_envs"] == 1
        assert session["spaces"]["action"]["type"] == "Discrete"  # type: ignore[index]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, ZeroDivisionError])
def test_an_error_keeps_whole_rows_and_says_so(kind: type[BaseException], tmp_path: Path) -> None:
    replay = SequenceReplayBuffer(tmp_path / "store")
    with pytest.raises(kind) as caught, replay.writer(PLAIN) as writer:  # noqa: PT012
        walk(writer, 3)
        raise kind
    assert caught.value.__notes__ == [f"kept: 3 steps, 0 ended episodes, in {tmp_path / 'store'}"]
    replay.close()
    with SequenceReplayBuffer.open(tmp_path / "store", read_only=True) as again:
        assert again.steps == 3
    replay, error = SequenceReplayBuffer(seed=0), kind()
    writer = replay.writer(PLAIN)
    walk(writer, 3)
    with mock.patch.object(replay.storage, "add", side_effect=OSError("disk full")):
        writer.__exit__(kind, error, None)
    assert error.__notes__ == ["then: disk full", "kept: 0 steps, 0 ended episodes, in RAM"]


def test_ctrl_c_in_the_middle_of_a_row_waits_for_its_end() -> None:
    import signal

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        replay = SequenceReplayBuffer(seed=0)
        real = EpisodeBuffer._write

        def interrupted(buffer: EpisodeBuffer, envs: Any, values: Any) -> None:
            if "action" in values:
                signal.raise_signal(signal.SIGINT)
            real(buffer, envs, values)

        with pytest.raises(KeyboardInterrupt), replay.writer(PLAIN) as writer:  # noqa: PT012
            walk(writer, 2)
            with mock.patch.object(EpisodeBuffer, "_write", interrupted):
                walk(writer, 1, begin=2)
        (episode,) = replay.iter_episodes()
        assert episode.reward.tolist() == [0, 1, 1, 1]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_dropped_writer_and_closing_the_replay_first_lose_nothing(tmp_path: Path) -> None:
    replay = SequenceReplayBuffer(seed=0)
    writer = replay.writer(PLAIN)
    walk(writer, 3)
    del writer
    gc.collect()
    assert replay.steps == 3
    replay.writer(PLAIN).close()  # nothing is open
    replay = SequenceReplayBuffer(tmp_path / "store")
    with replay.writer(PLAIN) as writer:
        walk(writer, 3)
        replay.close()
        with pytest.raises(ValueError, match="closed"):
            walk(writer, 1, begin=3)
    with SequenceReplayBuffer.open(tmp_path / "store") as again:
        assert again.steps == 3


@pytest.mark.proof
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_leaves_the_rows_to_the_first_one() -> None:
    replay = SequenceReplayBuffer(seed=0)
    writer = replay.writer(PLAIN)
    walk(writer, 3)
    child = os.fork()
    if not child:
        try:
            del writer
            gc.collect()
        finally:
            os._exit(replay.steps)
    assert os.waitpid(child, 0)[1] == 0
    del writer
    gc.collect()
    assert replay.steps == 3


@pytest.mark.proof
@pytest.mark.parametrize("is_killed", [False, True])
def test_rows_of_a_process_that_ends_are_stored_and_those_before_a_kill(
    tmp_path: Path, is_killed: bool
) -> None:
    code = f"""
import os, signal, numpy as np, stepwell as sw
from gymnasium import spaces
replay = sw.SequenceReplayBuffer({str(tmp_path / "store")!r})
rows = spaces.Box(0, 9, (1,)), spaces.Discrete(2)
writer = replay.writer(rows, {"flush_seconds=0" if is_killed else ""})
for t in range(5):
    writer.add(np.full(1, t, np.float32), 0, 1, np.full(1, t + 1, np.float32), False, False)
if {is_killed}:
    os.kill(os.getpid(), signal.SIGKILL)
"""
    run_python("-c", code, code=-signal.SIGKILL if is_killed else 0)
    with SequenceReplayBuffer.open(tmp_path / "store", read_only=True) as replay:
        assert replay.steps == 5


def test_drawing_stores_what_makes_up_a_thousandth() -> None:
    replay = SequenceReplayBuffer(seed=0)
    with replay.writer(PLAIN) as writer:
        with pytest.raises(NotEnoughData):
            replay.sample_transitions(1)
        walk(writer, 1)
        assert replay.sample_transitions(1).action.tolist() == [0]
        walk(writer, 1999, begin=1)
        writer.flush()
        walk(writer, 1, begin=2000)
        replay.sample_sequences(1, 2)
        assert replay.steps == 2000
        walk(writer, 1, begin=2001)
        replay.sample_sequences(1, 2)
        assert replay.steps == 2002
        walk(writer, 1, begin=2002)
        assert sum(len(batch.ids) for batch in replay.epoch(sw.Transitions(64))) == 2003
        walk(writer, 3, begin=2003)
        with replay.loader(sw.Transitions(4)) as batches:
            next(batches)
        assert replay.steps == 2006


def test_a_draw_with_a_closed_writer_looks_at_none() -> None:
    replay = SequenceReplayBuffer(seed=0)
    with replay.writer(PLAIN) as writer:
        walk(writer, 10)
    replay.sample_transitions(1)
    with mock.patch.object(SequenceReplayBuffer, "_catch_up", side_effect=AssertionError):
        replay.sample_transitions(1)


def test_a_thread_may_draw_while_another_one_adds() -> None:
    replay = SequenceReplayBuffer(seed=0)
    errors: list[BaseException] = []
    with replay.writer(PLAIN) as writer:
        walk(writer, 10)

        def draw() -> None:
            try:
                while not writer.is_closed:
                    batch = replay.sample_transitions(8)
                    assert (batch.next_observation == batch.observation + 1).all()
            except BaseException as error:  # it is looked at below
                errors.append(error)

        threads = [threading.Thread(target=draw) for _ in range(2)]
        for thread in threads:
            thread.start()
        walk(writer, 3000, begin=10)
    for thread in threads:
        thread.join()
    assert errors == []
    assert transitions(list(replay.iter_episodes())) == [(t, t % 5, 1, t + 1) for t in range(3010)]


def test_a_collector_continues_what_a_writer_began_and_the_other_way_round(tmp_path: Path) -> None:
    env = gym.make("CartPole-v1")
    rows = np.zeros(4, np.float32)
    with SequenceReplayBuffer(tmp_path / "store", seed=0) as replay:
        for _ in range(2):
            with replay.writer(env) as writer:
                writer.add(rows, 0, 1, rows + 1, True, False)
            with sw.Collector(env, sw.RandomPolicy(), replay, seed=0) as collector:
                collector.collect(steps=5)
        assert replay.steps == 12
        assert ["recipe" in session for session in replay.sessions] == [False, True] * 2
        with pytest.raises(SpecMismatch, match=r"env.*another"):
            replay.bind(replay.spec, {"recipe": {"env": "another"}})


def test_the_rows_may_be_those_of_an_env_a_vector_env_or_the_replay() -> None:
    env, envs = gym.make("CartPole-v1"), gym.make_vec("CartPole-v1", num_envs=2)
    spec = Spec.from_spaces(env.observation_space, env.action_space)
    for rows, count in ((env, 1), (envs, 2), (spec, 1), (spec, 3)):
        replay = SequenceReplayBuffer(seed=0)
        with replay.writer(rows, count) as writer:
            assert writer.num_envs == count
            assert replay.spec == spec
        with replay.writer() as writer:
            assert writer.num_envs == 1
    one = gym.make_vec("CartPole-v1", num_envs=1)
    with SequenceReplayBuffer(seed=0).writer(one) as writer:  # values have its axis
        start = np.zeros((1, 4), np.float32)
        writer.add(start, [0], [1.0], start + 1, [False], [True])
        writer.add(start[0], 0, 1, start[0], False, True, env_ids=0)
    with pytest.raises(ValueError, match=r"num_envs.*2.*got 3"):
        SequenceReplayBuffer().writer(envs, 3)


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        (("CartPole-v1",), TypeError, ["Spec", "CartPole-v1"]),
        ((PLAIN[:1],), TypeError, ["pair", "Box"]),
        ((None,), ValueError, ["empty"]),
        ((PLAIN, 0), ValueError, ["num_envs", "0"]),
        ((PLAIN, 100_000_000), ValueError, ["num_envs", "100000000"]),
        ((PLAIN, 1, {"flush_seconds": -1}), ValueError, ["flush_seconds", "-1"]),
        ((PLAIN, 1, {"metadata": {"seed": 3}}), ValueError, ["seed"]),
        ((PLAIN, 1, {"metadata": {"arm": object()}}), TypeError, ["metadata", "object"]),
        ((PLAIN, 1, {"info": ["lives"]}), TypeError, ["info", "lives"]),
        ((PLAIN, 1, {"info": {"text": "none"}}), TypeError, ["text", "none"]),
        ((PLAIN, 1, {"extras": {"value": None}}), TypeError, ["value", "None"]),
        ((PLAIN, 1, {"extras": {3: 1.0}}), TypeError, ["extra", "3"]),
    ],
)
def test_a_wrong_argument_is_refused_and_changes_nothing(
    arguments: tuple[Any, ...], kind: type[Exception], words: list[str]
) -> None:
    replay = SequenceReplayBuffer()
    *args, options = arguments if isinstance(arguments[-1], dict) else (*arguments, {})
    with pytest.raises(kind) as caught:
        replay.writer(*args, **options)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert not replay.is_bound


MASKED = np.ma.array([0.0], mask=[True], dtype=np.float32)


def zero(value: float = 0) -> np.ndarray:
    return np.full(1, value, np.float32)


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"observation": np.zeros(1)}, SpecMismatch, ["observation", "float32", "float64"]),
        ({"next_observation": np.zeros(2, np.float32)}, SpecMismatch, ["observation", "(2,)"]),
        ({"action": 0.5}, SpecMismatch, ["action", "int64", "float64"]),
        ({"reward": "much"}, SpecMismatch, ["reward", "numbers"]),
        ({"terminated": 0.5}, ValueError, ["terminated", "float64"]),
        ({"terminated": True, "next_observation": None}, ValueError, ["env 0", OBSERVED.name]),
        ({"env_ids": 1}, ValueError, ["env_ids", "1"]),
        ({"extras": {"value": 1}}, SpecMismatch, ["extras", "value"]),
        ({"extras": [1]}, TypeError, ["extras", "[1]"]),
        ({"metadata": "door"}, TypeError, ["metadata", "door"]),
        ({"metadata": {"session": 0}}, ValueError, ["metadata", "session"]),
        ({"info": 3}, TypeError, ["info", "3"]),
        ({"info": {"lives": 0.5}}, SpecMismatch, ["lives", "int64", "float64"]),
        ({"next_info": {"lives": [1, 2]}}, SpecMismatch, ["lives", "(2,)"]),
        # Values that would be stored as others.
        ({"observation": MASKED}, SpecMismatch, ["observation", "masked"]),
        ({"reward": MASKED}, SpecMismatch, ["reward", "masked"]),
        ({"reward": None}, SpecMismatch, ["reward", "object"]),
        ({"truncated": "False"}, ValueError, ["truncated", "<U5"]),
        ({"info": {"lives": MASKED}}, SpecMismatch, ["lives", "masked"]),
    ],
)
def test_a_wrong_row_is_refused_and_changes_nothing(
    changes: dict[str, Any], kind: type[Exception], words: list[str]
) -> None:
    replay = SequenceReplayBuffer(seed=0)
    right: dict[str, Any] = {
        "observation": zero(1),
        "action": 1,
        "reward": 1,
        "next_observation": zero(2),
        "terminated": np.array([False]),
        "truncated": 0,
    }
    with replay.writer(PLAIN, info={"lives": -1}) as writer:
        before = {"observation": zero(0), "next_observation": zero(1), "reward": np.array([[1.5]])}
        writer.add(**{**right, **before})
        with pytest.raises(kind) as caught:
            writer.add(**{**right, **changes})
        assert all(word in str(caught.value) for word in words), str(caught.value)
        writer.add(**right)
    (episode,) = replay.iter_episodes()
    assert episode.fields["observation"].ravel().tolist() == [0, 1, 2]
    assert episode.reward.tolist() == [0, 1.5, 1]


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"observation": np.zeros((4, 1))}, SpecMismatch, ["observation", "float64"]),
        ({"observation": np.zeros((3, 1), np.float32)}, ValueError, ["observation", "4 rows"]),
        ({"observation": {"x": 1}}, ValueError, ["observation", "numbers"]),
        ({"action": [1, 1]}, ValueError, ["action", "3 rows"]),
        ({"reward": [[1], [2], [3]]}, ValueError, ["rewards", "(3, 1)"]),
        ({"reward": ["a"]}, SpecMismatch, ["reward"]),
        ({"terminated": 1}, TypeError, ["terminated", "1"]),
        ({"truncated": np.array([False, False, True])}, TypeError, ["truncated"]),
        ({"extras": {"value": [1, 2, 3]}}, SpecMismatch, ["extras", "value"]),
        ({"extras": [1]}, TypeError, ["extras", "[1]"]),
        ({"info": [1]}, TypeError, ["info", "[1]"]),
        ({"metadata": {"seed": 1}}, ValueError, ["seed"]),
        ({"metadata": {"a": {1}}}, TypeError, ["metadata"]),
        ({"metadata": {"a": float("nan")}}, TypeError, ["metadata"]),
        ({"env": 1}, ValueError, ["env", "1"]),
        (
            {"observation": np.zeros((1, 1), np.float32), "action": np.zeros(0, int), "reward": []},
            ValueError,
            ["step", "0"],
        ),
        ({"observation": np.ma.array(np.zeros((4, 1)), mask=True)}, SpecMismatch, ["masked"]),
    ],
)
def test_a_wrong_episode_is_refused_and_changes_nothing(
    changes: dict[str, Any], kind: type[Exception], words: list[str]
) -> None:
    replay = SequenceReplayBuffer(seed=0)
    right: dict[str, Any] = {
        "observation": np.arange(4, dtype=np.float32)[:, None],
        "action": [1, 2, 3],
        "reward": [1, 2, 3],
        "terminated": True,
    }
    with replay.writer(PLAIN) as writer:
        walk(writer, 2)
        with pytest.raises(kind) as caught:
            writer.add_episode(**{**right, **changes})
        assert all(word in str(caught.value) for word in words), str(caught.value)
        walk(writer, 2, begin=2)  # the open episode goes on
        writer.add_episode(**right)
    assert [(e.id, e.steps, e.end.is_final) for e in replay.iter_episodes()] == [
        (0, 4, False),
        (1, 3, True),
    ]


def test_a_replay_that_cannot_be_written_to_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with SequenceReplayBuffer(path) as replay, replay.writer(PLAIN) as writer:
        walk(writer, 2)
        with pytest.raises(ValueError, match=r"open writer.*num_envs=2"):
            replay.writer(PLAIN)
        with pytest.raises(ValueError, match=r"env_ids.*0 to 0.*1"):
            writer.cut([1])
        with pytest.raises(ValueError, match=r"env_ids.*0 to 0.*0\.5"):
            writer.cut(np.array([0.5, 0]))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="closed"):
        replay.writer(PLAIN)
    with (
        SequenceReplayBuffer.open(path, read_only=True) as reader,
        pytest.raises(ValueError, match="read_only"),
    ):
        reader.writer()
    with (
        SequenceReplayBuffer.open([path]) as joined,
        pytest.raises(ValueError, match="read as one"),
    ):
        joined.writer()
    with SequenceReplayBuffer(path) as replay:
        with pytest.raises(SpecMismatch, match="action"):
            replay.writer((PLAIN[0], BOX))
        assert len(replay.sessions) == 1
        assert replay.steps == 2


def test_a_declared_field_that_the_spec_has_too_must_be_the_same() -> None:
    spec = Spec.from_spaces(*PLAIN, more=[Field("extra/value", "float32", (), "raw")])
    with SequenceReplayBuffer().writer(spec, extras={"value": np.float32(0)}) as writer:
        writer.add(zero(), 0, 1, zero(1), False, True, extras={"value": np.float32(1)})
    with pytest.raises(SpecMismatch, match=r"extra/value.*float32.*float64"):
        SequenceReplayBuffer().writer(spec, extras={"value": 0.0})


def test_facts_of_an_episode_are_those_given_where_it_begins() -> None:
    replay = SequenceReplayBuffer(seed=0)
    with replay.writer(PLAIN, 2, metadata={"robot": "arm"}) as writer:
        rows = np.zeros((2, 1), np.float32)
        writer.add(
            rows,
            np.zeros(2, np.int64),
            [1, 1],
            rows + 1,
            [False] * 2,
            [False] * 2,
            metadata={1: {"task": "door"}},
        )
        writer.add(rows[0] + 1, 0, 1, rows[0], True, False, env_ids=0, metadata={"task": "ignored"})
        with pytest.raises(TypeError, match=r"metadata.*0 to 1.*2"):
            writer.add(rows, [0, 0], [1, 1], rows, [False] * 2, [False] * 2, metadata={2: {}})
        writer.add_episode(rows, [0], [1], terminated=False, metadata={"robot": "leg"}, env=0)
    found = {(e.stream, e.metadata["stream_episode"]): e.metadata for e in replay.iter_episodes()}
    facts = {key: (each["robot"], each.get("task")) for key, each in found.items()}
    assert facts == {(0, 0): ("arm", None), (1, 0): ("arm", "door"), (0, 1): ("leg", None)}
