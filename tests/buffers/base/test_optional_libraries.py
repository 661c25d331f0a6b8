"""Optional libraries: loaded, or an error with the command that installs them."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from stepwell.buffers.base.optional_libraries import load_library


def test_a_library_is_loaded_whose_version_is_not_known() -> None:
    found = load_library("json.decoder", "It", install="json", at_least="99")
    assert found.__name__ == "json.decoder"


@pytest.mark.parametrize(
    ("library", "message", "name"),
    [
        ("not_there.part", r"^It .*not_there.*pip install 'stepwell\[x\]'$", "not_there"),
        ("json.not_there", r"^It .*json\.not_there.*pip install -U 'stepwell\[x\]'", "json"),
        ("needy", r"needy.*surely_not_there.*pip install 'stepwell\[x\]'$", "needy"),
        ("broken", r"^It .*broken.*libfoo\.so.*pip install 'stepwell\[x\]'$", "broken"),
    ],
)
def test_what_is_missing_is_named_with_its_install_command(
    library: str, message: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library, a part of one that is installed, what a library needs, and a broken one."""
    (tmp_path / "needy.py").write_text("import surely_not_there")
    (tmp_path / "broken.py").write_text("raise ImportError('libfoo.so: no such file')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match=message) as caught:
        load_library(library, "It", install="'stepwell[x]'")
    assert caught.value.name == name


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
