"""Real ale-py vector envs against a plain loop over the same envs: traps 4, 5, 8, 21, 22."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics

import stepwell as sw
from stepwell.buffers import Episode, SpecMismatch
from support.envs.atari_games import LIFE_LOSS, Game, atari, choose, play

NEXT_STEP, SAME_STEP = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP


def actions(observation: np.ndarray, is_first: np.ndarray) -> np.ndarray:
    return choose(observation)


def collect(
    envs: VectorEnv[Any, Any, Any], steps: int, **options: Any
) -> tuple[sw.SequenceReplayBuffer, Any]:
    replay = sw.SequenceReplayBuffer(seed=0)
    with sw.Collector(envs, actions, replay, seed=7, **options) as collector:
        report = collector.collect(steps=steps)
    return replay, report


def by_stream(replay: sw.SequenceReplayBuffer, num_envs: int) -> list[list[Episode]]:
    episodes = list(replay.iter_episodes())
    return [[one for one in episodes if one.stream == env] for env in range(num_envs)]


def assert_game(episode: Episode, game: Game, is_over: bool) -> None:
    newest = np.stack([stack[-1] for stack in game.stacks])
    rows = min(len(newest), episode.rows)
    if is_over:
        assert episode.rows == len(newest)
        assert (episode.end.is_final, bool(episode.terminated[-1])) == (True, game.terminated)
        assert bool(episode.truncated[-1]) == game.truncated
    assert np.array_equal(np.asarray(episode.observation)[:rows], newest[:rows])
    assert episode.reward[:rows].tolist() == [0.0, *game.rewards][:rows]
    steps = min(rows - 1, len(game.actions))
    assert np.asarray(episode.action)[:steps].tolist() == game.actions[:steps]
    if is_over:
        assert np.asarray(episode.action)[-1] == 0


def assert_games(
    replay: sw.SequenceReplayBuffer,
    games: list[list[Game]],
    least_over: int,
    least_envs: int | None = None,
) -> None:
    """Every stored episode is one of the loop's games, whole where that one is over."""
    # The loop stops where it likes: of its last games only the beginning is known.
    compared = 0
    for own_episodes, own_games in zip(by_stream(replay, len(games)), games, strict=True):
        for place, episode in enumerate(own_episodes):
            is_over = place + 1 < len(own_episodes) or episode.end.is_final
            compared += is_over
            if place < len(own_games) - 1 or not is_over:
                assert_game(episode, own_games[place], is_over)
    assert compared >= least_over
    streams = {episode.stream for episode in replay.iter_episodes()}
    assert len(streams) >= (least_envs or len(games))


@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP])
def test_games_equal_those_of_a_plain_loop(mode: AutoresetMode) -> None:
    """Trap 4: SAME_STEP of ale-py gives dense last observations without a mask."""
    games = play(2, 200)
    replay, report = collect(atari(2, mode), 360)
    assert_games(replay, games, least_over=4)
    assert report.episodes >= 4
    assert report.steps == replay.steps
    assert report.digest == replay.digest()


@pytest.mark.proof
def test_episodic_life_ends_episodes_at_lost_lives() -> None:
    replay, _ = collect(
        atari(2, episodic_life=True, noop_max=0, max_num_frames_per_episode=900),
        500,
        info={"lives": -1},
    )
    ended = [e for e in replay.iter_episodes() if e.terminated[-1]]
    assert len(ended) >= 2
    assert any(e.fields["info/lives"][-1] > 0 for e in ended)


@pytest.mark.proof
def test_a_second_reset_of_a_partial_batch_is_refused() -> None:
    replay = sw.SequenceReplayBuffer()
    with sw.Collector(atari(3, batch_size=2), sw.RandomPolicy(), replay, seed=0) as collector:
        collector.collect(steps=10)
        with pytest.raises(ValueError, match=r"batch_size=2 of 3: .*reset"):
            collector.collect(episodes=1)
    assert replay.steps >= 10


@pytest.mark.proof
def test_lost_lives_in_a_partial_batch_are_refused() -> None:
    envs = atari(3, batch_size=2, **LIFE_LOSS)
    with (
        sw.Collector(envs, sw.RandomPolicy(), sw.SequenceReplayBuffer(), seed=0) as collector,
        pytest.raises(ValueError, match=r"life_loss_info=True: .*batch_size.*got 2 and 3"),
    ):
        collector.collect(steps=3000)


@pytest.mark.proof
@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP])
def test_stacks_rebuilt_from_single_frames_equal_those_of_the_env(mode: AutoresetMode) -> None:
    """Trap 8: ale-py pads with zeros; no stack reaches over an episode's start."""
    games = play(2, 200)
    replay, _ = collect(atari(2, mode), 300)
    field = replay.spec["observation"]
    assert (field.stack, field.stack_padding, field.shape) == (4, "zero", (12, 10))
    firsts = 0
    for length in (1, 2, 5):
        batch = replay.sample_sequences(200, length, stack=True)
        starts = {int(i): n for n, i in enumerate(batch.ids)}
        firsts += int(batch.is_first.sum())
        assert np.asarray(batch.observation).shape == (200, length, 4, 12, 10)
        assert starts
        known = {stack.tobytes() for own in games for game in own for stack in game.stacks}
        for stack in np.asarray(batch.observation).reshape(-1, 4, 12, 10):
            assert stack.tobytes() in known
    assert firsts


@pytest.mark.proof
def test_the_mode_of_an_env_is_its_own() -> None:
    """ale-py notes the mode in a dict that all vector envs share: the last env made would win."""
    first, second = atari(1, NEXT_STEP), atari(1, SAME_STEP)
    second.close()
    replay, _ = collect(first, 150)
    assert_games(replay, play(1, 150), least_over=1)


@pytest.mark.proof
def test_a_wrapped_env_is_known_as_ale_all_the_same() -> None:
    games = play(2, 200)
    replay, report = collect(RecordEpisodeStatistics(atari(2)), 300)
    assert replay.spec["observation"].stack == 4
    assert_games(replay, games, least_over=2)
    assert report.digest == replay.digest()


@pytest.mark.proof
def test_rewards_are_stored_as_exact_numbers() -> None:
    """Trap 29: ale-py gives int32."""
    replay, report = collect(
        atari(2, game="riverraid", reward_clipping=False, max_num_frames_per_episode=9000), 400
    )
    assert {e.reward.dtype for e in replay.iter_episodes()} == {np.dtype(np.float64)}
    total = sum(e.total_reward for e in replay.iter_episodes())
    assert total >= sum(report.returns)
    assert total > 0
    assert total % 30 == 0


def test_a_wrong_stack_padding_is_refused() -> None:
    envs = atari(1)
    envs.metadata = {**envs.metadata, "stepwell": {"frame_stack": 4, "stack_padding": "repeat"}}
    with (
        sw.Collector(envs, actions, sw.SequenceReplayBuffer(), seed=0) as collector,
        pytest.raises(SpecMismatch, match=r"padded by repeat at a reset, got other frames"),
    ):
        collector.collect(steps=10)
