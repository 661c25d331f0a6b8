"""`stepwell push` and `pull` print what they did, and one sentence for what they refuse."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.command_line import CommandLine
from support.hub import TOKEN, Hub, Repo, served
from support.served import Played, write_store

# huggingface_hub's own call of its transport.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content:DeprecationWarning")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    pytest.importorskip("huggingface_hub", reason="needs huggingface_hub")
    constants: Any = importlib.import_module("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with served() as standing_in:
        monkeypatch.setenv("HF_ENDPOINT", standing_in.url)
        yield standing_in


def test_a_store_goes_up_and_comes_down(hub: Hub, stepwell: CommandLine, tmp_path: Path) -> None:
    store = str(write_store(tmp_path / "store", [Played([0, 1.0])]))
    planned = stepwell(f"push {store} user/data --dry-run")
    assert planned.code == 0
    assert "to send" in planned.out
    assert hub.repos == {}
    pushed = stepwell(f"push {store} user/data --license mit")
    assert pushed.code == 0
    assert "new card" in pushed.out
    assert f"{hub.url}/datasets/user/data" in pushed.out
    again = stepwell.json(f"push {store} user/data")
    assert again["sent"] == []
    assert again["commit"] == hub.repos["user/data"].branches["main"]
    pulled = stepwell(f"pull user/data {tmp_path / 'out'}")
    assert pulled.code == 0
    assert "store verified" in pulled.out
    assert again["commit"][:12] in pulled.out
    assert stepwell(f"pull user/data {tmp_path / 'more'} -q").out == ""
    assert stepwell.json(f"pull hf://user/data {tmp_path / 'x'}")["is_store"]
    assert stepwell.json(f"push {store} hf://datasets/user/data")["sent"] == []


def test_refusals_are_one_sentence(hub: Hub, stepwell: CommandLine, tmp_path: Path) -> None:
    hub.repos["user/data"] = Repo.new()
    hub.repos["user/data"].commit("main", {"a\x1b[2J": b"x"}, "hostile")
    hub.repos["user/other"] = Repo.new()
    hub.repos["user/other"].commit("main", {"a": b"x"}, "other")
    store = str(write_store(tmp_path / "store", [Played([0, 1.0])]))
    for command, words in (
        ("pull user/none out", "user/none"),
        ("pull data out", "OWNER/NAME"),
        ("pull user/data out --revision v9", "v9"),
        ("pull user/data out", "safe"),
        (f"push {store} user/other", "--replace"),
        (f"push {store} user/new --license CC_BY", "'CC_BY'"),
    ):
        found = stepwell(command)
        assert found.code == 2
        assert words in found.err
        assert "\x1b[2J" not in found.err
        assert found.err.count("\n") == 1


def test_without_the_library_the_cure_is_named(
    stepwell: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    found = stepwell("pull user/data out")
    assert found.code == 2
    assert "pip install 'stepwell[hub]'" in found.err
