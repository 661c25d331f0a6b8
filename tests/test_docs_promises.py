"""What the pages promise to refuse, and no other test tries."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import stepwell as sw
from stepwell import buffers, collectors, wrappers
from stepwell.buffers.bridges import export_episodes, import_episodes
from stepwell.wrappers import from_envpool
from support.envs.open_spaces import OpenEnv
from support.needed import skip_without

BOX = spaces.Box(-1, 1, (2,), np.float32)


class Tensors(gym.vector.VectorEnv[Any, Any, Any]):
    """Two envs whose results are tensors; those on "meta" are not in this machine's memory."""

    num_envs, single_observation_space, single_action_space = 2, BOX, spaces.Discrete(2)
    observation_space = spaces.Box(-1, 1, (2, 2), np.float32)
    action_space = spaces.MultiDiscrete([2, 2])

    def __init__(self, device: str) -> None:
        import torch

        self.metadata = {"autoreset_mode": gym.vector.AutoresetMode.NEXT_STEP}
        self.zeros = partial(torch.zeros, device=device)

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        return self.zeros(2, 2), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        import torch

        ends = self.zeros(2, dtype=torch.bool)
        return self.zeros(2, 2), self.zeros(2), ends, ends, {}


def collected(envs: Any, steps: int = 40) -> sw.SequenceReplayBuffer:
    replay = sw.SequenceReplayBuffer(seed=0)
    with sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector:
        collector.collect(steps=steps)
    return replay


def still() -> sw.SequenceReplayBuffer:
    return collected(gym.vector.SyncVectorEnv([an_env]))


def an_env(observation: spaces.Space[Any] = BOX) -> OpenEnv:
    return OpenEnv(observation, spaces.Box(-1, 1, (1,), np.float32))


def a_partition_by_month(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    (tmp_path / "month=3").mkdir()
    ends = np.array([False, False, True])
    columns = {"observation": np.zeros(3), "action": np.zeros(3, int), "reward": np.zeros(3)}
    table = pyarrow.table({**columns, "terminated": ends, "truncated": ~ends & False})
    pyarrow.parquet.write_table(table, tmp_path / "month=3" / "a.parquet")
    import_episodes("parquet", tmp_path, sw.SequenceReplayBuffer())


def a_record_of_2_gib(tmp_path: Path) -> None:
    from stepwell.buffers.exchange.formats import tfrecord

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tfrecord, "_MAX_BYTES", 100)
        export_episodes(still(), "rlds", tmp_path / "out")


def players_in_a_pool(tmp_path: Path) -> None:
    pool: Any = type("EnvPoolMixin", (OpenEnv,), {"__module__": "envpool"})()  # as of envpool.make
    pool.config = {"batch_size": 2, "num_envs": 2, "max_num_players": 3}
    from_envpool(pool)


def priorities_of_two_kinds(tmp_path: Path) -> None:
    replay = still()
    replay.sample_transitions(4, draw="priorities")
    replay.sample_sequences(4, 3, draw="priorities")


def a_device_played_again(tmp_path: Path) -> None:
    sw.resimulate(collected(sw.TorchEnvs(Tensors("cpu"))))


def an_archive_of_a_device(tmp_path: Path) -> None:
    replay = collected(sw.TorchEnvs(Tensors("cpu")))
    sw.archive(replay, tmp_path / "out.swa")


def tensors_of_a_device(tmp_path: Path) -> None:
    collected(Tensors("meta"))


def nested_spaces_for_sb3(tmp_path: Path) -> None:
    from stable_baselines3 import PPO

    flat, nested = (spaces.Dict({"a": one}) for one in (BOX, spaces.Dict({"b": BOX})))
    moves = spaces.Discrete(2)
    policy = PPO("MultiInputPolicy", OpenEnv(flat, moves), n_steps=8, batch_size=8)
    envs = gym.vector.SyncVectorEnv([partial(OpenEnv, nested, moves)])
    sw.Collector(envs, sw.bridges.sb3_policy(policy), seed=0).rollout(steps=2)


def float64_for_float32(tmp_path: Path) -> None:
    env = sw.record(cast("Any", an_env()), sw.SequenceReplayBuffer())
    env.reset(seed=0)
    env.step(np.array([0.5]))


def the_other_backend(tmp_path: Path) -> None:
    for backend in ("native", "python"):
        envs = sw.make_atari("pong", 1, backend=cast("Any", backend))
        with sw.SequenceReplayBuffer(tmp_path / "pong") as replay:
            with sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector:
                collector.collect(steps=2)


# What is refused, by packages that it needs, and what the error names.
PROMISES: dict[Callable[[Path], None], tuple[list[str], list[str]]] = {
    a_partition_by_month: (["pyarrow"], ["month=3", "a.parquet"]),
    a_record_of_2_gib: (["google_crc32c"], ["2 GiB"]),
    players_in_a_pool: (["envpool"], ["player", "3"]),
    priorities_of_two_kinds: ([], ["priorities", "2 rows", "3 rows"]),
    a_device_played_again: (["torch"], ["TorchEnvs", "env="]),
    an_archive_of_a_device: (["torch"], ["TorchEnvs", "env="]),
    tensors_of_a_device: (["torch"], ["observation", "Tensor"]),
    nested_spaces_for_sb3: (["stable_baselines3"], ["observation/a", "dict"]),
    float64_for_float32: ([], ["float64", "float32"]),
    the_other_backend: (["ale_py"], ["backend", "native", "python"]),
}


@pytest.mark.parametrize("broken", PROMISES, ids=lambda broken: broken.__name__)
def test_what_a_page_says_is_refused_is_refused(
    broken: Callable[[Path], None], tmp_path: Path
) -> None:
    packages, words = PROMISES[broken]
    skip_without(packages)
    with pytest.raises((ValueError, sw.StepwellError)) as raised:
        broken(tmp_path)
    assert "\n" not in str(raised.value)
    for word in words:
        assert word in str(raised.value)


def test_the_errors_with_names_of_stepwells_own_have_one_class() -> None:
    """docs/faq.md: `except sw.StepwellError` catches each of them."""
    rooms = (sw, buffers, collectors, wrappers)
    found = [getattr(room, name) for room in rooms for name in room.__all__]
    errors = [one for one in found if inspect.isclass(one) and issubclass(one, Exception)]
    assert len(errors) > 5
    assert [one for one in errors if not issubclass(one, sw.StepwellError)] == []
