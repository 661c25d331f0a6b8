"""The policy that the user names on the command line."""

from __future__ import annotations

import inspect
from typing import cast

from stepwell.collectors.cli.load import load_object, refuse_signature
from stepwell.collectors.policies.policy import AnyPolicy, RandomPolicy, check_policy

__all__ = ["load_policy"]


def load_policy(name: str) -> AnyPolicy:
    """The policy that ``--policy`` names.

    Args:
        name: "random", or "module:callable". A class is made, without arguments; anything else is
            the policy itself and is called with observations and ``is_first``.

    Raises:
        ValueError: There is no such thing.
        TypeError: It cannot be called like that.

    Example:
        >>> type(load_policy("random")).__name__
        'RandomPolicy'
    """
    if name == "random":
        return RandomPolicy()
    if ":" not in name:
        raise ValueError(f"--policy: expected 'random' or 'module:callable', got {name!r}")
    found = load_object("--policy", name)
    if inspect.isclass(found):
        refuse_signature(
            f"--policy {name}", found, 0, "no arguments, since a class is made before it is called"
        )
        found = found()
    check_policy(found, f"--policy {name}")
    return cast("AnyPolicy", found)
