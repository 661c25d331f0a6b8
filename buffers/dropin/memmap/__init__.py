"""Drop-in for memmap-replay-buffer: episodes of typed fields in a folder.

Names and behaviour are those of the original's description; docs/migrate.md lists the differences.
"""

from .original import OriginalEpisode, OriginalFolder
from .replay_buffer import ReplayBuffer

__all__ = ["OriginalEpisode", "OriginalFolder", "ReplayBuffer"]
