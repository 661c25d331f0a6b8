"""Collect Pong on a Ray cluster of three nodes, kill an actor and a node, and get the same data.

python examples/ray_kill_one.py --steps 20000 --out runs/ray_kill_one

All nodes are on this machine. It needs Ray: pip install 'stepwell[ray]'. The exit code is 1
without it, and if the digests differ.
"""

import argparse
import contextlib
import io
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from gymnasium.vector import VectorEnv

import stepwell as sw

try:
    import ray
    from ray.cluster_utils import Cluster
except ImportError:
    raise SystemExit("this example needs Ray: pip install 'stepwell[ray]'") from None

GROUPS, ACTORS, ENVS = 6, 3, 2  # the data depends on groups and envs, not on actors
SMALL: dict[str, Any] = {"object_store_memory": 80 * 2**20}


def make_envs(notes: Path) -> VectorEnv:
    """Make the envs of a group, and note on which node and in which process."""
    notes.joinpath(str(os.getpid())).write_text(ray.get_runtime_context().get_node_id())
    return sw.make_atari("Pong", ENVS)


def collect(address: str, out: Path, *kills: Callable[[Path], None], seed: int, steps: int) -> str:
    """Collect into a store, and call the functions on the way. Return the store's digest."""
    notes = out / "actors"
    notes.mkdir(parents=True)
    due = [(steps * (i + 1) // (len(kills) + 1), kill) for i, kill in enumerate(kills)]

    def progress(report: sw.CollectReport) -> None:
        while due and report.steps >= due[0][0]:
            due.pop(0)[1](notes)

    with (
        sw.SequenceReplayBuffer(out / "store") as replay,
        sw.RayCollector(
            partial(make_envs, notes),
            sw.RandomPolicy,
            replay,
            groups=GROUPS,
            actors=ACTORS,
            seed=seed,
            address=address,
        ) as collector,
    ):
        report = collector.collect(steps=steps, progress=progress)
        print(report.steps, "steps,", report.deaths, "deaths:", report.digest, file=sys.__stdout__)
        return replay.digest()


def main() -> None:
    """Start the cluster, and collect twice."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/ray_kill_one"))
    options = parser.parse_args()
    if (options.out / "quiet").exists():
        parser.error(f"--out {options.out}: expected a new folder, got that of an earlier run")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **SMALL})
    nodes = [cluster.add_node(num_cpus=2, **SMALL) for _ in range(3)]  # CPUs in name only

    def kill_actor(notes: Path) -> None:
        oldest, *_ = sorted(notes.iterdir(), key=os.path.getmtime)
        os.kill(int(oldest.name), signal.SIGKILL)

    def kill_node(notes: Path) -> None:
        *_, newest = sorted(notes.iterdir(), key=os.path.getmtime)
        (node,) = [one for one in nodes if one.node_id == newest.read_text()]
        cluster.remove_node(node, allow_graceful=False)

    collected = partial(collect, str(cluster.address), seed=options.seed, steps=options.steps)
    with contextlib.redirect_stdout(io.StringIO()):  # Ray prints the log of a node that is killed
        try:
            quiet = collected(options.out / "quiet")
            killed = collected(options.out / "killed", kill_actor, kill_node)
        finally:
            cluster.shutdown()
    print("the same data" if quiet == killed else "NOT the same data")
    raise SystemExit(quiet != killed)


if __name__ == "__main__":
    main()
