"""`__all__` of each top-level folder: sorted, importable, documented."""

from __future__ import annotations

import importlib
import importlib.metadata
from types import FunctionType, ModuleType

import pytest

import stepwell
from support.source_tree import FOLDERS, PUBLIC_MODULES

each_folder = pytest.mark.parametrize("folder", [*FOLDERS, "buffers.bridges"])


def load(folder: str) -> ModuleType:
    return importlib.import_module(f"stepwell.{folder}")


def public_names(module: ModuleType) -> list[str]:
    """The names that an editor completes; some are imported when they are first used."""
    return [name for name in dir(module) if not name.startswith("_") and name not in FOLDERS]


def classes_and_functions(module: ModuleType) -> dict[str, type | FunctionType]:
    """The public names of a module, less constants and names of types."""
    named = {name: getattr(module, name) for name in module.__all__}
    kinds = (type, FunctionType)
    return {name: value for name, value in named.items() if isinstance(value, kinds)}


def reading_order(name: str) -> tuple[int, str]:
    """Constants, then classes, then functions, each by name."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


@pytest.mark.parametrize("module", [name for name in PUBLIC_MODULES if "dropin" not in name])
def test_the_list_of_names_is_what_can_be_imported_sorted(module: str) -> None:
    loaded = importlib.import_module(module)
    assert loaded.__all__ == sorted(set(public_names(loaded)), key=reading_order)


def test_the_version_is_the_installed_one() -> None:
    assert stepwell.__version__ == importlib.metadata.version("stepwell")


@each_folder
def test_each_public_name_is_defined_in_its_own_folder(folder: str) -> None:
    module = load(folder)
    homes = {name: value.__module__ for name, value in classes_and_functions(module).items()}
    room = f"stepwell.{folder.partition('.')[0]}."  # bridges has names of other rooms
    assert not {name: home for name, home in homes.items() if not home.startswith(room)}


def test_the_top_level_exports_the_same_objects_as_the_folders() -> None:
    for name in public_names(stepwell):
        owners = [folder for folder in map(load, FOLDERS) if name in folder.__all__]
        assert len(owners) == 1, f"{name} is offered by {len(owners)} folders"
        assert getattr(stepwell, name) is getattr(owners[0], name)
