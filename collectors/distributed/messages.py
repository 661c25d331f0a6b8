"""The values that travel between the driver of a collector and the hosts of its groups.

A *group* is a vector env with its policy; a *host* steps some groups in an actor. A *call* is one
`collect`, `rollout` or `running` as a group gets it. A *piece* is the result of one
`GroupHost.advance`: the chunks that the group's writer stored at once, or the end of a call. Pieces
are small; their `Payload` has the rows and travels apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from stepwell.buffers import Rollout, Spec
from stepwell.buffers.digest import DigestState
from stepwell.buffers.spec import Codec
from stepwell.collectors.report import EpisodeReport
from stepwell.collectors.step_result import MetadataOrFunction

if TYPE_CHECKING:
    from stepwell.collectors.distributed.folders import Folders

__all__ = [
    "Call",
    "CallKind",
    "CallTotals",
    "GroupOptions",
    "GroupStart",
    "Opening",
    "Payload",
    "Piece",
]

CallKind: TypeAlias = Literal["steps", "episodes", "seeds", "rollout", "run"]


class Call(NamedTuple):
    """One call of a collector, as one group gets it.

    Args:
        number: Calls of a collector are counted from 0; an equal number is the same call.
        kind: The goal: env steps, episodes, an episode from each of some seeds, a rollout, or none:
            a run, which goes on until `GroupHost.finish`.
        amount: Env steps, or episodes, of this group; rows T of each env of a rollout.
        seeds: For ``"seeds"``: seeds of resets, each of which begins an episode.
        version: Number of the published weights that the policy has; 0 is the policy as it was
            made.
    """

    number: int
    kind: CallKind
    amount: int = 0
    seeds: tuple[int, ...] = ()
    version: int = 0


class GroupOptions(NamedTuple):
    """The options of all groups of a collector.

    Args:
        groups: Number of groups G.
        shard: Part of the machine's own, ``(i, n)``; None for all of the data. Group g has the
            shard ``((i - 1) * G + g + 1, n * G)``.
        info: As in `Collector`.
        metadata: As in `Collector`; a function is called with the env's index in its group.
        frame_stack: As in `Collector`.
        store_state: As in `Collector`.
        reseed_steps: As in `Collector`.
        session: Number of sessions that the replay had before: that of the rows, from which their
            seeds are derived, too.
        spec: The fields of a row, where the replay holds rows already.
        codecs: Codecs of the replay by the names of fields.
        capacity: Capacity of the replay in steps: the rows of a chunk depend on it.
        destination: ``"ship"`` puts the chunks into the payloads; ``"none"`` stores nothing; or the
            folder or URL at which each group has a store of its own.
        flush_seconds: As in `Collector`, in calls of kind ``"run"``; in other calls no time passes.
    """

    groups: int
    shard: tuple[int, int] | None = None
    info: Mapping[str, object] | None = None
    metadata: MetadataOrFunction | None = None
    frame_stack: int | None = None
    store_state: bool = False
    reseed_steps: int | None = 50_000
    session: int = 0
    spec: Spec | None = None
    codecs: Mapping[str, Codec] = {}
    capacity: int | None = None
    destination: str | Folders = "ship"
    flush_seconds: float = 10.0


class GroupStart(NamedTuple):
    """The beginning of a group in a host: for the first time, or again after its actor died.

    Args:
        group: Number g of the group, from 0.
        attempt: 0 at first, one more after each death.
        seed: The collector's seed, or another one after a death, where the group goes on with other
            data.
        session: Number of the session of the rows that follow: that of the options, or that of the
            session which was begun for another seed.
        history: All calls so far, which are played again, the unfinished one included.
        skip: Number of pieces of the history that are stored already: these come again without
            their chunks.
        digest: Fingerprint of the rows in those pieces, as their last one had it.
        state: Where the group goes on with other data: state of the digest of its rows so far, as
            their last piece had it.
    """

    group: int
    attempt: int
    seed: int
    session: int
    history: tuple[Call, ...] = ()
    skip: int = 0
    digest: str = ""
    state: DigestState = DigestState()


class Opening(NamedTuple):
    """Facts about a group's rows, which all groups of a collector share.

    Args:
        spec: The fields of every row.
        facts: Facts about the session, as a Collector of this group alone would note them.
        num_envs: Number of envs N of the group.
        stepwell: Version of stepwell in the actor.
    """

    spec: Spec
    facts: Mapping[str, object]
    num_envs: int
    stepwell: str


class CallTotals(NamedTuple):
    """Counts and times of one call of one group, whole or so far.

    Args:
        steps: Env steps.
        frames: Emulator frames behind them.
        cut: Episodes whose recording stopped before they ended.
        restarts: Envs that were restarted because their worker process died.
        seconds: Wall-clock time in the calls of `GroupHost.advance`.
        env_seconds: Part of it spent waiting for the envs.
        policy_seconds: Part of it spent in the policy.
        write_seconds: Part of it spent writing.
        raw_bytes: Bytes of the new rows uncompressed, each frame counted once.
        stored_bytes: Bytes of the same rows in their chunks.
    """

    steps: int
    frames: int
    cut: int
    restarts: int
    seconds: float
    env_seconds: float
    policy_seconds: float
    write_seconds: float
    raw_bytes: int
    stored_bytes: int


class Piece(NamedTuple):
    """The result of one `GroupHost.advance` or `GroupHost.finish`, without its payload.

    Args:
        group: Number of the group.
        attempt: Number of its life.
        number: Pieces of a group are counted from 0, over all calls. One that came before says that
            there is no new one yet, or that the call had ended; it has no payload. So does -1.
        call: Number of the call.
        is_last: This is the call's last piece.
        is_repeat: It was stored before: it has no payload.
        chunks: Number of chunks in the payload, or in the group's own store.
        rows: Number of rows in them.
        steps: Env steps taken since the piece before.
        nbytes: Bytes of the chunks.
        episodes: Episodes that count and ended since the piece before; envs are counted within the
            group.
        digest: Fingerprint of all rows of the group so far.
        state: State of that digest.
        version: Number of the weights that chose the newest action.
        opening: With the first chunks of an attempt.
        totals: With the call's last piece.
    """

    group: int
    attempt: int
    number: int
    call: int
    is_last: bool
    is_repeat: bool
    chunks: int
    rows: int
    steps: int
    nbytes: int
    episodes: tuple[EpisodeReport, ...]
    digest: str
    state: DigestState
    version: int
    opening: Opening | None
    totals: CallTotals | None


class Payload(NamedTuple):
    """The arrays of a piece.

    Args:
        chunks: Encoded chunks, as `pack_chunks` joins them; empty where there are none.
        rollout: The rollout, with the last piece of a call of that kind.
    """

    chunks: bytes = b""
    rollout: Rollout | None = None
