"""What the arrays of a rollout must look like to fit one another."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from stepwell.buffers.rollout.bootstrap import Bootstrap
from stepwell.buffers.rollout.trees import named_leaves

__all__ = ["check_bootstrap", "check_flags", "check_leaves", "row_shape"]


def row_shape(reward: np.ndarray) -> tuple[int, int]:
    """T and N.

    Raises:
        ValueError: There is no row, or another number of axes.
    """
    shape = np.shape(reward)
    if len(shape) != 2 or 0 in shape:
        raise ValueError(
            f"reward: expected shape [T, N], of one row of one env or more, got {shape}; of a "
            f"single env give [T, 1]"
        )
    return shape[0], shape[1]


def check_flags(flags: Mapping[str, np.ndarray], shape: tuple[int, int]) -> None:
    """Raise ValueError unless each, by its name, is bool [T, N]."""
    for name, flag in flags.items():
        found = np.asarray(flag)
        if found.shape != shape or found.dtype != np.bool_:
            raise ValueError(
                f"{name}: expected bool of the reward's shape {shape}, got {found.dtype} "
                f"{found.shape}; convert it"
            )


def check_leaves(name: str, tree: object, begin: tuple[int, ...], axes: str) -> None:
    """Raise ValueError unless the shape of each array of a nested value begins so.

    Args:
        name: What the error calls the value.
        tree: The value; None has no arrays.
        begin: Sizes of the first axes.
        axes: Their names.
    """
    for leaf_name, leaf in named_leaves(name, tree):
        found = np.shape(leaf)
        if found[: len(begin)] != begin:
            raise ValueError(
                f"{leaf_name}: expected a shape that begins with {axes} = {begin}, got {found}; "
                f"give one entry for each"
            )


def check_bootstrap(bootstrap: Bootstrap) -> None:
    """Raise ValueError unless all its arrays have K entries."""
    count = np.shape(bootstrap.step)[:1]
    for name, given in (("step", bootstrap.step), ("env", bootstrap.env)):
        found = np.asarray(given)
        if found.ndim != 1 or found.shape != count or found.dtype.kind not in "iu":
            raise ValueError(
                f"bootstrap.{name}: expected whole numbers [K], one for each open end, got "
                f"{found.dtype} {found.shape}; convert it"
            )
    for part in ("observation", "state", "value"):
        check_leaves(f"bootstrap.{part}", getattr(bootstrap, part), count, "[K]")
