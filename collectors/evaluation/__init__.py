"""Evaluation: play whole episodes with a policy, score them, and record videos."""
