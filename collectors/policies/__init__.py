"""Policies: protocols, calls, state and exploration."""
