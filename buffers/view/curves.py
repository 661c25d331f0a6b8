"""The numbers of an episode's rows as curves, and the names of its actions."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import cast

import numpy as np

from ..base.untrusted_json import mapping_of
from ..curation.stored_episode import StoredEpisode
from ..pictures.image_fields import image_fields
from ..rows.episode import End
from ..spec.spec import Field, Spec
from .episode_table import shown

_RETURN = "return so far"
_MOST_COMPONENTS, _MOST_CURVES = 16, 256
_MOST_NAMES, _MOST_POINTS = 64, 1 << 14
_SOME_NAMES = 12  # in a message
_READ_BYTES = 1 << 23
_SHOWN_VALUES, _SHOWN_CHARS, _MOST_DEPTH = 64, 512, 32
_HAS_NO_ACTION = int(End.TERMINATED | End.TRUNCATED | End.PENDING)  # in its last row
_PLACE = re.compile(r"\[[0-9]{1,12}(?:,[0-9]{1,12}){0,31}\]")
_MOST_ACTIONS, _ACTION_CHARS = 1024, 64
_FACTS = ("recipe", "spaces", "vector_wrappers")
_MOST_RECIPES = 16  # different ones in a store
# They change neither the number of an action nor its meaning.
_KEEP_ACTIONS = {
    *("AtariPreprocessing", "ClipReward", "FrameStack", "FrameStackObservation"),
    *(
        "GrayscaleObservation",
        "MaxAndSkipObservation",
        "NormalizeReward",
        "RecordEpisodeStatistics",
    ),
    *("ResizeObservation", "TimeLimit", "TransformObservation", "TransformReward"),
}


@dataclass(frozen=True, slots=True)
class _Curve:
    """One component of a field as a curve."""

    name: str
    field: Field
    component: int = 0  # index in a flattened row
    part: str | None = None  # of a complex number; None for others

    def values(self, rows: np.ndarray) -> np.ndarray:
        """The values [T] of rows [T, ...]; bools as 0 and 1."""
        found = rows.reshape(len(rows), -1)[:, self.component]
        if self.part is not None:
            found = np.real(found) if self.part == "real" else np.imag(found)
        return found.astype(np.uint8) if found.dtype.kind == "b" else found


def curve_names(spec: Spec, texts: Sequence[str] = ()) -> list[str]:
    """Names of the curves of an episode: the return so far, and each component of a small field."""
    # Fields of images and of `texts` are left out, and so are components after the 16th of a wide
    # field, and curves after the 256th; `left_out` says so. `curves` draws those components, too,
    # by their names.
    named = [curve.name for field in _drawn(spec, texts) for curve in _curves_of(field)]
    return [_RETURN, *named][:_MOST_CURVES]


def left_out(spec: Spec, texts: Sequence[str] = ()) -> str:
    """The components that `curve_names` leaves out, as a sentence; empty if there are none."""
    wide: list[str] = []
    for field in _drawn(spec, texts):
        size = math.prod(field.shape)
        if size > _MOST_COMPONENTS:
            last = ",".join(str(length - 1) for length in field.shape)
            wide.append(
                f"{_MOST_COMPONENTS} of {size:,} components of {field.name}; others by their "
                f"names, as {field.name}[{last}]"
            )
    named = sum(len(list(_curves_of(field))) for field in _drawn(spec, texts)) + 1
    more = [f"the first {_MOST_CURVES} of {named:,}"] if named > _MOST_CURVES else []
    found = [*more, *wide]
    return f"curves of {'; '.join(found[:_MOST_COMPONENTS])}" if found else ""


def curves(
    episode: StoredEpisode,
    names: Sequence[str],
    begin: int | None = None,
    stop: int | None = None,
    points: int = 1000,
) -> dict[str, object]:
    """Values of an episode's rows from ``begin`` to before ``stop``, as plain JSON."""
    # Of more rows than points, consecutive rows are put together in as many parts, and the least
    # and the greatest value of each part are given, so that no spike is lost.
    #
    # "rows" has the row of each point, or the first row of each part, "stop" the row after the last
    # one, "curves" for each name "values", or "low" and "high". A value is None where none is: no
    # action was chosen in the last row of an episode that has ended. It is None, too, where all
    # values are NaN or infinite; "not_finite" then counts them by name, over all rows.
    first, last = episode.first_row, episode.first_row + episode.rows
    begin = first if begin is None else begin
    stop = last if stop is None else stop
    if not first <= begin < stop <= last:
        raise ValueError(
            f"rows of episode {episode.id}: expected some from {first} up to {last}, got {begin} "
            f"up to {stop}"
        )
    if not 1 <= points <= _MOST_POINTS:
        raise ValueError(f"points: expected 1 to {_MOST_POINTS}, got {points}")
    if len(names) > _MOST_NAMES:
        raise ValueError(f"expected at most {_MOST_NAMES} curves, got {len(names)}: ask for fewer")
    fields = _drawn(episode.spec)
    chosen = {name: None if name == _RETURN else _curve(fields, name) for name in names}
    count = min(points, stop - begin)
    starts = begin + np.arange(count) * (stop - begin) // count
    lines = {name: _Line(starts, stop) for name in chosen}
    drawn = {curve.field.name: curve.field for curve in chosen.values() if curve is not None}
    total = 0.0
    if _RETURN in lines:
        drawn["reward"] = episode.spec["reward"]
        for _, rows in _blocks(episode, [drawn["reward"]], first, begin):
            total = float(_sums_after(total, rows["reward"])[-1])
    # In the last row of an episode that has ended no action was chosen.
    has_none = stop == last and int(episode.end) & _HAS_NO_ACTION != 0
    for row, rows in _blocks(episode, list(drawn.values()), begin, stop):
        for name, curve in chosen.items():
            if curve is None:
                values = _sums_after(total, rows["reward"])
                total = float(values[-1])
            else:
                values = curve.values(rows[curve.field.name])
                if has_none and curve.field.is_chosen:
                    values = values[: stop - 1 - row]
            if len(values):
                lines[name].add(row, values)
    return {
        "rows": starts.tolist(),
        "stop": stop,
        "curves": {name: line.to_json() for name, line in lines.items()},
    }


def values_at(episode: StoredEpisode, row: int, texts: Sequence[str] = ()) -> dict[str, object]:
    """The values of one row, without images, as plain JSON; ``texts`` in one piece."""
    # Of arrays the first 64 values are given, in a flat list, with the number of all. Whole numbers
    # that a browser cannot hold exactly, NaN and infinity are texts; None stands for an action that
    # was not chosen.
    fields = _drawn(episode.spec, texts)
    parts = [f"{text}/{part}" for text in texts for part in ("value", "length")]
    rows = episode.read(row, row + 1, [*(field.name for field in fields), *parts])
    is_last = row == episode.first_row + episode.rows - 1
    has_action = not (is_last and int(episode.end) & _HAS_NO_ACTION)
    found: dict[str, object] = {
        field.name: _plain(rows[field.name][0]) if has_action or not field.is_chosen else None
        for field in fields
    }
    for text in texts:
        is_there = has_action or not episode.spec[f"{text}/value"].is_chosen
        codes = rows[f"{text}/value"][0][: max(0, int(rows[f"{text}/length"][0]))]
        found[text] = _readable(codes) if is_there else None
    return found


def text_names(sessions: Sequence[Mapping[str, object]], spec: Spec) -> list[str]:
    """Names of the texts in observations and actions, as the newest run that says it tells them."""
    # A name is such as observation/mission, whose fields are observation/mission/value and others.
    # What the sessions say is checked.
    recorded = [one["spaces"] for one in sessions if isinstance(one.get("spaces"), Mapping)]
    newest = mapping_of(recorded[-1]) if recorded else {}
    found = [name for kind, space in newest.items() for name in _texts_in(space, kind)]
    return [
        name
        for name in found
        if {f"{name}/value", f"{name}/length", f"{name}/mask"} <= set(spec.names)
        and len(spec[f"{name}/value"].shape) == 1
        and spec[f"{name}/value"].numpy_dtype.kind in "iu"
        and spec[f"{name}/length"].shape == ()
        and spec[f"{name}/length"].numpy_dtype.kind in "iu"
    ]


def _texts_in(space: object, name: str) -> Iterator[str]:
    """The names of texts in a space as JSON, outside of sequences and alternatives."""
    facts = mapping_of(space) if name.count("/") < _MOST_DEPTH else {}
    if facts.get("type") == "Fixed" and mapping_of(facts.get("space")).get("type") == "Text":
        yield name
    parts = facts.get("spaces")
    pairs = enumerate(_items(parts)) if isinstance(parts, list) else mapping_of(parts).items()
    if facts.get("type") in ("Dict", "Tuple"):
        for key, part in pairs:
            yield from _texts_in(part, f"{name}/{key}")


class _Line:
    """The least and the greatest value of each part of some rows; ``starts`` [n] are first rows."""

    def __init__(self, starts: np.ndarray, stop: int) -> None:
        self._starts = starts
        self._is_exact = len(starts) == stop - int(starts[0])
        self._has_value = np.zeros(len(starts), np.bool_)
        self._low = self._high = np.zeros(len(starts))
        self._not_finite: dict[str, int] = {}

    def add(self, row: int, values: np.ndarray) -> None:
        """Take in the values of consecutive rows from ``row`` on."""
        lows = highs = values  # whole numbers stay exact
        is_finite = np.isfinite(values)
        if values.dtype.kind == "f":
            lows = np.where(is_finite, values, np.inf)
            highs = np.where(is_finite, values, -np.inf)
            self._count(values[~is_finite])
        if not self._has_value.any():
            ends = (np.inf, -np.inf)
            if values.dtype.kind != "f":
                ends = np.iinfo(values.dtype).max, np.iinfo(values.dtype).min
            self._low, self._high = (np.full(len(self._starts), end, lows.dtype) for end in ends)
        part = int(np.searchsorted(self._starts, row, side="right")) - 1
        stop = int(np.searchsorted(self._starts, row + len(values), side="left"))
        begins, those = np.maximum(self._starts[part:stop] - row, 0), slice(part, stop)
        low, high = np.minimum.reduceat(lows, begins), np.maximum.reduceat(highs, begins)
        self._low[those] = np.minimum(low, self._low[those])
        self._high[those] = np.maximum(high, self._high[those])
        self._has_value[those] |= np.logical_or.reduceat(is_finite, begins)

    def _count(self, values: np.ndarray) -> None:
        for name, count in (
            ("nan", np.isnan(values).sum()),
            ("inf", (values == np.inf).sum()),
            ("-inf", (values == -np.inf).sum()),
        ):
            if count:
                self._not_finite[name] = self._not_finite.get(name, 0) + int(count)

    def to_json(self) -> dict[str, object]:
        """The values as plain JSON."""
        ends = {"values": self._low} if self._is_exact else {"low": self._low, "high": self._high}
        found: dict[str, object] = {}
        for name, values in ends.items():
            numbers = values.astype(np.object_)
            numbers[~self._has_value] = None
            found[name] = numbers.tolist()
        return {**found, "not_finite": self._not_finite} if self._not_finite else found


def _drawn(spec: Spec, texts: Sequence[str] = ()) -> list[Field]:
    """The fields that are drawn as curves: reward and action first; no images and no texts."""
    hidden = {image.name for image in image_fields(spec)}
    hidden |= {f"{text}/{part}" for text in texts for part in ("value", "length", "mask")}
    first = [*spec.of_kind("reward"), *spec.of_kind("action")]
    fields = [*first, *(field for field in spec.fields if field.kind not in ("reward", "action"))]
    return [field for field in fields if field.name not in hidden and math.prod(field.shape) > 0]


def component_name(field: Field, component: int) -> str:
    """The name of a number in a flattened row of a field, such as ``action[0,2]``."""
    place = ",".join(str(int(each)) for each in np.unravel_index(component, field.shape))
    return f"{field.name}[{place}]" if field.shape else field.name


def _curves_of(field: Field) -> Iterator[_Curve]:
    parts = ("real", "imag") if field.numpy_dtype.kind == "c" else (None,)
    for component in range(min(_MOST_COMPONENTS, math.prod(field.shape))):
        name = component_name(field, component)
        for part in parts:
            yield _Curve(name if part is None else f"{name}.{part}", field, component, part)


def _curve(fields: Sequence[Field], name: str) -> _Curve:
    for field in fields:
        if not name.startswith(field.name):
            continue
        rest, part = name[len(field.name) :], None
        if field.numpy_dtype.kind == "c":
            rest, _, part = rest.rpartition(".")
        place = tuple(map(int, rest[1:-1].split(","))) if _PLACE.fullmatch(rest) else ()
        is_right = len(place) == len(field.shape) and (rest != "") == (field.shape != ())
        if part in (None, "real", "imag") and is_right:
            if all(each < length for each, length in zip(place, field.shape, strict=True)):
                component = int(np.ravel_multi_index(place, field.shape)) if place else 0
                return _Curve(name, field, component, part)
    named = (curve.name for field in fields for curve in _curves_of(field))
    some = ", ".join([_RETURN, *islice(named, _SOME_NAMES)])
    raise ValueError(f"expected a curve such as {some}; got {name[:_ACTION_CHARS]!r}")


def _blocks(
    episode: StoredEpisode, fields: Sequence[Field], begin: int, stop: int
) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    """First row and rows of consecutive blocks of bounded size."""
    step = max(1, _READ_BYTES // max(1, sum(field.row_bytes for field in fields)))
    for row in range(begin, stop, step):
        yield row, episode.read(row, min(row + step, stop), [field.name for field in fields])


def _sums_after(total: float, rewards: np.ndarray) -> np.ndarray:
    """The sums of all rewards up to each one, after those that add up to ``total``."""
    with np.errstate(invalid="ignore", over="ignore"):  # inf and -inf: NaN
        # One after the other, so that blocks of any size give the same.
        found: np.ndarray = np.add.accumulate(np.append(total, rewards))[1:]
    return found


def _plain(value: np.ndarray) -> object:
    """An array or a number as plain JSON of a bounded size."""
    flat = value.reshape(-1)
    found = [shown(each) for each in flat[:_SHOWN_VALUES].tolist()]
    if not value.shape:
        return found[0]
    more = flat.size - len(found)
    return [*found, f"… {more:,} more"] if more else found


def _readable(codes: np.ndarray) -> str:
    """A text of a bounded size; what is no character is replaced."""
    more = len(codes) - _SHOWN_CHARS
    text = "".join(
        chr(code) if 0 <= code < 0xD800 or 0xDFFF < code <= 0x10FFFF else "\ufffd"
        for code in codes[:_SHOWN_CHARS].tolist()
    )
    return f"{text} … {more:,} more" if more > 0 else text


def action_names(sessions: Sequence[Mapping[str, object]], spec: Spec) -> list[str] | None:
    """Names of the numbers of a Discrete action, or the bits of a MultiBinary one."""
    # They are as the runs tell them. Envs of `make_nes` have a list of buttons in their facts.
    # Those of ale-py say the game and whether it has its own actions or all 18; the names are
    # ale-py's, which must be installed. None where the runs do not say them, or not the same; those
    # without an env do not count.
    if spec.action != "action" or spec["action"].numpy_dtype.kind not in "iub":
        return None
    found: list[str] | None = None
    asked: set[str] = set()
    for session in sessions:
        if not isinstance(session.get("recipe"), Mapping):
            continue
        facts = json.dumps([session.get(key) for key in _FACTS], sort_keys=True, default=str)
        if facts in asked:
            continue
        asked.add(facts)
        names = _names_of(session, spec["action"].shape)
        if names is None or found not in (None, names) or len(asked) > _MOST_RECIPES:
            return None
        found = names
    return found


def _names_of(session: Mapping[str, object], shape: tuple[int, ...]) -> list[str] | None:
    """The names of the actions of one run; None if it does not say them for certain."""
    recipe = mapping_of(session.get("recipe"))
    space = mapping_of(mapping_of(session.get("spaces")).get("action"))
    if session.get("vector_wrappers"):
        return None
    if recipe.get("maker") == "make_vec":
        wrappers = recipe.get("wrappers")
        kinds = {str(mapping_of(each).get("name")) for each in _items(wrappers)}
        if not isinstance(wrappers, list) or kinds - _KEEP_ACTIONS:
            return None
    own = mapping_of(recipe.get("env")) or recipe
    if isinstance(own.get("actions"), list):
        found = _items(own["actions"])
        is_short = len(found) <= _MOST_ACTIONS
        if not is_short or not all(isinstance(name, str) for name in found):
            return None
        names = [str(name)[:_ACTION_CHARS] for name in found]
        length = (len(names),) if own.get("is_multibinary") is True else ()
        return names if shape == length and space.get("n", len(names)) == len(names) else None
    if shape != () or space.get("type") != "Discrete" or space.get("start") != 0:
        return None
    game_names = _atari_names(recipe)
    return game_names if game_names and space.get("n") == len(game_names) else None


def _atari_names(recipe: Mapping[str, object]) -> list[str] | None:
    """The names of the actions of an Atari game, by its recipe."""
    if recipe.get("maker") == "make_atari":
        game, is_full = recipe.get("game"), recipe.get("full_actions")
    elif recipe.get("maker") == "make_vec" and str(recipe.get("id")).startswith("ALE/"):
        kwargs = mapping_of(recipe.get("kwargs"))
        game, is_full = kwargs.get("game"), kwargs.get("full_action_space")
    else:
        return None
    if not isinstance(game, str) or not isinstance(is_full, bool):
        return None
    return _ale_names(game, is_full=is_full)


@functools.lru_cache(maxsize=8)
def _ale_names(game: str, *, is_full: bool) -> list[str] | None:
    """ale-py's names of a game's actions; None where it is not installed, or has no such game."""
    try:
        import ale_py
        from ale_py import roms
    except ImportError:
        return None
    mode = ale_py.LoggerMode.Error  # else it writes a banner
    ale_py.ALEInterface.setLoggerMode(mode)
    ale = ale_py.ALEInterface()
    if game not in roms.get_all_rom_ids():  # never a path that a store names
        return None
    ale.loadROM(str(roms.get_rom_path(game)))
    actions = ale.getLegalActionSet() if is_full else ale.getMinimalActionSet()
    return [str(action.name) for action in actions]


def _items(fact: object) -> list[object]:
    return cast("list[object]", fact) if isinstance(fact, list) else []
