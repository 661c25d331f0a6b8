"""Each fault of an env is found by its name, a sound env has none; docs/envs.md says who sees."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env as gymnasiums

from stepwell import check_env
from stepwell.wrappers.check import env as env_file
from stepwell.wrappers.check.env import EnvReport
from stepwell.wrappers.testing import assert_env
from support.envs.faulty import FAULTS, LATE, FourValues, Leftover, RaisesLate, Sound
from support.source_tree import CHECKOUT

AT = f"step {LATE}: "
# For each fault: the check that sees it, its verdict, and what it names.
EXPECTED = {
    "reset returns the observation alone": ("reset", "FAIL", "(observation, info)", "from_gym"),
    "reset takes no seed": ("reset", "FAIL", "seed=", "from_gym"),
    "step returns four values": ("step", "FAIL", "step 1: ", "4 values", "from_gym"),
    "info is no dict": ("step", "FAIL", "step 1: ", "[1]"),
    "reward is None in step 7": ("rewards", "FAIL", AT, "None"),
    "reward is NaN in step 7": ("rewards", "FAIL", AT, "nan"),
    "terminated is a list": ("ends", "FAIL", "terminated", "[False, False]"),
    "another shape in step 7": ("observations", "FAIL", AT, "observation['place']", "(3,)"),
    "float64 where float32 is declared": ("observations", "warning", "['place']", "float64"),
    "out of bounds in step 7": ("observations", "FAIL", AT, "observation['goal']", "Box(-1.0, 1.0"),
    "NaN in step 7": ("observations", "FAIL", AT, "observation['goal']", "nan"),
    "a key is missing in step 7": ("observations", "FAIL", AT, "'place'"),
    "a key too many in step 7": ("observations", "FAIL", AT, "'more'"),
    "the observation's array is used again": ("memory", "warning", "step 1: "),
    "a generator of its own, at reset": ("seeds", "FAIL", "step 0: ", "observation['goal']"),
    "a generator of its own, in step 7": ("seeds", "FAIL", AT, "reward"),
    "draws from np.random": ("generators", "warning", "numpy", "self.np_random"),
    "draws from the module random in step 7": ("generators", "warning", "python"),
    "seeds np.random": ("generators", "warning", "numpy"),
    "all seeds give one episode": ("starts", "warning", "0 and 1"),
    "without a seed, always the same episode": ("starts", "FAIL", "without a seed"),
    "a reset leaves something of the episode before": ("resets", "FAIL", "step 1: ", "reward"),
    "envs of a process share their state": ("copies", "FAIL", "step 2: ", "observation['place']"),
    "the reward depends on the clock": ("seeds", "FAIL", "step 1: ", "reward", "clock"),
    "step writes into the action": ("actions", "warning", "step 1: "),
    "no end": ("ends", "warning", "TimeLimit"),
    "the last picture of an episode is black": ("ends", "warning", "(3)", "black"),
    "an error in step 8": ("step", "FAIL", "step 8: ", "faulty.py:", "RuntimeError", "is gone"),
    "reset inside an episode is an error": ("reset", "FAIL", "faulty.py:", "has not ended"),
    "another space in each env": ("made", "FAIL", "observation_space", "(3,)", "(4,)"),
    "actions without bounds": ("actions", "warning", "Box(-inf, inf"),
    "render returns None": ("render", "warning", "None"),
    "info changes its form": ("infos", "warning", "step 2: ", "'steps'", "(2,)", "(1,)"),
}
# What follows from a fault: an env that draws from a global generator does not repeat, and one that
# seeds it gives other envs its numbers.
MORE = {
    "draws from np.random": {"seeds"},
    "draws from the module random in step 7": {"seeds"},
    "seeds np.random": {"copies"},
}


@pytest.fixture(autouse=True)
def without_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run is not cut where the machine is busy."""
    monkeypatch.setattr(env_file, "_FIRST_SECONDS", math.inf)


def filmed(fault: type[Sound]) -> Callable[[], Sound]:
    return lambda: fault(render_mode="rgb_array")


def seen(report: EnvReport) -> dict[str, tuple[str, str]]:
    """Verdict and text of the checks that are not ok, by name."""
    return {one.name: (one.verdict, str(one)) for one in report.checks if one.verdict != "ok"}


@pytest.mark.parametrize(
    "make", [filmed(Sound), partial(gym.make, "CartPole-v1")], ids=["sound", "id"]
)
def test_a_sound_env_passes_every_check(make: Any) -> None:
    report = check_env(make, steps=60)
    assert [one.name for one in report.checks] == list(env_file._RIGHT)
    assert {one.verdict for one in report.checks} == {"ok"}
    assert report.is_fine
    assert report.steps == 60
    assert report.step_seconds > 0 < report.reset_seconds


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault: str) -> None:
    name, verdict, *parts = EXPECTED[fault]
    report = check_env(filmed(FAULTS[fault]), steps=60)
    found = seen(report)
    assert found[name][0] == verdict
    for part in parts:
        assert part in found[name][1]
    assert set(found) == {name} | MORE.get(fault, set())
    assert report.is_fine == all(one != "FAIL" for one, _ in found.values())


def test_nothing_is_said_of_what_was_not_checked() -> None:
    names = [one.name for one in check_env(filmed(FourValues), steps=60).checks]
    assert names == ["step"]
    assert "copies" not in [one.name for one in check_env(Leftover, steps=60).checks]


def test_wrappers_of_gymnasium_do_not_hide_the_old_api() -> None:
    report = check_env(lambda: gym.wrappers.TimeLimit(FourValues(), 9), steps=60)
    verdict, text = seen(report)["step"]
    assert verdict == "FAIL"
    assert "got 4" in text
    assert "from_gym" in text


def test_a_factory_that_fails_is_told_with_its_line() -> None:
    def broken() -> Any:
        raise OSError("no licence")

    (made,) = check_env(broken).checks
    assert (made.name, made.verdict) == ("made", "FAIL")
    assert "test_env.py:" in made.seen
    assert "OSError: no licence" in made.seen


def test_a_second_env_that_cannot_be_made_is_a_warning() -> None:
    made: list[Sound] = []

    def once() -> Sound:
        if made:
            raise RuntimeError("one emulator in a process")
        made.append(Sound())
        return made[0]

    report = check_env(once, steps=60)
    assert {name: verdict for name, (verdict, _) in seen(report).items()} == {"made": "warning"}
    names = [one.name for one in report.checks]
    assert "seeds" in names
    assert "copies" not in names


class Nested(Sound):
    """A tuple with a text, which says too much in the seventh step."""

    observation_space = spaces.Tuple([spaces.Discrete(99), spaces.Text(4, charset="ab")])  # type: ignore[assignment]

    def seen(self) -> Any:
        return self.steps, "c" if self.steps == LATE else "ab"


def test_values_of_nested_and_open_spaces_are_checked() -> None:
    verdict, text = seen(check_env(Nested, steps=60))["observations"]
    assert verdict == "FAIL"
    assert AT in text
    assert "observation[1]" in text
    assert "'c'" in text


def test_slow_envs_are_played_for_as_long_as_they_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(env_file, "_FIRST_SECONDS", 0.0)
    report = check_env(Sound, steps=60)
    assert report.steps == 1
    assert report.is_fine


def test_an_env_with_a_fault_is_refused_by_assert_env() -> None:
    with pytest.raises(AssertionError, match=r"FAIL +step: step 8: .*is gone"):
        assert_env(RaisesLate, steps=20, vectorization=["sync"])


def test_a_run_has_a_step() -> None:
    with pytest.raises(ValueError, match=r"steps.*1.*0"):
        check_env(Sound, steps=0)


# docs/envs.md: the faults, and who sees them.


def says(check: Callable[[Any], None], fault: type[Sound]) -> tuple[str, set[str]]:
    """Whether another checker raises an error or warns; and its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            check(fault(render_mode="rgb_array"))
        except Exception:
            return "error", set()
    return "", {str(one.message) for one in caught}


def column(check: Callable[[Any], None]) -> Iterator[str]:
    verdict, usual = says(check, Sound)  # that the sound env has no spec
    assert verdict == ""
    for fault in FAULTS.values():
        verdict, warned = says(check, fault)
        yield verdict or ("warning" if warned - usual else "-")


def verdicts(fault: str) -> str:
    name, verdict, *_ = EXPECTED[fault]
    return ", ".join([f"{verdict}: {name}", *(f"FAIL: {one}" for one in MORE.get(fault, ()))])


def table() -> list[list[str]]:
    """The rows of the page's table, as cells."""
    text = (CHECKOUT / "docs" / "envs.md").read_text("utf-8").split("<!-- faults -->")[1]
    rows = text.strip().split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]


def test_the_page_has_what_stepwell_and_gymnasium_see() -> None:
    rows = table()
    assert [row[0] for row in rows] == list(FAULTS)
    assert [row[1] for row in rows] == [*map(verdicts, FAULTS)]
    np.random.seed(0)  # noqa: NPY002
    assert [row[2] for row in rows] == list(column(gymnasiums))


def test_the_page_has_what_stable_baselines3_sees() -> None:
    if importlib.util.find_spec("stable_baselines3") is None:
        pytest.skip("needs stable_baselines3")
    from stable_baselines3.common.env_checker import check_env as sb3s

    assert [row[3] for row in table()] == list(column(sb3s))


class Hangs(Sound):
    """An env one of whose methods does not return, and catches whatever it can."""

    late = ""

    def hang(self, method: str) -> None:
        while method == self.late and self.steps in (LATE, 0):
            with contextlib.suppress(Exception):
                threading.Event().wait()

    def reset(self, **given: Any) -> Any:
        self.hang("reset")
        return super().reset(**given)

    def step(self, action: Any) -> Any:
        found = super().step(action)
        self.hang("step")
        return found

    def render(self) -> Any:
        self.hang("render")
        return super().render()

    def close(self) -> None:
        self.steps = 0
        self.hang("close")


@pytest.mark.parametrize(
    ("method", "check", "verdict", "begin"),
    [
        ("step", "step", "FAIL", AT),
        ("reset", "reset", "FAIL", ""),
        ("close", "made", "FAIL", "close: "),
        ("render", "render", "warning", ""),
    ],
)
def test_a_call_that_does_not_return_is_interrupted_and_named(
    method: str, check: str, verdict: str, begin: str
) -> None:
    class Late(Hangs):
        late = method

    report = check_env(partial(Late, "rgb_array"), limit=1.0, steps=20)
    (found,) = (one for one in report.checks if one.name == check)
    assert found.verdict == verdict
    assert found.seen.startswith(f"{begin}no answer within 1 s, in ")
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_a_call_that_catches_the_interruption_and_returns_fails_too() -> None:
    class Swallows(Sound):
        def step(self, action: Any) -> Any:
            found = super().step(action)
            with contextlib.suppress(BaseException):
                threading.Event().wait()
            return found

    report = check_env(Swallows, limit=1.0, steps=20)
    (found,) = (one for one in report.checks if one.name == "step")
    assert found.verdict == "FAIL"
    assert found.seen.startswith("step 1: no answer within 1 s, in test_env.py:")


def test_no_alarm_is_left_where_the_limit_ends_at_once() -> None:
    assert not check_env(Sound, limit=1e-9, steps=5).is_fine
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL


def test_an_alarm_of_the_program_is_left_alone() -> None:
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    try:
        signal.setitimer(signal.ITIMER_REAL, 1_000)
        assert check_env(Sound, limit=1.0, steps=5).is_fine
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_an_env_is_checked_in_a_thread_too() -> None:
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(check_env, Sound, limit=1.0, steps=5).result().is_fine


@pytest.mark.parametrize("limit", [0, -1, math.nan, math.inf, 1e7, "60", True])
def test_a_limit_that_is_no_time_is_refused(limit: Any) -> None:
    with pytest.raises(ValueError, match=r"^limit: .*got "):
        check_env(Sound, limit=limit)
