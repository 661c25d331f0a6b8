"""`from_pettingzoo`: joint rows equal a log of bare envs, and broken envs are refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

import stepwell as sw
from stepwell.buffers import Episode
from support.envs.coming_agents import NAMES, ORDER, ComingAndGoing, joint_env, play


def actions_of(episode: Episode) -> list[dict[str, int]]:
    columns = {name: episode.fields[f"action/{name}"] for name in NAMES}
    return [{name: int(rows[t]) for name, rows in columns.items()} for t in range(episode.steps)]


def assert_as_logged(episode: Episode) -> None:
    """Compare an episode with the bare env, stepped from the same seed with the same actions."""
    rows, _ = play(int(str(episode.metadata["seed"])), actions_of(episode))
    assert len(rows) == episode.rows
    fields = episode.fields
    for t, row in enumerate(rows):
        assert fields["reward"][t] == sum(row.reward.get(name, 0) for name in ORDER)
        for a, name in enumerate(ORDER):
            assert fields["observation/present"][t, a] == (name in row.live)
            assert fields["info/agent_reward"][t, a] == row.reward.get(name, 0)
            assert fields["info/agent_terminated"][t, a] == row.terminated.get(name, False)
            assert fields["info/agent_truncated"][t, a] == row.truncated.get(name, False)
            for key in ("place", "mask"):
                stored = fields[f"observation/agents/{name}/{key}"][t]
                expected = row.seen[name][key] if name in row.seen else np.zeros(3)
                np.testing.assert_array_equal(stored, expected)
    last = rows[-1]
    ended = {name: (last.terminated[name], last.truncated[name]) for name in last.terminated}
    is_over = not last.live
    is_cut = any(truncated and not terminated for terminated, truncated in ended.values())
    assert episode.terminated[-1] == (is_over and not is_cut)
    assert episode.truncated[-1] == (is_over and is_cut)


VECTORS: dict[str, Callable[[], Any]] = {
    "workers": partial(sw.make_vec, joint_env, 3, num_workers=2),
    "NEXT_STEP": partial(sw.make_vec, joint_env, 3, num_workers=0),
    **{
        mode.name: partial(
            SyncVectorEnv, [lambda: sw.SeededResets(joint_env())] * 3, autoreset_mode=mode
        )
        for mode in (AutoresetMode.SAME_STEP, AutoresetMode.DISABLED)
    },
}


@pytest.mark.proof
@pytest.mark.parametrize("kind", VECTORS)
def test_every_row_is_that_of_a_bare_env(kind: str) -> None:
    @settings(max_examples=4 if kind == "workers" else 15, deadline=None)
    @given(seed=st.integers(0, 2**30), steps=st.integers(1, 150))
    def check(seed: int, steps: int) -> None:
        replay = sw.SequenceReplayBuffer()
        with sw.Collector(VECTORS[kind](), sw.RandomPolicy(), replay, seed=seed) as collector:
            collector.collect(steps=steps)
        episodes = list(replay.iter_episodes())
        assert sum(episode.steps for episode in episodes) >= steps
        for episode in episodes:
            assert_as_logged(episode)

    check()


class Ending(ComingAndGoing):
    """Both agents end in the first step, as the flags say."""

    def __init__(self, *flags: tuple[bool, bool]) -> None:
        super().__init__()
        self.possible_agents = ["x", "y"]
        self.flags = flags

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        self.agents = ["x", "y"]
        return {name: self.look() for name in self.agents}, {}

    def look(self) -> Any:
        return {"place": np.ones(3, np.float32), "mask": np.ones(3, np.int8)}

    def step(self, actions: Any) -> Any:
        seen = {name: self.look() for name in self.agents}
        flags = dict(zip(self.agents, self.flags, strict=True))
        rewards = dict.fromkeys(self.agents, 1.0)
        self.agents = [name for name in self.agents if not any(flags[name])]
        terminated = {name: flag[0] for name, flag in flags.items()}
        return seen, rewards, terminated, {name: flag[1] for name, flag in flags.items()}, {}


ENDS = {
    "both terminated": (((True, False), (True, False)), (True, False)),
    "both truncated": (((False, True), (False, True)), (False, True)),
    "one of each": (((True, False), (False, True)), (False, True)),
    "one with both flags": (((True, True), (True, False)), (True, False)),
    "one goes on": (((True, False), (False, False)), (False, False)),
}


@pytest.mark.parametrize(("flags", "expected"), ENDS.values(), ids=ENDS)
def test_the_episode_ends_as_its_last_agents_do(flags: Any, expected: Any) -> None:
    env = sw.from_pettingzoo(Ending(*flags))
    env.reset()
    assert env.step({"x": 0, "y": 0})[2:4] == expected


class Stray(Ending):
    """x ends in the first step, and gets a reward in the second."""

    def step(self, actions: Any) -> Any:
        seen, rewards, *rest = super().step(actions)
        return (seen, {**rewards, "x": 1.0}, *rest)


def test_a_reward_of_an_agent_that_is_gone_is_kept_and_counted() -> None:
    stray: Any = Stray((True, False), (False, False))
    env = sw.from_pettingzoo(stray)
    env.reset()
    env.step({"x": 0, "y": 0})
    stray.flags = ((False, False),)
    _, reward, *_, info = env.step({"y": 0})
    assert reward == 2.0
    assert info["agent_reward"].tolist() == [1.0, 1.0]
    assert info["agent_terminated"].tolist() == [False, False]


def changed(index: int, change: Callable[[Any], None]) -> Ending:
    env: Any = Ending((False, False), (False, False))
    inner = env.step

    def step(actions: Any) -> Any:
        result = inner(actions)
        change(env if index < 0 else result[index])
        return result

    env.step = step
    return env  # type: ignore[no-any-return]


BROKEN = {
    "observation": (partial(changed, 0, lambda seen: seen.pop("y")), "'y'"),
    "none": (partial(changed, 0, lambda seen: seen.update(x=None)), "'x'"),
    "dtype": (partial(changed, 0, lambda seen: seen["x"].update(mask=np.ones(3))), "float64"),
    "reward": (partial(changed, 1, lambda rewards: rewards.pop("x")), "rewards"),
    "no number": (partial(changed, 1, lambda rewards: rewards.update(x=[1, 2])), r"\[1, 2\]"),
    "termination": (partial(changed, 2, lambda flags: flags.pop("y")), "terminations"),
    "left": (partial(changed, -1, lambda env: env.agents.pop()), "'y' left"),
    "stays": (partial(changed, 2, lambda flags: flags.update(x=True)), "'x'"),
    "unknown": (partial(changed, -1, lambda env: env.agents.append("z")), "'z'"),
}


@pytest.mark.parametrize(("make", "named"), BROKEN.values(), ids=BROKEN)
def test_an_env_that_breaks_a_rule_is_refused_and_needs_a_reset(
    make: Callable[[], Ending], named: str
) -> None:
    env = sw.from_pettingzoo(make())
    env.reset()
    with pytest.raises(ValueError, match=named):
        env.step({"x": 0, "y": 0})
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step({"x": 0, "y": 0})


def test_an_action_of_each_present_agent_is_needed() -> None:
    bare: Any = Ending((True, False), (False, False))
    env = sw.from_pettingzoo(bare)
    env.reset()
    with pytest.raises(ValueError, match="'y'"):
        env.step({"x": 0})
    env.step({"x": 0, "y": 1})
    bare.flags = ((False, False),)
    env.step({"y": 1})  # x is gone


def named(*agents: object) -> ComingAndGoing:
    env = ComingAndGoing()
    env.possible_agents = list(agents)  # type: ignore[arg-type]
    return env


@pytest.mark.parametrize("agents", [("a/b",), ("",), (1, "1"), ()])
def test_agents_whose_names_are_no_names_of_fields_are_refused(agents: Any) -> None:
    with pytest.raises(ValueError, match="possible_agents"):
        sw.from_pettingzoo(named(*agents))


def test_agents_may_be_numbers() -> None:
    assert list(sw.from_pettingzoo(named(2, 1)).action_space) == ["1", "2"]  # type: ignore[call-overload]


@pytest.mark.parametrize("other", [ComingAndGoing, 3, gymnasium.make("CartPole-v1")])
def test_another_object_is_refused(other: object) -> None:
    with pytest.raises(TypeError):
        sw.from_pettingzoo(other)


class TestRealEnvs:
    """Envs of PettingZoo and mpe2 against themselves, bare."""

    @pytest.fixture(autouse=True)
    def _needs(self) -> None:
        pytest.importorskip("pettingzoo", reason="pip install 'stepwell[pettingzoo]'")

    @staticmethod
    def make(name: str) -> Any:
        module, _, kwargs = name.partition("?")
        made = pytest.importorskip(module, reason=f"needs {module}", exc_type=ImportError)
        if kwargs == "aec":
            return made.env()
        return made.parallel_env(**({"max_cycles": int(kwargs)} if kwargs else {}))

    @pytest.mark.parametrize(
        "name",
        (
            "mpe2.simple_spread_v3 mpe2.simple_tag_v3 mpe2.simple_speaker_listener_v4 "
            "mpe2.simple_spread_v3?aec pettingzoo.classic.rps_v2 "
            "pettingzoo.butterfly.knights_archers_zombies_v11?200"
        ).split(),
    )
    @pytest.mark.filterwarnings("ignore")
    def test_rows_are_those_of_the_bare_env(self, name: str) -> None:
        from pettingzoo.utils.conversions import aec_to_parallel

        env, bare = sw.from_pettingzoo(self.make(name)), self.make(name)
        if name.endswith("?aec"):
            bare = aec_to_parallel(bare)
        order = sorted(bare.possible_agents)
        for seed in (1, 2):
            observation, _ = env.reset(seed=seed)
            expected, _ = bare.reset(seed=seed)
            env.action_space.seed(seed)
            is_over = False
            while not is_over:
                live = [agent in bare.agents for agent in order]
                assert observation["present"].tolist() == live
                action = env.action_space.sample()
                acted = list(bare.agents)
                observation, reward, terminated, truncated, info = env.step(action)
                expected, rewards, ends, cuts, _ = bare.step({a: action[a] for a in acted})
                is_over = terminated or truncated
                assert is_over == (not bare.agents)
                for place, agent in enumerate(order):
                    assert info["agent_reward"][place] == (rewards[agent] if agent in acted else 0)
                    assert info["agent_terminated"][place] == (agent in acted and ends[agent])
                    assert info["agent_truncated"][place] == (agent in acted and cuts[agent])
                    if agent in expected:
                        np.testing.assert_equal(observation["agents"][agent], expected[agent])
                assert reward == info["agent_reward"].sum()
        env.close()
        bare.close()

    def test_a_turn_based_game_is_converted_and_stored(self) -> None:
        game = pytest.importorskip("pettingzoo.classic.tictactoe_v3", exc_type=ImportError)

        def legal(observation: Any, is_first: np.ndarray) -> Any:
            chosen = {}
            for name, seen in observation["agents"].items():
                chosen[name] = seen["action_mask"].argmax(axis=1)
            return chosen

        replay = sw.SequenceReplayBuffer()
        envs = sw.make_vec(lambda: sw.from_pettingzoo(game.env()), 2, num_workers=0)
        with sw.Collector(envs, legal, replay, seed=0) as collector:
            collector.collect(episodes=2)
        episodes = list(replay.iter_episodes())
        # Both take the lowest free square of a column first: player 1 wins with its 4th stone.
        assert [episode.steps for episode in episodes] == [7, 7]
        for episode in episodes:
            assert episode.fields["info/agent_reward"][-1].tolist() == [1.0, -1.0]
            assert episode.fields["info/agent_terminated"][-1].tolist() == [True, True]
            assert episode.terminated[-1]
            assert episode.total_reward == 0
