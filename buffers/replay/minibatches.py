"""Minibatches of a rollout: rows, or sequences, in random order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from ..base.number_checks import whole_number
from ..base.optional_libraries import pytree, tell_jax
from ..sampling.batch import BatchParts, map_tree
from ..sampling.tensors import converter
from ..spec.spec import ArrayTree

_NOT_OF_ROWS = ("state", "step", "env")


@pytree
@dataclass(frozen=True, slots=True, repr=False)
class Minibatch(BatchParts):
    """Rows of a rollout in memory that the caller owns: ``[B, ...]``, or sequences ``[T, B, ...]``.

    With ``to="torch"`` tensors are in place of the arrays.

    Args:
        observation: Observations, nested like the env's space.
        action: Actions chosen from them, nested like the env's space.
        reward: Rewards of the actions, float32.
        is_first: The observation is that of a reset, bool: a recurrent policy starts from its
            initial state.
        terminated: The MDP ended with the step from this row, bool.
        truncated: The env's clock ended the episode with the step from this row, bool.
        mask: A step was taken from this row, bool; always in flat minibatches. Leave rows without
            out of the loss.
        info: Declared info fields that came with the step, by name.
        extras: The policy's extras for the row, by name.
        advantage: From `Rollout.advantages`, in the dtype of the values; None before it was called.
        returns: From the same call, in the same dtype; None before it.
        state: A recurrent policy's state before each sequence's first row, ``[B, ...]``; None in
            flat minibatches, and for a policy without.
        step: [B] int64: index of the row, or of the sequence's first row.
        env: [B] int64: the column.
    """

    observation: ArrayTree
    action: ArrayTree
    reward: np.ndarray
    is_first: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    mask: np.ndarray
    info: Mapping[str, np.ndarray]
    extras: Mapping[str, np.ndarray]
    advantage: np.ndarray
    returns: np.ndarray
    state: Any  # a policy's state is nested in any way, often a tuple
    step: np.ndarray
    env: np.ndarray


class IndexBatches:
    """Draws batches of indices, each index once an epoch, and makes minibatches of them."""

    def __init__(
        self,
        batch_size: int,
        epochs: int,
        rng: np.random.Generator,  # draws an order for each epoch when that begins
        drop_last: bool,  # leave out an epoch's last batch if it is smaller
        to: str,
        device: object,
    ) -> None:
        self._batch_size = whole_number("batch_size", batch_size, 1)
        self._epochs = whole_number("epochs", epochs, 1)
        if not isinstance(rng, np.random.Generator):
            raise TypeError(
                f"rng: expected a numpy Generator, got {rng!r}; np.random.default_rng(seed) is one"
            )
        self._rng = rng
        self._drop_last = drop_last
        tell_jax()
        self._convert = converter(to, device)

    def check_most(self, most: int, what: str) -> None:
        """Raise ValueError if ``drop_last`` would leave out every batch."""
        if self._drop_last and self._batch_size > most:
            raise ValueError(
                f"batch_size: expected at most the {most} {what} that there are, as drop_last=True "
                f"leaves out smaller minibatches, got {self._batch_size}; take fewer"
            )

    def batches(self, count: int, pick: Callable[[np.ndarray], Minibatch]) -> Iterator[Minibatch]:
        """Minibatches picked by numbers below ``count``."""
        stop = count - count % self._batch_size if self._drop_last else count
        for _ in range(self._epochs):
            order = self._rng.permutation(count)
            for start in range(0, stop, self._batch_size):
                found = pick(order[start : start + self._batch_size])
                yield found if self._convert is None else self._convert(found)


def row_batches(rows: Minibatch, order: IndexBatches) -> Iterator[Minibatch]:
    """The rows with ``mask``, of all [T, N, ...]; see `Rollout.minibatches`."""
    order.check_most(rows.mask.size, "rows")
    step, env = np.nonzero(rows.mask)

    def pick(k: np.ndarray) -> Minibatch:
        return _picked(rows, (step[k], env[k]), None, step[k], env[k])

    return order.batches(len(step), pick)


def sequence_batches(
    rows: Minibatch,  # all, [T, N, ...], with the `state` before each
    initial_state: object,  # before row 0, if that before the other rows is not known
    order: IndexBatches,
    length: int | None,  # rows of a sequence; all when None
) -> Iterator[Minibatch]:
    """The columns, or chunks of them; see `Rollout.sequences`."""
    num_steps, num_envs = rows.mask.shape
    span = num_steps if length is None else whole_number("length", length, 1)
    if num_steps % span:
        raise ValueError(
            f"length: expected a divisor of the rollout's {num_steps} rows, got {span}; collect "
            f"a multiple of it"
        )
    if rows.state is None and initial_state is not None and span != num_steps:
        raise ValueError(
            f"length: expected {num_steps}, all rows, as the policy's state is known before the "
            f"first one alone, got {span}; give the rollout the state [T, N, ...] of each row"
        )
    firsts = np.arange(0, num_steps, span)
    order.check_most(len(firsts) * num_envs, "sequences")
    steps, envs = np.repeat(firsts, num_envs), np.tile(np.arange(num_envs), len(firsts))

    def pick(k: np.ndarray) -> Minibatch:
        step, env = steps[k], envs[k]
        if rows.state is not None:
            state = map_tree(lambda array: array[step, env], rows.state)
        else:  # then all begin at row 0
            state = map_tree(lambda array: array[env], initial_state)
        numbers = step + np.arange(span)[:, None], env[None]
        return _picked(rows, numbers, state, step, env)

    return order.batches(len(steps), pick)


def _picked(
    rows: Minibatch,
    numbers: tuple[np.ndarray, np.ndarray],
    state: object,
    step: np.ndarray,
    env: np.ndarray,
) -> Minibatch:
    """Copies of rows, in the shape of their numbers; ``state``, ``step`` and ``env`` are given."""

    def picked(array: np.ndarray) -> np.ndarray:
        found: np.ndarray = array[numbers]
        return found

    names = [field.name for field in fields(Minibatch) if field.name not in _NOT_OF_ROWS]
    picks = {name: map_tree(picked, getattr(rows, name)) for name in names}
    return replace(rows, **picks, state=state, step=step, env=env)
