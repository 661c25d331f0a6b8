"""Train a PyTorch model: a thread draws batches and puts them on the device as tensors.

python examples/feed_torch.py --steps 2000 --out runs/tensors

It needs PyTorch; without it, the script says how to install it and exits.
"""

import argparse
import importlib
import importlib.util

import gymnasium as gym

import stepwell as sw


def train(replay: sw.SequenceReplayBuffer, updates: int) -> float:
    """Learn to predict the reward of a step, and return the last loss."""
    torch = importlib.import_module("torch")  # `import torch`; it may be missing
    nn = torch.nn
    device = "cuda" if torch.cuda.is_available() else "cpu"
    net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    request = sw.Transitions(32, n_step=3)
    pin_memory = device == "cuda"
    loss = torch.zeros(())
    with replay.loader(request, to="torch", device=device, pin_memory=pin_memory) as batches:
        for _, batch in zip(range(updates), batches, strict=False):
            loss = nn.functional.mse_loss(net(batch.observation).squeeze(1), batch.reward)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return float(loss.item())


def main() -> None:
    """Collect with random actions, and train on the data."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2_000)
    parser.add_argument("--out", default="runs/tensors")
    options = parser.parse_args()

    if importlib.util.find_spec("torch") is None:
        print("this example needs PyTorch: pip install 'stepwell[torch]'")
        return
    envs = gym.make_vec("CartPole-v1", num_envs=4)
    replay = sw.SequenceReplayBuffer(options.out, capacity=100_000, seed=1)
    with replay:
        with sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector:
            collector.collect(steps=options.steps)
        updates = options.steps // 2
        loss = train(replay, updates)
    print(f"{updates:,} updates on {options.steps:,} steps, the last loss is {loss:.3f}")


if __name__ == "__main__":
    main()
