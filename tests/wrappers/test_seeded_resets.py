# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
"""Every reset has a seed, with which its episode can be played again alone."""

import copy
import pickle
from functools import partial
from typing import Any

import gymnasium as gym
import hypothesis
import numpy as np
import pytest
from gymnasium.wrappers import FrameStackObservation
from hypothesis import strategies as st

from stepwell.wrappers import (
    EmulatorSeed,
    EpisodicLife,
    FrameStack,
    SeededResets,
    from_gym,
    make_atari,
    make_vec,
)
from stepwell.wrappers.recipe import recipe_of, spec_of, stack_of, stack_of_vector
from stepwell.wrappers.seeded_resets import derived_seed, with_seeded_resets
from support.libraries.old_gym_fakes import OldEnv, Wrapper


class Recorder(gym.Env[Any, Any]):
    """Records what each reset got; steps count up, and lives are lost at the given steps."""

    observation_space = gym.spaces.Box(0, 1000, (2, 3), np.int64)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, lost_at: tuple[int, ...] = (), end: int = 9) -> None:
        self.calls: list[tuple[int | None, Any]] = []
        self._lost_at, self._end, self._steps = lost_at, end, 0

    def _result(self) -> tuple[Any, dict[str, Any]]:
        lives = 5 - sum(step <= self._steps for step in self._lost_at)
        return np.full((2, 3), self._steps), {"lives": lives}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.calls.append((seed, options))
        self._steps = 0
        return self._result()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        observation, info = self._result()
        return observation, 0.0, self._steps == self._end, False, info


def test_a_reset_without_a_seed_has_a_derived_one() -> None:
    inner = Recorder()
    env = SeededResets(inner)
    assert env.reset(options={"a": 1})[1] == {"lives": 5}
    infos = [env.reset(seed=seed)[1] for seed in (3, None, None, 8, None)]
    seeds = [3, derived_seed(3, 1), derived_seed(3, 2), 8, derived_seed(8, 1)]
    assert infos == [{"lives": 5, "reset_seed": seed} for seed in seeds]
    env.reset(options={"b": 2})
    more = derived_seed(8, 2)
    assert inner.calls == [(None, {"a": 1}), *((seed, None) for seed in seeds), (more, {"b": 2})]


@hypothesis.given(seed=st.integers(0, 2**64), number=st.integers(1, 300))
def test_a_derived_seed_depends_on_the_seed_and_the_number_only(seed: int, number: int) -> None:
    inner = Recorder()
    env = SeededResets(inner)
    env.reset(seed=seed)
    for _ in range(number):
        env.reset()
    assert inner.calls[number] == (derived_seed(seed, number), None)
    sequence = np.random.SeedSequence(seed, spawn_key=((number - 1) // 64,))
    assert derived_seed(seed, number) == sequence.generate_state(64)[(number - 1) % 64] // 2


def test_derived_seeds_are_those_of_every_other_version() -> None:
    found = [derived_seed(0, n) for n in (1, 2, 64, 65, 10**6)]
    assert found == [1878776328, 1009188246, 82895525, 336614359, 657966000]
    assert all(type(derived_seed(0, n)) is int for n in (1, 65))
    seeds = {derived_seed(seed, n) for seed in range(8) for n in range(1, 500)}
    assert len(seeds) > 8 * 499 - 3
    assert 0 <= min(seeds) < max(seeds) < 2**31


@pytest.mark.parametrize("options", [None, {"a": 1}])
def test_a_reset_that_continues_a_game_has_no_seed(options: Any) -> None:
    inner = Recorder(lost_at=(2, 4))
    env = SeededResets(FrameStack(EpisodicLife(inner), 2))
    env.reset(seed=1)
    for number in range(1, 5):
        lost = env.step(0)[2]
        assert lost == (number % 2 == 0)
        if number == 2:
            assert env.reset()[1] == {"lives": 4, "game_over": False}
    info = env.reset(options=options)[1]
    if options is None:
        assert info == {"lives": 3, "game_over": False}
        while not env.step(0)[2]:
            pass
        info = env.reset()[1]
    assert info == {"lives": 5, "game_over": False, "reset_seed": derived_seed(1, 1)}
    assert inner.calls == [(1, None), (derived_seed(1, 1), options)]


class ForeignLife(gym.Wrapper[Any, Any, Any, Any]):
    """Continues the game after a lost life, as the wrappers of other libraries do."""

    was_real_done = True

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.was_real_done = terminated or truncated
        return observation, reward, True, truncated, info

    def reset(self, **kwargs: Any) -> Any:
        if self.was_real_done:
            return self.env.reset(**kwargs)
        observation, _, _, _, info = self.env.step(0)
        return observation, info


def test_wrappers_of_other_libraries_may_continue_a_game() -> None:
    inner = Recorder()
    env = SeededResets(ForeignLife(inner))
    assert "reset_seed" in env.reset(seed=1)[1]
    env.step(0)
    resets: list[dict[str, Any]] = [{}, {"options": {"a": 1}}, {"seed": 4}]
    for more in resets:
        assert "reset_seed" not in env.reset(**more)[1], "the seed does not reach the env"
    info: dict[str, Any] = {}
    while not inner.calls[1:]:
        env.step(0)
        info = env.reset()[1]
    assert info["reset_seed"] == derived_seed(4, 1) == inner.calls[1][0]


class DropsSeeds(gym.Wrapper[Any, Any, Any, Any]):
    """Passes on every second reset only."""

    count = 0

    def reset(self, **kwargs: Any) -> Any:
        self.count += 1
        return self.env.reset(**kwargs if self.count % 2 else {})


def test_a_seed_that_does_not_reach_the_env_is_not_recorded() -> None:
    env = SeededResets(DropsSeeds(Recorder()))
    found = [env.reset(seed=seed)[1].get("reset_seed") for seed in (1, None, None, 5, 6)]
    assert found == [1, None, derived_seed(1, 2), None, 6]


class OwnGenerator(Recorder):
    """Does not use gymnasium's generator."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.calls.append((seed, options))
        return self._result()


def test_an_env_may_have_a_generator_of_its_own() -> None:
    inner = OwnGenerator()
    env = SeededResets(inner)
    assert [env.reset(seed=seed)[1].get("reset_seed") for seed in (4, None)] == [
        4,
        derived_seed(4, 1),
    ]
    assert inner._np_random is None  # pyright: ignore[reportPrivateUsage]


def test_a_seed_that_no_array_of_infos_can_hold_is_used_but_not_recorded() -> None:
    inner = Recorder()
    envs = make_vec(lambda: inner, num_workers=0)
    assert "reset_seed" not in envs.reset(seed=2**63)[1]
    assert envs.reset()[1]["reset_seed"] == derived_seed(2**63, 1)
    assert [seed for seed, _ in inner.calls] == [2**63, derived_seed(2**63, 1)]


@pytest.mark.parametrize("seed", [-1, "a"])
def test_a_seed_that_the_env_refuses_changes_nothing(seed: Any) -> None:
    inner = Recorder()
    env = SeededResets(inner)
    env.reset(seed=1)
    with pytest.raises(gym.error.Error):
        env.reset(seed=seed)
    assert env.reset()[1]["reset_seed"] == derived_seed(1, 1)


def test_a_step_is_the_wrapped_envs_own() -> None:
    inner = gym.make("CartPole-v1")
    env = SeededResets(inner)
    assert env.step == inner.step

    class Counting(SeededResets[Any, Any]):
        steps = 0

        def step(self, action: Any) -> Any:
            self.steps += 1
            return super().step(action)

    counting = Counting(inner)
    counting.reset(seed=0)
    counting.step(0)
    assert counting.steps == 1


def copies(env: Any) -> list[Any]:
    return [copy.deepcopy(env), pickle.loads(pickle.dumps(env))]


def test_a_copy_steps_its_own_env() -> None:
    env: Any = SeededResets(gym.make("CartPole-v1"))
    env.reset(seed=3)
    env.reset()
    for other in copies(env):
        assert other.step.__self__ is other.env is not env.env
        np.testing.assert_array_equal(other.step(1)[0], other.unwrapped.state.astype(np.float32))
        assert other.reset()[1] == {"reset_seed": derived_seed(3, 2)}
    assert env.reset()[1] == {"reset_seed": derived_seed(3, 2)}


def test_recipes_stacks_and_specs_are_those_without_it() -> None:
    plain = FrameStack(gym.make("CartPole-v1"), 2, padding="repeat")
    env = with_seeded_resets(plain)
    assert with_seeded_resets(env) is env
    assert recipe_of(env, None) == recipe_of(plain, None)
    assert spec_of(env) == spec_of(plain)
    assert str(env) == f"<SeededResets{plain}>"
    screens = FrameStack(Recorder(), 3)
    assert stack_of(SeededResets(screens)) == stack_of(screens) == (3, "zero")
    for workers in (0, 1):
        for stack in (FrameStack, FrameStackObservation):
            envs = make_vec(partial(stack, Recorder(), 3), num_workers=workers)
            assert stack_of_vector(envs) == (3, "zero" if stack is FrameStack else "repeat")
            envs.close()


@pytest.mark.proof
def test_ale_pys_own_env_is_left_alone_but_for_an_emulator_seed() -> None:
    make_atari("pong").close()  # registers the games
    bare = gym.make("ALE/Pong-v5")
    assert with_seeded_resets(bare) is bare
    env = with_seeded_resets(EmulatorSeed(bare))
    assert "reset_seed" not in env.reset()[1]
    assert [env.reset(seed=seed)[1]["reset_seed"] for seed in (3, None)] == [3, derived_seed(3, 1)]


@pytest.mark.proof
@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("game", ["pong", "berzerk"])
def test_atari_games_are_seeded_where_it_costs_little(game: str, num_workers: int) -> None:
    envs = make_atari(game, backend="python", num_workers=num_workers, max_frames=8, noop_max=3)
    assert envs.reset(seed=4)[1]["reset_seed"].tolist() == [4]
    found = [envs.step(np.zeros(1, np.int64))[-1].get("reset_seed") for _ in range(6)]
    seeds = [derived_seed(4, 1), derived_seed(4, 2)] if game == "pong" else []
    assert [int(seed[0]) for seed in found if seed is not None] == seeds
    envs.close()


class Unseeded(OldEnv):
    seed: Any = None


def test_an_old_env_gets_the_seeds_if_it_can_be_seeded() -> None:
    old = OldEnv()
    envs = make_vec(lambda: from_gym(old), num_workers=0)
    envs.reset(seed=2)
    assert envs.reset()[1]["reset_seed"].tolist() == [derived_seed(2, 1)] == old.seeds[1:]
    envs = make_vec(lambda: from_gym(Unseeded()), num_workers=0)
    envs.reset(seed=2)
    assert "reset_seed" not in envs.reset()[1]
    life: Any = Wrapper(OldEnv())  # one that continues a game
    life.was_real_done = True
    env = SeededResets(from_gym(life))
    assert "reset_seed" in env.reset(seed=2)[1]
    life.was_real_done = False
    assert "reset_seed" not in env.reset()[1]
