"""All of a buffer at once, as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stepwell.buffers.dropin.memmap.episode_folder import EpisodeFolder
from stepwell.buffers.dropin.memmap.episode_rows import EpisodeRows
from stepwell.buffers.dropin.memmap.named_batch import to_device
from stepwell.buffers.sampling.tensors import load_torch

__all__ = ["all_data"]


def all_data(
    folder: EpisodeFolder, fields: Sequence[str] | None, metas: Sequence[str] | None, device: object
) -> dict[str, Any]:
    """All episodes, in the order of their slots.

    Args:
        folder: Where they are.
        fields: Names of the fields of steps.
        metas: Names of those of episodes. Where neither is given, all of both.
        device: Where the tensors go.

    Returns:
        Tensors ``[E, longest, ...]``, with a field's default after an episode's end, and
        ``[E, ...]``, by name; nothing where no episode is stored.

    Raises:
        ValueError: There is no such field.
        ImportError: PyTorch is not installed.
    """
    torch = load_torch("get_all_data")
    config, rows = folder.config, EpisodeRows(folder)
    if fields is None and metas is None:
        fields, metas = tuple(config.fields), (*config.meta_fields, "episode_lens")
    fields, metas = tuple(fields or ()), tuple(metas or ())
    for name, known in [(n, config.fields) for n in fields] + [
        (n, {**config.meta_fields, "episode_lens": None}) for n in metas
    ]:
        if name not in known:
            raise ValueError(f"get_all_data: expected some of {', '.join(known)}, got {name!r}")
    if not len(rows.numbers):
        return {}
    values = rows.wholes(fields, rows.numbers)
    for name in fields:
        if config.fields[name].default:
            is_after = np.arange(values[name].shape[1]) >= rows.lengths[:, None]
            values[name][is_after] = config.fields[name].default
    own = [name for name in metas if name != "episode_lens"]
    values |= rows.metas(own, rows.numbers)
    if len(own) < len(metas):
        values["episode_lens"] = rows.lengths.astype(np.int32)
    ordered = {name: torch.from_numpy(values[name]) for name in (*fields, *metas)}
    return to_device(ordered, device)  # type: ignore[no-any-return]
