"""The table of docs/envs.md is that of the figures, and its comparison sees a wrong row."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from support.source_tree import CHECKOUT

BENCHMARKS = CHECKOUT / "benchmarks"
pytestmark = pytest.mark.skipif(not BENCHMARKS.is_dir(), reason="needs benchmarks/ of the checkout")


def in_benchmarks(program: str) -> str:
    command = [sys.executable, "-c", f"import json\nimport env_families as f\n{program}"]
    done = subprocess.run(command, cwd=BENCHMARKS, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_page_has_the_table_of_the_figures() -> None:
    program = "print(json.dumps(f.page(json.loads(f.RESULTS.read_text()))))"
    assert json.loads(in_benchmarks(program)) == (CHECKOUT / "docs" / "envs.md").read_text("utf-8")


def test_no_stored_row_differs_outside_gymnasium_robotics() -> None:
    figures = json.loads((BENCHMARKS / "env_families.json").read_text("utf-8"))
    differing = {
        family["family"]
        for family in figures["families"]
        if any("differs" in case for case in family["cases"])
    }
    assert differing <= {"Gymnasium-Robotics"}  # the page shows it; its cause is not known


def test_rows_of_envs_that_are_always_there_are_those_of_bare_envs() -> None:
    names = ["CartPole-v1", "Pendulum-v1", "Blackjack-v1", "FrozenLake-v1"]
    found = json.loads(
        in_benchmarks(f"print(json.dumps([f.measured(f.FAMILIES[0], name) for name in {names}]))")
    )
    assert all(case["rows"] >= 120 for case in found), found


@pytest.mark.parametrize("field", ["observation", "reward", "action"])
def test_a_wrong_row_is_seen(field: str) -> None:
    program = (
        "import numpy as np\n"
        "episode = f.collected('Pendulum-v1')[0]\n"
        f"column = np.array(episode.fields[{field!r}])\n"
        "column[5] += 0.25\n"
        "class Wrong:\n"
        "    steps, end, metadata = episode.steps, episode.end, episode.metadata\n"
        f"    fields = dict(episode.fields) | {{{field!r}: column}}\n"
        "    reward = fields['reward']\n"
        "env = f.gym.make('Pendulum-v1')\n"
        "assert f.compare(env, episode) == episode.steps + 1\n"
        "try:\n"
        "    f.compare(env, Wrong)\n"
        "except AssertionError as error:\n"
        "    print(error)\n"
    )
    assert "differs in" in in_benchmarks(program)


@pytest.mark.full
def test_rows_of_all_installed_families_are_those_of_bare_envs() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import env_families as f, json\nif __name__ == '__main__':\n"
         "    open(1, 'w', closefd=False).write('\\n' + json.dumps(f.measure([])))"],
        cwd=BENCHMARKS, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    families = json.loads(done.stdout.splitlines()[-1])
    assert not [case for family in families for case in family["cases"] if "differs" in case]
