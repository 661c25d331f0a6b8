"""check_vector_env reports the actual behavior of vector envs."""

import random
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import FrameStackObservation
from numpy.testing import assert_equal

from stepwell.buffers.dropin.sb3 import step_ring
from stepwell.wrappers.check.vector_env import VectorEnvReport, check_vector_env
from stepwell.wrappers.check.watch import global_states
from stepwell.wrappers.frames import FrameStack
from stepwell.wrappers.workers.vector_env import WorkerVectorEnv
from support.envs.fakes import (
    CounterEnv,
    Declared,
    FrameEnv,
    GlobalRandomEnv,
    ReusingEnv,
    SeededEnv,
)

MODES = {
    AutoresetMode.NEXT_STEP: "next_step",
    AutoresetMode.SAME_STEP: "same_step",
    AutoresetMode.DISABLED: "disabled",
}


def check(envs: VectorEnv[Any, Any, Any], steps: int = 60) -> VectorEnvReport:
    """Return the report on a vector env, and close it."""
    report = check_vector_env(envs, steps=steps)
    envs.close()
    return report


def cartpoles(kind: Any = SyncVectorEnv, **kwargs: Any) -> VectorEnv[Any, Any, Any]:
    envs: VectorEnv[Any, Any, Any] = kind([lambda: gym.make("CartPole-v1")] * 3, **kwargs)
    return envs


@pytest.mark.proof
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_gymnasiums_vector_envs_do_what_they_declare(mode: AutoresetMode, kind: Any) -> None:
    report = check(cartpoles(kind, autoreset_mode=mode))
    assert report.autoreset == MODES[mode]
    assert report.declared == mode.name
    assert report.ends > 3
    assert report.final_observation == "true"
    assert (report.is_reproducible, report.envs_differ) == (True, True)
    assert not report.same_memory
    assert not report.changes_later
    assert report.is_fine


@pytest.mark.parametrize(
    ("practised", "declared", "told"),
    [
        (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, "SAME_STEP"),
        (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP, "NEXT_STEP"),
        (AutoresetMode.NEXT_STEP, None, "declared nothing"),
    ],
)
def test_a_wrong_or_missing_declaration_is_found(
    practised: AutoresetMode, declared: AutoresetMode | None, told: str
) -> None:
    report = check(Declared(cartpoles(autoreset_mode=practised), declared))
    assert report.autoreset == MODES[practised]
    assert report.declared == (declared and declared.name)
    assert not report.is_fine
    assert "metadata['autoreset_mode']" in str(report)
    assert told in str(report)


def test_a_lost_final_observation_is_found() -> None:
    def hidden(*row: Any) -> Any:
        return *row[:-1], {key: one for key, one in row[-1].items() if "final" not in key}

    report = check(Changed(cartpoles(autoreset_mode=AutoresetMode.SAME_STEP), hidden))
    assert report.autoreset == "same_step_lost"
    assert report.final_observation == "lost"
    assert not report.is_fine


class GoesOnEnv(CounterEnv):
    """Returns terminated each third step, and continues."""

    def step(self, action: np.int64) -> Any:
        observation, reward, _, truncated, info = super().step(action)
        return observation, reward, self.t % 3 == 0, truncated, info


class GoesOnVector(SyncVectorEnv[Any, Any]):
    """Does not reset at all: each step steps."""

    def step(self, actions: Any) -> Any:
        self._autoreset_envs[:] = False
        return super().step(actions)


def test_an_env_that_goes_on_after_terminated_is_found() -> None:
    report = check(GoesOnVector([lambda: GoesOnEnv(10**6)] * 2))
    assert report.autoreset == "goes_on"
    assert not report.is_fine


def test_a_nan_is_no_sign_of_anything() -> None:
    report = check(SyncVectorEnv([partial(ReusingEnv, ["fresh"], ring=3, nan=True)] * 2))
    assert report.is_reproducible
    assert not report.changes_later
    assert [one.topic for one in report.findings if one.is_problem] == ["spaces"]  # the NaN itself


@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_arrays_that_are_returned_again_are_found(kind: Any) -> None:
    """Trap 21."""
    report = check(cartpoles(kind, copy=False))
    assert report.same_memory
    assert report.changes_later
    assert report.autoreset == "next_step"
    assert report.final_observation == "true"
    assert "copies each row" in str(report)


class Changed(gym.vector.VectorWrapper[Any, Any, Any]):
    """Returns what a test wants."""

    def __init__(self, envs: Any, change: Callable[..., Any]) -> None:
        super().__init__(envs)
        self.change = change

    def step(self, actions: Any) -> Any:
        return self.change(*super().step(actions))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda o, r, *f: (o.astype(np.float64), r, *f),
            r"observation .*float64 \(3, 4\).*float32 \(N, 4\)",
        ),
        (
            lambda o, r, *f: (o[..., None], r, *f),
            r"observation .*float32 \(3, 4, 1\).*float32 \(N, 4\)",
        ),
        (
            lambda o, r, *f: (o, np.stack([r, r], 1), *f),
            r"reward: .*one number.*3 envs.*float64 \(3, 2\)",
        ),
        (
            lambda o, r, t, u, i: (o, r, np.full(3, 2), u, i),
            r"terminated: .*bool.*\b2 of int64",
        ),
    ],
)
def test_rows_that_do_not_fit_are_found(change: Any, message: str) -> None:
    report = check(Changed(cartpoles(), change), steps=10)
    assert re.search(message, " ".join(report.problems))


def test_a_space_of_one_env_where_the_batch_is_due_is_found() -> None:
    """Trap 30: EnvPool's observation_space is one env's."""
    envs = cartpoles()
    envs.observation_space = envs.single_observation_space
    report = check(envs, steps=10)
    (problem,) = report.problems
    assert problem.startswith("observation_space is not 3 times single_observation_space")


def test_seeds_that_are_ignored_or_shared_are_found() -> None:
    """Trap 20."""

    class Shared(SeededEnv):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return super().reset(seed=1 if seed is not None else None)

    class Ignored(SeededEnv):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return super().reset()

    shared, ignored = (check(SyncVectorEnv([env] * 3)) for env in (Shared, Ignored))
    assert (shared.is_reproducible, shared.envs_differ) == (True, False)
    assert (ignored.is_reproducible, ignored.envs_differ) == (False, True)
    assert "cannot promise the same data" in str(ignored)


@pytest.mark.parametrize(
    ("wrap", "expected"),
    [
        (lambda env: env, (1, None)),
        (lambda env: FrameStackObservation(env, 3), (3, "repeat")),  # pyright: ignore
        (lambda env: FrameStackObservation(env, 2, padding_type="zero"), (2, "zero")),  # pyright: ignore
        (lambda env: FrameStack(env, 4, padding="zero"), (4, "zero")),  # pyright: ignore
    ],
)
def test_frame_stacks_are_found(wrap: Any, expected: tuple[int, str | None]) -> None:
    report = check(SyncVectorEnv([lambda: wrap(FrameEnv())] * 2))
    assert (report.frame_stack, report.stack_padding) == expected


def test_the_env_is_reset_after_the_check_and_its_own_randomness_left_alone() -> None:
    envs = SyncVectorEnv([lambda: CounterEnv(100)] * 2)
    envs.action_space.seed(3)
    expected = [envs.action_space.sample() for _ in range(20)]
    envs.action_space.seed(3)
    check_vector_env(envs, steps=10)
    assert_equal([envs.action_space.sample() for _ in range(20)], expected)
    assert_equal(envs.step(np.zeros(2, np.int64))[0][:, 1], [1, 1])
    envs.close()


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match=r"steps: .*10.*got 3"):
        check_vector_env(cartpoles, steps=3)
    with pytest.raises(TypeError, match=r"envs.*VectorEnv.*got CounterEnv"):
        check_vector_env(CounterEnv())  # type: ignore[arg-type] # pyright: ignore


def test_last_observations_that_repeat_bring_advice_for_atari_to_atari_alone() -> None:
    class Sticking(CounterEnv):
        """Its last observation is the one before, as where a player takes no more cards."""

        def observation(self) -> Any:
            seen = super().observation()
            return seen - np.array([0, self.t == self.length, 0])

    report = check(SyncVectorEnv([Sticking] * 2))
    assert (report.final_observation, report.is_atari) == ("repeats", False)
    assert "atari" not in str(report)


# ale-py's vector env


def ale(**kwargs: Any) -> VectorEnv[Any, Any, Any]:
    from ale_py.vector_env import AtariVectorEnv

    small: dict[str, Any] = {"img_height": 32, "img_width": 32, "num_threads": 1, **kwargs}
    envs: VectorEnv[Any, Any, Any] = AtariVectorEnv("breakout", small.pop("num_envs", 2), **small)
    return envs


@pytest.mark.proof
@pytest.mark.parametrize(
    ("options", "facts", "words"),
    [
        # Traps 4, 5 and 22: last observations of its own kind, episodes that go on after
        # terminated, and envs that answer when they are ready.
        (
            {"autoreset_mode": AutoresetMode.SAME_STEP},
            {"autoreset": "same_step_ale", "declared": "SAME_STEP"},
            "",
        ),
        (
            {"life_loss_info": True},
            {"autoreset": "mixed", "has_frame_counters": True},
            "only where the frame counters show a reset",
        ),
        ({"num_envs": 3, "batch_size": 2}, {"is_asynchronous": True}, "info['env_id']"),
    ],
)
def test_ways_of_ale_pys_own_are_found(
    options: dict[str, Any], facts: dict[str, Any], words: str
) -> None:
    report = check(ale(**options), steps=500)
    assert {name: getattr(report, name) for name in facts} == facts
    assert report.final_observation != "overwritten"
    assert report.problems == ()
    assert words in str(report)


@pytest.mark.proof
@pytest.mark.parametrize("library", ["python", "numpy", "torch"])
@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv, WorkerVectorEnv])
def test_draws_from_global_generators_are_told(library: str, kind: Any) -> None:
    if library == "torch":
        pytest.importorskip("torch", reason="needs torch")
    report = check(kind([partial(GlobalRandomEnv, library)] * 2))
    assert report.global_random == (library,)
    assert any(library in line and "np_random" in line for line in str(report).splitlines())
    # Each forked process has the same generators, but that Python seeds its own there; and NumPy's
    # differ once the drop-in for SB3 has been used in this process.
    own = {"python", "numpy"} if step_ring._part_forks.cache_info().currsize else {"python"}
    assert report.shares_random == (kind is AsyncVectorEnv and library not in own)
    assert report.is_fine == (not report.shares_random)


MODULES_OWN: Any = np.random.default_rng(0)


class OwnRandomEnv(SeededEnv):
    """Draws from a generator of its module or of its class."""

    of_class: Any = random.Random(0)
    unused: Any = np.random.default_rng(0)

    def __init__(self, of_class: bool) -> None:
        super().__init__(4)
        self._draw = self.of_class if of_class else MODULES_OWN

    def step(self, action: np.int64) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.full(2, self._draw.random()), *super().step(action)[1:]


@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv, WorkerVectorEnv])
@pytest.mark.parametrize("of_class", [False, True])
def test_draws_from_generators_of_a_module_or_class_are_told(kind: Any, of_class: bool) -> None:
    report = check(kind([partial(OwnRandomEnv, of_class)] * 2))
    name = "OwnRandomEnv.of_class" if of_class else "MODULES_OWN"
    assert report.global_random == (f"{__name__}.{name}",)
    assert any(name in line and "np_random" in line for line in str(report).splitlines())
    assert report.shares_random == (kind is not SyncVectorEnv)
    assert report.is_fine == (not report.shares_random)


@pytest.mark.parametrize(
    "make", [np.random.RandomState, random.Random, lambda seed: torch_generator().manual_seed(seed)]
)
def test_every_kind_of_a_modules_generator_is_told(
    make: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"{__name__}.MODULES_OWN"
    states = []
    for seed in (1, 1, 2):
        monkeypatch.setitem(globals(), "MODULES_OWN", make(seed))
        states.append(global_states()[1][name])
    assert states[0] == states[1] != states[2]


def torch_generator() -> Any:
    return pytest.importorskip("torch", reason="needs torch").Generator()


class StandingStill(SyncVectorEnv[Any, Any]):
    """While an env is reset, the steps of all others are dropped."""

    def __init__(self, drops: bool) -> None:
        fns = [partial(CounterEnv, length, tag) for tag, length in enumerate((3, 7, 11))]
        super().__init__(fns, autoreset_mode=AutoresetMode.DISABLED)
        self.metadata = {**self.metadata, "autoreset_mode": AutoresetMode.NEXT_STEP}
        self.autoreset_mode = None  # type: ignore[assignment]
        self.drops, self.ended = drops, np.zeros(3, np.bool_)
        self.newest: Any = None

    def reset(self, **options: Any) -> Any:
        self.ended[:] = False
        self.newest, info = super().reset(**options)
        return self.newest.copy(), info

    def step(self, actions: Any) -> Any:
        again = self.ended
        results: list[tuple[Any, Any, bool]] = []
        for env, one in enumerate(self.envs):
            if again[env]:
                results.append((one.reset()[0], 0.0, False))
            elif again.any() and self.drops:
                results.append((self.newest[env], 1.0, False))
            else:
                results.append(one.step(actions[env])[:3])
        rows, rewards, ended = zip(*results, strict=True)
        self.newest, self.ended = np.array(rows), np.array(ended, np.bool_)
        return self.newest.copy(), np.array(rewards), self.ended, np.zeros(3, np.bool_), {}


@pytest.mark.parametrize("drops", [True, False])
def test_envs_of_which_others_stand_still_when_one_resets_are_found(drops: bool) -> None:
    report = check(StandingStill(drops), steps=80)
    assert report.stands_still == drops
    assert report.is_fine == (not drops)
