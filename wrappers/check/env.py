"""Check one env: what it returns, and whether its seed and actions alone decide it."""

from __future__ import annotations

import contextlib
import copy
import math
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeAlias

import gymnasium
import numpy as np
from gymnasium import spaces

from ...buffers.base.number_checks import check_whole, is_real
from ...buffers.spec.exact_values import BadValue, one_flag, one_number, shown
from ..env_results import EnvResults, reset_of, step_of
from ..workers.vector_env import checked_env
from .watch import MemoryWatch, global_states, inside_of, leaves_of, limits_of

AnyEnv = gymnasium.Env[Any, Any]
Verdict = Literal["ok", "warning", "FAIL"]
_Row: TypeAlias = "dict[str, Any]"  # what a reset or a step returned, by name: hashes of arrays

_RANKS: dict[Verdict, int] = {"ok": 0, "warning": 1, "FAIL": 2}
_MOST_SECONDS = 1e6
_FIRST_SECONDS = 1.0  # the first run is cut after so long, and the others play as many steps
_DRAW = "draw from self.np_random alone, which super().reset(seed=seed) seeds"
_FORMS = {
    "made": "an env, with spaces of Gymnasium, and a second one with the same",
    "reset": "takes a seed, and returns (observation, info)",
    "step": "returns five values",
    "rewards": "finite numbers",
    "ends": "two flags",
    "observations": "in their space, with its keys, shapes and dtypes",
    "infos": "dicts, whose numbers keep their shape",
    "memory": "arrays that later steps leave alone",
    "actions": "bounded, and left alone by step",
    "generators": "those that all code of a process shares are left alone",
}
_RIGHT = {  # what is so where all is right, in the order of the report
    **_FORMS,
    "seeds": "one seed and the same actions give the same rows in two envs",
    "resets": "nothing is left of the episodes before a seeded reset",
    "copies": "another env of the same process changes nothing",
    "starts": "other seeds give other episodes, and so do resets without a seed",
    "render": "a picture uint8 [H, W, 3]",
}


@dataclass(frozen=True, slots=True)
class EnvCheck:
    """One line of the report of `check_env`: a verdict, what was seen, and what to do about it."""

    name: str
    verdict: Verdict
    seen: str
    cure: str = ""

    def __str__(self) -> str:
        """Return the line."""
        return f"{self.verdict:<7}  {self.name}: {self.seen}{self.cure and f'; {self.cure}'}"


@dataclass(frozen=True, slots=True)
class EnvReport:
    """The report of `check_env`: its lines, the steps of each run, and mean times in seconds."""

    checks: tuple[EnvCheck, ...]
    steps: int
    step_seconds: float
    reset_seconds: float

    @property
    def is_fine(self) -> bool:
        """True if no check failed."""
        return not any(one.verdict == "FAIL" for one in self.checks)

    def __str__(self) -> str:
        """Return the lines."""
        return "\n".join(map(str, self.checks))


def check_env(
    env_fn: Callable[[], AnyEnv], *, steps: int = 300, seed: int = 0, limit: float = 60
) -> EnvReport:
    """Play two envs with random actions, and report what is wrong with them.

    The same actions are played up to seven times: with one seed in each env, again in the first,
    in both by turns, with another seed and without one. `check_vector_env` checks vector envs.

    Args:
        env_fn: Factory of one env, without arguments. Its envs are closed.
        steps: Steps of a run, at least 1; fewer are made where they take more than a second.
        seed: Seed of the actions and of the resets.
        limit: Seconds that one call of an env may take, more than 0. A call that takes longer is
            interrupted, and its check fails. Not on Windows, outside the main thread, in a program
            that uses SIGALRM itself, and while code in C does not return to Python.

    Returns:
        The report: `checks`, each with `name`, `verdict` ("ok", "warning" or "FAIL"), `seen` and
        `cure`; `is_fine`: none failed. What would say nothing after a failure is not checked.

    Raises:
        ValueError: `steps` is below 1, or `limit` no number above 0, up to a million.

    Example:
        >>> report = check_env(lambda: gymnasium.make("CartPole-v1"), steps=50)
        >>> report.is_fine, report.checks[3].name, report.checks[3].verdict
        (True, 'rewards', 'ok')
    """
    check_whole("steps", steps, 1)
    if not is_real(limit) or not 0 < limit <= _MOST_SECONDS:
        raise ValueError(f"limit: expected seconds above 0, up to {_MOST_SECONDS:g}, got {limit!r}")
    return _Check(env_fn, steps, seed, limit).report()


class _NoAnswer(BaseException):
    """A call took too long; no Exception, so that code of the env does not catch it."""


@contextlib.contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Raise `_NoAnswer` in a block that takes longer, where a signal can."""
    is_main = threading.current_thread() is threading.main_thread()
    has_clock = is_main and hasattr(signal, "setitimer")
    if not has_clock or signal.getsignal(signal.SIGALRM) is not signal.SIG_DFL:
        yield
        return

    raised: list[_NoAnswer] = []

    def interrupt(*_: object) -> NoReturn:
        raised.append(_NoAnswer(f"no answer within {seconds:g} s"))
        raise raised[-1]

    signal.signal(signal.SIGALRM, interrupt)
    try:
        # And again each second, where code catches everything.
        signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
        yield
        if raised:
            raise raised[0]  # code that catches everything went on, and returned
    finally:
        try:
            signal.setitimer(signal.ITIMER_REAL, 0)
        finally:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)


class _Stop(Exception):
    """A check failed, so that those after it would say nothing."""


class _Check:
    """One check of one kind of env."""

    def __init__(self, env_fn: Callable[[], AnyEnv], steps: int, seed: int, limit: float) -> None:
        self._make, self._steps, self._seed, self._limit = env_fn, steps, seed, limit
        self._found: dict[str, EnvCheck] = {}
        self._envs: list[AnyEnv] = []
        self._seconds: dict[str, list[float]] = {"step": [], "reset": []}
        self._memory = MemoryWatch()
        self._infos: dict[str, object] = {}
        self._has_end, self._is_first = False, True
        self._black: tuple[list[bool], list[bool]] = (
            [],
            [],
        )  # pictures; those at the ends of episodes

    def report(self) -> EnvReport:
        try:
            with contextlib.suppress(_Stop):
                self._run()
        finally:
            for env in self._envs:
                try:
                    with contextlib.suppress(Exception), _limited(self._limit):
                        env.close()
                except _NoAnswer as error:
                    self._tell("made", "FAIL", f"close: {_said(error)}", "make it return")
        means = [sum(each) / max(len(each), 1) for each in self._seconds.values()]
        checks = tuple(self._found[name] for name in _RIGHT if name in self._found)
        return EnvReport(checks, self._steps, *means)

    def _tell(self, name: str, verdict: Verdict, seen: str, cure: str = "") -> None:
        """Note a verdict; of several the worst stays, and of equals the first."""
        known = self._found.get(name)
        if known is None or _RANKS[known.verdict] < _RANKS[verdict]:
            self._found[name] = EnvCheck(name, verdict, seen, cure)

    def _pass(self, *names: str) -> None:
        """Note that checks were made: "ok", unless something was seen."""
        for name in names:
            self._tell(name, "ok", _RIGHT[name])

    def _stop(self, name: str, sentence: str) -> NoReturn:
        seen, _, cure = sentence.partition("; ")
        self._tell(name, "FAIL", seen, cure)
        raise _Stop

    def _run(self) -> None:
        env, other = self._made(), self._made()
        seed, before = self._seed, global_states()[1]
        first = [*self._rows(env, seed)]
        self._steps, self._is_first = len(first) - 1, False
        moved = [name for name, state in global_states()[1].items() if before.get(name) != state]
        if moved:
            seen = f"draws from or seeds the global generator of {', '.join(moved)}"
            self._tell("generators", "warning", seen, f"workers and replays differ: {_DRAW}")
        facts = [getattr(env, "spec", None), (env.metadata or {}).get("stepwell", {})]
        limit = getattr(facts[0], "max_episode_steps", None) or facts[1].get("max_frames")
        if not self._has_end and limit is None:
            seen = f"none up to step {self._steps}, and no limit is known"
            cure = "if it may go on for ever, wrap it in gymnasium.wrappers.TimeLimit"
            self._tell("ends", "warning", seen, cure)
        others, last = self._black
        if last and all(last) and not any(others):
            seen = f"the last picture of each episode ({len(last)}) is black, and no other is"
            self._tell("ends", "warning", seen, "return what the last action led to")
        self._pass(*_FORMS)
        self._see_picture(env, facts[0])
        if any(self._found[name].verdict == "FAIL" for name in _FORMS):
            return
        if self._differs("seeds", first, self._rows(other, seed), f"{_DRAW}; use no clock"):
            return
        for _ in zip(range(2), self._rows(env, seed + 1), strict=False):
            pass  # one step: the next reset is inside an episode
        cure = "set everything anew in reset, and take nothing over from the episode before"
        if self._differs("resets", first, self._rows(env, seed), cure):
            return
        if other is not env:
            cure = "keep the state in self, not in the class, its module or its defaults"
            pairs = zip(self._rows(env, seed), self._rows(other, seed + 1), strict=True)
            self._differs("copies", first, (row for row, _ in pairs), cure)
        if _difference(first, self._rows(env, seed + 1)) is None:
            seen = f"the seeds {seed} and {seed + 1} give the same episodes"
            self._tell("starts", "warning", seen, f"if they are meant to differ, {_DRAW}")
        elif _difference([*self._rows(env, None)], self._rows(env, None)) is None:
            seen = "each reset without a seed begins the same episode"
            cure = "pass the seed on as it is: super().reset(seed=seed) leaves None alone"
            self._tell("starts", "FAIL", seen, cure)
        self._pass("starts")

    def _made(self) -> AnyEnv:
        try:
            with _limited(self._limit):
                env: AnyEnv = checked_env(self._make())
        except (Exception, _NoAnswer) as error:
            if not self._envs:
                self._stop("made", _said(error))
            cure = "give each env a process of its own"  # as those of stable-retro need
            self._tell("made", "warning", f"a second env: {_said(error)}", cure)
            return self._envs[0]
        self._envs.append(env)
        self._results = EnvResults(env.observation_space, "")
        for name in ("observation_space", "action_space"):
            mine, theirs = getattr(env, name), getattr(self._envs[0], name)
            if mine != theirs:
                seen = f"the {name} of a second env is {mine}, that of the first {theirs}"
                self._stop("made", f"{seen}; declare the same in each env")
        space = env.action_space
        if isinstance(space, spaces.Box) and not space.is_bounded():
            cure = "declare finite bounds, so that random actions and scaled policies are sensible"
            self._tell("actions", "warning", f"{shown(space)} has no bounds", cure)
        return env

    def _rows(self, env: AnyEnv, seed: int | None) -> Iterator[_Row]:
        """Reset and step an env with the check's actions, over the ends of episodes."""
        actions = copy.deepcopy(env.action_space)  # the env's generator is not used
        actions.seed(self._seed)
        yield self._reset(env, seed, "")
        until = time.perf_counter() + _FIRST_SECONDS if self._is_first else math.inf
        for step in range(1, self._steps + 1):
            at, action = f"step {step}: ", actions.sample()
            kept = copy.deepcopy(action)
            with self._naming("step", at):
                result = self._called("step", at, env.step, action)
                observation, reward, terminated, truncated, info = step_of(result, "")
            with self._naming("rewards", at):
                reward = one_number(reward, "reward")
            with self._naming("ends", at):
                ends = one_flag(terminated, "terminated"), one_flag(truncated, "truncated")
            row = {**self._seen(env, observation, at), "reward": repr(reward), "end": ends}
            if self._is_first:
                if not math.isfinite(reward):
                    self._tell("rewards", "FAIL", f"{at}{reward}", "give finite rewards")
                if _parts(action, "") != _parts(kept, ""):
                    cure = "copy it: a loop of your own would store other actions than it chose"
                    self._tell("actions", "warning", f"{at}it is written into", cure)
                self._see_info(info, at)
                self._black[any(ends)].append(_is_black(observation))
            if any(ends):
                self._has_end = True
                row |= self._reset(env, None, at)
            yield row
            if time.perf_counter() > until:
                return

    def _reset(self, env: AnyEnv, seed: int | None, at: str) -> _Row:
        with self._naming("reset", at):
            result = self._called("reset", at, self._results.call_reset, env.reset, seed)
            observation, _ = reset_of(result, "")
        parts = self._seen(env, observation, f"{at}reset: ")
        return {f"reset's {name}": part for name, part in parts.items()}

    def _called(self, name: str, at: str, call: Callable[..., Any], *given: Any) -> Any:
        """Call a reset or a step, and time it."""
        began = time.perf_counter()
        try:
            with _limited(self._limit):
                began = time.perf_counter()
                return call(*given)
        except BadValue:
            raise
        except _NoAnswer as error:
            self._stop(name, f"{at}{_said(error)}; make it return, or allow more seconds (limit)")
        except Exception as error:
            # Wrappers of Gymnasium's unpack what an env of the old API returns.
            cure = "; adapt an env of the old API with stepwell.from_gym"
            self._stop(name, f"{at}{_said(error)}{cure if ' to unpack' in str(error) else ''}")
        finally:
            self._seconds[name].append(time.perf_counter() - began)

    @contextlib.contextmanager
    def _naming(self, name: str, at: str) -> Iterator[None]:
        """Make a failure of a value that does not fit."""
        try:
            yield
        except BadValue as error:
            self._stop(name, f"{at}{str(error).removeprefix(': ')}")

    def _seen(self, env: AnyEnv, observation: Any, at: str) -> _Row:
        """An observation, checked."""
        with self._naming("observations", at):
            self._results.observation(observation)
        if self._is_first:
            for verdict, seen in _misfits(env.observation_space, observation, "observation"):
                self._tell("observations", verdict, f"{at}{seen}", "correct the value or the space")
            self._memory.see(leaves_of(observation))
            if self._memory.changes_later:
                cure = "return copies: a Collector makes them, loops and lists of others do not"
                self._tell("memory", "warning", f"{at}what was returned before has changed", cure)
        return _parts(observation, "observation")

    def _see_info(self, info: Mapping[str, Any], at: str) -> None:
        for key, value in info.items():
            with contextlib.suppress(Exception):  # what is no array of numbers is not stored
                array = np.asarray(value)
                old = self._infos.setdefault(key, array.shape)
                if array.dtype.kind in "biuf" and old != array.shape:
                    seen = f"{at}{key!r} has the shape {array.shape}, before {old}"
                    self._tell("infos", "warning", seen, "keep its shape if it is to be stored")

    def _see_picture(self, env: Any, spec: Any) -> None:
        """Render a frame, if the env says that it can."""
        modes = (env.metadata or {}).get("render_modes") or ()
        if "rgb_array" not in modes or not (spec or env.render_mode == "rgb_array"):
            return
        try:
            with _limited(self._limit):
                filmed = spec.make(render_mode="rgb_array") if spec else env
                self._envs.append(filmed)
                filmed.reset(seed=self._seed)
                frame = filmed.render()
            if np.shape(frame)[2:] != (3,) or frame.dtype != np.uint8:
                raise ValueError(f"expected {_RIGHT['render']}, got {shown(frame)}")
        except (Exception, _NoAnswer) as error:  # often of a package or a display that is not here
            self._tell("render", "warning", _said(error), "needed to film episodes, not to store")
        self._pass("render")

    def _differs(self, name: str, first: list[_Row], rows: Iterable[_Row], cure: str) -> bool:
        """Compare rows with those of the first run."""
        difference = _difference(first, rows)
        if difference is not None:
            self._tell(name, "FAIL", difference, cure)
        self._pass(name)
        return difference is not None


def _misfits(space: Any, value: Any, name: str) -> Iterator[tuple[Verdict, str]]:
    """Faults in the values and dtypes of an observation that has the right form."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts: Any = space.spaces
        for key in parts if isinstance(parts, Mapping) else range(len(parts)):
            yield from _misfits(parts[key], value[key], f"{name}[{key!r}]")
    elif space.dtype is None or space.shape is None or space.dtype.kind == "U":
        if not space.contains(value):
            yield "FAIL", f"{name}: expected one of {space}, got {shown(value)}"
    else:
        array = np.asarray(value)
        inside = True if (limits := limits_of(space)) is None else inside_of(array, limits)
        if not np.all(inside):
            got = array[~np.asarray(inside)][0]
            yield "FAIL", f"{name}: expected values of {space}, got {got}"
        if not np.can_cast(array.dtype, space.dtype):
            seen = f"{name}: {array.dtype} is stored rounded to {space.dtype}, as declared"
            yield "warning", seen


def _is_black(observation: Any) -> bool:
    """True if there are pictures in an observation, with nothing on them."""
    pictures = [leaf for leaf in leaves_of(observation) if leaf.dtype == np.uint8 and leaf.ndim > 1]
    return bool(pictures) and not any(map(np.any, pictures))


def _parts(value: Any, name: str) -> _Row:
    """The parts of a value by name; arrays as hashes."""
    if isinstance(value, Mapping | tuple | list):
        pairs: Any = value.items() if isinstance(value, Mapping) else enumerate(value)
        return {
            k: one for key, part in pairs for k, one in _parts(part, f"{name}[{key!r}]").items()
        }
    return {name: hash(value.tobytes()) if isinstance(value, np.ndarray) else repr(value)}


def _difference(first: list[_Row], rows: Iterable[_Row]) -> str | None:
    """The first place in which rows differ from those of the first run."""
    for step, (old, new) in enumerate(zip(first, rows, strict=False)):
        for key in old | new:
            if old.get(key) != new.get(key):
                return f"step {step}: another {key} than in the first run"
    return None


def _said(error: BaseException) -> str:
    """An error in one line; of an env, with its line that raised it."""
    own, frames = Path(__file__).parents[2], traceback.extract_tb(error.__traceback__)
    what = " ".join(str(error).split())
    outside = [one for one in frames if not Path(one.filename).is_relative_to(own)]
    is_late = isinstance(error, _NoAnswer)  # raised here, while other code ran
    if not outside or (Path(frames[-1].filename).is_relative_to(own) and not is_late):
        return what
    others = "site-packages", os.path.dirname(os.__file__)  # not the env's own code
    mine = [one for one in outside if not any(part in one.filename for part in others)]
    last = (mine or outside)[-1]
    place = f"{Path(last.filename).name}:{last.lineno}"
    return f"{what}, in {place}" if is_late else f"{place} raised {type(error).__name__}: {what}"
