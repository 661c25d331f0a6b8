"""as_skrl_memory: skrl's agents learn from the transitions that a replay holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import stepwell as sw

torch: Any = pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("skrl", reason="needs skrl")
BOX = spaces.Box(-9, 9, (2,), np.float32)
NAMES = ["observations", "actions", "rewards", "next_observations", "terminated", "truncated"]
OBSERVATIONS = [
    BOX,
    spaces.Box(0, 255, (2, 3), np.uint8),
    spaces.Discrete(50),
    spaces.MultiDiscrete([50, 60]),
    spaces.Dict({"b": spaces.Discrete(50), "a": BOX}),
    spaces.Tuple((BOX, spaces.Discrete(50))),
]


def number(space: spaces.Space[Any], value: int) -> Any:
    """A sample of the space that is made of that number alone."""
    if isinstance(space, spaces.Dict):
        return {key: number(part, value) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(number(part, value) for part in space.spaces)
    if isinstance(space, spaces.Box):
        return np.full(space.shape, value, space.dtype)
    return np.int64(value) if isinstance(space, spaces.Discrete) else np.full(2, value)


def stored(
    observation: spaces.Space[Any] = BOX, action: spaces.Space[Any] | None = None
) -> sw.SequenceReplayBuffer:
    """Two episodes of four steps; observations, actions and rewards count on: 0, 1, 2, ..."""
    replay = sw.SequenceReplayBuffer(seed=0)
    action = action or spaces.Discrete(50)
    with replay.writer((observation, action)) as writer:
        for begin in (0, 4):
            for step in range(begin, begin + 4):
                is_last = step == begin + 3
                seen, following = number(observation, step), number(observation, step + 1)
                writer.add(
                    seen,
                    number(action, step),
                    float(step),
                    following,
                    terminated=is_last and begin == 0,
                    truncated=is_last and begin == 4,
                )
    return replay


@pytest.mark.parametrize(
    ("space", "action"),
    [*((space, spaces.Discrete(50)) for space in OBSERVATIONS), (BOX, BOX)],
    ids=str,
)
def test_a_batch_has_the_steps_as_skrl_flattens_them(
    space: spaces.Space[Any], action: spaces.Space[Any]
) -> None:
    memory = sw.bridges.as_skrl_memory(stored(space, action))
    chosen = torch.float32 if action is BOX else torch.int64
    for name in NAMES:
        wanted = {"actions": memory.action_space, "observations": space, "next_observations": space}
        dtype = {"actions": chosen, "terminated": torch.bool}.get(name, torch.float32)
        assert memory.create_tensor(name, size=wanted.get(name, 1), dtype=dtype)
    (drawn,) = memory.sample([*NAMES, "states"], batch_size=64)
    assert drawn.pop() is None
    batch = dict(zip(NAMES, drawn, strict=True))
    size = int(sum(np.size(part) for part in parts_of(number(space, 0))))
    assert batch["observations"].shape == batch["next_observations"].shape == (64, size)
    assert {batch[name].shape for name in ("rewards", "terminated", "truncated")} == {(64, 1)}
    assert batch["actions"].shape == (64, *(action.shape or (1,)))
    assert batch["actions"].dtype == chosen
    assert batch["terminated"].dtype == torch.bool
    assert batch["observations"].dtype == batch["rewards"].dtype == torch.float32
    step = batch["rewards"]
    assert set(step[:, 0].tolist()) == set(range(8))
    assert (batch["observations"] == step).all()
    assert (batch["next_observations"] == step + 1).all()  # also of the last steps
    assert (batch["actions"] == step).all()
    assert torch.equal(batch["terminated"], step == 3)
    assert torch.equal(batch["truncated"], (step == 7).float())
    assert len(memory) == 8


def parts_of(value: Any) -> list[Any]:
    if isinstance(value, dict | tuple):
        values = value.values() if isinstance(value, dict) else value
        return [leaf for part in values for leaf in parts_of(part)]
    return [value]


def test_the_parts_of_a_dict_are_in_the_order_of_their_keys() -> None:
    space = spaces.Dict({"b": spaces.Discrete(9), "a": BOX})
    replay = sw.SequenceReplayBuffer(seed=0)
    with replay.writer((space, spaces.Discrete(2))) as writer:
        seen = {"b": np.int64(7), "a": np.array([1, 2], np.float32)}
        writer.add(seen, np.int64(1), 0.5, seen, terminated=True, truncated=False)
    ((found,),) = sw.bridges.as_skrl_memory(replay).sample(["observations"], batch_size=1)
    assert found.tolist() == [[1, 2, 7]]


def test_what_it_cannot_serve_is_refused() -> None:
    memory = sw.bridges.as_skrl_memory(stored())
    with pytest.raises(ValueError, match=r"as_skrl_memory.*next_observations.*log_prob"):
        memory.create_tensor("log_prob", size=1)  # as PPO does
    assert not memory.create_tensor("states", size=None)
    assert memory.create_tensor("observations", size=spaces.Box(-1, 1, (2,)))  # bounds alone
    with pytest.raises(ValueError, match=r"observations.*\(2,\).*\(3,\).*observation_space"):
        memory.create_tensor("observations", size=spaces.Box(-1, 1, (3,)))
    with pytest.raises(ValueError, match=r"actions.*Discrete\(50\).*Discrete\(4\)"):
        memory.create_tensor("actions", size=spaces.Discrete(4))
    with pytest.raises(ValueError, match=r"sequence_length=1.*\b8\b"):
        memory.sample(NAMES, batch_size=4, sequence_length=8)
    with pytest.raises(TypeError, match=r"as_skrl_memory.*update.*Collector"):
        memory.add_samples(rewards=torch.zeros(1, 1))
    with pytest.raises(ValueError, match=r"as_skrl_memory.*from 0.*start=3"):
        sw.bridges.as_skrl_memory(stored(action=spaces.Discrete(50, start=3)))
    with pytest.raises(ValueError, match=r"device.*'banana'"):
        sw.bridges.as_skrl_memory(stored(), device="banana")
    with pytest.raises(ValueError, match=r"as_skrl_memory.*spaces.*without"):
        sw.bridges.as_skrl_memory(sw.SequenceReplayBuffer())
