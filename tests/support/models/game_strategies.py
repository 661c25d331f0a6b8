"""Hypothesis draws RAM maps and the RAM of short episodes, in a few bytes so that they collide."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

WINDOW = range(0x300, 0x320)  # where all variables lie; the demonstration's program uses none of it
ORDERS = ("<", ">", "|", "=", "<>", "><", "<=", ">=")
COMPARING = (
    "equal",
    "not-equal",
    "negative-equal",
    "less-than",
    "less-or-equal",
    "greater-than",
    "greater-or-equal",
)
OTHERS = ("zero", "nonzero", "positive", "negative", "sign")
NAMES = ("lives", "score", "condition", "nodes", "x y", "time")
WEIGHTS = st.integers(-64, 64).map(lambda quarters: quarters / 4)  # exact in 32 bits too
BYTES = st.one_of(
    st.sampled_from([0, 1, 2, 9, 0x0A, 0x10, 0x7F, 0x80, 0x99, 0xFF]), st.integers(0, 255)
)

Tables = dict[str, Any]


def types(most: int) -> st.SearchStrategy[str]:
    return st.builds(
        lambda order, kind, width: f"{order}{kind}{width}",
        st.sampled_from(ORDERS),
        st.sampled_from("uidn"),
        st.integers(1, most),
    )


@st.composite
def variables(draw: st.DrawFn, most: int, *, ours: bool) -> Tables:
    """2 to 4 of up to `most` bytes; `ours`: also with what stable-retro does not have."""
    found = {}
    for name in draw(st.lists(st.sampled_from(NAMES), min_size=2, max_size=4, unique=True)):
        entry: Tables = {"type": draw(types(most))}
        entry["address"] = draw(st.integers(WINDOW.start, WINDOW.stop - int(entry["type"][-1])))
        if draw(st.integers(0, 3)) == 0:
            entry["mask"] = draw(st.integers(1, 2**16 - 1))
        if ours and draw(st.booleans()):
            entry["wrap"] = draw(st.sampled_from([1, 2, 3, 10, 255, 256, 1000, 65536]))
        found[name] = entry
    return found


@st.composite
def measured(draw: st.DrawFn) -> Tables:
    op = draw(st.sampled_from([None, None, *COMPARING, *OTHERS]))
    found: Tables = {} if op is None else {"op": op}
    if op in COMPARING:
        found["reference"] = draw(st.one_of(st.integers(-2, 12), st.integers(-300, 300)))
    measurement = draw(st.sampled_from([None, "delta", "absolute"]))
    return found if measurement is None else {**found, "measurement": measurement}


@st.composite
def rewards(draw: st.DrawFn, names: list[str]) -> Tables:
    """By variable, as in a scenario.json."""
    found = {}
    for name in draw(st.lists(st.sampled_from(names), max_size=3, unique=True)):
        weights = draw(st.dictionaries(st.sampled_from(["reward", "penalty"]), WEIGHTS, min_size=1))
        found[name] = {**draw(measured()), **weights}
    return found


@st.composite
def conditions(draw: st.DrawFn, names: list[str], depth: int = 2) -> Tables:
    """A node as in a scenario.json, never empty."""
    tests = draw(st.dictionaries(st.sampled_from(names), measured(), max_size=3))
    found: Tables = {"variables": tests} if tests else {}
    if depth and (not tests or draw(st.booleans())):
        below = conditions(names, depth - 1)
        found["nodes"] = draw(
            st.dictionaries(st.sampled_from("abc"), below, min_size=1, max_size=2)
        )
    if not found:
        found["variables"] = {names[0]: {"op": "zero"}}
    combine = draw(st.sampled_from([None, "any", "all"]))
    return found if combine is None else {**found, "condition": combine}


@st.composite
def scenarios(draw: st.DrawFn, most: int) -> tuple[Tables, Tables]:
    """(data.json, scenario.json) of stable-retro."""
    info = draw(variables(most, ours=False))
    names = list(info)
    scenario: Tables = {"reward": {"variables": draw(rewards(names))}}
    if draw(st.booleans()):
        scenario["done"] = draw(conditions(names))
    return {"info": info}, scenario


def as_map(node: Tables) -> Tables:
    """A scenario's node as a RAM map has it."""
    found: Tables = {
        f"test of {name}": {"var": name, **entry}
        for name, entry in node.get("variables", {}).items()
    }
    if "nodes" in node:
        found["nodes"] = {name: as_map(below) for name, below in node["nodes"].items()}
    if "condition" in node:
        found["condition"] = node["condition"]
    return found


@st.composite
def maps(draw: st.DrawFn) -> Tables:
    """Tables of a RAM map, with everything that affects an episode."""
    found: Tables = {"vars": draw(variables(4, ours=True))}
    names = list(found["vars"])
    paid = draw(rewards(names))
    for number, (name, entry) in enumerate(paid.items()):
        if entry.get("measurement") != "absolute" and draw(st.booleans()):
            entry["limit"] = draw(st.sampled_from([0.5, 1, 5, 100]))
        if draw(st.booleans()):  # a second term for the same variable
            found.setdefault("reward", {})[f"again {number}"] = {"var": name, "penalty": 1.5}
        found.setdefault("reward", {})[name] = entry
    if draw(st.booleans()):
        found["terminated"] = as_map(draw(conditions(names)))
    if draw(st.booleans()):
        some = draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
        found["stuck"] = {"vars": some}
    if "lives" in names:
        found["life"] = {"var": "lives"}
    return found


@st.composite
def episodes(draw: st.DrawFn, most: int = 8) -> list[bytes]:
    """The whole RAM, frame by frame; only the window is ever anything but 0."""
    ram = bytearray(2048)
    for address in WINDOW:
        ram[address] = draw(BYTES)
    found = [bytes(ram)]
    for _ in range(draw(st.integers(1, most))):
        for address in draw(st.lists(st.sampled_from(WINDOW), max_size=4)):
            ram[address] = draw(BYTES)
        found.append(bytes(ram))
    return found
