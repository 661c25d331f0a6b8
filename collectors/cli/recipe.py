"""How the envs behind a store were made, in a line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

__all__ = ["recipe_in_words"]

_PLAIN_AT_ONE = ("frame_skip", "frame_stack")
_NAMES = ("game", "id", "env")
_TOLD_ELSEWHERE = {*_NAMES, "cartridge", "maker", "versions"}
_HASH_LETTERS = 12  # of a SHA-256: enough to tell files apart by eye
_ACTIONS_SHOWN = 12


def recipe_in_words(recipe: Mapping[str, object]) -> str:
    """Name what was played, then all that was chosen about it.

    Example:
        >>> recipe_in_words({"maker": "make_atari", "game": "pong", "sticky": 0.25, "mode": None})
        'pong, sticky=0.25'
        >>> demo = {"name": "demo.nes", "sha256": "ecd0b80eb430b597f7f7ab7d"}
        >>> recipe_in_words({"cartridge": demo, "game": {"name": "Demo"}, "backend": "cynes"})
        'Demo (demo.nes, sha256 ecd0b80eb430), backend=cynes'
    """
    rest = (_setting(key, value) for key, value in recipe.items() if key not in _TOLD_ELSEWHERE)
    return ", ".join(filter(None, [*_names(recipe), *rest])) or "unknown"


def _names(recipe: Mapping[str, object]) -> list[str]:
    if "cartridge" in recipe:
        return [_cartridge(recipe)]
    return [str(recipe[key]) for key in _NAMES if key in recipe]


def _cartridge(recipe: Mapping[str, object]) -> str:
    """The game, and the file that it came from."""
    cartridge, game = (
        cast("Mapping[str, object]", fact) if isinstance(fact, Mapping) else {}
        for fact in (recipe["cartridge"], recipe.get("game"))
    )
    file = f"{cartridge.get('name')}, sha256 {_short_hash(cartridge.get('sha256'))}"
    return file if game.get("name", "unknown") == "unknown" else f"{game['name']} ({file})"


def _setting(key: str, value: object) -> str:
    """One thing about the env; nothing where nothing was chosen."""
    if (
        value is None
        or value is False
        or value in ({}, [])
        or (key in _PLAIN_AT_ONE and value == 1)
    ):
        return ""
    if value is True:
        return key
    if key == "size" and isinstance(value, list):
        return "x".join(map(str, cast("list[object]", value)))
    return f"{key}={_short(key, value)}"


def _short(key: str, value: object) -> str:
    if not isinstance(value, list):
        return f"'{value}'" if isinstance(value, str) and ", " in value else str(value)
    items = cast("list[object]", value)
    if key == "actions":
        shown = map(str, items[:_ACTIONS_SHOWN])
        return " ".join([*shown, *(["..."] if len(items) > _ACTIONS_SHOWN else [])])
    if key == "start":  # states of a console, by their SHA-256
        return " ".join(map(_short_hash, items))
    if all(isinstance(one, dict) for one in items):  # the wrappers of an env
        wrappers = cast("list[dict[str, object]]", items)
        return " ".join(str(wrapper.get("name", wrapper)) for wrapper in wrappers)
    return str(items)


def _short_hash(text: object) -> str:
    return str(text)[:_HASH_LETTERS]
