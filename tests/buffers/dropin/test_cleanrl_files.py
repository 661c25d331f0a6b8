"""CleanRL's own files run with one import line replaced, and what they played is stored.

They are not part of this repository. ``pip install --no-deps --ignore-requires-python
cleanrl==1.2.0`` installs those of a release; for the newest ones, put a checkout of CleanRL in
``PYTHONPATH``, and install tyro.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.source_tree import CHECKOUT
from support.tiers import proofs_but

STEPWELL = "stepwell.buffers.dropin.sb3"
SCENARIO = CHECKOUT / "tests" / "support" / "libraries" / "cleanrl_scenario.py"
NEEDS = ("distutils", "stable_baselines3", "tensorboard", "tyro")


def arguments(env: str, steps: int, learning_starts: int, buffer_size: int = 1000) -> list[str]:
    sizes = {
        "total-timesteps": steps,
        "learning-starts": learning_starts,
        "buffer-size": buffer_size,
    }
    named = [part for name, size in sizes.items() for part in (f"--{name}", str(size))]
    return ["--env-id", env, *named]


ATARI = arguments("BreakoutNoFrameskip-v4", 300, 260, 400)
TEACHER = ["--teacher-eval-episodes", "1", "--teacher-steps", "150", "--offline-steps", "3"]
RUNS = [
    ("dqn", arguments("CartPole-v1", 400, 200)),
    ("dqn", arguments("Planned-v0", 300, 150)),
    ("dqn", arguments("Constant-v0", 300, 150)),
    ("c51", arguments("Planned-v0", 300, 150)),
    ("ddpg_continuous_action", arguments("Pendulum-v1", 450, 400)),
    ("td3_continuous_action", arguments("PlannedBox-v0", 300, 250)),
    ("sac_continuous_action", arguments("Pendulum-v1", 450, 400)),
    ("dqn_atari", ATARI),
    ("c51_atari", ATARI),
    ("sac_atari", ATARI),
    ("qdagger_dqn_atari_impalacnn", ATARI + TEACHER),
]


def file_of(name: str) -> Path:
    """The installed file; skips the test where there is none that can run."""
    folders = [Path(entry) / "cleanrl" for entry in sys.path]
    folders = [folder for folder in folders if (folder / "dqn.py").exists()]
    if not folders:
        pytest.skip("CleanRL is not installed")
    file = folders[0] / f"{name}.py"
    if not file.exists():
        pytest.skip(f"the installed CleanRL has no {file.name}")
    text = file.read_text(encoding="utf-8")
    if re.search(r"^import gym$", text, re.MULTILINE):
        pytest.skip(f"{file.name} of the installed CleanRL was written for the old gym")
    for package in NEEDS:
        is_used = re.search(rf"\b{package}\b", text)
        if is_used and importlib.util.find_spec(package) is None:
            pytest.skip(f"{file.name} needs {package}")
    return file


def played(name: str, given: list[str], module: str | None, folder: Path) -> dict[str, Any]:
    """Run a file; the arrays that the scenario wrote, and under "output" what it printed."""
    folder.mkdir()
    request = {
        "file": str(file_of(name)),
        "arguments": given,
        "module": module,
        "result": str(folder / "result.npz"),
    }
    run = subprocess.run(
        [sys.executable, "-W", "ignore", str(SCENARIO), json.dumps(request)],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    with np.load(folder / "result.npz") as arrays:
        return dict(arrays) | {"output": run.stdout}


def episodes_of(result: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """The episodes under a name."""
    found: dict[int, dict[str, Any]] = defaultdict(dict)
    for key, rows in result.items():
        if key.startswith(f"{name}/"):
            number, part = key.removeprefix(f"{name}/").split("/")
            found[int(number)][part] = rows
    return [found[number] for number in sorted(found)]


def assert_stored(result: dict[str, Any], buffer: str, env: int) -> None:
    """The buffer's episodes are what the env itself returned, bit for bit."""
    expected, stored = episodes_of(result, f"env/{env}"), episodes_of(result, buffer)
    assert len(stored) == sum(len(true["action"]) > 0 for true in expected) > 0
    for mine, true in zip(stored, expected, strict=False):  # one more, if it has no step
        kind = mine["observation"].dtype  # CleanRL declares float32 for a space of float64
        np.testing.assert_array_equal(mine["observation"], true["observation"].astype(kind))
        np.testing.assert_array_equal(mine["action"], true["action"])
        assert mine["reward"].tolist() == true["reward"].astype(np.float32).tolist()  # as SB3's
        assert mine["terminated"].tolist() == true["terminated"].astype(bool).tolist()
        # CleanRL's loop does not tell a truncation at a termination.
        by_clock = (true["truncated"] > true["terminated"]).tolist()
        assert mine["truncated"].tolist() == by_clock


@pytest.mark.parametrize(
    ("name", "given"),
    proofs_but(RUNS[:1], RUNS),
    ids=[f"{name}-{given[1]}" for name, given in RUNS],
)
def test_a_file_runs_and_what_it_played_is_stored(
    name: str, given: list[str], tmp_path: Path
) -> None:
    result = played(name, given, STEPWELL, tmp_path / "run")
    if name.startswith("qdagger"):
        envs = {int(key.split("/")[1]) for key in result if key.startswith("env/")}
        assert_stored(result, "teacher_rb", 0)
        assert_stored(result, "rb", max(envs))
    else:
        assert_stored(result, "rb", 0)
    assert any(key.startswith("weights/") for key in result)
    steps = int(given[given.index("--total-timesteps") + 1])
    assert sum(len(each["reward"]) for each in episodes_of(result, "rb")) == steps


@pytest.mark.proof
@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("dqn", arguments("Planned-v0", 300, 150, 200)),
        ("td3_continuous_action", arguments("Pendulum-v1", 450, 400, 420)),
        ("sac_continuous_action", arguments("Pendulum-v1", 450, 400, 420)),
    ],
)
def test_networks_end_as_with_the_file_s_own_buffer(
    name: str, given: list[str], tmp_path: Path
) -> None:
    ours = played(name, given, STEPWELL, tmp_path / "ours")
    theirs = played(name, given, None, tmp_path / "theirs")
    names = [key for key in theirs if key.startswith("weights/")]
    assert names
    for key in names:
        np.testing.assert_array_equal(ours[key], theirs[key], err_msg=key)
