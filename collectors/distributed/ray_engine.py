"""Actors on a Ray cluster, as the engine of a collector; the only file that imports Ray."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Literal, NamedTuple, cast

import ray
from ray import cloudpickle
from ray import exceptions as ray_errors
from ray._private.services import canonicalize_bootstrap_address
from ray.autoscaler.v2.sdk import get_cluster_status
from ray.util.metrics import Gauge

from .engine import Actor, ActorDied, Answer, Reference, RemoteError, in_one_line, remote_error

_LOG = logging.getLogger("stepwell.collectors")
_CONNECT_SECONDS = 10.0
_STATUS_SECONDS = 1.0  # the cluster's own view of what waits is no newer than that
# Parts of Ray's messages about a death, each with what happened in words; the first one counts.
_CAUSES = (
    ("its node has died", "its node is gone"),
    ("killed by `ray.kill`", "it was killed"),
    ("running low on memory", "its node ran out of memory, so Ray killed its process"),
    ("is unavailable", "its process or its node cannot be reached"),
    ("exits with an exit code", "its process ended by itself"),
    ("connection error code 2", "its process was killed, or it crashed"),
    ("cannot be reconstructed", "its node is gone, and with it what it had returned"),
)


class RayEngine:
    """Starts, calls and kills actors on a Ray cluster; an `Engine`."""

    # The actors are not restarted by Ray, and end with this program. What is sent is packed by
    # Ray's own pickler, in one piece for each call: the arrays that come out of it are writable, as
    # those of one process are.
    # ``address`` is as ``ray.init`` takes it, for example "auto". None: that of RAY_ADDRESS, or
    # else a new Ray on this machine, which ends at `close`. A program that has connected to Ray
    # already stays connected to that cluster.
    # ``resources`` of each actor: num_cpus, num_gpus, memory in bytes, and the cluster's own.

    def __init__(
        self, *, address: str | None = None, resources: Mapping[str, float] | None = None
    ) -> None:
        self._asked = _checked_resources({} if resources is None else resources)
        if not isinstance(cast("object", address), str | None):
            raise TypeError(f"address: expected a string such as 'auto' or None, got {address!r}")
        self._owns_ray = _connect(address)
        self._actors: list[_RayActor] = []
        self._gauges: dict[tuple[str, tuple[str, ...]], Gauge] = {}
        self._status: Any = None
        self._status_time = -inf
        self._is_closed = False
        own = {key: self._asked[key] for key in self._asked.keys() - _RAY_NAMES.keys()}
        self._options = {
            **{name: self._asked[name] for name in self._asked.keys() & _RAY_NAMES.keys()},
            **({"resources": own} if own else {}),
            "max_restarts": 0,  # the collector restarts groups, and knows what they have sent
            "max_task_retries": 0,  # a call that was made twice would step the envs twice
            "scheduling_strategy": "SPREAD",  # the loss of a node then ends few actors
        }

    def start(self, name: str, make: Callable[[], object]) -> Actor:
        """Start an actor and return at once; see `Engine.start`."""
        self._check_open()
        parcel = _packed((make,), f"{name}: make_envs, make_policy and the options")
        handle: Any = ray.remote(_Host).options(**self._options).remote(name)
        actor = _RayActor(name, handle, handle.make.remote(parcel))
        self._actors.append(actor)
        return actor

    def call(
        self, actor: Actor, method: str, *arguments: object, parts: Literal[1, 2] = 1
    ) -> Answer:
        """Call a method of the actor's object and return at once; see `Engine.call`."""
        called = cast("_RayActor", actor)
        if called.death:
            return _RayAnswer(called, ())
        given = [
            one.there()
            if isinstance(one, _RayReference)
            else _packed(one, f"{called.name}: an argument of {method}")
            for one in arguments
        ]
        refs = called.handle.call.options(num_returns=parts).remote(method, parts, *given)
        return _RayAnswer(called, tuple(refs) if parts == 2 else (refs,))

    def wait(self, answers: Sequence[Answer], seconds: float) -> list[Answer]:
        """The answers that are there or have failed; see `Engine.wait`."""
        open_answers = [cast("_RayAnswer", answer) for answer in answers]
        refs = [answer.refs[0] for answer in open_answers if not answer.actor.death]
        dead = len(refs) < len(open_answers)
        if refs and not dead:
            found, _ = ray.wait(refs, num_returns=1, timeout=seconds)
            if not found:
                return []
        elif not dead and seconds > 0:
            time.sleep(seconds)  # as if there were answers to wait for
        found, _ = ray.wait(refs, num_returns=len(refs), timeout=0) if refs else ([], [])
        there = set(found)
        return [one for one in open_answers if one.actor.death or one.refs[0] in there]

    def result(self, answer: Answer) -> Any:
        """The value that the call returned; see `Engine.result`."""
        got = cast("_RayAnswer", answer)
        if got.actor.death:
            raise got.actor.death.error()
        value = self._opened(got.refs[0], got.actor)
        return value if len(got.refs) == 1 else (value, _RayReference(got.refs[1], got.actor))

    def fetch(self, reference: Reference) -> Any:
        """The value of a reference; see `Engine.fetch`. Its arrays are writable."""
        wanted = cast("_RayReference", reference)
        return self._opened(wanted.there(), wanted.actor)

    def share(self, value: object) -> Reference:
        """Put a value into Ray's object store, from which each node gets it once."""
        self._check_open()
        return _RayReference(ray.put(_packed(value, "the weights")), None)

    def forget(self, reference: Reference) -> None:
        """Let Ray free a value as soon as no call needs it any more; idempotent."""
        cast("_RayReference", reference).ref = None

    def kill(self, actor: Actor) -> None:
        """End an actor at once; see `Engine.kill`."""
        self._end(cast("_RayActor", actor), _Death("it was killed"))

    def shortage(self, actor: Actor) -> str | None:
        """A sentence while Ray has no place for the actor; see `Engine.shortage`."""
        asking = cast("_RayActor", actor)
        if asking.death or ray.wait([asking.made], timeout=0)[0]:
            return None
        if time.monotonic() - self._status_time > _STATUS_SECONDS:
            self._status = get_cluster_status(ray.get_runtime_context().gcs_address)
            self._status_time = time.monotonic()
        asked = {_RAY_NAMES.get(name, name): value for name, value in self._asked.items() if value}
        waiting = [
            one.bundle
            for demand in self._status.resource_demands.ray_task_actor_demand
            for one in demand.bundles_by_count
        ]
        if not any(bundle.items() == asked.items() for bundle in waiting):
            return None  # its process starts, or its envs are made
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        free = ray.available_resources()
        there = [
            f"{name}: {sum(amounts):g} on {len(nodes)} nodes, at most {max(amounts):g} on one, "
            f"{free.get(name, 0):g} free"
            for name in asked
            for amounts in [[node.get(name, 0) for node in nodes]]
        ]
        wanted = ", ".join(f"{name}: {value:g}" for name, value in asked.items())
        return (
            f"{asking.name} asks for {wanted}; the Ray cluster has {', '.join(there)}; "
            f"ask for less, use fewer actors, or add nodes"
        )

    def gauge(self, name: str, value: float, tags: Mapping[str, str]) -> None:
        """Publish a number as a metric of Ray; see `Engine.gauge`."""
        kind = name, tuple(sorted(tags))
        if kind not in self._gauges:
            self._gauges[kind] = Gauge(name, "", tag_keys=kind[1])
        self._gauges[kind].set(value, dict(tags))

    def close(self) -> None:
        """End all actors of this engine, and Ray where this engine started it; idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        for actor in self._actors:
            self.kill(actor)
        self._actors.clear()
        if self._owns_ray:
            ray.shutdown()

    def _check_open(self) -> None:
        """Refuse what would make Ray start again by itself, and stay."""
        if self._is_closed:
            raise ValueError("the engine is closed: expected an open one")

    def _opened(self, ref: ray.ObjectRef[Any], actor: _RayActor | None) -> Any:
        """The value that a reference of Ray leads to, or the error that it stands for."""
        if actor and actor.death:
            raise actor.death.error()
        self._check_open()
        try:
            got = ray.get(ref)
        except ray_errors.RayTaskError as error:  # not of the method: of an argument, above all
            cause = error.cause if isinstance(error.cause, BaseException) else error
            words, kind = in_one_line(cause).splitlines()[0], type(cause).__name__
            raise RemoteError(words, kind=kind, traceback=str(error)) from None
        except ray_errors.RayError as error:
            if isinstance(error, ray_errors.RayActorError) and error.actor_init_failed:
                words = str(error)
                raise RemoteError(  # `_Host` could not be imported
                    f"the actor did not start: {words.strip().splitlines()[-1]}; install the same "
                    f"version of stepwell on every node",
                    kind="ImportError",
                    traceback=words,
                ) from None
            death = _Death.of(error)
            if actor:
                self._end(actor, death)
            raise death.error() from None
        if isinstance(got, RemoteError):
            raise got
        return _unpacked(got)

    def _end(self, actor: _RayActor, death: _Death) -> None:
        """Note the death of an actor, and make sure of it: one that was cut off may live on."""
        if not actor.death:
            actor.death = death
            if ray.is_initialized():  # else its cluster is gone, and the actor with that
                ray.kill(actor.handle)


_RAY_NAMES = {"num_cpus": "CPU", "num_gpus": "GPU", "memory": "memory"}


class _Parcel(NamedTuple):
    """A value as it travels, and lies in Ray's object store."""

    # Its arrays are apart from the rest, so that Ray copies them once at each end; what Ray itself
    # would give out are views of the store, which nobody may write to.

    pickled: bytes
    arrays: list[Any]


class _Host:
    """The process of an actor: makes the object and calls its methods."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._object: object = None
        self._failure: RemoteError | None = None

    def __repr__(self) -> str:  # Ray puts it before each line that the actor prints
        return self._name

    def make(self, parcel: _Parcel) -> None:
        try:
            (make,) = _unpacked(parcel)
            self._object = make()
        except BaseException as error:
            self._failure = remote_error(error)

    def call(self, method: str, parts: int, *parcels: _Parcel) -> Any:
        try:
            if self._failure:
                failure = self._failure
            else:
                got = getattr(self._object, method)(*map(_unpacked, parcels))
                what = f"what {method} returned"
                packed = [_packed(one, what) for one in (got if parts == 2 else (got,))]
                return packed[0] if parts == 1 else tuple(packed)
        except BaseException as error:
            failure = remote_error(error)
        return failure if parts == 1 else (failure, None)


class _Death(NamedTuple):
    """The end of an actor: its cause in one clause, and Ray's own words."""

    cause: str
    words: str = ""

    @classmethod
    def of(cls, error: ray_errors.RayError) -> _Death:
        words = str(error)
        known = [cause for part, cause in _CAUSES if part in words]
        return cls(known[0] if known else in_one_line(error).splitlines()[0], words)

    def error(self) -> ActorDied:
        died = ActorDied(self.cause)
        if self.words:
            died.add_note(f"Ray says: {self.words}")
        return died


@dataclass(eq=False)
class _RayActor:
    """An actor as the engine knows it."""

    name: str
    handle: Any
    made: ray.ObjectRef[Any]
    death: _Death | None = None


@dataclass(eq=False)
class _RayAnswer:
    """The answer to a call: one reference of Ray for each part."""

    actor: _RayActor
    refs: tuple[ray.ObjectRef[Any], ...]


@dataclass(eq=False)
class _RayReference:
    """A value in Ray's object store; ``actor`` is the one that made it, or None: the driver."""

    ref: ray.ObjectRef[Any] | None
    actor: _RayActor | None

    def there(self) -> ray.ObjectRef[Any]:
        if self.ref is None:
            raise ValueError("this reference was forgotten: its memory is free")
        return self.ref


def _packed(value: object, what: str) -> _Parcel:
    arrays: list[Any] = []
    try:
        pickled = cast("Any", cloudpickle).dumps(value, protocol=5, buffer_callback=arrays.append)
    except Exception as error:
        raise TypeError(
            f"{what} cannot be sent to another process: {type(error).__name__}: {error}; "
            f"make in the actor what cannot be sent, in make_envs or make_policy"
        ) from error
    return _Parcel(pickled, arrays)


def _unpacked(parcel: _Parcel) -> Any:
    return cast("Any", cloudpickle).loads(parcel.pickled, buffers=map(bytearray, parcel.arrays))


def _checked_resources(resources: Mapping[str, float]) -> dict[str, float]:
    if not isinstance(cast("object", resources), Mapping):
        raise TypeError(
            f"resources: expected a mapping such as {{'num_cpus': 1}}, got {resources!r}"
        )
    for name, value in resources.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < inf:
            raise ValueError(f"resources: expected a number of at least 0, got {name!r}: {value!r}")
        if name in ("CPU", "GPU"):
            raise ValueError(f"resources: {name} is called 'num_{name.lower()}s'")
    return {"num_cpus": 1, **resources}


def _connect(address: str | None) -> bool:
    """Connect to Ray; returns True if this program was not connected before."""
    # A file in Ray's temporary folder says where the last cluster of this machine was. It may be
    # stale, or somebody else's: it is read for ``"auto"`` only.
    if ray.is_initialized():
        there = ray.get_runtime_context().gcs_address
        if address not in (None, "auto", there):
            raise ValueError(
                f"address: this program is connected to Ray at {there}, got {address!r}; "
                f"call ray.shutdown() before, or leave out the address"
            )
        return False
    wanted = address or os.environ.get("RAY_ADDRESS") or "local"
    if wanted.startswith("ray://"):
        raise ValueError(
            f"address: a collector cannot be a Ray client, got {wanted!r}; run the program on a "
            f"node of the cluster with address='auto', or submit it as a job"
        )
    own: dict[str, Any] = {"include_dashboard": False} if wanted == "local" else {}
    place = wanted
    try:
        place = canonicalize_bootstrap_address(wanted) or wanted
        if place != "local":  # ray.init would try for minutes
            host, port = place.rsplit(":", 1)
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
        ray.init(address=place, logging_level=logging.WARNING, **own)
    except Exception as error:
        ray.shutdown()
        raise ConnectionError(
            f"address: cannot connect to Ray at {place} ({wanted!r}): "
            f"{' '.join(in_one_line(error).split())}; start one with `ray start --head`, or leave "
            f"out the address for one on this machine alone"
        ) from error
    where = ray.get_runtime_context().gcs_address
    _LOG.info("%s Ray at %s", "started a" if wanted == "local" else "connected to", where)
    return True
