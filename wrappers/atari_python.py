"""The python backend of make_atari in worker processes: an env in one class, stacked here."""

from __future__ import annotations

import functools
from typing import Any, NoReturn, cast

import ale_py
import gymnasium
import numpy as np
import numpy.typing as npt
from ale_py import roms
from ale_py.env import AtariEnv
from gymnasium.utils.seeding import np_random
from gymnasium.vector.utils import batch_space

from ..buffers.base.errors import not_copied
from .ale_env import (
    Emulator,
    SeededLoads,
    check_seed,
    emulator_actions,
    emulator_info,
    quiet_emulators,
)
from .atari_settings import AtariSettings
from .atari_snapshots import AtariSnapshots, SavingEmulator
from .episodes import split_noops
from .pixels import BandResize, area_resize, count_bands, look_up, runs
from .seeded_resets import SeededResets
from .snapshots import SavedGame
from .workers.vector_env import WorkerVectorEnv

Image = npt.NDArray[np.uint8]
Step = tuple[Image, float, bool, bool, dict[str, Any]]


class FusedAtari(gymnasium.Env[Image, int]):
    """An Atari env with `make_atari`'s settings, made for worker processes."""

    # Observations, rewards, ends, infos and random draws equal those of the wrappers of
    # `atari_env(settings)` below its frame stack, which say why each thing is done. Here one method
    # plays a whole step. The next step overwrites the observation: workers and `FrameStack` copy
    # it. With ``snapshots`` the emulator is one for `AtariSnapshots`.

    metadata: dict[str, Any] = AtariEnv.metadata

    def __reduce__(self) -> NoReturn:
        not_copied("an Atari env", "make one in each process, from a function")

    def __init__(self, settings: AtariSettings, *, snapshots: bool = False) -> None:
        quiet_emulators()
        self.settings = settings
        self._game = settings.game  # as `AtariEnv` has it
        ale: Any = ale_py.ALEInterface()
        self.ale: Any = SavingEmulator(ale) if snapshots else ale
        self.ale.setFloat("repeat_action_probability", settings.sticky)
        numpy_seed, emulator_seed = np.random.SeedSequence().generate_state(2)
        self._np_random = np_random(int(numpy_seed))[0]
        self._loads = SeededLoads(self.ale, self._load)
        self._loads.load(int(emulator_seed) >> 1)  # seeds have 31 bits
        is_full = settings.full_actions
        chosen = self.ale.getLegalActionSet() if is_full else self.ale.getMinimalActionSet()
        self._meanings: list[str] = [action.name for action in chosen]
        self._actions = emulator_actions(self._meanings)
        (self._noop,) = emulator_actions(["NOOP"])
        (self._fire,) = emulator_actions(["FIRE"])
        self._fires = settings.fire_reset and "FIRE" in self._meanings
        self._skip, self._max_frames = settings.frame_skip, settings.max_frames
        self._clips = settings.clip_rewards
        self._ends_lives = settings.life_loss == "end"
        self._screens = _Screens(cast("Emulator", self.ale), settings)
        self._may_be_ntsc = settings.grayscale and self._screens.has_bands
        self.observation_space = gymnasium.spaces.Box(0, 255, self._screens.shape, np.uint8)
        self.action_space = cast("Any", gymnasium.spaces.Discrete(len(chosen)))
        self._frames = 0  # since the first observation of the game
        self._lives = 0
        self._continued: dict[str, Any] | None = None  # info of a step that lost a life

    def _load(self) -> None:
        """Load the game, which makes the emulator read its seed."""
        self.ale.loadROM(roms.get_rom_path(self._game))
        if self.settings.mode is not None:
            self.ale.setMode(self.settings.mode)
        if self.settings.difficulty is not None:
            self.ale.setDifficulty(self.settings.difficulty)

    @property
    def can_seed_resets(self) -> bool:
        """True if `SeededResets` may seed each reset, since that takes little time."""
        return self._loads.are_quick

    @property
    def continues_game(self) -> bool:
        """True after a lost life: the next reset without a seed or options continues the game."""
        return self._continued is not None

    def get_action_meanings(self) -> list[str]:
        """Return the name of each action."""
        return list(self._meanings)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Image, dict[str, Any]]:
        """Reset the game; after a lost life with `life_loss="end"`, continue it."""
        # ``{"noops": n}`` of the options plays n no-ops, as `NoopStart` does; others are ignored.
        _, chosen = split_noops(options, self.settings.noop_max)
        continued, self._continued = self._continued, None
        if continued is not None and seed is None and not options:
            return self._screens.result, continued
        saved: SavedGame | None = (options or {}).get("snapshot")
        if saved is not None:
            return self._resume(saved)
        if seed is not None:
            check_seed(seed)
            self._np_random = np_random(seed)[0]
            self._loads.load(seed)
        self._begin_game()
        drawn = int(self.np_random.integers(self.settings.noop_max + 1))
        noops = drawn if chosen is None else chosen
        for _ in range(noops):
            self.ale.act(self._noop, 1.0)
            if self.ale.game_over(with_truncation=False):
                self._begin_game()
        self._frames = 0
        if self._may_be_ntsc and (is_ntsc := _is_ntsc(self.ale)) is not None:
            self._may_be_ntsc = False
            if is_ntsc:
                self._screens = _NtscScreens(self.ale, self.settings)
        screen = self._screens.read(is_pooled=False)
        info = emulator_info(self.ale)
        self._lives = info["lives"]
        info["noops"] = noops
        if self._ends_lives:
            info["game_over"] = False
        return screen, info

    def _resume(self, saved: SavedGame) -> tuple[Image, dict[str, Any]]:
        """Begin at a snapshot, of which the screen is not known."""
        self.ale.reset_game()
        saved.restore(self.ale)
        saved.restore_generator(self.np_random)
        self._frames = saved.facts["frames"]
        info = saved.info(emulator_info(self.ale))
        self._lives = info["lives"]
        return self._screens.read(is_pooled=False), info

    def _begin_game(self) -> None:
        """Reset the emulator, and press FIRE if that is chosen."""
        self.ale.reset_game()
        if self._fires:
            self.ale.act(self._fire, 1.0)
            if self.ale.game_over(with_truncation=False):
                self.ale.reset_game()

    def step(self, action: int) -> Step:
        """Play up to `frame_skip` frames; the reward is the sum over the frames played."""
        ale, move, screens, frames = self.ale, self._actions[action], self._screens, 1
        act, is_over = ale.act, ale.game_over
        most = min(self._skip, self._max_frames - self._frames)
        raw: int = act(move, 1.0)
        while not (terminated := is_over(with_truncation=False)) and frames < most:
            screens.keep()  # any frame can be the second to last
            raw += act(move, 1.0)
            frames += 1
        self._frames += frames
        truncated = not terminated and self._frames >= self._max_frames
        screen = screens.read(is_pooled=frames > 1)
        info, reward = emulator_info(ale), float(raw)
        if self._clips:
            info["raw_reward"] = reward
            reward = float((raw > 0) - (raw < 0))
        if self._ends_lives:
            info["game_over"] = terminated or truncated
            # Some games report 0 lives for a few frames before they end.
            lost = 0 < info["lives"] < self._lives and not info["game_over"]
            self._lives = info["lives"]
            self._continued = info if lost else None
            terminated = terminated or lost
        return screen, reward, terminated, truncated, info


# Gray levels of the even color numbers on an NTSC console; all others are odd, which only a PAL
# console produces. tests/wrappers/test_atari_python.py compares them with ale-py's.
_NTSC_GRAYS = np.repeat(
    np.frombuffer(
        bytes.fromhex(
            "004a6f8eaac0d6ec405f7a94acc1d6e93f576e8396a7b8c73b556b8194a7b7c7"
            "2c445a6e8092a1b0334a5f738495a4b2273f556b7d8f9fae16314960748899a9"
            "1129405568798999203c556d8296a8ba28455f788da2b6c82b4a657f97adc1d4"
            "2847627c93a9bdcf294a68849db5cbdf2f4f6b859db3c8dc2f4f6b859db3c8dc"
        ),
        np.uint8,
    ),
    2,
)
_BLACK_AND_WHITE = (0, 14)  # color numbers with the same gray levels on a PAL console


class _Screens:
    """Reads the screen, pools it with the frame before, and resizes it."""

    def __init__(self, ale: Emulator, settings: AtariSettings) -> None:
        screen = ale.getScreenDims()
        channels = () if settings.grayscale else (3,)
        self._read = ale.getScreenGrayscale if settings.grayscale else ale.getScreenRGB
        self._pools = settings.pool == "max" and settings.frame_skip > 1
        self._now = np.empty((*screen, *channels), np.uint8)
        self._before = np.empty_like(self._now)
        size = settings.size or screen
        self.shape = (*size, *channels)
        self._resize = None if size == screen else BandResize(self._now.shape, size)
        self.result: Image = np.zeros(self.shape, np.uint8)
        """The newest observation."""

    @property
    def has_bands(self) -> bool:
        """True if parts of the screen can be resized alone."""
        return self._resize is not None and self._resize.bands > 1

    def keep(self) -> None:
        """Keep the screen, which may be pooled with the next one."""
        if self._pools:
            self._read(self._before)

    def read(self, *, is_pooled: bool) -> Image:
        """Return the screen; if `is_pooled`, its maximum with the one that was kept."""
        now = self._now
        self._read(now)
        if is_pooled and self._pools:
            np.maximum(now, self._before, out=now)
        self.result = now if self._resize is None else self._resize(now)
        return self.result


class _NtscScreens(_Screens):
    """The same for gray screens of an NTSC console that are resized in bands, in less time."""

    # ale-py takes 24 us to compute the gray levels of a screen and 2 us to copy its color numbers.
    # These are compared with those of the last step, and gray levels are computed, pooled and
    # resized only in the bands of rows that changed.

    def __init__(self, ale: Emulator, settings: AtariSettings) -> None:
        super().__init__(ale, settings)
        self._get_numbers = ale.getScreen
        rows, columns = self._now.shape
        bands = count_bands((rows, columns), self.shape)
        self._rows_in, self._rows_out = rows // bands, self.shape[0] // bands
        # [2 steps, in turns; 2 frames: kept, newest; H, W]. The result fits the last step's.
        numbers = np.zeros((2, 2, rows, columns), np.uint8)
        self._numbers = [[numbers[0, 0], numbers[0, 1]], [numbers[1, 0], numbers[1, 1]]]
        band_bytes = rows * columns // bands
        by_band = numbers.reshape(2, 2, bands, -1)
        self._words = by_band.view(np.uint64 if band_bytes % 8 == 0 else np.uint8)
        self._differs = np.empty(self._words.shape[1:], np.bool_)
        self._turn = 0

    def keep(self) -> None:
        if self._pools:
            self._get_numbers(self._numbers[self._turn][0])

    def read(self, *, is_pooled: bool) -> Image:
        turn, differs = self._turn, self._differs
        before, now = self._numbers[turn]
        self._get_numbers(now)
        if not (is_pooled and self._pools):
            before[...] = now
        np.not_equal(self._words[turn], self._words[1 - turn], out=differs)
        np.logical_or(differs[0], differs[1], out=differs[0])
        changed: list[int] = np.logical_or.reduce(differs[0], axis=1).nonzero()[0].tolist()
        for start, stop in runs(changed):
            rows = slice(start * self._rows_in, stop * self._rows_in)
            grays = look_up(now[rows], _NTSC_GRAYS)
            np.maximum(grays, look_up(before[rows], _NTSC_GRAYS), out=grays)
            area_resize(grays, self.result[start * self._rows_out : stop * self._rows_out])
        self._turn = 1 - turn
        return self.result


def _is_ntsc(ale: Emulator) -> bool | None:
    """Test whether the game runs on an NTSC console; None if its screen does not tell."""
    numbers, grays = (np.empty(ale.getScreenDims(), np.uint8) for _ in range(2))
    ale.getScreen(numbers)
    ale.getScreenGrayscale(grays)
    if np.isin(numbers, _BLACK_AND_WHITE).all():
        return None
    return bool((_NTSC_GRAYS[numbers] == grays).all())


def fused_env(settings: AtariSettings, *, snapshots: bool = False) -> gymnasium.Env[Image, int]:
    """Make a `FusedAtari` whose resets are seeded, with snapshots in their infos if chosen."""
    env: gymnasium.Env[Image, int] = FusedAtari(settings, snapshots=snapshots)
    return SeededResets(AtariSnapshots(env) if snapshots else env)


class AtariWorkers(WorkerVectorEnv):
    """Atari envs in worker processes, which share only their newest screens."""

    # The stacks are kept here, so that each screen is written to and read from shared memory once.
    # No start method needs a script with a main guard.

    _needs_main = False

    def __init__(
        self,
        settings: AtariSettings,
        num_envs: int,
        num_workers: int | None = None,
        context: str | None = None,
        *,
        snapshots: bool = False,  # the infos of resets have them
    ) -> None:
        env_fns = [functools.partial(fused_env, settings, snapshots=snapshots)] * num_envs
        super().__init__(env_fns, num_workers=num_workers, context=context)
        self._game, size = settings.game, settings.frame_stack or 1
        self._is_stacked = settings.frame_stack is not None
        shape = (size, *cast("tuple[int, ...]", self.single_observation_space.shape))
        if self._is_stacked:
            self.single_observation_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
            self.observation_space = batch_space(self.single_observation_space, num_envs)
        self._stack = np.zeros((num_envs, *shape), np.uint8)  # without the newest screens
        self._newest = np.zeros((num_envs, *shape[1:]), np.uint8)
        self._next: Image | None = None
        self._seen = np.zeros(num_envs, np.int64)

    def __repr__(self) -> str:
        return (
            f"AtariWorkers({self._game}, num_envs={self.num_envs}, num_workers={self.num_workers})"
        )

    def _prepare(self) -> None:
        """Write all but the newest screens into new stacks, while the envs step."""
        if self._next is None:  # else the last call failed
            stack = self._stack
            stack[:, :-1] = stack[:, 1:]
            stack[:, -1] = self._newest
            self._next = np.empty_like(stack)
            self._next[:, :-1] = stack[:, 1:]

    def _observation(self) -> Image:
        """Return new stacks that end with the newest screens."""
        rows, stack, newest, result = self._rows, self._stack, self._newest, self._next
        assert result is not None
        self._next = None
        newest[...] = cast("Image", rows.observation)
        result[:, -1] = newest
        is_new = rows.writes != self._seen
        self._seen = rows.writes.copy()
        first = is_new & rows.is_first
        if np.count_nonzero(first):
            result[first, :-1] = 0
            stack[first] = 0
        if np.count_nonzero(is_new) < len(is_new):
            # Not reset, or not reached by a step in which another env raised: as before.
            old = ~is_new
            result[old], newest[old] = stack[old], stack[old, -1]
            stack[old, 1:] = stack[old, :-1]
        return result if self._is_stacked else result[:, 0]
