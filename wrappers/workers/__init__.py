"""Environments that run in worker processes."""
