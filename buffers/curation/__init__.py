"""Whole episodes from store to store: read, chosen, copied, written."""
