"""Collect Pong on a Ray cluster: each group of envs writes a store of its own into a folder.

    python collect.py --groups 64 --actors 16 --steps 1_000_000 --out /shared/runs/pong

The folder has to be one that all nodes see, or a URL such as s3://bucket/pong. slurm_ray.sh and
kuberay.yaml run this file on clusters; without the variable RAY_ADDRESS it starts Ray here.
"""

import argparse
import logging
from typing import Any

from gymnasium.vector import VectorEnv

import stepwell as sw


def make_envs() -> VectorEnv[Any, Any, Any]:
    """The envs of a group; called in its actor."""
    return sw.make_atari("Pong", num_envs=8, num_workers=0)


def make_policy() -> sw.RandomPolicy:
    """The policy of a group; with a method `load(weights)` it could be trained meanwhile."""
    return sw.RandomPolicy()


parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
parser.add_argument("--groups", type=int, default=4, help="the data depends on this, and on --seed")
parser.add_argument("--actors", type=int, default=2, help="processes, one core each")
parser.add_argument("--steps", type=int, default=10_000)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--out", required=True, help="folder that all nodes see, or a URL")
options = parser.parse_args()

logging.basicConfig(level=logging.INFO)
with sw.RayCollector(
    make_envs,
    make_policy,
    sw.Folders(options.out),
    groups=options.groups,
    actors=options.actors,
    seed=options.seed,
    resources={"num_cpus": 1},
) as collector:
    print(collector.collect(steps=options.steps, progress=True))
