"""Drop-in for memmap-replay-buffer: episodes of declared fields, kept in a folder."""
