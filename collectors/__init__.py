"""Collectors: step envs with a policy, record every row, report the results."""

from typing import TYPE_CHECKING

if __name__ != "stepwell.collectors":  # would hold every class a second time
    raise ImportError(f"import stepwell.collectors, not {__name__}, in a checkout as elsewhere")

from ..buffers.base.package import lazy_names

if TYPE_CHECKING:  # loaded on first access: the command line starts without it
    from .catalogue.datasets import (
        DatasetCheck,
        add_dataset,
        check_dataset,
        list_datasets,
        load_dataset,
    )
    from .catalogue.index import Dataset
    from .distributed.collector import GroupLost, Run
    from .distributed.engine import NotEnoughResources, RemoteError
    from .distributed.folders import Folders
    from .distributed.local_collector import LocalCollector
    from .distributed.ray_collector import RayCollector
    from .distributed.report import DistributedReport, GroupReport
    from .evaluation.evaluate import EvaluatedEpisode, Evaluation, evaluate
    from .evaluation.video import Video
    from .loop.collector import Collector
    from .loop.record import RecordedEnv, RecordedVectorEnv, record
    from .loop.report import CollectReport, EpisodeReport, StepReport
    from .person.play import PlayReport, play
    from .policies.exploration import EpsilonGreedy, GaussianNoise, WarmUp
    from .policies.policy import (
        Policy,
        PolicyResult,
        RandomPolicy,
        RecurrentPolicy,
        RecurrentResult,
        SeededPolicy,
        ValuePolicy,
    )
    from .policies.scripted import ScriptedPolicy
    from .simulation.archive import (
        ArchiveReport,
        RestoreReport,
        archive,
        restore,
    )
    from .simulation.env_at import env_at
    from .simulation.resimulate import EpisodeProof, resimulate

__all__ = [
    "ArchiveReport",
    "CollectReport",
    "Collector",
    "Dataset",
    "DatasetCheck",
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
    "StepReport",
    "ValuePolicy",
    "Video",
    "WarmUp",
    "add_dataset",
    "archive",
    "check_dataset",
    "env_at",
    "evaluate",
    "list_datasets",
    "load_dataset",
    "play",
    "record",
    "resimulate",
    "restore",
]

if not TYPE_CHECKING:  # type checkers know the imports above, and no other name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "catalogue.datasets": [
                "DatasetCheck",
                "add_dataset",
                "check_dataset",
                "list_datasets",
                "load_dataset",
            ],
            "catalogue.index": ["Dataset"],
            "loop.collector": ["Collector"],
            "distributed.collector": ["GroupLost", "Run"],
            "distributed.engine": ["NotEnoughResources", "RemoteError"],
            "distributed.folders": ["Folders"],
            "distributed.local_collector": ["LocalCollector"],
            "distributed.ray_collector": ["RayCollector"],
            "distributed.report": ["DistributedReport", "GroupReport"],
            "evaluation.evaluate": ["EvaluatedEpisode", "Evaluation", "evaluate"],
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
            "loop.record": ["RecordedEnv", "RecordedVectorEnv", "record"],
            "policies.scripted": ["ScriptedPolicy"],
            "loop.report": ["CollectReport", "EpisodeReport", "StepReport"],
            "simulation.archive": ["ArchiveReport", "RestoreReport", "archive", "restore"],
            "simulation.env_at": ["env_at"],
            "simulation.resimulate": ["EpisodeProof", "resimulate"],
        },
    )
