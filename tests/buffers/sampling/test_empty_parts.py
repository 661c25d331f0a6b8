"""Empty parts of a space: arrays without items, empty Dicts and Tuples."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from stepwell.buffers import Chunk, Codec, End, SequenceReplayBuffer, Spec
from stepwell.buffers.sampling.requests import Episodes, Request, Sequences, Transitions
from stepwell.collectors import Collector, RandomPolicy, evaluate

ROWS, EPISODES = 7, 5

REQUESTS: list[Request] = [
    *(
        Sequences(6, 4, borders, align=align, time_major=time_major)
        for borders in ("inside", "cross", "pad_after", "pad_before")
        for align in ("arrival", "transition")
        for time_major in (False, True)
    ),
    *(Sequences(6, 4, draw=draw) for draw in ("episodes", "newest", "priorities")),
    Sequences(6, 4, "pad_after", burn_in=2),
    Transitions(6),
    Transitions(6, n_step=3),
    *(Transitions(6, draw=draw) for draw in ("episodes", "newest")),
    Episodes(3),
    Episodes(3, align="transition", time_major=True),
]

NUMBERS = spaces.Box(0, 1000, (2,), np.int64)
NESTED = spaces.Dict(
    {
        "seen": NUMBERS,
        "nothing": spaces.Box(0, 1, (0,), np.float32),
        "no_columns": spaces.Box(0, 255, (3, 0), np.uint8),
        "dict": spaces.Dict({}),
        "tuple": spaces.Tuple(()),
        "deep": spaces.Tuple((spaces.Dict({"dict": spaces.Dict({})}), NUMBERS)),
    }
)


def spaced(space: spaces.Space[Any], lead: tuple[int, ...]) -> Any:
    """The structure of a space, with shape and dtype in place of arrays."""
    if isinstance(space, spaces.Dict):
        return {key: spaced(part, lead) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(spaced(part, lead) for part in space.spaces)
    return (lead + (space.shape or ()), space.dtype)


def formed(value: Any) -> Any:
    """The structure of a value, in the form of `spaced`."""
    if isinstance(value, dict):
        return {key: formed(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(formed(part) for part in value)
    return None if value is None else (value.shape, value.dtype)


def labelled(field_shape: tuple[int, ...], dtype: str, episode: int, rows: np.ndarray) -> Any:
    """Rows that hold their episode and place."""
    return np.broadcast_to(
        (rows + 100 * episode).reshape(-1, *[1] * len(field_shape)), (len(rows), *field_shape)
    ).astype(dtype)


def filled(
    space: spaces.Space[Any], codec: Codec | None = None, path: Path | None = None
) -> SequenceReplayBuffer:
    """A replay of labelled rows, each episode in two chunks; the space is also that of actions."""
    spec = Spec.from_spaces(space, space)
    codecs: dict[str, Codec] = {} if codec is None else {field.name: codec for field in spec.fields}
    replay = SequenceReplayBuffer(path, codecs=codecs, seed=0)
    replay.bind(spec, {"num_envs": 1})
    for episode in range(EPISODES):
        for rows, end in ((np.arange(3), End.NONE), (np.arange(3, ROWS), End.TERMINATED)):
            columns = {f.name: labelled(f.shape, f.dtype, episode, rows) for f in spec.fields}
            replay.add([Chunk(episode, 0, int(rows[0]), end, columns)])
    return replay


@pytest.fixture(params=[None, "raw"], ids=str)
def codec(request: pytest.FixtureRequest) -> Codec | None:
    found: Codec | None = request.param
    return found


@pytest.fixture(params=["RAM", "disk"])
def nested(
    request: pytest.FixtureRequest, codec: Codec | None, tmp_path: Path
) -> Iterator[SequenceReplayBuffer]:
    with filled(NESTED, codec, tmp_path / "store" if request.param == "disk" else None) as replay:
        yield replay


def lead_of(request: Request) -> tuple[int, ...]:
    """The leading axes that a batch should have."""
    if isinstance(request, Transitions):
        return (request.batch_size,)
    is_shifted = request.align == "transition"
    rows = ROWS - is_shifted if isinstance(request, Episodes) else request.length
    rows += request.burn_in if isinstance(request, Sequences) else 0
    lead = (request.batch_size, rows)
    return lead[::-1] if request.time_major else lead


def assert_whole(request: Request, batch: Any) -> None:
    """The batch has all parts of the space, and the right rows."""
    expected = spaced(NESTED, lead_of(request))
    assert formed(batch.observation) == expected
    assert formed(batch.action) == expected
    following = isinstance(request, Transitions) or request.align == "transition"
    assert (batch.next_observation is not None) == following
    if following:
        assert formed(batch.next_observation) == expected
    seen = batch.observation["seen"]
    deep = batch.observation["deep"][1]
    assert (seen == deep).all()
    assert (seen[..., 0] == batch.action["seen"][..., 0]).all()
    if isinstance(request, Transitions):
        assert (batch.next_observation["seen"][:, 0] == seen[:, 0] + batch.steps).all()


def test_a_batch_has_the_structure_of_the_space(nested: SequenceReplayBuffer) -> None:
    for request in REQUESTS:
        batch = nested.sample(request)
        assert_whole(request, batch)
        if not isinstance(request, Episodes):
            assert_whole(request, nested.sample(request, out=batch))


def test_taken_rows_epochs_and_episodes_have_the_structure_of_the_space(
    nested: SequenceReplayBuffer,
) -> None:
    for request in (Sequences(6, 4), Transitions(6)):
        batch = nested.sample(request)
        again = nested.take(request, batch.ids)
        assert formed(again.observation) == formed(batch.observation)
        assert (again.observation["seen"] == batch.observation["seen"]).all()
    for batch in nested.epoch(Transitions(6)):
        assert formed(batch.observation) == spaced(NESTED, (len(batch.ids),))
    with nested.loader(Sequences(6, 4)) as loader:
        assert formed(next(loader).observation) == spaced(NESTED, (6, 4))
    for episode in nested.iter_episodes():
        assert formed(episode.observation) == spaced(NESTED, (ROWS,))


def test_selected_fields_leave_out_the_others(nested: SequenceReplayBuffer) -> None:
    def of(*names: str) -> Any:
        batch = nested.sample(Transitions(6, fields=names))
        return formed(batch.observation), batch.action

    whole = spaced(NESTED, (6,))
    assert of("observation") == (whole, None)
    assert of("reward") == (None, None)
    assert of("observation/seen") == ({"seen": whole["seen"]}, None)
    assert of("observation/dict") == ({"dict": {}}, None)
    assert of("observation/deep/0", "observation/nothing") == (
        {"nothing": whole["nothing"], "deep": ({"dict": {}}, None)},
        None,
    )
    with pytest.raises(ValueError, match=r"^fields .*'observation/dictum'"):
        of("observation/dictum")


@pytest.mark.parametrize("empty", [spaces.Dict({}), spaces.Tuple(())], ids=["Dict", "Tuple"])
def test_a_whole_space_may_be_empty(empty: spaces.Space[Any]) -> None:
    with filled(empty) as replay:
        for request in REQUESTS:
            batch = replay.sample(request)
            assert batch.observation == batch.action == empty.sample()
            assert batch.reward.shape == lead_of(request)
        assert replay.sample(Transitions(6, fields=["observation"])).observation == empty.sample()


def test_stacks_of_frames_without_pixels(codec: Codec | None) -> None:
    spec = Spec.from_spaces(
        spaces.Box(0, 255, (4, 3, 0), np.uint8),
        spaces.Discrete(2),
        frame_stack=4,
        stack_padding="repeat",
    )
    codecs: dict[str, Codec] = {} if codec is None else {"observation": codec}
    with SequenceReplayBuffer(codecs=codecs, seed=0) as replay:
        replay.bind(spec, {"num_envs": 1})
        for episode in range(EPISODES):
            rows = np.arange(ROWS)
            columns = {f.name: labelled(f.shape, f.dtype, episode, rows) for f in spec.fields}
            replay.add([Chunk(episode, 0, 0, End.TRUNCATED, columns)])
        for request in REQUESTS:
            batch = replay.sample(request._replace(stack=True))
            assert batch.observation.shape == (*lead_of(request), 4, 3, 0)
            assert batch.observation.dtype == np.uint8


class _Labels(gym.Env[Any, Any]):
    """Gives observations of a nested space."""

    observation_space = NESTED
    # gymnasium's vector envs cannot split actions that contain an empty Dict.
    action_space = spaces.Dict({"seen": NUMBERS, "nothing": spaces.Box(0, 1, (0,), np.float32)})

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return NESTED.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self._steps += 1
        return NESTED.sample(), 1.0, self._steps == ROWS - 1, False, {}


class _Checking(RandomPolicy):
    """Draws random actions; the observations must have the structure of the space."""

    def __call__(self, observation: Any, is_first: np.ndarray, /) -> Any:
        assert formed(observation) == spaced(NESTED, (len(is_first),))
        return super().__call__(observation, is_first)


def test_rollouts_and_evaluations_keep_the_structure_of_the_space() -> None:
    envs = gym.vector.SyncVectorEnv([_Labels] * 3)
    with Collector(envs, _Checking(), seed=0) as collector:
        rollout = collector.rollout(5)
    assert formed(rollout.observation) == spaced(NESTED, (5, 3))
    assert formed(rollout.action) == spaced(_Labels.action_space, (5, 3))
    for rows in rollout.minibatches(4):
        assert formed(rows.observation) == spaced(NESTED, (len(rows.step),))
    for rows in rollout.sequences(1):
        assert formed(rows.observation) == spaced(NESTED, (5, 1))
    result = evaluate(gym.vector.SyncVectorEnv([_Labels] * 2), _Checking(), episodes=3, seed=0)
    assert [one.steps for one in result.episodes] == [ROWS - 1] * 3
