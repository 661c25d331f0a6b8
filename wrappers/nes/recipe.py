"""Say in plain data how an NES env was made."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any

from stepwell.wrappers.nes.buttons import ActionSet
from stepwell.wrappers.nes.cartridge import Cartridge
from stepwell.wrappers.nes.consoles.console import Console
from stepwell.wrappers.nes.play import Rules
from stepwell.wrappers.nes.ram_map.game import Game
from stepwell.wrappers.nes.starts import Boots, Place

__all__ = ["nes_recipe"]


def nes_recipe(
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
