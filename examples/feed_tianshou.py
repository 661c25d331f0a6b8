"""Tianshou's DQN learns CartPole from data that Stepwell collects and samples.

python examples/feed_tianshou.py --steps 20000 --out runs/tianshou
"""

import argparse

import gymnasium as gym

import stepwell as sw

try:
    import torch
    from tianshou.algorithm.modelfree.dqn import DQN, DiscreteQLearningPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.utils.net.common import Net
    from tianshou.utils.torch_utils import policy_within_training_step
except ImportError:
    print("this example needs Tianshou: pip install 'stepwell[tianshou]'")
    raise SystemExit from None

ROUND, UPDATES, N_STEP = 64, 8, 3  # env steps per round, gradient steps after them, n-step horizon


def main() -> None:
    """Alternate between collecting, learning and evaluating."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--out", default="runs/tianshou")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)  # more threads do not help a network this small
    net = Net(state_shape=(4,), action_shape=2, hidden_sizes=[128, 128])
    algorithm = DQN(
        policy=DiscreteQLearningPolicy(model=net, action_space=gym.spaces.Discrete(2)),
        optim=AdamOptimizerFactory(lr=1e-3),
        gamma=0.99,
        n_step_return_horizon=N_STEP,
        target_update_freq=320,
    )
    greedy = sw.bridges.torch_policy(lambda seen: net(seen)[0], mode="greedy")
    policy = sw.EpsilonGreedy(greedy, lambda rows: max(0.05, 1 - rows / 5_000))
    with sw.SequenceReplayBuffer(options.out, seed=0) as replay:
        buffer = sw.bridges.as_tianshou_replay(replay, n_step=N_STEP)
        envs = sw.make_vec("CartPole-v1", num_envs=4, num_workers=0)
        with sw.Collector(envs, policy, replay, seed=0) as collector:
            for turn in range(1, max(1, options.steps // ROUND) + 1):
                collector.collect(steps=ROUND)
                with policy_within_training_step(algorithm.policy):
                    for _ in range(UPDATES):
                        algorithm.update(buffer, sample_size=64)
                if turn % 40 == 0 or (turn + 1) * ROUND > options.steps:
                    mean = sw.evaluate("CartPole-v1", greedy, episodes=10, seed=turn).mean
                    print(f"{replay.steps:6,} steps: greedy episodes return {mean:.1f}")


if __name__ == "__main__":
    main()
