"""A DQN that may be killed at any moment: started again, it ends as if it had never stopped.

python examples/resume.py --out runs/resume --steps 6000

It needs PyTorch; without it, the script says how to install it and exits. What it prints at its end
is the same, digit by digit, however often it was killed and started again.
"""

import argparse
import importlib.util
import io
import shutil
import zlib
from pathlib import Path
from typing import Any

import numpy as np

import stepwell as sw


def as_array(state: dict[str, Any]) -> np.ndarray:
    """What torch saves, as an array that a checkpoint can hold."""
    import torch

    file = io.BytesIO()
    torch.save(state, file)
    return np.frombuffer(file.getvalue(), np.uint8)


def train(out: Path, steps: int, every: int) -> str:
    """Train up to so many env steps, with a checkpoint every few; returns what came out."""
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)  # sums in one order
    layers = torch.nn.Linear(4, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2)
    net = torch.nn.Sequential(*layers)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    greedy = sw.bridges.torch_policy(net, mode="greedy")
    policy = sw.EpsilonGreedy(greedy, lambda rows: max(0.05, 1 - rows / 3_000))
    ratio = sw.ReplayRatio(0.25, start=500)
    envs = sw.make_vec("CartPole-v1", num_envs=4, num_workers=0)

    if out.exists() and not list(out.glob("checkpoint-*.bin")):
        shutil.rmtree(out)  # killed before the first checkpoint: begin anew
    with (
        sw.SequenceReplayBuffer(out, capacity=4_000, seed=0) as replay,
        sw.Collector(envs, policy, replay, seed=0) as collector,
    ):
        if replay.is_bound:
            state = replay.load_checkpoint(exact=True)
            collector.load_state_dict(state["collector"])
            ratio.load_state_dict(state["ratio"])
            learner = torch.load(io.BytesIO(state["learner"].tobytes()), weights_only=True)
            net.load_state_dict(learner["net"])
            optimizer.load_state_dict(learner["optimizer"])
            print(f"goes on at step {replay.steps:,}", flush=True)
        while replay.steps < steps:
            before = replay.steps
            collector.collect(steps=40)
            for _ in range(ratio(replay.steps)):
                batch = sw.bridges.to_torch(replay.sample_transitions(64))
                with torch.no_grad():
                    best = net(batch.next_observation).max(1).values
                    target = batch.reward + 0.99 * best * ~batch.terminated
                value = net(batch.observation).gather(1, batch.action[:, None])[:, 0]
                optimizer.zero_grad()
                torch.nn.functional.smooth_l1_loss(value, target).backward()
                optimizer.step()
            if before // every < replay.steps // every:
                learner = {"net": net.state_dict(), "optimizer": optimizer.state_dict()}
                parts = {"collector": collector.state_dict(), "ratio": ratio.state_dict()}
                replay.save_checkpoint({**parts, "learner": as_array(learner)})
        weights = b"".join(part.detach().numpy().tobytes() for part in net.parameters())
        return f"{replay.steps:,} steps, rows {replay.digest()}, weights {zlib.crc32(weights):08x}"


def main() -> None:
    """Train, or go on with it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/resume"))
    parser.add_argument("--steps", type=int, default=6_000)
    parser.add_argument(
        "--every", type=int, default=400, help="steps from checkpoint to checkpoint"
    )
    options = parser.parse_args()
    if importlib.util.find_spec("torch") is None:
        print("this example needs PyTorch: pip install 'stepwell[torch]'")
        return
    print(train(options.out, options.steps, options.every))


if __name__ == "__main__":
    main()
