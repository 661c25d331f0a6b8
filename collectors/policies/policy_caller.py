"""Calls a policy, checks its result, and keeps the state of a recurrent one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, cast

import numpy as np
from gymnasium import spaces

from ...buffers import Field, Layout, Spec, Tree
from ...buffers.base.untrusted_json import array_like, mapping
from ...buffers.spec.exact_values import exactly
from ...buffers.spec.spec import field_of, flatten, key_of, plain_array, unflatten
from .policy import AnyPolicy, Policy, RandomPolicy, as_recurrent


class Choice(NamedTuple):
    """The actions of a policy for n envs."""

    action: Tree  # as the envs take them
    leaves: dict[str, np.ndarray]  # fields of action and extras, [n, ...] by name
    # Of the policy before the call, [n, ...] by name; empty without one
    state: dict[str, np.ndarray]


class PolicyCaller:
    """Calls a policy for n envs at a time; may return its state, arrays ``[N, ...]``, as extras."""

    def __init__(
        self,
        policy: AnyPolicy,
        space: spaces.Space[object],
        spec: Spec,
        num_envs: int,
        store_state: bool = False,
        looks: bool = True,  # at observations: it gets copies of its own
    ) -> None:
        self._call = cast("Policy", policy)
        self._recurrent = as_recurrent(policy)
        self._looks = looks and type(policy) is not RandomPolicy
        self.state: PolicyState | None = None
        if self._recurrent is not None:
            self.state = PolicyState(self._recurrent.initial_state(num_envs), num_envs)
        elif store_state:
            raise ValueError(
                "store_state=True: expected a policy with a state, got one without a method "
                "initial_state(num_envs); leave store_state out, or give the policy that method"
            )
        self._stores_state = store_state
        self.version: int | None = None
        """Number of the weights, stored as the extra ``policy_version``; None: not stored."""
        self._layout = spec.action
        self.checker = ChoiceChecker(space, spec)

    def __call__(
        self, observation: Tree, is_first: np.ndarray, env_ids: np.ndarray | None = None
    ) -> Choice:
        """Call the policy for n envs; ``env_ids`` may be left out where n is N."""
        n = len(is_first)
        if self._looks:  # it may write into what it gets, which is stored behind the call
            observation = copied(observation)
        if self.state is None or self._recurrent is None:
            result = self._call(observation, is_first)
            if isinstance(result, tuple):
                return self._choice(*split_extras(self._layout, result), {}, n)
            return self._choice(result, {}, {}, n)
        before = self.state.begin(is_first, env_ids)
        # Copied: the policy may write into its argument.
        state = self.state.tree({name: rows.copy() for name, rows in before.items()})
        action, after, extras = split_state(self._recurrent(observation, is_first, state))
        choice = self._choice(action, extras, before, n)
        self.state.put(after, env_ids, n)
        return choice

    def _choice(
        self,
        action: object,
        extras: Mapping[str, object],
        before: dict[str, np.ndarray],
        n: int,
    ) -> Choice:
        """Check the policy's result, and name its parts."""
        if before and self._stores_state:
            twice = sorted(extras.keys() & before.keys())
            if twice:
                raise ValueError(
                    f"policy returned the extra {twice[0]!r}, which store_state=True writes "
                    f"itself; give it another name"
                )
            extras = {**extras, **before}
        if self.version is not None:
            if "policy_version" in extras:
                raise ValueError(
                    "policy returned the extra 'policy_version', which is written for policies "
                    "with a method load; give it another name"
                )
            extras = {**extras, "policy_version": np.full(n, self.version, np.int64)}
        return Choice(*self.checker.check(action, extras, n), before)


class ChoiceChecker:
    """Checks actions and extras for n envs at a time, and names their parts."""

    def __init__(
        self,
        space: spaces.Space[object],
        spec: Spec,
        source: str = "policy returned",  # where they come from, for messages
        who: str = "the policy",  # who can convert them
        *,
        # They are of one env, and messages show them without the axis of envs
        is_single: bool = False,
    ) -> None:
        self._source, self._who, self._is_single = source, who, is_single
        self._layout = spec.action
        self._leaves = {
            name: (leaf, np.dtype(leaf.dtype), leaf.shape or (), outside_of(leaf))
            for name, leaf in leaf_spaces(spec.action, space)
        }
        self._extras: dict[str, np.ndarray] | None = None

    @property
    def extra_fields(self) -> list[Field]:
        """Fields for the extras of the first call."""
        return [
            field_of(name, rows.dtype, rows.shape[1:])
            for name, rows in (self._extras or {}).items()
        ]

    def check(
        self, action: object, extras: Mapping[str, object], n: int
    ) -> tuple[Tree, dict[str, np.ndarray]]:
        """The actions as the envs take them, and fields ``[n, ...]`` of action and extras."""
        # Extras of the first call determine names, dtypes and shapes.
        if isinstance(self._layout, str):
            rows = self._checked(self._layout, action, n)
            leaves, tree = {self._layout: rows}, cast("Tree", rows)
        else:
            try:
                parts = list(flatten(self._layout, action))
            except ValueError as error:
                raise ValueError(f"{self._source} another structure of actions: {error}") from None
            leaves = {name: self._checked(name, leaf, n) for name, leaf in parts}
            tree = unflatten(self._layout, leaves)
        if not extras and self._extras == {}:
            return tree, leaves
        checked = {f"extra/{name}": self.extra(name, rows, n) for name, rows in extras.items()}
        if self._extras is None:
            self._extras = checked
        if checked.keys() != self._extras.keys():
            raise self._other_extras(checked)
        for name, rows in checked.items():
            first = self._extras[name]
            if rows.dtype != first.dtype or rows.shape[1:] != first.shape[1:]:
                raise ValueError(
                    f"{self._source} extra {key_of(name)!r} of shape {rows.shape} "
                    f"and dtype {rows.dtype}, expected {(len(rows), *first.shape[1:])} and "
                    f"{first.dtype} as in the first step; convert it in {self._who}"
                )
        return tree, {**leaves, **checked}

    def refuse_unknown(self, extras: Iterable[str]) -> None:
        """Refuse names of extras that the first call did not have."""
        names = dict.fromkeys(f"extra/{name}" for name in extras)
        if self._extras is not None and not names.keys() <= self._extras.keys():
            raise self._other_extras(names)

    def _other_extras(self, extras: Mapping[str, object]) -> ValueError:
        return ValueError(
            f"{self._source} the extras {_names(extras)}, expected {_names(self._extras or {})} as "
            f"in the first step; give the same names in each"
        )

    def extra(self, name: str, rows: object, n: int) -> np.ndarray:
        """An extra of n envs as an array of numbers ``[n, ...]``."""
        array = self._array(f"extra {name!r}", rows)
        if array.dtype.kind not in "biufc" or array.ndim == 0 or len(array) != n:
            shape, wanted = array.shape, f"numbers of shape ({n}, ...): one entry for each env"
            if self._is_single:
                shape, wanted = shape[1:], "a number or an array of them"
            raise ValueError(
                f"{self._source} extra {name!r} of shape {shape} and dtype {array.dtype}, expected "
                f"{wanted}"
            )
        return array

    def _checked(self, name: str, leaf: object, n: int) -> np.ndarray:
        space, dtype, inner_shape, outside_of = self._leaves[name]
        rows = leaf if type(leaf) is np.ndarray else self._array(name, leaf)
        shape = (n, *inner_shape)
        is_same = rows.dtype == dtype
        if rows.shape != shape or not (is_same or np.can_cast(rows.dtype, dtype, "safe")):
            got, for_envs = rows.shape, f"{n} envs with "
            if self._is_single:
                got, shape, for_envs = got[1:], inner_shape, ""
            raise ValueError(
                f"{self._source} {name} of shape {got} and dtype {rows.dtype}, expected {shape} "
                f"and {dtype} for {for_envs}{space}; convert it in {self._who}"
            )
        outside = outside_of(rows)
        if outside is not None and np.count_nonzero(outside):
            first = np.argwhere(outside)[0]
            place = f" at index {first.tolist()} for {n} envs"
            if self._is_single:
                place = f" at index {first[1:].tolist()}" if len(first) > 1 else ""
            raise ValueError(
                f"{self._source} {name} {rows[tuple(first)]}{place}, expected one of {space}; "
                f"correct {self._who}"
            )
        return rows if is_same else exactly(rows, dtype, shape, f"{self._source} {name}")

    def _array(self, name: str, value: object) -> np.ndarray:
        if isinstance(value, dict | list | tuple):  # perhaps a result of another structure
            try:
                np.asarray(value)
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f"{self._source} {name} that is no array, expected one row for each env "
                    f"({error}); return extras in a dict, (action, {{'name': array}}); a policy "
                    f"with a state needs a method initial_state(num_envs)"
                ) from None
        return plain_array(f"{self._source} {name}", value, ValueError)


class PolicyState:
    """Keeps a row of state for each env, which is the initial one where an episode begins."""

    # ``initial`` is the state of N envs at an episode's beginning: arrays ``[N, ...]``, possibly
    # nested in dicts and tuples.

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
        """The state of some envs, all when None, the initial one where an episode begins."""
        first = np.flatnonzero(is_first)
        if len(first):
            envs = first if env_ids is None else env_ids[first]
            for name, rows in self._now.items():
                rows[envs] = self._initial[name][envs]
        return self.of(env_ids)

    def state_dict(self) -> dict[str, np.ndarray]:
        """Copies of all rows by name."""
        return self.of(None)

    def load_state_dict(self, state: object) -> None:
        """Continue from a state of `state_dict`."""
        told = mapping(state, "policy's state")
        given = {name: array_like(told.get(name), name, rows) for name, rows in self._now.items()}
        for name, rows in self._now.items():
            rows[:] = given[name]

    def tree(self, leaves: Mapping[str, np.ndarray]) -> Tree:
        """Rows nested as in the policy's initial state."""
        return unflatten(self.layout, leaves)

    def put(self, state: object, env_ids: np.ndarray | None, n: int) -> None:
        """Store the new state of n envs, of the structure, shapes and dtypes of the initial one."""
        try:
            leaves = [
                (name, plain_array(name, leaf, ValueError))
                for name, leaf in flatten(self.layout, state)
            ]
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


def copied(tree: Any) -> Any:
    """Nested arrays in memory of their own, for a function of the user."""
    if isinstance(tree, Mapping):
        return {key: copied(part) for key, part in tree.items()}
    return tuple(map(copied, tree)) if isinstance(tree, tuple) else tree.copy()


def split_extras(layout: Layout, result: object) -> tuple[object, Mapping[str, object]]:
    """Split the result of a policy without a state into action and extras."""
    # ``layout`` distinguishes an action that is itself a tuple from a pair of action and extras.
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)):
        return result, {}
    action, extras = cast("tuple[object, Mapping[str, object]]", result)
    if not isinstance(layout, (str, Mapping)) and len(layout) == 2:
        second = layout[1]
        if isinstance(second, Mapping) and extras.keys() == second.keys():
            return result, {}
    return action, extras


def split_state(result: object) -> tuple[object, object, Mapping[str, object]]:
    """Split the result of a policy with a state into action, state and extras."""
    parts = cast("tuple[object, ...]", result) if isinstance(result, tuple) else ()
    if len(parts) == 2:
        return parts[0], parts[1], {}
    if len(parts) == 3 and isinstance(parts[2], Mapping):
        return parts[0], parts[1], cast("Mapping[str, object]", parts[2])
    got = f"a tuple of {len(parts)}" if isinstance(result, tuple) else type(result).__name__
    raise ValueError(
        f"policy with a state returned {got}, expected (action, state) or (action, state, extras "
        f"in a dict); return one of these"
    )


def leaf_spaces(
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
    return [leaf for part, inner in pairs for leaf in leaf_spaces(part, inner)]


def outside_of(space: spaces.Space[object]) -> Callable[[np.ndarray], np.ndarray | None]:
    """A function that marks the values of actions ``[n, ...]`` outside of the space."""
    # Of a Box only NaN is outside: other numbers are left to the envs to clip.
    if isinstance(space, spaces.Discrete):
        low, high = int(space.start), int(space.start + space.n)
        if low or high < 0:
            return lambda rows: (rows < low) | (rows >= high)
        signed, unsigned, limit = np.dtype(np.int64), np.dtype(np.uint64), np.array(high, np.uint64)

        def outside_of_discrete(rows: np.ndarray) -> np.ndarray:
            if rows.dtype == signed:  # as unsigned numbers negative ones are huge
                return rows.view(unsigned) >= limit
            return (rows < 0) | (rows >= high)

        return outside_of_discrete
    if isinstance(space, spaces.MultiDiscrete):
        first, end = space.start, space.start + space.nvec
        return lambda rows: (rows < first) | (rows >= end)
    if isinstance(space, spaces.MultiBinary):
        return lambda rows: (rows != 0) & (rows != 1)
    return lambda rows: np.isnan(rows) if rows.dtype.kind == "f" else None


def _names(extras: Mapping[str, object]) -> list[str]:
    return sorted(map(key_of, extras))


def _layout_of(name: str, value: object, leaves: dict[str, object]) -> Layout:
    """Collect the leaves of a nested value by name, and return its layout."""
    if isinstance(value, Mapping):
        parts = cast("Mapping[str, object]", value)
        others = [key for key in parts if not isinstance(cast("object", key), str)]
        if others:
            raise ValueError(
                f"policy.initial_state returned the key {others[0]!r}, expected keys that are text"
            )
        return {key: _layout_of(f"{name}/{key}", part, leaves) for key, part in parts.items()}
    if isinstance(value, tuple | list):
        items = cast("tuple[object, ...]", tuple(value))
        return tuple(_layout_of(f"{name}/{i}", part, leaves) for i, part in enumerate(items))
    leaves[name] = value
    return name


def _row_of_each(name: str, leaf: object, num_envs: int) -> np.ndarray:
    rows = np.array(plain_array(f"policy.initial_state returned {name}", leaf, ValueError))
    if rows.dtype.kind not in "biufc" or rows.ndim == 0 or len(rows) != num_envs:
        raise ValueError(
            f"policy.initial_state returned {name} of shape {rows.shape} and dtype {rows.dtype}, "
            f"expected numbers of shape ({num_envs}, ...): one row for each env"
        )
    return rows
