"""Run the notebooks in examples/notebooks, and store what their cells show.

Run as `python .ci/write_notebooks.py` after a notebook, or what an object shows, has changed. It
needs nbclient and ipykernel, which the extra `docs` has.
"""

import tempfile
from pathlib import Path
from typing import Any

NOTEBOOKS = sorted((Path(__file__).parents[1] / "examples" / "notebooks").glob("*.ipynb"))
SECONDS = 300


def run(path: Path, folder: Path) -> Any:
    """Run a notebook in a folder, and return it with what its cells show.

    Raises:
        CellExecutionError: A cell has raised.
    """
    # Imported here: nothing else in this folder needs them.
    import nbclient
    import nbformat

    notebook: Any = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=SECONDS, resources={"metadata": {"path": str(folder)}}
    ).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # the times
    notebook.metadata["language_info"] = {"name": "python"}  # without the version
    return notebook


if __name__ == "__main__":
    import nbformat

    for each in NOTEBOOKS:
        with tempfile.TemporaryDirectory() as scratch:
            nbformat.write(run(each, Path(scratch)), each)
        print(f"ran {each.name}: {each.stat().st_size:,} bytes")
