"""Writes a Minari data set."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from stepwell.buffers.bridges.formats.format import Source
from stepwell.buffers.bridges.formats.minari.files import (
    INSTALL,
    ArrowFiles,
    EpisodeColumns,
    Hdf5File,
    MinariFiles,
)
from stepwell.buffers.bridges.formats.minari.names import dataset_id, namespaces_of
from stepwell.buffers.bridges.formats.minari.options import MinariExport
from stepwell.buffers.bridges.formats.minari.spaces import KnownEnv, RowSpaces, known_env
from stepwell.buffers.bridges.formats.record import Beside, episode_facts
from stepwell.buffers.bridges.optional_libraries import load_library
from stepwell.buffers.curation.step_columns import StepColumns, split, stacks_of
from stepwell.buffers.episode import Episode
from stepwell.buffers.spec import Field, Layout, Spec, unflatten

__all__ = ["MinariWriter"]

# That of the layout written here: older ones take every image for a JPEG.
_MINARI_VERSION: Final = "0.5.4"
_UNFINISHED: Final = "unfinished"
_NAMESPACE_FILE: Final = "namespace_metadata.json"


class MinariWriter:
    """Writes one data set; see `Writer`.

    Args:
        source: What is to be written.
        options: How.

    Raises:
        ValueError: Minari's files cannot hold such rows, or an option makes no sense.
        ImportError: Minari, or what the chosen files need, is not installed.
    """

    def __init__(self, source: Source, options: MinariExport) -> None:
        self._serialization = load_library(
            "minari.serialization",
            "format minari",
            install=INSTALL,
            package="minari",
            at_least=_MINARI_VERSION,
        )
        self._source = source
        self._options = options
        is_hdf5 = options.data_format == "hdf5"
        self._files: MinariFiles = (Hdf5File if is_hdf5 else ArrowFiles)(options.compress)
        _check_fields(source.spec, is_hdf5)
        self._known: KnownEnv | None = None
        if options.env is not None:
            self._known = known_env(source.spec, source.sessions, options.env)
        self._spaces = RowSpaces(source.spec, options.stack)
        self._path = Path()
        self._place = 0  # among all episodes
        self._episodes = self._steps = 0  # that Minari sees
        self._cuts = self._stepless = 0

    @property
    def notes(self) -> Sequence[str]:
        """What the data set's user should know."""
        found = [self._space_note(), *self._stack_notes()]
        if self._cuts:
            found.append(
                f"{_counted(self._cuts)} cut by the end of the recording: marked as truncated in "
                f"the last step, as Minari's own collector does it"
            )
        if self._stepless:
            found.append(
                f"{_counted(self._stepless)} without a step: kept beside the data set, where "
                f"Minari does not see it"
            )
        return [note for note in found if note]

    def begin(self, path: Path) -> None:
        """Make the folders."""
        self._path = path
        Beside(path / Beside.NAME).begin(self._source)
        # Minari takes a folder with "data" in it for a data set, and trips over its odd name.
        (path / _UNFINISHED).mkdir()
        self._files.begin(path / _UNFINISHED)

    def write(self, episode: Episode) -> None:
        """Write an episode."""
        if episode.steps == 0:  # Minari could not read it back
            Beside(self._path / Beside.NAME).put(self._place, episode, episode.fields)
            self._stepless += 1
        else:
            columns = split(episode)
            self._spaces.look({**columns.observation, **columns.action})
            self._files.put(self._episodes, self._columns(episode, columns))
            self._episodes += 1
            self._steps += episode.steps
            self._cuts += not episode.end.is_final
        self._place += 1

    def finish(self) -> None:
        """Write what is known in the end, and let Minari see it."""
        self._files.close()
        folder = self._path / _UNFINISHED
        part = self._path.parent
        target = part.with_name(part.name.removesuffix(".part"))
        id_ = dataset_id(target, self._options.root)
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        metadata = json.dumps(self._metadata(id_, size / 1e6))
        (folder / "metadata.json").write_text(metadata, encoding="utf-8")
        self._make_namespaces(target, id_)
        folder.rename(self._path / "data")

    def close(self) -> None:
        """Let the file go."""
        self._files.close()

    def _columns(self, episode: Episode, columns: StepColumns) -> EpisodeColumns:
        spec = self._source.spec
        observations = dict(columns.observation)
        for name, rows in observations.items():
            if self._options.stack and spec[name].stack > 1:
                observations[name] = stacks_of(rows, spec[name], episode.first_row)
        truncated = columns.truncated
        if not episode.end.is_final:
            truncated = truncated.copy()
            truncated[-1] = True
        infos = {name.removeprefix("info/"): rows for name, rows in columns.info.items()}
        extras = {name: episode.fields[name] for name in columns.extra}
        return EpisodeColumns(
            observations=unflatten(spec.observation, observations),
            actions=unflatten(spec.action, columns.action),
            rewards=columns.reward,
            terminations=columns.terminated,
            truncations=truncated,
            infos={**infos, **extras},
            facts=episode.metadata,
            record={"facts": episode_facts(episode), "edges": _edges_as_json(columns.edges)},
        )

    def _metadata(self, id_: str, megabytes: float) -> dict[str, object]:
        """What stands in ``metadata.json``; Minari knows the keys."""
        options, known = self._options, self._known
        observation = self._spaces.observation(None if known is None else known.observation)
        action = self._spaces.action(None if known is None else known.action)
        serialized = self._serialization.serialize_space
        told = {
            "env_spec": None if known is None else known.env_spec,
            "author": options.author and [options.author],
            "author_email": options.author_email and [options.author_email],
            "code_permalink": options.code_permalink,
            "algorithm_name": options.algorithm_name,
            "description": options.description,
            "requirements": options.requirements and _parts(options.requirements),
        }
        return {
            "dataset_id": id_,
            "minari_version": _MINARI_VERSION,
            "data_format": options.data_format,
            "jpeg_encoding": False,
            "total_episodes": self._episodes,
            "total_steps": self._steps,
            "dataset_size": round(megabytes, 1),
            "observation_space": serialized(observation),
            "action_space": serialized(action),
            **{key: value for key, value in told.items() if value},
        }

    def _make_namespaces(self, target: Path, id_: str) -> None:
        """Mark the folders between the root and the data set as Minari does."""
        root = target.absolute().parents[id_.count("/")]
        for namespace in namespaces_of(id_):
            file = root / namespace / _NAMESPACE_FILE
            if not file.exists():
                file.write_text("{}", encoding="utf-8")

    def _space_note(self) -> str:
        if self._known is not None:
            return self._known.note
        return (
            "the env's spaces are not known: their bounds are those of dtypes, and actions are "
            "those that were seen; give the option env where Gymnasium has the env"
        )

    def _stack_notes(self) -> list[str]:
        return [
            f"{field.name} holds single frames: the env gave stacks of {field.stack}"
            for field in self._source.spec.fields
            if field.stack > 1 and not self._options.stack
        ]


def _edges_as_json(edges: Mapping[str, np.ndarray]) -> dict[str, str]:
    """Single rows as JSON can hold them, bit for bit: the reader knows dtypes and shapes."""
    return {name: np.ascontiguousarray(row).tobytes().hex() for name, row in edges.items()}


def _counted(episodes: int) -> str:
    return f"{episodes:,} episode{'s' * (episodes > 1)}"


def _parts(words: str) -> list[str]:
    return [word.strip() for word in words.split(",")]


def _check_fields(spec: Spec, is_hdf5: bool) -> None:
    """Refuse rows that Minari's files cannot hold.

    Raises:
        ValueError: Such a field, by its name.
    """
    for field in spec.fields:
        why = _why_not(field) or (_why_not_hdf5 if is_hdf5 else _why_not_arrow)(field, spec)
        if why:
            raise ValueError(f"field {field.name!r}: {why}")


def _why_not(field: Field) -> str:
    """What keeps a field out; empty where nothing does."""
    if field.numpy_dtype.kind not in "biuf":
        return f"expected whole numbers, floats or bool, got {field.dtype}; leave it out"
    if field.name.startswith("info/extra/"):
        return "expected another name, as policy extras stand under infos as extra: rename it"
    return ""


def _why_not_arrow(field: Field, spec: Spec) -> str:
    return "arrow has no columns of nothing: choose data_format=hdf5" if 0 in field.shape else ""


def _why_not_hdf5(field: Field, spec: Spec) -> str:
    if field.name.startswith(("info/", "extra/")):
        if any(other.name.startswith(f"{field.name}/") for other in spec.fields):
            return "HDF5 cannot hold it beside fields below it: choose data_format=arrow"
        return ""
    keys = [*_keys(spec.observation), *_keys(spec.action)]
    strange = [key for key in keys if "/" in key or key in ("", ".")]
    if strange:
        return f"HDF5 cannot hold the key {strange[0]!r}: choose data_format=arrow, or rename it"
    return ""


def _keys(layout: Layout) -> Iterator[str]:
    """All keys of Dict spaces."""
    if isinstance(layout, Mapping):
        yield from layout
        for part in layout.values():
            yield from _keys(part)
    elif not isinstance(layout, str):
        for part in layout:
            yield from _keys(part)
