"""Stable-Baselines3: its replay and rollout buffers fed, its models as policies."""
