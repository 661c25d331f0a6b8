"""Addresses of the game's variables."""

from typing import Final

__all__ = ["RAM", "STATE"]

# name -> address in the console's 2 KB of RAM; one byte each, except `ptr`
RAM: Final[dict[str, int]] = {
    "frame_lo": 0x10,  # frames since power-on
    "frame_hi": 0x11,
    "state": 0x12,  # a value of STATE
    "lives": 0x13,
    "score": 0x14,  # coins as a number
    "score_tens": 0x15,  # and as two decimal digits
    "score_ones": 0x16,
    "player_x": 0x17,  # on the screen, in pixels
    "player_y": 0x18,
    "world_x_lo": 0x19,  # how far the world has scrolled, in pixels
    "world_x_hi": 0x1A,
    "enemy_x": 0x1B,
    "enemy_y": 0x1C,
    "coin_x": 0x1D,
    "coin_y": 0x1E,
    "rng": 0x1F,  # an 8-bit LFSR of period 255
    "pad": 0x20,  # buttons that are held: A in bit 7, RIGHT in bit 0
    "pad_new": 0x21,  # buttons that were not held in the last frame
    "pad_prev": 0x22,
    "speed": 0x23,
    "tx": 0x24,  # from here on: scratch
    "ty": 0x25,
    "tile": 0x26,
    "attr": 0x27,
    "ptr": 0x28,  # two bytes
    "hit": 0x2A,
}
STATE: Final[dict[str, int]] = {"title": 0, "playing": 1, "game_over": 2, "cleared": 3}
