"""Which actor holds which groups."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Placement"]


class Placement:
    """Deals groups out to places, each for one actor after the other; the data is the same."""

    # Of 5 groups at 2 places, place 0 has 0, 2, 4 and place 1 has 1, 3.

    def __init__(self, groups: int, places: int) -> None:
        self._place_of = [group % places for group in range(groups)]
        self._groups_of = {place: tuple(range(place, groups, places)) for place in range(places)}

    @property
    def places(self) -> Sequence[int]:
        """The places in use."""
        return tuple(self._groups_of)

    def place_of(self, group: int) -> int:
        """The place of a group."""
        return self._place_of[group]

    def groups_of(self, place: int) -> tuple[int, ...]:
        """The groups of a place, in order."""
        return self._groups_of[place]

    def give_up(self, place: int) -> None:
        """Give the groups of a place, where no actor can start, to those with the fewest."""
        if len(self._groups_of) == 1:
            raise ValueError(f"place {place}: expected another place for its groups, got none")
        for group in self._groups_of.pop(place):
            chosen = min(self._groups_of, key=lambda other: (len(self._groups_of[other]), other))
            self._place_of[group] = chosen
            self._groups_of[chosen] = tuple(sorted((*self._groups_of[chosen], group)))
