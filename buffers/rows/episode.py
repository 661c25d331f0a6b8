"""Episodes, and the chunks in which they are stored."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import cast

import numpy as np

from ..base.number_checks import check_whole
from ..base.other_names import OtherNames
from ..spec.spec import ArrayTree, Spec, unflatten
from .row_memory import Place

RUN_FACTS = ("seed", "session", "stream_episode", "noops", "snapshot")
"""Keys of episodes' metadata that say how to play them again."""

_MOST_SHOWN = 1 << 17  # rows in a curve of a notebook


class End(enum.IntFlag):
    """Flags of the last row of a chunk.

    An episode whose last chunk has neither TERMINATED nor TRUNCATED is ended by a *cut*: only its
    recording stopped. A cut needs no flag, so that a crash leaves one, too.

    Example:
        >>> End.TRUNCATED.is_final, End.PENDING.is_final
        (True, False)
    """

    NONE = 0
    TERMINATED = 1
    TRUNCATED = 2
    PENDING = 4
    """No action was chosen yet: the next chunk of the episode begins with this row again."""
    LOST = 8
    """The chunk's bytes are damaged: it keeps its position, but has no rows."""

    @property
    def is_final(self) -> bool:
        """The environment ended the episode here."""
        return int(self) & 3 != 0  # TERMINATED or TRUNCATED: enums take microseconds for it


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive rows of one episode, stored at once.

    Args:
        episode: Id of the episode, never reused within a store.
        stream: Index of the env that played it.
        first_row: Index of the first row in the episode, 0 for the row of the reset.
        end: Flags of the last row.
        fields: Arrays ``[rows, ...]``, one per field of the Spec.
        metadata: JSON-able facts about the episode, the same in all of its chunks.
        starts_late: The rows before ``first_row`` are lost: this chunk may be the first one of its
            episode. Not stored, as it follows from ``first_row``.
        place: Memory that a storage in RAM may keep instead of copying the rows; None for none.

    Example:
        Two steps are three rows, of which the first is that of the reset:

        >>> fields = {"reward": np.array([0.0, 1.0, 1.0]), "action": np.array([1, 0, 0])}
        >>> chunk = Chunk(episode=0, stream=0, first_row=0, end=End.TERMINATED, fields=fields)
        >>> chunk.rows
        3
        >>> [(part.first_row, part.rows, part.end.name) for part in chunk.split(2)]
        [(0, 2, 'NONE'), (2, 1, 'TERMINATED')]
    """

    episode: int
    stream: int
    first_row: int
    end: End
    fields: Mapping[str, np.ndarray]
    metadata: Mapping[str, object] = field(default_factory=dict[str, object])
    starts_late: bool = False
    place: Place | None = field(default=None, repr=False, compare=False)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(next(iter(self.fields.values())))

    def split(self, max_rows: int) -> list[Chunk]:
        """The same rows in chunks of at most ``max_rows`` each."""
        check_whole("max_rows", max_rows, 1)
        count = self.rows
        if count <= max_rows:
            return [self]
        chunks: list[Chunk] = []
        for start in range(0, count, max_rows):
            stop = min(start + max_rows, count)
            chunks.append(
                Chunk(
                    self.episode,
                    self.stream,
                    self.first_row + start,
                    self.end if stop == count else End.NONE,
                    {name: rows[start:stop] for name, rows in self.fields.items()},
                    self.metadata,
                    self.starts_late and start == 0,
                )
            )
        return chunks


@dataclass(frozen=True, slots=True, repr=False)
class Episode(OtherNames):
    """An immutable run of rows from a reset to its end.

    Row ``t`` holds ``observation[t]``, the reward and flags returned with it, and the action chosen
    from it. So L env steps make L + 1 rows, and the last one has the true final observation.

    Args:
        spec: The fields of a row.
        id: Id of the episode, never reused within a store.
        stream: Index of the env that played it.
        first_row: 0, or the number of leading rows that a full replay has evicted.
        end: Flags of the last row; neither terminated nor truncated means a cut.
        fields: Arrays ``[T, ...]``, one per field of the Spec, in the field's dtype.
        metadata: JSON-able facts: seed, number within the stream, ...

    Example:
        >>> from stepwell.buffers import Field
        >>> field = Field("observation", "float32", (2,), "raw")
        >>> reward = Field("reward", "float64", (), "raw")
        >>> spec = Spec((field, reward), "observation", {})
        >>> rows = {"observation": np.zeros((3, 2), np.float32), "reward": np.array([0, 1, 0.5])}
        >>> episode = Episode(spec, 0, 0, 0, End.TERMINATED, rows, {"seed": 7})
        >>> episode.steps, episode.total_reward, episode.observation.shape
        (2, 1.5, (3, 2))
        >>> episode.is_first.tolist(), episode.terminated.tolist(), episode.cut.tolist()
        ([True, False, False], [False, False, True], [False, False, False])
    """

    spec: Spec
    id: int
    stream: int
    first_row: int
    end: End
    fields: Mapping[str, np.ndarray]
    metadata: Mapping[str, object]

    def __repr__(self) -> str:
        end = "CUT" if not self.end.is_final else (self.end & ~End.PENDING).name
        fields = "; ".join(
            f"{name}: {rows.dtype} {rows.shape}" for name, rows in self.fields.items()
        )
        return (
            f"Episode(id={self.id}, stream={self.stream}, first_row={self.first_row}, "
            f"steps={self.steps}, end={end}, fields=({fields}))"
        )

    def _repr_html_(self) -> str | None:
        from ..pictures.summaries import or_none  # only notebooks need it

        return or_none(self._html)

    def _html(self) -> str:
        from ..pictures.image_fields import ImageField
        from ..pictures.markup import escape, section, sparkline, table
        from ..pictures.summaries import fields_table, films_html

        ends = [each.name for each in (End.TERMINATED, End.TRUNCATED) if each & self.end]
        facts = {
            "stream": str(self.stream),
            "first row": str(self.first_row),
            "steps": self.steps,
            "end": ", ".join(map(str, ends)).lower() or "cut",
            "return": self.total_reward,
            **{
                f"metadata {key}": escape(value) for key, value in islice(self.metadata.items(), 20)
            },
        }

        def read(field: ImageField, count: int) -> tuple[np.ndarray, str]:
            places = np.unique(np.linspace(0, self.rows - 1, count).astype(np.int64))
            which = ", ".join(map(str, (places + self.first_row).tolist()))
            return self.fields[field.name][places], f"rows {which}"

        newest = self.reward[-_MOST_SHOWN:]
        with np.errstate(invalid="ignore", over="ignore"):  # inf and -inf: NaN
            returns = newest.cumsum()
        return section(
            f"{type(self).__name__} {self.id}",
            table(facts.items()),
            sparkline(
                returns,
                f"return of the last {len(newest):,} rows, so far",
                has_caption=True,
            ),
            fields_table(self.fields.items()),
            films_html(self.spec, read),
        )

    @property
    def rows(self) -> int:
        """Number of rows T: one more than the steps."""
        return len(self.reward)

    @property
    def steps(self) -> int:
        """Number of env steps."""
        return self.rows - 1

    @property
    def observation(self) -> ArrayTree:
        """Observations [T, ...]; single frames under frame stacking."""
        return cast("ArrayTree", unflatten(self.spec.observation, self.fields))

    @property
    def action(self) -> ArrayTree:
        """Actions [T, ...]; zeros in a final row, from which none was chosen."""
        return cast("ArrayTree", unflatten(self.spec.action, self.fields))

    @property
    def reward(self) -> np.ndarray:
        """Rewards [T], float64; that of the reset's row is 0."""
        return self.fields["reward"]

    @property
    def is_first(self) -> np.ndarray:
        """[T] bool: the row of the reset."""
        return self._mark(0, self.first_row == 0)

    @property
    def is_last(self) -> np.ndarray:
        """[T] bool: terminated, truncated or cut."""
        return self._mark(-1, True)

    @property
    def terminated(self) -> np.ndarray:
        """[T] bool: the MDP ended here."""
        return self._mark(-1, bool(self.end & End.TERMINATED))

    @property
    def truncated(self) -> np.ndarray:
        """[T] bool: the env's clock ended the episode here."""
        return self._mark(-1, bool(self.end & End.TRUNCATED))

    @property
    def cut(self) -> np.ndarray:
        """[T] bool: only the recording stopped here."""
        return self._mark(-1, not self.end.is_final)

    @property
    def total_reward(self) -> float:
        """The undiscounted return: the sum of all rewards."""
        with np.errstate(invalid="ignore", over="ignore"):  # inf and -inf: NaN
            return float(self.reward.sum())

    def frames(self, field: str | None = None) -> np.ndarray:
        """The pictures of a field of images, one of each row.

        Fields of uint8 ``[H, W]``, ``[H, W, C]`` and ``[C, H, W]`` are images, exactly as they are
        stored; several pictures in a row, as in a stack, are side by side. Bools and other numbers
        are scaled to 0..255. `stepwell.buffers.pictures.image_fields.ImageField` has the rules.

        Args:
            field: Name of the field; None takes the first one, of the observation if it has one.

        Returns:
            uint8 ``[T, H, W]`` for grey, ``[T, H, W, 3]`` for RGB; a view of the rows where they
            are stored so.

        Raises:
            ValueError: The field, or every field, is no image.

        Example:
            >>> from stepwell.buffers import Field
            >>> screen = Field("observation", "uint8", (3, 64, 64), "zstd")
            >>> reward = Field("reward", "float64", (), "raw")
            >>> spec = Spec((screen, reward), "observation", {})
            >>> rows = {"observation": np.zeros((5, 3, 64, 64), np.uint8), "reward": np.zeros(5)}
            >>> Episode(spec, 0, 0, 0, End.TERMINATED, rows, {}).frames().shape
            (5, 64, 64, 3)
        """
        from ..pictures.image_fields import image_field  # few programs need it

        image = image_field(self.spec, field)
        return image.pixels(self.fields[image.name])

    def _mark(self, place: int, value: bool) -> np.ndarray:
        flags = np.zeros(self.rows, np.bool_)
        flags[place] = value
        return flags


def plain_json(metadata: object) -> dict[str, object]:
    """The metadata of an episode as they are read back from a file."""
    if not isinstance(metadata, Mapping):
        raise TypeError(f"metadata: expected a mapping of facts, got {metadata!r}")
    try:
        plain = json.loads(json.dumps(dict(metadata), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"metadata: expected plain JSON values, got {dict(metadata)!r} ({error}); convert "
            f"them first"
        ) from error
    return cast("dict[str, object]", plain)


def checked_facts(metadata: object) -> dict[str, object]:
    """A caller's metadata as read back from a file; keys that Stepwell writes are refused."""
    plain = plain_json(metadata)
    for key in RUN_FACTS:
        if key in plain:
            raise ValueError(
                f"metadata: expected keys other than {', '.join(RUN_FACTS)}, which are written "
                f"with the rows, got {key!r}; choose another name"
            )
    return plain
