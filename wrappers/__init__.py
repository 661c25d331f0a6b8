"""Environment wrappers, one behavior each, and functions that make vector envs of them."""

from typing import TYPE_CHECKING

if __name__ != "stepwell.wrappers":  # would hold every class a second time
    raise ImportError(f"import stepwell.wrappers, not {__name__}, in a checkout as elsewhere")

from ..buffers.base.package import lazy_names

if TYPE_CHECKING:  # imported on first use; `as`: for type checkers, too, they are public
    from .ale_env import AleFrameSkip as AleFrameSkip
    from .ale_env import EmulatorSeed as EmulatorSeed
    from .atari import make_atari as make_atari
    from .atari_settings import atari_games as atari_games
    from .check.env import check_env as check_env
    from .check.vector_env import check_vector_env as check_vector_env
    from .envpool import from_envpool as from_envpool
    from .episodes import EpisodicLife as EpisodicLife
    from .episodes import FireReset as FireReset
    from .episodes import NoopStart as NoopStart
    from .fixed_spaces import FixedSpaces as FixedSpaces
    from .frames import FrameSkip as FrameSkip
    from .frames import FrameStack as FrameStack
    from .gymnasium_0_29 import patch_gymnasium as patch_gymnasium
    from .jax_envs import JaxEnvs as JaxEnvs
    from .make_vector_env import make_vec as make_vec
    from .make_vector_env import vectorize as vectorize
    from .nes import NesEnv as NesEnv
    from .nes import make_nes as make_nes
    from .old_gym import from_gym as from_gym
    from .old_gym import patch_nes_py as patch_nes_py
    from .pettingzoo_env import from_pettingzoo as from_pettingzoo
    from .pixels import Crop as Crop
    from .pixels import Grayscale as Grayscale
    from .pixels import Resize as Resize
    from .rewards import ClipReward as ClipReward
    from .rewards import SignReward as SignReward
    from .rewards import VectorReward as VectorReward
    from .seeded_resets import SeededResets as SeededResets
    from .torch_envs import TorchEnvs as TorchEnvs
    from .workers.vector_env import WorkerVectorEnv as WorkerVectorEnv


if not TYPE_CHECKING:  # type checkers know the imports above, and no other name
    _HOMES = {
        "ale_env": ["AleFrameSkip", "EmulatorSeed"],
        "atari": ["make_atari"],
        "atari_settings": ["atari_games"],
        "check.env": ["check_env"],
        "check.vector_env": ["check_vector_env"],
        "envpool": ["from_envpool"],
        "episodes": ["EpisodicLife", "FireReset", "NoopStart"],
        "fixed_spaces": ["FixedSpaces"],
        "frames": ["FrameSkip", "FrameStack"],
        "gymnasium_0_29": ["patch_gymnasium"],
        "jax_envs": ["JaxEnvs"],
        "make_vector_env": ["make_vec", "vectorize"],
        "nes.env": ["NesEnv"],
        "nes.vector": ["make_nes"],
        "old_gym": ["from_gym", "patch_nes_py"],
        "pettingzoo_env": ["from_pettingzoo"],
        "pixels": ["Crop", "Grayscale", "Resize"],
        "rewards": ["ClipReward", "SignReward", "VectorReward"],
        "seeded_resets": ["SeededResets"],
        "torch_envs": ["TorchEnvs"],
        "workers.vector_env": ["WorkerVectorEnv"],
    }
    __all__ = sorted(name for names in _HOMES.values() for name in names)
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
