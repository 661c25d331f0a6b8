"""The card of a data set: the page that a hub shows about it, with a picture.

The text of a store is hostile: names and settings stand in code spans, where neither Markdown nor
HTML counts, and are cut.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ..curation.stored_episode import StoredEpisode
from ..pictures.encode import webp
from ..pictures.film_strip import FilmStrip
from ..pictures.image_fields import image_fields
from ..rows.episode import End
from ..spec.spec import Spec
from ..storage.disk.storage import DiskStorage
from ..storage.protocol import Storage
from ..view.episode_table import EpisodeTable, end_word
from ..view.summary import (
    RUN_COLUMNS,
    describe_env,
    describe_machine,
    describe_seeds,
    describe_size,
    describe_versions,
    run_lines,
    seeds_of,
)
from .formats.format import Format

CARD = "README.md"
"""The name of a card's file: hubs show the one of this name."""
PICTURE = "picture.webp"
"""The name of its picture."""

_LICENSE = re.compile(r"[a-z0-9][a-z0-9.+-]{0,63}")
_SIZES = (
    *("n<1K", "1K<n<10K", "10K<n<100K", "100K<n<1M", "1M<n<10M", "10M<n<100M"),
    *("100M<n<1B", "1B<n<10B", "10B<n<100B", "100B<n<1T", "n>1T"),
)
_CONFIGS = re.compile(r"^configs:\n(?:[ -].*\n)+", re.MULTILINE)
_LEROBOT = "configs:\n- config_name: default\n  data_files: data/*/*.parquet\n"
_MOST_TEXT, _MOST_RUNS, _MOST_FIELDS, _MOST_NOTES = 300, 20, 60, 20
_FRAMES, _FRAME_SIDE = 8, 160
_MOST_READ = 64 << 20  # bytes of the frames of a picture
_MOST_PICTURE = 1 << 20
_PUNCTUATION = re.compile(r"([!-,/:-@\[-`{-~])")  # of ASCII, but - and .


def check_license(license: str | None) -> None:
    """Refuse what is no word of the Hub for a licence, such as cc-by-4.0."""
    if license is not None and not (isinstance(license, str) and _LICENSE.fullmatch(license)):
        raise ValueError(
            f"license: expected the hub's word for it, such as cc-by-4.0, mit or other, got "
            f"{license!r}; correct it"
        )


def store_card(
    path: Path, *, title: str, pulled_as: str | None = None, license: str | None = None
) -> dict[str, bytes]:
    """The card of a store, which is only read, and its picture if it has images, by file name."""
    # `stepwell pull` makes a folder of this name, by which the lines below it open the store.
    name = (pulled_as or title).rpartition("/")[2]
    with DiskStorage.open(path, read_only=True) as storage:
        facts = _Facts(storage, None)
        loading = [
            *([f"```bash\nstepwell pull {pulled_as} {name}\n```"] if pulled_as else []),
            f"```python\nimport stepwell as sw\n\n"
            f"replay = sw.SequenceReplayBuffer.open({json.dumps(name)}, read_only=True)\n```",
        ]
        size = ", ".join(
            describe_size(
                storage.nbytes,
                storage.index.rows * storage.spec.row_bytes,
                int(storage.index.records["nbytes"].sum()),
            )
        )
        return _card(
            facts,
            title=title,
            license=license,
            kind="a store of Stepwell",
            hub="viewer: false\n",
            loading=loading,
            more={"size": size},
            replayed=describe_seeds(seeds_of(path)),
        )


def export_card(
    storage: Storage,
    chosen: frozenset[tuple[int, int]],
    format_: Format,
    *,
    loading: str,  # Python that loads the data set, by a path in the current folder
    notes: Sequence[str],
    readme: str | None,  # the card that the format itself has written
    title: str,
    license: str | None,
) -> dict[str, bytes]:
    """The card of exported episodes, chosen by id and first row, and its picture, by file name."""
    facts = _Facts(storage, chosen)
    configs = _LEROBOT if format_.name == "lerobot" else "viewer: false\n"
    tables = ""
    if readme is not None:
        _, _, tables = readme.partition("\n---\n")
        if found := _CONFIGS.search(readme):
            configs = found[0]
        tables = re.sub(r"^# .*$", "## The tables", tables.strip(), count=1, flags=re.MULTILINE)
    return _card(
        facts,
        title=title,
        license=license,
        kind=f"a data set in the format {format_.name}: {format_.about}",
        hub=configs,
        loading=[f"```python\n{loading}\n```"],
        notes=notes,
        tables=tables,
    )


class _Facts:
    """The facts of a card about some episodes of a storage."""

    def __init__(self, storage: Storage, chosen: frozenset[tuple[int, int]] | None) -> None:
        self.spec: Spec = storage.spec
        self.sessions = tuple(storage.sessions)
        table = EpisodeTable(storage)
        table.read_all_returns()
        with table.lock:
            keys = zip(table.ids.tolist(), table.first_rows.tolist(), strict=True)
            places = np.array(
                [place for place, key in enumerate(keys) if chosen is None or key in chosen],
                np.int64,
            )
            ends = table.ends[places]
            self.steps = int(table.steps[places].sum())
            self.episodes = len(places)
            self.ends = Counter(map(end_word, ends.tolist()))
            is_final = (ends & int(End.TERMINATED | End.TRUNCATED)) != 0
            whole = places[is_final & (table.first_rows[places] == 0)]
            self.returns, self.lengths = table.returns[whole], table.steps[whole]
            self.picture_of = ""
            self.picture_files = self._picture(table, whole if len(whole) else places)

    def _picture(self, table: EpisodeTable, places: np.ndarray) -> dict[str, bytes]:
        """Frames of the episode with the greatest return, in one picture."""
        images = image_fields(self.spec)
        if not images or not len(places):
            return {}
        image = images[0]
        returns = table.returns[places]
        place = int(places[np.argmax(np.where(np.isfinite(returns), returns, -np.inf))])
        episode = table.episode(place)
        most = _MOST_READ // max(1, self.spec[image.name].row_bytes)
        rows = _spread(episode, min(_FRAMES, most))
        if not rows:
            return {}
        read = [episode.read(row, row + 1, [image.name])[image.name] for row in rows]
        frames = image.pixels(np.concatenate(read))
        step = math.ceil(max(image.height, image.width) / _FRAME_SIDE)
        strip = FilmStrip.of(frames[:, ::step, ::step], rows)
        data = webp(strip.pixels)
        if len(data) > _MOST_PICTURE:
            return {}
        self.picture_of = f"rows {rows[0]:,} to {rows[-1]:,} of episode {episode.id}"
        return {PICTURE: data}


def _spread(episode: StoredEpisode, most: int) -> list[int]:
    """Rows of an episode, evenly spread, at most so many."""
    count = min(most, episode.rows)
    last = episode.first_row + episode.rows - 1
    return np.linspace(episode.first_row, last, count).astype(int).tolist() if count > 0 else []


def _card(
    facts: _Facts,
    *,
    title: str,
    license: str | None,
    kind: str,
    hub: str,
    loading: Sequence[str],
    more: Mapping[str, str] | None = None,
    notes: Sequence[str] = (),
    replayed: str = "",
    tables: str = "",
) -> dict[str, bytes]:
    # The Hub reads its own words for a data set between two lines of dashes, as YAML. All that
    # comes from the store is untrusted: as `_code` or `_plain` it cannot become Markdown or HTML.
    front = [
        *([f"license: {license}"] if license else []),
        f"pretty_name: {json.dumps(_plain(title), ensure_ascii=False)}",
        f"size_categories:\n- {_SIZES[min(max(0, len(str(facts.steps)) - 3), len(_SIZES) - 1)]}",
        "task_categories:\n- reinforcement-learning",
        "tags:\n- reinforcement-learning\n- gymnasium\n- stepwell",
    ]
    counts = f"{facts.episodes:,}"
    if facts.ends:
        counts += ": " + ", ".join(f"{n:,} {word}" for word, n in sorted(facts.ends.items()))
    contents = {
        "env": _code(describe_env(facts.sessions)),
        "env steps": f"{facts.steps:,}",
        "episodes": counts,
        **(more or {}),
    }
    heading = _PUNCTUATION.sub(r"\\\1", _plain(title))
    name = describe_env(facts.sessions).partition(", ")[0]  # without its settings
    whole = f"of {len(facts.returns):,} whole episodes"
    statistics = [
        [name, *_numbers(values)]
        for name, values in (("return", facts.returns), ("length", facts.lengths))
        if len(values)
    ]
    parts = [
        "---\n" + "\n".join(front) + "\n" + hub + "---\n",
        f"# {heading}\n",
        f"{facts.steps:,} steps of {_code(name)} in {facts.episodes:,} episodes: {kind}.\n",
        *([f"![{facts.picture_of}]({PICTURE})\n"] if facts.picture_of else []),
        "## Contents\n",
        _table(["", ""], list(map(list, contents.items()))),
        *([_table([whole, *_COLUMNS], statistics)] if statistics else []),
        *([_CUT] if facts.ends["cut"] else []),
        "## Load it\n",
        *(f"{part}\n" for part in loading),
        *([tables + "\n"] if tables else ["## Fields of a row\n", _fields(facts.spec)]),
        "## How it was made\n",
        _runs(facts.sessions),
        f"Made by {_code(describe_versions(facts.sessions))}"
        + (f" on {_code(machine)}" if (machine := describe_machine(facts.sessions)) else "")
        + ".\n",
        *([f"To play episodes again, by their seeds: {_code(replayed)}.\n"] if replayed else []),
    ]
    if notes:
        parts += ["## Notes\n", "".join(f"- {_code(note)}\n" for note in notes[:_MOST_NOTES])]
    parts += [
        "## Licence\n",
        f"{_code(license)}.\n" if license else "None was given: ask before you use it.\n",
    ]
    return {CARD: "\n".join(parts).encode(), **facts.picture_files}


_CUT = "An episode that was cut has not ended: only its recording stopped.\n"
_COLUMNS = ("mean", "standard deviation", "least", "median", "greatest")


def _numbers(values: np.ndarray) -> list[str]:
    with np.errstate(all="ignore"):  # some may be infinite
        found = (values.mean(), values.std(), values.min(), np.median(values), values.max())
    return [f"{float(value):,.6g}" for value in found]


def _fields(spec: Spec) -> str:
    rows = [
        [
            _code(field.name),
            field.dtype,
            "x".join(map(str, field.shape)) or "one number",
            f"{field.stack}" if field.stack > 1 else "",
        ]
        for field in spec.fields[:_MOST_FIELDS]
    ]
    if len(spec.fields) > _MOST_FIELDS:
        rows.append([f"{len(spec.fields) - _MOST_FIELDS:,} more", "", "", ""])
    return _table(["field", "dtype", "shape", "frames stacked"], rows)


def _runs(sessions: Sequence[Mapping[str, object]]) -> str:
    """The newest runs in a table."""
    first = max(0, len(sessions) - _MOST_RUNS)
    rows = [[number, *map(_code, cells)] for number, *cells in run_lines(sessions)[first:]]
    if not rows:
        return "Nothing is known about the runs that made it.\n"
    note = f"\nThe newest {_MOST_RUNS} of {len(sessions):,} runs.\n" if first else ""
    return _table(RUN_COLUMNS, rows) + note


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    cells = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def _code(value: object) -> str:
    """Untrusted text as code, in which nothing is Markdown or HTML."""
    text = _plain(value)
    if not text:
        return ""
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    padding = " " if text[0] == "`" or text[-1] == "`" else ""
    return f"{fence}{padding}{text}{padding}{fence}"


def _plain(value: object) -> str:
    """Untrusted text in one line, without control characters, and cut."""
    text = "".join(letter if letter.isprintable() else " " for letter in str(value))
    text = " ".join(text.split())
    return text if len(text) <= _MOST_TEXT else f"{text[: _MOST_TEXT - 3]}..."
