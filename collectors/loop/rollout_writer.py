"""Writes rows into the arrays of a rollout, each row once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

import numpy as np

from ...buffers import Spec
from ...buffers.spec.spec import ArrayTree, FieldKind, key_of, kind_of, unflatten
from ..policies.policy_caller import PolicyState, copied
from .step_result import StepResult

if TYPE_CHECKING:
    from ...buffers import Rollout
    from ...buffers.replay.rollout import Bootstrap

Value: TypeAlias = "Callable[..., object]"
_Leaves = Mapping[str, np.ndarray]
_Place: TypeAlias = "int | tuple[np.ndarray, np.ndarray]"
_FLAGS = ("is_first", "terminated", "truncated", "cut", "mask")
_STATE = "policy:"  # no field of a Spec begins like that
# Beyond the T rows: the newest one, and one more where only the next step shows what ended.
_SPARE_ROWS = 2


class _OpenEnd(NamedTuple):
    """An open end after which the next row's observation is that of a reset."""

    step: int
    env: int
    leaves: _Leaves


class RolloutWriter:
    """Writes rows ``[T, N, ...]`` of rollouts that follow each other, aligned as transitions."""

    # A row begins with an observation, is completed by an action, and is closed by the action's
    # result: the next one of its env. Envs that run ahead of the others write rows beyond T; these,
    # and rows that are not closed yet, begin the next rollout. ``state`` is a recurrent policy's.

    def __init__(self, num_envs: int, spec: Spec, state: PolicyState | None) -> None:
        self._all = np.arange(num_envs)
        self._spec = spec
        self._observed = [field.name for field in spec.of_kind("observation")]
        self._infos = [field.name for field in spec.of_kind("info")]
        self._state = state
        self.forget()

    def forget(self) -> None:
        """Drop the rows so far: the next ones do not continue them."""
        n = len(self._all)
        self._steps = 0
        self._arrays: dict[str, np.ndarray] = {}
        self._old: _Leaves = {}  # arrays to be reused
        self._row = np.zeros(n, np.int64)  # index of each env's newest row
        self._common_row: int | None = 0  # the same for all envs, as nearly always
        self._has_observation = np.zeros(n, np.bool_)  # of the newest row
        self._has_action = np.zeros(n, np.bool_)
        self._ends: list[_OpenEnd] = []

    @property
    def is_empty(self) -> bool:
        """No env has a newest row."""
        return not self._has_observation.any()

    @property
    def is_complete(self) -> bool:
        """All envs have closed their T rows."""
        return self.has_all_of(None)

    @property
    def is_nearly_complete(self) -> bool:
        """All envs will have closed their T rows once the newest result is observed."""
        if self._common_row is not None and self._common_row + 1 < self._steps:
            return False
        return bool((self._row + self._has_action >= self._steps).all())

    def has_all_of(self, env_ids: np.ndarray | None) -> bool:
        """Test whether some envs, all when None, have closed their T rows."""
        if self._common_row is not None:
            return self._common_row >= self._steps
        return bool((self._row[slice(None) if env_ids is None else env_ids] >= self._steps).all())

    @property
    def steps_left(self) -> int:
        """Vector steps until all envs that are at the same row have closed their T rows."""
        return 1 if self._common_row is None else max(1, self._steps - self._common_row)

    def check_out(self, out: Rollout, steps: int) -> None:
        """Refuse a rollout whose arrays these rows do not fit, in shape or dtype."""
        from ...buffers import Rollout

        if not isinstance(out, Rollout):
            raise TypeError(f"out: expected a Rollout, got {type(out).__name__}; leave it out")
        shape = (steps, len(self._all))
        if out.reward.shape != shape:
            raise ValueError(
                f"out: expected a rollout of shape {shape}, got {out.reward.shape}; leave it out"
            )
        for field in self._spec.fields:
            array = out.memory.get(field.name)
            there = "nothing" if array is None else f"{array.dtype} {array.shape[2:]}"
            if field.name != "reward" and there != f"{field.numpy_dtype} {field.source_shape}":
                raise ValueError(
                    f"out: expected a rollout with {field.numpy_dtype} {field.source_shape} as "
                    f"{field.name!r}, got {there}; leave it out"
                )

    def begin(self, steps: int, out: Rollout | None) -> None:
        """Prepare for T rows of each env, of which those beyond the last rollout are the first."""
        done, self._steps = self._steps, steps
        count = 0 if self.is_empty else int(self._row.max()) - done + 1
        # Copies: these may be the very arrays that are reused.
        left = {name: rows[done : done + count].copy() for name, rows in self._arrays.items()}
        self._old = {} if out is None else out.memory
        self._arrays = {}
        rows = max(steps + _SPARE_ROWS, count)
        for name in _FLAGS:
            self._make(name, rows, (), np.dtype(np.bool_))
        self._make("reward", rows, (), np.dtype(np.float32))
        for field in self._spec.fields:
            if field.name != "reward":
                self._make(field.name, rows, field.source_shape, field.numpy_dtype)
        for name, values in left.items():
            if name not in self._arrays:
                self._make(name, rows, values.shape[2:], values.dtype)
            self._arrays[name][:count] = values
        self._row -= np.where(self._has_observation, done, self._row)
        self._find_common_row()
        self._ends = [end._replace(step=end.step - done) for end in self._ends if end.step >= done]

    def observe(self, result: StepResult) -> None:
        """Close the rows that have their action, and begin the next ones."""
        envs = self._all if result.env_ids is None else result.env_ids
        acted, first = self._has_action[envs], result.is_first
        # As nearly always: all envs go on to the next row together.
        acting = np.count_nonzero(acted)
        in_step = self._common_row is not None and acting == len(self._all)
        closed = acted
        if first is not None:
            if in_step:
                self._mask_out(first.nonzero()[0])
                closed = ~first
            else:
                self._save_last(envs[first & ~acted])
                self._mask_out(envs[first & acted])
                closed = acted & ~first
        if acting:  # the row that a rollout begins with, after `collect`, has no info
            self._close(result, envs, closed)
        if in_step:
            assert self._common_row is not None
            self._row += 1
            self._common_row += 1
        else:
            self._row[envs[acted]] += 1
            self._find_common_row()
        self._grow()
        place = self._place(envs)
        for name in self._observed:
            self._arrays[name][place] = result.leaves[name]
        self._arrays["is_first"][place] = False if first is None else first
        if in_step:
            self._has_action.fill(False)
        else:
            self._has_action[envs] = False
            self._has_observation[envs] = True

    def act(self, leaves: _Leaves, state: _Leaves, env_ids: np.ndarray | None) -> None:
        """Complete the newest rows with actions and extras, and the state before, ``[n, ...]``."""
        # All are by name; ``env_ids`` [n] are the envs, all when None.
        envs = self._all if env_ids is None else env_ids
        place = self._place(envs)
        if state:
            leaves = {**leaves, **{_STATE + name: rows for name, rows in state.items()}}
        for name, rows in leaves.items():
            if name not in self._arrays:  # the first call determines extras and state
                self._make(name, len(self._arrays["mask"]), rows.shape[1:], rows.dtype)
            self._arrays[name][place] = rows
        if env_ids is None:
            self._has_action.fill(True)
        else:
            self._has_action[envs] = True

    def finish(
        self,
        value: Value | None,  # returns values of the observations to bootstrap from: floats [K]
        returns: Sequence[float],  # of the episodes that ended, as the lengths
        lengths: Sequence[int],
        rng: np.random.Generator,  # shuffles the minibatches
    ) -> Rollout:
        """The rollout of the T rows."""
        from ...buffers import Rollout

        rows = {name: array[: self._steps] for name, array in self._arrays.items()}
        return Rollout(
            observation=cast("ArrayTree", unflatten(self._spec.observation, rows)),
            action=cast("ArrayTree", unflatten(self._spec.action, rows)),
            reward=rows["reward"],
            is_first=rows["is_first"],
            terminated=rows["terminated"],
            truncated=rows["truncated"],
            cut=rows["cut"],
            mask=rows["mask"],
            info=_of_kind("info", rows),
            extras=_of_kind("extra", rows),
            bootstrap=self._bootstrap(value, rows),
            state=self._tree(rows),
            initial_state=self._tree({name: array[0].copy() for name, array in rows.items()}),
            episode_returns=tuple(returns),
            episode_lengths=tuple(lengths),
            rng=rng,
            memory=self._arrays,
        )

    def _save_last(self, envs: np.ndarray) -> None:
        """Save the last observations of truncated episodes, before the reset's replace them."""
        for env in envs[self._has_observation[envs] & (self._row[envs] > 0)].tolist():
            row = int(self._row[env])
            before = {name: bool(self._arrays[name][row - 1, env]) for name in _FLAGS}
            if before["truncated"] and not before["terminated"]:
                leaves = {name: self._arrays[name][row, env].copy() for name in self._observed}
                # The policy's state that belongs to the observation.
                state = {} if self._state is None else self._state.of(np.array([env]))
                leaves |= {_STATE + name: rows[0] for name, rows in state.items()}
                self._ends.append(_OpenEnd(row - 1, env, leaves))

    def _mask_out(self, envs: np.ndarray) -> None:
        """Skip rows whose action was not used, as the env was reset: their mask stays False."""
        arrays = self._arrays
        for env in envs.tolist():
            row = self._row.item(env)
            if row > 0 and arrays["mask"][row - 1, env]:
                ended = arrays["terminated"][row - 1, env] or arrays["truncated"][row - 1, env]
                arrays["cut"][row - 1, env] = not ended

    def _close(self, result: StepResult, envs: np.ndarray, closed: np.ndarray) -> None:
        """Complete the marked rows with the result of their actions."""
        columns = {"reward": result.reward}
        if result.terminated is not None:
            columns["terminated"] = result.terminated
        if result.truncated is not None:
            columns["truncated"] = result.truncated
        for name in self._infos:
            columns[name] = result.leaves[name]
        arrays, row = self._arrays, self._common_row
        if row is not None and envs is self._all:
            arrays["mask"][row] = closed
            for name, column in columns.items():
                where = closed.reshape(-1, *(1,) * (column.ndim - 1))  # for info with a shape
                np.copyto(arrays[name][row], column, "unsafe", where)
            return
        place = self._place(envs[closed])
        arrays["mask"][place] = True
        for name, column in columns.items():
            arrays[name][place] = column[closed]

    def _place(self, envs: np.ndarray) -> _Place:
        """Index of the newest rows of some envs in the arrays: mostly a single row."""
        if self._common_row is not None and envs is self._all:
            return self._common_row
        return self._row[envs], envs

    def _find_common_row(self) -> None:
        first = int(self._row[0])
        self._common_row = first if (self._row == first).all() else None

    def _make(
        self, name: str, rows: int, shape: tuple[int, ...], dtype: np.dtype[np.generic]
    ) -> None:
        """Make the array of a field, or reuse the old rollout's where it fits."""
        array = self._old.get(name)
        full = (rows, len(self._all), *shape)
        if (
            array is None
            or array.dtype != dtype
            or array.shape[1:] != full[1:]
            or len(array) < rows
        ):
            array = np.empty(full, dtype)
        if name in _FLAGS or kind_of(name) in ("reward", "info"):
            array[...] = 0
        self._arrays[name] = array

    def _grow(self) -> None:
        """Grow all arrays where an env has run far ahead of the others."""
        newest = int(self._row.max()) if self._common_row is None else self._common_row
        rows, needed = len(self._arrays["mask"]), newest + 1
        if needed <= rows:
            return
        self._old = {}
        for name, before in list(self._arrays.items()):
            self._make(name, needed + rows // 2, before.shape[2:], before.dtype)
            self._arrays[name][:rows] = before[:rows]

    def _bootstrap(self, value: Value | None, rows: _Leaves) -> Bootstrap:
        from ...buffers.replay.rollout import Bootstrap

        is_open = rows["truncated"] | rows["cut"]
        is_open[-1] = True
        step, env = np.nonzero(is_open & rows["mask"] & ~rows["terminated"])
        leaves = self._after(step, env)
        observation: Any = unflatten(self._spec.observation, leaves)
        state = self._tree(leaves)
        values = None
        if value is not None and len(step):
            given = copied(observation)
            result = value(given) if self._state is None else value(given, copied(state))
            values = np.asarray(result)
            if values.shape != step.shape or values.dtype.kind != "f":
                raise ValueError(
                    f"policy.value returned shape {values.shape} and dtype {values.dtype} for "
                    f"{len(step)} observations, expected floats of shape {step.shape}; convert "
                    f"them in the policy"
                )
        elif value is not None:
            values = np.zeros(0, np.float32)
        return Bootstrap(step, env, observation, state, values)

    def _after(self, step: np.ndarray, env: np.ndarray) -> dict[str, np.ndarray]:
        """Observations and states ``[K, ...]`` that follow on some rows, by name."""
        leaves = {
            name: array[step + 1, env]
            for name, array in self._arrays.items()
            if name.startswith(_STATE) or kind_of(name) == "observation"
        }
        if self._state is not None:
            # From the newest rows no action was chosen yet: the policy's state now is theirs.
            newest = (step + 1 == self._row[env]) & ~self._has_action[env]
            for name, now in self._state.of(env[newest]).items():
                leaves[_STATE + name][newest] = now
        places = {place: k for k, place in enumerate(zip(step.tolist(), env.tolist(), strict=True))}
        for end in self._ends:
            k = places.get((end.step, end.env))
            if k is not None:
                for name, leaf in end.leaves.items():
                    leaves[name][k] = leaf
        return leaves

    def _tree(self, leaves: _Leaves) -> Any:
        """The policy's state among some leaves, nested as the policy returns it."""
        if self._state is None:
            return None
        prefix = len(_STATE)
        parts = {name[prefix:]: rows for name, rows in leaves.items() if name.startswith(_STATE)}
        return self._state.tree(parts)


def _of_kind(kind: FieldKind, rows: _Leaves) -> dict[str, np.ndarray]:
    """The arrays of the fields of a kind, by key."""
    return {key_of(name): array for name, array in rows.items() if kind_of(name) == kind}
