"""Live bridges: other libraries learn from a replay, and their rows enter one."""
