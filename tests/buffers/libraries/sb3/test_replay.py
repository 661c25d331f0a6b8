"""as_sb3_replay and sb3_policy with DQN, SAC, TD3 and DDPG of Stable-Baselines3."""

from __future__ import annotations

import copy
import io
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from hypothesis import given
from hypothesis import strategies as st

import stepwell as sw
from stepwell.buffers import NotEnoughData, SequenceReplayBuffer, SpecMismatch
from support.libraries.sb3_envs import (
    KINDS,
    PLANS,
    Action,
    Kind,
    Tag,
    TagEnv,
    action_of,
    joined,
    makers,
    observation_of,
    reward_of,
    row_of,
    tag_of,
    vector_env,
)

pytest.importorskip("stable_baselines3", reason="needs stable_baselines3")

import torch
from stable_baselines3 import DDPG, DQN, PPO, SAC, TD3, HerReplayBuffer
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.noise import NormalActionNoise, OrnsteinUhlenbeckActionNoise
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecNormalize
from torch.testing import assert_close

from stepwell.buffers.libraries.sb3.models import count_sb3_steps
from stepwell.buffers.libraries.sb3.policy import sb3_policy
from stepwell.buffers.libraries.sb3.replay import as_sb3_replay

ALL_MODES = pytest.mark.parametrize("mode", list(AutoresetMode))
NEXT_STEP, SAME_STEP = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP
N, STEPS = 3, 60


def model_of(
    kind: Kind = "vector",
    action: Action = "discrete",
    env: Any = None,
    algorithm: Any = None,
    **options: Any,
) -> Any:
    algorithm = algorithm or (DQN if action == "discrete" else SAC)
    extractor: Any = joined if kind == "dict" else FlattenExtractor
    chosen = {
        "buffer_size": 1,
        "learning_starts": 10,
        "batch_size": 8,
        "gamma": 0.75,
        "seed": 3,
        "policy_kwargs": {"net_arch": [8], "features_extractor_class": extractor},
        "device": "cpu",
        **options,
    }
    policy = "MultiInputPolicy" if kind == "dict" else "MlpPolicy"
    return algorithm(policy, env or DummyVecEnv(makers(kind, action)), **chosen)


def tag_policy(kind: Kind, action: Action) -> Any:
    """A policy whose actions are computed from the tags in the observations."""

    def policy(observation: Any, is_first: np.ndarray) -> Any:
        tags = [tag_of(kind, row_of(observation, n)) for n in range(len(is_first))]
        return np.stack([action_of(action, tag) for tag in tags])

    return policy


def filled(
    kind: Kind = "vector",
    action: Action = "discrete",
    mode: AutoresetMode = SAME_STEP,
    policy: Any = None,
    **options: Any,
) -> SequenceReplayBuffer:
    """A replay into which a Collector wrote STEPS steps; the last episodes are not over."""
    replay = SequenceReplayBuffer(seed=0, **options)
    envs = vector_env(kind, action, mode)
    with sw.Collector(envs, policy or tag_policy(kind, action), replay, seed=0) as collector:
        while replay.steps < STEPS:
            collector.collect(steps=7)
    return replay


def drawn(buffer: Any, kind: Kind, times: int = 20, batch_size: int = 64) -> list[dict[str, Any]]:
    """Single transitions of many batches."""
    found: list[dict[str, Any]] = []
    for _ in range(times):
        batch = buffer.sample(batch_size)
        assert type(batch).__name__ == ("Dict" if kind == "dict" else "") + "ReplayBufferSamples"
        parts = batch._asdict()
        for n in range(batch_size):
            row = {name: of(part, n) for name, part in parts.items() if part is not None}
            found.append(row)
    return found


def of(part: Any, n: int) -> Any:
    if isinstance(part, dict):
        return {key: tensor[n].numpy() for key, tensor in part.items()}
    return part[n].numpy()


# Data that a Collector wrote


@ALL_MODES
@pytest.mark.parametrize("kind", KINDS)
def test_transitions_equal_the_steps_of_the_envs(kind: Kind, mode: AutoresetMode) -> None:
    replay = filled(kind, mode=mode)
    seen: set[Tag] = set()
    for row in drawn(as_sb3_replay(replay, model_of(kind)), kind):
        tag = tag_of(kind, row["observations"])
        seen.add(tag)
        plan = PLANS[tag.env]
        length, end = plan[tag.episode % len(plan)]
        is_terminated = tag.step == length - 1 and end != "truncated"
        assert tag.step < length
        assert tag_of(kind, row["next_observations"]) == tag._replace(step=tag.step + 1)
        assert row["actions"].tolist() == [action_of("discrete", tag)]
        assert row["rewards"].tolist() == [reward_of(tag, row["actions"])]
        assert row["dones"].tolist() == [float(is_terminated)]
    assert len(seen) == len(replay)


def test_box_actions_are_scaled_as_the_policy_scales_them() -> None:
    replay, model = filled(action="box"), model_of(action="box")
    for row in drawn(as_sb3_replay(replay, model), "vector", times=3):
        tag = tag_of("vector", row["observations"])
        action = action_of("box", tag)
        assert row["actions"].dtype == np.float32
        np.testing.assert_array_equal(row["actions"], model.policy.scale_action(action))
        assert (np.abs(row["actions"]) <= 1).all()
        assert row["rewards"][0] == reward_of(tag, action)


class NStepReference(NStepReplayBuffer):
    """SB3's own n-step replay, whose transitions can be read by tag."""

    def by_tag(self, env: Any = None) -> dict[Tag, Any]:
        samples = self._get_samples(np.arange(self.pos), env=env)
        tags = [tag_of("vector", row) for row in self.observations[: self.pos, 0]]
        return {tag: [of(part, n) for part in samples] for n, tag in enumerate(tags)}


@pytest.mark.parametrize("normalises", [False, True])
@pytest.mark.parametrize("n_steps", [2, 3, 7])
def test_n_step_returns_are_those_of_sb3s_own_replay(n_steps: int, normalises: bool) -> None:
    plain = DummyVecEnv(makers("vector", "discrete", 1))
    env = VecNormalize(plain, clip_reward=1.5) if normalises else plain
    model = model_of(env=env, n_steps=n_steps)
    their = NStepReference(
        200, model.observation_space, model.action_space, "cpu", n_steps=n_steps, gamma=0.75
    )
    ours = as_sb3_replay(SequenceReplayBuffer(seed=0), model)
    model.replay_buffer = Tee(their, ours)
    model.learn(STEPS)
    statistics = model.get_vec_normalize_env()
    wanted = their.by_tag(statistics)
    ours.flush()
    for _ in range(10):
        generator = copy.deepcopy(ours.replay._rng)
        tags = [tag_of("vector", row) for row in ours.sample(64).observations]
        ours.replay._rng = generator  # the same rows again
        batch = ours.sample(64, env=statistics)
        for n, tag in enumerate(tags):
            for part, other in zip(batch, wanted[tag], strict=True):
                np.testing.assert_allclose(part[n], other, rtol=1e-5, atol=1e-5)


# Data that model.learn() collects


class Tee:
    """Adds every step to SB3's own replay and to the tested one."""

    def __init__(self, theirs: Any, ours: Any) -> None:
        self.theirs, self.ours = theirs, ours

    def add(self, *step: Any) -> None:
        held = copy.deepcopy(step)
        self.theirs.add(*step)
        self.ours.add(*held)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.theirs, name)


def by_tag(buffer: Any, kind: Kind) -> dict[Tag, dict[str, Any]]:
    """Each transition of a buffer, drawn."""
    return {tag_of(kind, row["observations"]): row for row in drawn(buffer, kind)}


@pytest.mark.parametrize(
    ("kind", "action"),
    [(kind, "discrete") for kind in KINDS] + [("vector", "box"), ("dict", "box")],
)
def test_learn_stores_what_sb3s_own_replay_stores(kind: Kind, action: Action) -> None:
    model = model_of(kind, action, train_freq=2)
    own = DictReplayBuffer if kind == "dict" else ReplayBuffer
    theirs = own(10_000, model.observation_space, model.action_space, "cpu", n_envs=N)
    ours = as_sb3_replay(SequenceReplayBuffer(seed=0), model)
    model.replay_buffer = Tee(theirs, ours)
    model.learn(STEPS)
    ours.flush()
    mine = by_tag(ours, kind)
    assert len(ours.replay) == len(mine) == STEPS
    assert_close(mine, by_tag(theirs, kind), rtol=0, atol=0)
    assert (ours.size(), ours.pos, ours.full) == (theirs.size(), theirs.pos, False)
    # Episodes end where the env ended them; their steps are numbered from 0.
    for episode in ours.replay.iter_episodes():
        tags = [tag_of(kind, row_of(episode.observation, t)) for t in range(episode.rows)]
        assert [tag.step for tag in tags] == list(range(episode.rows))
        assert {tag.env for tag in tags} == {episode.stream}


MODEL: list[Any] = []


@given(st.data())
def test_any_steps_are_stored_as_episodes_independent_of_flushes(data: st.DataObject) -> None:
    MODEL[:] = MODEL or [model_of(env=DummyVecEnv([partial(TagEnv, tag) for tag in range(2)]))]
    buffer = as_sb3_replay(SequenceReplayBuffer(seed=0), MODEL[0])
    kinds = st.sampled_from(["goes on"] * 4 + ["terminated", "truncated", "reset"])
    wanted: list[list[tuple[int, str]]] = [[], []]  # steps and end of each env's episodes
    tags, steps = [Tag(0, 0, 0), Tag(1, 0, 0)], [0, 0]
    for _ in range(data.draw(st.integers(1, 30))):
        now = [data.draw(kinds) for _ in range(2)]
        after = [tag._replace(step=tag.step + 1) for tag in tags]
        shown = [np.stack([observation_of("vector", t) for t in some]) for some in (tags, after)]
        over = np.array([kind in ("terminated", "truncated") for kind in now])
        # TimeLimit.truncated is ignored in a step without done.
        infos = [{"TimeLimit.truncated": kind != "terminated"} for kind in now]
        reward = np.array([reward_of(tag, 1) for tag in tags])
        buffer.add(*shown, np.array([1, 1]), reward, over, infos)
        for n, kind in enumerate(now):
            steps[n] += 1
            if kind == "goes on":
                tags[n] = after[n]
            else:
                wanted[n].append((steps[n], "cut" if kind == "reset" else kind))
                tags[n], steps[n] = Tag(n, tags[n].episode + 1, 0), 0
        if data.draw(st.booleans()):
            buffer.flush()
    buffer.flush()
    for n in range(2):
        own = [e for e in buffer.replay.iter_episodes() if e.stream == n]
        ends = [
            (e.steps, next(k for k in ("terminated", "truncated", "cut") if getattr(e, k)[-1]))
            for e in own
        ]
        assert ends == wanted[n] + ([(steps[n], "cut")] if steps[n] else [])
        for number, episode in enumerate(own):
            rows = [tag_of("vector", row) for row in np.asarray(episode.observation)]
            assert rows == [Tag(n, number, step) for step in range(episode.rows)]
            rewards = [0.0, *(reward_of(tag, 1) for tag in rows[:-1])]
            assert episode.reward.tolist() == rewards


def test_nan_observations_are_not_taken_for_a_reset() -> None:
    model = model_of(env=DummyVecEnv([TagEnv]))
    buffer = as_sb3_replay(SequenceReplayBuffer(seed=0), model)
    row = np.full((1, 4), np.nan, np.float32)
    for _ in range(3):
        buffer.add(row, row, np.array([1]), np.ones(1), np.zeros(1, bool), [{}])
    buffer.flush()
    assert [episode.steps for episode in buffer.replay.iter_episodes()] == [3]


def test_stacks_collected_by_learn_are_stored_as_single_frames() -> None:
    def envs() -> Any:
        both: list[Any] = [partial(TagEnv, tag, "stack") for tag in range(2)]
        return VecFrameStack(DummyVecEnv(both), 4, channels_order="first")

    def stored(frame_stack: int) -> tuple[Any, Any]:
        model = model_of(env=envs())
        theirs = ReplayBuffer(10_000, model.observation_space, model.action_space, "cpu", n_envs=2)
        replay = SequenceReplayBuffer(seed=0)
        ours = as_sb3_replay(replay, model, frame_stack=frame_stack)
        model.replay_buffer = Tee(theirs, ours)
        model.learn(40)
        ours.flush()
        return theirs, ours

    theirs, ours = stored(4)
    assert ours.replay.spec["observation"].shape == (8, 9)
    mine, known = (
        {row["observations"].tobytes(): row for row in drawn(buffer, "stack")}
        for buffer in (ours, theirs)
    )
    assert len(mine) == 40
    assert_close(mine, known, rtol=0, atol=0)
    _, whole = stored(1)
    assert whole.replay.spec["observation"].shape == (4, 8, 9)
    assert whole.replay.spec.row_bytes > 3 * ours.replay.spec.row_bytes


def test_inconsistent_frame_stacks_are_refused() -> None:
    model = model_of("image first")
    buffer = as_sb3_replay(SequenceReplayBuffer(seed=0), model, frame_stack=3)
    row = np.stack([observation_of("image first", Tag(n, 0, 0)) for n in range(N)])
    with pytest.raises(SpecMismatch, match=r"'observation'.*\b3\b.*zero.*frame_stack=1"):
        buffer.add(row, row, np.zeros(N, int), np.zeros(N), np.zeros(N, bool), [{}] * N)
    # Also where only the next observation is wrong: the transition is not added.
    stack = np.zeros_like(row)
    stack[:, 2] = 7
    after = np.roll(stack, -1, axis=1)
    wrong = np.full_like(after, 9)
    rest: Any = (np.zeros(N), np.zeros(N, bool), [{}] * N)
    buffer.add(stack, after, np.ones(N, int), *rest)
    with pytest.raises(SpecMismatch, match=r"'observation'.*\b3\b.*zero.*frame_stack=1"):
        buffer.add(after, wrong, np.full(N, 2), *rest)
    buffer.add(stack, after, np.full(N, 3), *rest)
    buffer.flush()
    episodes = list(buffer.replay.iter_episodes())
    assert [np.asarray(e.action).tolist() for e in episodes] == [[1, 0]] * N + [[3, 0]] * N


def test_stores_with_scaled_and_unscaled_actions_are_not_joined(tmp_path: Path) -> None:
    with SequenceReplayBuffer(tmp_path / "learn", seed=0) as replay:
        model = model_of(action="box")
        buffer = model.replay_buffer = as_sb3_replay(replay, model)
        model.learn(12)
        buffer.flush()
    filled(action="box", path=tmp_path / "collector").close()
    folders = [tmp_path / "learn", tmp_path / "collector"]
    with (
        SequenceReplayBuffer.open(folders, read_only=True) as both,
        pytest.raises(ValueError, match=r"actions.*\badd\b.*none.*both"),
    ):
        as_sb3_replay(both, model_of(action="box"))


# Policies


def test_dqn_explores_as_often_as_its_rate_says_and_from_the_collectors_seed() -> None:
    model = model_of()
    policy = sb3_policy(model)
    observation = np.stack([observation_of("vector", Tag(0, 0, 1))] * 4_000)
    first = np.zeros(4_000, bool)
    best = int(model.predict(observation[:1], deterministic=True)[0][0])
    for steps, rate in ((0, 1.0), (20, 0.3), (20, 0.0)):
        model.num_timesteps, model.exploration_rate = steps, rate if steps else 0.0
        policy.begin(spaces.Discrete(4), np.random.default_rng(0))
        chosen = policy(observation, first)
        assert np.asarray(chosen).dtype == np.int64
        share = np.mean(np.asarray(chosen) == best)
        assert share == pytest.approx(1 - rate * 3 / 4, abs=0.03)
        policy.begin(spaces.Discrete(4), np.random.default_rng(0))
        np.testing.assert_array_equal(chosen, policy(observation, first))
    greedy = sb3_policy(model, deterministic=True)
    model.num_timesteps = 0
    assert (np.asarray(greedy(observation, first)) == best).all()


@pytest.mark.parametrize("algorithm", [SAC, TD3, DDPG])
def test_continuous_models_choose_within_bounds_and_with_their_noise(algorithm: Any) -> None:
    noise = NormalActionNoise(np.zeros(3), np.full(3, 0.2))
    model = model_of(action="box", algorithm=algorithm, action_noise=noise)
    policy, space = sb3_policy(model), model.action_space
    observation = np.stack([observation_of("vector", Tag(0, 0, 1))] * 500)
    first = np.zeros(500, bool)
    for steps in (0, 50):
        model.num_timesteps = steps
        np.random.seed(0)  # noqa: NPY002
        torch.manual_seed(0)
        chosen = np.asarray(policy(observation, first))
        assert chosen.dtype == np.float32
        assert all(space.contains(row) for row in chosen)
    if algorithm is not SAC:  # SAC's policy is stochastic
        best = model.policy.scale_action(model.predict(observation, deterministic=True)[0])
        far = model.policy.scale_action(chosen) - best
        inside = np.abs(best) < 0.3
        assert inside.any()
        assert far[inside].std() == pytest.approx(0.2, rel=0.15)


def test_stateful_noise_is_reset_with_each_episode() -> None:
    noise = OrnsteinUhlenbeckActionNoise(np.zeros(3), np.full(3, 0.2))
    model = model_of(action="box", algorithm=TD3, action_noise=noise)
    model.learn(12)
    assert model.action_noise.n_envs == N  # and not that of the Collector's envs
    model.num_timesteps = 50
    policy: Any = sb3_policy(model)
    observation = np.zeros((2, 4), np.float32)
    policy(observation, np.array([True, True]))
    policy(observation, np.array([False, True]))
    one, other = policy._action_noise.noises
    assert one is not other
    assert one is not noise
    policy(observation, np.array([False, False]))
    before = one.noise_prev.copy()
    resets: list[int] = []
    for index, each in enumerate((one, other)):
        each.reset = lambda index=index: resets.append(index)
    policy(observation, np.array([False, True]))
    assert resets == [1]
    assert (one.noise_prev != before).any()


def test_use_sde_at_warmup_explores_with_state_dependent_noise() -> None:
    model = model_of(action="box", use_sde=True, use_sde_at_warmup=True, train_freq=4)
    drawn: list[int] = []
    kept = model.actor.reset_noise

    def reset_noise(count: int) -> None:
        drawn.append(count)
        kept(count)

    model.actor.reset_noise = reset_noise
    policy: Any = sb3_policy(model)
    for _ in range(9):
        policy(np.zeros((2, 4), np.float32), np.zeros(2, bool))
    assert drawn == [2, 2, 2]


def test_the_policy_sees_what_vec_normalize_makes_of_observations() -> None:
    model = model_of(env=VecNormalize(DummyVecEnv(makers("vector", "discrete"))))
    model.learn(STEPS)
    policy: Any = sb3_policy(model, deterministic=True)
    seen: list[Any] = []
    kept = model.policy.predict

    def predict(shown: Any, deterministic: bool) -> Any:
        seen.append(shown)
        return kept(shown, deterministic=deterministic)

    model.policy.predict = predict
    observation = np.stack([observation_of("vector", Tag(n, 3, 1)) for n in range(N)])
    policy(observation, np.zeros(N, bool))
    statistics = model.get_vec_normalize_env()
    np.testing.assert_array_equal(seen[0], statistics.normalize_obs(observation))


def test_counting_follows_sb3s_own_counts() -> None:
    ours, theirs = (model_of(target_update_interval=6, train_freq=1) for _ in range(2))
    theirs.learn(30)
    for steps in (9, 0, 12, 9):
        count_sb3_steps(ours, steps, total_steps=30)
    for name in ("num_timesteps", "exploration_rate", "_current_progress_remaining", "_n_calls"):
        assert getattr(ours, name) == getattr(theirs, name), name


# Errors


def test_unsupported_models_are_refused() -> None:
    replay = SequenceReplayBuffer()
    with pytest.raises(TypeError, match=r"as_sb3_replay.*DQN.*got PPO.*to_sb3_rollout"):
        as_sb3_replay(replay, PPO("MlpPolicy", TagEnv(), n_steps=2, batch_size=2))
    with pytest.raises(TypeError, match=r"as_sb3_replay.*PPO or DQN.*got str"):
        as_sb3_replay(replay, "DQN")
    model = model_of()
    model.optimize_memory_usage = True
    with pytest.raises(ValueError, match=r"as_sb3_replay.*optimize_memory_usage"):
        as_sb3_replay(replay, model)
    model = model_of()
    model.replay_buffer_class = HerReplayBuffer
    with pytest.raises(TypeError, match=r"as_sb3_replay.*HerReplayBuffer"):
        as_sb3_replay(replay, model)


def test_mismatched_observations_and_actions_are_refused() -> None:
    replay = filled()
    for kind, action, match in (
        ("many", "discrete", r"observation.*int64 \(3,\).*float32 \(4,\)"),
        ("dict", "discrete", r"observation.*'discrete'.*'vector'.*ndarray"),
        ("vector", "box", r"action.*Box.*int64 \(\)"),
    ):
        with pytest.raises(ValueError, match=match):
            as_sb3_replay(replay, model_of(kind, action))
    empty = SequenceReplayBuffer()
    buffer = as_sb3_replay(empty, model_of("many"))
    with pytest.raises(NotEnoughData, match=r"replay in RAM.*\b0\b"):
        buffer.sample(2)
    with sw.Collector(vector_env("vector", "discrete"), sw.RandomPolicy(), empty) as collector:
        collector.collect(steps=10)
    with pytest.raises(ValueError, match=r"observation.*int64 \(3,\).*float32 \(4,\)"):
        buffer.sample(2)


def test_an_action_outside_the_models_space_is_refused() -> None:
    class Two(TagEnv):
        actions = spaces.Discrete(2)

        def __init__(self) -> None:
            super().__init__()
            self.action_space = self.actions

    buffer = as_sb3_replay(filled(), model_of(env=DummyVecEnv([Two])))
    with pytest.raises(ValueError, match=r"action.*Discrete\(2\).*\b[23]\b"):
        buffer.sample(64)

    Two.actions = spaces.Discrete(2, start=1)
    with pytest.raises(ValueError, match=r"action.*0.*Discrete\(2, start=1\)"):
        as_sb3_replay(SequenceReplayBuffer(), model_of(env=DummyVecEnv([Two])))


def test_add_is_refused_for_a_replay_that_a_collector_writes() -> None:
    replay, model = filled(), model_of()
    buffer = as_sb3_replay(replay, model)
    row, steps = np.zeros((N, 4), np.float32), replay.steps
    with pytest.raises(ValueError, match=r"add.*Collector.*model\.train"):
        buffer.add(row, row, np.zeros(N, int), np.zeros(N), np.zeros(N, bool), [{}] * N)
    assert replay.steps == steps


def test_invalid_steps_are_refused_and_not_stored() -> None:
    buffer = as_sb3_replay(SequenceReplayBuffer(seed=0), model_of())
    row = np.zeros((N, 4), np.float32)
    infos: list[dict[str, Any]] = [{}] * N
    good = row, row, np.zeros(N, int), np.zeros(N), np.zeros(N, bool), infos
    wide, short = row.astype(np.float64), np.zeros((2, 4), np.float32)
    for place, wrong, match in (
        (0, wide, r"observation.*float32 \(4,\).*float64 \(4,\)"),
        (1, wide, r"observation.*float32 \(4,\).*float64 \(4,\)"),
        (0, short, r"'observation'.*float32 \(3, 4\).*float32 \(2, 4\)"),
        (2, np.zeros(N), r"action.*int64.*float64"),
        (2, np.zeros(2, int), r"action.*\(3,\).*\(2,\)"),
        (3, np.zeros(2), r"reward.*\(3,\).*\(2,\)"),
        (4, np.zeros((N, 2)), r"done.*\(3,\).*\(3, 2\)"),
        (5, [{}], r"infos.*\b3\b.*got 1"),
        # Values that are no numbers or flags: all that the drop-in's `add` refuses, too.
        (0, np.ma.zeros((N, 4), np.float32) + np.ma.masked, r"^observation: .*masked"),
        (2, np.ma.array(np.zeros(N, int), mask=True), r"^action: .*masked"),
        (3, [None] * N, r"^reward: expected"),
        (4, np.array(["False"] * N), r"^done: expected"),
        (5, [{"TimeLimit.truncated": "False"}] + [{}] * (N - 1), r"^TimeLimit\.truncated: exp"),
        (5, None, r"^infos: expected"),
    ):
        step: Any = [wrong if i == place else part for i, part in enumerate(good)]
        with pytest.raises((ValueError, SpecMismatch), match=match):
            buffer.add(*step)
    buffer.flush()
    assert len(buffer.replay) == 0
    buffer.extend(*([part] for part in good))
    buffer.flush()
    assert len(buffer.replay) == N


def test_the_replay_is_not_pickled_but_models_are(tmp_path: Path) -> None:
    model = model_of()
    model.replay_buffer = as_sb3_replay(SequenceReplayBuffer(tmp_path / "steps"), model)
    with pytest.raises(TypeError, match=r"save_replay_buffer.*/steps;.*as_sb3_replay"):
        model.save_replay_buffer(io.BytesIO())
    with pytest.raises(
        TypeError, match=r"save_replay_buffer.*RAM.*SequenceReplayBuffer.*as_sb3_replay"
    ):
        pickle.dumps(as_sb3_replay(SequenceReplayBuffer(), model))
    model.learn(12)
    model.save(tmp_path / "model.zip")
    again = DQN.load(tmp_path / "model.zip")
    again.replay_buffer = as_sb3_replay(model.replay_buffer.replay, again)
    model.replay_buffer.flush()
    count_sb3_steps(again, 0, total_steps=12)
    again.train(gradient_steps=1, batch_size=4)
    model.replay_buffer.replay.close()


def test_invalid_counts_are_refused() -> None:
    model = model_of()
    for steps, total, match in (
        (-1, 10, r"^steps.*got -1"),
        (1, 0, r"total_steps.*got 0"),
        (1, None, r"total_steps.*exploration.*got None"),
    ):
        with pytest.raises(ValueError, match=match):
            count_sb3_steps(model, steps, total_steps=total)
    assert model.num_timesteps == 0
