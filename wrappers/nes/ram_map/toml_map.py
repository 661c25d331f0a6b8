"""Read a RAM map: the tables of a .toml file, checked."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, TypedDict, cast, get_args

from stepwell.wrappers.nes.boot import parse_boot
from stepwell.wrappers.nes.buttons import parse_buttons
from stepwell.wrappers.nes.ram_map.condition import Condition
from stepwell.wrappers.nes.ram_map.map_table import MOST_DEPTH, MapTable, map_text, nearest
from stepwell.wrappers.nes.ram_map.measured import COMPARING, OPERATIONS, Measured, Measurement
from stepwell.wrappers.nes.ram_map.reward_term import RewardTerm
from stepwell.wrappers.nes.ram_map.variable import LARGEST, Variable

__all__ = ["RamMap", "read_map", "read_toml"]

TOP = (
    "actions",
    "boot",
    "crop",
    "life",
    "name",
    "reward",
    "rom",
    "stuck",
    "terminated",
    "vars",
)
PICTURE = {"top": 240, "bottom": 240, "left": 256, "right": 256}
MEASURING = ("var", "measurement", "op", "reference")
# What else stands in an env's info, put there by the env, a wrapper or the vector env.
TAKEN = {
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


class RamMap(TypedDict):
    """What a RAM map says, checked: the arguments of `Game`, which tells what they mean."""

    name: str
    boot: str | None
    actions: tuple[str, ...] | None
    variables: Mapping[str, Variable]
    reward: tuple[RewardTerm, ...]
    terminated: Condition | None
    life: str | None
    stuck: tuple[str, ...]
    crops: Mapping[str, tuple[int, int, int, int]]
    sha256: tuple[str, ...]
    sha1: tuple[str, ...]


def read_toml(path: Path) -> RamMap:
    """Read the RAM map in a .toml file.

    Args:
        path: The file.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is no TOML, or something in it is wrong.
    """
    try:
        tables = tomllib.loads(map_text(path))
    except FileNotFoundError:
        raise FileNotFoundError(
            f"RAM map: expected a file, got {str(path)!r}, which does not exist; check the path"
        ) from None
    except (ValueError, RecursionError) as error:  # no TOML, or nested without end
        raise ValueError(
            f"{path.name}: expected TOML in UTF-8, got something else: {error}; mend that place"
        ) from None
    return read_map(tables, path.name, path.stem)


def read_map(tables: Mapping[str, object], where: str, name: str) -> RamMap:
    """Check the tables of a RAM map.

    Args:
        tables: The map, as `tomllib` gives it.
        where: What errors begin with.
        name: The game's name if the map does not tell.

    Raises:
        ValueError: Something in the map is wrong.

    Example:
        >>> tables = {"vars": {"lives": {"address": 0x13, "type": "|u1"}}}
        >>> read_map(tables, "map.toml", "my game")["name"]
        'my game'
    """
    top = MapTable(where, tables)
    top.only(TOP)
    variables = _variables(top.table("vars", "[vars]"))
    return RamMap(
        name=top.text("name") or name,
        boot=_boot(top),
        actions=_actions(top),
        variables=variables,
        reward=_reward(top.table("reward", "[reward]"), variables),
        terminated=_terminated(top, variables),
        life=_life(top, variables),
        stuck=_stuck(top, variables),
        crops=_crops(top.table("crop", "[crop]")),
        sha256=_digests(top.table("rom", "[rom]"), "sha256"),
        sha1=_digests(top.table("rom", "[rom]"), "sha1"),
    )


def _boot(top: MapTable) -> str | None:
    boot = top.text("boot")
    try:
        parse_boot(boot or "")
    except ValueError as error:
        raise ValueError(f"{top.where}, {error}") from None
    return boot


def _actions(top: MapTable) -> tuple[str, ...] | None:
    """The map's list; it is checked here, as an env may never choose from it."""
    actions = top.texts("actions")
    try:
        for action in actions or ():
            parse_buttons(action)
    except ValueError as error:
        raise ValueError(f"{top.where}, actions, {error}") from None
    return actions


def _variables(table: MapTable) -> dict[str, Variable]:
    return {name: _variable(name, entry) for name, entry in table.tables().items()}


def _variable(name: str, entry: MapTable) -> Variable:
    if not name or name.startswith("_") or name in TAKEN:
        raise ValueError(
            f"{entry.where}: expected a name that begins with no underscore and is none of "
            f"{', '.join(sorted(TAKEN))}, which info holds already, got {name!r}; rename it"
        )
    entry.only(("address", "type", "wrap", "mask"))
    address, type_ = entry.whole("address", "it as in 0x13, without quotes"), entry.text("type")
    entry.needed("address", address, "0x13")
    entry.needed("type", type_, '"|u1"')
    wrap, mask = entry.whole("wrap", "it as in 65536"), entry.whole("mask", "it as in 0x0F")
    try:
        return Variable(cast("int", address), cast("str", type_), wrap, mask)
    except ValueError as error:
        raise ValueError(f"{entry.where}, {error}") from None


def _name(entry: MapTable, key: str, name: str, variables: Mapping[str, Variable]) -> str:
    if name not in variables:
        raise entry.error(
            key, f"expected a variable of [vars], got {name!r}; {nearest(name, variables)}"
        )
    return name


def _measured(
    key: str, entry: MapTable, usual: Measurement, variables: Mapping[str, Variable]
) -> Measured:
    measurement = entry.choice("measurement", get_args(Measurement)) or usual
    op = entry.choice("op", tuple(OPERATIONS))
    reference = entry.whole("reference", "it as in 2")
    if op in COMPARING:
        entry.needed("reference", reference, "2, the number to compare with")
    elif reference is not None:
        cure = f"write op = {next(iter(COMPARING))!r} or leave it out"
        raise entry.error("reference", f"expected none with op {op!r}, got {reference}; {cure}")
    if reference is not None and abs(reference) > LARGEST:
        raise entry.error(
            "reference", f"expected at most {LARGEST} either way, got {reference}; make it smaller"
        )
    var = _name(entry, "var", entry.text("var") or key, variables)
    return Measured(var, cast("Measurement", measurement), op, reference or 0)


def _reward(table: MapTable, variables: Mapping[str, Variable]) -> tuple[RewardTerm, ...]:
    return tuple(_term(name, entry, variables) for name, entry in table.tables().items())


def _term(name: str, entry: MapTable, variables: Mapping[str, Variable]) -> RewardTerm:
    entry.only((*MEASURING, "reward", "penalty", "limit"))
    measured = _measured(name, entry, "delta", variables)
    reward, penalty, limit = (entry.number(key) for key in ("reward", "penalty", "limit"))
    if reward is None and penalty is None:
        raise entry.error(
            "reward", "expected reward or penalty, got neither; write reward = 1 or take it out"
        )
    if limit is not None and (limit <= 0 or measured.measurement == "absolute"):
        raise entry.error(
            "limit",
            f"expected a number above 0, for changes (measurement 'delta'), got {limit} for "
            f"{measured.measurement!r}; leave it out to count everything",
        )
    return RewardTerm(name, measured, reward or 0.0, penalty or 0.0, limit)


def _terminated(top: MapTable, variables: Mapping[str, Variable]) -> Condition | None:
    if "terminated" not in top.entries:
        return None
    return _condition(top.table("terminated", "[terminated]"), variables)


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
            'write one as in lives = { op = "zero" }, or take the table out'
        )
    return Condition(
        cast("Literal['any', 'all']", combine),
        tuple(tests),
        tuple((name, _condition(node, variables, depth + 1)) for name, node in nodes.items()),
    )


def _life(top: MapTable, variables: Mapping[str, Variable]) -> str | None:
    if "life" not in top.entries:
        return None
    table = top.table("life", "[life]")
    table.only(("var",))
    var = table.text("var")
    table.needed("var", var, '"lives"')
    name = _name(table, "var", cast("str", var), variables)
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
    table = top.table("stuck", "[stuck]")
    table.only(("vars",))
    names = table.texts("vars")
    if not names:
        raise table.error("vars", 'expected a list of variables, got none; write ["world_x"]')
    return tuple(_name(table, "vars", name, variables) for name in dict.fromkeys(names))


def _crops(table: MapTable) -> dict[str, tuple[int, int, int, int]]:
    return {name: _crop(name, entry) for name, entry in table.tables().items()}


def _crop(name: str, entry: MapTable) -> tuple[int, int, int, int]:
    if name == "overscan":
        raise ValueError(
            f"{entry.where}: expected a name of your own, got 'overscan', which always means "
            "8 pixels on each side; rename it"
        )
    entry.only(tuple(PICTURE))
    top, bottom, left, right = (entry.whole(side, "pixels, as in 8") or 0 for side in PICTURE)
    sides = (top, bottom, left, right)
    if min(sides) < 0 or top + bottom >= 240 or left + right >= 256:
        raise ValueError(
            f"{entry.where}: expected pixels to cut from a picture of 240 rows and 256 columns, "
            f"got top {top}, bottom {bottom}, left {left}, right {right}; leave a part of it"
        )
    return sides


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
