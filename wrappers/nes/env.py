"""One NES cartridge as a Gymnasium env."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NoReturn, TypeAlias, get_args

import gymnasium
import numpy as np
from gymnasium.error import ClosedEnvironmentError, ResetNeeded

from ...buffers.base.errors import not_copied
from ...buffers.base.number_checks import check_choice, check_sticky, check_whole
from ..snapshots import SavedGame, check_fact, pack, saved_generator, saved_info, unpack
from ..versions import module_versions
from .buttons import Actions, action_set
from .cartridge import RAM_BYTES, Cartridge, Image
from .emulators import Console, NesBackend, open_console
from .ram_map.game import Game, GameSource
from .snapshot import (
    Boots,
    Snapshot,
    SnapshotSource,
    StartRule,
    StartStates,
    check_play,
    prepare_starts,
)

Pool: TypeAlias = Literal["max", "none"]
Rom: TypeAlias = str | os.PathLike[str] | bytes | Cartridge
InfoKind: TypeAlias = Literal["vars", "all", "none"]


class NesEnv(gymnasium.Env[Image, Any]):
    """An NES cartridge, its rewards and ends read from the RAM by a map.

    On every emulator observations are copies, a reset gives the same frame each time, rewards are
    summed over all frames played, and a step stops at the frame in which the game ends and shows
    that frame. `terminated` is determined by the map, `truncated` by a limit of this env.

    A console is deterministic: without no-ops, sticky buttons or several starts all episodes begin
    in the same state, equal actions give equal episodes, and seeds have no effect.

    Args:
        rom: The cartridge: a path or the file's bytes. Stepwell contains none.
        backend: "cynes", "nes-py" (Python 3.13 or newer) or "stable-retro". They agree on the RAM;
            colours and edges of the picture differ.
        game: The RAM map: a path of a folder with stable-retro's data.json and scenario.json, or
            "retro:Name-Nes-v0" for an installed one; see `Game`. None: rewards are 0 and the game
            never ends.
        actions: "right_only" (5), "simple" (7), "complex" (12), "all" (36), "game" (the map's),
            "multibinary" (a bit for each button), or a list of texts such as "RIGHT+A".
        allow_opposites: Allow left and right, or up and down, at the same time, which games do
            not handle.
        frame_skip: Frames per step, at least 1.
        pool: "max" for the pixel-wise maximum of a step's last two frames, "none" for the last.
        noop_max: No-op frames after a reset: 0 to this many, uniform.
        sticky: Probability, for each frame, that the buttons of the frame before stay held.
        boot: Script from power-on into the game, such as "NOOP 20, START 3, NOOP 5", or several.
            None takes the map's.
        start: Instead of scripts, a `Snapshot` or its file, or several.
        start_rule: Of several starts: "random", or "cycle".
        max_frames: Truncation, in frames since the first observation.
        stuck_frames: Truncation, in frames in which none of the map's watched variables changed.
        ram_obs: Observe the RAM, uint8 [2048], instead of the screen.
        info: "vars" for the map's variables, "lives" and "episode_frame_number"; "all" for
            "reward_terms" in addition, the sum of each of the map's terms in the step; "none".
        render_mode: None or "rgb_array".

    Raises:
        ValueError: A value is invalid, the cartridge cannot be played, or the game is over at the
            start of an episode.
        ImportError: The backend is not installed.
        FileNotFoundError: There is no such file.

    Example:
        >>> env = NesEnv("game.nes", game="game", actions=["NOOP", "RIGHT", "RIGHT+A"])
        >>> observation, info = env.reset(seed=0)
        >>> observation.shape, info["lives"]
        ((240, 256, 3), 3)
        >>> observation, reward, terminated, truncated, info = env.step(1)
        >>> info["player_x"]
        42
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 60}  # noqa: RUF012  # gymnasium's

    def __reduce__(self) -> NoReturn:
        not_copied("a NesEnv", "make one in each process, from a function")

    def __init__(
        self,
        rom: Rom,
        *,
        backend: NesBackend = "cynes",
        game: GameSource | None = None,
        actions: Actions = "simple",
        allow_opposites: bool = False,
        frame_skip: int = 1,
        pool: Pool = "max",
        noop_max: int = 0,
        sticky: float = 0.0,
        boot: Boots | None = None,
        start: SnapshotSource | Sequence[SnapshotSource] | None = None,
        start_rule: StartRule = "random",
        max_frames: int | None = None,
        stuck_frames: int | None = None,
        ram_obs: bool = False,
        info: InfoKind = "vars",
        render_mode: Literal["rgb_array"] | None = None,
    ) -> None:
        self._console: Console | None = None
        check_whole("frame_skip", frame_skip, 1)
        check_whole("noop_max", noop_max, 0)
        for name, limit in (("max_frames", max_frames), ("stuck_frames", stuck_frames)):
            if limit is not None:
                check_whole(name, limit, 1, hint="; None sets no limit")
        check_choice("pool", pool, get_args(Pool))
        check_sticky(sticky)
        check_choice("info", info, get_args(InfoKind))
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode: expected None or 'rgb_array', got {render_mode!r}")
        self.cartridge = Cartridge.read(rom)
        self.game = Game.load(game)
        self.game.check_cartridge(self.cartridge)
        if stuck_frames is not None and not self.game.watched:
            raise ValueError(
                "stuck_frames: expected a RAM map with variables to watch, got none; add "
                '"stuck": [...] to its scenario.json, or use max_frames'
            )
        self._actions = action_set(
            actions, allow_opposites=allow_opposites, game_actions=self.game.actions
        )
        self.action_space = self._actions.space
        self.render_mode = render_mode
        self._skip, self._noop_max, self._sticky = frame_skip, noop_max, sticky
        self._max_frames, self._stuck_frames = max_frames, stuck_frames
        self._info_kind = info
        self._shows_ram = ram_obs
        self._pools = pool == "max" and frame_skip > 1 and not ram_obs
        self._on_frame: Callable[[], None] | None = None
        self._held = 0  # buttons
        self._frames = 0  # since the episode's first observation
        self._truncated = False  # the episode has reached a limit, and the game is not over
        console = open_console(self.cartridge, backend)
        self._console = console
        shape = (RAM_BYTES,) if ram_obs else console.screen_shape
        self.observation_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
        self._tracker = self.game.tracker(console.peek)
        places = prepare_starts(
            self.cartridge, console, boot=boot, start=start, game_boot=self.game.boot
        )
        self._starts = StartStates(places, start_rule)
        self._check_starts()
        # The screen of a loaded state, for which emulators still show the previous screen.
        self._loaded_screen: Image | None = None
        self._must_reset = "it has not been reset yet"
        if boot is None and start is None:
            boot = self.game.boot
        # It identifies the env, with versions; `make_nes` adds its own settings.
        recipe: dict[str, Any] = {
            "maker": "NesEnv",
            "backend": console.name,
            "cartridge": self.cartridge.recipe(),
            "game": self.game.recipe(),
            "actions": list(self._actions.meanings),
            "is_multibinary": self._actions.is_vector,
            "allow_opposites": self._actions.allow_opposites,
            "frame_skip": frame_skip,
            "pool": pool,
            "sticky": sticky,
            "noop_max": noop_max,
            "max_frames": max_frames,
            "stuck_frames": stuck_frames,
            "boot": boot if boot is None or isinstance(boot, str) else list(boot),
            "start": None if start is None else [_fingerprint(one.state) for one in places],
            "start_rule": start_rule if len(places) > 1 else None,
            "ram_obs": ram_obs,
            "final_observation": "true",
            "versions": {**module_versions(["gymnasium", "numpy"]), console.name: console.version},
        }
        self.metadata = {**type(self).metadata, "stepwell": recipe}

    @property
    def screen_edges(self) -> tuple[int, int, int, int]:
        """Pixels that the backend's screens omit of the console's 240 x 256 picture.

        Top, bottom, left, right.
        """
        return self._open_console().hidden

    @property
    def can_seed_resets(self) -> bool:
        """True if a seed decides where an episode begins, so that `SeededResets` may seed each."""
        return self._starts.follow_seeds

    def get_action_meanings(self) -> list[str]:
        """Return the buttons of each action, or of each bit."""
        return list(self._actions.meanings)

    def get_keys_to_action(self) -> dict[tuple[int, ...], int | np.ndarray]:
        """Return the action of each combination of keys, for `gymnasium.utils.play.play`.

        The arrow keys are the directions, X is A, Z is B, Enter is START, the right shift key is
        SELECT. No key is no entry: ``play(env, noop=...)`` says what it does, action 0 unless
        given, which ``actions="multibinary"`` does not have: give it ``noop=np.zeros(8, np.int8)``.

        Returns:
            Actions by sorted tuples of key codes.

        Example:
            >>> env = NesEnv("game.nes", actions=["NOOP", "A", "A+B"])
            >>> env.get_keys_to_action()
            {(120,): 1, (120, 122): 2}
        """
        return self._actions.keys_to_action()

    def ram(self) -> Image:
        """Return a copy of the console's RAM, uint8 [2048], as it is after the last frame.

        Raises:
            ClosedEnvironmentError: The env is closed.

        Example:
            >>> env = NesEnv("game.nes", game="game")
            >>> _, info = env.reset(seed=0)
            >>> int(env.ram()[0x13]) == info["lives"]
            True
        """
        return self._open_console().ram()

    @property
    def on_frame(self) -> Callable[[], None] | None:
        """A function that is called after each frame of a step, to show the screen; or None."""
        return self._on_frame

    @on_frame.setter
    def on_frame(self, call: Callable[[], None] | None) -> None:
        self._on_frame = call

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Image, dict[str, Any]]:
        """Go to a start, and play a random number of no-ops.

        Args:
            seed: Seed of the generator of starts, no-ops and sticky buttons.
            options: {"start": index} selects the start; {"snapshot": ...} is for
                `stepwell.env_at`.

        Returns:
            The observation, and the info with "noops" and, with several starts, "start".

        Raises:
            ValueError: An option is unknown, or the start does not exist.
        """
        console = self._open_console()
        unknown = ", ".join(map(repr, sorted(set(options or {}) - {"start", "snapshot"})))
        if unknown:
            raise ValueError(f"options: expected 'start' at most, got {unknown}")
        super().reset(seed=seed)
        saved: SavedGame | None = (options or {}).get("snapshot")
        if saved is not None:
            return self._resume(saved)
        index = self._starts.choose(self.np_random, (options or {}).get("start"))
        self._go_to(index)
        noops = int(self.np_random.integers(self._noop_max + 1))
        for _ in range(noops):
            self._loaded_screen = None
            console.frame(0)
            self._tracker.advance()
            if self._tracker.terminated:  # the remaining no-ops follow in a new game
                self._go_to(index)
        self._begin()
        info = {**self._info(), "noops": noops}
        if len(self._starts.places) > 1:
            info["start"] = index
        return self._observation(), info

    def step(self, action: Any) -> tuple[Image, float, bool, bool, dict[str, Any]]:
        """Hold the buttons of the action for `frame_skip` frames, or until the episode ends.

        Returns:
            Observation, sum of the rewards, terminated, truncated, info.

        Raises:
            ResetNeeded: The episode is over, or was not started.
            ValueError: The action is not in the action space.
            RuntimeError: The game has crashed.
        """
        console = self._open_console()
        if self._must_reset:
            raise ResetNeeded(
                f"step: expected reset() first, since {self._must_reset}; call reset()"
            )
        buttons = self._actions.pressed(action)
        self._loaded_screen = None
        observation, reward = self._play(console, buttons)
        terminated, truncated = self._tracker.terminated, self._truncated
        if terminated or truncated:
            self._must_reset = "the episode is over"
        return observation, reward, terminated, truncated, self._info()

    def _play(self, console: Console, buttons: int) -> tuple[Image, float]:
        """Play the frames of one step, up to the end of the game or a limit."""
        # Returns the observation, and the sum of the rewards. The env's generator draws the frames
        # in which the previous buttons stay held.
        tracker, sticky, generator = self._tracker, self._sticky, self.np_random
        tracker.begin_step()
        reward, most = 0.0, self._frames_left()
        held: list[int] = []
        state = console.save() if self._pools and most > 2 else None
        before: Image | None = None
        while True:
            if not sticky or generator.random() >= sticky:
                self._held = buttons
            console.frame(self._held)
            held.append(self._held)
            reward += tracker.advance()
            if self._on_frame is not None:
                self._on_frame()
            if len(held) == most or tracker.terminated or self._is_stuck():
                break
            if self._pools and len(held) == most - 1:
                before = console.screen()
        if self._pools and 1 < len(held) < most:
            before = _last_but_one(console, state, held)
        self._frames += len(held)
        is_at_limit = bool(self._frames_left() < 1 or self._is_stuck())
        self._truncated = is_at_limit and not tracker.terminated
        if self._shows_ram:
            return console.ram(), reward
        now = console.screen()
        return now if before is None else np.maximum(now, before, out=now), reward

    def _frames_left(self) -> int:
        """Return the number of frames that this step may play."""
        limit = self._max_frames
        return self._skip if limit is None else min(self._skip, limit - self._frames)

    def _is_stuck(self) -> bool:
        limit = self._stuck_frames
        return limit is not None and self._tracker.still_frames >= limit

    def _begin(self) -> None:
        """Start an episode at the current state of the console."""
        self._held, self._frames, self._truncated = 0, 0, False
        self._tracker.begin()
        self._must_reset = ""

    def render(self) -> Image | None:
        """Return a copy of the screen, RGB uint8 [H, W, 3]; None without a render mode."""
        self._open_console()
        return None if self.render_mode is None else self._screen()

    def snapshot(self) -> Snapshot:
        """Return a snapshot of the console, its screen and the episode.

        It does not contain the random generator or the state of wrappers, such as frame stacks.
        """
        console = self._open_console()
        episode = {
            "game": self.game.recipe(),
            "tracker": self._tracker.save(),
            "play": self._save_play(),
            "must_reset": self._must_reset,
        }
        return Snapshot(
            self.cartridge.name,
            self.cartridge.sha256,
            console.name,
            console.version,
            console.save(),
            self._screen(),
            episode,
        )

    def restore(self, snapshot: Snapshot) -> tuple[Image, dict[str, Any]]:
        """Restore a snapshot. The same actions then give the same frames.

        Args:
            snapshot: Made by this env, or by one of the same cartridge, backend and version. With
                another RAM map a new episode begins there.

        Returns:
            The observation (the last frame, not pooled) and the info.

        Raises:
            TypeError: `snapshot` is not a `Snapshot`.
            ValueError: It was saved with another cartridge, backend or version, or is damaged.
        """
        console = self._open_console()
        if not isinstance(snapshot, Snapshot):
            raise TypeError(
                f"restore: expected a Snapshot, got {snapshot!r}; Snapshot.load reads a file"
            )
        snapshot.check(self.cartridge, console)
        is_same_game = snapshot.episode["game"] == self.game.recipe()
        if is_same_game:  # check the state on a new tracker, before anything changes
            self.game.tracker(console.peek).load(snapshot.episode["tracker"])
        console.load(snapshot.state)
        self._loaded_screen = snapshot.screen
        if is_same_game:
            self._continue(snapshot.episode)
        else:
            self._begin()
        return self._observation(), self._info()

    def _save_play(self) -> dict[str, Any]:
        return {"held": self._held, "frames": self._frames, "truncated": self._truncated}

    def _continue(self, episode: Mapping[str, Any]) -> None:
        self._tracker.load(episode["tracker"])
        play = episode["play"]
        self._held, self._frames = int(play["held"]), int(play["frames"])
        self._truncated = bool(play["truncated"])
        self._must_reset = str(episode["must_reset"])

    def pack_snapshot(self, info: Mapping[str, Any]) -> bytes:
        """Return the state of console, episode and random generator as some hundred bytes.

        Args:
            info: The info of the reset that has just begun an episode.

        Raises:
            ValueError: The backend's states are no bytes.
        """
        facts = {
            "tracker": self._tracker.save(),
            "play": self._save_play(),
            "next_start": self._starts.following,
            "generator": saved_generator(self.np_random),
            "info": saved_info(info, self._info()),
        }
        return pack(self._kind(), facts, self._bytes_of(self._open_console().save()), self._base())

    def unpack_snapshot(self, snapshot: bytes) -> tuple[dict[str, Any], bytes]:
        """Return the facts and the state of a snapshot.

        Raises:
            ValueError: It is of another cartridge, backend, version or RAM map, or damaged.
        """
        facts, state = unpack(self._kind(), snapshot, self._base())
        check_fact(facts, "next_start", len(self._starts.places) - 1)
        check_play(facts.get("play"))
        # On a new tracker, before anything changes.
        self.game.tracker(self._open_console().peek).load(facts.get("tracker"))
        return facts, state

    def _resume(self, saved: SavedGame) -> tuple[Image, dict[str, Any]]:
        saved.restore(self._open_console())
        self._loaded_screen = None  # the console shows the one before
        self._continue({**saved.facts, "must_reset": ""})
        self._starts.following = saved.facts["next_start"]
        saved.restore_generator(self.np_random)
        return self._observation(), saved.info(self._info())

    def _kind(self) -> str:
        console = self._open_console()
        return f"{self.cartridge.name} {self.cartridge.sha256} on {console.name} {console.version}"

    def _base(self) -> bytes:
        return self._bytes_of(self._starts.places[0].state)

    def _bytes_of(self, state: object) -> bytes:
        if not isinstance(state, bytes):
            raise ValueError(
                f"snapshots: expected a backend whose states are bytes, got "
                f"{self._open_console().name!r}; choose backend 'cynes' or 'stable-retro', or omit "
                "snapshots"
            )
        return state

    def close(self) -> None:
        """Release the emulator; a second call has no effect."""
        console, self._console = self._console, None
        if console is not None:
            console.close()

    def _open_console(self) -> Console:
        if self._console is None:
            raise ClosedEnvironmentError(
                "NesEnv is closed: expected an open one, got one after close(); make a new one"
            )
        return self._console

    def _go_to(self, index: int) -> None:
        place = self._starts.places[index]
        self._open_console().load(place.state)
        self._loaded_screen = place.screen
        self._tracker.begin()

    def _observation(self) -> Image:
        return self._open_console().ram() if self._shows_ram else self._screen()

    def _screen(self) -> Image:
        if self._loaded_screen is not None:
            return self._loaded_screen.copy()
        return self._open_console().screen()

    def _info(self) -> dict[str, Any]:
        if self._info_kind == "none":
            return {}
        info: dict[str, Any] = dict(self._tracker.values())
        lives = self._tracker.lives()
        if lives is not None:
            info["lives"] = lives
        info["episode_frame_number"] = self._frames
        if self._info_kind == "all":
            info["reward_terms"] = dict(self._tracker.reward_terms)
        return info

    def _check_starts(self) -> None:
        """Check that the game is not over at a start."""
        for index in range(len(self._starts.places)):
            self._go_to(index)
            if self._tracker.terminated:
                number = f" {index}" if len(self._starts.places) > 1 else ""
                values = self._tracker.values()
                self.close()
                raise ValueError(
                    f"the game is over when episodes begin: expected start{number} to lead into "
                    f"the game, got the map's condition for the end with {values};"
                    " correct the boot script (START may have to be pressed later, or longer), or "
                    "the condition"
                )


def _last_but_one(console: Console, state: object, held: Sequence[int]) -> Image:
    """Return the screen before the last frame of a step that ended early."""
    # Any frame can be the second to last. Reading the screen of each of them is slower (by 4 % of a
    # step on stable-retro) than saving the state at the start of each step and replaying the few
    # steps that end early.
    console.load(state)
    for buttons in held[:-1]:
        console.frame(buttons)
    before = console.screen()
    console.frame(held[-1])
    return before


def _fingerprint(state: object) -> str | None:
    return hashlib.sha256(state).hexdigest() if isinstance(state, bytes) else None
