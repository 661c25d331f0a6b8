"""Writes rows into a rollout's arrays as they come, each once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

import numpy as np

from stepwell.buffers import Spec
from stepwell.buffers.sampling.batch import under
from stepwell.buffers.spec import ArrayTree, unflatten
from stepwell.collectors.policies.policy_state import PolicyState
from stepwell.collectors.step_result import StepResult

if TYPE_CHECKING:
    from stepwell.buffers import Rollout
    from stepwell.buffers.rollout.rollout import Bootstrap

__all__ = ["RolloutWriter", "Value"]

Value: TypeAlias = "Callable[..., object]"
_Leaves = Mapping[str, np.ndarray]
_Place: TypeAlias = "int | tuple[np.ndarray, np.ndarray]"
_FLAGS = ("is_first", "terminated", "truncated", "cut", "mask")
_STATE = "policy:"  # no field of a Spec begins like that
# Beyond the T rows: the newest one, and one more where only the next step tells what ended.
_SPARE_ROWS = 2


class _End(NamedTuple):
    """An open end after which the next row's observation is that of a reset."""

    step: int
    env: int
    leaves: _Leaves


class RolloutWriter:
    """The rows ``[T, N, ...]`` under way, aligned as transitions.

    A row begins with an observation, is completed by an action, and is closed by what that brought:
    the next arrival of its env. Envs that run ahead of the others write rows beyond the T that were
    asked for; these, and rows that are not closed yet, begin the next rollout.

    Args:
        num_envs: Number of envs N.
        spec: The fields of observations, actions and info.
        state: A recurrent policy's state.
    """

    def __init__(self, num_envs: int, spec: Spec, state: PolicyState | None) -> None:
        self._all = np.arange(num_envs)
        self._spec = spec
        self._state = state
        self.forget()

    def forget(self) -> None:
        """What comes next has nothing to do with the rows so far."""
        n = len(self._all)
        self._steps = 0
        self._arrays: dict[str, np.ndarray] = {}
        self._old: _Leaves = {}  # arrays to be written anew
        self._row = np.zeros(n, np.int64)  # where each env's newest row is
        self._even: int | None = 0  # the same for all envs, as nearly always
        self._is_there = np.zeros(n, np.bool_)  # that row has its observation
        self._is_chosen = np.zeros(n, np.bool_)  # and its action
        self._ends: list[_End] = []

    @property
    def is_empty(self) -> bool:
        """Nothing is known of any env's newest row."""
        return not self._is_there.any()

    @property
    def is_complete(self) -> bool:
        """All envs have closed their T rows."""
        return self.has_all_of(None)

    @property
    def is_nearly_complete(self) -> bool:
        """So they will have, once what came last is observed."""
        if self._even is not None and self._even + 1 < self._steps:
            return False
        return bool((self._row + self._is_chosen >= self._steps).all())

    def has_all_of(self, env_ids: np.ndarray | None) -> bool:
        """Whether some envs, all when None, have closed their T rows."""
        if self._even is not None:
            return self._even >= self._steps
        return bool((self._row[slice(None) if env_ids is None else env_ids] >= self._steps).all())

    def check_out(self, out: Rollout, steps: int) -> None:
        """Refuse a rollout that these rows do not fit in.

        Raises:
            TypeError: It is none.
            ValueError: It has other arrays.
        """
        from stepwell.buffers import Rollout

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
        """Get ready for T rows of each env, after those that are left over.

        Args:
            steps: Number of rows T.
            out: A rollout whose arrays are written anew.
        """
        done, self._steps = self._steps, steps
        count = 0 if self.is_empty else int(self._row.max()) - done + 1
        # Copies: these may be the very arrays that are written anew.
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
        self._row -= np.where(self._is_there, done, self._row)
        self._look_at_rows()
        self._ends = [end._replace(step=end.step - done) for end in self._ends if end.step >= done]

    def observe(self, arrival: StepResult) -> None:
        """Close the rows from which a step was taken, and begin the next ones."""
        envs = self._all if arrival.env_ids is None else arrival.env_ids
        chosen, first = self._is_chosen[envs], arrival.is_first
        if first is None:
            self._close(arrival, envs, chosen)
        else:
            self._keep_last(envs[first & ~chosen])
            self._lose(envs[first & chosen])
            self._close(arrival, envs, chosen & ~first)
        if first is None and envs is self._all and chosen.all() and self._even is not None:
            self._even += 1
        else:
            self._look_at_rows()
        self._make_room()
        place = self._place(envs)
        for name, rows in arrival.leaves.items():
            if not name.startswith("info/"):
                self._arrays[name][place] = rows
        self._arrays["is_first"][place] = False if first is None else first
        self._is_chosen[envs] = False
        self._is_there[envs] = True

    def act(self, leaves: _Leaves, state: _Leaves, env_ids: np.ndarray | None) -> None:
        """Complete the newest rows with what was chosen from them.

        Args:
            leaves: Actions and extras ``[n, ...]`` by field name.
            state: The policy's state before, ``[n, ...]`` by name.
            env_ids: [n] the envs, all when None.
        """
        envs = self._all if env_ids is None else env_ids
        place = self._place(envs)
        states = {_STATE + name: rows for name, rows in state.items()}
        for name, rows in {**leaves, **states}.items():
            if name not in self._arrays:  # the first call settles extras and state
                self._make(name, len(self._arrays["mask"]), rows.shape[1:], rows.dtype)
            self._arrays[name][place] = rows
        self._is_chosen[envs] = True

    def finish(
        self,
        value: Value | None,
        returns: Sequence[float],
        lengths: Sequence[int],
        rng: np.random.Generator,
    ) -> Rollout:
        """The T rows.

        Args:
            value: Gives the values of the observations to bootstrap from.
            returns: Returns of the episodes that ended.
            lengths: Their lengths.
            rng: Shuffles the minibatches.

        Raises:
            ValueError: The values are no floats ``[K]``.
        """
        from stepwell.buffers import Rollout

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
            info=under("info/", rows),
            extras=under("extra/", rows),
            bootstrap=self._bootstrap(value, rows),
            state=self._tree(rows),
            initial_state=self._tree({name: array[0].copy() for name, array in rows.items()}),
            episode_returns=tuple(returns),
            episode_lengths=tuple(lengths),
            rng=rng,
            memory=self._arrays,
        )

    def _keep_last(self, envs: np.ndarray) -> None:
        """Save the last observations of truncated episodes, before a reset's take their place."""
        for env in envs[self._is_there[envs] & (self._row[envs] > 0)].tolist():
            row = int(self._row[env])
            before = {name: bool(self._arrays[name][row - 1, env]) for name in _FLAGS}
            if before["truncated"] and not before["terminated"]:
                self._ends.append(_End(row - 1, env, self._newest(row, env)))

    def _newest(self, row: int, env: int) -> _Leaves:
        """An env's newest observation, and the policy's state that belongs to it."""
        leaves = {
            name: rows[row, env].copy()
            for name, rows in self._arrays.items()
            if name.split("/")[0] == "observation"
        }
        state = {} if self._state is None else self._state.of(np.array([env]))
        return {**leaves, **{_STATE + name: rows[0] for name, rows in state.items()}}

    def _lose(self, envs: np.ndarray) -> None:
        """Rows whose action went nowhere, as the env was reset instead: their mask stays False."""
        for env in envs.tolist():
            row, arrays = int(self._row[env]), self._arrays
            if row > 0 and arrays["mask"][row - 1, env]:
                ended = arrays["terminated"][row - 1, env] or arrays["truncated"][row - 1, env]
                arrays["cut"][row - 1, env] = not ended
        self._row[envs] += 1

    def _close(self, arrival: StepResult, envs: np.ndarray, closed: np.ndarray) -> None:
        """What arrived is what the marked rows' actions brought."""
        some: slice | np.ndarray = slice(None)
        if np.count_nonzero(closed) < len(envs):
            some, envs = closed, envs[closed]
        place = self._place(envs)
        self._arrays["reward"][place] = arrival.reward[some]
        self._arrays["mask"][place] = True
        for name, flags in (("terminated", arrival.terminated), ("truncated", arrival.truncated)):
            if flags is not None:
                self._arrays[name][place] = flags[some]
        for name, rows in arrival.leaves.items():
            if name.startswith("info/"):
                self._arrays[name][place] = rows[some]
        self._row[envs] += 1

    def _place(self, envs: np.ndarray) -> _Place:
        """Where the newest rows of some envs are: mostly one row of the arrays."""
        if self._even is not None and envs is self._all:
            return self._even
        return self._row[envs], envs

    def _look_at_rows(self) -> None:
        first = int(self._row[0])
        self._even = first if (self._row == first).all() else None

    def _make(
        self, name: str, rows: int, shape: tuple[int, ...], dtype: np.dtype[np.generic]
    ) -> None:
        """An array for a field, taken over from the old rollout where it fits."""
        array = self._old.get(name)
        full = (rows, len(self._all), *shape)
        if (
            array is None
            or array.dtype != dtype
            or array.shape[1:] != full[1:]
            or len(array) < rows
        ):
            array = np.empty(full, dtype)
        if name in _FLAGS or name == "reward" or name.startswith("info/"):
            array[...] = 0
        self._arrays[name] = array

    def _make_room(self) -> None:
        """Make all arrays longer where an env has run far ahead of the others."""
        newest = int(self._row.max()) if self._even is None else self._even
        rows, needed = len(self._arrays["mask"]), newest + 1
        if needed <= rows:
            return
        self._old = {}
        for name, before in list(self._arrays.items()):
            self._make(name, needed + rows // 2, before.shape[2:], before.dtype)
            self._arrays[name][:rows] = before[:rows]

    def _bootstrap(self, value: Value | None, rows: _Leaves) -> Bootstrap:
        from stepwell.buffers.rollout.rollout import Bootstrap

        is_open = rows["truncated"] | rows["cut"]
        is_open[-1] = True
        step, env = np.nonzero(is_open & rows["mask"] & ~rows["terminated"])
        leaves = self._after(step, env)
        observation: Any = unflatten(self._spec.observation, leaves)
        state = self._tree(leaves)
        values = None
        if value is not None and len(step):
            given = value(observation) if self._state is None else value(observation, state)
            values = _checked_values(given, len(step))
        elif value is not None:
            values = np.zeros(0, np.float32)
        return Bootstrap(step, env, observation, state, values)

    def _after(self, step: np.ndarray, env: np.ndarray) -> dict[str, np.ndarray]:
        """Observations and states ``[K, ...]`` that followed on some rows, by name."""
        leaves = {
            name: array[step + 1, env]
            for name, array in self._arrays.items()
            if name.startswith(_STATE) or name.split("/")[0] == "observation"
        }
        if self._state is not None:
            # From the newest rows nothing was chosen yet: what the policy came to is their state.
            newest = (step + 1 == self._row[env]) & ~self._is_chosen[env]
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
        """The policy's state among some leaves, nested as the policy has it."""
        return None if self._state is None else self._state.tree(under(_STATE, leaves))


def _checked_values(given: object, k: int) -> np.ndarray:
    values = np.asarray(given)
    if values.shape != (k,) or values.dtype.kind != "f":
        raise ValueError(
            f"policy.value returned shape {values.shape} and dtype {values.dtype} for {k} "
            f"observations, expected floats of shape ({k},); convert them in the policy"
        )
    return values
