"""What a game keeps in its RAM: reading a map of it, and following a game by it."""
