"""Export to and import from DIAMOND's files, with DIAMOND's own code too."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from stepwell.buffers import End, Field, SequenceReplayBuffer
from stepwell.buffers.bridges import export_episodes, import_episodes
from stepwell.buffers.bridges.formats.diamond import episode_file
from stepwell.buffers.testing import check_format
from support.examples import examples
from support.exchanged_stores import DISCRETE, Wanted, episodes_of, stores, tagged_store
from support.libraries.real_loaders import run_real
from support.notes import assert_notes, has_note
from support.rows.tagged_pixels import PlayedEpisode, play, tag_of

torch: Any = pytest.importorskip("torch", reason="needs PyTorch: pip install 'stepwell[torch]'")

COLOR = Field("observation", "uint8", (6, 5, 3), "zstd")
HELD = Wanted(
    observations=((COLOR,), (Field("observation", "uint8", (6, 5), "zstd"),)),
    actions=((DISCRETE,),),
)
NOT_SCALED = r"'final_observation'.*-1 to 1"
KEYS = ["act", "end", "info", "obs", "rew", "trunc"]
DTYPES = {
    "obs": torch.uint8,
    "act": torch.int64,
    "rew": torch.float32,
    "end": torch.uint8,
    "trunc": torch.uint8,
}


def file_of(folder: Path, number: int) -> Path:
    """The file of an episode, in folders for hundreds, tens and ones: 000/10/1/1011.pt."""
    digits = f"{number:03d}"[-3:]
    return folder / f"{digits[0]}00" / f"{digits[1]}0" / digits[2] / f"{number}.pt"


def files_in(folder: Path) -> list[dict[str, Any]]:
    """The contents of all files, in the order of their numbers."""
    count = len(list(folder.rglob("*.pt"))) - 1
    return [torch.load(file_of(folder, number), weights_only=True) for number in range(count)]


def by_tag(played: list[PlayedEpisode]) -> dict[tuple[int, int], PlayedEpisode]:
    return {(one.env, one.number): one for one in played}


@settings(
    max_examples=examples(30),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(replay=stores(HELD), static=st.booleans())
def test_the_same_steps_come_back(
    replay: SequenceReplayBuffer, static: bool, tmp_path: Path
) -> None:
    assume(any(episode.steps for episode in episodes_of(replay)))
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    check_format("diamond", tmp_path / "out", replay, export_options={"static": static})


def test_each_file_is_an_episode_of_an_env(tmp_path: Path) -> None:
    replay, played = play()
    report, _, _ = check_format("diamond", tmp_path / "out", replay)
    expected = by_tag(played)
    files = files_in(tmp_path / "out")
    assert len(files) == len(expected)
    for found in files:
        assert sorted(found) == KEYS
        assert {key: found[key].dtype for key in DTYPES} == DTYPES
        pictures = found["obs"].numpy().transpose(0, 2, 3, 1)
        one = expected.pop(tag_of(pictures[0])[:2])
        assert np.array_equal(pictures, one.observations[:-1])
        assert found["act"].tolist() == one.actions
        assert found["rew"].tolist() == [float(np.float32(reward)) for reward in one.rewards]
        before = [0] * (one.steps - 1)
        assert found["end"].tolist() == [*before, one.terminated]
        assert found["trunc"].tolist() == [*before, one.truncated]
        if one.terminated or one.truncated:
            final = found["info"]["final_observation"]
            scaled = torch.from_numpy(one.observations[-1]).permute(2, 0, 1).div(255).mul(2).sub(1)
            assert list(found["info"]) == ["final_observation"]
            assert final.dtype == torch.float32
            assert torch.equal(final, scaled)
        else:
            assert found["info"] == {}
    assert not expected
    cuts = sum(not (one.terminated or one.truncated) for one in played)
    assert re.search(rf"\b{cuts}\b.*`end`.*`trunc`.*0", report.notes[0])


def test_counts_equal_those_of_the_episodes(tmp_path: Path) -> None:
    replay, played = play()
    export_episodes(replay, "diamond", tmp_path / "out", options={"static": True})
    info = torch.load(tmp_path / "out" / "info.pt", weights_only=True)
    lengths = [len(found["act"]) for found in files_in(tmp_path / "out")]
    assert sorted(lengths) == sorted(one.steps for one in played)
    assert info.pop("start_idx").tolist() == [sum(lengths[:n]) for n in range(len(lengths))]
    assert info.pop("lengths").tolist() == lengths
    signs = Counter(float(np.sign(reward)) for one in played for reward in one.rewards)
    ends = sum(one.terminated for one in played)
    assert info == {
        "is_static": True,
        "num_episodes": len(played),
        "num_steps": sum(lengths),
        "counter_rew": signs,
        "counter_end": Counter({0: sum(lengths) - ends, 1: ends}),
    }
    assert type(info["counter_rew"]) is Counter


def test_many_episodes_lie_in_folders_by_their_digits(tmp_path: Path) -> None:
    export_episodes(tagged_store(episodes=12), "diamond", tmp_path / "out")
    assert len(files_in(tmp_path / "out")) == 12
    for number in range(3000):
        assert episode_file(tmp_path, number) == file_of(tmp_path, number)
    assert file_of(Path(), 1011).as_posix() == "000/10/1/1011.pt"


@pytest.mark.parametrize(
    ("observation", "action", "match"),
    [
        (
            Field("observation", "int16", (6, 5, 3), "raw"),
            DISCRETE,
            r"DIAMOND.*'observation'.*uint8.*int16 \(6, 5, 3\)",
        ),
        (COLOR, Field("action", "float32", (), "raw"), r"DIAMOND.*Discrete.*action.*float32 \(\)"),
        (COLOR, Field("action", "int64", (2,), "raw"), r"DIAMOND.*Discrete.*action.*int64 \(2,\)"),
    ],
)
def test_unsupported_observations_and_actions_are_refused(
    observation: Field, action: Field, match: str, tmp_path: Path
) -> None:
    replay = tagged_store(observation, action=action)
    with pytest.raises(ValueError, match=match):
        export_episodes(replay, "diamond", tmp_path / "out", dry_run=True)
    assert not list(tmp_path.iterdir())


def columns(steps: int = 3, **changes: Any) -> dict[str, Any]:
    """The contents of a file of DIAMOND's, in which every byte occurs."""
    pictures = torch.arange(steps * 3 * 4 * 22).reshape(steps, 3, 4, 22).to(torch.uint8)
    flags = torch.zeros(steps, dtype=torch.uint8)
    final = torch.arange(264).to(torch.uint8).reshape(3, 4, 22)
    return {
        "obs": pictures,
        "act": torch.arange(steps),
        "rew": torch.arange(steps).float() / 3,
        "end": torch.arange(steps).eq(steps - 1).to(torch.uint8),
        "trunc": flags,
        "info": {"final_observation": final.div(255).mul(2).sub(1)},
        **changes,
    }


def put(folder: Path, number: int, **changes: Any) -> Path:
    file = file_of(folder, number)
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.save(columns(**changes), file)
    return file


def test_a_foreign_folder_is_read(tmp_path: Path) -> None:
    zeros = torch.zeros(3, dtype=torch.uint8)
    put(tmp_path, 0)
    put(tmp_path, 1, end=zeros, info={})
    put(tmp_path, 2, end=zeros, trunc=columns()["end"])
    replay = SequenceReplayBuffer()
    report = import_episodes("diamond", tmp_path, replay)
    assert_notes(report.notes, "stream", r"info\.pt", r"final observations.*\b1\b")
    first, second, third = episodes_of(replay)
    assert [one.end for one in (first, second, third)] == [End.TERMINATED, End.NONE, End.TRUNCATED]
    pictures = columns()["obs"].numpy().transpose(0, 2, 3, 1)
    every_byte = (np.arange(264) % 256).astype(np.uint8).reshape(3, 4, 22).transpose(1, 2, 0)
    assert np.array_equal(first.observation, [*pictures, every_byte])
    assert np.array_equal(second.observation, [*pictures, pictures[-1]])
    assert first.action.tolist() == [0, 1, 2, 0]
    assert first.reward.tolist() == [0.0, *(np.arange(3, dtype=np.float32) / 3).tolist()]
    assert first.fields["info/observed"].tolist() == [True] * 4
    assert second.fields["info/observed"].tolist() == [True, True, True, False]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"obs": torch.zeros(3, 3, 4, 5)}, r"0\.pt.*'obs'.*uint8 \[T, C, H, W\].*float32"),
        ({"act": torch.zeros(2, dtype=torch.int64)}, r"'act'.*int64 \(3,\).*int64 \(2,\)"),
        ({"end": torch.ones(3, dtype=torch.uint8)}, r"'end'.*step 0 of 3"),
        ({"trunc": torch.tensor([1, 0, 0]).byte()}, r"'trunc'.*step 0 of 3"),
        (
            {"info": {"final_observation": torch.zeros(4, 5)}},
            r"'final_observation'.*\(3, 4, 22\).*\(4, 5\)",
        ),
        ({"info": {"final_observation": torch.full((3, 4, 22), 0.3)}}, NOT_SCALED),
        ({"info": {"final_observation": torch.full((3, 4, 22), 3.0)}}, NOT_SCALED),
        ({"info": {"final_observation": torch.full((3, 4, 22), torch.nan)}}, NOT_SCALED),
    ],
)
def test_invalid_columns_are_refused(change: dict[str, Any], match: str, tmp_path: Path) -> None:
    put(tmp_path, 0, **change)
    replay = SequenceReplayBuffer()
    with pytest.raises(ValueError, match=match):
        import_episodes("diamond", tmp_path, replay)
    assert not replay.is_bound


def test_damaged_and_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere.*DIAMOND"):
        import_episodes("diamond", tmp_path / "nowhere", SequenceReplayBuffer())
    with pytest.raises(ValueError, match=r"000/00/0/0\.pt.*none"):
        import_episodes("diamond", tmp_path, SequenceReplayBuffer())
    for number in (0, 2):
        put(tmp_path, number)
    with pytest.raises(ValueError, match=r"0 to 2\b.*\b1\b"):
        import_episodes("diamond", tmp_path, SequenceReplayBuffer())
    file = put(tmp_path, 1)
    torch.save({"num_episodes": 4}, tmp_path / "info.pt")
    with pytest.raises(ValueError, match=r"\b4\b.*info\.pt.*got 3"):
        import_episodes("diamond", tmp_path, SequenceReplayBuffer())
    (tmp_path / "info.pt").unlink()
    file.write_bytes(file.read_bytes()[:-500])
    with pytest.raises(ValueError, match=r"/1\.pt.*dict of tensors"):
        import_episodes("diamond", tmp_path, SequenceReplayBuffer())
    file.rename(tmp_path / "000" / "00" / "2" / "1.pt")
    with pytest.raises(ValueError, match=r"000/00/2/1\.pt.*000/00/1/1\.pt"):
        import_episodes("diamond", tmp_path, SequenceReplayBuffer())


def test_diamonds_own_code_reads_an_export(tmp_path: Path) -> None:
    replay, played = play()
    export_episodes(replay, "diamond", tmp_path / "out")
    loaded = run_real("diamond", "diamond_loaders.py", "load", tmp_path / "out", tmp_path)
    expected = by_tag(played)
    steps = sum(one.steps for one in played)
    assert (int(loaded["episodes"]), int(loaded["steps"])) == (len(expected), steps)
    signs = [int(np.sign(reward)) for one in played for reward in one.rewards]
    assert loaded["counts_rew"].tolist() == [signs.count(sign) for sign in (-1, 0, 1)]
    ends = sum(one.terminated for one in played)
    assert loaded["counts_end"].tolist() == [steps - ends, ends]
    lengths = []
    for number in range(len(expected)):
        pictures = loaded[f"{number}/obs"].transpose(0, 2, 3, 1)
        one = expected[tag_of(pictures[0])[:2]]
        lengths.append(one.steps)
        assert np.array_equal(pictures, one.observations[:-1])
        assert loaded[f"{number}/act"].tolist() == one.actions
        assert loaded[f"{number}/end"].sum() == one.terminated
        assert loaded[f"{number}/trunc"].sum() == one.truncated
        final = loaded.get(f"{number}/final")
        if one.terminated or one.truncated:
            assert final is not None
            assert np.array_equal(final.transpose(1, 2, 0), one.observations[-1])
        else:
            assert final is None
    assert loaded["lengths"].tolist() == [*lengths, lengths[0]]
    assert loaded["starts"].tolist() == [sum(lengths[:n]) for n in range(len(lengths) + 1)]
    chunks = sum(-(-length // 4) - (length % 4 == 1) for length in lengths)
    assert loaded["chunks"].tolist() == [-(-chunks // 8)] * 2
    for name in ("within", "beyond"):
        for b, t in np.argwhere(loaded[f"{name}/mask_padding"]):
            env, number, step = tag_of(loaded[f"{name}/obs"][b, t].transpose(1, 2, 0))
            one = expected[env, number]
            assert loaded[f"{name}/act"][b, t] == one.actions[step]
            assert loaded[f"{name}/rew"][b, t] == np.float32(one.rewards[step])
            is_last = step == one.steps - 1
            assert loaded[f"{name}/end"][b, t] == (one.terminated and is_last)
            assert loaded[f"{name}/trunc"][b, t] == (one.truncated and is_last)


def test_a_folder_written_by_diamonds_own_code_is_imported(tmp_path: Path) -> None:
    _, played = play(shape=(8, 9, 3))
    given: dict[str, Any] = {"count": len(played)}
    for number, one in enumerate(played):
        flags = np.zeros((2, one.steps), np.uint8)
        flags[:, -1] = one.terminated, one.truncated
        pictures = np.moveaxis(np.stack(one.observations), -1, 1)
        given |= {
            f"{number}/obs": pictures[:-1],
            f"{number}/act": np.array(one.actions),
            f"{number}/rew": np.array(one.rewards, np.float32),
            f"{number}/end": flags[0],
            f"{number}/trunc": flags[1],
        }
        if flags.any():
            given[f"{number}/final"] = pictures[-1]
    saved = run_real("diamond", "diamond_loaders.py", "save", tmp_path / "run", tmp_path, **given)
    # Its info.pt holds numpy arrays, which recent versions of torch refuse to load.
    assert str(saved["reloads"]) in ("yes", "UnpicklingError")
    replay = SequenceReplayBuffer()
    report = import_episodes("diamond", tmp_path / "run", replay)
    assert has_note(report.notes, r"info\.pt")
    for one, episode in zip(played, episodes_of(replay), strict=True):
        is_over = one.terminated or one.truncated
        # It truncates floats when it saves: 63 of 256 values become smaller by 1.
        short = episode.observation[:-1].astype(int) - np.stack(one.observations[:-1])
        assert set(short.ravel().tolist()) <= {0, -1}
        final = one.observations[-1] if is_over else episode.observation[-2]
        assert np.array_equal(episode.observation[-1], final)
        assert episode.fields["info/observed"].tolist() == [True] * one.steps + [is_over]
        assert episode.action.tolist() == [*one.actions, 0]
        assert episode.reward.tolist() == [0, *np.array(one.rewards, np.float32).tolist()]
        assert bool(episode.end & End.TERMINATED) == one.terminated
        assert bool(episode.end & End.TRUNCATED) == one.truncated
