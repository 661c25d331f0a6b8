"""Episodes and chunks, and the open episodes that rows are written to."""
