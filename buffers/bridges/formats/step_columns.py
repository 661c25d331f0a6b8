"""Episodes as most formats have them: T + 1 observations and T of all else, and back again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from stepwell.buffers.episode import Episode
from stepwell.buffers.spec import Field, Spec

__all__ = ["StepColumns", "frames_of", "joined", "split", "stacks_of"]

_Columns = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepColumns:
    """An episode of T steps, aligned as transitions; arrays by field name, views where possible.

    Args:
        observation: [T + 1, ...]: what each action was chosen from, and the last one. Single frames
            under frame stacking; see `stacks_of`.
        action: [T, ...].
        reward: [T] float64: what each action brought.
        terminated: [T] bool: the MDP ended with this step.
        truncated: [T] bool: the env's clock ended the episode with this step.
        info: [T + 1, ...] by full name (``info/lives``): what came with each observation.
        extra: [T, ...] by full name (``extra/value``): what the policy said beside each action.
        edges: [1, ...] by field name: what has no place above: the reward that came with the first
            row, and what was chosen from the last one. Left out where it is all zeros, which it is
            but for episodes that lost their beginning, or in whose last step a worker died.
    """

    observation: _Columns
    action: _Columns
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    info: _Columns
    extra: _Columns
    edges: _Columns

    @property
    def steps(self) -> int:
        """Number of steps T; 0 for an episode of a single row."""
        return len(self.reward)


def split(episode: Episode) -> StepColumns:
    """An episode's rows as columns of steps.

    Example:
        >>> from stepwell.buffers import End
        >>> names = "observation", "action", "reward"
        >>> fields = tuple(Field(name, "float64", (), "raw") for name in names)
        >>> spec = Spec(fields, "observation", "action")
        >>> rows = {
        ...     "observation": np.arange(3.0),
        ...     "action": np.array([5.0, 6.0, 0.0]),
        ...     "reward": np.array([0.0, 0.5, 1.5]),
        ... }
        >>> columns = split(Episode(spec, 0, 0, 0, End.TERMINATED, rows, {}))
        >>> columns.observation["observation"], columns.action["action"], columns.reward
        (array([0., 1., 2.]), array([5., 6.]), array([0.5, 1.5]))
        >>> columns.terminated, columns.edges
        (array([False,  True]), {})
    """
    fields = episode.fields
    arriving = {name: rows for name, rows in fields.items() if not _is_chosen(name)}
    chosen = {name: rows for name, rows in fields.items() if _is_chosen(name)}
    edges = {"reward": fields["reward"][:1], **{name: rows[-1:] for name, rows in chosen.items()}}
    return StepColumns(
        observation={n: rows for n, rows in arriving.items() if n.split("/")[0] == "observation"},
        action={n: rows[:-1] for n, rows in chosen.items() if n.split("/")[0] == "action"},
        reward=fields["reward"][1:],
        terminated=episode.terminated[1:],
        truncated=episode.truncated[1:],
        info={n: rows for n, rows in arriving.items() if n.startswith("info/")},
        extra={n: rows[:-1] for n, rows in chosen.items() if n.startswith("extra/")},
        edges={name: row for name, row in edges.items() if _has_bits(row)},
    )


def joined(spec: Spec, columns: _Columns, edges: _Columns) -> dict[str, np.ndarray]:
    """All rows of an episode, [T + 1, ...] by field name.

    Args:
        spec: The fields of every row.
        columns: By field name, [T + 1, ...] of what arrives with observations and [T, ...] of what
            is chosen, and of ``reward``.
        edges: As `StepColumns.edges`.
    """
    rows: dict[str, np.ndarray] = {}
    for field in spec.fields:
        column = columns[field.name]
        edge = edges.get(field.name)
        if edge is None:
            edge = np.zeros((1, *field.shape), field.numpy_dtype)
        if field.name == "reward":
            column = np.concatenate([edge, column])
        elif _is_chosen(field.name):
            column = np.concatenate([column, edge])
        rows[field.name] = column
    return rows


def stacks_of(frames: np.ndarray, field: Field, first_row: int = 0) -> np.ndarray:
    """Observations as the env gave them, [T, k, ...], from the frames [T, ...] that are stored.

    Args:
        frames: One frame a row.
        field: The stacked field.
        first_row: Place of the first frame in its episode.

    Returns:
        A view into memory that the frames were copied into, once.

    Raises:
        ValueError: The episode lost its first rows, which the first stacks showed too.

    Example:
        >>> field = Field("observation", "uint8", (1,), "raw", stack=3)
        >>> stacks_of(np.array([[1], [2]], np.uint8), field)[..., 0].tolist()
        [[0, 0, 1], [0, 1, 2]]
    """
    if first_row:
        raise ValueError(
            f"field {field.name!r}: expected episodes from their first row on, got one whose first "
            f"{first_row:,} rows are not stored any more, so that its first stacks are unknown; "
            f"leave it out, or take single frames"
        )
    k = field.stack
    padding = np.zeros((k - 1, *field.shape), frames.dtype)
    if field.stack_padding == "repeat" and len(frames):
        padding[:] = frames[0]
    windows = np.lib.stride_tricks.sliding_window_view(np.concatenate([padding, frames]), k, 0)
    return np.moveaxis(windows, -1, 1)


def frames_of(stacks: np.ndarray, field: Field) -> np.ndarray:
    """The newest frames [T, ...] of stacks [T, k, ...], from which `stacks_of` makes them again.

    Raises:
        ValueError: It does not.
    """
    frames = np.ascontiguousarray(stacks[:, -1])
    if not np.array_equal(stacks_of(frames, field), stacks):
        raise ValueError(
            f"field {field.name!r}: expected stacks of {field.stack} frames, each the one before "
            f"moved on by one frame and padded by {field.stack_padding}, got others; the data set "
            f"was changed since it was exported"
        )
    return frames


def _is_chosen(name: str) -> bool:
    """Whether a field goes with the action, rather than with the observation."""
    return name.split("/")[0] in ("action", "extra")


def _has_bits(row: np.ndarray) -> bool:
    """Whether any bit is set: -0.0 is kept, too."""
    return any(np.ascontiguousarray(row).tobytes())
