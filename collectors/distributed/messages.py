"""The values that travel between the driver of a collector and the hosts of its groups.

A *group* is a vector env with its policy; a *host* steps some groups in an actor. A *call* is one
`collect`, `rollout` or `running` as a group gets it. A *piece* is the result of one
`GroupHost.advance`: the chunks that the group's writer stored at once, or the end of a call. Pieces
are small; their `Payload` has the rows and travels apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from ...buffers import Rollout, Spec
from ...buffers.rows.digest import DigestState
from ...buffers.spec.spec import Codec
from ..loop.report import EpisodeReport
from ..loop.step_result import MetadataOrFunction

if TYPE_CHECKING:
    from .folders import Folders

CallKind: TypeAlias = Literal["steps", "episodes", "seeds", "rollout", "run"]


class Call(NamedTuple):
    """One call of a collector, as one group gets it."""

    number: int  # calls of a collector are counted from 0; an equal number is the same call
    kind: CallKind  # the goal; "run" has none: it goes on until `GroupHost.finish`
    amount: int = 0  # env steps or episodes of this group; rows T of each env of a rollout
    seeds: tuple[int, ...] = ()  # for "seeds": of resets, each of which begins an episode
    version: int = 0  # of the published weights that the policy has; 0: the policy as it was made


class GroupOptions(NamedTuple):
    """The options of all groups of a collector; those of the same name are as in `Collector`."""

    groups: int  # number of groups G
    # Part (i, n) of the machine's own; None for all of the data. Group g has the shard ((i - 1) * G
    # + g + 1, n * G)
    shard: tuple[int, int] | None = None
    info: Mapping[str, object] | None = None
    # A function is called with the env's index in its group
    metadata: MetadataOrFunction | None = None
    frame_stack: int | None = None
    store_state: bool = False
    reseed_steps: int | None = 50_000
    tolerate: int = 0
    # Sessions that the replay had before: the number of the rows' session, from which their seeds
    # are derived, too
    session: int = 0
    spec: Spec | None = None  # the fields of a row, where the replay holds rows already
    codecs: Mapping[str, Codec] = {}  # of the replay, by the names of fields
    capacity: int | None = None  # of the replay in steps: the rows of a chunk depend on it
    # "ship": chunks go into the payloads; "none": nothing is stored; or the folder or URL at which
    # each group has a store of its own
    destination: str | Folders = "ship"
    flush_seconds: float = 10.0  # in calls of kind "run"; in other calls no time passes


class GroupStart(NamedTuple):
    """The beginning of a group in a host: for the first time, or again after its actor died."""

    group: int  # number g, from 0
    attempt: int  # 0 at first, one more after each death
    # The collector's, or another one where the group goes on with other data after a death
    seed: int
    session: int  # of the rows that follow: that of the options, or one begun for another seed
    # All calls so far, which are played again, the unfinished one included
    history: tuple[Call, ...] = ()
    # Pieces of the history that are stored already: these come again without their chunks
    skip: int = 0
    # Where it goes on after other rows of this group: that of their digest
    state: DigestState = DigestState()
    # Where it goes on after the rows of another collector: the state of its own `Collector` then
    collector: Mapping[str, object] | None = None


class Opening(NamedTuple):
    """Facts about a group's rows, which all groups of a collector share."""

    spec: Spec  # the fields of every row
    # About the session, as a Collector of this group alone would note them
    facts: Mapping[str, object]
    num_envs: int  # of the group
    stepwell: str  # version in the actor


class CallTotals(NamedTuple):
    """Counts and times of one call of one group, whole or so far."""

    steps: int  # env steps
    frames: int  # emulator frames behind them
    cut: int  # episodes whose recording stopped before they ended
    restarts: int  # of envs whose worker process died, or that raised
    seconds: float  # in the calls of `GroupHost.advance`; the three below are parts of it
    env_seconds: float
    policy_seconds: float
    write_seconds: float
    raw_bytes: int  # of the new rows uncompressed, each frame counted once
    stored_bytes: int  # of the same rows in their chunks
    outside: int = 0  # rows whose observation is not in the env's space


class Piece(NamedTuple):
    """The result of one `GroupHost.advance` or `GroupHost.finish`, without its payload."""

    group: int
    attempt: int  # number of the group's life
    # Pieces of a group are counted from 0, over all calls. One that came before says that there is
    # no new one yet, or that the call had ended; it has no payload. So does -1.
    number: int
    call: int
    is_last: bool  # of its call
    is_repeat: bool  # it was stored before: it has no payload
    chunks: int  # number of chunks in the payload, or in the group's own store
    rows: int  # number of rows in them
    steps: int  # env steps since the piece before
    nbytes: int  # of the chunks
    # That count and ended since the piece before; envs are counted within the group
    episodes: tuple[EpisodeReport, ...]
    digest: str  # fingerprint of all rows of the group so far
    state: DigestState  # of that digest
    version: int  # of the weights that chose the newest action
    opening: Opening | None  # with the first chunks of an attempt
    totals: CallTotals | None  # with the call's last piece


class Payload(NamedTuple):
    """The arrays of a piece."""

    chunks: bytes = b""  # encoded, as `pack_chunks` joins them; empty where there are none
    rollout: Rollout | None = None  # with the last piece of a call of that kind
