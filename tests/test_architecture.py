"""The rules of the code that can be read off the source: who imports whom, and what must not be."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import TypeVar

import pytest

from support.programs import run_python
from support.source_tree import CHECKOUT, FOLDERS, PACKAGE, folder_of, label, library_files, tree_of

FLOORS = (  # a file may import files of its own floor and of those below
    ("buffers/base",),
    ("buffers/spec",),
    ("wrappers", "buffers/pictures"),
    ("buffers/rows",),
    ("buffers/storage",),
    ("buffers/sampling",),
    ("buffers/replay",),
    ("buffers/agents", "buffers/curation"),
    ("buffers/provenance", "buffers/dropin"),
    ("buffers/view",),
    ("buffers/exchange",),
    ("buffers/libraries",),
    ("buffers/bridges", "buffers/space_json.py", "buffers/testing.py"),  # names for users
    ("buffers",),  # its own file
    ("collectors/policies",),
    ("collectors/loop",),
    ("collectors/distributed", "collectors/evaluation", "collectors/simulation"),
    ("collectors/catalogue", "collectors/person"),
    ("collectors",),  # its own file
    ("collectors/cli",),
    ("__init__.py",),
)
# The folder of the key may import the folders of the value, and nothing else of stepwell.
ALLOWED = {
    "": {"wrappers", "collectors", "buffers"},
    "wrappers": {"wrappers", "buffers.base", "buffers.spec"},
    "buffers": {"buffers"},
    "collectors": {"wrappers", "collectors", "buffers"},
}
NOT_AT_IMPORT = {
    *("av", "cv2", "ale_py", "rich", "typer"),
    *(
        "d3rlpy",
        "datasets",
        "envpool",
        "google_crc32c",
        "h5py",
        "jax",
        "minari",
        "obstore",
        "pettingzoo",
        "pyarrow",
        "ray",
        "stable_baselines3",
    ),
    *("pygame", "tensordict", "tianshou", "torch", "torchrl"),
}
PICKLERS = {"pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
NodeT = TypeVar("NodeT", bound=ast.AST)


def places(found: Iterable[tuple[Path, int, str]]) -> list[str]:
    """Places where a rule is broken, as file and line."""
    return [f"{label(file)}:{line}: {what}" for file, line, what in found]


@cache
def all_nodes() -> list[tuple[Path, ast.AST]]:
    return [(file, node) for file in library_files() for node in ast.walk(tree_of(file))]


def nodes(kind: type[NodeT]) -> Iterator[tuple[Path, NodeT]]:
    """(file, node) for all syntax nodes of the kind in the library."""
    yield from ((file, node) for file, node in all_nodes() if isinstance(node, kind))


def imports() -> Iterator[tuple[Path, int, str]]:
    """(file, line, dotted name) of everything that the library imports, at any depth."""
    for file, node in nodes(ast.Import):
        yield from ((file, node.lineno, alias.name) for alias in node.names)
    for file, source in nodes(ast.ImportFrom):
        base = source.module or ""
        if source.level:
            above = ["stepwell", *file.relative_to(PACKAGE).parts][: -source.level]
            base = ".".join([*above, base] if base else above)
        yield from ((file, source.lineno, f"{base}.{alias.name}") for alias in source.names)


def may_import(folder: str, name: str) -> bool:
    package, _, rest = name.partition(".")
    allowed = (f"{rest}.".startswith(f"{each}.") for each in ALLOWED[folder])
    return package != "stepwell" or any(allowed)


def test_a_top_level_folder_imports_only_the_folders_that_it_may() -> None:
    assert not places(found for found in imports() if not may_import(folder_of(found[0]), found[2]))


def test_the_library_imports_its_own_modules_by_relative_imports() -> None:
    own = ("stepwell", *FOLDERS)
    found = [(file, node, each.name) for file, node in nodes(ast.Import) for each in node.names]
    plain = [(file, node) for file, node in nodes(ast.ImportFrom) if not node.level]
    modules = found + [(file, node, node.module or "") for file, node in plain]
    assert not places(
        (file, node.lineno, name) for file, node, name in modules if name.split(".")[0] in own
    )


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_checkout_does_not_load_a_folder_by_its_bare_name(folder: str) -> None:
    run = run_python("-c", f"import {folder}", code=1, cwd=PACKAGE)
    assert f"import stepwell.{folder}" in run.stderr.splitlines()[-1]


def test_the_folders_of_a_checkout_are_links() -> None:
    package = CHECKOUT / "src" / "stepwell"
    if not package.is_dir() or (CHECKOUT / "PKG-INFO").exists():
        pytest.skip("no checkout: tests of an installed package, or a source archive")
    # With a file of the package beside them, Python would import the folder of a clone from above.
    assert not list(CHECKOUT.glob("*.py"))
    found = {path.name: path.is_symlink() for path in package.iterdir()}
    found.pop("__pycache__", None)
    assert found == {**dict.fromkeys(FOLDERS, True), "__init__.py": False, "py.typed": False}


@pytest.fixture(scope="module")
def loaded() -> set[str]:
    """Names in `sys.modules` after a new interpreter imported the folders."""
    code = "import json, sys, {}; print(json.dumps(list(sys.modules)))".format(
        ", ".join(f"stepwell.{folder}" for folder in FOLDERS)
    )
    # In the package's own folder the bare names could be imported too, as second classes.
    return set(json.loads(run_python("-c", code, cwd=PACKAGE).stdout))


def test_importing_stepwell_loads_no_folder_a_second_time(loaded: set[str]) -> None:
    assert sorted(loaded & set(FOLDERS)) == []
    assert loaded >= {f"stepwell.{folder}" for folder in FOLDERS}


def test_importing_stepwell_loads_nothing_heavy(loaded: set[str]) -> None:
    assert sorted(loaded & NOT_AT_IMPORT) == []


def test_buffers_pickle_nothing() -> None:
    assert not places(
        found
        for found in imports()
        if folder_of(found[0]) == "buffers" and found[2].split(".")[0] in PICKLERS
    )


def test_numpy_is_never_allowed_to_unpickle() -> None:
    assert not places(
        (file, keyword.value.lineno, ast.unparse(keyword))
        for file, keyword in nodes(ast.keyword)
        if keyword.arg == "allow_pickle"
        and not (isinstance(keyword.value, ast.Constant) and keyword.value.value is False)
    )


def floor_of(file: Path) -> int:
    """The number of the floor with the longest path that the file is, or is in."""
    names = {label(each) for each in (file, *file.parents) if each.is_relative_to(PACKAGE)}
    found = [
        (len(path), floor) for floor, paths in enumerate(FLOORS) for path in paths if path in names
    ]
    return max(found)[1]


@cache
def imported_files() -> dict[Path, dict[Path, int]]:
    """For each file of the library the files that it imports anywhere, each with a line."""
    modules = {
        "stepwell." + label(file).removesuffix(".py").replace("/", "."): file
        for file in library_files()
    }
    modules |= {
        name.removesuffix(".__init__"): file
        for name, file in modules.items()
        if name.endswith(".__init__")
    }
    found: dict[Path, dict[Path, int]] = {file: {} for file in library_files()}
    for file, line, name in imports():
        # A name of a module, or a module that is named in its package.
        target = modules.get(name) or modules.get(name.rpartition(".")[0])
        if target not in (None, file):
            found[file][target] = line
    return found


def test_a_file_imports_nothing_from_a_floor_above() -> None:
    assert not places(
        (file, line, f"imports {label(target)}")
        for file, targets in imported_files().items()
        for target, line in targets.items()
        if floor_of(file) < floor_of(target)
    )
