"""Where a library is missing or old, a bridge or format names itself and what installs it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stepwell.buffers import bridges
from stepwell.buffers.libraries.tianshou.batches import load_tianshou
from stepwell.buffers.libraries.torchrl.batches import load_tensordict
from support.exchanged_stores import tagged_store

BRIDGES: dict[str, tuple[str, str, tuple[Any, ...]]] = {
    "sb3_policy": ("stable_baselines3", "[sb3]", (None,)),
    "count_sb3_steps": ("stable_baselines3", "[sb3]", (None, 1)),
    **dict.fromkeys(
        ("as_sb3_replay", "to_sb3_rollout"), ("stable_baselines3", "[sb3]", (None, None))
    ),
    "to_cleanrl": ("torch", "[torch]", (None, None)),
    "as_skrl_memory": ("skrl", "[skrl]", (None,)),
    "to_tianshou_buffer": ("tianshou", "[tianshou]", (tagged_store(),)),
    "from_tianshou": ("tianshou", "[tianshou]", ([], tagged_store())),
    "as_torchrl_replay": ("torchrl", "[torchrl]", (tagged_store(),)),
    "from_tensordict": ("tensordict", "[torchrl]", ({}, tagged_store())),
    "to_d3rlpy": ("d3rlpy", "--no-deps d3rlpy", (tagged_store(),)),
    "to_jax": ("jax", "[jax]", ({},)),
}
FORMATS: list[tuple[str, str, str, dict[str, str]]] = [
    ("minari", "h5py", "[minari]", {"data_format": "hdf5"}),
    ("minari", "pyarrow", "[minari]", {"data_format": "arrow"}),
    ("parquet", "pyarrow", "[parquet]", {}),
    ("lerobot", "pyarrow", "[parquet]", {}),
    ("rlds", "google_crc32c", "[rlds]", {}),
    ("d3rlpy", "h5py", "[d3rlpy]", {}),
]


class Missing:
    """Finds no module of a library."""

    def __init__(self, library: str) -> None:
        self._library = library

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.partition(".")[0] == self._library:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def refused(
    call: Callable[[], object], name: str, library: str, install: str, patch: pytest.MonkeyPatch
) -> None:
    """Assert that the call needs the library."""
    for loaded in [one for one in sys.modules if one.partition(".")[0] == library]:
        patch.delitem(sys.modules, loaded)
    patch.setattr(sys, "meta_path", [Missing(library), *sys.meta_path])
    for loader in (load_tianshou, load_tensordict):
        loader.cache_clear()
    command = re.escape(install.replace("[", "'stepwell[").replace("]", "]'"))
    with pytest.raises(ImportError, match=rf"(?i){name}.*{library}.*pip install {command}"):
        call()


@pytest.mark.parametrize("name", BRIDGES)
def test_a_bridge_names_the_library(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    library, install, arguments = BRIDGES[name]
    call = partial(getattr(bridges, name), *arguments)
    refused(call, name, library, install, monkeypatch)


@pytest.mark.parametrize(("name", "library", "install", "options"), FORMATS)
def test_a_format_names_the_library(
    name: str, library: str, install: str, options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "minari":
        pytest.importorskip("minari", reason="needs minari")
    write = partial(bridges.export_episodes, tagged_store(), name, "./out-v0", options=options)
    refused(write, options.get("data_format", name), library, install, monkeypatch)
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("name", ["count_sb3_steps", "as_torchrl_replay", "to_tianshou_buffer"])
def test_an_old_release_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    library, install, arguments = BRIDGES[name]
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"needs {library}")
    monkeypatch.setattr(importlib.metadata, "version", lambda package: "0.1")
    for loader in (load_tianshou, load_tensordict):
        loader.cache_clear()
    with pytest.raises(ImportError, match=rf"{name} .* 0\.1: pip install -U .*{install[1:-1]}"):
        getattr(bridges, name)(*arguments)
