"""Policies with a state: what they are given, what is kept of it, what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import stepwell as sw
from support.envs.atari_games import atari
from support.envs.fakes import CounterEnv, counters
from support.models.model import copied, same
from support.models.rollout_model import leaves, rows_in

NEXT_STEP, SAME_STEP = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP
ALL_MODES = pytest.mark.parametrize("mode", list(AutoresetMode))


class Counting:
    """Counts the rows of an episode in its state, from `start`; returns the count as an extra."""

    def __init__(self, start: int = 0, *, extras: bool = True) -> None:
        self.start, self.extras = start, extras
        self.seen: list[tuple[Any, Any, Any]] = []
        self.asked: list[tuple[Any, Any]] = []

    def initial_state(self, num_envs: int) -> Any:
        return {"count": np.full(num_envs, self.start), "pair": np.zeros((num_envs, 2), np.float32)}

    def __call__(self, observation: Any, is_first: Any, state: Any) -> Any:
        self.seen.append((copied(observation), copied(is_first), copied(state)))
        after = {"count": state["count"] + 1, "pair": state["pair"] + observation[:, 1:2]}
        after["pair"] = after["pair"].astype(np.float32)
        action = np.zeros(len(is_first), np.int64)
        return (action, after, {"count": state["count"]}) if self.extras else (action, after)

    def value(self, observation: Any, state: Any) -> Any:
        self.asked.append((copied(observation), copied(state)))
        return state["count"].astype(np.float64)


def times_of(rollout: sw.Rollout) -> np.ndarray:
    return np.asarray(rollout.observation)[..., 1]


def counts_in(rollout: sw.Rollout) -> np.ndarray:
    state: Any = rollout.state
    return np.asarray(state["count"])


# What the policy is given


@pytest.mark.proof
@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP])
def test_16_rows_of_a_partial_batch_come_with_the_states_of_their_envs(mode: Any) -> None:
    knobs = {"batch_size": 2, "num_threads": 2, "max_num_frames_per_episode": 20, "noop_max": 5}
    envs = atari(4, mode, stack_num=1, **knobs)
    sizes: list[int] = []

    class Policy(Counting):
        def __call__(self, observation: Any, is_first: Any, state: Any) -> Any:
            sizes.append(rows_in(state))
            assert (state["count"][is_first] == 3).all()
            count = np.asarray(state["count"])
            return count * 0, {**state, "count": count + 1}, {"count": count}

    with sw.Collector(envs, Policy(3), seed=0) as collector:
        rollouts = [collector.rollout(steps) for steps in (17, 40)]
    assert set(sizes) == {2}
    firsts = np.concatenate([rollout.is_first for rollout in rollouts])
    counts = np.concatenate([counts_in(rollout) for rollout in rollouts])
    for env in range(4):
        expected, count = [], 3
        for is_first in firsts[:, env]:
            count = 3 if is_first else count + 1
            expected.append(count)
        assert counts[:, env].tolist() == expected
    assert firsts[1:].any()


class InPlace:
    """Writes into the state that it is given."""

    def initial_state(self, num_envs: int) -> Any:
        return {"count": np.full(num_envs, 2)}

    def __call__(self, observation: Any, is_first: Any, state: Any) -> Any:
        count = state["count"].copy()
        state["count"] += 1
        return np.zeros(len(is_first), np.int64), state, {"count": count}

    def value(self, observation: Any, state: Any) -> Any:
        return np.asarray(state["count"], np.float32)


class Thrifty(InPlace):
    """Returns the same arrays at every call, and as the initial state."""

    buffers = {n: np.zeros((3, n), np.int64) for n in (1, 2)}  # noqa: RUF012
    initial = np.full(3, 2)

    def initial_state(self, num_envs: int) -> Any:
        return {"count": self.initial[:num_envs]}

    def __call__(self, observation: Any, is_first: Any, state: Any) -> Any:
        _, after, extras = super().__call__(observation, is_first, state)
        buffer = self.buffers[len(is_first)]
        buffer[:] = observation[:, 1] % 4, after["count"], extras["count"]
        return buffer[0], {"count": buffer[1]}, {"count": buffer[2]}


@ALL_MODES
@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("policy", [InPlace, Thrifty])
def test_a_policy_may_write_into_states(policy: Any, mode: AutoresetMode, grouped: bool) -> None:
    groups = [counters([3, 1], 5, mode=mode), counters(2, mode=mode, first=2)]
    replay = sw.SequenceReplayBuffer()
    with sw.Collector(
        groups if grouped else groups[0], policy(), replay, seed=0, store_state=True
    ) as collector:
        rollouts = [collector.rollout(steps) for steps in (5, 1, 8)]
    for rollout in rollouts:
        assert same(counts_in(rollout), times_of(rollout) + 2)
        assert same(rollout.extras["count"], times_of(rollout) + 2)
        assert same(rollout.extras["state/count"], times_of(rollout) + 2)
        assert same(
            rollout.action, times_of(rollout) % 4 if policy is Thrifty else 0 * times_of(rollout)
        )
        ends: Any = rollout.bootstrap
        assert same(ends.state["count"], np.asarray(ends.observation)[:, 1] + 2)
        assert same(ends.value, ends.state["count"])
    for group in groups:
        group.close()


# What is kept


@ALL_MODES
def test_a_stored_state_is_that_before_the_row(mode: AutoresetMode) -> None:
    replay = sw.SequenceReplayBuffer()
    with sw.Collector(
        counters([3, 1, 4], 5, mode=mode), Counting(6), replay, seed=0, store_state=True
    ) as collector:
        collector.rollout(9)
        collector.collect(steps=11)
    assert {field.name for field in replay.spec.fields} >= {
        "extra/state/count",
        "extra/state/pair",
        "extra/count",
    }
    for episode in replay.iter_episodes():
        counts = episode.fields["extra/state/count"][: episode.steps]
        assert counts.tolist() == list(range(6, 6 + episode.steps))
        pairs = episode.fields["extra/state/pair"]
        assert pairs.dtype == np.float32
        assert pairs.shape[1:] == (2,)


def test_without_extras_a_pair_of_action_and_state_will_do() -> None:
    with sw.Collector(counters(3), Counting(extras=False), seed=0) as collector:
        rollout = collector.rollout(7)
    assert dict(rollout.extras) == {}
    assert same(counts_in(rollout), times_of(rollout))


@pytest.mark.parametrize(
    ("shape", "names"),
    [
        ("tuple", ["extra/state/0", "extra/state/1"]),
        ("nested", ["extra/state/a/0", "extra/state/a/1/b"]),
        ("array", ["extra/state"]),
    ],
)
def test_states_may_be_trees_of_any_kind(shape: str, names: list[str]) -> None:
    class Shaped:
        def initial_state(self, num_envs: int) -> Any:
            count = np.zeros((num_envs, 3), np.int16)
            return {
                "tuple": (count, np.ones((num_envs, 2))),
                "nested": {"a": (count, {"b": np.ones((num_envs, 2))})},
                "array": count,
            }[shape]

        def __call__(self, observation: Any, is_first: Any, state: Any) -> Any:
            def up(part: Any) -> Any:
                if isinstance(part, dict):
                    return {key: up(value) for key, value in part.items()}
                one = np.ones((), np.int16)
                return tuple(map(up, part)) if isinstance(part, tuple) else part + one

            return np.zeros(len(is_first), np.int64), up(state)

    replay = sw.SequenceReplayBuffer()
    envs = counters(3, [1, 4])
    with sw.Collector(envs, Shaped(), replay, seed=0, store_state=True) as collector:
        rollout = collector.rollout(11)
    first, *rest = leaves(rollout.state)
    assert first.dtype == np.int16
    assert same(first[..., 0], times_of(rollout))
    for other in rest:
        assert same(other[..., 0], times_of(rollout) + 1)
    structure: Any = rollout.state
    assert isinstance(structure, {"tuple": tuple, "nested": dict, "array": np.ndarray}[shape])
    assert [field.name for field in replay.spec.fields if "state" in field.name] == names
    for episode in replay.iter_episodes():
        stored = episode.fields[names[0]][: episode.steps]
        assert stored[:, 0].tolist() == list(range(episode.steps))
        assert (stored.dtype.name, stored.shape[1:]) == ("int16", (3,))


def test_a_tuple_action_is_not_taken_for_an_action_with_its_state() -> None:
    """Both are pairs: they are distinguished by the types of their parts."""

    class Pair(CounterEnv):
        def __init__(self) -> None:
            super().__init__(4)
            self.action_space = spaces.Tuple((spaces.Discrete(3), spaces.Discrete(5)))  # type: ignore[assignment]

        def step(self, action: Any) -> Any:
            observation, _, *rest = super().step(0)  # type: ignore[arg-type]
            return observation, float(action[0] * 10 + action[1]), *rest

    class Policy:
        def initial_state(self, num_envs: int) -> Any:
            return (np.zeros(num_envs, np.int64), np.zeros(num_envs, np.int64))

        def __call__(self, observation: Any, is_first: Any, state: Any) -> Any:
            time = observation[:, 1]
            return (time % 3, time % 5), (state[0] + 1, state[1] + 2)

    with sw.Collector(SyncVectorEnv([Pair] * 2), Policy(), seed=0) as collector:
        rollout = collector.rollout(9)
    action: Any = rollout.action
    assert same(action, (times_of(rollout) % 3, times_of(rollout) % 5))
    rewards = action[0] * 10 + action[1]
    assert same(rollout.reward[rollout.mask], rewards[rollout.mask])
    state: Any = rollout.state
    assert same(state, (times_of(rollout), 2 * times_of(rollout)))


# What is refused


class Returning:
    """Begins with the state [N, 2] float32, and returns a given result."""

    def __init__(self, result: Any, initial: Any = None) -> None:
        self.result, self.initial = result, initial

    def initial_state(self, num_envs: int) -> Any:
        if self.initial is not None:
            return self.initial(num_envs)
        return {"h": np.zeros((num_envs, 2), np.float32)}

    def __call__(self, observation: Any, is_first: Any, state: Any) -> Any:
        return self.result(np.zeros(len(is_first), np.int64), state)


RETURNED = "policy (with a state )?returned"
WRONG_RESULTS: dict[str, tuple[Any, str]] = {
    "an action alone": (lambda a, state: a, RETURNED),
    "a tuple of four": (lambda a, state: (a, state, {}, 1), RETURNED),
    "extras that are no dict": (lambda a, state: (a, state, 3), RETURNED),
    "extras in the place of the state": (lambda a, state: (a, {"x": a}), RETURNED + ".*state"),
    "a part of the state": (lambda a, state: (a, state["h"]), RETURNED + ".*state"),
    "a part too many": (lambda a, state: (a, {**state, "c": a}), RETURNED + ".*state"),
    "None": (lambda a, state: (a, None), RETURNED + ".*state"),
    "another shape": (
        lambda a, state: (a, {"h": state["h"][:, :1]}),
        RETURNED + r".*state/h .*\(2, 1\)",
    ),
    "float64": (
        lambda a, state: (a, {"h": state["h"].astype(float)}),
        RETURNED + ".*state/h .*float64",
    ),
    "text": (lambda a, state: (a, {"h": "no"}), RETURNED + ".*state"),
}


@pytest.mark.parametrize(("result", "message"), WRONG_RESULTS.values(), ids=WRONG_RESULTS)
def test_a_wrong_result_of_a_recurrent_policy_is_one_clear_sentence(
    result: Any, message: str
) -> None:
    replay = sw.SequenceReplayBuffer()
    with sw.Collector(counters(3, 3), Returning(result), replay, seed=0) as collector:
        with pytest.raises((ValueError, TypeError), match=f"^{message}.*expected") as caught:
            collector.rollout(4)
        assert "\n" not in str(caught.value)
        assert caught.value.__cause__ is None
    assert replay.steps == 0


WRONG_STATES: dict[str, tuple[Any, str]] = {
    "too many envs": (lambda n: np.zeros(n + 1), r"state .*\(3,\).*\(2, \.\.\.\)"),
    "a part without envs": (
        lambda n: {"h": np.zeros((n, 2)), "c": np.zeros(1)},
        r"state/c .*\(1,\)",
    ),
    "an array of text": (lambda n: np.array(["a"] * n), r"state .*\(2,\).*<U1"),
    "None": (lambda n: None, r"state .*\(\).*object"),
    "a strange key": (lambda n: {3: np.zeros(n)}, "key 3"),
}


@pytest.mark.parametrize(("initial", "message"), WRONG_STATES.values(), ids=WRONG_STATES)
def test_a_wrong_initial_state_is_one_clear_sentence(initial: Any, message: str) -> None:
    policy = Returning(lambda action, state: (action, state), initial)
    with pytest.raises(
        (ValueError, TypeError), match=f"^policy.initial_state returned .*{message}"
    ):
        with sw.Collector(counters(3, 3), policy, seed=0) as collector:
            collector.rollout(2)


def test_a_state_with_the_name_of_an_extra_is_refused() -> None:
    class Both(Counting):
        def __call__(self, observation: Any, is_first: Any, state: Any) -> Any:
            action, after, _ = super().__call__(observation, is_first, state)
            return action, after, {"state/count": state["count"]}

    replay = sw.SequenceReplayBuffer()
    with (
        sw.Collector(counters(3), Both(), replay, seed=0, store_state=True) as collector,
        pytest.raises(ValueError, match=r"'state/count'.*store_state=True"),
    ):
        collector.rollout(2)


def test_storing_the_state_of_a_policy_without_one_is_refused() -> None:
    with pytest.raises(ValueError, match=r"store_state=True.*initial_state"):
        sw.Collector(counters(3), sw.RandomPolicy(), seed=0, store_state=True)
