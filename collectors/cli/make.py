"""From what the user calls an env to a vector of envs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import gymnasium

from stepwell.collectors.cli.catalogue import unknown_env
from stepwell.collectors.cli.env_options import (
    Backend,
    EnvOptions,
    atari_backend,
    atari_knobs,
    nes_backend,
    nes_knobs,
    refuse_knobs,
)
from stepwell.collectors.cli.load import load_object, refuse_signature
from stepwell.collectors.cli.nes import is_cartridge
from stepwell.collectors.vector_envs import Vector
from stepwell.wrappers.atari_settings import atari_name

__all__ = ["EnvRequest", "make_envs"]


@dataclass(frozen=True, slots=True)
class EnvRequest:
    """What the user asked for.

    Args:
        env: An Atari game, the file of an NES cartridge, an id of gymnasium's, "module:Id-v0" or
            "module:callable".
        num_envs: Number of envs N.
        backend: Of games; None is "cynes" for a cartridge, and for an Atari game "native" unless a
            knob needs "python".
        num_workers: Threads or processes; None leaves it to the maker.
        knobs: Settings of games.
    """

    env: str
    num_envs: int
    backend: Backend | None = None
    num_workers: int | None = None
    knobs: EnvOptions = field(default_factory=EnvOptions)


def make_envs(wish: EnvRequest) -> Vector:
    """Make the envs.

    Raises:
        ValueError: There is no such env, or a setting does not apply to it.

    Example:
        >>> envs = make_envs(EnvRequest("CartPole-v1", 2, num_workers=0))
        >>> envs.num_envs
        2
        >>> envs.close()
    """
    if is_cartridge(wish.env):
        return _make_nes(wish)
    game = atari_name(wish.env)
    if game is not None:
        return _make_atari(game, wish)
    refuse_knobs(wish.env, wish.knobs, wish.backend)
    # Imported here: a command that makes no envs need not load what makes them.
    from stepwell.wrappers.make_vector_env import make_vec

    return make_vec(_source(wish.env), wish.num_envs, num_workers=wish.num_workers)


def _make_atari(game: str, wish: EnvRequest) -> Vector:
    knobs = atari_knobs(wish.env, wish.knobs)
    backend = atari_backend(wish.backend, wish.knobs)
    from stepwell.wrappers.atari import make_atari

    return make_atari(game, wish.num_envs, backend=backend, num_workers=wish.num_workers, **knobs)


def _make_nes(wish: EnvRequest) -> Vector:
    knobs = nes_knobs(wish.env, wish.knobs)
    backend = nes_backend(wish.backend)
    from stepwell.wrappers.nes.vector import make_nes

    return make_nes(wish.env, wish.num_envs, backend=backend, num_workers=wish.num_workers, **knobs)


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
