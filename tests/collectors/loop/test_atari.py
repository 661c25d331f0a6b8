"""Real ale-py vector envs against a plain loop over the same envs: traps 4, 5, 8, 21, 22."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import stepwell as sw
from stepwell.buffers import Episode
from stepwell.collectors.loop.collector import Seeds
from support.envs.atari_games import LIFE_LOSS, Game, atari, choose, play, worth
from support.models.model import row_of, same
from support.models.rollout_model import assert_same, ends_of, joined

NEXT_STEP, SAME_STEP = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP
BOTH_MODES = pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP])


def policy(observation: np.ndarray, is_first: np.ndarray) -> Any:
    """Chooses by the frames."""
    return choose(observation), {"value": worth(observation)}


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


def assert_columns(rollouts: list[sw.Rollout], games: list[list[Game]], mode: Any) -> None:
    """The rollouts, one after the other, are these games."""
    for env, own in enumerate(games):
        rows, first = column(own, mode), 0
        for rollout in rollouts:
            assert_column(rollout, env, rows[first : first + rollout.num_steps])
            first += rollout.num_steps


def assert_stored(replay: sw.SequenceReplayBuffer, games: list[list[Game]], least: int) -> None:
    """Every stored episode is one of the loop's games, of which the last ones are not over."""
    compared = 0
    for env, own_games in enumerate(games):
        own = [one for one in replay.iter_episodes() if one.stream == env]
        assert 0 < len(own) < len(own_games)
        for episode, game in zip(own, own_games, strict=False):
            is_over = episode is not own[-1] or episode.end.is_final
            compared += is_over
            assert_game(episode, game, is_over)
    assert compared >= least


def assert_game(episode: Episode, game: Game, is_over: bool) -> None:
    newest = np.stack([stack[-1] for stack in game.stacks])[: None if is_over else episode.rows]
    assert np.array_equal(np.asarray(episode.observation), newest)
    assert episode.reward.dtype == np.float64
    assert episode.reward.tolist() == [0.0, *game.rewards][: len(newest)]
    assert episode.action.tolist() == [*game.actions[: len(newest) - 1], 0]
    if is_over:
        ended = bool(episode.terminated[-1]), bool(episode.truncated[-1])
        assert ended == (game.terminated, game.truncated)


def rolled(envs: Any, *steps: int, **options: Any) -> list[sw.Rollout]:
    with sw.Collector(envs, policy, seed=7, **options) as collector:
        return [collector.rollout(each) for each in steps]


@BOTH_MODES
def test_4_rows_equal_those_of_a_plain_loop(mode: AutoresetMode) -> None:
    """SAME_STEP of ale-py gives dense last observations without a mask."""
    games, replay = play(2, 260), sw.SequenceReplayBuffer(seed=0)
    with sw.Collector(atari(2, mode), policy, replay, seed=7) as collector:
        rollouts = [collector.rollout(each) for each in (7, 1, 60, 100)]
        report = collector.collect(steps=60)
    assert_columns(rollouts, games, mode)
    assert_stored(replay, games, least=4)
    assert report.digest == replay.digest()
    assert sum(int(rollout.truncated.sum()) for rollout in rollouts) >= 4
    lengths = [length for rollout in rollouts for length in rollout.episode_lengths]
    assert set(lengths) == {60}
    # 8: ale-py pads with zeros; no stack reaches over an episode's start.
    field = replay.spec["observation"]
    assert (field.stack, field.stack_padding, field.shape) == (4, "zero", (12, 10))
    known = {stack.tobytes() for own in games for game in own for stack in game.stacks}
    batch = replay.sample_sequences(200, 2, stack=True)
    assert batch.is_first.any()
    drawn = np.asarray(batch.observation).reshape(-1, 4, 12, 10)
    assert {stack.tobytes() for stack in drawn} <= known


@pytest.mark.proof
@BOTH_MODES
def test_5_a_lost_life_that_does_not_reset_is_no_border(mode: AutoresetMode) -> None:
    """`life_loss_info=True` sets terminated, and the game continues: no real step is lost."""
    envs = atari(2, mode, **LIFE_LOSS)
    rollouts = rolled(envs, 150, 200, info={"lives": -1, "episode_frame_number": -1})
    assert_columns(rollouts, play(2, 430, **LIFE_LOSS), mode)
    whole = joined(rollouts)
    lost = 0
    for env in range(2):
        known = whole["mask"][:, env] & (whole["info"]["lives"][:, env] >= 0)
        lost += int((np.diff(whole["info"]["lives"][known, env]) < 0).sum())
    assert lost >= 2


@pytest.mark.proof
@BOTH_MODES
def test_5_also_when_a_rollout_ends_with_the_row_of_the_lost_life(mode: AutoresetMode) -> None:
    """Only the next step shows if the episode ended; its row belongs to the next rollout."""
    (whole,) = rolled(atari(2, mode, **LIFE_LOSS), 330)
    parts = rolled(atari(2, mode, **LIFE_LOSS), *[1] * 330)
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
    assert_columns([whole], play(2, 430, **LIFE_LOSS), mode)


@pytest.mark.proof
@BOTH_MODES
def test_5_a_lost_life_continues_the_state_and_is_no_end_for_callbacks(mode: AutoresetMode) -> None:
    """A policy that counts continues to count, and callbacks get real ends only."""
    reset_rows: list[int] = []
    ended: list[int] = []

    class Counting:
        def initial_state(self, num_envs: int) -> Any:
            return np.full(num_envs, 10)

        def __call__(self, observation: Any, is_first: Any, state: Any) -> Any:
            return choose(observation), state + 1

        def value(self, observation: Any, state: Any) -> Any:
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


Envs = Callable[[], Any]
Call = Callable[[sw.Collector], Any]
REFUSED: dict[str, tuple[Envs, Call, str]] = {
    "lost lives in groups": (
        lambda: [atari(1, **LIFE_LOSS), atari(1, **LIFE_LOSS)],
        lambda one: one.rollout(400),
        r"^life_loss_info=True: .*one vector env.*got several",
    ),
    "lost lives in a partial batch": (
        lambda: atari(3, batch_size=2, **LIFE_LOSS),
        lambda one: one.collect(steps=3000),
        r"life_loss_info=True: .*batch_size.*got 2 and 3",
    ),
    "22: partial batches in groups": (
        lambda: [atari(3, batch_size=2), atari(2)],
        lambda one: None,
        r"^envs: .*batch_size.*num_envs",
    ),
    "22: a second reset of a partial batch": (
        lambda: atari(3, batch_size=2),
        lambda one: (one.collect(steps=10), one.collect(episodes=1)),
        r"batch_size=2 of 3: .*reset",
    ),
    "22: seeds of a partial batch": (
        lambda: atari(3, batch_size=2),
        lambda one: one.collect(seeds=[1, 2]),
        r"^seeds: .*batch_size.*num_envs",
    ),
}


@pytest.mark.proof
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_known_is_refused(name: str) -> None:
    make, call, message = REFUSED[name]
    envs = make()
    with pytest.raises(ValueError, match=message), sw.Collector(envs, policy, seed=7) as collector:
        call(collector)
    for one in envs if isinstance(envs, list) else [envs]:
        one.close()


@pytest.mark.proof
@BOTH_MODES
def test_22_a_partial_batch_is_stored_without_a_gap(mode: AutoresetMode) -> None:
    replay = sw.SequenceReplayBuffer()
    games = play(3, 1500)  # ale-py serves some envs far more often than others
    envs = atari(3, mode, batch_size=2, num_threads=2)
    with sw.Collector(envs, policy, replay, seed=7) as collector:
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
    for env, own_games in enumerate(games):
        own = [one for one in replay.iter_episodes() if one.stream == env]
        for episode, game in zip(own[:-1], own_games, strict=False):
            assert_game(episode, game, True)


@pytest.mark.proof
def test_episodic_life_ends_episodes_at_lost_lives() -> None:
    envs = atari(2, episodic_life=True, noop_max=0, max_num_frames_per_episode=900)
    replay = sw.SequenceReplayBuffer()
    with sw.Collector(envs, policy, replay, seed=7, info={"lives": -1}) as collector:
        collector.collect(steps=500)
    ended = [e for e in replay.iter_episodes() if e.terminated[-1]]
    assert len(ended) >= 2
    assert any(e.fields["info/lives"][-1] > 0 for e in ended)


@pytest.mark.proof
def test_the_mode_of_an_env_is_its_own() -> None:
    """ale-py notes the mode in a dict that all vector envs share: the last env made would win."""
    first, second = atari(1, NEXT_STEP), atari(1, SAME_STEP)
    second.close()
    assert_columns(rolled(first, 100), play(1, 200), NEXT_STEP)


# Recorded loops


def collected(envs: Any, steps: int, **options: Any) -> tuple[sw.SequenceReplayBuffer, int]:
    """The rows that a Collector stores, and its vector steps."""
    replay, calls = sw.SequenceReplayBuffer(), list[int]()

    def policy(observation: Any, is_first: Any) -> Any:
        calls.append(1)
        return choose(observation)

    with sw.Collector(envs, policy, replay, seed=7, reseed_steps=None, **options) as collector:
        collector.collect(steps=steps)
    return replay, len(calls)


def looped(envs: Any, vector_steps: int, **options: Any) -> sw.SequenceReplayBuffer:
    """The rows of a recorded loop, which writes into all that it gets."""
    replay = sw.SequenceReplayBuffer()
    env = sw.record(envs, replay, **options)
    observation, _ = env.reset(seed=Seeds(7, 0).next_envs_seed(env.num_envs))
    for _ in range(vector_steps):
        action = choose(observation)
        observation[...] = 1
        observation, reward, _, _, info = env.step(action)
        reward[...] = -1
        if "final_obs" in info:
            info["final_obs"][...] = 0
    env.close()
    return replay


@pytest.mark.proof
@pytest.mark.parametrize("lives", [False, True])
@BOTH_MODES
def test_a_loop_over_ale_py_stores_what_a_collector_does(mode: AutoresetMode, lives: bool) -> None:
    knobs = LIFE_LOSS if lives else {}
    rows: dict[str, Any] = {"info": {"lives": -1, "episode_frame_number": -1}}
    if lives:  # whole stacks, which are not copied to be compared later
        rows["frame_stack"] = 1
    stored, vector_steps = collected(atari(2, mode, **knobs), 640 if lives else 360, **rows)
    replay = looped(atari(2, mode, **knobs), vector_steps, **rows)
    assert replay.digest() == stored.digest()
    assert replay.steps == stored.steps
    found, wanted = list(replay.iter_episodes()), list(stored.iter_episodes())
    assert [one.metadata for one in found] == [one.metadata for one in wanted]
    assert sum(one.end.is_final for one in found) >= 2
    if lives:
        lost = [np.diff(one.fields["info/lives"]) for one in found]
        assert any((each < 0).any() for each in lost)


@pytest.mark.proof
def test_unresolved_rows_are_stored_when_the_env_is_closed() -> None:
    """A lost life in the newest step: nothing shows whether the episode ended."""
    replay = sw.SequenceReplayBuffer()
    env = sw.record(atari(**LIFE_LOSS), replay, info={"lives": -1})
    observation, info = env.reset(seed=3)
    steps, lives = 0, info["lives"].copy()
    while True:
        observation, _, terminated, _, info = env.step(choose(observation))
        steps += 1
        if (terminated & (info["lives"] > 0)).any() and (info["lives"] < lives).any():
            break
        lives = info["lives"].copy()
    env.flush()
    assert replay.steps == 2 * (steps - 1)
    env.close()
    assert replay.steps == 2 * steps
    assert not any(one.terminated.any() for one in replay.iter_episodes())


@pytest.mark.proof
@BOTH_MODES
@pytest.mark.parametrize("halves", [False, True])
def test_rows_of_a_partial_batch_go_to_their_own_env(mode: AutoresetMode, halves: bool) -> None:
    replay = sw.SequenceReplayBuffer()
    env: Any = sw.record(atari(3, mode, batch_size=2, num_threads=2), replay, frame_stack=1)
    observation, info = env.reset(seed=5)
    seen: dict[int, list[bytes]] = {}
    ended = {number: number not in info["env_id"] for number in range(3)}
    steps = 0
    for _ in range(200):
        env_ids = info["env_id"].copy()
        for place, number in enumerate(env_ids.tolist()):
            seen.setdefault(number, []).append(observation[place].tobytes())
        if halves:
            env.send(choose(observation))
            observation, _, terminated, truncated, info = env.recv()
        else:
            observation, _, terminated, truncated, info = env.step(choose(observation))
        for place, number in enumerate(info["env_id"].tolist()):
            is_first = ended[number] if mode is AutoresetMode.NEXT_STEP else number not in seen
            steps += not is_first
            ended[number] = bool(terminated[place] or truncated[place])
    env.close()
    assert replay.steps == steps
    for episode in replay.iter_episodes():
        shown = [one.tobytes() for one in np.asarray(episode.observation)]
        known = set(seen[episode.stream])
        inner = shown[:-1]  # the last row of SAME_STEP is in an info
        assert all(one in known for one in inner)
        assert episode.metadata.get("seed") in (None, 5 + episode.stream)


@pytest.mark.proof
def test_a_seed_of_some_games_is_that_of_their_place_among_them() -> None:
    replay = sw.SequenceReplayBuffer()
    env = sw.record(atari(num_envs=3), replay)
    observation, _ = env.reset(seed=5)
    env.step(choose(observation))
    observation, _ = env.reset(seed=20, options={"reset_mask": np.array([False, True, True])})
    env.step(choose(observation))
    seeds = np.array([31], np.int64)
    observation, _ = env.reset(seed=seeds, options={"reset_mask": np.array([False, True, False])})
    env.step(choose(observation))
    env.close()
    found = [(one.stream, one.metadata["seed"]) for one in replay.iter_episodes()]
    assert sorted(found) == [(0, 5), (1, 6), (1, 20), (1, 31), (2, 7), (2, 21)]
