"""The agent's interface: construct it, choose actions, learn from a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

import stepwell as sw

from .actions import Actions
from .actor_critic import ActorCritic
from .config import Config
from .maths import Scale
from .observations import Observations
from .world_model import Rows, State, WorldModel


@dataclass
class Utilities:
    """Objects that training needs in addition to the networks.

    Args:
        replay: All collected steps.
        ratio: Computes the number of gradient steps that are due.
        scale: Tracks the range of the returns.
        observations: Converts observations to tensors.
        actions: Converts actions to vectors and back.
    """

    replay: sw.SequenceReplayBuffer
    ratio: sw.ReplayRatio
    scale: Scale
    observations: Observations
    actions: Actions


class Models(NamedTuple):
    """The agent, as `construct_models` returns it."""

    world_model: WorldModel
    actor_critic: ActorCritic
    utilities: Utilities


def construct_models(
    observation_space: spaces.Space[Any],
    action_space: spaces.Space[Any],
    replay: sw.SequenceReplayBuffer,
    config: Config,
    device: str | torch.device = "cpu",
) -> Models:
    """Construct the world model, actor and critic, and everything else that training needs.

    Args:
        observation_space: Observation space of a single env.
        action_space: Action space of a single env.
        replay: The collected steps.
        config: Sizes and rates.
        device: Device of the networks.

    Raises:
        TypeError: The networks do not support a space.
        ValueError: An action has no finite bounds.
    """
    observations, actions = Observations(observation_space), Actions(action_space)
    world_model = WorldModel(observations.shapes, actions.output_dim, config).to(device)
    actor_critic = ActorCritic(world_model.rssm.outputs, actions, config).to(device)
    ratio = sw.ReplayRatio(config.replay_ratio, start=config.pretrain_steps)
    utilities = Utilities(replay, ratio, Scale(), observations, actions)
    return Models(world_model, actor_critic, utilities)


@torch.no_grad()
def compute_actions(
    observation: Any,
    models: Models,
    actions: Tensor | None = None,
    posteriors: Tensor | None = None,
    hidden_states: Tensor | None = None,
    initializations: Tensor | None = None,
    *,
    greedy: bool = False,
) -> dict[str, Any]:
    """Choose an action for each of N envs, and update the model's state of them.

    Args:
        observation: N observations, nested like the env's space; arrays or tensors.
        models: The agent.
        actions: [N, A] vectors of the previous actions; None if all envs begin an episode.
        posteriors: [N, S * K] previous latents.
        hidden_states: [N, H] previous recurrent states.
        initializations: [N] bool: an episode begins, so the previous state is ignored.
        greedy: Choose the likeliest action instead of sampling one.

    Returns:
        ``env_actions`` in the env's action space; ``actions`` [N, A], ``posterior`` [N, S * K] and
        ``hidden_state`` [N, H] for the next call; ``posterior_logits`` [N, S, K] and
        ``action_logits``.

    Raises:
        ValueError: Some of these four are given and others are None.
    """
    carried = {
        "actions": actions,
        "posteriors": posteriors,
        "hidden_states": hidden_states,
        "initializations": initializations,
    }
    given = [name for name, part in carried.items() if part is not None]
    if 0 < len(given) < len(carried):
        raise ValueError(
            f"compute_actions: expected {', '.join(carried)} together, or none of them where all "
            f"envs begin, got {', '.join(given)}; give all four"
        )
    model, actor_critic, utilities = models
    device = model.rssm.first_hidden.device
    embedded = model.encoder(utilities.observations(observation, device))
    state, done = model.rssm.initial(len(embedded)), None
    if actions is not None and posteriors is not None and hidden_states is not None:
        assert initializations is not None  # all four are given
        first = initializations.unsqueeze(-1)
        state = State(
            torch.where(first, state.hidden, hidden_states),
            torch.where(first, state.latent, posteriors),
        )
        done = actions.masked_fill(first, 0)
    else:
        done = torch.zeros(len(embedded), utilities.actions.output_dim, device=device)
    state, posterior = model.rssm.look(state, done, embedded)
    logits = actor_critic.actor(state.features)
    chosen = utilities.actions.dist(logits)
    vectors = utilities.actions.clamp(chosen.mode() if greedy else chosen.sample())
    return {
        "env_actions": utilities.actions.to_env(vectors),
        "actions": vectors,
        "posterior": state.latent,
        "hidden_state": state.hidden,
        "posterior_logits": posterior,
        "action_logits": logits,
    }


def rows_of(batch: sw.Batch, models: Models) -> Rows:
    """Convert sequences to the world model's rows, on its device.

    Args:
        batch: Sequences [B, T, ...] aligned as ``"arrival"``, arrays or tensors.
        models: The agent.

    Raises:
        ValueError: The sequences are padded.
    """
    if not batch.mask.all():
        raise ValueError(
            "batch: expected sequences without padding, got some with; draw them with "
            'borders="cross" or "inside"'
        )
    device, utilities = models.world_model.rssm.first_hidden.device, models.utilities
    drawn = sw.bridges.to_torch(batch, device)
    return Rows(
        utilities.observations(drawn.observation, device),
        utilities.actions.from_env(drawn.action, 2).to(device),
        drawn.reward.float(),
        torch.as_tensor(drawn.is_first),
        torch.as_tensor(drawn.terminated),
    )


def learning_step(batch: sw.Batch, models: Models) -> dict[str, Tensor]:
    """Take one gradient step of world model, actor and critic.

    Args:
        batch: Sequences [B, T, ...] aligned as ``"arrival"``, arrays or tensors; they may cross
            from one episode into the next.
        models: The agent.

    Returns:
        Losses and other metrics, scalars without gradients.

    Raises:
        ValueError: The sequences are padded.
    """
    model, actor_critic, utilities = models
    rows = rows_of(batch, models)
    states, metrics = model.learn(rows)
    goes_on = (~rows.terminated).float().flatten()
    start = State(states.hidden.flatten(0, 1), states.latent.flatten(0, 1))
    if model.config.starts is not None:
        some = torch.randperm(len(goes_on), device=goes_on.device)[: model.config.starts]
        start, goes_on = State(start.hidden[some], start.latent[some]), goes_on[some]
    dream = actor_critic.dream(model, start, goes_on)
    return metrics | actor_critic.learn(dream, utilities.scale)


class DreamerPolicy:
    """The agent as a recurrent policy for a Collector, with NumPy arrays in and out."""

    def __init__(self, models: Models, *, greedy: bool = False) -> None:
        self._models, self._greedy = models, greedy

    def initial_state(self, num_envs: int) -> dict[str, np.ndarray]:
        """Return zeros; `compute_actions` replaces them when an episode begins."""
        config = self._models.world_model.config
        sizes = {
            "action": self._models.utilities.actions.output_dim,
            "posterior": config.stochastic * config.categories,
            "hidden": config.deterministic,
        }
        return {name: np.zeros((num_envs, size), np.float32) for name, size in sizes.items()}

    def __call__(
        self, observation: Any, is_first: np.ndarray, state: dict[str, np.ndarray]
    ) -> tuple[Any, dict[str, np.ndarray]]:
        """Return the actions for the envs, and the new state."""
        device = self._models.world_model.rssm.first_hidden.device
        action, posterior, hidden = (torch.from_numpy(part).to(device) for part in state.values())
        first = torch.from_numpy(is_first).to(device)
        found = compute_actions(
            observation, self._models, action, posterior, hidden, first, greedy=self._greedy
        )
        after = (found[name].cpu().numpy() for name in ("actions", "posterior", "hidden_state"))
        return found["env_actions"], dict(zip(state, after, strict=True))

    def on_override(self, action: Any, state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the state after other actions replaced the chosen ones."""
        vectors = self._models.utilities.actions.from_env(action)
        return {**state, "action": vectors.numpy()}
