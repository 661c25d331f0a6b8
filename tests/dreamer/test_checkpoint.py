"""An agent is saved as bytes, and continues from them as if it had never stopped."""

from __future__ import annotations

import io
import os
import pickle
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell as sw

pytest.importorskip("torch", reason="needs PyTorch: pip install 'stepwell[torch]'")

import torch

from dreamer.agent import Models, learning_step
from dreamer.checkpoint import load_checkpoint, load_models, save_checkpoint, save_models
from stepwell.buffers.errors import StoreCorrupt, StoreNotFound
from support.libraries.dreamer_agents import TINY, agent

REQUEST = sw.Sequences(TINY.batch_size, TINY.length, borders="cross")


@pytest.fixture
def trained(tmp_path: Path) -> Iterator[Models]:
    """An agent after some learning steps, each of whose parts has moved."""
    torch.manual_seed(1)
    envs, models = agent(tmp_path / "replay")
    with models.utilities.replay as replay:
        with sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector:
            collector.collect(steps=60)
        models.utilities.ratio(60)
        learn(models, 3)
        yield models


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Models]:
    """Another agent of the same sizes, trained a little, too."""
    torch.manual_seed(2)
    envs, models = agent(tmp_path / "other", seed=2)
    with models.utilities.replay as replay:
        with sw.Collector(envs, sw.RandomPolicy(), replay, seed=2) as collector:
            collector.collect(steps=60)
        learn(models, 1)
        yield models


def learn(models: Models, steps: int) -> list[tuple[np.ndarray, dict[str, float]]]:
    """Batches' observations, and the losses."""
    found = []
    for _ in range(steps):
        batch = models.utilities.replay.sample(REQUEST)
        metrics = learning_step(batch, models)
        found.append((batch.observation.copy(), {k: float(v) for k, v in metrics.items()}))
    return found


def everything(models: Models) -> dict[str, Any]:
    """All that training depends on, flat and copied: tensors as bytes, the rest as it is."""
    model, actor_critic, utilities = models
    optimizers = model.optimizer, actor_critic.actor_optimizer, actor_critic.critic_optimizer
    found: dict[str, Any] = {
        "scale": utilities.scale.state_dict(),
        "ratio": utilities.ratio.state_dict(),
    }
    found |= {f"net {name}": tensor for name, tensor in model.state_dict().items()}
    found |= {f"agent {name}": tensor for name, tensor in actor_critic.state_dict().items()}
    for number, optimizer in enumerate(optimizers):
        for part, values in optimizer.state_dict()["state"].items():
            found |= {f"Adam {number} {part} {name}": value for name, value in values.items()}
    return {
        name: part.numpy().tobytes() if isinstance(part, torch.Tensor) else part
        for name, part in found.items()
    }


def nets(models: Models) -> dict[str, Any]:
    return {
        name: part for name, part in everything(models).items() if name.startswith(("net", "agent"))
    }


def test_an_agent_comes_back_bit_for_bit(trained: Models, other: Models, tmp_path: Path) -> None:
    assert everything(trained) != everything(other)
    save_models(tmp_path / "agent.pt", trained)
    load_models(tmp_path / "agent.pt", other)
    assert everything(trained) == everything(other)
    assert sorted(tmp_path.glob("agent*")) == [tmp_path / "agent.pt"]


def test_it_learns_on_as_the_one_that_was_saved(
    trained: Models, other: Models, tmp_path: Path
) -> None:
    save_models(tmp_path / "agent.pt", trained)
    load_models(str(tmp_path / "agent.pt"), other)
    batch = trained.utilities.replay.sample(REQUEST)
    for models in (trained, other):
        torch.manual_seed(3)
        learning_step(batch, models)
    assert everything(trained) == everything(other)


def test_without_optimizers_only_the_networks_change(
    trained: Models, other: Models, tmp_path: Path
) -> None:
    save_models(tmp_path / "with.pt", trained)
    save_models(tmp_path / "without.pt", trained, include_optimizers=False)
    assert (tmp_path / "without.pt").stat().st_size < 0.6 * (tmp_path / "with.pt").stat().st_size
    before = everything(other)
    for name in ("with.pt", "without.pt"):
        load_models(tmp_path / name, other, include_optimizers=False)
        assert everything(other) == before | nets(trained)


def test_missing_optimizers_are_an_error(trained: Models, other: Models, tmp_path: Path) -> None:
    save_models(tmp_path / "agent.pt", trained, include_optimizers=False)
    before = everything(other)
    with pytest.raises(ValueError, match=r"agent\.pt: .*optimizers.*include_optimizers=False"):
        load_models(tmp_path / "agent.pt", other)
    assert everything(other) == before


def test_the_rates_are_those_of_the_config_and_not_of_the_file(
    trained: Models, tmp_path: Path
) -> None:
    save_models(tmp_path / "agent.pt", trained)
    _, faster = agent(tmp_path / "faster", replace(TINY, world_lr=0.5, actor_eps=0.25))
    load_models(tmp_path / "agent.pt", faster)
    assert everything(faster) == everything(trained)
    assert faster.world_model.optimizer.param_groups[0]["lr"] == 0.5
    assert faster.actor_critic.actor_optimizer.param_groups[0]["eps"] == 0.25


class Code:
    """Unpickled, it makes a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return os.mkdir, (str(self._folder),)


def with_torch(value: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


BAD: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "text": lambda _: b"steps,seconds,mean_return\n",
    "a cut end": lambda data: data[:-1],
    "a half": lambda data: data[: len(data) // 2],
    "a tensor": lambda _: with_torch(torch.zeros(3)),
    "half an agent": lambda _: with_torch({"world_model": {}}),
    "a pickle with code": lambda _: pickle.dumps({"world_model": Code(Path("made"))}),
    "code in an agent": lambda _: with_torch(
        {"world_model": Code(Path("made")), "actor_critic_model": {}}
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_files_that_hold_no_agent_are_refused(trained: Models, tmp_path: Path, what: str) -> None:
    file = tmp_path / "agent.pt"
    save_models(file, trained)
    file.write_bytes(BAD[what](file.read_bytes()))
    before = everything(trained)
    with pytest.raises(ValueError, match=rf"^{re.escape(str(file))}: .*save_models") as error:
        load_models(file, trained)
    assert "\n" not in str(error.value)
    assert everything(trained) == before
    assert not Path("made").exists()


def test_a_flipped_bit_is_noticed(trained: Models, tmp_path: Path) -> None:
    file = tmp_path / "agent.pt"
    save_models(file, trained)
    data = bytearray(file.read_bytes())
    numbers = trained.world_model.rssm.cell.weight.detach().numpy().tobytes()
    data[data.index(numbers)] ^= 1
    file.write_bytes(data)
    before = everything(trained)
    with pytest.raises(ValueError, match=r"agent\.pt: .*save_models.*damaged"):
        load_models(file, trained)
    assert everything(trained) == before


@pytest.mark.parametrize("change", [{"dense": 9}, {"bins": 11}, {"agent_blocks": 2}])
def test_an_agent_of_other_sizes_is_not_loaded(
    trained: Models, tmp_path: Path, change: dict[str, int]
) -> None:
    _, larger = agent(tmp_path / "larger", replace(TINY, **change))
    save_models(tmp_path / "agent.pt", larger)
    before = everything(trained)
    sizes = r"(\(\d.*\)|no such part)"
    with pytest.raises(ValueError, match=rf"agent\.pt: .* \w+\.[\w.]+ {sizes}, got {sizes};"):
        load_models(tmp_path / "agent.pt", trained, include_optimizers=False)
    assert everything(trained) == before


def test_a_file_that_is_not_there_is_named(trained: Models, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.pt"):
        load_models(tmp_path / "none.pt", trained)


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_writer_that_is_stopped_leaves_the_old_file(
    trained: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    file = tmp_path / "agent.pt"
    save_models(file, trained)
    old = file.read_bytes()
    learn(trained, 1)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, call, stop)
        with pytest.raises(KeyboardInterrupt):
            save_models(file, trained)
    assert file.read_bytes() == old
    save_models(
        file, trained, include_optimizers=False
    )  # shorter than the temporary file that was left
    load_models(file, trained, include_optimizers=False)


def test_a_checkpoint_continues_the_same_batches_and_the_same_noise(
    trained: Models, tmp_path: Path
) -> None:
    replay = trained.utilities.replay
    save_checkpoint(trained, {"updates": 3, "seconds": 1.5})
    expected, end = learn(trained, 4), everything(trained)
    replay.close()
    for copy in ("once", "twice"):
        shutil.copytree(tmp_path / "replay", tmp_path / copy)
        torch.manual_seed(77)
        _, again = agent(tmp_path / copy, seed=77)
        with again.utilities.replay:
            assert load_checkpoint(again) == {"updates": 3, "seconds": 1.5}
            found = learn(again, 4)
        for (seen, losses), (wanted, wanted_losses) in zip(found, expected, strict=True):
            np.testing.assert_array_equal(seen, wanted)
            assert losses == wanted_losses
        assert everything(again) == end


def test_the_replay_ratio_is_restored(trained: Models, tmp_path: Path) -> None:
    assert trained.utilities.ratio(63) == 0  # of 60 steps 5 were due; 3 quarters are left
    save_checkpoint(trained, {})
    assert trained.utilities.ratio(70) == 2  # learned from, and then lost
    trained.utilities.replay.close()
    _, again = agent(tmp_path / "replay")
    with again.utilities.replay:
        load_checkpoint(again)
        assert again.utilities.ratio(70) == 2
        assert again.utilities.ratio(72) == 1


def test_a_checkpoint_of_another_agent_is_refused(trained: Models, tmp_path: Path) -> None:
    save_checkpoint(trained, {})
    trained.utilities.replay.close()
    _, wider = agent(tmp_path / "replay", replace(TINY, dense=9))
    before = everything(wider)
    with (
        wider.utilities.replay,
        pytest.raises(
            ValueError, match=r"checkpoint of .*/replay.* \w+\.[\w.]+ \(\d.*\), got \(\d"
        ),
    ):
        load_checkpoint(wider)
    assert everything(wider) == before


def test_without_a_checkpoint_there_is_none(trained: Models) -> None:
    with pytest.raises(StoreNotFound):
        load_checkpoint(trained)


def test_a_damaged_checkpoint_is_an_error(trained: Models, tmp_path: Path) -> None:
    save_checkpoint(trained, {})
    (file,) = (tmp_path / "replay").glob("checkpoint*")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(StoreCorrupt):
        load_checkpoint(trained)
