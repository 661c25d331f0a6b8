"""Shares of a call: how many steps, episodes or seeds of it each group gets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from .messages import Call

__all__ = ["is_empty", "shares_of", "what_is_left"]


def shares_of(call: Call, groups: int) -> list[Call]:
    """The call as each group gets it; a share may be empty."""
    # Steps and episodes are split as evenly as possible: the first groups get one more. Seeds are
    # dealt out in turns, so that the first ones are played first. Each group has all rows T of a
    # rollout.
    if call.kind in ("rollout", "run"):
        return [call] * groups
    least, rest = divmod(call.amount, groups)
    return [
        call._replace(amount=least + (group < rest), seeds=call.seeds[group::groups])
        for group in range(groups)
    ]


def is_empty(share: Call) -> bool:
    """True for a share that leaves a group nothing to do."""
    return share.kind != "run" and not share.amount and not share.seeds


def what_is_left(share: Call, steps: int, episodes: int, seeds: Iterable[int | None]) -> Call:
    """The rest of a share for a group that goes on with other data after a death."""
    # Steps, episodes and seeds are those that are stored, to their end. A rollout is played anew,
    # as its rows come at its end.
    if share.kind == "steps":
        return share._replace(amount=max(0, share.amount - steps))
    if share.kind == "episodes":
        return share._replace(amount=max(0, share.amount - episodes))
    if share.kind == "seeds":
        return share._replace(seeds=_without(share.seeds, seeds))
    return share


def _without(seeds: Sequence[int], played: Iterable[int | None]) -> tuple[int, ...]:
    """The seeds that were not played, each as often as it is left."""
    done = Counter(seed for seed in played if seed is not None)
    left: list[int] = []
    for seed in seeds:
        if done[seed]:
            done[seed] -= 1
        else:
            left.append(seed)
    return tuple(left)
