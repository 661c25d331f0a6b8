"""The replay of FishyRL (DreamerX): a row of each env before each step, windows of rows.

Before, and after::

    from fishyrl.buffers import IndependentVectorizedBuffer
    from stepwell.buffers.dropin.fishyrl import IndependentVectorizedBuffer
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from gymnasium.vector import AutoresetMode

from stepwell.buffers.dropin.fishyrl_vectorized import IndependentVectorizedBuffer
from stepwell.buffers.replay import SequenceReplayBuffer
from stepwell.buffers.sampling.rate import ReplayRatio
from stepwell.buffers.sampling.requests import Borders
from stepwell.buffers.sampling.tensors import load_torch
from stepwell.buffers.spec import Codec

__all__ = [
    "IndependentVectorizedBuffer",
    "Ratio",
    "SequentialBuffer",
    "convert_samples_to_tensors",
]


class SequentialBuffer:
    """Takes the rows of one env, and draws windows of them.

    Args:
        capacity: See `IndependentVectorizedBuffer`, as for the others.
        validate_keys: Means nothing.
        seed: Seed of the draws.
        path: Folder of a Stepwell store.
        codec: How observations are kept.
        autoreset_mode: What a row with a flag is.

    Raises:
        ValueError: A number is out of range, or there is no such mode.
        SpecMismatch: The folder holds other rows.
        StoreLocked: Another process writes into the folder.

    Example:
        >>> buffer = SequentialBuffer(1_000, seed=0)
        >>> for step in range(100):
        ...     buffer.add({
        ...         "obs": np.full(4, step, np.float32),
        ...         "rewards": np.float32(1),
        ...         "terminations": np.bool_(step % 30 == 29),
        ...         "truncations": np.bool_(False),
        ...         "actions": np.array([0, 1], np.float32),
        ...     })
        >>> buffer.size, buffer.sample(16, sequence_length=8)["actions"].shape
        (100, (16, 8, 2))
    """

    def __init__(
        self,
        capacity: int,
        validate_keys: bool = True,
        seed: int | None = None,
        *,
        path: str | os.PathLike[str] | None = None,
        codec: Codec | None = None,
        autoreset_mode: AutoresetMode = AutoresetMode.NEXT_STEP,
    ) -> None:
        self._one = IndependentVectorizedBuffer(
            1, capacity, validate_keys, seed, path=path, codec=codec, autoreset_mode=autoreset_mode
        )

    @property
    def replay(self) -> SequenceReplayBuffer:
        """The replay beneath."""
        return self._one.replay

    @property
    def capacity(self) -> int:
        """Rows that are kept at least."""
        return self._one.capacity

    @property
    def size(self) -> int:
        """Rows stored now, at most ``capacity``."""
        return self._one.size

    @property
    def is_full(self) -> bool:
        """From now on old rows go for new ones."""
        return self._one.is_full

    def add(self, experience: Mapping[str, np.ndarray], *, final_obs: object = None) -> None:
        """Take up a row; everything is copied.

        Args:
            experience: Arrays [...], or numbers, by name.
            final_obs: Under SAME_STEP the observation with which the episode ended.

        Raises:
            ValueError: Something is not like the first time, or the final observation is missing,
                or not wanted; nothing was taken up.
            SpecMismatch: The folder holds other rows.
        """
        values = {key: np.asarray(value)[None] for key, value in experience.items()}
        self._one.add(values, final_obs=None if final_obs is None else [final_obs])

    def sample(
        self,
        batch_size: int,
        sequence_length: int,
        *,
        borders: Borders = "cross",
        flags: Sequence[str] = (),
    ) -> dict[str, np.ndarray]:
        """See `IndependentVectorizedBuffer.sample`."""
        return self._one.sample(batch_size, sequence_length, borders=borders, flags=flags)

    def flush(self) -> None:
        """Make every row drawable; in a folder they are stored for good."""
        self._one.flush()

    def cut(self) -> None:
        """Stop recording the open episode: the next row begins another one."""
        self._one.cut()

    def reset(self) -> None:
        """See `IndependentVectorizedBuffer.reset`."""
        self._one.reset()

    def state_dict(self) -> dict[str, Any]:
        """See `IndependentVectorizedBuffer.state_dict`."""
        return self._one.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """See `IndependentVectorizedBuffer.load_state_dict`."""
        self._one.load_state_dict(state_dict)

    def close(self) -> None:
        """Store what there is and release files and locks; closing twice is harmless."""
        self._one.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Ratio:
    """Counts the updates that are due: ``floor(ratio * step)`` in all, exactly.

    Args:
        ratio: Updates for each env step, >= 0; at 0 none is ever due.

    Raises:
        ValueError: It is negative or not finite.

    Example:
        >>> ratio = Ratio(0.3)
        >>> [ratio(step) for step in (1, 4, 10)]
        [0, 1, 2]
        >>> Ratio(0.0)(5)
        0
    """

    def __init__(self, ratio: float = 1.0) -> None:
        self._ratio = float(ratio)
        self._owed = ReplayRatio(ratio, start=0)

    def __call__(self, step: int) -> int:
        """Updates that have become due; they count as done from now on.

        Args:
            step: Env steps done since the updates began.

        Raises:
            ValueError: Fewer steps than at the call before.
        """
        return self._owed(step)

    def state_dict(self) -> dict[str, Any]:
        """JSON-able: the ratio, and what is owed."""
        return {"ratio": self._ratio, **self._owed.state_dict()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on as the one of `state_dict` would have, with its ratio.

        Raises:
            ValueError: The state is none that `state_dict` gave.
        """
        if "ratio" not in state_dict:
            raise ValueError(
                f"state_dict: expected what Ratio.state_dict gave, got {dict(state_dict)}; save it "
                f"anew"
            )
        owed = ReplayRatio(state_dict["ratio"], start=0)
        owed.load_state_dict(state_dict)
        self._ratio, self._owed = float(state_dict["ratio"]), owed


def convert_samples_to_tensors(
    samples: Mapping[str, np.ndarray],
    *,
    device: object = None,
    dtype: object = None,
    non_blocking: bool = False,
) -> dict[str, Any]:
    """Samples as torch tensors, which share their memory where nothing is to be moved.

    Args:
        samples: Arrays by name.
        device: Where the tensors go, as torch names it; None leaves them on the CPU.
        dtype: A dtype of torch for all of them; None keeps each one's own.
        non_blocking: Do not wait for a device, where torch can do without.

    Raises:
        ImportError: PyTorch is not installed.
    """
    torch = load_torch("convert_samples_to_tensors")
    return {
        name: torch.from_numpy(values).to(device=device, dtype=dtype, non_blocking=non_blocking)
        for name, values in samples.items()
    }
