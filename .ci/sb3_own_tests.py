"""SB3's own tests with Stepwell's buffers in place of SB3's: `python .ci/sb3_own_tests.py`.

Run it with a Python that has Stepwell, Stable-Baselines3 and pytest. It downloads the source
archive of the installed version, which has the tests, from the package index, and runs those of
buffers, dicts, hindsight, n-step returns, and saving and loading; arguments go to pytest. pytest
loads this file as a plugin, too: it puts the classes in place before the tests are imported.
"""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

CLASSES = (
    "DictReplayBuffer",
    "DictRolloutBuffer",
    "HerReplayBuffer",
    "NStepReplayBuffer",
    "ReplayBuffer",
    "RolloutBuffer",
)
FILES = "test_buffers", "test_dict_env", "test_her", "test_n_step_replay", "test_save_load"
KNOWN = {
    "test_custom_rollout_buffer": "a space without Dict is a ValueError, not an AssertionError"
}
"""What differs, and is meant to: a part of a test's name, and why."""


def pytest_configure() -> None:
    """Put Stepwell's classes wherever SB3 has its own."""
    import stable_baselines3

    from stepwell.buffers.dropin import sb3

    assert stable_baselines3.__file__
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "stable_baselines3":
            for one in CLASSES:
                if hasattr(module, one):
                    setattr(module, one, getattr(sb3, one))
    # Tests of hindsight look at this private attribute.
    begun = property(lambda buffer: buffer._episodes.begun)
    sb3.HerReplayBuffer._current_ep_start = begun


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Leave out what differs; a name that no test has any more is an error."""
    known = {part: [item for item in items if part in item.nodeid] for part in KNOWN}
    if unknown := [part for part, found in known.items() if not found]:
        raise SystemExit(f"no test of SB3's has these names: {unknown}")
    left_out = {id(item) for found in known.values() for item in found}
    config.hook.pytest_deselected(items=[item for item in items if id(item) in left_out])
    items[:] = [item for item in items if id(item) not in left_out]


def main() -> int:
    """Fetch the tests and run them."""
    version = importlib.metadata.version("stable-baselines3")
    with tempfile.TemporaryDirectory() as scratch:
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps"]
        wanted = ["--no-binary", ":all:", f"stable-baselines3=={version}", "-d", scratch]
        subprocess.run([*pip, *wanted], check=True)
        with tarfile.open(next(Path(scratch).glob("*.tar.gz"))) as archive:
            archive.extractall(scratch, filter="data")
        # Beside the package's own folder Python would import that.
        tests = Path(scratch, "alone", "tests")
        tests.parent.mkdir()
        next(Path(scratch).glob("*/tests")).rename(tests)
        paths = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        mark = ["-o", "markers=expensive"]
        files = [f"tests/{name}.py" for name in FILES]
        for part, why in KNOWN.items():
            print(f"left out: {part}: {why}", flush=True)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "sb3_own_tests", *mark, *files]
        environment = {**os.environ, "PYTHONPATH": paths.rstrip(os.pathsep)}
        return subprocess.run(
            [*command, *sys.argv[1:]], cwd=tests.parent, env=environment
        ).returncode


if __name__ == "__main__":
    sys.exit(main())
