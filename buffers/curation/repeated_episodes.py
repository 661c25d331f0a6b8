"""Finds episodes that several sources hold, so that a merge does not duplicate them silently."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Literal

from ..storage.joined import ID_BITS, JoinedStorage, name_of, parts_of
from ..storage.protocol import Storage
from .stored_episode import StoredEpisode

Duplicates = Literal["refuse", "skip", "keep"]

# Limits of the rows in memory at a time.
_RUN_ROWS, _RUN_BYTES = 4096, 32 << 20
_HASH_BYTES = 16

Episodes = Callable[[], Iterator[tuple[int, StoredEpisode]]]


def find_repeats(
    storages: Sequence[Storage],
    episodes: Episodes,  # every chosen one with the index of its storage, in order
    on_look: Callable[[], None],  # called after each episode whose rows were read
) -> tuple[bytearray, str]:
    """Find episodes that an earlier source holds too, with all rows equal bit by bit."""
    # Returns for each episode, in order, 1 if it is a duplicate, and their sources for a message.
    #
    # Sources of which it is known that other runs made them, with other seeds, cannot hold the same
    # episode, however equal the short ones may be; of them only those are compared that were reset
    # with the same seed. All others are compared: copies of a source, imports, and runs with the
    # same seed.
    sources = [part for storage in storages for part in parts_of(storage)]
    if len(sources) < 2:
        return bytearray(), ""
    first = [0, *accumulate(len(parts_of(storage)) for storage in storages)]

    def each() -> Iterator[tuple[int, StoredEpisode]]:
        for number, episode in episodes():
            is_many = isinstance(storages[number], JoinedStorage)
            yield first[number] + (episode.id >> ID_BITS if is_many else 0), episode

    runs = [_runs_of(source) for source in sources]
    related = [
        [one is None or other is None or bool(one & other) for other in runs] for one in runs
    ]
    is_seed_needed = not all(map(all, related))
    is_candidate = _candidates(each, related, is_seed_needed)
    return _compared(each, is_candidate, related, sources, is_seed_needed, on_look)


def _runs_of(source: Storage) -> frozenset[tuple[str, int, str]] | None:
    """Seed, number and shard of each Collector run of a source; None if there are other writers."""
    # A copy has the sessions of what it was copied from.
    runs: set[tuple[str, int, str]] = set()
    for session in source.sessions:
        number = session.get("session")
        if "seed" in session and isinstance(number, int):
            runs.add((str(session["seed"]), number, str(session.get("shard"))))
        elif "copied_episodes" not in session:
            return None
    return frozenset(runs) or None


def _candidates(each: Episodes, related: list[list[bool]], is_seed_needed: bool) -> bytearray:
    """1 for each episode whose rows must be read, as another source has one of the same form."""
    groups: dict[object, set[int]] = defaultdict(set)
    forms: list[tuple[object, int]] = []
    for source, episode in each():
        form = episode.rows, episode.first_row, int(episode.end)
        groups[form].add(source)
        forms.append((form, source))
    found = bytearray(
        any(related[source][other] and other != source for other in groups[form])
        for form, source in forms
    )
    if is_seed_needed:
        seeded: list[tuple[int, object]] = []
        for place, (source, episode) in enumerate(each()):
            known = forms[place][0]
            # Seeds are read only where another source has an episode of the same form.
            seed = _seed_of(episode) if len(groups[known]) > 1 else None
            if seed is not None:
                groups[known, seed].add(source)
                seeded.append((place, (known, seed)))
        for place, key in seeded:
            found[place] |= len(groups[key]) > 1
    return found


def _compared(
    each: Episodes,
    is_candidate: bytearray,
    related: list[list[bool]],
    sources: Sequence[Storage],
    is_seed_needed: bool,
    on_look: Callable[[], None],
) -> tuple[bytearray, str]:
    """Read the candidates, and find those that are in an earlier source, too."""
    is_repeated = bytearray(len(is_candidate))
    seen: dict[bytes, list[tuple[int, int | None]]] = defaultdict(list)
    totals: Counter[int] = Counter()
    pairs: Counter[tuple[int, int]] = Counter()
    run_rows = max(1, min(_RUN_ROWS, _RUN_BYTES // max(1, sources[0].spec.row_bytes)))
    for place, (source, episode) in enumerate(each()):
        totals[source] += 1
        if not is_candidate[place]:
            continue
        me = source, _seed_of(episode) if is_seed_needed else None
        same = seen[_fingerprint(episode, run_rows)]
        earlier = [
            other
            for other, seed in same
            if other != source and (related[source][other] or (seed is not None and seed == me[1]))
        ]
        if earlier:
            is_repeated[place] = 1
            pairs[source, earlier[0]] += 1
        elif me not in same:
            # Equal episodes of one source and seed are listed once: only others are looked for.
            same.append(me)
        on_look()
    sentence = "; ".join(
        f"{count:,} of the {totals[source]:,} episodes from {name_of(sources[source], source)} "
        f"are in {name_of(sources[other], other)} too"
        for (source, other), count in pairs.items()
    )
    return is_repeated, sentence


def _seed_of(episode: StoredEpisode) -> int | None:
    """The seed of its env's reset, if it is recorded."""
    seed = episode.metadata.get("seed")
    return seed if isinstance(seed, int) else None


def _fingerprint(episode: StoredEpisode, run_rows: int) -> bytes:
    """A hash of the rows, 16 bytes."""
    total = hashlib.blake2b(digest_size=_HASH_BYTES)
    for chunk in episode.chunks(run_rows):
        for rows in chunk.fields.values():
            total.update(rows.reshape(-1).view("uint8").data)
    return total.digest()
