"""Each example that learns does so: in full, and PPO a sixth of it in every run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support import documents
from support.libraries.d3rlpy_python import python_with_d3rlpy, run
from support.needed import skip_without
from support.programs import run_python
from support.source_tree import CHECKOUT

EXAMPLES = CHECKOUT / "examples"
SOLVED = 475.0  # of at most 500: what gymnasium registers as CartPole-v1's reward threshold


def learn(name: str, packages: list[str], seed: int, folder: Path, *more: str) -> str:
    """Train, as an example does; what it prints."""
    skip_without(packages)
    arguments = ["--seed", str(seed), "--out", str(folder / "out"), *more]
    return run_python(EXAMPLES / f"{name}.py", *arguments, timeout=1_800).stdout


def mean_return(text: str) -> float:
    """The mean return of fresh episodes that an example prints at its end."""
    found = re.search(r"mean return of 20 fresh (?:greedy )?episodes: ([\d.]+)", text)
    assert found, text
    return float(found[1])


def test_ppo_learns_to_balance(tmp_path: Path) -> None:
    """An untrained network returns about 10, one that learned so long more than 400."""
    text = learn("ppo_cartpole", ["torch"], 0, tmp_path, "--steps", "16000")
    assert mean_return(text) >= 200


@pytest.mark.parametrize(
    ("example", "package", "seed"),
    [
        pytest.param("ppo_cartpole", "torch", 0, marks=pytest.mark.proof),
        *(
            pytest.param("ppo_cartpole", "torch", seed, marks=pytest.mark.full)
            for seed in (1, 2, 3, 4)
        ),
        *(
            pytest.param(example, "stable_baselines3", seed, marks=pytest.mark.full)
            for example in ("feed_sb3_ppo", "feed_sb3_dqn", "feed_cleanrl_ppo")
            for seed in (0, 1)
        ),
    ],
)
def test_cartpole_is_balanced(example: str, package: str, seed: int, tmp_path: Path) -> None:
    assert mean_return(learn(example, [package], seed, tmp_path)) >= SOLVED


@pytest.mark.full
@pytest.mark.parametrize("seed", [0, 1])
def test_agents_that_share_a_network_learn_to_spread(seed: int, tmp_path: Path) -> None:
    text = learn("ppo_many_agents", ["torch", "mpe2"], seed, tmp_path)
    found = re.search(r"episodes: (-[\d.]+), of random actions (-[\d.]+)", text)
    assert found, text
    learned, random = map(float, found.groups())
    assert learned > random + 15


@pytest.mark.full
def test_cql_doubles_the_return_of_a_medium_policy(
    tmp_path: Path, pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> None:
    skip_without(["h5py"])
    words = [str(EXAMPLES / "offline_d3rlpy.py"), "--out", str(tmp_path / "out")]
    exported = run_python(*words, "--dataset", "cartpole/medium").stdout
    python = python_with_d3rlpy(pytestconfig, tmp_path_factory)
    learned = run(python, *words, "--train", "--updates", "3000", timeout=900)
    behaviour, after, random = map(float, re.findall(r"mean return (-?[\d.]+)", exported + learned))
    assert random < 40 < behaviour
    assert after >= 2 * behaviour


def test_imitation_clones_the_expert_of_a_data_set(tmp_path: Path) -> None:
    """The block of the guide that is not run with the others, as imitation has old pins."""
    skip_without(["imitation", "stable_baselines3"])
    found = documents.blocks((CHECKOUT / "docs/train-from-a-data-set.md").read_text("utf-8"))
    tools, *_ = found
    (block,) = (one for one in found if "imitation.algorithms.bc" in "".join(one.lines))
    program = tmp_path / "program.py"
    program.write_text("\n".join([*tools.lines, *block.lines]), encoding="utf-8")
    text = run_python(program, warnings="default", env={"TMPDIR": str(tmp_path)}).stdout
    assert re.search(r"^imitation [45]\d\d\.\d", text, flags=re.MULTILINE), text
