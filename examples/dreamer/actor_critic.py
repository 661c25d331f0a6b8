"""The actor and its critic, which learn only from imagined steps."""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .actions import Actions
from .config import Config
from .maths import Scale, TwoHot, lambda_returns, soft_update
from .nets import mlp, zero_last
from .world_model import State, WorldModel


class Dream(NamedTuple):
    """Imagined steps, time first.

    Args:
        features: [H + 1, M, F] of the states, including the first one.
        action: [H, M, A] chosen in these states.
        reward: [H, M] of the step from each state to the next.
        discount: [H, M] gamma times the probability that the episode continues after the next
            state. Gamma is applied nowhere else.
        weight: [H, M] discounted probability that the state is reached.
    """

    features: Tensor
    action: Tensor
    reward: Tensor
    discount: Tensor
    weight: Tensor


class ActorCritic(nn.Module):
    """Actor and critic on the model's states, with an optimizer for each.

    Args:
        features: Length of a state's features, F.
        actions: Actions of the env.
        config: Sizes and rates.
    """

    def __init__(self, features: int, actions: Actions, config: Config) -> None:
        super().__init__()
        self.config, self.actions = config, actions
        width, blocks = config.dense, config.agent_blocks
        self.actor = zero_last(mlp(features, width, blocks, actions.input_dim))
        self.critic = zero_last(mlp(features, width, blocks, config.bins))
        self.slow_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.two_hot = TwoHot(config.bins, config.bin_limit)
        self.actor_optimizer = torch.optim.Adam(
            self.actor.parameters(), lr=config.actor_lr, eps=config.actor_eps
        )
        self.critic_optimizer = torch.optim.Adam(
            self.critic.parameters(), lr=config.critic_lr, eps=config.critic_eps
        )

    @torch.no_grad()
    def dream(self, model: WorldModel, start: State, goes_on: Tensor) -> Dream:
        """Imagine `horizon` steps from states [M, ...]; `goes_on` [M] is 0 where the episode ended.

        No gradients flow here: the actor learns from the returns of its choices (REINFORCE), and
        `learn` recomputes log-probabilities for all steps at once.
        """
        state, features, actions = start, [start.features], []
        for _ in range(self.config.horizon):
            actions.append(self.actions.dist(self.actor(features[-1])).sample())
            state = model.rssm.imagine(state, self.actions.clamp(actions[-1]))
            features.append(state.features)
        seen = torch.stack(features)
        discount = self.config.gamma * model.continues(seen[1:])
        weight = torch.cat([goes_on.unsqueeze(0), discount[:-1]]).cumprod(0)
        return Dream(seen, torch.stack(actions), model.expected_reward(seen[1:]), discount, weight)

    def learn(self, dream: Dream, scale: Scale) -> dict[str, Tensor]:
        """Take one gradient step of actor and critic, and return metrics.

        Args:
            dream: Imagined steps.
            scale: Tracks the range of the returns, so that one entropy weight fits any rewards.
        """
        config = self.config
        logits = self.critic(dream.features)
        with torch.no_grad():
            value = self.two_hot.mean(logits)
            returns = lambda_returns(dream.reward, dream.discount, value, config.lam)
            scale.update(returns)
            advantage = (returns - value[:-1]) / scale.scale
            slow = self.two_hot.mean(self.slow_critic(dream.features[:-1]))
        chosen = self.actions.dist(self.actor(dream.features[:-1]))
        entropy = chosen.entropy()
        gain = chosen.log_prob(dream.action) * advantage + config.entropy * entropy
        actor_loss = -(dream.weight * gain).mean()
        logits = logits[:-1]
        misses = self.two_hot.loss(logits, returns) + self.two_hot.loss(logits, slow)
        critic_loss = (dream.weight * misses).mean()
        _step(self.actor_optimizer, actor_loss, self.actor, config.actor_clip)
        _step(self.critic_optimizer, critic_loss, self.critic, config.critic_clip)
        soft_update(self.slow_critic, self.critic, config.tau)
        return {
            "actor": actor_loss.detach(),
            "critic": critic_loss.detach(),
            "entropy": entropy.mean().detach(),
            "value": value.mean(),
        }


def _step(optimizer: torch.optim.Optimizer, loss: Tensor, net: nn.Module, clip: float) -> None:
    optimizer.zero_grad()
    torch.autograd.backward(loss)
    nn.utils.clip_grad_norm_(net.parameters(), clip)
    optimizer.step()
