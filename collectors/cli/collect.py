"""`stepwell collect`: play envs and store every row in a folder."""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, cast

import numpy as np
import typer

from ...buffers import SequenceReplayBuffer, StepwellError
from ...buffers.base.number_checks import is_whole
from ...buffers.base.progress import clock
from ...buffers.replay.writer import kept_since
from ...buffers.storage.disk.files import Files
from ...buffers.storage.disk.folder import StoreFolder, folder_path
from ...buffers.storage.disk.publish import disk_bytes
from ...buffers.storage.disk.storage import DiskStorage
from ...buffers.view.summary import describe_size
from ..distributed.report import DistributedReport, distributed_status
from ..loop.collector import Collector, check_shard
from ..loop.report import CollectReport, collect_status, rate_parts
from .game_options import EnvName, GivenGameOptions, Workers, run_option, with_game_options
from .load_policy import Policy, load_policy
from .make_envs import EnvRequest, make_envs, refuse_endless
from .options import count_in, number_of_bytes, parse_metadata, refuse_store
from .output import Output, Part, plural, with_output
from .run_config import config_text, naming_config, take_config

if TYPE_CHECKING:
    from ..distributed.local_collector import LocalCollector

# The same on every machine, since the data depends on it.
DEFAULT_NUM_ENVS = 8

# Options of a panel.
store_option = partial(typer.Option, rich_help_panel="Where to store it")
_file_option = partial(typer.Option, rich_help_panel="Options from a file")
_RESUME = "add to it with --resume, or "

Resume = Annotated[
    bool,
    store_option("--resume", help="Add to the store if it exists, with new episode ids and seeds."),
]
InfoFields = Annotated[
    list[str] | None,
    store_option(
        metavar="NAME",
        help="Store this field of the env's info too, such as lives. NAME=VALUE sets the value "
        "for rows that lack it: speed=nan. May be repeated.",
    ),
]
EpisodeFacts = Annotated[
    list[str] | None,
    store_option(
        metavar="KEY=VALUE",
        help="Store this with every episode, to select by later: task=door. May be repeated.",
    ),
]


@with_game_options
@with_output()
def collect(
    context: typer.Context,
    env: EnvName,
    *,
    steps: Annotated[
        str | None,
        run_option(metavar="N", help="Env steps to add, over all envs: 100_000, 1e5 or 100k."),
    ] = None,
    episodes: Annotated[
        str | None, run_option(metavar="N", help="Or: whole episodes to add, over all envs.")
    ] = None,
    num_envs: Annotated[
        str | None,
        run_option(
            metavar="N",
            help=f"Envs that are stepped together: those of one group. Default: "
            f"{DEFAULT_NUM_ENVS}; with --resume as many as before.",
        ),
    ] = None,
    policy: Policy = "random",
    seed: Annotated[
        str | None,
        run_option(
            metavar="N",
            help="The same seed and number of envs give the same data. Default: the store's seed, "
            "or a random one.",
        ),
    ] = None,
    shard: Annotated[
        str | None,
        run_option(
            metavar="I/N",
            help="Collect part I of N, from 1/N to N/N: machines with the same --seed play from "
            "different seeds, and merge joins their stores. Default: with --resume as before.",
        ),
    ] = None,
    processes: Annotated[
        str | None,
        run_option(
            metavar="N",
            help="Processes to play in, each with its own envs and policy. Default: 0, the "
            "command's own; 1 with --groups.",
        ),
    ] = None,
    groups: Annotated[
        str | None,
        run_option(
            metavar="N",
            help="Groups of envs, which the processes share out: equal seeds, groups and numbers "
            "of envs give the same data in any number of processes. Default: one for each process; "
            "with --resume as many as before.",
        ),
    ] = None,
    workers: Workers = None,
    tolerate: Annotated[
        str | None,
        run_option(
            metavar="N",
            help="Exceptions of envs to answer, in each group: the env is made again, and its "
            "episode is cut. Default: 0.",
        ),
    ] = None,
    out: Annotated[Path, store_option(metavar="DIR", help="Folder of the store.")],
    resume: Resume = False,
    info: InfoFields = None,
    metadata: EpisodeFacts = None,
    capacity: Annotated[
        str | None, store_option(metavar="N", help="Keep at most N steps; the oldest are removed.")
    ] = None,
    capacity_bytes: Annotated[
        str | None,
        store_option(metavar="SIZE", help="Keep at most this much on disk: 500MB, 2GiB."),
    ] = None,
    log: Annotated[
        str | None,
        run_option(
            metavar="DIR",
            help="Write curves of returns, lengths and speed for TensorBoard into this folder, or "
            "with 'wandb' to Weights & Biases.",
        ),
    ] = None,
    games: GivenGameOptions,
    config: Annotated[
        Path | None,
        _file_option(
            metavar="FILE",
            help="Take options from a TOML file: env = 'Pong', steps = 1e6. Options of the command "
            "line win.",
            callback=take_config,
            is_eager=True,
        ),
    ] = None,
    print_config: Annotated[
        bool,
        _file_option(
            "--print-config", help="Print such a file with the given options, and do nothing else."
        ),
    ] = False,
    output: Output,
) -> None:
    """Play envs with a policy and store every row in a folder.

    stepwell collect Pong --steps 100_000 --out runs/pong
    stepwell collect Pong --steps 100_000 --out runs/pong --resume
    stepwell collect Breakout --episodes 50 --policy agent:act --out runs/b
    stepwell collect game.nes --game map --episodes 50 --out runs/game
    stepwell collect CartPole-v1 --steps 1e6 --seed 0 --out runs/pole
    stepwell collect mygames:make_maze --episodes 9 --out runs/maze
    stepwell collect Pong --steps 1e6 --processes 8 --out runs/pong
    stepwell collect Pong --steps 1e6 --seed 0 --shard 2/4 --out runs/p2
    stepwell collect Pong --steps 1e6 --out runs/p --print-config > p.toml
    stepwell collect --config p.toml --resume

    Ctrl-C stops the run and keeps the collected steps.
    Exit codes: 0 done, 2 an error that you can correct, 130 Ctrl-C.
    """
    with naming_config(context):
        at_once = count_in("--num-envs", num_envs) or 0
        request = games.request(env, at_once, count_in("--workers", workers, 0))
        goal: dict[str, Any] = {
            "steps": count_in("--steps", steps),
            "episodes": count_in("--episodes", episodes),
        }
        chosen_seed = count_in("--seed", seed, 0)
        chosen_shard = parse_shard("--shard", shard)
        places = Places(
            count_in("--processes", processes, 0) or 0, count_in("--groups", groups) or 0
        )
        faults = count_in("--tolerate", tolerate, 0) or 0
        info_fields = dict(parse_info("--info", text) for text in info or [])
        facts = dict(parse_metadata("--metadata", text) for text in metadata or [])
        most_steps = count_in("--capacity", capacity)
        most_bytes = number_of_bytes("--capacity-bytes", capacity_bytes)
        if print_config:
            typer.echo(config_text(context), nl=False)
            return
        _refuse_early(request, goal, places, out, resume)
        agent = load_policy(policy)
        with contextlib.ExitStack() as stack:
            opened = opened_store(out, resume, most_steps, most_bytes)
            replay = stack.enter_context(opened)
            request, places, used_seed = _as_in_last_run(request, places, chosen_seed, replay)
            used_shard = _as_in_all_runs(chosen_shard, replay)
            line = stack.enter_context(output.line(places.making(request)))
            defaults = missing_values(info_fields, request)
            shown = distributed_status if places.groups else collect_status
            status = partial(shown, **goal)
            common: dict[str, Any] = {"seed": used_seed, "shard": used_shard, "tolerate": faults}
            common |= {"info": defaults, "metadata": facts, "log": log}
            collector: Collector | LocalCollector
            if places.groups:
                # Imported here: most runs have no other processes.
                from ..distributed.local_collector import LocalCollector

                # Stepped in the process of the group; the native backend has a thread at least.
                of_group = replace(request, num_workers=int(request.backend == "native"))
                collector = LocalCollector(
                    partial(make_envs, of_group),
                    partial(load_policy, policy),
                    replay,
                    groups=places.groups,
                    processes=places.processes,
                    **common,
                )
            else:
                envs = make_envs(request)
                stack.callback(envs.close)  # the Collector closes them too, once there is one
                collector = Collector(envs, agent, replay, **common)
            stack.enter_context(collector)
            report = collector.collect(**goal, progress=line.reporter(status))
            session = replay.sessions[-1]
        made = {"env": env, "num_envs": request.num_envs, "seed": used_seed, "session": session}
        store = replay.storage
        raw_bytes = store.index.rows * store.spec.row_bytes
        stored_bytes = int(store.index.records["nbytes"].sum())
        size_parts = describe_size(disk_bytes(out), raw_bytes, stored_bytes)
        output.show({**report.to_json(), **made}, *summary(report, used_seed, size_parts))


class Places(NamedTuple):
    """The numbers of processes and of groups of envs; 0 where there are none, or none is given."""

    processes: int
    groups: int

    def making(self, request: EnvRequest) -> str:
        """The line that is shown until the first step."""
        envs = f"{request.num_envs} envs of {request.env}"
        if not self.groups:
            return f"making {envs} ..."
        return (
            f"making {plural(self.groups, 'group')} of {envs} in "
            f"{plural(self.processes, 'process', 'processes')} ..."
        )


def parse_info(option: str, text: str) -> tuple[str, int | float | bool | None]:
    """Split NAME or NAME=VALUE: the value is for rows that lack the field, None if not given."""
    name, equals, value = text.partition("=")
    if name and not equals:
        return name, None
    booleans = {"true": True, "false": False}
    for convert in (int, float, lambda text: booleans[text.lower()]):
        try:
            if name:
                return name, convert(value)
        except (ValueError, KeyError):
            continue
    raise ValueError(
        f"{option}: expected a field's name, or with it the value for 'not there' as in "
        f"lives=-1, speed=nan or won=false, got {text!r}"
    )


def missing_values(info: Mapping[str, object], request: EnvRequest) -> dict[str, object]:
    """For each info field the value of rows that lack it, in the field's dtype and shape."""
    # Where no value is given (None), one env is made, whose first reset and step show the field's
    # type: the value is nan, -1 or False.
    unknown = [name for name, value in info.items() if value is None]
    if not unknown:
        return dict(info)
    envs = make_envs(replace(request, num_envs=1, num_workers=None))
    try:
        _, at_reset = envs.reset(seed=0)
        *_, at_step = envs.step(envs.action_space.sample())
    finally:
        envs.close()
    seen: dict[str, object] = {**at_reset, **at_step}
    for name in unknown:
        if name not in seen:
            names = ", ".join(sorted(key for key in seen if not key.startswith("_"))) or "nothing"
            raise ValueError(
                f"--info {name}: expected a field of the info of a reset or step, got {names}; "
                f"correct the name, or give the value for 'not there', as in {name}=-1"
            )
    return {
        name: _missing(name, seen[name]) if value is None else value for name, value in info.items()
    }


def _missing(name: str, column: object) -> np.ndarray:
    """Return a value of the field's type that means "not there"."""
    rows = np.asarray(column)
    if rows.ndim == 0 or rows.dtype.kind not in "biuf":
        raise ValueError(
            f"--info {name}: expected numbers or arrays of them, one for each env, got "
            f"{type(column).__name__} of dtype {rows.dtype}; leave it out"
        )
    missing = {"b": False, "f": np.nan, "i": -1, "u": 0}[rows.dtype.kind]
    return np.full(rows.shape[1:], missing, rows.dtype)


def _refuse_early(
    request: EnvRequest, goal: Mapping[str, Any], places: Places, out: Path, resume: bool
) -> None:
    """Refuse invalid arguments before anything is created."""
    if places.groups or places.processes:
        _check_places(request, places, "--groups" if places.groups else "--processes")
    if (goal["steps"] is None) == (goal["episodes"] is None):
        got = "neither" if goal["steps"] is None else "both"
        raise ValueError(f"expected either --steps or --episodes, got {got}; give one of them")
    refuse_folder(out, resume)
    if goal["episodes"] is not None:
        refuse_endless(request.env, request.options, ", or count with --steps")


def refuse_folder(out: Path, resume: bool) -> None:
    """Refuse a folder that cannot become a store, or is one and is not to be continued."""
    folder_path(out)
    if not resume:
        refuse_store(out, _RESUME)
    if out.is_symlink() and not out.exists():
        raise ValueError(
            f"--out {out} is a link to nothing: expected a folder, a link to one, or a new "
            f"name; make the folder that it names, or choose another name"
        )


@contextlib.contextmanager
def opened_store(
    out: Path, resume: bool, capacity: int | None, capacity_bytes: int | None
) -> Generator[SequenceReplayBuffer]:
    """Open the store; a new one that got no step is removed again."""
    was_there = out.exists()
    replay = SequenceReplayBuffer(out, capacity=capacity, capacity_bytes=capacity_bytes)
    was_store = replay.is_bound
    first_episode = replay.storage.index.next_episode if was_store else 0
    try:
        with replay:
            if was_store and not resume:
                refuse_store(out, _RESUME)  # another process may have made it just now
            yield replay
    except BaseException as error:
        if replay.is_bound:
            kept = kept_since(replay, first_episode)
            # Also for an interrupt after the last step, which the Collector does not see.
            error.add_note(f"kept: {kept}")
            if kept.startswith("0 steps") and not was_store:
                _remove_empty(out, was_there)
        raise


def _remove_empty(out: Path, was_there: bool) -> None:
    """Remove a new store without steps; a folder that existed before is left empty."""
    folder = StoreFolder(out, Files())
    with contextlib.suppress(StepwellError, OSError), contextlib.closing(folder.lock()):
        with DiskStorage.open(out, read_only=True) as storage:
            if storage.index.total_steps:  # another process wrote in the meantime
                return
        for pattern in ("manifest.json*", "segment-*.bin*", "LOCK"):
            for path in out.glob(pattern):
                path.unlink()
        if not was_there:
            out.rmdir()


def _check_places(request: EnvRequest, places: Places, source: object) -> None:
    """Refuse worker processes of processes, and processes without a group."""
    # A number of places is 0 where it is not known yet; ``source`` is the origin of the groups.
    if request.num_workers:
        raise ValueError(
            f"--workers {request.num_workers}: expected none with the groups of {source}, whose "
            f"processes step their envs themselves; leave it out"
        )
    if places.processes > places.groups > 0:
        raise ValueError(
            f"--processes {places.processes}: expected at most one for each of the "
            f"{plural(places.groups, 'group')} of {source}, got more; give fewer, or more --groups"
        )


def _as_in_last_run(
    request: EnvRequest, places: Places, seed: int | None, replay: SequenceReplayBuffer
) -> tuple[EnvRequest, Places, int]:
    """Fill in the numbers of envs and groups, and the seed, from the last run of the store."""
    # The session of a copy has no seed.
    before = next((dict(one) for one in reversed(replay.sessions) if "seed" in one), {})
    had_groups, had_envs = before.get("groups", 0), before.get("num_envs", 0)
    if not (is_whole(had_groups) and is_whole(had_envs) and had_groups >= 0):
        raise ValueError(
            f"{replay.path}: expected the numbers of groups and envs of its last run, got "
            f"{had_groups!r} and {had_envs!r}; collect into another folder"
        )
    had_envs //= had_groups or 1  # it counts the envs of all groups
    num_envs = request.num_envs or had_envs or DEFAULT_NUM_ENVS
    drawn = cast("str", before.get("seed", secrets.randbits(32)))
    if groups := places.groups or had_groups or places.processes:
        places = Places(places.processes or 1, groups)
        _check_places(request, places, replay.path)
    return replace(request, num_envs=num_envs), places, int(drawn) if seed is None else seed


def parse_shard(option: str, text: str | None) -> tuple[int, int] | None:
    """Parse "2/4", part and number of parts, to (2, 4)."""
    if text is None:
        return None
    match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text.strip())
    shard = (int(match[1]), int(match[2])) if match else (0, 0)
    try:
        check_shard(option, shard)
    except ValueError:
        raise ValueError(
            f"{option}: expected the number of a part and that of all parts, such as 2/4, from 1/4 "
            f"to 4/4, got {text!r}; correct it"
        ) from None
    return shard


def _as_in_all_runs(
    shard: tuple[int, int] | None, replay: SequenceReplayBuffer
) -> tuple[int, int] | None:
    """Fill in the shard of the store, where all of its runs have the same; refuse another one."""
    given = None if shard is None or shard[1] == 1 else shard
    noted = [one.get("shard") for one in replay.sessions if "seed" in one]  # not of copies
    for before in noted:
        check_shard(f"{replay.path}: the shard of a run", before)
    shards = [None if one is None else (one[0], one[1]) for one in cast("list[list[int]]", noted)]
    if shard is None:
        return shards[0] if len(set(shards)) == 1 else None
    if any(before != given for before in shards):
        names = {"no shard" if one is None else f"shard {one[0]}/{one[1]}" for one in shards}
        raise ValueError(
            f"--shard {shard[0]}/{shard[1]}: expected the shard of the store's runs, got a store "
            f"with runs of {', '.join(sorted(names))}; leave --shard out, or collect into another "
            f"folder and merge the two"
        )
    return given


# The summary.


def summary(report: CollectReport, seed: int, size: Sequence[str]) -> list[list[Part]]:
    """Return the lines to print at the end, with the seed that gives the same data again."""
    total = max(report.seconds, 1e-9)
    first = [Part(f"{report.steps:,} steps", style="bold"), *rate_parts(report)]
    first.append(Part(plural(report.episodes, "episode")))
    if report.returns:
        first.append(Part(f"return {np.mean(report.returns):,.1f} ± {np.std(report.returns):.1f}"))
    if isinstance(report, DistributedReport):
        first.append(Part(plural(len(report.groups), "group")))
        first.append(Part(plural(report.actors, "process", "processes")))
        lost = {"died": report.deaths, "reseeded": report.reseeded}
        first += [Part(f"{count} {word}", style="yellow") for word, count in lost.items() if count]
    first += [Part(f"{report.cut} cut", style="yellow")] if report.cut else []
    first += [Part(f"{report.restarts} restarted", style="yellow")] if report.restarts else []
    wrong = f"{report.outside:,} outside of the space"
    first += [Part(wrong, style="yellow")] if report.outside else []
    second = [
        Part(f"env {report.env_seconds / total:.0%}"),
        Part(f"policy {report.policy_seconds / total:.0%}"),
        Part(f"write {report.write_seconds / total:.0%}"),
        Part(f"of {clock(report.seconds)}"),
    ]
    third = [*map(Part, size), Part(f"in {report.path}", style="bold")]
    fourth = [Part(f"digest {report.digest}"), Part(f"seed {seed}")]
    return [[*first, *second], [*third, *fourth]]
