"""What a format cannot hold is refused in one sentence, and nothing is written; or it is noted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from stepwell.buffers import Chunk, End, Field, SequenceReplayBuffer
from stepwell.buffers.bridges import export_episodes, import_episodes
from support.exchanged_stores import DISCRETE, REWARD, VECTOR, store_of
from support.format_packages import require

RESERVED = "reward, is_first, .*got "
LONG = Field("observation", "int64", (), "raw")
BOTH = "observation/x", "action/x"
# By format: fields in place of the usual ones, or names of such of int64; rows; options; the error.
CASES: dict[str, list[tuple[Any, dict[str, Any], dict[str, Any], str]]] = {
    "d3rlpy": [
        ([Field("action", "int64", (2,), "raw")], {}, {}, "action.*d3rlpy.*int64.*action"),
        ([Field("action", "float32", (2, 2), "raw")], {}, {}, "action.*d3rlpy.*float32.*action"),
        ([Field("action", "bool", (), "raw")], {}, {}, "action.*d3rlpy.*bool.*action"),
        (["action/a"], {}, {}, "action.*d3rlpy.*int64.*action/a"),
        ([], {"action": [-1, 0]}, {}, r"'action'.*\b0\b.*got -1"),
    ],
    "dreamerv3": [
        (["observation/reward"], {}, {}, f"{RESERVED}'reward'"),
        (["observation/stepid"], {}, {}, f"{RESERVED}'stepid'"),
        (["observation/log/x"], {}, {}, f"{RESERVED}'log/x'"),
        (["observation/x", "action/reset"], {}, {}, f"{RESERVED}'reset'"),
        (BOTH, {}, {}, f"{RESERVED}'x'"),
        (["observation/action"], {}, {}, f"{RESERVED}'action'"),
        ([], {}, {"chunk": 0}, "option chunk.*1, got 0"),
        (BOTH, {}, {"observation": "image"}, "option observation.*none.*got 'image'"),
        ([], {}, {"observation": "reward"}, "got 'reward'.*option observation"),
        ([LONG], {"observation": [2**31, 0]}, {}, r"episode 0\b.*'observation'.*0 to 2147483648"),
        ([LONG], {"observation": [-(2**31) - 1, 1]}, {}, "'observation'.*int32.*-2147483649 to 1"),
        ([], {"action": [2**31, 0]}, {}, r"episode 0\b.*'action'.*int32.*0 to 2147483648"),
        ([], {"action": [-1, 0]}, {}, r"'action'.*\b0, got -1"),
    ],
    "lerobot": [
        ([], {}, {"fps": 0}, "fps.*file_mb.*task.*got .*0, 100"),
        ([], {}, {"file_mb": 0}, "fps.*file_mb.*task.*got .*30, 0"),
        ([], {}, {"task": ""}, "fps.*file_mb.*task.*got .*''"),
        ([Field("observation", "int8", (0,), "raw")], {}, {}, r"'observation'.*\(0,\).*LeRobot"),
    ],
    "parquet": [
        ([], {}, {"file_mb": 0}, r"file_mb.*level.*1 to 22.*0 and 3\b"),
        ([], {}, {"level": 0}, r"file_mb.*level.*1 to 22.*256 and 0\b"),
        ([], {}, {"level": 23}, r"file_mb.*level.*1 to 22.*256 and 23\b"),
        ([], {}, {"images": "jpeg"}, "option images.*png or array.*'jpeg'"),
        ([Field("observation", "complex64", (2,), "raw")], {}, {}, "'observation'.*complex64"),
        ([Field("observation", "int8", (1,) * 6, "raw")], {}, {}, r"'observation'.*\b5\b.*\(1, 1,"),
    ],
    "rlds": [
        ([], {}, {"name": "a-b"}, r"rlds.*name.*file_mb.*'a-b' and 256\b"),
        ([], {}, {"name": ""}, r"rlds.*name.*file_mb.*'' and 256\b"),
        ([], {}, {"file_mb": 0}, r"rlds.*name.*file_mb.*'episodes' and 0\b"),
        ([Field("info/x", "complex64", (), "raw")], {}, {}, "'info/x'.*complex64"),
        (["observation/a", "observation/a/b"], {}, {}, "'steps/observation/a/b'"),
    ],
}


def store(given: list[Field | str], rows: dict[str, Any]) -> SequenceReplayBuffer:
    fields = [Field(one, "int64", (), "raw") if isinstance(one, str) else one for one in given]
    for usual in (VECTOR, DISCRETE, REWARD):
        if not any(field.kind == usual.kind for field in fields):
            fields.append(usual)
    layouts: dict[str, Any] = {}
    for kind in ("observation", "action"):
        names = {field.key: field.name for field in fields if field.kind == kind}
        layouts[kind] = kind if kind in names.values() else names
    return store_of(fields, {name: np.array(values) for name, values in rows.items()}, **layouts)


@pytest.mark.parametrize("format_", CASES)
def test_an_export_is_refused(format_: str) -> None:
    require(format_)
    for fields, rows, options, match in CASES[format_]:
        with pytest.raises(ValueError, match=match) as refusal:
            export_episodes(store(fields, rows), format_, "./out", options=options)
        assert "\n" not in str(refusal.value)
        assert list(Path().iterdir()) == []


@pytest.mark.parametrize("format_", ["lerobot", "minari", "parquet"])
def test_a_row_that_is_left_of_an_episode_is_no_data_set(format_: str) -> None:
    require(format_)
    replay = store([], {})
    rest = SequenceReplayBuffer()
    rest.bind(replay.spec, {})
    rows = {name: values[1:] for name, values in replay.episode(0).fields.items()}
    rest.add([Chunk(0, 0, 1, End.TERMINATED, rows, {}, starts_late=True)])
    assert rest.steps == 1
    for is_dry in (True, False):
        with pytest.raises(ValueError, match=r"env step.*none"):
            export_episodes(rest, format_, "./out-v0", dry_run=is_dry)
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("format_", ["dreamerv3", "npz", "rlds"])
def test_a_lost_beginning_is_noted_and_comes_back_from_npz_alone(format_: str) -> None:
    require(format_)
    replay, late = SequenceReplayBuffer(), SequenceReplayBuffer()
    with replay.writer((spaces.Box(-1, 1, (2,)), spaces.Discrete(2))) as writer:
        rows = np.linspace(0, 1, 12, dtype=np.float32).reshape(6, 2)
        writer.add_episode(rows, np.zeros(5, int), np.ones(5), terminated=True)
    late.bind(replay.spec, {})
    fields = {name: values[2:] for name, values in replay.episode(0).fields.items()}
    late.add([Chunk(0, 0, 2, End.TERMINATED, fields, {}, starts_late=True)])
    whole = export_episodes(replay, format_, "./whole").notes
    notes = export_episodes(late, format_, "./late").notes
    assert [note for note in notes if note not in whole and "first rows" in note and "1 " in note]
    assert not [note for note in whole if "first rows" in note]
    again = SequenceReplayBuffer()
    import_episodes(format_, "./late", again)
    assert again.episode(0).first_row == (2 if format_ == "npz" else 0)
