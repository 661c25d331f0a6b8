"""Each script in examples/ runs, small: those that gather take `--steps N` and `--out DIR`."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from support.needed import imported, skip_without
from support.programs import run_python
from support.source_tree import CHECKOUT

EXAMPLES = sorted((CHECKOUT / "examples").glob("*.py"))
EXPORTS = sorted((CHECKOUT / "examples" / "exports").glob("*.py"))  # test_export_examples runs them
LINE_LIMIT = 60
# A whole learner in one file, as CleanRL has it: network, policy, loss and loop; and two
# recorders next to each other, with a table and a picture.
LINE_LIMITS = {
    "clone_atari": 85,
    "diamond": 100,
    "feed_cleanrl_ppo": 130,
    "iris": 70,
    "live_buffers": 160,
    "local_collector": 90,
    "ppo_atari": 130,
    "ppo_cartpole": 130,
    "ppo_many_agents": 150,
    "ray_atari": 140,
    "ray_kill_one": 100,
}
# Packages of extras, by example, less those that it imports itself.
NEEDS = {
    "live_buffers": ("cynes", "minari", "h5py", "jax", "PIL"),
    "nes_dataset": ("cynes",),
    "offline_d3rlpy": ("h5py",),
}
STEPS = 200
GATHER = ["--steps", str(STEPS), "--out", "{out}"]
# Those that gather nothing have arguments of their own.
ARGUMENTS = {
    "clone_atari": ["--updates", "2", "--games", "1", "--max-frames", "400"],
    "make_demo_rom": ["{out}"],
    "offline_d3rlpy": ["--dataset", "cartpole/medium", "--out", "{out}"],
    "offline_from_catalogue": ["--updates", "200"],
}

IN_EVERY_RUN = ("own_policy", "sequence_batches")

each_example = pytest.mark.parametrize("example", [*EXAMPLES, *EXPORTS], ids=lambda path: path.stem)


def test_there_are_examples() -> None:
    assert EXAMPLES


@pytest.mark.parametrize(
    "example",
    [
        pytest.param(path, marks=[] if path.stem in IN_EVERY_RUN else pytest.mark.proof)
        for path in EXAMPLES
    ],
    ids=lambda path: path.stem,
)
def test_an_example_runs_without_a_warning_and_says_what_it_did(
    example: Path, tmp_path: Path
) -> None:
    skip_without([*imported(example.read_text("utf-8")), *NEEDS.get(example.stem, ())])
    wanted = ARGUMENTS.get(example.stem, GATHER)
    arguments = [one.format(out=tmp_path / "out") for one in wanted]
    assert run_python(example, *arguments).stdout.strip()


@each_example
def test_an_example_is_short_and_says_what_it_shows(example: Path) -> None:
    text = example.read_text(encoding="utf-8")
    assert ast.get_docstring(ast.parse(text))
    assert len(text.splitlines()) <= LINE_LIMITS.get(example.stem, LINE_LIMIT)


def test_the_exceptions_are_examples() -> None:
    assert LINE_LIMITS.keys() | ARGUMENTS.keys() | NEEDS.keys() <= {
        example.stem for example in [*EXAMPLES, *EXPORTS]
    }
