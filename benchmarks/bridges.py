"""Cost of bridges: their batches against the libraries' own replays, and data set sizes.

    python benchmarks/bridges.py
    python benchmarks/bridges.py --only draw --rounds 3

Each library draws from its own replay, filled with the same steps, and from Stepwell's through the
bridge. Data sets are written of one store of a random player's Pong, and read again.
"""

from __future__ import annotations

import functools
import importlib
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

import peer_sb3
import peer_stepwell
import peer_tianshou
import peer_torchrl
import peers
import rounds
import stepwell as sw

PARTS = ("draw", "learn", "files")
BATCH = 256
STACK = 4
_FORMATS: Mapping[str, Mapping[str, object]] = {
    "npz": {},
    "minari": {},
    "minari, arrow": {"data_format": "arrow"},
    "d3rlpy": {},
    "dreamerv3": {},
    "parquet": {},
    "rlds": {},
    "lerobot": {},
}


def sb3_calls(rows: peers.Rows, stack: int) -> dict[str, peers.Call]:
    """SB3's replay, `as_sb3_replay`, and a batch of our own."""
    algorithms = importlib.import_module("stable_baselines3")
    replay = peer_stepwell.replay_of(rows, stack=stack)
    shape = rows.observation.shape[1:]
    observation = spaces.Box(0, 255, (stack, *shape) if stack > 1 else shape, _type(rows))
    model = algorithms.DQN(
        "CnnPolicy" if stack > 1 else "MlpPolicy",
        _SpacesOnly(observation, spaces.Discrete(6)),
        buffer_size=1,
        device="cpu",
    )
    bridge = sw.bridges.as_sb3_replay(replay, model)
    return {
        "SB3": functools.partial(peer_sb3.transitions(rows, stack), BATCH),
        "stepwell as_sb3_replay": functools.partial(bridge.sample, BATCH),
        "stepwell's own batch": functools.partial(replay.sample_transitions, BATCH),
    }


def torchrl(rows: peers.Rows, what: str, count: int) -> list[rounds.Row]:
    """Compare slices from `as_torchrl_replay` with a SliceSampler."""
    replay = peer_stepwell.replay_of(rows)
    bridge = sw.bridges.as_torchrl_replay(replay, 16 * 16, slice_len=16)
    candidates: dict[str, peers.Call] = {
        "TorchRL SliceSampler": peer_torchrl.sequences(rows, 16, 16),
        "stepwell as_torchrl_replay": bridge.sample,
        "stepwell's own batch": functools.partial(
            replay.sample_sequences, 16, 16, align="transition"
        ),
    }
    return _compared(f"TorchRL, {what}", candidates, "TorchRL SliceSampler", count)


def tianshou(rows: peers.Rows, stack: int, what: str, count: int) -> list[rounds.Row]:
    """Compare `as_tianshou_replay` with a VectorReplayBuffer."""
    replay = peer_stepwell.replay_of(rows, stack=stack)
    bridge = sw.bridges.as_tianshou_replay(replay)
    candidates: dict[str, peers.Call] = {
        "Tianshou": functools.partial(peer_tianshou.transitions(rows, stack), BATCH),
        "stepwell as_tianshou_replay": functools.partial(bridge.sample, BATCH),
        "stepwell's own batch": functools.partial(replay.sample_transitions, BATCH),
    }
    return _compared(f"Tianshou, {what}", candidates, "Tianshou", count)


def drawing(count: int) -> list[rounds.Row]:
    """Batches of each library's replay, and of ours through the bridge to it."""
    rng = np.random.default_rng(0)
    frames = peers.Rows.of(rng.integers(0, 256, (20_000, 84, 84), dtype=np.uint8), 1_000)
    vectors = peers.Rows.of(rng.random((100_000, 4), np.float32), 200)
    return [
        *_compared(f"SB3, {STACK}x84x84", sb3_calls(frames, STACK), "SB3", count),
        *_compared("SB3, 4 numbers", sb3_calls(vectors, 1), "SB3", count),
        *tianshou(frames, STACK, f"{STACK}x84x84", count),
        *tianshou(vectors, 1, "4 numbers", count),
        *torchrl(vectors, "4 numbers, 16 x 16", count),
    ]


def learning(count: int) -> list[rounds.Row]:
    """SB3's PPO on CartPole: `model.learn` against the same updates from Stepwell's rollouts."""
    algorithms = importlib.import_module("stable_baselines3")
    making = importlib.import_module("stable_baselines3.common.env_util")
    envs, steps, updates = 8, 128, 4

    def model() -> Any:
        made = making.make_vec_env("CartPole-v1", envs)
        return algorithms.PPO("MlpPolicy", made, n_steps=steps, batch_size=256, seed=0)

    theirs, ours = model(), model()
    policy = sw.bridges.sb3_policy(ours)
    collector = sw.Collector(sw.make_vec("CartPole-v1", envs, num_workers=0), policy, seed=0)

    def learn() -> float:
        theirs.learn(envs * steps * updates)
        return float(envs * steps * updates)

    def feed() -> float:
        before = ours.num_timesteps
        for _ in range(updates):
            sw.bridges.to_sb3_rollout(collector.rollout(steps), ours)
            ours.train()
        return float(ours.num_timesteps - before)

    found = rounds.compare(
        *("bridges", f"SB3, PPO on CartPole x {envs}"),
        candidates={"SB3": learn, "stepwell rollouts, model.train": feed},
        limit="SB3",
        count=count,
        goals={"stepwell rollouts, model.train": 1.0},
    )
    collector.close()
    return found


def files(steps: int) -> list[dict[str, Any]]:
    """Sizes of data sets, and CPU seconds to write and to read them, once each."""
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with sw.SequenceReplayBuffer(folder / "store") as replay:
            envs = sw.make_atari("Pong", 8, frame_stack=1, size=(64, 64), grayscale=False)
            with sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector:
                collector.collect(steps=steps)
            raw = sum(episode.rows for episode in replay.iter_episodes()) * replay.spec.row_bytes
            found.append({"name": "the store itself", "bytes": replay.nbytes, "raw": raw})
            for what, options in _FORMATS.items():
                found.append({"name": what, "raw": raw, **_file(replay, what, options, folder)})
    return found


def files_table(found: Sequence[Mapping[str, Any]]) -> str:
    """The data sets, a line for each."""
    lines = [
        (
            str(each["name"]),
            f"{each['bytes'] / 1e6:.1f}",
            f"{each['raw'] / each['bytes']:,.0f}",
            *(
                f"{each['raw'] / 1e6 / each[way]:,.0f}" if way in each else ""
                for way in ("out", "in")
            ),
        )
        for each in found
    ]
    head = ("data set", "MB", "times smaller than raw", "export, MB a CPU second", "import")
    return rounds.table(head, lines)


def _file(
    replay: sw.SequenceReplayBuffer, what: str, options: Mapping[str, object], folder: Path
) -> dict[str, float]:
    """One data set, written and read."""
    name = what.partition(",")[0]
    more: dict[str, object] = {"root": str(folder / "minari")} if name == "minari" else {}
    place = "bench/pong-v0" if name == "minari" else str(folder / "data")
    began = rounds.cpu_seconds()
    exported = sw.bridges.export_episodes(replay, name, place, options={**options, **more})
    between = rounds.cpu_seconds()
    back = sw.SequenceReplayBuffer()
    imported = sw.bridges.import_episodes(name, place, back, options=more)
    ended = rounds.cpu_seconds()
    # LeRobot's format has no last observation of an episode that was cut: a step less.
    assert imported.steps == replay.steps or name == "lerobot"
    if name == "npz":
        assert imported.digest == replay.digest()
    if exported.path.is_dir():
        shutil.rmtree(exported.path)
    else:
        exported.path.unlink()
    return {"bytes": exported.disk_bytes, "out": between - began, "in": ended - between}


class _SpacesOnly(gym.Env[Any, Any]):
    """An env that gives SB3 its spaces; it is never stepped."""

    def __init__(self, observation: spaces.Space[Any], action: spaces.Space[Any]) -> None:
        self.observation_space = observation
        self.action_space = action


def _type(rows: peers.Rows) -> Any:
    return rows.observation.dtype.type


def _compared(
    what: str, candidates: Mapping[str, peers.Call], limit: str, count: int
) -> list[rounds.Row]:
    """The rows of one operation; the bridge has the goal."""
    return rounds.compare(
        *("bridges", what),
        candidates={name: rounds.repeated(call) for name, call in candidates.items()},
        limit=limit,
        count=count,
        goals={name: 1.0 for name in candidates if name.startswith("stepwell as")},
    )


def main() -> None:
    """Print the tables."""
    parser = rounds.options(__doc__, 7)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--steps", type=int, default=20_000, help="of Pong, in the data sets")
    options = parser.parse_args()
    rows: list[rounds.Row] = []
    if "draw" in options.only:
        rows += drawing(options.rounds)
    if "learn" in options.only:
        rows += learning(options.rounds)
    sets = files(options.steps) if "files" in options.only else []
    print(files_table(sets))
    packages = ["stepwell", "numpy", *peers.versions()]
    rounds.report(rows, packages, options.json, files=sets)


if __name__ == "__main__":
    main()
