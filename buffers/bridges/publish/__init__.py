"""Data sets on the Hugging Face Hub: published with a card, and fetched with every byte checked."""

from .pull import PullReport, pull
from .push import PushReport, push

__all__ = ["PullReport", "PushReport", "pull", "push"]
