"""Imagined steps, their discounts and weights, and what actor and critic learn from them."""

from __future__ import annotations

from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import pytest
from gymnasium import spaces

pytest.importorskip("torch", reason="needs PyTorch: pip install 'stepwell[torch]'")

import torch
from torch import Tensor

from dreamer.actions import Actions
from dreamer.actor_critic import ActorCritic, Dream
from dreamer.config import Config
from dreamer.maths import Scale
from dreamer.nets import Shapes
from dreamer.world_model import State, WorldModel
from support.libraries.tiny_dreamers import changed, no_noise, snapshot, stir, tiny

FEATURES = 10 + 3 * 4
SPACES: list[spaces.Space[Any]] = [
    spaces.Discrete(3),
    spaces.Box(-2, 3, (2,)),
    spaces.Tuple((spaces.Box(0, 1, (1,)), spaces.MultiDiscrete([2, 3]))),
]
each_space = pytest.mark.parametrize("space", SPACES, ids=str)


def actor_critic(
    space: spaces.Space[Any] = SPACES[0], *, stirred: bool = True, **numbers: Any
) -> ActorCritic:
    torch.manual_seed(0)
    nets = ActorCritic(FEATURES, Actions(space), tiny(**numbers))
    if stirred:
        stir(nets)
    return nets


def world(space: spaces.Space[Any] = SPACES[0]) -> WorldModel:
    torch.manual_seed(1)
    model = WorldModel(Shapes(4, ()), Actions(space).output_dim, tiny())
    stir(model)
    return model


def starts(count: int) -> State:
    latent = torch.zeros(count, 3, 4)
    latent[..., 1] = 1
    return State(torch.randn(count, 10).tanh(), latent.flatten(-2))


def dream_of(nets: ActorCritic, many: int = 6, *, continues: float = 0.9) -> Dream:
    """Random numbers in the shapes of a dream."""
    horizon = nets.config.horizon
    features = torch.randn(horizon + 1, many, FEATURES)
    with torch.no_grad():
        action = nets.actions.dist(nets.actor(features[:-1])).sample()
    discount = nets.config.gamma * continues * torch.ones(horizon, many)
    weight = torch.rand(horizon, many)
    return Dream(features, action, torch.randn(horizon, many), discount, weight)


class Bandit(NamedTuple):
    """A world in which nothing matters but the last action: it is the state."""

    reward: Any
    goes_on: float = 1.0

    @property
    def rssm(self) -> Bandit:
        return self

    def imagine(self, state: State, action: Tensor) -> State:
        unused = torch.zeros(len(action), FEATURES - action.shape[-1])
        return State(action, unused)

    def expected_reward(self, features: Tensor) -> Tensor:
        return torch.as_tensor(self.reward(features)).expand(features.shape[:-1])

    def continues(self, features: Tensor) -> Tensor:
        return torch.full(features.shape[:-1], self.goes_on)


def bandit(reward: Any, goes_on: float = 1.0) -> Any:
    return Bandit(reward, goes_on)


def taught(nets: ActorCritic, dream: Dream) -> tuple[Tensor, Tensor]:
    """The targets of the critic's two losses: the returns, and the slow critic's values."""
    with patch.object(nets.two_hot, "loss", wraps=nets.two_hot.loss) as loss:
        nets.learn(dream, Scale())
    returns, slow = (call.args[1] for call in loss.call_args_list)
    return returns, slow


# Imagined steps


@each_space
def test_a_dream_is_the_model_and_the_actor_in_turn(space: spaces.Space[Any]) -> None:
    """Spelt out step by step; the reward, as everything, is that of the state that is reached."""
    nets, model, start = actor_critic(space), world(space), starts(5)
    goes_on = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0])
    torch.manual_seed(7)
    with no_noise():
        dream = nets.dream(model, start, goes_on)
    torch.manual_seed(7)
    with no_noise(), torch.no_grad():
        state, weight = start, goes_on
        for step in range(4):
            assert torch.equal(dream.features[step], state.features)
            assert torch.allclose(dream.weight[step], weight, atol=1e-6)
            action = nets.actions.dist(nets.actor(state.features)).sample()
            assert torch.equal(dream.action[step], action)
            state = model.rssm.imagine(state, nets.actions.clamp(action))
            reward = model.expected_reward(state.features)
            discount = 0.997 * model.continues(state.features)
            assert torch.allclose(dream.reward[step], reward, atol=1e-6)
            assert torch.allclose(dream.discount[step], discount, atol=1e-6)
            weight = weight * discount
    assert torch.equal(dream.features[4], state.features)
    assert [len(part) for part in dream] == [5, 4, 4, 4, 4]
    assert not any(part.requires_grad for part in dream)


@each_space
def test_a_dream_s_actions_are_drawn_as_the_actor_says_and_differ(space: spaces.Space[Any]) -> None:
    nets = actor_critic(space, stirred=False)
    start = State(*(part[:1].expand(200, -1) for part in starts(1)))
    dream = nets.dream(world(space), start, torch.ones(200))
    vectors = dream.action[0]
    assert (vectors.std(0) > 0.1).all()
    if not nets.actions.bounded:
        assert torch.allclose(vectors.mean(0), torch.full((3,), 1 / 3), atol=0.2)


def test_the_model_gets_clipped_actions_and_the_actor_the_sampled_ones() -> None:
    nets = actor_critic(SPACES[1])
    model = bandit(lambda features: torch.zeros(()))
    dream = nets.dream(model, starts(300), torch.ones(300))
    assert float(dream.action.abs().amax()) > 1
    seen = dream.features[1:, :, :2]
    assert torch.equal(seen, dream.action.clamp(-1, 1))


@pytest.mark.parametrize("goes_on", [1.0, 0.75, 0.0])
def test_weights_are_the_discounts_up_to_the_state(goes_on: float) -> None:
    nets = actor_critic(gamma=0.8)
    model = bandit(lambda features: torch.zeros(()), goes_on)
    dream = nets.dream(model, starts(3), torch.tensor([1.0, 0.0, 1.0]))
    once = 0.8 * goes_on
    for step in range(4):
        assert dream.discount[step].tolist() == pytest.approx([once] * 3)
        assert dream.weight[step].tolist() == pytest.approx([once**step, 0, once**step])


# What is learnt


@pytest.mark.parametrize("lam", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("goes_on", [1.0, 0.7, 0.0])
def test_the_discount_is_applied_once(lam: float, goes_on: float) -> None:
    """Reward 1 at each step and a critic of 0: 1 + g lam + (g lam)^2 + ..., with g once."""
    nets = actor_critic(stirred=False, gamma=0.8, lam=lam)
    dream = nets.dream(bandit(lambda features: torch.ones(()), goes_on), starts(3), torch.ones(3))
    returns, _ = taught(nets, dream)
    for step in range(4):
        wanted = sum((0.8 * goes_on * lam) ** k for k in range(4 - step))
        assert returns[step].tolist() == pytest.approx([wanted] * 3)


@pytest.mark.parametrize("lam", [0.0, 0.6, 1.0])
def test_a_critic_that_is_right_is_taught_what_it_says(lam: float) -> None:
    """Reward 1 for ever is worth 1 / (1 - gamma p): no step may be discounted twice or not."""
    nets = actor_critic(stirred=False, gamma=0.8, lam=lam)
    right = 1 / (1 - 0.8 * 0.7)
    dream = nets.dream(bandit(lambda features: torch.ones(()), 0.7), starts(3), torch.ones(3))
    with patch.object(nets.two_hot, "mean", lambda logits: torch.full(logits.shape[:-1], right)):
        returns, slow = taught(nets, dream)
    assert returns.flatten().tolist() == pytest.approx([right] * 12)
    assert slow.flatten().tolist() == pytest.approx([right] * 12)


def test_the_critic_comes_to_say_what_a_reward_for_ever_is_worth() -> None:
    """5 at gamma 0.8; it would be 2.8 if that were applied twice."""
    nets = actor_critic(stirred=False, gamma=0.8, critic_lr=1e-2, tau=0.1)
    model, scale = bandit(lambda features: torch.ones(())), Scale()
    for _ in range(250):
        nets.learn(nets.dream(model, starts(8), torch.ones(8)), scale)
    metrics = nets.learn(nets.dream(model, starts(8), torch.ones(8)), scale)
    assert metrics["value"].item() == pytest.approx(5, abs=0.3)


@each_space
def test_losses_are_what_loops_over_steps_and_starts_give(space: spaces.Space[Any]) -> None:
    nets = actor_critic(space, entropy=0.05)
    stir(nets.slow_critic, 5)
    dream, scale = dream_of(nets), Scale(decay=0.5, least=0.1)
    with torch.no_grad():
        value = nets.two_hot.mean(nets.critic(dream.features))
        slow = nets.two_hot.mean(nets.slow_critic(dream.features))
        dist = nets.actions.dist(nets.actor(dream.features[:-1]))
        logits, log_probs, entropies = (
            nets.critic(dream.features),
            dist.log_prob(dream.action),
            dist.entropy(),
        )
    horizon, many = dream.reward.shape
    returns = np.zeros((horizon + 1, many))
    returns[-1] = value[-1].numpy()
    for k in reversed(range(horizon)):
        later = 0.05 * value[k + 1].numpy() + 0.95 * returns[k + 1]
        returns[k] = dream.reward[k].numpy() + dream.discount[k].numpy() * later
    low, high = 0.5 * np.quantile(returns[:-1], [0.05, 0.95])
    spread = max(0.1, high - low)
    actor_loss = critic_loss = 0.0
    for k, m in np.ndindex(horizon, many):
        advantage = (returns[k, m] - value[k, m].item()) / spread
        gain = log_probs[k, m].item() * advantage + 0.05 * entropies[k, m].item()
        actor_loss -= dream.weight[k, m].item() * gain
        for target in (torch.tensor(returns[k, m], dtype=torch.float32), slow[k, m]):
            miss = nets.two_hot.loss(logits[k, m], target).item()
            critic_loss += dream.weight[k, m].item() * miss
    metrics = nets.learn(dream, scale)
    assert scale.scale.item() == pytest.approx(spread, rel=1e-4)
    assert metrics["actor"].item() == pytest.approx(actor_loss / (horizon * many), rel=1e-3)
    assert metrics["critic"].item() == pytest.approx(critic_loss / (horizon * many), rel=1e-3)
    assert metrics["entropy"].item() == pytest.approx(entropies.mean().item(), rel=1e-4)
    assert metrics["value"].item() == pytest.approx(value.mean().item(), rel=1e-4)
    assert not any(part.requires_grad for part in metrics.values())


@each_space
def test_actor_critic_and_slow_critic_move_and_the_last_by_tau(space: spaces.Space[Any]) -> None:
    nets = actor_critic(space, tau=0.25, critic_lr=0.1)
    stir(nets.slow_critic, 5)
    before = snapshot(nets)
    nets.learn(dream_of(nets), Scale())
    assert changed(nets, before) == before.keys()
    after = snapshot(nets)
    for name in before:
        if name.startswith("slow_critic"):
            now = after[name.removeprefix("slow_")]
            assert torch.allclose(after[name], 0.75 * before[name] + 0.25 * now, atol=1e-6)
    assert not any(part.requires_grad for part in nets.slow_critic.parameters())


def test_the_slow_critic_begins_as_a_copy() -> None:
    nets = actor_critic(stirred=False)
    pairs = zip(nets.critic.parameters(), nets.slow_critic.parameters(), strict=True)
    for fast, slow in pairs:
        assert torch.equal(fast, slow)
        assert fast.data_ptr() != slow.data_ptr()


def test_at_first_all_choices_are_alike_and_every_state_is_worth_0() -> None:
    nets = actor_critic(stirred=False)
    features = torch.randn(9, FEATURES)
    assert not nets.actor(features).any()
    assert not nets.two_hot.mean(nets.critic(features)).any()


def test_nothing_is_learnt_from_what_is_never_reached() -> None:
    """A start at which the MDP ended has weight 0 all along: losses and gradients are without."""
    nets, copy = actor_critic(), actor_critic()
    dream = dream_of(nets)
    weight = dream.weight.clone()
    weight[:, 2] = 0
    other = dream.features.clone()
    other[:, 2] = torch.randn_like(other[:, 2])
    reward = dream.reward.clone()
    reward[:, 2] = 0.1
    found = nets.learn(dream._replace(weight=weight), Scale(least=1e6))
    again = copy.learn(
        dream._replace(weight=weight, features=other, reward=reward), Scale(least=1e6)
    )
    assert found["actor"].item() == pytest.approx(again["actor"].item(), rel=1e-4)
    assert found["critic"].item() == pytest.approx(again["critic"].item(), rel=1e-4)
    for one, same in zip(nets.parameters(), copy.parameters(), strict=True):
        assert torch.allclose(one, same, atol=1e-5)


def test_the_critic_learns_nothing_from_the_actor_s_loss_nor_the_actor_from_the_critic_s() -> None:
    """With a gain of 0 the actor stands still, whatever the critic learns."""
    nets = actor_critic(entropy=0)
    dream = dream_of(nets)
    before = snapshot(nets)
    with patch.object(nets.actions, "dist", lambda logits: Still(logits)):
        nets.learn(dream, Scale())
    moved = changed(nets, before)
    assert not any(name.startswith("actor") for name in moved)
    assert any(name.startswith("critic") for name in moved)
    # The gradient that is left in the critic does not depend on the actor's advantages either.
    copies = [actor_critic(entropy=entropy) for entropy in (0, 9)]
    for copy in copies:
        copy.learn(dream, Scale())
    pairs = zip(copies[0].critic.parameters(), copies[1].critic.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


class Still(NamedTuple):
    """A distribution whose log-probabilities and entropies are 0 for any logits."""

    logits: Tensor

    def log_prob(self, action: Tensor) -> Tensor:
        return 0 * self.logits.sum(-1)

    def entropy(self) -> Tensor:
        return 0 * self.logits.sum(-1)


def test_gradients_are_those_of_this_dream_and_clipped() -> None:
    nets, copy = (actor_critic(actor_clip=0.01, critic_clip=0.02) for _ in range(2))
    dream = dream_of(nets)
    for parameter in [*copy.actor.parameters(), *copy.critic.parameters()]:
        parameter.grad = torch.ones_like(parameter)  # of something else, before
    for one in (nets, copy):
        one.learn(dream, Scale())
    for first, second in zip(nets.parameters(), copy.parameters(), strict=True):
        assert torch.equal(first, second)
    for net, clip in ((nets.actor, 0.01), (nets.critic, 0.02)):
        grads = [part.grad for part in net.parameters() if part.grad is not None]
        norm = torch.stack([grad.square().sum() for grad in grads]).sum().sqrt()
        assert norm.item() == pytest.approx(clip, rel=0.01)


def test_rewards_a_thousand_times_as_large_move_the_actor_as_far() -> None:
    """Advantages are divided by the spread of the returns, of 1 or more."""
    gains = []
    for factor in (10, 10_000):
        nets = actor_critic(stirred=False, entropy=0)
        stir(nets.actor)
        dream = dream_of(nets)
        torch.manual_seed(3)
        reward = factor * torch.randn_like(dream.reward)
        dream = dream._replace(reward=reward, action=one_hots(dream), weight=reward * 0 + 1)
        gains.append(nets.learn(dream, Scale(decay=0))["actor"].item())
    assert gains[0] == pytest.approx(gains[1], rel=1e-3)
    assert abs(gains[0]) > 1e-3


def one_hots(dream: Dream) -> Tensor:
    steps = torch.arange(dream.action[..., 0].numel()).view(dream.action.shape[:-1])
    return torch.nn.functional.one_hot(steps % 3, 3).float()


def settings_of_a_bandit(**numbers: Any) -> dict[str, Any]:
    return {"stirred": False, "actor_lr": 0.02, "critic_lr": 0.02, "horizon": 2} | numbers


def test_the_actor_comes_to_choose_what_pays() -> None:
    nets, scale = actor_critic(SPACES[0], **settings_of_a_bandit()), Scale()
    model = bandit(lambda features: 3 * features[..., 1])  # the second of three actions
    for _ in range(60):
        nets.learn(nets.dream(model, starts(16), torch.ones(16)), scale)
    probs = nets.actions.dist(nets.actor(starts(1).features)).log_prob(torch.eye(3)).exp()
    assert probs[1].item() > 0.9
    assert probs[0].item() >= 0.01 / 3 - 1e-6, "the one percent that is spread over all"


def test_the_actor_comes_to_choose_numbers_that_pay() -> None:
    nets = actor_critic(SPACES[1], **settings_of_a_bandit(horizon=4))
    best, scale = torch.tensor([0.5, -0.5]), Scale()
    model = bandit(lambda features: -(features[..., :2] - best).square().sum(-1))
    for _ in range(150):
        nets.learn(nets.dream(model, starts(32), torch.ones(32)), scale)
    found = nets.actions.dist(nets.actor(starts(1).features)).mode()[0]
    assert torch.allclose(found, best, atol=0.2)


def test_more_weight_on_the_entropy_keeps_the_actor_undecided() -> None:
    entropies = []
    for entropy in (1e-4, 3.0):
        nets = actor_critic(SPACES[0], **settings_of_a_bandit(entropy=entropy))
        model, scale = bandit(lambda features: 3 * features[..., 1]), Scale()
        for _ in range(40):
            nets.learn(nets.dream(model, starts(16), torch.ones(16)), scale)
        metrics = nets.learn(nets.dream(model, starts(16), torch.ones(16)), scale)
        entropies.append(metrics["entropy"].item())
    assert entropies[0] < 0.6
    assert entropies[1] > 0.9 * np.log(3)


def test_horizon_and_lambda_are_the_config_s() -> None:
    nets = actor_critic(horizon=2)
    dream = nets.dream(world(), starts(3), torch.ones(3))
    assert dream.reward.shape == (2, 3)
    assert Config().horizon == 15
