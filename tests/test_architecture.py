"""The rules of the code that can be read off the source: who imports whom, and what must not be."""

from __future__ import annotations

import ast
import json
import re
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
SMALL_FILE_LINES = 80
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
CATCH_ALL_NAMES = {"util", "utils", "helper", "helpers", "common", "misc"}
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


def is_command_line(file: Path) -> bool:
    return label(file).startswith("collectors/cli/")


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


def in_place(file: Path, node: ast.ImportFrom, name: str) -> Path | None:
    """What a relative import means where a file lies: a folder, or a file without its ending."""
    base = file.resolve().parents[node.level - 1].joinpath(*(node.module or "").split("."))
    paths = [base / name, base]
    return next((one for one in paths if one.is_dir() or one.with_suffix(".py").is_file()), None)


def test_a_tool_that_follows_no_links_sees_the_arrows_between_all_rooms() -> None:
    arrows = {
        (file.resolve().parent, target if target.is_dir() else target.parent)
        for file, node in nodes(ast.ImportFrom)
        for each in node.names
        if node.level and (target := in_place(file, node, each.name))
    }
    by_name = {
        (file.parent.resolve(), target.parent.resolve())
        for file, targets in imported_files().items()
        for target in targets
        if file.parent != target.parent and PACKAGE not in (file.parent, target.parent)
    }
    assert len(by_name) > 80
    assert by_name <= arrows


def test_the_package_root_holds_one_python_file() -> None:
    assert [file.name for file in PACKAGE.glob("*.py")] == ["__init__.py"]


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


def test_every_folder_with_modules_is_a_package() -> None:
    folders = {file.parent for file in library_files()}
    assert [label(folder) for folder in folders if not (folder / "__init__.py").exists()] == []


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


def test_the_library_does_not_print() -> None:
    assert not places(
        (file, call.lineno, ast.unparse(call))
        for file, call in nodes(ast.Call)
        if isinstance(call.func, ast.Name) and call.func.id == "print"
        if not is_command_line(file)
    )


def passed_through(function: ast.FunctionDef) -> Iterator[ast.Call]:
    """Calls that pass on the function's own `**kwargs`."""
    if not function.args.kwarg:
        return
    for call in ast.walk(function):
        if isinstance(call, ast.Call):
            handed_on = [keyword.value for keyword in call.keywords if keyword.arg is None]
            names = [value.id for value in handed_on if isinstance(value, ast.Name)]
            if function.args.kwarg.arg in names:
                yield call


def test_keyword_arguments_are_not_passed_through() -> None:
    assert not places(
        (file, call.lineno, ast.unparse(call))
        for file, function in nodes(ast.FunctionDef)
        for call in passed_through(function)
    )


def test_there_is_no_global_statement() -> None:
    assert not places((file, node.lineno, "global") for file, node in nodes(ast.Global))


def test_no_module_has_a_name_that_takes_anything() -> None:
    vague = [file for file in library_files() if CATCH_ALL_NAMES & set(file.stem.split("_"))]
    assert not [label(file) for file in vague]


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


def circles() -> Iterator[list[str]]:
    """Files that import one another, directly or not."""
    reached: dict[Path, set[Path]] = {}
    for file in library_files():
        seen: set[Path] = set()
        rest = list(imported_files()[file])
        while rest:
            if (target := rest.pop()) not in seen:
                seen.add(target)
                rest += imported_files()[target]
        reached[file] = seen
    together = {
        frozenset(other for other in seen if file in reached[other])
        for file, seen in reached.items()
        if file in seen
    }
    yield from (sorted(map(label, circle)) for circle in together)


def test_files_do_not_import_one_another_in_a_circle() -> None:
    assert sorted(circles()) == []


def test_a_small_private_file_with_one_user_is_a_part_of_that_user() -> None:
    users: dict[Path, set[Path]] = {}
    for file, targets in imported_files().items():
        for target in targets:
            users.setdefault(target, set()).add(file)
    assert not [
        f"{label(file)} ({lines} lines) belongs in {label(user)}"
        for file, (user, *others) in sorted(users.items())
        if not others and "__init__.py" not in (user.name, file.name)
        if (lines := sum(map(bool, map(str.strip, file.read_text("utf-8").splitlines()))))
        < SMALL_FILE_LINES
    ]


def decorators(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    return {ast.unparse(decorator).split(".")[-1] for decorator in node.decorator_list}


def undocumented(file: Path, node: ast.AST) -> Iterator[tuple[Path, int, str]]:
    """Public classes, functions and methods below a node that have no docstring."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if child.name.startswith("_") or decorators(child) & {"overload", "override", "setter"}:
            continue
        if not ast.get_docstring(child):
            yield file, child.lineno, child.name
        if isinstance(child, ast.ClassDef):
            yield from undocumented(file, child)


def test_every_public_thing_has_a_docstring() -> None:
    assert not places(
        found for file in library_files() for found in undocumented(file, tree_of(file))
    )


def test_no_docstring_begins_with_a_question() -> None:
    """The first line says what a thing is or does."""
    question = re.compile(r"(What|Where|Whether|How|Who)\b")
    begun = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)
    assert not [
        f"{label(file)}: {text.splitlines()[0]}"
        for file, node in all_nodes()
        if isinstance(node, begun) and question.match(text := ast.get_docstring(node) or "")
    ]


def test_every_module_says_what_it_is_for() -> None:
    assert not [label(file) for file in library_files() if not ast.get_docstring(tree_of(file))]
