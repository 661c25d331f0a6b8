"""The frames of stored episodes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepwell.buffers.dropin.memmap.episode_folder import EpisodeFolder
from stepwell.buffers.dropin.memmap.episode_rows import EpisodeRows
from stepwell.buffers.dropin.memmap.revision import chosen_slots
from stepwell.buffers.dropin.memmap.staging import checked_names

__all__ = ["frames_of", "only_one"]


def frames_of(folder: EpisodeFolder, slots: int | Sequence[int], field: str) -> np.ndarray:
    """The frames of an episode, or of several one after the other, [T, ...].

    Args:
        folder: Where the episodes are.
        slots: Which.
        field: The field of steps.

    Raises:
        ValueError: There is no such episode or field.
    """
    checked_names("episode_frames", {field: None}, folder.config.fields)
    rows = EpisodeRows(folder)
    wanted = np.atleast_1d(slots)
    if not len(wanted):
        raise ValueError("episode_index: expected at least one episode, got none")
    chosen_slots(np.unique(wanted), len(rows.numbers))  # refuses those that are not there
    parts = [rows.wholes([field], rows.numbers[[slot]])[field][0] for slot in wanted.tolist()]
    return np.concatenate(parts)


def only_one(fields: Sequence[str]) -> str:
    """The one field that may be images.

    Raises:
        ValueError: There is none, or more than one.
    """
    if len(fields) != 1:
        raise ValueError(
            f"field: expected one image-like field, got {', '.join(fields) or 'none'}; pass "
            f"`field` explicitly"
        )
    return fields[0]
