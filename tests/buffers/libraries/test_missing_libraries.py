"""Where a library is missing or old, a bridge or format names itself and what installs it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stepwell.buffers import bridges
from stepwell.buffers.libraries.tianshou.batches import load_tianshou
from stepwell.buffers.libraries.torchrl.batches import load_tensordict
from support.exchanged_stores import tagged_store
from support.libraries.missing import hide

NONE: Any = None
STORE = tagged_store()


def export(format_: str, **options: object) -> None:
    bridges.export_episodes(STORE, format_, "./out-v0", options=options)


# By words of the error: the library, what installs it, and a call.
CALLS: dict[str, tuple[str, str, Callable[[], object]]] = {
    "sb3_policy": ("stable_baselines3", "[sb3]", lambda: bridges.sb3_policy(NONE)),
    "count_sb3_steps": ("stable_baselines3", "[sb3]", lambda: bridges.count_sb3_steps(NONE, 1)),
    "as_sb3_replay": ("stable_baselines3", "[sb3]", lambda: bridges.as_sb3_replay(STORE, NONE)),
    "to_sb3_rollout": ("stable_baselines3", "[sb3]", lambda: bridges.to_sb3_rollout(NONE, NONE)),
    "to_cleanrl": ("torch", "[torch]", lambda: bridges.to_cleanrl(NONE, NONE)),
    "as_skrl_memory": ("skrl", "[skrl]", lambda: bridges.as_skrl_memory(NONE)),
    "to_tianshou_buffer": ("tianshou", "[tianshou]", lambda: bridges.to_tianshou_buffer(STORE)),
    "from_tianshou": ("tianshou", "[tianshou]", lambda: bridges.from_tianshou([], STORE)),
    "as_torchrl_replay": ("torchrl", "[torchrl]", lambda: bridges.as_torchrl_replay(STORE)),
    "from_tensordict": ("tensordict", "[torchrl]", lambda: bridges.from_tensordict({}, STORE)),
    "to_d3rlpy": ("d3rlpy", "--no-deps d3rlpy", lambda: bridges.to_d3rlpy(STORE)),
    "to_jax": ("jax", "[jax]", lambda: bridges.to_jax(NONE)),
    "Minari's format hdf5": ("h5py", "[minari]", lambda: export("minari", data_format="hdf5")),
    "Minari's format arrow": ("pyarrow", "[minari]", lambda: export("minari", data_format="arrow")),
    "Parquet": ("pyarrow", "[parquet]", lambda: export("parquet")),
    "LeRobot": ("pyarrow", "[parquet]", lambda: export("lerobot")),
    "rlds": ("google_crc32c", "[rlds]", lambda: export("rlds")),
    "format d3rlpy": ("h5py", "[d3rlpy]", lambda: export("d3rlpy")),
}


@pytest.fixture(autouse=True)
def nothing_is_loaded() -> None:
    load_tianshou.cache_clear()
    load_tensordict.cache_clear()


@pytest.mark.parametrize("name", CALLS)
def test_a_missing_library_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    library, install, call = CALLS[name]
    if "Minari" in name:
        pytest.importorskip("minari", reason="needs minari")
    hide(library, monkeypatch)
    command = re.escape(install.replace("[", "'stepwell[").replace("]", "]'"))
    with pytest.raises(ImportError, match=rf"(?i){name}.*{library}.*pip install {command}"):
        call()
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("name", ["count_sb3_steps", "as_torchrl_replay", "to_tianshou_buffer"])
def test_an_old_release_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    library, install, call = CALLS[name]
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"needs {library}")
    monkeypatch.setattr(importlib.metadata, "version", lambda package: "0.1")
    with pytest.raises(ImportError, match=rf"{name} .* 0\.1: pip install -U .*{install[1:-1]}"):
        call()
