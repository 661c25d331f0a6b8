"""Selects episodes by conditions on whole episodes, also as text, and the best or worst of them."""

from __future__ import annotations

import json
import math
import numbers
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import cast

from ..base.number_checks import count_in, is_whole
from ..storage.episode_filter import Where, check_where, chooses
from .stored_episode import StoredEpisode

SORT_NAMES = ("return", "steps", "id")
"""Names that episodes can be ranked by; every other name is a key of their metadata."""

_PERCENT = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,12})?) ?%")


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeSelection:
    """A condition on episodes: all given conditions must hold.

    Returns and steps are those of the stored rows, also for a cut episode.

    ``top`` and ``bottom`` rank the episodes that meet all conditions, by ``sort``, and select the
    first of them. Of two equal ones the smaller id comes first. Episodes that were cut or lack
    their beginning are not ranked, as rewards of them are missing: a cut episode of Pong has lost
    fewer points than a whole one. Nor are those without a number to sort by.

    Args:
        where: Condition on the metadata: keys with their values, or a function of the metadata.
        ids: Ranges of episode ids.
        min_return: Least sum of rewards.
        max_return: Greatest sum of rewards.
        min_steps: Least number of env steps.
        max_steps: Greatest number of env steps.
        has_ended: True: terminated or truncated. False: ended by a cut; such are ranked then.
        top: Select the ones with the greatest values: a number of episodes, or a part such as
            ``"10%"``, which is rounded up.
        bottom: Or those with the smallest values.
        sort: The value to rank by: ``"return"`` (the default), ``"steps"``, ``"id"``, or a key of
            the metadata.
        include_cut: Rank cut episodes, too, and those that lack their beginning.
        others: Select all episodes but those that all of this describes.

    Raises:
        ValueError: A number is NaN, a minimum is above its maximum, or ``top`` is no number of
            episodes.
        TypeError: ``where`` is neither a mapping nor a function.

    Example:
        >>> good = EpisodeSelection(min_return=18, has_ended=True)
        >>> good.to_json()
        {'min_return': 18, 'has_ended': True}
        >>> EpisodeSelection(top="10%", min_steps=5).to_json()
        {'min_steps': 5, 'top': '10%', 'sort': 'return'}
    """

    where: Where | None = None
    ids: tuple[range, ...] | None = None
    min_return: float | None = None
    max_return: float | None = None
    min_steps: int | None = None
    max_steps: int | None = None
    has_ended: bool | None = None
    top: int | str | None = None
    bottom: int | str | None = None
    sort: str | None = None
    include_cut: bool = False
    others: bool = False

    def __post_init__(self) -> None:
        if self.where is not None:
            check_where(self.where)
        for name in ("return", "steps"):
            least, most = getattr(self, f"min_{name}"), getattr(self, f"max_{name}")
            for end, value in (("min", least), ("max", most)):
                if value is None:
                    continue
                try:
                    # `isnan` converts to a float, which a whole number may be too large for.
                    is_number = isinstance(value, numbers.Real) and not math.isnan(value)
                except OverflowError:
                    raise ValueError(
                        f"{end}_{name}: expected a number that a float can hold, up to "
                        f"{sys.float_info.max:.4g}, got a larger one; give another"
                    ) from None
                if not is_number:
                    raise ValueError(
                        f"{end}_{name}: expected a number, got {value!r}: give another"
                    )
            if least is not None and most is not None and least > most:
                raise ValueError(
                    f"min_{name}: expected at most max_{name}={most}, got {least}: no episode can "
                    f"be both; swap them"
                )
        for name in ("top", "bottom"):
            if (number := getattr(self, name)) is not None:
                _check_number(name, number)
        if self.top is not None and self.bottom is not None:
            raise ValueError(
                f"expected top or bottom, got top={self.top!r} and bottom={self.bottom!r}; leave "
                f"one out"
            )
        if self.sort is not None and (not isinstance(self.sort, str) or not self.sort):
            raise ValueError(
                f"sort: expected {', '.join(map(repr, SORT_NAMES))} or a key of the metadata, got "
                f"{self.sort!r}; give one"
            )
        if not self.is_ranking and (self.sort is not None or self.include_cut):
            name = "include_cut" if self.sort is None else f"sort={self.sort!r}"
            raise ValueError(
                f"{name}: expected a number of episodes with it, got none; give top or bottom "
                f"(--top, --bottom)"
            )

    @property
    def is_empty(self) -> bool:
        """True if there is no condition, so that every episode is kept."""
        return not self.to_json()

    @property
    def is_ranking(self) -> bool:
        """True with ``top`` or ``bottom``: the choice depends on the other episodes."""
        return self.top is not None or self.bottom is not None

    def __call__(self, episode: StoredEpisode) -> bool:
        """True if the episode is to be kept; its rewards are read last, and only if needed.

        Raises:
            ValueError: With ``top`` or ``bottom`` one episode alone cannot be judged.
        """
        if self.is_ranking:
            raise ValueError(
                "top, bottom: expected all episodes, which are compared with each other, got one "
                "alone; give the selection to copy_episodes or export_episodes"
            )
        return self._meets_conditions(episode) != self.others

    def choose(self, episodes: Iterable[StoredEpisode]) -> Choice:
        """Choose among these episodes; of equal ones the first one given ranks first.

        Example:
            >>> import gymnasium as gym
            >>> import stepwell as sw
            >>> from stepwell.buffers.curation.stored_episode import stored_episodes
            >>> replay = sw.SequenceReplayBuffer()
            >>> envs = gym.make_vec("CartPole-v1", num_envs=2)
            >>> with sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector:
            ...     report = collector.collect(episodes=5)
            >>> best = EpisodeSelection(top=1).choose(stored_episodes(replay.storage))
            >>> best.is_chosen.index(1) == report.returns.index(max(report.returns))
            True
        """
        is_chosen = bytearray()
        ranked: list[tuple[float, int]] = []
        not_whole = without_value = 0
        for place, episode in enumerate(episodes):
            meets = self._meets_conditions(episode)
            is_chosen.append(meets and not self.is_ranking)
            if not (meets and self.is_ranking):
                continue
            is_over = episode.has_ended or self.has_ended is False
            if not (self.include_cut or (episode.first_row == 0 and is_over)):
                not_whole += 1
            elif (value := self._value_of(episode)) is None:
                without_value += 1
            else:
                ranked.append((-value if self.bottom is None else value, place))
        if self.is_ranking:
            for _, place in sorted(ranked)[: self.count(len(ranked))]:
                is_chosen[place] = True
        if self.others:
            is_chosen = bytearray(not one for one in is_chosen)
        return Choice(is_chosen, not_whole, without_value)

    def count(self, ranked: int) -> int:
        """The number of episodes that ``top`` or ``bottom`` selects of those that are ranked."""
        number = self.top if self.bottom is None else self.bottom
        if isinstance(number, str):
            return math.ceil(_percent_of(number) * ranked / 100)
        assert number is not None
        return int(number)

    def _value_of(self, episode: StoredEpisode) -> float | None:
        """The value that the episode is ranked by; None if it is no number."""
        if self.sort in (None, "return"):
            value: object = episode.total_reward
        elif self.sort in ("steps", "id"):
            value = getattr(episode, self.sort)
        else:
            value = episode.metadata.get(self.sort or "")
        return number_of(value)

    def _meets_conditions(self, episode: StoredEpisode) -> bool:
        return (
            (self.ids is None or any(episode.id in ids for ids in self.ids))
            and (self.has_ended is None or episode.has_ended == self.has_ended)
            and _is_within(episode.steps, self.min_steps, self.max_steps)
            and (self.where is None or chooses(self.where, episode.metadata))
            and (
                (self.min_return is None and self.max_return is None)
                or _is_within(episode.total_reward, self.min_return, self.max_return)
            )
        )

    def to_json(self) -> dict[str, object]:
        """The conditions as plain data; a function by its name."""
        where, ids = self.where, self.ids
        facts: dict[str, object] = {
            "where": dict(where) if isinstance(where, Mapping) else _name_of(where),
            "ids": None if ids is None else [[one.start, one.stop - 1] for one in ids],
            "min_return": self.min_return,
            "max_return": self.max_return,
            "min_steps": self.min_steps,
            "max_steps": self.max_steps,
            "has_ended": self.has_ended,
            "top": self.top if isinstance(self.top, str | None) else int(self.top),
            "bottom": self.bottom if isinstance(self.bottom, str | None) else int(self.bottom),
            "sort": (self.sort or "return") if self.is_ranking else None,
            "include_cut": self.include_cut or None,
            "others": self.others or None,
        }
        return {name: value for name, value in facts.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Choice:
    """Chosen episodes among all."""

    is_chosen: bytearray  # for each episode, in order, 1 if it is chosen
    # meet the conditions, but are not ranked: they are cut or lack their beginning
    not_whole: int = 0
    without_value: int = 0  # further ones that are not ranked: they have no number to sort by

    @property
    def sentence(self) -> str:
        """The episodes that were not ranked, and how to rank them; empty if all were."""
        texts: list[str] = []
        if self.not_whole:
            texts.append(
                f"{self.not_whole:,} cut or without beginning (include_cut=True, --include-cut "
                f"ranks them)"
            )
        if self.without_value:
            texts.append(f"{self.without_value:,} without a number to sort by")
        return f"not ranked: {', '.join(texts)}" if texts else ""


def choose(
    episodes: Iterable[StoredEpisode], keep: Callable[[StoredEpisode], bool] | None
) -> Choice:
    """Choose episodes by a function of one, or by a selection, which may rank them."""
    if isinstance(keep, EpisodeSelection):
        return keep.choose(episodes)
    return Choice(bytearray(keep is None or bool(keep(episode)) for episode in episodes))


def _check_number(name: str, number: object) -> None:
    """Refuse what is no number of episodes."""
    is_valid = is_whole(number) and number >= 1
    if isinstance(number, str) and _PERCENT.fullmatch(number):
        is_valid = 0 < _percent_of(number) <= 100
    if not is_valid:
        raise ValueError(
            f"{name}: expected a number of episodes such as 8, or a part above 0% and up to 100% "
            f"such as '10%', got {number!r}; give one"
        )


def number_of(value: object) -> float | None:
    """The value, if it is a number that others can be compared with; else None."""
    is_nan = isinstance(value, float) and math.isnan(value)
    return value if isinstance(value, int | float) and not is_nan else None


def _percent_of(text: str) -> Fraction:
    """The number of a text such as ``"2.5%"``; exact, so that 7% of 100 are 7 and not 8."""
    return Fraction(text.rstrip("% "))


def _is_within(value: float, least: float | None, most: float | None) -> bool:
    return (least is None or value >= least) and (most is None or value <= most)


def _name_of(function: object) -> str | None:
    return None if function is None else str(getattr(function, "__qualname__", function))


_ID_RANGE = re.compile(r"\s*([0-9]+)\s*(?:-\s*([0-9]+)\s*)?")


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def parse_selection(
    *,
    where: Sequence[str] | None = None,  # keys of the metadata with their values: "level=3"
    episodes: str | None = None,  # ids and ranges of ids
    min_return: str | None = None,
    max_return: str | None = None,
    min_steps: str | None = None,
    max_steps: str | None = None,
    ended: bool = False,  # terminated or truncated ones
    cut: bool = False,  # the others
    top: str | None = None,  # number or part of the best
    bottom: str | None = None,  # number or part of the worst
    sort: str | None = None,  # the value to rank by
    include_cut: bool = False,  # rank cut episodes, too
    named: Callable[[str], str] = _option,  # the name of each of these arguments in messages
) -> EpisodeSelection:
    """Parse the conditions on episodes; the selection is empty where none was given."""
    if ended and cut:
        raise ValueError(
            f"expected {named('ended')} or {named('cut')}, got both: no episode is ended and cut; "
            f"leave one out"
        )
    metadata: dict[str, object] = {}
    for text in where or ():
        key, value = parse_metadata(named("where"), text)
        if key in metadata:
            raise ValueError(
                f"{named('where')}: expected each key once, got {key!r} twice; leave one out"
            )
        metadata[key] = value
    return EpisodeSelection(
        where=metadata or None,
        ids=None if episodes is None else parse_ids(named("episodes"), episodes),
        min_return=real_number(named("min_return"), min_return),
        max_return=real_number(named("max_return"), max_return),
        min_steps=count_in(named("min_steps"), min_steps, 0),
        max_steps=count_in(named("max_steps"), max_steps, 0),
        has_ended=True if ended else False if cut else None,
        top=_number_or_part(named("top"), top),
        bottom=_number_or_part(named("bottom"), bottom),
        sort=sort,
        include_cut=include_cut,
    )


def _number_or_part(option: str, text: str | None) -> int | str | None:
    """Parse a number of episodes; a part such as 10% is left to the selection."""
    if text is None or text.strip().endswith("%"):
        return text and text.strip()
    try:
        return count_in(option, text)
    except ValueError:
        raise ValueError(
            f"{option}: expected a number of episodes such as 8, or a part such as 10%, got "
            f"{text!r}; give one"
        ) from None


def parse_ids(option: str, text: str) -> tuple[range, ...]:
    """Parse ids and ranges of ids: ``"3,10-20"`` gives ``(range(3, 4), range(10, 21))``."""
    ranges: list[range] = []
    for part in text.split(","):
        match = _ID_RANGE.fullmatch(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first:
            raise ValueError(
                f"{option}: expected numbers and ranges such as 3,10-20, got {part.strip()!r}; "
                f"correct it"
            )
        ranges.append(range(first, last + 1))
    return tuple(ranges)


def parse_metadata(option: str, text: str) -> tuple[str, object]:
    """Parse a key of the metadata and its value, ``key=value``; the value is JSON, or else text."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ValueError(
            f"{option}: expected key=value such as task=door or level=3, got {text!r}; write both"
        )
    try:
        return key, cast("object", json.loads(value))
    except (ValueError, RecursionError):  # brackets within brackets
        return key, value


def format_ids(ids: Sequence[int], max_length: int) -> str:
    """Format ids as `parse_ids` reads them, as many as fit into ``max_length`` characters."""
    ranges: list[list[int]] = []
    for number in ids:
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1] = [ranges[-1][0], number]
        else:
            ranges.append([number])
    texts = ["-".join(map(str, each)) for each in ranges]
    whole = ",".join(texts)
    if len(whole) <= max_length:
        return whole
    kept = ""
    for text in texts:
        if len(f"{kept}{text},...") > max_length and kept:
            break
        kept += f"{text},"
    return f"{kept}..."


def real_number(option: str, text: str | None) -> float | None:
    """Parse a number that may have a fraction; None where it was not given."""
    try:
        return None if text is None else float(text)
    except ValueError:
        raise ValueError(f"{option}: expected a number such as 1.5, got {text!r}") from None
