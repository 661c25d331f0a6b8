"""TorchRL's DQN loss learns CartPole from data that Stepwell collects and samples.

python examples/feed_torchrl_dqn.py --steps 50000 --out runs/torchrl_dqn
"""

import argparse
import copy

import stepwell as sw

try:
    import torch
    from torchrl.modules import MLP, QValueActor
    from torchrl.objectives import DQNLoss, HardUpdate
except ImportError:
    print("this example needs TorchRL: pip install 'stepwell[torchrl]'")
    raise SystemExit from None


def main() -> None:
    """Alternate between collecting, learning and evaluating; keep the best network."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--out", default="runs/torchrl_dqn")
    options = parser.parse_args()
    round_steps, updates = 256, 128  # env steps per round, and gradient steps after them
    torch.manual_seed(0)
    torch.set_num_threads(1)  # more threads do not help a network this small
    net = MLP(4, 2, num_cells=[256, 256], activation_class=torch.nn.ReLU)
    actor = QValueActor(net, in_keys=["observation"], action_space="categorical")
    loss = DQNLoss(actor, action_space="categorical", delay_value=True)
    loss.make_value_estimator(gamma=0.99)
    target = HardUpdate(loss, value_network_update_interval=updates)
    optimizer = torch.optim.Adam(net.parameters(), lr=2.3e-3)
    greedy = sw.bridges.torch_policy(net, mode="greedy")
    policy = sw.EpsilonGreedy(greedy, lambda rows: max(0.04, 1 - rows / 8_000))
    best, best_net = -1.0, net.state_dict()
    with sw.SequenceReplayBuffer(options.out, seed=0) as replay:
        buffer = sw.bridges.as_torchrl_replay(replay, batch_size=64)
        envs = sw.make_vec("CartPole-v1", num_envs=4, num_workers=0)
        with sw.Collector(envs, policy, replay, seed=0) as collector:
            for turn in range(1, 2 + options.steps // round_steps):
                collector.collect(steps=round_steps)
                for _ in range(updates):
                    optimizer.zero_grad()
                    loss(buffer.sample())["loss"].backward()
                    optimizer.step()
                    target.step()
                if turn % 10 == 0:
                    mean = sw.evaluate("CartPole-v1", greedy, episodes=10, seed=turn).mean
                    print(f"{replay.steps:6,} steps: greedy episodes return {mean:.1f}")
                    if mean >= best:
                        best, best_net = mean, copy.deepcopy(net.state_dict())
    net.load_state_dict(best_net)
    evaluation = sw.evaluate("CartPole-v1", greedy, episodes=20, seed=10_000)
    print(f"the best network returns {evaluation.mean:.1f} in 20 fresh episodes")


if __name__ == "__main__":
    main()
