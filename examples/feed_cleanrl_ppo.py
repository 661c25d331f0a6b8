"""PPO in CleanRL's style, with one collector.rollout(n) in place of the loop over envs.step.

python examples/feed_cleanrl_ppo.py --steps 100000 --out runs/cleanrl_ppo --seed 0

Lines marked "new" differ from a CleanRL script; logging is left out. It needs PyTorch.
"""

import argparse
from pathlib import Path

import gymnasium as gym
import numpy as np

import stepwell as sw

try:
    import torch
    from torch import Tensor, nn
except ImportError:
    print("this example needs PyTorch: pip install 'stepwell[torch]'")
    raise SystemExit from None

NUM_ENVS, NUM_STEPS, EPOCHS, BATCH_SIZE = 8, 128, 10, 256
GAMMA, GAE_LAMBDA, CLIP, LEARNING_RATE = 0.98, 0.8, 0.2, 1e-3


class Agent(nn.Module):
    """An actor and a critic."""

    def __init__(self) -> None:
        super().__init__()
        self.critic, self.actor = (
            nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), last)
            for last in (nn.Linear(64, 1), nn.Linear(64, 2))
        )

    def get_action_and_value(self, x: Tensor, action: Tensor | None = None) -> tuple[Tensor, ...]:
        """Return the action, its log-probability and the value."""
        logprobs = self.actor(x).log_softmax(1)
        chosen = torch.multinomial(logprobs.exp(), 1).squeeze(1) if action is None else action
        logprob = logprobs.gather(1, chosen[:, None]).squeeze(1)
        return chosen, logprob, self.critic(x).flatten()


class Policy:  # new: the agent as a policy for the Collector
    """The agent with NumPy arrays in and out; extras are stored with the rows."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent

    def __call__(
        self, observation: np.ndarray, is_first: np.ndarray
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Choose actions, and return the extras of `to_cleanrl`."""
        with torch.no_grad():
            action, logprob, value = self.agent.get_action_and_value(torch.Tensor(observation))
        return action.numpy(), {"log_prob": logprob.numpy(), "value": value.numpy()}

    def value(self, observation: np.ndarray) -> np.ndarray:
        """Return the values of last observations."""
        with torch.no_grad():
            return np.asarray(self.agent.critic(torch.Tensor(observation)).flatten())


def main() -> None:
    """Train and evaluate."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split(",")[0])
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--out", type=Path, default=Path("runs/cleanrl_ppo"))
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    torch.set_num_threads(1)  # more threads do not help a network this small
    agent = Agent()
    optimizer = torch.optim.Adam(agent.parameters(), lr=LEARNING_RATE, eps=1e-5)
    same_step = gym.vector.AutoresetMode.SAME_STEP  # no rows in which an env resets
    make_envs = [lambda: gym.make("CartPole-v1")] * NUM_ENVS
    envs = gym.vector.SyncVectorEnv(make_envs, autoreset_mode=same_step)
    collector = sw.Collector(envs, Policy(agent), seed=args.seed)  # new, in place of envs.reset
    next_done = torch.zeros(NUM_ENVS)
    iterations = max(1, args.steps // (NUM_STEPS * NUM_ENVS))
    for iteration in range(iterations):
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * (1 - iteration / iterations)
        rollout = collector.rollout(NUM_STEPS)  # new, in place of the loop over the steps
        obs, actions, logprobs, rewards, dones, values, next_obs, next_done = sw.bridges.to_cleanrl(
            rollout, next_done, truncation_gamma=GAMMA
        )
        with torch.no_grad():
            advantages, later = torch.zeros_like(rewards), torch.zeros(NUM_ENVS)
            next_value = agent.critic(next_obs).flatten()
            following = torch.cat([values[1:], next_value[None]])
            goes_on = 1 - torch.cat([dones[1:], next_done[None]])
            for t in reversed(range(NUM_STEPS)):
                delta = rewards[t] + GAMMA * following[t] * goes_on[t] - values[t]
                advantages[t] = later = delta + GAMMA * GAE_LAMBDA * goes_on[t] * later
            returns = advantages + values
        for _ in range(EPOCHS):
            b_inds = rng.permutation(NUM_STEPS * NUM_ENVS)
            for start in range(0, len(b_inds), BATCH_SIZE):
                mb = b_inds[start : start + BATCH_SIZE]
                flat = obs.flatten(0, 1)[mb], actions.long().flatten()[mb]
                _, newlogprob, newvalue = agent.get_action_and_value(*flat)
                ratio = (newlogprob - logprobs.flatten()[mb]).exp()
                gain = advantages.flatten()[mb]
                gain = (gain - gain.mean()) / (gain.std() + 1e-8)
                clipped = torch.clamp(ratio, 1 - CLIP, 1 + CLIP)
                pg_loss = torch.max(-gain * ratio, -gain * clipped).mean()
                v_loss = 0.5 * ((newvalue - returns.flatten()[mb]) ** 2).mean()
                optimizer.zero_grad()
                torch.autograd.backward(pg_loss + v_loss)
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
    collector.close()
    torch.save(agent.state_dict(), args.out / "agent.pt")
    evaluation = sw.evaluate("CartPole-v1", Policy(agent), episodes=20, seed=1_000)
    print(f"mean return of 20 fresh episodes: {evaluation.mean:.1f}")


if __name__ == "__main__":
    main()
