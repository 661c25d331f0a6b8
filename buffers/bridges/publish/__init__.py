"""Publishes data sets on the Hugging Face Hub and stores at URLs, and fetches and checks them."""

from .pull import PullReport, pull
from .push import PushReport, push

__all__ = ["PullReport", "PushReport", "pull", "push"]
