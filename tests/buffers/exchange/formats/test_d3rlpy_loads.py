"""d3rlpy loads exported files: its transitions equal the steps of the envs.

In an environment of its own, since it pins another gymnasium; see `d3rlpy_python`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from stepwell.buffers import Chunk, End, Episode, Field, SequenceReplayBuffer, Spec
from stepwell.buffers.bridges import export_episodes
from support.envs.recorded_envs import frames, recorded, traces
from support.exchanged_stores import DISCRETE, REWARD, episodes_of, imported, tagged_store
from support.libraries.d3rlpy_python import python_with_d3rlpy, run
from support.source_tree import CHECKOUT

pytest.importorskip("h5py", reason="needs h5py")

SCENARIO = str(CHECKOUT / "tests" / "support" / "libraries" / "d3rlpy_scenario.py")


@pytest.fixture(scope="module")
def python(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> str:
    return python_with_d3rlpy(pytestconfig, tmp_path_factory)


class Case(NamedTuple):
    """A replay to export, the option `stack`, and frames that d3rlpy stacks."""

    replay: SequenceReplayBuffer
    stack: bool = False
    frames: int = 1


ATARI = Field("observation", "uint8", (84, 84), "zstd", stack=4, stack_padding="zero")


@pytest.fixture(scope="module")
def cases() -> dict[str, Case]:
    return {
        "traces": Case(recorded(traces())[0]),
        "stacks": Case(recorded(frames(3))[0], stack=True),
        "picked": Case(tagged_store(ATARI, episodes=8), frames=4),
        "parts": Case(parts()),
    }


@pytest.fixture(scope="module")
def seen(
    python: str, cases: dict[str, Case], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """d3rlpy's transitions of all cases, and under ``folder`` a file that it wrote."""
    folder = tmp_path_factory.mktemp("cases")
    arguments: list[str] = []
    for name, case in cases.items():
        file, out = folder / f"{name}.h5", folder / f"{name}.npz"
        export_episodes(case.replay, "d3rlpy", file, options={"stack": case.stack})
        arguments += [str(file), str(out), str(case.frames)]
    run(python, SCENARIO, str(folder / "dumped.h5"), *arguments)
    found: dict[str, Any] = {"folder": folder}
    for name in cases:
        with np.load(folder / f"{name}.npz") as arrays:
            found[name] = {key: arrays[key] for key in arrays.files}
    return found


def parts() -> SequenceReplayBuffer:
    """A Dict of a picture and a vector, vectors for actions, and one episode."""
    fields = (
        Field("observation/a", "uint8", (5, 4, 3), "zstd"),
        Field("observation/b", "float64", (2,), "raw"),
        Field("action", "float32", (2,), "raw"),
        REWARD,
    )
    layout = {"a": "observation/a", "b": "observation/b"}
    replay = SequenceReplayBuffer()
    replay.bind(Spec(fields, layout, "action"), {})
    rng = np.random.default_rng(0)
    rows = {f.name: rng.normal(size=(5, *f.shape)).astype(f.dtype) for f in fields[1:]}
    rows["observation/a"] = rng.integers(0, 256, (5, 5, 4, 3)).astype(np.uint8)
    rows["reward"] = np.array([0, 0.5, 1, 2, 4])
    rows["action"][-1] = 0
    replay.add([Chunk(0, 0, 0, End.TRUNCATED, rows)])
    return replay


def stacks_of(episode: Episode) -> np.ndarray:
    """Each observation with the frames before it, as the env showed them."""
    field = episode.spec["observation"]
    before = episode.observation[:1] * (field.stack_padding == "repeat")
    padded = np.concatenate([*[before] * (field.stack - 1), episode.observation])
    return np.stack([padded[row : row + field.stack] for row in range(episode.rows)])


@pytest.mark.parametrize("name", ["traces", "stacks", "picked"])
def test_d3rlpys_transitions_equal_the_steps_of_the_envs(
    name: str, cases: dict[str, Case], seen: dict[str, Any]
) -> None:
    found, episodes, number = seen[name], episodes_of(cases[name].replay), 0
    for episode in episodes:
        shown = stacks_of(episode)
        for step in range(episode.steps):
            is_over = episode.terminated[step + 1]  # then d3rlpy shows zeros
            for part, rows in (
                ("observation", shown[step]),
                ("next_observation", shown[step + 1] * ~is_over),
            ):
                mine = found[f"{number}/{part}"]
                assert mine.dtype == rows.dtype
                assert np.array_equal(mine.reshape(rows.shape), rows)
            assert found[f"{number}/action"].tolist() == [episode.action[step]]
            assert found[f"{number}/reward"].tolist() == [np.float32(episode.reward[step + 1])]
            assert found[f"{number}/reward"].dtype == np.float32
            assert found[f"{number}/terminal"] == is_over
            number += 1
    actions = 2 if name == "stacks" else 4
    assert found["info"].tolist() == [number, sum(e.steps > 0 for e in episodes), actions]
    assert found["discrete"]
    assert found["0/observation"].ndim == (1 if name == "traces" else 3)


def test_dict_observations_become_lists_and_actions_are_vectors(
    cases: dict[str, Case], seen: dict[str, Any]
) -> None:
    found, (episode,) = seen["parts"], episodes_of(cases["parts"].replay)
    rows = episode.fields
    assert not found["discrete"]
    for step in range(4):
        shown = np.moveaxis(rows["observation/a"][step], -1, 0)
        assert np.array_equal(found[f"{step}/observation/0"], shown)
        assert np.array_equal(found[f"{step}/observation/1"], rows["observation/b"][step])
        after = rows["observation/b"][step + 1]
        assert np.array_equal(found[f"{step}/next_observation/1"], after)
        assert np.array_equal(found[f"{step}/action"], rows["action"][step])
        assert found[f"{step}/returns"] == rows["reward"][step + 1 :].sum()


def test_a_file_that_d3rlpy_wrote_is_read(seen: dict[str, Any]) -> None:
    replay, _ = imported("d3rlpy", seen["folder"] / "dumped.h5")
    first, second = episodes_of(replay)
    shown = np.arange(14, dtype=np.float32).reshape(7, 2)
    assert np.array_equal(first.observation, np.concatenate([shown[:4], np.zeros((1, 2))]))
    assert first.action.tolist() == [0, 1, 2, 1, 0]
    assert first.reward.tolist() == [0, *(np.arange(4, dtype=np.float32) / 3).tolist()]
    assert np.array_equal(second.observation, shown[4:])
    assert second.action.tolist() == [0, 2, 0]
    assert (first.end, second.end) == (End.TERMINATED, End.TRUNCATED)
    assert replay.spec["action"] == DISCRETE
