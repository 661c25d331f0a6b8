"""A copy has the same rows as its source, in fewer chunks, and records where they come from."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell.buffers import (
    Chunk,
    Codec,
    Digest,
    DiskStorage,
    End,
    Field,
    SequenceReplayBuffer,
    Spec,
    SpecMismatch,
    StoreCorrupt,
)
from stepwell.buffers.curation import episode_writer, repeated_episodes
from stepwell.buffers.curation.copy import CopyReport, copy_episodes
from stepwell.buffers.curation.stored_episode import StoredEpisode
from support.disk_stores import spoil
from support.rows.labelled_rows import SPEC, Player, contents_of, rows_of, whole


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def replay(
    stack: ExitStack,
    path: str | None = None,
    *,
    spec: Spec = SPEC,
    sessions: Sequence[dict[str, object]] = ({"run": 0},),
    **options: Any,
) -> SequenceReplayBuffer:
    """A replay without rows."""
    made = stack.enter_context(SequenceReplayBuffer(path, seed=0, **options))
    made.bind(spec, sessions[0])
    for session in sessions[1:]:
        made.storage.append_session(session)
    return made


def played(stack: ExitStack, seed: int, path: str | None = None) -> SequenceReplayBuffer:
    """A replay full of episodes in small chunks."""
    made = replay(stack, path)
    Player(made.storage, 0, seed).play(100)
    return made


def contents(source: SequenceReplayBuffer) -> list[Any]:
    return [contents_of(episode) for episode in source.iter_episodes()]


def recoded(**codecs: Codec) -> SequenceReplayBuffer:
    """A target in RAM with codecs other than those of the sources: all rows are decoded."""
    return SequenceReplayBuffer(codecs=codecs or {"info/picture": "patch"})


def small_chunks(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Make the chunks that are copied shorter than the episodes."""
    monkeypatch.setattr(episode_writer, "_CHUNK_ROWS", rows)
    monkeypatch.setattr(episode_writer, "_ENCODED_BYTES", rows * SPEC.row_bytes)


@pytest.mark.proof
@pytest.mark.parametrize(
    "codecs", [{}, {"observation": "raw", "info/picture": "raw"}, {"info/picture": "patch"}]
)
@pytest.mark.parametrize("path", [None, "copy"])
@pytest.mark.parametrize("rows", [1, 7, None])
def test_a_copy_has_every_row_bit_by_bit(
    rows: int | None,
    path: str | None,
    codecs: dict[str, Codec],
    stack: ExitStack,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = played(stack, 3)
    if rows is not None:  # episodes are longer than chunks
        small_chunks(monkeypatch, rows)
    target = stack.enter_context(SequenceReplayBuffer(path, codecs=codecs))
    report = copy_episodes(source, target, digest=True)
    assert contents(target) == contents(source)
    assert target.spec == SPEC.with_codecs(codecs)
    assert [one.id for one in target.iter_episodes()] == list(range(source.episodes))
    assert report.digest == target.digest() == source.digest()
    assert (report.episodes, report.steps) == (source.episodes, len(source))
    assert (target.episodes, target.steps) == (source.episodes, len(source))
    assert (report.chosen_episodes, report.chosen_steps) == (report.episodes, report.steps)
    assert (report.left_out_episodes, report.left_out_steps, report.late_starts) == (0, 0, 0)
    assert report.raw_bytes == source.storage.index.rows * SPEC.row_bytes
    assert report.stored_bytes == target.total_bytes
    if rows is not None and codecs:
        assert target.storage.index.records["rows"].max() <= rows
    json.dumps(report.to_json())


@pytest.mark.parametrize(
    ("stored", "copied"),
    [
        ([5, 6], [5, 6]),
        ([5, 6, 7], [18]),
        ([256, 5, 300, 6, 7], [256, 5, 300, 6, 7]),
        ([5, 6, 7, 8, 256, 9, 10, 11], [26, 256, 30]),
        ([200] * 25, [4096, 904]),
    ],
)
def test_three_small_chunks_or_more_are_joined_and_others_stay_what_they_are(
    stored: list[int], copied: list[int], stack: ExitStack
) -> None:
    source = replay(stack)
    for rows, last in zip(stored, np.cumsum(stored).tolist(), strict=True):
        end = End.TERMINATED if last == sum(stored) else End.NONE
        fields = rows_of(0, 0, last - rows, last)
        source.add([Chunk(0, 0, last - rows, end, fields, {"number": 0})])
    target = SequenceReplayBuffer()
    assert copy_episodes(source, target, digest=True).digest == source.digest()
    assert target.storage.index.records["stored_rows"].tolist() == copied
    assert contents(target) == contents(source)


def test_a_long_episode_is_copied_in_parts(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_chunks(monkeypatch, 64)
    source = replay(stack)
    for first in range(0, 2_000, 10):
        source.add([Chunk(0, 0, first, End.NONE, rows_of(0, 0, first, first + 10))])
    waiting: list[int] = []
    target = SequenceReplayBuffer()
    add = SequenceReplayBuffer.add

    def counted(self: SequenceReplayBuffer, chunks: Sequence[Chunk]) -> None:
        waiting.append(sum(chunk.rows for chunk in chunks))
        add(self, chunks)

    monkeypatch.setattr(SequenceReplayBuffer, "add", counted)
    copy_episodes(source, target)
    assert sum(waiting) == 2_000
    assert max(waiting) <= 64


def test_a_cut_episode_is_not_joined_with_the_next_one_of_its_stream(stack: ExitStack) -> None:
    source = replay(stack)
    source.add([whole(0, 0, 5, End.PENDING), whole(0, 1, 4, End.NONE), whole(0, 2, 3)])
    target = SequenceReplayBuffer()
    copy_episodes(source, target)
    assert [bool(one.cut[-1]) for one in target.iter_episodes()] == [True, True, False]
    assert target.storage.index.records["end"].tolist() == [End.PENDING, End.NONE, End.TERMINATED]
    target.add([whole(0, 3, 3)])
    assert target.episodes == 4


def test_where_and_keep_are_combined(stack: ExitStack) -> None:
    source = played(stack, 0)
    target = SequenceReplayBuffer()

    def odd(metadata: Any) -> bool:
        return bool(metadata["number"] % 2)

    def is_long(episode: StoredEpisode) -> bool:
        return episode.steps >= 6

    report = copy_episodes(source, target, where=odd, keep=is_long, digest=True)
    episodes = list(source.iter_episodes())
    chosen = [one for one in episodes if one.id % 2 and one.steps >= 6]
    assert 0 < len(chosen) < len(episodes) / 2
    assert contents(target) == [contents_of(one) for one in chosen]
    assert report.left_out_episodes == len(episodes) - len(chosen)
    assert report.left_out_steps == len(source) - report.steps
    digest = Digest()
    for one in chosen:
        digest.update(Chunk(one.id, one.stream, one.first_row, one.end, one.fields))
    assert report.digest == target.digest() == digest.hexdigest()


@pytest.mark.parametrize("path", [None, "copy"])
def test_sessions_are_copied_and_one_describes_the_copy(path: str | None, stack: ExitStack) -> None:
    recipe: dict[str, object] = {"recipe": {"id": "A-v0"}}
    first = replay(stack, "a", sessions=[{**recipe, "seed": "1"}, {**recipe, "seed": "2"}])
    second = replay(stack, sessions=[{**recipe, "seed": "3"}])
    first.add([whole(0, 0, 5), whole(0, 1, 5)])
    second.add([whole(1, 0, 3)])
    target = stack.enter_context(SequenceReplayBuffer(path))
    copy_episodes([first, second], target, where={"number": 0}, facts={"command": "merge"})
    *before, copy = target.sessions
    assert before == [*first.sessions, *second.sessions]
    assert copy["copied_from"] == [
        {
            "path": str(Path("a").absolute()),
            "store": json.loads(Path("a/manifest.json").read_text())["body"]["store"],
            "episodes": 2,
            "steps": 8,
        },
        {"episodes": 1, "steps": 2},
    ]
    assert (copy["copied_episodes"], copy["copied_steps"], copy["command"]) == (2, 6, "merge")
    assert set(copy) >= {"began", "versions"}


def test_different_envs_are_refused_without_any_envs(stack: ExitStack) -> None:
    def made(path: str, **recipe: object) -> SequenceReplayBuffer:
        one = replay(stack, path, sessions=[{"recipe": {"id": "A-v0", **recipe}}])
        one.add([whole(ord(path), 0, 5)])
        return one

    sources = [made("a", frame_skip=4), made("b", frame_skip=4), made("c", frame_skip=2, size=9)]
    target = SequenceReplayBuffer("copy")
    message = rf"^{Path('c').absolute()} .*{Path('a').absolute()}: .*\bframe_skip 4\b.*\b2\b"
    with pytest.raises(SpecMismatch, match=message):
        copy_episodes(sources, target)
    assert not target.is_bound
    assert not Path("copy").exists()
    copy_episodes(sources[:2], SequenceReplayBuffer())
    given = made("d", action_space="Discrete(2)", maker="given")
    with pytest.raises(SpecMismatch, match=r"\bmaker None\b.*'given'"):
        copy_episodes([sources[0], given], target)
    with stack.enter_context(target):
        assert copy_episodes(sources, target, any_envs=True).episodes == 3
        assert [one["recipe"] for one in target.sessions[:-1]] == [
            one.sessions[0]["recipe"] for one in sources
        ]


def test_a_target_in_use_is_refused_before_anything_is_written(stack: ExitStack) -> None:
    source = played(stack, 0)
    used = replay(stack, "used")
    used.add([whole(0, 0, 5)])
    Path("full").mkdir()
    Path("full/notes.txt").write_text("precious")
    now_a_file = SequenceReplayBuffer("file")
    Path("file").write_text("precious")
    for target, message in (
        (used, r"\bused .*\b4 steps\b"),
        (source, rf"\bRAM\b.*\b{len(source):,} steps\b"),
        (SequenceReplayBuffer("full"), r"/full .*\bempty\b"),
        (now_a_file, r"/file .*\bfile\b.*\bfolder\b"),
    ):
        with pytest.raises(ValueError, match=message):
            copy_episodes(source, target, keep=lambda episode: pytest.fail("too late"))
    assert used.episodes == 1
    assert [path.name for path in Path("full").iterdir()] == ["notes.txt"]


def test_a_copy_of_no_episodes_is_refused_and_leaves_no_folder(stack: ExitStack) -> None:
    source = played(stack, 0)
    with pytest.raises(ValueError, match=rf"\bnone of {source.episodes} episodes\b"):
        copy_episodes(source, SequenceReplayBuffer("copy"), keep=lambda episode: False)
    with pytest.raises(ValueError, match=r"^source: .*\bnone\b"):
        copy_episodes([], SequenceReplayBuffer("copy"))
    with pytest.raises(ValueError, match=r"^codecs .*'colour'.*\bobservation\b"):
        copy_episodes(source, SequenceReplayBuffer("copy", codecs={"colour": "raw"}))
    with pytest.raises(TypeError, match=r"^where: .*mapping.*'x'$"):
        copy_episodes(source, SequenceReplayBuffer("copy"), where="x")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^duplicates: .*'refuse'.*'skip'.*'keep'.*'drop'"):
        copy_episodes(source, SequenceReplayBuffer("copy"), duplicates="drop")  # type: ignore[arg-type]
    other = replay(stack, spec=SPEC.with_more([Field("info/x", "int8", (), "raw")]))
    with pytest.raises(SpecMismatch, match=r"store 1 \(in RAM\) .*'info/x'"):
        copy_episodes([source, other], SequenceReplayBuffer("copy"))
    assert not Path("copy").exists()
    target = SequenceReplayBuffer()
    assert copy_episodes(replay(stack), target).episodes == 0  # there are none to choose from
    assert target.is_bound


@pytest.mark.parametrize("method", ["add", "add_encoded"])
def test_an_interrupt_right_after_a_write_reports_the_write(
    method: str, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = played(stack, 0)
    target = recoded() if method == "add" else SequenceReplayBuffer()
    add = getattr(SequenceReplayBuffer, method)

    def interrupted(self: SequenceReplayBuffer, chunks: Sequence[Any]) -> None:
        add(self, chunks)
        raise KeyboardInterrupt  # a second Ctrl-C may come at any time

    monkeypatch.setattr(SequenceReplayBuffer, method, interrupted)
    with pytest.raises(KeyboardInterrupt) as caught:
        copy_episodes(source, target)
    assert contents(target) == contents(source)
    episodes, steps = source.episodes, len(source)
    assert caught.value.__notes__ == [
        f"kept: {episodes} of {episodes} episodes, {steps} of {steps} steps, in RAM"
    ]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("path", [None, "deep/copy"])
def test_an_interrupted_copy_reports_what_ram_has_and_leaves_no_folder(
    path: str | None,
    stop: type[BaseException],
    stack: ExitStack,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small_chunks(monkeypatch, 20)
    source = played(stack, 0)

    def progress(report: CopyReport) -> None:
        if report.episodes >= 10:
            raise stop

    with SequenceReplayBuffer(path) as target:
        with pytest.raises(stop) as caught:
            copy_episodes(source, target, progress=progress)
        kept = "nothing"
        if path is None:
            found, true = contents(target), contents(source)
            complete = sum(a == b for a, b in zip(found, true, strict=False))
            assert 10 <= complete <= len(found) <= complete + 1 < len(true)
            steps = f"{len(target)} of {len(source):,} steps, in RAM"
            kept = f"{complete} of {len(true)} episodes, {steps}"
        assert target.is_bound == (path is None)
    assert caught.value.__notes__ == [f"kept: {kept}"]
    assert list(Path().iterdir()) == []


def test_damage_stops_a_copy_unless_it_is_skipped(stack: ExitStack) -> None:
    with ExitStack() as writing:
        source = replay(writing, "a")
        for first in range(0, 30, 10):
            chunk = Chunk(0, 0, first, End.NONE, rows_of(0, 0, first, first + 10))
            source.add([chunk, whole(0, first + 1, 4, stream=1)])
        assert isinstance(source.storage, DiskStorage)
        spoil(source.storage, 2)
    source = stack.enter_context(SequenceReplayBuffer.open("a", read_only=True))
    with pytest.raises(StoreCorrupt, match=r"\brows 10 to 19 of episode 0\b") as caught:
        copy_episodes(source, SequenceReplayBuffer())
    assert caught.value.__notes__ == ["kept: 0 of 4 episodes, 0 of 38 steps, in RAM"]
    source = stack.enter_context(SequenceReplayBuffer.open("a", read_only=True, on_corrupt="skip"))
    target = SequenceReplayBuffer()
    copy_episodes(source, target, keep=lambda episode: episode.first_row == 0)
    assert [one.rows for one in target.iter_episodes()] == [10, 4, 4, 4]


def test_an_episode_without_its_beginning_is_copied_as_it_is(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_chunks(monkeypatch, 16)
    source = replay(stack, capacity=60)
    for first in range(0, 100, 5):
        chunk = Chunk(0, 0, first, End.NONE, rows_of(0, 0, first, first + 5), {"number": 0})
        source.add([chunk])
    source.add([whole(0, 1, 5, stream=1)])
    target = stack.enter_context(SequenceReplayBuffer("copy"))
    report = copy_episodes(source, target, digest=True)
    assert contents(target) == contents(source)
    assert report.late_starts == 1
    assert report.digest == target.digest() == source.digest()
    assert (report.steps, target.steps, len(target)) == (len(source),) * 3
    oldest = next(target.iter_episodes())
    assert oldest.first_row > 0
    assert not oldest.is_first.any()


# --- episodes of several sources

RUN_1: dict[str, object] = {"seed": "1", "session": 0}
RUN_2: dict[str, object] = {"seed": "2", "session": 0}


def holding(
    stack: ExitStack, chunks: Sequence[Chunk], *sessions: dict[str, object], path: str | None = None
) -> SequenceReplayBuffer:
    """A replay with episodes of a run, or of an unknown source."""
    made = replay(stack, path, sessions=sessions or ({},))
    made.add([replace(chunk, episode=number) for number, chunk in enumerate(chunks)])
    return made


def some(*numbers: int, stream: int = 0, **metadata: object) -> list[Chunk]:
    """Episodes whose rows hold their numbers."""
    chunks = [whole(0, number, 4 + number % 3, stream=stream) for number in numbers]
    return [replace(chunk, metadata={**chunk.metadata, **metadata}) for chunk in chunks]


def merged(sources: Any, **options: Any) -> list[Any]:
    target = SequenceReplayBuffer()
    copy_episodes(sources, target, **options)
    return contents(target)


def refused(sources: Any) -> str:
    """The error of a merge, which writes nothing."""
    before = list(Path().iterdir())
    message = r"\d episodes\b.*duplicates='skip', --duplicates skip\b.*duplicates='keep'"
    with pytest.raises(ValueError, match=message) as caught:
        copy_episodes(sources, SequenceReplayBuffer("target"))
    assert list(Path().iterdir()) == before
    return str(caught.value)


def test_the_session_of_an_episode_is_that_in_the_copy(stack: ExitStack) -> None:
    """Of sources in a list, of joined ones, and of a copy that is merged again."""
    facts: list[dict[str, object]] = [{"run": number} for number in range(5)]
    paths = ("one", "two", "three")
    for path, numbers in zip(paths, ((0, 1), (2,), (3, 4)), strict=True):
        chunks = [
            chunk
            for place, number in enumerate(numbers)
            for chunk in some(2 * number, 2 * number + 1, session=place, stream_episode=number)
        ]
        with ExitStack() as own:
            holding(own, chunks, *(facts[number] for number in numbers), path=path)
    one, two, three = (stack.enter_context(SequenceReplayBuffer.open(path)) for path in paths)
    joined = stack.enter_context(SequenceReplayBuffer.open(["two", "three"], read_only=True))
    again = SequenceReplayBuffer()
    copy_episodes([one, two], again)
    for sources in ([one, two, three], [one, joined], [again, three], [joined, one]):
        target = SequenceReplayBuffer()
        copy_episodes(sources, target)
        assert target.episodes == 10
        for episode in target.iter_episodes():
            known: Any = episode.metadata
            assert target.sessions[known["session"]] == facts[known["stream_episode"]]


# Episodes and sessions of two sources, and the number of episodes of the second in the first.
SHARED: dict[str, tuple[list[Chunk], dict[str, object], list[Chunk], dict[str, object], int]] = {
    "all, of unknown sources": (some(0, 1, 2), {}, some(0, 1, 2), {}, 3),
    "none, of unknown sources": (some(0, 1, 2), {}, some(3, 4, 5), {}, 0),
    "all, with the same seed": (some(0, 1), RUN_1, some(0, 1), RUN_1, 2),
    "all, with another env index": (some(0, 1), RUN_1, some(0, 1, stream=3), RUN_1, 2),
    "all, with other metadata": (some(0, 1), RUN_1, some(0, 1, task="door"), RUN_1, 2),
    "equal ones of other seeds": (some(0, 1), RUN_1, some(0, 1), RUN_2, 0),
    "equal resets of other runs": (some(0, 1, seed=7), RUN_1, some(0, 1, seed=7), RUN_2, 2),
    "other resets of other runs": (some(0, 1, seed=7), RUN_1, some(0, 1, seed=8), RUN_2, 0),
    "other ends": (
        [whole(0, 0, 5, End.TERMINATED)],
        RUN_1,
        [whole(0, 0, 5, End.TRUNCATED)],
        RUN_1,
        0,
    ),
}


@pytest.mark.parametrize("case", SHARED)
def test_a_repeated_episode_is_refused_kept_or_skipped(case: str, stack: ExitStack) -> None:
    chunks, session, others, other_session, count = SHARED[case]
    sources = [holding(stack, chunks, session), holding(stack, others, other_session)]
    all_of = [one for source in sources for one in contents(source)]
    if count:
        stores = r"\bstore 1 \(in RAM\).*\bstore 0 \(in RAM\)"
        assert re.search(rf"\b{count} of the {len(others)} episodes .*{stores}", refused(sources))
    else:
        assert merged(sources) == all_of
    assert merged(sources, duplicates="keep") == all_of
    target = SequenceReplayBuffer()
    report = copy_episodes(sources, target, duplicates="skip")
    rows = [whole_chunk.fields["observation"].tolist() for whole_chunk in chunks]
    fresh = [one for one in others if one.fields["observation"].tolist() not in rows]
    kept = len(chunks) + (len(fresh) if count else len(others))
    assert contents(target)[: len(chunks)] == contents(sources[0])
    assert (report.episodes, report.chosen_episodes, target.episodes) == (kept,) * 3
    assert (report.duplicate_episodes, report.left_out_episodes) == (count, count)
    assert report.steps == target.steps
    assert report.left_out_steps == sum(map(len, sources)) - report.steps


def test_a_source_and_its_filtered_copy_share_episodes(stack: ExitStack) -> None:
    source = holding(stack, some(*range(9)), RUN_1, path="a")
    odd, even = SequenceReplayBuffer("odd"), SequenceReplayBuffer("even")
    for target, rest in ((odd, 1), (even, 0)):
        stack.enter_context(target)
        copy_episodes(source, target, keep=lambda one, rest=rest: one.id % 2 == rest)  # type: ignore[misc]
    assert re.search(r"\b4 of the 4 episodes\b", refused([source, odd]))
    assert re.search(r"\b4 of the 9 episodes\b", refused([odd, source]))
    assert merged([source, odd], duplicates="skip") == contents(source)
    assert sorted(merged([odd, even]), key=repr) == sorted(contents(source), key=repr)
    message = refused([odd, even, source])
    for count, name in ((4, "odd"), (5, "even")):
        folders = rf"{Path('a').absolute()}\b.*{Path(name).absolute()}\b"
        assert re.search(rf"\b{count} of the 9 episodes\b.*{folders}", message)


def test_equal_episodes_of_one_source_are_no_duplicates(stack: ExitStack) -> None:
    twice = holding(stack, [*some(0, 0), *some(1)])
    other = holding(stack, some(5))
    assert len(merged([twice, other])) == 4
    assert len(merged([twice, twice], duplicates="skip")) == 3
    assert len(merged(twice)) == 3


def test_joined_stores_are_several_sources(stack: ExitStack) -> None:
    for path in ("a", "b"):
        holding(stack, some(0, 1), path=path).close()
    both = stack.enter_context(SequenceReplayBuffer.open(["a", "b"]))
    assert re.search(rf"\b2 of the 2 episodes\b.*{Path('b').absolute()}\b", refused(both))
    assert len(merged(both, duplicates="skip")) == 2
    third = holding(stack, some(1, 2))
    assert len(merged([both, third], duplicates="skip")) == 3


@pytest.mark.parametrize("codecs", [{}, {"info/picture": "patch"}], ids=["as is", "encoded again"])
def test_a_copy_of_joined_stores_has_the_streams_and_sessions_of_its_parts(
    codecs: dict[str, Codec], stack: ExitStack
) -> None:
    for number, path in enumerate("abc"):
        chunks = [
            *some(3 * number, session=0, stream=0),
            *some(3 * number + 1, session=0, stream=5),
            *some(3 * number + 2, session="no number", stream=-1),
        ]
        holding(stack, chunks, {"run": number}, path=path).close()
    with SequenceReplayBuffer.open(["a", "b", "c"], read_only=True) as joined:
        assert {episode.stream for episode in joined.iter_episodes()} >= {0, (2 << 32) + 5}
        with SequenceReplayBuffer("copy", codecs=codecs) as target:
            copy_episodes(joined, target)
    parts = [stack.enter_context(SequenceReplayBuffer.open(path)) for path in "abc"]
    with SequenceReplayBuffer.open("copy", read_only=True) as again:
        assert contents(again) == merged(parts)
        assert [episode.stream for episode in again.iter_episodes()] == [0, 5, -1] * 3
        sessions = [episode.metadata["session"] for episode in again.iter_episodes()]
        assert sessions == [0, 0, "no number", 1, 1, "no number", 2, 2, "no number"]


def test_long_episodes_are_compared_in_parts(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeated_episodes, "_RUN_ROWS", 7)
    long = whole(0, 0, 100)
    other = whole(0, 0, 100)
    other.fields["reward"][99] += 1
    assert len(merged([holding(stack, [long]), holding(stack, [other])])) == 2
    refused([holding(stack, [long]), holding(stack, [whole(0, 0, 100)])])


# --- durability -----------------------------------------------------------------------------------


def test_all_of_a_copy_is_on_the_medium_before_it_has_its_name(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most waiting is left to the end: then every file and folder was waited for."""
    written: dict[int, bool] = {}
    """True for each file and folder, by its number, that was changed since it was waited for."""
    renamed: list[dict[str, bool]] = []

    def watch(name: str, is_change: bool) -> None:
        call = getattr(os, name)

        def watched(file: int, *more: Any) -> Any:
            written[os.fstat(file).st_ino] = is_change
            return call(file, *more)

        monkeypatch.setattr(os, name, watched)

    def rename(old: Path, new: Path, *more: Any, **options: Any) -> None:
        renamed.append(
            {
                str(path.relative_to(old)): written.get(path.stat().st_ino, True)
                for path in (Path(old), *Path(old).rglob("*"))
            }
        )
        real(old, new, *more, **options)

    source = played(stack, 0)
    real = os.rename
    for name in ("pwrite", "ftruncate", "posix_fallocate"):
        watch(name, True)
    for name in ("fsync", "fdatasync"):
        watch(name, False)
    monkeypatch.setattr(os, "rename", rename)
    with SequenceReplayBuffer("copy") as target:
        copy_episodes(source, target)
    (state,) = renamed
    assert {".", "manifest.json", "segment-00000000.bin"} <= set(state)
    assert not any(state.values()), state
