"""Stores on an object store: uploaded segments, and their readers."""
