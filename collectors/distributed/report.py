"""Reports of a distributed collector: of a call, and of each of its groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from ...buffers.base.progress import Part, Status
from ..loop.report import CollectReport, collect_status, rate_parts
from .messages import CallTotals

_HELP = {
    "steps": "Env steps of stored rows in the newest call",
    "steps_per_second": "Env steps a second in the newest call",
    "episodes": "Episodes that ended in the newest call",
    "sent_bytes": "Bytes that the actors sent in the newest call",
    "deaths": "Actors that died in the newest call",
    "actors": "Actors that run or start",
    "waiting_bytes": "Bytes of pieces that wait for their turn",
    "policy_version": "Version of the newest weights",
    "policy_lag": "Versions between the newest weights and the oldest that a group acts with",
    "group_steps": "Env steps of a group in the newest call",
    "group_restarts": "Times that a group began anew in the newest call since its actor died",
    "group_reseeded": "Times that a group went on with a new seed in the newest call",
    "group_stored_bytes": "Bytes of the stored rows of a group in the newest call",
    "group_policy_version": "Version of the weights that a group acts with",
}


@dataclass(frozen=True, slots=True)
class GroupReport:
    """The part of one group of envs in a call.

    Args:
        group: Number of the group.
        actor: Name of the actor that it was in last.
        steps: Env steps of its stored rows.
        episodes: Episodes of it that ended.
        restarts: Times that it began anew since its actor died.
        reseeded: Times that it went on with a new seed.
        bytes: Bytes of its stored rows.
        version: Version of the weights that its newest action was chosen with.
    """

    group: int
    actor: str
    steps: int
    episodes: int
    restarts: int
    reseeded: int
    bytes: int
    version: int


@dataclass(frozen=True, slots=True)
class DistributedReport(CollectReport):
    """The report of one call of a distributed collector.

    The times spent in envs, the policy and the writer are sums over the groups, divided by the
    number of actors. With a replay, the digest is that of all rows of this collector, as
    `SequenceReplayBuffer.digest` has it of a replay that was empty before.

    Args:
        groups: A report of each group.
        actors: Number of actors.
        deaths: Actors that died, or were killed as they did not answer.
        reseeded: Times that a group went on with a new seed: the data is no function of the
            collector's seed then.
        version: Version of the newest weights; 0 is the policy as it was made.
        sent_bytes: Bytes that the actors sent.
    """

    groups: tuple[GroupReport, ...]
    actors: int
    deaths: int
    reseeded: int
    version: int
    sent_bytes: int

    def metrics(self, *, lag: int, waiting_bytes: int, running_actors: int) -> dict[str, Any]:
        """The numbers that change while a call runs, as plain data.

        Args:
            lag: Versions between the newest weights and the oldest that a group acts with.
            waiting_bytes: Bytes of pieces that wait for their turn.
            running_actors: Actors that run or start.
        """
        return {
            "steps": self.steps,
            "steps_per_second": self.steps_per_second,
            "episodes": self.episodes,
            "sent_bytes": self.sent_bytes,
            "deaths": self.deaths,
            "actors": running_actors,
            "waiting_bytes": waiting_bytes,
            "policy_version": self.version,
            "policy_lag": lag,
            "groups": {
                each.group: {
                    "steps": each.steps,
                    "restarts": each.restarts,
                    "reseeded": each.reseeded,
                    "stored_bytes": each.bytes,
                    "policy_version": each.version,
                }
                for each in self.groups
            },
        }

    def __str__(self) -> str:
        """A summary in three lines."""
        parts = [f"{_counted(len(self.groups), 'group')} in {_counted(self.actors, 'actor')}"]
        parts += [_counted(self.deaths, "death")] if self.deaths else []
        parts += [_counted(self.reseeded, "new seed")] if self.reseeded else []
        parts += [f"weights {self.version}"] if self.version else []
        return f"{CollectReport.__str__(self)}\n{'  '.join(parts)}"


@dataclass(slots=True)
class GroupCounts:
    """Counts of a group in a call, of the pieces that are stored."""

    steps: int = 0
    episodes: int = 0
    rows: int = 0
    nbytes: int = 0
    restarts: int = 0
    reseeded: int = 0
    version: int = 0
    totals: list[CallTotals] = field(default_factory=list[CallTotals])


class CallCounts:
    """Counts of a call, of the pieces that are stored."""

    # ``versions`` are those of the weights that the groups act with.

    def __init__(self, versions: Iterable[int]) -> None:
        self.groups = [GroupCounts(version=version) for version in versions]
        self.returns: list[float] = []
        self.lengths: list[int] = []
        self.sent_bytes = 0
        self.deaths = 0

    def total(self, name: str) -> Any:
        """Sum of a number over the totals of all groups."""
        return sum(getattr(each, name) for group in self.groups for each in group.totals)


def distributed_status(
    report: DistributedReport,
    *,
    lag: int = 0,  # versions between the newest weights and the oldest that a group acts with
    steps: int | None = None,  # env steps to take
    episodes: int | None = None,  # to record; None with no ``steps`` for a run, which has no goal
) -> Status:
    """The progress of a call: that of `Collector.collect`, with groups, deaths and weights."""
    if steps is not None or episodes:
        status = collect_status(report, steps=steps, episodes=episodes)
    else:
        parts = [Part(f"{report.steps:,} steps"), *rate_parts(report)]
        parts.append(Part(f"{report.episodes:,} episodes", 4))
        status = Status(parts, None, report.seconds)
    more = [Part(_counted(len(report.groups), "group"), 3)]
    restarts = sum(group.restarts for group in report.groups)
    more += [Part(_counted(restarts, "restart"), 1, "yellow")] if restarts else []
    more += [Part(f"weights {report.version}, lag {lag}", 2)] if report.version else []
    return status._replace(parts=[*status.parts, *more])


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def gauges(metrics: Mapping[str, Any]) -> list[tuple[str, float, dict[str, str]]]:
    """Metrics as names, values and tags, as `Engine.gauge` and Prometheus take them."""
    found: list[tuple[str, float, dict[str, str]]] = []
    for name, value in metrics.items():
        if name != "groups":
            found.append((f"stepwell_{name}", float(value), {}))
    groups = cast("Mapping[int, Mapping[str, float]]", metrics["groups"])
    names = next(iter(groups.values()), {})
    for name in names:
        found += [
            (f"stepwell_group_{name}", float(values[name]), {"group": str(group)})
            for group, values in groups.items()
        ]
    return found


def prometheus_text(metrics: Mapping[str, Any]) -> str:
    """Metrics in Prometheus' text format, all of them gauges."""
    lines: list[str] = []
    described = ""
    for name, value, tags in gauges(metrics):
        if name != described:
            described = name
            lines += [
                f"# HELP {name} {_HELP[name.removeprefix('stepwell_')]}.",
                f"# TYPE {name} gauge",
            ]
        labels = ",".join(f'{key}="{text}"' for key, text in tags.items())
        lines.append(f"{name}{{{labels}}} {value!r}" if labels else f"{name} {value!r}")
    return "\n".join([*lines, ""])
