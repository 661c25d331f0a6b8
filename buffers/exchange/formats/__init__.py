"""File formats of data sets: each is written, read, or both."""
