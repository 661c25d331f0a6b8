"""Recorded loops over ale-py's vector envs, in every mode that they have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import stepwell as sw
from stepwell.collectors.loop.collector import Seeds
from support.envs.atari_games import LIFE_LOSS, atari, choose

MODES = pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])


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
@MODES
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
@MODES
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


def test_a_loop_over_make_atari_is_proved() -> None:
    replay = sw.SequenceReplayBuffer()
    env = sw.record(sw.make_atari("pong", 2), replay)
    observation, _ = env.reset(seed=11)
    for _ in range(60):
        observation = env.step(choose(observation) % 3)[0]
    env.reset(seed=12)
    for _ in range(40):
        observation = env.step(choose(observation) % 3)[0]
    env.close()
    assert replay.spec["observation"].stack == 4
    proofs = list(sw.resimulate(replay))
    assert [proof.reason for proof in proofs] == ["equal"] * 4
    assert {one.metadata["seed"] for one in replay.iter_episodes()} == {11, 12, 13}


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
