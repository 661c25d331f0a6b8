"""Make vector envs of Atari games."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

import gymnasium
import numpy as np
import numpy.typing as npt

from ..buffers.base.number_checks import MOST_ENVS, check_choice, check_whole
from ..buffers.base.optional_libraries import installed_version, version_numbers
from .ale_env import AleFrameSkip, EmulatorSeed, action_meanings, emulator_of, quiet_emulators
from .atari_settings import AtariSettings, Backend, LifeLoss, Pool, find_game, game_ids
from .episodes import EpisodicLife, FireReset, NoopStart
from .frames import FrameStack
from .make_vector_env import checked_num_workers, vectorize
from .pixels import Resize, require_opencv
from .recipe import spec_of
from .rewards import SignReward
from .seeded_resets import SeededResets

if TYPE_CHECKING:
    from gymnasium.vector import VectorEnv

TESTED_ALE_PY = "0.12.1"  # the version of tests/wrappers/test_ale_py_facts.py
# After a restored state their frames differ: of all games, played on from 60 states each.
_NOT_SAVED = ("alien", "miniature_golf", "qbert", "tetris", "tic_tac_toe_3d", "yars_revenge")

Image = npt.NDArray[np.uint8]


def make_atari(
    game: str,
    num_envs: int = 1,
    *,
    backend: Backend = "auto",
    frame_skip: int = 4,
    pool: Pool = "max",
    noop_max: int = 30,
    fire_reset: bool = False,
    size: tuple[int, int] | None = (84, 84),
    grayscale: bool = True,
    frame_stack: int | None = 4,
    sticky: float = 0.25,
    max_frames: int = 108_000,
    clip_rewards: bool = False,
    life_loss: LifeLoss = "ignore",
    full_actions: bool = False,
    mode: int | None = None,
    difficulty: int | None = None,
    num_workers: int | None = None,
    snapshots: bool = False,
) -> VectorEnv[Any, Any, Any]:
    """Make a vector env of an Atari game with the usual preprocessing.

    Two backends share one set of settings and defaults. "native" is ale-py's `AtariVectorEnv`, in
    threads. "python" drives ale-py's emulator itself: in worker processes, or with num_workers=0
    in this process, with Stepwell's wrappers. "auto" is "python", or, with a warning, "native"
    where OpenCV is missing. Equal settings and seeds give equal frames, rewards and ends, with two
    exceptions: the numbers of no-ops are drawn by different generators (they are recorded in
    `info["noops"]`), and at the end of an episode the native backend shows an older screen than the
    last one.

    The native backend has neither ``life_loss="end"`` nor ``mode``, ``difficulty`` and
    ``snapshots``, and seeds some resets; on the python backend each reset has a seed, so that each
    episode can be played again alone.

    With `fire_reset` the native backend counts the FIRE as one of the no-ops that it drew.

    Sticky actions are on, as in the v5 ids that name the games and as Machado et al. 2018,
    "Revisiting the Arcade Learning Environment", recommend; `AtariVectorEnv` itself has them off.

    Args:
        game: "pong", "Pong" or "ALE/Pong-v5"; `atari_games()` lists all games.
        num_envs: Number of envs, N >= 1.
        backend: "native", "python" for true last observations, lives and game modes, or "auto".
            ``metadata["stepwell"]`` has the one that was taken under "backend", and "stale" or
            "true" under "final_observation".
        frame_skip: Emulator frames per step; the reward is their sum.
        pool: "max" of a step's last two frames, or "none": the last one.
        noop_max: No-op frames after a reset: 0 to this number, uniformly drawn.
        fire_reset: Press FIRE for one frame after a reset, if there is one.
        size: Rows and columns, by area averaging; None: the screen's.
        grayscale: The emulator's gray levels; False: RGB as the last axis.
        frame_stack: Frames of an observation, zeros first; None: no such axis.
        sticky: Probability, per frame, that the last action is repeated.
        max_frames: Truncation, in frames since the first observation.
        clip_rewards: The sign of the reward; ``info["raw_reward"]`` is the raw one.
        life_loss: "end": a lost life ends the episode, not the game.
        full_actions: All 18 actions instead of those that the game uses.
        mode: The game's variant; None is the game's default.
        difficulty: The same.
        num_workers: Threads ("native", at least 1) or processes ("python"; 0 is this process, as is
            None for one env and in a daemonic process). Processes need no script with a main guard.
        snapshots: The info of each reset has the state of emulator and env as bytes, some 200, from
            which `stepwell.env_at` continues the episode. Frames, rewards and ends are the same.

    Returns:
        A vector env in NEXT_STEP autoreset with observations uint8 [N, frame_stack, rows, columns],
        or [N, rows, columns] without a stack (RGB: one more axis of 3). `metadata["stepwell"]`
        records how it was made.

    Raises:
        ValueError: The game is unknown, or a value is out of range or not supported by the backend.
        ImportError: backend="python" resizes images and OpenCV cannot be imported.
        RuntimeError: The installed ale-py is newer than the tested version, and differs in what
            the backend relies on.

    Warns:
        UserWarning: The installed ale-py is newer than the tested version, or "auto" took "native".

    Example:
        >>> envs = make_atari("Pong", num_envs=2)
        >>> observation, info = envs.reset(seed=0)
        >>> observation.shape, observation.dtype
        ((2, 4, 84, 84), dtype('uint8'))
        >>> envs.close()
    """
    check_choice("backend", backend, get_args(Backend))
    check_whole("num_envs", num_envs, 1, most=MOST_ENVS)
    settings = AtariSettings(
        game=find_game(game),
        frame_skip=frame_skip,
        pool=pool,
        noop_max=noop_max,
        fire_reset=fire_reset,
        size=size,
        grayscale=grayscale,
        frame_stack=frame_stack,
        sticky=sticky,
        max_frames=max_frames,
        clip_rewards=clip_rewards,
        life_loss=life_loss,
        full_actions=full_actions,
        mode=mode,
        difficulty=difficulty,
    )
    if snapshots and backend == "native":
        raise ValueError(
            "snapshots: expected backend='python' with it, got 'native', which cannot save its "
            "emulators; choose backend='python', or omit snapshots"
        )
    if snapshots and settings.game in _NOT_SAVED:
        raise ValueError(
            f"snapshots: expected a game whose whole state the emulator saves, got "
            f"{settings.game}, of which ale-py {TESTED_ALE_PY} forgets a part; omit snapshots, and "
            "begin at seeds"
        )
    if backend == "auto":
        backend = "python" if snapshots else _chosen_backend(settings)
    _check_ale_py(backend)
    envs: VectorEnv[Any, Any, Any]
    if backend == "native":
        from .atari_native import NativeAtari  # loads ale-py

        hint = "; backend='python' can step in this process"
        check_whole("num_workers", 1 if num_workers is None else num_workers, 1, hint=hint)
        envs = NativeAtari(settings, num_envs, num_workers or 0)
    else:
        check_buildable(settings)
        num_workers = checked_num_workers(num_envs, num_workers, needs_main=False)
        if num_workers == 0:
            make = partial(atari_env, settings, snapshots=snapshots)
            envs = vectorize([make] * num_envs, num_workers=0)
        else:
            from .atari_python import AtariWorkers  # loads ale-py

            envs = AtariWorkers(settings, num_envs, num_workers, snapshots=snapshots)
    envs.metadata = {**envs.metadata, "stepwell": settings.recipe(backend), **_spec(settings)}
    return envs


def _chosen_backend(settings: AtariSettings) -> Backend:
    """Choose "python", or "native" with a warning if OpenCV is missing and not needed for it."""
    if settings.size is None or settings.needs_python:
        return "python"
    try:
        require_opencv()
    except ImportError as error:
        warnings.warn(
            f"make_atari takes backend='native', whose last observations of episodes are older "
            f"screens, since backend='python' cannot resize: {error}. Name the backend to silence "
            f"this",
            stacklevel=3,
        )
        return "native"
    return "python"


def _check_ale_py(backend: Backend) -> None:
    """Check an ale-py newer than the tested version, and warn the caller of `make_atari`."""
    found = installed_version("ale-py") or ""
    if version_numbers(found) <= version_numbers(TESTED_ALE_PY):
        return
    from .ale_env import unlike_facts

    cure = f"install 'ale-py=={TESTED_ALE_PY}'"
    if unlike := unlike_facts(backend):
        raise RuntimeError(
            f"ale-py {found}: expected, as in {TESTED_ALE_PY}, that {'; that '.join(unlike)}: this "
            f"does not hold, and make_atari's data would be wrong; {cure}, or try the other backend"
        )
    warnings.warn(
        f"ale-py: expected at most {TESTED_ALE_PY}, the version tested with make_atari, got "
        f"{found}. What backend={backend!r} relies on was checked now and holds; the rest of "
        f"docs/atari.md may not: {cure}, or silence this with "
        f"warnings.filterwarnings('ignore', message='ale-py')",
        stacklevel=3,
    )


def _spec(settings: AtariSettings) -> dict[str, str]:
    """Return Gymnasium's spec of one env of the python backend, used for both backends."""
    with contextlib.closing(atari_env(settings)) as env:
        spec = spec_of(env)
    return {} if spec is None else {"env_spec": spec}


def atari_env(settings: AtariSettings, *, snapshots: bool = False) -> gymnasium.Env[Image, int]:
    """Make one wrapped game, with one wrapper per setting, the innermost first."""
    bare = _bare(settings)
    if snapshots:
        from .atari_snapshots import SavingEmulator

        inner: Any = bare.unwrapped
        inner.ale = SavingEmulator(inner.ale)
    env: gymnasium.Env[Image, int] = EmulatorSeed(bare)
    if settings.fire_reset and "FIRE" in action_meanings(env):
        env = FireReset(env)
    env = NoopStart(env, settings.noop_max)
    env = AleFrameSkip(env, settings.frame_skip, pool=settings.pool, max_frames=settings.max_frames)
    if settings.clip_rewards:
        env = SignReward(env)
    if settings.size is not None and settings.size != emulator_of(env).getScreenDims():
        env = Resize(env, settings.size)
    if settings.life_loss == "end":
        env = EpisodicLife(env)
    if snapshots:
        from .atari_snapshots import AtariSnapshots

        env = AtariSnapshots(env)
    if settings.frame_stack is not None:
        env = FrameStack(env, settings.frame_stack, padding="zero")
    return SeededResets(env)


def check_buildable(settings: AtariSettings) -> None:
    """Raise errors of `atari_env` in the parent process, before workers are started."""
    if settings.size is not None:
        require_opencv()
    if settings.mode is not None or settings.difficulty is not None:
        ale = emulator_of(_bare(dataclasses.replace(settings, mode=None, difficulty=None)))
        _check_offered("mode", settings.mode, ale.getAvailableModes())
        _check_offered("difficulty", settings.difficulty, ale.getAvailableDifficulties())


def _bare(settings: AtariSettings) -> gymnasium.Env[Image, int]:
    """Make ale-py's env with one frame per step and without a time limit."""
    quiet_emulators()
    return gymnasium.make(
        game_ids()[settings.game],
        obs_type="grayscale" if settings.grayscale else "rgb",
        frameskip=1,
        repeat_action_probability=settings.sticky,
        full_action_space=settings.full_actions,
        max_num_frames_per_episode=None,
        mode=settings.mode,
        difficulty=settings.difficulty,
        disable_env_checker=True,
    )


def _check_offered(name: str, value: int | None, offered: list[int]) -> None:
    if value is not None and value not in offered:
        raise ValueError(f"{name}: expected one of {offered} or None for this game, got {value}")
