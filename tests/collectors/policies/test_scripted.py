"""Scripts of actions: the parser, the names of actions, and what is played in each episode."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, cast

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

import stepwell as sw
from support.envs.fakes import CounterEnv

LETTERS = ["NOOP", "b", "c", "d"]  # names of CounterEnv's actions
Then = Literal["noop", "repeat", "loop"]


def expected_action(script: Sequence[tuple[int, int]], then: Then, step: int) -> int:
    """The action at a step, by the slowest of ways."""
    played = [action for action, count in script for _ in range(count)]
    if step < len(played):
        return played[step]
    return {"noop": 0, "repeat": played[-1], "loop": played[step % len(played)]}[then]


scripts = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), min_size=1, max_size=5)


@pytest.mark.proof
@settings(deadline=None, max_examples=60)
@given(
    script=scripts,
    then=st.sampled_from(["noop", "repeat", "loop"]),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    mode=st.sampled_from(list(AutoresetMode)),
    is_text=st.booleans(),
)
def test_each_episode_plays_the_script_from_its_beginning(
    script: list[tuple[int, int]],
    then: Then,
    lengths: list[int],
    mode: AutoresetMode,
    is_text: bool,
) -> None:
    text = ", ".join(f"{LETTERS[action]} {count}" for action, count in script)
    policy = sw.ScriptedPolicy(text if is_text else script, actions=LETTERS, then=then)
    makers = [partial(CounterEnv, [length, length + 1]) for length in lengths]
    replay = sw.SequenceReplayBuffer()
    with sw.Collector(SyncVectorEnv(makers, autoreset_mode=mode), policy, replay) as collector:
        collector.collect(steps=12 * len(lengths))
        collector.collect(steps=5 * len(lengths))
    episodes = list(replay.iter_episodes())
    assert sum(episode.steps for episode in episodes) >= 17 * len(lengths)
    for episode in episodes:
        actions = episode.action[: episode.steps].tolist()
        assert actions == [expected_action(script, then, step) for step in range(len(actions))]


def first_actions(env: Any, policy: Any, steps: int) -> list[Any]:
    with sw.Collector(env, policy, seed=0) as collector:
        return cast("list[Any]", collector.rollout(steps).action[:, 0].tolist())


def test_numbers_of_a_space_that_begins_later_are_named_in_order() -> None:
    policy = sw.ScriptedPolicy("c 1, b 1", actions=["noop", "b", "c"])
    assert first_actions(Spaced(spaces.Discrete(3, start=4)), policy, 3) == [6, 5, 4]


class Spaced(CounterEnv):
    def __init__(self, space: Any) -> None:
        super().__init__(9)
        self.action_space = space


@pytest.mark.parametrize(
    ("space", "script"),
    [
        (spaces.Discrete(3, start=4), [(5, 1), (np.int64(4), 1)]),
        (spaces.Box(-1, 1, (2,), np.float32), [([0.5, -1], 1), (np.zeros(2), 1)]),
        (spaces.MultiDiscrete([2, 3]), [([1, 2], 1), ((0, 1), 1)]),
        (spaces.MultiBinary(2), [([1, 0], 1), ([False, True], 1)]),
    ],
    ids=str,
)
def test_a_list_may_have_actions_of_any_space(space: Any, script: Any) -> None:
    found = first_actions(Spaced(space), sw.ScriptedPolicy(script, then="loop"), 3)
    wanted = [np.asarray(action, space.dtype).tolist() for action, _ in script]
    assert found == [*wanted, wanted[0]]


@pytest.mark.proof
@pytest.mark.parametrize("backend", ["native", "python"])
def test_the_names_of_atari_games_come_from_the_envs(backend: Any) -> None:
    envs = sw.make_atari("Pong", 1, backend=backend, num_workers=1, noop_max=0)
    policy = sw.ScriptedPolicy("NOOP 1, fire 1, FIRE+RIGHT 1, LEFTFIRE 1", actions=envs)
    assert first_actions(envs, policy, 5) == [0, 1, 4, 5, 0]
    single = gym.make("ALE/Pong-v5", full_action_space=True)
    diagonal = sw.ScriptedPolicy("UP+LEFT+FIRE 1", actions=single)
    assert first_actions(single, diagonal, 2) == [15, 0]


def test_the_names_of_a_set_of_buttons_and_bits_of_them() -> None:
    simple = sw.ScriptedPolicy("LEFT 1, A+RIGHT 1", actions="right_only")
    with pytest.raises(ValueError, match=r"NOOP, RIGHT, RIGHT\+A, .*got 'LEFT'"):
        simple.begin(spaces.Discrete(5), np.random.default_rng(0))
    policy = sw.ScriptedPolicy("right+a 2, START 1", actions="multibinary")
    found = first_actions(Spaced(spaces.MultiBinary(8)), policy, 4)
    assert found == [[1, 0, 0, 0, 0, 0, 0, 1]] * 2 + [[0, 0, 0, 1, 0, 0, 0, 0], [0] * 8]


@pytest.mark.parametrize(
    ("script", "options", "got"),
    [
        ("RIGHT", {}, "script: .*got 'RIGHT'"),
        ("RIGHT x", {}, "script: .*steps.*got 'RIGHT x'"),
        ("RIGHT 0", {}, "script: .*got 'RIGHT 0'"),
        ("", {}, "script: .*got 0"),
        ([], {}, "script: .*got 0"),
        ("b 9999999999", {}, "script: .*1,000,000,000.*got 9,999,999,999"),
        ([("b", 0)], {}, r"script: .*got \('b', 0\)"),
        ([("b", 1.5)], {}, r"script: .*got \('b', 1.5\)"),
        (["b"], {}, "script: .*got 'b'"),
        (None, {}, "script: .*got NoneType"),
        ("b 1", {"then": "stop"}, "then: .*noop, repeat, loop.*got 'stop'"),
        ("b 1", {"actions": []}, r"actions: .*got \[\]"),
        ("b 1", {"actions": [1, 2]}, r"actions: .*got \[1, 2\]"),
        ("b 1", {"actions": "simpel"}, "'simpel'.*'simple'"),
        ("b 1", {"actions": gym.make("CartPole-v1")}, "actions: .*CartPole"),
        ("b 1", {"actions": SyncVectorEnv([CounterEnv])}, "actions: .*SyncVectorEnv"),
    ],
    ids=str,
)
def test_what_is_no_script_is_refused_when_it_is_made(script: Any, options: Any, got: str) -> None:
    with pytest.raises(ValueError, match=got):
        sw.ScriptedPolicy(script, **options)


@pytest.mark.parametrize(
    ("script", "options", "got"),
    [
        ("b 1, e 1", {"actions": LETTERS}, "NOOP, b, c, d for Discrete.*got 'e'"),
        ("bb 1", {"actions": ["NOOP", "b", "c", "bbb"]}, "got 'bb'; did you mean"),
        ("b 1", {}, "got the name 'b', and no names"),
        ("b 1", {"actions": ["NOOP", "b"]}, "expected 4 names.*got 2"),
        ([(4, 1)], {"then": "loop"}, r"Discrete\(4\), got 4"),
        ([(1.5, 1)], {"then": "loop"}, r"Discrete\(4\), got 1.5"),
        ([(1, 1)], {}, "then='noop'.*NOOP in Discrete.*then='repeat'"),
        ("b 1", {"actions": ["a", "b", "c", "d"]}, "then='noop'.*then='loop'"),
    ],
    ids=str,
)
def test_what_the_envs_cannot_play_is_refused_before_they_are_reset(
    script: Any, options: Any, got: str
) -> None:
    class Untouched(CounterEnv):
        def reset(self, **options: Any) -> Any:
            raise AssertionError("was reset")

    with pytest.raises(ValueError, match=got):
        sw.Collector(Untouched(), sw.ScriptedPolicy(script, **options))


def test_it_must_be_begun() -> None:
    policy = sw.ScriptedPolicy("1 1")
    with pytest.raises(ValueError, match="begin"):
        policy(None, np.ones(1, np.bool_), policy.initial_state(1))
