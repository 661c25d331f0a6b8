"""A host: fields, weights, the size of pieces, errors, and the store of a group.

The rows that it plays are compared with those of one process by test_schedules.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import gymnasium as gym
import numpy as np
import pytest

import stepwell as sw
from stepwell.buffers import SpecMismatch
from stepwell.buffers.base.errors import StoreLocked
from stepwell.collectors.distributed import host as host_file
from stepwell.collectors.distributed.host import GroupHost, RowsDiffer
from stepwell.collectors.distributed.messages import Call, GroupOptions, GroupStart, Payload, Piece
from support.groups import Asked, Careless, Weighted, one_process, uniform, walk, walks

SEED = 3
long_walks = partial(walks, 4, longest=60)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece is what one add of chunks gives."""
    monkeypatch.setattr(host_file, "_PIECE_ROWS", 1)


def begun(
    make_envs: Callable[[], Any] = walks,
    make_policy: Callable[[], Any] = uniform,
    **options: Any,
) -> GroupHost:
    """A host of group 0, which has begun."""
    host = GroupHost(make_envs, make_policy, GroupOptions(1, **options))
    host.begin(GroupStart(0, 0, SEED, options.get("session", 0)), {})
    return host


def play(host: GroupHost, call: Call) -> list[tuple[Piece, Payload]]:
    """All pieces of a call, without those that come again."""
    found: list[tuple[Piece, Payload]] = []
    while not found or not found[-1][0].is_last:
        piece, payload = host.advance(0, call)
        if piece.call == call.number and (not found or piece.number > found[-1][0].number):
            found.append((piece, payload))
    return found


def test_the_fields_and_codecs_of_the_mirror_are_used() -> None:
    stacks, call = partial(walks, 2, kind="stack"), Call(0, "steps", 20)
    ((piece, _), *_) = play(begun(stacks, codecs={"observation": "raw"}), call)
    assert piece.opening is not None
    spec = piece.opening.spec
    assert (spec["observation"].codec, spec["observation"].stack) == ("raw", 3)
    whole = spec.from_spaces(
        gym.spaces.Box(0, 255, (3, 4, 4), np.uint8), gym.spaces.Discrete(3), frame_stack=1
    )
    ((piece, _), *_) = play(begun(stacks, spec=whole), call)
    assert piece.opening is not None
    assert piece.opening.spec == whole
    with pytest.raises(SpecMismatch, match="observation"):
        play(begun(spec=whole), call)


# Weights


def test_a_policy_is_loaded_once_for_each_version() -> None:
    policy = Weighted()
    host = begun(make_policy=lambda: policy)
    for number, version in enumerate((0, 0, 4, 4, 9)):
        if version:
            host.load(version, {"w": version / 10})
        play(host, Call(number, "steps", 8, version=version))
    assert policy.loads == 2
    assert list(host._weights) == [4, 9]  # older ones are not needed any more


class Own(Weighted):
    """Returns the version itself."""

    def __call__(self, observation: Any, is_first: np.ndarray) -> Any:
        zeros = np.zeros(len(is_first), np.int64)
        return zeros, {"policy_version": zeros}


@pytest.mark.parametrize(
    ("policy", "loaded", "version", "error", "words"),
    [
        (uniform, 2, 2, TypeError, r"load\(weights\).*str"),
        (Weighted, 2, 5, ValueError, "version 5"),
        (Own, 0, 0, ValueError, "policy_version"),
    ],
)
def test_weights_need_a_policy_that_loads_them_and_must_be_there(
    policy: Any, loaded: int, version: int, error: type[Exception], words: str
) -> None:
    host = begun(make_policy=policy)
    host.load(loaded, {"w": 0.2})
    with pytest.raises(error, match=words):
        host.advance(0, Call(0, "steps", 8, version=version))


def test_the_load_of_a_class_is_none_of_the_policy() -> None:
    class Model:
        @classmethod
        def load(cls, path: str) -> None:
            raise AssertionError(path)

        def __call__(self, observation: Any, is_first: np.ndarray) -> np.ndarray:
            return np.zeros(len(is_first), np.int64)

    ((piece, _), *_) = play(begun(make_policy=Model), Call(0, "steps", 8))
    assert piece.opening is not None
    assert "extra/policy_version" not in piece.opening.spec.names


# Pieces


def test_a_host_answers_though_slow_envs_have_no_chunk_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host_file, "_ANSWER_SECONDS", 0.0)
    host, call = begun(), Call(0, "steps", 20)
    found = [host.advance(0, call)]
    while not found[-1][0].is_last:
        found.append(host.advance(0, call))
    *none, (last, _) = found
    assert len(none) > 5
    assert {(p.number, p.chunks, p.steps, p.is_repeat, load) for p, load in none} == {
        (-1, 0, 0, False, Payload())
    }
    assert last.digest == one_process(walks, uniform, SEED, 1, [Asked("steps", 20)]).digest
    for piece, payload in (host.advance(0, call), host.finish(0)):  # the call has ended
        assert (piece.number, piece.is_last, payload) == (0, True, Payload())


@pytest.mark.proof
@pytest.mark.parametrize("limit", ["rows", "bytes"])
def test_a_piece_has_whole_chunks_until_it_is_full(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = Call(0, "steps", 5_000)
    small = play(begun(long_walks), call)
    opening = small[0][0].opening
    assert opening is not None
    per_row = sum(
        field.row_bytes / (1 if field.codec == "raw" else 32) for field in opening.spec.fields
    )
    monkeypatch.setattr(host_file, "_PIECE_ROWS", 700 if limit == "rows" else 10**9)
    monkeypatch.setattr(host_file, "_PIECE_BYTES", 10**12 if limit == "rows" else 700 * per_row)
    pieces = play(begun(long_walks), call)
    expected = [0]
    for each, _ in small:
        if expected[-1] >= 700:
            expected.append(0)
        expected[-1] += each.rows
    assert len(expected) > 3
    assert [piece.rows for piece, _ in pieces] == expected
    assert [piece.is_last for piece, _ in pieces].count(True) == 1
    monkeypatch.setattr(host_file, "_ANSWER_SECONDS", 0.0)  # time changes nothing
    found = play(begun(long_walks), call)
    assert [(p.rows, p.steps, p.digest, load.chunks) for p, load in found] == [
        (p.rows, p.steps, p.digest, load.chunks) for p, load in pieces
    ]


@pytest.mark.proof
def test_a_piece_of_a_run_waits_for_no_more_rows_than_come_in_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host_file, "_PIECE_ROWS", 10**6)
    monkeypatch.setattr(host_file, "_ANSWER_SECONDS", 0.0)
    host, run = begun(long_walks), Call(0, "run")
    pieces = [host.advance(0, run)[0] for _ in range(1_000)]
    assert sum(piece.rows for piece in pieces) >= 512
    assert [piece.number for piece in pieces] == list(range(1_000))


def test_a_run_sends_rows_that_have_waited_with_the_newest_weights() -> None:
    long = partial(walks, 2, longest=1000)
    host, run = begun(long, Weighted, flush_seconds=0.0), Call(0, "run")
    for version in (0, 2, 5):
        if version:
            host.load(version, {"w": version / 10})
        piece, _ = host.advance(0, run)
        assert (piece.is_last, piece.version) == (False, version)
        assert piece.chunks > 0
    last, _ = host.finish(0)
    assert (last.is_last, last.call, last.version) == (True, 0, 5)


# Errors


class Broken(gym.Wrapper[Any, Any, Any, Any]):
    """An env that fails at a step."""

    left = 30

    def step(self, action: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("the simulator is broken")
        return super().step(action)


def broken() -> Any:
    return gym.vector.SyncVectorEnv([lambda: Broken(walk(longest=1000))])


def test_errors_of_the_users_code_leave_as_they_are() -> None:
    def fails(*_: object) -> Any:
        raise RuntimeError("no such simulator")

    def begin(host: GroupHost) -> None:
        host.begin(GroupStart(0, 0, 0, 0), {})
        host.advance(0, Call(0, "steps", 5, version=1))

    closed: list[bool] = []

    class Closing(gym.Wrapper[Any, Any, Any, Any]):
        def close(self) -> None:
            closed.append(True)

    def closing() -> Any:
        return gym.vector.SyncVectorEnv([lambda: Closing(walk())])

    for make_envs, make_policy in (
        (fails, uniform),
        (closing, fails),
        (walks, lambda: type("", (Weighted,), {"load": fails})()),
    ):
        host = GroupHost(make_envs, cast("Any", make_policy), GroupOptions(1))
        host.load(1, {"w": 1.0})
        with pytest.raises(RuntimeError, match="no such simulator"):
            begin(host)
    assert closed == [True]


def test_the_rows_before_an_error_can_be_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_file, "_PIECE_ROWS", 100)
    host, call = begun(broken), Call(0, "steps", 100)
    with pytest.raises(RuntimeError, match="broken"):
        host.advance(0, call)
    with pytest.raises(ValueError, match="failed before: the simulator is broken"):
        host.advance(0, call)
    piece, payload = host.finish(0)
    assert (piece.is_last, piece.steps, piece.rows) == (True, 30, 31)
    assert payload.chunks
    host.begin(GroupStart(0, 1, SEED, 0), {})  # makes all of it anew
    host.close()


def test_a_group_must_have_begun() -> None:
    host = GroupHost(walks, cast("Any", uniform), GroupOptions(2))
    host.begin(GroupStart(1, 0, 0, 0), {})
    with pytest.raises(ValueError, match=r"\[1\], got 0"):
        host.advance(0, Call(0, "steps", 5))
    host.close()
    host.close()
    with pytest.raises(ValueError, match=r"\[\], got 1"):
        host.finish(1)


# The store of a group; test_collector.py lets actors die in it


def store_of(folder: Path) -> sw.SequenceReplayBuffer:
    return sw.SequenceReplayBuffer.open(folder / "group-00000", read_only=True)


def test_a_store_of_other_rows_is_found_when_it_is_played_again(tmp_path: Path) -> None:
    call = Call(0, "steps", 2000)
    host = begun(make_policy=Careless, destination=str(tmp_path))
    host.advance(0, call)
    host.close()
    with store_of(tmp_path) as replay:
        steps = replay.steps
    host = GroupHost(walks, Careless, GroupOptions(1, destination=str(tmp_path)))
    host.begin(GroupStart(0, 1, SEED, 0, (call,)), {})  # no piece was acknowledged
    with pytest.raises(RowsDiffer, match="group-00000"):
        host.advance(0, call)
    host.close()
    with store_of(tmp_path) as replay:
        assert replay.steps == steps


def test_a_store_must_have_the_sessions_of_the_others(tmp_path: Path) -> None:
    for session in (1, 2):  # one that was not there has as many as the others
        host = begun(destination=str(tmp_path), session=session)
        play(host, Call(0, "steps", 20))
        host.close()
    with pytest.raises(ValueError, match=r"expected a store of 0 sessions.*got 3"):
        begun(destination=str(tmp_path))
    with store_of(tmp_path) as replay:
        assert [facts.get("session") for facts in replay.sessions] == [None, 1, 2]
        assert [e.metadata["session"] for e in replay.iter_episodes()][-1] == 2


def test_a_store_that_another_process_holds_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = begun(destination=str(tmp_path))
    play(held, Call(0, "steps", 20))
    monkeypatch.setattr(host_file, "_LOCK_SECONDS", 0.0)
    other = GroupHost(walks, cast("Any", uniform), GroupOptions(1, destination=str(tmp_path)))
    start = GroupStart(0, 1, SEED, 0, (Call(0, "steps", 20),))
    with pytest.raises(StoreLocked, match="group-00000"):
        other.begin(start, {})
    monkeypatch.setattr(host_file, "_LOCK_SECONDS", 30.0)
    monkeypatch.setattr("time.sleep", lambda _: held.close())
    assert other.begin(start, {}) == 2
    other.close()
