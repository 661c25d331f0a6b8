"""from_tensordict takes flags that are flags, and numbers of bfloat16."""

from __future__ import annotations

from typing import Any

import pytest

import stepwell as sw

torch = pytest.importorskip("torch")
tensordict = pytest.importorskip("tensordict")


def recorded(flags: Any, dtype: Any = torch.float32) -> Any:
    seen = torch.zeros(5, 2, dtype=dtype)
    following = {"observation": seen, "reward": torch.ones(5, 1), "done": flags}
    columns = {"observation": seen, "action": torch.zeros(5, dtype=torch.long), "next": following}
    following["terminated"] = flags
    return tensordict.TensorDict(columns, batch_size=[5])


@pytest.mark.parametrize("flag", [2, 0.5, float("nan")])
def test_what_is_no_flag_is_refused(flag: float) -> None:
    replay = sw.SequenceReplayBuffer()
    with pytest.raises(ValueError, match=r"from_tensordict: .*terminated.*that bool can hold"):
        sw.bridges.from_tensordict(recorded(torch.full((5, 1), flag)), replay)


def test_two_flags_a_step_are_refused() -> None:
    flags = torch.zeros(5, 2, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"from_tensordict: .*one flag for each step"):
        sw.bridges.from_tensordict(recorded(flags), sw.SequenceReplayBuffer())


def test_flags_as_0_and_1_and_bfloat16_are_taken() -> None:
    replay = sw.SequenceReplayBuffer()
    flags = torch.tensor([[0], [0], [1], [0], [0]])
    sw.bridges.from_tensordict(recorded(flags, torch.bfloat16), replay)
    assert [one.steps for one in replay.iter_episodes()] == [3, 2]
    assert replay.spec["observation"].dtype == "float32"
