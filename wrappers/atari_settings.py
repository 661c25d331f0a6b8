"""The Atari games, and the settings of `make_atari`, checked once for both backends."""

from __future__ import annotations

import dataclasses
import difflib
import re
from typing import Literal, get_args

import gymnasium

from ..buffers.base.number_checks import check_choice, check_size, check_sticky, check_whole
from .versions import module_versions

_SUFFIX = re.compile(r"(-ram)?(noframeskip|deterministic)?(-v\d+)?$")  # of Gym's older ids


def game_ids() -> dict[str, str]:
    """Map each single-player game of ale-py, as "ms_pacman", to its Gymnasium id."""
    import ale_py

    gymnasium.register_envs(ale_py)
    specs = gymnasium.registry.items()
    return {spec.kwargs["game"]: name for name, spec in specs if name.startswith("ALE/")}


def atari_games() -> tuple[str, ...]:
    """Return the names of the games of `make_atari`, in alphabetical order.

    Example:
        >>> "pong" in atari_games()
        True
    """
    return tuple(sorted(game_ids()))


def find_game(name: str) -> str:
    """Return ale-py's "ms_pacman" for it, "MsPacman" or "ALE/MsPacman-v5", in any case."""
    games = {_key(game): game for game in game_ids()}
    key = _key(name.removeprefix("ALE/").removesuffix("-v5"))
    if key in games:
        return games[key]
    key = _SUFFIX.sub("", key)
    if key in games:
        raise ValueError(
            f"unknown Atari game: expected a name such as 'pong', 'Pong' or 'ALE/Pong-v5', got "
            f"{name!r}, an older id with settings of its own; give {games[key]!r} and the settings "
            f"that you want, or play it as it is with make_vec({name!r})"
        )
    nearest = [games[near] for near in difflib.get_close_matches(key, games, cutoff=0.5)]
    hint = f"did you mean {' or '.join(nearest)}?" if nearest else "atari_games() lists all games"
    raise ValueError(
        f"unknown Atari game: expected a name such as 'pong', 'Pong' or 'ALE/Pong-v5', "
        f"got {name!r}; {hint}"
    )


def _key(name: str) -> str:
    return name.replace("_", "").lower()


def atari_name(env: str) -> str | None:
    """Return the name if it is a game of `make_atari`, or None if it is that of another env."""
    if env.startswith("ALE/"):
        find_game(env)  # raises with the closest names
        return env
    if ":" in env or env in gymnasium.registry:
        return None
    try:
        find_game(env)
    except ValueError:
        return None
    return env


Backend = Literal["auto", "native", "python"]
Pool = Literal["max", "none"]
LifeLoss = Literal["ignore", "end"]

LARGEST = 2**31 - 2  # the native backend counts frames in signed 32-bit integers


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AtariSettings:
    """The settings of `make_atari`, which documents them."""

    game: str
    frame_skip: int
    pool: Pool
    noop_max: int
    fire_reset: bool
    size: tuple[int, int] | None
    grayscale: bool
    frame_stack: int | None
    sticky: float
    max_frames: int
    clip_rewards: bool
    life_loss: LifeLoss
    full_actions: bool
    mode: int | None
    difficulty: int | None

    def __post_init__(self) -> None:
        check_whole("frame_skip", self.frame_skip, 1, most=LARGEST)
        check_whole("noop_max", self.noop_max, 0, most=LARGEST)
        if self.frame_stack is not None:
            check_whole("frame_stack", self.frame_stack, 1, hint="; None: no axis", most=LARGEST)
        check_whole("max_frames", self.max_frames, 1, most=LARGEST)
        check_choice("pool", self.pool, get_args(Pool))
        check_choice("life_loss", self.life_loss, get_args(LifeLoss))
        check_sticky(self.sticky)
        if self.size is not None:
            check_size(self.size, "; None keeps the screen's")

    @property
    def needs_python(self) -> bool:
        """True for settings that the native backend does not support."""
        return self.life_loss != "ignore" or (self.mode, self.difficulty) != (None, None)

    def recipe(self, backend: Backend) -> dict[str, object]:
        """Return JSON data that identifies the env, with the versions of the packages."""
        resizes = backend == "python" and self.size is not None
        return {
            "maker": "make_atari",
            "backend": backend,
            **dataclasses.asdict(self),
            "size": None if self.size is None else list(self.size),
            "stack_padding": "zero",
            "final_observation": "stale" if backend == "native" else "true",
            "versions": module_versions(
                ["gymnasium", "ale_py", "numpy", *(["cv2"] if resizes else [])]
            ),
        }
