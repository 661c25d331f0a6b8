"""Calls a policy and checks what it returns, before an env sees it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

import numpy as np
from gymnasium import spaces

from stepwell.buffers import Field, Spec, Tree
from stepwell.buffers.spec import default_codec, flatten, unflatten
from stepwell.collectors.policy import Policy

__all__ = ["PolicyCaller"]


class PolicyCaller:
    """Calls a policy for n envs at a time.

    Args:
        policy: Chooses the actions.
        space: One env's action space.
        spec: Names the parts of the action.
    """

    def __init__(self, policy: Policy, space: spaces.Space[object], spec: Spec) -> None:
        self._policy = policy
        self._layout = spec.action
        self._leaves = {name: part for name, part in _leaf_spaces(spec.action, space)}
        self._extras: dict[str, np.ndarray] | None = None

    @property
    def extra_fields(self) -> list[Field]:
        """Fields for the extras of the first call."""
        return [
            Field(name, rows.dtype.name, rows.shape[1:], default_codec(rows.dtype, rows.shape[1:]))
            for name, rows in (self._extras or {}).items()
        ]

    def __call__(
        self, observation: Tree, is_first: np.ndarray
    ) -> tuple[Tree, dict[str, np.ndarray]]:
        """The action for the envs, and the fields of action and extras ``[n, ...]`` to store.

        Raises:
            ValueError: The policy returned another shape, structure, dtype or range.
        """
        n = len(is_first)
        action, extras = self._split(self._policy(observation, is_first))
        try:
            given = list(flatten(self._layout, action))
        except ValueError as error:
            raise ValueError(f"policy returned another structure of actions: {error}") from None
        leaves = {name: self._checked(name, leaf, n) for name, leaf in given}
        checked = {f"extra/{name}": _extra(name, rows, n) for name, rows in extras.items()}
        self._check_extras(checked)
        return unflatten(self._layout, leaves), {**leaves, **checked}

    def _check_extras(self, extras: dict[str, np.ndarray]) -> None:
        """The first call settles names, dtypes and shapes."""
        if self._extras is None:
            self._extras = extras
        if extras.keys() != self._extras.keys():
            raise ValueError(
                f"policy returned the extras {_names(extras)}, expected {_names(self._extras)} as "
                f"in its first call; return the same names each time"
            )
        for name, rows in extras.items():
            first = self._extras[name]
            if rows.dtype != first.dtype or rows.shape[1:] != first.shape[1:]:
                raise ValueError(
                    f"policy returned extra {name.removeprefix('extra/')!r} of shape {rows.shape} "
                    f"and dtype {rows.dtype}, expected {(len(rows), *first.shape[1:])} and "
                    f"{first.dtype} as in its first call; convert it in the policy"
                )

    def _split(self, result: object) -> tuple[object, Mapping[str, object]]:
        """Tell a pair of action and extras from an action that is itself a tuple."""
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)):
            return result, {}
        action, extras = cast("tuple[object, Mapping[str, object]]", result)
        if not isinstance(self._layout, (str, Mapping)) and len(self._layout) == 2:
            second = self._layout[1]
            if isinstance(second, Mapping) and extras.keys() == second.keys():
                return result, {}
        return action, extras

    def _checked(self, name: str, leaf: object, n: int) -> np.ndarray:
        space = self._leaves[name]
        rows = np.asarray(leaf)
        dtype, shape = np.dtype(space.dtype), (n, *(space.shape or ()))
        if rows.shape != shape or not np.can_cast(rows.dtype, dtype, "safe"):
            raise ValueError(
                f"policy returned {name} of shape {rows.shape} and dtype {rows.dtype}, expected "
                f"{shape} and {dtype} for {n} envs with {space}; convert it in the policy"
            )
        outside = _outside(rows, space)
        if outside is not None:
            raise ValueError(
                f"policy returned {name} {outside}, expected one of {space}; mend the policy"
            )
        return rows.astype(dtype, copy=False)


def _leaf_spaces(
    layout: object, space: spaces.Space[object]
) -> list[tuple[str, spaces.Space[object]]]:
    """The plain spaces of a nested one, by field name."""
    if isinstance(layout, str):
        return [(layout, space)]
    if isinstance(layout, Mapping):
        parts = cast("spaces.Dict", space).spaces
        pairs = [(part, parts[key]) for key, part in layout.items()]
    else:
        inner_spaces = cast("Iterable[spaces.Space[object]]", space)
        pairs = list(zip(cast("list[object]", layout), inner_spaces, strict=True))
    return [leaf for part, inner in pairs for leaf in _leaf_spaces(part, inner)]


def _outside(rows: np.ndarray, space: spaces.Space[object]) -> object:
    """A value that the space does not hold; envs clip Box actions themselves, as they like."""
    if isinstance(space, spaces.Discrete):
        low, high = int(space.start), int(space.start + space.n)
        wrong = (rows < low) | (rows >= high)
    elif isinstance(space, spaces.MultiDiscrete):
        wrong = (rows < space.start) | (rows >= space.start + space.nvec)
    elif isinstance(space, spaces.MultiBinary):
        wrong = (rows != 0) & (rows != 1)
    else:
        return None
    return rows[wrong].flat[0] if np.count_nonzero(wrong) else None


def _names(extras: Mapping[str, np.ndarray]) -> list[str]:
    return sorted(name.removeprefix("extra/") for name in extras)


def _extra(name: str, rows: object, n: int) -> np.ndarray:
    array = np.asarray(rows)
    if array.dtype.kind not in "biufc" or array.ndim == 0 or len(array) != n:
        raise ValueError(
            f"policy returned extra {name!r} of shape {array.shape} and dtype {array.dtype}, "
            f"expected numbers of shape ({n}, ...): one entry for each env"
        )
    return array
