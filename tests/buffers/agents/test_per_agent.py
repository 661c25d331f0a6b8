"""`per_agent` against slow models: the lives of agents in a log of bare envs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

import stepwell as sw
from stepwell.buffers import End, EpisodeWriter
from stepwell.buffers.sampling.batch import map_tree
from support.chi_square import assert_shares
from support.envs.coming_agents import NAMES, ORDER, ComingAndGoing, Life, key_of, play

CHOICES = st.sampled_from([None, ["c9"], ["c10", "a", "b"]])


def value_of(place: np.ndarray) -> np.ndarray:
    """Some value of observations [..., 3]."""
    found: np.ndarray = np.sin(place[..., 0] + 2 * place[..., 1] + 3 * place[..., 2])
    return found


class Policy:
    """Random actions, with an extra for each agent and one for all."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def __call__(self, observation: Mapping[str, Any], is_first: np.ndarray) -> Any:
        places = [observation["agents"][name]["place"] for name in ORDER]
        count = len(places[0])
        actions = {name: self.rng.integers(0, 3, count) for name in NAMES}
        value = np.stack([value_of(place) for place in places], axis=1)
        return actions, {"value": value, "draw": self.rng.random((count, 2))}


def envs_of(mode: AutoresetMode, num_envs: int = 3) -> Any:
    def make() -> Any:
        return sw.SeededResets(sw.from_pettingzoo(ComingAndGoing()))

    return SyncVectorEnv([make] * num_envs, autoreset_mode=mode)


def collected(seed: int, steps: int, **kwargs: Any) -> sw.SequenceReplayBuffer:
    replay = sw.SequenceReplayBuffer(seed=seed, **kwargs)
    envs = envs_of(AutoresetMode.NEXT_STEP)
    with sw.Collector(envs, Policy(seed), replay, seed=seed) as collector:
        collector.collect(steps=steps)
    return replay


def lives_of(
    replay: sw.SequenceReplayBuffer, agents: list[str] | None
) -> dict[tuple[int, ...], Life]:
    """All lives in the bare envs, by their first row; the joint end of the log is a cut."""
    found: dict[tuple[int, ...], Life] = {}
    for episode in replay.iter_episodes():
        actions = [
            {name: int(episode.fields[f"action/{name}"][t]) for name in NAMES}
            for t in range(episode.steps)
        ]
        _, lives = play(int(str(episode.metadata["seed"])), actions)
        found |= {life.key: life for life in lives if life.agent in (agents or NAMES)}
    return found


def rows_of(lives: Mapping[Any, Life]) -> dict[tuple[int, ...], tuple[Life, int]]:
    """All rows of all lives by episode, agent and step."""
    return {key_of(s["place"]): (one, t) for one in lives.values() for t, s in enumerate(one.seen)}


any_seed = st.integers(0, 2**30)


@pytest.mark.proof
@settings(max_examples=20, deadline=None)
@given(seed=any_seed, steps=st.integers(1, 150), agents=CHOICES)
def test_each_life_is_an_episode(seed: int, steps: int, agents: list[str] | None) -> None:
    replay = collected(seed, steps)
    expected = lives_of(replay, agents)
    single = sw.SequenceReplayBuffer()
    writer = EpisodeWriter(single, source="one agent each")
    for episode in sw.per_agent(replay, agents).iter_episodes():
        writer.add_episode(episode)
    writer.flush()
    for episode in single.iter_episodes():
        life = expected.pop(key_of(episode.fields["observation/place"][0]))
        assert episode.metadata["agent"] == life.agent
        assert episode.fields["info/agent"].tolist() == [ORDER.index(life.agent)] * episode.rows
        for key in ("place", "mask"):
            stored = episode.fields[f"observation/{key}"]
            np.testing.assert_array_equal(stored, [seen[key] for seen in life.seen])
        assert episode.action.tolist() == [*life.action, 0]
        assert episode.reward.tolist() == [0, *life.reward]
        end = End.TERMINATED * life.terminated | End.TRUNCATED * life.truncated
        assert episode.end & ~End.PENDING == end
        values = value_of(episode.fields["observation/place"])[:-1]
        assert episode.fields["extra/value"][:-1].tolist() == values.tolist()
        assert episode.fields["extra/draw"].shape == (episode.rows, 2)
    assert not expected


@pytest.mark.proof
@settings(max_examples=20, deadline=None)
@given(
    seed=any_seed, steps=st.integers(10, 150), agents=CHOICES, n=st.integers(1, 6),
    gamma=st.sampled_from([0.0, 0.9, 1.0]),
)  # fmt: skip
def test_transitions_are_those_of_single_lives(
    seed: int, steps: int, agents: list[str] | None, n: int, gamma: float
) -> None:
    replay = collected(seed, steps)
    each = sw.per_agent(replay, agents)
    lives = lives_of(replay, agents)
    if not any(life.action for life in lives.values()):
        return
    rows = rows_of(lives)
    batch: Any = each.sample_transitions(40, n_step=n, gamma=gamma)
    for b in range(40):
        life, t = rows[key_of(batch.observation["place"][b])]
        k = min(n, len(life.action) - t)
        is_end = t + k == len(life.action)
        assert batch.steps[b] == k > 0
        assert batch.action[b] == life.action[t]
        expected = sum(gamma**i * life.reward[t + i] for i in range(k))
        assert batch.reward[b] == pytest.approx(expected, rel=1e-6, abs=1e-6)
        assert batch.terminated[b] == (is_end and life.terminated)
        assert batch.truncated[b] == (is_end and life.truncated)
        assert batch.cut[b] == (is_end and not (life.terminated or life.truncated))
        follows = 0 if is_end and life.terminated else np.float32(gamma**k)
        assert batch.discount[b] == follows
        for key in ("place", "mask"):
            np.testing.assert_array_equal(batch.observation[key][b], life.seen[t][key])
            np.testing.assert_array_equal(batch.next_observation[key][b], life.seen[t + k][key])
        assert batch.info["agent"][b] == ORDER.index(life.agent)
        assert batch.extras["value"][b] == value_of(life.seen[t]["place"])


@pytest.mark.proof
@settings(max_examples=20, deadline=None)
@given(seed=any_seed, steps=st.integers(10, 150), agents=CHOICES, length=st.integers(1, 6))
def test_sequences_are_parts_of_single_lives(
    seed: int, steps: int, agents: list[str] | None, length: int
) -> None:
    replay = collected(seed, steps)
    lives = lives_of(replay, agents)
    if not any(len(life.seen) >= length for life in lives.values()):
        return
    rows = rows_of(lives)
    batch: Any = sw.per_agent(replay, agents).sample_sequences(40, length)
    assert batch.mask.all()
    assert batch.mask.shape == (40, length)
    for b in range(40):
        life, first = rows[key_of(batch.observation["place"][b, 0])]
        for i in range(length):
            t = first + i
            is_end = t == len(life.action)
            np.testing.assert_array_equal(batch.observation["mask"][b, i], life.seen[t]["mask"])
            assert key_of(batch.observation["place"][b, i]) == key_of(life.seen[t]["place"])
            assert batch.action[b, i] == (0 if is_end else life.action[t])
            assert batch.reward[b, i] == np.float32(0 if t == 0 else life.reward[t - 1])
            assert batch.is_first[b, i] == (t == 0)
            assert batch.terminated[b, i] == (is_end and life.terminated)
            assert batch.truncated[b, i] == (is_end and life.truncated)
            assert batch.is_last[b, i] == is_end
            assert batch.cut[b, i] == (is_end and not (life.terminated or life.truncated))
            assert batch.info["agent"][b, i] == ORDER.index(life.agent)


@pytest.mark.proof
@pytest.mark.parametrize("agents", [None, ["c10", "a"]])
def test_pairs_of_row_and_agent_are_equally_likely(agents: list[str] | None) -> None:
    replay = collected(7, 60)
    lives = lives_of(replay, agents)
    each = sw.per_agent(replay, agents)
    drawn: Any = each.sample_transitions(20_000)
    places = drawn.observation["place"]
    counts = Counter(map(key_of, places))
    rows = rows_of(lives).items()
    assert_shares(counts, {key: 1 for key, (life, t) in rows if t < len(life.action)})
    windows: Any = each.sample_sequences(20_000, 3)
    counts = Counter(map(key_of, windows.observation["place"][:, 0]))
    assert_shares(counts, {key: 1 for key, (life, t) in rows if t + 3 <= len(life.seen)})


@pytest.mark.proof
@settings(max_examples=25, deadline=None)
@given(
    seed=any_seed,
    steps=st.integers(1, 25),
    mode=st.sampled_from(list(AutoresetMode)[:2]),
    agents=CHOICES,
    gamma=st.sampled_from([0.0, 0.9, 1.0]),
    lam=st.sampled_from([0.0, 0.8, 1.0]),
)
def test_advantages_are_those_of_single_lives(
    seed: int, steps: int, mode: AutoresetMode, agents: list[str] | None, gamma: float, lam: float
) -> None:
    replay = sw.SequenceReplayBuffer()
    with sw.Collector(envs_of(mode), Policy(seed), replay, seed=seed) as collector:
        rollouts = [collector.rollout(steps) for _ in range(3)]
    rows = rows_of(lives_of(replay, agents))
    for rollout in rollouts:
        own = sw.per_agent(rollout, agents)
        advantages, returns = own.advantages(
            gamma, lam, bootstrap_value=lambda seen: value_of(seen["place"])
        )
        seen: Any = own.observation
        assert own.num_envs == 3 * len(agents or NAMES)
        assert own.steps == sum(
            int(rollout.mask[t, n]) * int(rollout.observation["present"][t, n, ORDER.index(a)])
            for t in range(steps) for n in range(3) for a in agents or NAMES
        )  # fmt: skip
        for column in range(own.num_envs):
            stepped = np.flatnonzero(own.mask[:, column])
            keys = {key_of(seen["place"][t, column]): t for t in stepped}
            for key, t in keys.items():
                life, row = rows[key]
                assert life.agent == (agents or ORDER)[column % len(agents or NAMES)]
                last = row
                while (*key[:2], int(life.seen[last]["place"][2]) + 1) in keys:
                    if last + 1 >= len(life.action):
                        break
                    last += 1
                deltas = [delta_of(life, each, gamma) for each in range(row, last + 1)]
                expected = sum((gamma * lam) ** i * delta for i, delta in enumerate(deltas))
                assert advantages[t, column] == pytest.approx(expected, rel=1e-5, abs=1e-4)
                value = float(value_of(life.seen[row]["place"]))
                assert returns[t, column] == pytest.approx(expected + value, rel=1e-5, abs=1e-4)
                assert own.reward[t, column] == np.float32(life.reward[row])
                assert own.action[t, column] == life.action[row]
                is_end = row + 1 == len(life.action)
                assert own.terminated[t, column] == (is_end and life.terminated)
                assert own.truncated[t, column] == (is_end and life.truncated)
                assert own.extras["draw"].shape == (steps, own.num_envs, 2)
                if t > 0:
                    assert own.is_first[t, column] == (row == 0)


def delta_of(life: Life, row: int, gamma: float) -> float:
    """The TD error of one step."""
    is_end = row + 1 == len(life.action)
    follows = 0 if is_end and life.terminated else float(value_of(life.seen[row + 1]["place"]))
    return life.reward[row] + gamma * follows - float(value_of(life.seen[row]["place"]))


def test_agents_that_a_time_limit_stops_are_truncated() -> None:
    def make() -> Any:
        env = sw.from_pettingzoo(ComingAndGoing())
        return sw.SeededResets(gym.wrappers.TimeLimit(env, 4))

    replay = sw.SequenceReplayBuffer(seed=0)
    envs = SyncVectorEnv([make] * 3, autoreset_mode=AutoresetMode.SAME_STEP)
    with sw.Collector(envs, Policy(0), replay, seed=0) as collector:
        rollout = collector.rollout(40)
    own = sw.per_agent(rollout)
    own.advantages(0.9, 0.9, bootstrap_value=lambda seen: value_of(seen["place"]))
    ended = np.repeat((rollout.terminated | rollout.truncated)[..., None], 4, axis=2)
    stopped = own.mask & ended.reshape(own.mask.shape)
    assert np.count_nonzero(stopped) > 20
    assert (own.terminated | own.truncated)[stopped].all()
    # The observations after them are those of step 4, and not those of the next reset.
    steps = {key_of(place)[2] for place in own.bootstrap.observation["place"]}
    assert 4 in steps
    assert 0 not in steps
    ends = Counter(
        episode.end & ~End.PENDING
        for episode in sw.per_agent(replay).iter_episodes()
        if episode.fields["observation/place"][-1, 2] == 4
    )
    assert ends[End.NONE] == 0
    assert ends[End.TRUNCATED] > 20
    batch = sw.per_agent(replay).sample_transitions(500)
    at_limit = np.asarray(batch.next_observation["place"][:, 2] == 4)
    assert (batch.terminated | batch.truncated)[at_limit].all()


def test_an_agent_that_was_truncated_needs_the_observation_after_it() -> None:
    with sw.Collector(envs_of(AutoresetMode.SAME_STEP), Policy(1), seed=1) as collector:
        rollout = collector.rollout(40)
    is_cut = rollout.truncated & ~rollout.info["agent_terminated"].all(axis=2)
    step, env = (int(found[0]) for found in np.nonzero(is_cut))
    rollout.terminated[step, env], rollout.truncated[step, env] = True, False
    keep = (rollout.bootstrap.step != step) | (rollout.bootstrap.env != env)
    rollout.bootstrap = rollout.bootstrap._replace(
        step=rollout.bootstrap.step[keep],
        env=rollout.bootstrap.env[keep],
        observation=map_tree(lambda rows: rows[keep], rollout.bootstrap.observation),
    )
    with pytest.raises(ValueError, match=f"row {step} of env {env}"):
        sw.per_agent(rollout)


def test_rows_of_other_envs_are_refused() -> None:
    replay = sw.SequenceReplayBuffer()
    with sw.Collector(sw.make_vec("CartPole-v1"), "random", replay, seed=0) as collector:
        collector.collect(steps=5)
        rollout = collector.rollout(3)
    for source in (replay, rollout):
        with pytest.raises(ValueError, match="from_pettingzoo"):
            sw.per_agent(source)
    with pytest.raises(TypeError, match="int"):
        sw.per_agent(3)  # type: ignore[call-overload]


def test_what_no_agent_can_give_is_refused() -> None:
    replay = collected(0, 30)
    unknown: list[Any] = [[], ["x"], ["a", "a"], "a"]
    for agents in unknown:
        with pytest.raises(ValueError, match="agents"):
            sw.per_agent(replay, agents)
    each = sw.per_agent(replay)
    with pytest.raises(sw.NotEnoughData, match="20"):
        each.sample_sequences(4, 20)
    with pytest.raises(ValueError, match="gamma"):
        each.sample_transitions(4, gamma=2)
