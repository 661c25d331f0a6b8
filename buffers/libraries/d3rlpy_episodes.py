"""d3rlpy: a replay as its episodes, and back, where both libraries are installed together."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..base.optional_libraries import load_library
from ..base.untrusted_files import MemoryBudget
from ..curation.episode_writer import EpisodeWriter, check_replay
from ..exchange.formats.d3rlpy import COLUMNS, D3rlpyEncoder, D3rlpyReader
from ..replay.replay import SequenceReplayBuffer
from ..rows.episode import Episode

# d3rlpy's pins would install an older gymnasium than Stepwell needs; it works with the newer one.
_INSTALL = "--no-deps d3rlpy gym==0.26.2, and what else docs/feeding/d3rlpy.md names"


def to_d3rlpy(
    replay: SequenceReplayBuffer,
    *,
    stack: bool = False,
    channels_first: bool = True,
    keep: Callable[[Episode], bool] | None = None,
) -> list[Any]:
    """Convert the episodes of a replay to d3rlpy's.

    ``d3rlpy.dataset.create_infinite_replay_buffer(to_d3rlpy(replay))`` is a data set for
    its learners. The rows are those of the format ``d3rlpy`` of `export_episodes`, in memory: of a
    terminated episode of T steps T rows, of another one T + 1, the last of which holds the final
    observation with an action and a reward of 0, and begins no transition. d3rlpy pins an older
    gymnasium; where the two cannot be installed together, export a file instead.

    Args:
        replay: The replay to read. Episodes without a step are left out.
        stack: Give frame-stacked observations in full; else single frames, of which
            ``d3rlpy.dataset.FrameStackTransitionPicker`` makes stacks.
        channels_first: Give images (H, W, C) of bytes as (C, H, W).
        keep: Only episodes for which this is true.

    Returns:
        ``d3rlpy.dataset.Episode`` objects: rewards [N, 1] float32, actions [N, 1] whole numbers or
        [N, A] floats.

    Raises:
        ValueError: d3rlpy does not support such actions.
        NotEnoughData: The replay is empty.
        ImportError: d3rlpy is not installed.
    """
    check_replay("replay", replay)
    encoder = D3rlpyEncoder(replay.spec, stack, channels_first)
    d3rlpy = load_library("d3rlpy.dataset", "to_d3rlpy", install=_INSTALL, at_least="2.8")
    found: list[Any] = []
    for episode in replay.iter_episodes():
        if episode.steps == 0 or (keep is not None and not keep(episode)):
            continue
        found.append(d3rlpy.Episode(**encoder.columns(episode)))
    return found


def from_d3rlpy(episodes: Any, replay: SequenceReplayBuffer) -> Sequence[str]:
    """Store d3rlpy's episodes in a replay.

    Args:
        episodes: ``d3rlpy.dataset.Episode`` objects, or a data set or buffer of d3rlpy's that has
            them under ``episodes``. Those without a row are left out.
        replay: The replay to write to; bound to such rows here if it is not bound yet.

    Returns:
        Notes on what d3rlpy's episodes lack: streams, the last observations of terminated episodes,
        and the observation after the last row of others.

    Raises:
        SpecMismatch: The replay holds other rows.
        ValueError: There are no episodes, or their rows differ in form; nothing was stored.

    Example:
        >>> import numpy as np
        >>> import stepwell as sw
        >>> class Episode:  # d3rlpy.dataset.Episode has these four
        ...     observations = np.arange(6, dtype=np.float32).reshape(3, 2)
        ...     actions = np.array([[0], [1], [0]])
        ...     rewards = np.ones((3, 1), np.float32)
        ...     terminated = True
        >>> replay = sw.SequenceReplayBuffer()
        >>> notes = from_d3rlpy([Episode()], replay)
        >>> replay.steps, notes[1]
        (3, "last observations of terminated episodes are zeros, 1 in all, as in d3rlpy's own
        transitions, which keep none")
    """
    given = list(getattr(episodes, "episodes", episodes))
    columns = [one for one in map(_columns_of, given) if len(one["rewards"])]
    # The rows are in memory already.
    budget = partial(MemoryBudget, most=sys.maxsize)
    reader = D3rlpyReader(len(columns), columns.__getitem__, "from_d3rlpy", budget)
    reader.check()
    sessions = replay.sessions
    recipe = sessions[0].get("recipe", {}) if sessions else {}
    replay.bind(reader.spec, {"source": "d3rlpy", "recipe": recipe})
    writer = EpisodeWriter(replay)
    for episode in reader:
        writer.add_episode(episode)
    writer.flush()
    return reader.notes


def _columns_of(episode: Any) -> dict[str, Any]:
    def arrays(values: Any) -> Any:
        is_several = isinstance(values, list | tuple)
        return list(map(np.asarray, values)) if is_several else np.asarray(values)

    return {name: arrays(getattr(episode, name)) for name in COLUMNS}
