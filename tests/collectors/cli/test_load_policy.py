"""`--policy`: models and modules in files play as in Python; wrong ones are one sentence."""

from __future__ import annotations

import importlib.util
import json
import pickle
import shutil
import zipfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import stepwell as sw
from stepwell.collectors.cli.load_policy import load_policy
from support.command_line import CommandLine
from support.libraries.missing import hide

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("stable_baselines3") is None, reason="needs Stable-Baselines3"
)

ALGORITHMS = {  # and an env for each
    "PPO": "CartPole-v1",
    "A2C": "CartPole-v1",
    "DQN": "CartPole-v1",
    "SAC": "Pendulum-v1",
    "TD3": "Pendulum-v1",
    "DDPG": "Pendulum-v1",
}
POLE = "collect CartPole-v1 --workers 0 --num-envs 2 --steps 40"
NETS = """
import numpy as np
import torch
import stepwell as sw

class Net(torch.nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.layer = torch.nn.Linear(width, 2)
    def forward(self, observation):
        assert not self.training
        return self.layer(observation)

def drawing(): return sw.bridges.torch_policy(Net())
def wide(): return Net(5)
def text(): return "net"
def more(size): return Net(size)
net = Net()
"""


def made(name: str, **settings: Any) -> Any:
    """A new model of an algorithm, without a seed of its own."""
    import stable_baselines3 as sb3

    settings = {"policy": "MlpPolicy", "env": ALGORITHMS[name], "device": "cpu", **settings}
    if name in ("PPO", "A2C"):
        return getattr(sb3, name)(**settings)
    settings = {"learning_starts": 0, "buffer_size": 1000, **settings}
    return getattr(sb3, name)(**settings)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, Path]]:
    """A model of each algorithm, and its file."""
    folder = tmp_path_factory.mktemp("models")
    models = {name: made(name) for name in ALGORITHMS}
    for name, model in models.items():
        model.save(folder / f"{name.lower()}.zip")
    return {name: (model, folder / f"{name.lower()}.zip") for name, model in models.items()}


@pytest.fixture
def stepwell(
    stepwell: CommandLine, saved: dict[str, tuple[Any, Path]], tmp_path: Path
) -> CommandLine:
    """The command line, next to some files."""
    import torch

    stepwell.write("nets", NETS)
    for name in ("ppo", "dqn", "sac"):
        shutil.copy(saved[name.upper()][1], f"{name}.zip")
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 2)
    state = {f"layer.{key}": value for key, value in net.state_dict().items()}
    torch.save(state, "net.pt")
    torch.save({"model": state, "step": 3}, "checkpoint.pt")
    torch.save(net, "whole.pt")
    torch.save([1, 2], "list.pt")
    Path("notes.zip").write_text("no zip file")
    Path("folder").mkdir()
    with zipfile.ZipFile("other.zip", "w") as archive:
        archive.writestr("data", "{}")
    with zipfile.ZipFile("dqn.zip") as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    settings = json.loads(parts["data"])
    settings["policy_class"]["__module__"] = "sb3_contrib.qrdqn.policies"
    _write("contrib.zip", {**parts, "data": json.dumps(settings).encode()})
    return stepwell


def _write(name: str, parts: dict[str, bytes]) -> None:
    with zipfile.ZipFile(name, "w") as archive:
        for part, content in parts.items():
            archive.writestr(part, content)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_algorithm_is_found_in_the_file(saved: dict[str, tuple[Any, Path]], name: str) -> None:
    model, path = saved[name]
    for policy in (f"sb3:{path}", f"sb3:{name.lower()}:{path}", f"sb3:{name}:{path}"):
        found: Any = load_policy(policy, deterministic=True)
        if name != "DDPG":  # it is saved as TD3 is
            assert found.__qualname__ == name
        env = gym.make(ALGORITHMS[name])
        rng = np.random.default_rng(0)
        observation = np.stack([env.observation_space.sample() for _ in range(9)])
        found.begin(env.action_space, rng)
        action = found(observation, np.zeros(9, np.bool_))
        action = action[0] if isinstance(action, tuple) else action
        expected, _ = model.predict(observation, deterministic=True)
        assert np.array_equal(action, expected)


def test_models_and_weights_collect_what_they_collect_in_python(
    stepwell: CommandLine, saved: dict[str, tuple[Any, Path]]
) -> None:
    import torch

    torch.manual_seed(0)
    net = torch.nn.Linear(4, 2)  # the weights in the file
    for policy, name, model in (
        ("sb3:dqn.zip", "stable_baselines3.dqn.dqn.DQN", saved["DQN"][0]),
        ("torch:net.pt:nets:Net", "nets.Net", net),
    ):
        said = stepwell.json(f"{POLE} --policy {policy} --seed 5 --out {name}")
        assert said["session"]["policy"] == name
        replay = sw.SequenceReplayBuffer()
        envs = sw.make_vec("CartPole-v1", num_envs=2, num_workers=0)
        with sw.Collector(envs, model, replay, seed=5) as collector:
            assert collector.collect(steps=40).digest == said["digest"]
    command = f"{POLE} --policy torch:net.pt:nets:drawing --seed 5"
    drawn, again = (stepwell.json(f"{command} --out {name}")["digest"] for name in "bc")
    assert drawn == again != said["digest"]
    with sw.SequenceReplayBuffer.open("b", read_only=True) as other:
        assert "extra/log_prob" in other.spec.names


def test_loading_allocates_no_replay(saved: dict[str, tuple[Any, Path]], tmp_path: Path) -> None:
    compact = {
        "optimize_memory_usage": True,
        "replay_buffer_kwargs": {"handle_timeout_termination": False},
    }
    for settings in ({}, {"n_steps": 3}, compact):
        path = tmp_path / "large.zip"
        model = made("DQN", **settings)
        model.buffer_size = 10**15
        model.save(path)
        load_policy(f"sb3:{path}")


BAD = [
    ("sb3:", "expected an existing file|got none"),
    ("sb3:none.zip", "--policy sb3:none.zip: |existing file|nothing at none.zip"),
    ("sb3:folder", "got a folder"),
    ("sb3:notes.zip", "zip file|Stable-Baselines3|model.save(path)"),
    ("sb3:other.zip", "zip file|Stable-Baselines3"),
    ("sb3:contrib.zip", "PPO|sb3_contrib.qrdqn.policies|module:callable"),
    ("sb3:ppo:dqn.zip", "PPO of Stable-Baselines3|got "),
    ("sb3:sac.zip", "Box(-2.0|Discrete(2)"),
    ("torch:net.pt", "torch:FILE:module:callable|got 'torch:net.pt'"),
    ("torch:net.pt:nowhere:Net", "module 'nowhere'|got none"),
    ("torch:net.pt:nets:text", "torch module|got str"),
    ("torch:net.pt:nets:more", "no arguments|(size)"),
    ("torch:net.pt:nets:wide", "weights of a Net|size mismatch"),
    ("torch:net.pt:mine:number", "makes a torch module|got int"),
    ("torch:checkpoint.pt:nets:Net", "tensors by name|a dict with 'model', 'step'"),
    ("torch:list.pt:nets:Net", "tensors by name|got a list"),
    ("torch:whole.pt:nets:Net", "weights alone|state_dict()"),
]


@pytest.mark.parametrize(("policy", "parts"), BAD, ids=lambda text: str(text)[:40])
def test_a_wrong_file_is_one_sentence_and_nothing_is_stored(
    stepwell: CommandLine, policy: str, parts: str
) -> None:
    for command in ("collect CartPole-v1 --steps 9 --out new", "evaluate CartPole-v1"):
        stepwell.refused(f"{command} --workers 0 --num-envs 1 --policy {policy}", parts)


def test_a_model_of_other_observations_is_one_sentence(stepwell: CommandLine) -> None:
    stepwell.write(
        "longer",
        "import gymnasium as gym\n"
        "def make(): return gym.wrappers.TimeAwareObservation(gym.make('CartPole-v1'))\n",
    )
    command = "collect longer:make --steps 9 --out new --workers 0 --policy sb3:ppo.zip"
    stepwell.refused(command, "observation: |float32 (4,)|got |(5,)")


class Bomb:
    """Writes a file when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("bomb"),)


def test_code_in_a_file_is_not_executed(stepwell: CommandLine) -> None:
    import torch

    torch.save({"layer.weight": Bomb()}, "bomb.pt")
    Path("plain.pt").write_bytes(pickle.dumps(Bomb()))
    hidden = pickle.dumps(Bomb()).hex()
    settings = {"policy_class": {"__module__": "mine", ":serialized:": hidden}}
    _write("bomb.zip", {"data": json.dumps(settings).encode()})
    for policy, parts in (
        ("torch:bomb.pt:nets:Net", "weights alone"),
        ("torch:plain.pt:nets:Net", "weights alone"),
        ("sb3:bomb.zip", "another algorithm|of mine"),
    ):
        stepwell.refused(f"{POLE} --policy {policy} --out a", parts)
    assert not Path("bomb").exists()


@pytest.mark.parametrize(
    ("policy", "parts"),
    [
        ("sb3:ppo.zip", "stable_baselines3|not installed|pip install 'stepwell[sb3]'"),
        ("torch:net.pt:mine:one", "torch|not installed|pip install 'stepwell[torch]'"),
    ],
)
def test_a_missing_library_is_named(
    stepwell: CommandLine, policy: str, parts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide(parts.partition("|")[0], monkeypatch)
    stepwell.refused(f"evaluate CartPole-v1 --workers 0 --policy {policy}", parts)
