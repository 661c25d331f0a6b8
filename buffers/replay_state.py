"""Does what comes fit what is there? Of a replay's saved state, and of the rows of a new run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from stepwell.buffers import json_values
from stepwell.buffers.errors import StoreCorrupt
from stepwell.buffers.spec import Codec, Spec
from stepwell.buffers.storage.disk.storage import DiskStorage
from stepwell.buffers.storage.joined import JoinedStorage
from stepwell.buffers.storage.protocol import Storage

__all__ = ["checked", "difference_of", "parts_of_checkpoint", "state_of"]


def state_of(storage: Storage | None, rng: np.random.Generator) -> dict[str, Any]:
    """What a restored replay needs beside the stored rows."""
    return {
        "store": _store(storage),
        "pieces": _chunks(storage),
        "generator": rng.bit_generator.state,
    }


def checked(
    state: Mapping[str, object], storage: Storage | None, rng: np.random.Generator
) -> dict[str, Any]:
    """A state that `state_of` may have given of a replay; the sampler checks its own part.

    Args:
        state: It may come from anywhere.
        storage: The replay's storage.
        rng: The replay's generator.

    Raises:
        ValueError: The state is that of another store, of a later state of this one, or none.
    """
    known = _checked_form(dict(state), rng)
    if known["store"] != _store(storage):
        raise ValueError(
            f"the state is that of store {str(known['store'])[:100]}, expected {_store(storage)}: "
            f"load it into the replay that it was taken from"
        )
    if known["pieces"] > _chunks(storage):
        raise ValueError(
            f"the state was taken when {known['pieces']} chunks had been stored, this store has "
            f"had {_chunks(storage)}: restore both from one copy"
        )
    return known


def parts_of_checkpoint(
    state: Mapping[str, object], rng: np.random.Generator, where: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The replay's state and the learner's in what a checkpoint's file holds.

    Raises:
        StoreCorrupt: It holds something else.
    """
    try:
        replay = _checked_form(json_values.member(state, "replay"), rng)
        return replay, json_values.mapping(json_values.member(state, "learner"), "learner")
    except ValueError as error:
        raise StoreCorrupt(
            f"{where} holds no state of a replay: {error}; remove it, or restore it from a copy"
        ) from error


def difference_of(
    stored: Spec,
    sessions: Sequence[Mapping[str, object]],
    spec: Spec,
    session: Mapping[str, object],
) -> str | None:
    """In what new rows, or the envs behind them, are not those that are stored.

    Args:
        stored: The Spec of what is stored; how fields are kept does not matter.
        sessions: The runs that wrote it.
        spec: The Spec of the new rows.
        session: The run that is to write them.
    """
    codecs: dict[str, Codec] = {field.name: field.codec for field in stored.fields}
    shared: dict[str, Codec] = {name: codecs[name] for name in spec.names if name in codecs}
    difference = stored.difference(spec.with_codecs(shared))
    if difference or not sessions:
        return difference
    return _difference_within("", sessions[0].get("recipe", {}), session.get("recipe", {}))


def _difference_within(path: str, before: object, now: object) -> str | None:
    """The first difference between two recipes, by the path of keys that leads to it."""
    if not isinstance(before, Mapping) or not isinstance(now, Mapping):
        return None if before == now else f"{path} of the envs was {before!r}, is {now!r}"
    old, new = cast("Mapping[str, object]", before), cast("Mapping[str, object]", now)
    # A file is what its bytes are, whatever it is called.
    keys = ["sha256"] if "sha256" in old and "sha256" in new else sorted({*old, *new})
    found = (
        _difference_within(f"{path}.{key}" if path else key, old.get(key), new.get(key))
        for key in keys
    )
    return next(filter(None, found), None)


def _checked_form(state: object, rng: np.random.Generator) -> dict[str, Any]:
    known = json_values.mapping(state, "state of a replay")
    json_values.member(known, "store")
    json_values.whole(json_values.member(known, "pieces"), "pieces")
    generator: Any = json_values.member(known, "generator")
    kind = type(rng.bit_generator)
    try:
        kind(0).state = generator
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise ValueError(
            f"generator: expected the state of a {kind.__name__}, got another: {error}"
        ) from None
    if known.get("sampler") is not None:  # none in a state of version 0.1
        json_values.mapping(known["sampler"], "sampler")
    return known


def _store(storage: Storage | None) -> object:
    """The name of a store, or of several; one in RAM has none."""
    if isinstance(storage, JoinedStorage):
        return [_store(each) for each in storage.storages]
    return storage.store if isinstance(storage, DiskStorage) else None


def _chunks(storage: Storage | None) -> int:
    """Chunks ever stored."""
    if isinstance(storage, JoinedStorage):
        return sum(map(_chunks, storage.storages))
    return 0 if storage is None else storage.table.base + len(storage.table)
