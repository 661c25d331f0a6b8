"""The buttons of a joypad: action sets, and boot scripts."""

from __future__ import annotations

import difflib
import enum
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

import gymnasium
import numpy as np


class Button(enum.IntFlag):
    """The buttons of a joypad, as bits in the order of the console's register $4016."""

    RIGHT = 0x01
    LEFT = 0x02
    DOWN = 0x04
    UP = 0x08
    START = 0x10
    SELECT = 0x20
    B = 0x40
    A = 0x80


# The name of a set, or a list of texts such as "RIGHT+A" or of lists of button names.
Actions: TypeAlias = str | Sequence[str | Sequence[str]]

# The sets used by most published results on scrolling games.
_RIGHT_ONLY = ("NOOP", "RIGHT", "RIGHT+A", "RIGHT+B", "RIGHT+A+B")
_SIMPLE = (*_RIGHT_ONLY, "A", "LEFT")
_COMPLEX = (*_SIMPLE, "LEFT+A", "LEFT+B", "LEFT+A+B", "DOWN", "UP")
_PADS = ("", "RIGHT", "LEFT", "DOWN", "UP", "RIGHT+DOWN", "RIGHT+UP", "LEFT+DOWN", "LEFT+UP")
_ALL = tuple(
    "+".join(filter(None, pair)) or "NOOP"
    for pair in itertools.product(_PADS, ("", "A", "B", "A+B"))
)
_SETS = {"right_only": _RIGHT_ONLY, "simple": _SIMPLE, "complex": _COMPLEX, "all": _ALL}
MULTIBINARY = "multibinary"
GAME = "game"
# The keys of `gymnasium.utils.play`: codes of characters, and those that SDL gives to other keys.
KEYS = {
    Button.A: ord("x"),
    Button.B: ord("z"),
    Button.SELECT: 0x400000E5,  # the right shift key
    Button.START: ord("\r"),
    Button.UP: 0x40000052,
    Button.DOWN: 0x40000051,
    Button.LEFT: 0x40000050,
    Button.RIGHT: 0x4000004F,
}
VECTOR = tuple(KEYS)  # the order of the elements of a bit vector
_OPPOSITES = (Button.LEFT | Button.RIGHT, Button.UP | Button.DOWN)


@dataclass(frozen=True, slots=True)
class ActionSet:
    """The actions of an env."""

    meanings: tuple[str, ...]  # text of each action, or of each element of a bit vector
    buttons: tuple[int, ...]  # `Button` bits of each
    is_vector: bool = False  # actions are bit vectors [8] instead of indices
    allow_opposites: bool = False  # left and right, or up and down, may be pressed at the same time

    @property
    def space(self) -> gymnasium.Space[np.int64] | gymnasium.Space[np.ndarray]:
        """Discrete, or MultiBinary for bit vectors."""
        if self.is_vector:
            return gymnasium.spaces.MultiBinary(len(self.buttons))
        return gymnasium.spaces.Discrete(len(self.buttons))

    def pressed(self, action: object) -> int:
        """Return the `Button` bits of an action."""
        # In a bit vector opposite directions cancel each other unless they are allowed.
        if self.is_vector:
            return self._of_vector(action)
        try:
            index = int(cast("int", action))
        except (TypeError, ValueError):
            index = -1
        if not 0 <= index < len(self.buttons) or index != action:
            raise ValueError(
                f"action: expected a whole number from 0 to {len(self.buttons) - 1}, got {action!r}"
            )
        return self.buttons[index]

    def keys_to_action(self) -> dict[tuple[int, ...], int | np.ndarray]:
        """Return the action of each combination of keys but the empty one, sorted as in KEYS."""
        if not self.is_vector:
            return {
                keys_of(mask): index for index, mask in enumerate(self.buttons) if keys_of(mask)
            }
        found: dict[tuple[int, ...], int | np.ndarray] = {}
        for bits in itertools.product((0, 1), repeat=len(self.buttons)):
            vector = np.array(bits, np.int8)
            held = int(sum(button for button, bit in zip(self.buttons, bits, strict=True) if bit))
            if held and self._of_vector(vector) == held:
                found[keys_of(held)] = vector
        return found

    def _of_vector(self, action: object) -> int:
        bits = np.asarray(action)
        if bits.shape != (len(self.buttons),) or not np.isin(bits, (0, 1)).all():
            raise ValueError(
                f"action: expected {len(self.buttons)} zeros and ones for "
                f"{', '.join(self.meanings)}, got {action!r}"
            )
        held = sum(button for button, bit in zip(self.buttons, bits, strict=True) if bit)
        for pair in () if self.allow_opposites else _OPPOSITES:
            if held & pair == pair:
                held &= ~pair
        return int(held)


def action_set(
    actions: Actions, *, allow_opposites: bool = False, game_actions: Sequence[str] | None = None
) -> ActionSet:
    """Return the action set with a name, or make one from a list."""
    # "right_only" has 5 actions, "simple" 7, "complex" 12, "all" 36: each direction with A, B, both
    # or neither; "game" is ``game_actions``, the RAM map's list; "multibinary" has a bit for each
    # button. A list has texts such as "RIGHT+A" or lists of buttons' names. Opposite directions,
    # which a real joypad cannot press and games do not handle, are refused unless they are allowed.
    if isinstance(actions, str):
        if actions == MULTIBINARY:
            names = tuple(str(button.name) for button in VECTOR)
            return ActionSet(names, tuple(map(int, VECTOR)), True, allow_opposites)
        actions = _set_named(actions, game_actions)
    if not isinstance(actions, list | tuple):
        raise ValueError(
            f"actions: expected a name such as 'simple' or a list such as ['NOOP', 'RIGHT'], got "
            f"{actions!r}"
        )
    masks = [parse_buttons(one) for one in actions]
    _check_masks(masks, allow_opposites)
    return ActionSet(tuple(map(text_of, masks)), tuple(masks), False, allow_opposites)


def _set_named(name: str, game_actions: Sequence[str] | None) -> Sequence[str]:
    if name == GAME:
        if game_actions is None:
            raise ValueError(
                "actions='game': expected a RAM map that lists actions, got none; "
                "add actions = [...] to the map, or choose 'simple'"
            )
        return game_actions
    if name not in _SETS:
        names = [*_SETS, MULTIBINARY, GAME]
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "or give a list such as ['NOOP', 'RIGHT']"
        raise ValueError(
            f"actions: expected {', '.join(map(repr, names))} or a list, got {name!r}; {hint}"
        )
    return _SETS[name]


def _check_masks(masks: Sequence[int], allow_opposites: bool) -> None:
    if not masks:
        raise ValueError("actions: expected at least one action, got an empty list")
    for index, mask in enumerate(masks):
        if masks.index(mask) != index:
            raise ValueError(
                f"actions: expected each action once, got {text_of(mask)!r} twice; remove one"
            )
        if not allow_opposites and any(mask & pair == pair for pair in _OPPOSITES):
            raise ValueError(
                f"actions: expected no opposite directions at once, got {text_of(mask)!r}; games "
                "do not handle that; set allow_opposites=True to allow it"
            )


def parse_buttons(text: str | Sequence[str]) -> int:
    """Return the `Button` bits of "RIGHT+A", ["RIGHT", "A"], or "NOOP" for none."""
    if isinstance(text, str):
        is_noop = text.strip().upper() in ("", "NOOP")
        names: Sequence[str] = () if is_noop else text.split("+")
    elif isinstance(text, list | tuple):
        names = [name for name in text if str(name).upper() != "NOOP"]
    else:
        raise ValueError(
            f"buttons: expected a text such as 'RIGHT+A' or a list of names, got {text!r}"
        )
    mask = 0
    for name in names:
        button = Button.__members__.get(str(name).strip().upper())
        if button is None:
            raise ValueError(
                f"buttons {text!r}: expected names out of {', '.join(Button.__members__)} joined "
                f"by '+', or NOOP, got {str(name).strip()!r}"
            )
        if mask & button:
            raise ValueError(f"buttons {text!r}: expected each button once, got {name} twice")
        mask |= int(button)
    return mask


def text_of(mask: int) -> str:
    """Format buttons as text for `parse_buttons`, directions first."""
    order = (*VECTOR[7:3:-1], *VECTOR[:4])
    return "+".join(str(button.name) for button in order if mask & button) or "NOOP"


def keys_of(mask: int) -> tuple[int, ...]:
    """Return the codes of the keys for some buttons, in the order of `KEYS`."""
    return tuple(code for button, code in KEYS.items() if mask & button)


# The parts of a boot script: `Button` bits and a number of frames.
Boot: TypeAlias = tuple[tuple[int, int], ...]

LONGEST = 100_000  # frames of a script: almost half an hour


def parse_boot(script: str) -> Boot:
    """Parse a boot script such as "NOOP 20, START 3": (`Button` bits, frames) of each part."""
    # Parts are separated by commas or line ends.
    boot: list[tuple[int, int]] = []
    for text, frames in parse_script(script):
        try:
            boot.append((parse_buttons(text), frames))
        except ValueError as error:
            raise ValueError(f"boot, part '{text} {frames}': {error}") from None
    total = sum(frames for _, frames in boot)
    if total > LONGEST:
        raise ValueError(f"boot: expected at most {LONGEST:,} frames in all, got {total:,}")
    return tuple(boot)


def parse_script(script: str, name: str = "boot", unit: str = "frames") -> list[tuple[str, int]]:
    """Split a script such as "NOOP 20, START 3" into buttons and counts."""
    # Parts are separated by commas or line ends; each is a text without spaces and a number.
    # ``name`` and ``unit``, what the numbers count, are for errors.
    found: list[tuple[str, int]] = []
    for part in script.replace("\n", ",").split(","):
        fields = part.split()
        if not fields:
            continue
        if len(fields) != 2 or not fields[1].isdecimal() or int(fields[1]) < 1:
            raise ValueError(
                f"{name}: expected parts such as 'START 3' (buttons, then {unit}, at least 1), "
                f"got {part.strip()!r}; a whole script reads 'NOOP 20, START 3, NOOP 5'"
            )
        found.append((fields[0], int(fields[1])))
    return found
