"""Seeds of shards: each of several machines draws seeds that none of the others draws."""

from __future__ import annotations

__all__ = ["ShardSeed", "in_shard_of"]


class ShardSeed(int):
    """A seed of one of n shards; all seeds that are derived from it are of the same shard."""

    # The seeds of a shard are congruent to each other modulo n, and to those of no other shard.

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
    """The nearest seed not above a drawn one in the shard of ``given``, if that is of one."""
    # Not below 0: where the drawn one is below the number of shards, it may be above that.
    if not isinstance(given, ShardSeed):
        return drawn
    seed = drawn - (drawn - given) % given.count
    return ShardSeed(seed if seed >= 0 else seed + given.count, given.count)
