"""A tiny free NES game, "Stepwell Test", built from its source: no emulator includes one.

    title (blue) --START--> playing (light blue) --no lives left--> game over (red)
                                                 --world_x >= 768--> cleared (green)
    game over, cleared --START--> playing again

The D-pad moves the player by 2 pixels a frame, by 4 with A held. From x = 120 on, RIGHT scrolls the
world instead. The enemy crosses the screen to the left and costs a life on contact. The coin is
drawn on even frames only, like the flickering sprites of old games. It gives a point on contact,
and then jumps to a random place. The random generator advances every frame, so a different number
of no-ops makes a different game. SELECT loses a life at once, for tests.

Program, pictures and map were written for this folder; none of them is derived from other games.
"""

from demo_rom.memory import RAM, STATE
from demo_rom.rom import build_rom, write_demo

__all__ = ["RAM", "STATE", "build_rom", "write_demo"]
