"""A collector whose groups of envs run in processes of this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from ...buffers.base.number_checks import check_whole
from ...wrappers.workers.processes import available_cores
from ..loop.report import EpisodeReport
from ..loop.step_result import MetadataOrFunction
from ..policies.as_policy import GivenPolicy
from .collector import DistributedCollector, GivenEnvs, GivenReplay
from .local_engine import LocalEngine, check_sendable
from .messages import GroupOptions


class LocalCollector(DistributedCollector):
    """Steps groups of envs in processes of this machine, each with its own policy.

    It does what a `Collector` does, on all cores: the policy runs in these processes, too, and rows
    arrive compressed. A group is what a `Collector` of its own would be, with the part
    ``shard=(g + 1, groups)`` of the data. So the data is a function of the seed and the number of
    groups: the number of processes, and deaths of some of them, change nothing.

    The processes import what they need, and get ``make_envs`` and ``make_policy`` with their code;
    a script needs no main guard. What its top level does, such as registering envs, they do not
    repeat: do it in ``make_envs``, or in a module that this imports.

    Args:
        make_envs: Called in a process, once for each group: returns its vector env, as `Collector`
            takes it.
        make_policy: Called in a process, once for each group: returns its policy, as `Collector`
            takes it. A method ``load(weights)`` of it gets the weights of ``collect``, ``rollout``
            and `Run.publish`; every row then has the extra ``"policy_version"``.
        replay: Stores the rows of all groups here; or `Folders`. None keeps no rows.
        groups: Number of groups; None: as many as processes. Name it where the data is to be the
            same on a machine with another number of cores.
        processes: Number of processes; None: one for each available core, at most one for each
            group.
        seed: As in `Collector`.
        shard: As in `Collector`, for several machines that collect parts of one data set.
        info: As in `Collector`.
        metadata: As in `Collector`; the index of the env is counted within its group.
        frame_stack: As in `Collector`.
        store_state: As in `Collector`.
        reseed_steps: As in `Collector`.
        tolerate: As in `Collector`, for each group.
        flush_seconds: In `running`, no row waits longer than this to be sent. Other calls send
            whole chunks, and the rest at their end.
        in_flight: Pieces that a process is asked for at once.
        max_restarts: How often a group may begin anew since its process died.
        on_death: ``"repeat"``: a group whose process died plays again from its seed what is stored
            already, compares it, and goes on. ``"reseed"``: its open episodes are cut, and it goes
            on with a new seed; so it does in `running`, and where the rows played again differ.
        start_seconds: Seconds that ``make_envs`` and ``make_policy`` may take.
        answer_seconds: Seconds after which a process that does not answer is killed and replaced.
        on_episode: Called here with each episode that counts, when its rows are stored.
        log: As in `Collector`; points come with the pieces that are stored.

    Raises:
        ValueError: A number is out of range.
        TypeError: A function cannot be sent to another process, or the replay is none of these.
        OSError: The system has no such processes: it is neither Linux nor macOS.

    Example:
        >>> import stepwell as sw
        >>> replay = sw.SequenceReplayBuffer()
        >>> with sw.LocalCollector(
        ...     lambda: sw.make_vec("CartPole-v1", num_envs=4, num_workers=0),
        ...     sw.RandomPolicy,
        ...     replay,
        ...     groups=2,
        ...     processes=1,
        ...     seed=0,
        ... ) as collector:
        ...     report = collector.collect(steps=100)
        >>> report.steps, replay.steps, len(report.groups)
        (103, 103, 2)
    """

    def __init__(
        self,
        make_envs: Callable[[], GivenEnvs],
        make_policy: Callable[[], GivenPolicy],
        replay: GivenReplay = None,
        *,
        groups: int | None = None,
        processes: int | None = None,
        seed: int | None = None,
        shard: tuple[int, int] | None = None,
        info: Mapping[str, object] | None = None,
        metadata: MetadataOrFunction | None = None,
        frame_stack: int | None = None,
        store_state: bool = False,
        reseed_steps: int | None = 50_000,
        tolerate: int = 0,
        flush_seconds: float = 10.0,
        in_flight: int = 2,
        max_restarts: int = 3,
        on_death: Literal["repeat", "reseed"] = "repeat",
        start_seconds: float = 120.0,
        answer_seconds: float = 300.0,
        on_episode: Callable[[EpisodeReport], None] | None = None,
        log: object = None,
    ) -> None:
        for name, number in (("groups", groups), ("processes", processes)):
            if number is not None:
                check_whole(name, number, 1)
        # Before a process starts, and by the names of the arguments.
        check_sendable(make_envs=make_envs, make_policy=make_policy, metadata=metadata)
        count = processes or min(available_cores(), groups or available_cores())
        if groups is not None and count > groups:
            raise ValueError(
                f"processes: expected at most one for each of the {groups} groups, got {count}; "
                f"give fewer, or more groups"
            )
        super().__init__(
            LocalEngine,
            make_envs,
            make_policy,
            replay,
            GroupOptions(
                groups=groups or count,
                shard=shard,
                info=info,
                metadata=metadata,
                frame_stack=frame_stack,
                store_state=store_state,
                reseed_steps=reseed_steps,
                tolerate=tolerate,
                flush_seconds=flush_seconds,
            ),
            actors=count,
            seed=seed,
            in_flight=in_flight,
            max_restarts=max_restarts,
            on_death=on_death,
            start_seconds=start_seconds,
            answer_seconds=answer_seconds,
            on_episode=on_episode,
            log=log,
        )
