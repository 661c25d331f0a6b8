"""From what the user calls an env to a vector of envs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict, cast

import gymnasium

from stepwell.collectors.cli.catalogue import unknown_env
from stepwell.collectors.cli.load import load_object, refuse_signature
from stepwell.collectors.stepping.dialect import Vector
from stepwell.wrappers.atari_games import atari_name

__all__ = ["AtariKnobs", "EnvWish", "make_envs"]


class AtariKnobs(TypedDict, total=False):
    """What was said about an Atari env; what was not said is not there. See `make_atari`."""

    frame_skip: int
    pool: Literal["max", "none"]
    noop_max: int
    fire_reset: bool
    size: tuple[int, int] | None
    grayscale: bool
    frame_stack: int
    sticky: float
    max_frames: int
    clip_rewards: bool
    life_loss: Literal["ignore", "end"]
    full_actions: bool
    mode: int | None
    difficulty: int | None


_OPTIONS = {"grayscale": "rgb"}  # where the command line has another name
_PYTHON_ONLY = ("life_loss", "mode", "difficulty")


@dataclass(frozen=True, slots=True)
class EnvWish:
    """What the user asked for.

    Args:
        env: An Atari game, an id of gymnasium's, "module:Id-v0" or "module:callable".
        num_envs: Number of envs N.
        backend: Of Atari envs; None chooses "native" unless a knob needs "python".
        num_workers: Threads or processes; None leaves it to the maker.
        knobs: Settings of Atari envs.
    """

    env: str
    num_envs: int
    backend: Literal["native", "python"] | None = None
    num_workers: int | None = None
    knobs: AtariKnobs = field(default_factory=AtariKnobs)


def make_envs(wish: EnvWish) -> Vector:
    """Make the envs.

    Raises:
        ValueError: There is no such env, or a setting does not apply to it.

    Example:
        >>> envs = make_envs(EnvWish("CartPole-v1", 2, num_workers=0))
        >>> envs.num_envs
        2
        >>> envs.close()
    """
    game = atari_name(wish.env)
    if game is not None:
        return _make_atari(game, wish)
    _refuse_atari_knobs(wish)
    # Imported here: a command that makes no envs need not load what makes them.
    from stepwell.wrappers.make_vec import make_vec

    return make_vec(_source(wish.env), wish.num_envs, num_workers=wish.num_workers)


def _make_atari(game: str, wish: EnvWish) -> Vector:
    from stepwell.wrappers.atari import make_atari

    backend = wish.backend or "native"
    if wish.backend is None and any(wish.knobs.get(name) is not None for name in _PYTHON_ONLY):
        backend = "python"
    return make_atari(
        game, wish.num_envs, backend=backend, num_workers=wish.num_workers, **wish.knobs
    )


def _refuse_atari_knobs(wish: EnvWish) -> None:
    given = [f"--{_OPTIONS.get(name, name).replace('_', '-')}" for name in wish.knobs]
    if wish.backend == "native":
        given.append("--backend native")
    if given:
        are = "are for Atari games alone" if len(given) > 1 else "is for Atari games alone"
        raise ValueError(
            f"{', '.join(given)} {are}: expected none with {wish.env}; leave out what is "
            f"Atari's, or wrap the env in a function and name that as module:callable"
        )


def _source(env: str) -> str | Callable[[], gymnasium.Env[Any, Any]]:
    """An id that exists, or a factory."""
    module, colon, name = env.partition(":")
    if not colon:
        if unknown := unknown_env(env):
            raise ValueError(unknown)
        return env
    if not module or not name.replace(".", "").isidentifier():  # an id: it has a version
        return env
    found = load_object("ENV", env)
    if not callable(found):
        raise ValueError(
            f"ENV {env}: expected a function or class that makes an env, got {type(found).__name__}"
        )
    refuse_signature(f"ENV {env}", found, 0, "no arguments")
    return cast("Callable[[], gymnasium.Env[Any, Any]]", found)
