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
from support.envs.atari_games import atari
from support.envs.fakes import CounterEnv, DictEnv, RestartVectorEnv, counters, zeros
from support.examples import examples
from support.models.model import ModelEpisode, copied, row_of, same
from support.models.plans import MODES, PLANS, makers
from support.models.rollout_model import RolloutModel, TraceRule, leaves, play_calls

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


def shown(envs: Any, steps: int, replay: Any = None, **options: Any) -> tuple[Watch, sw.Rollout]:
    watch = Watch()
    options["on_step"], options["on_episode"] = watch.on_step, watch.on_episode
    with sw.Collector(envs, zeros, replay, seed=0, **options) as collector:
        return watch, collector.rollout(steps)


def copied_report(report: StepReport) -> StepReport:
    fields = report._asdict()
    total = fields.pop("total_steps")
    return StepReport(**{name: copied(value) for name, value in fields.items()}, total_steps=total)


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
    make, watch = makers(plans), Watch()
    options: Any = {"on_step": watch.on_step, "on_episode": watch.on_episode}
    options["reseed_steps"] = reseed_steps
    model = RolloutModel(
        [one() for one in make],
        TraceRule(),
        mode=mode,
        seed_of=Seeds(5, 0).env_seed,
        reseed_steps=reseed_steps,
    )
    envs = SyncVectorEnv(make, autoreset_mode=mode)
    play_calls(envs, model, calls, sw.SequenceReplayBuffer() if with_replay else None, **options)
    numbers = {id(episode): number for number, episode in enumerate(model.chosen)}
    for env in range(len(plans)):
        expected = rows_of([one for one in model.started if one.stream == env], numbers)
        shown = watch.rows[env]
        assert len(shown) == len(expected)
        for one, other in zip(shown, expected, strict=True):
            assert same(comparable(one), comparable(other)), (
                f"env {env}: got {one}, expected {other}"
            )
    for one in watch.steps:
        dtypes = {name: np.asarray(value).dtype for name, value in one._asdict().items()}
        assert {str(dtypes[name]) for name in ("env_ids", "episode")} == {"int64"}
        assert dtypes["reward"] == np.float64
        assert {str(dtypes[f]) for f in ("is_first", "terminated", "truncated")} == {"bool"}
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


# Envs of other kinds


@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP])
def test_a_restarted_worker_is_shown_as_a_new_episode(mode: AutoresetMode) -> None:
    make: list[Any] = [partial(CounterEnv, 6, tag) for tag in (0, 1)]
    envs = RestartVectorEnv(make, at_step=3, env=1, autoreset_mode=mode)
    watch, rollout = shown(envs, 10)
    rows = [(row[0], int(row[1][1]), row[3]) for row in watch.rows[1]]
    assert rows[:5] == [(1, 0, True), (1, 1, False), (1, 2, False), (2, 0, True), (2, 1, False)]
    # An episode that was cut did not end.
    assert 1 not in {one.episode for one in watch.episodes}
    assert watch.steps[-1].total_steps == rollout.steps


@pytest.mark.proof
@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP])
def test_22_a_partial_batch_is_shown_with_the_envs_that_it_is_of(mode: AutoresetMode) -> None:
    knobs = {"batch_size": 2, "num_threads": 2, "max_num_frames_per_episode": 20, "noop_max": 5}
    watch, _ = shown(atari(3, mode, **knobs), 50)
    assert {len(one.env_ids) for one in watch.steps} <= {1, 2}
    assert {one.steps for one in watch.episodes} == {20}
    for rows in watch.rows.values():
        numbers = [row[0] for row in rows if row[3]]
        assert numbers == sorted(set(numbers))
        for before, after in pairwise(rows):
            assert after[3] == (before[4] or before[5])
            assert (after[0] == before[0]) == (not after[3])


def test_groups_are_shown_with_numbers_of_their_own_envs() -> None:
    groups, replay = [counters(3, 4), counters(2, first=2)], sw.SequenceReplayBuffer()
    watch, rollout = shown(groups, 9, replay, metadata=lambda env, info: {"column": env})
    columns = {(e.stream, e.metadata["column"]) for e in replay.iter_episodes()}
    assert columns == {(0, 0), (1, 1), (2, 2)}
    for env, rows in watch.rows.items():
        assert {int(row[1][2]) for row in rows} == {env}
    assert {tuple(one.env_ids.tolist()) for one in watch.steps} == {(0, 1), (2,)}
    assert sorted(one.steps for one in watch.episodes) == sorted(rollout.episode_lengths)
