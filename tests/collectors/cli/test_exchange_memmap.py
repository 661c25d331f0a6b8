"""`stepwell import --from memmap-replay-buffer`: its folders become rows, value by value."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.buffers import End, Episode, SequenceReplayBuffer
from stepwell.buffers.bridges import import_episodes
from stepwell.buffers.dropin.memmap.original import OriginalFolder
from support.command_line import CommandLine, contents
from support.examples import examples
from support.libraries.original_memmap import OriginalWriter, tagged

FROM = "--from memmap-replay-buffer"
NAMES = {"observation": "state", "action": "action", "reward": "reward"}


def naming(**names: str) -> str:
    """Return the options that name fields."""
    return " ".join(f"--option {key}={name}" for key, name in names.items())


ROWS = naming(**NAMES)


Numbered = Sequence[tuple[int, int]]  # number and steps of episodes, the oldest first


def write(folder: str, numbered: Numbered, circular: bool = False, unfinished: int = 0) -> None:
    """A folder as the original writes it."""
    slots = 4 if circular else max(4, len(numbered))
    writer = OriginalWriter(Path(folder), slots, circular=circular)
    for number, steps in numbered:
        writer.store(*tagged(number, steps))
    if unfinished:
        writer.begin(*tagged(99, unfinished), int(writer.state["episode_index"]))
    writer.close()


@pytest.fixture
def stepwell(stepwell: CommandLine) -> CommandLine:
    """A command line next to a folder `old` of three episodes."""
    write("old", [(0, 3), (1, 1), (2, 6)])
    return stepwell


def episodes_of(folder: str | Path) -> list[Episode]:
    with SequenceReplayBuffer.open(folder, read_only=True) as replay:
        return list(replay.iter_episodes())


def import_rows(options: Mapping[str, object]) -> None:
    """Import `old` as rows into `rows`."""
    with SequenceReplayBuffer("rows") as replay:
        import_episodes("memmap-replay-buffer", "old", replay, options=options)


def expected_rows(expected: Numbered, flags: dict[str, str]) -> Iterator[dict[str, Any]]:
    """The rows of these episodes, built step by step."""
    for number, steps in expected:
        fields, meta = tagged(number, steps)
        rows: list[dict[str, Any]] = []
        reward, end = 0.0, End.NONE
        for t in range(steps):
            row = {"observation": fields["state"][t], "action": fields["action"][t]}
            row["reward"] = np.asarray(reward)
            if "done" not in flags:
                row["extra/done"] = fields["done"][t]
            rows.append(row | {"info/observed": True})
            reward = float(fields["reward"][t])
            for flag, name in flags.items():
                end |= End[name.upper()] if fields[flag][t] else End.NONE
        last: dict[str, Any] = {
            "observation": fields["state"][-1],
            "action": np.zeros(2),
            "reward": reward,
        }
        if "done" not in flags:
            last["extra/done"] = False
        rows.append(last | {"info/observed": False})
        yield {
            "end": end,
            "metadata": {name: np.asarray(value).tolist() for name, value in meta.items()},
            "fields": {name: np.stack([row[name] for row in rows]) for name in rows[0]},
        }


def assert_rows(folder: str, expected: Numbered, flags: dict[str, str]) -> None:
    """The store in a folder holds exactly these rows."""
    found = episodes_of(folder)
    assert [one.id for one in found] == list(range(len(expected)))
    for one, wanted in zip(found, expected_rows(expected, flags), strict=True):
        assert (one.end, one.metadata) == (wanted["end"], wanted["metadata"])
        assert one.fields.keys() == wanted["fields"].keys()
        for name, values in wanted["fields"].items():
            assert (one.fields[name] == values).all(), name


@pytest.mark.proof
@settings(max_examples=examples(25))
@given(
    st.lists(st.integers(1, 6), max_size=9),
    st.booleans(),
    st.integers(0, 6),
    st.sampled_from([{}, {"done": "terminated"}, {"done": "truncated"}]),
)
def test_whatever_the_folder_holds_is_imported_by_age_without_the_unfinished(
    lengths: list[int], circular: bool, unfinished: int, flags: dict[str, str]
) -> None:
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        numbered = list(enumerate(lengths))
        write("old", numbered, circular, unfinished)
        kept = numbered[-4:] if circular else numbered
        if unfinished and len(kept) >= 4:
            kept = kept[1:]
        assert OriginalFolder("old").steps == sum(steps for _, steps in kept)
        options = {**NAMES, **{flag: name for name, flag in flags.items()}}
        if kept:
            import_rows(options)
            assert_rows("rows", kept, flags)
        else:
            with pytest.raises(ValueError, match=r"one episode.*got none"):
                import_rows(options)
    assert os.getcwd() == before


def test_flags_within_a_stored_episode_make_several_of_it(stepwell: CommandLine) -> None:
    writer = OriginalWriter(Path("many"))
    fields, meta = tagged(3, 6)
    fields["done"][:] = [0, 1, 0, 0, 1, 0]
    writer.store(fields, meta)
    writer.close()
    result = stepwell(f"import many {FROM} --out rows {ROWS} --option truncated=done")
    assert "3 episodes  6 steps" in result.out
    assert "1 episode of the folder became 3: flags end some before their last step" in result.out
    found = episodes_of("rows")
    assert [one.steps for one in found] == [2, 3, 1]
    assert [one.end for one in found] == [End.TRUNCATED, End.TRUNCATED, End.NONE]
    assert [one.observation[:, 0, 1].tolist() for one in found] == [[0, 1, 1], [2, 3, 4, 4], [5, 5]]
    rewards = fields["reward"].astype(float).tolist()
    assert [one.reward.tolist() for one in found] == [
        [0, *rewards[:2]],
        [0, *rewards[2:5]],
        [0, rewards[5]],
    ]
    assert all(one.metadata == {"task": 3, "goal": [3, 6]} for one in found)


def test_fields_of_other_types_and_shapes_become_rows_exactly(stepwell: CommandLine) -> None:
    fields: dict[str, Any] = {
        "obs": ("float", (3,)),
        "act": "int",
        "gain": ("int", 1),
        "end": ("float", (1,)),
        "pixels": ("uint8", (4, 4)),
        "safe": "bool",
    }
    writer = OriginalWriter(Path("odd"), fields=fields, meta_fields={"score": "float"})
    rng = np.random.default_rng(0)
    steps: dict[str, Any] = {
        "obs": np.array([[np.nan, np.inf, -0.0], [1e-45, -np.inf, 3.4e38]], np.float32),
        "act": np.array([-(2**31), 2**31 - 1], np.int32),
        "gain": np.array([[5], [-7]], np.int32),
        "end": np.array([[0], [1]], np.float32),
        "pixels": rng.integers(0, 256, (2, 4, 4)).astype(np.uint8),
        "safe": np.array([True, False]),
    }
    writer.store(steps, {"score": np.nan})
    writer.close()
    names = naming(observation="obs", action="act", reward="gain", terminated="end")
    assert stepwell(f"import odd {FROM} --out rows {names} --quiet").code == 0
    (one,) = episodes_of("rows")
    assert one.end is End.TERMINATED
    assert one.fields["observation"][:2].tobytes() == steps["obs"].tobytes()
    assert one.action.tolist() == [-(2**31), 2**31 - 1, 0]
    assert one.reward.tolist() == [0, 5, -7]
    assert (one.fields["extra/pixels"][:2] == steps["pixels"]).all()
    assert not one.fields["extra/pixels"][2].any()
    assert one.fields["extra/safe"].tolist() == [True, False, False]
    extras = {"info/observed", "extra/pixels", "extra/safe"}
    assert {*one.fields} == {"observation", "action", "reward", *extras}
    assert one.metadata == {"score": "nan"}


def test_what_import_wrote_is_a_sound_store(stepwell: CommandLine) -> None:
    write("ring", [(n, 3) for n in range(5)], circular=True, unfinished=2)
    before = contents()
    dry = stepwell(f"import ring {FROM} {ROWS} --dry-run")
    assert (dry.code, dry.err) == (0, "")
    assert dry.out.startswith("3 episodes read  9 steps\n")
    assert "  extra/done: " in dry.out
    assert contents() == before
    left_out, cut = stepwell.json(f"import ring {FROM} --out rows {ROWS}")["notes"]
    assert left_out == "left out: the episode that was being written in slot 1, 2 steps so far"
    assert cut.startswith("every episode ends with a cut")
    assert before.items() <= contents().items()
    assert stepwell.json("verify rows")["is_whole"]
    text = stepwell("info rows").out
    assert "import of ring" in text
    assert "source=memmap-replay-buffer" in text
    stepwell.refused(
        "export rows --to memmap-replay-buffer --out back", "format: |got 'memmap-replay-buffer'"
    )


def odd_flag() -> None:
    write("flags", [(0, 3)])
    with open("flags/reward.data.npy", "r+b") as file:
        file.seek(-4 * 4 * 6, os.SEEK_END)
        file.write(np.float32(0.5).tobytes())


ONE_NUMBER = naming(observation="reward", action="done", reward="action")
ODD_FLAG = naming(observation="state", action="action", reward="done", truncated="reward")


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        (f"import nowhere {FROM} --out new", "nowhere: |metadata.pkl, got no folder"),
        (f"import none {FROM} --out new {ROWS}", "none: |one episode, got none"),
        (f"import old {FROM} --out old {ROWS}", " old: |outside of old"),
        (f"import old {FROM} --out old/x/../a/b {ROWS}", " old/x/../a/b: |outside of old"),
        (f"import old {FROM} --dry-run", "observation: |got none|state, action, reward, done"),
        (f"import old {FROM} --out new {ROWS} --option x=y", "'x'|observation, action, reward"),
        (
            f"import old {FROM} --out new {ROWS} --option terminated=over",
            "terminated: |state, action, reward, done, got 'over'",
        ),
        (f"import old {FROM} --out new {ONE_NUMBER}", "reward: |one number|'action' of shape (2,)"),
        (
            f"import old {FROM} --out new {ROWS} --option terminated=reward",
            "terminated: |reward|got 'reward' for both",
        ),
        (f"import flags {FROM} --out new {ODD_FLAG}", "truncated: |'reward'|got 0.5 in slot 0"),
    ],
)
def test_a_bad_command_gets_one_sentence_and_writes_nothing(
    command: str, parts: str, stepwell: CommandLine
) -> None:
    write("none", [])
    odd_flag()
    stepwell.refused(command, parts)
