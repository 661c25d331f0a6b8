"""Export to and import from DreamerV3's chunks, with DreamerV3's own replay too."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from stepwell.buffers import Chunk, End, Field, SequenceReplayBuffer
from stepwell.buffers.bridges import export_episodes, import_episodes
from stepwell.buffers.testing import check_format
from support.exchanged_stores import DISCRETE, episodes_of, imported, refused, tagged_store
from support.libraries.real_loaders import run_real
from support.notes import assert_notes, has_note
from support.rows.tagged_pixels import PlayedEpisode, play, tag_of

ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
FLAGS = ["is_first", "is_last", "is_terminal"]
NEEDS_ELEMENTS = pytest.mark.skipif(
    importlib.util.find_spec("elements") is None, reason="needs elements, as DreamerV3 does"
)


class File(NamedTuple):
    """A chunk: the parts of its name, and its arrays."""

    time: str
    uuid: int
    follows: int
    rows: int
    arrays: dict[str, np.ndarray]


def number_of(text: str) -> int:
    assert len(text) == 22
    return sum(ALPHABET.index(char) * 62**place for place, char in enumerate(reversed(text)))


def text_of(number: int) -> str:
    return "".join(ALPHABET[number // 62**place % 62] for place in reversed(range(22)))


def files_in(folder: Path) -> list[File]:
    """All chunks, by their names."""
    found = []
    for file in sorted(folder.glob("*.npz")):
        time, uuid, follows, rows = file.stem.split("-")
        with np.load(file, allow_pickle=False) as arrays:
            held = {name: arrays[name] for name in arrays.files}
        found.append(File(time, number_of(uuid), number_of(follows), int(rows), held))
    return found


def rows_in(folder: Path) -> list[dict[str, np.ndarray]]:
    """All rows of each chain, one chain after the other; names and row ids are checked."""
    files = {file.uuid: file for file in files_in(folder)}
    followed = {file.follows for file in files.values()} - {0}
    assert followed <= set(files)
    chains = []
    for file in files.values():
        for row, id_ in enumerate(file.arrays["stepid"]):
            assert id_.tobytes() == file.uuid.to_bytes(16, "big") + row.to_bytes(4, "big")
        assert all(len(array) == file.rows for array in file.arrays.values())
        if file.uuid in followed:
            continue
        chain = [file]
        while chain[-1].follows:
            chain.append(files[chain[-1].follows])
            assert chain[-1].time > chain[-2].time
        keys = file.arrays
        chains.append({key: np.concatenate([one.arrays[key] for one in chain]) for key in keys})
    assert sum(len(chain["reward"]) for chain in chains) == sum(f.rows for f in files.values())
    return chains


def expected_rows(episodes: Sequence[PlayedEpisode]) -> dict[str, list[Any]]:
    """Each observation of an env with its reward and flags, and the action chosen from it."""
    rows: dict[str, list[Any]] = {key: [] for key in ["image", "action", "reward", *FLAGS]}
    for one in episodes:
        for t, picture in enumerate(one.observations):
            is_final = t == one.steps
            rows["image"].append(picture)
            rows["action"].append(0 if is_final else one.actions[t])
            rows["reward"].append(float(np.float32(one.rewards[t - 1])) if t else 0.0)
            rows["is_first"].append(t == 0)
            rows["is_last"].append(is_final and (one.terminated or one.truncated))
            rows["is_terminal"].append(is_final and one.terminated)
    return rows


def by_env(played: Sequence[PlayedEpisode], env: int) -> list[PlayedEpisode]:
    return [one for one in played if one.env == env]


@pytest.mark.proof
@pytest.mark.parametrize("chunk", [1, 7, 1024])
def test_each_env_becomes_a_chain_of_its_rows(tmp_path: Path, chunk: int) -> None:
    replay, played = play()
    report, _, _ = check_format(
        "dreamerv3",
        tmp_path / "out",
        replay,
        export_options={"chunk": chunk},
        has_final_observation=True,
    )
    chains = rows_in(tmp_path / "out")
    assert len(chains) == 3
    for chain in chains:
        env, _, _ = tag_of(chain["image"][0])
        expected = expected_rows(by_env(played, env))
        assert sorted(chain) == sorted([*expected, "stepid"])
        assert {key: chain[key].dtype.name for key in expected} == {
            "image": "uint8",
            "action": "int32",
            "reward": "float32",
            **dict.fromkeys(FLAGS, "bool"),
        }
        assert np.array_equal(chain["image"], expected.pop("image"))
        assert {key: chain[key].tolist() for key in expected} == expected
        full = [file.rows for file in files_in(tmp_path / "out") if file.follows]
        assert full == [chunk] * len(full)
    assert "replay_context 0" in report.notes[0]


def same_rows(streams: Sequence[int], reward: float, seed: int = 0) -> SequenceReplayBuffer:
    """An episode of 12 rows in each of the streams, with equal rows."""
    (episode,) = episodes_of(tagged_store(episodes=1))
    replay = SequenceReplayBuffer()
    replay.bind(episode.spec, {"seed": seed})
    for number, stream in enumerate(streams):
        rows = {name: np.repeat(array[:1], 12, 0) for name, array in episode.fields.items()}
        rows["reward"][-1] = reward
        replay.add([Chunk(number, stream, 0, End.TERMINATED, rows, {})])
    return replay


def test_no_two_chunks_have_the_same_id(tmp_path: Path) -> None:
    found = []
    for name, reward in (("a", 1.0), ("b", 2.0)):
        replay = same_rows([0, 1, 0], reward)
        check_format(
            "dreamerv3",
            tmp_path / name,
            replay,
            export_options={"chunk": 4},
            has_final_observation=True,
        )
        found.append({file.uuid: file.arrays["reward"].any() for file in files_in(tmp_path / name)})
        assert len(found[-1]) == 9
    # A chunk after a different row has a different id, even where its rows are equal.
    both = set(found[0]) & set(found[1])
    assert len(both) == 4
    assert not any(found[0][uuid] for uuid in both)
    export_episodes(
        same_rows([0, 1, 0], 1.0, seed=1), "dreamerv3", tmp_path / "c", options={"chunk": 4}
    )
    assert not {file.uuid for file in files_in(tmp_path / "c")} & set(found[0])


@pytest.mark.parametrize(
    ("shape", "options", "written"),
    [
        ((6, 5), {}, (6, 5, 1)),
        ((6, 5, 4), {}, (6, 5, 4)),
        ((3, 6, 5), {}, (6, 5, 3)),
        ((3, 6, 4), {}, (3, 6, 4)),
        ((3, 6, 4), {"channels": "first"}, (6, 4, 3)),
        ((8, 6, 5), {}, (8, 6, 5)),
        ((1, 6, 5), {}, (6, 5, 1)),
        ((1, 6, 5, 3), {}, (6, 5, 3)),
        ((1, 3, 6, 5), {}, (6, 5, 3)),
    ],
)
def test_pictures_have_their_channels_last(
    shape: tuple[int, ...], options: dict[str, str], written: tuple[int, ...], tmp_path: Path
) -> None:
    replay = tagged_store(Field("observation", "uint8", shape, "zstd"))
    export_episodes(replay, "dreamerv3", tmp_path / "out", options=options)
    frames = np.concatenate([one.observation for one in episodes_of(replay) if not one.stream])
    if len(shape) == 4:
        frames, shape = frames[:, 0], shape[1:]
    if len(shape) == 2:
        frames = frames[..., None]
    elif written != shape:
        frames = frames.transpose(0, 2, 3, 1)
    images = rows_in(tmp_path / "out")[0]["image"]
    assert images.shape[1:] == written
    assert np.array_equal(images, frames)


@pytest.mark.parametrize(
    ("observation", "action", "name", "dtypes"),
    [
        ("float32", DISCRETE, "vector", ("float32", "int32")),
        ("float16", DISCRETE, "joints", ("float16", "int32")),
        ("int64", Field("action", "float64", (2,), "raw"), "vector", ("int32", "float32")),
        ("bool", Field("action", "int8", (2,), "raw"), "vector", ("bool", "int8")),
    ],
)
def test_vectors_are_written_in_the_dtypes_of_dreamers_spaces(
    observation: str, action: Field, name: str, dtypes: tuple[str, str], tmp_path: Path
) -> None:
    replay = tagged_store(Field("observation", observation, (3,), "raw"), action=action)
    options = {"observation": None if name == "vector" else name}
    export_episodes(replay, "dreamerv3", tmp_path / "out", options=options)
    chain = rows_in(tmp_path / "out")[0]
    episodes = [one for one in episodes_of(replay) if not one.stream]
    for key, dtype, field in zip((name, "action"), dtypes, ("observation", "action"), strict=True):
        assert chain[key].dtype.name == dtype
        assert np.array_equal(chain[key], np.concatenate([one.fields[field] for one in episodes]))


def write_chain(
    folder: Path, lengths: Sequence[int], arrays: Mapping[str, np.ndarray], first: int = 1
) -> list[Path]:
    """Chunks of these lengths as DreamerV3 names them; the last names a successor not saved."""
    files = []
    start = 0
    for place, length in enumerate(lengths):
        uuid = first + place
        held: dict[str, Any] = {key: array[start : start + length] for key, array in arrays.items()}
        ids = [uuid.to_bytes(16, "big") + row.to_bytes(4, "big") for row in range(length)]
        held["stepid"] = np.frombuffer(b"".join(ids), np.uint8).reshape(length, 20)
        time = f"2026010{place + 1}T000000F{first:06d}"
        name = f"{time}-{text_of(uuid)}-{text_of(uuid + 1)}-{length}.npz"
        np.savez_compressed(folder / name, **held)
        files.append(folder / name)
        start += length
    return files


def foreign(lengths: Sequence[int] = (3, 2, 4), ends: str = "tuc") -> dict[str, np.ndarray]:
    """Rows of episodes of these lengths: terminated, truncated (u) or abandoned (c)."""
    total = sum(lengths)
    starts = np.cumsum([0, *lengths[:-1]])
    stops = np.cumsum(lengths) - 1
    flags = np.zeros((3, total), np.bool_)
    flags[0, starts] = True
    flags[1, stops] = [end != "c" for end in ends]
    flags[2, stops] = [end == "t" for end in ends]
    return {
        "image": np.arange(total * 12).astype(np.uint8).reshape(total, 2, 2, 3),
        "reward": np.arange(total).astype(np.float32) / 3,
        "action": np.arange(total, dtype=np.int32) % 5,
        **dict(zip(FLAGS, flags, strict=True)),
    }


def test_a_foreign_folder_is_read(tmp_path: Path) -> None:
    rows = foreign()
    rows["dyn/deter"] = np.arange(18, dtype=np.float16).reshape(9, 2)
    write_chain(tmp_path, [4, 4, 1], rows)
    second = {key: array + 1 if key == "image" else array for key, array in rows.items()}
    write_chain(tmp_path, [9], second, first=100)
    replay, report = imported("dreamerv3", tmp_path)
    assert_notes(report.notes, r"stream.*metadata|metadata.*stream")
    episodes = episodes_of(replay)
    assert [one.stream for one in episodes] == [0, 0, 0, 1, 1, 1]
    assert [one.end for one in episodes] == [End.TERMINATED, End.TRUNCATED, End.NONE] * 2
    for offset in (0, 1):
        start = 0
        for one, length in zip(episodes[3 * offset :], (3, 2, 4), strict=False):
            here = slice(start, start + length)
            assert np.array_equal(one.observation, rows["image"][here] + np.uint8(offset))
            assert np.array_equal(one.action, rows["action"][here])
            assert one.reward.tolist() == rows["reward"][here].tolist()
            assert np.array_equal(one.fields["extra/dyn/deter"], rows["dyn/deter"][here])
            start += length


def test_several_observations_and_actions_are_a_dict_each(tmp_path: Path) -> None:
    rows = foreign()
    rows = {**rows, "inner/x": np.arange(9.0), "stick": np.zeros((9, 2), np.float32)}
    write_chain(tmp_path, [9], rows)
    replay = SequenceReplayBuffer()
    with pytest.raises(ValueError, match=r"'act'.*image, .*option actions"):
        import_episodes("dreamerv3", tmp_path, replay, options={"actions": "act"})
    import_episodes("dreamerv3", tmp_path, replay, options={"actions": "action, stick"})
    assert replay.spec.action == {"action": "action/action", "stick": "action/stick"}
    assert replay.spec.observation == {
        "image": "observation/image",
        "inner": {"x": "observation/inner/x"},
    }
    assert episodes_of(replay)[1].observation["inner"]["x"].tolist() == [3.0, 4.0]


def broken(rows: dict[str, np.ndarray], **changes: Any) -> dict[str, np.ndarray]:
    changed = {**rows, **changes}
    return {key: array for key, array in changed.items() if array is not None}


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"is_first": None}, r"\.npz.*'is_first'.*image"),
        ({"reward": None}, r"\.npz.*'reward'.*image"),
        ({"reward": np.zeros((9, 1), np.float32)}, r"rewards.*\[T\].*\(8, 1\)"),
        ({"is_last": np.zeros(9)}, r"'is_last'.*bool \[T\].*float64"),
        ({"is_last": np.arange(9) == 1}, r"episode 0\b.*is_first.*is_last.*row 2"),
        ({"is_first": np.zeros(9, np.bool_)}, r"\.npz.*is_first.*chunk before"),
        ({"text": np.array(["a"] * 9)}, r"'observation/text'.*<U1"),
    ],
)
def test_inconsistent_rows_are_refused(changes: dict[str, Any], match: str, tmp_path: Path) -> None:
    write_chain(tmp_path, [9], broken(foreign(), **changes))
    refused("dreamerv3", tmp_path, match)


def test_damaged_and_missing_chunks_are_named(tmp_path: Path) -> None:
    refused("dreamerv3", tmp_path, r"DreamerV3.*\*\.npz.*none")
    first, middle, last = write_chain(tmp_path, [4, 3, 2], foreign())
    whole = middle.read_bytes()
    middle.write_bytes(whole[:200] + bytes([whole[200] ^ 1]) + whole[201:])
    refused("dreamerv3", tmp_path, rf"{middle.name}.*npz file")
    middle.unlink()
    first.rename(tmp_path / "aside")
    refused("dreamerv3", tmp_path, rf"{last.name}.*is_first.*chunk before")
    middle.write_bytes(whole)
    (tmp_path / "aside").rename(first)
    renamed = middle.rename(tmp_path / middle.name.replace("-3.npz", "-2.npz"))
    refused("dreamerv3", tmp_path, rf"{renamed.name}.*'stepid'.*0 to 1")
    renamed.rename(middle)
    copy = last.with_name(last.name.replace("T0", "T1", 1))
    shutil.copy(last, copy)
    refused("dreamerv3", tmp_path, f"{last.name}.*{copy.name}")
    copy.unlink()
    (other,) = write_chain(tmp_path, [9], {**foreign(), "action": np.zeros((9, 2))}, first=100)
    refused("dreamerv3", tmp_path, r"'action'.*int32 \(\).*float64 \(2,\)")
    other = other.rename(tmp_path / other.name.replace(text_of(101), text_of(2)))
    refused("dreamerv3", tmp_path, f"{first.name}.*{other.name}")
    other.rename(tmp_path / "notes.npz")
    refused("dreamerv3", tmp_path, r"notes\.npz.*-1024\.npz")
    (tmp_path / "notes.npz").unlink()
    time, uuid, _, length = last.name.split("-")
    last.rename(tmp_path / f"{time}-{uuid}-{text_of(1)}-{length}")
    refused("dreamerv3", tmp_path, f"circle.*{first.name}")


@pytest.mark.parametrize(
    ("gone", "expected", "left_out"),
    [
        ((), [(0, 2), (3, 4), (5, 8)], None),
        ((0,), [(5, 8)], r"\b1 chains.* 1 rows"),
        ((1,), [(0, 2), (3, 3)], r"\b1 chains.* 2 rows"),
        ((2,), [(0, 2), (3, 4), (5, 6)], None),
        ((0, 2), [(5, 6)], r"\b1 chains.* 1 rows"),
    ],
)
def test_whole_episodes_are_read_where_chunks_are_gone(
    gone: tuple[int, ...], expected: list[tuple[int, int]], left_out: str | None, tmp_path: Path
) -> None:
    rows = foreign()  # of which episodes begin at 0, 3 and 5
    files = write_chain(tmp_path, [4, 3, 2], rows)
    for number in gone:
        files[number].unlink()
    replay, report = imported("dreamerv3", tmp_path)
    shown = [one.observation.reshape(one.rows, -1)[:, 0] // 12 for one in episodes_of(replay)]
    assert [(row[0], row[-1]) for row in shown] == expected
    assert has_note(report.notes, left_out or "chains begin") is (left_out is not None)


@NEEDS_ELEMENTS
@pytest.mark.parametrize(("chunk", "length"), [(7, 4), (1024, 4), (3, 10), (5, 1)])
def test_dreamers_own_code_reads_an_export(tmp_path: Path, chunk: int, length: int) -> None:
    replay, played = play(shape=(16, 16, 3))
    export_episodes(replay, "dreamerv3", tmp_path / "out", options={"chunk": chunk})
    loaded = run_real(
        "dreamerv3", "dreamer_v3_loaders.py", "load", tmp_path / "out", tmp_path, length=length
    )
    expected = {env: expected_rows(by_env(played, env)) for env in range(3)}
    # Every row with enough rows after it in its chain begins an item; none exceeds the chain.
    place = {
        tag_of(picture): (env, row)
        for env, rows in expected.items()
        for row, picture in enumerate(rows["image"])
    }
    starts = set()
    for number in range(int(loaded["items"])):
        env, first = place[tag_of(loaded["item/image"][number, 0])]
        starts.add((env, first))
        for key, rows in expected[env].items():
            wanted = rows[first : first + length]
            assert np.array_equal(loaded[f"item/{key}"][number], wanted), key
    assert starts == {
        (env, row)
        for env, rows in expected.items()
        for row in range(len(rows["image"]) - length + 1)
    }
    assert int(loaded["items"]) == len(starts)


@NEEDS_ELEMENTS
def test_a_folder_written_by_dreamers_own_code_is_imported(tmp_path: Path) -> None:
    _, played = play(shape=(8, 8, 3))
    envs = [expected_rows(by_env(played, env)) for env in range(3)]
    order = [(env, row) for row in range(30) for env in range(3) if row < len(envs[env]["image"])]
    given = {
        key: np.array([envs[env][key][row] for env, row in order])
        for key in ["image", "action", "reward", *FLAGS]
    }
    given["reward"] = given["reward"].astype(np.float32)
    given["action"] = given["action"].astype(np.int32)
    run_real(
        "dreamerv3",
        "dreamer_v3_loaders.py",
        "save",
        tmp_path / "run",
        tmp_path,
        worker=np.array([env for env, _ in order]),
        chunksize=6,
        **given,
    )
    replay, _ = imported("dreamerv3", tmp_path / "run")
    episodes = {tag_of(one.observation[0])[:2]: one for one in episodes_of(replay)}
    assert len(episodes) == len(played)
    assert len({(one.stream, env) for (env, _), one in episodes.items()}) == 3
    for one in played:
        found = episodes[one.env, one.number]
        assert np.array_equal(found.observation, one.observations)
        assert found.action.tolist() == [*one.actions, 0]
        assert found.reward.tolist() == [0, *np.array(one.rewards, np.float32).tolist()]
        assert bool(found.end & End.TERMINATED) == one.terminated
        assert bool(found.end & End.TRUNCATED) == (one.truncated and not one.terminated)
