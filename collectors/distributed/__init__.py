"""Collectors whose envs run in other processes, on this machine or on many."""
