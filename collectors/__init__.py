"""Collectors: step envs with a policy, record every row, report the results."""

from typing import TYPE_CHECKING

if __name__ != "stepwell.collectors":  # would hold every class a second time
    raise ImportError(f"import stepwell.collectors, not {__name__}, in a checkout as elsewhere")

from ..buffers.base.package import lazy_names

if TYPE_CHECKING:  # imported on first use; `as`: for type checkers, too, they are public
    from .catalogue.datasets import DatasetCheck as DatasetCheck
    from .catalogue.datasets import add_dataset as add_dataset
    from .catalogue.datasets import check_dataset as check_dataset
    from .catalogue.datasets import list_datasets as list_datasets
    from .catalogue.datasets import load_dataset as load_dataset
    from .catalogue.index import Dataset as Dataset
    from .distributed.collector import GroupLost as GroupLost
    from .distributed.collector import Run as Run
    from .distributed.engine import NotEnoughResources as NotEnoughResources
    from .distributed.engine import RemoteError as RemoteError
    from .distributed.folders import Folders as Folders
    from .distributed.local_collector import LocalCollector as LocalCollector
    from .distributed.ray_collector import RayCollector as RayCollector
    from .distributed.report import DistributedReport as DistributedReport
    from .distributed.report import GroupReport as GroupReport
    from .evaluation.evaluate import EvaluatedEpisode as EvaluatedEpisode
    from .evaluation.evaluate import Evaluation as Evaluation
    from .evaluation.evaluate import evaluate as evaluate
    from .evaluation.video import Video as Video
    from .loop.collector import Collector as Collector
    from .loop.record import RecordedEnv as RecordedEnv
    from .loop.record import RecordedVectorEnv as RecordedVectorEnv
    from .loop.record import record as record
    from .loop.report import CollectReport as CollectReport
    from .loop.report import EpisodeReport as EpisodeReport
    from .loop.report import StepReport as StepReport
    from .person.play import PlayReport as PlayReport
    from .person.play import play as play
    from .policies.exploration import EpsilonGreedy as EpsilonGreedy
    from .policies.exploration import GaussianNoise as GaussianNoise
    from .policies.exploration import WarmUp as WarmUp
    from .policies.policy import Policy as Policy
    from .policies.policy import PolicyResult as PolicyResult
    from .policies.policy import RandomPolicy as RandomPolicy
    from .policies.policy import RecurrentPolicy as RecurrentPolicy
    from .policies.policy import RecurrentResult as RecurrentResult
    from .policies.policy import SeededPolicy as SeededPolicy
    from .policies.policy import ValuePolicy as ValuePolicy
    from .policies.scripted import ScriptedPolicy as ScriptedPolicy
    from .simulation.archive import ArchiveReport as ArchiveReport
    from .simulation.archive import RestoreReport as RestoreReport
    from .simulation.archive import archive as archive
    from .simulation.archive import restore as restore
    from .simulation.env_at import env_at as env_at
    from .simulation.resimulate import EpisodeProof as EpisodeProof
    from .simulation.resimulate import resimulate as resimulate


if not TYPE_CHECKING:  # type checkers know the imports above, and no other name
    _HOMES = {
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
    }
    __all__ = sorted(name for names in _HOMES.values() for name in names)
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
