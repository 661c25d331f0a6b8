"""The world model: it predicts states, observations, rewards and whether an episode continues."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from .config import Config
from .maths import TwoHot, balanced_kl, gumbel, mix_uniform, sample_one_hot
from .nets import Decoder, Encoder, Seen, Shapes, mlp, zero_last


class State(NamedTuple):
    """The state of the model.

    Args:
        hidden: h [..., H], deterministic: a summary of earlier observations and actions.
        latent: z [..., S * K], one-hot in each of S parts: the new information of the observation.
    """

    hidden: Tensor
    latent: Tensor

    @property
    def features(self) -> Tensor:
        """Both parts as one vector, the input of all predictions."""
        return torch.cat(self, -1)


class Rows(NamedTuple):
    """A batch of sequences, the training data of the model.

    Args:
        seen: Observations [B, T, ...].
        action: [B, T, A] vectors of the actions chosen from them.
        reward: [B, T] rewards that came with the observations.
        is_first: [B, T] bool: an episode begins with the observation.
        terminated: [B, T] bool: the MDP ended with the observation.
    """

    seen: Seen
    action: Tensor
    reward: Tensor
    is_first: Tensor
    terminated: Tensor


class RSSM(nn.Module):
    """A recurrent state-space model with categorical latents (DreamerV2, arXiv:2010.02193).

    Args:
        embedded: Length of an embedded observation, E.
        action: Length of an action's vector, A.
        config: Sizes.
    """

    def __init__(self, embedded: int, action: int, config: Config) -> None:
        super().__init__()
        self.shape = config.stochastic, config.categories
        latent, hidden, dense = (
            config.stochastic * config.categories,
            config.deterministic,
            config.dense,
        )
        self.outputs = hidden + latent
        self.first_hidden = nn.Parameter(torch.zeros(hidden))
        self.before = mlp(latent + action, dense, 1)
        self.cell = nn.Linear(dense + hidden, 3 * hidden, bias=False)
        self.cell_norm = nn.LayerNorm(3 * hidden)
        self.to_prior = mlp(hidden, dense, 1, latent)
        # The posterior's first layer has two parts; that for observations needs no loop.
        self.posterior_of_hidden = nn.Linear(hidden, dense, bias=False)
        self.posterior_of_seen = nn.Linear(embedded, dense, bias=False)
        self.to_posterior = nn.Sequential(nn.LayerNorm(dense), nn.SiLU(), nn.Linear(dense, latent))

    def initial(self, count: int) -> State:
        """Return the learned state [count, ...] before the first observation of an episode."""
        hidden = torch.tanh(self.first_hidden).expand(count, -1)
        latent = functional.one_hot(self.prior(hidden[:1]).argmax(-1), self.shape[1])
        return State(hidden, latent.float().flatten(-2).expand(count, -1))

    def advance(self, state: State, action: Tensor) -> Tensor:
        """Return the next h [..., H]: a normalised GRU cell with a bias to keep its state."""
        inputs = self.before(torch.cat([state.latent, action], -1))
        parts = self.cell_norm(self.cell(torch.cat([inputs, state.hidden], -1)))
        reset, new, update = parts.chunk(3, -1)
        new = torch.tanh(torch.sigmoid(reset) * new)
        return torch.lerp(state.hidden, new, torch.sigmoid(update - 1))

    def prior(self, hidden: Tensor) -> Tensor:
        """Return log-probabilities [..., S, K] of z without the observation."""
        return mix_uniform(self.to_prior(hidden).unflatten(-1, self.shape))

    def posterior(self, hidden: Tensor, seen: Tensor) -> Tensor:
        """Return log-probabilities [..., S, K] of z, from h and `posterior_of_seen(embedded)`."""
        logits = self.to_posterior(self.posterior_of_hidden(hidden) + seen)
        return mix_uniform(logits.unflatten(-1, self.shape))

    def imagine(self, state: State, action: Tensor) -> State:
        """Predict the next state [M, ...], without an observation."""
        hidden = self.advance(state, action)
        return State(hidden, sample_one_hot(self.prior(hidden)).flatten(-2))

    def look(self, state: State, action: Tensor, embedded: Tensor) -> tuple[State, Tensor]:
        """Return the state [N, ...] at the next observation, and the posterior's log-probs."""
        hidden = self.advance(state, action)
        posterior = self.posterior(hidden, self.posterior_of_seen(embedded))
        return State(hidden, sample_one_hot(posterior).flatten(-2)), posterior

    def observe(self, embedded: Tensor, action: Tensor, is_first: Tensor) -> tuple[State, Tensor]:
        """Return states [B, T, ...] of sequences, and the posteriors' log-probs [B, T, S, K].

        Args:
            embedded: [B, T, E] embedded observations.
            action: [B, T, A] actions chosen *from* them.
            is_first: [B, T] bool: the earlier state is ignored, as always at t = 0.
        """
        batch, length = is_first.shape
        start = state = self.initial(batch)
        seen = self.posterior_of_seen(embedded)
        noise = gumbel((length, batch, *self.shape), embedded.device)
        before = torch.cat([torch.zeros_like(action[:, :1]), action[:, :-1]], 1)
        first = is_first.unsqueeze(-1)
        before = before.masked_fill(first, 0)
        states: list[State] = []
        posteriors: list[Tensor] = []
        for t in range(length):
            hidden = torch.where(first[:, t], start.hidden, state.hidden)
            latent = torch.where(first[:, t], start.latent, state.latent)
            hidden = self.advance(State(hidden, latent), before[:, t])
            posteriors.append(self.posterior(hidden, seen[:, t]))
            state = State(hidden, sample_one_hot(posteriors[-1], noise[t]).flatten(-2))
            states.append(state)
        hiddens, latents = (torch.stack(parts, 1) for parts in zip(*states, strict=True))
        return State(hiddens, latents), torch.stack(posteriors, 1)


class WorldModel(nn.Module):
    """All networks that learn from stored sequences, with their optimizer.

    Args:
        shapes: Shapes of an observation.
        action: Length of an action's vector, A.
        config: Sizes and rates.
    """

    def __init__(self, shapes: Shapes, action: int, config: Config) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(shapes, config)
        self.rssm = RSSM(self.encoder.outputs, action, config)
        inputs, dense, blocks = self.rssm.outputs, config.dense, config.blocks
        self.decoder = Decoder(inputs, shapes, config)
        self.reward = zero_last(mlp(inputs, dense, blocks, config.bins))
        self.goes_on = mlp(inputs, dense, blocks, 1)
        self.two_hot = TwoHot(config.bins, config.bin_limit)
        self.optimizer = torch.optim.Adam(
            self.parameters(), lr=config.world_lr, eps=config.world_eps
        )

    def expected_reward(self, features: Tensor) -> Tensor:
        """Predict the rewards [...] that come with states of features [..., F]."""
        return self.two_hot.mean(self.reward(features))

    def continues(self, features: Tensor) -> Tensor:
        """Predict the probability [...] to continue after states of features [..., F]."""
        return torch.sigmoid(self.goes_on(features).squeeze(-1))

    def loss(self, rows: Rows) -> tuple[Tensor, State, dict[str, Tensor]]:
        """Return the loss of a batch, the states [B, T, ...] of its rows, and the loss's parts."""
        config = self.config
        states, posterior = self.rssm.observe(self.encoder(rows.seen), rows.action, rows.is_first)
        features = states.features
        kl, dyn, rep = balanced_kl(
            posterior,
            self.rssm.prior(states.hidden),
            config.free_nats,
            config.kl_dyn,
            config.kl_rep,
        )
        parts = {
            "reconstruction": self.decoder.loss(features, rows.seen),
            "reward": self.two_hot.loss(self.reward(features), rows.reward),
            "continue": functional.binary_cross_entropy_with_logits(
                self.goes_on(features).squeeze(-1), (~rows.terminated).float(), reduction="none"
            ),
        }
        loss = (kl + sum(parts.values())).mean()
        metrics = parts | {"kl_dyn": dyn, "kl_rep": rep}
        return loss, states, {name: part.mean().detach() for name, part in metrics.items()}

    def learn(self, rows: Rows) -> tuple[State, dict[str, Tensor]]:
        """Take one gradient step; return the states [B, T, ...] without gradients, and metrics."""
        loss, states, metrics = self.loss(rows)
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(self.parameters(), self.config.world_clip)
        self.optimizer.step()
        return State(*(part.detach() for part in states)), {"model": loss.detach(), **metrics}
