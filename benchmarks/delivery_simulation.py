"""The delivery of rows from 1,000 groups, simulated event by event: where is the first limit?

    python benchmarks/delivery_simulation.py                      # 10, 100 and 1,000 groups
    python benchmarks/delivery_simulation.py --groups 4000 --seconds 60
    python benchmarks/delivery_simulation.py --mtbf 1800 --bandwidth 3.1e9 --no-relay
    python benchmarks/delivery_simulation.py --page docs/many-machines.md
    python benchmarks/delivery_simulation.py --validate           # beside four real processes

The shares of a call, the order of the pieces, what is refused after a death and the placement are
the real code of ``stepwell.collectors.distributed``; hosts, network, clock and the driver's CPU
time are simulated. Every parameter is an option; its default and where that comes from stand in
`Setting`. The machines are:

- a group on each node, which steps until it has a piece of rows; nodes differ in speed, and some
  are slow; they fail at random and are replaced, and the group plays again (synchronous) or goes
  on with new data (asynchronous);
- a network of one speed: pieces queue up before the driver's link; weights leave through it, or
  are passed on from node to node;
- a driver with one thread: it takes pieces, stores those whose turn it is, and asks for more while
  those that wait, or were asked for, take less than the bound.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import heapq
import itertools
import math
import os
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import rounds
import stepwell as sw
from stepwell.buffers.digest import DigestState
from stepwell.collectors.distributed.delivery import Delivery, Free, Taken
from stepwell.collectors.distributed.messages import Call, Piece
from stepwell.collectors.distributed.placement import Placement
from stepwell.collectors.distributed.quota import shares_of, what_is_left

__all__ = ["Outcome", "Setting", "limits", "simulate"]


@dataclass(frozen=True)
class Setting:
    """The parameters of a simulation: times in seconds, sizes in bytes.

    Args:
        groups: Groups of envs, one on each node.
        seconds: Simulated time.
        synchronous: Calls of a fixed number of steps, one after the other, stored in order; else
            one `running` block.
        repeat: After a death in a synchronous call the group plays again from its seed; else it
            goes on with a new one, as it always does in a `running` block.
        speed: Env steps a second of a group: 1M steps/s need 650 cores (docs/many-machines.md).
        spread: Standard deviation of the logarithm of the nodes' speeds.
        stragglers: Part of the nodes that are slow, and `straggling`, their part of the speed.
        jitter: Standard deviation of the logarithm of the time of a piece.
        call_steps: Steps of a group in a synchronous call.
        rows: Rows of a piece.
        piece_seconds: In a `running` block, time of a piece at most.
        row_bytes: Encoded bytes of a row of Pong (benchmarks/distributed.py).
        flush: In a `running` block no row waits longer than this: `flush_seconds`, of which 10 is
            the default of a collector.
        in_flight: Pieces that an actor is asked for at once, the default of a collector.
        bound: Bytes of pieces that wait or were asked for; from there on only the group is asked
            whose turn it is.
        latency: One way.
        bandwidth: Of each node's link, bytes a second: 10 Gbit/s.
        piece_cpu: Of the driver, for a piece without its rows (benchmarks/distributed.py: 0.74 ms
            for Ray, and for the collector 0.15 to 0.6 ms, the more actors the more).
        row_cpu: Of the driver, for a row that is stored (benchmarks/distributed.py).
        mtbf: Mean time between failures of a node; 0: none fails.
        notice: From the death of a node to its notice: a raylet of Ray, measured.
        start: From the notice to a started replacement: Ray's worker, imports, envs.
        weights: Bytes of the weights: a network of 1.7M parameters.
        publish_every: Time between publications, in a `running` block.
        publish_cpu: Of the driver, for a publication (measured with Ray: 7.6 ms for 6.8 MB).
        relay: Nodes pass weights on, as Ray's object stores do; else all come from the driver.
        deaths: Times and nodes of further failures.
        seed: Of the speeds, times and failures.
    """

    groups: int = 1_000
    seconds: float = 60.0
    synchronous: bool = False
    repeat: bool = True
    speed: float = 1_540.0
    spread: float = 0.1
    stragglers: float = 0.01
    straggling: float = 0.5
    jitter: float = 0.05
    call_steps: int = 10_240
    rows: int = 4_096
    piece_seconds: float = 1.0
    row_bytes: float = 50.0
    flush: float = 10.0
    in_flight: int = 2
    bound: float = 256e6
    latency: float = 0.5e-3
    bandwidth: float = 1.25e9
    piece_cpu: float = 1.2e-3
    row_cpu: float = 0.3e-6
    mtbf: float = 0.0
    notice: float = 2.1
    start: float = 15.0
    weights: float = 6.8e6
    publish_every: float = 1.0
    publish_cpu: float = 7.6e-3
    relay: bool = True
    deaths: tuple[tuple[float, int], ...] = ()
    seed: int = 0

    @property
    def piece_rows(self) -> int:
        """Rows of a piece of a usual node."""
        return self.rows if self.synchronous else self.rows_within_time(self.speed)

    def rows_within_time(self, speed: float) -> int:
        """Rows of a piece of a `running` block."""
        return min(self.rows, math.ceil(speed * min(self.flush, self.piece_seconds)))

    @property
    def quiet(self) -> Setting:
        """The same machines, all equal, none of which fails."""
        return dataclasses.replace(self, spread=0.0, stragglers=0.0, jitter=0.0, mtbf=0.0)


@dataclass(frozen=True)
class Outcome:
    """The result of a simulation.

    Args:
        steps: Env steps stored.
        seconds: Simulated time until the last of them: the end, or that of the last whole call.
        nbytes: Bytes of the pieces that reached the driver.
        driver: Part of the time that the driver's thread was busy.
        waiting: Most bytes of pieces that waited for their turn.
        arrived: Most bytes of pieces that had reached the driver and were not looked at.
        deaths: Nodes that failed.
        repeated: Steps that were played again.
        refused: Pieces of replaced attempts that came in late.
        ends: Times at which synchronous calls ended.
        lags: Versions by which the weights of each stored piece were behind, when it was stored.
    """

    steps: int
    seconds: float
    nbytes: float
    driver: float
    waiting: float
    arrived: float
    deaths: int
    repeated: int
    refused: int
    ends: tuple[float, ...]
    lags: tuple[int, ...]

    @property
    def rate(self) -> float:
        """Env steps stored a second."""
        return self.steps / self.seconds if self.seconds else 0.0


def limits(setting: Setting) -> dict[str, float]:
    """Env steps a second at which each part is full, if the others never are: the arithmetic."""
    piece = setting.piece_cpu + setting.piece_rows * setting.row_cpu
    busy = setting.publish_cpu / setting.publish_every
    return {
        "the cores that step envs": setting.groups * setting.speed,
        "CPU of the driver's thread": (1 - busy) * setting.piece_rows / piece,
        "link of the driver, rows": setting.bandwidth / setting.row_bytes,
    }


@dataclass
class _Group:
    """A group as its host knows it.

    Args:
        attempt: Number of its life.
        life: Which data it plays: another one after a new seed.
        number: Number of its next piece.
        skip: The first piece that it has to send.
        shares: The calls so far, as the group gets them.
        at: The call that it is in, and `done`, the steps of it that it took.
    """

    attempt: int = 0
    life: int = 0
    number: int = 0
    skip: int = 0
    shares: list[Call] = dataclasses.field(default_factory=list)
    at: int = 0
    done: int = 0


@dataclass
class _Actor:
    """The process on a node, or that which replaced it.

    Args:
        age: How many processes died here.
        is_alive: Is it there?
        is_up: Does the driver believe so?
        is_stepping: Does it step envs now?
        orders: Groups whose next piece it was asked for, with the call.
        asked: Pieces that it was asked for and the driver has not taken.
        version: Of the weights that it has.
    """

    age: int = 0
    is_alive: bool = True
    is_up: bool = True
    is_stepping: bool = False
    orders: deque[tuple[int, int]] = dataclasses.field(default_factory=deque)
    asked: int = 0
    version: int = 0


class _Simulation:
    """The clock, and the machines."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        nodes, failures, *jitters = np.random.SeedSequence(setting.seed).spawn(2 + setting.groups)
        rng = np.random.default_rng(nodes)
        self.failures = np.random.default_rng(failures)
        self.jitters = [np.random.default_rng(jitter) for jitter in jitters]
        self.now = 0.0
        self.events: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self.count = itertools.count()
        slow = rng.random(setting.groups) < setting.stragglers
        self.speeds = setting.speed * np.exp(rng.normal(0, setting.spread, setting.groups))
        self.speeds[slow] *= setting.straggling
        # The driver.
        self.delivery: Delivery[None] = Delivery(setting.groups)
        self.placement = Placement(setting.groups, setting.groups)
        self.jobs: deque[tuple[Callable[..., float], tuple[Any, ...]]] = deque()
        self.is_working = False
        self.hungry: set[int] = set()  # groups that are asked for fewer pieces than may be
        self.call = -1
        self.asked = 0  # pieces of all actors
        self.taken = [0] * setting.groups  # steps of the call, since a group had a new seed
        self.unfinished = 0  # groups whose last piece of the call is not stored
        self.version = 0
        # The nodes and the network.
        self.groups = [_Group() for _ in range(setting.groups)]
        self.actors = [_Actor() for _ in range(setting.groups)]
        self.link_free = 0.0
        self.is_sending = False
        self.sent_to = -1
        # What happened.
        self.steps = self.deaths = self.repeated = self.refused = 0
        self.busy = self.nbytes = self.arrived = self.most_arrived = self.most_waiting = 0.0
        self.whole_steps = 0  # in calls that ended
        self.ends: list[float] = []
        self.lags: list[int] = []

    def run(self) -> Outcome:
        setting = self.setting
        for place in range(setting.groups):
            self.fail_some_day(place)
        for seconds, place in setting.deaths:
            self.after(seconds, self.die, place)
        if not setting.synchronous and setting.publish_every:
            self.after(setting.publish_every, self.publish_again)
        self.do(self.begin_call)
        while self.events and self.events[0][0] <= setting.seconds:
            self.now, _, what, arguments = heapq.heappop(self.events)
            what(*arguments)
        steps, seconds = self.steps, setting.seconds
        if setting.synchronous:
            steps, seconds = self.whole_steps, self.ends[-1] if self.ends else 0.0
        return Outcome(
            steps=steps,
            seconds=seconds,
            nbytes=self.nbytes,
            driver=self.busy / setting.seconds,
            waiting=self.most_waiting,
            arrived=self.most_arrived,
            deaths=self.deaths,
            repeated=self.repeated,
            refused=self.refused,
            ends=tuple(self.ends),
            lags=tuple(self.lags),
        )

    def after(self, seconds: float, what: Callable[..., object], *arguments: object) -> None:
        heapq.heappush(self.events, (self.now + seconds, next(self.count), what, arguments))

    # The driver: one thread, which does one job after the other.

    def do(self, job: Callable[..., float], *arguments: object) -> None:
        """Give the driver a job, which returns the CPU time that it takes."""
        self.jobs.append((job, arguments))
        if not self.is_working:
            self.work()

    def work(self) -> None:
        self.is_working = bool(self.jobs)
        if self.jobs:
            job, arguments = self.jobs.popleft()
            cpu = job(*arguments)
            self.busy += cpu
            self.after(cpu, self.work)

    def begin_call(self) -> float:
        setting = self.setting
        self.call += 1
        self.unfinished = setting.groups
        self.taken = [0] * setting.groups
        if setting.synchronous:
            amount = setting.call_steps * setting.groups
            whole = Call(self.call, "steps", amount=amount, version=self.call)
        else:
            whole = Call(self.call, "run")
        for group, share in zip(self.groups, shares_of(whole, setting.groups), strict=True):
            group.shares.append(share)
        self.delivery.begin(self.call, range(setting.groups), in_order=setting.synchronous)
        # Everywhere the first piece needs the weights.
        hops = _hop(setting.groups - 1) if setting.relay else setting.groups
        seconds = setting.weights / setting.bandwidth * hops if setting.synchronous else 0.0
        self.after(seconds, self.ask, *range(setting.groups))
        return setting.publish_cpu if setting.synchronous else 0.0

    def ask(self, *numbers: int) -> None:
        """Ask groups for as many pieces as may be on their way, first those stored first."""
        setting, delivery = self.setting, self.delivery
        free: list[Free] = []
        for number in numbers:
            place = self.placement.place_of(number)
            actor = self.actors[place]
            if actor.is_up and actor.asked < setting.in_flight and not delivery.has_ended(number):
                self.hungry.add(number)
                free.append(Free(place, (number,), setting.in_flight - actor.asked))
        piece = setting.piece_rows * setting.row_bytes
        room = setting.bound - delivery.waiting_bytes - self.asked * piece
        for place, number in delivery.to_ask(free, self.asked_of, room, piece):
            actor, group = self.actors[place], self.groups[number]
            actor.asked += 1
            self.asked += 1
            if actor.asked == setting.in_flight:
                self.hungry.discard(number)
            call = group.shares[-1].number
            self.after(setting.latency, self.order, number, actor.age, call)

    def asked_of(self, number: int) -> int:
        return self.actors[self.placement.place_of(number)].asked

    def take(self, piece: Piece, age: int) -> float:
        """Take a piece, store what is due and ask for more; returns the CPU time of that."""
        setting, delivery, number = self.setting, self.delivery, piece.group
        self.arrived -= piece.nbytes
        self.answered(number, age)
        taken = delivery.take(piece, None, piece.nbytes)
        if taken not in (Taken.KEPT, Taken.REPEATED, Taken.LATE):
            raise AssertionError(f"expected no {taken} of {piece}")
        self.refused += taken is Taken.LATE
        self.repeated += piece.steps if taken is Taken.REPEATED else 0
        self.taken[number] += piece.steps if taken is Taken.KEPT else 0
        self.most_waiting = max(self.most_waiting, delivery.waiting_bytes)
        cpu = setting.piece_cpu
        for waiting in delivery.due():
            cpu += waiting.piece.rows * setting.row_cpu
            self.steps += waiting.piece.steps
            self.unfinished -= waiting.piece.is_last
            self.lags.append(self.version - waiting.piece.version)
        if setting.synchronous and not self.unfinished:
            self.whole_steps = self.steps
            self.ends.append(self.now + cpu)
            self.do(self.begin_call)
            return cpu
        self.after(cpu, self.ask_all, number)
        return cpu

    def ask_all(self, number: int) -> None:
        """Ask the group that has answered, and those that were not asked for all before."""
        self.ask(*{*self.hungry, number})

    def answered(self, number: int, age: int) -> float:
        """One piece less is asked for; takes no time."""
        actor = self.actors[self.placement.place_of(number)]
        if age == actor.age and actor.is_up:
            actor.asked -= 1
            self.asked -= 1
        return 0.0

    def publish_again(self) -> None:
        self.after(self.setting.publish_every, self.publish_again)
        self.do(self.publish)

    def publish(self) -> float:
        setting = self.setting
        self.version += 1
        version = self.version
        if setting.relay:
            for place in range(setting.groups):
                seconds = setting.latency + setting.weights / setting.bandwidth * _hop(place)
                self.after(seconds, self.load, place, version)
        elif not self.is_sending:
            self.send_weights()
        return setting.publish_cpu

    def send_weights(self) -> None:
        """Send the newest weights to the next node that has older ones, one after the other."""
        behind = (
            place % len(self.actors)
            for place in range(self.sent_to + 1, self.sent_to + 1 + len(self.actors))
            if self.actors[place % len(self.actors)].version < self.version
        )
        place = next(behind, None)
        self.is_sending = place is not None
        if place is not None:
            self.sent_to = place
            self.after(
                self.setting.weights / self.setting.bandwidth,
                self.weights_sent,
                place,
                self.version,
            )

    def weights_sent(self, place: int, version: int) -> None:
        self.load(place, version)
        self.send_weights()

    # The nodes.

    def load(self, place: int, version: int) -> None:
        self.actors[place].version = max(self.actors[place].version, version)

    def order(self, number: int, age: int, call: int) -> None:
        """A node is asked for a piece of a group."""
        place = self.placement.place_of(number)
        actor = self.actors[place]
        if actor.is_alive and age == actor.age:
            actor.orders.append((number, call))
            if not actor.is_stepping:
                self.step(place)

    def step(self, place: int) -> None:
        """A node begins the next piece that it was asked for."""
        actor, setting = self.actors[place], self.setting
        actor.is_stepping = False
        while actor.orders and not actor.is_stepping:
            number, call = actor.orders.popleft()
            group, age = self.groups[number], actor.age
            if group.at > call:  # the call has ended: there is nothing to step
                self.after(setting.latency, self.do, self.answered, number, age)
                continue
            actor.is_stepping = True
            share = group.shares[group.at]
            if setting.synchronous:
                rows = min(setting.rows, share.amount - group.done)
            else:
                rows = setting.rows_within_time(self.speeds[place])
            version = share.version if setting.synchronous else actor.version
            slower = math.exp(self.jitters[number].normal(0, setting.jitter))
            seconds = rows / self.speeds[place] * slower
            self.after(seconds, self.send, place, number, age, rows, version)

    def send(self, place: int, number: int, age: int, rows: int, version: int) -> None:
        """A piece is ready and leaves, unless the node died meanwhile."""
        actor, group, setting = self.actors[place], self.groups[number], self.setting
        if age != actor.age:
            return
        share = group.shares[group.at]
        group.done += rows
        is_last = setting.synchronous and group.done == share.amount
        is_repeat = group.number < group.skip
        piece = Piece(
            group=number,
            attempt=group.attempt,
            number=group.number,
            call=share.number,
            is_last=is_last,
            is_repeat=is_repeat,
            chunks=0 if is_repeat else 8,
            rows=rows,
            steps=rows,
            nbytes=0 if is_repeat else round(rows * setting.row_bytes),
            episodes=(),
            digest=f"{group.life}.{group.number}",
            state=DigestState(),
            version=version,
            opening=None,
            totals=None,
        )
        group.number += 1
        if is_last:
            group.at, group.done = group.at + 1, 0
        self.link_free = max(self.link_free, self.now) + piece.nbytes / setting.bandwidth
        self.after(self.link_free - self.now + setting.latency, self.arrive, piece, age)
        self.step(place)

    def arrive(self, piece: Piece, age: int) -> None:
        self.nbytes += piece.nbytes
        self.arrived += piece.nbytes
        self.most_arrived = max(self.most_arrived, self.arrived)
        self.do(self.take, piece, age)

    # Failures.

    def fail_some_day(self, place: int) -> None:
        if self.setting.mtbf:
            self.after(float(self.failures.exponential(self.setting.mtbf)), self.die, place)

    def die(self, place: int) -> None:
        actor = self.actors[place]
        actor.age += 1
        actor.is_alive = actor.is_stepping = False
        actor.orders.clear()
        self.deaths += 1
        self.after(self.setting.notice, self.notice, place)

    def notice(self, place: int) -> None:
        """The driver learns of the death, and starts another actor."""
        actor = self.actors[place]
        actor.is_up = False
        self.asked, actor.asked = self.asked - actor.asked, 0
        for number in self.placement.groups_of(place):
            group = self.groups[number]
            group.number = group.done = 0
            if self.setting.synchronous and self.setting.repeat:  # its whole history
                group.skip = self.delivery.expected(number)
                group.attempt = self.delivery.repeat(number)
                group.at = 0
            else:
                group.attempt = self.delivery.go_on(number)
                group.life += 1
                group.skip = 0
                if self.setting.synchronous:
                    is_open = not self.delivery.has_ended(number)
                    group.at = len(group.shares) - is_open
                    if is_open:
                        share, taken = group.shares[-1], self.taken[number]
                        group.shares[-1] = what_is_left(share, taken, 0, ())
                        self.taken[number] = 0
        self.after(self.setting.start, self.replace, place)

    def replace(self, place: int) -> None:
        actor = self.actors[place]
        actor.is_alive = actor.is_up = True
        actor.version = self.version
        self.fail_some_day(place)
        for number in self.placement.groups_of(place):
            self.ask(number)


def _hop(place: int) -> int:
    """The round in which a node has the weights, if each that has them passes them on."""
    return int(math.log2(place + 1)) + 1


def simulate(setting: Setting) -> Outcome:
    """Run a simulation; the same setting gives the same outcome."""
    return _Simulation(setting).run()


def row(setting: Setting, words: str) -> tuple[str, ...]:
    """A row of the table."""
    outcome = simulate(setting)
    lost = "-"
    if setting.mtbf:
        whole = simulate(dataclasses.replace(setting, mtbf=0.0))
        lost = f"{1 - outcome.rate / whole.rate:.1%}"
    lags = np.array(outcome.lags or [0])
    return (
        f"{setting.groups:,}",
        words,
        f"{min(limits(setting).values()):,.0f}",
        f"{outcome.rate:,.0f}",
        f"{outcome.driver:.0%}",
        f"{outcome.nbytes / setting.seconds / 1e6:.1f}",
        f"{outcome.waiting / 1e6:,.0f}",
        f"{outcome.deaths:,}",
        lost,
        "-" if setting.synchronous else f"{lags.mean():.1f} / {lags.max()}",
    )


HEAD = (
    *("groups", "machines and calls", "steps/s on paper", "simulated", "driver busy", "MB/s"),
    *("waiting, MB", "deaths", "lost by deaths", "lag, mean / most"),
)


def report(base: Setting, groups: list[int], mtbf: float) -> str:
    """The table, and the first limit."""
    rows: list[tuple[str, ...]] = []
    for number in groups:
        one = dataclasses.replace(base, groups=number, mtbf=0.0)
        waits = dataclasses.replace(one, synchronous=True)
        rows += [
            row(one.quiet, "all equal, running"),
            row(one, "unequal, running"),
            row(dataclasses.replace(one, mtbf=mtbf), "unequal and failing, running"),
            row(waits.quiet, "all equal, synchronous"),
            row(waits, "unequal, synchronous"),
            row(dataclasses.replace(waits, mtbf=mtbf), "unequal and failing, synchronous"),
            row(
                dataclasses.replace(waits, mtbf=mtbf, repeat=False),
                "the same, on_death='reseed'",
            ),
        ]
    parts = limits(base)
    del parts["the cores that step envs"]
    name = min(parts, key=lambda part: parts[part])
    enough = math.ceil(parts[name] / base.speed)
    beyond = dataclasses.replace(base.quiet, groups=math.ceil(1.3 * enough))
    words = "; ".join(f"{part} at {rate:,.0f} steps/s" for part, rate in sorted(parts.items()))
    return "\n".join(
        (
            rounds.table(HEAD, rows),
            "",
            f"Limits on paper: {words}. The first one, {name}, is reached with {enough:,} groups; "
            f"the simulation of {beyond.groups:,} groups stores {simulate(beyond).rate:,.0f} "
            "steps/s.",
        )
    )


class _Paced:
    """A policy that takes its time, asleep, and ends its process if a file is there.

    Args:
        seconds: Time of a vector step.
        file: The file; the first one to delete it ends.
    """

    def __init__(self, seconds: float, file: Path) -> None:
        self.seconds, self.file = seconds, file

    def __call__(self, observation: Any, is_first: np.ndarray) -> np.ndarray:
        """Push to where the pole leans, after a while."""
        time.sleep(self.seconds)
        with contextlib.suppress(FileNotFoundError):
            self.file.unlink()
            os._exit(1)
        return np.asarray(observation[:, 2] > 0, np.int64)


def _carts() -> Any:
    return sw.make_vec("CartPole-v1", num_envs=8, num_workers=0)


def validate() -> str:
    """Real processes of a known speed beside simulated ones: three calls, one with a death."""
    speed, share, groups = 800.0, 4_096, 4
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "die"
        with sw.LocalCollector(
            _carts,
            functools.partial(_Paced, 8 / speed, file),
            sw.SequenceReplayBuffer(),
            groups=groups,
            processes=groups,
            seed=0,
        ) as collector:
            began = time.perf_counter()
            collector.collect(steps=8 * groups)
            start = time.perf_counter() - began
            reports = [collector.collect(steps=share * groups) for _ in range(2)]
            threading.Timer(2.0, file.touch).start()
            reports.append(collector.collect(steps=share * groups))
    nbytes = reports[0].sent_bytes / reports[0].steps
    speed = share / reports[0].seconds  # on a busy machine a sleeper wakes up late
    base = Setting(
        groups=groups,
        synchronous=True,
        speed=speed,
        call_steps=share,
        row_bytes=nbytes,
        latency=1e-4,
        piece_cpu=0.2e-3,
        notice=0.01,
        start=start,
        weights=0.0,
        publish_cpu=0.0,
    ).quiet
    third = 2 * share / speed  # about when it begins
    setting = dataclasses.replace(base, seconds=10 * third, deaths=((third + 2.0, 0),))
    ends = [0.0, *simulate(setting).ends]
    rows: list[tuple[str, ...]] = []
    for number, report in enumerate(reports):
        simulated = ends[number + 1] - ends[number]
        rows.append(
            (
                "a process ends after 2 s"
                if report.deaths
                else ("another", "a call, for the speed")[not number],
                f"{report.seconds:.2f} s",
                f"{simulated:.2f} s",
                f"{report.steps / report.seconds:,.0f}",
                f"{share * groups / simulated:,.0f}",
            )
        )
    return rounds.table(("what", "real", "simulated", "steps/s, real", "simulated"), rows)


def main() -> None:
    """Print the table, and write it into a page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--groups", type=int, nargs="+", default=[10, 100, 1_000])
    parser.add_argument("--mtbf", type=float, default=3_600.0, help="where nodes fail, seconds")
    parser.add_argument("--page", type=Path, help="page that gets the table")
    for field in dataclasses.fields(Setting):
        if field.name in ("groups", "mtbf", "synchronous", "repeat", "deaths"):
            continue
        name = "--" + field.name.replace("_", "-")
        if field.name == "relay":
            parser.add_argument(name, action=argparse.BooleanOptionalAction, default=True)
        else:
            parser.add_argument(name, type=type(field.default), default=field.default)
    parser.add_argument("--validate", action="store_true", help="compare with real processes")
    options = vars(parser.parse_args())
    if options.pop("validate"):
        print(validate())
        return
    page, groups, mtbf = options.pop("page"), options.pop("groups"), options.pop("mtbf")
    text = report(Setting(**options), groups, mtbf)
    print(text)
    if page:
        page.write_text(rounds.into_page(page.read_text(), "delivery", text))


if __name__ == "__main__":
    main()
