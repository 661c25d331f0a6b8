"""NES consoles: one protocol, and the emulators behind it."""
