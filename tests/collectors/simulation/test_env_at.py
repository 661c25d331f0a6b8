# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportPrivateUsage=false
"""`env_at`: a live env in the state of a stored row, beside one that has gone all the way."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import stepwell as sw
from demo_rom import write_demo
from stepwell.buffers import Chunk, Episode, SequenceReplayBuffer
from stepwell.buffers.curation.copy import copy_episodes
from support.envs.nes_backends import needs_a_backend
from support.replayed import changed_chunk, recorded, rewritten, whole_episodes

pytest.importorskip("cv2", reason="needs OpenCV")


def pong(num_workers: int, **settings: Any) -> SequenceReplayBuffer:
    envs = sw.make_atari(
        "Pong", 2, backend="python", num_workers=num_workers, max_frames=240, **settings
    )
    return recorded(envs, 200, info={"lives": -1})


@pytest.fixture(scope="module")
def poles() -> SequenceReplayBuffer:
    return recorded(sw.make_vec("CartPole-v1", 1, num_workers=0), 60)


@pytest.fixture(scope="module")
def saved_pong() -> SequenceReplayBuffer:
    return pong(0, snapshots=True)


@pytest.fixture(scope="module")
def breakout() -> SequenceReplayBuffer:
    """Episodes begin in the middle of a game, after a lost life."""
    envs = sw.make_atari(
        "Breakout",
        2,
        backend="python",
        num_workers=1,
        life_loss="end",
        fire_reset=True,
        noop_max=4,
        sticky=0.6,
        snapshots=True,
    )
    return recorded(envs, 400)


def demo(folder: Path, **settings: Any) -> SequenceReplayBuffer:
    rom, game = write_demo(folder)
    envs = sw.make_nes(
        rom,
        2,
        game=game,
        num_workers=0,
        noop_max=9,
        sticky=0.2,
        max_frames=90,
        life_loss="end",
        actions=["NOOP", "RIGHT", "RIGHT+A", "SELECT"],
        **settings,
    )
    return recorded(envs, 150)


def newest(observation: Any) -> Any:
    return observation[-1] if np.ndim(observation) > 2 else observation


def check_rest(live: Any, episode: Episode, row: int, most: int = 1 << 30) -> None:
    """The live env shows the stored rows from a row on."""
    env, observation, info = live
    try:
        np.testing.assert_array_equal(newest(observation), episode.observation[row])
        assert isinstance(info, dict)
        for at in range(row, min(episode.steps, row + most)):
            observation, reward, terminated, truncated, info = env.step(episode.action[at])
            np.testing.assert_array_equal(newest(observation), episode.observation[at + 1])
            assert float(reward) == episode.reward[at + 1]
            assert bool(terminated) == bool(episode.terminated[at + 1])
            assert bool(truncated) == bool(episode.truncated[at + 1])
            if "info/lives" in episode.fields:
                assert info["lives"] == episode.fields["info/lives"][at + 1]
    finally:
        env.close()


def last_row(episode: Episode) -> int:
    return episode.steps - episode.end.is_final


def check_some(replay: SequenceReplayBuffer, rows: int = 2, **settings: Any) -> None:
    """Random rows, the first and the last one of some episodes."""
    rng = np.random.default_rng(0)
    episodes = list(replay.iter_episodes())
    assert len(episodes) > 1
    for episode in episodes[:2] + episodes[-1:]:
        most = last_row(episode)
        for row in {0, most, *rng.integers(0, most + 1, rows - 1).tolist()}:
            live = sw.env_at(replay, episode.id, row, **settings)
            check_rest(live, episode, row, 40)


@pytest.mark.proof
@pytest.mark.parametrize(
    "make",
    [
        lambda: recorded(sw.make_vec("CartPole-v1", 3, num_workers=0), 40),
        lambda: recorded(sw.make_vec("FrozenLake-v1", 2, num_workers=0), 30),
        lambda: recorded(sw.make_vec("Taxi-v4", 1, num_workers=0), 10),
        # Seeded for its first episode only.
        lambda: recorded(gym.make_vec("CartPole-v1", 1, vectorization_mode="sync"), 40),
        lambda: recorded(sw.make_vec("FrozenLake-v1", 1, num_workers=0), 30, reseed_steps=None),
    ],
    ids=["cartpole", "frozenlake", "taxi", "chain", "never reseeded"],
)
def test_every_row_of_short_episodes(make: Callable[[], SequenceReplayBuffer]) -> None:
    replay = make()
    for episode in replay.iter_episodes():
        for row in range(last_row(episode) + 1):
            check_rest(sw.env_at(replay, episode.id, row), episode, row)


@pytest.mark.proof
def test_rows_of_atari_games(saved_pong: SequenceReplayBuffer) -> None:
    check_some(saved_pong)
    check_some(saved_pong, use_snapshots=True)
    check_some(pong(1, snapshots=True), use_snapshots=True)  # of a worker process
    envs = sw.make_atari("Seaquest", 2, backend="native", max_frames=160)
    check_some(recorded(envs, 150))


@pytest.mark.proof
def test_a_snapshot_begins_after_a_lost_life(breakout: SequenceReplayBuffer) -> None:
    replay = breakout
    episodes = list(replay.iter_episodes())
    middle = [one for one in episodes if "seed" not in one.metadata]
    assert len(middle) > 3
    for episode in [*middle[:3], episodes[-1]]:
        row = last_row(episode) // 2
        for use_snapshots in (False, True):
            live = sw.env_at(replay, episode.id, row, use_snapshots=use_snapshots)
            check_rest(live, episode, row)


@needs_a_backend
def test_rows_of_a_cartridge(tmp_path: Path) -> None:
    replay = demo(tmp_path / "demo", snapshots=True)
    rom = tmp_path / "demo" / "game.nes"
    check_some(replay, 1, rom=rom)
    check_some(replay, 1, rom=rom, use_snapshots=True)


@pytest.mark.proof
def test_a_stack_of_frames_is_whole() -> None:
    """The observation is what the policy saw, not only the newest frame."""
    seen: list[np.ndarray] = []

    def policy(observation: np.ndarray, is_first: np.ndarray) -> np.ndarray:
        seen.append(observation[0].copy())
        return np.array([2 + len(seen) % 2])

    envs = sw.make_atari("Pong", 1, backend="python", num_workers=0, snapshots=True)
    replay = recorded(envs, 9, policy=policy)
    (episode,) = replay.iter_episodes()
    for row in (0, 1, 2, 5, 8):
        for use_snapshots in (False, True):
            env, observation, _ = sw.env_at(replay, episode.id, row, use_snapshots=use_snapshots)
            np.testing.assert_array_equal(observation, seen[row])
            env.close()


@pytest.mark.parametrize(
    ("episode", "row", "match"),
    [
        (99, 0, "episode: .*99"),
        (1 << 50, 0, "episode: "),
        (-1, 0, "episode: .*-1"),
        (0, -1, "row: .*-1"),
        (0, 1.5, r"row: .*1\.5"),
        (0, 500, "row: .*500"),
    ],
)
def test_what_is_not_there_is_refused(
    poles: SequenceReplayBuffer, episode: Any, row: Any, match: str
) -> None:
    with pytest.raises(ValueError, match=match):
        sw.env_at(poles, episode, row)
    with pytest.raises(ValueError, match="snapshots=True"):
        sw.env_at(poles, 0, use_snapshots=True)


def test_the_row_of_an_end_is_refused(poles: SequenceReplayBuffer) -> None:
    episode = next(poles.iter_episodes())
    assert episode.end.is_final
    with pytest.raises(ValueError, match=f"row: .*0 to {episode.steps - 1}, got {episode.steps}"):
        sw.env_at(poles, episode.id, episode.steps)


@pytest.mark.parametrize("field", ["observation", "reward"])
def test_an_env_that_shows_other_rows_is_refused(poles: SequenceReplayBuffer, field: str) -> None:
    def lie(chunk: Chunk) -> Chunk:
        rows = chunk.fields[field].copy()
        rows[4:5] += 1
        return changed_chunk(chunk, fields={**chunk.fields, field: rows})

    replay = rewritten(poles, lie)
    sw.env_at(replay, 0, 3)
    with pytest.raises(ValueError, match=f"{field} of row 4"):
        sw.env_at(replay, 0, 5)


def test_an_episode_that_ends_before_its_stored_end_is_refused(poles: SequenceReplayBuffer) -> None:
    def longer(chunk: Chunk) -> Chunk:
        fields = {name: np.concatenate([rows, rows]) for name, rows in chunk.fields.items()}
        return changed_chunk(chunk, fields=fields)

    end = next(poles.iter_episodes()).steps
    replay = rewritten(poles, longer)
    for row in (end, end + 1):
        with pytest.raises(ValueError, match=f"ends? .*row {end}|ended .*row {end}"):
            sw.env_at(replay, 0, row)


def without(replay: SequenceReplayBuffer, count: int) -> SequenceReplayBuffer:
    """The replay without the first episodes of each env."""
    return rewritten(
        replay, lambda chunk: chunk if int(str(chunk.metadata["stream_episode"])) >= count else None
    )


@pytest.mark.proof
def test_a_snapshot_reaches_an_episode_that_no_seed_leads_to(
    breakout: SequenceReplayBuffer,
) -> None:
    replay = without(breakout, 1)
    episode = next(one for one in replay.iter_episodes() if "seed" not in one.metadata)
    with pytest.raises(ValueError, match="use_snapshots=True"):
        sw.env_at(replay, episode.id)
    check_rest(sw.env_at(replay, episode.id, 2, use_snapshots=True), episode, 2)


@pytest.mark.proof
def test_episodes_of_stores_that_are_read_as_one(
    breakout: SequenceReplayBuffer, tmp_path: Path
) -> None:
    for name, first in (("whole", 0), ("rest", 1)):
        with SequenceReplayBuffer(path=tmp_path / name) as store:
            copy_episodes([without(breakout, first)], store)
    both = [tmp_path / "whole", tmp_path / "rest"]
    with SequenceReplayBuffer.open(both, read_only=True) as joined:
        episodes = [one for one in joined.iter_episodes() if "seed" not in one.metadata]
        for episode in (episodes[0], episodes[-1]):
            live = sw.env_at(joined, episode.id, 2, use_snapshots=True)
            check_rest(live, episode, 2)


@pytest.mark.proof
def test_snapshots_survive_in_rings() -> None:
    ring = SequenceReplayBuffer(capacity=150)
    envs = sw.make_atari("Pong", 1, backend="python", max_frames=160, snapshots=True)
    with sw.Collector(envs, sw.RandomPolicy(), ring, seed=0) as collector:
        collector.collect(steps=300)
    whole = [one for one in ring.iter_episodes() if one.first_row == 0]
    check_rest(sw.env_at(ring, whole[-1].id, 5, use_snapshots=True), whole[-1], 5)
    for late in (one for one in ring.iter_episodes() if one.first_row):
        with pytest.raises(ValueError, match=rf"episode {late.id}\b"):
            sw.env_at(ring, late.id, late.first_row + 1, use_snapshots=True)


@pytest.mark.proof
@pytest.mark.parametrize(
    "text",
    ["", "?", "AAAA", "c3dzAQ==", base64.b64encode(b"sws\x01" + bytes(300)).decode(), "x" * 999],
)
def test_a_hostile_snapshot_is_refused_in_one_sentence(
    text: str, saved_pong: SequenceReplayBuffer
) -> None:
    def forged(chunk: Chunk) -> Chunk:
        return changed_chunk(chunk, metadata={**chunk.metadata, "snapshot": text})

    replay = rewritten(saved_pong, forged)
    with pytest.raises(ValueError, match="snapshot") as error:
        sw.env_at(replay, 0, use_snapshots=True)
    assert "\n" not in str(error.value)
    env, _, _ = sw.env_at(replay, 0, 2)  # its seed is not concerned
    env.close()


@pytest.mark.proof
def test_a_snapshot_of_another_episode_is_found_out(breakout: SequenceReplayBuffer) -> None:
    texts = [chunk.metadata["snapshot"] for _, chunk in whole_episodes(breakout)][::-1]

    def swapped(chunk: Chunk) -> Chunk:
        return changed_chunk(chunk, metadata={**chunk.metadata, "snapshot": texts[0]})

    replay = rewritten(breakout, swapped)
    with pytest.raises(ValueError, match="observation of row"):
        sw.env_at(replay, 0, 8, use_snapshots=True)


def test_metadata_with_a_key_of_the_collector_is_refused() -> None:
    envs = sw.make_vec("CartPole-v1", 1, num_workers=0)
    with pytest.raises(ValueError, match="snapshot"):
        sw.Collector(envs, sw.RandomPolicy(), metadata={"snapshot": "mine"})
    envs.close()
