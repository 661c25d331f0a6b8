"""Writes the tables, sentences and charts of docs out of benchmarks/results.

    python benchmarks/write_performance.py            # writes
    python benchmarks/write_performance.py --check    # fails if something would change

A block stands between two comments, ``<!-- NAME -->`` and ``<!-- end of NAME -->``; a chart is
docs/pictures/speed-NAME.svg. measure_all.py measures the figures, and tests check that docs are as
this script writes them.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import bridges
import charts
import disk
import distributed
import patches
import provenance
import rounds
import viewing

HERE = Path(__file__).parent
RESULTS, DOCS = HERE / "results", HERE.parent / "docs"
PAGE = "performance.md"


@dataclass(frozen=True)
class Section:
    """A sentence, a chart and a table of rows.

    Args:
        name: Name of the block and of the picture.
        file: Where the rows are.
        topic: Those rows of the file.
        title: Stands above the chart.
        sentence: What follows for a user. ``{CASE|CANDIDATE}`` stands for a ratio, and
            ``{CASE|CANDIDATE|OTHER}`` for how many times as fast one is as the other.
        scale: Of the chart.
        charted: Cases in the chart, as a pattern; the table has all of them.
        left_out: Candidates that are not on the page.
    """

    name: str
    file: str
    topic: str
    title: str
    sentence: str
    scale: charts.Scale = "share"
    charted: str = ""
    left_out: tuple[str, ...] = ()


SECTIONS = (
    Section(
        *("patches", "patches", "patches", "Frames as patches: share of the speed of a copy"),
        "256 stacked transitions of Pong are drawn, with the default codec, at "
        "{Pong, stacks, 256|patch, RAM} times the speed at which numpy copies as many raw frames, "
        "and at {Pong, stacks, 256|patch, RAM|cpprb} times that of cpprb, which keeps them raw; "
        "32 at {Pong, stacks, 32|patch, RAM} and {Pong, stacks, 32|patch, RAM|cpprb} times.",
        scale="times",
        charted="Pong, s",
    ),
    Section(
        *("sequences", "replay", "sequences", "Sequences: share of the speed of a memcpy"),
        "16 sequences of 64 raw images in RAM are drawn, into the memory of an earlier batch, at "
        "{raw, in RAM, 16 x 64|stepwell, out=} of the speed of one `memcpy` of the images, and at "
        "{raw, in RAM, 16 x 64|stepwell|TorchRL SliceSampler} times that of TorchRL's SliceSampler "
        "without it. Losslessly compressed Pong comes at {Pong, compressed, 16 x 64|stepwell}.",
        charted="16 x 64",
    ),
    Section(
        *("stacks", "replay", "stacks", "Stacked transitions: share of a memcpy's speed"),
        "A batch of 256 stacked transitions is drawn at {raw, 256|stepwell|cpprb next_of} times "
        "the speed of cpprb and at {raw, 256|stepwell|SB3, 20k rows} times that of "
        "Stable-Baselines3; a batch of 32 at {raw, 32|stepwell|cpprb next_of} times that of cpprb.",
        charted="raw|Pong",
    ),
    Section(
        *("priorities", "replay", "priorities", "By priority, updated: times cpprb's speed"),
        "Drawing 32 small rows by priority and updating them runs at {4 numbers, 32|stepwell} of "
        "cpprb's speed, 256 of them at {4 numbers, 256|stepwell}, and 256 stacks of frames at "
        "{4x84x84, 256|stepwell}; {4x84x84, 256|stepwell|Tianshou} times as fast as Tianshou.",
        scale="times",
    ),
    Section(
        *("scale", "replay", "scale", "Many rows: share of the speed of 100,000"),
        "Batches of 10 million rows are drawn at {transitions, 256|stepwell, 10,000,000 rows} "
        "(transitions) and {sequences, 256x1|stepwell, 10,000,000 rows} (scattered rows) of the "
        "speed of those of 100,000: what is left is memory that the processor's cache cannot hold.",
    ),
    Section(
        *("noise", "replay", "noise", "Noise: share of the speed of codec='raw'"),
        "What does not compress is stored as it is: with the default codec of a folder, sequences "
        "of noise are drawn at {sequences, 16 x 64|stepwell} of the speed of raw ones.",
    ),
    Section(
        *("writing", "replay", "writing", "Writing: share of the speed of assignments"),
        "Rows go into a full replay at {8 envs of 3x64x64|stepwell} of the speed of plain "
        "assignments into a ring, because they are copied twice; Stable-Baselines3 reaches "
        "{8 envs of 3x64x64|SB3}, cpprb {8 envs of 3x64x64|cpprb}.",
    ),
    Section(
        *("flush", "disk", "flush", "A durable flush: share of the disk's speed"),
        "A durable flush of 4 KiB runs at {raw, 4 KiB|stored} of the speed of the system calls "
        "alone, one of 1 MiB at {raw, 1 MiB|stored}: flush seldom, as the defaults do.",
        left_out=("encoding alone",),
    ),
    Section(
        *("merge", "disk", "merge", "A merge: share of the speed of a copy"),
        "Merging costs more than copying files, since each chunk is checked and numbered anew; "
        "only chunks whose codec changes are encoded again.",
    ),
    Section(
        *("collect", "collect", "collect", "Collecting: share of a bare loop's steps"),
        "Storing every row of 8 Pong envs losslessly on disk leaves "
        "{Pong, 8 envs|native, stored on disk} of the steps of a bare loop; gymnasium's "
        "AsyncVectorEnv, which stores nothing, makes "
        "{Pong, 8 envs|gymnasium's AsyncVectorEnv, nothing kept} of them.",
    ),
    Section(
        *("nes", "nes", "nes", "NES: share of the bare emulator's frames"),
        "The emulator sets the speed: with cynes, 8 envs collected into a folder make "
        "{cynes, 2 processes|make_nes, 8 envs, into a folder} of the frames of the bare "
        "emulator; with stable-retro, of which a frame costs far less, "
        "{stable-retro, 2 processes|make_nes, 8 envs, into a folder}.",
    ),
    Section(
        *("rollout", "rollout", "rollout", "Rollouts: share of a bare loop, times SB3"),
        "Rollouts for PPO with advantages come at "
        "{PPO, CartPole, 8 envs|rollout() and advantages()} times the speed of "
        "Stable-Baselines3's `collect_rollouts`; with Pong they leave "
        "{Pong, 8 envs|rollout(out=)} of the steps of a bare loop.",
    ),
    Section(
        *("turns", "rollout", "turns", "Two vector envs in turns: times one's speed"),
        "Two vector envs in a list gain where cores are free: "
        "{Pong, 16 envs, native backend; hashing|in turns} times the steps on this machine, with a "
        "policy that takes as long as the envs, of "
        "{Pong, 16 envs, native backend; hashing|limit: both at once} if neither ever waited.",
        scale="times",
    ),
    Section(
        *("world-models", "world-models", "world models", "Drop-ins for torchwm: times its speed"),
        "Batches are drawn at {Dreamer sample, 50 x 50|stepwell} (Dreamer) and "
        "{IRIS sample_sequence, 64 x 21|stepwell} (IRIS) times the speed of the old classes; "
        "single steps are added at {Dreamer add|stepwell} and {IRIS add|stepwell} of it, because "
        "each is checked and copied.",
        scale="times",
    ),
    Section(
        *(
            "frame-history",
            "frame-history",
            "frame history",
            "Frame history: times the loop's speed",
        ),
        "A batch of frames of three channels is drawn at "
        "{84x84x3, k=4: sample(32)|stepwell, view} times the speed of the loop as views, and of "
        "gray frames in C order at {84x84x1, k=4: sample(32), C order|stepwell}.",
        scale="times",
    ),
    Section(
        *("fishyrl", "fishyrl", "fishyrl", "FishyRL: times the speed of its rings"),
        "Sixteen envs of wide vectors are drawn at "
        "{16 envs, [1024]: sample 16 x 64|stepwell} and added at "
        "{16 envs, [1024]: add|stepwell} times the speed of independent rings; few envs with small "
        "vectors at {4 envs, [64]: sample 16 x 64|stepwell}.",
        scale="times",
    ),
    Section(
        *("memmap", "memmap", "memmap", "memmap-replay-buffer: times its speed"),
        "By CPU time, steps are stored at {vectors: store|stepwell} times the speed of the "
        "original, and batches of steps are loaded at {vectors: timesteps|stepwell} times; each "
        "episode also waits for the disk, which the original does not.",
        scale="times",
    ),
    Section(
        *("sb3", "sb3", "SB3", "SB3's ReplayBuffer: times its speed"),
        "A batch of 256 stacks of frames is drawn at "
        "{8 envs, 4x84x84 uint8, frame_stack=4: sample(256)|stepwell} times the speed of "
        "Stable-Baselines3's own buffer with 8 envs; a step of `DQN.learn` takes as long as before "
        "({DQN, CartPole-v1: a step of learn()|stepwell}).",
        scale="times",
        charted="^8 envs|DQN",
    ),
    Section(
        *("hindsight", "hindsight", "hindsight", "SB3's HerReplayBuffer: times its speed"),
        "A relabelled batch of 256 is drawn at {8 envs: sample(256)|stepwell} times the speed of "
        "Stable-Baselines3's own, which looks at the whole buffer for each batch.",
        scale="times",
    ),
    Section(
        *("bridges", "bridges", "bridges", "Bridges: times the libraries' speed"),
        "Images through the bridge to Stable-Baselines3 are drawn at "
        "{SB3, 4x84x84|stepwell as_sb3_replay} times the speed of its own replay, small vectors at "
        "{SB3, 4 numbers|stepwell as_sb3_replay}; for Tianshou it is "
        "{Tianshou, 4x84x84|stepwell as_tianshou_replay} and "
        "{Tianshou, 4 numbers|stepwell as_tianshou_replay}.",
        scale="times",
    ),
    Section(
        *("own-loop", "own-loop", "own loop", "A recorded loop: share of the bare loop's speed"),
        "`sw.record` leaves {Pong x 8, make_atari|recorded} of the speed of a loop over Pong; "
        "envs as cheap as CartPole keep "
        "{CartPole x 8, SyncVectorEnv|recorded}.",
    ),
    Section(
        *("import", "import", "import", "Importing: share of import gymnasium's speed"),
        "Importing the main names comes at "
        "{the main names of stepwell|from stepwell import Collector, RandomPolicy, "
        "SequenceReplayBuffer, make_vec} of the speed of `import gymnasium`, which it includes.",
    ),
)


class Table(NamedTuple):
    """A table of another shape.

    Args:
        name: Name of the block.
        file: Where the figures are.
        page: Of the docs.
        render: Gives the table.
    """

    name: str
    file: str
    page: str
    render: Callable[[Mapping[str, Any]], str]


TABLES = (
    Table("games", "patches", PAGE, lambda figures: patches.games_table(figures["rows"])),
    Table("bytes", "patches", PAGE, lambda figures: patches.bytes_table(figures["bytes"])),
    Table("open", "disk", PAGE, lambda figures: disk.openings_table(figures["open"])),
    Table("files", "bridges", PAGE, lambda figures: bridges.files_table(figures["files"])),
    Table("distributed", "distributed", "many-machines.md", distributed.tables),
    Table(
        *("provenance", "provenance", "provenance.md"),
        lambda figures: provenance.envs_table(figures["envs"]),
    ),
    Table(
        *("viewing", "viewing", "viewing.md"),
        lambda figures: viewing.goals_table(figures["figures"]),
    ),
)


class Results:
    """The files of figures.

    Args:
        folder: Where they are.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[str, dict[str, Any]] = {}

    def read(self, name: str) -> dict[str, Any]:
        """The figures of a file.

        Raises:
            FileNotFoundError: There is no such file.
        """
        if name not in self._read:
            self._read[name] = json.loads((self._folder / f"{name}.json").read_text())
        return self._read[name]

    def rows(self, name: str, topic: str) -> list[rounds.Row]:
        """The rows of a topic."""
        return [rounds.Row(**each) for each in self.read(name)["rows"] if each["topic"] == topic]

    def pure(self, section: Section) -> dict[tuple[str, str, str], rounds.Row]:
        """The rows of a section without the compiled core, if they were measured."""
        name = f"{section.file}-numpy"
        if not (self._folder / f"{name}.json").exists():
            return {}
        rows = self.rows(name, section.topic)
        return {(row.topic, row.case, row.candidate): row for row in rows}


def source(figures: Mapping[str, Any], count: int, clock: str) -> str:
    """A line that says of which commit, where, when and how the figures were measured."""
    how = f"{'one round' if count == 1 else f'medians of {count} rounds'}{clock}"
    return (
        f"(commit `{figures['commit']}`, {figures['date']}; {figures['machine']}; {how}; "
        f"`{figures['command']}`)"
    )


def sentence(section: Section, rows: Iterable[rounds.Row]) -> str:
    """The sentence of a section, with its figures.

    Raises:
        ValueError: A row that it names was not measured.
    """
    by_name = {(row.case, row.candidate): row for row in rows}

    def figure(found: re.Match[str]) -> str:
        case, *names = found[1].split("|")
        try:
            row, *others = (by_name[case, name] for name in names)
        except KeyError as missing:
            raise ValueError(
                f"{section.file}.json: expected a row {missing.args[0]}, got none; install all "
                f"packages that measure_all.py names, and measure again"
            ) from None
        return f"{others[0].each / row.each if others else row.ratio[0]:.2f}"

    return re.sub(r"\{([^}]*)\}", figure, section.sentence)


def block(section: Section, results: Results) -> tuple[str, str]:
    """The block of a section, and its chart."""
    rows = [
        row
        for row in results.rows(section.file, section.topic)
        if row.candidate not in section.left_out
    ]
    pure = results.pure(section)
    limits = list(dict.fromkeys(row.limit for row in rows))
    figures = results.read(section.file)
    limit = limits[0] if len(limits) == 1 else "the one at 1"
    charted = [row for row in rows if re.search(section.charted, row.case)]
    picture = charts.chart(
        section.title,
        limits[0] if len(limits) == 1 else "",
        f"commit {figures['commit']}, {figures['date']}; {figures['machine'].split(';')[0]}; "
        f"medians and quartiles",
        charts.bars_of(charted, pure),
        section.scale,
    )
    clocks = {row.clock for row in rows}
    clock = ", with their quartiles" + {
        frozenset({"CPU"}): "; CPU time",
        frozenset({"time"}): "; time",
    }.get(frozenset(clocks), "")
    text = "\n\n".join(
        [
            sentence(section, rows),
            f"![{section.title}](pictures/speed-{section.name}.svg)",
            rounds.table(*_table(rows, pure, limit)),
            source(figures, rows[0].rounds, clock),
        ]
    )
    return text, picture


def _table(
    rows: list[rounds.Row], pure: Mapping[tuple[str, str, str], rounds.Row], limit: str
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The head and the lines: a case is named once."""
    head = (
        "case",
        "candidate",
        f"times as fast as {limit}",
        *(("numpy alone",) if pure else ()),
        "us",
    )
    lines: list[tuple[str, ...]] = []
    case = ""
    has_goals = any(row.goal is not None for row in rows)
    for row in rows:
        cells = [row.case if row.case != case else "", row.candidate, _ratio(row)]
        case = row.case
        if pure:
            other = pure.get((row.topic, row.case, row.candidate))
            cells.append(_ratio(other) if other is not None else "")
        cells.append(f"{row.each:,.1f}" if row.each < 100 else f"{row.each:,.0f}")
        if has_goals:
            cells.append(_goal(row))
        lines.append(tuple(cells))
    return (*head, *(("goal",) if has_goals else ())), lines


def _ratio(row: rounds.Row) -> str:
    middle, low, high = row.ratio
    return "1" if row.candidate == row.limit else f"{middle:.2f} ({low:.2f}-{high:.2f})"


def _goal(row: rounds.Row) -> str:
    """The goal and the verdict; what reads as the goal has reached it."""
    if row.goal is None:
        return ""
    is_met = round(row.ratio[0], 2) >= round(row.goal, 2)
    return f"{row.goal:.2f}, {'met' if is_met else '**missed**'}"


def written(results: Path, docs: Path) -> Iterator[tuple[Path, str]]:
    """The files of the docs, with what they should hold."""
    found = Results(results)
    pages: dict[str, str] = {}

    def put(page: str, name: str, text: str) -> None:
        before = pages.get(page) or (docs / page).read_text("utf-8")
        pages[page] = rounds.into_page(before, name, text)

    for section in SECTIONS:
        text, picture = block(section, found)
        put(PAGE, section.name, text)
        yield docs / "pictures" / f"speed-{section.name}.svg", picture
    for table in TABLES:
        figures = found.read(table.file)
        count = figures.get("rounds", 1)
        put(table.page, table.name, f"{table.render(figures)}\n\n{source(figures, count, '')}")
    for page, text in pages.items():
        yield docs / page, text


def main() -> None:
    """Write the docs, or check them."""
    first, _, rest = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=first, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--docs", type=Path, default=DOCS)
    options = parser.parse_args()
    stale: list[str] = []
    for path, text in written(options.results, options.docs):
        if path.exists() and path.read_text("utf-8") == text:
            continue
        stale.append(path.name)
        if not options.check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if options.check and stale:
        sys.exit(f"not as the results say: {', '.join(stale)}; run write_performance.py")


if __name__ == "__main__":
    main()
