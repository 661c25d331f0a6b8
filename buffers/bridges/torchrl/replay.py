"""A replay with the methods of TorchRL's replay buffers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from stepwell.buffers.bridges.torchrl.batches import (
    Keyed,
    as_tensordict,
    load_tensordict,
    sequence_columns,
    to_tensordict,
)
from stepwell.buffers.bridges.torchrl.recorded import streams_of
from stepwell.buffers.curation.episode_writer import EpisodeWriter
from stepwell.buffers.replay import SequenceReplayBuffer
from stepwell.buffers.sampling.requests import Draw, Hindsight, Sequences, Transitions

__all__ = ["TorchRLReplay", "as_torchrl_replay"]


def as_torchrl_replay(
    replay: SequenceReplayBuffer,
    batch_size: int | None = None,
    *,
    n_step: int = 1,
    gamma: float = 0.99,
    slice_len: int | None = None,
    draw: Draw = "steps",
    beta: float = 0.4,
    stack: bool = True,
    relabel: Hindsight | None = None,
    one_hot: int | None = None,
    device: object = None,
    priority_key: str = "td_error",
) -> TorchRLReplay:
    """Give a replay the methods of a ``torchrl.data.ReplayBuffer``.

    Args:
        replay: The replay to draw from and write into.
        batch_size: Rows of a batch, where `sample` gets no number.
        n_step: Env steps of a transition, with ``steps_to_next_obs``; give the loss the same gamma.
        gamma: Discount of a step within n-step rewards.
        slice_len: Give slices of this many rows of one episode, one after the other as a
            ``SliceSampler`` gives them: flat, with ``("next", "truncated")`` and ``("next",
            "done")`` set at the end of each, and ``is_init`` at the beginning. Transitions when
            None.
        draw: The way they are drawn; see `SequenceReplayBuffer.sample_sequences`.
        beta: With ``draw="priorities"`` exponent of ``priority_weight``.
        stack: Give frame-stacked observations as the env gave them.
        relabel: Give some transitions a goal that was achieved in their episode; see `Hindsight`.
        one_hot: Number of actions, for one-hot ones; see `to_tensordict`.
        device: Torch device of the tensors; None leaves them on the CPU.
        priority_key: Key of the loss's TD errors, for `TorchRLReplay.update_tensordict_priority`.

    Raises:
        ImportError: TorchRL is not installed, or too old.
        ValueError: An argument is invalid.

    Example:
        >>> import stepwell as sw
        >>> replay = sw.SequenceReplayBuffer(seed=0)
        >>> envs = sw.make_vec("CartPole-v1", num_envs=2, num_workers=0)
        >>> with sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector:
        ...     report = collector.collect(steps=100)
        >>> buffer = as_torchrl_replay(replay, batch_size=32)
        >>> buffer.sample()["next", "observation"].shape, len(buffer)
        (torch.Size([32, 4]), 101)
        >>> as_torchrl_replay(replay, slice_len=4).sample(12).batch_size
        torch.Size([12])
    """
    load_tensordict("as_torchrl_replay")
    if slice_len is None:
        request: Transitions | Sequences = Transitions(
            1, n_step, gamma, draw, stack=stack, beta=beta, relabel=relabel
        )
    else:
        if n_step != 1:
            raise ValueError(
                f"n_step: expected 1 with slice_len, got {n_step}; leave one of the two out"
            )
        if relabel is not None:
            raise ValueError(
                f"relabel: expected None with slice_len, got {relabel}; leave one of the two out"
            )
        request = Sequences(1, slice_len, draw=draw, align="transition", stack=stack, beta=beta)
    return TorchRLReplay(replay, request, batch_size, one_hot, device, priority_key)


class TorchRLReplay:
    """A replay that draws and stores TensorDicts; made by `as_torchrl_replay`.

    Args:
        replay: The replay to draw from and write into.
        request: The form of the batches.
        batch_size: Rows of a batch, where `sample` gets no number.
        one_hot: Number of actions, for one-hot ones.
        device: Torch device of the tensors.
        priority_key: Key of the TD errors that the loss writes.
    """

    def __init__(
        self,
        replay: SequenceReplayBuffer,
        request: Transitions | Sequences,
        batch_size: int | None,
        one_hot: int | None,
        device: object,
        priority_key: str,
    ) -> None:
        self.replay = replay
        self.batch_size = batch_size
        self.priority_key = priority_key
        self._request = request
        self._one_hot = one_hot
        self._device = device
        self._writer = EpisodeWriter(replay, source="extend")
        if batch_size is not None:
            self._count(batch_size)

    def __len__(self) -> int:
        """Transitions stored now."""
        return len(self.replay)

    def __iter__(self) -> Iterator[Any]:
        """Batches of ``batch_size`` without end."""
        self._count(None)
        while True:
            yield self.sample()

    def sample(self, batch_size: int | None = None, return_info: bool = False) -> Any:
        """Draw transitions ``[B]``, or B rows of slices.

        Args:
            batch_size: Rows B; with slices a multiple of ``slice_len``.
            return_info: Give the pair of TensorDict and a dict of ``index`` and
                ``priority_weight``.

        Raises:
            NotEnoughData: The replay has no such item.
            ValueError: No number of rows was given, or it does not divide into slices.
        """
        request = self._request_of(self._count(batch_size))
        if isinstance(request, Sequences):
            rows = _flat(sequence_columns(self.replay.sample(request), False))
            shape = rows["is_init",].shape
            drawn = as_tensordict(rows, shape, one_hot=self._one_hot, device=self._device)
        else:
            batch = self.replay.sample(request)
            drawn = to_tensordict(batch, one_hot=self._one_hot, device=self._device)
        if not return_info:
            return drawn
        return drawn, {name: drawn[name] for name in ("index", "priority_weight")}

    def update_priority(self, index: Any, priority: Any) -> int:
        """Set the priorities of rows; see `SequenceReplayBuffer.update_priorities`.

        Args:
            index: [B] integers, the batch's ``index``: of slices one of each row.
            priority: [B] or ``[B, 1]``: larger is drawn more often. The maximum counts for a slice.

        Returns:
            How many were ignored, because their rows were evicted meanwhile.
        """
        ids = _numbers(index).reshape(-1)
        values = np.abs(_numbers(priority).reshape(-1))
        if len(ids) != len(values):
            raise ValueError(
                f"priority: expected one number for each of {len(ids)} rows, got {len(values)}; "
                f"give the batch's own index and what belongs to it"
            )
        if isinstance(self._request, Sequences):
            ids, places = np.unique(ids, return_inverse=True)
            largest = np.zeros(len(ids), values.dtype)
            np.maximum.at(largest, places, values)
            values = largest
        return self.replay.update_priorities(ids, values)

    def update_tensordict_priority(self, data: Any) -> int:
        """`update_priority` from the key ``priority_key`` that the loss has written."""
        values = data.get(self.priority_key, None)
        if values is None:
            raise ValueError(
                f"priority_key: expected TD errors under {self.priority_key!r}, got none; have the "
                f"loss write them, or give as_torchrl_replay the key"
            )
        return self.update_priority(data.get("index"), values)

    def extend(self, data: Any) -> int:
        """Store a batch of a collector or ``env.rollout`` as episodes; see `from_tensordict`.

        The next call continues the episodes that this one leaves open, if it begins with their last
        observations.

        Args:
            data: A TensorDict ``[T]`` of one env, or ``[N, T]`` of N, time last.

        Returns:
            How many env steps were stored.

        Raises:
            SpecMismatch: The replay holds other rows.
            ValueError: Rows do not follow each other: shuffled transitions cannot be stored.
        """
        return self._writer.add_transitions(
            streams_of(data, self.replay, self._one_hot is not None)
        )

    def add(self, data: Any) -> int:
        """`extend` by one step of one env, a TensorDict without batch size."""
        return self.extend(data.unsqueeze(0))

    def _request_of(self, count: int) -> Transitions | Sequences:
        """A request for ``count`` items; only now it is known if frames are stacked."""
        if isinstance(self._request, Transitions):
            return self._request._replace(batch_size=count)
        stacks = any(field.stack > 1 for field in self.replay.spec.fields)
        stack = self._request.stack and stacks
        return self._request._replace(batch_size=count, stack=stack)

    def _count(self, batch_size: int | None) -> int:
        """Items of a batch."""
        rows = self.batch_size if batch_size is None else batch_size
        if rows is None:
            raise ValueError(
                "batch_size: expected a number, got None; give it to sample, or to "
                "as_torchrl_replay"
            )
        length = self._request.length if isinstance(self._request, Sequences) else 1
        if rows < 1 or rows % length:
            raise ValueError(
                f"batch_size: expected a multiple of slice_len={length}, got {rows}; it counts rows"
            )
        return rows // length


def _flat(slices: Keyed) -> Keyed:
    """``[B, T]`` as ``[B * T]``, each slice marked as a separate episode."""
    marks = {("next", "done"): -1, ("next", "truncated"): -1, ("is_init",): 0}
    for key, place in marks.items():
        slices[key] = slices[key].copy()
        slices[key][:, place] = True
    del slices["collector", "mask"]  # no row is padding
    return {
        key: array.reshape(array.shape[0] * array.shape[1], *array.shape[2:])
        for key, array in slices.items()
    }


def _numbers(value: Any) -> np.ndarray:
    """A tensor, or another object converted by numpy."""
    is_tensor = hasattr(value, "detach")
    return np.asarray(value.detach().cpu().numpy() if is_tensor else value)
