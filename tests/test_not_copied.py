"""What has files, locks or processes of its own is not pickled or copied, and says what to do."""

from __future__ import annotations

import copy
import importlib
import pickle
from pathlib import Path
from typing import Any

import pytest

import stepwell as sw
from stepwell.buffers import SequenceReplayBuffer

# Classes, with what their errors advise, and packages that they need.
LIVE: dict[str, tuple[str, ...]] = {
    "buffers.ReplayWriter": ("replay.writer",),
    "buffers.EpisodeBuffer": ("chunks",),
    "buffers.EpisodeWriter": ("with a replay",),
    "buffers.Loader": ("replay",),
    "buffers.Epoch": ("state_dict",),
    "buffers.SampleLimiter": ("threads",),
    "buffers.MemoryStorage": ("folder",),
    "buffers.DiskStorage": ("DiskStorage.open",),
    "buffers.JoinedStorage": ("join",),
    "collectors.Collector": ("LocalCollector",),
    "collectors.LocalCollector": ("processes of their own",),
    "collectors.distributed.collector.Run": ("running",),
    "collectors.loop.record.RecordedEnv": ("unwrapped",),
    "collectors.loop.record.RecordedVectorEnv": ("unwrapped",),
    "wrappers.WorkerVectorEnv": ("from a function",),
    "wrappers.AleFrameSkip": ("from a function", "ale_py"),
    "wrappers.atari_python.FusedAtari": ("from a function", "ale_py"),
    "wrappers.atari_native.NativeAtari": ("from a function", "ale_py"),
    "wrappers.NesEnv": ("from a function",),
    "wrappers.envpool.EnvPoolVectorEnv": ("from a function",),
    "buffers.dropin.dreamer.ReplayBuffer": ("path",),
    "buffers.dropin.iris.IRISReplayBuffer": ("path",),
    "buffers.dropin.frame_history.ReplayBuffer": ("path",),
    "buffers.dropin.fishyrl.IndependentVectorizedBuffer": ("path",),
    "buffers.dropin.memmap.ReplayBuffer": ("from_folder", "torch"),
    "buffers.libraries.sheeprl_replay.SheeprlReplay": ("as_sheeprl_replay", "torch"),
    "buffers.libraries.skrl_memory.SkrlMemory": ("as_skrl_memory", "skrl"),
    "buffers.libraries.tianshou.replay.TianshouReplay": ("as_tianshou_replay", "tianshou"),
    "buffers.libraries.torchrl.replay.TorchRLReplay": ("as_torchrl_replay", "torchrl"),
}


def check_refused(live: Any, instead: str) -> None:
    for copied in (pickle.dumps, copy.deepcopy, copy.copy):
        with pytest.raises(
            TypeError, match=f"^an? .* cannot be pickled or copied: expected .*; .*{instead}"
        ):
            copied(live)


@pytest.mark.parametrize("name", LIVE)
def test_what_lives_in_a_process_is_not_pickled_or_copied(name: str) -> None:
    instead, *packages = LIVE[name]
    for package in packages:
        pytest.importorskip(package)
    room, _, kind = name.rpartition(".")
    live = getattr(importlib.import_module(f"stepwell.{room}"), kind)
    check_refused(object.__new__(live), instead)


def collected(path: Path | None = None) -> SequenceReplayBuffer:
    """A replay with rows."""
    replay = SequenceReplayBuffer(path, seed=0)
    with sw.Collector(cartpole(), "random", replay, seed=0) as collector:
        collector.collect(steps=60)
    return replay


def cartpole() -> Any:
    return sw.make_vec("CartPole-v1", 2, num_workers=0)


def test_a_replay_says_where_it_is(tmp_path: Path) -> None:
    check_refused(collected(), "this one is in RAM: give it a path")
    with collected(tmp_path / "store") as replay:
        check_refused(replay, r"this one is in \S+store; use SequenceReplayBuffer.open")
