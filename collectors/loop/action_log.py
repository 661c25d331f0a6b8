"""The actions of envs since they were last seeded, which bring them back in another process.

No env says what its state is, and few can be pickled. But an env that is reset with the same seed,
and takes the same actions, is in the same state again; that is how archives restore episodes, too.
So the actions of all envs are kept from the oldest of their newest seeds on, as they were sent:
``[T, N, ...]``, with those that an env did not use, as it was being reset. `Stepper.bring_back`
plays them. An env whose seed is younger than the oldest is reset, alone, where it was seeded: what
it plays before is dropped. Vector envs that cannot reset some envs alone are played from the last
reset of all on.

A log holds 64 MiB at most. Envs that are hardly ever seeded, and play longer, are not brought back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, cast

import numpy as np

from ...buffers import Layout, Tree
from ...buffers.base.untrusted_json import items, mapping, member, whole
from ...buffers.spec.spec import flatten, unflatten
from ...wrappers.seeded_resets import ResumedSeed, ShardSeed

_FIRST_ROOM = 256
_MOST_BYTES = 64 << 20


class Past(NamedTuple):
    """The actions of a vector env since the newest seeds of its envs."""

    seeds: list[int]
    """The seed of each env."""
    since: list[int]
    """For each env, the number of vector steps before it was seeded."""
    actions: Mapping[str, np.ndarray]
    """``[T, N, ...]`` by field name."""
    steps: int
    """Number of vector steps T."""
    is_given: bool
    """The seeds are those that the envs were given, of no shard."""


class ActionLog:
    """The actions of the envs of one vector env since their newest seeds."""

    def __init__(
        self,
        num_envs: int,
        layout: Layout,  # of the actions
        *,
        is_alone: bool,  # an env can be reset, with a seed, without the others
    ) -> None:
        self._num_envs, self._layout, self._is_alone = num_envs, layout, is_alone
        self._rows: list[np.ndarray] = []
        self._room = self._length = 0
        self._is_whole = False  # False until a reset of all, and where there was no room
        self._since = [0] * num_envs
        # The seed that each env was given, the resets since that it seeded itself, and the newest
        # of these seeds.
        self._roots: list[int | None] = [None] * num_envs
        self._numbers = [0] * num_envs
        self._own: list[int | None] = [None] * num_envs

    def begin(self) -> None:
        """All envs were reset."""
        self._rows, self._room, self._length, self._is_whole = [], 0, 0, True
        self._since = [0] * self._num_envs
        self._roots = [None] * self._num_envs

    def add(self, action: Tree) -> None:
        """Keep the actions ``[N, ...]`` of a vector step."""
        if self._length >= self._room and not self._make_room(action):
            return
        n = self._length
        if type(action) is np.ndarray:  # mostly
            self._rows[0][n] = action
        else:
            for rows, (_, leaf) in zip(self._rows, flatten(self._layout, action), strict=True):
                rows[n] = leaf
        self._length = n + 1

    def seeded(self, env: int, given: int | None, own: object) -> None:
        """The newest row of an env is that of a reset with a seed: given to it, or its own."""
        if given is not None:
            self._roots[env], self._numbers[env], self._own[env] = given, 0, None
            if isinstance(given, ResumedSeed):
                self._roots[env], self._numbers[env] = given.root, given.number
                self._own[env] = int(given)
            self._since[env] = self._length
        elif self._is_alone:
            self._numbers[env] += 1
            self._own[env] = cast("int", own)
            self._since[env] = self._length

    def restarted(self, env: int, own: object) -> None:
        """The worker process of an env died; the next one began with this seed, if it has one."""
        seed, before = cast("int | None", own), self._roots[env]
        if seed is not None and isinstance(before, ShardSeed):
            seed = ShardSeed(seed, before.count)
        self._roots[env], self._numbers[env], self._own[env] = seed, 0, None
        self._since[env] = self._length
        self._is_whole &= self._is_alone

    def state_dict(self) -> dict[str, object] | None:
        """The log as plain values and arrays; None where it does not say how to go back."""
        roots = [root for root in self._roots if root is not None]
        if not self._is_whole or len(roots) < self._num_envs:
            return None
        seeds = list(map(ResumedSeed, roots, self._numbers))
        if any(own not in (None, int(seed)) for own, seed in zip(self._own, seeds, strict=True)):
            return None  # a seed that the env has drawn in another way
        first = min(self._since)
        names = [name for name, _ in flatten(self._layout, self._layout)]
        rows = [rows[first : self._length].copy() for rows in self._rows]
        return {
            "roots": list(map(int, roots)),
            "shards": next((s.count for s in roots if isinstance(s, ShardSeed)), 1),
            "numbers": list(self._numbers),
            "since": [since - first for since in self._since],
            "steps": self._length - first,
            "actions": dict(zip(names, rows, strict=False)),  # no rows before the first step
        }

    def past_of(self, state: object) -> Past:
        """The past in a state of `state_dict` of other envs of the same kind."""
        told, n = mapping(state, "log"), self._num_envs
        steps = whole(member(told, "steps"), "steps", 0, _MOST_BYTES)
        shards = whole(member(told, "shards"), "shards", 1, 1 << 20)
        since, numbers, roots = (
            [whole(one, key, 0, most) for one in items(member(told, key), key, n)]
            for key, most in (("since", steps), ("numbers", 1 << 40), ("roots", 1 << 63))
        )
        seeds = [
            ResumedSeed(ShardSeed(root, shards) if shards > 1 else root, number)
            for root, number in zip(roots, numbers, strict=True)
        ]
        actions = mapping(member(told, "actions"), "actions")
        for name, _ in flatten(self._layout, self._layout) if steps else ():
            rows = member(actions, name)
            if not isinstance(rows, np.ndarray) or rows.shape[:2] != (steps, n):
                raise ValueError(f"{name}: expected an array of ({steps}, {n}, ...) actions")
        is_given = shards == 1 and not any(numbers)
        return Past(list(seeds), since, cast("Mapping[str, np.ndarray]", actions), steps, is_given)

    def action_of(self, past: Past, step: int) -> Tree:
        """The actions ``[N, ...]`` of a step, as they were sent."""
        return unflatten(self._layout, {name: rows[step] for name, rows in past.actions.items()})

    def _make_room(self, action: Tree) -> bool:
        """Forget what is older than all seeds, or take twice the memory; False: it is too much."""
        if not self._is_whole:
            return False
        first = min(self._since)
        kept = self._length - first
        self._since = [since - first for since in self._since]
        leaves = [np.asarray(leaf) for _, leaf in flatten(self._layout, action)]
        room = self._room
        if not room or 2 * kept >= room:
            room = max(_FIRST_ROOM, 2 * room)
            if room * sum(leaf.nbytes for leaf in leaves) > _MOST_BYTES:
                self._rows, self._room, self._length, self._is_whole = [], 0, 0, False
                return False
        before, begin, end = self._rows, first, self._length
        self._rows = [np.empty((room, *leaf.shape), leaf.dtype) for leaf in leaves]
        for old, new in zip(before, self._rows, strict=False):
            new[:kept] = old[begin:end]
        self._room, self._length = room, kept
        return True
