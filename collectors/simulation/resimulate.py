"""Proof that stored rows are what their envs showed: each episode is played again and compared."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from ...buffers import Chunk, End, SequenceReplayBuffer, Unprovable
from ...buffers.base.number_checks import check_whole, whole_number
from ...buffers.base.progress import Progress, check_progress, progress_function
from ...buffers.curation.episode_writer import check_replay
from ...buffers.curation.stored_episode import StoredEpisode
from ...buffers.provenance.chains import Chain, Play, chains_of
from ...buffers.storage.joined import ID_BITS, JoinedStorage
from ...buffers.storage.protocol import Storage
from .player import Closing, PlayedRows, Player, check_repeats, played_status, steps_of
from .remake import AtariBackend, EnvMaker, EnvSource, maker_of

if TYPE_CHECKING:
    from ...wrappers.nes.env import Rom

Reason: TypeAlias = Literal["equal", "differs", "unreachable"]

_SAMPLE_SEED = 0
_NOT_COUNTED = "the no-ops before it, or before one that leads to it, were not counted"


@dataclass(frozen=True, slots=True)
class EpisodeProof:
    """The result of playing a stored episode again.

    Args:
        episode: Id of the episode.
        rows: Number of its stored rows.
        reason: ``"equal"``: every row is what the env showed; ``"differs"``: a row is not;
            ``"unreachable"``: it cannot be played again, or the env ignores its seed, so that it
            shows other rows each time.
        first_difference: Name of the field and index of the row in the episode, where it differs.
            The field is ``"end"`` where only the flags of an end do, and ``"env"`` where the env
            raised an error.
        why: An explanation; empty if there is nothing to say.
    """

    episode: int
    rows: int
    reason: Reason
    first_difference: tuple[str, int] | None = None
    why: str = ""

    @property
    def is_equal(self) -> bool:
        """Every row is what the env showed."""
        return self.reason == "equal"


def resimulate(
    replay: SequenceReplayBuffer,
    *,
    episodes: Iterable[int] | None = None,
    sample: int | None = None,
    lanes: int | None = None,
    env: EnvSource | None = None,
    rom: Rom | None = None,
    backend: AtariBackend | None = None,
    progress: Progress[int, int] = None,
) -> Resimulation:
    """Play stored episodes again, and compare every row with what is stored.

    Each env is made again from the facts that a Collector stored, reset with the stored seed and
    stepped with the stored actions. Observations, rewards, ends and declared info must be equal bit
    by bit; a NaN equals a NaN. Extras of the policy cannot be compared.

    Episodes without a seed of their own follow those before them in their env, which are played,
    too. Where these are not stored, an episode is unreachable.

    Args:
        replay: The replay.
        episodes: Ids of the episodes; None for all.
        sample: Only so many of them, drawn at random, the same ones each time.
        lanes: Episodes to play at a time, each in a worker process; None is the number of cores.
        env: How to make one env, where the facts do not suffice: an id, ``"module:callable"`` or a
            function without arguments.
        rom: The cartridge of NES games: a path, or the file's bytes.
        backend: Play Atari games on this backend, ``"native"`` or ``"python"``; None is the
            recorded one.
        progress: True shows a line in a terminal or in a notebook, or a line of text every 30
            seconds where there is neither. Or a function that is called with the env steps played
            so far, and those of all episodes.

    Returns:
        An iterator over the proofs, in the order in which episodes are done; a context manager
        that stops its processes.

    Raises:
        ValueError: An argument is invalid, or the envs cannot be made again, or differ from the
            recorded ones. Nothing was played.

    Example:
        >>> import stepwell as sw
        >>> replay = sw.SequenceReplayBuffer()
        >>> envs = sw.make_vec("CartPole-v1", 2, num_workers=0)
        >>> with sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector:
        ...     report = collector.collect(episodes=3)
        >>> [proof.reason for proof in resimulate(replay, lanes=1)]
        ['equal', 'equal', 'equal']
    """
    check_replay("replay", replay)
    if lanes is not None:
        check_whole("lanes", lanes, 1)
    check_progress(progress)
    make = partial(maker_of, spec=replay.spec, env=env, rom=rom, backend=backend)
    return Resimulation(replay.storage, episodes, sample, make, lanes, progress)


class Resimulation(Closing[EpisodeProof]):
    """The iterator of `resimulate`."""

    def __init__(
        self,
        storage: Storage,
        episodes: Iterable[int] | None,
        sample: int | None,
        make: Callable[[Mapping[str, object]], EnvMaker],  # of the facts of a session
        lanes: int | None,
        progress: Progress[int, int],
    ) -> None:
        self._lanes, self._progress = lanes, progress
        self._ids: dict[StoredEpisode, int] = {}
        all_chains: list[Chain] = []
        lost: list[EpisodeProof] = []
        parts = storage.storages if isinstance(storage, JoinedStorage) else (storage,)
        for number, part in enumerate(parts):
            chains, unreachable = chains_of(part)
            all_chains += chains
            found = [one.episode for chain in chains for one in chain.plays]
            for episode in [*found, *(one.episode for one in unreachable)]:
                self._ids[episode] = (number << ID_BITS) + episode.id
            lost += [
                EpisodeProof(self._ids[one], one.rows, "unreachable", None, why)
                for one, why in unreachable
            ]
        self._wanted = chosen_ids(set(self._ids.values()), episodes, sample)
        self._lost = [proof for proof in lost if proof.episode in self._wanted]
        self._jobs = [
            (chains, make(facts)) for facts, chains in by_env(all_chains, self._is_wanted)
        ]
        self.makers = [maker for _, maker in self._jobs]  # of the envs that are played
        self.episodes = len(self._wanted)  # number of them that are to be proved
        # Env steps that are played for them
        self.steps = sum(steps_of(chains) for chains, _ in self._jobs)
        super().__init__(self._run())

    def _run(self) -> Generator[EpisodeProof]:
        before = 0
        yield from self._lost
        with progress_function(self._progress, played_status()) as report:
            for chains, maker in self._jobs:
                playable = [one for one in map(partial(_playable, maker), chains) if one.plays]
                done: set[int] = set()
                try:
                    with Player(
                        *(playable, maker, self._lanes, report), before=before, all_steps=self.steps
                    ) as player:
                        for proof in self._proofs(player, maker):
                            done.add(proof.episode)
                            yield proof
                except Unprovable as error:
                    plays = [one for chain in playable for one in chain.plays]
                    left = [one for one in plays if self._id_of(one) not in done]
                    yield from self._unreachable(left, str(error))
                for chain in chains:
                    count = len(_playable(maker, chain).plays)
                    yield from self._unreachable(chain.plays[count:], _NOT_COUNTED)
                before += steps_of(chains)

    def _proofs(self, player: Player, maker: EnvMaker) -> Iterator[EpisodeProof]:
        """Compare all rows that the player hands out."""
        is_checked = False
        comparisons: dict[int, Comparison] = {}
        for rows in player:
            one = rows.play
            comparison = comparisons.get(id(one))
            if comparison is None:
                comparison = comparisons[id(one)] = Comparison(one, maker, player.piece_rows)
            difference, why = comparison.compare(rows)
            if difference is None:
                if rows.is_last:
                    del comparisons[id(one)]
                    if self._is_wanted(one):
                        yield self._proof(one, "equal", None, comparison.note)
                continue
            del comparisons[id(one)]
            player.skip(rows.chain)
            if not is_checked:
                check_repeats(rows.chain, maker, rows)
                is_checked = True
            if self._is_wanted(one):
                yield self._proof(one, "differs", difference, why)
            plays = rows.chain.plays
            place = next(k for k, each in enumerate(plays) if each is one)
            why = f"episode {self._id_of(one)}, which leads to it, differs"
            yield from self._unreachable(plays[place + 1 :], why)

    def _id_of(self, one: Play) -> int:
        """Id of the episode of a play."""
        return self._ids[one.episode]

    def _is_wanted(self, one: Play) -> bool:
        """The episode is to be proved."""
        return self._id_of(one) in self._wanted

    def _proof(
        self, one: Play, reason: Reason, difference: tuple[str, int] | None, why: str
    ) -> EpisodeProof:
        """The result for the episode of a play."""
        return EpisodeProof(self._id_of(one), one.episode.rows, reason, difference, why)

    def _unreachable(self, plays: Iterable[Play], why: str) -> Iterator[EpisodeProof]:
        """The results for those of some plays that are wanted, and cannot be played again."""
        for one in filter(self._is_wanted, plays):
            yield self._proof(one, "unreachable", None, why)


def by_env(
    chains: Iterable[Chain], is_wanted: Callable[[Play], bool]
) -> list[tuple[Mapping[str, object], list[Chain]]]:
    """Chains up to the last wanted play, by their envs, with the facts of one of the sessions."""
    found: dict[str, tuple[Mapping[str, object], list[Chain]]] = {}
    for chain in chains:
        last = max((k for k, one in enumerate(chain.plays) if is_wanted(one)), default=-1)
        if last >= 0:
            names = ("recipe", "env_spec", "spaces", "missing")
            key = json.dumps([chain.facts.get(name) for name in names], sort_keys=True, default=str)
            shorter = replace(chain, plays=chain.plays[: last + 1])
            found.setdefault(key, (chain.facts, []))[1].append(shorter)
    return list(found.values())


def chosen_ids(
    ids: set[int], episodes: Iterable[int] | None, sample: int | None = None
) -> set[int]:
    """The ids that are asked for, all of them stored."""
    if episodes is not None:
        asked = {whole_number("episodes", one, 0) for one in episodes}
        unknown = sorted(asked - ids)
        if unknown:
            raise ValueError(
                f"episodes: expected ids of stored episodes, got {unknown[0]}, which is not there; "
                f"`stepwell info` shows how many there are"
            )
        ids = asked
    if sample is not None:
        check_whole("sample", sample, 1)
        rng = np.random.default_rng(_SAMPLE_SEED)
        in_order = np.array(sorted(ids), np.int64)
        ids = set(rng.choice(in_order, min(sample, len(ids)), replace=False).tolist())
    return ids


def _playable(maker: EnvMaker, chain: Chain) -> Chain:
    """The chain up to the first episode of which it is not known how it began."""
    count = next((k for k, one in enumerate(chain.plays) if not maker.can_begin(one.metadata)), -1)
    return chain if count < 0 else replace(chain, plays=chain.plays[:count])


class Comparison:
    """Compares the stored rows of an episode with those that were played, piece by piece."""

    # All pieces have ``piece_rows`` rows, but the last.

    def __init__(self, one: Play, maker: EnvMaker, piece_rows: int) -> None:
        spec = maker.spec
        self._end = one.end
        self._last_row = one.steps
        self._actions = [field.name for field in spec.of_kind("action")]
        self._observations = {field.name for field in spec.of_kind("observation")}
        self._names = [field.name for field in spec.fields if field.kind != "extra"]
        self._stored = one.episode.chunks(piece_rows, self._names)
        self._skips_last = maker.has_other_ends and one.end.is_final
        self.note = ""
        if self._skips_last:
            self.note = "its last observation was not compared: the backends differ there"

    def compare(self, rows: PlayedRows) -> tuple[tuple[str, int] | None, str]:
        """The first difference in the rows, and a sentence about it."""
        if not rows.rows:
            return rows.where, rows.why
        stored = next(self._stored)
        found: list[tuple[int, int, str]] = []
        for order, name in enumerate(self._names):
            if name in self._actions:
                continue
            count = rows.rows
            if self._skips_last and name in self._observations:
                count = min(count, self._last_row - rows.first_row)
            row = first_difference(stored.fields[name][:count], rows.fields[name][:count])
            if row is not None:
                found.append((rows.first_row + row, order, name))
        if found:
            row, _, name = min(found)
            return (name, row), _sentence(name, row - rows.first_row, stored, rows)
        if rows.why:
            return rows.where, rows.why
        if rows.is_last:
            return self._compare_end(rows, stored)
        return None, ""

    def _compare_end(self, rows: PlayedRows, stored: Chunk) -> tuple[tuple[str, int] | None, str]:
        """Compare the flags of the last row, and the action that is not there."""
        flags = self._end & (End.TERMINATED | End.TRUNCATED)
        if flags != rows.end:
            was, now = _name(flags), _name(rows.end)
            return ("end", self._last_row), f"stored {was}, the env {now}"
        if self._end & (End.TERMINATED | End.TRUNCATED | End.PENDING):
            for name in self._actions:
                if stored.fields[name][-1].any():
                    return (name, self._last_row), "an action is stored where none was chosen"
        return None, ""


def first_difference(stored: np.ndarray, played: np.ndarray) -> int | None:
    """Index of the first row [n, ...] that differs, or None; NaN equals NaN, 0.0 not -0.0."""
    if not len(stored):
        return None
    kind = stored.dtype.kind
    if kind in "iub":
        differs = stored != played
    else:
        floats = stored.dtype if kind == "f" else np.dtype(f"f{stored.dtype.itemsize // 2}")
        a, b = (np.ascontiguousarray(rows).view(floats) for rows in (stored, played))
        differs = ((a != b) | (np.signbit(a) != np.signbit(b))) & ~(np.isnan(a) & np.isnan(b))
    if not differs.any():
        return None
    return int(np.flatnonzero(differs.reshape(len(stored), -1).any(axis=1))[0])


def _sentence(name: str, place: int, stored: Chunk, rows: PlayedRows) -> str:
    """The two values that differ, in short."""
    was, now = stored.fields[name][place], rows.fields[name][place]
    if was.size == 1:
        return f"stored {was.item()!r}, the env {now.item()!r}"
    with np.errstate(invalid="ignore"):
        count = int(np.count_nonzero(was != now))
    where = tuple(map(int, np.argwhere(np.atleast_1d(was != now))[0])) if count else ()
    if not where:
        return "only the sign of zeros differs"
    return (
        f"{count:,} of {was.size:,} numbers differ, the first at {list(where)}: stored "
        f"{was[where].item()!r}, the env {now[where].item()!r}"
    )


def _name(flags: End) -> str:
    return "no end" if not flags else " and ".join(str(one.name) for one in flags).lower()
