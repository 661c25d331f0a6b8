"""d3rlpy's HDF5 files, written and read without d3rlpy."""
