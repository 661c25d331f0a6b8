"""Data sets of a catalogue: made again once, in the user's cache, and opened from there."""

from __future__ import annotations

import hashlib
import math
import os
import shutil
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...buffers import DiskStorage, RowsDiffer, SequenceReplayBuffer, StoreLocked, Unprovable
from ...buffers.base.number_checks import check_whole
from ...buffers.base.progress import Progress
from ...buffers.base.untrusted_json import mapping_of
from ...buffers.curation.stored_episode import stored_episodes
from ...buffers.provenance.archive_file import archived_ids, opened
from ..simulation.archive import RestoreReport, restore_checked
from ..simulation.guard import recorded_id
from ..simulation.remake import changed_since
from .index import Dataset, checked_name, file_of, find_dataset, read_index, write_entry

if TYPE_CHECKING:
    from ...wrappers.nes.env import Rom
    from ..simulation.remake import EnvSource

CACHE = "STEPWELL_CACHE"
"""The variable that names another folder for the cache."""

_WAIT_SECONDS = 0.1
_SPARE_BYTES = 1 << 20
_SAMPLE_SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetCheck:
    """The result of `check_dataset`.

    Args:
        name: Name of the data set.
        episodes: Episodes that were played.
        steps: Env steps that were played.
        is_equal: Every row of them was as in the catalogue.
        why: What was not; empty where nothing was.
        changed: Versions that are others than those it was made with: "ale-py 0.12.1, now 0.13".
    """

    name: str
    episodes: int
    steps: int
    is_equal: bool
    why: str
    changed: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return {**asdict(self), "changed": list(self.changed)}


def list_datasets(index: str | os.PathLike[str] | None = None) -> list[Dataset]:
    """The data sets of a catalogue, by name.

    Args:
        index: The index of another catalogue than Stepwell's own.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is no index.

    Example:
        >>> {one.name: one.steps for one in list_datasets()}["cartpole/expert"]
        10000
    """
    found = read_index(index)
    return [found[name] for name in sorted(found)]


def load_dataset(
    name: str,
    *,
    index: str | os.PathLike[str] | None = None,
    seed: int | None = None,
    lanes: int | None = None,
    env: EnvSource | None = None,
    rom: Rom | None = None,
    progress: Progress[int, int] = None,
) -> SequenceReplayBuffer:
    """Open a data set of the catalogue, which is made on this machine when it is first asked for.

    Nothing is downloaded. Its archive has seeds and actions: the env plays them, and every row is
    compared with the archive's checksums. The store appears in the cache when all of it is there
    and is equal. Of several processes that ask for it, one makes it, and the others wait.

    The cache is the folder in the variable ``STEPWELL_CACHE``; without it ``stepwell`` in
    ``XDG_CACHE_HOME``, or in ``~/.cache`` (``~/Library/Caches`` on macOS).

    Args:
        name: Its name: `list_datasets` and ``stepwell datasets`` have all of them.
        index: The index of another catalogue than Stepwell's own: a TOML file.
        seed: Seed of the replay's own generator.
        lanes: Episodes to play at a time; as in `resimulate`.
        env: How to make one env, where the archive does not say it; as in `resimulate`.
        rom: The cartridge of a NES game that the catalogue does not have; as in `resimulate`.
        progress: As in `restore`.

    Returns:
        The replay, which can only be read.

    Raises:
        ValueError: There is no such data set, the index is none, the archive is not the one of the
            index, or the env cannot be made again.
        ImportError: A package is missing that the env needs.
        RowsDiffer: The env shows other rows here.
        Unprovable: An episode cannot be played again.
        OSError: The disk is full, or a file cannot be read or written.

    Example:
        >>> import stepwell as sw
        >>> with sw.load_dataset("cartpole/expert", lanes=1) as replay:
        ...     batch = replay.sample_sequences(16, length=8)
        >>> batch.observation.shape
        (16, 8, 4)
    """
    entry = find_dataset(name, index)
    folder = cache_folder() / "datasets" / f"{entry.name}-{entry.sha256[:16]}"
    while not DiskStorage.exists(folder):
        try:
            make_dataset(
                entry, folder, index=index, lanes=lanes, env=env, rom=rom, progress=progress
            )
        except StoreLocked:  # another process makes it
            time.sleep(_WAIT_SECONDS)
        except ValueError:
            if not DiskStorage.exists(folder):  # else another process has just made it
                raise
    return SequenceReplayBuffer.open(folder, read_only=True, seed=seed)


def make_dataset(
    entry: Dataset,
    folder: Path,  # new or empty; it is whole in the end, or absent
    *,
    index: str | os.PathLike[str] | None = None,
    lanes: int | None = None,
    env: EnvSource | None = None,
    rom: Rom | None = None,
    progress: Progress[int, int] = None,
) -> RestoreReport:
    """Make a data set again in a folder, and prove every row; raises as `load_dataset`."""
    archive, rom = _checked_files(entry, index, rom)
    entry.load_extra()
    parent = next(each for each in folder.absolute().parents if each.exists())
    free = shutil.disk_usage(parent).free
    if free < entry.store_bytes + _SPARE_BYTES:
        raise OSError(
            f"{folder}: the data set {entry.name} takes {entry.store_bytes:,} bytes, and the disk "
            f"has {free:,} left: make room, or choose another folder"
        )
    with SequenceReplayBuffer(folder) as target:
        return restore_checked(
            archive, target, digest=entry.digest, lanes=lanes, env=env, rom=rom, progress=progress
        )


def check_dataset(
    name: str,
    *,
    index: str | os.PathLike[str] | None = None,
    sample: int = 2,
    lanes: int | None = None,
    env: EnvSource | None = None,
    rom: Rom | None = None,
    progress: Progress[int, int] = None,
) -> DatasetCheck:
    """Play some episodes of a data set, to see whether its env shows the same rows here.

    Nothing is stored. It tests this machine's emulators and packages: ``changed`` names the
    versions that are others than those with which the data set was made.

    Args:
        name: Its name.
        index: The index of another catalogue than Stepwell's own.
        sample: Episodes to play, drawn at random, the same ones each time.
        lanes: Episodes to play at a time; as in `resimulate`.
        env: How to make one env; as in `load_dataset`.
        rom: The cartridge of a NES game; as in `load_dataset`.
        progress: As in `restore`.

    Raises:
        ValueError: As in `load_dataset`.
        ImportError: A package is missing that the env needs.

    Example:
        >>> check_dataset("cartpole/random", lanes=1).is_equal
        True
    """
    check_whole("sample", sample, 1)
    entry = find_dataset(name, index)
    archive, rom = _checked_files(entry, index, rom)
    entry.load_extra()
    ids = archived_ids(archive)
    rng = np.random.default_rng(_SAMPLE_SEED)
    chosen = rng.choice(ids, min(sample, len(ids)), replace=False).tolist()
    played, why = 0, ""
    try:
        report = restore_checked(
            *(archive, SequenceReplayBuffer()),
            **{"episodes": chosen, "lanes": lanes, "env": env, "rom": rom, "progress": progress},
        )
        played = report.played_steps
    except (RowsDiffer, Unprovable) as error:
        why = str(error)
    return DatasetCheck(
        name=name,
        episodes=len(chosen),
        steps=played,
        is_equal=not why,
        why=why,
        changed=tuple(changed_since({"versions": entry.versions})),
    )


def add_dataset(
    index: str | os.PathLike[str],
    name: str,
    archive: str | os.PathLike[str],
    replay: SequenceReplayBuffer,
    *,
    policy: str,
    license: str,
    extra: str = "",
    rom: str | os.PathLike[str] | None = None,
) -> Dataset:
    """Write a data set into the index of a catalogue of one's own.

    An entry with the same name is replaced. The index and the archives beside it are the whole
    catalogue: others use it with ``index=`` and ``--index``.

    Args:
        index: The index, a TOML file, which may be new.
        name: Name of the data set: small letters, digits and slashes.
        archive: Its archive, which lies in the index's folder or below.
        replay: The replay that was archived, all of it.
        policy: What chose the actions, in words.
        license: Licence of the archive, such as "cc-by-4.0".
        extra: What the env needs beyond the core, as in `Dataset`; empty for nothing.
        rom: The cartridge of a NES game, if it may be given away: in the index's folder, too.

    Returns:
        The entry.

    Raises:
        ValueError: A value is invalid, a file lies elsewhere, or the archive holds other episodes
            than the replay.
    """
    path = Path(index)
    with opened(archive) as archived:
        episodes = list(stored_episodes(archived.storage))
        sessions = archived.storage.sessions
        steps = sum(one.steps for one in episodes)
    if (len(episodes), steps) != (replay.episodes, replay.storage.index.steps):
        raise ValueError(
            f"{archive}: expected all {replay.episodes:,} episodes of the replay, got "
            f"{len(episodes):,}; archive the whole store"
        )
    whole = [e for e in stored_episodes(replay.storage) if e.has_ended and not e.first_row]
    returns = np.array([one.total_reward for one in whole])
    facts = sessions[0] if sessions else {}
    known = mapping_of(facts.get("recipe"))
    title = mapping_of(known.get("cartridge")).get("name") or known.get("env")
    with Path(archive).open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    entry = Dataset(
        name=checked_name(name),
        env=str(recorded_id(facts) or title or "unknown")[:200],
        policy=policy,
        steps=steps,
        episodes=len(episodes),
        return_mean=float(returns.mean()) if len(returns) else math.nan,
        return_std=float(returns.std()) if len(returns) else math.nan,
        archive=path_in(path, archive),
        archive_bytes=Path(archive).stat().st_size,
        store_bytes=int(replay.storage.index.records["nbytes"].sum()),
        license=license,
        sha256=sha256,
        digest=replay.digest(),
        versions=dict(mapping_of(facts.get("versions"))),
        extra=extra,
        rom="" if rom is None else path_in(path, rom),
    )
    write_entry(path, entry)
    return entry


def cache_folder() -> Path:
    """The folder of files that can be made again."""
    if chosen := os.environ.get(CACHE):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # as the XDG rules say
        base = "~/Library/Caches" if sys.platform == "darwin" else "~/.cache"
    return Path(base).expanduser() / "stepwell"


def _checked_files(
    entry: Dataset, index: str | os.PathLike[str] | None, rom: Rom | None
) -> tuple[Path, Rom | None]:
    """The archive, which is the one of the index, and the cartridge."""
    path = file_of(index, entry.archive)
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        found = size == entry.archive_bytes and hashlib.file_digest(file, "sha256").hexdigest()
    if found != entry.sha256:
        raise ValueError(
            f"{path}: expected the archive of {entry.name}, {entry.archive_bytes:,} bytes with "
            f"the SHA-256 {entry.sha256[:16]}..., got other bytes ({size:,}); fetch it again"
        )
    return path, file_of(index, entry.rom) if rom is None and entry.rom else rom


def path_in(index: Path, file: str | os.PathLike[str]) -> str:
    """The path of a file from the index's folder on."""
    folder, given = index.absolute().parent, Path(file).absolute()
    try:
        return given.relative_to(folder).as_posix()
    except ValueError:
        raise ValueError(
            f"{file}: expected a file in {folder}, the index's folder, or below; write it there"
        ) from None
