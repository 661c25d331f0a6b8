"""Every block of the original's README runs with only its import changed."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stepwell.buffers.dropin.memmap import ReplayBuffer

torch: Any = pytest.importorskip("torch", reason="needs PyTorch: pip install 'stepwell[torch]'")
LATEST = "0.2.3"


def readme() -> str:
    """The README of the installed package."""
    try:
        about: Any = importlib.metadata.metadata("memmap-replay-buffer")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("needs the original: pip install memmap-replay-buffer")
    if about["Version"] != LATEST:
        pytest.skip(f"needs memmap-replay-buffer {LATEST}, got {about['Version']}")
    text: str = about.get_payload()
    return text


def make_buffer_with_returns(folder: Path) -> dict[str, Any]:
    """Variables that the block with `update` uses."""
    buffer = ReplayBuffer(folder, 10, 100, {"returns": "float"})
    for _ in range(3):
        buffer.store_episode(returns=torch.zeros(100))
    return {
        "buffer": buffer,
        "episode_ids": [0, 2],
        "returns_for_ids": torch.ones(2, 100),
        "returns_for_one": torch.ones(100),
    }


def make_two_folders(folder: Path) -> dict[str, Any]:
    """Create the folders that the block with `ConcatReplayBuffer` uses."""
    for name in "ab":
        buffer = ReplayBuffer(folder / f"replay_data_{name}", 4, 10, {"reward": "float"})
        buffer.store_episode(reward=torch.ones(5))
        buffer.close()
    return {}


PREPARED: dict[str, Callable[[Path], dict[str, Any]]] = {
    "buffer.update(": make_buffer_with_returns,
    "ConcatReplayBuffer": make_two_folders,
}


def test_readme_blocks_except_the_video_one_run_with_the_import_changed(
    tmp_path: Path,
) -> None:
    blocks = re.findall(r"```python\n(.*?)```", readme(), re.DOTALL)
    assert len(blocks) == 11
    names: dict[str, Any] = {
        "states": torch.randn(4, 3, 16, 16),
        "actions": torch.randint(0, 4, (4, 2)),
    }
    ran: list[str] = []
    for block in blocks:
        if "save_video" in block:  # not offered: `stepwell.evaluate(video=...)` films episodes
            continue
        code = block.replace("from memmap_replay_buffer ", "from stepwell.buffers.dropin.memmap ")
        more: dict[str, Any] = {}
        for marker, prepare in PREPARED.items():
            if marker in code:
                is_concat = marker == "ConcatReplayBuffer"
                folder = tmp_path if is_concat else tmp_path / marker.strip(".(")
                more = prepare(folder)
                ran.append(marker)
        if more:
            exec(code, names | more)  # `buffer` of this block replaces the earlier one
        else:
            exec(code, names)
    assert ran == list(PREPARED)
    # The result of all blocks except the concatenation.
    assert names["buffer"].num_episodes == 0  # cleared
    assert names["buffer_rehydrated"].num_episodes == 0  # same folder, same process
    assert names["all_data"]["state"].shape == (9, 100, 3, 16, 16)
