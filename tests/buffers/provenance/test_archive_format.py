"""Archives are what docs/archive-format.md says: a reader made of that page alone agrees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell as sw
from stepwell.buffers import copy_episodes
from stepwell.buffers.provenance import archived_store
from stepwell.buffers.storage.chunk_codec import ChunkDecoder
from support.archived import files_of, record
from support.envs.scrambled import ACTION_SPACES, ScrambledEnv
from support.models.archive_model import group_checks, read_archive

STORES: dict[str, dict[str, Any]] = {
    **{actions: {"actions": actions} for actions in ACTION_SPACES},
    "extras": {"has_extras": True, "has_info": True},
    "ring": {"capacity": 90},
}


@pytest.mark.parametrize("name", STORES)
def test_a_reader_made_of_the_page_finds_what_was_stored(tmp_path: Path, name: str) -> None:
    with record(tmp_path / "a", [[60, 3], [150]], **STORES[name]) as replay:
        sw.archive(replay, tmp_path / "a.swa", is_proved=False)
        check_same(read_archive(tmp_path / "a.swa"), replay)


def test_seeds_and_ledgers_are_read(tmp_path: Path) -> None:
    envs = sw.make_vec("CartPole-v1", 2, num_workers=0)
    with sw.SequenceReplayBuffer() as replay:
        with sw.Collector(envs, sw.RandomPolicy(), replay, seed=5) as collector:
            collector.collect(episodes=90)
        sw.archive(replay, tmp_path / "a.swa", is_proved=False)
        found = read_archive(tmp_path / "a.swa")
        check_same(found, replay)
        seeds = [each["metadata"]["seed"] for each in found["episodes"]]
        assert len(set(seeds)) == len(seeds) == 90
    with record(None, [[100]]) as replay:
        copy_episodes(replay, some := sw.SequenceReplayBuffer(), keep=lambda one: one.id == 7)
        sw.archive(some, tmp_path / "c.swa", is_proved=False)
        check_same(read_archive(tmp_path / "c.swa"), some)
        assert some.storage.ledger


def check_same(found: dict[str, Any], replay: sw.SequenceReplayBuffer) -> None:
    storage, spec = replay.storage, replay.spec
    records, decoder = storage.index.records, ChunkDecoder(spec)
    rows: dict[str, list[bytes]] = {each.name: [] for each in spec.of_kind("action", "extra")}
    for position, chunk in enumerate(found["chunks"], storage.index.base):
        stored, episode = storage.index.record(position), found["episodes"][chunk["episode"]]
        assert (chunk["first_row"], chunk["rows"]) == (stored.first_row, stored.stored_rows)
        assert (chunk["end"], episode["id"]) == (stored.end, stored.episode)
        assert episode["stream"] == stored.stream
        assert list(episode["metadata"].items()) == list(storage.metadata(position).items())
        for name in rows:
            field = spec[name]
            own = np.empty((stored.stored_rows, *field.shape), field.numpy_dtype)
            place = spec.names.index(name)
            decoder.read(*storage.payload(position), stored.stored_rows, place, 0, own)
            rows[name] += [row.tobytes() for row in own]
    assert len(found["chunks"]) == len(storage.index)
    assert found["rows"] == rows
    if "row_ids" in found:
        assert found["row_ids"] == records["row_id"].tolist()
        assert found["total_steps"][-1] == storage.index.total_steps
    by_id = {episode.id: episode for episode in replay.iter_episodes()}
    episodes = [by_id[each["id"]] for each in found["episodes"]]
    played = [field.name for field in spec.fields if field.name not in rows]
    assert found["checks"] == group_checks(
        [[one.fields[name].tobytes() for name in played] for one in episodes],
        found["facts"]["group_rows"],
        [one.rows for one in episodes],
    )
    kept = [{name: each.fields[name].tobytes() for name in each.fields} for each in storage.ledger]
    begin = 0
    for actions, chunk in zip(kept, found.get("ledger", {"chunks": []})["chunks"], strict=True):
        stop = begin + chunk["rows"]
        assert actions == {name: b"".join(of[begin:stop]) for name, of in found["actions"].items()}
        begin = stop


def test_rows_of_many_blocks_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archived_store, "_BLOCK_BYTES", 100)
    monkeypatch.setattr(archived_store, "_MOST_BLOCKS", 2)
    with record(tmp_path / "a", [[60], [90]], has_extras=True) as replay:
        sw.archive(replay, tmp_path / "a.swa", env=ScrambledEnv, lanes=1)
        with sw.SequenceReplayBuffer(tmp_path / "b") as again:
            assert sw.restore(tmp_path / "a.swa", again, env=ScrambledEnv, lanes=1).is_identical
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")
