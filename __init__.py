"""Stepwell: gather experience from Gymnasium environments, keep it, and draw batches from it."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # loaded when it is first asked for: the command line begins before that
    from stepwell.buffers import (
        Batch,
        Episode,
        Episodes,
        NotEnoughData,
        ReplayRatio,
        Rollout,
        SampleLimiter,
        SequenceReplayBuffer,
        Sequences,
        Spec,
        StepwellError,
        TransitionBatch,
        Transitions,
        bridges,
    )
    from stepwell.collectors import (
        Collector,
        CollectReport,
        EpsilonGreedy,
        Evaluation,
        GaussianNoise,
        RandomPolicy,
        WarmUp,
        evaluate,
    )
    from stepwell.wrappers import (
        NesEnv,
        check_vector_env,
        from_gym,
        make_atari,
        make_nes,
        make_vec,
    )

__all__ = [
    "Batch",
    "CollectReport",
    "Collector",
    "Episode",
    "Episodes",
    "EpsilonGreedy",
    "Evaluation",
    "GaussianNoise",
    "NesEnv",
    "NotEnoughData",
    "RandomPolicy",
    "ReplayRatio",
    "Rollout",
    "SampleLimiter",
    "SequenceReplayBuffer",
    "Sequences",
    "Spec",
    "StepwellError",
    "TransitionBatch",
    "Transitions",
    "WarmUp",
    "bridges",
    "check_vector_env",
    "evaluate",
    "from_gym",
    "make_atari",
    "make_nes",
    "make_vec",
]

__version__ = "0.1.0"

_LATER = {
    "Batch": "buffers",
    "CollectReport": "collectors",
    "Collector": "collectors",
    "Episode": "buffers",
    "Episodes": "buffers",
    "EpsilonGreedy": "collectors",
    "Evaluation": "collectors",
    "GaussianNoise": "collectors",
    "NesEnv": "wrappers",
    "NotEnoughData": "buffers",
    "RandomPolicy": "collectors",
    "ReplayRatio": "buffers",
    "Rollout": "buffers",
    "SampleLimiter": "buffers",
    "SequenceReplayBuffer": "buffers",
    "Sequences": "buffers",
    "Spec": "buffers",
    "StepwellError": "buffers",
    "TransitionBatch": "buffers",
    "Transitions": "buffers",
    "WarmUp": "collectors",
    "bridges": "buffers",
    "check_vector_env": "wrappers",
    "evaluate": "collectors",
    "from_gym": "wrappers",
    "make_atari": "wrappers",
    "make_nes": "wrappers",
    "make_vec": "wrappers",
}


def __getattr__(name: str) -> object:
    import importlib

    if name in ("buffers", "collectors", "wrappers"):
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "buffers", "collectors", "wrappers"})
