"""After kill -9 before any system call, completed calls are kept and no call is half done."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell.buffers.dropin.memmap import ReplayBuffer
from stepwell.buffers.storage.disk.files import Files

pytest.importorskip("torch", reason="needs PyTorch: pip install 'stepwell[torch]'")

State = list[tuple[list[int], list[float], int]] | None
OPTIONS: dict[str, Any] = {
    "max_episodes": 3,
    "max_timesteps": 4,
    "fields": {"t": "int", "x": "float"},
    "meta_fields": {"m": "int"},
    "circular": True,
}
CALLS = ["pwrite", "fsync", "fdatasync", "fsync_folder", "rename", "make_folder", "allocate"]


def play(buffer: ReplayBuffer) -> None:
    with buffer.one_episode(m=1) as metas:
        for t in range(3):
            buffer.store(t=t)
        metas["m"] = 2


def abort_episode(buffer: ReplayBuffer) -> None:
    try:
        with buffer.one_episode():
            buffer.store(t=99)
            raise KeyError
    except KeyError:
        pass


STEPS: list[Callable[[ReplayBuffer], object]] = [
    lambda buffer: buffer.store_episode(t=[1, 2], m=5),
    play,
    abort_episode,
    lambda buffer: buffer.store_episode(t=[5, 7], x=[1.5, 2.5], m=3),
    lambda buffer: buffer.store_episode(t=[4]),
    lambda buffer: buffer.store_episode(t=[6]),
    lambda buffer: ReplayBuffer(buffer.folder, **OPTIONS, overwrite=True).store_episode(t=[3]),
    lambda buffer: ReplayBuffer.from_folder(buffer.folder).store_episode(t=[8], x=[4.0]),
]


def run(folder: Path, after: Callable[[], object]) -> None:
    """Run all steps, and call ``after`` after each of them."""
    buffer = ReplayBuffer(folder, **OPTIONS)
    after()
    for step in STEPS:
        step(buffer)
        after()


def state(folder: Path) -> State:
    """The stored episodes as a reader sees them."""
    if not (folder / "replay_buffer.json").exists():
        return None
    with ReplayBuffer.from_folder(folder, read_only=True) as buffer:
        if not len(buffer):
            return []
        return [
            (batch["t"][0].tolist(), batch["x"][0].tolist(), int(batch["m"]))
            for batch in buffer.dataloader(1)
        ]


def kill_at(at: int) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """A wrapper of functions that kills the process before call number ``at`` of all of them."""
    calls = [0]

    def wrap(call: Callable[..., object]) -> Callable[..., object]:
        def wrapper(*arguments: object, **options: object) -> object:
            calls[0] += 1
            if calls[0] == at:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **options)

        return wrapper

    return wrap


def run_and_kill(folder: Path, at: int) -> tuple[int, bool]:
    """Run in a child that is killed before its n-th call.

    Returns:
        The number of steps that returned, and whether the child was killed.
    """
    source, target = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            wrap = kill_at(at)
            for name in CALLS:
                setattr(Files, name, wrap(getattr(Files, name)))
            for name in ("unlink", "rmdir"):
                setattr(os, name, wrap(getattr(os, name)))
            run(folder, lambda: os.write(target, b"."))
        finally:
            os._exit(0)
    os.close(target)
    with open(source, "rb") as pipe:
        returned = len(pipe.read())
    _, status = os.waitpid(child, 0)
    return returned, os.WIFSIGNALED(status)


@pytest.mark.proof
@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.full)])
def test_a_kill_keeps_completed_calls_and_no_half_written_ones(tmp_path: Path, stride: int) -> None:
    """M4: also while a folder is overwritten."""
    states: list[State] = [None]
    run(tmp_path / "whole", lambda: states.append(state(tmp_path / "whole")))
    assert states[-1] == [([3], [0.0], 0), ([8], [4.0], 0)]
    kills = 0
    for at in range(1, 10_000, stride):
        folder = tmp_path / str(at)
        returned, was_killed = run_and_kill(folder, at)
        kills += was_killed
        there = state(folder)
        allowed = states[returned : returned + 2]
        if returned == 7:  # this step overwrites, then stores
            allowed = [*allowed, []]
        assert there in allowed or (not returned and there == []), (at, returned)
        # The buffer can be written again, and the interrupted call left no files behind.
        with ReplayBuffer(folder, **OPTIONS) as buffer:
            before = state(folder) or []
            number = buffer.replay.storage.index.next_episode % 3
            buffer.store_episode(t=[55], x=np.ones(1), m=6)
            after = state(folder) or []
            assert after[number] == ([55], [1.0], 6)
            assert [e for slot, e in enumerate(after) if slot != number] == [
                e for slot, e in enumerate(before) if slot != number
            ]
            names = {file.name for file in folder.iterdir()}
            assert len([name for name in names if name.startswith("store-")]) == 1
            assert not [name for name in names if name.endswith(".tmp")]
        if not was_killed:
            break
    assert kills >= 100 // stride
