"""Collectors whose envs run in other processes, on this machine or on many."""

from typing import TYPE_CHECKING

from stepwell import lazy_names

if TYPE_CHECKING:  # loaded on first access
    from stepwell.collectors.distributed.collector import GroupLost, Run
    from stepwell.collectors.distributed.engine import NotEnoughResources, RemoteError
    from stepwell.collectors.distributed.folders import Folders
    from stepwell.collectors.distributed.local_collector import LocalCollector
    from stepwell.collectors.distributed.ray_collector import RayCollector
    from stepwell.collectors.distributed.report import DistributedReport, GroupReport
    from stepwell.collectors.distributed.shards import ShardedReplay, ShardLost, Shards

__all__ = [
    "DistributedReport",
    "Folders",
    "GroupLost",
    "GroupReport",
    "LocalCollector",
    "NotEnoughResources",
    "RayCollector",
    "RemoteError",
    "Run",
    "ShardLost",
    "ShardedReplay",
    "Shards",
]

if not TYPE_CHECKING:  # type checkers know the imports above, and no other name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "collector": ["GroupLost", "Run"],
            "engine": ["NotEnoughResources", "RemoteError"],
            "folders": ["Folders"],
            "local_collector": ["LocalCollector"],
            "ray_collector": ["RayCollector"],
            "report": ["DistributedReport", "GroupReport"],
            "shards": ["ShardLost", "ShardedReplay", "Shards"],
        },
    )
