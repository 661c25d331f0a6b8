"""A DQN that may be killed at any moment: started again, it ends as if it had never stopped.

python examples/resume.py --out runs/resume --steps 6000
"""

import argparse
import io
import shutil
import zlib
from pathlib import Path

import numpy as np
import torch

import stepwell as sw

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", type=Path, default=Path("runs/resume"))
parser.add_argument("--steps", type=int, default=6_000)
parser.add_argument("--every", type=int, default=400, help="steps from checkpoint to checkpoint")
options = parser.parse_args()

torch.manual_seed(0)
torch.set_num_threads(1)  # sums in one order
net = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
optimizer = torch.optim.Adam(net.parameters(), 1e-3)
greedy = sw.bridges.torch_policy(net, mode="greedy")
policy = sw.EpsilonGreedy(greedy, lambda rows: max(0.05, 1 - rows / 3_000))
ratio = sw.ReplayRatio(0.25, start=500)
envs = sw.make_vec("CartPole-v1", num_envs=4, num_workers=0)
if options.out.exists() and not list(options.out.glob("checkpoint-*.bin")):
    shutil.rmtree(options.out)  # killed before the first checkpoint: begin anew
replay = sw.SequenceReplayBuffer(options.out, capacity=4_000, seed=0)
with replay, sw.Collector(envs, policy, replay, seed=0) as collector:
    if replay.is_bound:
        state = replay.load_checkpoint(exact=True)
        collector.load_state_dict(state["collector"])
        ratio.load_state_dict(state["ratio"])
        learner = torch.load(io.BytesIO(state["learner"].tobytes()), weights_only=True)
        net.load_state_dict(learner["net"])
        optimizer.load_state_dict(learner["optimizer"])
        print(f"goes on at step {replay.steps:,}", flush=True)
    while (before := replay.steps) < options.steps:
        collector.collect(steps=40)
        for _ in range(ratio(replay.steps)):
            batch = sw.bridges.to_torch(replay.sample_transitions(64))
            with torch.no_grad():
                best = net(batch.next_observation).max(1).values
                target = batch.reward + 0.99 * best * ~batch.terminated
            value = net(batch.observation).gather(1, batch.action[:, None])[:, 0]
            optimizer.zero_grad()
            (value - target).square().mean().backward()
            optimizer.step()
        if before // options.every < replay.steps // options.every:
            file = io.BytesIO()  # what torch saves, as an array in the checkpoint
            torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, file)
            parts = {"collector": collector.state_dict(), "ratio": ratio.state_dict()}
            replay.save_checkpoint({**parts, "learner": np.frombuffer(file.getvalue(), np.uint8)})
    weights = b"".join(part.detach().numpy().tobytes() for part in net.parameters())
    print(f"{replay.steps:,} steps, rows {replay.digest()}, weights {zlib.crc32(weights):08x}")
