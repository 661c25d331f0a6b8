"""The disk store: a folder of segments that one process writes and many read."""
