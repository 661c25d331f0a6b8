"""Publishes data sets on the Hugging Face Hub and stores at URLs, and fetches and checks them."""

from ...exchange.publish.pull import PullReport, pull
from ...exchange.publish.push import PushReport, push

__all__ = ["PullReport", "PushReport", "pull", "push"]
