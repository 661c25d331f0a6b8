"""Seeds of shards: each of several machines draws seeds that none of the others draws."""

from __future__ import annotations

__all__ = ["ShardSeed", "in_shard_of"]


class ShardSeed(int):
    """A seed of one of n shards; all seeds that are derived from it are of the same shard.

    The seeds of a shard are congruent to each other modulo n, and to those of no other shard.

    Args:
        value: The seed.
        count: Number of shards n.

    Example:
        >>> seed = ShardSeed(7, 4)
        >>> seed, seed % 4, in_shard_of(seed, 1000) % 4, in_shard_of(7, 1000)
        (7, 3, 3, 1000)
    """

    count: int

    def __new__(cls, value: int, count: int) -> ShardSeed:
        """Return the seed, which is an int in everything else."""
        seed = super().__new__(cls, value)
        seed.count = count
        return seed

    def __reduce__(self) -> tuple[type[ShardSeed], tuple[int, int]]:
        """Keep the number of shards on the way to a worker process."""
        return ShardSeed, (int(self), self.count)


def in_shard_of(given: int, drawn: int) -> int:
    """Return the seed to use in place of a drawn one: the nearest below in the shard of ``given``.

    Args:
        given: The seed that the other one is derived from. If it is not of a shard, nothing
            changes.
        drawn: A seed, 0 or more.

    Returns:
        A seed, 0 or more; not above the drawn one, unless that is below the number of shards.
    """
    if not isinstance(given, ShardSeed):
        return drawn
    seed = drawn - (drawn - given) % given.count
    return ShardSeed(seed if seed >= 0 else seed + given.count, given.count)
