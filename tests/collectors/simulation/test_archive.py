"""Archives: the same rows again from actions and seeds, and never an episode that differs."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepwell as sw
from stepwell.buffers import (
    Chunk,
    End,
    RowsDiffer,
    StoreCorrupt,
    StoreNotFound,
    StoreTooNew,
    Unprovable,
    copy_episodes,
    verify,
)
from stepwell.buffers.provenance.archive_file import opened
from stepwell.collectors.simulation import archive as archive_module
from support.archived import contents_of, record, repacked
from support.envs.scrambled import ACTION_SPACES, ScrambledEnv
from support.replayed import changed_chunk, rewritten

RUNS = st.lists(
    st.lists(st.integers(1, 40), min_size=1, max_size=3).map(tuple), min_size=1, max_size=3
).map(tuple)


@pytest.mark.proof
@given(
    runs=RUNS,
    actions=st.sampled_from(sorted(ACTION_SPACES)),
    envs=st.integers(1, 3),
    has_info=st.booleans(),
    length=st.sampled_from([1, 3, 7, 50]),
)
def test_a_store_is_restored(
    tmp_path_factory: pytest.TempPathFactory,
    runs: tuple[tuple[int, ...], ...],
    actions: str,
    envs: int,
    has_info: bool,
    length: int,
) -> None:
    folder = tmp_path_factory.mktemp("store")
    make = partial(ScrambledEnv, actions, length)
    options: dict[str, Any] = {"actions": actions, "has_info": has_info, "length": length}
    with record(folder / "a", runs, envs=envs, **options) as replay:
        report = sw.archive(replay, folder / "a.swa", env=make, lanes=1)
        before, digest, sessions = contents_of(replay), replay.digest(), replay.sessions
    with sw.SequenceReplayBuffer(folder / "b") as again:
        restored = sw.restore(folder / "a.swa", again, env=make, lanes=1)
        assert restored.steps == report.steps
        assert contents_of(again) == before
        assert again.digest() == digest
        assert again.sessions == sessions
    assert verify(folder / "b").is_whole
    assert sorted(path.name for path in (folder / "b").iterdir() if path.is_dir()) == []


def test_extras_are_kept(tmp_path: Path) -> None:
    with record(tmp_path / "a", [[30, 5], [11]], has_extras=True, has_info=True) as replay:
        sw.archive(replay, tmp_path / "a.swa", env=ScrambledEnv, lanes=1)
        for target in (tmp_path / "b", None):
            with sw.SequenceReplayBuffer(target, codecs={"observation/hash": "zstd"}) as again:
                sw.restore(tmp_path / "a.swa", again, env=ScrambledEnv, lanes=1)
                assert contents_of(again) == contents_of(replay)
                assert list(again.sessions) == list(replay.sessions)
                assert again.spec["observation/hash"].codec == "zstd"


@pytest.mark.proof
@pytest.mark.parametrize("capacity", [40, 90])
def test_of_a_ring_the_episodes_with_their_first_rows_are_archived(
    tmp_path: Path, capacity: int
) -> None:
    runs = [[30] * 5, [25, 60]]
    with record(tmp_path / "a", runs, capacity=capacity, reseed_steps=1) as replay:
        first_rows = {episode.id: episode.first_row for episode in replay.iter_episodes()}
        provable = [one for one, row in first_rows.items() if not row]
        assert 0 < len(provable) < len(first_rows)
        with pytest.raises(Unprovable, match="first rows"):
            sw.archive(replay, tmp_path / "a.swa", env=ScrambledEnv, lanes=1)
        sw.archive(replay, tmp_path / "a.swa", env=ScrambledEnv, lanes=1, only_provable=True)
        copy_episodes(
            replay, some := sw.SequenceReplayBuffer(), keep=lambda one: one.id in provable
        )
    with sw.SequenceReplayBuffer() as again:
        sw.restore(tmp_path / "a.swa", again, env=ScrambledEnv, lanes=1)
        assert contents_of(again) == contents_of(some)


@pytest.mark.proof
@pytest.mark.parametrize("ids", [[0], [3, 4, 9], [20]])
def test_some_episodes_are_those_of_a_copy(tmp_path: Path, ids: list[int]) -> None:
    with (
        record(tmp_path / "a", [[200]], reseed_steps=1) as replay,
        sw.SequenceReplayBuffer() as some,
    ):
        copy_episodes(replay, some, keep=lambda episode: episode.id in ids)
        sw.archive(replay, tmp_path / "all.swa", env=ScrambledEnv, lanes=1)
        report = sw.archive(replay, tmp_path / "a.swa", episodes=ids, env=ScrambledEnv, lanes=1)
        assert report.episodes == len(ids)
        assert report.left_out_episodes == replay.episodes - len(ids)
        for file, chosen in (("a", None), ("all", ids)):
            with sw.SequenceReplayBuffer() as again:
                sw.restore(
                    tmp_path / f"{file}.swa", again, episodes=chosen, env=ScrambledEnv, lanes=1
                )
                assert contents_of(again) == contents_of(some)
                proofs = sw.resimulate(again, env=ScrambledEnv, lanes=1)
                assert all(proof.is_equal for proof in proofs)


def test_episodes_of_a_chain_come_with_those_that_lead_to_them(tmp_path: Path) -> None:
    with record(None, [[60]], envs=1) as replay:
        with pytest.raises(Unprovable, match="episode 1, which leads to it, is not among them"):
            sw.archive(replay, tmp_path / "a.swa", episodes=[0, 2], env=ScrambledEnv, lanes=1)
        sw.archive(replay, tmp_path / "a.swa", episodes=range(3), env=ScrambledEnv, lanes=1)
        with sw.SequenceReplayBuffer() as again:  # those that lead to it are played, too
            sw.restore(tmp_path / "a.swa", again, episodes=[2], env=ScrambledEnv, lanes=1)
            (_, *restored), (_, *stored) = contents_of(again)[0], contents_of(replay)[2]
            assert restored == stored


def test_long_episodes_are_restored_in_many_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_module, "_CHUNK_ROWS", 300)
    make = partial(ScrambledEnv, "discrete", 5_000)
    with record(None, [[3_000]], length=5_000, envs=1) as replay:
        assert max(episode.rows for episode in replay.iter_episodes()) > 600
        sw.archive(replay, tmp_path / "a.swa", env=make, lanes=1)
        with sw.SequenceReplayBuffer(tmp_path / "b") as again:
            sw.restore(tmp_path / "a.swa", again, env=make, lanes=1)
            assert contents_of(again) == contents_of(replay)


@pytest.mark.parametrize("change", ["bytes", "manifest", "version"])
def test_what_is_wrong_with_an_archive_names_the_archive_alone(tmp_path: Path, change: str) -> None:
    def changed(folder: Path) -> None:
        if change == "manifest":
            (folder / "manifest.json").unlink()
            return
        path = folder / ("manifest.json" if change == "version" else "segment-00000000.bin")
        data = path.read_bytes()
        if change == "version":
            body = json.loads(data)["body"] | {"least_reader": 99}
            packed = json.dumps(body, separators=(",", ":")).encode()
            data = b'{"body":%b,"crc":"%08x"}\n' % (packed, crc32(packed))
        path.write_bytes(data[:-1] if change == "bytes" else data)

    with record(None, [[20]]) as replay:
        sw.archive(replay, tmp_path / "a.swa", env=ScrambledEnv, lanes=1)
    repacked(tmp_path / "a.swa", tmp_path / "b.swa", changed)
    with pytest.raises((StoreCorrupt, StoreTooNew)) as caught, opened(tmp_path / "b.swa"):
        pass
    said = str(caught.value)
    assert said.startswith(f"{tmp_path / 'b.swa'} is ")
    assert "repair" not in said
    assert "stepwell-" not in said
    advice = "upgrade stepwell" if change == "version" else "restore it from a copy"
    assert said.endswith(f"; {advice}")
    assert said.count("restore it from a copy") == (change != "version")
    assert isinstance(caught.value, StoreTooNew) == (change == "version")


def test_the_damage_of_another_store_is_not_that_of_an_open_archive(tmp_path: Path) -> None:
    with record(None, [[20]]) as replay:
        sw.archive(replay, tmp_path / "a.swa", env=ScrambledEnv, lanes=1)
    for error in (StoreCorrupt("x/y is damaged"), StoreNotFound("x holds no store")):
        with pytest.raises(type(error)) as caught, opened(tmp_path / "a.swa"):
            raise error
        assert caught.value is error


def test_what_cannot_be_archived_or_restored_is_refused(tmp_path: Path) -> None:
    path, old = tmp_path / "a.swa", tmp_path / "old.swa"
    old.write_bytes(b"\x93SWA\r\n\x1a\n" + bytes(500))
    new = sw.SequenceReplayBuffer
    with record(None, [[50]]) as replay:
        for ids in ([7777], []):
            with pytest.raises(ValueError, match="episodes"):
                sw.archive(replay, path, episodes=ids, env=ScrambledEnv)
        with pytest.raises(ValueError, match="there already"):
            sw.archive(replay, old, env=ScrambledEnv)
        sw.archive(replay, path, env=ScrambledEnv, lanes=1)
        with pytest.raises(ValueError, match="7777"):
            sw.restore(path, new(), episodes=[7777])
        with pytest.raises(ValueError, match="in use"):
            sw.restore(path, replay, env=ScrambledEnv)
        with pytest.raises(ValueError, match=r"old\.swa is an archive of an earlier version.*0\.1"):
            sw.restore(old, new())
        with opened(path) as archived, pytest.raises(ValueError, match="restore the archive first"):
            sw.archive(new.of(archived.storage), tmp_path / "b.swa", is_proved=False)
        liar = lying(replay, "observation/real", episode=2)
        with pytest.raises(RowsDiffer, match=r"episode 2.*observation/real"):
            sw.archive(liar, tmp_path / "b.swa", env=ScrambledEnv, lanes=1)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.swa", "old.swa"]
    assert len(old.read_bytes()) == 508


@pytest.mark.proof
@pytest.mark.parametrize("name", ["observation/real", "reward", "info/level"])
@pytest.mark.parametrize("length", [7, 5_000])
def test_an_unproved_lie_is_found_when_it_is_restored(
    tmp_path: Path, name: str, length: int
) -> None:
    options: dict[str, Any] = {"envs": 1, "length": length, "has_info": True}
    with record(None, [[3_000]], **options) as replay:
        last = max(episode.id for episode in replay.iter_episodes())
        liar = lying(replay, name, episode=last)
        assert not sw.archive(liar, tmp_path / "a.swa", is_proved=False).is_proved
        make = partial(ScrambledEnv, "discrete", length)
        with sw.SequenceReplayBuffer(tmp_path / "b") as again:
            with pytest.raises(RowsDiffer, match=name) as caught:
                sw.restore(tmp_path / "a.swa", again, env=make, lanes=1)
            # Episodes whose checksums were right before the lie are there, and nothing else.
            assert f"{again.episodes:,} of {last + 1:,} episodes" in str(caught.value)
            equal = [rows for *_, rows in contents_of(replay)]
            assert [rows for *_, rows in contents_of(again)] == equal[: again.episodes]
            assert 0 < again.episodes <= last


def test_a_false_end_is_found_when_it_is_restored(tmp_path: Path) -> None:
    with record(None, [[60]], envs=1) as replay:
        liar = lying(replay, "end", episode=3)
        with pytest.raises(RowsDiffer, match=r"episode 3: .*'end'"):
            sw.archive(liar, tmp_path / "a.swa", env=ScrambledEnv, lanes=1)
        sw.archive(liar, tmp_path / "a.swa", is_proved=False)
        again = sw.SequenceReplayBuffer()
        with pytest.raises(RowsDiffer, match=r"episode 3: .*ended"):
            sw.restore(tmp_path / "a.swa", again, env=ScrambledEnv, lanes=1)
        assert contents_of(again) == contents_of(replay)[:3]


def test_an_env_of_another_version_is_never_stored(tmp_path: Path) -> None:
    with record(tmp_path / "a", [[100]]) as replay:
        sw.archive(replay, tmp_path / "a.swa", env=ScrambledEnv, lanes=1)
    for make in (partial(ScrambledEnv, offset=1), partial(ScrambledEnv, length=3)):
        with pytest.raises(RowsDiffer, match="0 of"):
            sw.restore(
                tmp_path / "a.swa", sw.SequenceReplayBuffer(tmp_path / "b"), env=make, lanes=1
            )
        assert not (tmp_path / "b").exists()


def test_episodes_that_cannot_be_played_are_refused_or_left_out(tmp_path: Path) -> None:
    with record(None, [[60]], envs=1) as replay:
        lacking = without_seed(replay, episode=5)
        with pytest.raises(Unprovable, match=r"episode 5.*only_provable"):
            sw.archive(lacking, tmp_path / "a.swa", env=ScrambledEnv, is_proved=False)
        report = sw.archive(
            lacking, tmp_path / "a.swa", env=ScrambledEnv, lanes=1, only_provable=True
        )
        assert report.episodes == 5
        assert report.left_out_episodes == lacking.episodes - 5
        with sw.SequenceReplayBuffer() as again:
            sw.restore(tmp_path / "a.swa", again, env=ScrambledEnv, lanes=1)
            assert contents_of(again) == contents_of(lacking)[:5]


def lying(replay: sw.SequenceReplayBuffer, name: str, episode: int) -> sw.SequenceReplayBuffer:
    """The same replay but for one number of one row of an episode, or its end."""

    def changed(chunk: Chunk) -> Chunk:
        if chunk.episode != episode:
            return chunk
        if name == "end":
            other = End.TRUNCATED if chunk.end & End.TERMINATED else End.TERMINATED
            return changed_chunk(chunk, end=other)
        rows = chunk.fields[name].copy()
        rows[len(rows) // 2] += 1
        return changed_chunk(chunk, fields={**chunk.fields, name: rows})

    return rewritten(replay, changed)


def without_seed(replay: sw.SequenceReplayBuffer, episode: int) -> sw.SequenceReplayBuffer:
    """The same replay, but from an episode on the numbers by which chains are found are others."""

    def changed(chunk: Chunk) -> Chunk:
        facts = dict(chunk.metadata)
        if chunk.episode >= episode:
            facts["stream_episode"] = int(str(facts["stream_episode"])) + 1_000
        return changed_chunk(chunk, metadata=facts)

    return rewritten(replay, changed)
