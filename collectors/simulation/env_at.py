"""A live env in the state of a stored row, to branch an episode, to debug, or to take over."""

from __future__ import annotations

import base64
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import gymnasium
import numpy as np

from ...buffers import End, SequenceReplayBuffer, Spec, Unprovable
from ...buffers.base.number_checks import check_whole
from ...buffers.curation.episode_writer import check_replay
from ...buffers.curation.stored_episode import StoredEpisode
from ...buffers.provenance.chains import Chain, Play, chains_of
from ...buffers.storage.joined import ID_BITS, JoinedStorage
from ...buffers.storage.protocol import Storage
from ...wrappers.snapshots import SavedGame
from .lanes import AnyEnv
from .player import PlayedRows, Player, check_repeats
from .remake import EnvMaker, EnvSource, changes_of, checked_lane, maker_of, unseeded
from .resimulate import Comparison

if TYPE_CHECKING:
    from ...wrappers.nes.env import Rom


def env_at(
    replay: SequenceReplayBuffer,
    episode: int,
    row: int = 0,
    *,
    env: EnvSource | None = None,
    rom: Rom | None = None,
    use_snapshots: bool = False,
) -> tuple[AnyEnv, Any, dict[str, Any]]:
    """Make a live env that is in the state of a stored row.

    The env is made again from the facts that a Collector stored, reset with the stored seed, and
    stepped with the stored actions up to the row; rows on the way must be equal to the stored ones.
    Without ``env`` and snapshots this is done twice, first in a process with bounds of memory and
    time: what the facts of a stranger ask for is not done here untried.
    The stored actions from there on lead to the stored rows, also where the env draws random
    numbers; other actions lead elsewhere. What the env draws for its next reset is not part of it.

    Args:
        replay: The replay.
        episode: Id of a stored episode.
        row: Index of the row in the episode, 0 for that of the reset. The last row of an episode
            that has ended is refused, since no action follows it.
        env: How to make one env, where the facts do not suffice: an id, ``"module:callable"`` or a
            function without arguments.
        rom: The cartridge of NES games: a path, or the file's bytes.
        use_snapshots: Begin at the nearest snapshot of an emulator instead of a seed, which takes
            less time and needs no other episodes. Emulators do not check what they load, and a
            forged state can make one run any code: use snapshots only of stores whose writer you
            would let run a program.

    Returns:
        The env, which is yours to close; the observation of the row, with all stacked frames; and
        its info. After a snapshot, `render` shows the right screen from the first step on.

    Raises:
        ValueError: There is no such episode or row; it cannot be reached; the env cannot be made
            again; or it does not show the rows that are stored.
        ImportError: A package that the env needs is missing.

    Example:
        Another policy takes over at row 5:

        >>> import gymnasium as gym
        >>> import stepwell as sw
        >>> replay = sw.SequenceReplayBuffer()
        >>> with sw.Collector(gym.make("CartPole-v1"), sw.RandomPolicy(), replay, seed=0) as one:
        ...     report = one.collect(episodes=1)
        >>> env, observation, info = sw.env_at(replay, 0, 5)
        >>> (stored,) = replay.iter_episodes()
        >>> bool((observation == stored.observation[5]).all())
        True
        >>> ended = False
        >>> while not ended:
        ...     action = int(observation[2] > 0)
        ...     observation, reward, terminated, truncated, info = env.step(action)
        ...     ended = terminated or truncated
        >>> env.close()
    """
    check_replay("replay", replay)
    check_whole("episode", episode, 0)
    check_whole("row", row, 0)
    chain = _chain_to(replay, episode, use_snapshots=use_snapshots)
    last = chain.plays[-1]
    most = last.steps - last.end.is_final
    if row > most:
        raise ValueError(
            f"row: expected a row of episode {episode} from which an action leads on, 0 to {most}, "
            f"got {row}; choose another one"
        )
    until = replace(last, steps=row, end=End.NONE)
    chain = replace(chain, plays=(*chain.plays[:-1], until))
    maker = maker_of(chain.facts, replay.spec, env=env, rom=rom, is_checked=use_snapshots)
    try:
        if not (maker.is_given or use_snapshots):
            # In a process with bounds first, as the store says how the env is made.
            tried = replace(maker, make_lane=partial(checked_lane, maker))
            with Player([chain], tried, lanes=1) as player:
                _compare(player, maker, episode)
        return _live(chain, maker, replay.spec, episode, use_snapshots=use_snapshots)
    except Unprovable as error:
        raise ValueError(f"episode {episode} cannot be played again: {error}") from None


def _live(
    chain: Chain, maker: EnvMaker, spec: Spec, episode: int, *, use_snapshots: bool
) -> tuple[AnyEnv, Any, dict[str, Any]]:
    """The env after a chain, its last observation and info."""
    live = unseeded(maker.single)  # episodes go on as they were recorded
    watched = _Watched(live)
    # Played in this process, with whole stacks.
    alone = replace(maker, make_lane=lambda: watched, gives_newest_only=False, is_given=True)
    try:
        if use_snapshots:
            first = chain.plays[0]
            data = _decoded(_snapshot_of(first))
            watched.saved = _saved_game(live, data, _first_frame(first, spec))
        with Player([chain], alone, lanes=1) as player:
            _compare(player, maker, episode, is_seeded=not use_snapshots)
    except BaseException:
        watched.env.close()
        raise
    return watched.env, watched.observation, watched.info


def _chain_to(replay: SequenceReplayBuffer, episode: int, *, use_snapshots: bool) -> Chain:
    """The shortest chain that ends with an episode."""
    storage, number = replay.storage, 0
    if isinstance(storage, JoinedStorage):
        number = episode >> ID_BITS
        if number >= len(storage.storages):
            raise _unknown(episode)
        storage = storage.storages[number]
    wanted = episode - (number << ID_BITS)
    chains, unreachable = chains_of(storage)
    for chain in chains:
        for place, one in enumerate(chain.plays):
            if one.episode.id != wanted:
                continue
            found = replace(chain, plays=chain.plays[: place + 1])
            return _from_snapshot(found, episode) if use_snapshots else found
    for stored, why in unreachable:
        if stored.id != wanted:
            continue
        alone = _alone(stored, storage)
        if use_snapshots and alone is not None:
            return _from_snapshot(alone, episode)
        cure = ""
        if alone is not None and _snapshot_of(alone.plays[0]):
            cure = "; with use_snapshots=True it can begin at a snapshot, if you trust the store"
        raise ValueError(
            f"episode {episode} cannot be played again: expected a seeded reset that leads to it, "
            f"got none: {why}{cure}"
        )
    raise _unknown(episode)


def _unknown(episode: int) -> ValueError:
    return ValueError(
        f"episode: expected the id of a stored episode, as in replay.iter_episodes(), got {episode}"
    )


def _alone(episode: StoredEpisode, storage: Storage) -> Chain | None:
    """A chain of one episode, for a snapshot; None if its first rows are lost."""
    if episode.first_row:
        return None
    names = tuple(field.name for field in storage.spec.of_kind("action"))
    metadata, sessions = episode.metadata, storage.sessions
    session = metadata.get("session")
    is_index = isinstance(session, int) and 0 <= session < len(sessions)
    facts = sessions[cast("int", session)] if is_index else {}
    one = Play(names, episode.rows - 1, metadata, episode.end, episode)
    return Chain(facts, episode.stream, 0, (one,))


def _from_snapshot(chain: Chain, episode: int) -> Chain:
    """The part of a chain from the last snapshot on."""
    for place in range(len(chain.plays) - 1, -1, -1):
        one = chain.plays[place]
        if _snapshot_of(one):
            return replace(chain, plays=chain.plays[place:])
    raise ValueError(
        f"episode {episode} has no snapshot: expected an episode that was collected with "
        f"snapshots=True and has its first rows, got one without; use_snapshots=False begins at "
        f"its seed"
    )


def _snapshot_of(one: Play) -> str:
    found = one.metadata.get("snapshot")
    return found if isinstance(found, str) else ""


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise ValueError(
            "the snapshot is damaged: expected base64 in the metadata of the episode, got another "
            "text; use_snapshots=False begins at the seed"
        ) from None


def _first_frame(one: Play, spec: Spec) -> np.ndarray:
    """The newest frame of an episode's first observation."""
    (field, *_) = spec.of_kind("observation")
    row: np.ndarray = next(one.episode.chunks(1, [field.name])).fields[field.name][0]
    return row if field.stack > 1 else row[-1]  # else whole stacks are stored


def _saved_game(env: AnyEnv, snapshot: bytes, observation: np.ndarray) -> SavedGame:
    """The option "snapshot" of the env's reset, of the same game and version."""
    inner: Any = env.unwrapped
    if hasattr(inner, "ale"):
        from ...wrappers.atari_snapshots import SavedAtari  # loads ale-py

        return SavedAtari.of(inner, snapshot, observation)
    if hasattr(inner, "unpack_snapshot"):
        facts, state = inner.unpack_snapshot(snapshot)
        return SavedGame(facts, state, observation)
    raise ValueError(
        f"snapshot: expected an env of make_atari or make_nes, got {env}; begin at the seed"
    )


class _Watched(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Keeps what the env returned last, and the env open; its first reset may be a snapshot's."""

    observation: Any = None
    info: dict[str, Any]
    saved: SavedGame | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        if self.saved is not None:
            seed, options, self.saved = None, {"snapshot": self.saved}, None
        self.observation, self.info = self.env.reset(seed=seed, options=options)
        return self.observation, self.info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        result = self.env.step(action)
        self.observation, self.info = result[0], result[4]
        return result

    def close(self) -> None:
        pass


def _compare(player: Player, maker: EnvMaker, episode: int, *, is_seeded: bool = True) -> None:
    """Play all rows, and compare them with those that are stored."""
    # Where one differs since the env ignores its seed, or its bounds are passed, the error is
    # Unprovable.
    comparison: tuple[Play, Comparison] | None = None
    for rows in player:
        if comparison is None or comparison[0] is not rows.play:
            comparison = rows.play, Comparison(rows.play, maker, player.piece_rows)
        difference, why = comparison[1].compare(rows)
        if is_seeded and (difference is not None or rows.why):
            check_repeats(rows.chain, maker, rows)
        if difference is not None:
            name, row = difference
            raise _other(maker, episode, rows, f"{name} of row {row}: {why}")
        if rows.why:
            raise _other(maker, episode, rows, rows.why)


def _other(maker: EnvMaker, episode: int, rows: PlayedRows, why: str) -> ValueError:
    played = rows.play.episode
    where = ""
    if rows.play is not rows.chain.plays[-1]:
        where = f" also of episode {played.id} before it"
    return ValueError(
        f"episode {episode} cannot be played up to this row: expected the stored rows{where}, got "
        f"others: {why}{changes_of([maker])}"
    )
