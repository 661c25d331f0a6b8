"""Opens the folder that a buffer's arguments mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stepwell.buffers.dropin.memmap.config import Config, read_marker
from stepwell.buffers.dropin.memmap.declared import Codecs, parse_fields
from stepwell.buffers.dropin.memmap.episode_folder import EpisodeFolder

__all__ = ["asked_for", "opened"]


def opened(
    folder: Path, asked: Config | None, codec: Codecs, *, overwrite: bool, read_only: bool
) -> EpisodeFolder:
    """Open a folder, or make it.

    Args:
        folder: Which.
        asked: What it must be; None for what it is.
        codec: How the fields of a new one are kept.
        overwrite: Remove the episodes that are there.
        read_only: Write nothing.

    Raises:
        ValueError: It holds something else, or arguments do not go together.
        StoreLocked: Another process writes into it.
    """
    if read_only and overwrite:
        raise ValueError(
            "overwrite=True: expected a buffer to write into, got read_only=True; leave one out"
        )
    if read_only:
        return EpisodeFolder.read(folder, asked)
    return EpisodeFolder.write(folder, asked, codec, overwrite=overwrite)


def asked_for(
    folder: Path,
    max_episodes: int,
    max_timesteps: int,
    fields: Any,
    metas: Any,
    circular: bool | None,
) -> Config:
    """What is declared.

    Args:
        folder: Tells what is not declared, where ``fields`` is ``...``.
        max_episodes: As for `ReplayBuffer`, like all that follow.
        max_timesteps: ...
        fields: ...
        metas: ...
        circular: ...

    Raises:
        ValueError: It makes no sense.
    """
    for name, value in (("max_episodes", max_episodes), ("max_timesteps", max_timesteps)):
        if isinstance(value, bool) or int(value) != value or value < 1:
            raise ValueError(f"{name}: expected a whole number >= 1, got {value!r}")
    episodes, timesteps = int(max_episodes), int(max_timesteps)
    if fields is ...:
        there = read_marker(folder).config
        return there._replace(max_episodes=episodes, max_timesteps=timesteps)
    parsed, parsed_metas = parse_fields("fields", fields), parse_fields("meta_fields", metas or {})
    if not parsed:
        raise ValueError("fields: expected at least one, got none")
    twice = parsed.keys() & {*parsed_metas, "episode_lens"} | parsed_metas.keys() & {"episode_lens"}
    if twice:
        raise ValueError(
            f"fields and meta_fields must be disjoint, and episode_lens is there always: got "
            f"{min(twice)!r} twice; rename one"
        )
    return Config(episodes, timesteps, parsed, parsed_metas, bool(circular))
