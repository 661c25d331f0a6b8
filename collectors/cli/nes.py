"""Cartridges on the command line: which words mean one, and whether its episodes can end."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from stepwell.collectors.cli.env_options import EnvOptions

__all__ = ["action_set", "crop_area", "is_cartridge", "one_or_several", "refuse_endless"]

_ENDINGS = (".nes", ".zip")
_MAGIC = b"NES\x1a"


def is_cartridge(env: str) -> bool:
    """The word means a file with a cartridge, which need not be there: by its name or its content.

    Example:
        >>> is_cartridge("roms/game.NES"), is_cartridge("Pong")
        (True, False)
    """
    path = Path(env)
    if path.suffix.lower() in _ENDINGS:
        return True
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:  # it cannot be read, so it is no cartridge either
        return False


def action_set(text: str) -> str | list[str]:
    """Read a set of actions: a name, or a list.

    Example:
        >>> action_set("simple"), action_set("NOOP, RIGHT, RIGHT+A")
        ('simple', ['NOOP', 'RIGHT', 'RIGHT+A'])
    """
    if "," not in text and "+" not in text:
        return text
    return [action.strip() for action in text.split(",")]


def crop_area(option: str, text: str) -> str | tuple[int, int, int, int]:
    """Read what to cut off: a name, or pixels of the console's picture of 240 x 256.

    Raises:
        ValueError: They are numbers, but not four of them.

    Example:
        >>> crop_area("--crop", "overscan"), crop_area("--crop", "8,8,0,0")
        ('overscan', (8, 8, 0, 0))
    """
    if re.fullmatch(r"[-+0-9., x]*", text) is None:
        return text
    numbers = [part.strip() for part in text.split(",")]
    if len(numbers) != 4 or not all(re.fullmatch("[0-9]{1,3}", part) for part in numbers):
        raise ValueError(
            f"{option}: expected a name such as overscan, or pixels as top,bottom,left,right such "
            f"as 8,8,0,0, got {text!r}"
        )
    top, bottom, left, right = map(int, numbers)
    return top, bottom, left, right


def one_or_several(texts: Sequence[str] | None) -> str | list[str] | None:
    """What an option that may be repeated was given: None for nothing, the text itself for one.

    Example:
        >>> one_or_several([]), one_or_several(["a"]), one_or_several(["a", "b"])
        (None, 'a', ['a', 'b'])
    """
    if not texts:
        return None
    return texts[0] if len(texts) == 1 else list(texts)


def refuse_endless(env: str, knobs: EnvOptions) -> None:
    """Refuse to count episodes of which none can ever end.

    Raises:
        ValueError: The map has no [terminated], and no knob ends an episode either.

    Example:
        >>> refuse_endless("game.nes", {"max_frames": 3600})
    """
    if not is_cartridge(env) or not Path(env).is_file():
        return  # that a file is missing is what its reader says
    if "max_frames" in knobs or "stuck_frames" in knobs or knobs.get("life_loss") == "end":
        return
    from stepwell.wrappers.nes.ram_map.game import Game

    if Game.load(knobs.get("game")).terminated is None:
        raise ValueError(
            f"--episodes: expected episodes of {env} that end, got no map with [terminated], no "
            f"--max-frames and no --stuck-frames; give one of them, or count with --steps"
        )
