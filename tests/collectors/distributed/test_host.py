"""A host plays its groups piece by piece, and again after a death: the same rows each time."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast
from unittest import mock

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stepwell as sw
from stepwell.buffers import EncodedChunk, SpecMismatch
from stepwell.buffers.base.errors import StoreLocked
from stepwell.buffers.rows.digest import DigestState
from stepwell.buffers.storage.encoded_chunk import unpack_chunks
from stepwell.collectors.distributed import host as host_file
from stepwell.collectors.distributed.host import GroupHost, RowsDiffer
from stepwell.collectors.distributed.messages import (
    Call,
    GroupOptions,
    GroupStart,
    Opening,
    Payload,
    Piece,
)
from support.examples import examples
from support.groups import (
    MODES,
    POLICIES,
    WALKS,
    Asked,
    Careless,
    Counting,
    OneProcess,
    Weighted,
    one_process,
    uniform,
    walk,
    walks,
)
from support.models.rollout_model import assert_equal_rollouts

WEIGHTS = {version: {"w": version / 10} for version in range(10)}


@pytest.fixture(autouse=True, scope="module")
def small_pieces() -> Iterator[None]:
    """A piece is what one add of chunks gives."""
    with rows_in_piece(1):
        yield


def rows_in_piece(rows: int) -> Any:
    return mock.patch.object(host_file, "_PIECE_ROWS", rows)


class Groups:
    """All groups of a collector in one host, whose pieces are stored; it may die at any time.

    Args:
        make_envs: Makes the envs of a group.
        make_policy: Makes its policy.
        seed: The collector's seed.
        options: The options of all groups.
    """

    def __init__(
        self,
        make_envs: Callable[[], Any],
        make_policy: Callable[[], Any],
        seed: int,
        options: GroupOptions,
    ) -> None:
        self.make = partial(GroupHost, make_envs, make_policy, options)
        self.seed, self.options = seed, options
        numbers = range(options.groups)
        self.pieces: list[list[tuple[Piece, Payload]]] = [[] for _ in numbers]
        self.repeated: list[list[Piece]] = [[] for _ in numbers]
        self.history: list[list[Call]] = [[] for _ in numbers]
        self.attempts = [0] * options.groups
        self.calls: list[Asked] = []
        self.hosts = {g: self.make() for g in numbers}
        self.num_envs = {self.begin(g) for g in numbers}.pop()

    def begin(self, group: int) -> int:
        start = GroupStart(
            *(group, self.attempts[group], self.seed, self.options.session),
            *(tuple(self.history[group]), len(self.pieces[group])),
        )
        start = pickle.loads(pickle.dumps(start))
        return self.hosts[group].begin(start, WEIGHTS if self.attempts[group] else {})

    def die(self, group: int) -> None:
        """Lose the host of a group, without a goodbye, and begin again in another one."""
        self.lose(group)
        self.attempts[group] += 1
        self.hosts[group] = self.make()
        self.begin(group)

    def lose(self, group: int) -> None:
        """Lose the host of a group: its process frees the lock of a store, and does no more."""
        for one in self.hosts.pop(group)._groups.values():
            one._outbox.close()

    def ask(self, group: int, call: Call) -> None:
        """Begin a call of a group."""
        self.history[group].append(call)
        self.hosts[group].load(call.version, WEIGHTS[call.version])

    def advance(self, group: int) -> bool:
        """One piece; True if it was the call's last one."""
        call = self.history[group][-1]
        piece, payload = pickle.loads(pickle.dumps(self.hosts[group].advance(group, call)))
        assert piece.group == group
        assert piece.attempt == self.attempts[group]
        stored = self.pieces[group]
        if piece.is_repeat:
            assert payload == Payload()
            assert piece.number < len(stored)
            assert piece.digest == stored[piece.number][0].digest
            assert piece.episodes == stored[piece.number][0].episodes
            self.repeated[group].append(piece)
            return False
        if piece.number < len(stored):  # the machine is slow: there is no new one yet
            assert payload == Payload()
            return False
        assert piece.number == len(stored)
        stored.append((piece, payload))
        assert not piece.is_last or piece.call == call.number
        return bool(piece.is_last)

    def play(self, calls: Sequence[Asked], choose: Callable[[Sequence[Any]], Any]) -> None:
        """Play all calls; `choose` picks the group to advance, and whether it dies first."""
        for asked in calls:
            number, active = len(self.calls), list[int]()
            self.calls.append(asked)
            for group in range(self.options.groups):
                call = asked.of_group(number, group, self.options.groups)
                if call is not None:
                    self.ask(group, call)
                    active.append(group)
            while active:
                group = choose(active)
                if self.attempts[group] < 2 and choose([False] * 5 + [True]):
                    self.die(group)
                if self.advance(group):
                    active.remove(group)

    @property
    def opening(self) -> Opening:
        openings = [p.opening for pieces in self.pieces for p, _ in pieces if p.opening]
        assert all(each.spec == openings[0].spec for each in openings)
        assert {(each.num_envs, each.stepwell) for each in openings} == {
            (self.num_envs, sw.__version__)
        }
        return openings[0]

    def chunks(self) -> Iterator[EncodedChunk]:
        """All chunks as those of one replay."""
        spec, ids = self.opening.spec, dict[tuple[int, int], int]()
        for group, pieces in enumerate(self.pieces):
            for piece, payload in pieces:
                found = unpack_chunks(payload.chunks, spec)
                assert len(found) == piece.chunks
                assert sum(chunk.rows for chunk in found) == piece.rows
                assert sum(chunk.nbytes for chunk in found) == piece.nbytes
                for chunk in found:
                    episode = ids.setdefault((group, chunk.episode), len(ids))
                    stream = group * self.opening.num_envs + chunk.stream
                    yield chunk.placed(episode=episode, stream=stream)

    def mirror(self) -> sw.SequenceReplayBuffer:
        """A replay with the rows of all groups."""
        opening, groups = self.opening, self.options.groups
        replay = sw.SequenceReplayBuffer(codecs=self.options.codecs)
        facts = {k: v for k, v in opening.facts.items() if k != "shard"}
        for _ in range(self.options.session + 1):
            replay.bind(
                opening.spec, {**facts, "num_envs": groups * opening.num_envs, "groups": groups}
            )
        for chunk in self.chunks():
            replay.add_encoded([chunk])
        return replay

    def digest(self) -> str:
        """The digest of all groups, joined from their states."""
        states = [pieces[-1][0].state if pieces else DigestState() for pieces in self.pieces]
        return DigestState.of_groups(states, self.opening.num_envs).hexdigest()


def rows_of(replay: sw.SequenceReplayBuffer) -> list[Any]:
    """All that is stored of each episode, in the order of streams."""
    found = [
        (
            *(e.stream, e.metadata["stream_episode"], e.first_row, int(e.end), dict(e.metadata)),
            {name: (rows.dtype, rows.tobytes()) for name, rows in e.fields.items()},
        )
        for e in replay.iter_episodes()
    ]
    return sorted(found, key=lambda each: each[:2])


def assert_same(groups: Groups, model: OneProcess) -> None:
    """The host's pieces are the rows of the model, bit for bit."""
    mirror = groups.mirror()
    assert rows_of(mirror) == rows_of(model.replay)
    assert mirror.digest() == model.digest == groups.digest()
    for number, reports in model.episodes.items():
        for group, expected in enumerate(reports):
            pieces = [p for p, _ in groups.pieces[group] if p.call == number]
            assert [e for p in pieces for e in p.episodes] == expected
            assert [p.is_last for p in pieces] == [False] * (len(pieces) - 1) + [True] * bool(
                pieces
            )
            if pieces:
                assert pieces[-1].totals is not None
                assert pieces[-1].totals.steps == sum(p.steps for p in pieces)
    for number, rollouts in model.rollouts.items():
        for group, rollout in enumerate(rollouts):
            (sent,) = (
                payload.rollout
                for piece, payload in groups.pieces[group]
                if piece.call == number and piece.is_last
            )
            assert sent is not None
            assert_equal_rollouts(sent, rollout)
            assert not sent.memory  # which would be sent a second time


CALLS = st.lists(
    st.one_of(
        st.integers(1, 60).map(lambda amount: Asked("steps", amount)),
        st.integers(1, 9).map(lambda amount: Asked("episodes", amount)),
        st.integers(1, 9).map(lambda amount: Asked("rollout", amount)),
        st.lists(st.integers(0, 99), min_size=1, max_size=7).map(
            lambda seeds: Asked("seeds", seeds=tuple(seeds))
        ),
    ),
    min_size=1,
    max_size=4,
)


@pytest.mark.proof
@given(
    data=st.data(),
    mode=st.sampled_from(MODES),
    kind=st.sampled_from(WALKS),
    policy=st.sampled_from(sorted(POLICIES)),
    count=st.integers(1, 3),
    num_envs=st.integers(1, 3),
    calls=CALLS,
    capacity=st.sampled_from([None, 10_000, 100]),
    shard=st.sampled_from([None, (2, 3)]),
    piece_rows=st.sampled_from([1, 30, 4_096]),
)
@settings(max_examples=examples(80))
def test_any_order_of_pieces_and_any_deaths_give_the_rows_of_one_process(
    data: st.DataObject,
    mode: Any,
    kind: str,
    policy: str,
    count: int,
    num_envs: int,
    calls: list[Asked],
    capacity: int | None,
    shard: tuple[int, int] | None,
    piece_rows: int,
) -> None:
    if policy != "random":
        calls = [each._replace(version=number) for number, each in enumerate(calls)]
    make_envs = partial(walks, num_envs, mode, kind, 40)
    options: dict[str, Any] = {
        "info": {"lives": -1},
        "metadata": {"task": "walk"},
        "store_state": policy == "counting",
    }
    groups = Groups(
        *(make_envs, POLICIES[policy], 7),
        GroupOptions(count, shard=shard, capacity=capacity, **options),
    )
    with rows_in_piece(piece_rows):
        groups.play(calls, lambda from_: data.draw(st.sampled_from(from_)))
    model = one_process(
        *(make_envs, POLICIES[policy], 7, count, calls),
        weights=WEIGHTS,
        shard=shard,
        **options,
    )
    assert_same(groups, model)
    if capacity is not None:  # a sixteenth of it is evicted at a time
        assert max(chunk.rows for chunk in groups.chunks()) <= max(1, capacity // 16)


def groups_of(
    make_envs: Callable[[], Any] = walks,
    make_policy: Callable[[], Any] = uniform,
    count: int = 2,
    **options: Any,
) -> Groups:
    return Groups(make_envs, make_policy, 3, GroupOptions(count, **options))


def in_turns(active: Sequence[Any]) -> Any:
    return active[0]


def last_of(pieces: Sequence[tuple[Piece, Payload]]) -> Piece:
    return pieces[-1][0]


# Envs and proofs


def test_the_fields_and_codecs_of_the_mirror_are_used() -> None:
    groups = groups_of(partial(walks, 2, kind="stack"), codecs={"observation": "raw"})
    groups.play([Asked("steps", 40)], in_turns)
    spec = groups.opening.spec
    assert spec["observation"].codec == "raw"
    assert spec["observation"].stack == 3
    whole = spec.from_spaces(
        gym.spaces.Box(0, 255, (3, 4, 4), np.uint8), gym.spaces.Discrete(3), frame_stack=1
    )
    groups = groups_of(partial(walks, 2, kind="stack"), spec=whole)
    groups.play([Asked("steps", 40)], in_turns)
    assert groups.opening.spec == whole
    other = groups_of(walks, spec=whole)
    with pytest.raises(SpecMismatch, match="observation"):
        other.play([Asked("steps", 40)], in_turns)


# Weights


def test_every_row_has_the_version_of_the_weights_that_chose_its_action() -> None:
    groups = groups_of(partial(walks, 2, longest=1000), Weighted)
    groups.play([Asked("steps", 8, version=version) for version in (0, 3, 7)], in_turns)
    episodes = list(groups.mirror().iter_episodes())
    for episode in episodes:
        versions = episode.fields["extra/policy_version"]
        assert versions.dtype == np.int64
        # Rows 0 and 1 choose the first two actions; the newest row has none yet.
        assert versions.tolist() == [0, 0, 3, 3, 7, 7, 0][: len(versions)]
    assert len(episodes) == 4
    assert [[piece.version for piece, _ in each] for each in groups.pieces] == [[0, 3, 7]] * 2


def test_a_policy_is_loaded_once_for_each_version() -> None:
    made: list[Weighted] = []

    def make_policy() -> Weighted:
        made.append(Weighted())
        return made[-1]

    groups = groups_of(walks, make_policy)
    groups.play([Asked("steps", 8, version=version) for version in (0, 0, 4, 4, 9)], in_turns)
    assert [policy.loads for policy in made] == [2, 2]
    host = groups.hosts[0]
    assert list(host._weights) == [4, 9]  # older ones are not needed any more


def test_weights_need_a_policy_that_loads_them_and_must_be_there() -> None:
    groups = groups_of(walks, uniform)
    with pytest.raises(TypeError, match=r"load\(weights\).*str"):
        groups.play([Asked("steps", 8, version=2)], in_turns)
    groups = groups_of(walks, Weighted)
    with pytest.raises(ValueError, match="version 5"):
        groups.hosts[0].advance(0, Call(0, "steps", 8, version=5))


def test_a_policy_that_returns_the_version_itself_is_refused() -> None:
    class Own(Weighted):
        def __call__(self, observation: Any, is_first: np.ndarray) -> Any:
            zeros = np.zeros(len(is_first), np.int64)
            return zeros, {"policy_version": zeros}

    with pytest.raises(ValueError, match="policy_version"):
        groups_of(walks, Own).play([Asked("steps", 8)], in_turns)


def test_the_load_of_a_class_is_none_of_the_policy() -> None:
    class Model:
        @classmethod
        def load(cls, path: str) -> None:
            raise AssertionError(path)

        def __call__(self, observation: Any, is_first: np.ndarray) -> np.ndarray:
            return np.zeros(len(is_first), np.int64)

    groups = groups_of(walks, Model)
    groups.play([Asked("steps", 8)], in_turns)
    assert "extra/policy_version" not in groups.opening.spec.names


# Pieces that are none


def test_a_call_that_has_ended_gives_its_last_piece_again() -> None:
    groups = groups_of()
    groups.play([Asked("steps", 9)], in_turns)
    piece, payload = groups.hosts[0].advance(0, groups.history[0][-1])
    assert (piece.number, piece.is_last, payload) == (0, True, Payload())
    piece, payload = groups.hosts[0].finish(0)
    assert (piece.number, piece.is_last, payload) == (0, True, Payload())


def test_a_host_answers_though_slow_envs_have_no_chunk_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host_file, "_ANSWER_SECONDS", 0.0)
    groups = groups_of(count=1)
    call = Call(0, "steps", 20)
    groups.ask(0, call)
    found = [groups.hosts[0].advance(0, call)]
    while not found[-1][0].is_last:
        found.append(groups.hosts[0].advance(0, call))
    *none, last = found
    assert len(none) > 5
    assert {(p.number, p.chunks, p.steps, p.is_repeat, load) for p, load in none} == {
        (-1, 0, 0, False, Payload())
    }
    groups.pieces[0].append(last)
    assert_same(groups, one_process(walks, uniform, 3, 1, [Asked("steps", 20)]))


def pieces_of(call: Call, count: int = 1) -> list[tuple[Piece, Payload]]:
    """All pieces of a call of one group, without those that come again."""
    groups = groups_of(partial(walks, 4, longest=60), count=count)
    groups.ask(0, call)
    while not groups.advance(0):
        pass
    return groups.pieces[0]


@pytest.mark.proof
@pytest.mark.parametrize("limit", ["rows", "bytes"])
def test_a_piece_has_whole_chunks_until_it_is_full(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = Call(0, "steps", 5_000)
    small = [piece.rows for piece, _ in pieces_of(call)]
    other = groups_of(partial(walks, 4, longest=60))
    other.play([Asked("steps", 8)], in_turns)
    fields = other.opening.spec.fields
    per_row = sum(field.row_bytes / (1 if field.codec == "raw" else 32) for field in fields)
    monkeypatch.setattr(host_file, "_PIECE_ROWS", 700 if limit == "rows" else 10**9)
    monkeypatch.setattr(host_file, "_PIECE_BYTES", 10**12 if limit == "rows" else 700 * per_row)
    pieces = pieces_of(call)
    expected, rows = [0], iter(small)
    for each in rows:
        if expected[-1] >= 700:
            expected.append(0)
        expected[-1] += each
    assert len(expected) > 3
    assert [piece.rows for piece, _ in pieces] == expected
    assert [piece.is_last for piece, _ in pieces].count(True) == 1


@pytest.mark.proof
def test_pieces_of_a_call_do_not_depend_on_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_file, "_PIECE_ROWS", 700)
    call = Call(0, "steps", 6_000)
    expected = pieces_of(call)
    monkeypatch.setattr(host_file, "_ANSWER_SECONDS", 0.0)
    found = pieces_of(call)
    assert len(found) > 3
    assert [(p.rows, p.steps, p.digest) for p, _ in found] == [
        (p.rows, p.steps, p.digest) for p, _ in expected
    ]
    assert [load.chunks for _, load in found] == [load.chunks for _, load in expected]


@pytest.mark.proof
def test_a_piece_of_a_run_waits_for_no_more_rows_than_come_in_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host_file, "_PIECE_ROWS", 10**6)
    monkeypatch.setattr(host_file, "_ANSWER_SECONDS", 0.0)
    groups, run = groups_of(partial(walks, 4, longest=60), count=1), Call(0, "run")
    pieces = [groups.hosts[0].advance(0, run)[0] for _ in range(1_000)]
    assert sum(piece.rows for piece in pieces) >= 512
    assert [piece.number for piece in pieces] == list(range(1_000))


# Runs


def test_a_run_goes_on_until_it_is_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = groups_of(partial(walks, 2, longest=1000), Weighted, 1, flush_seconds=0.0)
    groups.play([Asked("steps", 10)], in_turns)
    host, run = groups.hosts[0], Call(1, "run")
    groups.history[0].append(run)
    groups.calls.append(Asked("run"))
    for version in (0, 2, 5):
        if version:
            host.load(version, WEIGHTS[version])
        piece, payload = host.advance(0, run)
        assert (piece.is_last, piece.version) == (False, version)
        assert piece.chunks > 0  # flush_seconds are over at once
        groups.pieces[0].append((piece, payload))
    monkeypatch.setattr(host_file, "_ANSWER_SECONDS", 0.0)
    groups.pieces[0].append(host.finish(0))
    last = last_of(groups.pieces[0])
    assert (last.is_last, last.call) == (True, 1)
    assert last.totals is not None
    replay = groups.mirror()
    assert replay.digest() == groups.digest() == last.digest
    assert replay.steps == 10 + last.totals.steps
    # The next call goes on with the open episodes.
    groups.play([Asked("steps", 6, version=5)], in_turns)
    assert groups.mirror().steps == replay.steps + 6
    assert sum(not e.end.is_final for e in groups.mirror().iter_episodes()) <= 2


# Other data after a death


def test_a_group_goes_on_with_other_data() -> None:
    groups = groups_of(partial(walks, 2, longest=1000))
    groups.play([Asked("steps", 50)], in_turns)
    first = groups.mirror()
    state = last_of(groups.pieces[1]).state
    host = groups.make()
    host.begin(GroupStart(1, 1, 99, 1, state=state), {})
    piece, payload = host.advance(1, Call(1, "steps", 10))
    assert (piece.number, piece.attempt, piece.is_repeat) == (0, 1, False)
    assert piece.opening is not None
    assert piece.opening.facts["session"] == 1
    assert piece.opening.facts["seed"] == "99"
    groups.pieces[1].append((piece, payload))
    both = groups.mirror()
    assert both.digest() == groups.digest() != first.digest()
    assert both.episodes == first.episodes + 2
    assert {e.metadata["session"] for e in both.iter_episodes() if e.stream > 1} == {0, 1}


# What cannot be played again


@pytest.mark.proof
def test_a_policy_that_is_no_function_of_the_seed_is_found_by_the_digest() -> None:
    groups = groups_of(walks, Careless, 1)
    groups.play([Asked("steps", 2000)], in_turns)
    stored = [piece for piece, _ in groups.pieces[0]]
    host = groups.make()
    start = GroupStart(0, 1, 3, 0, tuple(groups.history[0]), len(stored))
    host.begin(start, {})
    again = [host.advance(0, groups.history[0][0])[0] for _ in stored]
    assert again[-1].is_repeat
    assert [piece.digest for piece in again] != [piece.digest for piece in stored]


# Errors


class Broken(gym.Wrapper[Any, Any, Any, Any]):
    """An env that fails at a step."""

    def __init__(self, env: gym.Env[Any, Any], after: int) -> None:
        super().__init__(env)
        self.left = after

    def step(self, action: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("the simulator is broken")
        return super().step(action)


def play_with(host: GroupHost, version: int) -> None:
    host.begin(GroupStart(0, 0, 0, 0), {})
    host.advance(0, Call(0, "steps", 5, version=version))


def broken() -> Any:
    return gym.vector.SyncVectorEnv([lambda: Broken(walk(longest=1000), 30)])


def test_errors_of_the_users_code_leave_as_they_are() -> None:
    def fails(*_: object) -> Any:
        raise RuntimeError("no such simulator")

    closed: list[bool] = []

    class Closing(gym.Wrapper[Any, Any, Any, Any]):
        def close(self) -> None:
            closed.append(True)

    for make_envs, make_policy in (
        (fails, uniform),
        (walks, fails),
        (walks, lambda: type("", (Weighted,), {"load": fails})()),
    ):
        host = GroupHost(make_envs, cast("Any", make_policy), GroupOptions(1))
        host.load(1, {"w": 1.0})
        with pytest.raises(RuntimeError, match="no such simulator"):
            play_with(host, version=1)
    host = GroupHost(
        lambda: gym.vector.SyncVectorEnv([lambda: Closing(walk())]), fails, GroupOptions(1)
    )
    with pytest.raises(RuntimeError, match="no such simulator"):
        host.begin(GroupStart(0, 0, 0, 0), {})
    assert closed == [True]


def test_the_rows_before_an_error_can_be_stored() -> None:
    groups = groups_of(broken, count=1)
    call = Call(0, "steps", 100)
    groups.ask(0, call)
    with pytest.raises(RuntimeError, match="broken"):
        groups.advance(0)
    with pytest.raises(ValueError, match="failed before: the simulator is broken"):
        groups.advance(0)
    piece, payload = groups.hosts[0].finish(0)
    groups.pieces[0].append((piece, payload))
    assert groups.mirror().steps == 30
    assert groups.mirror().digest() == groups.digest()
    groups.hosts[0].begin(GroupStart(0, 1, 3, 0), {})  # makes all of it anew
    groups.hosts[0].close()


def test_a_group_must_have_begun() -> None:
    host = GroupHost(walks, cast("Any", uniform), GroupOptions(2))
    assert host.ping() == sw.__version__
    host.begin(GroupStart(1, 0, 0, 0), {})
    with pytest.raises(ValueError, match=r"\[1\], got 0"):
        host.advance(0, Call(0, "steps", 5))
    host.close()
    host.close()
    with pytest.raises(ValueError, match=r"\[\], got 1"):
        host.finish(1)


# Folders


def test_a_store_of_other_rows_is_found_when_it_is_played_again(tmp_path: Path) -> None:
    groups = groups_of(walks, Careless, 1, destination=str(tmp_path))
    call = Call(0, "steps", 2000)
    groups.ask(0, call)
    groups.advance(0)
    steps = steps_in(tmp_path, 0)
    groups.pieces[0].clear()  # no piece was acknowledged
    groups.die(0)
    with pytest.raises(RowsDiffer, match="group-00000"):
        groups.advance(0)
    groups.lose(0)
    assert steps_in(tmp_path, 0) == steps


def test_a_store_must_have_the_sessions_of_the_others(tmp_path: Path) -> None:
    folder = str(tmp_path)
    groups = groups_of(walks, count=2, destination=folder)
    groups.play([Asked("steps", 20)], in_turns)
    groups.hosts[0].close()
    groups.hosts[1].close()
    with pytest.raises(ValueError, match=r"expected a store of 0 sessions.*got 1"):
        groups_of(walks, destination=folder)
    more = groups_of(walks, count=3, destination=folder, session=1)
    more.play([Asked("steps", 20)], in_turns)
    for group in range(3):
        more.hosts[group].close()
        path = group_folder(folder, group)
        with sw.SequenceReplayBuffer.open(path, read_only=True) as replay:
            assert len(replay.sessions) == 2
            assert replay.sessions[1]["session"] == 1
            assert [e.metadata["session"] for e in replay.iter_episodes()][-1] == 1


def test_a_store_that_another_process_holds_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = groups_of(walks, count=1, destination=str(tmp_path))
    groups.play([Asked("steps", 20)], in_turns)
    monkeypatch.setattr(host_file, "_LOCK_SECONDS", 0.0)
    other = groups.make()
    start = GroupStart(0, 1, 3, 0, tuple(groups.history[0]))
    with pytest.raises(StoreLocked, match="group-00000"):
        other.begin(start, {})

    def end(_: float) -> None:
        groups.hosts[0].close()

    monkeypatch.setattr(host_file, "_LOCK_SECONDS", 30.0)
    monkeypatch.setattr("time.sleep", end)
    assert other.begin(start, {}) == 2
    other.close()


def group_folder(folder: Path | str, group: int) -> Path:
    return Path(folder) / f"group-{group:05}"


def steps_in(folder: Path, group: int) -> int:
    with sw.SequenceReplayBuffer.open(group_folder(folder, group), read_only=True) as replay:
        return replay.steps


@pytest.mark.proof
@given(
    data=st.data(),
    mode=st.sampled_from(MODES),
    capacity=st.sampled_from([None, 400]),
    piece_rows=st.sampled_from([1, 60]),
)
@settings(max_examples=examples(40))
def test_a_groups_own_store_has_the_same_rows_after_any_death(
    tmp_path_factory: pytest.TempPathFactory,
    data: st.DataObject,
    mode: Any,
    capacity: int | None,
    piece_rows: int,
) -> None:
    folder = str(tmp_path_factory.mktemp("stores"))
    make_envs = partial(walks, 2, mode, "box", 60)
    calls = [Asked("steps", 130), Asked("episodes", 3), Asked("rollout", 5), Asked("steps", 20)]
    groups = Groups(
        *(make_envs, Counting, 3), GroupOptions(2, destination=folder, capacity=capacity)
    )
    stored = SequenceAdds(data)
    try:
        with pytest.MonkeyPatch.context() as patch, rows_in_piece(piece_rows):
            patch.setattr(
                host_file._GroupStore, "_numbered", lambda *arguments: stored.cut(*arguments)
            )
            for number, asked in enumerate(calls):
                for group in range(2):
                    call = asked.of_group(number, group, 2)
                    assert call is not None
                    groups.ask(group, call)
                    while True:
                        try:
                            if groups.advance(group):
                                break
                        except Died:
                            groups.die(group)
    finally:  # an example may end within a draw
        for host in groups.hosts.values():
            host.close()
    model = one_process(*(make_envs, Counting, 3, 2, calls), capacity=None, weights=WEIGHTS)
    for group in range(2):
        path = group_folder(folder, group)
        with sw.SequenceReplayBuffer.open(path, read_only=True) as replay:
            expected = model.groups[group]
            assert len(replay.sessions) == 1
            assert replay.steps == expected.steps
            newest = {(e.stream, e.metadata["stream_episode"]): e for e in expected.iter_episodes()}
            for episode in replay.iter_episodes():
                same = newest[episode.stream, episode.metadata["stream_episode"]]
                assert episode.end == same.end
                assert dict(episode.metadata) == dict(same.metadata)
                for name, rows in episode.fields.items():
                    part = same.fields[name][episode.first_row :]
                    assert rows.tobytes() == part.tobytes()
            if capacity is None:
                assert replay.digest() == expected.digest() == last_of(groups.pieces[group]).digest
                assert replay.episodes == expected.episodes


class Died(Exception):
    """The actor died while it stored chunks."""


class SequenceAdds:
    """Lets an actor die before, in and after some of its adds."""

    def __init__(self, data: st.DataObject) -> None:
        self.data, self.left = data, 4
        self.numbered = host_file._GroupStore._numbered

    def cut(self, store: Any, chunks: Sequence[Any]) -> Any:
        numbered = self.numbered(store, chunks)
        if self.left and self.data.draw(st.booleans()):
            self.left -= 1
            kept = self.data.draw(st.integers(0, len(numbered)))
            if kept:
                store._replay.add(numbered[:kept])
            store._replay.close()  # a process that is gone stores nothing more
            raise Died
        return numbered
