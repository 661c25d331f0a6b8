"""The fields of a row, and the spaces that they come from."""
