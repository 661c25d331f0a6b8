"""Play by a person: the keys, the window, and the loop that records the rows."""
