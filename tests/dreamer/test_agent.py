"""The whole agent: acting and learning compute equal states, and a saved one goes on the same."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import stepwell as sw

pytest.importorskip("torch", reason="needs PyTorch: pip install 'stepwell[torch]'")

import torch

from dreamer.agent import DreamerPolicy, Models, learning_step, rows_of
from dreamer.checkpoint import load_checkpoint, save_checkpoint, save_models
from dreamer.config import Config
from support.envs.fakes import CounterEnv
from support.libraries.tiny_dreamers import COUNTER, TINY, agent, no_noise

REQUEST = sw.Sequences(40, 12, borders="cross")


class Noted(DreamerPolicy):
    """Stores its state after each row in the replay."""

    def __call__(self, observation: Any, is_first: np.ndarray, state: Any) -> Any:
        action, after = super().__call__(observation, is_first, state)
        known = {"hidden": after["hidden"], "latent": after["posterior"]}
        return action, after, known | {"asked": np.ones(len(is_first), bool)}


def counting_envs(mode: AutoresetMode = AutoresetMode.NEXT_STEP) -> Any:
    makes = [
        partial(CounterEnv, [3, 5, 1], 0),
        partial(CounterEnv, 4, 1, "truncated"),
        partial(CounterEnv, 70, 2),
    ]
    return SyncVectorEnv(makes, autoreset_mode=mode)


def trained(folder: Path | None = None) -> Models:
    """An agent after some learning steps, each of whose parts has moved."""
    envs = sw.make_vec(COUNTER, 2, num_workers=0)
    models = agent(envs, folder)
    with sw.Collector(envs, sw.RandomPolicy(), models.utilities.replay, seed=0) as collector:
        collector.collect(steps=60)
    models.utilities.ratio(60)
    learn(models, 3)
    return models


def untrained(folder: Path | None = None, config: Config = TINY) -> Models:
    return agent(sw.make_vec(COUNTER, 2, num_workers=0), folder, config, seed=77)


def learn(models: Models, steps: int) -> list[dict[str, float]]:
    request = sw.Sequences(4, 6, borders="cross")
    batches = (models.utilities.replay.sample(request) for _ in range(steps))
    found = [learning_step(batch, models) for batch in batches]
    return [{name: loss.item() for name, loss in metrics.items()} for metrics in found]


def saved(models: Models) -> bytes:
    """All that training depends on."""
    save_models("agent.pt", models)
    return Path("agent.pt").read_bytes()


# Acting and learning


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_acting_and_learning_have_the_same_state_at_every_row(mode: AutoresetMode) -> None:
    """`observe` computes from stored rows the states that the policy had when it acted there.

    Under every autoreset mode, for episodes that end and for those that are cut, and no sequence
    joins two runs without a reset. A sequence's first rows may lie within an episode of which the
    agent had seen more, so it is compared from the first reset on.
    """
    models = agent(counting_envs())
    replay = models.utilities.replay
    for steps in (100, 1, 49):
        policy = Noted(models)
        with no_noise(), sw.Collector(counting_envs(mode), policy, replay, seed=0) as collector:
            collector.collect(steps=steps)
    batch, compared = replay.sample(REQUEST), 0
    rows = rows_of(batch, models)
    assert np.array_equal(rows.reward.numpy(), batch.reward)
    assert np.array_equal(rows.terminated.numpy(), batch.terminated)
    with no_noise(), torch.no_grad():
        embedded = models.world_model.encoder(rows.seen)
        states, _ = models.world_model.rssm.observe(embedded, rows.action, rows.is_first)
    for b, t in np.argwhere(batch.is_first.cumsum(1) > 0):
        if batch.extras["asked"][b, t]:
            hidden, latent = states.hidden[b, t].numpy(), states.latent[b, t].numpy()
            assert np.allclose(hidden, batch.extras["hidden"][b, t], atol=1e-4), (b, t)
            assert np.array_equal(latent, batch.extras["latent"][b, t]), (b, t)
            compared += not batch.is_first[b, t]
        else:  # nothing was done at an episode's last row, nor yet at the newest one
            assert batch.is_last[b, t] or t == 11
    assert compared > 80
    with pytest.raises(ValueError, match=r'without padding.*borders="cross"'):
        rows_of(replay.sample(sw.Sequences(40, 12, borders="pad_after")), models)
    assert len({row.tobytes() for row in batch.extras["latent"].reshape(-1, 12)}) > 3


# Files


def test_a_checkpoint_continues_the_same_batches_and_the_same_noise(tmp_path: Path) -> None:
    models = trained(tmp_path / "replay")
    save_checkpoint(models, {"updates": 3, "seconds": 1.5})
    expected, end = learn(models, 4), saved(models)
    models.utilities.replay.close()
    for copy in ("once", "twice"):
        shutil.copytree(tmp_path / "replay", tmp_path / copy)
        again = untrained(tmp_path / copy)
        with again.utilities.replay:
            assert load_checkpoint(again) == {"updates": 3, "seconds": 1.5}
            assert learn(again, 4) == expected
        assert saved(again) == end
