"""Replay classes that people already call, with their signatures, on Stepwell's store.

To import, each by its own name; ``docs/migrate.md`` tells which line to change, what stays the
same, and what is right now:

- `dreamer`, `planet`, `iris`: those of torchwm,
- `frame_history`: that of CS294 and gym-nes-mario-bros,
- `fishyrl`: those of FishyRL,
- `memmap`: those of memmap-replay-buffer.

The other modules are what these are made of. Rows of steps that come one at a time:
`transition_writer`, `ring`, `declared`, `flags`; of Dreamer and IRIS: `image_ring`, `drawn`,
`shortage`, `step_memory`, `iris_on_policy`, `observations_by_age`; of PlaNet: `planet_rows`; of
frame histories: `channel_stacks`; of FishyRL: `fishyrl_vectorized`, `arrival_rows`, `snapshot`.
"""
