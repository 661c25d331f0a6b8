"""One Atari env in a single class: the rows of `atari_env`'s wrappers in less time."""

from __future__ import annotations

from typing import Any, cast

import ale_py
import gymnasium
import numpy as np
import numpy.typing as npt
from ale_py import roms
from ale_py.env import AtariEnv
from gymnasium.utils.seeding import np_random

from stepwell.wrappers.ale_env import (
    Emulator,
    check_seed,
    emulator_actions,
    emulator_info,
    quiet_emulators,
)
from stepwell.wrappers.atari_settings import AtariSettings
from stepwell.wrappers.pixels import BandResize, area_resize, count_bands, look_up, runs

Image = npt.NDArray[np.uint8]
Step = tuple[Image, float, bool, bool, dict[str, Any]]


class FusedAtari(gymnasium.Env[Image, int]):
    """An Atari env with `make_atari`'s settings, made for worker processes.

    Observations, rewards, ends, infos and random draws equal those of `atari_env(settings)`, whose
    wrappers say why each thing is done. Here one method plays a whole step and each screen is
    read once.

    Args:
        settings: The settings.

    Example:
        >>> from stepwell.wrappers.atari import make_atari
        >>> envs = make_atari("Pong", 2, backend="python", num_workers=1)
        >>> envs.call("get_action_meanings")[1][:2]
        ['NOOP', 'FIRE']
        >>> envs.close()
    """

    metadata: dict[str, Any] = AtariEnv.metadata

    def __init__(self, settings: AtariSettings) -> None:
        quiet_emulators()
        self.settings = settings
        self.ale = cast("Any", ale_py.ALEInterface())
        self.ale.setFloat("repeat_action_probability", settings.sticky)
        numpy_seed, emulator_seed = np.random.SeedSequence().generate_state(2)
        self._np_random = np_random(int(numpy_seed))[0]
        self.ale.setInt("random_seed", np.int32(emulator_seed))
        self._load()
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
        self._screens = _Screens(self.ale, settings)
        self._may_be_ntsc = settings.grayscale and self._screens.has_bands
        shape = (settings.frame_stack, *self._screens.shape)
        self._stack = np.zeros(shape, np.uint8)
        self.observation_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
        self.action_space = cast("Any", gymnasium.spaces.Discrete(len(chosen)))
        self._frames = 0  # since the first observation of the game
        self._lives = 0
        self._continued: dict[str, Any] | None = None  # info of a step that lost a life
        self._was_reset = False

    def _load(self) -> None:
        """Load the game, which makes the emulator read its seed."""
        self.ale.loadROM(roms.get_rom_path(self.settings.game))
        if self.settings.mode is not None:
            self.ale.setMode(self.settings.mode)
        if self.settings.difficulty is not None:
            self.ale.setDifficulty(self.settings.difficulty)

    def get_action_meanings(self) -> list[str]:
        """Return the name of each action."""
        return list(self._meanings)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Image, dict[str, Any]]:
        """Reset the game; after a lost life with `life_loss="end"`, continue it.

        Raises:
            ValueError: The seed is not in 0 .. 2**31 - 1.
        """
        continued, self._continued = self._continued, None
        self._stack[:-1] = 0
        if continued is not None and seed is None and not options:
            return self._stack.copy(), continued
        if seed is not None:
            check_seed(seed)
            self._np_random = np_random(seed)[0]
            self.ale.setInt("random_seed", seed)
            self._load()
        self._begin_game()
        noops = int(self.np_random.integers(self.settings.noop_max + 1))
        for _ in range(noops):
            self.ale.act(self._noop, 1.0)
            if self.ale.game_over(with_truncation=False):
                self._begin_game()
        self._frames, self._was_reset = 0, True
        if self._may_be_ntsc and (is_ntsc := _is_ntsc(self.ale)) is not None:
            self._may_be_ntsc = False
            if is_ntsc:
                self._screens = _NtscScreens(self.ale, self.settings)
        self._screens.write(self._stack[-1], is_pooled=False)
        info = emulator_info(self.ale)
        self._lives = info["lives"]
        info["noops"] = noops
        if self._ends_lives:
            info["game_over"] = False
        return self._stack.copy(), info

    def _begin_game(self) -> None:
        """Reset the emulator, and press FIRE if that is chosen."""
        self.ale.reset_game()
        if self._fires:
            self.ale.act(self._fire, 1.0)
            if self.ale.game_over(with_truncation=False):
                self.ale.reset_game()

    def step(self, action: int) -> Step:
        """Play up to `frame_skip` frames; the reward is the sum over the frames played."""
        if not self._was_reset:
            raise gymnasium.error.ResetNeeded("step() came before the first reset(); call reset()")
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
        stack = self._stack
        stack[:-1] = stack[1:]
        screens.write(stack[-1], is_pooled=frames > 1)
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
        return stack.copy(), reward, terminated, truncated, info


# Gray levels of the even color numbers on an NTSC console; all others are odd, which only a PAL
# console produces. tests/wrappers/test_atari_fused.py compares them with ale-py's.
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


# Gray levels by color number, on an NTSC console, whose numbers are even. ale-py computes the same:
# tests/wrappers/test_atari_fused.py compares them on every game.
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
_SHARED = (0, 14)  # black and white: color numbers of a PAL console with the same gray levels


class _Screens:
    """Reads the screen, pools it with the frame before, and resizes it.

    Args:
        ale: The emulator.
        settings: The settings.
    """

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

    @property
    def has_bands(self) -> bool:
        """True if parts of the screen can be resized alone."""
        return self._resize is not None and self._resize.bands > 1

    def keep(self) -> None:
        """Keep the screen, which may be pooled with the next one."""
        if self._pools:
            self._read(self._before)

    def write(self, out: Image, *, is_pooled: bool) -> None:
        """Write the screen into `out`; if `is_pooled`, its maximum with the one that was kept."""
        now = self._now
        self._read(now)
        if is_pooled and self._pools:
            np.maximum(now, self._before, out=now)
        out[...] = now if self._resize is None else self._resize(now)


class _NtscScreens(_Screens):
    """The same for gray screens of an NTSC console that are resized in bands, in less time.

    ale-py takes 24 us to compute the gray levels of a screen and 2 us to copy its color numbers.
    These are compared with those of the last step, and gray levels are computed, pooled and
    resized only in the bands of rows that changed.
    """

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
        self._result = np.zeros(self.shape, np.uint8)
        self._turn = 0

    def keep(self) -> None:
        """Keep the screen, which may be pooled with the next one."""
        if self._pools:
            self._get_numbers(self._numbers[self._turn][0])

    def write(self, out: Image, *, is_pooled: bool) -> None:
        """Write the screen into `out`; if `is_pooled`, its maximum with the one that was kept."""
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
            area_resize(grays, self._result[start * self._rows_out : stop * self._rows_out])
        out[...] = self._result
        self._turn = 1 - turn


def _is_ntsc(ale: Emulator) -> bool | None:
    """Test whether the game runs on an NTSC console; None if its screen does not tell."""
    numbers, grays = (np.empty(ale.getScreenDims(), np.uint8) for _ in range(2))
    ale.getScreen(numbers)
    ale.getScreenGrayscale(grays)
    if np.isin(numbers, _SHARED).all():
        return None
    return bool((_NTSC_GRAYS[numbers] == grays).all())
