# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportPrivateUsage=false
"""The python backend: the class that workers use, beside the wrappers that it must equal."""

import contextlib
import multiprocessing
import multiprocessing.spawn
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import strategies as st

from stepwell.wrappers import FrameStack, SeededResets, make_atari
from stepwell.wrappers import atari_python as module
from stepwell.wrappers.atari import atari_env
from stepwell.wrappers.atari_python import AtariWorkers, FusedAtari
from stepwell.wrappers.atari_settings import AtariSettings, atari_games
from support.examples import examples
from support.models.atari_reference import DEFAULTS, settings
from support.programs import run_python
from support.tiers import proofs_but

# A PAL console, a screen of another height, no NOOP, frames inside the reset, black first screens.
GAMES = ["pong", "breakout", "pacman", "air_raid", "backgammon", "surround", "adventure"]


def fused(chosen: AtariSettings) -> SeededResets[Any, Any]:
    return SeededResets(FrameStack(FusedAtari(chosen), chosen.frame_stack or 1, padding="zero"))


def assert_equal(left: Any, right: Any, where: object) -> None:
    """The same results of `reset` or `step`, in value, type and order."""
    np.testing.assert_array_equal(left[0], right[0], err_msg=str(where))
    assert left[1:-1] == right[1:-1], where
    assert list(map(type, left)) == list(map(type, right)), where
    assert list(left[-1].items()) == list(right[-1].items()), where
    assert list(map(type, left[-1].values())) == list(map(type, right[-1].values())), where


def compare(chosen: AtariSettings, steps: int, seed: int = 3, seeds_resets: bool = True) -> int:
    """Play both with the same seed and actions, and return the number of episodes that ended."""
    left: Any = atari_env(chosen)
    right: Any = fused(chosen)
    if not seeds_resets:
        left, right = left.env, right.env
    assert left.observation_space == right.observation_space
    assert left.action_space == right.action_space
    assert left.metadata == right.metadata
    rng, ends = np.random.default_rng(seed), 0
    assert_equal(left.reset(seed=seed), right.reset(seed=seed), "reset")
    for step in range(steps):
        action = int(rng.integers(left.action_space.n))
        result = left.step(action)
        assert_equal(result, right.step(action), (step, chosen))
        if result[2] or result[3]:
            ends += 1
            again = int(rng.integers(50))  # at times with a seed, or options
            reseeded: dict[str, Any] = {"seed": 9}
            more = reseeded if again == 0 else {"options": {"a": 1}} if again == 1 else {}
            assert_equal(left.reset(**more), right.reset(**more), (step, chosen))
    return ends


@pytest.mark.parametrize("game", proofs_but([GAMES[0]], GAMES))
def test_one_class_equals_the_wrappers(game: str) -> None:
    assert compare(settings(game=game, noop_max=30, max_frames=500), 300) >= 2


@pytest.mark.full
@pytest.mark.parametrize("game", atari_games())
def test_one_class_equals_the_wrappers_on_every_game(game: str) -> None:
    compare(settings(game=game, noop_max=30, life_loss="end"), 2500)
    compare(settings(game=game, noop_max=30, max_frames=300, fire_reset=True), 300)


@pytest.mark.proof
def test_one_class_equals_the_wrappers_in_another_mode() -> None:
    assert compare(settings(life_loss="end", clip_rewards=True, mode=12, noop_max=9), 500) >= 4


@pytest.mark.proof
@hypothesis.settings(max_examples=examples(15))
@hypothesis.given(
    chosen=st.builds(
        settings,
        game=st.sampled_from(["breakout", "pacman", "qbert", "space_invaders"]),
        frame_skip=st.integers(1, 6),
        pool=st.sampled_from(["max", "none"]),
        noop_max=st.integers(0, 40),
        fire_reset=st.booleans(),
        size=st.sampled_from(
            [None, (84, 84), (42, 84), (50, 43), (210, 160), (250, 160), (30, 200)]
        ),
        grayscale=st.booleans(),
        frame_stack=st.integers(1, 5),
        sticky=st.sampled_from([0.0, 0.25, 0.9]),
        max_frames=st.integers(1, 600),
        clip_rewards=st.booleans(),
        life_loss=st.sampled_from(["ignore", "end"]),
        full_actions=st.booleans(),
        difficulty=st.sampled_from([None, 0]),
        mode=st.sampled_from([None, 0]),
    ),
    seed=st.integers(0, 2**31 - 1),
    seeds_resets=st.booleans(),
)
def test_one_class_equals_the_wrappers_in_every_setting(
    chosen: AtariSettings, seed: int, seeds_resets: bool
) -> None:
    compare(chosen, 120, seed, seeds_resets)


@pytest.mark.proof
def test_the_emulator_is_read_by_color_numbers_only_where_they_are_known() -> None:
    def kind(game: str, **changes: Any) -> type:
        env = FusedAtari(settings(game=game, **changes))
        env.reset(seed=0)
        for _ in range(3):
            env.reset()
        return type(env._screens)

    direct, by_number = module._Screens, module._NtscScreens
    assert [kind("pong"), kind("breakout"), kind("qbert")] == [by_number] * 3
    assert [kind("pacman"), kind("air_raid"), kind("laser_gates")] == [direct] * 3
    assert kind("pong", size=None) is direct
    assert kind("pong", grayscale=False) is direct


@pytest.mark.proof
def test_wrong_use_is_refused_as_by_the_wrappers() -> None:
    for env in (FusedAtari(settings()), atari_env(settings())):
        for seed in (-1, 2**31):
            with pytest.raises(ValueError, match=f"seed.*2147483647.*{seed}"):
                env.reset(seed=seed)
        env.reset(seed=0)
        with pytest.raises(IndexError):
            env.step(4)


@contextlib.contextmanager
def workers(
    chosen: AtariSettings, num_envs: int, num_workers: int = 2, context: str | None = None
) -> Iterator[AtariWorkers]:
    with contextlib.closing(AtariWorkers(chosen, num_envs, num_workers, context)) as envs:
        yield envs


def sync(chosen: AtariSettings, num_envs: int) -> SyncVectorEnv[Any, Any]:
    return SyncVectorEnv(
        [lambda: atari_env(chosen)] * num_envs, autoreset_mode=AutoresetMode.NEXT_STEP
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"max_frames": 60, "noop_max": 30},
        *(
            pytest.param(changes, marks=pytest.mark.proof)
            for changes in (
                {"frame_stack": 1, "max_frames": 33},
                {"clip_rewards": True, "life_loss": "end", "max_frames": 300, "sticky": 0.0},
                {"grayscale": False, "size": (20, 30), "frame_stack": 3, "max_frames": 44},
            )
        ),
    ],
    ids=str,
)
def test_workers_return_what_the_wrappers_return_in_one_process(changes: dict[str, Any]) -> None:
    chosen = settings(**changes)
    with workers(chosen, 5) as envs:
        model = sync(chosen, 5)
        assert envs.single_observation_space == model.single_observation_space
        assert envs.observation_space == model.observation_space
        rng = np.random.default_rng(0)
        kept: list[tuple[Any, Any]] = []
        mask: dict[str, Any] | None = None
        result: Any
        expected: Any
        for step in range(75):
            if step % 50 == 0:
                if step:
                    mask = {"reset_mask": np.array([True, False, False, True, False])}
                seed: list[int | None] = [step + k for k in range(5)]
                result, expected = (
                    each.reset(seed=seed, options=mask and dict(mask)) for each in (envs, model)
                )
            else:
                actions = rng.integers(4, size=5)
                result, expected = envs.step(actions), model.step(actions)
            for part, other in zip(result[:-1], expected[:-1], strict=True):
                np.testing.assert_array_equal(part, other)
                assert part.dtype == other.dtype
            assert_same_infos(result[-1], expected[-1])
            kept.append((result[0], result[0].copy()))
        for observation, copy in kept:  # owned by the caller
            np.testing.assert_array_equal(observation, copy)


def assert_same_infos(info: dict[str, Any], expected: dict[str, Any]) -> None:
    assert info.keys() == expected.keys()
    for key in expected:
        np.testing.assert_array_equal(info[key], expected[key], err_msg=key)
        assert info[key].dtype == expected[key].dtype, key


@pytest.mark.proof
def test_an_env_that_raises_leaves_the_stacks_of_the_others_right() -> None:
    chosen = settings(sticky=0.0)
    with workers(chosen, 4) as envs:
        model = sync(chosen, 4)
        envs.reset(seed=0)
        model.reset(seed=0)
        for _ in range(6):
            envs.step(np.ones(4, np.int64))
            model.step(np.ones(4, np.int64))
        with pytest.raises(IndexError) as caught:  # env 0 steps, env 1 raises, env 2 and 3 step
            envs.step(np.array([2, 7, 2, 2]))
        assert "env 1" in str(caught.value.__notes__)
        for env, action in ((0, 2), (2, 2), (3, 2)):
            model._env_obs[env] = model.envs[env].step(action)[0]
        mask = {"reset_mask": np.array([False, True, False, False])}
        observation, _ = envs.reset(seed=[5] * 4, options=dict(mask))
        first = model.envs[1].reset(seed=5)[0]
        for env in (0, 2, 3):
            np.testing.assert_array_equal(observation[env], model._env_obs[env])
        np.testing.assert_array_equal(observation[1], first)
        actions = np.array([1, 2, 3, 0])
        observation = envs.step(actions)[0]
        for env in range(4):
            expected = model.envs[env].step(actions[env])[0]
            np.testing.assert_array_equal(observation[env], expected)


@pytest.mark.proof
def test_a_pending_step_counts_when_only_some_envs_are_reset() -> None:
    chosen = settings(sticky=0.0)
    with workers(chosen, 2) as envs:
        model = [atari_env(chosen) for _ in range(2)]
        envs.reset(seed=[3, 3])
        for env in model:
            env.reset(seed=3)
        envs.step(np.ones(2, np.int64))
        envs.send(np.full(2, 2))
        observation, _ = envs.reset(options={"reset_mask": np.array([True, False])})
        for action in (1, 2):
            expected = model[1].step(action)[0]
        np.testing.assert_array_equal(observation[1], expected)
        assert not observation[0, :-1].any()
        np.testing.assert_array_equal(envs.step(np.zeros(2, np.int64))[0][1], model[1].step(0)[0])


@pytest.mark.proof
def test_a_worker_that_is_killed_begins_new_episodes() -> None:
    with workers(settings(), 4) as envs:
        envs.reset(seed=0)
        for _ in range(4):
            envs.step(np.ones(4, np.int64))
        before = envs.step(np.ones(4, np.int64))[0]
        (victim, *_) = sorted(
            (p for p in multiprocessing.active_children() if p.name.startswith("stepwell-worker")),
            key=lambda process: process.name,
        )
        os.kill(victim.pid or 0, signal.SIGKILL)
        observation, *_, info = envs.step(np.ones(4, np.int64))
        assert info["worker_restarted"].tolist() == [True, True, False, False]
        assert not observation[:2, :-1].any()
        np.testing.assert_array_equal(observation[2:, :-1], before[2:, 1:])
        after = envs.step(np.ones(4, np.int64))[0]
        np.testing.assert_array_equal(after[:, :-1], observation[:, 1:])


SCRIPT = """
print("top level", flush=True)
from stepwell.wrappers.atari_python import AtariWorkers
from stepwell.wrappers.atari_settings import AtariSettings

envs = AtariWorkers(AtariSettings(**{settings!r}), 3, 2, {context!r})
print(envs, envs.reset(seed=0)[0].shape, flush=True)
envs.close()
"""


@pytest.mark.proof
@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_a_script_needs_no_main_guard(context: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(settings=DEFAULTS | {"game": "pong"}, context=context))
    done = run_python(script)
    expected = "top level\nAtariWorkers(pong, num_envs=3, num_workers=2) (3, 4, 84, 84)\n"
    assert (done.returncode, done.stdout) == (0, expected), done.stderr


def make_in_a_daemon(pipe: Any) -> None:
    with contextlib.closing(make_atari("pong", 2, backend="python")) as envs:
        found: list[str] = [type(envs).__name__]
    try:
        make_atari("pong", 2, backend="python", num_workers=1)
    except RuntimeError as error:
        found.append(str(error))
    pipe.send(found)


@pytest.mark.proof
def test_a_daemonic_process_steps_the_envs_itself() -> None:
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=make_in_a_daemon, args=(there,), daemon=True, name="trainer")
    process.start()
    assert here.poll(60)
    kind, message = here.recv()
    process.join()
    assert kind == "SyncVectorEnv"
    assert "daemonic process 'trainer'" in message
    assert "num_workers=0" in message


@pytest.mark.proof
@pytest.mark.parametrize("fire_reset", [False, True])
@pytest.mark.parametrize("make", [atari_env, fused])
def test_a_reset_plays_the_given_number_of_noops(make: Any, fire_reset: bool) -> None:
    chosen = settings(noop_max=30, sticky=0.0, fire_reset=fire_reset)
    env, again = make(chosen), make(chosen)
    drawn = env.reset(seed=3)
    noops = drawn[1]["noops"]
    assert_equal(again.reset(seed=3, options={"noops": noops, "other": 1}), drawn, "as drawn")
    for number in (0, np.int64(30), 7):
        info = again.reset(seed=3, options={"noops": number})[1]
        assert info["noops"] == number == info["episode_frame_number"] - fire_reset
        assert type(info["noops"]) is int
        # The number was drawn all the same: the next reset on this generator is as it was.
        env.reset(seed=3)
        assert again.env.reset()[1]["noops"] == env.env.reset()[1]["noops"]


@pytest.mark.proof
@pytest.mark.parametrize("make", [atari_env, fused])
@pytest.mark.parametrize("wrong", [-1, 31, 2.5, True, "3", None])
def test_a_wrong_number_of_noops_changes_nothing(make: Any, wrong: Any) -> None:
    env, again = (make(settings(noop_max=30)) for _ in range(2))
    for one in (env, again):
        one.reset(seed=3)
    with pytest.raises(ValueError, match=rf"noops.*0 to 30.*{wrong!r}"):
        env.reset(options={"noops": wrong})
    assert_equal(env.step(1), again.step(1), "step")


def test_a_given_number_of_noops_begins_a_game_after_a_lost_life() -> None:
    env = fused(settings(noop_max=30, life_loss="end", sticky=0.0))
    env.reset(seed=3)
    rng = np.random.default_rng(0)
    while not env.step(rng.integers(4))[2]:
        pass
    info = env.reset(options={"noops": 2})[1]
    assert (info["noops"], info["lives"], info["episode_frame_number"]) == (2, 5, 2)
    assert "reset_seed" in info
