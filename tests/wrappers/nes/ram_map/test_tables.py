"""Every mistake in the tables of a RAM map gives one sentence with the place and the problem."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from stepwell.wrappers.nes.ram_map.game import Game

VARS = {"lives": {"address": 0x13, "type": "|u1"}, "score": {"address": 0x15, "type": ">n2"}}


def var(**more: object) -> dict[str, Any]:
    return {"vars": {"x": {"address": 1, "type": "|u1", **more}}}


def pay(**entry: object) -> dict[str, Any]:
    return {"reward": {"score": entry}}


def ends(**entry: object) -> dict[str, Any]:
    return {"terminated": {"lives": entry}}


# Tables, and the parts of the error message, in order. Maps without variables get VARS.
MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"name": 3}, "game, name|expected a text|got 3|in quotes"),
    ({"boot": ["START 1"]}, "game, boot|expected a text|got ['START 1']"),
    ({"actions": "RIGHT"}, "game, actions|expected a list of texts|got 'RIGHT'"),
    ({"actions": ["A", 3]}, "game, actions|expected a list of texts|got ['A', 3]"),
    ({"actions": ["RIHGT+A"]}, "game, actions|RIHGT+A|names out of RIGHT, LEFT|got 'RIHGT'"),
    ({"actions": ["A+A"]}, "game, actions|A+A|each button once|got A twice"),
    ({"boot": "NOOP 20, STRAT 3"}, "game, boot|STRAT 3|names out of RIGHT, LEFT|got 'STRAT'"),
    ({"boot": "NOOP"}, "game, boot|START 3|got 'NOOP'"),
    ({"rewards": 1}, "game: expected the keys actions, boot|got 'rewards'|mean 'reward'"),
    ({"vars": 3}, "game, vars|expected a table|got 3"),
    ({"vars": {"x": 3}}, "game, vars, x|expected a table|got 3"),
    ({"vars": {"x": {"address": 1}}}, "vars, x, type|expected a value|got none"),
    ({"vars": {"x": {"type": "|u1"}}}, "vars, x, address|expected a value|got none"),
    (var(address="0x13"), "x, address|whole number|got '0x13'"),
    (var(address=1.0), "x, address|whole number|got 1.0"),
    (var(address=True), "x, address|whole number|got True"),
    (var(address=-1), "x, address|0 to 0x7FF|1 byte|got -0x1; "),
    (var(address=0x800), "x, address|0 to 0x7FF|got 0x800; 0x800|0x0: write that"),
    (var(address=0x1FFF), "x, address|got 0x1fff; |0x7FF: "),  # a mirror
    (var(address=0x813, type="<u2"), "x, address|0 to 0x7FE|2 bytes|got 0x813; |0x13: "),
    (var(address=0x1FFF, type="<u2"), "x, address|0x7FE|2 bytes|got 0x1fff; "),
    (var(address=0x6000), "x, address|0x7FF|1 byte|got 0x6000; "),
    (var(address=0x7FF, type="<u2"), "x, address|0 to 0x7FE|2 bytes|got 0x7ff; "),
    *(
        (var(type=wrong), f"x, type|1 to 8 bytes|got {wrong!r}|'|u1'")
        for wrong in ("|u9", "u1", "|u0", "|h1", "", "|u1 ", " |u1", "<<u2", "|u1\n")
    ),
    (var(type=3), "x, type|expected a text|got 3"),
    (var(warp=3), "x: expected the keys|got 'warp'|did you mean 'wrap'"),
    (var(wrap=0), "x, wrap|from 1|got 0|omit wrap"),
    (var(wrap=256.0), "x, wrap|whole number|got 256.0"),
    (var(wrap=2**63), "x, wrap|from 1|got 9223372036854775808"),
    (var(mask=-1), "x, mask|from 1|got -1"),
    ({"vars": {"_x": VARS["lives"]}}, "vars, _x|no underscore|got '_x'|rename"),
    ({"vars": {"noops": VARS["lives"]}}, "vars, noops|got 'noops'|rename"),
    ({"vars": {"": VARS["lives"]}}, "got ''"),
    ({"reward": {"scor": {"reward": 1}}}, "reward, scor, var|got 'scor'|did you mean 'score'"),
    (pay(var="b", reward=1), "reward, score, var|got 'b'|known are lives, score"),
    ({"vars": {}, **pay(reward=1)}, "got 'score'|there are none"),
    ({"reward": {"score": 10}}, "reward, score|expected a table|got 10"),
    (pay(), "reward, score, reward|reward or penalty|got neither"),
    (pay(limit=3), "reward, score, reward|got neither"),
    (pay(reward="1"), "score, reward|finite number|got '1'"),
    (pay(reward=True), "score, reward|finite number|got True"),
    (pay(reward=math.nan), "score, reward|finite number|got nan"),
    (pay(penalty=-math.inf), "score, penalty|finite number|got -inf"),
    (pay(rewrad=1), "reward, score: expected the keys|did you mean 'reward'"),
    (pay(reward=1, limit=0), "score, limit|above 0|got 0"),
    (pay(reward=1, limit=5, measurement="absolute"), "score, limit|for changes|'absolute'"),
    (pay(reward=1, measurement="deltas"), "measurement|delta, absolute|got 'deltas'|'delta'"),
    (pay(reward=1, op="more-than"), "score, op|got 'more-than'|did you mean"),
    (pay(reward=1, op="equal"), "score, reference|expected a value|got none"),
    (pay(reward=1, reference=2), "score, reference|expected none with op None|got 2"),
    (ends(op="zero", reference=2), "terminated, lives, reference|with op 'zero'|got 2"),
    (ends(op="equal", reference=2.0), "lives, reference|whole number|got 2.0"),
    (ends(op="equal", reference=2**63), "lives, reference|got 9223372036854775808"),
    (ends(op="equals", reference=2), "lives, op|got 'equals'|did you mean 'equal'"),
    (ends(op="zero", reward=1), "terminated, lives: expected the keys|got 'reward'"),
    ({"terminated": {"live": {"op": "zero"}}}, "terminated, live, var|did you mean 'lives'"),
    ({"terminated": {"condition": "some"}}, "terminated, condition|any, all|got 'some'"),
    ({"terminated": {"condition": "all"}}, "terminated: expected at least one test|got none"),
    ({"terminated": {"nodes": 3}}, "terminated, nodes|expected a table|got 3"),
    ({"terminated": {"nodes": {"a": {}}}}, "terminated, nodes, a: expected at least one test"),
    ({"life": {}}, "life, var|expected a value|got none"),
    ({"life": {"var": "life"}}, "life, var|got 'life'|did you mean 'lives'"),
    ({"life": {"var": "score"}}, "life, var|expected 'lives'|got 'score'|rename"),
    ({"life": {"vars": ["lives"]}}, "life: expected the keys var|got 'vars'|mean 'var'"),
    ({"stuck": {"vars": []}}, "stuck, vars|got none"),
    ({"stuck": {"vars": "score"}}, "stuck, vars|expected a list of texts|got 'score'"),
    ({"stuck": {"vars": ["scor"]}}, "stuck, vars|got 'scor'|did you mean 'score'"),
    ({"crop": {"status": {"tpo": 3}}}, "crop, status|got 'tpo'|did you mean 'top'"),
    ({"crop": {"status": {"top": -1}}}, "crop, status|240 rows and 256 columns|got top -1"),
    ({"crop": {"status": {"top": 120, "bottom": 120}}}, "status|got top 120, bottom 120"),
    ({"crop": {"status": {"left": 256}}}, "crop, status|left 256"),
    ({"crop": {"overscan": {"top": 8}}}, "crop, overscan|name of your own|rename"),
    ({"rom": {"sha256": "ab"}}, "rom, sha256|64 hexadecimal digits|got 'ab'|sha256sum"),
    ({"rom": {"sha256": 3}}, "rom, sha256|a text or a list of texts|got 3"),
    ({"rom": {"sha1": "g" * 40}}, "rom, sha1|40 hexadecimal digits"),
    ({"rom": {"md5": "ab"}}, "rom: expected the keys sha1, sha256|got 'md5'"),
]


@pytest.mark.parametrize(("tables", "parts"), MISTAKES, ids=lambda case: str(case)[:60])
def test_a_mistake_is_one_sentence(tables: dict[str, Any], parts: str) -> None:
    with pytest.raises(ValueError, match=".*".join(map(re.escape, parts.split("|")))) as caught:
        Game.load({"vars": VARS, **tables})
    sentence = str(caught.value)
    assert sentence.startswith("game")
    assert "expected" in sentence
    assert "got" in sentence
    assert "\n" not in sentence
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
