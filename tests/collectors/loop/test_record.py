"""`sw.record`: what the loop sees, what is refused, and what is kept when something goes wrong."""

from __future__ import annotations

import contextlib
import errno
import gc
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorWrapper
from gymnasium.wrappers import FrameStackObservation
from gymnasium.wrappers.vector import RecordEpisodeStatistics

import stepwell as sw
from stepwell.buffers import SpecMismatch
from stepwell.wrappers import WorkerVectorEnv
from support.envs.fakes import (
    CounterEnv,
    CrashEnv,
    DictEnv,
    FrameEnv,
    InfoEnv,
    LiveBufferEnv,
    RestartVectorEnv,
    SeededEnv,
)

NEXT_STEP, SAME_STEP, DISABLED = AutoresetMode
MODES = pytest.mark.parametrize("mode", list(AutoresetMode))
ZEROS = np.zeros(2, np.int64)


def two(make: Callable[..., Any], mode: AutoresetMode = NEXT_STEP, **options: Any) -> Any:
    return SyncVectorEnv([make, make], autoreset_mode=mode, **options)


def times(replay: sw.SequenceReplayBuffer) -> list[list[int]]:
    """The steps of each episode of `CounterEnv`, by their observations."""
    return [np.asarray(one.observation)[:, 1].tolist() for one in replay.iter_episodes()]


def loop(env: Any, steps: int, seed: int | None = 0) -> None:
    env.reset(seed=seed)
    for _ in range(steps):
        env.step(ZEROS)


# What comes back.


def test_the_kind_of_the_env_stays() -> None:
    replay = sw.SequenceReplayBuffer()
    single = sw.record(gym.make("CartPole-v1"), replay)
    vector = sw.record(two(CounterEnv), sw.SequenceReplayBuffer())
    assert isinstance(single, gym.Wrapper)
    assert isinstance(vector, VectorWrapper)
    assert single.spec == single.env.spec
    assert single.unwrapped is single.env.unwrapped
    assert vector.envs is vector.env.envs  # type: ignore[attr-defined]
    assert not hasattr(vector, "send")
    assert not hasattr(single, "nothing")
    assert hasattr(sw.record(WorkerVectorEnv([CounterEnv] * 2), replay), "recv")


@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP])
def test_infos_are_those_of_the_bare_env(mode: AutoresetMode) -> None:
    bare = two(partial(InfoEnv, 3), mode)
    env = sw.record(two(partial(InfoEnv, 3), mode), sw.SequenceReplayBuffer(), info={"t": -1})
    assert str(env.reset(seed=1)) == str(bare.reset(seed=1))
    for _ in range(8):
        one, other = env.step(ZEROS), bare.step(ZEROS)
        assert str(one) == str(other)
        for key, value in other[4].items():
            assert type(one[4][key]) is type(value)
            assert getattr(one[4][key], "dtype", None) == getattr(value, "dtype", None)


@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_two_defects_of_infos_and_last_observations_are_repaired(kind: Any) -> None:
    """1/3 after 1 is not cast to 0, and last observations are not those of the reset."""
    env = sw.record(
        kind([partial(LiveBufferEnv, 3)] * 2, autoreset_mode=SAME_STEP), sw.SequenceReplayBuffer()
    )
    info = env.reset(seed=0)[1]
    for _ in range(3):
        info = env.step(ZEROS)[4]
    assert [one[0, 0] for one in info["final_obs"]] == [3, 3]
    env.close()

    class Fractions(CounterEnv):
        def step(self, action: Any) -> Any:
            *rest, _ = super().step(action)
            return *rest, {"part": 1 if self.tag == 0 else 1 / 3}

    fractions = kind([partial(Fractions, tag=tag) for tag in range(2)])
    env = sw.record(fractions, replay := sw.SequenceReplayBuffer(), info={"part": -1.0})
    env.reset(seed=0)
    assert env.step(ZEROS)[4]["part"].tolist() == [1, 1 / 3]
    env.close()
    shown = [one.fields["info/part"].tolist() for one in replay.iter_episodes()]
    assert shown == [[-1, 1], [-1, 1 / 3]]


def test_all_kinds_of_spaces_of_a_single_env() -> None:
    replay, bare = sw.SequenceReplayBuffer(), DictEnv(3)
    env = sw.record(DictEnv(3), replay)
    env.action_space.seed(0)
    assert str(env.reset(seed=2)) == str(bare.reset(seed=2))
    actions = []
    for _ in range(3):
        actions.append(env.action_space.sample())
        assert str(env.step(actions[-1])) == str(bare.step(actions[-1]))
    env.close()
    (episode,) = replay.iter_episodes()
    shown: Any = episode.action
    for row, action in enumerate(actions):
        assert shown["button"][row] == action["button"]
        assert np.array_equal(shown["stick"][0][row], action["stick"][0])
        assert np.array_equal(shown["dial"][row], action["dial"])


def test_an_env_may_write_into_its_actions() -> None:
    class Clipping(gym.Env[Any, Any]):
        observation_space = spaces.Box(-1, 1, (1,), np.float32)
        action_space = spaces.Box(-1, 1, (2,), np.float32)

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            return np.zeros(1, np.float32), {}

        def step(self, action: Any) -> Any:
            action *= 0
            return np.zeros(1, np.float32), 0.0, False, False, {}

    replay = sw.SequenceReplayBuffer()
    env = sw.record(Clipping(), replay)
    env.reset()
    env.step(np.ones(2, np.float32))
    env.close()
    (episode,) = replay.iter_episodes()
    assert np.asarray(episode.action)[0].tolist() == [1, 1]


# Fields.


@MODES
def test_info_metadata_and_extras(mode: AutoresetMode) -> None:
    replay = sw.SequenceReplayBuffer()
    env = sw.record(
        two(partial(InfoEnv, 3), mode),
        replay,
        info={"t": -1},
        metadata=lambda env, info: {"env": env, "episode": info["only_reset"]},
    )
    env.reset(seed=4)
    for step in range(9):
        value = np.array([step, -step], np.float32)
        env.log_extras(value=value)
        env.log_extras(log_prob=[0.5, step])
        value[...] = 99  # it was copied
        _, _, terminated, truncated, _ = env.step(ZEROS)
        if mode is DISABLED and (terminated | truncated).any():
            env.reset(options={"reset_mask": terminated | truncated})
    env.close()
    assert set(replay.spec.names) >= {"info/t", "extra/value", "extra/log_prob"}
    episodes = list(replay.iter_episodes())
    for episode in episodes:
        assert episode.metadata["env"] == episode.stream
        assert episode.metadata["episode"] == int(np.asarray(episode.observation)[0, 0])
        shown = np.asarray(episode.observation)[:, 1]
        known = episode.fields["info/t"] >= 0
        assert episode.fields["info/t"][known].tolist() == shown[known].tolist()
        assert known.sum() == len(shown) - 1  # an info of a reset has none
        values = episode.fields["extra/value"]
        assert (np.diff(values[:-1]) == (1, -1)[episode.stream]).all()
    assert [one.metadata.get("seed") for one in episodes][:2] == [4, 5]


def test_extras_of_a_single_env_have_no_axis() -> None:
    replay = sw.SequenceReplayBuffer()
    env = sw.record(CounterEnv(), replay, metadata={"task": "count"})
    env.reset(seed=0)
    for step in range(5):
        env.log_extras(value=np.float32(step), pair=(step, 1.0))
        env.step(np.int64(0))
    env.close()
    (episode,) = replay.iter_episodes()
    assert episode.fields["extra/value"].tolist() == [0, 1, 2, 3, 4, 0]
    assert episode.fields["extra/pair"][1].tolist() == [1, 1]
    assert episode.metadata["task"] == "count"


def test_extras_stay_what_the_first_step_made_them() -> None:
    env = sw.record(two(CounterEnv), sw.SequenceReplayBuffer())
    env.reset()
    with pytest.raises(ValueError, match=r"extra 'value' of shape \(3,\).*\(2, \.\.\.\)"):
        env.log_extras(value=np.zeros(3))
    env.log_extras(value=np.zeros(2))
    env.step(ZEROS)
    with pytest.raises(ValueError, match=r"extras \[\], expected \['value'\]"):
        env.step(ZEROS)
    env.log_extras(value=np.zeros(2))
    env.step(ZEROS)
    env.log_extras(value=np.zeros((2, 3)))
    with pytest.raises(ValueError, match=r"extra 'value'.*\(2, 3\).*expected \(2,\)"):
        env.step(ZEROS)
    env.reset()  # forgets them
    env.log_extras(value=np.zeros(2))
    with pytest.raises(ValueError, match=r"extras \['advantage'\], expected \['value'\]"):
        env.log_extras(advantage=np.zeros(2))
    env.step(ZEROS)  # the refused one is not noted
    env.close()


@pytest.mark.parametrize("copy", [True, False])
def test_frame_stacks_are_stored_once(copy: bool) -> None:
    makers = [lambda: FrameStackObservation(FrameEnv(6), 3)] * 2
    replay = sw.SequenceReplayBuffer(seed=0)
    env = sw.record(SyncVectorEnv(makers, copy=copy), replay)
    observation, _ = env.reset(seed=0)
    stacks = {one.tobytes() for one in observation}
    for _ in range(40):
        observation = env.step(ZEROS)[0]
        stacks |= {one.tobytes() for one in observation}
        if copy:
            observation[...] = 0  # the stack may be compared later
    env.close()
    assert replay.spec["observation"].stack == 3
    batch = replay.sample_sequences(64, 2, stack=True)
    assert all(
        one.tobytes() in stacks for one in np.asarray(batch.observation).reshape(-1, 3, 4, 4)
    )


def test_a_restarted_worker_cuts_its_episode() -> None:
    replay = sw.SequenceReplayBuffer()
    env = sw.record(RestartVectorEnv([partial(CounterEnv, 9)] * 2, at_step=4), replay)
    loop(env, 7)
    env.close()
    assert sorted(times(replay)) == [[0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3, 4, 5, 6, 7]]


# Wrappers, above and below.


def test_wrappers_of_the_user() -> None:
    class Doubled(VectorWrapper[Any, Any, Any, Any, Any]):
        def step(self, actions: Any) -> Any:
            observation, reward, *rest = self.env.step(actions)
            return observation, 2 * reward, *rest

    replay = sw.SequenceReplayBuffer()
    env: Any = RecordEpisodeStatistics(sw.record(Doubled(two(partial(CounterEnv, 3))), replay))
    info = env.reset(seed=0)[1]
    for _ in range(3):
        info = env.step(ZEROS)[4]
    env.close()
    assert info["episode"]["r"].tolist() == [12, 12]
    assert [one.reward.tolist() for one in replay.iter_episodes()] == [[0, 2, 4, 6]] * 2


# Steps in two halves.


def test_step_async_and_step_wait() -> None:
    replay = sw.SequenceReplayBuffer()
    env: Any = sw.record(AsyncVectorEnv([partial(CounterEnv, 3)] * 2), replay)
    env.reset_async(seed=3)
    env.reset_wait()
    for _ in range(4):
        env.step_async(ZEROS)
        env.step_wait(timeout=60)
    env.step_async(ZEROS)
    with pytest.raises(gym.error.AlreadyPendingCallError):
        env.env.step_async(ZEROS)
    env.step_wait()
    env.close(terminate=True)
    assert times(replay) == [[0, 1, 2, 3]] * 2 + [[0, 1]] * 2
    assert [one.metadata.get("seed") for one in replay.iter_episodes()] == [3, 4, None, None]


def test_send_and_recv() -> None:
    replay = sw.SequenceReplayBuffer()
    env: Any = sw.record(WorkerVectorEnv([partial(CounterEnv, 3)] * 2), replay)
    env.reset(seed=3)
    for _ in range(5):
        env.send(ZEROS)
        env.recv()
    with pytest.raises(gym.error.NoAsyncCallError):
        env.recv()
    env.reset(seed=5)
    env.step(ZEROS)
    env.close()
    assert times(replay) == [[0, 1, 2, 3]] * 2 + [[0, 1]] * 4


# Refusals, before anything has changed.


def test_arguments_are_checked() -> None:
    replay = sw.SequenceReplayBuffer()
    wrong: Any = object()
    with pytest.raises(TypeError, match=r"env: .*Env or VectorEnv, got object"):
        sw.record(wrong, replay)
    for wrong, cure in [("CartPole-v1", "make"), ([CounterEnv()], "each"), (CounterEnv, "call it")]:
        with pytest.raises(TypeError, match=rf"env: .*got {type(wrong).__name__}; .*{cure}"):
            sw.record(wrong, replay)
    wrong = object()
    with pytest.raises(ValueError, match=r"frame_stack: .*'4'"):
        sw.record(CounterEnv(), replay, frame_stack="4")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"replay: .*path, got object"):
        sw.record(CounterEnv(), wrong)
    with pytest.raises(ValueError, match=r"flush_seconds: .*-1"):
        sw.record(CounterEnv(), replay, flush_seconds=-1)
    with pytest.raises(TypeError, match=r"info field 'lives'.*'none'"):
        sw.record(CounterEnv(), replay, info={"lives": "none"})
    with pytest.raises(ValueError, match=r"metadata: .*'seed'"):
        sw.record(CounterEnv(), replay, metadata={"seed": 3})
    envs = two(CounterEnv)
    envs.metadata = {}
    envs.autoreset_mode = None
    with pytest.raises(ValueError, match="autoreset_mode"):
        sw.record(envs, replay)


def test_actions_are_checked_before_the_env_gets_them() -> None:
    replay = sw.SequenceReplayBuffer()
    env = sw.record(two(CounterEnv), replay)
    env.reset(seed=0)
    env.step(ZEROS)
    for actions, message in [
        (np.zeros(3, np.int64), r"loop gave action of shape \(3,\).*\(2,\)"),
        (np.zeros(2), "dtype float64, expected .* int64"),
        (np.array([0, 7]), r"action 7 at index \[1\].*Discrete\(4\)"),
    ]:
        with pytest.raises(ValueError, match=message):
            env.step(actions)
    env.step(np.zeros(2, np.int32))  # a lossless cast
    env.step([0, 1])
    env.close()
    assert times(replay) == [[0, 1, 2, 3]] * 2


def test_values_of_a_single_env_are_told_without_an_axis() -> None:
    env = sw.record(CounterEnv(), sw.SequenceReplayBuffer())
    env.reset()
    for action, message in [
        (0.5, r"action of shape \(\) and dtype float64, expected \(\) and int64 for Discrete"),
        (np.zeros(1, np.int64), r"shape \(1,\) and dtype int64, expected \(\) and int64"),
        (7, r"action 7, expected one of Discrete\(4\)"),
    ]:
        with pytest.raises(ValueError, match=message):
            env.step(action)
    with pytest.raises(ValueError, match=r"extra 'value' of shape \(\).*a number"):
        env.log_extras(value="much")
    env.close()


@MODES
def test_a_step_needs_a_reset(mode: AutoresetMode) -> None:
    env = sw.record(two(partial(CounterEnv, 2), mode), replay := sw.SequenceReplayBuffer())
    with pytest.raises(ResetNeeded, match="never reset"):
        env.step(ZEROS)
    with pytest.raises(ResetNeeded, match="never reset"):
        env.reset(options={"reset_mask": np.array([True, False])})
    env.reset(options={"reset_mask": np.array([True, True])})
    env.step(ZEROS)
    env.step(ZEROS)
    if mode is DISABLED:
        with pytest.raises(ResetNeeded, match=r"\[0, 1\] have ended"):
            env.step(ZEROS)
        env.reset(options={"reset_mask": np.array([True, False])})
        with pytest.raises(ResetNeeded, match=r"\[1\] have ended"):
            env.step(ZEROS)
        env.reset()
    env.step(ZEROS)
    env.close()
    assert times(replay)[:2] == [[0, 1, 2]] * 2


def test_a_single_env_needs_a_reset_after_an_end() -> None:
    env = sw.record(CounterEnv(1), replay := sw.SequenceReplayBuffer())
    env.reset()
    env.step(np.int64(0))
    with pytest.raises(ResetNeeded, match=r"\[0\] have ended"):
        env.step(np.int64(0))
    env.reset()
    env.step(np.int64(0))
    env.close()
    assert times(replay) == [[0, 1], [0, 1]]


def test_a_reset_that_gymnasium_would_mix_up_is_refused() -> None:
    env = sw.record(
        AsyncVectorEnv([partial(CounterEnv, 1)] * 2, shared_memory=False), sw.SequenceReplayBuffer()
    )
    env.reset()
    env.step(ZEROS)
    with pytest.raises(ValueError, match="shared_memory=True"):
        env.reset()
    env.step(ZEROS)  # nothing has changed
    env.close()


@pytest.mark.parametrize("is_stored", [True, False])
def test_rows_of_other_spaces_are_refused_before_the_env_is_stepped(is_stored: bool) -> None:
    """Also where the rows of the first env still wait."""
    replay, other = sw.SequenceReplayBuffer(), SeededEnv()
    first, second = sw.record(CounterEnv(), replay), sw.record(other, replay)
    first.reset()
    first.step(np.int64(0))
    if is_stored:
        first.close()
    second.reset(seed=0)
    with pytest.raises(SpecMismatch, match="other data"):
        second.step(np.int64(0))
    assert other.t == 0
    second.close()
    first.close()
    assert replay.steps == 1


# Errors.


class InterruptedEnv(CounterEnv):
    """Ctrl-C comes in its fourth step."""

    def step(self, action: Any) -> Any:
        if self.t == 3:
            signal.raise_signal(signal.SIGINT)
        return super().step(action)


@pytest.mark.parametrize(
    ("make", "error"),
    [(partial(CrashEnv, 4), ZeroDivisionError), (InterruptedEnv, KeyboardInterrupt)],
)
def test_after_an_error_of_the_env_or_ctrl_c_in_it_whole_rows_are_kept(
    make: Any, error: type[BaseException]
) -> None:
    replay = sw.SequenceReplayBuffer()
    env = sw.record(SyncVectorEnv([make, CounterEnv]), replay)
    env.reset(seed=0)
    with pytest.raises(error) as caught:  # noqa: PT012
        for _ in range(9):
            env.step(ZEROS)
    assert any("kept: 6 steps" in note for note in caught.value.__notes__)
    assert replay.steps == 6
    with pytest.raises(ResetNeeded, match="newest step or reset failed"):
        env.step(ZEROS)
    env.reset(seed=2)
    env.step(ZEROS)
    env.close()
    assert times(replay) == [[0, 1, 2, 3]] * 2 + [[0, 1]] * 2
    assert not any(np.asarray(one.action)[-1] for one in replay.iter_episodes())


def test_an_error_of_a_reset_needs_another_one() -> None:
    class Stubborn(CounterEnv):
        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            if seed == 13:
                raise OSError("no luck")
            return super().reset(seed=seed)

    env = sw.record(Stubborn(), replay := sw.SequenceReplayBuffer())
    with pytest.raises(OSError, match="no luck"):
        env.reset(seed=13)
    with pytest.raises(ResetNeeded):
        env.step(np.int64(0))
    env.reset(seed=1)
    env.step(np.int64(0))
    with pytest.raises(OSError, match="no luck"):
        env.reset(seed=13)
    with pytest.raises(ResetNeeded):
        env.step(np.int64(0))
    env.close()
    assert times(replay) == [[0, 1]]


def test_a_full_disk_is_told_and_the_rows_before_are_kept(tmp_path: Path) -> None:
    replay = sw.SequenceReplayBuffer(tmp_path / "store")
    env = sw.record(two(partial(CounterEnv, 9)), replay, flush_seconds=0)
    loop(env, 5)
    full = OSError(errno.ENOSPC, "No space left on device")
    with (
        mock.patch.object(type(replay.storage), "add", side_effect=full),
        pytest.raises(OSError, match="No space") as caught,
    ):
        env.step(ZEROS)
    assert any("kept: " in note for note in caught.value.__notes__)
    kept = replay.steps
    assert 8 <= kept <= 10
    loop(env, 3, seed=5)
    env.close()
    assert replay.steps == kept + 6
    with sw.SequenceReplayBuffer.open(tmp_path / "store", read_only=True) as stored:
        assert stored.digest() == replay.digest()
        ends = [one[-1] for one in times(stored)]
        assert ends[2:] == [3, 3]
    replay.close()


# Ctrl-C.


@pytest.mark.proof
@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP])
def test_ctrl_c_at_any_line_never_leaves_half_a_row(mode: AutoresetMode) -> None:
    """It comes at the n-th line of our code, for every n of a few steps and a reset."""
    lines, number, seen_last = 0, 0, False
    here = str(Path(sw.__file__).parent)

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal lines
        if here not in frame.f_code.co_filename or "row_guard" in frame.f_code.co_filename:
            return None
        if event == "line":
            lines += 1
            if lines == number:
                signal.raise_signal(signal.SIGINT)
        return trace

    kept = set[int]()
    while not seen_last:
        number += 7
        replay = sw.SequenceReplayBuffer()
        env = sw.record(two(partial(CounterEnv, 2), mode), replay)
        env.reset(seed=0)
        env.step(ZEROS)
        lines = 0
        try:
            sys.settrace(trace)
            for _ in range(3):
                env.step(ZEROS)
            env.reset(seed=4)
            env.step(ZEROS)
            seen_last = True
        except KeyboardInterrupt:
            sys.settrace(None)
        finally:
            sys.settrace(None)
        if not seen_last:
            with contextlib.suppress(ResetNeeded):
                env.step(ZEROS)
        before = [one.episode for one in env.unwrapped.envs]
        env.reset(seed=9)
        env.step(ZEROS)
        env.step(ZEROS)
        env.close()
        kept.add(replay.steps)
        for stream in range(2):
            episodes = [one for one in replay.iter_episodes() if one.stream == stream]
            for one in episodes:
                shown = np.asarray(one.observation)
                assert shown[:, 1].tolist() == list(range(one.rows))
                assert len(set(shown[:, 0].tolist())) == 1
                assert one.reward.tolist() == shown[:, 1].tolist()
                assert bool(one.terminated[-1]) == (one.rows == 3)
            assert int(np.asarray(episodes[-1].observation)[0, 0]) > before[stream]
            assert times_of(episodes[-1]) == [0, 1, 2]
    assert len(kept) >= 3


def times_of(episode: Any) -> list[int]:
    found: list[int] = np.asarray(episode.observation)[:, 1].tolist()
    return found


# The end.


def test_a_closed_env_refuses_and_closes_twice() -> None:
    env = sw.record(two(CounterEnv), replay := sw.SequenceReplayBuffer())
    loop(env, 3)
    env.close()
    env.close()
    assert replay.steps == 6
    for call in (lambda: env.step(ZEROS), env.reset):
        with pytest.raises(ClosedEnvironmentError, match="closed"):
            call()
    env.flush()


def test_a_path_is_opened_and_closed_with_the_env(tmp_path: Path) -> None:
    for session in range(2):
        env = sw.record(CounterEnv(3), tmp_path / "store")
        env.reset(seed=session)
        for _ in range(2):
            env.step(np.int64(0))
        env.close()
        with sw.SequenceReplayBuffer.open(tmp_path / "store") as replay:  # the lock is free
            assert replay.steps == 2 * (session + 1)
            found = [(one.metadata["session"], one.stream) for one in replay.iter_episodes()]
            assert found == [(k, 0) for k in range(session + 1)]
            assert len(replay.sessions) == session + 1
            assert replay.sessions[-1]["policy"] == "the caller's loop"


@pytest.mark.parametrize("how", ["dropped", "in a circle"])
def test_a_dropped_env_stores_its_rows(how: str) -> None:
    replay = sw.SequenceReplayBuffer()
    env: Any = sw.record(two(CounterEnv), replay)
    loop(env, 3)
    if how == "in a circle":
        env.itself = env
    assert replay.steps < 6
    del env
    gc.collect()
    assert replay.steps == 6


def test_a_closed_replay_has_all_rows(tmp_path: Path) -> None:
    replay = sw.SequenceReplayBuffer(tmp_path / "store")
    env = sw.record(two(CounterEnv), replay)
    loop(env, 3)
    replay.close()
    with pytest.raises(ClosedEnvironmentError, match="replay is closed"):
        env.step(ZEROS)
    env.close()
    with sw.SequenceReplayBuffer.open(tmp_path / "store", read_only=True) as stored:
        assert stored.steps == 6


def test_a_forked_process_does_not_store_the_rows_again(tmp_path: Path) -> None:
    """The workers of vector envs that are made later have copies of the recorded env."""
    replay = sw.SequenceReplayBuffer(tmp_path / "store")
    env = sw.record(two(CounterEnv), replay)
    loop(env, 3)
    others = AsyncVectorEnv([CounterEnv] * 2)
    others.reset()
    others.close()
    loop(env, 3)
    env.close()
    assert times(replay) == [[0, 1, 2, 3]] * 4
    replay.close()


# Several writers.


def test_an_episode_that_was_not_stored_leaves_its_number_to_others() -> None:
    replay = sw.SequenceReplayBuffer()
    first, second = (sw.record(two(partial(CounterEnv, 9)), replay) for _ in range(2))
    loop(first, 3)
    full = OSError(errno.ENOSPC, "No space left on device")
    with (
        mock.patch.object(replay.storage, "add", side_effect=full),
        pytest.raises(OSError, match="No space"),
    ):
        first.flush()
    loop(second, 2)
    second.flush()
    for _ in range(4):
        first.step(ZEROS)
    for env in (first, second):
        env.close()
    # The rows that could not be stored are lost, and those after them are an episode.
    assert [one.steps for one in replay.iter_episodes()] == [2, 2, 4, 4]
    assert [one.id for one in replay.iter_episodes()] == [0, 1, 2, 3]
    assert times(replay) == [[0, 1, 2]] * 2 + [[3, 4, 5, 6, 7]] * 2


def test_a_collector_beside_a_recorded_env() -> None:
    replay = sw.SequenceReplayBuffer()
    env = sw.record(two(partial(CounterEnv, 9)), replay, flush_seconds=0)
    loop(env, 3)
    with sw.Collector(two(partial(CounterEnv, 4)), sw.RandomPolicy(), replay, seed=0) as collector:
        for _ in range(2):
            collector.collect(steps=6)
            env.step(ZEROS)
        env.step(ZEROS)
    env.step(ZEROS)
    env.close()
    found: dict[Any, list[list[int]]] = {}
    for one in replay.iter_episodes():
        found.setdefault((one.metadata["session"], one.stream), []).append(times_of(one))
    assert found[0, 0] == found[0, 1] == [list(range(8))]
    assert found[1, 2] == found[1, 3] == [[0, 1, 2, 3, 4], [0, 1, 2]]
    assert len(found) == 4


def test_a_session_after_another_one_has_its_streams_again() -> None:
    replay = sw.SequenceReplayBuffer()
    with sw.Collector(two(partial(CounterEnv, 4)), sw.RandomPolicy(), replay, seed=0) as collector:
        collector.collect(steps=6)
    env = sw.record(two(partial(CounterEnv, 4)), replay)
    loop(env, 3)
    env.close()
    with sw.Collector(two(partial(CounterEnv, 4)), sw.RandomPolicy(), replay, seed=0) as collector:
        collector.collect(steps=6)
    assert {one.stream for one in replay.iter_episodes()} == {0, 1}
    assert [one.metadata["session"] for one in replay.iter_episodes()] == [0, 0, 1, 1, 2, 2]


# Proofs.


def test_resets_with_options_are_not_taken_for_what_can_be_played_again() -> None:
    """CartPole takes bounds of the first state."""
    replay = sw.SequenceReplayBuffer()
    env = sw.record(gym.make("CartPole-v1"), replay)
    for seed, options in [(1, None), (2, {"low": -0.2, "high": 0.2}), (None, None), (4, None)]:
        env.reset(seed=seed, options=options)
        while not any(env.step(np.int64(0))[2:4]):
            pass
    env.reset(options={"low": -0.2, "high": 0.2})
    env.step(np.int64(0))
    env.close()
    proofs = sorted(sw.resimulate(replay), key=lambda proof: proof.episode)
    assert [proof.reason for proof in proofs] == [
        "equal",
        "unreachable",
        "unreachable",
        "equal",
        "unreachable",
    ]


@pytest.mark.parametrize("kind", ["make_vec", "make_atari", "seeded", "bare"])
def test_single_envs_and_vector_envs_are_proved(kind: str) -> None:
    replay = sw.SequenceReplayBuffer()
    if kind.startswith("make"):
        envs = sw.make_vec("CartPole-v1", 2, num_workers=0)
        env: Any = sw.record(sw.make_atari("pong", 2) if kind == "make_atari" else envs, replay)
        loop(env, 60, seed=3)
        loop(env, 40, seed=12)
    else:
        single = gym.make("CartPole-v1")
        env = sw.record(sw.SeededResets(single) if kind == "seeded" else single, replay)
        env.reset(seed=3)
        for step in range(100):
            if any(env.step(np.int64(step % 3 == 0))[2:4]):
                env.reset()
        env.reset()  # cuts an episode, after which only seeded resets can be played again
        for _ in range(3):
            env.step(np.int64(1))
    env.close()
    proofs = sorted(sw.resimulate(replay), key=lambda proof: proof.episode)
    reasons = [proof.reason for proof in proofs]
    assert len(reasons) >= 4
    assert reasons[:-1] == ["equal"] * (len(reasons) - 1)
    assert reasons[-1] == ("unreachable" if kind == "bare" else "equal")


def test_threads_share_a_new_folder() -> None:
    gate, errors, seen = threading.Barrier(3), list[BaseException](), list[bytes]()

    def loop(seed: int, replay: sw.SequenceReplayBuffer) -> None:
        try:
            env = sw.record(gym.make("CartPole-v1"), replay, flush_seconds=1e-6)
            seen.append(env.reset(seed=seed)[0].tobytes())
            gate.wait()
            for step in range(60):
                observation, _, ended, _, _ = env.step(step // 2 % 2)
                seen.append(observation.tobytes())
                if ended:
                    seen.append(env.reset()[0].tobytes())
            env.close()
        except BaseException as error:
            errors.append(error)

    with sw.SequenceReplayBuffer("a", seed=0) as replay:
        threads = [threading.Thread(target=loop, args=(seed, replay)) for seed in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert replay.steps == 180
        episodes = list(replay.iter_episodes())
        assert {one.metadata["session"] for one in episodes} == {0, 1, 2}
        assert sorted(row.tobytes() for one in episodes for row in one.observation) == sorted(seen)
