"""Read a RAM map: a folder of stable-retro's with data.json, scenario.json and rom.sha."""

from __future__ import annotations

import functools
import itertools
import json
import operator
from collections.abc import Iterable
from pathlib import Path
from typing import cast

from .tables import (
    MOST_DEPTH,
    MapTable,
    RamMap,
    map_text,
    nearest,
    read_tables,
)
from .variables import COMPARING

COLLECTIONS = ("stable", "contrib", "experimental")
# Buttons in the order of stable-retro's bits, lowest first, which determines that of actions.
BITS = ("B", None, "SELECT", "START", "UP", "DOWN", "LEFT", "RIGHT", "A")
WRITTEN = ("UP", "DOWN", "LEFT", "RIGHT", "A", "B", "SELECT", "START")
_SCENARIO = ("actions", "boot", "crop", "done", "reward", "rewards", "scripts", "stuck")
# stable-retro omits 8 pixels on each side of the 240x256 picture.
HIDDEN, SHOWN_ROWS, SHOWN_COLUMNS = 8, 224, 240


def integration(name: str) -> Path:
    """Return the folder of an integration, "Name-Nes-v0", of the installed stable-retro."""
    found = {folder.name: folder for folder in reversed(_integrations())}
    if name not in found:
        raise ValueError(
            f"game: expected 'retro:' and one of stable-retro's {len(found)} NES integrations, "
            f"got {name!r}; {nearest(name, found) if name else 'write retro:Name-Nes-v0'}"
        )
    return found[name]


def _integrations() -> list[Path]:
    """Return the folders of all NES integrations, in stable-retro's order of preference."""
    import importlib.util  # finds the folder without loading the emulators

    package = importlib.util.find_spec("stable_retro")
    if package is None or package.origin is None:
        raise ImportError(
            "game 'retro:...' needs the integrations of stable-retro, which is not installed; "
            "pip install 'stepwell[retro]', or give the folder with data.json and scenario.json"
        )
    data = Path(package.origin).parent / "data"
    return [
        folder
        for collection in COLLECTIONS
        for folder in sorted((data / collection).glob("*-Nes-v*"))
    ]


def read_retro(folder: Path) -> RamMap:
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
    _refuse_scripts(scenario, reward, done)
    info, stuck = data.table("info").entries, scenario.entries.get("stuck")
    tables: dict[str, object] = {
        "boot": scenario.entries.get("boot"),
        "vars": info,
        "life": {"var": "lives"} if "lives" in info else None,
        "reward": {name: _measuring(entry) for name, entry in _variables(reward).items()},
        "terminated": _condition(done),
        "stuck": None if stuck is None else {"vars": stuck},
        "actions": _actions(scenario),
        "crop": _crop(scenario),
        "rom": _digests(folder / "rom.sha"),
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


def _refuse_scripts(scenario: MapTable, reward: MapTable, done: MapTable) -> None:
    for table, key in ((scenario, "scripts"), (reward, "script"), (done, "script")):
        if table.entries.get(key):
            raise table.error(
                key,
                f"expected a reward and an end made of variables, got {table.entries[key]!r:.60}, "
                "which is Lua code that only stable-retro runs; write variables instead",
            )


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


def _variables(table: MapTable) -> dict[str, MapTable]:
    if "time" in table.entries:
        raise table.error(
            "time",
            f"expected rewards for variables, got {table.entries['time']!r:.60} for each frame; "
            "remove it, and add the reward for frames in a wrapper",
        )
    return table.table("variables").tables()


def _measuring(entry: MapTable) -> dict[str, object]:
    """Convert an entry of a scenario to that of a RAM map, with stable-retro's defaults."""
    found = dict(entry.entries)
    if found.get("op") in COMPARING:
        found.setdefault("reference", 0)
    else:
        found.pop("reference", None)
    return found


def _condition(table: MapTable, depth: int = 0) -> dict[str, object]:
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
        found["nodes"] = {name: _condition(node, depth + 1) for name, node in nodes.items()}
    if table.choice("condition", ("any", "all")) == "all":
        found["condition"] = "all"
    return found


def _actions(scenario: MapTable) -> list[str] | None:
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


def _crop(scenario: MapTable) -> dict[str, object]:
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


def _digests(path: Path) -> dict[str, object]:
    if not path.exists():
        return {}
    return {"sha1": map_text(path).split()}
