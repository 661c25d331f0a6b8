"""What has files, locks or processes of its own is not pickled or copied, and says what to do."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import stepwell as sw
from demo_rom import write_demo
from stepwell.buffers import (
    Digest,
    DiskStorage,
    EpisodeBuffer,
    EpisodeSelection,
    EpisodeWriter,
    JoinedStorage,
    MemoryStorage,
    SampleLimiter,
    SequenceReplayBuffer,
    Sequences,
)
from stepwell.buffers.dropin import dreamer, fishyrl, frame_history, iris
from stepwell.wrappers import AleFrameSkip

IMAGES: Any = {"size": 100, "obs_shape": (3, 8, 8), "action_size": 2}
LENGTHS: Any = {"seq_len": 4, "batch_size": 2}


class Making:
    """Makes objects, and closes them when the test ends."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self._stack, self.folder = stack, folder

    def __call__(self, made: Any) -> Any:
        """The same object, which is closed at the end."""
        if isinstance(made, AbstractContextManager):
            return self._stack.enter_context(made)
        if callable(close := getattr(made, "close", None)):
            self._stack.callback(close)
        return made

    def cartpole(self, num_workers: int = 0) -> Any:
        """Two envs."""
        return self(sw.make_vec("CartPole-v1", 2, num_workers=num_workers))

    def collector(self, replay: SequenceReplayBuffer) -> Any:
        """A Collector of these envs."""
        return self(sw.Collector(self.cartpole(), "random", replay, seed=0))

    def replay(self, path: Path | None = None) -> Any:
        """A replay with rows."""
        made = self(SequenceReplayBuffer(path, seed=0))
        self.collector(made).collect(steps=60)
        return made

    def stored(self) -> Path:
        """A folder with rows."""
        with self.replay(self.folder / "store"):
            return self.folder / "store"

    def local(self) -> Any:
        """A collector with groups in other processes."""
        pytest.importorskip("cloudpickle")
        envs: Any = {"num_workers": 0, "num_envs": 1}
        return self(
            sw.LocalCollector(
                lambda: sw.make_vec("CartPole-v1", **envs), sw.RandomPolicy, self.replay(), groups=1
            )
        )

    def recorded(self, env: Any) -> Any:
        """A recorded env, which was reset."""
        made = self(sw.record(env, SequenceReplayBuffer()))
        made.reset(seed=0)
        return made

    def frame_skip(self) -> Any:
        """A single env of Pong."""
        gym.register_envs(pytest.importorskip("ale_py"))
        return self(AleFrameSkip(gym.make("ALE/Pong-v5", frameskip=1)))

    def ale_vector(self) -> Any:
        """Ale-py's vector env."""
        pytest.importorskip("ale_py")
        return self(sw.make_atari("Pong", 2, backend="native").unwrapped)

    def nes(self) -> Any:
        """Envs of a cartridge."""
        pytest.importorskip("cynes")
        rom, game = write_demo(self.folder / "demo")
        return self(sw.NesEnv(rom, game=game, backend="cynes", actions=["NOOP"]))

    def pool(self) -> Any:
        """A pool of EnvPool."""
        pytest.importorskip("envpool")
        return self(sw.make_vec("envpool:CartPole-v1", 2))

    def memmap(self) -> Any:
        """The drop-in of memmap-replay-buffer."""
        pytest.importorskip("torch")
        from stepwell.buffers.dropin.memmap import ReplayBuffer

        return self(ReplayBuffer(self.folder / "mm", 2, 9, fields={"x": "float"}))

    def bridge(self, name: str) -> Any:
        """The replay in the place of another library's."""
        pytest.importorskip("torch" if name == "sheeprl" else name)
        return self(getattr(sw.bridges, f"as_{name}_replay")(self.replay()))


LIVE: dict[str, tuple[str, Callable[[Making], Any]]] = {
    "a replay in RAM": ("this one is in RAM: give it a path", lambda make: make.replay()),
    "a replay in a folder": (
        r"this one is in \S+store; use SequenceReplayBuffer.open",
        lambda make: make.replay(make.folder / "store"),
    ),
    "writer": ("replay.writer", lambda make: make(make.replay().writer(gym.make("CartPole-v1")))),
    "EpisodeBuffer": ("chunks", lambda make: EpisodeBuffer(make.replay().spec, 2)),
    "EpisodeWriter": ("with a replay", lambda make: make(EpisodeWriter(make.replay()))),
    "loader": ("replay", lambda make: make(make.replay().loader(Sequences(2, 4)))),
    "epoch": ("state_dict", lambda make: make.replay().epoch(Sequences(2, 4))),
    "limiter": ("threads", lambda make: SampleLimiter(1, min_steps=9, slack=1)),
    "MemoryStorage": ("folder", lambda make: MemoryStorage(make.replay().spec)),
    "DiskStorage": (
        "DiskStorage.open",
        lambda make: make(DiskStorage.open(make.stored(), read_only=True)),
    ),
    "JoinedStorage": (
        "join",
        lambda make: JoinedStorage([make(DiskStorage.open(make.stored(), read_only=True))]),
    ),
    "Collector": ("LocalCollector", lambda make: make.collector(make.replay())),
    "LocalCollector": ("processes of their own", lambda make: make.local()),
    "run": ("running", lambda make: make(make.local().running())),
    "a recorded env": ("unwrapped", lambda make: make.recorded(gym.make("CartPole-v1"))),
    "recorded envs": ("unwrapped", lambda make: make.recorded(make.cartpole())),
    "worker processes": ("from a function", lambda make: make.cartpole(1)),
    "Atari": ("from a function", lambda make: make.frame_skip()),
    "ale-py's vector env": ("from a function", lambda make: make.ale_vector()),
    "NES": ("from a function", lambda make: make.nes()),
    "EnvPool": ("from a function", lambda make: make.pool()),
    "dreamer": ("path", lambda make: make(dreamer.ReplayBuffer(**IMAGES, **LENGTHS))),
    "iris": ("path", lambda make: make(iris.IRISReplayBuffer(**IMAGES, **LENGTHS))),
    "frame history": ("path", lambda make: make(frame_history.ReplayBuffer(100, 4))),
    "fishyrl": ("path", lambda make: make(fishyrl.IndependentVectorizedBuffer(2, 100))),
    "memmap": ("from_folder", lambda make: make.memmap()),
    **{
        name: (f"as_{name}_replay", partial(Making.bridge, name=name))
        for name in ("sheeprl", "tianshou", "torchrl")
    },
}


@pytest.mark.parametrize("name", LIVE)
def test_what_lives_in_a_process_is_not_pickled_or_copied(name: str, tmp_path: Path) -> None:
    instead, make = LIVE[name]
    with ExitStack() as stack:
        made = make(Making(stack, tmp_path))
        for copied in (pickle.dumps, copy.deepcopy, copy.copy):
            with pytest.raises(
                TypeError, match=f"^an? .* cannot be pickled or copied: expected .*; .*{instead}"
            ):
                copied(made)


VALUES: dict[str, Callable[[Making], Any]] = {
    "Spec": lambda make: make.replay().spec,
    "episode": lambda make: next(iter(make.replay().iter_episodes())),
    "batch": lambda make: make.replay().sample_sequences(2, 4),
    "request": lambda _: Sequences(2, 4),
    "selection": lambda _: EpisodeSelection(),
    "digest": lambda _: Digest(),
    "ratio": lambda _: sw.ReplayRatio(0.5),
    "policy": lambda _: sw.RandomPolicy(),
    "rollout": lambda make: make(sw.Collector(make.cartpole(), "random")).rollout(steps=4),
    "envs of one process": lambda make: make.cartpole(),
}


@pytest.mark.parametrize("name", VALUES)
def test_values_are_pickled_and_copied(name: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        made = VALUES[name](Making(stack, tmp_path))
        for copied in (pickle.loads(pickle.dumps(made)), copy.deepcopy(made), copy.copy(made)):
            assert type(copied) is type(made)
