"""A replay with the methods of TorchRL's replay buffers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ...base import untrusted_json
from ...base.errors import StoreNotFound, not_copied
from ...base.number_checks import check_whole, is_whole
from ...curation.episode_writer import EpisodeWriter
from ...replay.replay import SequenceReplayBuffer
from ...sampling.requests import Draw, Hindsight, Sequences, Transitions
from ...sampling.tensors import load_torch
from ...spec.spec import Spec, as_array
from ...storage.checkpoint import pack, unpack
from ...storage.encoded_chunk import unpack_chunks
from ...storage.ram import MemoryStorage, packed_rows
from .batches import (
    Keyed,
    as_tensordict,
    load_tensordict,
    sequence_columns,
    streams_of,
    to_tensordict,
)

_STATE = "stepwell"
_DRAWS = "as_torchrl_replay(replay, draw=, slice_len=, n_step=, batch_size=)"
_ELSEWHERE = {
    **dict.fromkeys(("sampler", "set_sampler"), _DRAWS),
    **dict.fromkeys(("storage", "set_storage", "writer", "set_writer"), "the replay's own storage"),
    **dict.fromkeys(
        ("transform", "append_transform", "insert_transform"),
        "a call of the transform on the batch that sample gives",
    ),
    **dict.fromkeys(("set_rng",), "SequenceReplayBuffer(seed=)"),
}


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
    # The batch size of 1 stands for that of the draw, which `sample` knows.
    if slice_len is None:
        request: Transitions | Sequences = Transitions(
            1, n_step, gamma, draw, stack=stack, beta=beta, relabel=relabel
        )
    else:
        check_whole("slice_len", slice_len, 1)
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
    """A replay that draws and stores TensorDicts; made by `as_torchrl_replay`."""

    def __reduce__(self) -> NoReturn:
        not_copied(
            "a replay in TorchRL's place",
            "make one of the replay that was opened there, as_torchrl_replay(replay)",
        )

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
        ids = as_array(index).reshape(-1)
        values = np.abs(as_array(priority).reshape(-1))
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

    def next(self) -> Any:
        """The next batch of the iteration."""
        return self.sample()

    @property
    def write_count(self) -> int:
        """Env steps ever stored."""
        return self.replay.steps

    def empty(self, empty_write_count: bool = True) -> None:
        """Forget all rows; only in RAM.

        Args:
            empty_write_count: Begin to count again, too: it must be True.

        Raises:
            ValueError: The replay has a folder, or the count is to be kept.
        """
        if not empty_write_count:
            raise ValueError("empty_write_count: expected True, as a new replay has, got False")
        self.replay.clear()
        self._writer = EpisodeWriter(self.replay, source="extend")

    def state_dict(self) -> dict[str, Any]:
        """All that `load_state_dict` needs to draw the same batches again.

        The rows of a replay in RAM are in it; those of a folder stay in the folder.

        Returns:
            One tensor of bytes, for ``torch.save``, a ``Trainer`` or a ``Checkpoint``.
        """
        replay = self.replay
        state: dict[str, Any] = {"replay": replay.state_dict(), "rows": None}
        if replay.is_bound and replay.path is None and isinstance(replay.storage, MemoryStorage):
            with replay.storage.lock:
                index = replay.storage.index
                state["rows"] = {
                    "spec": replay.spec.to_json(),
                    "session": dict(replay.sessions[-1]) if replay.sessions else {},
                    "first": int(index.records["row_id"][0]) if len(index) else 0,
                    "chunks": np.frombuffer(packed_rows(replay.storage), np.uint8),
                }
        whole = np.frombuffer(bytearray(pack(state)), np.uint8)
        return {_STATE: load_torch("state_dict").from_numpy(whole)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue as the replay of `state_dict` would have.

        Rows that were stored since stay, as with `SequenceReplayBuffer.load_state_dict`. An empty
        replay in RAM gets the rows of one in RAM.

        Raises:
            ValueError: It is no such state, or that of another replay; nothing has changed.
        """
        if not isinstance(state_dict, Mapping) or set(state_dict) != {_STATE}:
            keys = list(state_dict) if isinstance(state_dict, Mapping) else []
            raise ValueError(
                f"state_dict: expected what as_torchrl_replay(...).state_dict() gave, got a "
                f"{type(state_dict).__name__} with {str(keys)[:100]}; a ReplayBuffer's own state "
                f"has no episodes: store the data with from_tensordict"
            )
        state = unpack(as_array(state_dict[_STATE]).astype(np.uint8).tobytes(), "state_dict")
        rows, told = untrusted_json.member(state, "rows"), untrusted_json.member(state, "replay")
        told = untrusted_json.mapping(told, "replay")
        if rows is None or self.replay.path is not None or self.replay.steps:
            self.replay.load_state_dict(told)
            return
        try:
            self.replay.load_state_dict(self._take_up(untrusted_json.mapping(rows, "rows"), told))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            self.replay.clear()
            raise ValueError(f"state_dict: expected a state of a replay, got {error}") from error

    def dumps(self, path: str | os.PathLike[str]) -> None:
        """Write `state_dict` into a folder."""
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{_STATE}.bin").write_bytes(as_array(self.state_dict()[_STATE]).tobytes())

    def loads(self, path: str | os.PathLike[str]) -> None:
        """Read what `dumps` wrote, and continue with it; see `load_state_dict`.

        Raises:
            StoreNotFound: There is no such file.
        """
        file = Path(path) / f"{_STATE}.bin"
        if not file.is_file():
            raise StoreNotFound(
                f"{file}: expected what dumps wrote, got no file; give the folder that dumps was "
                f"given"
            )
        self.load_state_dict({_STATE: np.frombuffer(file.read_bytes(), np.uint8)})

    dump = save = dumps
    load = loads

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            cure = _ELSEWHERE.get(name)
            raise AttributeError(
                f"TorchRLReplay has no {name!r}{(cure and f': expected {cure}') or ''}",
                name=name,
                obj=self,
            )

    def _take_up(self, rows: Mapping[str, Any], told: Mapping[str, Any]) -> dict[str, Any]:
        """Store the rows of a state; returns the replay's state with the ids that they have now."""
        spec = Spec.from_json(untrusted_json.mapping(untrusted_json.member(rows, "spec"), "spec"))
        first = untrusted_json.whole(untrusted_json.member(rows, "first"), "first")
        packed = untrusted_json.member(rows, "chunks")
        chunks = unpack_chunks(memoryview(as_array(packed).tobytes()), spec)
        session = untrusted_json.mapping(untrusted_json.member(rows, "session"), "session")
        told = {**told, "pieces": len(chunks)}
        sampler = told.get("sampler")
        if isinstance(sampler, Mapping):
            newest = [[kind, row - first, *rest] for kind, row, *rest in sampler["newest"]]
            priorities = sampler["priorities"]
            if priorities is not None:
                priorities = {**priorities, "ids": priorities["ids"] - first}
            told["sampler"] = {"newest": newest, "priorities": priorities}
        self.replay.bind(spec, session)
        self.replay.add_encoded(chunks)
        return told

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
        if not is_whole(rows) or rows < 1 or rows % length:
            raise ValueError(
                f"batch_size: expected a multiple of slice_len={length}, got {rows!r}; it counts "
                f"rows"
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
