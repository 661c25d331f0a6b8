"""Give every reset of an env a seed of its own; each of several machines draws other ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.core import ActType, ObsType

from .env_results import RecordedWrapper, layers_of, reset_of


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


class ResumedSeed(int):
    """The seed of reset ``number`` after a given one, ``root``, where later resets go on."""

    root: int
    number: int

    def __new__(cls, root: int, number: int) -> ResumedSeed:
        """Return the seed, which is an int in everything else."""
        seed = super().__new__(cls, derived_seed(root, number) if number else root)
        seed.root, seed.number = root, number
        return seed

    def __reduce__(self) -> tuple[type[ResumedSeed], tuple[int, int]]:
        """Keep the place among the derived seeds on the way to a worker process."""
        return ResumedSeed, (self.root, self.number)


_BLOCK = 64  # seeds that are derived at once, which takes hardly longer than deriving one
_LARGEST_IN_INFO = 2**63 - 1  # vector envs join the infos of their envs in arrays of int64


class SeededResets(RecordedWrapper[ObsType, ActType]):
    """Seed every reset, so that each episode can be played again without those before it.

    `reset(seed=s)` passes s on. Each later `reset()` without a seed passes on `derived_seed(s, n)`,
    n = 1, 2, ... The seed is recorded in the reset's `info["reset_seed"]`. Steps take no longer:
    they are those of the wrapped env.

    Not seeded, and without `info["reset_seed"]`, are a reset before any seed was given, one that
    only continues the game after a lost life (`EpisodicLife`, and wrappers with `was_real_done`, as
    Stable-Baselines3's), and resets of an env whose attribute `can_seed_resets` is False, as that
    of Atari games that would have to be loaded again. A seed of 2**63 and above is used, but not
    recorded.

    `make_vec`, `make_nes`, `make_atari` on the python backend and a `Collector` with a single env
    use this wrapper, except for ale-py's own envs.

    Args:
        env: Any env.

    Example:
        >>> import gymnasium
        >>> env = SeededResets(gymnasium.make("CartPole-v1"))
        >>> env.reset(seed=7)[1], env.reset()[1] == {"reset_seed": derived_seed(7, 1)}
        ({'reset_seed': 7}, True)
    """

    def __init__(self, env: gymnasium.Env[ObsType, ActType]) -> None:
        super().__init__(env)
        layers = list(layers_of(env, "env", "old_env"))
        self._deciding = [layer for layer in layers if hasattr(layer, "can_seed_resets")]
        self._continuing = [layer for layer in layers if hasattr(layer, "continues_game")]
        self._foreign_continuing = [layer for layer in layers if hasattr(layer, "was_real_done")]
        self._seed: int | None = None
        self._number = 0  # of resets since the seed was given
        self._derived: list[int] = []  # the next seeds, the last one first
        self._innermost = env.unwrapped
        self._keeps_seeds = False  # the env itself records the seed that reaches it
        if type(self).step is gymnasium.Wrapper.step:
            self.step = env.step  # type: ignore[method-assign]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[ObsType, dict[str, Any]]:
        """Reset the env with the given seed, or with one that is derived from the last given."""
        if seed is not None:
            observation, info = reset_of(self.env.reset(seed=seed, options=options), "the env")
            root, self._number = (
                (seed.root, seed.number) if isinstance(seed, ResumedSeed) else (seed, 0)
            )
            self._seed = root if isinstance(root, ShardSeed) else int(root)
            used, place = int(seed), self._number % _BLOCK
            block = _derived_block(root, self._number // _BLOCK)[place:] if place else []
            self._derived = block[::-1]
        elif self._seed is None or not self._can_seed(options):
            return self.env.reset(options=options)
        else:
            used = self._next_seed(self._seed)
            observation, info = reset_of(self.env.reset(seed=used, options=options), "the env")
        has_seed = getattr(self._innermost, "_np_random_seed", None) == used
        self._keeps_seeds |= has_seed
        is_lost = self._keeps_seeds and not has_seed  # in a wrapper
        if is_lost or used > _LARGEST_IN_INFO:
            return observation, info
        return observation, {**info, "reset_seed": int(used)}

    def _next_seed(self, seed: int) -> int:
        if not self._derived:
            self._derived = _derived_block(seed, self._number // _BLOCK)[::-1]
        self._number += 1
        return in_shard_of(seed, self._derived.pop())

    def _can_seed(self, options: dict[str, Any] | None) -> bool:
        """Return True unless the next reset only continues a game, or a seed would cost much."""
        return not (
            (self._continuing and not options and any(e.continues_game for e in self._continuing))
            or (
                self._foreign_continuing
                and not all(layer.was_real_done for layer in self._foreign_continuing)
            )
            or (self._deciding and not all(layer.can_seed_resets for layer in self._deciding))
        )


def with_seeded_resets(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """Wrap an env in `SeededResets`, unless its outermost wrapper is one, or seeds cost much."""
    # ale-py's own env loads the game again for a seed, in 100 ms.
    is_slow = hasattr(env.unwrapped, "ale") and not any(
        hasattr(layer, "can_seed_resets") for layer in layers_of(env, "env", "old_env")
    )
    return env if is_slow or isinstance(env, SeededResets) else SeededResets(env)


def derived_seed(seed: int, number: int) -> int:
    """Return the seed, in 0 .. 2**31 - 1, of the n-th reset after the one that was given a seed."""
    # From a `ShardSeed`, another one of its shard is derived.
    block, place = divmod(number - 1, _BLOCK)
    return in_shard_of(seed, _derived_block(seed, block)[place])


def _derived_block(seed: int, block: int) -> list[int]:
    words = np.random.SeedSequence(seed, spawn_key=(block,)).generate_state(_BLOCK)
    seeds: list[int] = (words >> 1).tolist()
    return seeds


def seeds_of(
    seed: int | Sequence[int | None] | npt.NDArray[np.int64] | None, num_envs: int
) -> list[int | None]:
    """A seed for each env, of the seed of env 0, of one for each, or of None."""
    if seed is None:
        return [None] * num_envs
    if isinstance(seed, int | np.integer):
        return [int(seed) + k for k in range(num_envs)]
    if not hasattr(seed, "__len__"):
        raise TypeError(f"seed: expected whole numbers, the first of them, or None, got {seed!r}")
    if len(seed) != num_envs:
        raise ValueError(
            f"seed has the wrong length: expected {num_envs}, one for each env, got {len(seed)}"
        )
    return [one if one is None or isinstance(one, int) else int(one) for one in seed]
