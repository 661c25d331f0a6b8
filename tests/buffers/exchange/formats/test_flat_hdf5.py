"""Imports of HDF5 files of flat columns: D4RL's, d3rlpy 1's and robomimic's."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell.buffers import End, Episode
from stepwell.buffers.bridges import ImportReport
from support.exchanged_stores import episodes_of, imported, refused
from support.notes import assert_notes, has_note

h5py = pytest.importorskip("h5py", reason="needs h5py")

PATH = Path("flat.hdf5")
N = 8  # rows: an episode of 3 that terminates, one of 3 that a limit ends, 2 rows more


def flat(**changes: Any) -> dict[str, Any]:
    """D4RL's columns, whose observations count the rows."""
    found: dict[str, Any] = {
        "observations": np.arange(2.0 * N, dtype=np.float32).reshape(N, 2),
        "actions": np.arange(N, dtype=np.float32).reshape(N, 1) + 0.5,
        "rewards": np.arange(N, dtype=np.float32),
        "terminals": np.arange(N) == 2,
        "timeouts": np.arange(N) == 5,
    }
    found = {**found, **changes}
    return {name: rows for name, rows in found.items() if rows is not None}


def write(columns: Mapping[str, Any]) -> None:
    with h5py.File(PATH, "w") as file:
        for name, rows in columns.items():
            file[name] = rows


def read(columns: Mapping[str, Any], **options: object) -> tuple[ImportReport, list[Episode]]:
    write(columns)
    replay, report = imported("hdf5", PATH, options=options)
    return report, episodes_of(replay)


def first_values(episode: Episode) -> list[float]:
    return [float(row[0]) for row in episode.observation]


def test_without_next_observations_d4rls_rules_are_followed() -> None:
    report, (over, limited, cut) = read(flat())
    assert [one.end for one in (over, limited, cut)] == [End.TERMINATED, End.TRUNCATED, End.NONE]
    assert first_values(over) == [0, 2, 4, 0]
    assert over.action.reshape(-1).tolist() == [0.5, 1.5, 2.5, 0]
    assert over.reward.tolist() == [0, 0, 1, 2]
    assert first_values(limited) == [6, 8, 10]  # what the last action led to is not known
    assert limited.reward.tolist() == [0, 3, 4]
    assert first_values(cut) == [12, 14]
    assert_notes(report.notes, "stream 0", r"last observations.*zeros, 1\b", r"left out, 2\b")


def test_next_observations_are_the_last_ones() -> None:
    after = flat()["observations"] + 2
    after[2] = after[5] = after[7] = [77, 78]
    report, (over, limited, cut) = read(flat(next_observations=after))
    assert first_values(over) == [0, 2, 4, 77]
    assert first_values(limited) == [6, 8, 10, 77]
    assert limited.reward.tolist() == [0, 3, 4, 5]
    assert first_values(cut) == [12, 14, 77]
    assert_notes(report.notes, "stream 0")


def test_an_end_that_is_not_marked_is_seen_in_the_next_observations() -> None:
    after = flat()["observations"] + 2
    after[5] = [77, 78]
    report, episodes = read(flat(timeouts=None, next_observations=after))
    assert [first_values(one) for one in episodes] == [[0, 2, 4, 6], [6, 8, 10, 77], [12, 14, 16]]
    assert [one.end for one in episodes] == [End.TERMINATED, End.NONE, End.NONE]
    assert has_note(report.notes, r"does not follow.*, 1\b")


def test_a_limit_can_be_given_where_only_terminals_are_marked() -> None:
    report, episodes = read(flat(timeouts=None))
    assert [one.steps for one in episodes] == [3, 4]
    assert has_note(report.notes, r"max_episode_steps")
    report, episodes = read(flat(timeouts=None), max_episode_steps=2)
    assert [one.end for one in episodes] == [
        End.TRUNCATED,
        End.TERMINATED,
        End.TRUNCATED,
        End.TRUNCATED,
        End.NONE,
    ]
    assert not has_note(report.notes, "max_episode_steps")
    report, episodes = read(flat(), max_episode_steps=2)
    assert [one.steps for one in episodes] == [one.steps for one in read(flat())[1]]
    assert has_note(report.notes, r"max_episode_steps.*timeouts")
    with pytest.raises(ValueError, match=r"max_episode_steps.*got 0"):
        read(flat(timeouts=None), max_episode_steps=0)


def test_infos_metadata_and_columns_of_rows() -> None:
    more = {
        "infos/qpos": np.arange(N * 3.0).reshape(N, 3),
        "infos/odd": np.zeros(3),
        "metadata/algorithm": "SAC",
        "metadata/version": 2,
        "metadata/policy/weights": np.zeros((3, 3)),
        "mystery": np.zeros(N),
        "rewards": np.arange(N)[:, None],
        "terminals": (np.arange(N) == 2)[:, None].astype(np.float32),
    }
    write(flat(**more))
    replay, report = imported("hdf5", PATH)
    over, limited, _ = episodes_of(replay)
    assert over.fields["info/qpos"][:, 0].tolist() == [0, 3, 6, 0]
    assert limited.fields["info/qpos"][:, 0].tolist() == [9, 12, 15]
    assert replay.sessions[0]["hdf5"] == {"metadata/algorithm": "SAC", "metadata/version": 2}
    assert over.reward.tolist() == [0, 0, 1, 2]
    for name in ("weights", "mystery", r"infos of last observations are zeros, in 1\b"):
        assert has_note(report.notes, name)


@pytest.mark.parametrize("name", ["hdf5", "d3rlpy"])
def test_d3rlpy_1_files_are_read(name: str) -> None:
    ends = (np.arange(N) == 2) | (np.arange(N) == 5)
    columns = flat(
        actions=np.arange(N, dtype=np.int32)[:, None],
        rewards=np.arange(N, dtype=np.float32)[:, None],
        terminals=(np.arange(N) == 2).astype(np.float32),
        timeouts=None,
        episode_terminals=ends.astype(np.float32),
        discrete_action=True,
        version="1.0",
    )
    write(columns)
    replay, report = imported(name, PATH)
    over, limited, cut = episodes_of(replay)
    assert [one.end for one in (over, limited, cut)] == [End.TERMINATED, End.TRUNCATED, End.NONE]
    assert over.action.tolist() == [0, 1, 2, 0]
    assert not has_note(report.notes, "no timeouts|left out, as they have no meaning")


def robomimic(**changes: Any) -> None:
    """Demonstrations 0, 2 and 10, of as many rows and one more."""
    with h5py.File(PATH, "w") as file:
        for number in (10, 2, 0):
            demo, rows = file.create_group(f"data/demo_{number}"), number + 1
            columns = {
                "obs/eef": np.full((rows, 3), number, np.float64),
                "obs/image": np.full((rows, 4, 4, 3), number, np.uint8),
                "next_obs/eef": np.full((rows, 3), number, np.float64),
                "next_obs/image": np.full((rows, 4, 4, 3), number, np.uint8),
                "actions": np.zeros((rows, 7)),
                "rewards": np.arange(rows) == number,
                "dones": (np.arange(rows) >= number - 1).astype(np.int64),
                "states": np.zeros((rows, 5)),
                **changes,
            }
            for name, rows_ in columns.items():
                if rows_ is not None:
                    demo[name] = rows_(rows) if callable(rows_) else rows_
        file["data"].attrs["env_args"] = json.dumps({"env_name": "Lift", "env_kwargs": {"a": 1}})
        file["mask/train"] = [b"demo_0", b"demo_10"]


def test_robomimics_demonstrations_are_episodes_in_numeric_order() -> None:
    robomimic()
    replay, report = imported("hdf5", PATH)
    episodes = episodes_of(replay)
    assert [one.steps for one in episodes] == [1, 3, 11]
    assert [one.observation["eef"][-1, 0] for one in episodes] == [0, 2, 10]
    assert {one.end for one in episodes} == {End.TERMINATED}
    assert [one.metadata for one in episodes] == [
        {"demo": "demo_0", "masks": ["train"]},
        {"demo": "demo_2"},
        {"demo": "demo_10", "masks": ["train"]},
    ]
    assert replay.sessions[0]["hdf5"] == {"env_args": {"env_name": "Lift", "env_kwargs": {"a": 1}}}
    assert episodes[0].fields["info/states"].shape == (2, 5)
    assert has_note(report.notes, r"dones before the last row.*, 2\b")
    assert has_note(report.notes, r"read as terminated")


def test_demonstrations_without_rewards_dones_or_next_observations() -> None:
    robomimic(rewards=None, dones=None, **{"next_obs/eef": None, "next_obs/image": None})
    replay, report = imported("hdf5", PATH)
    assert [one.steps for one in episodes_of(replay)] == [0, 2, 10]
    assert {one.end for one in episodes_of(replay)} == {End.NONE}
    assert has_note(report.notes, "rewards are zeros")


def test_demonstrations_of_states_alone_are_refused_with_the_script_that_helps() -> None:
    robomimic(
        **{f"{part}/{name}": None for part in ("obs", "next_obs") for name in ("eef", "image")}
    )
    refused("hdf5", PATH, r"demo_0.*'obs'.*dataset_states_to_obs\.py")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"rewards": np.zeros((N, 2))}, r"rewards of one number a step.*\(8, 2\)"),
        ({"rewards": np.zeros(N - 1)}, r"/rewards as numbers of 8 rows.*\(7,\)"),
        ({"observations": np.zeros((N + 1, 2))}, r"/observations as numbers of 8 rows.*\(9, 2\)"),
        ({"terminals": np.arange(N)}, r"/terminals as one 0 or 1 a row"),
        ({"timeouts": np.zeros(N - 1)}, r"/timeouts of 8 rows.* 7\b"),
        ({"timeouts": np.full(N, np.nan)}, r"/timeouts as one 0 or 1 a row"),
        ({"next_observations": np.zeros((N, 3))}, "next observations like the observations"),
        ({"rewards": np.zeros(N, complex)}, r"rewards.*complex128"),
        ({"actions": "walk"}, r"actions"),
        ({"rewards": None, "rewards/x": np.zeros(N)}, r"/rewards as a dataset, got a group"),
    ],
)
def test_columns_that_do_not_fit_are_refused(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        read(flat(**changes))


def test_memory_is_bounded_by_the_episode_and_checked_first() -> None:
    with h5py.File(PATH, "w") as file:
        for name, rows in flat(observations=None).items():
            file[name] = rows
        shape = (N, 1 << 22)
        file.create_dataset("observations", shape, "f4", chunks=(1, 1 << 20), compression="gzip")
    assert PATH.stat().st_size < 1 << 20
    refused("hdf5", PATH, r"rows 0 to 2.*40 MiB", max_bytes=40 << 20)


@pytest.mark.parametrize("name", ["observations", "infos/x", "data"])
def test_nothing_of_another_file_is_read(name: str, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "secret.hdf5", "w") as file:
        file["x"] = np.zeros((N, 2))
        file["g/demo_0/x"] = np.zeros(N)
    write(flat())
    with h5py.File(PATH, "a") as file:
        if name in file:
            del file[name]
        file[name] = h5py.ExternalLink(
            str(tmp_path / "secret.hdf5"), "/g" if name == "data" else "x"
        )
    for format_ in ("hdf5", "d3rlpy"):
        refused(format_, PATH, rf"/{re.escape(name)}.*link")


def test_other_files_are_refused_with_advice() -> None:
    with h5py.File(PATH, "w") as file:
        file["obs"] = np.zeros(3)
    for name in ("hdf5", "d3rlpy"):
        with pytest.raises(
            ValueError, match=r"actions, rewards and terminals.*got obs.*add_episode"
        ):
            imported(name, PATH)
    write({"num_episodes": 1, "version": "2.1"})
    refused("hdf5", PATH, r"format d3rlpy")
    pytest.importorskip("minari", reason="needs minari")
    for name in ("minari", "npz"):
        with pytest.raises((ValueError, FileNotFoundError), match=r"format hdf5"):
            imported(name, PATH)
