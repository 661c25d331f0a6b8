"""Collects from groups of envs in actors on a Ray cluster."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from functools import partial

from ..loop.report import EpisodeReport
from ..loop.step_result import MetadataOrFunction
from ..policies.as_policy import GivenPolicy
from .collector import DistributedCollector, GivenEnvs, GivenReplay, OnDeath
from .local_engine import check_sendable
from .messages import GroupOptions


class RayCollector(DistributedCollector):
    """Steps groups of envs in actors on a Ray cluster, and stores what they record here.

    It needs Ray: ``pip install 'stepwell[ray]'``. The data is a function of the seed and the number
    of groups, not of the actors, their places or their deaths; see `LocalCollector` for the same
    on one machine without Ray.

    The actors are no detached ones: they end with this program, whatever ends it. Ray's metrics
    get ``stepwell_...`` gauges. Ray's own settings, its usage statistics among them, are left as
    they are.

    Args:
        make_envs: Called in an actor, once for each group: returns its vector env, as `Collector`
            takes it.
        make_policy: Called in an actor, once for each group: returns its policy, as `Collector`
            takes it. A method ``load(weights)`` of it gets the weights of ``collect``, ``rollout``
            and ``running``; every row then has the extra ``"policy_version"``.
        replay: The mirror: stores the rows of all groups here. Or `Folders`: each group writes a
            store of its own. None keeps no rows.
        groups: Number of groups. The data is a function of the seed and this number.
        actors: Number of actors, at most as many as groups; None: one for each group.
        address: Address of the cluster, as ``ray.init`` takes it: ``"auto"`` for the one of this
            machine. None: that of the environment variable ``RAY_ADDRESS``, or else a new Ray on
            this machine, which ends at `close`. A program that has called ``ray.init`` stays
            connected to that cluster.
        resources: What each actor needs: ``num_cpus``, 1 if not given, ``num_gpus``, ``memory`` in
            bytes, and the cluster's own resources by their names.
        seed: As in `Collector`: group g is the part g + 1 of ``groups`` of a data set.
        shard: As in `Collector`, for several machines that collect parts of one data set.
        info: As in `Collector`.
        metadata: As in `Collector`; the index of the env is counted within its group.
        frame_stack: As in `Collector`.
        store_state: As in `Collector`.
        reseed_steps: As in `Collector`.
        tolerate: As in `Collector`, for each group.
        flush_seconds: In ``running``, no row waits longer than this to be sent. Other calls send
            whole chunks, and the rest at their end.
        in_flight: Pieces that an actor is asked for at once.
        max_restarts: How often a group may begin anew since its actor died.
        on_death: ``"repeat"``: a group whose actor died plays again from its seed what is stored
            already, compares it, and goes on. ``"reseed"``: its open episodes are cut, and it goes
            on with a new seed; so it does in ``running``, and where the rows played again differ.
        start_seconds: Seconds that ``make_envs`` and ``make_policy`` may take.
        answer_seconds: Seconds after which an actor that does not answer is killed and replaced.
        on_episode: Called here with each episode that counts, when its rows are stored.
        log: As in `Collector`; points come with the pieces that are stored.

    Raises:
        ImportError: Ray is not installed.
        ConnectionError: There is no Ray at the address.
        ValueError: A number is out of range.
        TypeError: ``make_envs`` or ``make_policy`` is no function or cannot be sent to another
            process, or the replay is none of these.

    Example:
        >>> import stepwell as sw
        >>> def collect() -> None:  # takes some seconds: Ray starts
        ...     with sw.RayCollector(
        ...         lambda: sw.make_atari("Pong", 4), lambda: sw.RandomPolicy(),
        ...         replay := sw.SequenceReplayBuffer(), groups=4, actors=2, seed=0,
        ...     ) as collector:
        ...         print(collector.collect(steps=10_000))
    """

    def __init__(
        self,
        make_envs: Callable[[], GivenEnvs],
        make_policy: Callable[[], GivenPolicy],
        replay: GivenReplay = None,
        *,
        groups: int,
        actors: int | None = None,
        address: str | None = None,
        resources: Mapping[str, float] | None = None,
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
        on_death: OnDeath = "repeat",
        start_seconds: float = 120.0,
        answer_seconds: float = 300.0,
        on_episode: Callable[[EpisodeReport], None] | None = None,
        log: object = None,
    ) -> None:
        if importlib.util.find_spec("ray") is None:
            raise ImportError(
                "RayCollector needs Ray, which is not installed: pip install 'stepwell[ray]'; "
                "LocalCollector runs the same on this machine without it",
                name="ray",
            )
        from .ray_engine import RayEngine

        check_sendable(make_envs=make_envs, make_policy=make_policy, metadata=metadata)
        super().__init__(
            partial(RayEngine, address=address, resources=resources),
            make_envs,
            make_policy,
            replay,
            GroupOptions(
                groups=groups,
                shard=shard,
                info=info,
                metadata=metadata,
                frame_stack=frame_stack,
                store_state=store_state,
                reseed_steps=reseed_steps,
                tolerate=tolerate,
                flush_seconds=flush_seconds,
            ),
            actors=groups if actors is None else actors,
            seed=seed,
            in_flight=in_flight,
            max_restarts=max_restarts,
            on_death=on_death,
            start_seconds=start_seconds,
            answer_seconds=answer_seconds,
            on_episode=on_episode,
            log=log,
        )
