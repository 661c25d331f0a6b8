"""Minari's data sets, in its hdf5 and arrow files, without JPEG."""
