"""Arrays where a model computes."""

from __future__ import annotations

from typing import Any

import numpy as np

from stepwell.buffers.bridges.sb3.loading import load_sb3
from stepwell.buffers.sampling.tensors import ToTensors

__all__ = ["DeviceTensors"]


class DeviceTensors:
    """StepLoop arrays, and dicts of them, into tensors; on the CPU they share the arrays' memory.

    That is what `ToTensors` does for batches of any form, in a tenth of the time.

    Args:
        device: The model's device.
    """

    def __init__(self, device: Any) -> None:
        self._from_numpy: Any = load_sb3("common.buffers", "a bridge").th.from_numpy
        # Elsewhere frames that two stacks share must be moved once, which it sees to.
        self._moved = None if device.type == "cpu" else ToTensors(device)

    def __call__(self, tree: Any) -> Any:
        """An array as a tensor, or a dict of them as a dict of tensors."""
        return self._shared(tree) if self._moved is None else self._moved(tree)

    def _shared(self, tree: Any) -> Any:
        if isinstance(tree, dict):
            return {key: self._shared(part) for key, part in tree.items()}
        array: np.ndarray = tree
        # Of one that it must not write to torch would warn.
        return self._from_numpy(array if array.flags.writeable else array.copy())
