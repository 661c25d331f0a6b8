"""The state of a recurrent policy, for all envs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np

from stepwell.buffers import Layout, Tree
from stepwell.buffers.spec import flatten, unflatten

__all__ = ["PolicyState"]


class PolicyState:
    """Keeps a row of state for each env, which is the initial one where an episode begins.

    Args:
        initial: The state of N envs at an episode's beginning: arrays ``[N, ...]``, possibly
            nested in dicts and tuples.
        num_envs: Number of envs N.

    Raises:
        ValueError: A part of the state is not an array of numbers ``[N, ...]``.
    """

    def __init__(self, initial: object, num_envs: int) -> None:
        leaves: dict[str, object] = {}
        self.layout = _layout_of("state", initial, leaves)
        self._initial = {name: _row_of_each(name, leaf, num_envs) for name, leaf in leaves.items()}
        self._now = {name: rows.copy() for name, rows in self._initial.items()}

    def of(self, env_ids: np.ndarray | None) -> dict[str, np.ndarray]:
        """Copies of the rows of some envs, ``[n, ...]`` by name."""
        if env_ids is None:
            return {name: rows.copy() for name, rows in self._now.items()}
        return {name: rows[env_ids] for name, rows in self._now.items()}

    def begin(self, is_first: np.ndarray, env_ids: np.ndarray | None) -> dict[str, np.ndarray]:
        """The state of some envs, the initial one where an episode begins.

        Args:
            is_first: [n] bool: an episode begins.
            env_ids: [n] the envs, all when None.
        """
        first = np.flatnonzero(is_first)
        if len(first):
            envs = first if env_ids is None else env_ids[first]
            for name, rows in self._now.items():
                rows[envs] = self._initial[name][envs]
        return self.of(env_ids)

    def tree(self, leaves: Mapping[str, np.ndarray]) -> Tree:
        """Rows nested as in the policy's initial state."""
        return unflatten(self.layout, leaves)

    def put(self, state: object, env_ids: np.ndarray | None, n: int) -> None:
        """Store the new state of n envs.

        Raises:
            ValueError: It has another structure, shape or dtype than the initial state.
        """
        try:
            leaves = [(name, np.asarray(leaf)) for name, leaf in flatten(self.layout, state)]
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"policy returned a state unlike its initial_state: {error}; return the same "
                f"structure of arrays"
            ) from None
        for name, rows in leaves:
            now = self._now[name]
            if rows.shape != (n, *now.shape[1:]) or rows.dtype != now.dtype:
                raise ValueError(
                    f"policy returned {name} of shape {rows.shape} and dtype {rows.dtype}, "
                    f"expected {(n, *now.shape[1:])} and {now.dtype} as in its initial_state; "
                    f"convert it in the policy"
                )
        for name, rows in leaves:
            self._now[name][slice(None) if env_ids is None else env_ids] = rows


def _layout_of(name: str, value: object, leaves: dict[str, object]) -> Layout:
    """Collect the leaves of a nested value by name, and return its layout."""
    if isinstance(value, Mapping):
        parts = cast("Mapping[str, object]", value)
        strange = [key for key in parts if not isinstance(cast("object", key), str)]
        if strange:
            raise ValueError(
                f"policy.initial_state returned the key {strange[0]!r}, expected keys that are text"
            )
        return {key: _layout_of(f"{name}/{key}", part, leaves) for key, part in parts.items()}
    if isinstance(value, tuple | list):
        items = cast("tuple[object, ...]", tuple(value))
        return tuple(_layout_of(f"{name}/{i}", part, leaves) for i, part in enumerate(items))
    leaves[name] = value
    return name


def _row_of_each(name: str, leaf: object, num_envs: int) -> np.ndarray:
    rows = np.array(leaf)
    if rows.dtype.kind not in "biufc" or rows.ndim == 0 or len(rows) != num_envs:
        raise ValueError(
            f"policy.initial_state returned {name} of shape {rows.shape} and dtype {rows.dtype}, "
            f"expected numbers of shape ({num_envs}, ...): one row for each env"
        )
    return rows
