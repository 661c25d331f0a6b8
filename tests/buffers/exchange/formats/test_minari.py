"""Export to and import from Minari data sets, read by Minari itself."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import stepwell as sw
from stepwell.buffers import Chunk, End, Field, SequenceReplayBuffer, Spec
from stepwell.buffers.bridges import export_episodes
from stepwell.buffers.testing import check_format
from support.envs.fakes import TraceEnv
from support.envs.recorded_envs import frames, recorded, traces
from support.exchanged_stores import (
    DISCRETE,
    IMAGE,
    REWARD,
    imported,
    store_of,
    stores,
    tagged_store,
)
from support.notes import has_note

minari = pytest.importorskip("minari", reason="needs minari")
pytest.importorskip("h5py", reason="needs h5py")
pytest.importorskip("pyarrow", reason="needs pyarrow")

FORMATS = ("hdf5", "arrow")
REUSED_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
each_format = pytest.mark.parametrize("data_format", FORMATS)


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "root"))
    return tmp_path / "root"


def exported(replay: SequenceReplayBuffer, id_: str = "tests/some-v0", **options: object) -> Any:
    export_episodes(replay, "minari", id_, options=options)
    return minari.load_dataset(id_)


@REUSED_FOLDER
@given(replay=stores(), data_format=st.sampled_from(FORMATS))
def test_minari_reads_every_column_as_it_is_stored(
    replay: SequenceReplayBuffer, data_format: str, root: Path
) -> None:
    shutil.rmtree(root, ignore_errors=True)
    stored = [episode for episode in replay.iter_episodes() if episode.steps]
    assume(stored)
    dataset = exported(replay, data_format=data_format, stack=False)
    assert [len(one) for one in dataset.iterate_episodes()] == [one.steps for one in stored]
    assert dataset.total_steps == sum(one.steps for one in stored)
    for one, episode in zip(dataset.iterate_episodes(), stored, strict=True):
        for name, rows in leaves(one.observations, "observation"):
            assert same(rows, episode.fields[name])
        for name, rows in leaves(one.actions, "action"):
            assert same(rows, episode.fields[name][:-1])
        assert same(one.rewards, episode.reward[1:])
        assert same(one.terminations, episode.terminated[1:])
        is_late = episode.truncated[-1] or not episode.terminated[-1]  # cut ones, too
        assert one.truncations.tolist() == [*episode.truncated[1:-1], is_late]
        found = dict(leaves(one.infos, "")) if one.infos else {}
        found = {name.removeprefix("/"): rows for name, rows in found.items()}
        for name in replay.spec.names:
            if name.startswith(("info/", "extra/")):
                assert same(found.pop(name.removeprefix("info/")), episode.fields[name])
        assert not found


def leaves(tree: Any, name: str) -> list[tuple[str, Any]]:
    if isinstance(tree, dict):
        return [leaf for key, part in tree.items() for leaf in leaves(part, f"{name}/{key}")]
    if isinstance(tree, tuple):
        return [leaf for i, part in enumerate(tree) for leaf in leaves(part, f"{name}/{i}")]
    return [(name, tree)]


def same(rows: Any, stored: np.ndarray) -> bool:
    return bool(rows.dtype == stored.dtype and rows.tobytes() == stored.tobytes())


@each_format
def test_minari_reads_whole_stacks(data_format: str) -> None:
    replay, listed = recorded(frames(3))
    dataset = exported(replay, data_format=data_format)
    seen = [one.observations for one in listed if one.steps]
    for episode, shown in zip(dataset.iterate_episodes(), seen, strict=True):
        assert np.array_equal(episode.observations, np.array(shown))
        assert episode.infos == {}
        assert str(episode)


@each_format
def test_the_env_and_facts_of_episodes_are_exported(data_format: str) -> None:
    replay = SequenceReplayBuffer()
    envs = sw.make_vec("CartPole-v1", 2, num_workers=0)
    facts = {"task": "balance", "nested": {"a": 1}, "list": [1, 2], "big": 2**70}
    with sw.Collector(envs, sw.RandomPolicy(), replay, seed=0, metadata=facts) as collector:
        collector.collect(episodes=4)
    options = {"data_format": data_format, "requirements": "numpy>=1, gymnasium"}
    report = export_episodes(replay, "minari", "cart/random-v1", options=options)
    local: dict[str, Any] = {}
    exec(report.loading, local)
    dataset = local["dataset"]
    assert dataset.id == "cart/random-v1"
    with dataset.recover_environment() as env:
        assert env.spec.id == "CartPole-v1"
        assert env.observation_space == dataset.observation_space
        assert env.action_space == dataset.action_space == gym.spaces.Discrete(2)
    (metadata,) = minari.list_local_datasets(compatible_minari_version=True).values()
    assert metadata["requirements"] == ["numpy>=1", "gymnasium"]
    assert metadata["jpeg_encoding"] is False
    assert "cart" in minari.namespace.list_local_namespaces()
    stored = list(dataset.storage.get_episode_metadata(range(dataset.total_episodes)))
    for one, episode in zip(stored, replay.iter_episodes(), strict=True):
        assert one.get("seed") == episode.metadata.get("seed")
        assert (one["task"], one["nested"]) == ("balance", {"a": 1})
        assert one["total_steps"] == episode.steps
    assert any("seed" in episode.metadata for episode in replay.iter_episodes())


# --- spaces


def spaces_of(replay: SequenceReplayBuffer, **options: object) -> tuple[Any, Any]:
    shutil.rmtree("there-v0", ignore_errors=True)
    export_episodes(replay, "minari", "./there-v0", options=options)
    metadata = json.loads(Path("there-v0/data/metadata.json").read_text())
    read = minari.serialization.deserialize_space
    return read(metadata["observation_space"]), read(metadata["action_space"])


def test_unknown_spaces_are_inferred_from_rows_and_noted() -> None:
    report = export_episodes(tagged_store(IMAGE), "minari", "tests/noted-v0", dry_run=True)
    assert has_note(report.notes, "spaces.*not known")
    shown = Field("observation", "float32", (3,), "raw")
    flags, pair = Field("observation", "bool", (2,), "narrow"), Field("action", "int8", (2,), "raw")
    four = gym.spaces.Discrete(4)
    boxes: Any = gym.spaces.Box
    for observation, field, low, *expected in (
        (IMAGE, DISCRETE, 2, boxes(0, 255, (6, 5, 3), np.uint8), four),
        (shown, DISCRETE, 2, boxes(-np.inf, np.inf, (3,), np.float32), four),
        (flags, DISCRETE, -2, boxes(0, 1, (2,), np.bool_), gym.spaces.Discrete(6, start=-2)),
        (IMAGE, pair, -2, boxes(0, 255, (6, 5, 3), np.uint8), boxes(-128, 127, (2,), np.int8)),
        (shown, pair, 2, None, gym.spaces.MultiDiscrete([4, 4], dtype=np.int8)),
    ):
        acted = np.zeros((4, *field.shape), field.dtype)
        acted[:3] = np.array([low, 3, 3]).reshape(3, *[1] * len(field.shape))
        found = spaces_of(store_of([observation, field, REWARD], {"action": acted}, count=4))
        assert found == (expected[0] or found[0], expected[1])


@pytest.mark.parametrize(
    ("make", "note"),
    [
        (lambda: gym.make_vec("CartPole-v1", 1), r"recover_environment\(\).*CartPole-v1"),
        (lambda: sw.make_vec(TraceEnv, 1), r"recover_environment\(\).*fails"),
    ],
)
def test_recorded_spaces_are_exported_with_actions_that_the_data_lacks(
    make: Callable[[], Any], note: str
) -> None:
    def always_one(shown: np.ndarray, is_first: np.ndarray) -> np.ndarray:
        return np.ones(len(shown), np.int64)

    replay, envs = SequenceReplayBuffer(), make()
    with sw.Collector(envs, always_one, replay) as collector:
        collector.collect(steps=10)
    report = export_episodes(replay, "minari", "tests/one-v0", dry_run=True)
    assert re.search(note, report.notes[0])
    assert spaces_of(replay) == (envs.single_observation_space, envs.single_action_space)
    assert spaces_of(replay, env=None)[1] == gym.spaces.Discrete(2)


def with_spaces(**changes: object) -> SequenceReplayBuffer:
    """Episodes of the traces, with changes to the recorded spaces."""
    replay, _ = recorded(traces())
    recorded_spaces: Any = replay.sessions[0]["spaces"]
    other = SequenceReplayBuffer()
    other.bind(replay.spec, {"spaces": {**recorded_spaces, **changes}})
    for number, episode in enumerate(replay.iter_episodes()):
        other.add([Chunk(number, episode.stream, 0, episode.end, episode.fields)])
    return other


def test_recorded_spaces_that_do_not_fit_the_data_are_not_exported() -> None:
    few = {"type": "Discrete", "n": 2, "start": 0, "dtype": "int64"}
    assert spaces_of(with_spaces(action=few))[1] == gym.spaces.Discrete(4)
    wider = {"type": "Box", "dtype": "float64", "shape": [7], "low": 0, "high": 1}
    assert spaces_of(with_spaces(observation=wider))[0].shape == (5,)


def test_option_env_names_the_env() -> None:
    replay = store_of([Field("observation", "float32", (4,), "raw"), DISCRETE, REWARD])
    dataset = exported(replay, env="CartPole-v1")
    assert dataset.recover_environment().spec.id == "CartPole-v1"
    with pytest.raises(ValueError, match=r"option env.*'FrozenLake-v1'.*Discrete\(16\)"):
        exported(replay, "tests/other-v0", env="FrozenLake-v1")
    with pytest.raises(ValueError, match=r"option env.*'NoSuchEnv-v0'"):
        exported(replay, "tests/other-v0", env="NoSuchEnv-v0")


# --- names, folders, refusals


@pytest.mark.parametrize("name", ["pong", "a b-v0", "x/pong-v0", "a//b-v0", "/some/where", "-v0/"])
def test_invalid_ids_are_refused(name: str) -> None:
    replay = tagged_store()
    with pytest.raises(ValueError, match=rf"'{re.escape(name)}'.*Minari.*-v0"):
        export_episodes(replay, "minari", name)


@pytest.mark.parametrize(
    ("fields", "hdf5", "arrow"),
    [
        (["observation"], None, "'observation'.*arrow.*data_format=hdf5"),
        (["info/a", "info/a/b"], "'info/a'.*HDF5.*data_format=arrow", None),
        (["info/extra/x"], *["'info/extra/x'.*extra"] * 2),
    ],
)
def test_unsupported_fields_are_refused(
    fields: list[str], hdf5: str | None, arrow: str | None
) -> None:
    shown = [] if "observation" in fields else [IMAGE]
    empty = [Field(name, "float32", (0,) if not shown else (), "raw") for name in fields]
    replay = store_of([*shown, *empty, DISCRETE, REWARD])
    for data_format, match in (("hdf5", hdf5), ("arrow", arrow)):
        shutil.rmtree("out-v0", ignore_errors=True)
        options = {"data_format": data_format}
        if match is None:
            check_format("minari", Path("out-v0").absolute(), replay, export_options=options)
        else:
            with pytest.raises(ValueError, match=match):
                export_episodes(replay, "minari", "./out-v0", options=options)


def test_an_arrow_episode_that_minari_would_read_in_parts_is_refused() -> None:
    rows = 131_073
    fields = [Field("observation", "uint8", (1,), "raw"), DISCRETE, REWARD]
    replay = store_of(fields, count=rows)
    with pytest.raises(ValueError, match=r"131,072.*131,071.*data_format=hdf5"):
        export_episodes(replay, "minari", "./long-v0", options={"data_format": "arrow"})
    assert not list(Path().iterdir())
    dataset = exported(replay)
    assert len(next(dataset.iterate_episodes())) == rows - 1


def test_a_missing_data_set_gives_the_download_command() -> None:
    with pytest.raises(FileNotFoundError, match=r"D4RL/door/human-v2.*minari download"):
        imported("minari", "D4RL/door/human-v2")


def test_facts_that_hdf5_has_no_attribute_for_are_left_out() -> None:
    replay = SequenceReplayBuffer()
    replay.bind(Spec((IMAGE, DISCRETE, REWARD), "observation", "action"), {})
    rows = {f.name: np.zeros((3, *f.shape), f.dtype) for f in replay.spec.fields}
    facts: dict[str, object] = {
        "long": "x" * 100_000,
        "nul": "a\0b",
        "none": None,
        "huge": 2**80,
        "empty": {},
    }
    replay.add([Chunk(0, 0, 0, End.TERMINATED, rows, {**facts, "list": [[1], "b"], "id": 77})])
    (stored,) = exported(replay).storage.get_episode_metadata([0])
    assert stored["huge"] == str(2**80)
    assert json.loads(stored["list"]) == [[1], "b"]
    assert (stored["id"], stored["total_steps"]) == (0, 2)
