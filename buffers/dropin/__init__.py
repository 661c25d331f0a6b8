"""Replay classes that people already call, with their signatures, on Stepwell's store.

Each module stands for one of them and is imported by its own name; ``docs/migrate.md`` tells which
line to change, what stays the same, and what is right now.
"""
