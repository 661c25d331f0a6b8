"""World model, actor and critic of the Dreamer example against plain loops and numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

pytest.importorskip("torch", reason="needs PyTorch: pip install 'stepwell[torch]'")

import torch
from torch import Tensor

from dreamer.actions import Actions
from dreamer.actor_critic import ActorCritic, Dream
from dreamer.maths import Scale
from dreamer.nets import Seen, Shapes
from dreamer.world_model import Rows, State, WorldModel
from support.libraries.tiny_dreamers import changed, no_noise, snapshot, stir, tiny

EMBEDDED, ACTION, FEATURES = 6, 3, 10 + 3 * 4
SPACES: list[spaces.Space[Any]] = [
    spaces.Discrete(3),
    spaces.Tuple((spaces.Box(0, 1, (1,)), spaces.MultiDiscrete([2, 3]))),
]
each_space = pytest.mark.parametrize("space", SPACES, ids=str)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def array(tensor: Tensor) -> np.ndarray:
    found: np.ndarray = tensor.detach().double().numpy()
    return found


def sigmoid(x: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-x)))


def slow_symlog(x: Tensor) -> np.ndarray:
    return np.array([np.sign(one) * np.log(1 + abs(one)) for one in array(x)])


# World model


def rows_of(batch: int = 2, length: int = 5) -> Rows:
    """Random rows of vectors [4]; episodes begin and end anywhere."""
    return Rows(
        Seen(torch.randn(batch, length, 4), ()),
        torch.randn(batch, length, ACTION),
        torch.randn(batch, length),
        torch.rand(batch, length) < 0.3,
        torch.rand(batch, length) < 0.3,
    )


def test_the_models_loss_is_the_mean_over_rows_of_five_parts() -> None:
    """Each spelt out for one row after the other; rewards and ends are those of the same row."""
    config = tiny(free_nats=0.5, kl_dyn=0.7, kl_rep=0.2)
    model, rows = stir(WorldModel(Shapes(4, ()), ACTION, config)), rows_of()
    with no_noise(), torch.no_grad():
        loss, states, parts = model.loss(rows)
        _, posteriors = model.rssm.observe(model.encoder(rows.seen), rows.action, rows.is_first)
        sums = dict.fromkeys(["reconstruction", "reward", "continue", "kl_dyn", "kl_rep"], 0.0)
        for at in np.ndindex(2, 5):
            features = torch.cat([states.hidden[at], states.latent[at]])
            miss = array(model.decoder(features).vector) - slow_symlog(rows.seen.vector[at])
            sums["reconstruction"] += float((miss**2).sum())
            logits = model.reward(features)
            sums["reward"] += model.two_hot.loss(logits, rows.reward[at]).item()
            goes_on = sigmoid(array(model.goes_on(features))).item()
            sums["continue"] -= np.log(1 - goes_on if rows.terminated[at] else goes_on)
            prior, posterior = model.rssm.prior(states.hidden[at]), posteriors[at]
            kl = float((posterior.exp() * (posterior - prior)).sum())
            sums["kl_dyn"] += max(kl, 0.5)
            sums["kl_rep"] += max(kl, 0.5)
    assert {name: part.item() for name, part in parts.items()} == pytest.approx(
        {name: part / 10 for name, part in sums.items()}, rel=1e-4
    )
    weights = {"kl_dyn": 0.7, "kl_rep": 0.2}
    total = sum(weights.get(name, 1) * part for name, part in sums.items())
    assert loss.item() == pytest.approx(total / 10, rel=1e-4)


# Actor and critic


@each_space
def test_a_dream_is_the_model_and_the_actor_in_turn(space: spaces.Space[Any]) -> None:
    """Spelt out step by step; gamma comes in once, and the reward is that of the next state."""
    nets = stir(ActorCritic(FEATURES, Actions(space), tiny()))
    start = State(torch.randn(5, 10).tanh(), torch.eye(4)[[0, 1, 3] * 5].view(5, -1))
    model = stir(WorldModel(Shapes(4, ()), nets.actions.output_dim, tiny()))
    weight = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0])
    torch.manual_seed(7)
    with no_noise():
        dream = nets.dream(model, start, weight)
    torch.manual_seed(7)
    with no_noise(), torch.no_grad():
        state = start
        for step in range(4):
            assert torch.equal(dream.features[step], state.features)
            assert torch.allclose(dream.weight[step], weight, atol=1e-6)
            action = nets.actions.dist(nets.actor(state.features)).sample()
            assert torch.equal(dream.action[step], action)
            hidden = model.rssm.advance(state, nets.actions.clamp(action))
            state = State(hidden, torch.eye(4)[model.rssm.prior(hidden).argmax(-1)].flatten(-2))
            reward = model.expected_reward(state.features)
            discount = 0.997 * model.continues(state.features)
            assert torch.allclose(dream.reward[step], reward, atol=1e-6)
            assert torch.allclose(dream.discount[step], discount, atol=1e-6)
            weight = weight * discount
    assert torch.equal(dream.features[4], state.features)
    assert not any(part.requires_grad for part in dream)


@each_space
def test_losses_are_what_loops_over_steps_and_starts_give(space: spaces.Space[Any]) -> None:
    config = tiny(entropy=0.05, tau=0.25, critic_lr=0.1)
    nets = stir(ActorCritic(FEATURES, Actions(space), config))
    stir(nets.slow_critic, 5)
    features, scale = torch.randn(5, 6, FEATURES), Scale(decay=0.5, least=0.1)
    with torch.no_grad():
        dist = nets.actions.dist(nets.actor(features[:-1]))
        dream = Dream(
            features, dist.sample(), torch.randn(4, 6), 0.9 * torch.ones(4, 6), torch.rand(4, 6)
        )
        logits = nets.critic(features)
        value = nets.two_hot.mean(logits)
        slow = nets.two_hot.mean(nets.slow_critic(features))
        log_probs, entropies = dist.log_prob(dream.action), dist.entropy()
    returns = np.zeros((5, 6))
    returns[-1] = value[-1].numpy()
    for k in reversed(range(4)):
        later = 0.05 * value[k + 1].numpy() + 0.95 * returns[k + 1]
        returns[k] = dream.reward[k].numpy() + 0.9 * later
    low, high = 0.5 * np.quantile(returns[:-1], [0.05, 0.95])
    actor_loss = critic_loss = 0.0
    for k, m in np.ndindex(4, 6):
        advantage = (returns[k, m] - value[k, m].item()) / max(0.1, high - low)
        gain = log_probs[k, m].item() * advantage + 0.05 * entropies[k, m].item()
        actor_loss -= dream.weight[k, m].item() * gain
        for target in (torch.tensor(returns[k, m], dtype=torch.float32), slow[k, m]):
            miss = nets.two_hot.loss(logits[k, m], target).item()
            critic_loss += dream.weight[k, m].item() * miss
    before = snapshot(nets)
    metrics = nets.learn(dream, scale)
    assert metrics["actor"].item() == pytest.approx(actor_loss / 24, rel=1e-3)
    assert metrics["critic"].item() == pytest.approx(critic_loss / 24, rel=1e-3)
    assert metrics["entropy"].item() == pytest.approx(entropies.mean().item(), rel=1e-4)
    assert changed(nets, before) == before.keys()
    after = snapshot(nets)
    for name in before:
        if name.startswith("slow_critic"):
            now = after[name.removeprefix("slow_")]
            assert torch.allclose(after[name], 0.75 * before[name] + 0.25 * now, atol=1e-6)
