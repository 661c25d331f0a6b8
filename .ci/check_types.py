"""Check that a user's mypy and pyright resolve every public name of an installed Stepwell.

Run as `python .ci/check_types.py PYTHON...` by an interpreter that has mypy and pyright. Each
PYTHON is one that Stepwell is installed for; the project that is checked is a folder of its own.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

PACKAGES = (
    *("", ".wrappers", ".collectors", ".buffers", ".buffers.bridges", ".wrappers.nes"),
    *(".buffers.bridges.formats", ".buffers.testing", ".wrappers.testing"),
)
LIST_NAMES = f"""
import importlib, json
names = {{}}
for package in {PACKAGES}:
    module = importlib.import_module("stepwell" + package)
    assert set(module.__all__) <= set(dir(module)), f"dir({{module.__name__}}) is incomplete"
    names[module.__name__] = module.__all__
print(json.dumps(names))
"""
USE = """
import gymnasium as gym
import numpy as np
import stepwell as sw

replay = sw.SequenceReplayBuffer(capacity=1_000, seed=0)
with sw.Collector(gym.make_vec("CartPole-v1"), sw.RandomPolicy(), replay, seed=0) as collector:
    reveal_type(collector.collect(steps=10).steps)
    reveal_type(collector.rollout(steps=10).reward)
reveal_type(replay.sample_sequences(2, length=3).reward)
reveal_type(replay.sample_transitions(2).reward)
reveal_type(next(iter(replay.iter_episodes())).total_reward)
"""
WITHOUT_TYPE = re.compile(r'(?:Revealed type is|Type of ".*" is) "(?:Any|Unknown|Module.*Any.*)"')


def project(python: str) -> str:
    """A program that uses the names which the installed package offers."""
    found = subprocess.run([python, "-c", LIST_NAMES], capture_output=True, text=True, check=True)
    names: dict[str, list[str]] = json.loads(found.stdout)
    lines = [f"import {package}" for package in names]
    lines += [f"reveal_type({package}.{name})" for package in names for name in names[package]]
    return "\n".join(lines) + USE


def findings(python: str) -> list[str]:
    """Errors of both checkers, and names whose type they do not know."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "user.py")
        program.write_text(project(python), encoding="utf-8")
        expected = program.read_text(encoding="utf-8").count("reveal_type(")
        tools = {
            "mypy": ["mypy", "--strict", f"--python-executable={python}", "user.py"],
            "pyright": ["pyright", "--pythonpath", python, "user.py"],
        }
        found: list[str] = []
        for name, command in tools.items():
            run = subprocess.run(
                [sys.executable, "-m", *command], cwd=folder, capture_output=True, text=True
            )
            lines = run.stdout.splitlines()
            revealed = [line for line in lines if "Revealed type" in line or "Type of" in line]
            wrong = [line for line in lines if "error:" in line or WITHOUT_TYPE.search(line)]
            if len(revealed) != expected:
                wrong.append(f"expected {expected} types, got {len(revealed)}: {run.stderr}")
            found += [f"{python}, {name}: {line}" for line in wrong]
    return found


def main() -> None:
    """Print what is wrong and exit with 1 if anything is."""
    found = [line for python in sys.argv[1:] for line in findings(python)]
    if found:
        sys.exit("\n".join(found))
    print(f"mypy and pyright know the type of every public name, for {' and '.join(sys.argv[1:])}")


if __name__ == "__main__":
    main()
