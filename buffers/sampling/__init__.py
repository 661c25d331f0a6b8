"""Requests for batches, the ways to draw them from stored episodes, and their forms."""
