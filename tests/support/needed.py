"""Skips what needs a package that is not installed."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterable

import pytest

__all__ = ["imported", "skip_without"]


def imported(code: str) -> list[str]:
    """The packages that a program imports in any case, and not only in a branch or a function.

    A `try` whose `except` ends the program, with a word on what to install, is no branch.
    """
    names: list[str] = []
    body = ast.parse(code).body
    tries = [node for node in body if isinstance(node, ast.Try)]
    for each in tries:
        if all(isinstance(handler.body[-1], ast.Raise) for handler in each.handlers):
            body = [*body, *each.body]
    for node in body:
        if isinstance(node, ast.Import):
            names += [alias.name.partition(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.append(node.module.partition(".")[0])
    return names


def skip_without(packages: Iterable[str]) -> None:
    """Skip a test if one of the packages is missing; imports none: some change a process."""
    for name in packages:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"needs {name}")
