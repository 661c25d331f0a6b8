"""A picture of what the world model foresees, beside what came."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import torch

import stepwell as sw

from .agent import Models, rows_of
from .world_model import State

SEEN, FORESEEN = 5, 15  # pictures that the model gets to see, and those that it does not
SIDE = 96  # pixels a picture, at least


@torch.no_grad()
def foresee(models: Models, batch: sw.Batch, seen: int) -> tuple[np.ndarray, np.ndarray]:
    """Pictures that came, and those that the model thinks of.

    Args:
        models: The agent, of an env that shows pictures; the first one counts.
        batch: Sequences [B, T, ...] within episodes.
        seen: The model sees so many rows of each, and then only the actions that were taken.

    Returns:
        Two arrays [B, T, C, H, W] uint8.
    """
    model, rows = models.world_model, rows_of(batch, models)
    embedded = model.encoder(rows.seen)[:, :seen]
    states, _ = model.rssm.observe(embedded, rows.action[:, :seen], rows.is_first[:, :seen])
    state = State(states.hidden[:, -1], states.latent[:, -1])
    features = [*states.features.unbind(1)]
    for action in rows.action[:, seen - 1 : -1].unbind(1):
        state = model.rssm.imagine(state, action)
        features.append(state.features)
    guess = model.decoder(torch.stack(features, 1)).images[0]
    truth, thought = (
        ((pictures + 0.5).clamp(0, 1) * 255).round().byte().cpu().numpy()
        for pictures in (rows.seen.images[0], guess)
    )
    return truth, thought


def draw_foresight(models: Models, replay: sw.SequenceReplayBuffer, path: Path) -> None:
    """Write a picture: above what came, below what the model made of it.

    Left of the line it saw the pictures above, right of it the actions alone.

    Args:
        models: The agent, of an env that shows pictures.
        replay: Three of its sequences, rather recent ones, are looked at.
        path: A file that ends in ".png".
    """
    request = sw.Sequences(3, SEEN + FORESEEN, draw="recent")
    truth, thought = foresee(models, replay.sample(request), SEEN)
    strips = [_strip(pictures) for pair in zip(truth, thought, strict=True) for pictures in pair]
    path.parent.mkdir(parents=True, exist_ok=True)
    encoded = cv2.imencode(".png", np.concatenate(strips))[1]
    path.write_bytes(encoded.tobytes())  # cv2.imwrite would fail without a word


def _strip(pictures: np.ndarray) -> np.ndarray:
    """Pictures [T, C, H, W] beside each other, [H', W', 3] with blue first."""
    factor = -(-SIDE // min(pictures.shape[2:]))
    images = []
    for number, picture in enumerate(pictures):
        channels = picture[::-1] if len(picture) == 3 else picture[-1:].repeat(3, 0)
        image = channels.transpose(1, 2, 0).repeat(factor, 0).repeat(factor, 1)
        image = np.pad(image, ((2, 2), (2, 2), (0, 0)), constant_values=255)
        if number == SEEN:
            image[:, :2] = (0, 0, 255)
        images.append(image)
    return np.concatenate(images, 1)
