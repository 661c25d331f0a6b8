"""Draw the pictures of docs/concepts.md and docs/sequences.md from rows that are collected here.

    python docs/pictures/draw_concepts.py

An env that counts is played: observation ``100 * episode + row``, the action chosen from it and the
reward that came with it have the same number. So a cell says from which row of which episode its
value is, and no picture can say anything that the library does not do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from html import escape
from pathlib import Path

import gymnasium as gym
import numpy as np

import stepwell as sw

HERE = Path(__file__).parent
WIDTH = 760
STYLE = """
text { font: 14px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1f2328 }
.note { font-size: 12.5px; fill: #59636e } .mid { text-anchor: middle } .end { text-anchor: end }
.name { font-weight: 600 }
rect { stroke-width: 1.2; rx: 4px } .page { fill: #ffffff; stroke: #d1d9e0 }
.blue { fill: #ddf4ff; stroke: #218bff } .gold { fill: #fff3c4; stroke: #9a6700 }
.green { fill: #dafbe1; stroke: #1a7f37 } .plum { fill: #fbefff; stroke: #8250df }
.grey { fill: #f6f8fa; stroke: #b1bac4 } .red { fill: #ffe2e0; stroke: #cf222e }
.pad { fill: none; stroke: #818b98; stroke-dasharray: 4 3 }
.arrow { stroke: #59636e; stroke-width: 1.6; fill: none } .head { fill: #59636e }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc } .note { fill: #b7bdc8 } .page { fill: #0d1117; stroke: #3d444d }
.blue { fill: #0c2d6b; stroke: #58a6ff } .gold { fill: #4b2900; stroke: #d29922 }
.green { fill: #04351a; stroke: #3fb950 } .plum { fill: #3c1e70; stroke: #bc8cff }
.grey { fill: #1c2128; stroke: #656c76 } .red { fill: #67060c; stroke: #ff7b72 }
.pad { stroke: #9198a1 } .arrow { stroke: #b7bdc8 } .head { fill: #b7bdc8 }
}
"""
COLOURS = ("blue", "gold", "green", "plum")
FLAGS = ("is_first", "is_last", "terminated")


class Counting(gym.Env[np.ndarray, np.int64]):
    """An env whose numbers say where they come from.

    Args:
        ends: Steps of each episode, and True where it terminates; the others are truncated. The
            last one is played again and again.
        episode: Number of the first episode.
    """

    observation_space = gym.spaces.Box(0, 999, (1,), np.int64)
    action_space = gym.spaces.Discrete(1000)

    def __init__(self, ends: Sequence[tuple[int, bool]], episode: int = 0) -> None:
        self.ends, self.episode, self.row = ends, episode, 0
        self.next = episode

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[np.ndarray, dict[str, object]]:
        """Begin the next episode."""
        super().reset(seed=seed)
        self.episode, self.next, self.row = self.next, self.next + 1, 0
        return np.array([100 * self.episode]), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, object]]:
        """Count one more row."""
        self.row += 1
        number = 100 * self.episode + self.row
        steps, terminates = self.ends[min(self.episode, len(self.ends) - 1)]
        over = self.row == steps
        return np.array([number]), float(number), over and terminates, over and not terminates, {}


def collected(*envs: Sequence[tuple[int, bool]], steps: int) -> sw.SequenceReplayBuffer:
    """A replay of so many steps, taken by envs whose episodes are given; actions are as seen."""
    replay = sw.SequenceReplayBuffer(seed=0)
    made = gym.vector.SyncVectorEnv([partial(Counting, ends) for ends in envs])
    with sw.Collector(made, lambda seen, is_first: seen[:, 0], replay, seed=0) as collector:
        collector.collect(steps=steps)
    return replay


class Picture:
    """Boxes, words and arrows, as an SVG file.

    Args:
        height: In pixels; the width is always the same.
        label: The picture in words.
    """

    def __init__(self, height: int, label: str) -> None:
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}" role="img" aria-label="{escape(label)}">',
            f"<style>{STYLE}</style>",
            f'<rect class="page" x="0.6" y="0.6" width="{WIDTH - 1.2}" height="{height - 1.2}"/>',
        ]

    def text(self, x: float, y: float, words: str, kind: str = "") -> None:
        """Words whose baseline begins at a place; kinds "mid" and "end" place them differently."""
        self._parts.append(f'<text x="{x:g}" y="{y:g}" class="{kind}">{escape(words)}</text>')

    def cell(self, x: float, y: float, width: float, words: str, kind: str) -> None:
        """A box with a word in its middle."""
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="28" class="{kind}"/>'
        )
        self.text(x + width / 2, y + 19, words, "mid")

    def cells(
        self, x: float, y: float, width: float, words: Sequence[str], kinds: Sequence[str]
    ) -> None:
        """Boxes side by side."""
        for place, (word, kind) in enumerate(zip(words, kinds, strict=True)):
            self.cell(x + place * (width + 6), y, width, word, kind)

    def arrow(self, x: float, y: float, to_x: float, to_y: float) -> None:
        """A straight arrow."""
        length = float(np.hypot(to_x - x, to_y - y))
        along = np.array([to_x - x, to_y - y]) / length
        across, tip = np.array([-along[1], along[0]]), np.array([to_x, to_y])
        stop = tip - 6 * along
        corners = [tip, tip - 8 * along + 4 * across, tip - 8 * along - 4 * across]
        points = " ".join(f"{corner[0]:.1f},{corner[1]:.1f}" for corner in corners)
        self._parts.append(
            f'<path class="arrow" d="M{x:g} {y:g}L{stop[0]:.1f} {stop[1]:.1f}"/>'
            f'<polygon class="head" points="{points}"/>'
        )

    def svg(self) -> str:
        """The text of the file."""
        return "\n".join([*self._parts, "</svg>\n"])


def draw_rows() -> Picture:
    """An episode of three steps, as it is stored."""
    replay = collected([(3, True)], steps=3)
    episode = next(replay.iter_episodes())
    picture = Picture(
        316,
        "An episode of three steps as four rows: each action leads to the observation, reward and "
        "flags of the next row; the last row has no action",
    )
    numbers = range(len(episode.observation))
    columns = [150 + 150 * row for row in numbers]
    middle = 55.0
    for row, x in zip(numbers, columns, strict=True):
        picture.text(x + middle, 30, f"row {row}", "mid name")
        picture.text(x + middle, 48, "reset" if row == 0 else f"step {row}", "mid note")
    names = ["observation", "action", "reward", *FLAGS]
    tops = [60, 98, 136, 190, 228, 266]
    for name, y in zip(names, tops, strict=True):
        picture.text(132, y + 19, name, "end")
    for row, x in zip(numbers, columns, strict=True):
        last = bool(episode.is_last[row])
        picture.cell(x, tops[0], 110, f"o{episode.observation[row, 0]}", "blue")
        action = "0 (none)" if last else f"a{episode.action[row]}"
        assert not (last and episode.action[row])
        picture.cell(x, tops[1], 110, action, "pad" if last else "gold")
        reward = int(episode.reward[row])
        picture.cell(x, tops[2], 110, "0" if row == 0 else f"r{reward}", "green")
        for name, y in zip(FLAGS, tops[3:], strict=True):
            value = bool(getattr(episode, name)[row])
            picture.cell(x, y, 110, str(int(value)), "red" if value else "grey")
        if not last:
            picture.arrow(x + 112, tops[1] + 12, columns[row + 1] - 3, tops[0] + 18)
    return picture


def draw_streams() -> Picture:
    """Three streams with the ends of their episodes."""
    replay = collected(
        [(5, True), (6, True), (99, True)],
        [(9, False), (99, True)],
        [(3, True), (4, False), (2, True), (99, True)],
        steps=48,
    )
    picture = Picture(
        258, "The rows of three envs: each is a stream of episodes that are terminated, truncated "
        "or, where the recording stopped, cut"
    )  # fmt: skip
    columns = dict.fromkeys(range(3), 110.0)
    counts = dict.fromkeys(range(3), 0)
    for episode in replay.iter_episodes():
        x, y = columns[episode.stream], 24 + 72 * episode.stream
        kind = COLOURS[counts[episode.stream]]
        for row in range(len(episode.reward)):
            picture.cell(x + 30 * row, y, 26, str(episode.observation[row, 0] % 100), kind)
        right = x + 30 * len(episode.reward) - 4
        picture.text(right, y + 46, how_it_ended(episode), "end note")
        columns[episode.stream] = right + 12
        counts[episode.stream] += 1
    for stream in range(3):
        picture.text(94, 43 + 72 * stream, f"stream {stream}", "end name")
    picture.text(
        WIDTH / 2, 244, "numbers: rows of an episode; colours: its episodes in turn", "mid note"
    )
    return picture


def how_it_ended(episode: sw.Episode) -> str:
    """The word for the flag of the last row."""
    (name,) = (one for one in ("terminated", "truncated", "cut") if getattr(episode, one)[-1])
    return name


def draw_alignment() -> Picture:
    """The same rows with both alignments."""
    replay = collected([(5, True)], steps=5)
    ids = np.array([1])  # ids count the rows of a new replay
    arrival = replay.take(sw.Sequences(1, length=4), ids)
    transition = replay.take(sw.Sequences(1, length=4, align="transition"), ids)
    picture = Picture(
        402, "Four rows with both alignments: with arrival, the reward beside an observation came "
        "with it; with transition, it is the result of the action beside it"
    )  # fmt: skip
    blocks: list[tuple[str, float, sw.Batch]] = [
        ('align="arrival"', 34, arrival),
        ('align="transition"', 208, transition),
    ]
    for title, top, batch in blocks:
        picture.text(24, top, title, "name")
        y = top + 14
        for name, letter, kind in [
            ("observation", "o", "blue"),
            ("action", "a", "gold"),
            ("reward", "r", "green"),
            ("terminated", "", "grey"),
            ("next_observation", "o", "blue"),
        ]:
            values = getattr(batch, name)
            if values is None:
                continue
            picture.text(186, y + 19, name, "end")
            numbers = np.ravel(values).astype(int)
            found = [f"{letter}{number}" for number in numbers]
            kinds = ["red" if kind == "grey" and number else kind for number in numbers]
            picture.cells(200, y, 120, found, kinds)
            y += 34
    return picture


def draw_borders() -> Picture:
    """Sequences at the border of two episodes of one stream."""
    replay = collected([(7, True), (3, False)], steps=10)
    requests: list[tuple[sw.Sequences, int]] = [
        (sw.Sequences(1, length=5), 3),
        (sw.Sequences(1, length=5, borders="cross"), 5),
        (sw.Sequences(1, length=5, borders="pad_after"), 5),
        (sw.Sequences(1, length=5, borders="pad_before"), 2),
    ]
    picture = Picture(
        250, "Two episodes e and f of one stream, and a sequence of five rows for each value of "
        "borders"
    )  # fmt: skip
    episodes = list(replay.iter_episodes())
    x = 160.0
    picture.text(146, 43, "stored", "end name")
    for episode, letter, kind in zip(episodes, "ef", COLOURS, strict=False):
        for row in range(len(episode.reward)):
            picture.cell(x, 24, 40, f"{letter}{row}", kind)
            x += 46
    for place, (request, at) in enumerate(requests):
        batch = replay.take(request, np.array([at]))
        y = 80 + 40 * place
        picture.text(146, y + 19, f'"{request.borders}"', "end")
        words, kinds = [], []
        for value, stored in zip(batch.observation[0, :, 0], batch.mask[0], strict=True):
            which, row = divmod(int(value), 100)
            words.append(f"{'ef'[which]}{row}" if stored else "0")
            kinds.append(COLOURS[which] if stored else "pad")
        picture.cells(160, y, 40, words, kinds)
        firsts = [words[at] for at in np.flatnonzero(batch.is_first[0])]
        padding = int((~batch.mask).sum())
        notes = [f"is_first marks {word}" for word in firsts]
        notes += [f"mask is False in {padding} rows"] if padding else []
        picture.text(404, y + 19, ", ".join(notes) or "lies in one episode", "note")
    return picture


def draw_stacks() -> Picture:
    """Frames that are stored once, and the stacks that are drawn from them."""
    replay = sw.SequenceReplayBuffer(seed=0)
    env = gym.wrappers.FrameStackObservation(Counting([(4, True)]), 3, padding_type="zero")
    with sw.Collector(env, lambda seen, is_first: seen[:, -1, 0], replay, seed=0) as collector:
        collector.collect(steps=4)
    episode = next(replay.iter_episodes())
    batch = replay.take(sw.Sequences(1, length=5, stack=True), np.array([0]))
    picture = Picture(
        222, "Five frames are stored once; each row's stack of three is a view of them, with zeros "
        "before the first"
    )  # fmt: skip
    picture.text(146, 43, "stored", "end name")
    picture.text(146, 108, "stack of a row", "end name")
    for row in range(5):
        x = 164 + 118 * row
        picture.cell(x + 20, 24, 60, f"o{episode.observation[row, 0]}", "blue")
        is_padding = [row - 2 + place < 0 for place in range(3)]
        for place, value in enumerate(batch.observation[0, row, :, 0]):
            word = "0" if is_padding[place] else f"o{value}"
            y = 84 + 34 * place
            picture.cell(x + 20, y, 60, word, "pad" if is_padding[place] else "blue")
        picture.text(x + 50, 204, f"row {row}", "mid note")
    return picture


def draw_chunks() -> Picture:
    """Episodes of two streams, and their chunks in the order of a storage."""
    replay = collected([(7, True), (99, True)], [(99, True)], steps=21)
    chunks: list[tuple[int, sw.buffers.Chunk]] = []  # with the stream's rows until they are there
    rows = dict.fromkeys(range(2), 0)
    for episode in replay.iter_episodes():
        fields = {name: getattr(episode, name) for name in replay.spec.names}
        end = sw.buffers.End.TERMINATED if episode.terminated[-1] else sw.buffers.End.NONE
        whole = sw.buffers.Chunk(episode.id, episode.stream, 0, end, fields)
        for chunk in whole.split(4):
            rows[episode.stream] += chunk.rows
            chunks.append((rows[episode.stream], chunk))
    chunks.sort(key=lambda one: (one[0], one[1].stream))
    storage = sw.buffers.MemoryStorage(replay.spec)
    storage.add([chunk for _, chunk in chunks])
    picture = Picture(
        258, "Rows of two streams are stored in chunks of four, in the order in which they were "
        "complete"
    )  # fmt: skip
    columns = dict.fromkeys(range(2), 110.0)
    picture.text(94, 173, "the store", "end name")
    count = len(storage.index)
    for place in range(count):
        info = storage.index.record(place)
        kind = COLOURS[info.episode]
        y = 24 + 50 * info.stream
        for row in range(info.first_row, info.first_row + info.rows):
            picture.cell(columns[info.stream], y, 34, str(row), kind)
            columns[info.stream] += 37
        columns[info.stream] += 14
        last = info.first_row + info.rows - 1
        x, y = 110 + 104 * place, 154
        picture.cell(x, y, 96, f"rows {info.first_row}-{last}", kind)
        picture.text(x + 48, y + 46, f"episode {info.episode}", "mid note")
    for stream in range(2):
        picture.text(94, 43 + 50 * stream, f"stream {stream}", "end name")
    right = 110 + 104 * count - 8
    picture.text(110, 238, "the oldest, evicted first", "note")
    picture.arrow(262, 234, right - 84, 234)
    picture.text(right, 238, "the newest", "end note")
    return picture


PICTURES: dict[str, Callable[[], Picture]] = {
    "concept-rows.svg": draw_rows,
    "concept-streams.svg": draw_streams,
    "concept-alignment.svg": draw_alignment,
    "concept-stacks.svg": draw_stacks,
    "concept-chunks.svg": draw_chunks,
    "sequence-borders.svg": draw_borders,
}


def drawn() -> Iterator[tuple[Path, str]]:
    """The path and the text of each picture."""
    for name, draw in PICTURES.items():
        yield HERE / name, draw().svg()


if __name__ == "__main__":
    for path, text in drawn():
        path.write_text(text, encoding="utf-8")
