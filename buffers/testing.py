"""Checks that a storage, or a format, of your own can run in its own test suite.

The checks need neither pytest nor hypothesis. Each raises an `AssertionError` that says what was
expected and what was found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from stepwell.buffers.bridges.formats.exporting import ExportReport, export_episodes
from stepwell.buffers.bridges.formats.format import Format
from stepwell.buffers.bridges.formats.importing import ImportReport, import_episodes
from stepwell.buffers.curation.episode_writer import EpisodeWriter
from stepwell.buffers.episode import End, Episode
from stepwell.buffers.replay import SequenceReplayBuffer
from stepwell.buffers.spec import FieldKind

__all__ = ["assert_same_steps", "check_format"]


# --- formats --------------------------------------------------------------------------------------


def check_format(
    format_: Format | str,
    out: Path,
    replay: SequenceReplayBuffer | None = None,
    *,
    export_options: Mapping[str, object] | None = None,
    import_options: Mapping[str, object] | None = None,
    shown: Callable[[np.ndarray], np.ndarray] | None = None,
    has_final_observation: bool = False,
) -> tuple[ExportReport, ImportReport, SequenceReplayBuffer]:
    """Export a replay, import the data set, and compare the steps.

    The same episodes must come back, in the order of each stream, with the same observations,
    actions and rewards, and with the same episodes terminated. A format may lack the observation
    after the last action, may round rewards to float32, and may leave out episodes without a step.
    Of an episode that is not terminated it may lack what the last action led to.

    Args:
        format_: The format, or its name.
        out: Path of the new data set.
        replay: Episodes to export; by default three of pictures, of 1 to 4 steps.
        export_options: Options for the export.
        import_options: Options for the import.
        shown: Converts the rows [T, ...] of an observation to the shape that the format gives.
        has_final_observation: Also compare the observation after the last action.

    Returns:
        Both reports, and the replay that was imported.

    Raises:
        AssertionError: Something else came back.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     exported, imported, back = check_format("npz", Path(folder) / "out")
        >>> imported.episodes, back.steps
        (3, 8)
    """
    replay = _small_replay() if replay is None else replay
    plan = export_episodes(replay, format_, out, options=export_options, dry_run=True)
    assert not plan.path.exists(), f"{plan.path}: expected nothing after a dry run, got a data set"
    exported = export_episodes(replay, format_, out, options=export_options)
    assert exported.path.exists(), f"{exported.path}: expected a data set, got nothing"
    counts = (exported.episodes, exported.steps), (plan.chosen_episodes, plan.chosen_steps)
    assert counts[0] == counts[1], f"export: expected {counts[1]} episodes and steps, got {counts}"
    back = SequenceReplayBuffer()
    imported = import_episodes(format_, out, back, options=import_options)
    assert_same_steps(back, replay, shown=shown, has_final_observation=has_final_observation)
    return exported, imported, back


def assert_same_steps(
    back: SequenceReplayBuffer,
    replay: SequenceReplayBuffer,
    *,
    shown: Callable[[np.ndarray], np.ndarray] | None = None,
    has_final_observation: bool = False,
) -> None:
    """Compare imported episodes with those that were exported; see `check_format`.

    Raises:
        AssertionError: They differ.
    """
    found = list(back.iter_episodes())
    expected = [episode for episode in replay.iter_episodes() if episode.steps]
    if len(found) != len(expected):
        found = [episode for episode in found if episode.steps]
    if len({episode.stream for episode in found}) > 1:  # may come one stream after the other
        found, expected = _by_stream(found), _by_stream(expected)
    counts = len(found), len(expected)
    assert counts[0] == counts[1], f"expected {counts[1]} episodes with a step, got {counts[0]}"
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        _compare(one, other, f"episode {number}", shown, has_final_observation)


def _compare(
    found: Episode,
    expected: Episode,
    where: str,
    shown: Callable[[np.ndarray], np.ndarray] | None,
    has_final_observation: bool,
) -> None:
    steps, known = expected.steps, min(found.rows, expected.rows)
    is_whole = found.rows == expected.rows
    is_short = found.rows == steps and not has_final_observation and found.end is End.NONE
    assert is_whole or is_short, f"{where}: expected {steps} steps, got {found.steps}"
    terminated = bool(found.end & End.TERMINATED), bool(expected.end & End.TERMINATED)
    assert terminated[0] == terminated[1], f"{where}: expected terminated={terminated[1]}"
    observed = known if has_final_observation else steps
    parts: dict[FieldKind, slice] = {"observation": slice(observed), "action": slice(steps)}
    for kind, rows in parts.items():
        fields = found.spec.of_kind(kind), expected.spec.of_kind(kind)
        assert len(fields[0]) == len(fields[1]), f"{where}: expected as many fields of {kind}"
        names = {field.name for field in fields[0]}
        for field, other in zip(*fields, strict=True):
            name = other.name if other.name in names else field.name
            theirs, ours = found.fields[name][rows], expected.fields[other.name][rows]
            if kind == "observation" and shown is not None:
                ours = shown(ours)
            _assert_equal_rows(theirs, ours, f"{where}: {other.name}", other.stack)
    rewards = found.reward[1:known], expected.reward[1:known]
    with np.errstate(over="ignore"):
        rounded = rewards[1].astype(np.float32).astype(np.float64)
    is_same = np.array_equal(*rewards) or np.array_equal(rewards[0], rounded)
    assert is_same, f"{where}: expected rewards {rewards[1]}, got {rewards[0]}"


def _assert_equal_rows(found: np.ndarray, expected: np.ndarray, where: str, stack: int) -> None:
    rows = len(expected)
    theirs, ours = found.reshape(rows, -1), expected.reshape(rows, -1)
    if ours.shape[1] and theirs.shape[1] == stack * ours.shape[1]:  # whole stacks, newest last
        theirs = theirs[:, -ours.shape[1] :]
    with np.errstate(over="ignore"):
        ours = ours.astype(found.dtype)
    assert np.array_equal(theirs, ours), f"{where}: expected {ours}, got {theirs}"


def _by_stream(episodes: list[Episode]) -> list[Episode]:
    """One stream after the other, as they first appear."""
    order = list(dict.fromkeys(episode.stream for episode in episodes))
    return sorted(episodes, key=lambda episode: order.index(episode.stream))


def _small_replay() -> SequenceReplayBuffer:
    """Three episodes of pictures, of 1, 3 and 4 steps: terminated, truncated and cut."""
    replay = SequenceReplayBuffer()
    writer = EpisodeWriter(replay, source="check_format")
    rng = np.random.default_rng(0)
    for number, steps in enumerate((1, 3, 4)):
        writer.add_arrays(
            {
                "observation": rng.integers(0, 256, (steps + 1, 16, 16, 3), np.uint8),
                "action": rng.integers(0, 4, steps),
                "reward": rng.normal(size=steps).astype(np.float32),
            },
            terminated=number == 0,
            truncated=number == 1,
        )
    writer.flush()
    return replay
