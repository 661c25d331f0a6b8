"""Recording with other libraries, each by its own recorder or replay, as its documentation advises.

Every function plays envs with random actions and returns what the library gives back of them. A
library is imported when its function is called. `RECORDERS` has them by name.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

import stepwell as sw

__all__ = ["RECORDERS", "MakeEnv", "Recorded", "Recorder"]

MakeEnv = Callable[[], gym.Env[Any, Any]]
Record = Callable[[Sequence[MakeEnv], int, Path, bool], "Recorded"]


@dataclass
class Recorded:
    """Transitions as a library gives them back.

    Args:
        observation: [n, ...].
        next_observation: [n, ...]; NaN, or nothing at all, where a library has none.
        terminated: [n] bool.
        truncated: [n] bool.
        num_bytes: Of all that is kept, in RAM or on disk.
    """

    observation: np.ndarray
    next_observation: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    num_bytes: int


class Recorder(NamedTuple):
    """A library.

    Args:
        package: Its name on the package index.
        record: Called with makers of envs, a number of steps over all of them, an empty folder, and
            whether to use the settings with which the library keeps least and loses nothing.
        recover: The number of steps that the library reads in a folder whose writer was killed;
            None for one that keeps its steps in RAM.
        num_envs: That one recorder records at once, at most.
        default: The settings of `record` as the library has them.
        best: Those that keep least and lose nothing.
    """

    package: str
    record: Record
    recover: Callable[[Path], int] | None
    num_envs: int
    default: str
    best: str


def folder_bytes(folder: Path) -> int:
    """Bytes of all files below a folder, as far as the disk holds them."""
    found = (path.stat() for path in folder.rglob("*") if path.is_file())
    return sum(min(one.st_size, 512 * one.st_blocks) for one in found)


def joined(parts: Sequence[Recorded], num_bytes: int) -> Recorded:
    """The transitions of several episodes, one after the other."""
    names = [field.name for field in fields(Recorded)][:-1]
    arrays = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    return Recorded(**arrays, num_bytes=num_bytes)


class Step(NamedTuple):
    """A step of one env, and what it began with."""

    before: Any
    action: Any
    reward: float
    terminated: bool
    truncated: bool


def played(env: gym.Env[Any, Any], steps: int) -> Iterator[Step]:
    """Steps with random actions; resets where an episode ended."""
    env.action_space.seed(0)
    observation, _ = env.reset(seed=0)
    for number in range(steps):
        before, action = np.array(observation), env.action_space.sample()
        observation, reward, terminated, truncated, _ = env.step(action)
        yield Step(before, action, float(reward), terminated, truncated)
        if (terminated or truncated) and number < steps - 1:
            observation, _ = env.reset()


# --- Stepwell ------------------------------------------------------------------------------------


def record_stepwell(makers: Sequence[MakeEnv], steps: int, folder: Path, best: bool) -> Recorded:
    """A Collector that writes into a folder, in calls of 100 steps; no setting keeps less."""
    del best
    envs = gym.vector.SyncVectorEnv(list(makers))
    with (
        sw.SequenceReplayBuffer(folder / "run") as replay,
        sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector,
    ):
        for _ in range(steps // 100):
            collector.collect(steps=100)
    with sw.SequenceReplayBuffer.open(folder / "run", read_only=True) as replay:
        count = replay.count(sw.Transitions(1))
        batch = replay.sample_transitions(count, draw="distinct")
    arrays = (batch.observation, batch.next_observation, batch.terminated, batch.truncated)
    first, after, terminated, truncated = map(np.asarray, arrays)
    return Recorded(first, after, terminated, truncated, folder_bytes(folder))


def recover_stepwell(folder: Path) -> int:
    """Open the store as any reader does."""
    with sw.SequenceReplayBuffer.open(folder / "run", read_only=True) as replay:
        return replay.steps


# --- Minari --------------------------------------------------------------------------------------


def record_minari(makers: Sequence[MakeEnv], steps: int, folder: Path, best: bool) -> Recorded:
    """DataCollector around an env, then create_dataset."""
    os.environ["MINARI_DATASETS_PATH"] = str(folder)
    minari = importlib.import_module("minari")
    (make,) = makers
    settings = {"data_format": "arrow", "jpeg_encoding": False} if best else {}
    env = minari.DataCollector(make(), **settings)
    for _ in played(env, steps):
        pass
    data_set = env.create_dataset("probe/random-v0")
    parts: list[Recorded] = []
    for episode in data_set.iterate_episodes():
        observation = np.asarray(episode.observations)
        flags = (np.asarray(episode.terminations), np.asarray(episode.truncations))
        parts.append(Recorded(observation[:-1], observation[1:], *flags, 0))
    env.close()
    return joined(parts, folder_bytes(folder))


def recover_minari(folder: Path) -> int:
    """The data sets that Minari lists."""
    os.environ["MINARI_DATASETS_PATH"] = str(folder)
    minari = importlib.import_module("minari")
    return sum(int(minari.load_dataset(name).total_steps) for name in minari.list_local_datasets())


# --- Stable-Baselines3 ---------------------------------------------------------------------------


def record_sb3(makers: Sequence[MakeEnv], steps: int, folder: Path, best: bool) -> Recorded:
    """The replay of a DQN that only plays randomly."""
    algorithms = importlib.import_module("stable_baselines3")
    vec_env = importlib.import_module("stable_baselines3.common.vec_env")
    extra = {"handle_timeout_termination": False} if best else {}
    model = algorithms.DQN(
        "MlpPolicy",
        vec_env.DummyVecEnv(list(makers)),
        buffer_size=steps,
        learning_starts=steps + 1,
        optimize_memory_usage=best,
        replay_buffer_kwargs=extra,
        policy_kwargs={"net_arch": [4]},
        seed=0,
        device="cpu",
    )
    model.learn(steps)
    replay = model.replay_buffer

    def flat(rows: np.ndarray) -> np.ndarray:
        rows = rows.reshape(-1, *rows.shape[2:])
        is_image = rows.ndim == 4 and rows.shape[1] == 3  # SB3 puts the channels first
        return rows.transpose(0, 2, 3, 1) if is_image else rows

    following = np.roll(replay.observations, -1, 0) if best else replay.next_observations
    arrays = [replay.observations, following, replay.actions, replay.rewards, replay.dones]
    return Recorded(
        flat(replay.observations),
        flat(following),
        flat(replay.dones > replay.timeouts),
        flat(replay.timeouts > 0),
        sum(rows.nbytes for rows in arrays[:1] + arrays[1 + best :]),
    )


# --- TorchRL -------------------------------------------------------------------------------------


def record_torchrl(makers: Sequence[MakeEnv], steps: int, folder: Path, best: bool) -> Recorded:
    """A Collector of envs in this process, and a replay of memory-mapped files."""
    collectors = importlib.import_module("torchrl.collectors")
    data = importlib.import_module("torchrl.data")
    envs = importlib.import_module("torchrl.envs")
    if best:
        storage = data.CompressedListStorage(steps)
    else:
        storage = data.LazyMemmapStorage(steps, scratch_dir=folder / "rows")
    replay = data.ReplayBuffer(storage=storage, batch_size=1)
    made = [lambda make=make: envs.GymWrapper(make()) for make in makers]
    env = envs.SerialEnv(len(made), made) if len(made) > 1 else made[0]()
    collector = collectors.Collector(env, None, frames_per_batch=20, total_frames=steps)
    for batch in collector:
        replay.extend(batch.reshape(-1))
    collector.shutdown()
    rows = replay[:]
    name = "pixels" if "pixels" in rows else "observation"
    size = folder_bytes(folder)
    if best:
        size = sum(_tensor_bytes(one) for one in storage._storage[: len(storage)])
    return Recorded(
        rows[name].numpy(),
        rows["next", name].numpy(),
        rows["next", "terminated"].numpy()[:, 0],
        rows["next", "truncated"].numpy()[:, 0],
        size,
    )


def _tensor_bytes(stored: Any) -> int:
    if isinstance(stored, Mapping):
        return sum(map(_tensor_bytes, stored.values()))
    return int(stored.numel() * stored.element_size())


def recover_torchrl(folder: Path) -> int:
    """Load the replay from the files that it was mapped to."""
    data = importlib.import_module("torchrl.data")
    replay = data.ReplayBuffer(storage=data.LazyMemmapStorage(100_000))
    try:
        replay.loads(folder / "rows")
    except FileNotFoundError:  # dumps writes what loads needs
        return 0
    return len(replay)


# --- Tianshou ------------------------------------------------------------------------------------


def record_tianshou(makers: Sequence[MakeEnv], steps: int, folder: Path, best: bool) -> Recorded:
    """A Collector of envs in this process, and a VectorReplayBuffer."""
    dqn = importlib.import_module("tianshou.algorithm.modelfree.dqn")
    optim = importlib.import_module("tianshou.algorithm.optim")
    data = importlib.import_module("tianshou.data")
    envs = importlib.import_module("tianshou.env")
    net = importlib.import_module("tianshou.utils.net.common")
    env = makers[0]()
    policy = dqn.DiscreteQLearningPolicy(
        model=net.Net(state_shape=env.observation_space.shape, action_shape=1),
        action_space=env.action_space,
    )
    algorithm = dqn.DQN(policy=policy, optim=optim.AdamOptimizerFactory())
    stacks = {"stack_num": 4, "ignore_obs_next": True, "save_only_last_obs": True}
    replay = data.VectorReplayBuffer(steps, len(makers), **(stacks if best else {}))
    collector = data.Collector(algorithm, envs.DummyVectorEnv(list(makers)), replay)
    collector.reset()
    collector.collect(n_step=steps, random=True)
    rows, _ = replay.sample(0)  # all of them
    kept = [value for value in replay._meta.values() if isinstance(value, np.ndarray)]
    return Recorded(
        np.asarray(rows.obs),
        np.asarray(rows.obs_next),
        np.asarray(rows.terminated),
        np.asarray(rows.truncated),
        sum(value.nbytes for value in kept),
    )


# --- sheeprl -------------------------------------------------------------------------------------


def record_sheeprl(makers: Sequence[MakeEnv], steps: int, folder: Path, best: bool) -> Recorded:
    """Its memory-mapped replay, filled as its SAC does: sheeprl has no collector to call."""
    buffers = importlib.import_module("sheeprl.data.buffers")
    each, names = steps // len(makers), ("observations",)
    replay = buffers.ReplayBuffer(each, len(makers), names, memmap=True, memmap_dir=folder / "rows")
    mode = gym.vector.AutoresetMode.SAME_STEP
    envs = gym.vector.SyncVectorEnv(list(makers), autoreset_mode=mode)
    envs.action_space.seed(0)
    observation, _ = envs.reset(seed=0)
    row: dict[str, np.ndarray] = {}
    for _ in range(each):
        action = envs.action_space.sample()
        following, reward, terminated, truncated, info = envs.step(action)
        real_next = following.copy()
        for place, final in enumerate(info.get("final_obs", ())):
            if final is not None:
                real_next[place] = final
        row = {
            "observations": observation,
            "actions": action[:, None],
            "rewards": reward[:, None].astype(np.float32),
            "terminated": terminated[:, None].astype(np.uint8),
            "truncated": truncated[:, None].astype(np.uint8),
        }
        if not best:
            row["next_observations"] = real_next
        replay.add({name: value[None] for name, value in row.items()})
        observation = following
    envs.close()
    arrays = {name: np.asarray(replay[name]) for name in row}
    if best:
        arrays["next_observations"] = np.roll(arrays["observations"], -1, 0)
    flat = {name: rows.reshape(-1, *rows.shape[2:]) for name, rows in arrays.items()}
    return Recorded(
        flat["observations"],
        flat["next_observations"],
        flat["terminated"][:, 0] > 0,
        flat["truncated"][:, 0] > 0,
        folder_bytes(folder),
    )


def recover_sheeprl(folder: Path) -> int:
    """Its files have neither their shapes nor the number of rows: a pickle of the replay has."""
    return 0


# --- LeRobot -------------------------------------------------------------------------------------


def record_lerobot(makers: Sequence[MakeEnv], steps: int, folder: Path, best: bool) -> Recorded:
    """A LeRobotDataset: add_frame, save_episode, finalize; images as video, or as PNG files."""
    module = importlib.import_module("lerobot.datasets.lerobot_dataset")
    (make,) = makers
    env = make()
    space = env.observation_space
    assert isinstance(space, gym.spaces.Box)
    is_image = space.dtype == np.uint8 and len(space.shape) == 3
    name = "observation.image" if is_image else "observation.state"
    seen: dict[str, Any] = {"dtype": "float32", "shape": space.shape, "names": None}
    if is_image:
        kind = "image" if best else "video"
        seen = {"dtype": kind, "shape": space.shape, "names": ["height", "width", "channel"]}
    one = {"shape": (1,), "names": None}
    data_set = module.LeRobotDataset.create(
        "probe/random",
        fps=30,
        root=folder / "set",
        use_videos=not best,
        features={
            name: seen,
            "action": {"dtype": "int64", **one},
            "next.reward": {"dtype": "float32", **one},
            "next.done": {"dtype": "bool", **one},
            "next.truncated": {"dtype": "bool", **one},
        },
    )
    for number, step in enumerate(played(env, steps)):
        is_end = step.terminated or step.truncated
        data_set.add_frame(
            {
                name: step.before,
                "action": np.array([step.action]),
                "next.reward": np.array([step.reward], np.float32),
                "next.done": np.array([is_end]),
                "next.truncated": np.array([step.truncated]),
                "task": "play",
            }
        )
        if is_end or number == steps - 1:
            data_set.save_episode()
    data_set.finalize()
    size = folder_bytes(folder)
    read = module.LeRobotDataset("probe/random", root=folder / "set", video_backend="pyav")
    rows = [read[place] for place in range(len(read))]
    observation = np.stack([row[name].numpy() for row in rows])
    if is_image:  # from floats of 0 to 1, channels first
        observation = np.rint(observation.transpose(0, 2, 3, 1) * 255).astype(np.uint8)
    episode = np.array([int(row["episode_index"]) for row in rows])
    following = np.roll(observation, -1, 0).astype(np.float64)
    following[np.append(episode[1:] != episode[:-1], True)] = np.nan
    done = np.array([bool(row["next.done"]) for row in rows])
    truncated = np.array([bool(row["next.truncated"]) for row in rows])
    return Recorded(observation, following, done & ~truncated, truncated, size)


def recover_lerobot(folder: Path) -> int:
    """Open the data set."""
    module = importlib.import_module("lerobot.datasets.lerobot_dataset")
    return len(module.LeRobotDataset("probe/random", root=folder / "set"))


RECORDERS = {
    "Stepwell": Recorder(
        "stepwell",
        record_stepwell,
        recover_stepwell,
        2,
        "a store on disk",
        "a store on disk",
    ),
    "Minari": Recorder(
        "minari",
        record_minari,
        recover_minari,
        1,
        "HDF5",
        "`data_format='arrow', jpeg_encoding=False`",
    ),
    "SB3": Recorder(
        "stable-baselines3",
        record_sb3,
        None,
        2,
        "`ReplayBuffer`",
        "`optimize_memory_usage=True`",
    ),
    "TorchRL": Recorder(
        "torchrl",
        record_torchrl,
        recover_torchrl,
        2,
        "`LazyMemmapStorage`",
        "`CompressedListStorage`",
    ),
    "Tianshou": Recorder(
        "tianshou",
        record_tianshou,
        None,
        2,
        "`VectorReplayBuffer`",
        "`stack_num=4, ignore_obs_next=True, save_only_last_obs=True`",
    ),
    "sheeprl": Recorder(
        "sheeprl",
        record_sheeprl,
        recover_sheeprl,
        2,
        "`ReplayBuffer(memmap=True)`",
        "`sample_next_obs=True`",
    ),
    "LeRobot": Recorder(
        "lerobot",
        record_lerobot,
        recover_lerobot,
        1,
        "video",
        "images in PNG",
    ),
}
"""By the name of a column."""
