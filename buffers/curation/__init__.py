"""Reads, selects, copies and writes whole episodes."""
