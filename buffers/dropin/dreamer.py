"""The replay buffer of Dreamer agents, as in torchwm's ``world_models.memory.dreamer_memory``."""

from __future__ import annotations

import copy
import enum
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, Literal, TypeAlias, get_args, overload

import numpy as np

from ..base import forks
from ..base.number_checks import check_whole
from ..sampling.requests import Sequences
from .transition_writer import DrawnSequences, ImageRing, TooFew, ended_by

__all__ = ["MISSING", "Borders", "Episode", "Memory", "ReplayBuffer"]

_UNCHANGING = (int, float, str, bytes, np.generic, type(None))

Borders: TypeAlias = Literal["inside", "cross"]
"""Limits of a sequence: ``"inside"`` one episode, or ``"cross"`` into the env's next one."""


class ReplayBuffer(ImageRing[Borders]):
    """Keeps the newest steps of one env or more, and draws sequences of them, time first.

    At least the newest ``size`` steps are there to be drawn, and up to a fifteenth more. `sample`
    may leave out the newest ones: up to a thousandth of all for each env, a hundredth at most.

    Args:
        size: Steps to keep.
        obs_shape: Shape of an image, as in ``(3, 64, 64)``.
        action_size: Length A of an action.
        seq_len: Steps in a sequence, L.
        batch_size: Sequences in a batch, B.
        borders: ``"inside"``: a sequence lies in one episode. ``"cross"``: it continues with the
            next episode of its env. The last observation of an episode is then a row as well (if it
            was not given, the one before is repeated): its action and reward are 0, and its
            terminal is 1, so that a model that resets its state after a terminal does so at the
            next reset. ``batch.mask`` is False there, and ``batch.is_first`` marks the resets.
        path: Folder of the store, continued if there is one; None keeps everything in RAM.
        num_envs: Number of envs N.
        seed: Seed of all draws; None draws one from the system.
        codec: Codec of the images: ``"patch"`` (default in a folder), ``"raw"`` (default in RAM) or
            ``"zstd"``.
        one_hot: Actions are given as numbers from 0 to A - 1.

    Raises:
        ValueError: A number is not a whole one, or too small; or ``seq_len`` is more than ``size``.
        SpecMismatch: The folder holds other data.
        StoreLocked: Another process writes into the folder.

    Example:
        >>> import numpy as np
        >>> buffer = ReplayBuffer(1000, (3, 8, 8), action_size=2, seq_len=5, batch_size=4, seed=0)
        >>> for step in range(20):
        ...     image = np.full((3, 8, 8), step, np.uint8)
        ...     buffer.add({"image": image}, np.zeros(2), 1.0, step % 10 == 9)
        >>> obs, actions, rewards, terminals = buffer.sample()
        >>> obs.shape, actions.shape, rewards.shape, buffer.steps, buffer.episodes
        ((5, 4, 3, 8, 8), (5, 4, 2), (5, 4), 20, 2)
    """

    _newest: ClassVar[bool] = True
    _all_borders: ClassVar[tuple[str, ...]] = get_args(Borders)

    def add(
        self,
        obs: Mapping[str, object],
        ac: object,
        rew: float,
        done: float,
        *,
        env: int = 0,
        truncated: bool = False,
        final_obs: Mapping[str, object] | None = None,
    ) -> None:
        """Add a step; everything is copied.

        Args:
            obs: Under ``"image"`` what the action was chosen from, uint8 ``[*obs_shape]``.
            ac: The action, float32 [A]; with ``one_hot`` its number.
            rew: The reward of the action.
            done: The episode ended with it, terminated or truncated.
            env: Index of the env.
            truncated: A time limit ended it; ``done`` is True then, too.
            final_obs: With the last step of an episode: what it ended with, like ``obs``.

        Raises:
            ValueError: Something is not as declared: another shape, numbers that uint8 does not
                hold, a flag that is not bool. Nothing was added.
        """
        is_terminated, is_truncated = ended_by("done", done, truncated=truncated)
        self._writer.add(
            _image("obs", obs),
            self._chosen("ac", ac),
            rew,
            terminated=is_terminated,
            truncated=is_truncated,
            final_observation=None if final_obs is None else _image("final_obs", final_obs),
            env=env,
        )

    def sample(self, *, borders: Borders | None = None) -> DrawnSequences:
        """Draw sequences uniformly over all sequences, with replacement.

        Args:
            borders: Other ones than the buffer's, this time.

        Returns:
            Observations uint8 ``[L, B, *obs_shape]``, actions float32 [L, B, A], and float32 [L, B]
            rewards of the actions and terminals: 1 where the episode ended with the action. All
            are the caller's own, and contiguous. The tuple's ``batch`` has the rest, time first
            as well.

        Raises:
            NotEnoughData: There is no sequence of L steps.
            ValueError: ``borders`` is not one of the two values.
        """
        chosen = self._chosen_borders(borders)
        request = Sequences(
            self.batch_size, self.seq_len, chosen, align="transition", time_major=True
        )
        batch = self._drawn(request, self.seq_len, is_across=chosen == "cross")
        terminals = (batch.terminated | batch.truncated | ~batch.mask).astype(np.float32)
        drawn = DrawnSequences((batch.observation, batch.action, batch.reward, terminals))
        drawn.batch = batch
        return drawn


def _image(name: str, observation: Mapping[str, object]) -> object:
    if type(observation) is dict and "image" in observation:  # faster than isinstance with Mapping
        return observation["image"]
    if not isinstance(observation, Mapping) or "image" not in observation:
        raise ValueError(
            f'{name}: expected a dict with the key "image", got {type(observation).__name__}; give '
            f'{{"image": ...}}'
        )
    return observation["image"]


class Missing(enum.Enum):
    """The default of arguments for which None is a value."""

    MISSING = "missing"

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = Missing.MISSING
"""The value of an info column for an observation without that key."""


# Any: values are returned as the caller passed them.
class Memory(Sequence[tuple[Any, ...]]):
    """Keeps the newest tuples that were appended, and draws some of them.

    It is a sequence, the oldest tuple first, so ``random.sample(memory, 32)`` works, too.

    Args:
        capacity: Tuples to keep.
        seed: Seed of the generator of draws; None takes one from the system.

    Raises:
        ValueError: ``capacity`` is not a whole number >= 1.

    Example:
        >>> import random
        >>> memory = Memory(capacity=100, seed=0)
        >>> for step in range(150):
        ...     memory.append([step, step], 0, 1.0, False, {})
        >>> len(memory), memory[0][0], len(memory.sample(32)), len(random.sample(memory, 32))
        (100, [50, 50], 32, 32)
    """

    def __init__(self, capacity: int = 10_000, *, seed: int | None = None) -> None:
        check_whole("capacity", capacity, 1)
        self.capacity = capacity
        self._rng = forks.generator(seed)
        self._ring: list[tuple[Any, ...]] = []  # a deque is slow in the middle
        self._oldest = 0

    def append(self, *args: Any) -> None:
        """Add the values as one tuple; arrays and containers are copied."""
        kept = tuple(_own(value) for value in args)
        if len(self._ring) < self.capacity:
            self._ring.append(kept)
        else:
            self._ring[self._oldest] = kept
            self._oldest = (self._oldest + 1) % self.capacity

    def sample(self, batch_size: int) -> list[tuple[Any, ...]]:
        """Draw different tuples, uniformly.

        Args:
            batch_size: Number of entries.

        Raises:
            TooFew: There are fewer; a NotEnoughData, and a ValueError as well.
            ValueError: It is not a whole number >= 1.
        """
        check_whole("batch_size", batch_size, 1)
        if batch_size > len(self):
            raise TooFew(
                f"expected at least batch_size={batch_size} tuples, got {len(self)}; append more, "
                f"or draw fewer"
            )
        chosen = self._rng.choice(len(self), batch_size, replace=False)
        return [self._ring[place] for place in chosen.tolist()]

    def __len__(self) -> int:
        return len(self._ring)

    @overload
    def __getitem__(self, index: int) -> tuple[Any, ...]: ...

    @overload
    def __getitem__(self, index: slice) -> list[tuple[Any, ...]]: ...

    def __getitem__(self, index: int | slice) -> tuple[Any, ...] | list[tuple[Any, ...]]:
        places = range(len(self))[index]
        if isinstance(places, range):
            return [self[place] for place in places]
        return self._ring[(self._oldest + places) % len(self)]


class Episode:
    """The observations, actions, rewards and terminals of one episode, in lists.

    Values are copied. The number of observations is ``len(episode)``, that of steps is
    `steps`: an episode that has begun has an observation and no step.

    Args:
        observation: The first observation; or a list of those that there are.
        action: With ``reward`` and ``terminal`` a first step; None for none.
        reward: See ``action``.
        terminal: See ``action``.
        info: Facts that came with the first observation. With a list of observations a value that
            is a list of as many holds one for each.

    Raises:
        ValueError: A first step is incomplete, or there is info and no observation.
        TypeError: ``info`` is not a mapping.

    Example:
        >>> import numpy as np
        >>> episode = Episode(np.zeros(2), info={"lives": 3})
        >>> episode.append(1, np.ones(2), 0.5, False)
        >>> episode.append(0, np.ones(2), 0.5, True, info={"lives": 2})
        >>> len(episode), episode.steps, episode.action, episode.info
        (3, 2, [1, 0], {'lives': [3, MISSING, 2]})
    """

    def __init__(
        self,
        observation: Any,
        action: Any = None,
        reward: Any = None,
        terminal: Any = None,
        info: Mapping[str, Any] | None = None,
    ) -> None:
        step = (action, reward, terminal)
        names = ("action", "reward", "terminal")
        given = [name for name, value in zip(names, step, strict=True) if value is not None]
        if given and len(given) < len(step):
            raise ValueError(
                f"a first step: expected action, reward and terminal, or none of them, got only "
                f"{', '.join(given)}; give the rest, or append the step"
            )
        is_list = isinstance(observation, list)
        facts = {} if info is None else _checked(info)
        if facts and is_list and not observation:
            raise ValueError(
                "info: expected an observation that it came with, got an empty list of them; give "
                "the first one"
            )
        self.observation: list[Any] = _own(observation) if is_list else [_own(observation)]
        self.action, self.reward, self.terminal = ([_own(v)] if v is not None else [] for v in step)
        self.info: dict[str, list[Any]] = {
            key: _column(value, len(self), is_list=is_list) for key, value in facts.items()
        }

    @property
    def steps(self) -> int:
        """Steps taken."""
        return len(self.action)

    def append(
        self,
        action: Any,
        observation: Any,
        reward: Any,
        terminal: Any,
        info: Mapping[str, Any] | None = None,
    ) -> None:
        """Add a step; after an error the episode is unchanged.

        Args:
            action: The action.
            observation: The observation that follows.
            reward: The reward of the action.
            terminal: The episode ended with it.
            info: Facts that came with the observation; columns that are not in it get `MISSING`.

        Raises:
            TypeError: ``info`` is not a mapping.
        """
        facts = {} if info is None else {k: _own(v) for k, v in _checked(info).items()}
        step = _own(action), _own(observation), _own(reward), _own(terminal)
        before = len(self)
        for key in facts:
            self.info.setdefault(key, [MISSING] * before)
        for key, column in self.info.items():
            column.append(facts.get(key, MISSING))
        columns = self.action, self.observation, self.reward, self.terminal
        for column, value in zip(columns, step, strict=True):
            column.append(value)

    def __len__(self) -> int:
        """Number of observations."""
        return len(self.observation)


def _own(value: Any) -> Any:
    """A copy that shares no memory with the value."""
    if isinstance(value, _UNCHANGING):
        return value
    if type(value) is np.ndarray and value.dtype != object:
        return value.copy()
    return copy.deepcopy(value)


def _checked(info: object) -> Mapping[str, Any]:
    if not isinstance(info, Mapping):
        raise TypeError(f"info: expected a mapping, got {type(info).__name__}; give a dict")
    return info


def _column(value: Any, rows: int, *, is_list: bool) -> list[Any]:
    """A first info value as a column of ``rows`` values."""
    if is_list and isinstance(value, list) and len(value) == rows:
        return [_own(each) for each in value]
    return [_own(value), *[MISSING] * (rows - 1)]
