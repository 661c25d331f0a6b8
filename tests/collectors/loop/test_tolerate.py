"""`Collector(tolerate=N)`: exceptions of envs are answered as deaths of worker processes are."""

from __future__ import annotations

import logging
import multiprocessing
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

import stepwell as sw
from stepwell.collectors import archive, restore
from stepwell.collectors.loop.collector import Seeds
from stepwell.wrappers.atari_python import FusedAtari
from support.envs.fakes import FlakyEnv, Lost, TraceEnv
from support.examples import examples
from support.models.model import Model, ModelEpisode, assert_episode
from support.models.plans import CHUNK_ROWS, MODES, PLANS, Plan, small_chunks

NEXT_STEP = AutoresetMode.NEXT_STEP


class Slot:
    """Makes the envs of one place, one after the other; some of all their calls raise.

    Args:
        plan: Of the episodes, see `TraceEnv`.
        tag: Of the place.
        faults: Numbers of the calls that raise: of `reset`, `step`, `close` and, from the second
            env on, of the making, counted together.
    """

    def __init__(self, plan: Plan, tag: int, faults: Sequence[int]) -> None:
        self.plan, self.tag, self.faults = plan, tag, set(faults)
        self.calls = -1  # the first env is made in any case

    def __call__(self) -> SlotEnv:
        self.count()
        return SlotEnv(self)

    def count(self) -> None:
        self.calls += 1
        if self.calls in self.faults:
            raise Lost(f"call {self.calls} of place {self.tag}")


class SlotEnv(TraceEnv):
    def __init__(self, slot: Slot) -> None:
        super().__init__(slot.plan, slot.tag)
        self.slot = slot

    def reset(self, **options: Any) -> Any:
        self.slot.count()
        return super().reset(**options)

    def step(self, action: np.int64) -> Any:
        result = super().step(action)
        self.slot.count()
        return result

    def close(self) -> None:
        self.slot.count()


class TolerantModel(Model):
    """A model whose envs raise `Lost`; the first one that is not tolerated ends its last turn."""

    def __init__(self, slots: Sequence[Slot], tolerate: int, mode: AutoresetMode) -> None:
        super().__init__([slot() for slot in slots], TraceEnv.choose, mode=mode)
        self.slots, self.tolerate = slots, tolerate
        self.made: list[Any] = list(self.envs)
        self.envs = self.made
        self.faults, self.restarts = 0, 0
        self.last_seeds: list[int] = [-1] * len(slots)

    def _turn(self) -> int:
        before, chosen = list(self.current), list(self.chosen)
        sizes = [len(one.observations) for one in before]
        had_ended = [one.has_ended for one in before]
        try:
            return super()._turn()
        except Lost:
            # The actions were chosen, and nothing else is known of the turn.
            self.current, self.chosen = before, chosen
            for one, size, was_over in zip(before, sizes, had_ended, strict=True):
                del one.observations[size:], one.rewards[size:], one.actions[size:]
                if not was_over:
                    one.terminated = one.truncated = False
                    one.actions[-1] = self.policy(one.observations[-1])
            raise

    def _step(self, stream: int) -> bool:
        try:
            steps = super()._step(stream)
        except Lost as error:
            self.current[stream] = self._begun_anew(stream, None, error)
            return False
        if self.current[stream].has_ended and self.mode is AutoresetMode.SAME_STEP:
            self.current[stream] = self._reset(stream)
        return steps

    def _reset(self, stream: int, seed: int | None = None) -> ModelEpisode:
        self.last_seeds[stream] = self.last_seeds[stream] if seed is None else seed
        try:
            return self._started(stream, self.envs[stream].reset(seed=seed)[0], seed)
        except Lost as error:
            return self._begun_anew(stream, seed, error)

    def _begun_anew(self, stream: int, seed: int | None, error: Lost) -> ModelEpisode:
        self.faults += 1
        if self.faults > self.tolerate:
            raise error
        drawn = np.random.SeedSequence(self.last_seeds[stream], spawn_key=(0, 1)).generate_state(1)[
            0
        ]
        used = self.last_seeds[stream] = int(drawn) >> 1 if seed is None else seed
        try:
            try:
                self.made[stream].close()
            except Lost:
                pass
            self.made[stream] = self.slots[stream]()
            observation, _ = self.made[stream].reset(seed=used)
        except Lost as another:
            return self._begun_anew(stream, seed, another)
        self.restarts += 1
        return self._started(stream, observation, used)


FAULTS = st.lists(st.integers(1, 40), max_size=5)


@given(
    PLANS,
    st.lists(FAULTS, min_size=4, max_size=4),
    MODES,
    st.integers(1, 12),
    st.lists(st.integers(1, 25), min_size=1, max_size=4),
    CHUNK_ROWS,
)
@settings(max_examples=examples(300))
def test_rows_are_those_of_bare_envs_cut_where_one_raises(
    plans: list[Plan],
    faults: list[list[int]],
    mode: AutoresetMode,
    tolerate: int,
    calls: list[int],
    chunk_rows: int,
) -> None:
    def slots() -> list[Slot]:
        return [Slot(plan, tag, faults[tag]) for tag, plan in enumerate(plans)]

    made = slots()
    envs = SyncVectorEnv(made, autoreset_mode=mode)
    model = TolerantModel(slots(), tolerate, mode)
    replay = sw.SequenceReplayBuffer()
    options: Any = {"seed": 5, "tolerate": tolerate, "reseed_steps": None}
    restarts, is_first = 0, True
    with (
        small_chunks(chunk_rows),
        sw.Collector(envs, TraceEnv.choose, replay, **options) as collector,
    ):
        for steps in calls:
            try:
                if is_first:
                    model.reset(Seeds(5, 0).next_envs_seed(len(plans)))
                expected = model.collect(steps)
            except Lost as error:
                with pytest.raises(Lost, match=rf"^{error}\b") as caught:
                    collector.collect(steps=steps)
                assert f"after {tolerate} that were tolerated" in caught.value.__notes__[0]
                break
            is_first = False
            report = collector.collect(steps=steps)
            restarts += report.restarts
            assert (report.steps, restarts) == (expected, model.restarts)
        for slot in made:
            slot.faults.clear()  # closing is not what is tested
    stored = list(replay.iter_episodes())
    # A row that was stored before the first step from it raised is left.
    assert all(one.rows == 1 and one.cut[0] for one in stored if not one.steps)
    for one, other in zip([one for one in stored if one.steps], model.episodes, strict=True):
        assert_episode(one, other)


def flaky(share: float, *tags: int) -> list[Callable[[], FlakyEnv]]:
    """Envs, of which those of these tags raise."""
    return [partial(FlakyEnv, tag, share if tag in tags else 0.0) for tag in range(4)]


def collected(envs: Any, steps: int = 400, **options: Any) -> tuple[Any, Any]:
    replay = sw.SequenceReplayBuffer()
    # A row that waits when the step from it raises is not stored: here it always waits.
    options = {"seed": 3, "flush_seconds": 1e9, **options}
    with sw.Collector(envs, TraceEnv.choose, replay, **options) as collector:
        return collector.collect(steps=steps), replay


def test_rows_do_not_depend_on_where_the_envs_are_stepped() -> None:
    found = []
    for num_workers in (0, 1, 3):
        envs = sw.wrappers.vectorize(flaky(0.1, 0, 1, 3), num_workers=num_workers)
        report, replay = collected(envs, tolerate=99)
        found.append((report.digest, report.restarts, report.cut, report.lengths))
        seeds = [one.metadata["seed"] for one in replay.iter_episodes() if "seed" in one.metadata]
        assert len(seeds) == len(set(seeds)) > 20
    assert found[0][1] > 10
    assert found == [found[0]] * 3


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_the_first_one_too_many_is_raised_wherever_the_envs_are(num_workers: int) -> None:
    envs = sw.wrappers.vectorize(flaky(0.1, 0, 1, 3), num_workers=num_workers)
    with pytest.raises(Lost, match="simulator") as caught:
        collected(envs, tolerate=4)
    (note,) = [one for one in caught.value.__notes__ if "tolerated" in one.splitlines()[0]]
    assert note == "raised in step 5 of an episode of env 0, after 4 that were tolerated"


def test_a_replaced_worker_tolerates_as_well() -> None:
    before = set(multiprocessing.active_children())
    killed: list[int] = []

    def see(step: Any) -> None:
        if step.total_steps > 150 and not killed:
            (worker,) = set(multiprocessing.active_children()) - before
            killed.append(step.total_steps)
            worker.kill()

    envs = sw.wrappers.vectorize(flaky(0.1, 0, 1, 2, 3), num_workers=1)
    replay = sw.SequenceReplayBuffer()
    options: Any = {"seed": 3, "tolerate": 99, "on_step": see}
    with sw.Collector(envs, TraceEnv.choose, replay, **options) as collector:
        first = collector.collect(steps=200)
        second = collector.collect(steps=200)
    assert killed
    assert first.restarts > 4 + 4
    assert second.restarts > 4


class FlakyPole(CartPoleEnv):
    def step(self, action: Any) -> Any:
        result = super().step(action)  # type: ignore[no-untyped-call]
        if self.np_random.random() < 0.03:
            raise Lost("simulator")
        return result


def test_a_store_with_cut_episodes_is_verified_archived_and_restored(tmp_path: Path) -> None:
    replay, again = sw.SequenceReplayBuffer(), sw.SequenceReplayBuffer()
    envs = SyncVectorEnv([FlakyPole] * 2)
    with sw.Collector(envs, "random", replay, seed=1, tolerate=50) as collector:
        report = collector.collect(steps=400)
    assert report.restarts > 5
    assert report.cut > 0
    assert {proof.reason for proof in sw.resimulate(replay, env=FlakyPole, lanes=1)} == {"equal"}
    archive(replay, tmp_path / "a.swa", env=FlakyPole)
    restore(tmp_path / "a.swa", again, env=FlakyPole)
    assert again.digest() == replay.digest()


def test_a_single_env_is_only_reset(caplog: pytest.LogCaptureFixture) -> None:
    class Once(FlakyEnv):
        closed = 0

        def close(self) -> None:
            Once.closed += 1

    replay = sw.SequenceReplayBuffer()
    with (
        caplog.at_level(logging.DEBUG, "stepwell.wrappers"),
        sw.Collector(Once(), "random", replay, seed=0, tolerate=50) as collector,
    ):
        report = collector.collect(steps=200)
        assert Once.closed == 0
    assert Once.closed == 1
    told = [one for one in caplog.records if one.name == "stepwell.wrappers"]
    assert len(told) == report.restarts > 3
    assert "env 0 raised Lost: simulator in step" in told[0].getMessage()
    assert "1 of at most 50" in told[0].getMessage()
    assert all(one.exc_info for one in told)
    seeds = {one.metadata["seed"] for one in replay.iter_episodes()}
    assert len(seeds) == replay.episodes  # each reset has one, also after a fault
    made = sw.make_vec(Once(), num_envs=1)
    with sw.Collector(made, "random", seed=0, tolerate=50) as collector:
        assert collector.collect(steps=200).restarts > 3
        assert Once.closed == 1


def test_the_same_seeds_are_played_once_more() -> None:
    slots = [Slot([(6, "terminated")], tag, [4] if tag == 1 else []) for tag in range(2)]
    replay = sw.SequenceReplayBuffer()
    with sw.Collector(SyncVectorEnv(slots), "random", replay, seed=0, tolerate=1) as collector:
        report = collector.collect(seeds=[7, 8, 9])
    assert (report.episodes, report.cut, report.restarts) == (3, 1, 1)
    ended = [one for one in replay.iter_episodes() if not one.cut[-1]]
    assert {one.metadata["seed"] for one in ended} == {7, 8, 9}


def test_several_vector_envs_share_the_number() -> None:
    groups = [SyncVectorEnv([Slot([(9, "both")], g, [5, 9])]) for g in range(2)]
    with sw.Collector(groups, "random", seed=0, tolerate=3) as collector:
        with pytest.raises(Lost, match="place 1") as caught:
            collector.collect(steps=100)
    assert "env 0, after 3 that" in caught.value.__notes__[0]


def test_neither_a_policy_nor_ctrl_c_in_an_env_is_tolerated() -> None:
    class Interrupted(TraceEnv):
        def step(self, action: Any) -> Any:
            raise KeyboardInterrupt

    def policy(observation: Any, is_first: Any) -> Any:
        raise Lost("the policy")

    for env, chosen, error in (
        (TraceEnv, policy, Lost),
        (Interrupted, "random", KeyboardInterrupt),
    ):
        given: Any = chosen
        with sw.Collector(env(), given, seed=0, tolerate=9) as collector:
            with pytest.raises(error):
                collector.collect(steps=10)


@pytest.mark.parametrize("value", [-1, 1.5, True, "3", None])
def test_other_numbers_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"tolerate: expected a whole number >= 0"):
        sw.Collector(TraceEnv(), "random", tolerate=value)
    with pytest.raises(ValueError, match=r"tolerate: expected a whole number >= 0"):
        sw.LocalCollector(TraceEnv, sw.RandomPolicy, tolerate=value)


def test_envs_that_cannot_be_made_one_by_one_are_refused() -> None:
    used_up: Any = (make for make in [TraceEnv])
    makes: list[Callable[[], Any]] = [
        lambda: AsyncVectorEnv([TraceEnv]),
        lambda: gym.make_vec("CartPole-v1", 2),
        lambda: SyncVectorEnv(used_up),
        lambda: sw.make_atari("Pong", 1, backend="native"),
    ]
    for make in makes:
        envs = make()
        with pytest.raises(ValueError, match=rf"tolerate=2: .*got {type(envs.unwrapped).__name__}"):
            sw.Collector(envs, "random", tolerate=2)
        sw.Collector(envs, "random").close()


def test_without_it_the_envs_are_as_they_were() -> None:
    envs = SyncVectorEnv(flaky(0.0))
    before = list(envs.envs)
    with sw.Collector(envs, TraceEnv.choose, seed=0) as collector:
        collector.collect(steps=10)
        assert envs.envs == before
        assert all(type(env) is FlakyEnv for env in envs.envs)


def test_stacks_in_a_worker_begin_with_the_new_game(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = FusedAtari.step

    def step(env: Any, action: Any) -> Any:
        env.taken = getattr(env, "taken", 0) + 1
        if env.taken == 9:
            raise Lost("the game")
        return steps(env, action)

    monkeypatch.setattr(FusedAtari, "step", step)  # forked processes have it
    ages, starts = np.zeros(2, np.int64), 0

    def see(rows: sw.collectors.StepReport) -> None:
        nonlocal starts
        starts += int(rows.is_first.sum())
        ages[:] = np.where(rows.is_first, 1, ages + 1)
        for stack, age in zip(np.asarray(rows.observation), ages, strict=True):
            assert [frame.any() for frame in stack] == [k < age for k in range(4)][::-1]

    envs = sw.make_atari("Pong", 2, backend="python", num_workers=1)
    with sw.Collector(envs, "random", seed=3, tolerate=99, on_step=see) as collector:
        report = collector.collect(steps=60)
    assert report.restarts == report.cut == starts - 2 == 6
