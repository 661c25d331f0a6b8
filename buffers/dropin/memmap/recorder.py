"""The episode that is being played, from its first step to its storing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping
from typing import Any, TypeVar

from stepwell.buffers.dropin.memmap.episode_folder import EpisodeFolder
from stepwell.buffers.dropin.memmap.staging import StagedEpisodes

__all__ = ["EpisodeRecorder", "batch_of"]

ResultT = TypeVar("ResultT")


class EpisodeRecorder:
    """Keeps the steps of an episode, or of a batch of them, until it ends.

    Args:
        folder: Where whole episodes go.
    """

    def __init__(self, folder: EpisodeFolder) -> None:
        self._folder = folder
        self._staged: StagedEpisodes | None = None
        self._is_inside = False

    @property
    def steps(self) -> int:
        """Steps that it has so far."""
        return 0 if self._staged is None else self._staged.steps

    @contextlib.contextmanager
    def playing(
        self, count: int | None, metas: Mapping[str, object]
    ) -> Generator[dict[str, object]]:
        """Store what is added inside, when it is left; nothing on an exception.

        Args:
            count: Episodes of a batch; None for one without an axis for that.
            metas: Fields of the episodes.

        Yields:
            Where fields of the episodes are put that are known later.

        Raises:
            ValueError: There is no room, or an episode is being played already.
        """
        if count is not None:
            _check_count(count)
        if self._staged is not None or self._is_inside:
            raise ValueError(
                f"one episode at a time: expected none that is being played, got one of "
                f"{self.steps} steps; end it with advance_episode(), or discard_episode()"
            )
        staged, later = self._new(count), dict[str, object]()
        staged.put_metas(metas)
        self._staged, self._is_inside = staged, True
        try:
            yield later
            staged.put_metas(later)
        except BaseException:
            self._staged, self._is_inside = None, False
            raise
        self._is_inside = False
        self._end()

    def stage(self, count: int | None, put: Callable[[StagedEpisodes], ResultT]) -> ResultT:
        """Do something to what is being played, or to something new if that goes well.

        Args:
            count: Episodes of a batch; None for one without an axis for that.
            put: What is done.

        Raises:
            ValueError: Something else is being played, or there is no room.
        """
        staged = self._new(count) if self._staged is None else self._staged
        if staged.count != count:
            got, expected = (
                "one episode, by store()" if n is None else f"{n} episodes"
                for n in (count, staged.count)
            )
            raise ValueError(f"expected steps for {expected}, got them for {got}")
        result = put(staged)
        self._staged = staged
        return result

    def advance(self, count: int) -> None:
        """End it, and store it; nothing happens where nothing is being played.

        Raises:
            ValueError: It is not as many episodes as are being played, or has no steps.
        """
        staged = self._staged
        if staged is None:
            return
        _check_count(count)
        if not staged.steps:
            raise ValueError(
                "advance_episode: expected an episode of one step at least, got fields of episodes "
                "alone; store a step, or discard_episode()"
            )
        if count != staged.episodes:
            raise ValueError(
                f"advance_episode: expected batch_size={staged.episodes}, as many as were stored "
                f"together, got {count}"
            )
        if self._is_inside:
            raise ValueError(
                "advance_episode: expected to be called outside of one_episode, which ends the "
                "episode itself; leave one of the two out"
            )
        self._end()

    def discard(self) -> None:
        """Forget it."""
        self._staged = None

    def at(self, slot: int) -> StagedEpisodes | None:
        """The one episode that is being played, where a slot means that and no stored one."""
        total, most = self._folder.total, self._folder.config.max_episodes
        is_next = total < most and slot == total
        staged = self._staged
        return staged if is_next and staged is not None and staged.count is None else None

    def _new(self, count: int | None) -> StagedEpisodes:
        self._folder.check_room(1 if count is None else count)
        return StagedEpisodes(self._folder.config, count)

    def _end(self) -> None:
        staged, self._staged = self._staged, None
        if staged is not None and staged.steps:
            self._folder.add(staged.whole())


def batch_of(data: Mapping[str, object]) -> int:
    """How many episodes values are for.

    Raises:
        ValueError: They are not for several.
    """
    value: Any = next(iter(data.values()))
    try:
        return len(value)
    except TypeError:
        raise ValueError(
            f"{next(iter(data))!r}: expected values [batch, ...], got {value!r}; store() takes "
            f"those of one episode"
        ) from None


def _check_count(count: int) -> None:
    if isinstance(count, bool) or int(count) != count or count < 1:
        raise ValueError(f"batch_size: expected a whole number >= 1, got {count!r}")
