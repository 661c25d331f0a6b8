"""The folder of a drop-in buffer is made by its first step, where it was named."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from stepwell.buffers import SequenceReplayBuffer
from stepwell.buffers.dropin.dreamer import ReplayBuffer as DreamerBuffer
from stepwell.buffers.dropin.fishyrl import IndependentVectorizedBuffer
from stepwell.buffers.dropin.frame_history import ReplayBuffer as FrameBuffer
from stepwell.buffers.dropin.iris import IRISReplayBuffer
from stepwell.buffers.view.summary import describe_env, describe_maker


def _sb3(name: str, path: str, **more: Any) -> tuple[Any, Any]:
    pytest.importorskip("torch", reason="needs PyTorch")
    from stepwell.buffers.dropin import sb3

    space, goal = spaces.Box(-1, 1, (2,)), spaces.Box(-1, 1, (3,))
    is_dict = name in ("DictReplayBuffer", "HerReplayBuffer")
    whole: Any = spaces.Dict(achieved_goal=goal, desired_goal=goal) if is_dict else space
    if name == "RolloutBuffer":
        import torch

        given: dict[str, Any] = {"replay": SequenceReplayBuffer(path)}
        ends: tuple[Any, ...] = ([0.0], [False], torch.zeros(1), torch.zeros(1))
    else:
        given, ends = {"path": path}, ([0.0], [False], [{}])
    env = (None,) if name == "HerReplayBuffer" else ()
    buffer = getattr(sb3, name)(9, whole, spaces.Discrete(2), *env, device="cpu", **given, **more)
    seen: Any = (
        {key: np.zeros((1, 3), np.float32) for key in whole} if is_dict else np.zeros((1, 2))
    )
    steps = (seen,) if name == "RolloutBuffer" else (seen, seen)
    return buffer, lambda: buffer.add(*steps, np.zeros(1, int), *ends)


def _fishyrl(path: str) -> tuple[Any, Any]:
    buffer = IndependentVectorizedBuffer(1, 9, path=path)
    row = {"obs": np.zeros((1, 2)), "actions": np.zeros((1, 2)), "rewards": np.zeros(1)}
    flags = {name: np.zeros(1, bool) for name in ("terminations", "truncations")}
    return buffer, lambda: buffer.add({**row, **flags})


def _imaged(kind: Any, path: str) -> tuple[Any, Any]:
    buffer, image = kind(9, (3, 8, 8), 2, 2, 2, path=path), np.zeros((3, 8, 8), np.uint8)
    seen = image if kind is IRISReplayBuffer else {"image": image}
    return buffer, lambda: buffer.add(seen, np.zeros(2), 0.0, False)


def _frames(path: str) -> tuple[Any, Any]:
    buffer = FrameBuffer(9, 2, path=path)

    def step() -> None:
        buffer.store_effect(buffer.store_frame(np.zeros((4, 4, 1), np.uint8)), 0, 0.0, False)

    return buffer, step


MADE_WITH_A_PATH: dict[str, Callable[[str], tuple[Any, Any]]] = {
    "dreamer": partial(_imaged, DreamerBuffer),
    "iris": partial(_imaged, IRISReplayBuffer),
    "fishyrl": _fishyrl,
    "frame_history": _frames,
    "sb3": partial(_sb3, "ReplayBuffer"),
    "sb3 n-step": partial(_sb3, "NStepReplayBuffer"),
    "sb3 dict": partial(_sb3, "DictReplayBuffer"),
    "sb3 her": partial(_sb3, "HerReplayBuffer"),
    "sb3 rollout": partial(_sb3, "RolloutBuffer"),
}


@pytest.mark.parametrize("name", MADE_WITH_A_PATH)
def test_a_folder_is_made_by_the_first_step_where_it_was_named(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("first", "other"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / "first")
    for is_used in (False, True):
        buffer, step = MADE_WITH_A_PATH[name]("runs/a")
        repr(buffer)
        assert not list(tmp_path.glob("*/*"))
        if is_used:
            if name in ("sb3", "sb3 her"):
                monkeypatch.chdir(tmp_path / "other")
            step()
        (buffer.replay if name == "sb3 rollout" else buffer).close()
    assert [path.name for path in tmp_path.glob("*/*")] == ["runs"]
    assert (tmp_path / "first" / "runs" / "a").is_dir()


KEPT_AT_THE_END = "dreamer", "iris", "fishyrl", "frame_history", "sb3", "sb3 rollout"


@pytest.mark.parametrize(
    ("name", "closes"), [(name, closes) for name in KEPT_AT_THE_END for closes in (False, True)]
)
def test_a_program_that_closes_no_buffer_or_only_its_replay_keeps_its_steps(
    name: str, closes: bool, tmp_path: Path
) -> None:
    if name.startswith("sb3"):
        pytest.importorskip("torch", reason="needs PyTorch")
    code = f"""
import runpy
buffer, step = runpy.run_path({__file__!r})["MADE_WITH_A_PATH"][{name!r}]("a")
for _ in range(8):
    step()
if {closes}:
    buffer.replay.close()
"""
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    with SequenceReplayBuffer.open(tmp_path / "a", read_only=True) as replay:
        # The last one may wait for its next observation.
        assert replay.steps == 7 + (name in ("dreamer", "sb3", "sb3 rollout"))


def test_steps_after_the_buffer_was_closed_are_no_error_at_the_end_of_the_program(
    tmp_path: Path,
) -> None:
    pytest.importorskip("torch", reason="needs PyTorch")
    code = f"""
import runpy
buffer, step = runpy.run_path({__file__!r})["MADE_WITH_A_PATH"]["sb3"]("a")
for _ in range(8):
    step()
buffer.close()
step()
"""
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], cwd=tmp_path, check=True, capture_output=True
    )
    assert run.stderr == b""
    with SequenceReplayBuffer.open(tmp_path / "a", read_only=True) as replay:
        assert replay.steps == 8


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("dreamer", "torchwm ReplayBuffer"),
        ("iris", "torchwm IRISReplayBuffer"),
        ("fishyrl", "FishyRL IndependentVectorizedBuffer"),
        ("frame_history", "frame-history ReplayBuffer"),
        ("sb3", "SB3 ReplayBuffer"),
        ("sb3 her", "SB3 HerReplayBuffer"),
        ("sb3 rollout", "SB3 RolloutBuffer"),
    ],
)
def test_a_store_says_which_buffer_wrote_it(tmp_path: Path, name: str, source: str) -> None:
    buffer, step = MADE_WITH_A_PATH[name](str(tmp_path / "rows"))
    step()
    buffer.replay.close()
    with SequenceReplayBuffer.open(tmp_path / "rows", read_only=True) as replay:
        sessions = list(replay.sessions)
    assert describe_env(sessions) == f"not known; rows of {source}"
    assert describe_maker(sessions[-1]) == source
