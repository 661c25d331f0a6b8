"""`stepwell push` and `pull` print what they did; they and the other commands refuse the rest."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepwell.buffers.view.summary import digest_of
from support.command_line import CommandLine
from support.hub import TOKEN, Hub, Repo, served
from support.programs import run_python
from support.served import Played, write_store

# huggingface_hub's own call of its transport.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content:DeprecationWarning")
needs_obstore = pytest.mark.skipif(
    importlib.util.find_spec("obstore") is None, reason="needs obstore"
)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    pytest.importorskip("huggingface_hub", reason="needs huggingface_hub")
    constants: Any = importlib.import_module("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with served() as standing_in:
        monkeypatch.setenv("HF_ENDPOINT", standing_in.url)
        yield standing_in


@pytest.fixture
def stepwell(stepwell: CommandLine, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """A command line next to a store."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(Path("cache").absolute()))
    write_store(Path("store"), [Played([0, 1.0])])
    return stepwell


def url() -> str:
    return f"file://{Path('objects').absolute()}"


def test_a_store_goes_up_to_the_hub_and_comes_down(hub: Hub, stepwell: CommandLine) -> None:
    planned = stepwell("push store user/data --dry-run")
    assert (planned.code, "to send" in planned.out) == (0, True)
    assert hub.repos == {}
    pushed = stepwell("push store user/data --license mit")
    assert pushed.code == 0
    assert "new card" in pushed.out
    assert f"{hub.url}/datasets/user/data" in pushed.out
    again = stepwell.json("push store user/data")
    assert again["sent"] == []
    assert again["commit"] == hub.repos["user/data"].branches["main"]
    pulled = stepwell("pull user/data out")
    assert (pulled.code, "store verified" in pulled.out) == (0, True)
    assert again["commit"][:12] in pulled.out
    assert stepwell("pull user/data more -q").out == ""
    assert stepwell.json("pull hf://user/data x")["is_store"]
    assert stepwell.json("push store hf://datasets/user/data")["sent"] == []


@needs_obstore
def test_a_store_goes_up_to_a_url_and_comes_down(stepwell: CommandLine) -> None:
    planned = stepwell.json(f"push store {url()} --dry-run")
    assert "to a new place" in stepwell(f"push store {url()} --dry-run").out
    assert not Path("objects").exists()
    report = stepwell.json(f"push store {url()}")
    assert report["sent"] == planned["sent"] == ["manifest.json", "segment-00000000.bin"]
    assert (report["is_new"], report["is_growing"]) == (True, False)
    assert report["sent_bytes"] == report["nbytes"] > 0
    assert "0 files, 0 B sent now" in stepwell(f"push store {url()}").out
    pulled = stepwell(f"pull {url()} back")
    assert "store verified" in pulled.out
    assert "manifest-" in pulled.out
    assert digest_of(Path("store")) == digest_of(Path("back"))


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        ("pull user/none out", "user/none"),
        ("pull data out", "OWNER/NAME"),
        ("pull user/data out --revision v9", "v9"),
        ("pull user/data out", "safe"),
        ("push store user/other", "--replace"),
        ("push store user/new --license CC_BY", "'CC_BY'"),
    ],
)
def test_refusals_of_the_hub_are_one_sentence(
    hub: Hub, stepwell: CommandLine, command: str, parts: str
) -> None:
    for name, file in (("user/data", "a\x1b[2J"), ("user/other", "a")):
        hub.repos[name] = Repo.new()
        hub.repos[name].commit("main", {file: b"x"}, "hostile")
    stepwell.refused(command, parts)
    assert "\x1b[2J" not in stepwell(command).err


A_URL = "{0} is a URL, expected a folder|stepwell pull {0} FOLDER"


@needs_obstore
@pytest.mark.parametrize(
    ("command", "parts"),
    [
        *((f"{command} {{}}", A_URL) for command in ("verify", "view", "repair", "info")),
        ("report {} -o r.html", A_URL),
        ("archive {} -o x.swa", A_URL),
        ("copy {} --out c", A_URL),
        ("merge store {} --out c", A_URL),
        ("copy store --out {}", "{} is a URL, expected a folder"),
        ("filter {} --top 1 --out c", A_URL),
        ("export {} --to npz --out c", A_URL),
        ("render {} -e 0 --out c.gif", A_URL),
        (
            "collect CartPole-v1 --workers 0 --steps 10 --out {}",
            "is a URL, expected a folder|stepwell push FOLDER",
        ),
        ("push nothing file:///tmp/x", "got nothing there"),
        ("push store objects", "OWNER/NAME"),
        ("push store ftp://x/y", "expected a folder, or a URL of one of"),
        ("push arrays file:///tmp/x", "expected a store"),
        ("push store --license mit file:///tmp/x", "license: expected none with a URL"),
        ("push store --revision v1 file:///tmp/x", "revision: expected none with a URL"),
        ("push store --public file:///tmp/x", "public: expected none with a URL"),
    ],
)
def test_commands_refuse_a_url_that_does_not_fit(
    command: str, parts: str, stepwell: CommandLine
) -> None:
    assert stepwell(f"push store {url()}").code == 0
    Path("arrays").mkdir()
    Path("arrays/a.npz").write_bytes(b"x")
    stepwell.refused(command.format(url()), parts.format(url()))


def test_without_the_libraries_the_cure_is_named(
    stepwell: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    stepwell.refused("pull user/data out", "pip install 'stepwell[hub]'")
    code = """
import sys
sys.modules["obstore"] = None
from stepwell.collectors.cli.app import main
sys.exit(main(["push", "store", "s3://bucket/run"]))
"""
    assert "pip install 'stepwell[cloud]'" in run_python("-c", code, code=2).stderr
