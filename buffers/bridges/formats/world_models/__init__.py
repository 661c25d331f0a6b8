"""IRIS, DIAMOND and DreamerV3: the files that their training code reads."""
