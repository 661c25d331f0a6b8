"""Schedules of faults, drawn at random: the data stays what one process would have collected."""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Callable, Iterator
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
from stepwell.collectors.loop.report import EpisodeReport
from support.examples import by_tier
from support.groups import (
    MODES,
    WALKS,
    Asked,
    Counting,
    OneProcess,
    Weighted,
    one_process,
    uniform,
    walks,
)
from support.inline_engine import Faults, InlineEngine

SEED = 7
WEIGHTS = {version: {"w": version / 8} for version in range(1, 9)}
KINDS: tuple[CallKind, ...] = ("steps", "steps", "episodes", "seeds", "rollout")
SCHEDULES = by_tier(10, 300, 10_000)


class Plan(NamedTuple):
    """The data to collect, which depend on nothing else."""

    groups: int
    num_envs: int
    make_envs: Callable[[], Any]
    policy: Callable[[], Any]
    calls: tuple[Asked, ...]
    chunk_rows: int
    piece_rows: int
    capacity: int | None
    options: dict[str, Any]


def plan_of(number: int) -> Plan:
    """One of a fixed number of plans, so that each is modelled once."""
    rng = random.Random(number)
    policy = rng.choice((Weighted, Counting, uniform))
    calls: list[Asked] = []
    version = 0
    for _ in range(rng.randint(2, 4)):
        version += policy is not uniform and rng.random() < 0.4
        kind: CallKind = rng.choice(KINDS)
        amount = {"steps": rng.randint(1, 50), "episodes": rng.randint(1, 6)}.get(kind, 0)
        amount = rng.randint(1, 9) if kind == "rollout" else amount
        seeds = [rng.randrange(1000) for _ in range(rng.randint(1, 5))] if kind == "seeds" else []
        calls.append(Asked(kind, amount, tuple(seeds), version))
    options: dict[str, Any] = {
        "info": {"lives": -1},
        "metadata": {"task": "walk"},
        # The model's Collectors would refuse seeds of another shard.
        "shard": None if any(call.seeds for call in calls) else rng.choice((None, (2, 3))),
        "store_state": policy is Counting,
    }
    num_envs = rng.randint(1, 3)
    return Plan(
        groups=rng.randint(1, 4),
        num_envs=num_envs,
        make_envs=functools.partial(walks, num_envs, rng.choice(MODES), rng.choice(WALKS)),
        policy=policy,
        calls=tuple(calls),
        chunk_rows=rng.choice((3, 5, 512, 512)),
        piece_rows=rng.choice((1, 1, 7, 20, 4_096)),
        capacity=rng.choice((None, 100)),
        options=options,
    )


class Expected(NamedTuple):
    """The data of a plan: of the model, and the chunks in the order in which they are stored."""

    model: OneProcess
    chunks: list[tuple[int, int, int, bytes]]


@functools.cache
def expected_of(number: int) -> Expected:
    """Play the calls with plain Collectors; and with hosts, in the order of rounds and groups."""
    plan = plan_of(number)
    made = plan.make_envs, plan.policy
    options = GroupOptions(plan.groups, capacity=plan.capacity, **plan.options)
    with rows_in(plan.chunk_rows, plan.piece_rows):
        model = one_process(*made, SEED, plan.groups, plan.calls, weights=WEIGHTS, **plan.options)
        hosts = [GroupHost(*made, options) for _ in range(plan.groups)]
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
                            stream = group * plan.num_envs + one.stream
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


def faults_of(rng: random.Random) -> Faults:
    """Chances of faults; about half of all kinds are left out."""

    def chance(most: float) -> float:
        return rng.random() * most if rng.random() < 0.5 else 0.0

    return Faults(
        delay=chance(0.5),
        die_before=chance(0.15),
        die_after=chance(0.15),
        pause=chance(0.08),
        twice=chance(0.4),
        disorder=chance(0.7),
        slow_start=chance(0.7),
        most_deaths=rng.randint(1, 6),
        pause_seconds=rng.choice((3.0, 15.0, 40.0)),
    )


def distributed(
    engine: InlineEngine, plan: Plan, rng: random.Random, replay: Any, **more: Any
) -> DistributedCollector:
    options = {**plan.options, **more}
    of_groups = {name: options.pop(name) for name in {*options} & {*GroupOptions._fields}}
    return DistributedCollector(
        lambda: engine,
        plan.make_envs,
        plan.policy,
        replay,
        GroupOptions(plan.groups, **of_groups),
        actors=rng.randint(1, plan.groups),
        in_flight=rng.randint(1, 4),
        max_restarts=1_000,
        start_seconds=10.0,
        answer_seconds=10.0,
        clock=engine.clock,
        **options,
    )


def make_call(
    collector: DistributedCollector, asked: Asked, version: int, expected: list[sw.Rollout]
) -> None:
    """Make a call of a plan, after one with that version; compare its rollout."""
    weights = WEIGHTS[asked.version] if asked.version != version else None
    if asked.kind == "rollout":
        rollout = collector.rollout(asked.amount, weights=weights)
        rewards = np.concatenate([part.reward for part in expected], 1)
        assert rollout.reward.tobytes() == rewards.tobytes()
        if "policy_version" in rollout.extras:
            assert rollout.extras["policy_version"].max() == asked.version
    else:
        goal: Any = {asked.kind: asked.seeds or asked.amount}
        collector.collect(**goal, weights=weights)


@given(st.integers(0, 59), st.integers(0, 2**48))
@settings(max_examples=SCHEDULES, phases=[Phase.generate])  # shrinking a seed says nothing
def test_collectors_that_follow_each_other_store_what_one_process_stores(
    number: int, seed: int
) -> None:
    """Same rows, same digest, same order of chunks: for any actors, order of answers and deaths.

    Before some calls: new actors, another number of them, and all that can die does.
    """
    plan, rng = plan_of(number), random.Random(seed)
    expected = expected_of(number)
    replay = sw.SequenceReplayBuffer(capacity=plan.capacity)
    state: Any = None
    ended: list[EpisodeReport] = []
    report: Any = None
    version, left = 0, [*enumerate(plan.calls)]
    while left:
        count = rng.choice((1, len(left)))
        now, left = left[:count], left[count:]
        engine = InlineEngine(rng.randrange(2**32), faults_of(rng))
        window = rng.choice((1, 2_000, 256_000_000))
        begun = SEED if state is None else None
        with (
            rows_in(plan.chunk_rows, plan.piece_rows),
            mock.patch.object(collector_file, "_WINDOW_BYTES", window),
            distributed(engine, plan, rng, replay, seed=begun, on_episode=ended.append) as one,
        ):
            if state is not None:
                one.load_state_dict(unpack(pack(state), "test"), weights=WEIGHTS.get(version))
            for at, asked in now:
                make_call(one, asked, version, expected.model.rollouts.get(at, []))
                version = asked.version
            if rng.random() < 0.3:
                one.state_dict()  # which changes nothing
            state = one.state_dict()
            report = one.report
        assert engine.is_closed
        assert report.reseeded == 0
    states = [DigestState.from_json(group["digest"]) for group in state["groups"]]
    digest = DigestState.of_groups(states, plan.num_envs).hexdigest()
    assert digest == report.digest == expected.model.digest
    stored = chunks_of(replay)
    assert stored == expected.chunks[-len(stored) :]
    if plan.capacity is None:
        assert replay.digest() == digest
    else:  # a sixteenth of it is evicted at a time
        assert max(rows for _, _, rows, _ in stored) <= plan.capacity // 16
    (facts,) = replay.sessions
    assert (facts["groups"], facts["num_envs"]) == (plan.groups, plan.groups * plan.num_envs)
    assert facts.get("shard") == (plan.options["shard"] and [*plan.options["shard"]])
    assert facts["seed"] == state["groups"][0]["seed"] == str(SEED)
    assert state["total_steps"] == expected.model.replay.steps
    *_, last = played = list(expected.model.episodes.values())
    assert len({each.episode for each in ended}) == len(ended)
    assert len(ended) == sum(len(one) for call in played for one in call)
    assert sorted(report.returns) == sorted(each.total_reward for one in last for each in one)
    assert {each.env for each in ended} <= set(range(plan.groups * plan.num_envs))
    totals = [each.total_steps for each in ended]
    assert totals == sorted(totals)


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
    plan = plan_of(0)._replace(
        groups=rng.randint(1, 3),
        num_envs=2,
        make_envs=walks,
        policy=Weighted,
        options={},
    )
    engine = InlineEngine(rng.randrange(2**32), faults_of(rng))
    replay, recorder = sw.SequenceReplayBuffer(), Recorder()
    acknowledged: list[tuple[int, int, bytes]] = []
    store = DistributedCollector._store

    def noted_store(collector: DistributedCollector, waiting: Any) -> None:
        store(collector, waiting)
        piece, (payload, _) = waiting.piece, waiting.payload
        if payload.chunks:
            acknowledged.append((piece.group, piece.attempt, payload.chunks))

    with (
        rows_in(rng.choice((3, 8)), rng.choice((1, 10))),
        recorder.patched(),
        mock.patch.object(DistributedCollector, "_store", noted_store),
        distributed(engine, plan, rng, replay, seed=SEED) as collector,
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
        (group * plan.num_envs + one.stream, one.first_row, one.rows, rows_of(one, spec))
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
        assert mine == recorder.sent[group, attempt][: len(mine)]
        decoded = [one.decoded(spec) for data in mine for one in unpack_chunks(data, spec)]
        for env in range(plan.num_envs):
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
