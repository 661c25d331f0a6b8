"""as_sheeprl_replay: sequences are consecutive rows of those that sheeprl's own loop stores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import stepwell as sw
from stepwell.buffers import Chunk, End, Field, NotEnoughData, Spec
from stepwell.buffers.bridges import as_sheeprl_replay
from support.exchanged_stores import DISCRETE, IMAGE, tagged_store
from support.rows.tagged_pixels import PlayedEpisode, play, tag_of

VECTOR = Field("observation", "float32", (3,), "raw")


def picture(*shape: int) -> sw.SequenceReplayBuffer:
    return tagged_store(Field("observation", "uint8", shape, "zstd"))


def stored_by_sheeprl(episodes: list[PlayedEpisode], env: int) -> list[dict[str, Any]]:
    """The rows of one env in the order in which sheeprl's loop adds them.

    A row for each step, with the reward and flags of the step before it; after an episode's last
    step one more, with the last observation, no action, and the flags.
    """
    rows: list[dict[str, Any]] = []
    for episode in (one for one in episodes if one.env == env):
        for t, observation in enumerate(episode.observations):
            is_over = t == episode.steps
            rows.append(
                {
                    "rgb": np.moveaxis(observation, -1, 0),
                    "actions": np.zeros(6) if is_over else np.eye(6)[episode.actions[t]],
                    "rewards": episode.rewards[t - 1] if t else 0,
                    "terminated": is_over and episode.terminated,
                    "truncated": is_over and episode.truncated,
                    "is_first": t == 0,
                }
            )
    return rows


@pytest.mark.parametrize("length", [1, 4, 9])
def test_sequences_are_consecutive_rows_of_sheeprls_loop(length: int) -> None:
    replay, episodes = play(envs=3, steps=90, shape=(8, 6, 3))
    streams = {env: stored_by_sheeprl(episodes, env) for env in range(3)}
    starts: set[tuple[int, int]] = set()
    batch = as_sheeprl_replay(replay).sample(64, n_samples=2, sequence_length=length)
    assert batch["rgb"].shape == (2, length, 64, 3, 8, 6)
    assert batch["rgb"].dtype == np.uint8
    places = {
        env: {tag_of(np.moveaxis(row["rgb"], 0, -1)): place for place, row in enumerate(rows)}
        for env, rows in streams.items()
    }
    for sample in range(2):
        for item in range(64):
            env, *_ = tag = tag_of(np.moveaxis(batch["rgb"][sample, 0, item], 0, -1))
            start = places[env][tag]
            starts.add((env, start))
            for t in range(length):
                row = streams[env][start + t]
                for name, wanted in row.items():
                    found = batch[name][sample, t, item]
                    if name == "rgb":
                        assert np.array_equal(found, wanted)
                    else:
                        assert found.dtype == np.float32
                        assert np.array_equal(found, np.atleast_1d(np.float32(wanted))), name
    assert len(starts) > 20


def test_names_and_shapes_match_sheeprls_encoders() -> None:
    vector = as_sheeprl_replay(tagged_store(VECTOR), num_actions=4)
    assert vector.sample(3, sequence_length=2)["state"].shape == (1, 2, 3, 3)
    named = as_sheeprl_replay(tagged_store(VECTOR), num_actions=4, observation="pose")
    assert "pose" in named.sample(3)
    more: dict[str, Any] = {"channels": "last"}
    for shape, options, expected in (
        ((6, 5), {}, (1, 6, 5)),
        ((3, 6, 5), {}, (3, 6, 5)),
        ((3, 6, 4), more, (4, 3, 6)),
    ):
        buffer = as_sheeprl_replay(picture(*shape), num_actions=4, **options)
        assert buffer.sample(3)["rgb"].shape == (1, 1, 3, *expected)
    replay, _ = play(envs=2, steps=40, shape=(8, 6, 3), is_dict=True)
    batch = as_sheeprl_replay(replay).sample(5)
    assert sorted(batch) == [
        *("actions", "clock", "is_first", "rewards", "screen", "terminated", "truncated")
    ]
    assert batch["screen"].shape == (1, 1, 5, 3, 8, 6)


def store_of(
    action: Field, rows: np.ndarray, session: Mapping[str, object]
) -> sw.SequenceReplayBuffer:
    replay = sw.SequenceReplayBuffer(seed=0)
    fields = (VECTOR, action, Field("reward", "float64", (), "narrow"))
    replay.bind(Spec(fields, "observation", "action"), session)
    count = len(rows)
    columns = {
        "observation": np.arange(count * 3, dtype=np.float32).reshape(count, 3),
        "action": rows,
        "reward": np.zeros(count),
    }
    replay.add([Chunk(0, 0, 0, End.TERMINATED, columns)])
    return replay


def test_actions_are_floats_and_zero_in_rows_without_an_action() -> None:
    pairs = np.array([[0, 2], [1, 0], [0, 0]])
    replay = store_of(Field("action", "int64", (2,), "narrow"), pairs, {})
    found = as_sheeprl_replay(replay, num_actions=[2, 3]).sample(1, sequence_length=3)["actions"]
    assert found[0, :, 0].tolist() == [[1, 0, 0, 0, 1], [0, 1, 1, 0, 0], [0, 0, 0, 0, 0]]
    floats = np.array([[0.5], [-1], [9]], np.float32)
    replay = store_of(Field("action", "float32", (1,), "raw"), floats, {})
    found = as_sheeprl_replay(replay).sample(1, sequence_length=3)["actions"]
    assert found[0, :, 0].tolist() == [[0.5], [-1], [0]]
    session = {"spaces": {"action": {"type": "Discrete", "dtype": "int64", "n": 3, "start": 5}}}
    replay = store_of(DISCRETE, np.array([5, 7, 0]), session)
    found = as_sheeprl_replay(replay).sample(1, sequence_length=3)["actions"]
    assert found[0, :, 0].tolist() == [[1, 0, 0], [0, 0, 1], [0, 0, 0]]


def test_num_actions_comes_from_the_env_or_the_caller() -> None:
    replay = sw.SequenceReplayBuffer(seed=0)
    envs = sw.make_vec("CartPole-v1", num_envs=2, num_workers=0)
    with sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector:
        collector.collect(steps=50)
    assert as_sheeprl_replay(replay).sample(4)["actions"].shape == (1, 1, 4, 2)
    with pytest.raises(ValueError, match=r"num_actions.*\b1\b.*got none"):
        as_sheeprl_replay(tagged_store(IMAGE))
    with pytest.raises(ValueError, match=r"num_actions.*\b1\b.*got \[2, 3\]"):
        as_sheeprl_replay(tagged_store(IMAGE), num_actions=[2, 3])
    with pytest.raises(ValueError, match=r"num_actions.*0 to 1.*0 to 3"):
        as_sheeprl_replay(tagged_store(IMAGE), num_actions=2).sample(64)
    with pytest.raises(ValueError, match=r"num_actions: .*>= 1.*\b2\.5\b"):
        as_sheeprl_replay(tagged_store(IMAGE), num_actions=2.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"channels: .*'first' or 'last'.*'middle'"):
        as_sheeprl_replay(tagged_store(IMAGE), channels="middle")  # type: ignore[arg-type]


def test_invalid_arguments_are_refused() -> None:
    with pytest.raises(NotEnoughData, match=r"replay in RAM.*\b0\b"):
        as_sheeprl_replay(sw.SequenceReplayBuffer())
    buffer = as_sheeprl_replay(tagged_store(IMAGE), num_actions=4)
    with pytest.raises(TypeError, match=r"as_sheeprl_replay.*Collector.*\badd\b"):
        buffer.add({})
    with pytest.raises(ValueError, match=r"n_samples.*got 0"):
        buffer.sample(4, n_samples=0)
    replay, _ = play(envs=1, steps=20, shape=(8, 6, 3), is_dict=True)
    with pytest.raises(ValueError, match=r"observation.*none.*got 'rgb'"):
        as_sheeprl_replay(replay, observation="rgb")
    odd = picture(7, 6, 5)
    with pytest.raises(ValueError, match=r"channels.*1, 3 or 4.*\(7, 6, 5\).*'rgb'"):
        as_sheeprl_replay(odd, num_actions=4).sample(2)
    assert not buffer.empty
    assert len(buffer) == 21


def test_sample_tensors_equals_sample() -> None:
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    one, other = (
        as_sheeprl_replay(replay, num_actions=4)
        for replay in (tagged_store(IMAGE), tagged_store(IMAGE))
    )
    one.replay._rng, other.replay._rng = (np.random.default_rng(4) for _ in range(2))
    drawn = one.sample(8, n_samples=2, sequence_length=3)
    tensors = other.sample_tensors(8, n_samples=2, sequence_length=3, from_numpy=False)
    assert {name: tensor.shape for name, tensor in tensors.items()} == {
        name: rows.shape for name, rows in drawn.items()
    }
    for name, tensor in tensors.items():
        assert np.array_equal(tensor.numpy(), drawn[name])
    floats = other.sample_tensors(8, dtype=torch.float32)
    assert {tensor.dtype for tensor in floats.values()} == {torch.float32}
