"""What was said about a game, and which of it applies to what is played."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias, TypedDict, cast, get_args

__all__ = [
    "AtariBackend",
    "AtariKnobs",
    "Backend",
    "EnvOptions",
    "GameKnobs",
    "NesBackend",
    "NesKnobs",
    "atari_backend",
    "atari_knobs",
    "nes_backend",
    "nes_knobs",
    "refuse_knobs",
]

# The makers' own names, here again so that `stepwell --help` need not load the makers.
AtariBackend: TypeAlias = Literal["native", "python"]
NesBackend: TypeAlias = Literal["cynes", "nes-py", "stable-retro"]
Backend: TypeAlias = Literal[AtariBackend, NesBackend]


class GameKnobs(TypedDict, total=False):
    """What Atari games and cartridges have both; what was not said is not there."""

    frame_skip: int
    pool: Literal["max", "none"]
    noop_max: int
    size: tuple[int, int] | None
    grayscale: bool
    frame_stack: int
    sticky: float
    max_frames: int
    life_loss: Literal["ignore", "end"]


class AtariKnobs(GameKnobs, total=False):
    """What was said about an Atari env. See `make_atari`."""

    fire_reset: bool
    clip_rewards: bool
    full_actions: bool
    mode: int
    difficulty: int


class NesKnobs(GameKnobs, total=False):
    """What was said about a cartridge. See `make_nes`."""

    game: str
    actions: str | list[str]
    allow_opposites: bool
    boot: str | list[str]
    start: str | list[str]
    start_rule: Literal["random", "cycle"]
    crop: str | tuple[int, int, int, int]
    stuck_frames: int
    reward_clip: float
    ram_obs: bool


class EnvOptions(AtariKnobs, NesKnobs, total=False):
    """Whatever was said."""


_OPTIONS = {"grayscale": "rgb", "ram_obs": "ram"}  # where the command line has another name
_SHARED = GameKnobs.__optional_keys__
_OF_PICTURES = ("size", "grayscale", "pool", "crop")
_PYTHON_ONLY = ("life_loss", "mode", "difficulty")


def atari_knobs(env: str, knobs: EnvOptions) -> AtariKnobs:
    """What was said, for an Atari game.

    Raises:
        ValueError: Something of it is for cartridges.

    Example:
        >>> atari_knobs("Pong", {"mode": 1})
        {'mode': 1}
    """
    _refuse_foreign(env, [name for name in knobs if name not in AtariKnobs.__optional_keys__])
    return cast("AtariKnobs", knobs)


def nes_knobs(env: str, knobs: EnvOptions) -> NesKnobs:
    """What was said, for a cartridge.

    Raises:
        ValueError: Something of it is for Atari games, or for pictures when memory is observed.

    Example:
        >>> nes_knobs("game.nes", {"mode": 1})
        Traceback (most recent call last):
            ...
        ValueError: --mode is for Atari games alone: expected none with game.nes; leave it out
    """
    _refuse_foreign(env, [name for name in knobs if name not in NesKnobs.__optional_keys__])
    useless = [_option(name) for name in _OF_PICTURES if name in knobs]
    if knobs.get("ram_obs") and useless:
        raise ValueError(
            f"--ram: expected no {' and no '.join(useless)}, since memory is no picture; leave one "
            f"or the other out"
        )
    return cast("NesKnobs", knobs)


def refuse_knobs(env: str, knobs: EnvOptions, backend: Backend | None) -> None:
    """Refuse whatever was said, since the env is no game.

    Raises:
        ValueError: Something was said.
    """
    given = [_option(name) for name in knobs]
    if backend not in (None, "python"):  # any env is played in Python
        given.append(f"--backend {backend}")
    if given:
        raise ValueError(
            f"{_are_for(given, _owner(knobs, backend))} alone: expected none with {env}; leave out "
            f"what is for games, or wrap the env in a function and name that as module:callable"
        )


def atari_backend(backend: Backend | None, knobs: EnvOptions) -> AtariBackend:
    """The backend of an Atari game: "native" unless a knob needs "python".

    Raises:
        ValueError: The one that was named plays cartridges.

    Example:
        >>> atari_backend(None, {"mode": 1}), atari_backend(None, {"frame_skip": 2})
        ('python', 'native')
    """
    if backend in get_args(NesBackend):
        raise _wrong_backend("an Atari game", backend)
    if backend is not None:
        return cast("AtariBackend", backend)
    return "python" if any(name in knobs for name in _PYTHON_ONLY) else "native"


def nes_backend(backend: Backend | None) -> NesBackend:
    """The backend of a cartridge: "cynes" unless another was named, whatever is installed.

    Raises:
        ValueError: The one that was named plays Atari games.

    Example:
        >>> nes_backend(None), nes_backend("stable-retro")
        ('cynes', 'stable-retro')
    """
    if backend in get_args(AtariBackend):
        raise _wrong_backend("an NES cartridge", backend)
    return "cynes" if backend is None else cast("NesBackend", backend)


def _wrong_backend(what: str, backend: Backend | None) -> ValueError:
    return ValueError(
        f"--backend: expected one of those for {what}, got {backend!r}; Atari games have native "
        f"and python, NES cartridges cynes, nes-py and stable-retro: name one of these, or none"
    )


def _refuse_foreign(env: str, names: Sequence[str]) -> None:
    if names:
        raise ValueError(
            f"{_are_for([_option(name) for name in names], _owner(names, None))} alone: expected "
            f"none with {env}; leave {'it' if len(names) == 1 else 'them'} out"
        )


def _option(name: str) -> str:
    return f"--{_OPTIONS.get(name, name).replace('_', '-')}"


def _are_for(options: Sequence[str], owner: str) -> str:
    return f"{', '.join(options)} {'is' if len(options) == 1 else 'are'} for {owner}"


def _owner(names: Iterable[str], backend: Backend | None) -> str:
    """Whom all of these are for."""
    said = {*names, *([] if backend is None else [backend])}
    if said <= {*AtariKnobs.__optional_keys__, *get_args(AtariBackend)} - _SHARED:
        return "Atari games"
    if said <= {*NesKnobs.__optional_keys__, *get_args(NesBackend)} - _SHARED:
        return "NES cartridges"
    return "Atari and NES games"
