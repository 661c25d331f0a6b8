"""A tiny NES game of our own, "Stepwell Test", built from its source: no emulator ships a free one.

    title (blue) --START--> playing (light blue) --no lives left--> game over (red)
                                                 --world_x >= 768--> cleared (green)
    game over, cleared --START--> playing again

The D-pad moves the player by 2 pixels a frame, by 4 with A held; from x = 120 on RIGHT scrolls the
world instead. The enemy crosses the screen leftwards and costs a life on touch. The coin is drawn
on even frames only, as old games flicker, and gives a point on touch, then jumps to a place that a
random generator chooses; that ticks every frame, so a different number of no-ops makes a
different game. SELECT loses a life at once, which tests are glad of.

Program, pictures and map are written in this folder; nothing in them is anybody else's.
"""

from demo_rom.memory import RAM, STATE
from demo_rom.rom import build_rom, game_map, write_demo

__all__ = ["RAM", "STATE", "build_rom", "game_map", "write_demo"]
