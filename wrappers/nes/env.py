"""One NES cartridge as a Gymnasium env."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

import gymnasium
import numpy as np
from gymnasium.error import ClosedEnvironmentError, ResetNeeded

from stepwell.wrappers.nes.buttons import Actions, ActionSet, action_set
from stepwell.wrappers.nes.cartridge import Cartridge
from stepwell.wrappers.nes.console import RAM_BYTES, Console, Image
from stepwell.wrappers.nes.emulators import NesBackend, open_console
from stepwell.wrappers.nes.play import Play, Pool, Rules
from stepwell.wrappers.nes.ram_map.game import Game, GameSource
from stepwell.wrappers.nes.snapshot import Snapshot
from stepwell.wrappers.nes.starts import (
    Boots,
    Place,
    SnapshotSource,
    StartRule,
    Starts,
    prepare_starts,
)

Rom: TypeAlias = str | os.PathLike[str] | bytes | Cartridge
InfoKind: TypeAlias = Literal["vars", "all", "none"]


class NesEnv(gymnasium.Env[Image, Any]):
    """An NES cartridge, its rewards and ends read from the RAM by a map.

    Whatever the emulator does: observations are the caller's own, a reset gives the same frame
    each time, rewards are summed over every frame that was played, a step stops at the frame in
    which the game ends and shows that very frame. `terminated` is the map's; `truncated` is a limit
    of this env's.

    A console has no chance in it: without no-ops, sticky buttons or several starts every episode
    begins alike, equal actions give equal episodes, and seeds change nothing.

    Args:
        rom: The cartridge: a path or the file's bytes. It stays the user's; none comes with
            Stepwell.
        backend: "cynes", "nes-py" (Python 3.13 or newer) or "stable-retro". They agree on the RAM;
            colours and edges of the picture differ.
        game: The RAM map: a path of a .toml or of a stable-retro integration's folder, or
            "retro:Name-Nes-v0" for an installed one; see `Game`. None: rewards are 0 and the game
            never ends.
        actions: "right_only" (5), "simple" (7), "complex" (12), "all" (36), "game" (the map's),
            "multibinary" (a bit for each button), or a list of texts such as "RIGHT+A".
        allow_opposites: Allow left and right, or up and down, at once: games glitch on it.
        frame_skip: Frames of a step, at least 1.
        pool: "max" for the pixel-wise maximum of a step's last two frames, "none" for the last.
        noop_max: No-op frames after a reset: 0 to this many, uniform.
        sticky: Probability, for each frame, that the buttons of the frame before stay held.
        boot: How to get from power-on into the game: a script "NOOP 20, START 3, NOOP 5", or
            several. None takes the map's.
        start: Instead of scripts, a `Snapshot` or its file, or several.
        start_rule: Of several starts: "random", or "cycle".
        max_frames: Truncation, in frames since the first observation.
        stuck_frames: Truncation, in frames in which none of the map's watched variables changed.
        ram_obs: Observe the RAM, uint8 [2048], instead of the screen.
        info: "vars" for the map's variables, "lives" and "episode_frame_number"; "all" for
            "reward_terms" besides, the sum of each of the map's terms in the step; "none".
        render_mode: None or "rgb_array".

    Raises:
        ValueError: A value makes no sense, the cartridge cannot be played, or the game is over
            where an episode begins.
        ImportError: The backend is not installed.
        FileNotFoundError: There is no such file.

    Example:
        >>> env = NesEnv("game.nes", game="game.toml", actions=["NOOP", "RIGHT", "RIGHT+A"])
        >>> observation, info = env.reset(seed=0)
        >>> observation.shape, info["lives"]
        ((240, 256, 3), 3)
        >>> observation, reward, terminated, truncated, info = env.step(1)
        >>> info["player_x"]
        42
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 60}  # noqa: RUF012  # gymnasium's

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
        self._rules = Rules(
            frame_skip=frame_skip,
            pool=pool,
            sticky=sticky,
            noop_max=noop_max,
            max_frames=max_frames,
            stuck_frames=stuck_frames,
        )
        _check_kinds(info, render_mode)
        self.cartridge = Cartridge.read(rom)
        self.game = Game.load(game)
        self.game.check_cartridge(self.cartridge)
        _check_watched(self.game, stuck_frames)
        self._actions = action_set(
            actions, allow_opposites=allow_opposites, of_game=self.game.actions
        )
        self.action_space = self._actions.space
        self.render_mode = render_mode
        self._info_kind = info
        self._shows_ram = ram_obs
        console = open_console(self.cartridge, backend)
        self._console = console
        shape = (RAM_BYTES,) if ram_obs else console.screen_shape
        self.observation_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
        self._tracker = self.game.tracker(console.peek)
        self._play = Play(console, self._tracker, self._rules, shows_screens=not ram_obs)
        places = prepare_starts(
            self.cartridge, console, boot=boot, start=start, boot_of_game=self.game.boot
        )
        self._starts = Starts(places, start_rule)
        self._check_starts()
        # Emulators show an old picture when they have gone back to a state: this is the right one.
        self._loaded_screen: Image | None = None
        self._must_reset = "it has not been reset yet"
        self.metadata = {
            **type(self).metadata,
            "stepwell": _recipe(
                self.cartridge,
                console,
                self.game,
                self._actions,
                self._rules,
                boot=self.game.boot if boot is None and start is None else boot,
                places=None if start is None else places,
                starts=len(places),
                start_rule=start_rule,
                ram_obs=ram_obs,
            ),
        }

    @property
    def screen_edges(self) -> tuple[int, int, int, int]:
        """What the backend's screens leave out of the console's 240 x 256 picture, in pixels.

        Top, bottom, left, right.
        """
        return self._open_console().hidden

    def get_action_meanings(self) -> list[str]:
        """The buttons of each action, or of each bit."""
        return list(self._actions.meanings)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Image, dict[str, Any]]:
        """Go to a start, and play the no-ops that are drawn.

        Args:
            seed: Of the generator that draws starts, no-ops and sticking buttons.
            options: {"start": index} chooses the start.

        Returns:
            The observation, and the info with "noops" and, of several starts, "start".

        Raises:
            ValueError: An unknown option, or a start that there is not.
        """
        console = self._open_console()
        _check_options(options)
        super().reset(seed=seed)
        index = self._starts.choose(self.np_random, (options or {}).get("start"))
        self._go_to(index)
        noops = int(self.np_random.integers(self._rules.noop_max + 1))
        for _ in range(noops):
            self._loaded_screen = None
            if not self._play.idle():  # the game ended by itself: the rest follows in a new one
                self._go_to(index)
        self._play.begin()
        self._must_reset = ""
        info = {**self._info(), "noops": noops}
        if len(self._starts.places) > 1:
            info["start"] = index
        return console.ram() if self._shows_ram else self._screen(), info

    def step(self, action: Any) -> tuple[Image, float, bool, bool, dict[str, Any]]:
        """Hold the action's buttons for `frame_skip` frames, or up to the episode's end.

        Returns:
            Observation, sum of the frames' rewards, terminated, truncated, info.

        Raises:
            ResetNeeded: The episode is over, or was never begun.
            ValueError: The action is not in the action space.
            RuntimeError: The game has crashed.
        """
        console = self._open_console()
        if self._must_reset:
            raise ResetNeeded(f"step: expected a reset before, since {self._must_reset}")
        buttons = self._actions.pressed(action)
        self._loaded_screen = None
        picture, reward = self._play.step(buttons, self.np_random)
        terminated, truncated = self._tracker.terminated, self._play.truncated
        if terminated or truncated:
            self._must_reset = "the episode is over"
        observation = console.ram() if picture is None else picture
        return observation, reward, terminated, truncated, self._info()

    def render(self) -> Image | None:
        """The console's screen, RGB uint8 [H, W, 3], the caller's own; None without a mode."""
        self._open_console()
        return None if self.render_mode is None else self._screen()

    def snapshot(self) -> Snapshot:
        """Keep this moment: the console, its screen, and where the episode stands.

        The random generator is not in it, nor is what wrappers keep, such as a stack of frames.
        """
        console = self._open_console()
        episode = {
            "game": self.game.recipe(),
            "tracker": self._tracker.save(),
            "play": self._play.save(),
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
        """Go back to a moment. The same actions then give the same frames.

        Args:
            snapshot: Made by this env, or by one of the same cartridge, backend and version. With
                another RAM map an episode begins there.

        Returns:
            The observation (the last frame, without the one before it) and the info.

        Raises:
            TypeError: It is no snapshot.
            ValueError: It was saved with another cartridge, backend or version, or is damaged.
        """
        console = self._open_console()
        if not isinstance(snapshot, Snapshot):
            raise TypeError(
                f"restore: expected a Snapshot, got {snapshot!r}; Snapshot.load reads a file"
            )
        snapshot.check(self.cartridge, console)
        goes_on = snapshot.episode["game"] == self.game.recipe()
        if goes_on:  # on trial: what is damaged is refused before anything has changed
            self.game.tracker(console.peek).load(snapshot.episode["tracker"])
        console.load(snapshot.state)
        self._loaded_screen = snapshot.screen
        if goes_on:
            self._go_on(snapshot.episode)
        else:
            self._play.begin()
            self._must_reset = ""
        return console.ram() if self._shows_ram else self._screen(), self._info()

    def _go_on(self, episode: Mapping[str, Any]) -> None:
        self._tracker.load(episode["tracker"])
        self._play.load(episode["play"])
        self._must_reset = str(episode["must_reset"])

    def close(self) -> None:
        """Let go of the emulator; a second time does nothing."""
        console, self._console = self._console, None
        if console is not None:
            console.close()

    def _open_console(self) -> Console:
        if self._console is None:
            raise ClosedEnvironmentError("the env is closed: expected an open one; make a new one")
        return self._console

    def _go_to(self, index: int) -> None:
        place = self._starts.places[index]
        self._open_console().load(place.state)
        self._loaded_screen = place.screen
        self._tracker.begin()

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
        info["episode_frame_number"] = self._play.frames
        if self._info_kind == "all":
            info["reward_terms"] = dict(self._tracker.reward_terms)
        return info

    def _check_starts(self) -> None:
        """See that the game goes on at each start."""
        for index in range(len(self._starts.places)):
            self._go_to(index)
            if self._tracker.terminated:
                which = f" {index}" if len(self._starts.places) > 1 else ""
                values = self._tracker.values()
                self.close()
                raise ValueError(
                    f"the game is over where episodes begin: expected start{which} to lead into "
                    f"the game, got the map's [terminated] condition with {values};"
                    " correct the boot script (START may have to be pressed later, or longer), or "
                    "the condition"
                )


def _check_kinds(info: str, render_mode: str | None) -> None:
    if info not in get_args(InfoKind):
        raise ValueError(f"info: expected 'vars', 'all' or 'none', got {info!r}")
    if render_mode not in (None, "rgb_array"):
        raise ValueError(f"render_mode: expected None or 'rgb_array', got {render_mode!r}")


def _check_watched(game: Game, stuck_frames: int | None) -> None:
    if stuck_frames is not None and not game.watched:
        raise ValueError(
            "stuck_frames: expected a RAM map that says what to watch, got none; add a [stuck] "
            "table with vars = [...] to the map, or use max_frames"
        )


def _check_options(options: dict[str, Any] | None) -> None:
    unknown = sorted(set(options or {}) - {"start"})
    if unknown:
        raise ValueError(f"options: expected 'start' at most, got {', '.join(map(repr, unknown))}")


def _recipe(
    cartridge: Cartridge,
    console: Console,
    game: Game,
    actions: ActionSet,
    rules: Rules,
    *,
    boot: Boots | None,
    places: Sequence[Place] | None,
    starts: int,
    start_rule: str,
    ram_obs: bool,
) -> dict[str, Any]:
    """Everything that identifies the env, as JSON has it, plus the versions that made it.

    Args:
        cartridge: What is played.
        console: On what.
        game: Its RAM map.
        actions: What may be pressed.
        rules: How frames are played.
        boot: The scripts; None for none.
        places: The snapshots that episodes begin at; None with scripts.
        starts: Number of starts.
        start_rule: Of several starts.
        ram_obs: Whether the RAM is observed.

    Returns:
        The recipe; `make_nes` adds what it does to the picture.
    """
    # Loads in some 10 ms, which `import stepwell` need not take.
    from importlib.metadata import version

    return {
        "maker": "NesEnv",
        "backend": console.name,
        "cartridge": cartridge.recipe(),
        "game": game.recipe(),
        "actions": list(actions.meanings),
        "is_multibinary": actions.is_vector,
        "allow_opposites": actions.allow_opposites,
        **dataclasses.asdict(rules),
        "boot": boot if boot is None or isinstance(boot, str) else list(boot),
        "start": None if places is None else [_fingerprint(place) for place in places],
        "start_rule": start_rule if starts > 1 else None,
        "ram_obs": ram_obs,
        "final_observation": "true",
        "versions": {"gymnasium": version("gymnasium"), console.name: console.version},
    }


def _fingerprint(place: Place) -> str | None:
    """SHA-256 of a state; None where it has no bytes."""
    return hashlib.sha256(place.state).hexdigest() if isinstance(place.state, bytes) else None
