"""The ground of all rooms: errors, numbers, memory, untrusted input, the compiled core."""
