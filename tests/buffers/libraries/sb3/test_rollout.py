"""to_sb3_rollout and sb3_policy with PPO and A2C of Stable-Baselines3."""

from __future__ import annotations

import copy
import dataclasses
import importlib
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st

import stepwell as sw
from stepwell.buffers import Bootstrap, Rollout
from support.examples import examples
from support.libraries.sb3_envs import (
    ACTIONS,
    KINDS,
    Action,
    Kind,
    Tag,
    TagEnv,
    joined,
    makers,
    observation_of,
    vector_env,
)
from support.rows.rollout_rows import (
    Column,
    Part,
    expected_advantages,
    labels,
    mask_of,
    rollout_of,
    rollouts,
)

pytest.importorskip("stable_baselines3", reason="needs stable_baselines3")

import torch
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import ConvertCallback
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from stepwell.buffers.libraries.sb3.policy import SB3Actor, sb3_policy
from stepwell.buffers.libraries.sb3.rollout import to_sb3_rollout
from stepwell.collectors.policies.as_policy import as_policy

NEXT_STEP, SAME_STEP = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP
T, N, GAMMA, LAM = 7, 3, 0.75, 0.5
SAME_ROWS = ("observations", "actions", "values", "log_probs", "episode_starts")


def model_of(kind: Kind = "vector", action: Action = "discrete", **options: Any) -> Any:
    """A PPO with a small network for the env's observations."""
    policy = "MultiInputPolicy" if kind == "dict" else "MlpPolicy"
    # SB3's networks for images need larger ones.
    extractor: Any = joined if kind == "dict" else FlattenExtractor
    chosen = {
        "n_steps": T,
        "batch_size": T,
        "n_epochs": 2,
        "gamma": GAMMA,
        "gae_lambda": LAM,
        "seed": 3,
        "policy_kwargs": {"net_arch": [8], "features_extractor_class": extractor},
        "device": "cpu",
        **options,
    }
    return PPO(policy, DummyVecEnv(makers(kind, action)), **chosen)


# Compared with SB3's own loop


def collected_by_sb3(model: Any, rollouts: int) -> list[dict[str, Any]]:
    """Copies of the buffers that the model's own loop fills."""
    _, callback = model._setup_learn(1_000, ConvertCallback(lambda *_: True))
    torch.manual_seed(11)
    found: list[dict[str, Any]] = []
    for _ in range(rollouts):
        model.collect_rollouts(model.env, callback, model.rollout_buffer, model.n_steps)
        found.append(copied(model.rollout_buffer))
    return found


def copied(buffer: Any) -> dict[str, Any]:
    names = (*SAME_ROWS, "rewards", "advantages", "returns")
    return {name: copy.deepcopy(getattr(buffer, name)) for name in names}


def assert_same_rows(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    for name in SAME_ROWS:
        np.testing.assert_equal(ours[name], theirs[name], err_msg=name)
        for key, array in parts_of(ours[name]):
            assert array.dtype == dict(parts_of(theirs[name]))[key].dtype, (name, key)
    for name in ("rewards", "advantages", "returns"):
        # SB3 computes the values of last observations one by one, which rounds differently.
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-5, atol=1e-5, err_msg=name)
        assert ours[name].dtype == theirs[name].dtype


def parts_of(value: Any) -> list[tuple[str, Any]]:
    return list(value.items()) if isinstance(value, dict) else [("", value)]


NOISE: dict[str, Any] = {
    "use_sde": True,
    "policy_kwargs": {"net_arch": [8], "squash_output": True},
}


@pytest.mark.parametrize(
    ("kind", "action", "options"),
    [
        *((kind, "discrete", {}) for kind in KINDS),
        *((kind, a, {}) for kind in ("vector", "dict") for a in ACTIONS[1:]),
        *(("vector", "box", {**NOISE, "sde_sample_freq": every}) for every in (-1, 3)),
    ],
)
def test_rollouts_are_those_of_sb3s_own_loop(
    kind: Kind, action: Action, options: dict[str, Any]
) -> None:
    theirs = collected_by_sb3(model_of(kind, action, **options), 4)
    model = model_of(kind, action, **options)
    torch.manual_seed(11)
    with sw.Collector(vector_env(kind, action), sb3_policy(model), seed=0) as collector:
        for their in theirs:
            rollout = collector.rollout(T)
            buffer = to_sb3_rollout(rollout, model)
            assert buffer is model.rollout_buffer
            assert_same_rows(copied(buffer), their)
            assert all(model.action_space.contains(row) for rows in rollout.action for row in rows)


# Compared with the steps of the envs


def rollout_rows_model() -> Any:
    """A model for the rollouts of `rollout_rows`."""
    space = spaces.Dict(
        {
            "place": spaces.Box(0, 10**6, (1,), np.int64),
            "frame": spaces.Box(0, 255, (2, 3), np.uint8),
        }
    )

    replay = sw.SequenceReplayBuffer()
    replay.writer((space, spaces.Discrete(5))).close()
    env = sw.bridges.sb3_env(replay)
    return PPO(
        "MultiInputPolicy", env, n_steps=2, batch_size=2, gamma=GAMMA, gae_lambda=LAM, seed=0
    )


MODEL: list[Any] = []


def given_rollout(columns: list[Column], **options: Any) -> Rollout:
    """A rollout of `rollout_rows`, in dtypes that SB3 takes."""
    rollout = rollout_of(columns, dtype=np.float32, **options)
    number = labels(rollout.num_steps, rollout.num_envs)
    seen: Any = rollout.observation
    behind: Any = {
        "place": rollout.bootstrap.step[:, None],
        "frame": np.zeros((len(rollout.bootstrap.step), 2, 3), np.uint8),
    }
    extras = {**rollout.extras, "log_prob": rollout.extras["log_prob"].astype(np.float32)}
    bootstrap = rollout.bootstrap._replace(observation=behind)
    return dataclasses.replace(
        rollout,
        observation=cast("Any", {**seen, "place": number[..., None]}),
        action=number % 5,
        extras=extras,
        bootstrap=bootstrap,
    )


@given(rollouts(), st.booleans())
@settings(max_examples=examples(120))
def test_any_rollout_with_cuts_and_lost_rows_gives_the_advantages_of_the_definition(
    columns: list[Column], lists_terminated: bool
) -> None:
    MODEL[:] = MODEL or [rollout_rows_model()]
    model, rollout = MODEL[0], given_rollout(columns, lists_terminated=lists_terminated)
    rollout.reward[~rollout.mask] = np.nan
    if lists_terminated:  # must not be read
        ends = rollout.terminated[rollout.bootstrap.step, rollout.bootstrap.env]
        assert rollout.bootstrap.value is not None
        rollout.bootstrap.value[ends] = 1_000
    model.n_steps = rollout.num_steps
    if not rollout.mask.any():
        with pytest.raises(ValueError, match=r"to_sb3_rollout.*none in \d+ rows"):
            to_sb3_rollout(rollout, model)
        return
    buffer = to_sb3_rollout(rollout, model)
    wanted, mask = expected_advantages(columns, GAMMA, LAM), mask_of(columns)
    number = labels(*mask.shape)
    kept = buffer.observations["place"].ravel()
    starts, ended = rollout.is_first.copy(), rollout.terminated | rollout.truncated | rollout.cut
    starts[1:] |= ended[:-1]
    reward = np.nan_to_num(rollout.reward)
    behind: Any = rollout.bootstrap
    for step, env, worth in zip(behind.step, behind.env, behind.value, strict=True):
        if ended[step, env] and not rollout.terminated[step, env]:
            reward[step, env] += np.float32(GAMMA * worth)
    np.testing.assert_array_equal(buffer.episode_starts.ravel(), starts.ravel()[kept])
    np.testing.assert_allclose(buffer.rewards.ravel(), reward.ravel()[kept], rtol=1e-6)
    seen: list[int] = []
    for batch in buffer.get(3):
        places = batch.observations["place"].numpy().ravel()
        seen += places.tolist()
        flat = wanted.ravel()[places]
        np.testing.assert_allclose(batch.advantages, flat, rtol=1e-4, atol=1e-4)
        values = rollout.extras["value"].ravel()[places]
        np.testing.assert_array_equal(batch.old_values, values)
        np.testing.assert_allclose(batch.returns, flat + values, rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(batch.old_log_prob, places)
        np.testing.assert_array_equal(batch.actions.numpy().ravel(), places % 5)
        assert torch.isfinite(batch.advantages).all()
    assert sorted(seen) == sorted(number[mask].tolist())


def test_advantages_stop_at_an_end_without_a_marked_reset() -> None:
    columns = [Column(2, (Part(0, (1.0, 2.0), (3.0, 4.0), "open", 5.0, True),))]
    rollout = given_rollout(columns)
    rollout.terminated[0] = True
    model = rollout_rows_model()
    buffer = to_sb3_rollout(rollout, model)
    np.testing.assert_array_equal(buffer.advantages[:, 0], [1 - 3, 2 + GAMMA * 5 - 4])


# ask_model


@pytest.mark.parametrize(("kind", "action"), [("vector", "box"), ("dict", "discrete")])
def test_ask_model_computes_the_extras_of_the_policy(kind: Kind, action: Action) -> None:
    model = model_of(kind, action)
    with sw.Collector(vector_env(kind, action, NEXT_STEP), sb3_policy(model), seed=0) as collector:
        rollout = collector.rollout(T)
    given = copied(to_sb3_rollout(rollout, model))
    bare = dataclasses.replace(
        rollout,
        extras={k: v for k, v in rollout.extras.items() if k == "raw_action"},
        bootstrap=rollout.bootstrap._replace(value=None),
    )
    with pytest.raises(ValueError, match=r"to_sb3_rollout.*'value'.*ask_model=True"):
        to_sb3_rollout(bare, model)
    asked = copied(to_sb3_rollout(bare, model, ask_model=True))
    for name, array in given.items():
        for key, part in parts_of(array):
            other = dict(parts_of(asked[name]))[key]
            np.testing.assert_allclose(part, other, rtol=1e-4, atol=1e-5, err_msg=name)


def test_dropout_and_batch_norms_are_off_while_the_model_is_asked(rollout: Rollout) -> None:
    model = model_of()
    policy = cast("Any", sb3_policy(model))
    observation = rollout.observation[0]
    asks: list[Callable[[], object]] = [
        lambda: policy(observation, np.zeros(N, bool)),
        lambda: policy.value(observation),
        lambda: to_sb3_rollout(rollout, model, ask_model=True),
    ]
    for ask in asks:
        model.policy.set_training_mode(True)
        ask()
        assert not model.policy.training


# The model's counts


def test_the_model_counts_steps_progress_and_episodes() -> None:
    model = model_of(n_steps=16, batch_size=16)
    with sw.Collector(
        vector_env("vector", "discrete", NEXT_STEP), sb3_policy(model), seed=0
    ) as collector:
        first = collector.rollout(16)
        to_sb3_rollout(first, model, total_steps=100)
        assert model.num_timesteps == first.steps < 48
        assert model._current_progress_remaining == 1 - first.steps / 100
        second = collector.rollout(16)
        to_sb3_rollout(second, model)
        assert model.num_timesteps == first.steps + second.steps
        assert model._current_progress_remaining == 1 - first.steps / 100
    returns = [*first.episode_returns, *second.episode_returns]
    assert [episode["r"] for episode in model.ep_info_buffer] == returns
    lengths = [*first.episode_lengths, *second.episode_lengths]
    assert [episode["l"] for episode in model.ep_info_buffer] == lengths
    model.train()
    model.dump_logs(1)
    assert model.logger.name_to_value == {}  # all values were logged


def test_a_model_of_one_env_trains_on_many_and_learn_still_works() -> None:
    model = A2C("MlpPolicy", TagEnv(), n_steps=T, seed=0)
    with sw.Collector(
        vector_env("vector", "discrete", NEXT_STEP), sb3_policy(model), seed=0
    ) as collector:
        for _ in range(3):
            to_sb3_rollout(collector.rollout(T), model)
            model.train()
    model.learn(2 * T, reset_num_timesteps=False)
    buffer = model.rollout_buffer
    assert isinstance(buffer, RolloutBuffer)
    assert (buffer.buffer_size, buffer.n_envs, buffer.pos) == (T, 1, T)


# Errors


@pytest.fixture
def rollout() -> Rollout:
    policy = sb3_policy(model_of())
    with sw.Collector(vector_env("vector", "discrete"), policy, seed=0) as collector:
        return collector.rollout(T)


def refused(rollout: Rollout, model: Any, error: type[Exception], match: str, **more: Any) -> None:
    """Assert that the call raises an error and leaves the model unchanged."""
    before, buffer = model.num_timesteps, getattr(model, "rollout_buffer", None)
    with pytest.raises(error, match=match):
        to_sb3_rollout(rollout, model, **more)
    assert model.num_timesteps == before
    assert getattr(model, "rollout_buffer", None) is buffer


def test_rollouts_that_do_not_fit_the_model_are_refused(rollout: Rollout) -> None:
    seen: Any = rollout.observation
    step, env, behind = (np.asarray(part)[:0] for part in rollout.bootstrap[:3])
    for changes, model, match in (
        ({}, model_of(n_steps=8, batch_size=8), r"n_steps=8.*got 7\b"),
        ({}, model_of(action="many"), r"action.*MultiDiscrete.*int64 \(\)"),
        ({"action": rollout.action + 2}, model_of(), r"action.*Discrete\(4\).*got .*4"),
        ({}, model_of("many"), r"observation.*int64 \(3,\).*float32 \(4,\)"),
        ({}, model_of("dict"), r"observation.*'discrete'.*'vector'.*ndarray"),
        ({"observation": seen.astype(float)}, model_of(), r"float32 \(4,\).*float64 \(4,\)"),
        ({"observation": {"vector": seen}}, model_of(), r"observation.*Box.*'vector'"),
        (
            {"bootstrap": Bootstrap(step, env, behind, None, np.zeros(0))},
            model_of(),
            r"bootstrap.*row 2 of env 0.*\b0\b",
        ),
    ):
        refused(dataclasses.replace(rollout, **changes), model, ValueError, match)


@pytest.mark.parametrize("name", ["value", "log_prob"])
def test_extras_must_be_present_finite_and_float32(rollout: Rollout, name: str) -> None:
    wide = {**rollout.extras, name: rollout.extras[name].astype(np.float64)}
    spoiled = rollout.extras[name].copy()
    spoiled[2, 1] = np.nan
    for extras, match in (
        (wide, rf"'{name}'.*float32 \(7, 3\).*float64 \(7, 3\)"),
        ({**rollout.extras, name: spoiled}, f"'{name}'.*nan.*row 2 of env 1"),
        ({}, r"to_sb3_rollout.*'value'.*none.*ask_model=True"),
    ):
        refused(dataclasses.replace(rollout, extras=extras), model_of(), ValueError, match)
    bare = rollout.bootstrap._replace(value=None)
    refused(
        dataclasses.replace(rollout, bootstrap=bare),
        model_of(),
        ValueError,
        r"bootstrap\.value.*\b6\b.*got None",
    )


def test_unsupported_models_are_refused(rollout: Rollout) -> None:
    dqn = DQN("MlpPolicy", TagEnv(), buffer_size=1)
    refused(rollout, dqn, TypeError, r"to_sb3_rollout.*PPO.*got DQN.*as_sb3_replay")
    refused(cast("Any", {}), model_of(), TypeError, r"Rollout.*a dict.*collector\.rollout")
    with pytest.raises(TypeError, match=r"PPO or DQN.*ActorCriticPolicy"):
        to_sb3_rollout(rollout, model_of().policy)

    class Own(RolloutBuffer):
        pass

    refused(
        rollout,
        model_of(rollout_buffer_class=Own),
        TypeError,
        r"to_sb3_rollout.*DictRolloutBuffer.*\bOwn\b",
    )
    normalised = PPO("MlpPolicy", VecNormalize(DummyVecEnv([TagEnv])), n_steps=T, batch_size=T)
    refused(rollout, normalised, ValueError, r"to_sb3_rollout.*VecNormalize")
    with pytest.raises(ValueError, match=r"sb3_policy.*VecNormalize"):
        sb3_policy(normalised)


class _Masked(PPO):
    """As sb3-contrib's MaskablePPO: its predict takes masks."""

    def predict(self, *given: Any, action_masks: Any = None, **options: Any) -> Any:
        raise AssertionError("played without masks")


@pytest.mark.parametrize("place", ["model", "policy", "state"])
def test_models_that_need_masks_or_a_state_are_refused(place: str, rollout: Rollout) -> None:
    model, what = model_of(), "action_masks"
    if place == "model":
        model.__class__ = _Masked
    elif place == "policy":
        model.policy.predict = partial(_Masked.predict, model)
    else:
        model.policy.lstm_actor, what = torch.nn.Identity(), "recurrent policy"
    refused(rollout, model, TypeError, rf"to_sb3_rollout.*{type(model).__name__}.*{what}")
    for name, call in (
        ("sb3_policy", sb3_policy),
        ("sb3_policy", as_policy),
        ("as_sb3_replay", lambda model: sw.bridges.as_sb3_replay(sw.SequenceReplayBuffer(), model)),
        ("count_sb3_steps", lambda model: sw.bridges.count_sb3_steps(model, 1)),
    ):
        with pytest.raises(TypeError, match=rf"{name}.*{type(model).__name__}.*{what}"):
            call(model)


def test_models_of_sb3_contrib_play_or_are_refused() -> None:
    contrib = pytest.importorskip("sb3_contrib", reason="needs sb3_contrib")
    envs = importlib.import_module("sb3_contrib.common.envs")

    masked = contrib.MaskablePPO("MlpPolicy", envs.InvalidActionEnvDiscrete(dim=4), n_steps=8)
    with pytest.raises(TypeError, match=r"sb3_policy.*MaskablePPO.*action_masks"):
        sb3_policy(masked)
    recurrent = contrib.RecurrentPPO("MlpLstmPolicy", "CartPole-v1", n_steps=8)
    with pytest.raises(TypeError, match=r"sb3_policy.*recurrent.*RecurrentPPO"):
        sb3_policy(recurrent)
    sb3_policy(contrib.TRPO("MlpPolicy", "CartPole-v1", n_steps=8, batch_size=8))


def test_the_envs_must_take_the_models_actions() -> None:
    model = model_of(action="many")
    envs = vector_env("vector", "discrete")
    with pytest.raises(ValueError, match=r"sb3_policy.*MultiDiscrete.*Discrete\(4\)"):
        sw.Collector(envs, sb3_policy(model), seed=0)
    envs.close()


def test_the_policy_acts_as_sb3_does() -> None:
    model = model_of("vector", "box", policy_kwargs={"log_std_init": 2.0, "net_arch": [8]})
    policy = sb3_policy(model)
    assert isinstance(policy, SB3Actor)
    observation = np.stack([observation_of("vector", Tag(n, 0, 0)) for n in range(N)])
    action, extras = policy(observation, np.ones(N, bool))
    space = model.action_space
    np.testing.assert_array_equal(action, np.clip(extras["raw_action"], space.low, space.high))
    assert (action != extras["raw_action"]).any()
    best, _ = cast("Any", sb3_policy(model, deterministic=True))(observation, np.ones(N, bool))
    np.testing.assert_array_equal(best, model.predict(observation, deterministic=True)[0])
