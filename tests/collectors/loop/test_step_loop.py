"""Counting, the choice of episodes by their starts, and callbacks."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

import stepwell as sw
from stepwell.collectors.loop.collector import Seeds
from stepwell.collectors.loop.report import EpisodeReport, StepReport
from stepwell.collectors.loop.step_loop import EpisodeCounter
from stepwell.collectors.loop.step_result import StepResult
from support.envs.atari_games import atari
from support.envs.fakes import CounterEnv, DictEnv, RestartVectorEnv, TraceEnv, counters, zeros
from support.examples import examples
from support.models.model import ModelEpisode, copied, row_of, same
from support.models.plans import MODES, PLANS, makers
from support.models.rollout_model import RolloutModel, TraceRule, leaves, policy_of

NEXT_STEP, SAME_STEP = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP
ALL_MODES = pytest.mark.parametrize("mode", list(AutoresetMode))
CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("rollout"), st.integers(1, 10)),
        st.tuples(st.just("steps"), st.integers(1, 20)),
        st.tuples(st.just("episodes"), st.integers(1, 5)),
        st.tuples(st.just("seeds"), st.lists(st.integers(0, 999), min_size=1, max_size=5)),
    ),
    min_size=1,
    max_size=4,
)


class Watch:
    """Keeps all that it is shown."""

    def __init__(self) -> None:
        self.steps: list[StepReport] = []
        self.episodes: list[EpisodeReport] = []

    def on_step(self, report: StepReport) -> None:
        self.steps.append(copied_report(report))

    def on_episode(self, report: EpisodeReport) -> None:
        self.episodes.append(report)

    @property
    def rows(self) -> dict[int, list[tuple[Any, ...]]]:
        """For each env (number, observation, reward, is_first, terminated, truncated) by row."""
        found: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
        for one in self.steps:
            for place, env in enumerate(one.env_ids.tolist()):
                flags = one.is_first[place], one.terminated[place], one.truncated[place]
                row = row_of(one.observation, place)
                own = int(one.episode[place]), row, float(one.reward[place]), *map(bool, flags)
                found[env].append(own)
        return found


def copied_report(report: StepReport) -> StepReport:
    fields = report._asdict()
    total = fields.pop("total_steps")
    return StepReport(**{name: copied(value) for name, value in fields.items()}, total_steps=total)


def watched(envs: Any, replay: Any = None, **options: Any) -> tuple[sw.Collector, Watch]:
    watch = Watch()
    options["on_step"], options["on_episode"] = watch.on_step, watch.on_episode
    return sw.Collector(envs, zeros, replay, seed=0, **options), watch


def comparable(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Of rows that do not count the draws are left out: any seed will do for them."""
    number, observation, _, *flags = row
    if number < 0:
        return number, observation[:3], *flags
    return row


def rows_of(episodes: list[ModelEpisode], numbers: dict[int, int]) -> list[tuple[Any, ...]]:
    """The expected rows of one env's episodes."""
    found = []
    for episode in episodes:
        for row, observation in enumerate(episode.observations):
            is_last = row == episode.steps and row > 0
            flags = row == 0, episode.terminated and is_last, episode.truncated and is_last
            number = numbers.get(id(episode), -1)
            found.append((number, observation, episode.rewards[row], *flags))
    return found


@given(PLANS, MODES, CALLS, st.booleans(), st.sampled_from([3, 1, 50_000]))
@settings(max_examples=examples(80))
def test_callbacks_see_what_single_envs_give(
    plans: list[Any], mode: AutoresetMode, calls: list[Any], with_replay: bool, reseed_steps: int
) -> None:
    """Every row of every env once, and every episode that counts, numbered by their starts."""
    make = makers(plans)
    seeds, needs_reset, watch, n = Seeds(5, 0), True, Watch(), len(plans)
    model = RolloutModel(
        [one() for one in make],
        TraceRule(),
        mode=mode,
        seed_of=seeds.env_seed,
        reseed_steps=reseed_steps,
    )
    with sw.Collector(
        SyncVectorEnv(make, autoreset_mode=mode),
        policy_of(TraceRule()),
        sw.SequenceReplayBuffer() if with_replay else None,
        seed=5,
        reseed_steps=reseed_steps,
        on_step=watch.on_step,
        on_episode=watch.on_episode,
    ) as collector:
        for kind, goal in calls:
            if kind != "seeds" and (needs_reset or kind == "episodes"):
                model.reset(seeds.next_envs_seed(n), goal if kind == "episodes" else float("inf"))
            if kind == "rollout":
                collector.rollout(goal)
                model.rollout(goal)
            elif kind == "seeds":
                collector.collect(seeds=goal)
                model.collect_seeds(goal)
            else:
                collector.collect(**{kind: goal})
                if kind == "steps":
                    model.collect(goal)
                else:
                    model.collect_episodes()
            needs_reset = kind in ("episodes", "seeds")
    numbers = {id(episode): number for number, episode in enumerate(model.chosen)}
    for env in range(n):
        expected = rows_of([one for one in model.started if one.stream == env], numbers)
        shown = watch.rows[env]
        assert len(shown) == len(expected)
        for one, other in zip(shown, expected, strict=True):
            assert same(comparable(one), comparable(other)), (
                f"env {env}: got {one}, expected {other}"
            )
    # Every env step that was taken is in the totals, also one of an episode that does not count.
    totals = [one.total_steps for one in watch.steps]
    assert totals == np.cumsum([int((~one.is_first).sum()) for one in watch.steps]).tolist()
    ended = {id(one): one for one in model.chosen if one.has_ended}
    assert len(watch.episodes) == len(ended)
    by_number = {numbers[key]: one for key, one in ended.items()}
    for report in watch.episodes:
        own = by_number[report.episode]
        assert (report.env, report.steps) == (own.stream, own.steps)
        assert report.total_reward == sum(own.rewards)
        assert (report.terminated, report.truncated) == (own.terminated, own.truncated)
        assert report.seed == own.seed
        assert report.total_steps in totals
        values = report.env, report.steps, report.total_reward, report.terminated, report.truncated
        assert [type(value) for value in values] == [int, int, float, bool, bool]


# They only look


@ALL_MODES
def test_arrays_in_callbacks_are_read_only(mode: AutoresetMode) -> None:
    tried = 0

    def scribble(report: StepReport) -> None:
        nonlocal tried
        for name, value in report._asdict().items():
            for array in leaves(value) if name != "total_steps" else ():
                assert not array.flags.writeable, name
                with pytest.raises(ValueError, match="read-only"):
                    array[...] = 0
                tried += 1
        with pytest.raises(AttributeError):
            report.total_steps = 0  # type: ignore[misc]

    envs = SyncVectorEnv([partial(DictEnv, 3)] * 2, autoreset_mode=mode)
    with sw.Collector(envs, sw.RandomPolicy(), seed=0, on_step=scribble) as collector:
        collector.rollout(5)
        collector.collect(episodes=2)
    assert tried > 30


@ALL_MODES
def test_shapes_and_dtypes_are_the_same_in_every_result(mode: AutoresetMode) -> None:
    collector, watch = watched(counters(3, 1, 2, mode=mode))
    with collector:
        collector.rollout(9)
        collector.collect(episodes=4)
    for one in watch.steps:
        n = len(one.env_ids)
        assert np.asarray(one.observation).shape == (n, 3)
        for name, dtype in (
            ("env_ids", np.int64),
            ("reward", np.float64),
            ("is_first", np.bool_),
            ("terminated", np.bool_),
            ("truncated", np.bool_),
            ("episode", np.int64),
        ):
            array = getattr(one, name)
            assert (array.shape, array.dtype) == ((n,), np.dtype(dtype)), name


def test_nested_observations_are_shown_as_the_policy_sees_them() -> None:
    watch, seen = Watch(), []

    class Policy(sw.RandomPolicy):
        def __call__(self, observation: Any, is_first: Any) -> Any:
            seen.append(copied(observation))
            return super().__call__(observation, is_first)

    with sw.Collector(
        SyncVectorEnv([partial(DictEnv, 3)] * 2), Policy(), seed=0, on_step=watch.on_step
    ) as collector:
        collector.rollout(5)
    assert all(same(one.observation, own) for one, own in zip(watch.steps, seen, strict=False))
    assert len(watch.steps) == 6


@ALL_MODES
@pytest.mark.parametrize("which", ["on_step", "on_episode", "both"])
def test_callbacks_change_nothing(mode: AutoresetMode, which: str) -> None:
    digests, rollouts = [], []
    for looks in (False, True):
        replay, watch = sw.SequenceReplayBuffer(), Watch()
        callbacks: dict[str, Any] = {"on_step": watch.on_step, "on_episode": watch.on_episode}
        chosen = {k: v for k, v in callbacks.items() if looks and which in (k, "both")}
        make: list[Any] = [
            partial(TraceEnv, [(3, "truncated"), (1, "both")], tag) for tag in (0, 1)
        ]
        with sw.Collector(
            SyncVectorEnv(make, autoreset_mode=mode), sw.RandomPolicy(), replay, seed=0, **chosen
        ) as collector:
            rollouts.append(collector.rollout(11))
            collector.collect(steps=9)
            collector.collect(episodes=3)
            digests.append(collector.collect(seeds=[5, 6, 7]).digest)
    assert digests[0] == digests[1]
    assert same(rollouts[0].observation, rollouts[1].observation)


@pytest.mark.parametrize("which", ["on_step", "on_episode"])
@pytest.mark.parametrize("call", ["rollout", "collect"])
@ALL_MODES
def test_an_error_in_a_callback_is_one_like_in_the_policy(
    mode: AutoresetMode, which: str, call: str
) -> None:
    """Complete rows are kept, the error says so, and the next call begins from a reset."""
    seen: list[Any] = []

    def fail(report: Any) -> None:
        seen.append(report)
        if len(seen) == 3:
            raise RuntimeError("the callback broke")

    replay = sw.SequenceReplayBuffer()
    with sw.Collector(
        counters(2, 4, mode=mode),
        zeros,
        replay,
        seed=0,
        **{which: fail},  # type: ignore[arg-type]
    ) as collector:
        with pytest.raises(RuntimeError, match="the callback broke") as caught:
            collector.rollout(50) if call == "rollout" else collector.collect(steps=100)
        assert caught.value.__notes__[-1].startswith(f"kept: {replay.steps} steps, ")
        assert len(seen) == 3
        kept = replay.steps
        assert kept >= 2
        rollout = collector.rollout(3)
        assert rollout.is_first[0].all()
        assert replay.steps == kept + rollout.steps
    for episode in replay.iter_episodes():
        assert np.asarray(episode.observation)[:, 1].tolist() == list(range(episode.rows))


# Envs of other kinds


@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP])
def test_a_restarted_worker_is_shown_as_a_new_episode(mode: AutoresetMode) -> None:
    watch = Watch()
    make: list[Any] = [partial(CounterEnv, 6, tag) for tag in (0, 1)]
    envs = RestartVectorEnv(make, at_step=3, env=1, autoreset_mode=mode)
    with sw.Collector(
        envs, zeros, seed=0, on_step=watch.on_step, on_episode=watch.on_episode
    ) as collector:
        rollout = collector.rollout(10)
    shown = [(row[0], int(row[1][1]), row[3]) for row in watch.rows[1]]
    assert shown[:5] == [(1, 0, True), (1, 1, False), (1, 2, False), (2, 0, True), (2, 1, False)]
    # An episode that was cut did not end.
    assert 1 not in {one.episode for one in watch.episodes}
    assert watch.steps[-1].total_steps == rollout.steps


@pytest.mark.proof
@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP])
def test_22_a_partial_batch_is_shown_with_the_envs_that_it_is_of(mode: AutoresetMode) -> None:
    watch = Watch()
    knobs = {"batch_size": 2, "num_threads": 2, "max_num_frames_per_episode": 20, "noop_max": 5}
    envs = atari(3, mode, **knobs)
    with sw.Collector(
        envs, zeros, seed=0, on_step=watch.on_step, on_episode=watch.on_episode
    ) as collector:
        collector.rollout(50)
    assert {len(one.env_ids) for one in watch.steps} <= {1, 2}
    assert {one.steps for one in watch.episodes} == {20}
    for rows in watch.rows.values():
        numbers = [row[0] for row in rows if row[3]]
        assert numbers == sorted(set(numbers))
        for before, after in pairwise(rows):
            assert after[3] == (before[4] or before[5])
            assert (after[0] == before[0]) == (not after[3])


def test_groups_are_shown_with_numbers_of_their_own_envs() -> None:
    watch = Watch()
    groups = [counters(3, 4), counters(2, first=2)]
    with sw.Collector(
        groups, zeros, seed=0, on_step=watch.on_step, on_episode=watch.on_episode
    ) as collector:
        rollout = collector.rollout(9)
    for env, rows in watch.rows.items():
        assert {int(row[1][2]) for row in rows} == {env}
    assert {tuple(one.env_ids.tolist()) for one in watch.steps} == {(0, 1), (2,)}
    assert sorted(one.steps for one in watch.episodes) == sorted(rollout.episode_lengths)


# EpisodeCounter


def flags(text: str) -> np.ndarray | None:
    marks = np.array([mark == "x" for mark in text])
    return marks if marks.any() else None


def result(
    reward: list[float],
    first: str = "",
    terminated: str = "",
    truncated: str = "",
    env_ids: list[int] | None = None,
    restarts: int = 0,
) -> StepResult:
    empty = "." * len(reward)
    return StepResult(
        None if env_ids is None else np.array(env_ids),
        {"observation": np.arange(len(reward))},
        np.array(reward),
        flags(first or empty),
        flags(terminated or empty),
        flags(truncated or empty),
        restarts=restarts,
    )


def test_only_episodes_with_steps_are_cut_by_a_reset() -> None:
    counter = EpisodeCounter(3)
    counter.count(result([0, 0, 0], "xxx"))
    counter.count(result([1, 1], env_ids=[0, 2]))
    counter.count(result([1], terminated="x", env_ids=[2]))
    assert counter.cut_all() == 1
    assert counter.cut == 1
    counter.count(result([0, 0, 0], "xxx"))
    assert counter.cut == 1


def test_an_episode_that_cannot_be_replaced_is_counted_as_lost() -> None:
    counter = EpisodeCounter(2)
    counter.begin(counter.reserve(2), replaces=False)
    counter.count(result([0, 0], "xx"))
    counter.count(result([1, 1]))
    kept = counter.count(result([0, 2], "x."))
    assert kept is not None
    assert kept.env_ids is not None
    assert (kept.env_ids.tolist(), counter.lost, counter.cut) == ([1], [0], 1)
    assert not counter.is_complete
    counter.count(result([5, 3], terminated=".x"))
    assert counter.is_complete
    assert [(one.episode, one.total_reward) for one in counter.ended] == [(1, 6.0)]
    counter.cut_all()
    counter.extend([0])
    assert counter.lost == []
    counter.count(result([0, 0], "xx"))
    counter.count(result([4, 4], terminated="xx"))
    assert [(one.episode, one.total_reward) for one in counter.ended] == [(1, 6.0), (0, 4.0)]
