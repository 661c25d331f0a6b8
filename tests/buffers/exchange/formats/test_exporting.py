"""Exports and imports: all or nothing when they fail, and their reports."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from stepwell.buffers import NotEnoughData, SequenceReplayBuffer
from stepwell.buffers.bridges import ExportReport, ImportReport, export_episodes, import_episodes
from stepwell.buffers.exchange.formats import npz
from support.exchanged_stores import episodes_of, imported, refused, tagged_store
from support.notes import assert_notes


def entries(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_the_report_counts_what_was_written(tmp_path: Path) -> None:
    replay, reports = tagged_store(), list[ExportReport]()
    report = export_episodes(replay, "npz", tmp_path / "out", progress=reports.append)
    steps = sum(episode.steps for episode in episodes_of(replay))
    assert (report.episodes, report.steps) == (6, steps) == (6, len(replay))
    assert [one.episodes for one in reports] == [1, 2, 3, 4, 5, 6]
    assert reports[-1].steps == steps
    assert {one.chosen_steps for one in reports} == {steps}
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert report.disk_bytes == sum(path.stat().st_size for path in files)
    assert json.loads(json.dumps(report.to_json()))["path"] == str(tmp_path / "out")


def test_a_dry_run_checks_and_writes_nothing(tmp_path: Path) -> None:
    replay = tagged_store()
    report = export_episodes(replay, "npz", tmp_path / "out", dry_run=True)
    assert (report.episodes, report.chosen_episodes, report.chosen_steps) == (0, 6, len(replay))
    assert entries(tmp_path) == []
    with pytest.raises(ValueError, match=r"npz.*'stak'.*compress, stack"):
        export_episodes(replay, "npz", tmp_path / "out", options={"stak": 1}, dry_run=True)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes").write_text("precious")
    (tmp_path / "file").write_text("precious")
    (tmp_path / "link").symlink_to("nowhere")
    before = entries(tmp_path)
    for name in ("full", "file", "link"):
        with pytest.raises(ValueError, match=rf"/{name} .*empty folder"):
            export_episodes(tagged_store(), "npz", tmp_path / name)
    assert entries(tmp_path) == before
    (tmp_path / "empty").mkdir()
    assert export_episodes(tagged_store(), "npz", tmp_path / "empty").episodes == 6


def test_a_store_is_not_exported_into_itself(tmp_path: Path) -> None:
    with SequenceReplayBuffer(tmp_path / "store") as replay:
        source = tagged_store()
        replay.bind(source.spec, {})
        export_episodes(source, "npz", tmp_path / "arrays")
    with SequenceReplayBuffer.open(tmp_path / "store", read_only=True) as replay:
        with pytest.raises(NotEnoughData, match=r"export.*got none"):
            export_episodes(replay, "npz", tmp_path / "store" / "inside")
    store = tmp_path / "two"
    with SequenceReplayBuffer(store) as replay:
        import_episodes("npz", tmp_path / "arrays", replay)
        with pytest.raises(ValueError, match=r"two/inside.*outside of .*/two\b"):
            export_episodes(replay, "npz", store / "inside")
    assert not (store / "inside").exists()
    with pytest.raises(NotEnoughData, match=r"replay in RAM.*\b0\b"):
        export_episodes(SequenceReplayBuffer(), "npz", tmp_path / "out")


def interrupted(report: ExportReport | ImportReport) -> None:
    if report.episodes == 3:
        raise KeyboardInterrupt


def test_an_export_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(KeyboardInterrupt):
        export_episodes(tagged_store(), "npz", tmp_path / "out", progress=interrupted)
    assert entries(tmp_path) == []

    def full(*names: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(npz._NpzWriter, "write", full)
    with pytest.raises(OSError, match=r"Errno 28\b.*/out'"):
        export_episodes(tagged_store(), "npz", tmp_path / "out")
    assert entries(tmp_path) == []


def test_an_import_needs_a_new_replay(tmp_path: Path) -> None:
    export_episodes(tagged_store(), "npz", tmp_path / "out")
    used = tagged_store()
    steps = used.steps
    with pytest.raises(ValueError, match=r"RAM.*\b21 steps.*SequenceReplayBuffer"):
        import_episodes("npz", tmp_path / "out", used)
    assert used.steps == steps
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes").write_text("precious")
    with pytest.raises(ValueError, match=r"/full .*empty"):
        import_episodes("npz", tmp_path / "out", SequenceReplayBuffer(tmp_path / "full"))


def test_an_import_notes_where_the_rows_come_from(tmp_path: Path) -> None:
    export_episodes(tagged_store(), "npz", tmp_path / "out")
    back = SequenceReplayBuffer()
    reports: list[ImportReport] = []
    report = import_episodes(
        "npz", tmp_path / "out", back, facts={"who": "me"}, progress=reports.append
    )
    *before, now = back.sessions
    assert before == [{"recipe": {"id": "Tagged-v0"}}]
    assert now["imported_from"] == {"format": "npz", "path": str(tmp_path / "out")}
    assert now["who"] == "me"
    assert [one.episodes for one in reports] == [1, 2, 3, 4, 5, 6]
    assert report.raw_bytes == sum(one.rows for one in episodes_of(back)) * back.spec.row_bytes
    assert report.fields[0].startswith("observation: uint8 (6, 5, 3)")


def test_a_dry_import_reads_everything_and_stores_nothing(tmp_path: Path) -> None:
    export_episodes(tagged_store(), "npz", tmp_path / "out")
    replay, report = imported("npz", tmp_path / "out", dry_run=True)
    assert (report.episodes, report.steps) == (6, 21)
    assert not replay.is_bound
    (tmp_path / "out" / "000005.npz").write_bytes(b"damaged")
    with pytest.raises(ValueError, match=r"000005\.npz.*npz file"):
        import_episodes("npz", tmp_path / "out", replay, dry_run=True)


def test_an_import_that_fails_keeps_whole_episodes_and_notes_the_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepwell.buffers.curation.episode_writer._CHUNK_ROWS", 4)
    source = tagged_store()
    export_episodes(source, "npz", tmp_path / "out")
    replay = SequenceReplayBuffer()
    with pytest.raises(KeyboardInterrupt) as caught:
        import_episodes("npz", tmp_path / "out", replay, progress=interrupted)
    kept = episodes_of(replay)
    steps = sum(one.steps for one in kept)
    assert_notes(caught.value.__notes__, rf"\b{len(kept)} episodes.*\b{steps} steps")
    for one, whole in zip(kept, episodes_of(source), strict=False):
        assert np.array_equal(one.observation, whole.observation)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("Minary", "'minari'"),
        ("x", "`stepwell formats`"),
        ("h5", "'hdf5'"),
        ("csv", "'parquet'"),
        ("tfds", "'rlds'"),
        ("torch", "no file.*to_torch"),
    ],
)
def test_an_unknown_format_is_refused(name: str, hint: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"format.*got '{name}'.*{hint}"):
        export_episodes(tagged_store(), name, tmp_path / "out")
    refused(name, tmp_path / "out", f"format.*got '{name}'.*{hint}")
