"""`stepwell collect`: play envs and store every row in a folder."""

from __future__ import annotations

import contextlib
import inspect
import secrets
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, cast

import numpy as np
import typer

from stepwell.buffers import SequenceReplayBuffer, StepwellError
from stepwell.buffers.replay_writer import kept_since
from stepwell.buffers.storage.disk.files import Files
from stepwell.buffers.storage.disk.folder import StoreFolder
from stepwell.buffers.storage.disk.publish import disk_bytes
from stepwell.buffers.storage.disk.storage import DiskStorage
from stepwell.collectors.cli.errors import exit_on_error
from stepwell.collectors.cli.make_envs import (
    Backend,
    EnvOptions,
    EnvRequest,
    load_object,
    make_envs,
    parse_actions,
    parse_crop,
    parse_size,
    refuse_endless,
    refuse_signature,
)
from stepwell.collectors.cli.options import (
    Debug,
    Json,
    Quiet,
    number_of_bytes,
    parse_metadata,
    real_number,
    whole_number,
)
from stepwell.collectors.cli.output import (
    LiveLine,
    Part,
    describe_size,
    plural,
    print_json,
    print_parts,
)
from stepwell.collectors.collector import Collector
from stepwell.collectors.policies.policy import AnyPolicy, RandomPolicy, check_policy
from stepwell.collectors.report import CollectReport, format_bytes

__all__ = [
    "DEFAULT_NUM_ENVS",
    "Goal",
    "collect",
    "load_policy",
    "missing_values",
    "parse_info",
    "progress_parts",
    "summary",
]

# The same on every machine, since the data depends on it.
DEFAULT_NUM_ENVS = 8

_RUN, _STORE = "What to run", "Where to store it"
_GAMES, _ATARI, _NES = "Atari and NES games", "Atari games only", "NES cartridges only"


def collect(
    env: Annotated[
        str,
        typer.Argument(
            metavar="ENV",
            help="An Atari game (Pong, ALE/Pong-v5), the file of an NES cartridge (game.nes), an "
            "id of Gymnasium's (CartPole-v1, module:Id-v0), or a function that makes an env "
            "(module:callable).",
        ),
    ],
    *,
    steps: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="Env steps to add, over all envs: 100_000, 1e5 or 100k.",
            rich_help_panel=_RUN,
        ),
    ] = None,
    episodes: Annotated[
        str | None,
        typer.Option(
            metavar="N", help="Or: whole episodes to add, over all envs.", rich_help_panel=_RUN
        ),
    ] = None,
    num_envs: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help=f"Envs that are stepped together. Default: {DEFAULT_NUM_ENVS}; with --resume as "
            f"many as before.",
            rich_help_panel=_RUN,
        ),
    ] = None,
    policy: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="'random', or module:callable; the current folder is searched too. It is called "
            "as policy(observation, is_first) with arrays of N envs, and with its state if it has "
            "a method initial_state. A class is instantiated first.",
            rich_help_panel=_RUN,
        ),
    ] = "random",
    seed: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="The same seed and number of envs give the same data. Default: the store's seed, "
            "or a random one.",
            rich_help_panel=_RUN,
        ),
    ] = None,
    workers: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="Worker threads (Atari, native backend) or processes. 0: step the envs in the "
            "command's own process.",
            rich_help_panel=_RUN,
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder of the store.", rich_help_panel=_STORE)
    ],
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            metavar="",
            help="Add to the store if it exists, with new episode ids and seeds.",
            rich_help_panel=_STORE,
        ),
    ] = False,
    info: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Store this field of the env's info too, such as lives. NAME=VALUE sets the value "
            "for rows that lack it: speed=nan. May be repeated.",
            rich_help_panel=_STORE,
        ),
    ] = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Store this with every episode, to select by later: task=door. May be repeated.",
            rich_help_panel=_STORE,
        ),
    ] = None,
    capacity: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="Keep at most N steps; the oldest are removed.",
            rich_help_panel=_STORE,
        ),
    ] = None,
    capacity_bytes: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Keep at most this much on disk: 500MB, 2GiB.",
            rich_help_panel=_STORE,
        ),
    ] = None,
    backend: Annotated[
        Backend | None,
        typer.Option(
            metavar="NAME",
            help="Atari: native, python (true last frames, lives, modes) or auto (python where it "
            "can be). Default: auto. NES: cynes, nes-py or stable-retro. "
            "Default: cynes; 'stepwell envs nes' shows which are installed.",
            rich_help_panel=_GAMES,
        ),
    ] = None,
    frame_skip: Annotated[
        str | None,
        typer.Option(metavar="N", help="Frames per step. Default: 4.", rich_help_panel=_GAMES),
    ] = None,
    frame_stack: Annotated[
        str | None,
        typer.Option(
            metavar="N", help="Frames per observation. Default: 4.", rich_help_panel=_GAMES
        ),
    ] = None,
    sticky: Annotated[
        str | None,
        typer.Option(
            metavar="P",
            help="Probability of repeating the last action. Default: Atari 0.25, NES 0.",
            rich_help_panel=_GAMES,
        ),
    ] = None,
    noop_max: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="Play up to N no-op frames after a reset. Default: Atari 30, NES 0.",
            rich_help_panel=_GAMES,
        ),
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(
            metavar="HxW",
            help="Rows x columns of the observation, or 'screen'. Default: 84x84.",
            rich_help_panel=_GAMES,
        ),
    ] = None,
    rgb: Annotated[
        bool | None,
        typer.Option(
            "--rgb", metavar="", help="Observe colours, not gray levels.", rich_help_panel=_GAMES
        ),
    ] = None,
    pool: Annotated[
        Literal["max", "none"] | None,
        typer.Option(
            help="Observe the maximum of a step's last two frames, or the last frame. Default: "
            "max.",
            rich_help_panel=_GAMES,
        ),
    ] = None,
    max_frames: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="Truncate an episode after N frames. Default: Atari 108k, NES never.",
            rich_help_panel=_GAMES,
        ),
    ] = None,
    life_loss: Annotated[
        Literal["ignore", "end"] | None,
        typer.Option(
            help="'end': the loss of a life ends the episode. Default: ignore.",
            rich_help_panel=_GAMES,
        ),
    ] = None,
    snapshots: Annotated[
        bool | None,
        typer.Option(
            "--snapshots",
            metavar="",
            help="Store the emulator's state with each episode, for stepwell.env_at.",
            rich_help_panel=_GAMES,
        ),
    ] = None,
    fire_reset: Annotated[
        bool | None,
        typer.Option(
            "--fire-reset", metavar="", help="Press FIRE after a reset.", rich_help_panel=_ATARI
        ),
    ] = None,
    clip_rewards: Annotated[
        bool | None,
        typer.Option(
            "--clip-rewards",
            metavar="",
            help="Store only the sign of a reward. It is better to clip in training.",
            rich_help_panel=_ATARI,
        ),
    ] = None,
    full_actions: Annotated[
        bool | None,
        typer.Option(
            "--full-actions", metavar="", help="Use all 18 actions.", rich_help_panel=_ATARI
        ),
    ] = None,
    mode: Annotated[
        str | None, typer.Option(metavar="N", help="The game's mode.", rich_help_panel=_ATARI)
    ] = None,
    difficulty: Annotated[
        str | None,
        typer.Option(metavar="N", help="The game's difficulty.", rich_help_panel=_ATARI),
    ] = None,
    game: Annotated[
        str | None,
        typer.Option(
            metavar="MAP",
            help="Where rewards, ends and lives are in the console's memory: a .toml file, a "
            "folder with stable-retro's data.json and scenario.json, or retro:Name-Nes-v0.",
            rich_help_panel=_NES,
        ),
    ] = None,
    actions: Annotated[
        str | None,
        typer.Option(
            metavar="SET",
            help="right_only, simple, complex, all, multibinary, game (the map's), or a list such "
            "as NOOP,RIGHT,RIGHT+A. Default: simple.",
            rich_help_panel=_NES,
        ),
    ] = None,
    allow_opposites: Annotated[
        bool | None,
        typer.Option(
            "--allow-opposites",
            metavar="",
            help="Let actions press LEFT with RIGHT, or UP with DOWN.",
            rich_help_panel=_NES,
        ),
    ] = None,
    boot: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SCRIPT",
            help="Buttons from power-on to the first observation: 'NOOP 20, START 3'. Default: the "
            "map's. Repeat it for several starts.",
            rich_help_panel=_NES,
        ),
    ] = None,
    start: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="Or: a saved state to start from. Repeat it for several starts.",
            rich_help_panel=_NES,
        ),
    ] = None,
    start_rule: Annotated[
        Literal["random", "cycle"] | None,
        typer.Option(
            help="How to choose among several starts. Default: random.", rich_help_panel=_NES
        ),
    ] = None,
    crop: Annotated[
        str | None,
        typer.Option(
            metavar="AREA",
            help="The borders to cut off: overscan, a name from the map, or pixels as "
            "top,bottom,left,right.",
            rich_help_panel=_NES,
        ),
    ] = None,
    stuck_frames: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="Truncate an episode after N frames without progress.",
            rich_help_panel=_NES,
        ),
    ] = None,
    reward_clip: Annotated[
        str | None,
        typer.Option(metavar="X", help="Clip each reward to -X .. X.", rich_help_panel=_NES),
    ] = None,
    ram: Annotated[
        bool | None,
        typer.Option(
            "--ram",
            metavar="",
            help="Observe the 2048 bytes of the console's memory, not the screen.",
            rich_help_panel=_NES,
        ),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Play envs with a policy and store every row in a folder.

    stepwell collect Pong --steps 100_000 --out runs/pong
    stepwell collect Pong --steps 100_000 --out runs/pong --resume
    stepwell collect Breakout --episodes 50 --policy agent:act --out runs/b
    stepwell collect game.nes --game map.toml --episodes 50 --out runs/game
    stepwell collect CartPole-v1 --steps 1e6 --seed 0 --out runs/pole
    stepwell collect mygames:make_maze --episodes 9 --out runs/maze

    Ctrl-C stops the run and keeps the collected steps.
    Exit codes: 0 done, 2 an error that you can correct, 130 Ctrl-C.
    """
    with exit_on_error(debug):
        values: dict[str, object] = {
            "frame_skip": whole_number("--frame-skip", frame_skip),
            "frame_stack": whole_number("--frame-stack", frame_stack),
            "sticky": real_number("--sticky", sticky),
            "noop_max": whole_number("--noop-max", noop_max, 0),
            "grayscale": None if rgb is None else not rgb,
            "pool": pool,
            "max_frames": whole_number("--max-frames", max_frames),
            "life_loss": life_loss,
            "snapshots": snapshots,
            "fire_reset": fire_reset,
            "clip_rewards": clip_rewards,
            "full_actions": full_actions,
            "mode": whole_number("--mode", mode, 0),
            "difficulty": whole_number("--difficulty", difficulty, 0),
            "game": game,
            "actions": None if actions is None else parse_actions(actions),
            "allow_opposites": allow_opposites,
            "boot": _one_or_list(boot),
            "start": _one_or_list(start),
            "start_rule": start_rule,
            "crop": None if crop is None else parse_crop("--crop", crop),
            "stuck_frames": whole_number("--stuck-frames", stuck_frames),
            "reward_clip": real_number("--reward-clip", reward_clip),
            "ram_obs": ram,
        }
        options = {name: value for name, value in values.items() if value is not None}
        if size is not None:  # None is one of its values
            options["size"] = parse_size("--size", size)
        request = EnvRequest(
            env=env,
            num_envs=whole_number("--num-envs", num_envs) or 0,
            backend=backend,
            num_workers=whole_number("--workers", workers, 0),
            options=EnvOptions(**options),  # type: ignore[typeddict-item]
        )
        goal = Goal(whole_number("--steps", steps), whole_number("--episodes", episodes))
        chosen_seed = whole_number("--seed", seed, 0)
        info_fields = dict(parse_info("--info", text) for text in info or [])
        facts = dict(parse_metadata("--metadata", text) for text in metadata or [])
        most_steps = whole_number("--capacity", capacity)
        most_bytes = number_of_bytes("--capacity-bytes", capacity_bytes)
        _refuse_early(request, goal, out, resume)
        agent = load_policy(policy)
        with contextlib.ExitStack() as stack:
            opened = _store(out, resume, most_steps, most_bytes)
            replay = stack.enter_context(opened)
            request, used_seed = _as_in_last_run(request, chosen_seed, replay)
            line = stack.enter_context(LiveLine(is_silent=quiet or as_json))
            line.say(f"making {request.num_envs} envs of {env} ...")
            defaults = missing_values(info_fields, request)
            envs = make_envs(request)
            stack.callback(envs.close)  # the Collector closes them too, once there is one
            collector = stack.enter_context(
                Collector(envs, agent, replay, seed=used_seed, info=defaults, metadata=facts)
            )
            report = collector.collect(
                steps=goal.steps,
                episodes=goal.episodes,
                progress=lambda report: line.show(progress_parts(report, goal)),
            )
            session = replay.sessions[-1]
        if as_json:
            made = {"env": env, "num_envs": request.num_envs, "seed": used_seed}
            print_json({**report.to_json(), **made, "session": session})
        elif not quiet:
            store = replay.storage
            raw_bytes = store.index.rows * store.spec.row_bytes
            stored_bytes = int(store.index.records["nbytes"].sum())
            size_parts = describe_size(disk_bytes(out), raw_bytes, stored_bytes)
            print_parts(*summary(report, used_seed, size_parts))


class Goal(NamedTuple):
    """The number of steps, or of episodes, to collect."""

    steps: int | None
    episodes: int | None

    def fraction(self, report: CollectReport) -> float:
        """Return the fraction that is done, 0 to 1."""
        if self.steps is not None:
            return min(1.0, report.steps / self.steps)
        return min(1.0, report.episodes / (self.episodes or 1))


def parse_info(option: str, text: str) -> tuple[str, int | float | bool | None]:
    """Parse the name of an info field and the value for rows that lack it; None: not given.

    Raises:
        ValueError: There is no name, or the value is neither a number nor true or false.

    Example:
        >>> parse_info("--info", "lives"), parse_info("--info", "raw_reward=nan")
        (('lives', None), ('raw_reward', nan))
    """
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
    """Return for each info field the value of rows that lack it.

    Args:
        info: Values by the fields' names. For a field whose value is None one env is made, and its
            first reset and step show the field's type.
        request: The envs.

    Returns:
        The given values, else nan, -1 or False in the field's dtype and shape.

    Raises:
        ValueError: A field is in neither info.

    Example:
        >>> missing_values({"lives": None, "speed": 0.0}, EnvRequest("Pong", 8))
        {'lives': array(-1), 'speed': 0.0}
    """
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


def load_policy(name: str) -> AnyPolicy:
    """Load the policy that ``--policy`` names.

    Args:
        name: "random", or "module:callable". A class is instantiated, without arguments; any other
            object is the policy itself and is called with observations and ``is_first``.

    Raises:
        ValueError: There is no such object.
        TypeError: It cannot be called like that.

    Example:
        >>> type(load_policy("random")).__name__
        'RandomPolicy'
    """
    if name == "random":
        return RandomPolicy()
    if ":" not in name:
        raise ValueError(f"--policy: expected 'random' or 'module:callable', got {name!r}")
    found = load_object("--policy", name)
    if inspect.isclass(found):
        refuse_signature(
            f"--policy {name}", found, 0, "no arguments, since a class is instantiated first"
        )
        found = found()
    check_policy(found, f"--policy {name}")
    return cast("AnyPolicy", found)


def _refuse_early(request: EnvRequest, goal: Goal, out: Path, resume: bool) -> None:
    """Refuse invalid arguments before anything is created."""
    if (goal.steps is None) == (goal.episodes is None):
        got = "neither" if goal.steps is None else "both"
        raise ValueError(f"expected either --steps or --episodes, got {got}; give one of them")
    if not resume:
        _refuse_store(out, DiskStorage.exists(out))
    if out.is_symlink() and not out.exists():
        raise ValueError(
            f"--out {out} is a link to nothing: expected a folder, a link to one, or a new "
            f"name; make the folder that it names, or choose another name"
        )
    if goal.episodes is not None:
        refuse_endless(request.env, request.options)


def _refuse_store(out: Path, is_store: bool) -> None:
    if is_store:
        raise ValueError(
            f"--out {out} holds a store already: expected a new or empty folder; add to it "
            f"with --resume, or choose another folder"
        )


@contextlib.contextmanager
def _store(
    out: Path, resume: bool, capacity: int | None, capacity_bytes: int | None
) -> Generator[SequenceReplayBuffer]:
    """Open the store; a new one that got no step is removed again."""
    was_there = out.exists()
    replay = SequenceReplayBuffer(out, capacity=capacity, capacity_bytes=capacity_bytes)
    was_store = replay.is_bound
    first_episode = replay.storage.index.next_episode if was_store else 0
    try:
        with replay:
            if not resume:
                _refuse_store(out, was_store)  # another process may have made it just now
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


def _as_in_last_run(
    request: EnvRequest, seed: int | None, replay: SequenceReplayBuffer
) -> tuple[EnvRequest, int]:
    """Fill in the number of envs and the seed, from the store's last run where there is one."""
    # The session of a copy has no seed.
    before = next((dict(one) for one in reversed(replay.sessions) if "seed" in one), {})
    num_envs = request.num_envs or cast("int", before.get("num_envs", DEFAULT_NUM_ENVS))
    drawn = cast("str", before.get("seed", secrets.randbits(32)))
    return replace(request, num_envs=num_envs), int(drawn) if seed is None else seed


def _one_or_list(texts: Sequence[str] | None) -> str | list[str] | None:
    """Return None for no text, the text itself for one, and a list for several."""
    if not texts:
        return None
    return texts[0] if len(texts) == 1 else list(texts)


# The live line and the summary.


def progress_parts(report: CollectReport, goal: Goal) -> list[Part]:
    """Return the live line: progress, speed, returns, size and time left."""
    fraction = goal.fraction(report)
    parts = [Part(f"{fraction:4.0%}", 3, "bold")]
    if goal.steps is not None:
        parts += [Part(f"{report.steps:,} / {goal.steps:,} steps"), *_rate_parts(report)]
    else:
        parts.append(Part(f"{report.episodes:,} / {goal.episodes:,} episodes"))
        parts += [Part(f"{report.steps:,} steps", 4), *_rate_parts(report)]
    if goal.episodes is None:
        parts.append(Part(f"{report.episodes:,} episodes", 4))
    if report.returns:
        parts.append(Part(f"return {_mean(report.returns)}", 2, "cyan"))
    if report.stored_bytes:
        ratio = report.compression
        smaller = f" {_rate(ratio)}x smaller" if ratio >= 1.5 else ""
        parts.append(Part(f"rows of {format_bytes(report.stored_bytes)}{smaller}", 4))
    if 0 < fraction < 1:
        left = _clock(report.seconds * (1 - fraction) / fraction)
        parts.append(Part(f"{left} left", 1, "bold"))
    return parts


def summary(report: CollectReport, seed: int, size: Sequence[str]) -> list[list[Part]]:
    """Return the lines that are printed at the end.

    Args:
        report: The report of the run.
        seed: The value of ``--seed`` that gives the same data again.
        size: The size of the store, in parts.
    """
    total = max(report.seconds, 1e-9)
    first = [Part(f"{report.steps:,} steps", style="bold"), *_rate_parts(report)]
    first.append(Part(plural(report.episodes, "episode")))
    if report.returns:
        first.append(Part(f"return {_mean(report.returns)} ± {np.std(report.returns):.1f}"))
    first += [Part(f"{report.cut} cut", style="yellow")] if report.cut else []
    first += [Part(f"{report.restarts} restarted", style="yellow")] if report.restarts else []
    second = [
        Part(f"env {report.env_seconds / total:.0%}"),
        Part(f"policy {report.policy_seconds / total:.0%}"),
        Part(f"write {report.write_seconds / total:.0%}"),
        Part(f"of {_clock(report.seconds)}"),
    ]
    third = [*map(Part, size), Part(f"in {report.path}", style="bold")]
    fourth = [Part(f"digest {report.digest}"), Part(f"seed {seed}")]
    return [[*first, *second], [*third, *fourth]]


def _rate_parts(report: CollectReport) -> list[Part]:
    rate = report.steps_per_second
    parts = [Part(f"{_rate(rate)} steps/s")]
    if report.frames > report.steps > 0:
        parts.append(Part(f"{_rate(rate * report.frames / report.steps)} frames/s", 6))
    return parts


def _rate(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 else f"{number:.1f}"


def _mean(numbers: Sequence[float]) -> str:
    return f"{float(np.mean(numbers)):,.1f}"


def _clock(seconds: float) -> str:
    whole = round(seconds)
    minutes, hours = whole // 60 % 60, whole // 3600
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"
