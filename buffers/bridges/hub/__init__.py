"""Data sets on the Hugging Face Hub: published with a card, and fetched with every byte checked."""

from stepwell.buffers.bridges.hub.pull import PullReport, pull
from stepwell.buffers.bridges.hub.push import PushReport, push

__all__ = ["PullReport", "PushReport", "pull", "push"]
