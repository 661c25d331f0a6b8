"""Minibatches of a rollout: rows, or sequences, in random order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, cast

import numpy as np

from ..base.number_checks import whole_number
from ..base.optional_libraries import pytree, tell_jax
from ..sampling.batch import BatchParts, map_tree
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
    """Draws batches of indices, each index once an epoch."""

    def __init__(
        self,
        batch_size: int,
        epochs: int,
        rng: np.random.Generator,  # draws an order for each epoch when that begins
        drop_last: bool,  # leave out an epoch's last batch if it is smaller
    ) -> None:
        self._batch_size = whole_number("batch_size", batch_size, 1)
        self._epochs = whole_number("epochs", epochs, 1)
        if not isinstance(rng, np.random.Generator):
            raise TypeError(
                f"rng: expected a numpy Generator, got {rng!r}; np.random.default_rng(seed) is one"
            )
        self._rng = rng
        self._drop_last = drop_last

    def check_most(self, most: int, what: str) -> None:
        """Raise ValueError if ``drop_last`` would leave out every batch."""
        if self._drop_last and self._batch_size > most:
            raise ValueError(
                f"batch_size: expected at most the {most} {what} that there are, as drop_last=True "
                f"leaves out smaller minibatches, got {self._batch_size}; take fewer"
            )

    def batches(self, count: int) -> Iterator[np.ndarray]:
        """Numbers below ``count``, a batch at a time."""
        stop = count - count % self._batch_size if self._drop_last else count
        for _ in range(self._epochs):
            order = self._rng.permutation(count)
            for start in range(0, stop, self._batch_size):
                yield order[start : start + self._batch_size]


def row_batches(
    rows: Minibatch,  # all, [T, N, ...]
    order: IndexBatches,
    to: str,
    device: object,
) -> Iterator[Minibatch]:
    """The rows with ``mask``; see `Rollout.minibatches`."""
    convert = _converter(to, device)
    order.check_most(rows.mask.size, "rows")
    step, env = np.nonzero(rows.mask)
    return (convert(_rows(rows, step[k], env[k])) for k in order.batches(len(step)))


def sequence_batches(
    rows: Minibatch,  # all, [T, N, ...], with the `state` before each
    initial_state: object,  # before row 0, if that before the other rows is not known
    order: IndexBatches,
    length: int | None,  # rows of a sequence; all when None
    to: str,
    device: object,
) -> Iterator[Minibatch]:
    """The columns, or chunks of them; see `Rollout.sequences`."""
    convert = _converter(to, device)
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
    step, env = np.repeat(firsts, num_envs), np.tile(np.arange(num_envs), len(firsts))
    return (
        convert(_sequences(rows, initial_state, step[k], env[k], span))
        for k in order.batches(len(step))
    )


def _converter(to: str, device: object) -> Callable[[Minibatch], Minibatch]:
    """Return a function that converts a minibatch of arrays."""
    if to not in ("numpy", "torch"):
        raise ValueError(f"to: expected 'numpy' or 'torch', got {to!r}; pass one of them")
    tell_jax()
    if to == "torch":
        from ..sampling.tensors import ToTensors

        return cast("Callable[[Minibatch], Minibatch]", ToTensors(device))
    if device is not None:
        raise ValueError(
            f"device: expected None with to='numpy', got {device!r}; pass to='torch' with it"
        )
    return lambda minibatch: minibatch


def _rows(rows: Minibatch, step: np.ndarray, env: np.ndarray) -> Minibatch:
    return replace(_picked(rows, (step, env)), state=None, step=step, env=env)


def _sequences(
    rows: Minibatch, initial_state: object, step: np.ndarray, env: np.ndarray, length: int
) -> Minibatch:
    """Sequences [length, B] that begin at rows [B]."""
    if rows.state is not None:
        state = map_tree(lambda array: array[step, env], rows.state)
    else:  # then all begin at row 0
        state = map_tree(lambda array: array[env], initial_state)
    found = _picked(rows, (step + np.arange(length)[:, None], env[None]))
    return replace(found, state=state, step=step, env=env)


def _picked(rows: Minibatch, numbers: tuple[np.ndarray, np.ndarray]) -> Minibatch:
    """Copies of rows, in the shape of their numbers; ``state`` is not indexed."""

    def picked(array: np.ndarray) -> np.ndarray:
        found: np.ndarray = array[numbers]
        return found

    names = [field.name for field in fields(Minibatch) if field.name not in _NOT_OF_ROWS]
    return replace(rows, **{name: map_tree(picked, getattr(rows, name)) for name in names})
