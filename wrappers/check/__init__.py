"""A check of vector environments against what a Collector relies on."""
