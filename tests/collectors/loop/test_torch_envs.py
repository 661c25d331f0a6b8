"""Vector envs of torch tensors give the rows of the same envs in numpy."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

import stepwell as sw

torch: Any = pytest.importorskip("torch", reason="needs torch")

N = 3
NEXT_STEP, SAME_STEP = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP
DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    ),
]


class Drift(VectorEnv[Any, Any, Any]):
    """Whole numbers in numpy that grow by their actions, and end in each of the three ways.

    Args:
        mode: What it does when an episode ends.
    """

    num_envs = N
    single_observation_space = spaces.Dict(
        {"place": spaces.Box(-99, 99, (2,), np.int64), "age": spaces.Box(0, 99, (), np.float32)}
    )
    single_action_space = spaces.Discrete(3)
    observation_space = batch_space(single_observation_space, N)
    action_space = batch_space(single_action_space, N)

    def __init__(self, mode: AutoresetMode) -> None:
        self.metadata = {"autoreset_mode": mode}
        self.mode = mode

    def _observation(self) -> dict[str, np.ndarray]:
        return {"place": self.place.copy(), "age": self.age.astype(np.float32)}

    def _restart(self, which: np.ndarray) -> None:
        self.count += which
        self.place[which] = self.count[which, None] % 5 + [0, 1]
        self.age[which] = 0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        """Begin anew."""
        self.count = np.arange(N) + int(seed or 0)
        self.place, self.age = np.zeros((N, 2), np.int64), np.zeros(N)
        self.ended = np.zeros(N, np.bool_)
        self._restart(np.ones(N, np.bool_))
        return self._observation(), {}

    def step(self, actions: Any) -> Any:
        """Grow."""
        actions = np.asarray(actions)
        assert actions.shape == (N,)
        moving = ~self.ended
        if self.mode is NEXT_STEP:
            self._restart(self.ended)
        self.place[moving] += actions[moving, None] * [1, -1]
        self.age[moving] += 1
        reward = np.where(moving, self.place[:, 0] * 0.5, 0.0).astype(np.float32)
        terminated = moving & (self.place[:, 0] >= 9)
        truncated = moving & ((self.age >= 7) | (self.place[:, 1] == -4))
        over = terminated | truncated
        info: dict[str, Any] = {"level": self.place[:, 0] * 2}
        if self.mode is NEXT_STEP:
            self.ended = over
        elif over.any():
            info["final_obs"], info["_final_obs"] = self._observation(), over
            info["final_info"] = {"level": info["level"].copy(), "_level": over}
            self._restart(over)
        return self._observation(), reward, terminated, truncated, info


class TorchDrift:
    """The same with tensors, which it writes to again in each step.

    Args:
        mode: What it does when an episode ends.
        device: Device of the tensors.
    """

    def __init__(self, mode: AutoresetMode, device: str) -> None:
        self.inner, self.device = Drift(mode), device
        self.memory: dict[Any, Any] = {}
        self.is_closed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def _tensors(self, value: Any, path: tuple[Any, ...] = ()) -> Any:
        if isinstance(value, dict):
            return {key: self._tensors(part, (*path, key)) for key, part in value.items()}
        tensor = torch.from_numpy(np.array(value)).to(self.device)
        if path in self.memory:
            return self.memory[path].copy_(tensor)
        return self.memory.setdefault(path, tensor)

    def reset(self, **options: Any) -> Any:
        """Tensors of the reset."""
        observation, info = self.inner.reset(**options)
        return self._tensors(observation), self._tensors(info)

    def step(self, actions: Any) -> Any:
        """Tensors of the step."""
        assert torch.is_tensor(actions)
        assert actions.device.type == self.device
        assert not actions.requires_grad
        results = self.inner.step(actions.cpu().numpy())
        return tuple(self._tensors(each, (place,)) for place, each in enumerate(results))

    def close(self) -> None:
        """Note that it was closed."""
        self.is_closed = True


class Net(torch.nn.Module):
    """Logits of three actions."""

    writes = False

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor([0.1, -0.2, 0.05]))

    def forward(self, observation: Any) -> Any:
        logits = observation["place"][:, :1].float() * self.scale
        if self.writes:
            for part in observation.values():
                part.sub_(50)
        return logits


def collected(envs: Any, device: str, *, hides_policy: bool = False, writes: bool = False) -> Any:
    """Everything that a Collector makes of these envs."""
    net = Net().to(device)
    net.writes = writes
    policy: Any = sw.bridges.torch_policy(net, value=lambda seen: seen["age"])
    if hides_policy:
        inner = policy

        class Plain:
            begin, value = inner.begin, inner.value

            def __call__(self, observation: Any, is_first: np.ndarray) -> Any:
                return inner(observation, is_first)

        policy = Plain()
    replay = sw.SequenceReplayBuffer(seed=0)
    found: list[Any] = []
    with sw.Collector(envs, policy, replay, seed=1, info={"level": -1}) as collector:
        for call in (
            partial(collector.collect, steps=200),
            partial(collector.collect, episodes=5),
            partial(collector.collect, steps=100),
        ):
            report = call()
            found.append((report.digest, report.returns, report.lengths, report.steps))
        rollout = collector.rollout(steps=20)
        parts: list[Any] = [
            rollout.observation["place"],
            rollout.reward,
            rollout.extras["log_prob"],
        ]
        parts += [rollout.truncated, rollout.mask, rollout.bootstrap.value]
        found.append([np.asarray(part).tolist() for part in parts])
    for one in replay.iter_episodes():
        rows = {name: rows.tolist() for name, rows in one.fields.items()}
        found.append((one.id, one.stream, one.end, one.metadata, rows))
    return found


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP])
@pytest.mark.parametrize("hides_policy", [False, True])
@pytest.mark.parametrize("writes", [False, True])
def test_the_rows_are_those_of_the_same_envs_in_numpy(
    mode: AutoresetMode, device: str, hides_policy: bool, writes: bool
) -> None:
    """Also where the policy writes into what it sees, and the envs into the actions."""
    given = TorchDrift(mode, device)
    step = given.step

    def writing(actions: Any) -> Any:
        results = step(actions.clone())
        actions.sub_(9)
        return results

    if writes:
        given.step = writing  # type: ignore[method-assign]
    envs = sw.TorchEnvs(given)
    found = collected(envs, device, hides_policy=hides_policy, writes=writes)
    assert found == collected(Drift(mode), device)
    assert len(found) > 20
    assert given.is_closed


def test_many_steps_are_brought_over_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    envs = sw.TorchEnvs(TorchDrift(NEXT_STEP, "cpu"))
    called: list[int] = []
    scan = envs.scan

    def counting(policy: Any, steps: int, info: Any) -> Any:
        called.append(steps)
        return scan(policy, steps, info)

    monkeypatch.setattr(envs, "scan", counting)
    with sw.Collector(envs, sw.bridges.torch_policy(Net()), seed=0) as collector:
        collector.rollout(steps=50)
    assert called == [50]


def test_envs_that_lose_last_observations_are_refused() -> None:
    given = TorchDrift(SAME_STEP, "cpu")
    step = given.step

    def without_last(actions: Any) -> Any:
        *results, info = step(actions)
        return *results, {"level": info["level"]}

    given.step = without_last  # type: ignore[method-assign]
    with (
        sw.Collector(sw.TorchEnvs(given), "random", seed=0) as collector,
        pytest.raises(ValueError, match="final_obs"),
    ):
        collector.collect(steps=100)


def test_wrong_envs_are_refused() -> None:
    with pytest.raises(TypeError, match="num_envs"):
        sw.TorchEnvs(object())
    given = TorchDrift(NEXT_STEP, "cpu")
    given.inner.metadata = {}
    with pytest.raises(ValueError, match=r"autoreset_mode.*None"):
        sw.TorchEnvs(given)
    assert sw.TorchEnvs(given, autoreset_mode=SAME_STEP).metadata["autoreset_mode"] is SAME_STEP


def test_the_arrays_of_a_step_stay_as_they_are_in_the_next() -> None:
    envs = sw.TorchEnvs(TorchDrift(NEXT_STEP, "cpu"))
    envs.reset(seed=0)
    observation, reward, *_ = envs.step(np.ones(N, np.int64))
    before = observation["place"].tolist(), reward.tolist()
    envs.step(np.ones(N, np.int64))
    assert (observation["place"].tolist(), reward.tolist()) == before
