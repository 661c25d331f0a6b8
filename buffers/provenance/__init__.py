"""Proof of recorded rows: chains of episodes that are played again, and archives of actions."""
