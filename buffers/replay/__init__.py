"""The replay, its writer, and on-policy rollouts."""
