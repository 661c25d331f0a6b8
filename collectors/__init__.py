"""Collectors: step envs with a policy, record every row, report the results."""

from typing import TYPE_CHECKING

if __name__ != "stepwell.collectors":  # would hold every class a second time
    raise ImportError(f"import stepwell.collectors, not {__name__}, in a checkout as elsewhere")

from stepwell import lazy_names

if TYPE_CHECKING:  # loaded on first access: the command line starts without it
    from stepwell.collectors.collector import Collector
    from stepwell.collectors.distributed.collector import GroupLost, Run
    from stepwell.collectors.distributed.engine import NotEnoughResources, RemoteError
    from stepwell.collectors.distributed.folders import Folders
    from stepwell.collectors.distributed.local_collector import LocalCollector
    from stepwell.collectors.distributed.ray_collector import RayCollector
    from stepwell.collectors.distributed.report import DistributedReport, GroupReport
    from stepwell.collectors.distributed.shards import ShardedReplay, ShardLost, Shards
    from stepwell.collectors.evaluation.evaluate import evaluate
    from stepwell.collectors.evaluation.result import EvaluatedEpisode, Evaluation
    from stepwell.collectors.evaluation.video import Video
    from stepwell.collectors.person.play import PlayReport, play
    from stepwell.collectors.policies.exploration import EpsilonGreedy, GaussianNoise, WarmUp
    from stepwell.collectors.policies.policy import (
        Policy,
        PolicyResult,
        RandomPolicy,
        RecurrentPolicy,
        RecurrentResult,
        SeededPolicy,
        ValuePolicy,
    )
    from stepwell.collectors.policies.scripted import ScriptedPolicy
    from stepwell.collectors.recorded import RecordedEnv, RecordedVectorEnv, record
    from stepwell.collectors.report import CollectReport, EpisodeReport, StepReport
    from stepwell.collectors.simulation.archive import (
        ArchiveReport,
        RestoreReport,
        archive,
        restore,
    )
    from stepwell.collectors.simulation.env_at import env_at
    from stepwell.collectors.simulation.resimulate import EpisodeProof, resimulate

__all__ = [
    "ArchiveReport",
    "CollectReport",
    "Collector",
    "DistributedReport",
    "EpisodeProof",
    "EpisodeReport",
    "EpsilonGreedy",
    "EvaluatedEpisode",
    "Evaluation",
    "Folders",
    "GaussianNoise",
    "GroupLost",
    "GroupReport",
    "LocalCollector",
    "NotEnoughResources",
    "PlayReport",
    "Policy",
    "PolicyResult",
    "RandomPolicy",
    "RayCollector",
    "RecordedEnv",
    "RecordedVectorEnv",
    "RecurrentPolicy",
    "RecurrentResult",
    "RemoteError",
    "RestoreReport",
    "Run",
    "ScriptedPolicy",
    "SeededPolicy",
    "ShardLost",
    "ShardedReplay",
    "Shards",
    "StepReport",
    "ValuePolicy",
    "Video",
    "WarmUp",
    "archive",
    "env_at",
    "evaluate",
    "play",
    "record",
    "resimulate",
    "restore",
]

if not TYPE_CHECKING:  # type checkers know the imports above, and no other name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "collector": ["Collector"],
            "distributed.collector": ["GroupLost", "Run"],
            "distributed.engine": ["NotEnoughResources", "RemoteError"],
            "distributed.folders": ["Folders"],
            "distributed.local_collector": ["LocalCollector"],
            "distributed.ray_collector": ["RayCollector"],
            "distributed.report": ["DistributedReport", "GroupReport"],
            "distributed.shards": ["ShardLost", "ShardedReplay", "Shards"],
            "evaluation.evaluate": ["evaluate"],
            "evaluation.result": ["EvaluatedEpisode", "Evaluation"],
            "evaluation.video": ["Video"],
            "person.play": ["PlayReport", "play"],
            "policies.exploration": ["EpsilonGreedy", "GaussianNoise", "WarmUp"],
            "policies.policy": [
                "Policy",
                "PolicyResult",
                "RandomPolicy",
                "RecurrentPolicy",
                "RecurrentResult",
                "SeededPolicy",
                "ValuePolicy",
            ],
            "recorded": ["RecordedEnv", "RecordedVectorEnv", "record"],
            "policies.scripted": ["ScriptedPolicy"],
            "report": ["CollectReport", "EpisodeReport", "StepReport"],
            "simulation.archive": ["ArchiveReport", "RestoreReport", "archive", "restore"],
            "simulation.env_at": ["env_at"],
            "simulation.resimulate": ["EpisodeProof", "resimulate"],
        },
    )
