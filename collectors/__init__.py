"""Collectors: step envs with a policy, record every row, report what was done."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # loaded when it is first asked for: the command line begins before that
    from stepwell.collectors.collector import Collector
    from stepwell.collectors.evaluation.evaluate import evaluate
    from stepwell.collectors.evaluation.result import EvaluatedEpisode, Evaluation
    from stepwell.collectors.evaluation.video import Video
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
    from stepwell.collectors.report import CollectReport, EpisodeReport, StepReport

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
    "CollectReport": "report",
    "Collector": "collector",
    "EpisodeReport": "report",
    "EpsilonGreedy": "policies.exploration",
    "EvaluatedEpisode": "evaluation.result",
    "Evaluation": "evaluation.result",
    "GaussianNoise": "policies.exploration",
    "Policy": "policies.policy",
    "PolicyResult": "policies.policy",
    "RandomPolicy": "policies.policy",
    "RecurrentPolicy": "policies.policy",
    "RecurrentResult": "policies.policy",
    "SeededPolicy": "policies.policy",
    "StepReport": "report",
    "ValuePolicy": "policies.policy",
    "Video": "evaluation.video",
    "WarmUp": "policies.exploration",
    "evaluate": "evaluation.evaluate",
}


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    found: object = getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
