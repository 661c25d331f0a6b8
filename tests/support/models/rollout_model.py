"""A slow model of rollouts: single envs, row by row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from gymnasium.vector import AutoresetMode

import stepwell as sw
from stepwell.collectors.loop.collector import Seeds
from support.envs.fakes import TraceEnv
from support.models.model import AnyEnv, Model, assert_stored, copied, row_of, same

Info = Mapping[str, Any]
Call = tuple[str, Any]


class Rule(Protocol):
    """Chooses the action in one env: the result of a policy for one row."""

    initial: Any
    """State before the first row of an episode; None for a rule that carries nothing over."""

    def act(self, observation: Any, is_first: bool, state: Any) -> tuple[Any, Any, Info]:
        """Action, state after the row, extras."""
        ...

    def value(self, observation: Any, state: Any) -> Any:
        """Worth of an observation."""
        ...


class TraceRule:
    """Acts in a `TraceEnv` by the observation alone."""

    initial: Any = None

    def act(self, observation: Any, is_first: bool, state: Any) -> tuple[Any, Any, Info]:
        extras = {
            "value": self.value(observation, state),
            "log_prob": np.float64(observation[4] / 7),
            "pair": np.array([observation[2], is_first], np.int16),
        }
        return TraceEnv.choose(observation), None, extras

    def value(self, observation: Any, state: Any) -> Any:
        weights = np.array([3, 5, 0.25, 1, 0.125])
        return np.float32(observation @ weights)


class CountingRule(TraceRule):
    """Counts the rows of an episode, from `start`, and acts by the count too."""

    def __init__(self, start: int = 0) -> None:
        self.initial = {"count": np.int64(start), "trace": np.full(2, start / 4, np.float32)}

    def act(self, observation: Any, is_first: bool, state: Any) -> tuple[Any, Any, Info]:
        action, _, extras = super().act(observation, is_first, state)
        after = {
            "count": state["count"] + 1,
            "trace": (state["trace"] / 2 + observation[2:4]).astype(np.float32),
        }
        extras = {**extras, "value": self.value(observation, state), "count": state["count"]}
        return (action + state["count"]) % 4, after, extras

    def value(self, observation: Any, state: Any) -> Any:
        return np.float32(observation[4] + 1000 * state["count"] + state["trace"].sum())


class ValuedPolicy:
    """The policy of a rule, with values of open ends: calls it for one env after the other."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.value_calls: list[int] = []
        """Numbers of envs that values were asked for."""

    def __call__(self, observation: Any, is_first: np.ndarray) -> Any:
        found = [
            self.rule.act(row_of(observation, n), bool(is_first[n]), None)
            for n in range(len(is_first))
        ]
        return stacked([one[0] for one in found]), stacked([one[2] for one in found])

    def value(self, observation: Any) -> np.ndarray:
        n = rows_in(observation)
        self.value_calls.append(n)
        return np.array([self.rule.value(row_of(observation, k), None) for k in range(n)])


class RecurrentPolicy:
    """The policy of a rule with a state: calls it for one env after the other."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule

    def initial_state(self, num_envs: int) -> Any:
        return stacked([self.rule.initial] * num_envs)

    def __call__(self, observation: Any, is_first: np.ndarray, state: Any) -> Any:
        n = len(is_first)
        assert rows_in(state) == n
        found = [
            self.rule.act(row_of(observation, k), bool(is_first[k]), row_of(state, k))
            for k in range(n)
        ]
        action, after, extras = (stacked([one[part] for one in found]) for part in range(3))
        return action, after, extras

    def value(self, observation: Any, state: Any) -> np.ndarray:
        n = rows_in(observation)
        return np.array(
            [self.rule.value(row_of(observation, k), row_of(state, k)) for k in range(n)]
        )


def policy_of(rule: Rule) -> Any:
    """A new policy that does what the rule says."""
    return ValuedPolicy(rule) if rule.initial is None else RecurrentPolicy(rule)


@dataclass(eq=False)
class ModelRow:
    """One row of one env: observation, action, and results of the step."""

    observation: Any
    is_first: bool
    action: Any
    state: Any
    state_after: Any
    extras: Info
    mask: bool = False
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    cut: bool = False
    info: Info = field(default_factory=dict)
    follows: Any = None
    """The result of the action; None where it went nowhere."""

    @property
    def has_ended(self) -> bool:
        return self.terminated or self.truncated


@dataclass
class ModelRollout:
    """Rows ``[T][N]``, and the episodes that ended in them, by end."""

    rows: list[list[ModelRow]]
    returns: list[float]
    lengths: list[int]

    @property
    def open_ends(self) -> list[tuple[int, int]]:
        """(t, n) behind which there is more, or would be."""
        last = len(self.rows) - 1
        return [
            (t, n)
            for t, turn in enumerate(self.rows)
            for n, row in enumerate(turn)
            if row.mask and not row.terminated and (t == last or row.truncated or row.cut)
        ]

    def column(self, of: Callable[[ModelRow], Any]) -> Any:
        """Something of every row, as a tree of arrays ``[T, N, ...]``."""
        return stacked([stacked([of(row) for row in turn]) for turn in self.rows])

    def advantages(self, gamma: float, lam: float, value_of: Callable[[Any, Any], Any]) -> Any:
        """GAE by its definition, one sum for each row: advantages ``[T, N]`` float64."""
        found = np.zeros((len(self.rows), len(self.rows[0])))
        ends = set(self.open_ends)
        for t, n in np.ndindex(*found.shape):
            weight, later = 1.0, t
            while self.rows[t][n].mask:
                row = self.rows[later][n]
                follows = 0.0
                if not row.terminated:
                    follows = float(value_of(row.follows, row.state_after))
                found[t, n] += weight * (
                    row.reward + gamma * follows - float(value_of(row.observation, row.state))
                )
                if row.terminated or (later, n) in ends:
                    break
                weight, later = weight * gamma * lam, later + 1
        return found


class RolloutModel(Model):
    """N single envs in turns, each row noted with what came of it.

    Args:
        envs: One env for each column.
        rule: Chooses the actions.
        mode: NEXT_STEP: a reset takes a turn. Otherwise it is in the turn of the episode's end.
        restarts: (turn, env) in which a worker is said to have died, turns counted from 1.
        **reseeding: ``seed_of`` and ``reseed_steps``, as in `Model`.
    """

    def __init__(
        self,
        envs: Sequence[AnyEnv],
        rule: Rule,
        *,
        mode: AutoresetMode,
        restarts: Sequence[tuple[int, int]] = (),
        **reseeding: Any,
    ) -> None:
        super().__init__(envs, TraceEnv.choose, mode=mode, **reseeding)
        self.rule = rule
        self.restarts = set(restarts)
        self.turns = 0
        self.states: list[Any] = [None] * len(self.envs)
        self.rows: list[list[ModelRow]] = []
        self.ended: list[tuple[float, int]] = []

    def rollout(self, steps: int) -> ModelRollout:
        """So many turns, and their rows."""
        self.ended, before = [], len(self.rows)
        for _ in range(steps):
            self._turn()
        rows = self.rows[before:]
        returns, lengths = [one[0] for one in self.ended], [one[1] for one in self.ended]
        return ModelRollout(rows, returns, lengths)

    def collect_seeds(self, seeds: Sequence[int]) -> int:
        """An episode from each seed: waves of N, each from a reset."""
        done, n = 0, len(self.envs)
        for start in range(0, len(seeds), n):
            wave = list(seeds[start : start + n])
            self.current, self.open_slots = [], len(wave)
            for stream in range(n):
                # Envs beyond the wave play too, and do not count.
                self.current.append(self._reset(stream, wave[stream if stream < len(wave) else 0]))
            done += self.collect_episodes()
        return done

    def _turn(self) -> int:
        self.turns += 1
        steps, turn = 0, []
        for stream, env in enumerate(self.envs):
            episode, row = self.current[stream], self._choose(stream)
            turn.append(row)
            if (self.turns, stream) in self.restarts:
                self._restart(stream, row)
                continue
            if episode.has_ended:
                self.current[stream] = self._reset(stream)
                continue
            observation, reward, terminated, truncated, info = env.step(row.action)
            self.steps_since_seed[stream] += 1
            row.mask, row.reward = True, float(np.asarray(reward).item())
            row.terminated, row.truncated = bool(terminated), bool(truncated)
            row.info, row.follows = copied(info) if info else {}, copied(observation)
            episode.actions[-1] = row.action
            episode.actions.append(None)
            episode.observations.append(copied(observation))
            episode.rewards.append(row.reward)
            episode.terminated, episode.truncated = row.terminated, row.truncated
            if episode.has_ended:
                self.ended.append((sum(episode.rewards), episode.steps))
            steps += any(episode is one for one in self.chosen)
        self.rows.append(turn)
        self._reset_ended()
        return steps

    def _choose(self, stream: int) -> ModelRow:
        episode = self.current[stream]
        observation, is_first = episode.observations[-1], episode.steps == 0
        if is_first:
            self.states[stream] = self.rule.initial
        before = self.states[stream]
        action, after, extras = self.rule.act(observation, is_first, before)
        self.states[stream] = after
        return ModelRow(observation, is_first, action, before, after, extras)

    def _restart(self, stream: int, row: ModelRow) -> None:
        """As in `RestartVectorEnv`: the step happens, and its result is lost."""
        episode, env = self.current[stream], self.envs[stream]
        if episode.has_ended:
            env.reset()
        else:
            _, _, terminated, truncated, _ = env.step(row.action)
            if self.mode is not AutoresetMode.NEXT_STEP and (terminated or truncated):
                env.reset()
            if episode.steps:
                self.rows[-1][stream].cut = True
        self.current[stream] = self._reset(stream)


def play_calls(
    envs: Any,
    model: RolloutModel,
    calls: Sequence[Call],
    replay: sw.SequenceReplayBuffer | None,
    **options: Any,
) -> sw.Rollout | None:
    """Make the calls and play the model in parallel; compare after each one; the last rollout.

    Args:
        envs: The envs of a Collector with the seed 5; a list of vector envs makes rollouts only.
        model: The same envs, one by one.
        calls: Kind and goal of each call.
        replay: Of the Collector.
        **options: More of its arguments.
    """
    rollout: sw.Rollout | None = None
    seeds, n, needs_reset = Seeds(5, 0), len(model.envs), True
    in_groups, stores_state = isinstance(envs, list), options.get("store_state", False)
    with sw.Collector(envs, policy_of(model.rule), replay, seed=5, **options) as collector:
        for kind, goal in calls:
            if kind != "seeds" and (needs_reset or kind == "episodes"):
                limit = goal if kind == "episodes" else float("inf")
                model.reset(seeds.next_envs_seed(n), limit)
            if kind == "rollout":
                rollout, expected = collector.rollout(goal), model.rollout(goal)
                if in_groups:  # which come one after the other
                    assert sorted(rollout.episode_lengths) == sorted(expected.lengths)
                    expected.lengths = list(rollout.episode_lengths)
                    assert sorted(rollout.episode_returns) == sorted(expected.returns)
                    expected.returns = list(rollout.episode_returns)
                assert_rollout(rollout, expected, stores_state=stores_state)
                assert_values(rollout, expected, model.rule)
                assert collector.report.steps == rollout.steps
                assert collector.report.lengths == rollout.episode_lengths
                assert collector.report.returns == rollout.episode_returns
            elif kind == "seeds":
                assert collector.collect(seeds=goal).steps == model.collect_seeds(goal)
            else:
                before = {id(one): (one.steps, one.has_ended) for one in model.chosen}
                report = collector.collect(**{kind: goal})
                assert report.steps == (
                    model.collect(goal) if kind == "steps" else model.collect_episodes()
                )
                ended = [
                    one
                    for one in model.chosen
                    if one.has_ended and not before.get(id(one), (0, False))[1]
                ]
                assert sorted(report.lengths) == sorted(one.steps for one in ended)
                assert sorted(report.returns) == sorted(sum(one.rewards) for one in ended)
            needs_reset = kind in ("episodes", "seeds")
            if replay is not None:
                assert_stored(replay, model.episodes, by_stream=in_groups)
                assert collector.report.digest == replay.digest()
                assert collector.report.total_steps == sum(one.steps for one in model.episodes)
    if replay is not None:
        assert_stored(replay, model.episodes, by_stream=in_groups)
    return rollout


def stacked(parts: Sequence[Any]) -> Any:
    """Nested values of equal structure, each leaf stacked on a new first axis."""
    first = parts[0]
    if isinstance(first, Mapping):
        return {key: stacked([part[key] for part in parts]) for key in first}
    if isinstance(first, tuple):
        return tuple(stacked([part[place] for part in parts]) for place in range(len(first)))
    return None if first is None else np.stack(parts)


def leaves(value: Any) -> Iterator[np.ndarray]:
    """The arrays of a nested value."""
    if isinstance(value, Mapping):
        for part in value.values():
            yield from leaves(part)
    elif isinstance(value, tuple):
        for part in value:
            yield from leaves(part)
    elif value is not None:
        yield np.asarray(value)


def rows_in(value: Any) -> int:
    """Length of the first axis of a nested value."""
    (n,) = {len(leaf) for leaf in leaves(value)}
    return n


def places(value: Any, where: tuple[np.ndarray, ...] | np.ndarray) -> Any:
    """The same places of every array of a nested value."""
    if isinstance(value, Mapping):
        return {key: places(part, where) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(places(part, where) for part in value)
    return None if value is None else np.asarray(value)[where]


def assert_same(name: str, given: Any, expected: Any) -> None:
    """Two nested values are equal, dtypes left aside."""
    assert (given is None) == (expected is None), f"{name}: got {given}, expected {expected}"
    if expected is not None:
        assert same(given, expected), f"{name}: got\n{given}\nexpected\n{expected}"


def assert_rollout(rollout: sw.Rollout, model: ModelRollout, *, stores_state: bool = False) -> None:
    """Every array of the rollout is what the model's rows say."""
    shape = len(model.rows), len(model.rows[0])
    assert (rollout.num_steps, rollout.num_envs) == shape
    mask = model.column(lambda row: row.mask)
    for name, dtype in (
        ("mask", np.bool_),
        ("is_first", np.bool_),
        ("terminated", np.bool_),
        ("truncated", np.bool_),
        ("cut", np.bool_),
        ("reward", np.float32),
    ):
        given = getattr(rollout, name)
        assert (given.dtype, given.shape) == (np.dtype(dtype), shape), name
        assert_same(name, given, model.column(lambda row, of=name: getattr(row, of)))  # type: ignore[misc]
    assert rollout.steps == mask.sum()
    assert_same("observation", rollout.observation, model.column(lambda row: row.observation))
    assert_same("action", rollout.action, model.column(lambda row: row.action))
    before = model.column(lambda row: row.state)
    extras = dict(model.column(lambda row: row.extras))
    if stores_state:
        extras |= {f"state/{key}": part for key, part in before.items()}
    assert_same("extras", rollout.extras, extras)
    assert rollout.episode_returns == tuple(model.returns)
    assert rollout.episode_lengths == tuple(model.lengths)
    assert_same("state", rollout.state, before)
    assert_same(
        "initial_state", rollout.initial_state, model.rows[0][0].state and row_of(before, 0)
    )
    assert_open_ends(rollout, model)


def assert_open_ends(rollout: sw.Rollout, model: ModelRollout) -> None:
    """Bootstrap observations must be those that followed the last action."""
    ends, given = model.open_ends, rollout.bootstrap
    found = list(zip(given.step.tolist(), given.env.tolist(), strict=True))
    assert (given.step.dtype, given.env.dtype) == (np.dtype(np.int64), np.dtype(np.int64))
    assert sorted(found) == ends, f"open ends {found}, expected {ends}"
    for place, (t, n) in enumerate(found):
        row = model.rows[t][n]
        where = f"open end behind row {t} of env {n}"
        assert_same(where, row_of(given.observation, place), row.follows)
        if row.state_after is not None:
            assert_same(f"state of {where}", row_of(given.state, place), row.state_after)
    if not ends or model.rows[0][0].state is None:
        assert given.state is None or not ends


def assert_values(rollout: sw.Rollout, model: ModelRollout, rule: Rule) -> None:
    """Values are those of the open ends, and advantages those of the definition of GAE."""
    given = rollout.bootstrap
    assert given.value is not None
    ends = zip(given.step.tolist(), given.env.tolist(), strict=True)
    rows = [model.rows[t][n] for t, n in ends]
    expected = [rule.value(row.follows, row.state_after) for row in rows]
    assert given.value.tolist() == expected
    advantages, returns = rollout.advantages(0.9, 0.7)
    slow = model.advantages(0.9, 0.7, rule.value)
    np.testing.assert_allclose(advantages, slow, rtol=1e-5, atol=1e-3)
    values = np.where(rollout.mask, rollout.extras["value"], 0)
    np.testing.assert_allclose(np.where(rollout.mask, returns, 0), slow + values, rtol=1e-5)


ARRAYS = ("mask", "is_first", "terminated", "truncated", "cut", "reward", "observation", "action")


def assert_equal_rollouts(one: sw.Rollout, other: sw.Rollout) -> None:
    """Two rollouts hold the same numbers in the same dtypes, their open ends too."""
    for name in (*ARRAYS, "info", "extras", "state", "initial_state"):
        assert_same(name, getattr(one, name), getattr(other, name))
        dtypes = [[leaf.dtype for leaf in leaves(getattr(of, name))] for of in (one, other)]
        assert dtypes[0] == dtypes[1], name
    assert one.episode_returns == other.episode_returns
    assert one.episode_lengths == other.episode_lengths
    first, second = sorted_ends(one), sorted_ends(other)
    for name in ("step", "env", "observation", "state", "value"):
        assert_same(f"bootstrap {name}", first[name], second[name])


def ends_of(rollout: sw.Rollout) -> list[tuple[int, int]]:
    """(t, n) of the open ends, in their order."""
    ends = rollout.bootstrap
    return list(zip(ends.step.tolist(), ends.env.tolist(), strict=True))


def sorted_ends(rollout: sw.Rollout) -> dict[str, Any]:
    """The bootstrap by row, then by env."""
    ends = rollout.bootstrap._asdict()
    order = np.lexsort((ends["env"], ends["step"]))
    return {name: places(part, order) for name, part in ends.items()}


def joined(rollouts: Sequence[sw.Rollout]) -> dict[str, Any]:
    """Arrays of rollouts that follow on each other, as one along the first axis."""

    def along_time(parts: Sequence[Any]) -> Any:
        first = parts[0]
        if isinstance(first, Mapping):
            return {key: along_time([part[key] for part in parts]) for key in first}
        if isinstance(first, tuple):
            return tuple(along_time([part[k] for part in parts]) for k in range(len(first)))
        return None if first is None else np.concatenate(parts)

    names = (*ARRAYS, "info", "extras", "state")
    return {name: along_time([getattr(one, name) for one in rollouts]) for name in names}
