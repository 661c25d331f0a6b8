"""Stepwell: gather experience from Gymnasium environments, keep it, and draw batches from it."""

import logging
from typing import TYPE_CHECKING

from .buffers.base.package import __version__ as __version__
from .buffers.base.package import lazy_names as lazy_names

if TYPE_CHECKING:  # imported on first use; `as`: for type checkers, too, they are public
    from .buffers import AgentReplay as AgentReplay
    from .buffers import Batch as Batch
    from .buffers import Episode as Episode
    from .buffers import Episodes as Episodes
    from .buffers import Hindsight as Hindsight
    from .buffers import NotEnoughData as NotEnoughData
    from .buffers import ReplayRatio as ReplayRatio
    from .buffers import Rollout as Rollout
    from .buffers import SampleLimiter as SampleLimiter
    from .buffers import SequenceReplayBuffer as SequenceReplayBuffer
    from .buffers import Sequences as Sequences
    from .buffers import Spec as Spec
    from .buffers import StepwellError as StepwellError
    from .buffers import TransitionBatch as TransitionBatch
    from .buffers import Transitions as Transitions
    from .buffers import bridges as bridges
    from .buffers import per_agent as per_agent
    from .collectors import Collector as Collector
    from .collectors import CollectReport as CollectReport
    from .collectors import EpsilonGreedy as EpsilonGreedy
    from .collectors import Evaluation as Evaluation
    from .collectors import Folders as Folders
    from .collectors import GaussianNoise as GaussianNoise
    from .collectors import LocalCollector as LocalCollector
    from .collectors import RandomPolicy as RandomPolicy
    from .collectors import RayCollector as RayCollector
    from .collectors import ScriptedPolicy as ScriptedPolicy
    from .collectors import WarmUp as WarmUp
    from .collectors import archive as archive
    from .collectors import env_at as env_at
    from .collectors import evaluate as evaluate
    from .collectors import load_dataset as load_dataset
    from .collectors import play as play
    from .collectors import record as record
    from .collectors import resimulate as resimulate
    from .collectors import restore as restore
    from .wrappers import JaxEnvs as JaxEnvs
    from .wrappers import NesEnv as NesEnv
    from .wrappers import SeededResets as SeededResets
    from .wrappers import TorchEnvs as TorchEnvs
    from .wrappers import check_env as check_env
    from .wrappers import check_vector_env as check_vector_env
    from .wrappers import from_gym as from_gym
    from .wrappers import from_pettingzoo as from_pettingzoo
    from .wrappers import make_atari as make_atari
    from .wrappers import make_nes as make_nes
    from .wrappers import make_vec as make_vec


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
    _NAMES = {
        "buffers": "AgentReplay Batch Episode Episodes Hindsight NotEnoughData ReplayRatio Rollout "
        "SampleLimiter SequenceReplayBuffer Sequences Spec StepwellError TransitionBatch "
        "Transitions bridges buffers per_agent",
        "collectors": "CollectReport Collector EpsilonGreedy Evaluation Folders GaussianNoise "
        "LocalCollector RandomPolicy RayCollector ScriptedPolicy WarmUp archive collectors "
        "env_at evaluate load_dataset play record resimulate restore",
        "wrappers": "JaxEnvs NesEnv SeededResets TorchEnvs check_env check_vector_env from_gym "
        "from_pettingzoo make_atari make_nes make_vec wrappers",
    }
    _HOMES = {home: names.split() for home, names in _NAMES.items()}
    __all__ = sorted(name for names in _HOMES.values() for name in names if name not in _HOMES)
    __getattr__, __dir__ = lazy_names(
        __name__, _HOMES, _OTHER_NAMES, inner=("bridges", "buffers", "collectors", "wrappers")
    )
