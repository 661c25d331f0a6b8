"""Check one env: what it returns, and whether its seed and actions alone decide it."""

from __future__ import annotations

import contextlib
import copy
import math
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeAlias, cast

import gymnasium
import numpy as np
from gymnasium import spaces

from ...buffers.base.number_checks import check_whole
from ...buffers.spec.exact_values import BadValue, one_flag, one_number, shown
from ..env_results import EnvResults, reset_of, step_of
from ..workers.vector_env import checked_env
from .watch import MemoryWatch, global_states, inside_of, leaves_of, limits_of

AnyEnv = gymnasium.Env[Any, Any]
Verdict = Literal["ok", "warning", "FAIL"]
_Row: TypeAlias = "dict[str, Any]"  # what a reset or a step returned, by name: hashes of arrays

_FIRST_SECONDS = 1.0  # the first run is cut after so long, and the others play as many steps
_NUMBERS = spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary
_DRAW = "draw from self.np_random alone, which super().reset(seed=seed) seeds"
_RANKS: dict[Verdict, int] = {"ok": 0, "warning": 1, "FAIL": 2}
_FORMS = {
    "made": "an env, with spaces of Gymnasium, and a second one with the same",
    "reset": "takes a seed, and returns (observation, info)",
    "step": "returns five values",
    "rewards": "finite numbers",
    "ends": "two flags",
    "observations": "in their space, with its keys, shapes and dtypes",
    "infos": "dicts, whose numbers keep their form",
    "memory": "arrays that later steps leave alone",
    "actions": "bounded, and left alone by step",
    "generators": "those that all code of a process shares are left alone",
}
_BEHAVIOR = {
    "seeds": "one seed and the same actions give the same rows in two envs",
    "resets": "nothing is left of the episodes before a seeded reset",
    "copies": "another env of the same process changes nothing",
    "starts": "other seeds give other episodes, and so do resets without a seed",
}


@dataclass(frozen=True, slots=True)
class EnvCheck:
    """One line of the report of `check_env`.

    Args:
        name: What was checked, such as "observations".
        verdict: "ok", "warning" or "FAIL".
        seen: What was seen, with the step in which it was first.
        cure: What to do about it; empty if there is nothing to do.
    """

    name: str
    verdict: Verdict
    seen: str
    cure: str = ""

    def __str__(self) -> str:
        """Return the line."""
        return f"{self.verdict:<7}  {self.name}: {self.seen}{self.cure and f'; {self.cure}'}"


@dataclass(frozen=True, slots=True)
class EnvReport:
    """What `check_env` has seen of an env.

    Args:
        name: The env as text.
        steps: Steps that were made in each run.
        checks: The lines of the report, in their order.
        step_seconds: Mean time of a step of the bare env, in seconds; NaN if there was none.
        reset_seconds: Mean time of a reset, in seconds; NaN if there was none.
    """

    name: str
    steps: int
    checks: tuple[EnvCheck, ...]
    step_seconds: float
    reset_seconds: float

    @property
    def is_fine(self) -> bool:
        """True if no check failed."""
        return not any(one.verdict == "FAIL" for one in self.checks)

    def __str__(self) -> str:
        """Return the report, a line for each check."""
        return "\n".join([f"{self.name}: {self.steps} steps in each run", *map(str, self.checks)])


def check_env(env_fn: Callable[[], AnyEnv], *, steps: int = 300, seed: int = 0) -> EnvReport:
    """Play two envs with random actions, and report what is wrong with them.

    The same steps are played up to seven times: with one seed in two envs, again in the first, in
    both by turns, with another seed and without one. What gymnasium's `check_env` sees in a step,
    this sees in all of them. `check_vector_env` checks the vector envs that are made of an env.

    Args:
        env_fn: Factory of one env, without arguments. Its envs are closed.
        steps: Steps of a run, at least 1; fewer are made where they take more than a second.
            Choose enough for a few ends of episodes.
        seed: Seed of the actions and of the resets.

    Returns:
        The report. Where an env cannot be made, reset and stepped as its spaces say, the last line
        says why, and the checks after it are missing.

    Raises:
        ValueError: `steps` is below 1.

    Example:
        >>> report = check_env(lambda: gymnasium.make("CartPole-v1"), steps=50)
        >>> report.is_fine, [one.name for one in report.checks][:4]
        (True, ['made', 'reset', 'step', 'rewards'])
    """
    check_whole("steps", steps, 1)
    return _Check(env_fn, steps, seed).report()


class _Stop(Exception):
    """A check failed, so that those after it would say nothing."""


class _Check:
    """One check of one kind of env."""

    def __init__(self, env_fn: Callable[[], AnyEnv], steps: int, seed: int) -> None:
        self._make, self._steps, self._seed = env_fn, steps, seed
        self._found: dict[str, EnvCheck] = {}
        self._order: list[str] = []
        self._envs: list[AnyEnv] = []
        self._calls = {"reset": 0, "step": 0}
        self._seconds = dict.fromkeys(self._calls, 0.0)
        self._memory = MemoryWatch()
        self._infos: dict[str, object] = {}
        self._ends = 0
        self._is_first = True

    def report(self) -> EnvReport:
        try:
            self._run()
        except _Stop:  # what was seen before it, and the failure
            self._order += [name for name in self._found if name not in self._order]
        finally:
            for env in self._envs:
                with contextlib.suppress(Exception):
                    env.close()
        means = [self._seconds[k] / n if n else math.nan for k, n in self._calls.items()]
        checks = tuple(self._found[name] for name in self._order)
        name = str(self._envs[0]) if self._envs else str(self._make)
        return EnvReport(name, self._steps, checks, means[1], means[0])

    def _tell(self, name: str, verdict: Verdict, seen: str, cure: str = "") -> None:
        """Note a verdict; of several the worst stays, and of equals the first."""
        known = self._found.get(name)
        if known is None or _RANKS[known.verdict] < _RANKS[verdict]:
            self._found[name] = EnvCheck(name, verdict, seen, cure)

    def _stop(self, name: str, sentence: str, cure: str = "") -> NoReturn:
        seen, _, own = sentence.partition("; ")
        self._tell(name, "FAIL", seen, own or cure)
        raise _Stop

    def _finish(self, checks: Mapping[str, str]) -> None:
        for name, right in checks.items():
            self._tell(name, "ok", right)
            self._order.append(name)

    def _run(self) -> None:
        env, other = self._made(), self._made()
        before = global_states()[1]
        first = self._first(env)
        self._see_generators(before)
        self._see_ends(env)
        self._finish(_FORMS)
        if any(self._found[name].verdict == "FAIL" for name in _FORMS):
            return
        seed = self._seed
        if self._differs("seeds", first, self._rows(other, seed), f"{_DRAW}; use no clock"):
            self._order.append("seeds")  # what follows would differ, too
        else:
            for _ in zip(range(2), self._rows(env, seed + 1), strict=False):
                pass  # one step: the next reset is inside an episode
            cure = "set everything anew in reset, and take nothing over from the episode before"
            is_left = self._differs("resets", first, self._rows(env, seed), cure)
            if not is_left and other is not env:
                cure = "keep the state in self, not in the class, its module or its defaults"
                self._differs("copies", first, self._by_turns(env, other), cure)
            self._see_starts(env, first)
            self._finish(_BEHAVIOR)
        self._see_picture(env)

    def _made(self) -> AnyEnv:
        try:
            env = checked_env(self._make())
        except Exception as error:
            if not self._envs:
                self._stop("made", _said(error))
            cure = "each env needs a process of its own"  # as those of stable-retro
            self._tell("made", "warning", f"a second env: {_said(error)}", cure)
            return self._envs[0]
        if not self._envs:
            self._results = EnvResults(env.observation_space, "")
        self._envs.append(env)
        for name in ("observation_space", "action_space"):
            mine, theirs = getattr(env, name), getattr(self._envs[0], name)
            if mine != theirs:
                seen = f"the {name} of a second env is {mine}, that of the first {theirs}"
                self._stop("made", seen, "declare the same spaces in each env")
        space = env.action_space
        if isinstance(space, spaces.Box) and not space.is_bounded():
            cure = "declare finite bounds, so that random actions and scaled policies are sensible"
            self._tell("actions", "warning", f"{shown(space)} has no bounds", cure)
        return env

    def _first(self, env: AnyEnv) -> list[_Row]:
        """The rows of the first run, until its time is over."""
        rows: list[_Row] = []
        began = time.perf_counter()
        for row in self._rows(env, self._seed):
            rows.append(row)
            if len(rows) > 1 and time.perf_counter() - began > _FIRST_SECONDS:
                break
        self._steps = len(rows) - 1
        self._is_first = False
        return rows

    def _rows(self, env: AnyEnv, seed: int | None) -> Generator[_Row]:
        """Reset and step an env with the check's actions, over the ends of episodes."""
        actions = copy.deepcopy(env.action_space)  # the env's generator is not used
        actions.seed(self._seed)
        yield self._reset(env, seed, 0)
        for step in range(1, self._steps + 1):
            action = actions.sample()
            kept = copy.deepcopy(action)
            result = self._called("step", env, step, action)
            with self._naming("step", step):
                observation, reward, *flags, info = step_of(result, "")
            with self._naming("rewards", step):
                reward = one_number(reward, "reward")
            with self._naming("ends", step):
                pairs = zip(("terminated", "truncated"), flags, strict=True)
                ends = {name: one_flag(flag, name) for name, flag in pairs}
            if self._is_first:
                if not math.isfinite(reward):
                    self._tell("rewards", "FAIL", f"step {step}: {reward}", "give finite rewards")
                if _parts(action, "") != _parts(kept, ""):
                    cure = "copy it: a loop of your own would store other actions than it chose"
                    self._tell("actions", "warning", f"step {step} wrote into its action", cure)
                self._see_info(info, step)
                self._ends += any(ends.values())
            row = {**self._seen(env, observation, step), "reward": reward, **ends}
            if any(ends.values()):
                row["reset"] = self._reset(env, None, step)
            yield row

    def _reset(self, env: AnyEnv, seed: int | None, step: int) -> _Row:
        result = self._called("reset", env, step, seed)
        with self._naming("reset", step):
            observation, _ = reset_of(result, "")
        return self._seen(env, observation, step)

    def _called(self, name: str, env: AnyEnv, step: int, given: Any) -> Any:
        """What a reset or a step returned."""
        began = time.perf_counter()
        try:
            if name == "step":
                return env.step(given)
            with self._naming(name, step):
                return self._results.call_reset(env.reset, given)
        except Exception as error:
            if isinstance(error, _Stop):
                raise
            # Gymnasium's wrappers unpack what they get: the env itself shows its form.
            with self._naming(name, step):
                _show_form(env)
            self._stop(name, f"{_at(step)}{_said(error)}")
        finally:
            self._calls[name] += 1
            self._seconds[name] += time.perf_counter() - began

    @contextlib.contextmanager
    def _naming(self, name: str, step: int) -> Iterator[None]:
        """Make a failure of a value that does not fit."""
        try:
            yield
        except BadValue as error:
            self._stop(name, f"{_at(step)}{str(error).removeprefix(': ')}")

    def _seen(self, env: AnyEnv, observation: Any, step: int) -> _Row:
        """An observation, checked."""
        with self._naming("observations", step):
            self._results.observation(observation)
        if self._is_first:
            space = env.observation_space
            for verdict, seen, cure in _misfits(space, observation, "observation"):
                self._tell("observations", verdict, f"{_at(step)}{seen}", cure)
            self._memory.see(leaves_of(observation))
            if self._memory.changes_later:
                cure = "return copies: a Collector makes them, loops and lists of others do not"
                seen = f"{_at(step)}arrays that were returned before have changed"
                self._tell("memory", "warning", seen, cure)
        return _parts(observation, "observation")

    def _see_info(self, info: Mapping[str, Any], step: int) -> None:
        for key, value in info.items():
            with contextlib.suppress(Exception):  # what is no array of numbers is not stored
                array = np.asarray(value)
                form = array.shape
                if array.dtype.kind in "biuf" and self._infos.setdefault(key, form) != form:
                    seen = f"{_at(step)}{key!r} has the shape {form}, before {self._infos[key]}"
                    self._tell("infos", "warning", seen, "keep its shape if it is to be stored")

    def _see_generators(self, before: Mapping[str, str]) -> None:
        moved = [name for name, state in global_states()[1].items() if before.get(name) != state]
        if moved:
            seen = f"uses the global generator of {', '.join(moved)}"
            self._tell("generators", "warning", seen, f"workers and replays differ: {_DRAW}")

    def _see_ends(self, env: AnyEnv) -> None:
        limits = getattr(env.spec, "max_episode_steps", None), env.metadata.get("stepwell", {})
        if not self._ends and limits[0] is None and not limits[1].get("max_frames"):
            seen = f"none up to step {self._steps}, and no limit is known"
            cure = "if it may go on for ever, wrap it in gymnasium.wrappers.TimeLimit"
            self._tell("ends", "warning", seen, cure)

    def _differs(self, name: str, first: list[_Row], rows: Iterator[_Row], cure: str) -> bool:
        """Fail where rows are not those of the first run."""
        difference = _difference(first, rows)
        if difference is None:
            return False
        is_meant = name == "seeds" and getattr(self._envs[0].spec, "nondeterministic", False)
        self._tell(name, "warning" if is_meant else "FAIL", difference, cure)
        return True

    def _by_turns(self, env: AnyEnv, other: AnyEnv) -> Iterator[_Row]:
        others = self._rows(other, self._seed + 1)
        for row in self._rows(env, self._seed):
            next(others, None)
            yield row

    def _see_starts(self, env: AnyEnv, first: list[_Row]) -> None:
        seed = self._seed
        if _difference(first, self._rows(env, seed + 1)) is None:
            seen = f"the seeds {seed} and {seed + 1} give the same episodes"
            self._tell("starts", "warning", seen, f"if they are meant to differ, {_DRAW}")
        elif _difference([*self._rows(env, None)], self._rows(env, None)) is None:
            seen = "each reset without a seed begins the same episode"
            cure = "pass the seed on as it is: super().reset(seed=seed) leaves None alone"
            self._tell("starts", "FAIL", seen, cure)

    def _see_picture(self, env: AnyEnv) -> None:
        """Render a frame, if the env says that it can."""
        # Which often needs a package or a display that is not here: no more than a warning.
        if "rgb_array" not in (env.metadata.get("render_modes") or ()):
            return
        if env.spec is None and env.render_mode != "rgb_array":
            return
        name, right = "render", "a picture uint8 [H, W, 3]"
        try:
            if env.render_mode != "rgb_array":
                env = cast("Any", env.spec).make(render_mode="rgb_array")
                self._envs.append(env)
            env.reset(seed=self._seed)
            frame: Any = env.render()
        except Exception as error:
            self._tell(name, "warning", _said(error), "install what it needs to film episodes")
        else:
            is_picture = isinstance(frame, np.ndarray) and frame.dtype == np.uint8
            if not is_picture or frame.ndim != 3 or frame.shape[2] != 3:
                seen = f"expected {right}, got {shown(frame)}"
                self._tell(name, "warning", seen, "return one, to film episodes")
        self._finish({name: right})


def _show_form(env: AnyEnv) -> None:
    """Raise BadValue if the env itself returns another form than its wrappers take."""
    try:
        results = env.unwrapped.reset(), env.unwrapped.step(env.action_space.sample())
    except Exception:  # which the caller tells
        return
    reset_of(results[0], "")
    step_of(results[1], "")


def _misfits(space: Any, value: Any, name: str) -> Iterator[tuple[Verdict, str, str]]:
    """What is wrong with the values and dtypes of an observation that has the right form."""
    parts: list[Any] = []
    if isinstance(space, spaces.Dict):
        parts = [*space.spaces]
    elif isinstance(space, spaces.Tuple):
        parts = [*range(len(space.spaces))]
    for key in parts:
        yield from _misfits(space[key], value[key], f"{name}[{key!r}]")
    if parts:
        return
    cure = "correct the value, or the space"
    if not isinstance(space, _NUMBERS):
        if not space.contains(value):
            yield "FAIL", f"{name}: expected one of {space}, got {shown(value)}", cure
        return
    array = np.asarray(value)
    limits = limits_of(space)
    inside = np.ones(array.shape, np.bool_) if limits is None else inside_of(array, limits)
    if not inside.all():
        place = tuple(np.argwhere(~np.asarray(inside))[0].tolist())
        at = f" at index {list(place)}" if place else ""
        low, high = (np.broadcast_to(one, array.shape)[place] for one in cast("Any", limits))
        yield "FAIL", f"{name}: expected {low} to {high}, got {array[place]}{at}", cure
    if not np.can_cast(array.dtype, space.dtype):
        seen = f"{name}: {array.dtype}, where {space.dtype} is declared: stored rounded to that"
        yield "warning", seen, "give values of the declared dtype"


def _parts(value: Any, name: str) -> _Row:
    """The parts of a value by name; arrays as hashes."""
    if isinstance(value, Mapping):
        pairs: Any = cast("Mapping[Any, Any]", value).items()
    elif isinstance(value, tuple | list):
        pairs = enumerate(cast("Any", value))
    else:
        is_array = isinstance(value, np.ndarray)
        return {name: hash(value.tobytes()) if is_array else repr(value)}
    found: _Row = {}
    for key, part in pairs:
        found |= _parts(part, f"{name}[{key!r}]")
    return found


def _difference(first: list[_Row], rows: Iterator[_Row]) -> str | None:
    """Where rows differ from those of the first run."""
    for step, (old, new) in enumerate(zip(first, rows, strict=False)):
        for key in old | new:
            if old.get(key) != new.get(key):
                values = f" {old.get(key)}, then {new.get(key)}" if key == "reward" else ""
                return f"{_at(step)}another {key}{values}"
    return None


def _at(step: int) -> str:
    return f"step {step}: " if step else "first reset: "


def _said(error: Exception) -> str:
    """An error in one line, with the line of the code that raised it."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    own = Path(last.filename).is_relative_to(Path(__file__).parents[1])
    what = " ".join(str(error).split())
    place = f"{Path(last.filename).name}:{last.lineno} raised {type(error).__name__}: "
    return what if own else f"{place}{what}"
