"""A replay with the methods that Tianshou's off-policy algorithms use of a buffer."""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

import numpy as np

from ...base.errors import not_copied
from ...base.number_checks import check_whole, is_whole
from ...curation.episode_writer import check_replay
from ...replay.replay import SequenceReplayBuffer
from ...sampling.batch import map_tree
from ...sampling.requests import Draw, Sequences
from ...spec.spec import as_array
from .batches import drawn_as_batch, load_tianshou


def as_tianshou_replay(
    replay: SequenceReplayBuffer,
    *,
    n_step: int = 1,
    draw: Draw = "steps",
    beta: float = 0.4,
    stack: bool = True,
) -> Any:
    """Give a replay the methods of a buffer for Tianshou's off-policy algorithms, without a copy.

    ``algorithm.update(buffer, sample_size=64)`` draws steps, each with the steps that the
    algorithm looks ahead. Indices refer to the last draw, until the next one.

    Args:
        replay: The replay; others may continue to write into it.
        n_step: Steps that the algorithm looks ahead: its ``n_step_return_horizon``.
        draw: The way steps are drawn; see `SequenceReplayBuffer.sample_sequences`. With
            ``"priorities"`` the batch has their ``weight``, and the algorithm's TD errors become
            the new ones.
        beta: With ``draw="priorities"`` how far ``weight`` makes up for them.
        stack: Give frame-stacked observations as the env gave them.

    Returns:
        A `TianshouReplay`; annotated as Any because algorithms are annotated with ``ReplayBuffer``.

    Raises:
        ImportError: Tianshou is not installed, or too old.
        ValueError: ``n_step`` is not a whole number >= 1.

    Example:
        >>> import stepwell as sw
        >>> replay = sw.SequenceReplayBuffer(seed=0)
        >>> envs = sw.make_vec("CartPole-v1", num_envs=2, num_workers=0)
        >>> with sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector:
        ...     report = collector.collect(steps=100)
        >>> buffer = as_tianshou_replay(replay, n_step=3)
        >>> batch, indices = buffer.sample(32)
        >>> batch.obs.shape, buffer[buffer.next(indices)].obs_next.shape
        ((32, 4), (32, 4))
    """
    check_replay("replay", replay)
    load_tianshou("as_tianshou_replay")
    check_whole("n_step", n_step, 1)
    # Padding after an episode's end: the lookahead is shorter there.
    borders: Any = "inside" if n_step == 1 else "pad_after"
    request = Sequences(1, n_step, borders, draw, "transition", stack=stack, beta=beta)
    kind = PrioritizedTianshouReplay if draw == "priorities" else TianshouReplay
    return kind(replay, request)


class _Drawn(NamedTuple):
    """The last draw: the steps of all sequences, one after the other."""

    rows: dict[str, Any]  # arrays [B * n, ...] by Tianshou's names
    mask: np.ndarray  # [B * n] bool: it is a step, not padding
    ids: np.ndarray  # [B] int64: where each sequence begins
    weights: np.ndarray  # [B] float32
    length: int  # steps n of a sequence


class TianshouReplay:
    """A replay with the methods of a Tianshou buffer; made by `as_tianshou_replay`."""

    def __reduce__(self) -> NoReturn:
        not_copied(
            "a replay in Tianshou's place",
            "make one of the replay that was opened there, as_tianshou_replay(replay)",
        )

    def __init__(self, replay: SequenceReplayBuffer, request: Sequences) -> None:
        self.replay = replay
        self._request = request
        self._newest: _Drawn | None = None

    def __len__(self) -> int:
        """Steps stored now."""
        return len(self.replay)

    @property
    def rew(self) -> np.ndarray:
        """Rewards of the last draw, [B * n] float64."""
        return self._array("rew")

    @property
    def terminated(self) -> np.ndarray:
        """The MDP ended with these steps of the last draw, [B * n] bool."""
        return self._array("terminated")

    @property
    def truncated(self) -> np.ndarray:
        """The episode ended otherwise with these steps of the last draw, [B * n] bool."""
        return self._array("truncated")

    @property
    def done(self) -> np.ndarray:
        """Either of the two, [B * n] bool."""
        return self._array("done")

    def sample(self, batch_size: int | None) -> tuple[Any, np.ndarray]:
        """Draw steps.

        Args:
            batch_size: Number of steps, B >= 1.

        Returns:
            A ``tianshou.data.Batch`` of B steps, and their indices.

        Raises:
            NotEnoughData: The replay is empty.
            ValueError: ``batch_size`` is None or 0, which means all steps in Tianshou.
        """
        indices = self.sample_indices(batch_size)
        return self[indices], indices

    def sample_indices(self, batch_size: int | None) -> np.ndarray:
        """Draw steps, which indices refer to from now on."""
        if not is_whole(batch_size) or batch_size < 1:
            raise ValueError(
                f"batch_size: expected a whole number >= 1, got {batch_size}; for all steps at "
                f"once take to_tianshou_buffer"
            )
        stacks = any(field.stack > 1 for field in self.replay.spec.fields)
        request = self._request._replace(
            batch_size=batch_size, stack=self._request.stack and stacks
        )
        drawn = self.replay.sample(request)
        length = drawn.mask.shape[1]
        rows: dict[str, Any] = map_tree(_flat, drawn_as_batch(drawn))
        mask = drawn.mask.reshape(-1)
        self._newest = _Drawn(rows, mask, drawn.ids, drawn.weights, length)
        indices: np.ndarray = np.arange(batch_size) * length
        return indices

    def __getitem__(self, index: Any) -> Any:
        """Steps of the last draw, as a ``tianshou.data.Batch``."""
        newest, places = self._places(index)
        picked: dict[str, Any] = map_tree(lambda array: np.asarray(array[places]), newest.rows)
        return load_tianshou("as_tianshou_replay").Batch(picked)

    def next(self, index: Any) -> np.ndarray:
        """Indices of the steps that follow; those of an episode's last steps stay as they are.

        Raises:
            ValueError: The number of steps is not that of the last draw.
        """
        newest, places = self._places(index)
        is_over = newest.rows["done"][places]
        beyond = ~is_over & (places % newest.length == newest.length - 1)
        if beyond.any():
            raise ValueError(
                f"n_step: expected an algorithm that looks {newest.length} steps ahead, got one "
                f"that looks further; give as_tianshou_replay its n_step_return_horizon as n_step"
            )
        following: np.ndarray = places + np.logical_not(is_over)
        return following

    def prev(self, index: Any) -> np.ndarray:
        """Indices of the steps before; those that were drawn first stay as they are."""
        newest, places = self._places(index)
        return np.where(places % newest.length > 0, places - 1, places)

    def unfinished_index(self) -> np.ndarray:
        """Empty: every drawn step has its next observation."""
        return np.zeros(0, np.int64)

    def _array(self, name: str) -> np.ndarray:
        found: np.ndarray = self._last().rows[name]
        return found

    def _last(self) -> _Drawn:
        if self._newest is None:
            raise ValueError(
                "as_tianshou_replay: expected a draw before, got none; call sample first"
            )
        return self._newest

    def _places(self, index: Any) -> tuple[_Drawn, np.ndarray]:
        """Checked indices, and the last draw."""
        newest, places = self._last(), np.asarray(index)
        is_right = places.dtype.kind in "iu" and places.ndim > 0
        if not is_right or ((places < 0) | (places >= len(newest.mask))).any():
            raise ValueError(
                f"index: expected whole numbers from 0 to {len(newest.mask) - 1}, as sample gave "
                f"them, got {index!r}; indices refer to the last draw"
            )
        if not newest.mask[places].all():
            first = places[~newest.mask[places]][0]
            raise ValueError(
                f"index: expected steps, got {first}, which lies behind an episode's end; "
                f"take next()"
            )
        return newest, places


class PrioritizedTianshouReplay(TianshouReplay):
    """The replay that `as_tianshou_replay` returns with ``draw="priorities"``."""

    def sample(self, batch_size: int | None) -> tuple[Any, np.ndarray]:
        """`TianshouReplay.sample`, with importance weights [B] as ``weight``."""
        batch, indices = super().sample(batch_size)
        batch.weight = self._last().weights
        return batch, indices

    def update_weight(self, index: np.ndarray, new_weight: Any) -> None:
        """Set the priorities of steps.

        Args:
            index: [B] indices, as `sample` gave them.
            new_weight: [B] TD errors, an array or a tensor.
        """
        newest, places = self._places(index)
        values = as_array(new_weight)
        if (places % newest.length).any() or values.shape != places.shape:
            raise ValueError(
                f"update_weight: expected one number for each index that sample gave, got "
                f"{values.shape} for {places.shape}; give the batch's own"
            )
        self.replay.update_priorities(newest.ids[places // newest.length], values)


def _flat(array: np.ndarray) -> np.ndarray:
    """``[B, n, ...]`` as ``[B * n, ...]``."""
    return array.reshape(array.shape[0] * array.shape[1], *array.shape[2:])
