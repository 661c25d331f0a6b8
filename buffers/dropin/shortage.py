"""Says what there is, where a sequence cannot be drawn."""

from __future__ import annotations

from stepwell.buffers.errors import NotEnoughData
from stepwell.buffers.replay import SequenceReplayBuffer

__all__ = ["TooFew", "shortage"]


class TooFew(NotEnoughData, ValueError):
    """There is less than was asked for; a ValueError, too, where old callers expect one."""


def shortage(replay: SequenceReplayBuffer, length: int, *, is_across: bool) -> NotEnoughData:
    """The error of a draw that finds no sequence of so many steps.

    Args:
        replay: What was drawn from.
        length: Steps that were asked for.
        is_across: Sequences go on with the next episode.
    """
    records = replay.storage.table.records
    last = records[records["is_tail"] == 1]
    steps = last["first_row"] + last["rows"] - last["head"] - 1
    where = "of one env" if is_across else "in one episode"
    return NotEnoughData(
        f"expected {length} steps {where} to draw from, got {len(replay)} in all, at most "
        f"{max(0, steps.max(initial=0))} in one episode; add more, or draw shorter sequences"
    )
