"""Stepwell: gather experience from Gymnasium environments, keep it, and draw batches from it."""

import importlib
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:  # loaded when it is first asked for: the command line begins before that
    from .buffers import (
        AgentReplay,
        Batch,
        Episode,
        Episodes,
        Hindsight,
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
        per_agent,
    )
    from .collectors import (
        Collector,
        CollectReport,
        EpsilonGreedy,
        Evaluation,
        Folders,
        GaussianNoise,
        LocalCollector,
        RandomPolicy,
        RayCollector,
        ScriptedPolicy,
        WarmUp,
        archive,
        env_at,
        evaluate,
        play,
        record,
        resimulate,
        restore,
    )
    from .wrappers import (
        JaxEnvs,
        NesEnv,
        SeededResets,
        TorchEnvs,
        check_vector_env,
        from_gym,
        from_pettingzoo,
        make_atari,
        make_nes,
        make_vec,
    )

__all__ = [
    "AgentReplay",
    "Batch",
    "CollectReport",
    "Collector",
    "Episode",
    "Episodes",
    "EpsilonGreedy",
    "Evaluation",
    "Folders",
    "GaussianNoise",
    "Hindsight",
    "JaxEnvs",
    "LocalCollector",
    "NesEnv",
    "NotEnoughData",
    "RandomPolicy",
    "RayCollector",
    "ReplayRatio",
    "Rollout",
    "SampleLimiter",
    "ScriptedPolicy",
    "SeededResets",
    "SequenceReplayBuffer",
    "Sequences",
    "Spec",
    "StepwellError",
    "TorchEnvs",
    "TransitionBatch",
    "Transitions",
    "WarmUp",
    "archive",
    "bridges",
    "check_vector_env",
    "env_at",
    "evaluate",
    "from_gym",
    "from_pettingzoo",
    "make_atari",
    "make_nes",
    "make_vec",
    "per_agent",
    "play",
    "record",
    "resimulate",
    "restore",
]

__version__ = "0.1.0"

# A program that sets up no logging sees nothing; without this, Python would print warnings.
logging.getLogger("stepwell").addHandler(logging.NullHandler())


# As other libraries name them.
_OTHER_NAMES = {
    **dict.fromkeys(("ReplayBuffer", "Buffer", "Replay"), "SequenceReplayBuffer"),
    "PrioritizedReplayBuffer": 'SequenceReplayBuffer and sample_transitions(draw="priorities")',
    "HerReplayBuffer": "SequenceReplayBuffer and sample_transitions(relabel=Hindsight(...))",
    "RolloutBuffer": "Collector.rollout(steps)",
    "make": "make_vec(id, num_envs) for envs of a Collector, or gymnasium.make(id)",
    **dict.fromkeys(("load", "load_dataset", "open"), "SequenceReplayBuffer.open(path)"),
    **dict.fromkeys(("RecordEpisode", "Recorder", "DataCollector"), "record(env, replay)"),
}


def lazy_names(
    package: str, modules: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package whose names are imported when first used.

    The command line and worker processes start before most modules are needed (PEP 562).

    Args:
        package: Name of the package.
        modules: The public names of each of its modules; a module's own name stands for itself.
    """
    homes = {name: module for module, names in modules.items() for name in names}
    namespace = vars(sys.modules[package])

    def find(name: str) -> object:
        if name not in homes:
            hint = _OTHER_NAMES.get(name, "") if package == "stepwell" else ""
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}{hint and f': expected {hint}'}",
                name=name,
            )
        module = importlib.import_module(f"{package}.{homes[name]}")
        namespace[name] = module if name == homes[name] else getattr(module, name)
        return namespace[name]

    def names() -> list[str]:
        special = (name for name in namespace if name.startswith("__"))
        return sorted({*special, *namespace["__all__"], *homes})

    return find, names


def not_copied(what: str, instead: str) -> NoReturn:
    """Refuse to pickle or copy an object that has files, locks, memory or processes of its own.

    Args:
        what: What it is.
        instead: What to do.

    Raises:
        TypeError: Always.
    """
    raise TypeError(
        f"{what} cannot be pickled or copied: expected one that was made where it is used, got a "
        f"copy of another one; {instead}"
    )


if not TYPE_CHECKING:  # type checkers know the imports above, and no other name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "buffers": [
                "AgentReplay",
                "Batch",
                "Episode",
                "Episodes",
                "Hindsight",
                "NotEnoughData",
                "ReplayRatio",
                "Rollout",
                "SampleLimiter",
                "SequenceReplayBuffer",
                "Sequences",
                "Spec",
                "StepwellError",
                "TransitionBatch",
                "Transitions",
                "bridges",
                "buffers",
                "per_agent",
            ],
            "collectors": [
                "CollectReport",
                "Collector",
                "EpsilonGreedy",
                "Evaluation",
                "Folders",
                "GaussianNoise",
                "LocalCollector",
                "RandomPolicy",
                "RayCollector",
                "ScriptedPolicy",
                "WarmUp",
                "archive",
                "collectors",
                "env_at",
                "evaluate",
                "play",
                "record",
                "resimulate",
                "restore",
            ],
            "wrappers": [
                "JaxEnvs",
                "NesEnv",
                "SeededResets",
                "TorchEnvs",
                "check_vector_env",
                "from_gym",
                "from_pettingzoo",
                "make_atari",
                "make_nes",
                "make_vec",
                "wrappers",
            ],
        },
    )
