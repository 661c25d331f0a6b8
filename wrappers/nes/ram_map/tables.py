"""Read and check a RAM map: the tables of a recipe, or a folder of stable-retro's."""

from __future__ import annotations

import contextlib
import difflib
import functools
import itertools
import json
import math
import operator
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_args

from ..buttons import parse_boot, parse_buttons
from .variables import (
    COMPARING,
    LARGEST,
    OPERATIONS,
    Condition,
    Measured,
    Measurement,
    RewardTerm,
    Variable,
)

_T = TypeVar("_T")

TOP = ("actions", "boot", "crop", "life", "name", "reward", "rom", "stuck", "terminated", "vars")
SIDES = ("top", "bottom", "left", "right")
MEASURING = ("var", "measurement", "op", "reference")
# Other keys of the info, set by the env, a wrapper or the vector env.
RESERVED_NAMES = {
    "episode",
    "episode_frame_number",
    "final_info",
    "final_obs",
    "game_over",
    "noops",
    "raw_reward",
    "reward_terms",
    "start",
}
DIGESTS = {"sha256": 64, "sha1": 40}


def read_tables(tables: Mapping[str, object], where: str, name: str) -> dict[str, Any]:
    """Check the tables of a RAM map, and return the arguments of its `Game`."""
    # ``where`` begins error messages; ``name`` is that of the game if the map has none.
    top = MapTable(where, tables)
    top.only(TOP)
    variables = {name: _variable(name, one) for name, one in top.table("vars").tables().items()}
    reward, crops = top.table("reward").tables(), top.table("crop").tables()
    end = top.table("terminated")
    return dict(
        name=top.text("name") or name,
        boot=_boot(top),
        actions=_actions(top),
        variables=variables,
        reward=tuple(_term(name, entry, variables) for name, entry in reward.items()),
        terminated=_condition(end, variables) if "terminated" in top.entries else None,
        life=_life(top, variables),
        stuck=_stuck(top, variables),
        crops={name: _crop(name, entry) for name, entry in crops.items()},
        sha256=_digests(top.table("rom"), "sha256"),
        sha1=_digests(top.table("rom"), "sha1"),
    )


def _boot(top: MapTable) -> str | None:
    boot = top.text("boot")
    try:
        parse_boot(boot or "")
    except ValueError as error:
        raise ValueError(f"{top.where}, {error}") from None
    return boot


def _actions(top: MapTable) -> tuple[str, ...] | None:
    """Check the list here, as an env may not use it."""
    actions = top.texts("actions")
    try:
        for action in actions or ():
            parse_buttons(action)
    except ValueError as error:
        raise ValueError(f"{top.where}, actions, {error}") from None
    return actions


def _variable(name: str, entry: MapTable) -> Variable:
    if not name or name.startswith("_") or name in RESERVED_NAMES:
        raise ValueError(
            f"{entry.where}: expected a name that begins with no underscore and is none of "
            f"{', '.join(sorted(RESERVED_NAMES))}, which info already has, got {name!r}; rename it"
        )
    entry.only(("address", "type", "wrap", "mask"))
    address, type_ = entry.needed("address", entry.whole), entry.needed("type", entry.text)
    try:
        return Variable(address, type_, entry.whole("wrap"), entry.whole("mask"))
    except ValueError as error:
        raise ValueError(f"{entry.where}, {error}") from None


def _name(entry: MapTable, key: str, name: str, variables: Mapping[str, Variable]) -> str:
    if name not in variables:
        raise entry.error(
            key, f"expected a variable of the map, got {name!r}; {nearest(name, variables)}"
        )
    return name


def _measured(
    key: str, entry: MapTable, usual: Measurement, variables: Mapping[str, Variable]
) -> Measured:
    measurement = entry.choice("measurement", get_args(Measurement)) or usual
    op = entry.choice("op", tuple(OPERATIONS))
    reference = entry.whole("reference")
    if op in COMPARING:
        entry.needed("reference", entry.whole)
    elif reference is not None:
        raise entry.error("reference", f"expected none with op {op!r}, got {reference}; remove it")
    if reference is not None and abs(reference) > LARGEST:
        raise entry.error(
            "reference", f"expected at most {LARGEST} either way, got {reference}; make it smaller"
        )
    var = _name(entry, "var", entry.text("var") or key, variables)
    return Measured(var, cast("Measurement", measurement), op, reference or 0)


def _term(name: str, entry: MapTable, variables: Mapping[str, Variable]) -> RewardTerm:
    entry.only((*MEASURING, "reward", "penalty", "limit"))
    measured = _measured(name, entry, "delta", variables)
    reward, penalty, limit = (entry.number(key) for key in ("reward", "penalty", "limit"))
    if reward is None and penalty is None:
        raise entry.error(
            "reward", "expected reward or penalty, got neither; give one or take it out"
        )
    if limit is not None and (limit <= 0 or measured.measurement == "absolute"):
        raise entry.error(
            "limit",
            f"expected a number above 0, for changes (measurement 'delta'), got {limit} for "
            f"{measured.measurement!r}; leave it out to count everything",
        )
    return RewardTerm(name, measured, reward or 0.0, penalty or 0.0, limit)


def _condition(table: MapTable, variables: Mapping[str, Variable], depth: int = 0) -> Condition:
    if depth > MOST_DEPTH:
        raise table.error("nodes", f"expected at most {MOST_DEPTH} levels, got more; join some")
    combine = table.choice("condition", ("any", "all")) or "any"
    entries = table.tables(besides=("condition", "nodes"))
    for entry in entries.values():
        entry.only(MEASURING)
    tests = [
        (name, _measured(name, entry, "absolute", variables)) for name, entry in entries.items()
    ]
    nodes = table.table("nodes").tables()
    if not tests and not nodes:
        raise ValueError(
            f"{table.where}: expected at least one test, got none; "
            'write one as in {"lives": {"op": "zero"}}, or take the table out'
        )
    return Condition(
        cast("Literal['any', 'all']", combine),
        tuple(tests),
        tuple((name, _condition(node, variables, depth + 1)) for name, node in nodes.items()),
    )


def _life(top: MapTable, variables: Mapping[str, Variable]) -> str | None:
    if "life" not in top.entries:
        return None
    table = top.table("life")
    table.only(("var",))
    name = _name(table, "var", table.needed("var", table.text), variables)
    if name != "lives" and "lives" in variables:
        raise table.error(
            "var",
            f"expected 'lives', as there is a variable of that name, got {name!r}; "
            "info has one entry 'lives': rename that variable, or name it here",
        )
    return name


def _stuck(top: MapTable, variables: Mapping[str, Variable]) -> tuple[str, ...]:
    if "stuck" not in top.entries:
        return ()
    table = top.table("stuck")
    table.only(("vars",))
    names = table.texts("vars")
    if not names:
        raise table.error("vars", "expected a list of variables, got none; name some")
    return tuple(_name(table, "vars", name, variables) for name in dict.fromkeys(names))


def _crop(name: str, entry: MapTable) -> tuple[int, int, int, int]:
    if name == "overscan":
        raise ValueError(
            f"{entry.where}: expected a name of your own, got 'overscan', which always means "
            "8 pixels on each side; rename it"
        )
    entry.only(SIDES)
    top, bottom, left, right = (entry.whole(side) or 0 for side in SIDES)
    if min(top, bottom, left, right) < 0 or top + bottom >= 240 or left + right >= 256:
        raise ValueError(
            f"{entry.where}: expected pixels to cut from a picture of 240 rows and 256 columns, "
            f"got top {top}, bottom {bottom}, left {left}, right {right}; leave a part of it"
        )
    return top, bottom, left, right


def _digests(table: MapTable, key: str) -> tuple[str, ...]:
    table.only(tuple(DIGESTS))
    found = table.texts(key, one=True) or ()
    for digest in found:
        if not re.fullmatch(rf"[0-9a-fA-F]{{{DIGESTS[key]}}}", digest):
            raise table.error(
                key,
                f"expected {DIGESTS[key]} hexadecimal digits, got {digest!r}; "
                f"{key}sum prints it, or leave it out",
            )
    return tuple(digest.lower() for digest in found)


MOST_BYTES = 1 << 20
MOST_DEPTH = 50


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the closest known name, as the end of an error message."""
    names = sorted(known)
    if not names:
        return "there are none"
    found = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean {found[0]!r}?" if found else f"known are {', '.join(names)}"


class MapTable:
    """One table of a RAM map."""

    # ``where`` begins error messages: the map or file, then the table and the entry. Each method
    # raises a ValueError where the entry has another type than that in the method's name.

    def __init__(self, where: str, entries: object) -> None:
        if not isinstance(entries, Mapping) or not all(isinstance(key, str) for key in entries):
            raise ValueError(
                f"{where}: expected a table with named entries, got {entries!r:.60}; "
                'write {"key": value}'
            )
        self.where = where
        self.entries: Mapping[str, object] = entries

    def error(self, key: str, problem: str) -> ValueError:
        """Return an error about the entry."""
        return ValueError(f"{self.where}, {key}: {problem}")

    def only(self, known: Collection[str]) -> None:
        """Raise for unknown keys."""
        for key in self.entries:
            if key not in known:
                raise ValueError(
                    f"{self.where}: expected the keys {', '.join(sorted(known))}, "
                    f"got {key!r}; {nearest(key, known)}"
                )

    def table(self, key: str) -> MapTable:
        """Return the table under a key, or an empty one."""
        return MapTable(f"{self.where}, {key}", self.entries.get(key, {}))

    def tables(self, besides: Collection[str] = ()) -> dict[str, MapTable]:
        """Return all entries as tables, except those of the keys in `besides`."""
        return {key: self.table(key) for key in self.entries if key not in besides}

    def text(self, key: str) -> str | None:
        """Return a text, or None."""
        found = self.entries.get(key)
        if found is None or isinstance(found, str):
            return found
        raise self.error(key, f"expected a text, got {found!r:.60}; write it in quotes")

    def texts(self, key: str, *, one: bool = False) -> tuple[str, ...] | None:
        """Return a list of texts, or None; with `one`, a single text is a list of one."""
        found = self.entries.get(key)
        if found is None:
            return None
        if one and isinstance(found, str):
            return (found,)
        if isinstance(found, list | tuple) and all(isinstance(item, str) for item in found):
            return tuple(found)
        expected = "a text or a list of texts" if one else "a list of texts"
        raise self.error(key, f'expected {expected}, got {found!r:.60}; write it as ["..."]')

    def choice(self, key: str, choices: Collection[str]) -> str | None:
        """Return one of the choices, or None."""
        found = self.text(key)
        if found is None or found in choices:
            return found
        raise self.error(
            key, f"expected one of {', '.join(choices)}, got {found!r}; {nearest(found, choices)}"
        )

    def whole(self, key: str) -> int | None:
        """Return a whole number, or None."""
        found = self.entries.get(key)
        if found is None or (isinstance(found, int) and not isinstance(found, bool)):
            return found
        raise self.error(key, f"expected a whole number, got {found!r:.60}; write it as in 2")

    def needed(self, key: str, read: Callable[[str], _T | None]) -> _T:
        """Return an entry that must be there, as one of the other methods reads it."""
        found = read(key)
        if found is None:
            raise self.error(key, "expected a value, got none; give it")
        return found

    def number(self, key: str) -> float | None:
        """Return a finite number, or None."""
        found = self.entries.get(key)
        if found is None:
            return None
        if isinstance(found, int | float) and not isinstance(found, bool):
            with contextlib.suppress(OverflowError):  # a whole number beyond all floats
                if math.isfinite(found):
                    return float(found)
        raise self.error(key, f"expected a finite number, got {found!r:.60}; write it as in 0.5")


def map_text(path: Path) -> str:
    """Return the text of a file with a map."""
    # It must be a regular file (opening a pipe may block), not too long, in UTF-8.
    if path.exists() and not path.is_file():
        raise ValueError(f"{path.name}: expected a regular file, got a folder or a pipe")
    with path.open("rb") as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ValueError(f"{path.name}: expected at most {MOST_BYTES:,} bytes, got more")
    return data.decode()


COLLECTIONS = ("stable", "contrib", "experimental")
# Buttons in the order of stable-retro's bits, lowest first, which determines that of actions.
BITS = ("B", None, "SELECT", "START", "UP", "DOWN", "LEFT", "RIGHT", "A")
WRITTEN = ("UP", "DOWN", "LEFT", "RIGHT", "A", "B", "SELECT", "START")
_SCENARIO = ("actions", "boot", "crop", "done", "reward", "rewards", "scripts", "stuck")
# stable-retro omits 8 pixels on each side of the 240x256 picture.
HIDDEN, SHOWN_ROWS, SHOWN_COLUMNS = 8, 224, 240


def integration(name: str) -> Path:
    """Return the folder of an integration, "Name-Nes-v0", of the installed stable-retro."""
    import importlib.util  # finds the folder without loading the emulators

    package = importlib.util.find_spec("stable_retro")
    if package is None or package.origin is None:
        raise ImportError(
            "game 'retro:...' needs the integrations of stable-retro, which is not installed; "
            "pip install 'stepwell[retro]', or give the folder with data.json and scenario.json"
        )
    found: dict[str, Path] = {}
    for collection in reversed(COLLECTIONS):  # the first one that has it
        folders = (Path(package.origin).parent / "data" / collection).glob("*-Nes-v*")
        found |= {folder.name: folder for folder in folders}
    if name not in found:
        raise ValueError(
            f"game: expected 'retro:' and one of stable-retro's {len(found)} NES integrations, "
            f"got {name!r}; {nearest(name, found) if name else 'write retro:Name-Nes-v0'}"
        )
    return found[name]


def read_retro(folder: Path) -> dict[str, Any]:
    """Read an integration as a RAM map: data.json, scenario.json, and rom.sha to check the ROM."""
    # Rewards, ends, actions and the order of the discrete actions are the same as in stable-retro.
    # Its crop is named "scenario"; a variable "lives" is the life variable. States of the emulator
    # are not read. Lua scripts and several players are refused. Keys of Stepwell's own, which
    # stable-retro does not look at: ``boot`` and ``stuck`` of the scenario, ``limit`` of a reward,
    # ``wrap`` of a variable; and ``actions`` may be a list of texts such as "RIGHT+A".
    folder = folder.resolve()  # messages have its name, also of "."
    data, scenario = _read_json(folder / "data.json"), _read_json(folder / "scenario.json")
    data.only(("info",))
    scenario.only(_SCENARIO)
    reward, done = _reward_table(scenario), scenario.table("done")
    reward.only(("variables", "time", "script"))
    for table, key in ((scenario, "scripts"), (reward, "script"), (done, "script")):
        if table.entries.get(key):
            raise table.error(
                key,
                f"expected a reward and an end made of variables, got {table.entries[key]!r:.60}, "
                "which is Lua code that only stable-retro runs; write variables instead",
            )
    if "time" in reward.entries:
        raise reward.error(
            "time",
            f"expected rewards for variables, got {reward.entries['time']!r:.60} for each frame; "
            "remove it, and add the reward for frames in a wrapper",
        )
    paid, digests = reward.table("variables").tables(), folder / "rom.sha"
    info, stuck = data.table("info").entries, scenario.entries.get("stuck")
    tables: dict[str, object] = {
        "boot": scenario.entries.get("boot"),
        "vars": info,
        "life": {"var": "lives"} if "lives" in info else None,
        "reward": {name: _measuring(entry) for name, entry in paid.items()},
        "terminated": _retro_condition(done),
        "stuck": None if stuck is None else {"vars": stuck},
        "actions": _retro_actions(scenario),
        "crop": _retro_crop(scenario),
        "rom": {"sha1": map_text(digests).split()} if digests.exists() else None,
    }
    present = {key: table for key, table in tables.items() if table is not None and table != {}}
    return read_tables(present, folder.name, folder.name)


def _read_json(path: Path) -> MapTable:
    where = f"{path.parent.name}/{path.name}"
    try:
        found = json.loads(map_text(path))
    except FileNotFoundError:
        raise FileNotFoundError(
            f"game: expected data.json and scenario.json in the folder {str(path.parent)!r}, got "
            f"no {path.name}; give a folder with both"
        ) from None
    except (ValueError, RecursionError) as error:  # not JSON, or nested too deeply
        raise ValueError(
            f"{where}: expected JSON, got something else: {error}; correct that place"
        ) from None
    return MapTable(where, found)


def _reward_table(scenario: MapTable) -> MapTable:
    """Return the reward of the first player."""
    players = scenario.entries.get("rewards")
    if players is None:
        return scenario.table("reward")
    if "reward" in scenario.entries or not isinstance(players, list) or len(players) != 1:
        raise scenario.error(
            "rewards",
            f"expected the reward of one player, got {players!r:.60}; keep one, as 'reward'",
        )
    return MapTable(f"{scenario.where}, rewards", players[0])


def _measuring(entry: MapTable) -> dict[str, object]:
    """Convert an entry of a scenario to that of a RAM map, with stable-retro's defaults."""
    found = dict(entry.entries)
    if found.get("op") in COMPARING:
        found.setdefault("reference", 0)
    else:
        found.pop("reference", None)
    return found


def _retro_condition(table: MapTable, depth: int = 0) -> dict[str, object]:
    """Convert a node of a scenario's "done", with its subnodes, to a condition of a RAM map."""
    table.only(("variables", "nodes", "condition", "script"))
    found: dict[str, object] = {}
    for name, entry in table.table("variables").tables().items():
        # In a RAM map these two keys are in the same table as the variables.
        key = f"variable {name}" if name in ("condition", "nodes") else name
        found[key] = {"var": name, **_measuring(entry)}
    nodes = table.table("nodes").tables()
    if depth > MOST_DEPTH:
        raise table.error("nodes", f"expected at most {MOST_DEPTH} levels, got more; join some")
    if nodes:
        found["nodes"] = {name: _retro_condition(node, depth + 1) for name, node in nodes.items()}
    if table.choice("condition", ("any", "all")) == "all":
        found["condition"] = "all"
    return found


def _retro_actions(scenario: MapTable) -> list[str] | None:
    """Return all combinations of one entry of each group, in stable-retro's order."""
    groups = scenario.entries.get("actions")
    if groups is None:
        return None
    if isinstance(groups, list) and groups and all(isinstance(one, str) for one in groups):
        return groups
    by_mask: dict[int, list[int]] = {}
    for group in _groups(scenario, groups):
        held = [sum(1 << BITS.index(button) for button in set(entry)) for entry in group]
        by_mask.setdefault(_union(held), sorted(set(held)))
    # The first group changes fastest.
    ordered = [by_mask[mask] for mask in sorted(by_mask, reverse=True)]
    return [_action_text(_union(combination)) for combination in itertools.product(*ordered)]


def _groups(scenario: MapTable, groups: object) -> list[list[list[str]]]:
    entries = [entry for group in _nonempty(groups) for entry in _nonempty(group)]
    buttons = [button for entry in entries if entry != [] for button in _nonempty(entry)]
    if not all(button in WRITTEN for button in buttons):
        raise scenario.error(
            "actions",
            f"expected groups of lists of the buttons {', '.join(WRITTEN)}, got {groups!r:.60}; "
            "write it as in [[[], ['LEFT'], ['RIGHT']], [[], ['A']]], or ['NOOP', 'RIGHT+A']",
        )
    return cast("list[list[list[str]]]", groups)


def _nonempty(found: object) -> list[object]:
    """Return a non-empty list; for other values, a list that fails the check of buttons."""
    return found if isinstance(found, list) and found else [None]


def _union(masks: Iterable[int]) -> int:
    return functools.reduce(operator.or_, masks, 0)


def _action_text(held: int) -> str:
    return "+".join(name for name in WRITTEN if held >> BITS.index(name) & 1) or "NOOP"


def _retro_crop(scenario: MapTable) -> dict[str, object]:
    """Convert the crop [x, y, width, height] of stable-retro's picture to the four sides."""
    crop = scenario.entries.get("crop") or [0, 0, 0, 0]
    if not isinstance(crop, list) or [type(number) for number in crop] != [int] * 4:
        raise scenario.error(
            "crop", f"expected [x, y, width, height], got {crop!r:.60}; 0 for no crop"
        )
    if not any(crop):
        return {}
    left, top, width, height = crop
    sides = {
        "top": HIDDEN + top,
        "bottom": HIDDEN + _rest(top, height, SHOWN_ROWS),
        "left": HIDDEN + left,
        "right": HIDDEN + _rest(left, width, SHOWN_COLUMNS),
    }
    return {"scenario": sides}


def _rest(start: int, length: int, whole: int) -> int:
    """Return the pixels after the part; 0 if its length is 0 or too large."""
    return whole - start - length if length and start + length <= whole else 0
