"""An EpisodeBuffer agrees with lists of rows, for any groups of envs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.buffers import Chunk, End, EpisodeBuffer, Field, Spec, SpecMismatch
from stepwell.buffers.rows import episode_buffer as module
from stepwell.buffers.rows.episode_buffer import OBSERVED
from support.examples import examples

SPEC = Spec.from_spaces(
    spaces.Box(0, 1000, (2,), np.int64),
    spaces.Discrete(100),
    more=[Field("extra/value", "float32", (), "raw"), Field("info/lives", "int64", (), "narrow")],
)


@dataclass(eq=False)
class Run:
    """The rows of one episode, as they were added."""

    stream: int
    observations: list[int] = field(default_factory=list)
    actions: list[int] = field(default_factory=list)
    end: End = End.NONE


class Driver:
    """Writes numbered rows and keeps them in lists."""

    def __init__(self, num_envs: int, chunk_rows: int | None, spec: Spec = SPEC) -> None:
        self.buffer = EpisodeBuffer(spec, num_envs, chunk_rows=chunk_rows)
        self.number = 0
        self.open: dict[int, Run] = {}
        self.runs: list[Run] = []
        self.chunks: list[Chunk] = []

    def observe(self, envs: list[int], first: list[bool], ends: list[End]) -> None:
        rows = []
        for env, is_first, end in zip(envs, first, ends, strict=True):
            if is_first:
                self.open[env] = Run(env)
                self.runs.append(self.open[env])
            self.number += 1
            run = self.open[env]
            run.observations.append(self.number)
            run.actions.append(0)
            run.end = end
            rows.append(self.number)
        numbers = np.array(rows, np.int64)
        self.buffer.observe(
            {
                "observation": np.stack([numbers, numbers], 1),
                "reward": numbers * 0.5,
                "info/lives": numbers + 1,
            },
            is_first=np.array(first),
            terminated=np.array([bool(end & End.TERMINATED) for end in ends]),
            truncated=np.array([bool(end & End.TRUNCATED) for end in ends]),
            env_ids=np.array(envs),
            metadata={env: {"stream": env} for env in envs},
        )
        for env, end in zip(envs, ends, strict=True):
            if end:
                del self.open[env]

    def act(self, envs: list[int]) -> None:
        action = np.array([self.number % 100 + env for env in envs], np.int64)
        for env, one in zip(envs, action.tolist(), strict=True):
            if env in self.open:
                self.open[env].actions[-1] = one
        values: dict[str, np.ndarray] = {"action": action, "extra/value": action.astype(np.float32)}
        self.buffer.act(values, env_ids=np.array(envs))

    def take(self, *, everything: bool) -> None:
        for chunk in self.buffer.take(everything=everything):
            rows = {name: rows.copy() for name, rows in chunk.fields.items()}
            place = chunk.episode, chunk.stream, chunk.first_row, chunk.end
            self.chunks.append(Chunk(*place, rows, chunk.metadata))

    def joined(self) -> list[Run]:
        """The episodes of the chunks, without superseded pending rows."""
        found: dict[int, Run] = {}
        for chunk in self.chunks:
            if chunk.first_row == 0:
                assert chunk.episode not in found
                found[chunk.episode] = Run(chunk.stream)
            assert chunk.metadata["stream"] == chunk.stream
            run = found[chunk.episode]
            assert run.stream == chunk.stream
            if run.end & End.PENDING:
                run.observations.pop()
                run.actions.pop()
            assert not run.end.is_final
            assert len(run.observations) == chunk.first_row
            values = {name: rows.tolist() for name, rows in chunk.fields.items()}
            numbers = [first for first, _ in values["observation"]]
            assert values["observation"] == [[n, n] for n in numbers]
            assert values["reward"] == [n * 0.5 for n in numbers]
            assert values["info/lives"] == [n + 1 for n in numbers]
            assert values["extra/value"] == values["action"]
            run.observations += numbers
            run.actions += values["action"]
            run.end = chunk.end
        return [found[episode] for episode in sorted(found)]


def known(runs: list[Run]) -> list[tuple[Any, ...]]:
    return [
        (run.stream, run.observations, run.actions, run.end & ~End.PENDING)
        for run in runs
        if len(run.observations) > 1
    ]


ENDS = st.sampled_from([End.NONE] * 8 + [End.TERMINATED, End.TRUNCATED, End(3)])


@pytest.mark.proof
@given(st.data(), st.integers(1, 4), st.integers(1, 9))
@settings(max_examples=examples(80))
def test_the_chunks_have_exactly_the_added_rows(
    data: st.DataObject, num_envs: int, chunk_rows: int
) -> None:
    """For any groups of envs, flushes, ends, cuts and restarts, no row is lost or repeated."""
    driver = Driver(num_envs, chunk_rows)
    for _ in range(data.draw(st.integers(1, 40))):
        envs = data.draw(
            st.lists(st.integers(0, num_envs - 1), min_size=1, max_size=num_envs, unique=True)
        )
        restart = st.sampled_from([False] * 9 + [True])
        first = [env not in driver.open or data.draw(restart) for env in envs]
        ends = [End.NONE if one else data.draw(ENDS) for one in first]
        driver.observe(envs, first, ends)
        if data.draw(st.booleans()):
            driver.take(everything=True)
        driver.act(envs)
        if driver.buffer.is_due:
            driver.take(everything=False)
        if data.draw(st.sampled_from([False] * 9 + [True])):
            driver.buffer.cut()
            driver.open.clear()
    driver.take(everything=True)
    taken = known(driver.joined())
    assert taken == known(driver.runs)


def test_a_row_without_an_action_is_taken_and_superseded() -> None:
    driver = Driver(1, 8)
    driver.observe([0], [True], [End.NONE])
    driver.act([0])
    driver.observe([0], [False], [End.NONE])
    driver.take(everything=True)
    assert [(p.rows, p.end) for p in driver.chunks] == [(2, End.PENDING)]
    driver.take(everything=True)
    assert len(driver.chunks) == 1
    driver.act([0])
    driver.observe([0], [False], [End.TERMINATED])
    driver.take(everything=True)
    assert [(p.first_row, p.rows, p.end) for p in driver.chunks[1:]] == [(1, 2, End.TERMINATED)]
    assert driver.joined()[0].actions == [1, 2, 0]


def test_a_reset_without_a_step_is_no_episode() -> None:
    driver = Driver(2, 8)
    driver.observe([0, 1], [True, True], [End.NONE, End.NONE])
    driver.take(everything=True)
    driver.buffer.cut()
    driver.take(everything=True)
    assert driver.chunks == []


def test_chunks_of_many_envs_are_due_at_different_steps() -> None:
    """So that each is compressed after another env step, instead of all after the same one."""
    driver = Driver(4, 8)
    due: list[list[int]] = []
    for row in range(24):
        driver.observe([0, 1, 2, 3], [row == 0] * 4, [End.NONE] * 4)
        driver.act([0, 1, 2, 3])
        if driver.buffer.is_due:
            before = len(driver.chunks)
            driver.take(everything=False)
            due.append([chunk.stream for chunk in driver.chunks[before:]])
    assert due == [[3], [2], [1], [0]] * 2 + [[3], [2], [1], [0]]
    assert max(chunk.rows for chunk in driver.chunks) == 8


def test_rows_are_refused_before_they_overwrite_rows_that_were_not_taken() -> None:
    driver = Driver(2, 3)
    for row in range(4):
        driver.observe([0, 1], [row == 0] * 2, [End.NONE] * 2)
        driver.act([0, 1])
    with pytest.raises(ValueError, match=r"\b3 rows\b.*\b4\b.*\btake\(\).*\bis_due\b"):
        driver.observe([0, 1], [False] * 2, [End.NONE] * 2)
    driver.take(everything=True)
    assert [run.observations for run in driver.joined()] == [[1, 3, 5, 7], [2, 4, 6, 8]]


def test_a_row_without_an_open_episode_is_refused() -> None:
    buffer = EpisodeBuffer(SPEC, 2)
    with pytest.raises(ValueError, match=r"\benv 1 .*\bis_first\b"):
        buffer.observe(row_of(2), is_first=np.array([True, False]))
    buffer.observe(row_of(2), is_first=np.array([True, True]), terminated=np.array([True, False]))
    with pytest.raises(ValueError, match=r"\benv 0 .*\bis_first\b"):
        buffer.observe(row_of(2))


def row_of(n: int) -> dict[str, np.ndarray]:
    numbers = np.arange(n, dtype=np.int64)
    return {
        "observation": np.stack([numbers, numbers], 1),
        "reward": numbers * 1.0,
        "info/lives": numbers,
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reward": np.zeros(2, np.float32)}, r"'reward': .*\bfloat64 \(2,\).*\bfloat32 \(2,\)"),
        ({"reward": np.zeros(3)}, r"'reward': .*\bfloat64 \(2,\).*\bfloat64 \(3,\)"),
        (
            {"observation": np.zeros((2, 1), np.int64)},
            r"'observation': .*\bint64 \(2, 2\).*\bint64 \(2, 1\)",
        ),
        (
            {"more": np.zeros(2)},
            r"\['info/lives', 'observation', 'reward'\].*\['info/lives', 'more', 'obs",
        ),
    ],
)
def test_values_of_other_dtypes_or_shapes_are_refused_and_change_nothing(
    change: dict[str, np.ndarray], message: str
) -> None:
    buffer = EpisodeBuffer(SPEC, 2)
    with pytest.raises(SpecMismatch, match=message):
        buffer.observe({**row_of(2), **change}, is_first=np.array([True, True]))
    assert buffer.take(everything=True) == []
    assert buffer.next_episode == 0


def test_actions_of_other_dtypes_or_fields_are_refused() -> None:
    buffer = EpisodeBuffer(SPEC, 2)
    buffer.observe(row_of(2), is_first=np.array([True, True]))
    with pytest.raises(SpecMismatch, match=r"'action': .*\bint64 \(2,\).*\bfloat64 \(2,\)"):
        buffer.act({"action": np.zeros(2), "extra/value": np.zeros(2, np.float32)})
    with pytest.raises(SpecMismatch, match=r"\['action', 'extra/value'\].*\['action'\]"):
        buffer.act({"action": np.zeros(2, np.int64)})


def test_the_size_of_chunks_depends_on_the_size_of_rows() -> None:
    def rows(shape: tuple[int, ...], num_envs: int) -> int:
        spec = Spec.from_spaces(spaces.Box(0, 255, shape, np.uint8), spaces.Discrete(2))
        return module._rows_by_size(spec, num_envs)

    assert rows((4,), 8) == 512
    assert rows((84, 84), 8) == 512
    assert rows((84, 84), 64) == 144
    assert rows((1000, 1000, 3), 64) == 16


# Frame stacks

K = 3
NO_STACK = r"'observation': .*\b3 frames\b.*\b{}\b.*\bframe_stack=1\b"


def stacked(padding: str) -> EpisodeBuffer:
    spec = Spec.from_spaces(
        spaces.Box(0, 255, (K, 2, 4), np.uint8),
        spaces.Discrete(2),
        frame_stack=K,
        stack_padding=padding,  # type: ignore[arg-type]
    )
    return EpisodeBuffer(spec, 2)


def stacks_of(frames: list[list[int]]) -> dict[str, np.ndarray]:
    full = [[np.full((2, 4), frame, np.uint8) for frame in stack] for stack in frames]
    return {"observation": np.array(full), "reward": np.zeros(len(frames))}


BOTH = np.array([True, True])


@pytest.mark.parametrize(
    ("padding", "begin", "second", "is_first"),
    [
        ("zero", [[0, 0, 5], [0, 0, 7]], [[9, 5, 6], [0, 7, 8]], [False, False]),
        ("zero", [[0, 0, 5], [0, 0, 7]], [[0, 5, 6], [0, 9, 8]], [False, False]),
        ("zero", [[0, 0, 5], [0, 0, 7]], [[0, 0, 6], [0, 7, 8]], [False, False]),
        ("zero", [[0, 0, 5], [0, 0, 7]], [[0, 5, 6], [0, 7, 8]], [True, False]),
        ("repeat", [[5, 5, 5], [7, 7, 7]], [[5, 5, 6], [7, 7, 8]], [True, False]),
        ("zero", [[0, 0, 5], [0, 0, 7]], [[0, 0, 6], [0, 9, 8]], [True, False]),
    ],
)
def test_a_stack_that_was_not_shifted_by_one_frame_is_refused(
    padding: str, begin: list[list[int]], second: list[list[int]], is_first: list[bool]
) -> None:
    """Or that has frames from before a reset."""
    buffer = stacked(padding)
    buffer.observe(stacks_of(begin), is_first=BOTH)
    buffer.act({"action": np.array([1, 0])})
    with pytest.raises(SpecMismatch, match=NO_STACK.format(padding)):
        buffer.observe(stacks_of(second), is_first=np.array(is_first))
    right = [[*stack[1:], stack[-1] + 1] for stack in begin]
    buffer.observe(stacks_of(right))  # the refused stacks left no trace


def test_stacks_are_compared_within_their_env_for_any_groups() -> None:
    buffer = stacked("zero")
    buffer.observe(stacks_of([[0, 0, 5], [0, 0, 7]]), is_first=BOTH)
    buffer.observe(stacks_of([[0, 7, 8]]), env_ids=np.array([1]))
    buffer.observe(stacks_of([[0, 5, 6], [7, 8, 9]]))
    with pytest.raises(SpecMismatch):
        buffer.observe(stacks_of([[7, 8, 9]]), env_ids=np.array([0]))


def test_an_array_that_is_not_owned_is_copied() -> None:
    buffer = stacked("zero")
    rows = stacks_of([[0, 0, 5], [0, 0, 7]])
    buffer.observe(rows, is_first=BOTH)
    rows["observation"][...] = 99
    buffer.observe(stacks_of([[0, 5, 6], [0, 7, 8]]))


def test_an_owned_array_is_not_written_into() -> None:
    buffer = stacked("zero")
    rows = stacks_of([[0, 0, 5], [0, 0, 7]])
    before = rows["observation"].copy()
    buffer.observe(rows, is_first=BOTH, owned=True)
    buffer.observe(stacks_of([[0, 7, 8]]), env_ids=np.array([1]), owned=True)
    assert np.array_equal(rows["observation"], before)


def test_a_reset_after_a_lost_first_step_is_no_episode() -> None:
    """A worker process died in its first step; an episode without steps was stored."""
    buffer, row = EpisodeBuffer(SPEC, 1), row_of(1)
    action: dict[str, np.ndarray] = {
        "action": np.zeros(1, np.int64),
        "extra/value": np.zeros(1, np.float32),
    }
    for _ in range(2):
        buffer.observe(row, is_first=np.array([True]))
        buffer.act(action)
    buffer.observe(row)
    assert [(len(p.fields["reward"]), p.episode) for p in buffer.take(everything=True)] == [(2, 1)]


# Stacks that are kept, and compared later


class Stacker:
    """An env of which stacks are observed that are then kept; frames are numbers."""

    def __init__(self, num_envs: int = 1, **options: Any) -> None:
        spec = Spec.from_spaces(
            spaces.Box(0, 255, (K, 2, 4), np.uint8),
            spaces.Discrete(2),
            frame_stack=K,
            stack_padding="zero",
        )
        self.buffer = EpisodeBuffer(spec, num_envs, **options)
        self.num_envs = num_envs
        self.frames: list[list[int]] = [[] for _ in range(num_envs)]
        self.number = 0

    def step(self, wrong: dict[int, list[int]] | None = None, ended: tuple[int, ...] = ()) -> None:
        """One row of each env; ``wrong`` are stacks in place of the right ones."""
        self.number += 1
        first = np.array([not frames for frames in self.frames])
        for frames in self.frames:
            frames.append(self.number % 250 + 1)
        right = [[0] * K + frames for frames in self.frames]
        stacks = [(wrong or {}).get(env, each[-K:]) for env, each in enumerate(right)]
        flags = np.array([env in ended for env in range(self.num_envs)])
        self.buffer.observe(stacks_of(stacks), is_first=first, terminated=flags, owned=True)
        self.buffer.act({"action": np.ones(self.num_envs, np.int64)})
        for env in ended:
            self.frames[env] = []


COMPARED = 20  # rows after which not every stack is compared


@pytest.mark.parametrize("how", ["take", "cut", "end", "reset", "later"])
def test_a_wrong_stack_that_was_kept_is_refused_before_its_row_is_stored(how: str) -> None:
    """At a flush, at the end of the episode, and at the latest 17 rows later."""
    env = Stacker()
    for _ in range(COMPARED):
        env.step()

    def go_on() -> None:
        for _ in range(17 if how == "later" else 1):  # one frame of each is lost
            env.number += 1
            env.step({0: [env.number, env.number + 1, env.number + 2]}, (0,) * (how == "end"))
        if how == "take":
            env.buffer.take(everything=True)
        elif how == "cut":
            env.buffer.cut()
        elif how == "reset":
            env.frames[0] = []
            env.step()

    with pytest.raises(SpecMismatch, match=NO_STACK.format("zero")):
        go_on()
    (chunk,) = env.buffer.take(everything=True)
    assert (chunk.end, chunk.episode) == (End.NONE, 0)
    stored = chunk.fields["observation"][:, 0, 0].tolist()
    assert 16 <= len(stored) <= COMPARED
    assert stored == list(range(2, 2 + len(stored)))
    env.buffer.take(everything=True)
    env.frames[0] = []
    env.step()  # begins another episode


def test_a_wrong_stack_of_one_env_leaves_the_rows_of_the_others() -> None:
    env = Stacker(3)
    for _ in range(COMPARED):
        env.step()
    env.step({1: [7, 7, 7]})
    with pytest.raises(SpecMismatch, match=NO_STACK.format("zero")):
        env.buffer.take(everything=True)
    taken = [(chunk.stream, chunk.rows) for chunk in env.buffer.take(everything=True)]
    assert [stream for stream, _ in taken] == [0, 1, 2]
    assert taken[0][1] == taken[2][1] == COMPARED + 1
    assert 16 <= taken[1][1] <= COMPARED


@pytest.mark.parametrize("place", range(17))
def test_a_frame_that_is_lost_every_few_rows_is_found(place: int) -> None:
    """A pattern of 16 rows has every place at some comparison: 17 is a prime number."""
    env = Stacker(chunk_rows=512)

    def play() -> None:
        for row in range(16 * 17 + 40):
            is_wrong = row > 16 and row % 16 == place % 16
            env.step({0: [9, 9, env.number % 250 + 2]} if is_wrong else None)

    with pytest.raises(SpecMismatch, match=NO_STACK.format("zero")):
        play()


@pytest.mark.parametrize("chunk_rows", [1, 2, 3, 5])
def test_stacks_across_chunks_are_compared_with_the_frames_before(chunk_rows: int) -> None:
    env = Stacker(2, chunk_rows=chunk_rows)
    rows = 0
    for step in range(200):
        env.step(ended=(0,) if step % 31 == 30 else ())
        if env.buffer.is_due:
            rows += sum(chunk.rows for chunk in env.buffer.take())
    assert rows > 380


def test_stacks_of_known_envs_are_not_compared() -> None:
    env = Stacker(known_stacks=True)
    env.step()
    env.step({0: [1, 2, 3]})
    (chunk,) = env.buffer.take(everything=True)
    assert chunk.fields["observation"][:, 0, 0].tolist() == [2, 3]


def test_stacks_that_the_caller_writes_over_are_all_compared() -> None:
    env = Stacker()
    for _ in range(COMPARED):
        env.step()
    with pytest.raises(SpecMismatch, match=NO_STACK.format("zero")):
        env.buffer.observe(stacks_of([[7, 7, 7]]), owned=False)


# Transitions of a loop of one's own

MARKED = SPEC.with_more([OBSERVED])


def transition(n: int, start: int) -> dict[str, Any]:
    numbers = np.arange(start, start + n, dtype=np.int64)
    return {
        "observation": np.stack([numbers, numbers], 1),
        "action": numbers,
        "reward": numbers * 1.0,
        "next_observation": np.stack([numbers, numbers], 1) + 10,
        "terminated": np.zeros(n, np.bool_),
        "truncated": np.zeros(n, np.bool_),
        "extras": {"value": np.zeros(n, np.float32)},
        "info": {"lives": numbers},
        "next_info": {"lives": numbers},
    }


def add_one(buffer: EpisodeBuffer, number: int, *, known: bool, ended: bool = False) -> None:
    """The next transition of one env, whose result may come later."""
    given: dict[str, Any] = transition(1, 10 * number) | {"terminated": np.array([ended])}
    buffer.add(**given | ({} if known else {"next_observation": None, "next_info": None}))


def test_a_cut_drops_a_transition_with_an_unknown_result_without_newest() -> None:
    for newest, rows in ((False, 2), (True, 3)):
        buffer = EpisodeBuffer(MARKED, 1, chunk_rows=8)
        for number in range(2):
            add_one(buffer, number, known=False)
        buffer.cut(newest=newest)
        add_one(buffer, 5, known=True, ended=True)
        chunks = buffer.take(everything=True, newest=False)
        assert [(chunk.episode, chunk.rows) for chunk in chunks] == [(0, rows), (1, 2)]


def test_an_observation_that_differs_from_the_last_one_begins_an_episode() -> None:
    buffer = EpisodeBuffer(SPEC, 2)
    buffer.add(**transition(2, 0))
    buffer.add(**transition(2, 10))
    other = transition(2, 20)
    other["observation"][1] = 99
    buffer.add(**other)
    chunks = [(c.stream, c.episode, c.rows, c.end) for c in buffer.take(everything=True)]
    assert chunks == [(0, 0, 4, End.PENDING), (1, 1, 3, End.PENDING), (1, 2, 2, End.PENDING)]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"reward": np.zeros(3)}, SpecMismatch, r"^reward: .*\(2,\).*\(3,\)"),
        ({"extras": None}, SpecMismatch, r"^extras: .*'value'"),
        ({"info": {}}, SpecMismatch, r"^info: .*'lives'"),
        (
            {"next_info": {"lives": np.zeros(2)}},
            SpecMismatch,
            r"'info/lives'.*\bint64\b.*\bfloat64\b",
        ),
        (
            {"next_observation": None, "truncated": np.array([False, True])},
            ValueError,
            r"^next_observation: .*\benv 1\b.*'info/observed'",
        ),
    ],
)
def test_invalid_transitions_are_refused_and_change_nothing(
    change: dict[str, Any], error: type[Exception], message: str
) -> None:
    buffer = EpisodeBuffer(SPEC, 2)
    with pytest.raises(error, match=message):
        buffer.add(**{**transition(2, 0), **change})
    assert buffer.take(everything=True) == []
    assert buffer.next_episode == 0


def test_chunks_are_stored_when_they_are_due_even_by_the_first_row_of_an_episode() -> None:
    stored: list[tuple[int, End, list[int]]] = []

    def store(chunks: list[Chunk]) -> None:
        for chunk in chunks:
            stored.append((chunk.rows, chunk.end, chunk.fields["observation"][:, 0].tolist()))

    buffer = EpisodeBuffer(SPEC, 1, chunk_rows=3, store=store)
    buffer.add(**{**transition(1, 0), "terminated": np.array([True])})
    assert stored == []
    buffer.add(**transition(1, 20))  # the first row of its episode is the third one here
    assert stored == [(2, End.TERMINATED, [0, 10])]
    assert buffer.waiting_rows(0) == 2
    buffer.add(**transition(1, 30))
    assert stored[1:] == [(3, End.PENDING, [20, 30, 40])]


def test_newest_needs_a_field_that_marks_unknown_results() -> None:
    with pytest.raises(ValueError, match=r"^newest=True: .*'info/observed'"):
        EpisodeBuffer(SPEC, 1).take(newest=True)


@pytest.mark.parametrize("as_int", [False, True])
def test_added_stacks_are_checked_and_stored_as_frames(as_int: bool) -> None:
    buffer = stacked("zero")

    def add(before: list[int], after: list[int] | None, env: int = 0) -> None:
        some: Any = 0 if as_int else slice(None)
        buffer.add(
            stacks_of([before])["observation"][some],
            np.array([1])[some],
            np.zeros(1)[some],
            None if after is None else stacks_of([after])["observation"][some],
            np.array([False])[some],
            np.array([False])[some],
            env_ids=env if as_int else np.array([env]),
        )

    add([0, 0, 5], [0, 5, 6])
    with pytest.raises(SpecMismatch, match=NO_STACK.format("zero")):
        add([0, 5, 6], [5, 7, 8])
    with pytest.raises(SpecMismatch, match=NO_STACK.format("zero")):
        add([4, 5, 6], [5, 6, 7])  # begins an episode, so that it should be padded
    add([0, 5, 6], None)
    with pytest.raises(SpecMismatch, match=NO_STACK.format("zero")):
        add([5, 7, 8], None)
    add([5, 6, 7], [6, 7, 8])
    chunks = buffer.take(everything=True)
    assert [chunk.fields["observation"][:, 0, 0].tolist() for chunk in chunks] == [[5, 6, 7, 8]]


def test_newest_frames_may_be_added_instead_of_stacks() -> None:
    buffer = stacked("zero")
    for number in range(3):
        frames = np.full((2, 2, 4), number, np.uint8)
        nothing = np.zeros(2, np.bool_)
        buffer.add(frames, np.array([1, 0]), np.zeros(2), frames + 1, nothing, nothing)
    chunks = buffer.take(everything=True)
    frames_of = [chunk.fields["observation"][:, 0, 0].tolist() for chunk in chunks]
    assert frames_of == [[0, 1, 2, 3]] * 2
    wrong, numbers = np.zeros((2, 2, 4), np.float32), np.zeros(2, np.int64)
    with pytest.raises(SpecMismatch, match=r"observation.*uint8.*float32"):
        buffer.add(wrong, numbers, numbers, None, numbers > 0, numbers > 0)


PLAIN = Spec(
    (
        Field("observation", "int64", (), "narrow"),
        Field("action", "int64", (), "narrow"),
        Field("reward", "float64", (), "narrow"),
        OBSERVED,
    ),
    "observation",
    "action",
)


def test_an_action_belongs_to_the_newest_row_after_take_and_after_add() -> None:
    """Although `observe` noted where its rows were."""
    buffer = EpisodeBuffer(PLAIN, 1)

    def observe(number: int, *, is_first: bool = False, is_last: bool = False) -> None:
        values = {"observation": np.array([number]), "reward": np.zeros(1)}
        values[OBSERVED.name] = np.array([True])
        first, last = np.array([is_first]), np.array([is_last])
        buffer.observe(values, is_first=first, terminated=last)

    def act(action: int) -> None:
        buffer.act({"action": np.array([action])})

    observe(1, is_first=True)
    act(1)
    observe(2, is_last=True)
    observe(3, is_first=True)
    assert len(buffer.take(everything=True)) == 1
    act(3)
    observe(4)
    buffer.add(np.array(4), np.array(4), 0.5, np.array(5), False, False, env_ids=0)
    act(5)
    observe(6, is_last=True)
    (chunk,) = buffer.take(everything=True)
    assert chunk.fields["observation"].tolist() == [3, 4, 5, 6]
    assert chunk.fields["action"].tolist() == [3, 4, 5, 0]


def test_a_wrong_stack_right_after_take_leaves_the_action_of_the_row_before() -> None:
    buffer = stacked("repeat")
    buffer.observe(stacks_of([[1, 1, 1], [1, 1, 1]]), is_first=BOTH)
    buffer.act({"action": np.array([1, 1])})
    buffer.observe(stacks_of([[1, 1, 2], [1, 1, 2]]))
    chunks = buffer.take(everything=True)
    assert [chunk.end for chunk in chunks] == [End.PENDING, End.PENDING]
    buffer.act({"action": np.array([1, 0])})
    with pytest.raises(SpecMismatch):
        buffer.observe(stacks_of([[7, 7, 7], [1, 2, 3]]))
    chunk = buffer.take(everything=True)[0]
    assert (chunk.stream, chunk.first_row, chunk.rows) == (0, 1, 1)
    assert chunk.fields["action"].tolist() == [1]


@pytest.mark.parametrize("is_marked", [False, True])
def test_an_action_is_written_to_rows_that_await_one_and_to_no_others(is_marked: bool) -> None:
    spec = Spec.from_spaces(spaces.Box(-9, 9, (1,), np.float32), spaces.Discrete(9))
    marks: dict[str, np.ndarray] = {}
    if is_marked:
        spec, marks = spec.with_more([OBSERVED]), {OBSERVED.name: np.ones(2, np.bool_)}
    buffer = EpisodeBuffer(spec, 2)
    begun: dict[str, np.ndarray] = {
        "observation": np.zeros((2, 1), np.float32),
        "reward": np.zeros(2),
        **marks,
    }
    buffer.observe(begun, is_first=np.ones(2, np.bool_))
    buffer.act({"action": np.array([1, 2])})
    buffer.act({"action": np.array([7, 7])})  # no row awaits it
    buffer.observe(begun, terminated=np.array([False, True]))
    if is_marked:
        buffer.add(begun["observation"][1], np.array(5), 0.0, None, False, False, env_ids=1)
    buffer.act({"action": np.array([3, 4])})
    actions = [chunk.fields["action"].tolist() for chunk in buffer.take(everything=True)]
    assert actions[:2] == [[1, 3], [2, 0]]
