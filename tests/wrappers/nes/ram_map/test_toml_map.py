"""Every mistake in a RAM map gives one sentence with the place, the problem and the fix."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from stepwell.wrappers.nes.ram_map.game import Game

# A map, and in its last line the parts of the error message, in order. Maps without variables
# get these.
VARS = """
[vars]
lives = { address = 0x13, type = "|u1" }
score = { address = 0x15, type = ">n2" }
"""
MISTAKES = """
name = 3
# map.toml, name | expected a text | got 3 | in quotes

boot = ['START 1']
# map.toml, boot | expected a text | got ['START 1']

actions = 'RIGHT'
# map.toml, actions | expected a list of texts | got 'RIGHT'

actions = ['A', 3]
# map.toml, actions | expected a list of texts | got ['A', 3]

actions = ['NOOP', 'RIHGT+A']
# map.toml, actions | RIHGT+A | expected names out of RIGHT, LEFT | got 'RIHGT'

actions = ['A+A']
# map.toml, actions | A+A | each button once | got A twice

boot = 'NOOP 20, STRAT 3'
# map.toml, boot | STRAT 3 | expected names out of RIGHT, LEFT | got 'STRAT'

boot = 'NOOP'
# map.toml, boot | START 3 | got 'NOOP'

rewards = 1
# map.toml: expected the keys actions, boot | got 'rewards' | did you mean 'reward'

[variables]
# got 'variables' | did you mean 'vars'

vars = 3
# map.toml, [vars] | expected a table | got 3 | [table]

[vars]
x = 3
# map.toml, [vars], x | expected a table | got 3

[vars]
x = { address = 1 }
# [vars], x, type | got none | write type = "|u1"

[vars]
x = { type = '|u1' }
# [vars], x, address | got none | write address = 0x13

[vars]
x = { address = '0x13', type = '|u1' }
# x, address | whole number | got '0x13' | without quotes

[vars]
x = { address = 1.0, type = '|u1' }
# x, address | whole number | got 1.0

[vars]
x = { address = true, type = '|u1' }
# x, address | whole number | got True

[vars]
x = { address = 0x800, type = '|u1' }
# x, address | 0 to 0x7FF | got 0x800 | write that

[vars]
x = { address = 0x7FF, type = '<u2' }
# x, address | 0 to 0x7FE | got 0x7ff | 2 bytes

[vars]
x = { address = 1, type = '|u9' }
# x, type | 1 to 8 bytes | got '|u9' | '|u1'

[vars]
x = { address = 1, type = 3 }
# x, type | expected a text | got 3

[vars]
x = { address = 1, type = '|u1', warp = 3 }
# x: expected the keys | got 'warp' | did you mean 'wrap'

[vars]
x = { address = 1, type = '|u1', wrap = 0 }
# x, wrap | from 1 | got 0 | omit wrap

[vars]
x = { address = 1, type = '|u1', wrap = 256.0 }
# x, wrap | whole number | got 256.0

[vars]
x = { address = 1, type = '|u1', mask = -1 }
# x, mask | from 1 | got -1

[vars]
_x = { address = 1, type = '|u1' }
# [vars], _x | no underscore | got '_x' | rename

[vars]
noops = { address = 1, type = '|u1' }
# [vars], noops | got 'noops' | rename

[vars]
episode = { address = 1, type = '|u1' }
# got 'episode'

[vars]
'' = { address = 1, type = '|u1' }
# got ''

[reward]
scor = { reward = 1 }
# [reward], scor, var | of [vars] | got 'scor' | did you mean 'score'

[reward]
a = { var = 'b', reward = 1 }
# [reward], a, var | got 'b' | known are lives, score

[vars]
[reward]
score = { reward = 1 }
# got 'score' | there are none

[reward]
score = 10
# [reward], score | expected a table | got 10

[reward]
score = {}
# [reward], score, reward | reward or penalty | got neither

[reward]
score = { limit = 3 }
# [reward], score, reward | got neither

[reward]
score = { reward = '1' }
# score, reward | finite number | got '1'

[reward]
score = { reward = true }
# score, reward | finite number | got True

[reward]
score = { reward = nan }
# score, reward | finite number | got nan

[reward]
score = { penalty = -inf }
# score, penalty | finite number | got -inf

[reward]
score = { rewrad = 1 }
# [reward], score: expected the keys | did you mean 'reward'

[reward]
score = { reward = 1, limit = 0 }
# score, limit | above 0 | got 0

[reward]
score = { reward = 1, limit = -5 }
# score, limit | above 0 | got -5

[reward]
score = { reward = 1, limit = 5, measurement = 'absolute' }
# score, limit | for changes | 'absolute'

[reward]
score = { reward = 1, measurement = 'deltas' }
# score, measurement | delta, absolute | got 'deltas' | did you mean 'delta'

[reward]
score = { reward = 1, op = 'more-than' }
# score, op | got 'more-than' | did you mean

[reward]
score = { reward = 1, op = 'equal' }
# score, reference | got none | write reference = 2

[reward]
score = { reward = 1, reference = 2 }
# score, reference | expected none with op None | got 2

[terminated]
lives = { op = 'zero', reference = 2 }
# [terminated], lives, reference | with op 'zero' | got 2

[terminated]
lives = { op = 'equal', reference = 2.0 }
# lives, reference | whole number | got 2.0

[terminated]
lives = { op = 'equal', reference = 9223372036854775808 }
# lives, reference | got 9223372036854775808

[terminated]
lives = { op = 'equals', reference = 2 }
# lives, op | got 'equals' | did you mean 'equal'

[terminated]
live = { op = 'zero' }
# [terminated], live, var | did you mean 'lives'

[terminated]
lives = { op = 'zero', reward = 1 }
# [terminated], lives: expected the keys | got 'reward'

[terminated]
condition = 'some'
lives = { op = 'zero' }
# [terminated], condition | any, all | got 'some'

[terminated]
condition = 'all'
# [terminated]: expected at least one test | got none

[terminated]
nodes = 3
# [terminated], nodes | expected a table | got 3

[terminated.nodes.a]
# [terminated], nodes, a: expected at least one test

[terminated.nodes.a]
scores = { op = 'zero' }
# [terminated], nodes, a, scores, var | did you mean 'score'

[life]
# [life], var | got none | write var = "lives"

[life]
var = 'life'
# [life], var | got 'life' | did you mean 'lives'

[life]
var = 'score'
# [life], var | expected 'lives' | got 'score' | rename

[life]
vars = ['lives']
# [life]: expected the keys var | got 'vars' | did you mean 'var'

[stuck]
# [stuck], vars | got none | write ["world_x"]

[stuck]
vars = []
# [stuck], vars | got none | write ["world_x"]

[stuck]
var = 'score'
# [stuck]: expected the keys vars | got 'var' | did you mean 'vars'

[stuck]
vars = 'score'
# [stuck], vars | expected a list of texts | got 'score'

[stuck]
vars = ['scor']
# [stuck], vars | got 'scor' | did you mean 'score'

[crop]
status = { tpo = 3 }
# [crop], status | got 'tpo' | did you mean 'top'

[crop]
status = { top = -1 }
# [crop], status | 240 rows and 256 columns | got top -1

[crop]
status = { top = 120, bottom = 120 }
# [crop], status | got top 120, bottom 120

[crop]
status = { left = 256 }
# [crop], status | left 256

[crop]
status = { top = 8.0 }
# [crop], status, top | whole number | got 8.0

[crop]
overscan = { top = 8 }
# [crop], overscan | name of your own | rename

[rom]
sha256 = 'ab'
# [rom], sha256 | 64 hexadecimal digits | got 'ab' | sha256sum

[rom]
sha256 = 3
# [rom], sha256 | a text or a list of texts | got 3

[rom]
sha1 = 'gggggggggggggggggggggggggggggggggggggggg'
# [rom], sha1 | 40 hexadecimal digits

[rom]
md5 = 'ab'
# [rom]: expected the keys sha1, sha256 | got 'md5'

[vars]
x = { address = }
# map.toml: expected TOML | at line 2, column

a = 1
[vars
# map.toml: expected TOML | at line 2, column

name = 'a'
name = 'b'
# map.toml: expected TOML | at line 2
"""


def cases() -> Iterator[tuple[str, Sequence[str]]]:
    for case in MISTAKES.strip().split("\n\n"):
        text, _, parts = case.rpartition("\n# ")
        yield (text if "vars" in text.split("\n")[0] else text + VARS), parts.split(" | ")


@pytest.mark.parametrize(
    ("text", "parts"), list(cases()), ids=[text.removesuffix(VARS) for text, _ in cases()]
)
def test_a_mistake_is_one_sentence(text: str, parts: Sequence[str], tmp_path: Path) -> None:
    path = tmp_path / "map.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=".*".join(map(re.escape, parts))) as caught:
        Game.load(path)
    sentence = str(caught.value)
    assert sentence.startswith("map.toml")
    assert "expected" in sentence
    assert "got" in sentence
    assert "\n" not in sentence
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "map.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"map\.toml: .*UTF-8.*0xff"):
        Game.load(path)


def test_mistakes_in_a_mapping_are_the_games() -> None:
    with pytest.raises(ValueError, match=r"^game, \[vars\], x, type: .*'u1'"):
        Game.load({"vars": {"x": {"address": 1, "type": "u1"}}})


def test_a_life_variable_of_another_name_is_fine_where_none_is_called_lives() -> None:
    game = Game.load({"vars": {"hearts": {"address": 1, "type": "|u1"}}, "life": {"var": "hearts"}})
    assert game.life == "hearts"


def test_a_test_without_an_operation_holds_above_zero() -> None:
    game = Game.load({"vars": {"x": {"address": 0, "type": "|i1"}}, "terminated": {"x": {}}})
    seen = []
    for byte in (0, 1, 255):
        tracker = game.tracker(bytes([byte, *bytes(2047)]).__getitem__)
        tracker.begin()
        seen.append(tracker.terminated)
    assert seen == [False, True, False]
