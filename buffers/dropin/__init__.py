"""Replay classes of other projects, with their signatures, on Stepwell's store.

Import each by name; ``docs/migrate.md`` shows the line to change, what stays the same and which
bugs are corrected:

- `dreamer`, `iris`: those of torchwm,
- `frame_history`: that of CS294 and gym-nes-mario-bros,
- `fishyrl`: those of FishyRL,
- `memmap`: those of memmap-replay-buffer,
- `sb3`: those of Stable-Baselines3.

`transition_writer` is shared: it stores transitions that are added one at a time, and holds the
common part of Dreamer's and IRIS's buffers.
"""
