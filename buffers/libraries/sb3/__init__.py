"""Stable-Baselines3: replay and rollout buffers for its models, and its models as policies."""
