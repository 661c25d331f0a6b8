"""Sizes and rates of the agent; the defaults are those of the paper, `small` is for a CPU."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass, fields
from typing import Any, Self

MAY_BE_ZERO = {"replay_ratio", "pretrain_steps", "free_nats", "kl_dyn", "kl_rep"}
MAY_BE_ZERO |= {"gamma", "lam", "entropy"}
AT_MOST_ONE = {"gamma", "lam", "tau"}


@dataclass(frozen=True)
class Config:
    """All settings of the agent; the defaults are from DreamerV3, Hafner et al. 2023.

    Args:
        num_envs: Number of envs.
        steps: Total env steps, over all envs, including the prefill.
        pretrain_steps: Env steps with random actions before the first gradient step.
        collect_steps: Env steps collected in each turn of the training loop.
        capacity: Env steps that the replay keeps.
        replay_ratio: Gradient steps for each env step.
        batch_size: Sequences in a batch, B.
        length: Rows in a sequence, T.
        eval_every: Env steps from one evaluation to the next.
        eval_episodes: Episodes of an evaluation, always from the same seeds.
        save_every: Env steps from one checkpoint to the next.
        embedded: Length of an embedded vector observation.
        channels: Channels of the first convolution; each further one doubles them.
        dense: Width of the hidden layers.
        blocks: Hidden layers of encoder, decoder and the heads for reward and continuation.
        agent_blocks: Hidden layers of actor and critic.
        deterministic: Length of the recurrent state h.
        stochastic: Categorical variables in the stochastic state z.
        categories: Classes of each of these variables.
        bins: Points of the two-hot distributions of reward and value.
        bin_limit: The outermost point, in symlog space.
        free_nats: KL below which neither side gets a gradient.
        kl_dyn: Weight of the KL that trains the prior.
        kl_rep: Weight of the KL that trains the posterior.
        horizon: Number of imagined steps.
        starts: States of a batch at which imagination starts, drawn at random; None: all B x T.
        gamma: Discount of a step.
        lam: Lambda of the returns.
        entropy: Weight of the actor's entropy.
        tau: Share by which the slow critic moves after each gradient step.
        world_lr, actor_lr, critic_lr: Step sizes of Adam.
        world_eps, actor_eps, critic_eps: Epsilon of Adam.
        world_clip, actor_clip, critic_clip: Maximum norms of the gradients.

    Raises:
        ValueError: A value is out of range or of a wrong type.
    """

    num_envs: int = 4
    steps: int = 1_000_000
    pretrain_steps: int = 1_024
    collect_steps: int = 16
    capacity: int = 1_000_000
    replay_ratio: float = 0.5
    batch_size: int = 16
    length: int = 64
    eval_every: int = 1_000
    eval_episodes: int = 20
    save_every: int = 500
    embedded: int = 1_024
    channels: int = 64
    dense: int = 1_024
    blocks: int = 5
    agent_blocks: int = 5
    deterministic: int = 4_096
    stochastic: int = 32
    categories: int = 32
    bins: int = 255
    bin_limit: float = 20.0
    free_nats: float = 1.0
    kl_dyn: float = 0.5
    kl_rep: float = 0.1
    horizon: int = 15
    starts: int | None = None
    gamma: float = 0.997
    lam: float = 0.95
    entropy: float = 3e-4
    tau: float = 0.02
    world_lr: float = 1e-4
    actor_lr: float = 8e-5
    critic_lr: float = 8e-5
    world_eps: float = 1e-8
    actor_eps: float = 1e-5
    critic_eps: float = 1e-5
    world_clip: float = 1_000.0
    actor_clip: float = 100.0
    critic_clip: float = 100.0

    def __post_init__(self) -> None:
        for name, value in self.numbers().items():
            if (name, value) == ("starts", None):
                continue
            whole = isinstance(type(self).__dataclass_fields__[name].default, int | None)
            kinds = "a whole number" if whole else "a number"
            least = "0 or more" if name in MAY_BE_ZERO else "above 0"
            most = " and at most 1" if name in AT_MOST_ONE else ""
            fits = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
            lowest = 0 if name in MAY_BE_ZERO else math.ulp(0)  # the smallest number above 0
            highest = 1 if name in AT_MOST_ONE else sys.float_info.max
            if not fits or not lowest <= value <= highest:
                raise ValueError(
                    f"config: expected {name} to be {kinds} {least}{most}, got {value!r}; give one"
                )

    def numbers(self) -> dict[str, Any]:
        """Return all settings by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def small(cls) -> Self:
        """Return the small preset: 178,000 parameters, CartPole in some minutes on one CPU core."""
        return cls(
            steps=10_000,
            length=32,
            embedded=64,
            channels=16,
            dense=64,
            blocks=1,
            agent_blocks=2,
            deterministic=96,
            stochastic=16,
            categories=8,
            bins=63,
            bin_limit=10.0,
            kl_dyn=1.0,
            starts=128,
            world_lr=6e-4,
            actor_lr=3e-4,
            critic_lr=3e-4,
            actor_eps=1e-8,
            critic_eps=1e-8,
            world_clip=100.0,
        )


def parse_settings(texts: list[str]) -> dict[str, Any]:
    """Parse settings of a config, given as NAME=VALUE.

    Raises:
        ValueError: A text is not NAME=VALUE, or there is no such setting.
    """
    numbers: dict[str, Any] = {}
    names = [field.name for field in fields(Config)]
    for text in texts:
        name, _, value = text.partition("=")
        if name not in names:
            raise ValueError(f"--set {text}: expected one of {', '.join(names)}, got {name!r}")
        try:
            numbers[name] = None if value == "none" else json.loads(value)
        except ValueError:
            raise ValueError(f"--set {text}: expected {name}=NUMBER, got {value!r}") from None
    return numbers
