"""Export to and import from RLDS data sets."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.buffers import End, Field, SequenceReplayBuffer
from stepwell.buffers.bridges import export_episodes, import_episodes
from stepwell.buffers.exchange.formats.file_columns import FileColumn
from stepwell.buffers.exchange.formats.rlds import features_json
from stepwell.buffers.exchange.formats.tfrecord import (
    Value,
    decoded,
    encoded,
    masked_crc32c,
    read_records,
    write_record,
)
from stepwell.buffers.spec.space_json import space_of
from stepwell.buffers.testing import check_format
from support.examples import examples
from support.exchanged_stores import episodes_of, imported, noisy_store, refused, tagged_store
from support.notes import assert_notes, has_note
from support.rows.all_kinds import all_kinds_store

pytest.importorskip("google_crc32c", reason="needs google-crc32c")

STATE = Field("observation", "int32", (3,), "narrow")


def test_random_bits_of_every_dtype_come_back(tmp_path: Path) -> None:
    replay, back = all_kinds_store(), SequenceReplayBuffer()
    export_episodes(replay, "rlds", tmp_path / "out")
    import_episodes("rlds", tmp_path / "out", back)
    for found, expected in zip(episodes_of(back), episodes_of(replay), strict=True):
        for name, rows in expected.fields.items():
            known = slice(1, None) if name == "reward" else slice(-1)
            assert found.fields[name][known].tobytes() == rows[known].tobytes()


EXAMPLE = """
name: "example.proto" package: "t" syntax: "proto3"
message_type { name: "Example" field { name: "features" number: 1 type_name: ".t.Features" } }
message_type { name: "Features"
  field { name: "feature" number: 1 label: LABEL_REPEATED type_name: ".t.Features.FeatureEntry" }
  nested_type { name: "FeatureEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING }
    field { name: "value" number: 2 type_name: ".t.Feature" } } }
message_type { name: "Feature" oneof_decl { name: "kind" }
  field { name: "bytes_list" number: 1 type_name: ".t.BytesList" oneof_index: 0 }
  field { name: "float_list" number: 2 type_name: ".t.FloatList" oneof_index: 0 }
  field { name: "int64_list" number: 3 type_name: ".t.Int64List" oneof_index: 0 } }
message_type { name: "BytesList"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_BYTES } }
message_type { name: "FloatList"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_FLOAT } }
message_type { name: "Int64List"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_INT64 } }
"""


@functools.cache
def example_class() -> Any:
    """``tf.train.Example``, made by Protocol Buffers from its description."""
    pool, descriptor_pb2, message_factory, text_format = (
        pytest.importorskip(f"google.protobuf.{name}", reason="needs protobuf")
        for name in ("descriptor_pool", "descriptor_pb2", "message_factory", "text_format")
    )
    made = pool.DescriptorPool()
    made.Add(text_format.Parse(EXAMPLE, descriptor_pb2.FileDescriptorProto()))
    return message_factory.GetMessageClass(made.FindMessageTypeByName("t.Example"))


LISTS = st.one_of(
    st.lists(st.binary(max_size=300), min_size=1, max_size=5),
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=9).map(
        lambda values: np.array(values, np.int64)
    ),
    st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=9).map(
        lambda values: np.array(values, np.float32)
    ),
)


@settings(max_examples=examples(80), deadline=None)
@given(features=st.dictionaries(st.text(max_size=5), LISTS, max_size=5))
def test_examples_are_those_of_protocol_buffers(features: dict[str, Value]) -> None:
    example = example_class()()
    for name, value in features.items():
        part = example.features.feature[name]
        if isinstance(value, list):
            part.bytes_list.value.extend(value)
        elif value.dtype == np.float32:
            part.float_list.value.extend(value.tolist())
        else:
            part.int64_list.value.extend(value.tolist())
    parsed = example_class().FromString(encoded(features))
    assert parsed == example or not features
    read = decoded(example.SerializeToString())
    assert set(read) == set(features)
    for name, value in features.items():
        assert list(read[name]) == list(value)
        assert list(decoded(encoded(features))[name]) == list(value)


def test_unpacked_lists_are_read() -> None:
    one_by_one = b"\n\x0e\n\x0c\n\x01n\x12\x07\x1a\x05\x08\x03\x08\xac\x02"
    assert list(decoded(one_by_one)["n"]) == [3, 300]


def slow_crc32c(data: bytes) -> int:
    """CRC-32C, computed bit by bit."""
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


@pytest.mark.parametrize("size", [0, 1, 8, 5000])
def test_checksums_are_masked_crc32c(size: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8).tobytes()
    crc = slow_crc32c(data)
    assert masked_crc32c(data) == (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    export_episodes(tagged_store(STATE), "rlds", tmp_path / "out")
    (file,) = (tmp_path / "out").glob("*.tfrecord*")
    data = file.read_bytes()
    for place in (3, 9, 500, len(data) - 1):
        file.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        refused("rlds", tmp_path / "out", rf"{file.name}.*TFRecord")
    for length in (5, 600, len(data) - 2):
        file.write_bytes(data[:length])
        refused("rlds", tmp_path / "out", rf"{file.name}.*TFRecord")
    file.write_bytes(data + data)
    refused("rlds", tmp_path / "out", r"\b6\b.*dataset_info\.json.*got 12")
    file.unlink()
    refused("rlds", tmp_path / "out", r"\b1 files.*episodes-train\.tfrecord-\*.*got 0")


def test_a_full_file_is_followed_by_a_new_one_and_names_have_the_count(tmp_path: Path) -> None:
    options = {"file_mb": 1, "name": "noise"}
    check_format("rlds", tmp_path / "out", noisy_store(), export_options=options)
    names = sorted(path.name for path in (tmp_path / "out").glob("*tfrecord*"))
    assert names == [f"noise-train.tfrecord-{n:05d}-of-00004" for n in range(4)]
    info = json.loads((tmp_path / "out" / "dataset_info.json").read_text("utf-8"))
    (split,) = info["splits"]
    assert sum(map(int, split["shardLengths"])) == 20
    found = [len(list(read_records(tmp_path / "out" / name))) for name in names]
    assert list(map(str, found)) == split["shardLengths"]


def foreign(folder: Path, steps: dict[str, FileColumn], episodes: list[dict[str, Value]]) -> None:
    """Write a data set as TFDS does, with features by name."""
    folder.mkdir(exist_ok=True)
    info = {
        "name": "theirs",
        "version": "1.0.0",
        "splits": [{"name": "train", "shardLengths": [str(len(episodes))]}],
    }
    (folder / "dataset_info.json").write_text(json.dumps(info), "utf-8")
    tree = features_json(steps.values())
    (folder / "features.json").write_text(json.dumps(tree), "utf-8")
    with (folder / "theirs-train.tfrecord-00000-of-00001").open("wb") as file:
        for episode in episodes:
            write_record(file, encoded(episode))


THEIRS = {
    name: FileColumn(f"steps/{name}", dtype, shape)
    for name, dtype, shape in (
        ("observation/state", "float32", (2,)),
        ("action", "float64", (1,)),
        ("reward", "float32", ()),
        ("discount", "float32", ()),
        ("is_first", "bool", ()),
        ("is_last", "bool", ()),
        ("is_terminal", "bool", ()),
    )
}


def their_episode(rows: int, *, is_terminal: bool, last_reward: float = 0) -> dict[str, Value]:
    return {
        "steps/observation/state": np.arange(2 * rows, dtype=np.float32),
        "steps/action": np.arange(rows, dtype=np.float32) + 5,
        "steps/reward": np.array([*range(1, rows), last_reward], np.float32),
        "steps/is_first": (np.arange(rows) == 0).astype(np.int64),
        "steps/is_last": (np.arange(rows) == rows - 1).astype(np.int64),
        "steps/is_terminal": ((np.arange(rows) == rows - 1) & is_terminal).astype(np.int64),
        "steps/discount": np.ones(rows, np.float32),
        "steps/language": [b"open the door"] * rows,
    }


def test_a_foreign_data_set_is_read_by_rldss_conventions(tmp_path: Path) -> None:
    texts = {"language": FileColumn("steps/language", "str", (), "text")}
    episodes = [
        their_episode(4, is_terminal=True, last_reward=9),
        their_episode(3, is_terminal=False),
    ]
    foreign(tmp_path, {**THEIRS, **texts}, episodes)
    replay, report = imported("rlds", tmp_path)
    first, second = episodes_of(replay)
    assert [first.end, second.end] == [End.TERMINATED, End.TRUNCATED]
    assert first.observation["state"].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert first.action.tolist() == [[5], [6], [7], [0]]
    assert first.action.dtype == np.float64
    assert first.reward.tolist() == [0, 1, 2, 3]
    assert second.reward.tolist() == [0, 1, 2]
    assert first.metadata == {"language": "open the door"}
    assert first.fields["extra/discount"].tolist() == [1, 1, 1, 0]
    assert_notes(report.notes, "stream 0", r"\b1 episodes.*reward.*last step")


def test_lossy_pictures_are_noted(tmp_path: Path) -> None:
    cv2 = pytest.importorskip("cv2", reason="needs OpenCV")
    pixels = np.random.default_rng(0).integers(0, 256, (3, 24, 32, 3), np.uint8)
    eye = FileColumn("steps/observation/eye", "uint8", (-1, -1, 3), "png")
    files = [cv2.imencode(".jpg", one[..., ::-1])[1].tobytes() for one in pixels]
    episode = {**their_episode(3, is_terminal=True), eye.name: files}
    foreign(tmp_path, {**THEIRS, "eye": eye}, [episode])
    tree = (tmp_path / "features.json").read_text("utf-8").replace('"png"', '"jpeg"')
    (tmp_path / "features.json").write_text(tree, "utf-8")
    replay, report = imported("rlds", tmp_path)
    assert has_note(report.notes, "observation/eye.*JPEG")
    found = episodes_of(replay)[0].observation["eye"]
    assert found.shape == pixels.shape
    flat = [cv2.imdecode(np.frombuffer(file, np.uint8), cv2.IMREAD_COLOR) for file in files]
    assert np.array_equal(found, np.stack(flat)[..., ::-1])


def test_invalid_data_sets_are_refused(tmp_path: Path) -> None:
    def read(**options: object) -> None:
        imported("rlds", tmp_path / "x", options=options)

    (tmp_path / "x").mkdir()
    with pytest.raises(ValueError, match=r"/x\b.*dataset_info\.json and features\.json"):
        read()
    few = {name: feature for name, feature in THEIRS.items() if name != "reward"}
    foreign(tmp_path / "x", few, [their_episode(3, is_terminal=True)])
    with pytest.raises(ValueError, match=r"steps/action.*'reward'"):
        read()
    foreign(tmp_path / "x", THEIRS, [])
    with pytest.raises(ValueError, match=r"/x\b.*episode.*none"):
        read()
    wrong = their_episode(3, is_terminal=True)
    foreign(tmp_path / "x", THEIRS, [{**wrong, "steps/is_last": np.ones(3, np.int64)}])
    with pytest.raises(ValueError, match=r"is_last.*is_terminal.*episode 0\b"):
        read()
    foreign(tmp_path / "x", THEIRS, [{**wrong, "steps/reward": np.ones(2, np.float32)}])
    with pytest.raises(ValueError, match=r"'steps/reward'.*\b3\b.*float32.*\b2\b"):
        read()
    foreign(tmp_path / "x", THEIRS, [wrong])
    with pytest.raises(ValueError, match=r"'test'.*train.*option split"):
        read(split="test")
    info = json.loads((tmp_path / "x" / "dataset_info.json").read_text("utf-8"))
    info["fileFormat"] = "array_record"
    (tmp_path / "x" / "dataset_info.json").write_text(json.dumps(info), "utf-8")
    with pytest.raises(ValueError, match=r"tfrecord.*array_record"):
        read()


def label(name: str, classes: int) -> tuple[str, FileColumn]:
    return name.removeprefix("steps/"), FileColumn(name, "int64", (), "array", None, classes)


def put_labels(folder: Path, features: Mapping[str, FileColumn]) -> None:
    """Make class labels of features, as TFDS describes them; `features_json` writes none."""
    file = folder / "features.json"
    tree = json.loads(file.read_text("utf-8"))
    for feature in features.values():
        if feature.classes:
            node = tree
            for key in feature.name.split("/"):
                node = node["sequence"]["feature"] if "sequence" in node else node
                node = node["featuresDict"]["features"][key]
            node.clear()
            node["pythonClassName"] = "tensorflow_datasets.core.features.ClassLabel"
            node["classLabel"] = {"numClasses": str(feature.classes)}
    file.write_text(json.dumps(tree), "utf-8")


def test_class_labels_metadata_and_other_features_of_a_foreign_data_set_are_kept(
    tmp_path: Path,
) -> None:
    features = {
        **{name: feature for name, feature in THEIRS.items() if name != "action"},
        **dict([label("steps/action", 4), label("steps/observation/place", 9)]),
        "embedding": FileColumn("steps/embedding", "float32", (3,)),
        "words": FileColumn("steps/observation/words", "str", (), "text"),
        "path": FileColumn("episode_metadata/path", "str", (), "text"),
        "seed": FileColumn("episode_metadata/seed", "int64"),
        "weights": FileColumn("episode_metadata/weights", "float32", (2,)),
        "is_expert": FileColumn("episode_metadata/is_expert", "bool"),
    }
    episode = {
        **their_episode(4, is_terminal=True),
        "steps/action": np.array([0, 1, 1, 9]),  # the last one has no meaning
        "steps/observation/place": np.array([0, 1, 2, 3]),
        "steps/embedding": np.arange(12, dtype=np.float32),
        "steps/observation/words": [b"a", b"b", b"b", b"b"],
        "episode_metadata/path": [b"/mnt/x"],
        "episode_metadata/seed": np.array([7]),
        "episode_metadata/weights": np.array([0.5, 0.25], np.float32),
        "episode_metadata/is_expert": np.array([1]),
    }
    foreign(tmp_path, features, [episode])
    put_labels(tmp_path, features)
    (tmp_path / "steps-action.labels.txt").write_text("left\nright\nup\ndown\n", "utf-8")
    replay, report = imported("rlds", tmp_path)
    (found,) = episodes_of(replay)
    assert found.metadata == {
        "path": "/mnt/x",
        "episode_metadata/seed": 7,  # "seed" alone would say how to play it again
        "weights": [0.5, 0.25],
        "is_expert": True,
    }
    assert found.fields["info/embedding"].tolist() == np.arange(12).reshape(4, 3).tolist()
    assert found.action.tolist() == [0, 1, 1, 0]
    assert has_note(report.notes, "not read.*observation/words")
    assert space_of(replay.sessions, "action") == spaces.Discrete(4)
    assert space_of(replay.sessions, "observation/place") == spaces.Discrete(9)
    assert replay.sessions[0]["classes"] == {"action": ["left", "right", "up", "down"]}
    wrong = {**episode, "steps/action": np.array([0, 4, 1, 0])}
    foreign(tmp_path, features, [wrong])
    put_labels(tmp_path, features)
    refused("rlds", tmp_path, r"'steps/action'.*4 classes.*got 4\b")


@pytest.mark.parametrize(
    ("name", "dtype", "values", "got"),
    [
        ("observation/state", "uint8", np.array([0, 300] * 3), "300"),
        ("observation/state", "uint64", np.array([0, 2**60] * 3), None),
        ("observation/state", "float16", np.array([0, 0.1] * 3, np.float32), r"0\.1"),
        ("reward", "int64", np.array([1, 2**53 + 1, 0]), r"2\*\*53"),
        ("is_first", "int64", np.array([2, 0, 0]), "is_first"),
        ("is_terminal", "bool", np.array([0, 0, 2]), "2"),
    ],
)
def test_values_that_a_declared_dtype_does_not_hold_are_refused(
    name: str, dtype: str, values: np.ndarray, got: str | None, tmp_path: Path
) -> None:
    shape = (2,) if name == "observation/state" else ()
    features = {**THEIRS, name: FileColumn(f"steps/{name}", dtype, shape)}
    episode = {**their_episode(3, is_terminal=False), f"steps/{name}": values}
    foreign(tmp_path, features, [episode])
    if got is None:
        imported("rlds", tmp_path)
        return
    refused("rlds", tmp_path, got)


def test_forged_metadata_of_an_export_is_refused(tmp_path: Path) -> None:
    export_episodes(tagged_store(episodes=1), "rlds", tmp_path / "out")
    (file,) = (tmp_path / "out").glob("*.tfrecord*")
    (record,) = read_records(file)
    for name, value, match in (
        ("stream", np.array([-1]), "stream.*-1"),
        ("metadata", [b"[1]"], "metadata.*object"),
        ("metadata", [b'{"a": NaN}'], "metadata"),
        ("cut", np.array([3]), "cut.*3"),
    ):
        with file.open("wb") as opened:
            write_record(opened, encoded({**decoded(record), f"episode_metadata/{name}": value}))
        refused("rlds", tmp_path / "out", match)
