"""A Ray cluster on this machine, of a head without CPUs and some small nodes, for tests."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import Any

from gymnasium.vector import VectorWrapper

from support.actor_hosts import is_running as is_running
from support.groups import walks
from support.source_tree import CHECKOUT

CPUS = 2  # of each node; they only say how many actors of the tests fit
STORE_BYTES = 80 * 2**20
# Nodes start slowly beside other tests, and Ray, which reads this at import, gives up after 30 s.
os.environ.setdefault("RAY_raylet_start_wait_time_s", "120")
SOONER = {"health_check_period_ms": 1000}  # a node is gone after 5 s, not 15


class RayNodes:
    """The nodes of a running cluster."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self.address: str = cluster.address

    def add(self) -> Any:
        """Start one more node."""
        return self._cluster.add_node(num_cpus=CPUS, object_store_memory=STORE_BYTES)

    def kill(self, node_id: str) -> None:
        """End a node at once, with all of its processes."""
        (node,) = [one for one in self._cluster.worker_nodes if one.node_id == node_id]
        self._cluster.remove_node(node, allow_graceful=False)

    def replace(self, node_id: str) -> None:
        """Start a node in the place of one that was killed, when the cluster knows of that."""
        import ray

        self.add()
        assert eventually(
            lambda: not any(node["Alive"] for node in ray.nodes() if node["NodeID"] == node_id)
        )


@contextmanager
def ray_nodes(number: int = 3) -> Iterator[RayNodes]:
    """Start a cluster; its files lie in a folder of its own, and nothing of it is left."""
    from ray.cluster_utils import Cluster

    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # its sockets need a short path
    ours = {
        "PYTHONPATH": str(CHECKOUT / "tests"),  # of the nodes, whose actors import support
        "RAY_TMPDIR": folder,  # where Ray writes the cluster's address, too
    }
    before = {name: os.environ.get(name) for name in ours}
    os.environ |= ours
    cluster = Cluster()
    try:
        cluster.add_node(
            num_cpus=0,
            object_store_memory=STORE_BYTES,
            include_dashboard=False,
            _system_config=SOONER,
        )
        nodes = RayNodes(cluster)
        for _ in range(number):
            nodes.add()
        yield nodes
    finally:
        cluster.shutdown()
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
        shutil.rmtree(folder, ignore_errors=True)


def eventually(holds: Callable[[], bool], seconds: float = 30.0) -> bool:
    """Wait until something holds; False if it does not within the time."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


class Talker:
    """An object in an actor, with methods for the tests of an engine."""

    def __init__(self) -> None:
        self.calls = 0

    def ping(self) -> tuple[int, str]:
        import ray

        return os.getpid(), ray.get_runtime_context().get_node_id()

    def count(self) -> int:
        self.calls += 1
        return self.calls

    def pair(self, value: Any) -> tuple[str, Any]:
        return "small", value

    def add_one_in_place(self, array: Any) -> Any:
        array += 1
        return array

    def sleep(self, seconds: float) -> float:
        time.sleep(seconds)
        return seconds

    def fail(self, error: BaseException) -> None:
        raise error

    def fail_with_a_lock(self) -> None:
        raise LockedError()

    def lock(self) -> object:
        return threading.Lock()


class LockedError(Exception):
    """An error that cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("five apples")
        self.lock = threading.Lock()


def noted_walks(folder: Path, steps_a_second: float = inf) -> Any:
    """The envs of a group, which note their process and its node in a file of the folder.

    The file is named ``<time>-<pid>``, so that the newest comes last.
    """
    import ray

    pid, node = os.getpid(), ray.get_runtime_context().get_node_id()
    Path(folder, f"{time.monotonic_ns():020}-{pid}").write_text(node)
    return SlowSteps(walks(), 1 / steps_a_second)


class SlowSteps(VectorWrapper):
    """Envs each of whose steps takes some time."""

    def __init__(self, envs: Any, seconds: float) -> None:
        super().__init__(envs)
        self._seconds = seconds

    def step(self, actions: Any) -> Any:
        time.sleep(self._seconds)
        return self.env.step(actions)


def noted(folder: Path) -> list[tuple[int, str]]:
    """Process and node of each group that was made, the oldest first, if the process runs."""
    found = [(int(path.name.split("-")[1]), path.read_text()) for path in sorted(folder.iterdir())]
    return [(pid, node) for pid, node in found if node and is_running(pid)]
