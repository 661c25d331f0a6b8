"""Cost of bridges: their batches against the libraries' own replays, and data set sizes.

    python benchmarks/bridges.py
    python benchmarks/bridges.py --only draw --rounds 3

Each library draws from its own replay, filled with the same steps, and from Stepwell's through the
bridge. Data sets are written of one store of a random player's Pong, and read again.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import shutil
import tempfile
import time
from collections.abc import Mapping
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
    "diamond": {},
    "iris": {},
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


def torchrl(rows: peers.Rows, what: str, count: int) -> list[tuple[str, ...]]:
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


def tianshou(rows: peers.Rows, stack: int, what: str, count: int) -> list[tuple[str, ...]]:
    """Compare `as_tianshou_replay` with a VectorReplayBuffer."""
    replay = peer_stepwell.replay_of(rows, stack=stack)
    bridge = sw.bridges.as_tianshou_replay(replay)
    candidates: dict[str, peers.Call] = {
        "Tianshou": functools.partial(peer_tianshou.transitions(rows, stack), BATCH),
        "stepwell as_tianshou_replay": functools.partial(bridge.sample, BATCH),
        "stepwell's own batch": functools.partial(replay.sample_transitions, BATCH),
    }
    return _compared(f"Tianshou, {what}", candidates, "Tianshou", count)


def drawing(count: int) -> str:
    """The table of draws."""
    rng = np.random.default_rng(0)
    frames = peers.Rows.of(rng.integers(0, 256, (20_000, 84, 84), dtype=np.uint8), 1_000)
    vectors = peers.Rows.of(rng.random((100_000, 4), np.float32), 200)
    lines = [
        *_compared(f"SB3, {STACK}x84x84", sb3_calls(frames, STACK), "SB3", count),
        *_compared("SB3, 4 numbers", sb3_calls(vectors, 1), "SB3", count),
        *tianshou(frames, STACK, f"{STACK}x84x84", count),
        *tianshou(vectors, 1, "4 numbers", count),
        *torchrl(vectors, "4 numbers, 16 x 16", count),
    ]
    return rounds.table(("case", "library", "a second", "of theirs: median", "min", "max"), lines)


def learning(count: int) -> str:
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

    measured = rounds.rates(
        {"SB3 model.learn": learn, "stepwell rollouts, model.train": feed}, count
    )
    collector.close()
    lines = [
        (
            name,
            f"{np.median(rates):,.0f}",
            *tuple(f"{ratio:.2f}" for ratio in rounds.ratios(measured, name, "SB3 model.learn")),
        )
        for name, rates in measured.items()
    ]
    return rounds.table(
        ("PPO, CartPole x 8", "steps a second", "of theirs: min", "median", "max"), lines
    )


def files(steps: int) -> str:
    """Sizes of data sets, and how fast they are written and read, once each."""
    lines: list[tuple[str, ...]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with sw.SequenceReplayBuffer(folder / "store") as replay:
            envs = sw.make_atari("Pong", 8, frame_stack=1, size=(64, 64), grayscale=False)
            with sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector:
                collector.collect(steps=steps)
            raw = sum(episode.rows for episode in replay.iter_episodes()) * replay.spec.row_bytes
            lines.append(("store", f"{replay.nbytes / 1e6:.1f}", f"{raw / replay.nbytes:.0f}"))
            lines[-1] += ("", "")
            for what, options in _FORMATS.items():
                lines.append(_file(replay, what, options, folder, raw))
    return rounds.table(("data set", "MB", "x smaller than raw", "out, MB/s", "in, MB/s"), lines)


def _file(
    replay: sw.SequenceReplayBuffer,
    what: str,
    options: Mapping[str, object],
    folder: Path,
    raw: int,
) -> tuple[str, ...]:
    """A line of the table: one data set, written and read."""
    name = what.partition(",")[0]
    more: dict[str, object] = {"root": str(folder / "minari")} if name == "minari" else {}
    place = "bench/pong-v0" if name == "minari" else str(folder / "data")
    began = time.perf_counter()
    exported = sw.bridges.export_episodes(replay, name, place, options={**options, **more})
    between = time.perf_counter()
    back = sw.SequenceReplayBuffer()
    imported = sw.bridges.import_episodes(name, place, back, options=more)
    ended = time.perf_counter()
    assert imported.steps == replay.steps
    if name == "npz":
        assert imported.digest == replay.digest()
    if exported.path.is_dir():
        shutil.rmtree(exported.path)
    else:
        exported.path.unlink()
    return (
        what,
        f"{exported.disk_bytes / 1e6:.1f}",
        f"{raw / exported.disk_bytes:.1f}",
        f"{raw / 1e6 / (between - began):.0f}",
        f"{raw / 1e6 / (ended - between):.0f}",
    )


class _SpacesOnly(gym.Env[Any, Any]):
    """An env that gives SB3 its spaces; it is never stepped."""

    def __init__(self, observation: spaces.Space[Any], action: spaces.Space[Any]) -> None:
        self.observation_space = observation
        self.action_space = action


def _type(rows: peers.Rows) -> Any:
    return rows.observation.dtype.type


def _compared(
    what: str, candidates: Mapping[str, peers.Call], limit: str, count: int
) -> list[tuple[str, ...]]:
    """A row of the table: operation, candidate, rate, and the ratio to the library's own."""
    return [line[:6] for line in peers.compare(what, candidates, limit, count)]


def main() -> None:
    """Print the tables."""
    title = (__doc__ or "").split("\n")[0]
    parser = argparse.ArgumentParser(description=title, epilog=peers.EPILOG)
    parser.add_argument("--only", choices=["draw", "learn", "files"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=20_000, help="of Pong, in the data sets")
    arguments = parser.parse_args()
    print(rounds.machine(*peers.versions()), flush=True)
    if arguments.only in (None, "draw"):
        print(drawing(arguments.rounds), flush=True)
    if arguments.only in (None, "learn"):
        print(learning(arguments.rounds), flush=True)
    if arguments.only in (None, "files"):
        print(files(arguments.steps), flush=True)


if __name__ == "__main__":
    main()
