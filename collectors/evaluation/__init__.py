"""Whole episodes played with a policy: what they scored, and what they looked like."""
