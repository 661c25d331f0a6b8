"""Environment wrappers, one behaviour each, and the makers that put them together."""

from typing import TYPE_CHECKING

if __name__ != "stepwell.wrappers":  # would hold every class a second time
    raise ImportError(f"import stepwell.wrappers, not {__name__}, in a checkout as elsewhere")

from stepwell import lazy_names
from stepwell.wrappers.ale_frame_skip import AleFrameSkip
from stepwell.wrappers.atari import make_atari
from stepwell.wrappers.atari_games import atari_games
from stepwell.wrappers.clip_reward import ClipReward
from stepwell.wrappers.crop import Crop
from stepwell.wrappers.emulator_seed import EmulatorSeed
from stepwell.wrappers.episodic_life import EpisodicLife
from stepwell.wrappers.fire_reset import FireReset
from stepwell.wrappers.frame_skip import FrameSkip
from stepwell.wrappers.frame_stack import FrameStack
from stepwell.wrappers.grayscale import Grayscale
from stepwell.wrappers.make_vector_env import make_vec, vectorize
from stepwell.wrappers.noop_start import NoopStart
from stepwell.wrappers.resize import Resize
from stepwell.wrappers.sign_reward import SignReward
from stepwell.wrappers.workers.vector_env import WorkerVectorEnv

if TYPE_CHECKING:  # loaded when it is first asked for
    from stepwell.wrappers.check.vector_env import check_vector_env
    from stepwell.wrappers.nes import NesEnv, make_nes
    from stepwell.wrappers.old_gym.env import from_gym
    from stepwell.wrappers.old_gym.nes_py_repair import patch_nes_py

__all__ = [
    "AleFrameSkip",
    "ClipReward",
    "Crop",
    "EmulatorSeed",
    "EpisodicLife",
    "FireReset",
    "FrameSkip",
    "FrameStack",
    "Grayscale",
    "NesEnv",
    "NoopStart",
    "Resize",
    "SignReward",
    "WorkerVectorEnv",
    "atari_games",
    "check_vector_env",
    "from_gym",
    "make_atari",
    "make_nes",
    "make_vec",
    "patch_nes_py",
    "vectorize",
]

if not TYPE_CHECKING:  # type checkers know the imports above, and no other name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "check.vector_env": ["check_vector_env"],
            "nes.env": ["NesEnv"],
            "nes.vector": ["make_nes"],
            "old_gym.env": ["from_gym"],
            "old_gym.nes_py_repair": ["patch_nes_py"],
        },
    )
