"""A small DreamerV3 on Stepwell."""
