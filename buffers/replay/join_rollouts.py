"""Rollouts of several vector envs, side by side as one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from ..sampling.batch import named_leaves
from .advantages import Bootstrap
from .rollout import Rollout

_OF_ROWS = (
    "observation",
    "action",
    "reward",
    "is_first",
    "terminated",
    "truncated",
    "cut",
    "mask",
    "info",
    "extras",
    "state",
)
_KINDS = {"extras": "extra", "state": "policy:state"}  # as the fields of a Spec begin


def join_rollouts(
    rollouts: Sequence[Rollout],  # at least one, with the same T and the same fields
    rng: np.random.Generator,  # shuffles the minibatches
    # an earlier result for the same groups, whose arrays are overwritten
    out: Rollout | None = None,
) -> Rollout:
    """Rollouts of G groups of envs as one, arrays ``[T, N, ...]`` with the N of all groups."""
    # The envs of the first rollout come first. Open ends are in the order of their rows, as in a
    # rollout of one vector env; the episodes that ended are in the order of the groups.
    # The groups' own generators are not used: those that came from other processes are copies,
    # which would draw the same order each time. An error is raised before anything is written.
    if not rollouts:
        raise ValueError(
            "rollouts: expected at least one to join, got none; give one of each group"
        )
    if out is not None and not isinstance(cast("object", out), Rollout):
        raise TypeError(f"out: expected a Rollout, got {type(out).__name__}; leave it out")
    steps = rollouts[0].num_steps
    for group, rollout in enumerate(rollouts):
        if rollout.num_steps != steps:
            raise ValueError(
                f"rollout of group {group}: expected {steps} rows, as in group 0, got "
                f"{rollout.num_steps}; collect the same number in each group"
            )
    first_envs = np.cumsum([0, *(rollout.num_envs for rollout in rollouts)])
    columns = _Columns(steps, first_envs, None if out is None else out.memory)
    parts = [(name, [getattr(rollout, name) for rollout in rollouts]) for name in _OF_ROWS]
    # All are checked before the first is written.
    for name, trees in parts:
        _map_trees(columns.prepare, name, trees)
    bootstrap = _bootstrap([rollout.bootstrap for rollout in rollouts], first_envs)
    initial_state = _map_trees(
        _concatenated, "initial_state", [rollout.initial_state for rollout in rollouts]
    )
    rows = {name: _map_trees(columns.filled, name, trees) for name, trees in parts}
    return Rollout(
        **rows,
        bootstrap=bootstrap,
        initial_state=initial_state,
        episode_returns=tuple(r for rollout in rollouts for r in rollout.episode_returns),
        episode_lengths=tuple(n for rollout in rollouts for n in rollout.episode_lengths),
        rng=rng,
        memory=columns.memory,
    )


class _Columns:
    """Arrays ``[T, N, ...]`` to which the groups' columns are copied."""

    def __init__(
        self, steps: int, first_envs: np.ndarray, old: Mapping[str, np.ndarray] | None
    ) -> None:
        self._steps = steps  # T
        self._first_envs = first_envs  # [G + 1]: the first column of each group, and N
        self._old = old  # arrays to be used again; None makes new ones
        self.memory: dict[str, np.ndarray] = {}

    def prepare(self, name: str, arrays: Sequence[np.ndarray]) -> None:
        """Find or make the memory of an array, by its path in the rollout."""
        shape = (int(self._first_envs[-1]), *arrays[0].shape[2:])
        dtype = arrays[0].dtype
        if self._old is None:
            self.memory[_key(name)] = np.empty((self._steps, *shape), dtype)
            return
        found = self._old.get(_key(name))
        if found is None or found.dtype != dtype or found.shape[1:] != shape:
            there = "nothing" if found is None else f"{found.dtype} {found.shape}"
            raise ValueError(
                f"out: expected a rollout with {dtype} {(self._steps, *shape)} as {name!r}, got "
                f"{there}; leave it out"
            )
        if len(found) < self._steps:
            raise ValueError(
                f"out: expected a rollout of {self._steps} rows, got {len(found)}; leave it out"
            )
        self.memory[_key(name)] = found

    def filled(self, name: str, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """Copy the columns of all groups."""
        target = self.memory[_key(name)][: self._steps]
        for first, array in zip(self._first_envs[:-1].tolist(), arrays, strict=True):
            target[:, first : first + array.shape[1]] = array
        return target


def _key(path: str) -> str:
    """The name of an array in the memory of a rollout, which is that of its field in the Spec."""
    kind, slash, rest = path.partition("/")
    return _KINDS.get(kind, kind) + slash + rest


def _bootstrap(parts: Sequence[Bootstrap], first_envs: np.ndarray) -> Bootstrap:
    """All groups' open ends, in the order of their rows; `first_envs` are the groups' columns."""
    step = np.concatenate([part.step for part in parts])
    env = np.concatenate([part.env + first for part, first in zip(parts, first_envs, strict=False)])
    order = np.lexsort((env, step))

    def ordered(name: str, arrays: Sequence[np.ndarray]) -> np.ndarray:
        return _concatenated(name, arrays)[order]

    values = [part.value for part in parts]
    asked = [part.value for part in parts if part.value is not None and len(part.step)]
    if asked:  # where nothing is open the policy is not asked, and the dtype is no one's
        values = [
            asked[0][:0] if value is not None and not len(value) else value for value in values
        ]
    trees: dict[str, list[Any]] = {
        "observation": [part.observation for part in parts],
        "state": [part.state for part in parts],
        "value": values,
    }
    joined = {name: _map_trees(ordered, f"bootstrap.{name}", of) for name, of in trees.items()}
    return Bootstrap(step[order], env[order], **joined)


def _concatenated(name: str, arrays: Sequence[np.ndarray]) -> np.ndarray:
    del name
    return np.concatenate(arrays)


# Any: values nested in any way, as a policy's state is.
def _map_trees(
    function: Callable[[str, Sequence[np.ndarray]], Any], name: str, trees: Sequence[Any]
) -> Any:
    """Apply a function to the path and the arrays of each leaf; results are nested like these."""
    first = trees[0]
    if first is None:
        _check_same(name, [tree is None for tree in trees], trees)
        return None
    if isinstance(first, Mapping):
        keys = [set(tree) if isinstance(tree, Mapping) else None for tree in trees]
        _check_same(name, keys, trees)
        return {
            key: _map_trees(function, f"{name}/{key}", [tree[key] for tree in trees])
            for key in first
        }
    if isinstance(first, tuple | list):
        _check_same(name, [(type(tree), _length(tree)) for tree in trees], trees)
        parts = [
            _map_trees(function, f"{name}/{place}", part)
            for place, part in enumerate(zip(*trees, strict=True))
        ]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    # Axes that may differ between groups: open ends K or envs N, else rows T and envs N.
    leading = 1 if name.startswith(("bootstrap", "initial_state")) else 2
    forms = [
        (tree.dtype, tree.shape[leading:]) if isinstance(tree, np.ndarray) else None
        for tree in trees
    ]
    _check_same(name, forms, trees)
    return function(name, trees)


def _length(tree: object) -> int | None:
    return len(tree) if isinstance(tree, tuple | list) else None


def _check_same(name: str, forms: Sequence[object], trees: Sequence[object]) -> None:
    """Raise ValueError where the form of a group is not that of group 0."""
    for group, form in enumerate(forms):
        if form != forms[0]:
            expected, got = (
                ", ".join(
                    f"{path} {np.asarray(leaf).dtype} {np.shape(leaf)}"
                    for path, leaf in named_leaves(name, tree)
                )
                or "nothing"
                for tree in (trees[0], trees[group])
            )
            raise ValueError(
                f"rollout of group {group}: expected {expected}, as in group 0, got {got}; make "
                f"the envs and the policy of all groups alike"
            )
