"""The predictions of the Dreamer example's model, and the picture of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

import stepwell as sw

pytest.importorskip("torch", reason="needs PyTorch: pip install 'stepwell[torch]'")

import torch

from dreamer import foresee as module
from dreamer.agent import Models
from dreamer.catch import ID
from dreamer.foresee import FORESEEN, SEEN, draw_foresight, foresee
from support.libraries.tiny_dreamers import agent, no_noise

LENGTH, KNOWN = 9, 4


@pytest.fixture
def models() -> Models:
    envs = sw.make_vec(ID, num_envs=2, num_workers=0)
    models = agent(envs.single_observation_space, envs.single_action_space)
    with sw.Collector(envs, sw.RandomPolicy(), models.utilities.replay, seed=0) as collector:
        collector.collect(episodes=3)
    return models


@pytest.fixture
def batch(models: Models) -> sw.Batch:
    return models.utilities.replay.sample_sequences(2, LENGTH)


def thoughts(models: Models, batch: sw.Batch) -> np.ndarray:
    with no_noise():
        return foresee(models, batch, KNOWN)[1]


def changed(batch: sw.Batch, name: str, row: int) -> sw.Batch:
    rows: Any = getattr(batch, name).copy()
    rows[:, row] = 255 - rows[:, row] if name == "observation" else (rows[:, row] + 1) % 3
    return replace(batch, **{name: rows})


def test_what_came_is_shown_as_it_came(models: Models, batch: sw.Batch) -> None:
    truth, thought = foresee(models, batch, KNOWN)
    assert np.array_equal(truth, batch.observation.transpose(0, 1, 4, 2, 3))
    assert thought.shape == truth.shape
    assert thought.dtype == np.uint8


def test_it_is_what_stepping_the_model_by_hand_gives(models: Models, batch: sw.Batch) -> None:
    model, (observations, actions) = models.world_model, (models.utilities.observations, None)
    actions = models.utilities.actions.from_env(batch.action, 2)
    with no_noise(), torch.no_grad():
        state, done, expected = model.rssm.initial(2), torch.zeros(2, 3), []
        for t in range(LENGTH):
            if t < KNOWN:
                seen = model.encoder(observations(batch.observation[:, t]))
                state, _ = model.rssm.look(state, done, seen)
            else:
                state = model.rssm.imagine(state, done)
            expected.append((model.decoder(state.features).images[0] + 0.5).clamp(0, 1) * 255)
            done = actions[:, t]
    difference = thoughts(models, batch) - torch.stack(expected, 1).numpy()
    assert abs(difference).max() <= 0.5 + 1e-3


@pytest.mark.parametrize("row", range(LENGTH))
def test_rows_that_are_not_observed_depend_on_the_actions_alone(
    models: Models, batch: sw.Batch, row: int
) -> None:
    before = thoughts(models, batch)
    moved = (thoughts(models, changed(batch, "observation", row)) != before).any((0, 2, 3, 4))
    assert not moved[:row].any()
    assert moved[row:].any() == (row < KNOWN)
    moved = (thoughts(models, changed(batch, "action", row)) != before).any((0, 2, 3, 4))
    assert not moved[: row + 1].any()
    assert moved[row + 1 :].any() == (row < LENGTH - 1)


def test_the_picture_shows_three_sequences_above_what_was_made_of_them(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    truth = np.zeros((3, SEEN + FORESEEN, 1, 32, 32), np.uint8)
    truth[1, 7, 0, 3, 4] = 200
    monkeypatch.setattr(module, "foresee", lambda *arguments: (truth, 255 - truth))
    draw_foresight(models, models.utilities.replay, tmp_path / "seen.png")
    picture = cv2.imread(str(tmp_path / "seen.png"))
    assert picture is not None
    assert picture.shape == (6 * 100, 20 * 100, 3)  # 32 pixels three times, and a border of two
    assert (picture[202 + 9 : 202 + 12, 702 + 12 : 702 + 15] == 200).all()
    assert (picture[302 + 9 : 302 + 12, 702 + 12 : 702 + 15] == 55).all()
    assert (picture[:, 500:502] == (0, 0, 255)).all()  # from here on it saw none
    assert (picture == (0, 0, 255)).all(-1).sum() == 2 * 600


def test_colours_stay_what_they_are(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    red = np.zeros((3, SEEN + FORESEEN, 3, 40, 30), np.uint8)
    red[:, :, 0] = 255
    monkeypatch.setattr(module, "foresee", lambda *arguments: (red, red))
    draw_foresight(models, models.utilities.replay, tmp_path / "red.png")
    picture = cv2.imread(str(tmp_path / "red.png"))
    assert picture is not None
    assert picture.shape == (6 * (160 + 4), 20 * (120 + 4), 3)
    assert (picture[2:162, 2:122] == (0, 0, 255)).all()  # blue first
