"""A check of vector environments against the requirements of a Collector."""
