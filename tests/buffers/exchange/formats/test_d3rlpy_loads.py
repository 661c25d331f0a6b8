"""d3rlpy loads exported files: its transitions equal the steps of the envs.

In an environment of its own, since it pins another gymnasium; see `d3rlpy_python`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

from stepwell.buffers import Chunk, End, Field, SequenceReplayBuffer, Spec
from stepwell.buffers.bridges import export_episodes
from support.envs.recorded_envs import Listed, frames, recorded, traces
from support.exchanged_stores import DISCRETE, REWARD, episodes_of, imported, tagged_store
from support.libraries.d3rlpy_python import python_with_d3rlpy, run
from support.source_tree import CHECKOUT

pytest.importorskip("h5py", reason="needs h5py")

SCENARIO = str(CHECKOUT / "tests" / "support" / "libraries" / "d3rlpy_scenario.py")


class Transition(NamedTuple):
    """A transition that d3rlpy gives to a learner."""

    observation: Any
    action: Any
    reward: float
    next_observation: Any
    terminal: bool


@pytest.fixture(scope="module")
def python(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> str:
    return python_with_d3rlpy(pytestconfig, tmp_path_factory)


def expected(listed: Sequence[Listed]) -> list[Transition]:
    """All transitions of a list of episodes; after a termination d3rlpy shows zeros."""
    found: list[Transition] = []
    for episode in listed:
        for step in range(episode.steps):
            is_over = episode.terminated[step]
            after = episode.observations[step + 1]
            found.append(
                Transition(
                    episode.observations[step],
                    episode.actions[step],
                    episode.rewards[step],
                    np.zeros_like(after) if is_over else after,
                    is_over,
                )
            )
    return found


class Case(NamedTuple):
    """A replay to export, its episodes, the option `stack`, and frames that d3rlpy stacks."""

    replay: SequenceReplayBuffer
    listed: list[Listed]
    stack: bool = False
    frames: int = 1


@pytest.fixture(scope="module")
def cases() -> dict[str, Case]:
    return {
        "traces": Case(*recorded(traces())),
        "frames": Case(*recorded(frames())),
        "stacks": Case(*recorded(frames(3)), stack=True),
        "picked": Case(*atari_like(), frames=4),
        "parts": Case(*parts()),
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


def atari_like() -> tuple[SequenceReplayBuffer, list[Listed]]:
    """Frames of 84 x 84, in stacks of 4 that are padded by zeros, and the stacks."""
    field = Field("observation", "uint8", (84, 84), "zstd", stack=4, stack_padding="zero")
    replay = tagged_store(field, episodes=8)
    listed: list[Listed] = []
    for episode in episodes_of(replay):
        shown = [np.zeros((84, 84), np.uint8)] * 3 + list(episode.observation)
        marks = np.arange(episode.steps) == episode.steps - 1
        listed.append(
            Listed(
                [np.array(shown[row : row + 4]) for row in range(episode.rows)],
                list(episode.action[:-1]),
                episode.reward[1:].tolist(),
                (marks & bool(episode.end & End.TERMINATED)).tolist(),
                (marks & bool(episode.end & End.TRUNCATED)).tolist(),
            )
        )
    return replay, listed


def parts() -> tuple[SequenceReplayBuffer, list[Listed]]:
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
    return replay, []


def assert_transitions(seen: Any, wanted: Sequence[Transition]) -> None:
    assert seen["info"][0] == len(wanted)
    for number, one in enumerate(wanted):
        for part in ("observation", "next_observation"):
            found, wanted_rows = seen[f"{number}/{part}"], np.asarray(getattr(one, part))
            assert found.dtype == wanted_rows.dtype
            assert np.array_equal(found.reshape(wanted_rows.shape), wanted_rows)
        assert np.array_equal(seen[f"{number}/action"].reshape(-1), np.ravel(one.action))
        assert seen[f"{number}/reward"].tolist() == [np.float32(one.reward)]
        assert seen[f"{number}/reward"].dtype == np.float32
        assert seen[f"{number}/terminal"] == one.terminal


@pytest.mark.parametrize("name", ["traces", "frames", "stacks"])
def test_d3rlpys_transitions_equal_the_steps_of_the_envs(
    name: str, cases: dict[str, Case], seen: dict[str, Any]
) -> None:
    listed, found = cases[name].listed, seen[name]
    assert {one.is_cut for one in listed} == {True, False}
    assert_transitions(found, expected(listed))
    assert found["discrete"]
    actions = 4 if name == "traces" else 2
    assert found["info"].tolist()[1:] == [sum(e.steps > 0 for e in listed), actions]


def test_d3rlpys_stacks_of_single_frames_equal_those_of_the_env(
    cases: dict[str, Case], seen: dict[str, Any]
) -> None:
    assert seen["picked"]["0/observation"].shape == (4, 84, 84)
    assert_transitions(seen["picked"], expected(cases["picked"].listed))


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
