"""Rollouts of real Atari games against a plain loop over the same envs: traps 4, 5, 8, 22."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import stepwell as sw
from support.envs.atari_games import LIFE_LOSS, Game, atari, choose, play, worth
from support.models.model import row_of, same
from support.models.rollout_model import assert_same, ends_of, joined

NEXT_STEP, SAME_STEP = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP
BOTH_MODES = pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP])


class Policy:
    """Chooses by the frames; notes for how many envs it is called."""

    def __init__(self) -> None:
        self.sizes: set[int] = set()

    def __call__(self, observation: np.ndarray, is_first: np.ndarray) -> Any:
        self.sizes.add(len(is_first))
        return choose(observation), {"value": worth(observation)}

    def value(self, observation: np.ndarray) -> np.ndarray:
        return worth(observation)


@dataclass(eq=False)
class Row:
    """One expected row of a rollout's column."""

    game: Game
    t: int

    @property
    def is_dummy(self) -> bool:
        return self.t == len(self.game.actions)

    @property
    def is_last(self) -> bool:
        return self.t == len(self.game.actions) - 1


def column(games: list[Game], mode: AutoresetMode) -> list[Row]:
    """All rows of one env; where the mode has it, with that in which it resets."""
    rows = []
    for game in games[:-1]:  # of the last one the loop may not have seen the end
        rows += [Row(game, t) for t in range(len(game.actions) + (mode is NEXT_STEP))]
    return rows


def assert_column(rollout: sw.Rollout, env: int, rows: list[Row]) -> None:
    """The env's column is these rows."""
    assert len(rows) == rollout.num_steps, "the plain loop is too short"
    observation, action = np.asarray(rollout.observation), np.asarray(rollout.action)
    ends = ends_of(rollout)
    for place, row in enumerate(rows):
        game, t, where = row.game, row.t, f"row {place} of env {env}"
        assert np.array_equal(observation[place, env], game.stacks[t]), where
        assert rollout.is_first[place, env] == (t == 0), where
        assert rollout.mask[place, env] == (not row.is_dummy), where
        ended = row.is_last and game.terminated, row.is_last and game.truncated
        flags = rollout.terminated[place, env], rollout.truncated[place, env]
        assert flags == ended, where
        assert not rollout.cut[place, env], where
        assert rollout.reward[place, env] == (0 if row.is_dummy else game.rewards[t]), where
        if not row.is_dummy:
            assert action[place, env] == game.actions[t], where
            is_open = not ended[0] and (ended[1] or place == len(rows) - 1)
            assert ((place, env) in ends) == is_open, where
            if is_open:
                last = np.asarray(rollout.bootstrap.observation)[ends.index((place, env))]
                assert np.array_equal(last, game.stacks[t + 1]), where
        else:
            assert (place, env) not in ends, where


def rolled(
    envs: Any, *steps: int, policy: Any = None, **options: Any
) -> tuple[list[sw.Rollout], Any]:
    with sw.Collector(envs, policy or Policy(), seed=7, **options) as collector:
        return [collector.rollout(each) for each in steps], collector.report


@BOTH_MODES
def test_4_rows_equal_those_of_a_plain_loop(mode: AutoresetMode) -> None:
    """SAME_STEP of ale-py gives dense last observations without a mask."""
    games = play(2, 260)
    rollouts, _ = rolled(atari(2, mode), 7, 1, 60, 100)
    for env in range(2):
        rows, first = column(games[env], mode), 0
        for rollout in rollouts:
            assert_column(rollout, env, rows[first : first + rollout.num_steps])
            first += rollout.num_steps
    assert sum(int(rollout.truncated.sum()) for rollout in rollouts) >= 4
    lengths = [length for rollout in rollouts for length in rollout.episode_lengths]
    assert set(lengths) == {60}


@pytest.mark.proof
@BOTH_MODES
def test_5_a_lost_life_that_does_not_reset_is_no_border(mode: AutoresetMode) -> None:
    """`life_loss_info=True` sets terminated, and the game continues: no real step is lost."""
    games = play(2, 430, **LIFE_LOSS)
    rollouts, _ = rolled(
        atari(2, mode, **LIFE_LOSS), 150, 200, info={"lives": -1, "episode_frame_number": -1}
    )
    whole = joined(rollouts)
    lost = 0
    for env in range(2):
        rows, first = column(games[env], mode), 0
        for rollout in rollouts:
            assert_column(rollout, env, rows[first : first + rollout.num_steps])
            first += rollout.num_steps
        known = whole["mask"][:, env] & (whole["info"]["lives"][:, env] >= 0)
        lost += int((np.diff(whole["info"]["lives"][known, env]) < 0).sum())
    assert lost >= 2


@pytest.mark.proof
@BOTH_MODES
def test_5_also_when_a_rollout_ends_with_the_row_of_the_lost_life(mode: AutoresetMode) -> None:
    """Only the next step shows if the episode ended; its row belongs to the next rollout."""
    (whole,), _ = rolled(atari(2, mode, **LIFE_LOSS), 330)
    parts, _ = rolled(atari(2, mode, **LIFE_LOSS), *[1] * 330)
    for name, part in joined(parts).items():
        assert_same(name, part, getattr(whole, name))
    for part in parts:
        ends = set(part.bootstrap.env.tolist())
        assert ends == set(np.flatnonzero(part.mask[0] & ~part.terminated[0]).tolist())
    for before, after in pairwise(parts):
        for place, env in enumerate(before.bootstrap.env.tolist()):
            if not before.truncated[0, env]:
                newest = row_of(before.bootstrap.observation, place)
                assert same(newest, np.asarray(after.observation)[0, env])
    assert sum((part.episode_lengths for part in parts), ()) == whole.episode_lengths
    games = play(2, 430, **LIFE_LOSS)
    for env in range(2):
        assert_column(whole, env, column(games[env], mode)[:330])


@pytest.mark.proof
@BOTH_MODES
def test_5_a_lost_life_continues_the_state_and_is_no_end_for_callbacks(mode: AutoresetMode) -> None:
    """A policy that counts continues to count, and callbacks get real ends only."""
    reset_rows: list[int] = []
    ended: list[int] = []

    class Counting(Policy):
        def initial_state(self, num_envs: int) -> Any:
            return np.full(num_envs, 10)

        def __call__(self, observation: Any, is_first: Any, state: Any) -> Any:  # type: ignore[override]
            return choose(observation), state + 1

        def value(self, observation: Any, state: Any) -> Any:  # type: ignore[override]
            return state.astype(np.float32)

    def on_step(report: Any) -> None:
        reset_rows.append(int(report.is_first.sum()))
        ended.append(int((report.terminated | report.truncated).sum()))

    envs = atari(2, mode, **LIFE_LOSS)
    with sw.Collector(envs, Counting(), seed=7, on_step=on_step) as collector:
        rollouts = [collector.rollout(steps) for steps in (1, 99, 1, 100, 200)]
    whole = joined(rollouts)
    for env in range(2):
        count, expected = 9, []
        for is_first in whole["is_first"][:, env]:
            count = 10 if is_first else count + 1
            expected.append(count)
        assert whole["state"][:, env].tolist() == expected
    for rollout in rollouts:
        assert same(rollout.bootstrap.value, rollout.bootstrap.state)
        ends = rollout.bootstrap
        before: Any = rollout.state
        assert same(ends.state, before[ends.step, ends.env] + 1)
    episodes = sum(len(rollout.episode_lengths) for rollout in rollouts)
    assert sum(ended) >= episodes >= 2
    # The last step may have reported two more ends, whose resets have not come yet.
    assert sum(ended) - episodes <= 2
    assert 0 <= sum(ended) - (sum(reset_rows) - 2) <= 2


@pytest.mark.proof
def test_lost_lives_in_groups_are_refused() -> None:
    envs = [atari(1, **LIFE_LOSS), atari(1, **LIFE_LOSS)]
    with pytest.raises(ValueError, match=r"^life_loss_info=True: .*one vector env.*got several"):
        rolled(envs, 400)


@pytest.mark.proof
def test_22_partial_batches_in_groups_are_refused() -> None:
    groups = [atari(3, batch_size=2), atari(2)]
    with pytest.raises(ValueError, match=r"^envs: .*batch_size.*num_envs"):
        sw.Collector(groups, Policy(), seed=7)
    for group in groups:
        group.close()


@pytest.mark.proof
def test_22_seeds_of_episodes_need_envs_that_all_answer() -> None:
    with sw.Collector(atari(3, batch_size=2), Policy(), seed=7) as collector:
        with pytest.raises(ValueError, match=r"^seeds: .*batch_size.*num_envs"):
            collector.collect(seeds=[1, 2])
        assert collector.rollout(3).num_steps == 3


@pytest.mark.proof
@BOTH_MODES
def test_22_a_partial_batch_is_stored_without_a_gap(mode: AutoresetMode) -> None:
    replay = sw.SequenceReplayBuffer()
    games = play(3, 1500)  # ale-py serves some envs far more often than others
    envs = atari(3, mode, batch_size=2, num_threads=2)
    with sw.Collector(envs, Policy(), replay, seed=7) as collector:
        rollouts = [collector.rollout(70)]
        collector.collect(steps=60)
        rollouts.append(collector.rollout(30))
    assert replay.steps >= sum(rollout.steps for rollout in rollouts) + 60
    for env in range(3):
        assert_column(rollouts[0], env, column(games[env], mode)[:70])
        # After the collect each column continues somewhere, and then has no gap.
        rows = column(games[env], mode)
        observation = np.asarray(rollouts[1].observation)[:, env]
        first = next(
            place
            for place in range(70, len(rows) - 30)
            if all(
                np.array_equal(observation[k], rows[place + k].game.stacks[rows[place + k].t])
                for k in range(30)
            )
        )
        assert first >= 70
    stored = [[e for e in replay.iter_episodes() if e.stream == env] for env in range(3)]
    for own, own_games in zip(stored, games, strict=True):
        for episode, game in zip(own[:-1], own_games, strict=False):
            newest = np.stack([stack[-1] for stack in game.stacks])
            assert np.array_equal(np.asarray(episode.observation), newest)
