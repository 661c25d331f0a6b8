"""to_tensordict: every TensorDict holds what happened in the envs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings

import stepwell as sw
from stepwell.buffers import Bootstrap
from support.envs.logged_envs import (
    Kind,
    Logged,
    Play,
    log_prob_of,
    numbers,
    place_of,
    same_tree,
    value_of,
)
from support.examples import examples
from support.rows.rollout_rows import Column, expected_advantages, mask_of, rollout_of, rollouts

torch = pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("torchrl", reason="needs torchrl")

from stepwell.buffers.libraries.torchrl.batches import to_tensordict  # noqa: E402

KINDS: tuple[Kind, ...] = ("vector", "dict", "stack-zero", "stack-repeat")
MODES = (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP)


def plain(value: Any) -> Any:
    """Tensors and TensorDicts as arrays and dicts."""
    if hasattr(value, "keys"):
        return {key: plain(value.get(key)) for key in value.keys()}
    return value.numpy()


def at(tree: Any, place: Any) -> Any:
    """One row of nested arrays."""
    if isinstance(tree, dict):
        return {key: at(part, place) for key, part in tree.items()}
    return tree[place]


def assert_step(row: Any, play: Play, *, is_cut: bool | None = None) -> Logged:
    """Assert that a row of a TensorDict equals a logged step."""
    step = play.steps[place_of(row["observation"])]
    after = row["next"]
    assert same_tree(row["observation"], step.observation)
    assert row["action"].dtype == np.int64
    assert row["action"].shape == ()
    assert row["action"] == step.action
    assert after["reward"].dtype == np.float32
    assert after["reward"].tolist() == [step.reward]
    assert after["terminated"].tolist() == [step.terminated]
    if is_cut is not None:
        assert after["cut"].tolist() == [is_cut]
    cut = bool(after["cut"][0])
    assert after["truncated"].tolist() == [step.truncated or cut]
    assert after["done"].tolist() == [step.terminated or step.truncated or cut]
    assert (
        row["done"].tolist() == row["terminated"].tolist() == row["truncated"].tolist() == [False]
    )
    seen = numbers(at_batch(row["observation"]))
    assert row["action_log_prob"].shape == ()
    assert row["action_log_prob"] == log_prob_of(seen)[0]
    assert row["state_value"].tolist() == [value_of(seen)[0]]
    return step


def at_batch(observation: Any) -> Any:
    if isinstance(observation, dict):
        return {key: at_batch(part) for key, part in observation.items()}
    return observation[None]


@pytest.mark.parametrize("kind", KINDS)
def test_every_transition_is_a_step_that_the_env_took(kind: Kind) -> None:
    play = Play(kind)
    replay = play.replay()
    batch = next(iter(replay.epoch(sw.Transitions(1000), shuffle=False)))
    found = to_tensordict(batch)
    rows = plain(found)
    cut_behind = {place_of(steps[-1].observation) for _, steps in play.episodes}
    for b in range(len(found)):
        row = at(rows, b)
        step = assert_step(row, play)
        assert same_tree(row["next"]["observation"], step.following)
        ended = step.terminated or step.truncated
        is_cut = not ended and place_of(step.observation) in cut_behind
        assert row["next"]["cut"].tolist() == [is_cut]
        assert row["next"]["lives"] == place_of(step.observation)[2] + 1
        assert row["steps_to_next_obs"].tolist() == [1]
        assert row["index"] == batch.ids[b]
        assert row["priority_weight"] == 1
    assert len(found) == len(play.steps) > 40
    assert play.cuts


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("time_major", [False, True])
def test_sequences_are_batch_first_with_a_mask(kind: Kind, time_major: bool) -> None:
    play = Play(kind)
    replay = play.replay()
    batch = replay.sample_sequences(
        40,
        length=4,
        borders="pad_after",
        align="transition",
        stack=kind.startswith("stack"),
        time_major=time_major,
    )
    found = to_tensordict(batch, time_major=time_major)
    assert found.batch_size == (40, 4)
    rows = plain(found)
    mask = rows["collector"]["mask"]
    assert mask.sum() > 60
    assert not mask.all()
    for b, t in np.argwhere(mask):
        row = at(rows, (b, t))
        step = assert_step(row, play)
        assert same_tree(row["next"]["observation"], step.following)
        assert row["is_init"].tolist() == [place_of(step.observation)[2] == 0]
        assert row["index"] == batch.ids[b]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rows", ["steps", "grid"])
def test_next_of_each_rollout_row_is_what_the_env_returned(
    kind: Kind, mode: AutoresetMode, rows: Any
) -> None:
    play = Play(kind, mode=mode)
    collector = play.collector()
    seen: set[tuple[int, int, int]] = set()
    for _ in range(3):
        rollout = collector.rollout(steps=11)
        found = to_tensordict(rollout, rows=rows)
        table = plain(found)
        mask = table["collector"]["mask"] if rows == "grid" else np.ones(rollout.steps, bool)
        assert found.batch_size == ((3, 11) if rows == "grid" else (rollout.steps,))
        last_of = {env: place_of_last(rollout, env) for env in range(3)}
        for place in map(tuple, np.argwhere(mask)):
            row = at(table, place)
            goes_on = place_of(row["observation"]) == last_of[place_of(row["observation"])[0]]
            step = play.steps[place_of(row["observation"])]
            ended = step.terminated or step.truncated
            assert_step(row, play, is_cut=goes_on and not ended)
            seen.add(place_of(step.observation))
            after = row["next"]
            if step.terminated and not same_tree(after["observation"], step.following):
                assert not any(leaf.any() for leaf in leaves(after["observation"]))
                assert mode is AutoresetMode.SAME_STEP or goes_on
            elif not step.terminated:
                assert same_tree(after["observation"], step.following)
                value = value_of(numbers(at_batch(step.following)))[0]
                assert after["state_value"].tolist() == [value]
            if step.terminated:
                assert after["state_value"].tolist() == [0]
        if rows == "grid" and mode is AutoresetMode.NEXT_STEP:
            assert not mask.all()
            assert table["next"]["done"][~mask].all()
            assert table["next"]["terminated"][~mask].all()
            assert not table["next"]["reward"][~mask].any()
            assert not table["state_value"][~mask].any()
    assert seen == set(play.steps)


def test_next_observation_of_a_termination_is_never_a_reset() -> None:
    """Under SAME_STEP row 1 begins an episode whose worker died in the first step."""
    no, yes = np.array([[False]]), np.array([[True]])
    nowhere = np.zeros(0, np.int64), np.zeros(0, np.int64)
    rollout = sw.Rollout(
        observation=np.array([[7.0], [8.0], [9.0]]),
        action=np.zeros((3, 1), np.int64),
        reward=np.ones((3, 1), np.float32),
        is_first=np.r_[yes, yes, yes],
        terminated=np.r_[yes, no, yes],
        truncated=np.r_[no, no, no],
        cut=np.r_[no, no, no],
        mask=np.r_[yes, no, yes],
        info={},
        extras={},
        bootstrap=Bootstrap(*nowhere, np.zeros(0), None, None),
    )
    for rows in ("steps", "grid"):
        found = to_tensordict(rollout, rows=rows)
        assert not found["next", "observation"].any()


def place_of_last(rollout: sw.Rollout, env: int) -> tuple[int, int, int]:
    last = np.flatnonzero(rollout.mask[:, env])[-1]
    return place_of(at(rollout.observation, (last, env)))


def leaves(tree: Any) -> list[Any]:
    return (
        [leaf for part in tree.values() for leaf in leaves(part)]
        if isinstance(tree, dict)
        else [tree]
    )


@settings(max_examples=examples(60), deadline=None)
@given(rollouts())
def test_gae_is_right_for_any_rollout(columns: list[Column]) -> None:
    from torchrl.objectives.value import GAE

    rollout = rollout_of(columns, lists_terminated=True)
    behind = at(rollout.observation, (rollout.bootstrap.step, rollout.bootstrap.env))
    rollout.bootstrap = rollout.bootstrap._replace(observation=behind)
    mask = mask_of(columns)
    if not mask.any():
        return
    gae = GAE(gamma=0.9, lmbda=0.7, value_network=None, vectorized=False)
    expected = expected_advantages(columns, 0.9, 0.7)
    grid = to_tensordict(rollout, rows="grid")
    steps = to_tensordict(rollout)
    for found, wanted in (
        (gae(steps)["advantage"][:, 0].numpy(), expected.T[mask.T]),
        (gae(grid)["advantage"][..., 0].numpy()[mask.T], expected.T[mask.T]),
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_dqn_loss_equals_a_numpy_computation() -> None:
    from torchrl.modules import QValueActor
    from torchrl.objectives import DQNLoss

    net = torch.nn.Linear(5, 4, dtype=torch.float64)
    replay = Play().replay()
    batch = replay.sample_transitions(64, n_step=3, gamma=0.9)
    for one_hot in (None, 4):
        space = "one_hot" if one_hot else "categorical"
        actor = QValueActor(net, in_keys=["observation"], action_space=space)
        loss = DQNLoss(actor, action_space=space, delay_value=False, loss_function="l2")
        loss.make_value_estimator(gamma=0.9)
        found = loss(to_tensordict(batch, one_hot=one_hot))["loss"].item()
        with torch.no_grad():
            q = net(torch.from_numpy(batch.observation)).numpy()
            after = net(torch.from_numpy(batch.next_observation)).numpy().max(axis=1)
        target = batch.reward + 0.9**batch.steps * ~batch.terminated * after
        by_hand = ((q[np.arange(64), batch.action] - target) ** 2).mean()
        assert found == pytest.approx(by_hand, rel=1e-5)


def test_ppo_loss_equals_a_numpy_computation() -> None:
    from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential
    from tensordict.nn import TensorDictModule as Module
    from torchrl.objectives import ClipPPOLoss

    actor_net = torch.nn.Linear(5, 4, dtype=torch.float64)
    with torch.no_grad():
        actor_net.weight.mul_(1e-3)
    draws = ProbabilisticTensorDictModule(
        in_keys=["logits"],
        out_keys=["action"],
        distribution_class=torch.distributions.Categorical,
        return_log_prob=True,
    )
    parts: list[Any] = [Module(actor_net, in_keys=["observation"], out_keys=["logits"]), draws]
    actor = ProbabilisticTensorDictSequential(*parts)
    critic_net = torch.nn.Linear(5, 1, dtype=torch.float64)
    critic = Module(critic_net, in_keys=["observation"], out_keys=["state_value"])
    loss = ClipPPOLoss(actor, critic, clip_epsilon=0.2, entropy_bonus=False, loss_critic_type="l2")
    coefficient: Any = loss.critic_coeff
    coefficient = coefficient.item()
    rollout = Play().collector().rollout(steps=20)
    rollout.advantages(0.99, 0.95)
    every = next(rollout.minibatches(10_000))
    for data in (every, rollout):
        found = loss(to_tensordict(data))
        with torch.no_grad():
            log_probs = actor_net(torch.from_numpy(every.observation)).log_softmax(1).numpy()
            value = critic_net(torch.from_numpy(every.observation)).numpy()[:, 0]
        ratio = np.exp(log_probs[np.arange(len(value)), every.action] - every.extras["log_prob"])
        gain = np.minimum(ratio * every.advantage, ratio.clip(0.8, 1.2) * every.advantage)
        assert found["loss_objective"].item() == pytest.approx(-gain.mean(), rel=1e-4)
        error = ((value - every.returns) ** 2).mean()
        assert found["loss_critic"].item() == pytest.approx(error * coefficient, rel=1e-4)


def test_fields_with_the_same_key_are_refused() -> None:
    batch = Play().replay().sample_transitions(8)
    clash = replace(batch, info={"reward": batch.reward})
    with pytest.raises(ValueError, match=r"\('next', 'reward'\).*two"):
        to_tensordict(clash)
    clash = replace(batch, extras={"done/x": batch.reward})
    with pytest.raises(ValueError, match=r"'done'.*two"):
        to_tensordict(clash)


def test_unsupported_batches_and_arguments_are_refused() -> None:
    replay = Play().replay()
    without_next = replay.sample_sequences(4, length=3)
    with pytest.raises(ValueError, match=r'next_observation.*None.*align="transition"'):
        to_tensordict(without_next)
    some = replay.sample_transitions(4, fields=["observation", "reward"])
    with pytest.raises(ValueError, match=r"action.*None.*fields="):
        to_tensordict(some)
    time_major = replay.sample_sequences(4, length=3, align="transition", time_major=True)
    with pytest.raises(ValueError, match=r"time_major.*\b4\b.*\(3, 4\).*time_major=True"):
        to_tensordict(time_major)
    stated = replay.sample_sequences(4, length=3, align="transition", state=["value"])
    with pytest.raises(ValueError, match=r"state.*none.*got value"):
        to_tensordict(stated)
    with pytest.raises(TypeError, match=r"to_tensordict.*TransitionBatch.*Rollout.*ndarray"):
        to_tensordict(np.zeros(3))  # type: ignore[arg-type]
    batch = replay.sample_transitions(64)
    with pytest.raises(ValueError, match=r"one_hot.*action.*0 to 2.*got 3"):
        to_tensordict(batch, one_hot=3)
    floats = replace(batch, action=batch.observation)
    with pytest.raises(ValueError, match=r"one_hot.*action.*float64 \(5,\)"):
        to_tensordict(floats, one_hot=3)
    rollout = Play().collector().rollout(steps=4)
    with pytest.raises(ValueError, match=r"rows.*'steps'.*'grid'.*'flat'"):
        to_tensordict(rollout, rows="flat")  # type: ignore[arg-type]
    sequences = next(rollout.sequences(2))
    with pytest.raises(ValueError, match=r"minibatch.*\[B\].*sequences.*rows='grid'"):
        to_tensordict(sequences)
