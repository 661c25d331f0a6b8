"""Optional libraries: loaded, or an error with the command that installs them."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from stepwell.buffers.base.optional_libraries import load_library


def test_a_submodule_is_loaded() -> None:
    assert load_library("json.decoder", "It", install="json").__name__ == "json.decoder"


def test_a_missing_library_is_named_with_its_install_command() -> None:
    with pytest.raises(ImportError, match=r"^It .*not_there.*pip install") as e:
        load_library("not_there.part", "It", install="'stepwell[x]'")
    assert str(e.value).endswith("pip install 'stepwell[x]'")
    assert e.value.name == "not_there"


def test_a_submodule_missing_from_the_installed_library_is_named() -> None:
    with pytest.raises(ImportError, match=r"^It .*json\.not_there.*pip install -U json"):
        load_library("json.not_there", "It", install="json")


def test_a_missing_dependency_of_a_library_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "needy.py").write_text("import surely_not_there")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match=r"needy.*surely_not_there.*pip install needy"):
        load_library("needy", "It", install="needy")


@pytest.mark.parametrize(
    ("installed", "is_enough"),
    [
        *(("2.9", True), ("2.9.0", True), ("2.10.1", True), ("10", True), ("2.8.9", False)),
        *(("3.0.0a1+cpu", True), ("2.9.0.dev3", True)),
    ],
)
def test_an_older_version_is_refused(
    installed: str, is_enough: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(package: str) -> str:
        assert package == "js-on"
        return installed

    monkeypatch.setattr(importlib.metadata, "version", version)
    if is_enough:
        load_library("json", "It", install="js-on", package="js-on", at_least="2.9")
    else:
        with pytest.raises(ImportError, match=rf"js-on 2\.9 .*{installed}.*pip install"):
            load_library("json", "It", install="js-on", package="js-on", at_least="2.9")


def test_a_library_without_a_known_version_is_accepted() -> None:
    load_library("json", "It", install="json", at_least="99")
