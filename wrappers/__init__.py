"""Environment wrappers, one behavior each, and functions that make vector envs of them."""

from typing import TYPE_CHECKING

if __name__ != "stepwell.wrappers":  # would hold every class a second time
    raise ImportError(f"import stepwell.wrappers, not {__name__}, in a checkout as elsewhere")

from ..buffers.base.package import lazy_names
from .ale_env import AleFrameSkip, EmulatorSeed
from .atari import make_atari
from .atari_settings import atari_games
from .envpool import from_envpool
from .episodes import EpisodicLife, FireReset, NoopStart
from .fixed_spaces import FixedSpaces
from .frames import FrameSkip, FrameStack
from .make_vector_env import make_vec, vectorize
from .pixels import Crop, Grayscale, Resize
from .rewards import ClipReward, SignReward, VectorReward
from .seeded_resets import SeededResets
from .workers.vector_env import WorkerVectorEnv

if TYPE_CHECKING:  # imported on first use
    from .check.env import check_env
    from .check.vector_env import check_vector_env
    from .gymnasium_0_29 import patch_gymnasium
    from .jax_envs import JaxEnvs
    from .nes import NesEnv, make_nes
    from .old_gym import from_gym, patch_nes_py
    from .pettingzoo_env import from_pettingzoo
    from .torch_envs import TorchEnvs

__all__ = [
    "AleFrameSkip",
    "ClipReward",
    "Crop",
    "EmulatorSeed",
    "EpisodicLife",
    "FireReset",
    "FixedSpaces",
    "FrameSkip",
    "FrameStack",
    "Grayscale",
    "JaxEnvs",
    "NesEnv",
    "NoopStart",
    "Resize",
    "SeededResets",
    "SignReward",
    "TorchEnvs",
    "VectorReward",
    "WorkerVectorEnv",
    "atari_games",
    "check_env",
    "check_vector_env",
    "from_envpool",
    "from_gym",
    "from_pettingzoo",
    "make_atari",
    "make_nes",
    "make_vec",
    "patch_gymnasium",
    "patch_nes_py",
    "vectorize",
]

if not TYPE_CHECKING:  # type checkers know the imports above, and no other name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "check.env": ["check_env"],
            "check.vector_env": ["check_vector_env"],
            "gymnasium_0_29": ["patch_gymnasium"],
            "jax_envs": ["JaxEnvs"],
            "nes.env": ["NesEnv"],
            "nes.vector": ["make_nes"],
            "old_gym": ["from_gym", "patch_nes_py"],
            "pettingzoo_env": ["from_pettingzoo"],
            "torch_envs": ["TorchEnvs"],
        },
    )
