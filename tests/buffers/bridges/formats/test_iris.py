"""Export to and import from IRIS's files, with IRIS's own code too."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings

from stepwell.buffers import Chunk, End, Field, SequenceReplayBuffer
from stepwell.buffers.bridges import export_episodes, import_episodes
from stepwell.buffers.testing import check_format
from support.examples import examples
from support.exchanged_stores import DISCRETE, Wanted, episodes_of, stores, tagged_store
from support.libraries.real_loaders import run_real
from support.notes import assert_notes, has_note
from support.rows.tagged_pixels import PlayedEpisode, play, tag_of

torch: Any = pytest.importorskip("torch", reason="needs PyTorch: pip install 'stepwell[torch]'")

COLOR = Field("observation", "uint8", (6, 5, 3), "zstd")
GRAY = Field("observation", "uint8", (6, 5), "zstd")
FIRST = Field("observation", "uint8", (3, 6, 5), "zstd")
HELD = Wanted(
    observations=(
        (COLOR,),
        (GRAY,),
        (FIRST,),
        (Field("observation/image", "uint8", (6, 5, 1), "zstd"),),
    ),
    actions=((DISCRETE,), (Field("action", "uint8", (), "narrow"),)),
)
KEYS = ["actions", "ends", "mask_padding", "observations", "rewards"]
DTYPES = [torch.int64, torch.int64, torch.bool, torch.uint8, torch.float32]


def files_in(folder: Path) -> list[dict[str, Any]]:
    """The contents of the files of ``dataset``, in the order of their numbers."""
    files = sorted((folder / "dataset").iterdir(), key=lambda file: int(file.stem))
    assert [file.name for file in files] == [f"{number}.pt" for number in range(len(files))]
    return [torch.load(file, weights_only=True) for file in files]


def by_tag(played: list[PlayedEpisode]) -> dict[tuple[int, int], PlayedEpisode]:
    return {(one.env, one.number): one for one in played}


@settings(
    max_examples=examples(30),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(replay=stores(HELD))
def test_the_same_steps_come_back(replay: SequenceReplayBuffer, tmp_path: Path) -> None:
    assume(any(episode.steps for episode in episodes_of(replay)))
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    is_first = replay.spec.fields[0].shape == FIRST.shape
    options = {"channels": "first" if is_first else "last"}
    observation = "image" if isinstance(replay.spec.observation, dict) else None
    check_format(
        "iris",
        tmp_path / "out",
        replay,
        export_options={"observation": observation},
        import_options=options,
    )


@pytest.mark.parametrize("truncated_ends", [False, True])
def test_each_file_is_an_episode_of_an_env(tmp_path: Path, truncated_ends: bool) -> None:
    replay, played = play()
    export_episodes(replay, "iris", tmp_path / "out", options={"truncated_ends": truncated_ends})
    expected = by_tag(played)
    files = files_in(tmp_path / "out")
    assert len(files) == len(expected)
    for found in files:
        assert sorted(found) == KEYS
        assert [found[key].dtype for key in KEYS] == DTYPES
        pictures = found["observations"].numpy()
        env, number, _ = tag_of(pictures[0].transpose(1, 2, 0))
        one = expected.pop((env, number))
        assert pictures.shape == (one.steps, 3, 64, 64)
        assert np.array_equal(pictures, [p.transpose(2, 0, 1) for p in one.observations[:-1]])
        assert found["actions"].tolist() == one.actions
        assert found["rewards"].tolist() == [float(np.float32(reward)) for reward in one.rewards]
        is_end = one.terminated or (truncated_ends and one.truncated)
        assert found["ends"].tolist() == [0] * (one.steps - 1) + [int(is_end)]
        assert found["mask_padding"].tolist() == [True] * one.steps
    assert not expected


def test_notes_list_what_iris_does_not_store(tmp_path: Path) -> None:
    replay, played = play()
    unended = sum(not one.terminated for one in by_tag(played).values())
    episode = episodes_of(replay)[0]
    alone = {name: rows[:1] for name, rows in episode.fields.items()}
    replay.add([Chunk(99, 0, 0, End.PENDING, {**alone, "action": np.zeros(1, np.int64)}, {})])
    notes = export_episodes(replay, "iris", tmp_path / "out").notes
    off = max(abs(float(np.float32(r)) - r) for one in played for r in one.rewards)
    assert_notes(
        sorted(notes, key=lambda note: not note.startswith("reward")),
        f"reward.*float32.*{off:.2g}",
        "T observations of T steps",
        rf"\b{unended}\b.*`ends`",
        r"\b1\b.*without a step",
    )


def test_single_frames_of_a_stack_become_pictures_with_one_channel(tmp_path: Path) -> None:
    replay, played = play(shape=(20, 24), stack=3)
    report, _, _ = check_format("iris", tmp_path / "out", replay)
    assert has_note(report.notes, r"single frames.*\b3\b")
    assert has_note(report.notes, r"\(1, 20, 24\).*C, H, W")
    expected = by_tag(played)
    for found in files_in(tmp_path / "out"):
        pictures = found["observations"].numpy()
        one = expected.pop(tag_of(pictures[0])[:2])
        assert np.array_equal(pictures[:, 0], one.observations[:-1])


def test_option_observation_selects_a_picture_of_a_dict(tmp_path: Path) -> None:
    replay, played = play(is_dict=True, shape=(20, 24, 3))
    with pytest.raises(
        ValueError, match=r"IRIS.*observation/clock, observation/screen.*option observation"
    ):
        export_episodes(replay, "iris", tmp_path / "out")
    with pytest.raises(ValueError, match=r"'observation/clock'.*uint8.*float64 \(2,\)"):
        export_episodes(replay, "iris", tmp_path / "out", options={"observation": "clock"})
    report = export_episodes(replay, "iris", tmp_path / "out", options={"observation": "screen"})
    assert has_note(report.notes, "observation/clock")
    expected = by_tag(played)
    for found in files_in(tmp_path / "out"):
        pictures = found["observations"].numpy().transpose(0, 2, 3, 1)
        assert np.array_equal(pictures, expected.pop(tag_of(pictures[0])[:2]).observations[:-1])


@pytest.mark.parametrize(
    ("shape", "channels", "written"),
    [
        ((6, 5, 4), None, (4, 6, 5)),
        ((3, 6, 4), None, (4, 3, 6)),
        ((3, 6, 4), "first", (3, 6, 4)),
        ((3, 6, 5), None, (3, 6, 5)),
        ((8, 6, 5), "first", (8, 6, 5)),
        ((6, 5, 8), "last", (8, 6, 5)),
        ((1, 6, 5, 3), None, (3, 6, 5)),
        ((1, 3, 6, 5), None, (3, 6, 5)),
        ((1, 6, 5), None, (1, 6, 5)),
    ],
)
def test_channels_are_moved_first(
    shape: tuple[int, ...], channels: str | None, written: tuple[int, ...], tmp_path: Path
) -> None:
    replay = tagged_store(Field("observation", "uint8", shape, "zstd"))
    export_episodes(replay, "iris", tmp_path / "out", options={"channels": channels})
    is_moved = channels != "first" and written != shape[-3:]
    for found, episode in zip(files_in(tmp_path / "out"), episodes_of(replay), strict=True):
        pictures = found["observations"].numpy()
        assert pictures.shape[1:] == written
        frames = episode.observation.reshape(-1, *shape[-3:])
        for picture, frame in zip(pictures, frames, strict=False):
            assert np.array_equal(picture, frame.transpose(2, 0, 1) if is_moved else frame)


@pytest.mark.parametrize(
    ("observation", "action", "match"),
    [
        (
            Field("observation", "float32", (6, 5, 3), "raw"),
            DISCRETE,
            r"uint8.*float32 \(6, 5, 3\)",
        ),
        (Field("observation", "uint8", (90,), "raw"), DISCRETE, r"\(H, W, C\).*uint8 \(90,\)"),
        (
            Field("observation", "uint8", (2, 4, 5, 3), "raw"),
            DISCRETE,
            r"\(H, W, C\).*uint8 \(2, 4, 5, 3\)",
        ),
        (
            Field("observation", "uint8", (8, 6, 5), "raw"),
            DISCRETE,
            r"1, 3, 4.*\(8, 6, 5\).*option channels",
        ),
        (COLOR, Field("action", "float32", (), "raw"), r"Discrete.*action.*float32 \(\)"),
        (COLOR, Field("action", "int64", (2,), "raw"), r"Discrete.*action.*int64 \(2,\)"),
        (COLOR, Field("action", "int8", (3,), "raw"), r"Discrete.*action.*int8 \(3,\)"),
    ],
)
def test_unsupported_observations_and_actions_are_refused(
    observation: Field, action: Field, match: str, tmp_path: Path
) -> None:
    replay = tagged_store(observation, action=action)
    with pytest.raises(ValueError, match=match):
        export_episodes(replay, "iris", tmp_path / "out", dry_run=True)
    assert not list(tmp_path.iterdir())


def test_actions_below_0_are_refused(tmp_path: Path) -> None:
    replay = tagged_store(episodes=2)
    (episode, *_) = episodes_of(replay)
    fields = {**episode.fields, "action": np.array([-1, 0])}
    replay.add([Chunk(7, 0, 0, End.TERMINATED, fields, {})])
    with pytest.raises(ValueError, match=r"episode 7\b.*actions.*0, got -1"):
        export_episodes(replay, "iris", tmp_path / "out")
    assert not list(tmp_path.iterdir())


def columns(steps: int = 3, **changes: Any) -> dict[str, Any]:
    """The contents of a file of IRIS's."""
    pictures = torch.arange(steps * 3 * 4 * 5).reshape(steps, 3, 4, 5).to(torch.uint8)
    return {
        "observations": pictures,
        "actions": torch.arange(steps),
        "rewards": torch.arange(steps).float() / 3,
        "ends": torch.tensor([0] * (steps - 1) + [1]),
        "mask_padding": torch.ones(steps, dtype=torch.bool),
        **changes,
    }


@pytest.mark.parametrize("inner", ["", "dataset"])
def test_a_foreign_folder_is_read(tmp_path: Path, inner: str) -> None:
    folder = tmp_path / inner
    folder.mkdir(exist_ok=True)
    torch.save(columns(3), folder / "9.pt")
    torch.save(columns(2, ends=torch.zeros(2, dtype=torch.int64)), folder / "10.pt")
    replay = SequenceReplayBuffer()
    report = import_episodes("iris", tmp_path, replay)
    assert (report.episodes, report.steps, report.source_episodes) == (2, 5, 2)
    first, second = episodes_of(replay)
    assert [first.end, second.end] == [End.TERMINATED, End.NONE]
    pictures = columns(3)["observations"].numpy().transpose(0, 2, 3, 1)
    assert np.array_equal(first.observation, [*pictures, pictures[-1]])
    assert first.action.tolist() == [0, 1, 2, 0]
    assert first.reward.tolist() == [0.0, *(np.arange(3, dtype=np.float32) / 3).tolist()]
    assert first.fields["info/observed"].tolist() == [True, True, True, False]
    assert second.rows == 3
    assert_notes(report.notes, "final observations", "stream", "`ends`")
    other = SequenceReplayBuffer()
    import_episodes("iris", tmp_path, other, options={"channels": "first"})
    assert other.spec["observation"].shape == (3, 4, 5)
    assert np.array_equal(episodes_of(other)[0].observation.transpose(0, 2, 3, 1)[:3], pictures)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (
            {"observations": torch.zeros(3, 4, 5, 3)},
            r"0\.pt.*'observations'.*uint8 \[T, C, H, W\].*float32",
        ),
        (
            {"observations": torch.zeros(3, 4, dtype=torch.uint8)},
            r"'observations'.*\[T, C, H, W\].*uint8 \(3, 4\)",
        ),
        ({"actions": torch.zeros(3)}, r"'actions'.*int64 \(3,\).*float32"),
        ({"actions": torch.zeros(2, dtype=torch.int64)}, r"'actions'.*int64 \(3,\).*int64 \(2,\)"),
        ({"rewards": [1.0, 2.0, 3.0]}, r"0\.pt.*'rewards'.*a list"),
        ({"rewards": None}, r"0\.pt.*'rewards'.*none"),
        ({"ends": torch.tensor([0, 1, 1])}, r"'ends'.*step 1 of 3"),
        ({"mask_padding": torch.tensor([False, True, True])}, r"0\.pt.*mask_padding.*False"),
        (
            {"observations": torch.zeros(0, 3, 4, 5, dtype=torch.uint8)},
            r"'actions'.*\(0,\).*int64 \(3,\)",
        ),
    ],
)
def test_invalid_columns_are_refused(change: dict[str, Any], match: str, tmp_path: Path) -> None:
    torch.save(columns(3, **change), tmp_path / "0.pt")
    replay = SequenceReplayBuffer()
    with pytest.raises(ValueError, match=match):
        import_episodes("iris", tmp_path, replay)
    assert not replay.is_bound


def test_a_file_that_would_run_code_is_refused(tmp_path: Path) -> None:
    torch.save({"observations": Path("/")}, tmp_path / "0.pt")
    with pytest.raises(ValueError, match=r"0\.pt.*dict of tensors.*objects.*UnpicklingError"):
        import_episodes("iris", tmp_path, SequenceReplayBuffer())


def test_damaged_and_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere.*IRIS"):
        import_episodes("iris", tmp_path / "nowhere", SequenceReplayBuffer())
    with pytest.raises(ValueError, match=r"0\.pt, 1\.pt, .*none"):
        import_episodes("iris", tmp_path, SequenceReplayBuffer())
    for number in (3, 5):
        torch.save(columns(), tmp_path / f"{number}.pt")
    with pytest.raises(ValueError, match=r"3 to 5\b.*\b4\b"):
        import_episodes("iris", tmp_path, SequenceReplayBuffer())
    whole = (tmp_path / "3.pt").read_bytes()
    (tmp_path / "4.pt").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"4\.pt.*dict of tensors"):
        import_episodes("iris", tmp_path, SequenceReplayBuffer())
    torch.save(columns(observations=torch.zeros(3, 1, 4, 5, dtype=torch.uint8)), tmp_path / "4.pt")
    with pytest.raises(ValueError, match=r"4\.pt.*\(3, 4, 5\).*\(1, 4, 5\)"):
        import_episodes("iris", tmp_path, SequenceReplayBuffer())


def test_iriss_own_code_reads_an_export(tmp_path: Path) -> None:
    replay, played = play()
    export_episodes(replay, "iris", tmp_path / "out")
    loaded = run_real("iris", "iris_loaders.py", "load", tmp_path / "out" / "dataset", tmp_path)
    expected = by_tag(played)
    assert int(loaded["seen"]) == len(expected)
    for number in range(len(expected)):
        pictures = loaded[f"{number}/observations"].transpose(0, 2, 3, 1)
        one = expected[tag_of(pictures[0])[:2]]
        assert np.array_equal(pictures, one.observations[:-1])
        assert loaded[f"{number}/actions"].tolist() == one.actions
        assert loaded[f"{number}/ends"].sum() == one.terminated
    assert int(loaded["chunks"]) == sum(-(-one.steps // 4) for one in expected.values())
    seen = set()
    for side in ("start", "end"):
        pictures = np.round(loaded[f"{side}/observations"] * 255).astype(np.uint8)
        for b, t in np.argwhere(loaded[f"{side}/mask_padding"]):
            env, number, step = tag_of(pictures[b, t].transpose(1, 2, 0))
            one = expected[env, number]
            seen.add((env, number, step))
            assert loaded[f"{side}/actions"][b, t] == one.actions[step]
            assert loaded[f"{side}/rewards"][b, t] == np.float32(one.rewards[step])
            is_end = one.terminated and step == one.steps - 1
            assert loaded[f"{side}/ends"][b, t] == is_end
    assert len(seen) == sum(one.steps for one in expected.values())


def test_a_folder_written_by_iriss_own_code_is_imported(tmp_path: Path) -> None:
    _, played = play(shape=(8, 9, 3))
    chosen = [one for one in played if one.steps > 2 and not one.truncated]
    given: dict[str, Any] = {"count": len(chosen)}
    for number, one in enumerate(chosen):
        ends = np.zeros(one.steps, np.int64)
        ends[-1] = one.terminated
        given |= {
            f"{number}/observations": np.moveaxis(np.stack(one.observations[:-1]), -1, 1),
            f"{number}/actions": np.array(one.actions),
            f"{number}/rewards": np.array(one.rewards, np.float32),
            f"{number}/ends": ends,
            f"{number}/mask_padding": np.ones(one.steps, np.bool_),
        }
    folder = tmp_path / "run" / "dataset"
    run_real("iris", "iris_loaders.py", "save", folder, tmp_path, **given)
    replay = SequenceReplayBuffer()
    import_episodes("iris", tmp_path / "run", replay)
    for one, episode in zip(chosen, episodes_of(replay), strict=True):
        assert np.array_equal(episode.observation[:-1], one.observations[:-1])
        assert np.array_equal(episode.observation[-1], one.observations[-2])
        assert episode.action.tolist() == [*one.actions, 0]
        assert episode.reward.tolist() == [0, *np.array(one.rewards, np.float32).tolist()]
        assert episode.end == (End.TERMINATED if one.terminated else End.NONE)
