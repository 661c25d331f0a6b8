"""Stepwell: gather experience from Gymnasium environments, keep it, and draw batches from it."""

import logging
from typing import TYPE_CHECKING

from .buffers.base.package import __version__ as __version__
from .buffers.base.package import lazy_names as lazy_names

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
        load_dataset,
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
        check_env,
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
    "check_env",
    "check_vector_env",
    "env_at",
    "evaluate",
    "from_gym",
    "from_pettingzoo",
    "load_dataset",
    "make_atari",
    "make_nes",
    "make_vec",
    "per_agent",
    "play",
    "record",
    "resimulate",
    "restore",
]


# A program that sets up no logging sees nothing; without this, Python would print warnings.
logging.getLogger("stepwell").addHandler(logging.NullHandler())


# As other libraries name them.
_MEANT = {
    "SequenceReplayBuffer": "Buffer DictReplayBuffer Replay ReplayBuffer ReplayMemory "
    "SequenceBuffer TensorDictReplayBuffer TrajectoryBuffer TransitionBuffer VectorReplayBuffer",
    'SequenceReplayBuffer and sample_transitions(draw="priorities")': "PER "
    "PrioritisedReplayBuffer PrioritizedReplayBuffer PrioritizedSampler",
    "SequenceReplayBuffer and sample_transitions(relabel=Hindsight(...))": "HER HerReplayBuffer",
    "Collector.rollout(steps)": "RolloutBuffer rollout",
    "SequenceReplayBuffer.open(path)": "Dataset Store get_dataset load load_buffer "
    "load_replay load_store open open_dataset open_store",
    "load_dataset(name)": "download download_dataset",
    "`stepwell datasets`": "datasets list_datasets list_remote_datasets",
    "make_vec(id, num_envs) for envs of a Collector, or gymnasium.make(id)": "AsyncVectorEnv "
    "DummyVecEnv SubprocVecEnv SyncVectorEnv VecEnv make make_env make_envs make_vec_env vector",
    "make_atari(game, num_envs)": "AtariPreprocessing AtariWrapper make_atari_env",
    "Collector(envs, policy, replay).collect(steps)": "SyncDataCollector collect",
    "record(env, replay)": "DataCollector RecordEpisode RecordEpisodeStatistics Recorder",
    "RandomPolicy()": "RandomAgent",
    "`stepwell view DIR` on the command line": "view viewer",
    "`stepwell render DIR --episode ID -o clip.webp`": "RecordVideo render",
    "stepwell.bridges.export_episodes(replay, format, out)": "convert export save",
    "stepwell.bridges.import_episodes(format, path, replay)": "from_minari import_dataset",
}
_OTHER_NAMES = {name: right for right, names in _MEANT.items() for name in names.split()}


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
                "load_dataset",
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
                "check_env",
                "check_vector_env",
                "from_gym",
                "from_pettingzoo",
                "make_atari",
                "make_nes",
                "make_vec",
                "wrappers",
            ],
        },
        _OTHER_NAMES,
        inner=("bridges", "buffers", "collectors", "wrappers"),
    )
