"""Each notebook in examples/notebooks runs, shows what is stored in it, and is small."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from support.needed import skip_without
from support.source_tree import CHECKOUT
from support.tiers import proofs_but

NOTEBOOKS = sorted((CHECKOUT / "examples" / "notebooks").glob("*.ipynb"))
RUNNER = CHECKOUT / ".ci" / "write_notebooks.py"
NEEDS = {"train_on_sequences": ("torch",)}
MOST_BYTES = 100_000

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def shown_by(cells: list[Any]) -> list[list[list[str]]]:
    """The kinds of the outputs of each cell."""
    return [
        [sorted(each.get("data", [each["output_type"]])) for each in cell.get("outputs", [])]
        for cell in cells
    ]


@pytest.mark.parametrize(
    "path",
    proofs_but([path for path in NOTEBOOKS if path.stem == "collect_and_look"], NOTEBOOKS),
    ids=lambda path: path.stem,
)
@pytest.mark.filterwarnings("ignore")  # of Jupyter's own
def test_a_notebook_runs_and_shows_what_is_stored_in_it(path: Path, tmp_path: Path) -> None:
    skip_without(("nbclient", "ipykernel", *NEEDS.get(path.stem, ())))
    if not RUNNER.is_file():
        pytest.skip("needs a checkout")
    run = runpy.run_path(str(RUNNER))["run"]
    stored = json.loads(path.read_text(encoding="utf-8"))["cells"]
    assert shown_by(run(path, tmp_path).cells) == shown_by(stored), "run .ci/write_notebooks.py"


@each_notebook
def test_the_stored_outputs_are_small_and_name_nobody(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text) < MOST_BYTES
    code = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert any(cell["outputs"] for cell in code)
    outputs = json.dumps([cell["outputs"] for cell in code])
    folders = [f"/{name}/" for name in ("home", "root", "tmp", "Users")]
    for word in (*folders, "Traceback", '"stderr"'):
        assert word not in outputs
