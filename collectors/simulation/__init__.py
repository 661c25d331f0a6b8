"""Playing stored episodes again: proof of recorded rows, and rows from their actions alone."""
