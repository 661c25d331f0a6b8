"""Collectors: step envs with a policy, record every row, report what was done."""

from typing import TYPE_CHECKING

from stepwell.collectors.collector import Collector
from stepwell.collectors.policy import (
    Policy,
    PolicyResult,
    RandomPolicy,
    RecurrentPolicy,
    RecurrentResult,
    SeededPolicy,
    ValuePolicy,
)
from stepwell.collectors.report import CollectReport, EpisodeReport, StepReport

if TYPE_CHECKING:  # loaded when it is first asked for
    from stepwell.collectors.evaluate_policy import evaluate
    from stepwell.collectors.evaluation import EvaluatedEpisode, Evaluation
    from stepwell.collectors.exploration import EpsilonGreedy, GaussianNoise, WarmUp
    from stepwell.collectors.video import Video

__all__ = [
    "CollectReport",
    "Collector",
    "EpisodeReport",
    "EpsilonGreedy",
    "EvaluatedEpisode",
    "Evaluation",
    "GaussianNoise",
    "Policy",
    "PolicyResult",
    "RandomPolicy",
    "RecurrentPolicy",
    "RecurrentResult",
    "SeededPolicy",
    "StepReport",
    "ValuePolicy",
    "Video",
    "WarmUp",
    "evaluate",
]

_LATER = {
    "EpsilonGreedy": "exploration",
    "EvaluatedEpisode": "evaluation",
    "Evaluation": "evaluation",
    "GaussianNoise": "exploration",
    "Video": "video",
    "WarmUp": "exploration",
    "evaluate": "evaluate_policy",
}


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    found: object = getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
    return found
