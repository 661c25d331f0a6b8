"""What `check_vector_env` reports of each kind of env is what a Collector does with it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorWrapper

import stepwell as sw
from stepwell.buffers import End
from support.envs.fakes import CounterEnv, Declared, DictEnv, LiveBufferEnv
from support.envs.open_spaces import OpenEnv


class Rewards(VectorWrapper[Any, Any, Any, Any, Any]):
    """Returns the rewards in another form."""

    def __init__(self, envs: Any, form: Callable[[Any], Any]) -> None:
        super().__init__(envs)
        self._form = form

    def step(self, actions: Any) -> Any:
        """Step the envs."""
        observation, reward, *others = super().step(actions)
        return observation, self._form(reward), *others


class Tensors(VectorWrapper[Any, Any, Any, Any, Any]):
    """Returns observations as tensors of PyTorch."""

    def reset(self, **kwargs: Any) -> Any:
        """Reset the envs."""
        observation, info = super().reset(**kwargs)
        return torch().as_tensor(observation), info

    def step(self, actions: Any) -> Any:
        """Step the envs."""
        observation, *others = super().step(actions)
        return torch().as_tensor(observation), *others


def torch() -> Any:
    return pytest.importorskip("torch", reason="needs PyTorch: pip install 'stepwell[torch]'")


class Telling(CounterEnv):
    """Declares an info field."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.metadata = {**self.metadata, "stepwell": {"info": {"depth": -1}}}

    def reset(self, **kwargs: Any) -> Any:
        """Tell the depth."""
        observation, info = super().reset(**kwargs)
        return observation, {**info, "depth": 3}

    def step(self, action: Any) -> Any:
        """Tell the depth."""
        *others, info = super().step(action)
        return *others, {**info, "depth": 3}


class Kind(NamedTuple):
    """A kind of vector env, and a word of the finding that it alone has."""

    make: Callable[[], Any]
    topic: str | None = None


def vector(env: Callable[[], Any], mode: AutoresetMode = AutoresetMode.NEXT_STEP) -> Any:
    return SyncVectorEnv([env, env], autoreset_mode=mode)


KINDS = {
    **{mode.name: Kind(partial(vector, CounterEnv, mode)) for mode in AutoresetMode},
    "make_vec in workers": Kind(lambda: sw.make_vec(CounterEnv, 2, num_workers=2)),
    "a Dict": Kind(lambda: vector(DictEnv)),
    "reused arrays": Kind(lambda: vector(LiveBufferEnv)),
    "without a fixed shape": Kind(lambda: vector(OpenEnv), "spaces"),
    "without a fixed shape, SAME_STEP": Kind(
        lambda: vector(OpenEnv, AutoresetMode.SAME_STEP), "spaces"
    ),
    "declared info": Kind(lambda: sw.make_vec(Telling, 2, num_workers=0), "info"),
    "rewards in arrays of one": Kind(
        lambda: Rewards(vector(CounterEnv), lambda reward: reward[:, None]), "rewards"
    ),
    "two rewards each": Kind(
        lambda: Rewards(vector(CounterEnv), lambda reward: np.stack([reward, reward], 1)), "spaces"
    ),
    "tensors": Kind(lambda: Tensors(vector(CounterEnv)), "arrays"),
    "no mode": Kind(lambda: Declared(vector(CounterEnv), None)),
}


@pytest.mark.proof
@pytest.mark.parametrize("name", KINDS)
def test_the_report_says_what_the_collector_does(name: str) -> None:
    kind = KINDS[name]
    if name == "tensors":
        torch()
    report = sw.check_vector_env(kind.make, steps=60)
    topics = [finding.topic for finding in report.findings]
    assert len(set(topics)) == len(topics)
    standing = {"autoreset", "final observation", "memory", "rows", "seeds", "frame stack"}
    assert set(topics) == standing | ({kind.topic} if kind.topic else set())

    replay = sw.SequenceReplayBuffer()
    try:
        with sw.Collector(kind.make(), "random", replay, seed=0) as collector:
            collector.collect(steps=40)
    except (ValueError, TypeError):
        assert not report.is_fine
        return
    assert report.is_fine, str(report)
    episodes = list(replay.iter_episodes())
    ended = [episode for episode in episodes if episode.end & End.TERMINATED]
    assert bool(ended) == (report.ends > 0)
    fields = replay.spec.names
    for padded in report.padded:
        assert f"{padded}/length" in fields or f"{padded}_length" in fields
    assert [f"info/{name}" for name in report.declared_info] == [
        name for name in fields if name.startswith("info/")
    ]
    stacks = {field.stack for field in replay.spec.of_kind("observation")}
    assert stacks == {report.frame_stack}
    for episode in ended:
        last = [rows[-1] for key, rows in episode.fields.items() if key.startswith("observation")]
        before = [rows[-2] for key, rows in episode.fields.items() if key.startswith("observation")]
        differs = any(not np.array_equal(a, b) for a, b in zip(last, before, strict=True))
        assert differs == (report.final_observation == "true")


def test_envs_without_any_array_are_refused_with_a_reason() -> None:
    with pytest.raises(ValueError, match="at least one array"):
        sw.check_vector_env(lambda: vector(lambda: OpenEnv(spaces.Dict({}))), steps=10)
