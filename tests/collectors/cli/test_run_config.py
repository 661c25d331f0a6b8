"""`stepwell collect --config` and `--print-config`."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.main import get_command

import stepwell as sw
from stepwell.collectors.cli.app import app
from stepwell.collectors.cli.run_config import config_text
from support.command_line import CommandLine

RUN = """
env = "CartPole-v1"
steps = 2e2
num_envs = 4
workers = 0
seed = 7
out = "a"
metadata = {task = "door", level = 3, parts = [1, true]}
"""


def write(text: str, name: str = "run.toml") -> None:
    Path(name).write_text(text)


def test_a_file_and_the_command_line_collect_the_same(stepwell: CommandLine) -> None:
    write(RUN)
    from_file = stepwell.json("collect --config run.toml")
    by_hand = stepwell.json(
        "collect CartPole-v1 --steps 200 --num-envs 4 --workers 0 --seed 7 --out b "
        "--metadata task=door --metadata level=3 --metadata parts=[1,true]"
    )
    assert from_file["digest"] == by_hand["digest"]
    for name in "ab":
        with sw.SequenceReplayBuffer.open(name, read_only=True) as replay:
            facts = next(replay.iter_episodes()).metadata
            assert (facts["task"], facts["level"], facts["parts"]) == ("door", 3, [1, True])


def test_options_of_the_command_line_win(stepwell: CommandLine) -> None:
    write(RUN)
    said = stepwell.json("collect MountainCar-v0 --config run.toml --steps 40 --out b")
    assert (said["env"], said["path"], said["num_envs"]) == ("MountainCar-v0", "b", 4)
    assert 40 <= said["steps"] < 44
    said = stepwell.json("collect --metadata task=hall --out c --config run.toml")
    with sw.SequenceReplayBuffer.open("c", read_only=True) as replay:
        facts = next(replay.iter_episodes()).metadata
        assert (facts["task"], "level" in facts) == ("hall", False)


INFOS = ['["prob"]', '"prob"', '["prob=nan"]', "{prob = nan}", "{prob = -1.0, more = 0}"]


@pytest.mark.parametrize("info", INFOS)
def test_info_is_a_list_or_a_table(info: str, stepwell: CommandLine) -> None:
    write(f'env = "FrozenLake-v1"\nsteps = 50\nnum_envs = 2\nworkers = 0\ninfo = {info}\n')
    assert stepwell("collect --config run.toml --out a").code == 0
    with sw.SequenceReplayBuffer.open("a", read_only=True) as replay:
        assert "info/prob" in replay.spec.names


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("stepps = 3", "run.toml: |such as steps|'stepps'"),
        ("frame-skip = 3", "run.toml: |such as frame_skip|'frame-skip'"),
        ("[run]\nsteps = 3", "run.toml: |'run'"),
        ("config = 'other.toml'", "run.toml: |'config'"),
        ("print_config = true", "run.toml: |'print_config'"),
        ("steps = true", "run.toml: steps: |true"),
        ("steps = [3]", "run.toml: steps: |[3]"),
        ("steps = 'many'", "run.toml: --steps: |'many'"),
        ("steps = 2026-01-01", "run.toml: steps: |2026"),
        ("out = 3", "run.toml: out: |3"),
        ("env = 3", "run.toml: env: |text|3"),
        ("rgb = 'yes'", "run.toml: rgb: |true or false|'yes'"),
        ("pool = 'foo'", "run.toml: pool: |'foo'|'max'"),
        ("info = [3]", "run.toml: info: |3"),
        ("boot = {a = 'NOOP 3'}", "run.toml: boot: |NOOP 3"),
        ("metadata = {when = 2026-01-01}", "run.toml: metadata.when: |2026"),
        ("metadata = {'a=b' = 1}", "run.toml: metadata: |'a=b'"),
        ("metadata = ['task']", "run.toml: --metadata: |'task'"),
        ("steps = ", "run.toml: |TOML|line 1"),
        ("steps = 1\nsteps = 2", "run.toml: |TOML"),
        (f"steps = {'9' * 5000}", "run.toml: |TOML"),
        (f"x = {'[' * 99_999}", "run.toml: |TOML"),
        (f"# {'x' * (1 << 20)}", "run.toml: |1,048,576 bytes"),
    ],
)
def test_what_is_no_option_is_refused(text: str, parts: str, stepwell: CommandLine) -> None:
    write(f"{text}\n")
    more = "" if text.startswith("steps") else "--steps 10 "
    more += "" if text.startswith("out") else "--out new "
    stepwell.refused(f"collect CartPole-v1 {more}--config run.toml", parts)


def test_a_file_that_lacks_something_or_cannot_be_read_is_named(stepwell: CommandLine) -> None:
    Path("folder").mkdir()
    Path("bytes.toml").write_bytes(b"env = '\xff'\n")
    write("steps = 3\nout = 'a'\n", "no_env.toml")
    write("env = 'CartPole-v1'\nsteps = 3\n", "no_out.toml")
    for name, parts in (
        ("no_env.toml", "ENV|no_env.toml"),
        ("no_out.toml", "--out|no_out.toml"),
        ("gone.toml", "gone.toml"),
        ("folder", "folder"),
        ("bytes.toml", "bytes.toml: |TOML"),
    ):
        stepwell.refused(f"collect --config {name}", parts)


def test_a_printed_file_has_what_was_given(stepwell: CommandLine) -> None:
    command = "collect CartPole-v1 --steps 1e2 --num-envs 2 --workers 0 --seed 3 --metadata a=1"
    shown = stepwell(f"{command} --out a --print-config")
    assert (shown.code, shown.err, Path("a").exists()) == (0, "", False)
    assert tomllib.loads(shown.out) == {
        "env": "CartPole-v1",
        "steps": "1e2",
        "num_envs": 2,
        "workers": 0,
        "seed": 3,
        "out": "a",
        "metadata": ["a=1"],
    }
    stepwell.refused(f"{command} --out a --capacity some --print-config")


GROUP: Any = get_command(app)
COLLECT: Any = GROUP.resolve_command(None, ["collect"])[1]


def printed(arguments: list[str]) -> str:
    with COLLECT.make_context("collect", arguments) as context:
        return config_text(context)


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
GIVEN = st.fixed_dictionaries(
    {"out": TEXTS},
    optional={
        "policy": TEXTS,
        "game": TEXTS,
        "steps": st.sampled_from(["7", "1_000", "1e5", "100k", "007", "1.0"]),
        "sticky": st.sampled_from(["0.25", "1", "nan", "-1e-3"]),
        "capacity-bytes": st.sampled_from(["5", "1 GiB"]),
        "info": st.lists(TEXTS.filter(lambda text: "=" not in text)),
        "metadata": st.lists(TEXTS.map("key={}".format)),
        "boot": st.lists(TEXTS),
        "rgb": st.just(None),
        "resume": st.just(None),
    },
)


@given(TEXTS, GIVEN)
def test_a_printed_file_gives_every_option_again(
    tmp_path_factory: pytest.TempPathFactory, env: str, given: dict[str, Any]
) -> None:
    arguments: list[str] = []
    for name, value in given.items():
        values = value if isinstance(value, list) else [value]
        arguments += [f"--{name}" if one is None else f"--{name}={one}" for one in values]
    first = printed([*arguments, "--", env])
    file = tmp_path_factory.mktemp("config") / "run.toml"
    file.write_text(first, encoding="utf-8", newline="")
    assert printed(["--config", str(file)]) == first
    table = tomllib.loads(first)
    assert table["env"] == env
    for name, value in given.items():
        if isinstance(value, list):
            assert table.get(name, []) == value
        elif name in ("policy", "game"):
            assert table.get(name, "random") == value
        elif value is not None:
            assert str(table[name.replace("-", "_")]) == value
