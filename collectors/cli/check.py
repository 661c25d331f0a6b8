"""`stepwell check`: what is wrong with an env, and what its steps cost."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Annotated

import typer

from ...wrappers.check.env import EnvCheck, Verdict, check_env
from ..loop.report import format_bytes
from ..loop.vector_envs import Vector
from .errors import printable, sentence_of
from .game_options import EnvName, GivenGameOptions, with_game_options
from .make_envs import id_or_factory, is_cartridge, make_envs, one_env
from .output import Output, plural, with_output

FAILED = 1
"""Exit code: a check failed."""

_NUM_ENVS = 2
_FEWEST, _MOST = 10, 5_000  # steps that are recorded, in about half a second


@with_game_options
@with_output("nothing is stored", has_quiet=False)
def check(
    env: EnvName,
    *,
    games: GivenGameOptions,
    limit: Annotated[float, typer.Option(help="Time of one call.", metavar="SECONDS")] = 60,
    output: Output,
) -> None:
    """Play an env for a few seconds: what is wrong with it, and what it costs.

    stepwell check CartPole-v1
    stepwell check my_envs:MyEnv      a class or function in my_envs.py
    stepwell check Pong --sticky 0

    Each line is one check: 'ok', 'warning' where rows are stored but something
    cannot be done with them, or 'FAIL', with what was seen, in which step
    first, and what to do. Two copies are played with random actions: results,
    spaces, seeds, resets, shared state, global random generators. Then two
    envs are collected from, and their episodes are played again from seeds
    and actions, as archives need it. Nothing is stored.
    Exit codes: 0 no check failed, 1 one did, 2 the command is wrong.
    """
    request = games.request(env, _NUM_ENVS)
    report = check_env(one_env(request), limit=limit)
    checks = [*report.checks]
    costs = {"step_seconds": report.step_seconds, "reset_seconds": report.reset_seconds}
    if report.is_fine and report.steps < _FEWEST:
        seen = f"only {plural(report.steps, 'step')} in a second: two at once were not tried"
        checks.append(EnvCheck("vector env", "warning", seen, "make the env faster"))
    elif report.is_fine:
        with contextlib.closing(make_envs(request)) as envs:
            checks += _vector_checks(envs, report.steps)
            if all(one.verdict != "FAIL" for one in checks):
                checks += _recorded(envs, env, costs)
    counts = {word: sum(one.verdict == word for one in checks) for word in ("FAIL", "warning")}
    shown = [dataclasses.asdict(one) for one in checks]
    found = [f"{count} {word}" for word, count in counts.items() if count] or ["all ok"]
    rest = "; what depends on it was not checked" if counts["FAIL"] else ""
    output.show(
        {"env": env, "is_fine": not counts["FAIL"], "checks": shown, "costs": costs},
        *(printable(str(one)) for one in checks),
        *(f"{'':7}  {line}" for line in _cost_lines(costs)),
        f"{env}: {plural(len(checks), 'check')}, {', '.join(found)}{rest}",
    )
    if counts["FAIL"]:
        raise typer.Exit(FAILED)


def _vector_checks(envs: Vector, steps: int) -> Iterator[EnvCheck]:
    """The lines of `check_vector_env` that are problems, or one that there is none."""
    from ...wrappers.check.vector_env import check_vector_env

    report = check_vector_env(envs, steps=steps)
    problems = [one for one in report.findings if one.is_problem]
    for one in problems:
        yield EnvCheck("vector env", "FAIL", f"{one.topic}: {one.found}", one.collector)
    if not problems:
        seen = f"{plural(report.num_envs, 'env')}, {report.findings[0].found}"
        yield EnvCheck("vector env", "ok", seen)


def _recorded(envs: Vector, name: str, costs: dict[str, float]) -> Iterator[EnvCheck]:
    """Collect for half a second, note what it costs, and play it again as archives are."""
    from ...buffers import SequenceReplayBuffer, Unprovable
    from .. import Collector
    from ..simulation.resimulate import resimulate

    count = round(min(max(0.5 / costs["step_seconds"], _NUM_ENVS * _FEWEST), _MOST))
    replay = SequenceReplayBuffer()
    with Collector(envs, "random", replay, seed=0) as collector:
        done = collector.collect(steps=count)
    costs["collected_steps_per_second"] = done.steps / done.seconds
    costs["raw_bytes_per_step"] = done.raw_bytes / done.steps
    costs["stored_bytes_per_step"] = done.stored_bytes / done.steps
    rom = name if is_cartridge(name) else None
    is_named = ":" in name and rom is None and not name.startswith("envpool:")
    source = id_or_factory(name) if is_named else None
    cure = "recordings stay readable, but cannot be proved, nor become archives"
    try:
        with resimulate(replay, lanes=1, env=source, rom=rom) as proofs:
            results = list(proofs)
    except (ValueError, ImportError, Unprovable) as error:
        yield EnvCheck("replay", "warning", sentence_of(error) or str(error), cure)
        return
    other = next((one for one in results if not one.is_equal), None)
    if other is not None:
        where = "" if other.first_difference is None else f" in {other.first_difference[0]}"
        verdict: Verdict = "FAIL" if other.reason == "differs" else "warning"
        yield EnvCheck("replay", verdict, f"an episode {other.reason}{where}: {other.why}", cure)
        return
    option = f" with --env {name}" if callable(source) else ""
    seen = f"{plural(len(results), 'episode')} played again from seeds and actions{option}, equal"
    yield EnvCheck("replay", "ok", seen)


def _cost_lines(costs: Mapping[str, float]) -> Iterator[str]:
    """The costs of steps, in words."""
    step, reset, *others = costs.values()
    if step:
        yield f"bare: a step takes {1e3 * step:,.3g} ms, a reset {1e3 * reset:,.3g} ms"
    if others:
        speed, raw, stored = others
        yield f"collected: {speed:,.0f} steps a second with {_NUM_ENVS} envs and random actions"
        sizes = f"{format_bytes(round(1e6 * raw))} raw, {format_bytes(round(1e6 * stored))} stored"
        yield f"a million steps: {1e6 / speed / 60:,.1f} minutes, {sizes}"
