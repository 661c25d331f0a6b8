"""DistributedCollector over an engine in this process: destinations, errors, bounds and numbers."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

import stepwell as sw
from stepwell.buffers import SpecMismatch
from stepwell.buffers.rows import episode_buffer
from stepwell.buffers.storage.checkpoint import pack, unpack
from stepwell.collectors.distributed import collector as collector_file
from stepwell.collectors.distributed import host as host_file
from stepwell.collectors.distributed.collector import DistributedCollector, GroupLost
from stepwell.collectors.distributed.delivery import Delivery
from stepwell.collectors.distributed.engine import ActorDied, NotEnoughResources, RemoteError
from stepwell.collectors.distributed.folders import Folders
from stepwell.collectors.distributed.host import GroupHost
from stepwell.collectors.distributed.messages import GroupOptions
from stepwell.collectors.distributed.report import distributed_status
from support.examples import examples
from support.groups import (
    MODES,
    Asked,
    Careless,
    Counting,
    Walk,
    Weighted,
    one_process,
    uniform,
    walks,
)
from support.inline_engine import Faults, InlineActor, InlineEngine
from support.tiers import proofs_but

Before = Callable[[InlineActor, str, tuple[object, ...]], None]


def make(
    replay: Any = None,
    *,
    engine: InlineEngine | None = None,
    make_envs: Callable[[], Any] = walks,
    make_policy: Callable[[], Any] = uniform,
    groups: int = 3,
    actors: int = 2,
    **options: Any,
) -> DistributedCollector:
    engine = engine or InlineEngine()
    of_groups = {name: options.pop(name) for name in {*options} & {*GroupOptions._fields}}
    return DistributedCollector(
        options=GroupOptions(groups, **of_groups),
        actors=actors,
        make_envs=make_envs,
        make_policy=make_policy,
        replay=replay,
        **{
            "start_engine": lambda: engine,
            "seed": 7,
            "answer_seconds": 10.0,
            "start_seconds": 10.0,
            "clock": engine.clock,
            **options,
        },
    )


@pytest.fixture(autouse=True)
def small_pieces() -> Iterator[None]:
    with (
        mock.patch.object(episode_buffer, "_rows_by_size", return_value=4),
        mock.patch.object(host_file, "_PIECE_ROWS", 1),  # a piece is one add of chunks
    ):
        yield


def dies_at(*numbers: int) -> Before:
    """Kill the actor that makes these calls of ``advance``, counted over all actors."""
    count = [0]

    def before(actor: InlineActor, method: str, arguments: tuple[object, ...]) -> None:
        if method == "advance":
            count[0] += 1
            if count[0] in numbers:
                raise ActorDied("it was out of memory")

    return before


# Data


def test_the_rows_of_a_mirror_can_be_played_again() -> None:
    replay = sw.SequenceReplayBuffer()
    make_envs = partial(sw.make_vec, "CartPole-v1", num_envs=2, num_workers=0)
    engine = InlineEngine(1, Faults(die_after=0.3, most_deaths=3))
    with make(replay, make_envs=make_envs, engine=engine) as one:
        one.collect(episodes=6)
    proofs = list(sw.resimulate(replay))
    assert len(proofs) == replay.episodes


def dying_in_adds(rng: random.Random) -> Any:
    """Let actors die before, in and after some adds to the stores of their groups."""
    numbered, left = host_file._GroupStore._numbered, [3]

    def cut(store: Any, chunks: Sequence[Any]) -> Any:
        found = numbered(store, chunks)
        if not left[0] or rng.random() < 0.7:
            return found
        left[0] -= 1
        if kept := rng.randint(0, len(found)):
            store._replay.add(found[:kept])
        store._replay.close()  # a process that is gone stores nothing more
        raise ActorDied("it died in an add")

    return mock.patch.object(host_file._GroupStore, "_numbered", cut)


# An actor that dies here leaves its files to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("seed", proofs_but([0], range(12)))
def test_folders_have_the_rows_of_each_group(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    make_envs = partial(walks, 2, rng.choice(MODES), longest=60)
    calls = [Asked("steps", 130), Asked("episodes", 5), Asked("rollout", 5), Asked("steps", 20)]
    model = one_process(make_envs, Counting, 7, 3, calls)
    folder = tmp_path / "data"
    groups: dict[str, Any] = {"make_envs": make_envs, "make_policy": Counting}
    engine = InlineEngine(seed, Faults(die_before=0.1, die_after=0.1, delay=0.3, most_deaths=3))
    with (
        mock.patch.object(host_file, "_PIECE_ROWS", rng.choice((1, 60))),
        dying_in_adds(rng),
        make(Folders(folder), engine=engine, max_restarts=20, actors=3, **groups) as collector,
    ):
        collector.collect(steps=130)
        assert collector.collect(episodes=5).episodes == 5
        collector.rollout(5)
        assert collector.collect(steps=20).path == str(folder)
    for group, store in enumerate(Folders(folder).stores()):
        with sw.SequenceReplayBuffer.open(store, read_only=True) as stored:
            assert stored.digest() == model.groups[group].digest()
            assert len(stored.sessions) == 1
    with make(Folders(folder), **groups) as collector:  # continued: another session, other seeds
        collector.collect(steps=12)
    with sw.SequenceReplayBuffer.open(Folders(folder).stores(), read_only=True) as joined:
        assert len(joined.sessions) == 6


def test_without_a_replay_rollouts_are_the_same_and_nothing_is_stored() -> None:
    rollouts = []
    for replay in (None, sw.SequenceReplayBuffer()):
        with make(replay, make_policy=Weighted) as collector:
            rollouts.append(collector.rollout(8, weights={"w": 0.5}))
            again = collector.rollout(8, out=rollouts[-1])
            assert again.reward.base is not None or again.reward is rollouts[-1].reward
            assert (collector.report.digest == "") == (replay is None)
    assert rollouts[0].reward.shape == (8, 6)
    assert rollouts[0].reward.tobytes() == rollouts[1].reward.tobytes()


# Deaths


class Scarce(InlineEngine):
    """Actors with this in their names never start, as resources are not there."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def start(self, name: str, make: Callable[[], object]) -> InlineActor:
        actor = super().start(name, make)
        if self.name in name:
            actor.starts = float("inf")
        return actor


def test_a_place_where_no_actor_can_start_any_more_is_given_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    replay, engine = sw.SequenceReplayBuffer(), Scarce(".")
    engine.before_call = dies_at(4)
    with make(replay, engine=engine) as collector:
        report = collector.collect(steps=60)
    assert report.digest == one_process(walks, uniform, 7, 3, [Asked("steps", 60)]).digest
    assert report.actors == 1
    assert report.deaths == 1
    assert len({group.actor for group in report.groups}) == 1
    assert "8 CPUs" in caplog.text


def test_resources_that_are_not_there_are_an_error_within_30_seconds() -> None:
    engine = Scarce("actor")
    with make(engine=engine) as collector, pytest.raises(NotEnoughResources, match="8 CPUs"):
        collector.collect(steps=60)
    assert engine.now <= 30
    assert engine.is_closed


@pytest.mark.parametrize(
    ("policy", "on_death", "goal"),
    [
        (Careless, "repeat", {"steps": 60}),  # it does not repeat itself
        (uniform, "reseed", {"steps": 60}),
        (uniform, "reseed", {"episodes": 8}),
        (uniform, "reseed", {"seeds": range(100, 108)}),
    ],
)
def test_a_group_that_takes_a_new_seed_does_the_rest_of_its_share(
    policy: Any, on_death: Any, goal: dict[str, Any]
) -> None:
    replay, engine = sw.SequenceReplayBuffer(), InlineEngine(3)
    engine.before_call = dies_at(9 if "steps" in goal else 6)
    with make(
        replay, engine=engine, make_policy=policy, groups=1, actors=1, on_death=on_death
    ) as collector:
        report = collector.collect(**goal)
    assert report.reseeded == report.groups[0].reseeded == 1
    assert report.steps >= 60 if "steps" in goal else report.episodes == 8
    assert [facts["groups"] for facts in replay.sessions] == [1, 1]
    assert replay.sessions[1]["group"] == 0
    assert replay.sessions[1]["seed"] != replay.sessions[0]["seed"]
    assert report.digest == replay.digest()
    episodes = [*replay.iter_episodes()]
    assert {each.metadata["session"] for each in episodes} == {0, 1}
    if "seeds" in goal:
        ended: list[Any] = [each.metadata["seed"] for each in episodes if each.end.is_final]
        assert sorted(ended) == [*goal["seeds"]]


def test_weights_that_are_too_large_for_a_history_let_a_group_take_a_new_seed() -> None:
    replay, engine = sw.SequenceReplayBuffer(), InlineEngine(3)
    with (
        mock.patch.object(collector_file, "_HISTORY_BYTES", 200),
        make(replay, engine=engine, make_policy=Weighted, groups=1, actors=1) as collector,
    ):
        for version in range(1, 12):
            collector.collect(steps=6, weights={"w": version / 12, "more": np.zeros(5)})
        assert sum(each.nbytes for each in collector._weights.values()) <= 200
        assert len(engine.references) < 30
        engine.before_call = dies_at(1)
        assert collector.collect(steps=6).reseeded == 1


def test_a_group_that_dies_too_often_is_an_error_that_says_why_and_what_was_kept() -> None:
    replay, engine = sw.SequenceReplayBuffer(), InlineEngine(0)
    engine.before_call = dies_at(*range(12, 1000))
    with make(replay, engine=engine, max_restarts=2) as collector:
        with pytest.raises(
            GroupLost, match=r"group \d.* 3 times.*max_restarts=2.*memory"
        ) as caught:
            collector.collect(steps=200)
        assert any(f"{replay.steps:,} steps" in note for note in caught.value.__notes__)
        with pytest.raises(ValueError, match="closed"):
            collector.collect(steps=1)
    assert replay.steps > 0
    assert engine.is_closed


@pytest.mark.parametrize(("method", "said"), [("begin", "envs"), ("advance", "next piece")])
def test_an_actor_that_hangs_is_killed_and_replaced(
    method: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine, replay = InlineEngine(0), sw.SequenceReplayBuffer()
    hung: list[InlineActor] = []

    def before(actor: InlineActor, name: str, arguments: tuple[object, ...]) -> bool:
        if name == method and not hung:
            hung.append(actor)
            actor.until = engine.now + 1e6
            return True
        return False

    engine.before_call = before
    with make(replay, engine=engine) as collector:
        report = collector.collect(steps=30)
    assert report.digest == one_process(walks, uniform, 7, 3, [Asked("steps", 30)]).digest
    assert report.deaths == 1
    assert "no answer within 10 s" in caplog.text
    assert said in caplog.text


# Errors


class LateBug:
    """A policy that raises after some calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, observation: Any, is_first: Any) -> Any:
        self.calls += 1
        if self.calls > 15:
            raise ZeroDivisionError("a bug")
        return np.zeros(len(is_first), np.int64)


def test_errors_of_the_users_code_are_raised_with_what_was_kept() -> None:
    replay = sw.SequenceReplayBuffer()
    with (
        make(replay, make_policy=LateBug) as collector,
        pytest.raises(RemoteError, match="ZeroDivisionError: a bug") as caught,
    ):
        collector.collect(steps=200)
    assert caught.value.kind == "ZeroDivisionError"
    notes = "\n".join(caught.value.__notes__)
    assert "group" in notes
    assert f"kept of this call: {replay.steps:,} steps" in notes
    assert replay.steps > 0


def test_rows_before_an_error_are_not_waited_for_where_an_actor_hangs() -> None:
    engine, replay = InlineEngine(), sw.SequenceReplayBuffer()

    def before(actor: InlineActor, method: str, arguments: tuple[object, ...]) -> bool:
        if method == "finish" and arguments[0] == 1:
            actor.until = engine.now + 1e6
            return True
        return False

    engine.before_call = before
    with (
        make(replay, engine=engine, make_policy=LateBug, actors=3, answer_seconds=1e9) as one,
        pytest.raises(RemoteError, match="a bug"),
    ):
        one.collect(steps=200)
    assert replay.steps >= 60  # of the other two groups
    assert engine.now < 60
    assert engine.is_closed


@pytest.mark.parametrize("difference", ["fields", "envs"])
def test_groups_with_other_rows_are_refused(difference: str) -> None:
    other = partial(walks, 2, kind="dict") if difference == "fields" else partial(walks, 3)
    engine, replay = InlineEngine(), sw.SequenceReplayBuffer()
    made = []

    def make_envs() -> Any:
        made.append(0)
        return other() if len(made) == 3 else walks()

    with mock.patch("pickle.dumps", lambda given: given), mock.patch("pickle.loads", lambda x: x):
        with (
            make(replay, engine=engine, make_envs=make_envs) as collector,
            pytest.raises(ValueError, match=r"group \d.*make_envs"),
        ):
            collector.collect(steps=60)
    fields = {} if not replay.is_bound else set(replay.spec.names)
    assert len([name for name in fields if name.startswith("observation")]) <= 2


def test_a_replay_with_other_rows_is_refused_before_anything_is_stored() -> None:
    replay = sw.SequenceReplayBuffer()
    with sw.Collector(walks(kind="dict"), sw.RandomPolicy(), replay, seed=0) as collector:
        collector.collect(steps=4)
    before = replay.digest()
    with make(replay) as other, pytest.raises(SpecMismatch, match="observation"):
        other.collect(steps=10)
    assert replay.digest() == before


def test_another_version_of_stepwell_in_an_actor_is_refused() -> None:
    with (
        mock.patch.object(GroupHost, "ping", return_value="0.0.1"),
        make() as collector,
        pytest.raises(ValueError, match=r"actor-\d.*0\.0\.1"),
    ):
        collector.collect(steps=10)


def test_a_full_disk_ends_the_call_and_nothing_is_stored_after_it() -> None:
    replay = sw.SequenceReplayBuffer()
    add, count = replay.add_encoded, [0]

    def full(chunks: Any) -> None:
        count[0] += 1
        if count[0] > 3:
            raise OSError("no space left")
        add(chunks)

    with (
        mock.patch.object(replay, "add_encoded", full),
        make(replay) as collector,
        pytest.raises(OSError, match="no space") as caught,
    ):
        collector.collect(steps=100)
    assert count[0] == 4
    assert f"kept of this call: {replay.steps:,} steps" in "\n".join(caught.value.__notes__)


def test_ctrl_c_keeps_what_came_in() -> None:
    replay, engine = sw.SequenceReplayBuffer(), InlineEngine()
    sent: list[bool] = []

    def before(actor: InlineActor, method: str, arguments: tuple[object, ...]) -> None:
        if method == "advance" and replay.steps > 20 and not sent:
            sent.append(True)
            os.kill(os.getpid(), signal.SIGINT)

    engine.before_call = before
    with make(replay, engine=engine) as collector, pytest.raises(KeyboardInterrupt) as caught:
        collector.collect(steps=100_000)
    assert any("kept of this call" in note for note in caught.value.__notes__)
    assert 20 < replay.steps < 1_000
    assert engine.is_closed


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"groups": 0}, "groups"),
        ({"actors": 4}, "actors"),
        ({"in_flight": 0}, "in_flight"),
        ({"max_restarts": -1}, "max_restarts"),
        ({"on_death": "ignore"}, "on_death"),
        ({"shard": (3, 2)}, "shard"),
        ({"shard": (1, 9_000)}, "groups"),
        ({"flush_seconds": -1}, "flush_seconds"),
        ({"start_seconds": 0}, "start_seconds"),
        ({"answer_seconds": None}, "answer_seconds"),
        ({"on_episode": 5}, "on_episode"),
        ({"seed": -1}, "seed"),
        ({"make_envs": walks()}, "make_envs"),
        ({"make_envs": lambda number: walks()}, "make_envs: .*without arguments"),
        ({"make_policy": sw.RandomPolicy()}, "make_policy: .*without arguments"),
        ({"make_policy": "random"}, "make_policy"),
        ({"replay": "folder"}, "replay"),
    ],
)
def test_wrong_arguments_are_refused_before_an_engine_starts(
    options: dict[str, Any], named: str
) -> None:
    start_engine = mock.Mock()
    with pytest.raises((ValueError, TypeError), match=named):
        make(start_engine=start_engine, **options)
    start_engine.assert_not_called()


def test_stores_that_take_no_rows_are_refused_before_any_actor_starts(tmp_path: Path) -> None:
    with make(sw.SequenceReplayBuffer(tmp_path / "store")) as collector:
        collector.collect(steps=6)
        collector.replay.close()  # type: ignore[union-attr]
    (tmp_path / "file").touch()
    engine = InlineEngine()
    for wrong, named in (
        (sw.SequenceReplayBuffer.open(tmp_path / "store", read_only=True), "read_only"),
        (Folders(tmp_path / "store"), "a store itself"),
        (Folders(tmp_path / "file"), "no folder"),
    ):
        with pytest.raises(ValueError, match=named):
            make(wrong, engine=engine)
    assert not engine.actors


@pytest.mark.parametrize("wrong", [None, 3, []])
def test_what_is_no_env_is_told_as_a_collector_tells_it(wrong: Any) -> None:
    with make(make_envs=lambda: wrong) as collector, pytest.raises(RemoteError, match="envs: exp"):
        collector.collect(steps=1)


def test_wrong_calls_are_refused_and_change_nothing() -> None:
    engine = InlineEngine()
    with make(engine=engine, shard=(2, 3)) as collector:
        goals: list[Any] = [{}, {"steps": 1, "episodes": 2}, {"steps": 0}, {"seeds": []}]
        goals.append({"seeds": [3]})
        for wrong in goals:
            with pytest.raises(ValueError, match=r"steps|seeds"):
                collector.collect(**wrong)
        with pytest.raises(TypeError, match="progress"):
            collector.collect(steps=3, progress="yes")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="steps"):
            collector.rollout(0)
        with pytest.raises(ValueError, match="no report"):
            _ = collector.report
        assert not engine.actors
        assert collector.collect(steps=3).steps == 6


# Bounds


@pytest.mark.proof
def test_a_slow_group_lets_only_so_many_pieces_wait() -> None:
    replay, engine = sw.SequenceReplayBuffer(), InlineEngine(2)
    most, window = [0, 0], 6_000
    take = Delivery.take

    def noted(delivery: Any, piece: Any, payload: Any, nbytes: int) -> Any:
        taken = take(delivery, piece, payload, nbytes)
        most[0] = max(most[0], delivery.waiting_bytes)
        most[1] = max(most[1], nbytes)
        return taken

    def before(actor: InlineActor, method: str, arguments: tuple[object, ...]) -> None:
        if method == "advance" and arguments[0] == 0:  # it waits after this one
            actor.until = engine.now + 2.0  # group 0 takes 2 s for each piece

    engine.before_call = before
    with (
        mock.patch.object(collector_file, "_WINDOW_BYTES", window),
        mock.patch.object(Delivery, "take", noted),
        make(replay, engine=engine, groups=4, actors=4, in_flight=4) as collector,
    ):
        report = collector.collect(steps=800)
    assert report.steps == 800
    assert window / 2 < most[0] <= window + most[1]
    assert report.digest == one_process(walks, uniform, 7, 4, [Asked("steps", 800)]).digest


class Waves(InlineEngine):
    """All actors work at once: each makes one call in a turn."""

    turns = 0

    def wait(self, answers: Sequence[Any], seconds: float) -> list[Any]:
        self.turns += 1
        self.now += 0.05
        for actor in self.actors:
            if actor.calls and not actor.is_dead:
                self._work(actor)
        return [each for each in answers if each.due is not None]


@pytest.mark.proof
@pytest.mark.parametrize("actors", [30, 6])
def test_room_for_few_pieces_goes_to_all_groups_in_turns(actors: int) -> None:
    """No group runs ahead while others wait to be asked, nor are they asked one at a time."""
    engine, replay, groups = Waves(), sw.SequenceReplayBuffer(), 30
    ahead, turns = [0], [0]
    go_on = DistributedCollector._go_on

    def noted(collector: DistributedCollector) -> None:
        go_on(collector)
        delivery = collector._delivery
        if collector._largest and all(group.is_there for group in collector._groups):
            turns[0] += 1
            open_groups = [k for k in range(groups) if not delivery.groups[k].has_ended]
            rounds = [delivery.groups[k].round + collector._groups[k].pieces for k in open_groups]
            ahead[0] = max(ahead[0], max(rounds, default=0) - min(rounds, default=0))

    with (
        mock.patch.object(collector_file, "_WINDOW_BYTES", 12_000),
        mock.patch.object(DistributedCollector, "_go_on", noted),
        make(replay, engine=engine, groups=groups, actors=actors, in_flight=4) as collector,
    ):
        report = collector.collect(steps=groups * 80)
    assert report.steps >= groups * 80
    assert turns[0] < 200
    assert ahead[0] <= 4


# Runs


def test_a_run_in_its_thread_stores_until_the_block_ends() -> None:
    replay = sw.SequenceReplayBuffer()
    shown: list[int] = []
    with make(replay, make_policy=Weighted) as collector:
        with collector.running(
            weights={"w": 0.0}, progress=lambda report: shown.append(report.steps)
        ) as run:
            assert run.version == 1
            with pytest.raises(ValueError, match="running"):
                collector.collect(steps=1)
            with pytest.raises(ValueError, match="running"):
                collector.close()
            while run.steps < 40:
                time.sleep(0.001)
            version = run.publish({"w": 0.5})
            while run.lag or run.steps < 100:
                time.sleep(0.001)
            assert version == run.version == 2
        with pytest.raises(ValueError, match="ended"):
            run.publish({})
        with pytest.raises(ValueError, match="ended"):
            run.__enter__()
        report = collector.report
        assert report.steps == replay.steps
        assert report.digest == replay.digest()
        assert report.version == 2
        assert "lag 0" in " ".join(p.text for p in distributed_status(report, lag=0).parts)
        assert collector.collect(steps=6).steps >= 6
    assert shown == sorted(shown)
    versions = {
        int(v) for each in replay.iter_episodes() for v in each.fields["extra/policy_version"]
    }
    assert {1, 2} <= versions <= {0, 1, 2}  # a final row has no action: 0


def test_weights_that_are_published_last_are_those_of_the_next_call() -> None:
    with make(make_policy=Weighted) as collector:
        with collector.running() as run:
            version = run.publish({"w": 0.5})
        report = collector.collect(steps=6)
        assert [group.version for group in report.groups] == [version] * 3


def test_errors_in_the_background_are_raised_by_publish_and_at_the_end() -> None:
    with make(make_policy=Weighted) as collector:
        with pytest.raises(RemoteError, match="KeyError"), collector.running() as run:  # noqa: PT012
            run.publish({"wrong": 0})
            while run._error is None:
                time.sleep(0.001)
            run.publish({"w": 0.1})
            raise AssertionError("publish did not raise")
        with pytest.raises(ValueError, match="closed"):
            collector.collect(steps=1)
    with (  # noqa: PT012
        make(make_policy=Weighted) as collector,
        pytest.raises(RemoteError, match="KeyError"),
        collector.running() as run,
    ):
        run.publish({"wrong": 0})
        while run._error is None:
            time.sleep(0.001)


# Going on from a state; test_schedules.py has that of calls in order


def test_what_follows_a_run_is_in_its_state() -> None:
    replay = sw.SequenceReplayBuffer()
    with make(replay, make_policy=Weighted) as collector:
        with collector.running(weights={"w": 0.3}) as run:
            with pytest.raises(ValueError, match="runs"):
                collector.state_dict()
            while run.steps < 40:
                time.sleep(0.001)
        state = through_bytes(collector.state_dict())
        rewards = collector.rollout(9).reward
    replay = sw.SequenceReplayBuffer()
    with make(None, make_policy=Weighted) as collector:
        collector.load_state_dict(without_replay(state), weights={"w": 0.3})
        assert collector.rollout(9).reward.tobytes() == rewards.tobytes()


def through_bytes(state: Any) -> Any:
    return unpack(pack(state), "test")


def without_replay(state: Any) -> Any:
    groups = [{**one, "collector": {**one["collector"], "writer": None}} for one in state["groups"]]
    return {**state, "mirror": None, "groups": groups}


@pytest.mark.parametrize("before", ["collect", "nothing"])
def test_a_group_that_took_a_new_seed_goes_on_with_it(before: str) -> None:
    """Also where it dies between two calls, or before its rows have come; and takes another."""
    replay, engine = sw.SequenceReplayBuffer(), InlineEngine(3)
    asked: dict[str, Any] = {"make_policy": Weighted, "groups": 1, "actors": 1}
    with make(replay, engine=engine, **asked) as collector:
        if before == "collect":
            with collector.running() as run:  # which is not played again
                while run.steps < 20:
                    time.sleep(0.001)
        for actor in engine.actors:
            engine.kill(actor)
        state = through_bytes(collector.state_dict())
        expected = collector.rollout(9)
        collector.collect(steps=20)
        digest = replay.digest()
    is_new = before == "collect"
    assert (state["groups"][0]["seed"] != "7") == is_new
    assert len(replay.sessions) == 1 + is_new
    with make(None, **asked) as collector:
        collector.load_state_dict(without_replay(state))
        assert collector.rollout(9).reward.tobytes() == expected.reward.tobytes()
        state = through_bytes(collector.state_dict())
    seeds = {"7", state["groups"][0]["seed"]}
    for _ in range(2):  # each new seed is another one, in each process that goes on
        engine = InlineEngine()
        with make(None, engine=engine, on_death="reseed", **asked) as collector:
            collector.load_state_dict(state)
            engine.kill(engine.actors[0])
            state = through_bytes(collector.state_dict())
        assert state["groups"][0]["seed"] not in seeds
        seeds.add(state["groups"][0]["seed"])
    assert replay.digest() == digest


def test_a_group_that_dies_after_its_state_was_loaded_plays_from_there() -> None:
    replay, engine = sw.SequenceReplayBuffer(), InlineEngine()
    with make(replay) as collector:
        collector.collect(steps=300)
        state = through_bytes(collector.state_dict())
    count = [0]
    engine.before_call = dies_at(12)
    with make(replay, engine=engine) as collector:
        collector.load_state_dict(state)
        before = GroupHost.advance

        def counted(host: Any, group: int, call: Any) -> Any:
            count[0] += 1
            return before(host, group, call)

        with mock.patch.object(GroupHost, "advance", counted):
            report = collector.collect(steps=60)
    assert report.deaths == 1
    assert count[0] < 60
    model = one_process(walks, uniform, 7, 3, [Asked("steps", 300), Asked("steps", 60)])
    assert report.digest == replay.digest() == model.digest


class Forgetful(Walk):
    """What it shows depends on the number of its resets, which no seed says."""

    resets = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.resets += 1
        return super().reset(seed=seed)

    def _seen(self) -> Any:
        return super()._seen() + np.float32(self.resets)


def test_envs_that_cannot_be_brought_back_are_told_and_reset(
    caplog: pytest.LogCaptureFixture,
) -> None:
    replay = sw.SequenceReplayBuffer()
    asked: dict[str, Any] = {"make_envs": lambda: SyncVectorEnv([Forgetful] * 2), "groups": 1}
    with make(replay, actors=1, reseed_steps=1, **asked) as collector:
        steps = collector.collect(steps=60).steps
        state = through_bytes(collector.state_dict())
    engine = InlineEngine()
    engine.before_call = dies_at(4)
    with make(replay, actors=1, reseed_steps=1, engine=engine, **asked) as collector:
        collector.load_state_dict(state)
        assert "shows something else" in caplog.text
        report = collector.collect(steps=60)
    assert (report.deaths, report.reseeded) == (1, 0)  # the resets can be played again
    assert report.cut > 0
    assert replay.steps == steps + report.steps
    assert report.digest == replay.digest()
    assert len(replay.sessions) == 1
    seeds = [one.metadata["seed"] for one in replay.iter_episodes() if "seed" in one.metadata]
    assert len({*seeds}) == len(seeds)


def raising() -> Any:
    class Raising(Walk):
        def step(self, action: Any) -> Any:
            if self.np_random.random() < 0.1:
                raise OSError("no display")
            return super().step(action)

    return sw.make_vec(Raising, num_envs=2, num_workers=0)


def test_exceptions_that_are_tolerated_are_counted_on() -> None:
    with make(None, make_envs=raising, tolerate=1_000) as collector:
        restarts = collector.collect(steps=100).restarts
        state = through_bytes(collector.state_dict())
    counts = [group["collector"]["faults"] for group in state["groups"]]
    assert sum(counts) == restarts > 3
    with make(None, make_envs=raising, tolerate=1_000) as collector:
        collector.load_state_dict(state)
        restarts += collector.collect(steps=100).restarts
        groups = collector.state_dict()["groups"]
        assert sum(group["collector"]["faults"] for group in groups) == restarts
    refusing = make(None, make_envs=raising, tolerate=max(counts) - 1)
    with pytest.raises(ValueError, match=f"faults.*{max(counts)}"):
        refusing.load_state_dict(state)


def test_states_that_do_not_fit_are_refused_and_change_nothing(tmp_path: Path) -> None:
    replay = sw.SequenceReplayBuffer()
    with make(replay, make_policy=Weighted) as collector:
        collector.collect(steps=60, weights={"w": 0.4})
        state = through_bytes(collector.state_dict())
        with pytest.raises(ValueError, match="not collected yet"):
            collector.load_state_dict(state)
        digest = collector.collect(steps=30).digest
    none: Any = None
    with sw.Collector(walks(), "random", seed=0) as single:
        other = single.state_dict()
    wrongs: list[tuple[Any, str]] = [(none, "state"), ({}, "version"), (other, "groups")]
    for wrong, named in [*wrongs, ([1], "state")]:
        with make(make_policy=Weighted) as collector, pytest.raises(ValueError, match=named):
            collector.load_state_dict(wrong)
    engine = InlineEngine()
    with make(replay, make_policy=Weighted, engine=engine) as collector:
        with pytest.raises(ValueError, match="exact=True"):  # it has more rows by now
            collector.load_state_dict(state)
        assert not engine.actors
        assert collector.collect(steps=6, weights={"w": 0.1}).steps == 6  # as a new one
        assert len(replay.sessions) == 2
    others: list[tuple[dict[str, Any], str]] = [
        ({"groups": 2}, "groups.*3.*2|groups.*2.*3"),
        ({"shard": (1, 2)}, "shard"),
        ({}, "replay: expected that with the rows"),
        ({"replay": sw.SequenceReplayBuffer()}, "replay"),
        ({"replay": Folders(tmp_path)}, "Folders"),
    ]
    for options, named in others:
        with (
            make(**{"make_policy": Weighted, "engine": engine, **options}) as collector,
            pytest.raises(ValueError, match=named),
        ):
            collector.load_state_dict(state)
    others = [
        ({"make_envs": partial(walks, 3)}, "expected 2 of Walk, got 3"),
        ({"make_policy": uniform}, "policy"),
    ]
    for options, named in others:
        with make(**{"make_policy": Weighted, **options}) as collector:
            with pytest.raises(ValueError, match=named):
                collector.load_state_dict(without_replay(state))
            with pytest.raises(ValueError, match="closed"):  # a group has refused its part
                collector.collect(steps=1)
    with make(make_policy=Weighted) as collector:
        collector.load_state_dict(without_replay(state))
        for call in (collector.running, partial(collector.collect, steps=1)):
            with pytest.raises(ValueError, match=r"weights.*version 1"):
                call()
        assert collector.collect(steps=6, weights={"w": 0.1}).version == 2
    assert digest != replay.digest()


def test_a_state_is_refused_where_it_would_not_be_whole(tmp_path: Path) -> None:
    class Draws(Weighted):
        state_dict: Any = None

    with (
        make(make_policy=Draws) as collector,
        pytest.raises(RemoteError, match="load_state_dict"),
    ):
        collector.state_dict()
    with make(Folders(tmp_path / "groups")) as collector:
        collector.collect(steps=6)
        with pytest.raises(ValueError, match="Folders"):
            collector.state_dict()
        assert collector.collect(steps=6).steps >= 6
    replay = sw.SequenceReplayBuffer()
    with make(replay) as collector:
        collector.collect(steps=6)
        with sw.Collector(walks(), "random", replay, seed=1) as other:
            other.collect(steps=6)
        with pytest.raises(ValueError, match="alone writes"):
            collector.state_dict()
        collector.collect(steps=6)
        assert collector.state_dict()["version"] == 1


@given(st.data())
@settings(max_examples=examples(100))
def test_a_state_from_a_file_is_checked(data: Any) -> None:
    replay = sw.SequenceReplayBuffer()
    with make(replay) as collector:
        collector.collect(steps=30)
        state: Any = through_bytes(collector.state_dict())
    at: Any = state
    while True:
        key = data.draw(st.sampled_from(list(at) if isinstance(at, dict) else list(range(len(at)))))
        if not isinstance(at[key], dict | list) or not at[key] or data.draw(st.booleans()):
            break
        at = at[key]
    at[key] = data.draw(st.sampled_from([None, -1, "x", [], {}, 1 << 70, 0.5, np.zeros(3)]))
    with make(replay) as collector:
        try:
            collector.load_state_dict(state)
            collector.collect(steps=10)
        except (ValueError, RemoteError):
            return


# Numbers


def test_metrics_are_plain_and_prometheus_reads_them() -> None:
    engine = InlineEngine(0, Faults(delay=1.0))
    with make(sw.SequenceReplayBuffer(), engine=engine, make_policy=Weighted) as collector:
        report = collector.collect(steps=120, weights={"w": 0.5})
        metrics = json.loads(json.dumps(collector.metrics()))
        text = collector.prometheus_text()
    assert metrics["steps"] == report.steps >= 120
    assert metrics["policy_version"] == 1
    assert metrics["policy_lag"] == 0
    assert metrics["groups"]["2"]["steps"] == report.groups[2].steps
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert families["stepwell_steps"].samples[0].value == report.steps
    assert {s.labels["group"] for s in families["stepwell_group_steps"].samples} == {"0", "1", "2"}
    assert all(family.documentation for family in families.values())
    assert engine.gauges["stepwell_group_policy_version", ("1",)] == 1


def test_a_report_says_what_happened() -> None:
    engine = InlineEngine(0)
    engine.before_call = dies_at(5)
    seen: list[sw.CollectReport] = []
    with make(sw.SequenceReplayBuffer(), engine=engine) as collector:
        report = collector.collect(steps=300, progress=seen.append)
        assert repr(collector).startswith("DistributedCollector(groups=3, actors=2, writes to RAM")
    assert "3 groups in 2 actors" in str(report)
    assert json.loads(json.dumps(report.to_json()))["groups"][0]["group"] == 0
    assert report.deaths == 1
    assert sum(group.restarts for group in report.groups) in (1, 2)
    assert sum(group.steps for group in report.groups) == report.steps
    assert sum(group.bytes for group in report.groups) == report.stored_bytes
    assert report.sent_bytes > report.stored_bytes
    line = " ".join(part.text for part in distributed_status(report, steps=300).parts)
    assert "3 groups" in line
    assert "restart" in line
    assert seen[-1] == report
