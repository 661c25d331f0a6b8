"""Exploring policies replace exactly the actions they should, and pass on everything else."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from hypothesis import given
from hypothesis import strategies as st

from stepwell import Collector, EpsilonGreedy, GaussianNoise, SequenceReplayBuffer, WarmUp
from stepwell.collectors.policies.policy import as_recurrent, value_of
from support.chi_square import assert_shares
from support.envs.fakes import CounterEnv

FOUR = spaces.Discrete(4, start=3)
STICK = spaces.Box(np.array([-1, -5], np.float32), np.array([1, 5], np.float32))
NESTED = spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Tuple((spaces.MultiBinary(2), STICK))})


class Constant:
    """Always the same action, out of one array; records the observations it gets."""

    def __init__(self, action: int = 3, most: int = 64) -> None:
        self.actions = np.full(most, action)
        self.seen: list[int] = []

    def __call__(self, observation: Any, is_first: np.ndarray) -> Any:
        self.seen += np.asarray(observation).tolist()
        return self.actions[: len(is_first)], {"twice": 2 * np.asarray(observation)}


class Counting:
    """A state that counts the rows since the reset; the count is also an extra."""

    def __init__(self, action: Any = 3) -> None:
        self.action = action

    def initial_state(self, num_envs: int) -> np.ndarray:
        return np.zeros(num_envs, np.int64)

    def value(self, observation: Any, state: np.ndarray) -> np.ndarray:
        return state * 0.5

    def __call__(self, observation: Any, is_first: np.ndarray, state: np.ndarray) -> Any:
        action = np.repeat(np.asarray(self.action)[None], len(is_first), 0)
        return action, state + 1, {"count": state.copy()}


class Drawing:
    """A policy with a generator of its own."""

    def begin(self, action_space: spaces.Space[object], rng: np.random.Generator) -> None:
        self.space, self.rng = action_space, rng

    def __call__(self, observation: Any, is_first: np.ndarray) -> Any:
        draw = self.rng.random(len(is_first))
        return 3 + (draw * 4).astype(np.int64), {"draw": draw}


Wrap = Callable[[Any], Any]
REPLACING: dict[str, Wrap] = {
    "WarmUp": lambda policy: WarmUp(policy, 40, mark=True),
    "EpsilonGreedy": lambda policy: EpsilonGreedy(policy, 0.5, mark=True),
}
ALL: dict[str, Wrap] = {**REPLACING, "GaussianNoise": lambda policy: GaussianNoise(policy, 0.5)}
each_replacing = pytest.mark.parametrize("wrap", REPLACING.values(), ids=REPLACING)
each = pytest.mark.parametrize("name", ALL)


def actions_of(policy: Any, n: int, first: int = 0) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """One call, whose rows are numbered in the observation."""
    result = policy(np.arange(first, first + n), np.zeros(n, np.bool_))
    return result if isinstance(result, tuple) else (result, {})


def begun(policy: Any, space: spaces.Space[Any] = FOUR, seed: int = 0) -> Any:
    policy.begin(space, np.random.default_rng(seed))
    return policy


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(0, 40))
def test_warm_up_draws_exactly_the_first_rows_that_are_asked_for(
    sizes: list[int], steps: int
) -> None:
    inner = Constant(1000)
    policy = begun(WarmUp(inner, steps, mark=True))
    row = 0
    for n in sizes:
        action, extras = actions_of(policy, n, row)
        for place in range(n):  # row by row: the slow and obvious way
            assert extras["explored"][place] == (row < steps)
            assert (action[place] == 1000) == (row >= steps)
            row += 1
    assert policy.rows == sum(sizes)
    assert inner.seen == list(range(sum(sizes)))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.floats(0, 1), st.integers(0, 2**32))
def test_epsilon_greedy_replaces_the_rows_that_it_marks_and_no_others(
    sizes: list[int], epsilon: float, seed: int
) -> None:
    inner = Constant(1000)
    policy = begun(EpsilonGreedy(inner, epsilon, mark=True), seed=seed)
    for number, n in enumerate(sizes):
        first = sum(sizes[:number])
        action, extras = actions_of(policy, n, first)
        assert (action == 1000).tolist() == (~extras["explored"]).tolist()
        assert np.isin(action[extras["explored"]], [3, 4, 5, 6]).all()
        assert extras["twice"].tolist() == list(range(2 * first, 2 * (first + n), 2))
    assert inner.seen == list(range(sum(sizes)))
    assert (inner.actions == 1000).all(), "the policy's own array was written into"


@pytest.mark.parametrize("epsilon", [0.1, 0.7])
def test_epsilon_greedy_takes_the_policys_action_as_often_as_it_should(epsilon: float) -> None:
    policy = begun(EpsilonGreedy(Constant(5, most=20_000), epsilon))
    action, _ = actions_of(policy, 20_000)
    shares = {each: epsilon / 4 + (1 - epsilon) * (each == 5) for each in (3, 4, 5, 6)}
    assert_shares(Counter(action.tolist()), shares)


def test_a_schedule_is_called_with_the_number_of_earlier_rows() -> None:
    rows_before: list[int] = []

    def schedule(rows: int) -> float:
        rows_before.append(rows)
        return float(rows < 8)

    policy = begun(EpsilonGreedy(Constant(1000), schedule, mark=True))
    explored = [actions_of(policy, n)[1]["explored"].tolist() for n in (3, 5, 4)]
    assert rows_before == [0, 3, 8]
    assert explored == [[True] * 3, [True] * 5, [False] * 4]


def test_a_wrong_epsilon_is_refused_before_the_policy_acts() -> None:
    inner = Constant()
    policy = begun(EpsilonGreedy(inner, lambda rows: -0.1))
    with pytest.raises(ValueError, match=r"epsilon .*got -0\.1"):
        actions_of(policy, 1)
    assert not inner.seen


@each_replacing
def test_extras_are_passed_on_and_explored_is_added_only_on_request(wrap: Wrap) -> None:
    _, extras = actions_of(begun(wrap(Constant())), 4)
    assert list(extras) == ["twice", "explored"]
    for plain in (WarmUp(Constant(), 2), EpsilonGreedy(Constant(), 0.5)):
        assert list(actions_of(begun(plain), 4)[1]) == ["twice"]
    silent = begun(EpsilonGreedy(lambda observation, is_first: np.full(len(is_first), 3), 0.5))
    assert isinstance(silent(np.zeros(4), np.zeros(4, bool)), np.ndarray)


def test_explored_marks_rows_of_every_policy_in_the_chain() -> None:
    for outer_marks in (True, False):
        inner = EpsilonGreedy(Constant(1000), 0.4, mark=True)
        policy = begun(EpsilonGreedy(inner, 0.4, mark=outer_marks))
        for _ in range(50):
            action, extras = actions_of(policy, 8)
            assert (extras["explored"] == (action != 1000)).all()


@each_replacing
def test_all_parts_of_a_nested_action_are_replaced_together(wrap: Wrap) -> None:
    def zeros(observation: Any, is_first: np.ndarray) -> Any:
        n = len(is_first)
        pair = (np.full((n, 2), 1, np.int8), np.full((n, 2), 9, np.float32))
        return {"a": np.full(n, 2), "b": pair}

    policy = begun(wrap(zeros), NESTED)
    buttons: list[int] = []
    for _ in range(200):
        action, extras = policy(np.zeros(6), np.zeros(6, np.bool_))
        bits, stick = action["b"]
        explored = extras["explored"]
        assert ((stick == 9).all(axis=1) == ~explored).all()
        assert ((np.abs(stick) <= [1, 5]).all(axis=1) == explored).all()
        assert (action["a"][~explored] == 2).all()
        assert (bits[~explored] == 1).all()
        assert stick.dtype == np.float32
        assert bits.dtype == np.int8
        buttons += action["a"][explored].tolist()
    assert_shares(Counter(buttons), {0: 1, 1: 1, 2: 1})


def test_an_action_of_a_tuple_space_is_not_taken_for_action_and_extras() -> None:
    space = spaces.Tuple((spaces.Discrete(9), spaces.Dict({"x": spaces.Discrete(9)})))

    def bare(observation: Any, is_first: np.ndarray) -> Any:
        return np.full(len(is_first), 8), {"x": np.full(len(is_first), 8)}

    def with_extras(observation: Any, is_first: np.ndarray) -> Any:
        return bare(observation, is_first), {"y": np.zeros(len(is_first))}

    first, second = begun(EpsilonGreedy(bare, 0), space)(np.zeros(2), np.zeros(2, bool))
    assert first.tolist() == second["x"].tolist() == [8, 8]
    (first, second), extras = begun(EpsilonGreedy(bare, 1, mark=True), space)(
        np.zeros(99), np.zeros(99, bool)
    )
    assert set(first.tolist()) == set(second["x"].tolist()) == set(range(9))
    assert extras["explored"].all()
    (first, second), extras = begun(WarmUp(with_extras, 2, mark=True), space)(
        np.zeros(3), np.zeros(3, bool)
    )
    assert (first[2], second["x"][2]) == (8, 8)
    assert list(extras) == ["y", "explored"]


@each
def test_a_state_and_a_value_are_there_exactly_where_the_policy_inside_has_them(name: str) -> None:
    wrap = ALL[name]

    class Valued(Constant):
        def value(self, observation: Any) -> np.ndarray:
            return np.asarray(observation) * 3.0

    plain, stateful, valued = wrap(Constant()), wrap(Counting()), wrap(Valued())
    assert as_recurrent(plain) is None
    assert value_of(plain) is None
    assert not hasattr(plain, "initial_state")
    assert as_recurrent(valued) is None
    value = value_of(valued)
    assert value is not None
    assert np.asarray(value(np.arange(2))).tolist() == [0, 3]
    inside = as_recurrent(stateful)
    assert inside is not None
    assert inside.initial_state(3).tolist() == [0, 0, 0]
    assert value_of(stateful) is not None
    assert value_of(copy.deepcopy(stateful)) is not None


class Pushed(CounterEnv):
    """Takes an action in a Box."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.action_space = STICK  # type: ignore[assignment]


@each
def test_the_state_of_a_policy_inside_counts_the_rows_since_the_reset(name: str) -> None:
    is_noise = name == "GaussianNoise"
    policy = ALL[name](Counting(np.zeros(2, np.float32) if is_noise else 1))
    kinds = (
        [lambda: Pushed(3), lambda: Pushed(5)]
        if is_noise
        else [lambda: CounterEnv(3), lambda: CounterEnv(5)]
    )
    replay = SequenceReplayBuffer()
    with Collector(SyncVectorEnv(kinds), policy, replay, seed=0) as collector:
        collector.collect(steps=60)
        rollout = collector.rollout(steps=7)
    for episode in replay.iter_episodes():
        steps = episode.steps
        assert episode.fields["extra/count"][:steps].tolist() == list(range(steps))
    assert (rollout.extras["count"] == rollout.observation[..., 1])[rollout.mask].all()
    assert rollout.bootstrap.value is not None
    assert (rollout.bootstrap.value == 0.5 * rollout.bootstrap.observation[..., 1]).all()


class Remembering:
    """Its state is its last action, -1 before the first; stored as an extra with the next row."""

    def __init__(self, is_noise: bool) -> None:
        self.action = np.zeros(2, np.float32) if is_noise else np.int64(1)

    def initial_state(self, num_envs: int) -> np.ndarray:
        return np.full((num_envs, *self.action.shape), -1, self.action.dtype)

    def __call__(self, observation: Any, is_first: np.ndarray, last: np.ndarray) -> Any:
        action = np.broadcast_to(self.action, last.shape)
        return action, action.copy(), {"last": last}

    def on_override(self, action: np.ndarray, last: np.ndarray) -> np.ndarray:
        return action.copy()


@pytest.mark.parametrize("nested", [False, True])
@each
def test_a_policy_with_its_last_action_as_state_gets_the_one_that_was_taken(
    name: str, nested: bool
) -> None:
    is_noise = name == "GaussianNoise"
    wrap = ALL[name]
    policy = wrap(Remembering(is_noise))
    kinds = [lambda: Pushed(3), lambda: Pushed(5)] if is_noise else [lambda: CounterEnv(6)] * 2
    if nested:
        policy = wrap(policy)
    replay = SequenceReplayBuffer()
    with Collector(SyncVectorEnv(kinds), policy, replay, seed=0) as collector:
        collector.collect(steps=100)
    others = 0
    for episode in replay.iter_episodes():
        last = episode.fields["extra/last"][: episode.steps]
        assert (last[0] == -1).all()
        assert np.array_equal(last[1:], episode.action[: episode.steps - 1])
        others += int((last[1:] != (0 if is_noise else 1)).sum())
    assert others > 10


@each_replacing
def test_a_policy_inside_draws_the_same_whatever_is_replaced_around_it(wrap: Wrap) -> None:
    inner = Drawing()
    policy = begun(wrap(inner), seed=5)
    assert inner.space is FOUR
    draws = np.concatenate([actions_of(policy, 8)[1]["draw"] for _ in range(20)])
    other = Drawing()
    begun(EpsilonGreedy(other, 0), seed=5)
    assert draws.tolist() == other.rng.random(160).tolist()


@each_replacing
def test_an_action_is_never_cut_down_to_the_dtype_that_the_policy_returned(wrap: Wrap) -> None:
    def flags(observation: Any, is_first: np.ndarray) -> Any:
        return np.zeros(len(is_first), np.bool_)

    policy = begun(wrap(flags))
    assert set(actions_of(policy, 40)[0].tolist()) >= {3, 4, 5, 6}


def test_noise_is_normal_with_the_scale_asked_for_in_each_part() -> None:
    space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    center = np.array([[1.0, -2.0]])

    def still(observation: Any, is_first: np.ndarray) -> Any:
        return np.repeat(center, len(is_first), 0)

    policy = begun(GaussianNoise(still, np.array([0.5, 3.0])), space)
    noise = (policy(np.zeros(8000), np.zeros(8000, bool)) - center) / [0.5, 3.0]
    eighths = [-1.150349, -0.674490, -0.318639, 0, 0.318639, 0.674490, 1.150349]
    cells = [tuple(np.digitize(row, eighths).tolist()) for row in noise]
    assert_shares(Counter(cells), {(a, b): 1 for a in range(8) for b in range(8)})
    tails = Counter(bool(abs(one) > 1.959964) for one in noise.ravel())
    assert_shares(tails, {True: 0.05, False: 0.95})


def test_noise_stays_within_the_bounds_and_in_the_spaces_dtype() -> None:
    def edge(observation: Any, is_first: np.ndarray) -> Any:
        return np.repeat(np.array([[1, -5]], np.float32), len(is_first), 0), {"x": is_first}

    policy = begun(GaussianNoise(edge, 0.5), STICK)
    action, extras = actions_of(policy, 400)
    assert action.dtype == np.float32
    assert (np.abs(action) <= [1, 5]).all()
    half = Counter((row == [1, -5]).tolist()[0] for row in action)
    assert_shares(half, {True: 1, False: 1})
    assert list(extras) == ["x"]


REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: WarmUp(Constant(), -1), "steps: .*>= 0, got -1"),
    (lambda: WarmUp(Constant(), 1.5), r"steps: .*>= 0, got 1\.5"),  # type: ignore[arg-type]
    (lambda: EpsilonGreedy(Constant(), 1.01), r"epsilon .*0 to 1, got 1\.01"),
    (lambda: EpsilonGreedy(Constant(), float("nan")), "epsilon .*0 to 1, got nan"),
    (
        lambda: actions_of(begun(EpsilonGreedy(Constant(), lambda rows: -0.1)), 1),
        r"epsilon .*0 to 1, got -0\.1",
    ),
    (lambda: GaussianNoise(Constant(), -1), "scale .*>= 0, got -1"),
    (lambda: GaussianNoise(Constant(), float("inf")), "scale .*>= 0, got inf"),
    *(
        (
            lambda wrap=wrap: actions_of(wrap(Constant()), 1),
            rf"^{name} .*begin\(action_space, rng\)",
        )
        for name, wrap in ALL.items()
    ),
    (lambda: begun(GaussianNoise(Constant(), np.ones(3)), STICK), r"scale .*\(2,\), got .*\(3,\)"),
    (
        lambda: actions_of(begun(GaussianNoise(Constant(), 1), STICK), 4),
        r"action .*\(4,\).*int64, expected \(4, 2\) and float32",
    ),
    (
        lambda: actions_of(begun(WarmUp(lambda o, f: np.zeros((len(f), 1)), 1)), 4),
        r"policy returned action .*\(4, 1\), expected \(4,\)",
    ),
    (
        lambda: actions_of(begun(WarmUp(Constant(), 1), NESTED), 4),
        r"policy returned .*actions: .*dict .*keys \[.*\]",
    ),
    *(
        (
            lambda space=space: begun(GaussianNoise(Constant(), 1), space),
            f"action space Box.*got {type(space).__name__}",
        )
        for space in (FOUR, NESTED, spaces.Box(0, 9, (2,), np.int64))
    ),
    (
        lambda: begun(WarmUp(Misbehaved(), 1))(np.zeros(1), np.zeros(1, bool), np.zeros(1)),
        r"policy .*returned ndarray, expected \(action, state\)",
    ),
]


class Misbehaved(Counting):
    """Declares a state, and returns none."""

    def __call__(self, observation: Any, is_first: np.ndarray, state: np.ndarray) -> Any:
        return np.zeros(len(is_first))


@pytest.mark.parametrize(("wrong", "message"), REFUSED)
def test_invalid_arguments_are_refused(wrong: Callable[[], object], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        wrong()
