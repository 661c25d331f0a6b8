"""Schedules of faults, drawn at random: the data stays what one process would have collected."""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

import stepwell as sw
from stepwell.buffers.rows import episode_buffer
from stepwell.buffers.rows.digest import DigestState
from stepwell.buffers.storage.checkpoint import pack, unpack
from stepwell.buffers.storage.encoded_chunk import unpack_chunks
from stepwell.collectors.distributed import collector as collector_file
from stepwell.collectors.distributed import host as host_file
from stepwell.collectors.distributed.collector import DistributedCollector
from stepwell.collectors.distributed.host import GroupHost
from stepwell.collectors.distributed.messages import CallKind, GroupOptions, GroupStart
from stepwell.collectors.distributed.report import DistributedReport
from stepwell.collectors.loop.report import EpisodeReport
from support.examples import by_tier
from support.groups import Asked, Counting, OneProcess, Weighted, one_process, walks
from support.inline_engine import Faults, InlineEngine

SEED = 7
NUM_ENVS = 2
WEIGHTS = {version: {"w": version / 8} for version in range(1, 9)}
KINDS: tuple[CallKind, ...] = ("steps", "steps", "episodes", "seeds", "rollout")
SCHEDULES = by_tier(10, 300, 10_000)


class Plan(NamedTuple):
    """The data to collect, which depend on nothing else."""

    groups: int
    calls: tuple[Asked, ...]
    chunk_rows: int
    policy: Callable[[], Any]
    piece_rows: int


def plan_of(number: int) -> Plan:
    """One of a fixed number of plans, so that each is modelled once."""
    rng = random.Random(number)
    calls: list[Asked] = []
    version = 0
    for _ in range(rng.randint(1, 3)):
        version += rng.random() < 0.4
        kind: CallKind = rng.choice(KINDS)
        amount = {"steps": rng.randint(1, 50), "episodes": rng.randint(1, 6)}.get(kind, 0)
        amount = rng.randint(1, 9) if kind == "rollout" else amount
        seeds = [rng.randrange(1000) for _ in range(rng.randint(1, 5))] if kind == "seeds" else []
        calls.append(Asked(kind, amount, tuple(seeds), version))
    policy = rng.choice((Weighted, Counting))
    groups, chunk_rows = rng.randint(1, 4), rng.choice((3, 5, 512))
    return Plan(groups, tuple(calls), chunk_rows, policy, rng.choice((1, 1, 7, 20, 4_096)))


class Expected(NamedTuple):
    """The data of a plan: of the model, and the chunks in the order in which they are stored."""

    model: OneProcess
    chunks: list[tuple[int, int, int, bytes]]


@functools.cache
def expected_of(number: int) -> Expected:
    """Play the calls with plain Collectors; and with hosts, in the order of rounds and groups."""
    plan = plan_of(number)
    with rows_in(plan.chunk_rows, plan.piece_rows):
        model = one_process(walks, plan.policy, SEED, plan.groups, plan.calls, weights=WEIGHTS)
        hosts = [
            GroupHost(walks, plan.policy, GroupOptions(groups=plan.groups))
            for _ in range(plan.groups)
        ]
        for group, host in enumerate(hosts):
            host.begin(GroupStart(group, 0, SEED, 0), {})
        chunks: list[tuple[int, int, int, bytes]] = []
        pieces = [-1] * plan.groups
        for call_number, asked in enumerate(plan.calls):
            shares = [asked.of_group(call_number, g, plan.groups) for g in range(plan.groups)]
            active = [group for group, share in enumerate(shares) if share is not None]
            for host in hosts if asked.version else ():
                host.load(asked.version, WEIGHTS[asked.version])
            while active:
                for group in list(active):
                    share = shares[group]
                    assert share is not None
                    piece, payload = hosts[group].advance(group, share)
                    while piece.number == pieces[group]:  # nothing new within a second
                        piece, payload = hosts[group].advance(group, share)
                    pieces[group] = piece.number
                    if payload.chunks:
                        for one in unpack_chunks(payload.chunks, model.replay.spec):
                            stream = group * NUM_ENVS + one.stream
                            chunks.append((stream, one.first_row, one.rows, bytes(one.data)))
                    if piece.is_last:
                        active.remove(group)
    return Expected(model, chunks)


@contextlib.contextmanager
def rows_in(chunk: int, piece: int) -> Iterator[None]:
    """Let chunks and pieces have so many rows."""
    with (
        mock.patch.object(episode_buffer, "_rows_by_size", return_value=chunk),
        mock.patch.object(host_file, "_PIECE_ROWS", piece),
    ):
        yield


def chunks_of(replay: sw.SequenceReplayBuffer) -> list[tuple[int, int, int, bytes]]:
    storage = replay.storage
    found = []
    for position in range(storage.index.base, storage.index.base + len(storage.index)):
        one = storage.encoded(position)
        found.append((one.stream, one.first_row, one.rows, bytes(one.data)))
    return found


def faults_of(rng: random.Random, *, can_die: bool = True) -> Faults:
    """Chances of faults; about half of all kinds are left out."""

    def chance(most: float) -> float:
        return rng.random() * most if rng.random() < 0.5 else 0.0

    dying = 1.0 if can_die else 0.0
    return Faults(
        delay=chance(0.5),
        die_before=chance(0.15) * dying,
        die_after=chance(0.15) * dying,
        pause=chance(0.08) * dying,
        twice=chance(0.4),
        disorder=chance(0.7),
        slow_start=chance(0.7),
        most_deaths=rng.randint(1, 6),
        pause_seconds=rng.choice((3.0, 15.0, 40.0)),
    )


def collect_all(
    collector: DistributedCollector, calls: Sequence[Asked]
) -> tuple[DistributedReport, dict[int, sw.Rollout]]:
    """Make the calls of a plan; returns the last report and the rollouts."""
    version, rollouts = 0, {}
    for number, asked in enumerate(calls):
        weights = WEIGHTS[asked.version] if asked.version != version else None
        version = asked.version
        if asked.kind == "rollout":
            rollouts[number] = collector.rollout(asked.amount, weights=weights)
        elif asked.kind == "seeds":
            collector.collect(seeds=asked.seeds, weights=weights)
        else:
            goal: Any = {asked.kind: asked.amount}
            collector.collect(**goal, weights=weights)
    return collector.report, rollouts


@pytest.mark.proof
@given(st.integers(0, 29), st.integers(0, 2**48))
@settings(max_examples=SCHEDULES, phases=[Phase.generate])  # shrinking a seed says nothing
def test_synchronous_calls_store_what_one_process_stores(number: int, seed: int) -> None:
    """Same rows, same digest, same order of chunks: for any actors, order of answers and deaths."""
    plan, rng = plan_of(number), random.Random(seed)
    expected = expected_of(number)
    engine = InlineEngine(rng.randrange(2**32), faults_of(rng))
    replay = sw.SequenceReplayBuffer()
    episodes: list[EpisodeReport] = []
    with (
        rows_in(plan.chunk_rows, plan.piece_rows),
        mock.patch.object(collector_file, "_WINDOW_BYTES", rng.choice((1, 2_000, 256_000_000))),
        DistributedCollector(
            lambda: engine,
            walks,
            plan.policy,
            replay,
            groups=plan.groups,
            actors=rng.randint(1, plan.groups),
            seed=SEED,
            in_flight=rng.randint(1, 4),
            max_restarts=1_000,
            start_seconds=10.0,
            answer_seconds=10.0,
            on_episode=episodes.append,
            clock=engine.clock,
        ) as collector,
    ):
        report, rollouts = collect_all(collector, plan.calls)
    assert engine.is_closed
    assert replay.digest() == report.digest == expected.model.digest
    assert chunks_of(replay) == expected.chunks
    assert len(replay.sessions) == 1
    assert report.reseeded == 0
    played = [group for call in expected.model.episodes.values() for group in call]
    assert len(episodes) == sum(map(len, played))
    last = expected.model.episodes[len(plan.calls) - 1]
    assert sorted(report.returns) == sorted(each.total_reward for one in last for each in one)
    assert {each.env for each in episodes} <= set(range(plan.groups * NUM_ENVS))
    for at, rollout in rollouts.items():
        parts = expected.model.rollouts[at]
        assert rollout.reward.tobytes() == np.concatenate([p.reward for p in parts], 1).tobytes()
        assert rollout.extras["policy_version"].max() == plan.calls[at].version


@given(st.integers(0, 29), st.integers(0, 2**48))
@settings(max_examples=SCHEDULES, phases=[Phase.generate])
def test_collectors_that_follow_each_other_store_what_one_process_stores(
    number: int, seed: int
) -> None:
    """Between any two calls: new actors, another number of them, and all that can die does."""
    plan, rng = plan_of(number), random.Random(seed)
    expected = expected_of(number)
    replay = sw.SequenceReplayBuffer()
    state: Any = None
    ended: list[EpisodeReport] = []
    version = 0
    for at in [*range(len(plan.calls)), -1]:
        engine = InlineEngine(rng.randrange(2**32), faults_of(rng))
        with (
            rows_in(plan.chunk_rows, plan.piece_rows),
            DistributedCollector(
                lambda engine=engine: engine,  # type: ignore[misc]
                walks,
                plan.policy,
                replay,
                groups=plan.groups,
                actors=rng.randint(1, plan.groups),
                seed=SEED if state is None else None,
                max_restarts=1_000,
                start_seconds=10.0,
                answer_seconds=10.0,
                on_episode=ended.append,
                clock=engine.clock,
            ) as collector,
        ):
            if state is not None:
                weights = WEIGHTS[version] if version else None
                collector.load_state_dict(unpack(pack(state), "test"), weights=weights)
            if at < 0:
                assert collector.state_dict()["groups"][0]["seed"] == str(SEED)
                break
            asked = plan.calls[at]
            before, version = version, asked.version
            more: dict[str, Any] = {}
            if version != before:
                more["weights"] = WEIGHTS[version]
            if asked.kind == "rollout":
                rollout = collector.rollout(asked.amount, **more)
                rewards = [part.reward for part in expected.model.rollouts[at]]
                assert rollout.reward.tobytes() == np.concatenate(rewards, 1).tobytes()
            else:
                goal: Any = {asked.kind: asked.seeds or asked.amount}
                collector.collect(**goal, **more)
            if rng.random() < 0.3:
                collector.state_dict()  # which changes nothing
            state = collector.state_dict()
            assert collector.report.reseeded == 0
    assert state is not None
    assert replay.digest() == collector_digest(state, NUM_ENVS) == expected.model.digest
    assert chunks_of(replay) == expected.chunks
    assert len(replay.sessions) == 1
    played = [each for call in expected.model.episodes.values() for one in call for each in one]
    assert len(ended) == len(played)
    assert len({each.episode for each in ended}) == len(ended)
    totals = [each.total_steps for each in ended]
    assert totals == sorted(totals)
    assert state["total_steps"] == replay.steps


def collector_digest(state: Any, num_envs: int) -> str:
    states = [DigestState.from_json(group["digest"]) for group in state["groups"]]
    return DigestState.of_groups(states, num_envs).hexdigest()


def is_prefix(chunks: Sequence[Any], whole: Sequence[Any]) -> bool:
    return list(chunks) == list(whole)[: len(chunks)]


class Recorder:
    """The rows that each attempt of each group has sent, and the acknowledged ones.

    It stands before `GroupHost.advance`: so it knows the true stream of an attempt, also of those
    whose answers were lost.
    """

    def __init__(self) -> None:
        self.sent: dict[tuple[int, int], list[bytes]] = {}

    def patched(self) -> Any:
        recorder, advance, finish = self, GroupHost.advance, GroupHost.finish

        def noted(answer: Any) -> Any:
            piece, payload = answer
            if payload.chunks:
                recorder.sent.setdefault((piece.group, piece.attempt), []).append(payload.chunks)
            return answer

        return mock.patch.multiple(
            GroupHost,
            advance=lambda host, group, call: noted(advance(host, group, call)),
            finish=lambda host, group: noted(finish(host, group)),
        )


@pytest.mark.proof
@given(st.integers(0, 2**48))
@example(196_695_624_848)  # an actor dies while its run ends, and answers after that
@settings(max_examples=SCHEDULES, phases=[Phase.explicit, Phase.generate])  # seeds do not shrink
def test_a_run_stores_a_prefix_of_each_attempt_and_nothing_of_zombies(seed: int) -> None:
    """Acknowledged rows are stored; versions never go back; published weights arrive."""
    rng = random.Random(seed)
    groups = rng.randint(1, 3)
    engine = InlineEngine(rng.randrange(2**32), faults_of(rng))
    replay, recorder = sw.SequenceReplayBuffer(), Recorder()
    acknowledged: list[tuple[int, int, bytes]] = []
    store = DistributedCollector._store

    def noted_store(collector: DistributedCollector, waiting: Any) -> None:
        store(collector, waiting)
        if waiting.payload.payload.chunks:
            piece = waiting.piece
            acknowledged.append((piece.group, piece.attempt, waiting.payload.payload.chunks))

    with (
        rows_in(rng.choice((3, 8)), rng.choice((1, 10))),
        recorder.patched(),
        mock.patch.object(DistributedCollector, "_store", noted_store),
        DistributedCollector(
            lambda: engine,
            walks,
            Weighted,
            replay,
            groups=groups,
            actors=rng.randint(1, groups),
            seed=SEED,
            in_flight=rng.randint(1, 3),
            max_restarts=1_000,
            start_seconds=10.0,
            answer_seconds=10.0,
            clock=engine.clock,
        ) as collector,
    ):
        if rng.random() < 0.5:
            collector.collect(steps=rng.randint(1, 20))
        before = collector._total_steps
        published = 0
        run = collector.running(weights=WEIGHTS[1] if rng.random() < 0.5 else None)
        with mock.patch.object(run, "_thread", Here(run)), run:
            for _ in range(rng.randint(1, 3)):
                collector_steps(run, rng.randint(1, 6))
                if rng.random() < 0.7:
                    published = run.publish(WEIGHTS[rng.randint(2, 8)])
            collector_steps(run, 2)
            if published:
                step_until(run, lambda: run.lag == 0)
        report = collector.report
    assert report.steps == collector._total_steps - before
    assert report.version == max(published, run.version)
    if not acknowledged:
        assert not replay.steps
        return
    # Stored: exactly what was acknowledged, in that order.
    spec = replay.spec
    rows = [
        (group * NUM_ENVS + one.stream, one.first_row, one.rows, rows_of(one, spec))
        for group, _, data in acknowledged
        for one in unpack_chunks(data, spec)
    ]
    storage = replay.storage
    stored = [
        (one.stream, one.first_row, one.rows, rows_of(one, spec))
        for one in map(storage.encoded, range(len(storage.index)))
    ]
    assert stored == rows
    # A prefix of each attempt, or what follows what an attempt before has sent.
    newest: dict[int, int] = {}
    for group, attempt in dict.fromkeys((group, attempt) for group, attempt, _ in acknowledged):
        assert attempt >= newest.get(group, 0), "rows of a zombie"
        newest[group] = attempt
        mine = [data for g, a, data in acknowledged if (g, a) == (group, attempt)]
        assert is_prefix(mine, recorder.sent[group, attempt])
        decoded = [one.decoded(spec) for data in mine for one in unpack_chunks(data, spec)]
        for env in range(NUM_ENVS):
            versions = [
                chunk.fields["extra/policy_version"][: chunk.rows - bool(chunk.end)]
                for chunk in decoded
                if chunk.stream == env
            ]
            numbers = np.concatenate(versions) if versions else np.zeros(0, np.int64)
            assert (np.diff(numbers) >= 0).all()
    assert len(replay.sessions) == 1 + report.reseeded
    for episode in replay.iter_episodes():
        assert episode.first_row == 0
        session: Any = episode.metadata["session"]
        assert session < len(replay.sessions)


def rows_of(one: Any, spec: sw.Spec) -> dict[str, bytes]:
    return {name: rows.tobytes() for name, rows in one.decoded(spec).fields.items()}


class Here:
    """In place of the thread of a run: its work is done where the test asks for it."""

    def __init__(self, run: Any) -> None:
        self.run = run

    def start(self) -> None:
        """Do nothing: `collector_steps` does the work."""

    def join(self) -> None:
        self.run._work()


def collector_steps(run: Any, count: int) -> None:
    for _ in range(count):
        run._send_newest()
        run._collector._go_on()


def step_until(run: Any, is_done: Callable[[], bool]) -> None:
    for _ in range(2_000):
        if is_done():
            return
        collector_steps(run, 1)
    raise AssertionError("published weights did not arrive")
