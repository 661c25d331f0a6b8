"""The rows of one collect call, for on-policy learners; those of several groups joined."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast, overload

import numpy as np
import numpy.typing as npt

from ..base import forks
from ..base.other_names import OtherNames
from ..sampling.batch import batch_html, map_tree, named_leaves, one_line
from ..spec.spec import ArrayTree
from .advantages import (
    Bootstrap,
    BootstrapValue,
    RowFlags,
    bootstrap_values,
    check_finite,
    generalized_advantages,
    row_numbers,
)
from .minibatches import IndexBatches, Minibatch, row_batches, sequence_batches

__all__ = ["Bootstrap", "Rollout"]


@dataclass(slots=True, eq=False, repr=False)
class Rollout(OtherNames):
    """Rows of one collect call, arrays ``[T, N, ...]``; it may start and end inside episodes.

    Row ``t`` holds the observation, the action chosen from it, and the result of that action.

    Args:
        observation: Observations, nested like the env's space; stacks of frames in full.
        action: Actions, nested like the env's space.
        reward: [T, N] float32: the reward of ``action[t]``.
        is_first: [T, N] bool: ``observation[t]`` is that of a reset.
        terminated: [T, N] bool: the MDP ended with the step from row t.
        truncated: [T, N] bool: a time limit ended the episode with the step from row t.
        cut: [T, N] bool: the recording stopped with the step from row t.
        mask: [T, N] bool: a step was taken from this row. It is False for the row in which a
            NEXT_STEP env resets: its observation is the true last one of the episode, and its
            action had no effect. Also False for a row in which a worker died.
        info: Declared info fields that came with the step from row t, [T, N, ...] by name.
        extras: The policy's extras for row t, [T, N, ...] by name, such as ``"log_prob"``.
        bootstrap: The open ends.
        state: A recurrent policy's state before each row, [T, N, ...]; None for one without.
        initial_state: A recurrent policy's state before row 0, [N, ...]; None for one without.
        episode_returns: Total rewards of the episodes that ended in this rollout, in that order.
        episode_lengths: Their numbers of steps.
        rng: Default generator for shuffling minibatches.

    Raises:
        ValueError: Shapes or dtypes of the arrays are inconsistent.

    Example:
        Two rows of one env, whose episode continues with an observation of value 3:

        >>> nowhere = np.zeros((2, 1), bool)
        >>> rollout = Rollout(
        ...     observation=np.arange(2.0).reshape(2, 1),
        ...     action=np.zeros((2, 1), np.int64),
        ...     reward=np.ones((2, 1), np.float32),
        ...     is_first=np.array([[True], [False]]),
        ...     terminated=nowhere,
        ...     truncated=nowhere,
        ...     cut=nowhere,
        ...     mask=~nowhere,
        ...     info={},
        ...     extras={"value": np.array([[1.0], [2.0]])},
        ...     bootstrap=Bootstrap(np.array([1]), np.array([0]), np.array([2.0]), None, None),
        ...     rng=np.random.default_rng(0),
        ... )
        >>> rollout
        Rollout(steps=2; episodes=0; open_ends=1; observation, extras/value: float64 (2, 1);
        action: int64 (2, 1); reward: float32 (2, 1);
        is_first, terminated, truncated, cut, mask: bool (2, 1))
        >>> advantages, returns = rollout.advantages(
        ...     gamma=1.0, lam=1.0, bootstrap_value=lambda observation: observation + 1
        ... )
        >>> advantages.ravel(), returns.ravel()
        (array([4., 2.]), array([5., 4.]))
        >>> [minibatch.returns.tolist() for minibatch in rollout.minibatches(1)]
        [[5.0], [4.0]]
    """

    observation: ArrayTree
    action: ArrayTree
    reward: np.ndarray
    is_first: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    cut: np.ndarray
    mask: np.ndarray
    info: Mapping[str, np.ndarray]
    extras: Mapping[str, np.ndarray]
    bootstrap: Bootstrap = field(repr=False)
    state: Any | None = None
    initial_state: Any | None = None
    episode_returns: tuple[float, ...] = field(default=(), repr=False)
    episode_lengths: tuple[int, ...] = field(default=(), repr=False)
    rng: np.random.Generator = field(default_factory=forks.generator, repr=False)
    memory: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray], repr=False)
    """The memory behind the arrays, which ``out=`` uses for the next rollout."""
    advantage: np.ndarray | None = field(default=None, init=False)
    """[T, N]: the ``advantage`` of the minibatches: the last result of `advantages`, or an array
    assigned since; None before."""
    returns: np.ndarray | None = field(default=None, init=False)
    """[T, N]: the ``returns`` of the minibatches."""

    def __post_init__(self) -> None:
        shape = np.shape(self.reward)
        if len(shape) != 2 or 0 in shape:
            raise ValueError(
                f"reward: expected shape [T, N], of one row of one env or more, got {shape}; of a "
                f"single env give [T, 1]"
            )
        for name, flag in self._flags._asdict().items():
            _check_array(name, flag, shape, "b", f"bool of the reward's shape {shape}")
        for name in ("observation", "action", "info", "extras", "state"):
            _check_leaves(name, getattr(self, name), shape, "[T, N]")
        _check_leaves("initial_state", self.initial_state, shape[1:], "[N]")
        ends, count = self.bootstrap._asdict(), (np.size(self.bootstrap.step),)
        for name in ("step", "env"):
            expected = "whole numbers [K], one for each open end"
            _check_array(f"bootstrap.{name}", ends[name], count, "iu", expected)
        for name in ("observation", "state", "value"):
            _check_leaves(f"bootstrap.{name}", ends[name], count, "[K]")

    @property
    def _flags(self) -> RowFlags:
        return RowFlags(self.is_first, self.terminated, self.truncated, self.cut, self.mask)

    def __repr__(self) -> str:
        return one_line(self, **self._counts)

    def _repr_html_(self) -> str | None:
        return batch_html(self, **self._counts)

    @property
    def _counts(self) -> dict[str, int]:
        episodes, open_ends = len(self.episode_returns), len(self.bootstrap.step)
        return {"steps": self.steps, "episodes": episodes, "open_ends": open_ends}

    @property
    def num_steps(self) -> int:
        """Rows of each env, T."""
        return int(self.reward.shape[0])

    @property
    def num_envs(self) -> int:
        """Envs, N."""
        return int(self.reward.shape[1])

    @property
    def steps(self) -> int:
        """Env steps that were taken: rows with ``mask``."""
        return int(np.count_nonzero(self.mask))

    def advantages(
        self,
        gamma: float,
        lam: float,
        *,
        value: npt.ArrayLike | None = None,
        bootstrap_value: BootstrapValue | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Estimate how much better each action was than the policy's average.

        Generalized advantage estimation (GAE, Schulman et al. 2016, arXiv:1506.02438). The value
        after a row is 0 where the MDP terminated, also if the time limit was reached in the same
        step; that of the true last observation where the episode was truncated or cut, or the
        rollout ends; else that of the next row. The sum never crosses the end of an episode.

        The same arrays are stored as `advantage` and `returns` for the minibatches, and replace
        earlier ones. They are not normalised: normalise each minibatch, or assign to `advantage`.

        Args:
            gamma: Discount of a step, from 0 to 1.
            lam: Lambda, from 0 to 1: 0 looks one step ahead, 1 to the episode's end.
            value: V of each row's observation, [T, N] floats; the extra ``"value"`` when None.
                A tensor is detached: no gradient flows through.
            bootstrap_value: V of the open ends' observations, [K]; or a function that returns
                them, called once as ``f(observation)``, or for a recurrent policy as
                ``f(observation, state)``, with those of `bootstrap`. None for the results of
                the policy's ``value`` method.

        Returns:
            Advantages [T, N], and returns [T, N], which are advantages plus values, the targets
            of a value function. Both are computed in float64, have the dtype of the values, and
            are 0 where ``mask`` is False.

        Raises:
            ValueError: Values are missing, of another shape, or not finite in a row with ``mask``;
                gamma or lam is out of range; or an end is marked wrongly.
        """
        flags = self._flags
        values = self._values(value)
        check_finite("reward", self.reward, self.mask, "correct the env, or the rollout's reward")
        flags.check_ends(self.bootstrap)
        following = np.zeros(self.mask.shape)
        following[:-1] = values[1:]
        open_ends = (self.bootstrap.step, self.bootstrap.env)
        following[open_ends] = bootstrap_values(self.bootstrap, bootstrap_value)
        advantage = generalized_advantages(
            self.reward,
            values,
            following,
            terminated=self.terminated,
            ends=flags.ends,
            gamma=gamma,
            lam=lam,
            mask=self.mask,
        )
        returns = advantage + np.where(self.mask, values, 0)
        self.advantage = advantage.astype(values.dtype)
        self.returns = returns.astype(values.dtype)
        return self.advantage, self.returns

    @overload
    def minibatches(
        self,
        batch_size: int,
        epochs: int = 1,
        *,
        rng: np.random.Generator | None = None,
        drop_last: bool = False,
        to: Literal["numpy"] = "numpy",
        device: object = None,
    ) -> Iterator[Minibatch]: ...

    @overload
    def minibatches(
        self,
        batch_size: int,
        epochs: int = 1,
        *,
        rng: np.random.Generator | None = None,
        drop_last: bool = False,
        to: Literal["torch"],
        device: object = None,
    ) -> Iterator[Any]: ...

    def minibatches(
        self,
        batch_size: int,
        epochs: int = 1,
        *,
        rng: np.random.Generator | None = None,
        drop_last: bool = False,
        to: Literal["numpy", "torch"] = "numpy",
        device: object = None,
    ) -> Iterator[Minibatch]:
        """Yield rows with ``mask``, each once an epoch, in a new random order each epoch.

        Args:
            batch_size: Rows of a minibatch, B >= 1.
            epochs: Number of passes over all rows, >= 1.
            rng: Shuffles them; None for the rollout's own generator.
            drop_last: Leave out the last minibatch of an epoch where it is smaller: it may have a
                single row, which has no standard deviation to normalise by.
            to: ``"torch"`` puts tensors in place of the arrays.
            device: Where torch puts the tensors, such as ``"cuda"``; None leaves them on the CPU.

        Returns:
            Minibatches, arrays ``[B, ...]`` in new memory, copied one minibatch at a time;
            `advantage` and `returns` are those at the time of this call.

        Raises:
            ValueError: A number is out of range, or options do not go together.
            ImportError: ``to="torch"``, and PyTorch is not installed.
        """
        rng = self.rng if rng is None else rng
        order = IndexBatches(batch_size, epochs, rng, drop_last, to, device)
        return row_batches(self._all(), order)

    @overload
    def sequences(
        self,
        batch_size: int,
        epochs: int = 1,
        *,
        length: int | None = None,
        rng: np.random.Generator | None = None,
        drop_last: bool = False,
        to: Literal["numpy"] = "numpy",
        device: object = None,
    ) -> Iterator[Minibatch]: ...

    @overload
    def sequences(
        self,
        batch_size: int,
        epochs: int = 1,
        *,
        length: int | None = None,
        rng: np.random.Generator | None = None,
        drop_last: bool = False,
        to: Literal["torch"],
        device: object = None,
    ) -> Iterator[Any]: ...

    def sequences(
        self,
        batch_size: int,
        epochs: int = 1,
        *,
        length: int | None = None,
        rng: np.random.Generator | None = None,
        drop_last: bool = False,
        to: Literal["numpy", "torch"] = "numpy",
        device: object = None,
    ) -> Iterator[Minibatch]:
        """Yield sequences of each env's rows, each once an epoch, for recurrent policies.

        A sequence has all its rows, also those without ``mask``: leave them out of the loss. Where
        ``is_first`` is set within a sequence, the policy was reset to its initial state.

        Args:
            batch_size: Sequences of a minibatch, B >= 1.
            epochs: Number of passes over all sequences, >= 1.
            length: Rows of a sequence, a divisor of T; T when None.
            rng: Shuffles them; None for the rollout's own generator.
            drop_last: Leave out the last minibatch of an epoch where it is smaller.
            to: ``"torch"`` puts tensors in place of the arrays.
            device: Where torch puts the tensors, such as ``"cuda"``; None leaves them on the CPU.

        Returns:
            Minibatches, arrays ``[length, B, ...]`` in new memory, with the ``state`` before the
            first row ``[B, ...]``; else as in `minibatches`.

        Raises:
            ValueError: A number is out of range, options do not go together, or there are no states
                for the length.
            ImportError: ``to="torch"``, and PyTorch is not installed.
        """
        rng = self.rng if rng is None else rng
        order = IndexBatches(batch_size, epochs, rng, drop_last, to, device)
        return sequence_batches(self._all(), self.initial_state, order, length)

    def _values(self, given: npt.ArrayLike | None) -> np.ndarray:
        """V of each row's observation, [T, N] floats; the extra ``"value"`` when None is given."""
        name = "value"
        if given is None:
            if "value" not in self.extras:
                names = ", ".join(map(repr, self.extras)) or "none"
                raise ValueError(
                    f"value: expected an extra 'value' [T, N], got extras {names}; "
                    f"let the policy return it, or pass value="
                )
            name, given = "extra 'value'", self.extras["value"]
        values = row_numbers(name, given, self.mask.shape)
        if values.dtype.kind != "f":
            raise ValueError(
                f"{name}: expected floats, as the advantages have its dtype, got {values.dtype}; "
                f"convert it"
            )
        check_finite(name, values, self.mask, "check the inputs of the value function")
        return values

    def _all(self) -> Minibatch:
        """All rows as one minibatch, [T, N, ...]: the arrays themselves."""
        for name, array in (("advantage", self.advantage), ("returns", self.returns)):
            if array is not None and array.shape != self.mask.shape:
                raise ValueError(
                    f"{name}: expected the rollout's shape {self.mask.shape}, got {array.shape}; "
                    f"assign one number for each row"
                )
        return Minibatch(
            observation=self.observation,
            action=self.action,
            reward=self.reward,
            is_first=self.is_first,
            terminated=self.terminated,
            truncated=self.truncated,
            mask=self.mask,
            info=self.info,
            extras=self.extras,
            advantage=cast("np.ndarray", self.advantage),
            returns=cast("np.ndarray", self.returns),
            state=self.state,
            step=np.arange(self.num_steps),
            env=np.arange(self.num_envs),
        )


def check_rollout(caller: str, given: object) -> None:
    """Refuse what is no rollout, in a call of ``caller``."""
    if not isinstance(given, Rollout):
        raise TypeError(
            f"{caller}: expected a Rollout, got a {type(given).__name__}; give what "
            f"collector.rollout(steps) returned"
        )


def _check_array(
    name: str,
    given: object,
    shape: tuple[int, ...],
    kinds: str,  # of dtypes
    expected: str,  # for the message
) -> None:
    """Raise ValueError for an array of another shape, or another kind of dtype."""
    found = np.asarray(given)
    if found.shape != shape or found.dtype.kind not in kinds:
        raise ValueError(
            f"{name}: expected {expected}, got {found.dtype} {found.shape}; convert it"
        )


def _check_leaves(
    name: str,
    tree: object,  # None has no arrays
    begin: tuple[int, ...],
    axes: str,  # names of the first axes
) -> None:
    """Raise ValueError unless the shape of each array of a nested value begins with `begin`."""
    for leaf_name, leaf in named_leaves(name, tree):
        found = np.shape(leaf)
        if found[: len(begin)] != begin:
            raise ValueError(
                f"{leaf_name}: expected a shape that begins with {axes} = {begin}, got {found}; "
                f"give one entry for each"
            )


_OF_ROWS = ("observation", "action", "reward", *RowFlags._fields, "info", "extras", "state")
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
    memory: dict[str, np.ndarray] = {}
    copies: list[tuple[np.ndarray, Sequence[np.ndarray]]] = []

    def room(path: str, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """The array that the columns of all groups are copied to, once all are checked."""
        shape, dtype = (steps, int(first_envs[-1]), *arrays[0].shape[2:]), arrays[0].dtype
        kind, slash, rest = path.partition("/")
        name = _KINDS.get(kind, kind) + slash + rest  # that of its field in the Spec
        if out is None:
            memory[name] = np.empty(shape, dtype)
        else:
            memory[name] = _checked_room(out.memory.get(name), path, shape, dtype)
        copies.append((memory[name][:steps], arrays))
        return memory[name][:steps]

    rows = {
        name: _joined(name, [getattr(one, name) for one in rollouts], room) for name in _OF_ROWS
    }
    bootstrap = _bootstrap([rollout.bootstrap for rollout in rollouts], first_envs)
    states = [rollout.initial_state for rollout in rollouts]
    initial_state = _joined("initial_state", states, lambda _, arrays: np.concatenate(arrays))
    for target, arrays in copies:
        np.concatenate(arrays, 1, out=target)
    return Rollout(
        **rows,
        bootstrap=bootstrap,
        initial_state=initial_state,
        episode_returns=tuple(r for rollout in rollouts for r in rollout.episode_returns),
        episode_lengths=tuple(n for rollout in rollouts for n in rollout.episode_lengths),
        rng=rng,
        memory=memory,
    )


def _checked_room(
    found: np.ndarray | None, path: str, shape: tuple[int, ...], dtype: np.dtype[np.generic]
) -> np.ndarray:
    """An array of an earlier rollout that has room for such rows."""
    if found is None or found.dtype != dtype or found.shape[1:] != shape[1:]:
        there = "nothing" if found is None else f"{found.dtype} {found.shape}"
        raise ValueError(
            f"out: expected a rollout with {dtype} {shape} as {path!r}, got {there}; leave it out"
        )
    if len(found) < shape[0]:
        raise ValueError(
            f"out: expected a rollout of {shape[0]} rows, got {len(found)}; leave it out"
        )
    return found


def _bootstrap(parts: Sequence[Bootstrap], first_envs: np.ndarray) -> Bootstrap:
    """All groups' open ends, in the order of their rows; `first_envs` are the groups' columns."""
    step = np.concatenate([part.step for part in parts])
    env = np.concatenate([part.env + first for part, first in zip(parts, first_envs, strict=False)])
    order = np.lexsort((env, step))
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
    joined = {
        name: _joined(f"bootstrap.{name}", of, lambda _, arrays: np.concatenate(arrays)[order])
        for name, of in trees.items()
    }
    return Bootstrap(step[order], env[order], **joined)


# Any: values nested in any way, as a policy's state is.
def _joined(
    name: str, trees: Sequence[Any], join: Callable[[str, Sequence[np.ndarray]], np.ndarray]
) -> Any:
    """One value nested like those of all groups, of arrays joined by their paths."""
    # Axes that may differ between groups: open ends K or envs N, else rows T and envs N.
    leading = 1 if name.startswith(("bootstrap", "initial_state")) else 2

    def form_of(leaf: np.ndarray) -> tuple[object, ...]:
        return np.asarray(leaf).dtype, np.shape(leaf)[leading:]

    forms = [map_tree(form_of, tree) for tree in trees]
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
    leaves = [dict(named_leaves(name, tree)) for tree in trees]
    joined = iter([join(path, [each[path] for each in leaves]) for path in leaves[0]])
    return map_tree(lambda _: next(joined), trees[0])
