"""A picture of the world model's predictions and the true images."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import torch

import stepwell as sw

from .agent import Models, rows_of
from .world_model import State

SEEN, FORESEEN = 5, 15  # images that the model receives, and images that it predicts
SIDE = 96  # minimum pixels per side of an image


@torch.no_grad()
def foresee(models: Models, batch: sw.Batch, seen: int) -> tuple[np.ndarray, np.ndarray]:
    """Return true images, and those that the model predicts.

    Args:
        models: The agent, of an env with image observations; the first image is used.
        batch: Sequences [B, T, ...] within episodes.
        seen: Number of rows that the model receives; after them, it receives only the actions.

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
    truth, predicted = (
        ((pictures + 0.5).clamp(0, 1) * 255).round().byte().cpu().numpy()
        for pictures in (rows.seen.images[0], guess)
    )
    return truth, predicted


def draw_foresight(models: Models, replay: sw.SequenceReplayBuffer, path: Path) -> None:
    """Draw true images above the model's predictions, in a file.

    Left of the line, the model received the images; right of it, only the actions.

    Args:
        models: The agent, of an env with image observations.
        replay: Three of its sequences are drawn, with a preference for recent ones.
        path: A file that ends in ".png".
    """
    request = sw.Sequences(3, SEEN + FORESEEN, draw="recent")
    truth, predicted = foresee(models, replay.sample(request), SEEN)
    strips = [_strip(pictures) for pair in zip(truth, predicted, strict=True) for pictures in pair]
    path.parent.mkdir(parents=True, exist_ok=True)
    encoded = cv2.imencode(".png", np.concatenate(strips))[1]
    path.write_bytes(encoded.tobytes())  # cv2.imwrite would fail silently


def _strip(pictures: np.ndarray) -> np.ndarray:
    """Join images [T, C, H, W] side by side, [H', W', 3] in BGR."""
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
