"""Storages: chunks of rows in order, with an index; in memory, on disk, or several joined."""
