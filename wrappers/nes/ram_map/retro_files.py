"""Read what stable-retro keeps of a game: data.json, scenario.json and rom.sha of a folder."""

from __future__ import annotations

import functools
import itertools
import json
import operator
from collections.abc import Iterable
from pathlib import Path
from typing import cast

from stepwell.wrappers.nes.ram_map.toml_map import (
    MOST_DEPTH,
    MapTable,
    RamMap,
    map_text,
    nearest,
    read_map,
)
from stepwell.wrappers.nes.ram_map.variables import COMPARING

COLLECTIONS = ("stable", "contrib", "experimental")
# Buttons by their bits, lowest first, as stable-retro numbers them; it orders actions by them.
BITS = ("B", None, "SELECT", "START", "UP", "DOWN", "LEFT", "RIGHT", "A")
WRITTEN = ("UP", "DOWN", "LEFT", "RIGHT", "A", "B", "SELECT", "START")
# Of the 240x256 picture stable-retro shows all but 8 pixels on each side.
HIDDEN, SHOWN_ROWS, SHOWN_COLUMNS = 8, 224, 240


def integration(name: str) -> Path:
    """The folder of an NES integration of the installed stable-retro.

    Args:
        name: As stable-retro has it, "Name-Nes-v0".

    Raises:
        ImportError: stable-retro is not installed.
        ValueError: It has no such integration.
    """
    found = {folder.name: folder for folder in reversed(_integrations())}
    if name not in found:
        raise ValueError(
            f"game: expected 'retro:' and one of stable-retro's {len(found)} NES integrations, "
            f"got {name!r}; {nearest(name, found) if name else 'write retro:Name-Nes-v0'}"
        )
    return found[name]


def _integrations() -> list[Path]:
    """Folders of all NES integrations, those that stable-retro prefers first."""
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
    """Read the files of an integration as a RAM map.

    Rewards, ends and actions mean the same as in stable-retro, and so does the order of the
    actions in its discrete action space. Its crop is called "scenario"; a variable "lives" is the
    life variable. States are those of one emulator and are not read.

    Args:
        folder: Holds data.json, scenario.json and, if the ROM is to be checked, rom.sha.

    Raises:
        FileNotFoundError: There is no data.json or no scenario.json.
        ValueError: The scenario uses Lua scripts, is for several players, or is wrong.
    """
    data, scenario = _read_json(folder / "data.json"), _read_json(folder / "scenario.json")
    reward = _reward_table(scenario)
    done = scenario.table("done")
    _refuse_scripts(scenario, reward, done)
    info = data.table("info").entries
    tables: dict[str, object] = {
        "vars": info,
        "life": {"var": "lives"} if "lives" in info else None,
        "reward": {name: _measuring(entry) for name, entry in _variables(reward).items()},
        "terminated": _condition(done),
        "actions": _actions(scenario),
        "crop": _crop(scenario),
        "rom": _digests(folder / "rom.sha"),
    }
    given = {key: table for key, table in tables.items() if table}
    return read_map(given, folder.name, folder.resolve().name)


def _read_json(path: Path) -> MapTable:
    where = f"{path.parent.name}/{path.name}"
    try:
        found = json.loads(map_text(path))
    except FileNotFoundError:
        raise FileNotFoundError(
            f"game: expected data.json and scenario.json in the folder {str(path.parent)!r}, got "
            f"no {path.name}; give the folder of one of stable-retro's integrations"
        ) from None
    except (ValueError, RecursionError) as error:  # no JSON, or nested without end
        raise ValueError(
            f"{where}: expected JSON, got something else: {error}; mend that place"
        ) from None
    return MapTable(where, found)


def _refuse_scripts(scenario: MapTable, reward: MapTable, done: MapTable) -> None:
    for table, key in ((scenario, "scripts"), (reward, "script"), (done, "script")):
        if table.entries.get(key):
            raise table.error(
                key,
                f"expected a reward and an end made of variables, got {table.entries[key]!r:.60}, "
                "which is code in Lua for stable-retro alone; write them into a RAM map, a .toml "
                "file",
            )


def _reward_table(scenario: MapTable) -> MapTable:
    """The reward of the first player."""
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
            "take it out, and pay for frames in a wrapper",
        )
    return table.table("variables").tables()


def _measuring(entry: MapTable) -> dict[str, object]:
    """An entry of a scenario as a RAM map has it: with what stable-retro takes for granted."""
    found = dict(entry.entries)
    if found.get("op") in COMPARING:
        found.setdefault("reference", 0)
    else:
        found.pop("reference", None)
    return found


def _condition(table: MapTable, depth: int = 0) -> dict[str, object]:
    """A node of a scenario's "done", and those below it, as a RAM map has them."""
    found: dict[str, object] = {}
    for name, entry in table.table("variables").tables().items():
        # A RAM map has its variables beside these two.
        key = f"variable {name}" if name in ("condition", "nodes") else name
        found[key] = {"var": name, **_measuring(entry)}
    nodes = table.table("nodes").tables()
    if depth > MOST_DEPTH:
        raise table.error("nodes", f"expected at most {MOST_DEPTH} levels, got more; join some")
    if nodes:
        found["nodes"] = {name: _condition(node, depth + 1) for name, node in nodes.items()}
    if table.entries.get("condition") == "all":
        found["condition"] = "all"
    return found


def _actions(scenario: MapTable) -> list[str]:
    """All combinations of one entry of each group, in stable-retro's order."""
    groups = scenario.entries.get("actions")
    if groups is None:
        return []
    by_mask: dict[int, list[int]] = {}
    for group in _groups(scenario, groups):
        held = [sum(1 << BITS.index(button) for button in set(entry)) for entry in group]
        by_mask.setdefault(_union(held), sorted(set(held)))
    # The first group changes fastest.
    ordered = [by_mask[mask] for mask in sorted(by_mask, reverse=True)]
    return [_written(_union(combination)) for combination in itertools.product(*ordered)]


def _groups(scenario: MapTable, groups: object) -> list[list[list[str]]]:
    entries = [entry for group in _filled(groups) for entry in _filled(group)]
    buttons = [button for entry in entries if entry != [] for button in _filled(entry)]
    if not all(button in WRITTEN for button in buttons):
        raise scenario.error(
            "actions",
            f"expected groups of lists of the buttons {', '.join(WRITTEN)}, got {groups!r:.60}; "
            "write it as in [[[], ['LEFT'], ['RIGHT']], [[], ['A']]]",
        )
    return cast("list[list[list[str]]]", groups)


def _filled(found: object) -> list[object]:
    """The list, or one of something that is no button."""
    return found if isinstance(found, list) and found else [None]


def _union(masks: Iterable[int]) -> int:
    return functools.reduce(operator.or_, masks, 0)


def _written(held: int) -> str:
    return "+".join(name for name in WRITTEN if held >> BITS.index(name) & 1) or "NOOP"


def _crop(scenario: MapTable) -> dict[str, object]:
    """[x, y, width, height] of the part that is shown of what stable-retro shows of the picture."""
    crop = scenario.entries.get("crop") or [0, 0, 0, 0]
    if not isinstance(crop, list) or [type(number) for number in crop] != [int] * 4:
        raise scenario.error(
            "crop", f"expected [x, y, width, height], got {crop!r:.60}; 0 is all there is"
        )
    if not any(crop):
        return {}
    left, top, width, height = crop
    sides = {
        "top": HIDDEN + top,
        "bottom": HIDDEN + _behind(top, height, SHOWN_ROWS),
        "left": HIDDEN + left,
        "right": HIDDEN + _behind(left, width, SHOWN_COLUMNS),
    }
    return {"scenario": sides}


def _behind(start: int, length: int, whole: int) -> int:
    """Pixels behind the part; none if it has no length or more than there is."""
    return whole - start - length if length and start + length <= whole else 0


def _digests(path: Path) -> dict[str, object]:
    if not path.exists():
        return {}
    return {"sha1": map_text(path).split()}
