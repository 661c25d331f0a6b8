"""The keys of a person: which buttons they hold, which action that is, and a file that says so."""

from __future__ import annotations

import itertools
import json
import os
import re
import tomllib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias, cast

import gymnasium
import numpy as np
from gymnasium import spaces

from ...buffers.base.optional_libraries import load_library
from ...wrappers.ale_env import action_meanings

KeySource: TypeAlias = "Mapping[str, Mapping[str, Any]] | str | os.PathLike[str]"
"""Other keys: a TOML file with the tables ``buttons``, ``commands`` and ``actions``, or these."""

COMMANDS = {
    "pause": ("p", "pad button 8"),
    "reset": ("r",),
    "discard": ("backspace",),
    "save": ("f5",),
    "load": ("f9",),
    "take_over": ("tab", "pad button 4"),
    "quit": ("escape",),
}
"""The keys of commands, unless a file gives others."""
WATCH_COMMANDS = {"mark": ("f2",), "rose": ("f6",), "fell": ("f7",), "stayed": ("f8",)}
"""Those of a search in the RAM."""

_BUTTONS = {
    "UP": ("up", "pad hat up", "pad axis 1 -"),
    "DOWN": ("down", "pad hat down", "pad axis 1 +"),
    "LEFT": ("left", "pad hat left", "pad axis 0 -"),
    "RIGHT": ("right", "pad hat right", "pad axis 0 +"),
    "FIRE": ("space", "pad button 0"),
    "A": ("x", "pad button 0"),
    "B": ("z", "pad button 1"),
    "SELECT": ("right shift", "pad button 6"),
    "START": ("return", "pad button 7"),
}
_ATARI = re.compile("UP|DOWN|LEFT|RIGHT|FIRE")
_PAD = re.compile(r"pad (button [0-9]{1,2}|axis [0-9]{1,2} [-+]|hat (up|down|left|right))")
_NOOP = "NOOP"
_MOST_DIGITS = 10
_TABLES = ("buttons", "commands", "actions")


@dataclass(frozen=True, slots=True)
class Controls:
    """The keys of an env."""

    # By the buttons held together; the empty set is the no-op, if there is one
    actions: Mapping[frozenset[str], Any]
    buttons: Mapping[str, tuple[str, ...]]  # the keys of each, of keyboard and gamepad
    commands: Mapping[str, tuple[str, ...]]  # the keys of each
    has_own_actions: bool = False  # they were given with the keys

    def action_of(self, held: Sequence[str]) -> Any:
        """Return the action of the held buttons, the newest last; None where there is none."""
        # Where no action holds exactly these, it is that of the most of them; of several such, the
        # one with the newest buttons.
        exact = self.actions.get(frozenset(held))
        if exact is not None:
            return exact
        newest = {name: place for place, name in enumerate(held)}
        possible = [names for names in self.actions if names <= newest.keys()]
        if not possible:
            return None
        best = max(possible, key=lambda names: (len(names), sorted(newest[n] for n in names)[::-1]))
        return self.actions[best]

    def button_of(self, key: str) -> str | None:
        """Return the button that a key holds."""
        return next((name for name, keys in self.buttons.items() if key in keys), None)

    def command_of(self, key: str) -> str | None:
        """Return the command that a key gives."""
        return next((name for name, keys in self.commands.items() if key in keys), None)

    def to_toml(self) -> str:
        """Return the file that gives these keys."""
        lines = ["# Keys of `stepwell play`: names as pygame has them, or of a gamepad."]
        for title, table in (("buttons", self.buttons), ("commands", self.commands)):
            lines += ["", f"[{title}]"]
            lines += [
                f"{json.dumps(name)} = {json.dumps(list(keys))}" for name, keys in table.items()
            ]
        if self.has_own_actions:
            lines += ["", "[actions]"]
            for names, action in self.actions.items():
                text = json.dumps(np.asarray(action).tolist())
                lines.append(f"{json.dumps('+'.join(sorted(names)) or _NOOP)} = {text}")
        return "\n".join(lines) + "\n"


def controls_of(
    env: gymnasium.Env[Any, Any], keys: KeySource | None = None, *, watch: bool = False
) -> Controls:
    """Return the keys of an env: the usual ones, with those that are given in their place."""
    # NES and Atari games have the buttons of their joypad; other envs those of their method
    # ``get_keys_to_action``; Discrete and MultiBinary spaces of up to 10 the digits. The given
    # ``actions`` map buttons held together, as ``"LEFT+A"``, to an action; its ``NOOP`` is the
    # action while nothing is held.
    tables, where = _tables(keys)
    own = tables.get("actions")
    usual = _usual(env) if own is None else _own(env.action_space, own, where)
    buttons = _replaced(usual.buttons, tables.get("buttons", {}), where, "buttons")
    commands = _replaced(COMMANDS | WATCH_COMMANDS, tables.get("commands", {}), where, "commands")
    if not watch:
        commands = {name: commands[name] for name in COMMANDS}
    silent = [name for name, each in buttons.items() if not each]
    if silent:
        raise ValueError(
            f"{where}: expected keys for the button {silent[0]!r} in [buttons], got none; add "
            f'{silent[0]} = "KEY"'
        )
    seen: dict[str, str] = {}
    for name, each in [*buttons.items(), *commands.items()]:
        for key in each:
            if key in seen:
                raise ValueError(
                    f"{where}: expected each key once, got {key!r} for {seen[key]} and {name}; "
                    f"give one of them another key"
                )
            seen[key] = name
    return replace(usual, buttons=buttons, commands=commands)


def load_pygame(wanted_for: str = "play") -> Any:
    """Import pygame, which greets on standard output unless it is told not to."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    return load_library("pygame", wanted_for, install="'stepwell[play]'")


def _tables(keys: KeySource | None) -> tuple[Mapping[str, Mapping[str, Any]], str]:
    """The tables that were given, and their place for errors."""
    if keys is None:
        return {}, "keys"
    if isinstance(keys, Mapping):
        found, where = cast("Mapping[str, Any]", keys), "keys"
    else:
        where = f"keys {os.fspath(keys)}"
        try:
            found = tomllib.loads(Path(keys).read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{where}: expected a TOML file, got {error}; correct it") from None
    for name, table in found.items():
        if name not in _TABLES or not isinstance(table, Mapping):
            raise ValueError(
                f"{where}: expected the tables {', '.join(_TABLES)}, got {name!r}; stepwell play "
                f"ENV --print-keys shows a right file"
            )
    return found, where


def _usual(env: gymnasium.Env[Any, Any]) -> Controls:
    """The keys of an env without any that are given."""
    space, meanings = env.action_space, action_meanings(env)
    if meanings and isinstance(space, spaces.MultiBinary):
        return _joypad(_bits(meanings))
    if meanings and isinstance(space, spaces.Discrete):
        parts = [_buttons_in(text) for text in meanings]
        if all(each is not None for each in parts):
            return _joypad({frozenset(each or ()): k for k, each in enumerate(parts)})
    method = getattr(env.unwrapped, "get_keys_to_action", None)
    if method is not None:
        return _of_method(method(), space)
    if isinstance(space, spaces.Discrete) and space.n <= _MOST_DIGITS:
        names = list(map(str, range(int(space.n))))
        keys: dict[str, tuple[str, ...]] = {name: (name,) for name in names}
        if 2 <= len(names) <= 3:  # the first is mostly the left one, as in CartPole
            keys[names[0]] += _BUTTONS["LEFT"]
            keys[names[-1]] += _BUTTONS["RIGHT"]
        start = int(space.start)
        return Controls({frozenset({name}): start + int(name) for name in names}, keys, COMMANDS)
    if isinstance(space, spaces.MultiBinary) and space.shape in {(n,) for n in range(11)}:
        names = list(map(str, range(space.shape[0])))
        return Controls(_bits(names), {name: (name,) for name in names}, COMMANDS)
    raise ValueError(
        f"keys: expected some for the action space {space}, which has no usual ones, got none; "
        f"give a file with [buttons] and [actions], such as actions = {{NOOP = ..., LEFT = ...}}"
    )


def _bits(names: Sequence[str]) -> dict[frozenset[str], Any]:
    """The vectors of zeros and ones, by the names of the ones."""
    return {
        frozenset(itertools.compress(names, bits)): np.array(bits, np.int8)
        for bits in itertools.product((0, 1), repeat=len(names))
    }


def _buttons_in(meaning: str) -> list[str] | None:
    """The buttons in the name of an action, as UPFIRE or RIGHT+A; None if it is none of these."""
    if meaning == _NOOP:
        return []
    parts = meaning.split("+") if "+" in meaning else _ATARI.findall(meaning) or [meaning]
    is_known = "".join(parts) == meaning.replace("+", "") and all(p in _BUTTONS for p in parts)
    return parts if is_known else None


def _joypad(actions: Mapping[frozenset[str], Any]) -> Controls:
    names = {name for held in actions for name in held}
    keys = {name: keys for name, keys in _BUTTONS.items() if name in names}
    return Controls(actions, keys, COMMANDS)


def _of_method(found: Mapping[Any, Any], space: spaces.Space[Any]) -> Controls:
    """The keys of a method ``get_keys_to_action``: combinations of characters or of key codes."""
    actions: dict[frozenset[str], Any] = {}
    for combination, action in found.items():
        codes = combination if isinstance(combination, tuple | str) else (combination,)
        actions[frozenset(map(_key_name, codes))] = action
    if frozenset() not in actions and isinstance(space, spaces.Box):
        still = np.zeros(space.shape, space.dtype)
        if space.contains(still):
            actions[frozenset()] = still
    names = sorted({name for held in actions for name in held})
    return Controls(actions, {name: (name,) for name in names}, COMMANDS)


def _own(space: spaces.Space[Any], table: Mapping[str, Any], where: str) -> Controls:
    """The actions of a file."""
    actions: dict[frozenset[str], Any] = {}
    for text, value in table.items():
        names = [] if text == _NOOP else text.split("+")
        action = _action(space, value)
        if action is None:
            raise ValueError(
                f"{where}: expected an action of {space} for {text!r} in [actions], got {value!r}; "
                f"correct it"
            )
        actions[frozenset(names)] = action
    if not any(actions):
        raise ValueError(
            f"{where}: expected a button in [actions], such as LEFT = 0, got none; add one"
        )
    names = list(dict.fromkeys(name for held in actions for name in sorted(held)))
    keys = {name: _BUTTONS.get(name, ()) for name in names}
    return Controls(actions, keys, COMMANDS, has_own_actions=True)


def _action(space: spaces.Space[Any], value: object) -> Any:
    """The action of a space that a file gives; None if it is none."""
    try:
        exact, action = np.asarray(value), np.asarray(value, space.dtype)
    except (TypeError, ValueError):  # lists of several lengths, texts
        return None
    if exact.dtype.kind not in "biuf" or (action.dtype.kind in "biu" and (action != exact).any()):
        return None
    given: Any = int(action) if isinstance(space, spaces.Discrete) and not action.ndim else action
    return given if space.contains(given) else None


def _replaced(
    usual: Mapping[str, tuple[str, ...]], given: Mapping[str, Any], where: str, table: str
) -> dict[str, tuple[str, ...]]:
    """The usual keys, with those that a table gives in their place."""
    found = dict(usual)
    for name, value in given.items():
        if name not in usual:
            raise ValueError(
                f"{where}: expected one of {', '.join(usual)} in [{table}], got {name!r}; "
                f"correct it"
            )
        keys = [value] if isinstance(value, str) else value
        if not isinstance(keys, list | tuple) or not all(isinstance(key, str) for key in keys):
            raise ValueError(
                f"{where}: expected the name of a key, or a list of them, for {name!r}, got "
                f"{value!r}; correct it"
            )
        for key in keys:
            _check_key(key, where, name)
        found[name] = tuple(keys)
    return found


def _check_key(key: str, where: str, name: str) -> None:
    if _PAD.fullmatch(key):
        return
    try:
        with warnings.catch_warnings():  # that pygame is not initialized, which names do not need
            warnings.simplefilter("ignore")
            load_pygame().key.key_code(key)
    except ValueError:
        raise ValueError(
            f"{where}: expected a key as pygame names it ('left', 'space', 'return', 'a') or of a "
            f"gamepad ('pad button 0', 'pad axis 1 -', 'pad hat up') for {name!r}, got {key!r}; "
            f"correct it"
        ) from None


def _key_name(code: int | str) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        name: str = load_pygame().key.name(ord(code) if isinstance(code, str) else code)
    return name
