"""Relabelled transitions are those of a slow model, and their goals have the right frequencies."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Hashable
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from stepwell.buffers import End, EpisodeBuffer, NotEnoughData, SequenceReplayBuffer, Spec
from stepwell.buffers.sampling.batch import TransitionBatch, named_leaves
from stepwell.buffers.sampling.requests import Goals, Hindsight, Transitions
from support.chi_square import assert_shares
from support.models.hindsight_model import (
    LARGE,
    SMALL,
    GoalRecording,
    a_goal_replay,
    candidates,
    compute_reward,
    goal_spec,
    relabelled,
)
from support.models.replay_histories import HISTORIES, KINDS, Kind, moments, whole_episodes
from support.models.replay_model import transitions
from support.rows.replay_rows import Played, Row, Step, numbered_spec

STRATEGIES: list[Goals] = ["future", "final", "episode"]
REQUESTS = st.builds(
    lambda count, n_step, gamma, draw, stack, strategy, number: Transitions(
        count, n_step, gamma, draw, stack, relabel=Hindsight(compute_reward, strategy, number)
    ),
    st.integers(1, 60),
    st.sampled_from([1, 1, 2, 3, 5, 40]),
    st.sampled_from([0.99, 0.5, 1.0, 0.0]),
    st.sampled_from(["steps", "episodes", "ends", "recent", "newest", "priorities"]),
    st.booleans(),
    st.sampled_from(STRATEGIES),
    st.sampled_from([0, 1, 4, 4, 2.5, math.inf]),
)


def check(
    played: Played, request: Transitions, width: int, stack: int
) -> tuple[TransitionBatch, dict[int, Row]]:
    """Draw a batch, compare all of it, and return it with its new goals."""
    relabel = cast("Hindsight", request.relabel)
    steps = {step.row.id: step for step in transitions(played.episodes, request, stack)}
    if not steps:
        with pytest.raises(NotEnoughData):
            played.replay.sample(request)
        return cast("TransitionBatch", None), {}
    batch = played.replay.sample(request)
    assert isinstance(batch, TransitionBatch)
    goals = relabelled(
        batch, [steps[row] for row in batch.ids.tolist()], played.episodes, request, width
    )
    share = 1 - 1 / (relabel.n_sampled_goal + 1)
    assert (
        math.floor(share * request.batch_size)
        <= len(goals)
        <= math.ceil(share * request.batch_size)
    )
    stored = played.replay.take(request._replace(relabel=None), batch.ids)
    is_new = np.isin(np.arange(request.batch_size), list(goals))
    for each in fields(TransitionBatch):
        if each.name in ("memory", "weights"):
            continue
        found = dict(named_leaves(each.name, getattr(batch, each.name)))
        for name, array in named_leaves(each.name, getattr(stored, each.name)):
            is_same = name == "reward" or name.endswith("desired_goal")
            where = ~is_new if is_same else slice(None)
            np.testing.assert_array_equal(found[name][where], array[where], name)
    return batch, goals


@pytest.mark.proof
@given(
    KINDS, HISTORIES, st.lists(REQUESTS, min_size=3, max_size=6), st.sampled_from([SMALL, LARGE])
)
def test_relabelled_transitions_are_those_of_the_model(
    kind: Kind, history: list[Step], wanted: list[Transitions], width: int
) -> None:
    # Priorities belong to one kind of item.
    by_priority = next((each for each in wanted if each.draw == "priorities"), None)
    with a_goal_replay(kind, width) as played:
        for _ in moments(played, history):
            for request in wanted:
                if request.draw == "priorities" and by_priority is not None:
                    request = request._replace(n_step=by_priority.n_step, stack=by_priority.stack)
                check(played, request, width, kind.stack)


# Frequencies


def assert_frequencies(played: Played, request: Transitions) -> None:
    """Each pair of transition and goal is as frequent as the model says."""
    steps = transitions(played.episodes, request)
    by_id = {episode.id: episode for episode in played.episodes}
    strategy = cast("Hindsight", request.relabel).strategy
    shares: dict[Hashable, float] = {}
    for step in steps:
        rows = candidates(step, by_id[step.row.episode], strategy)
        shares.update({(step.row.id, row.number): 1 / len(rows) for row in rows})
    batch, goals = check(played, request, SMALL, 1)
    counts = Counter((int(batch.ids[place]), row.number) for place, row in goals.items())
    assert len(goals) == request.batch_size
    assert_shares(counts, shares)


def in_chunks(played: Played) -> None:
    """Episodes of one chunk and of many, ended, cut and open, of three streams."""
    for _ in range(3):
        played.add(Step(0, 4, End.PENDING))
        played.add(Step(1, 2, End.NONE))
        whole_episodes(played, [2, 7], stream=2)
        played.add(Step(0, 1, End.PENDING))
    played.add(Step(0, 3, End.TRUNCATED))
    played.add(Step(1, 2, End.NONE, "cut"))
    played.add(Step(1, 5, End.PENDING))


@pytest.mark.proof
@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_goals_are_uniform_over_what_their_strategy_allows(strategy: Goals, n_step: int) -> None:
    request = Transitions(12_000, n_step, relabel=Hindsight(compute_reward, strategy, math.inf))
    with a_goal_replay(Kind()) as played:
        in_chunks(played)
        assert len({len(episode.rows) for episode in played.episodes}) > 3
        assert_frequencies(played, request)


@pytest.mark.proof
@pytest.mark.parametrize(("size", "number"), [(1, 4.0), (7, 4.0), (5, 1.0), (6, 2.5)])
def test_each_transition_is_relabelled_with_the_same_probability(size: int, number: float) -> None:
    """Also in batches whose size is no multiple: rounding down would never relabel one of one."""
    request = Transitions(size, relabel=Hindsight(compute_reward, "future", number))
    counts: Counter[tuple[int, bool]] = Counter()
    with a_goal_replay(Kind()) as played:
        whole_episodes(played, [5, 3, 6])
        batches = 4_200 // size
        for _ in range(batches):
            batch = played.replay.sample(request)
            goals = cast("Any", batch.observation)["desired_goal"]
            counts.update(enumerate((goals[:, 0] >= 0).tolist()))
        share = 1 - 1 / (number + 1)
        pairs = [(place, is_new) for place in range(size) for is_new in (False, True)]
        assert_shares(counts, {pair: share if pair[1] else 1 - share for pair in pairs})
        total = sum(count for (_, is_new), count in counts.items() if is_new)
        spread = math.sqrt(batches * size * share * (1 - share))
        assert abs(total - batches * size * share) < 4 * spread


# Stores, loaders, epochs


def draw_of(request: Transitions, played: Played) -> TransitionBatch:
    batch = played.replay.sample(request)
    assert isinstance(batch, TransitionBatch)
    return batch


def goals_of(batch: TransitionBatch) -> np.ndarray:
    """The desired goals [B, 2]: episode and number of a row, or less than 0."""
    found: np.ndarray = cast("Any", batch.observation)["desired_goal"]
    return found


def places_of(batch: TransitionBatch) -> np.ndarray:
    """Stream, episode and number of the first rows [B, 3]."""
    found: np.ndarray = cast("Any", batch.observation)["place"]
    return found


ALL = Transitions(400, relabel=Hindsight(compute_reward, "episode", math.inf))
SOME = Transitions(32, relabel=Hindsight(compute_reward))


def test_joined_stores_never_lend_each_other_goals(tmp_path: Path) -> None:
    for store in range(2):
        with Played(goal_spec(SMALL), tmp_path / str(store)) as played:
            played.recording = GoalRecording(SMALL)
            played.recording.next_episode = 10 * store
            in_chunks(played)
    for weights in (None, [0.2, 0.8]):
        folders = [tmp_path / "0", tmp_path / "1"]
        with SequenceReplayBuffer.open(folders, weights=weights, seed=0) as replay:
            batch = replay.sample(ALL)
            episodes = cast("Any", batch.observation)["place"][:, 1]
            assert set(episodes.tolist()) > {0, 10}
            assert (goals_of(batch)[:, 0] == episodes).all()


def test_the_generator_decides_on_goals_in_the_replay_and_in_its_loader() -> None:
    with a_goal_replay(Kind()) as played:
        in_chunks(played)
        state = played.replay.state_dict()
        batches = [draw_of(SOME, played) for _ in range(3)]
        assert not np.array_equal(goals_of(batches[0]), goals_of(batches[1]))
        played.replay.load_state_dict(state)
        again = [draw_of(SOME, played) for _ in range(3)]
        played.replay.load_state_dict(state)
        with played.replay.loader(SOME) as loader:
            loaded = [batch for batch, _ in zip(loader, range(3), strict=False)]
        by_rng = [played.replay.sample(SOME, rng=np.random.default_rng(3)) for _ in range(2)]
        for one, other in [*zip(batches, again, strict=True), *zip(batches, loaded, strict=True)]:
            assert_equal(one, other)
        assert_equal(*by_rng)


def assert_equal(one: TransitionBatch, other: TransitionBatch) -> None:
    for name in ("ids", "reward", "observation", "next_observation"):
        leaves = dict(named_leaves(name, getattr(other, name)))
        for path, array in named_leaves(name, getattr(one, name)):
            np.testing.assert_array_equal(array, leaves[path])


def test_an_epoch_has_each_transition_once_and_continues_with_the_same_goals() -> None:
    with a_goal_replay(Kind()) as played:
        in_chunks(played)
        request = SOME._replace(batch_size=10)
        epoch = played.replay.epoch(request, seed=5, shuffle=False)
        first, second = list(epoch), list(epoch)
        ids, goals = (
            [np.concatenate([of(batch) for batch in one]) for one in (first, second)]
            for of in (lambda batch: batch.ids, goals_of)
        )
        assert len(set(ids[0].tolist())) == len(ids[0]) == played.replay.count(request)
        assert abs(np.mean(goals[0][:, 0] >= 0) - 0.8) < 0.05
        np.testing.assert_array_equal(ids[0], ids[1])
        assert not np.array_equal(goals[0], goals[1])
        resumed = played.replay.epoch(request, seed=5, shuffle=False)
        resumed.load_state_dict(resumed.state_dict() | {"done": 20})
        rest = list(resumed)
        assert len(rest) == len(first) - 2 > 1
        for one, other in zip(first[2:], rest, strict=True):
            assert_equal(one, other)


def test_rows_behind_a_lost_chunk_are_no_goals() -> None:
    with a_goal_replay(Kind()) as played:
        for _ in range(5):
            played.add(Step(0, 4, End.NONE))
        storage = played.replay.storage
        storage.index.lose([2])
        for strategy in STRATEGIES:
            request = ALL._replace(relabel=Hindsight(compute_reward, strategy, math.inf))
            batch = draw_of(request, played)
            before, goal = places_of(batch)[:, 2] < 8, goals_of(batch)[:, 1]
            assert set(before.tolist()) == {True, False}
            assert (goal[before] < 8).all()
            assert (goal[~before] > 12).all()


# What is asked for, and what is computed


def test_only_what_was_asked_for_is_in_the_batch() -> None:
    calls: list[int] = []

    def counted(achieved: np.ndarray, desired: np.ndarray, infos: Any) -> np.ndarray:
        calls.append(len(infos))
        return compute_reward(achieved, desired, infos)

    with a_goal_replay(Kind()) as played:
        in_chunks(played)
        request = Transitions(50, relabel=Hindsight(counted, "final", math.inf))
        batch = draw_of(request._replace(fields=["observation/desired_goal"]), played)
        assert (goals_of(batch)[:, 0] >= 0).all()
        assert not calls
        state = played.replay.state_dict()
        whole = draw_of(request, played)
        played.replay.load_state_dict(state)
        reward = draw_of(request._replace(fields=["reward"]), played)
        assert reward.observation is None
        assert calls == [50, 50]
        np.testing.assert_array_equal(whole.reward, reward.reward)


def test_no_lock_is_held_while_rewards_are_computed() -> None:
    """So that an env in another process, which waits for a writer, may answer."""
    free: list[bool] = []

    with a_goal_replay(Kind()) as played:
        in_chunks(played)

        def compute(achieved: Any, desired: Any, infos: Any) -> Any:
            def ask() -> None:
                lock = played.replay.storage.lock
                free.append(lock.acquire(timeout=5))
                if free[-1]:
                    lock.release()

            thread = threading.Thread(target=ask)
            thread.start()
            thread.join()
            return compute_reward(achieved, desired, infos)

        draw_of(Transitions(8, relabel=Hindsight(compute)), played)
    assert free == [True]


def nested_spec() -> Spec:
    """Goals that are dicts."""
    goal = spaces.Dict({"arm": spaces.Box(-1, 1, (2,)), "door": spaces.Discrete(5)})
    space = spaces.Dict(observation=spaces.Discrete(100), achieved_goal=goal, desired_goal=goal)
    return Spec.from_spaces(space, spaces.Discrete(2))


def test_goals_may_be_nested() -> None:
    replay = SequenceReplayBuffer(seed=0)
    replay.bind(nested_spec(), {})
    buffer = EpisodeBuffer(replay.spec, 1, store=replay.add)

    def observed(step: int) -> Any:
        goal = {"arm": np.full(2, step / 10, np.float32), "door": np.int64(step % 5)}
        desired = {"arm": np.full(2, -1, np.float32), "door": np.int64(0)}
        return {"observation": np.int64(step), "achieved_goal": goal, "desired_goal": desired}

    def compute(achieved: Any, desired: Any, infos: Any) -> np.ndarray:
        assert set(achieved) == set(desired) == {"arm", "door"}
        assert infos == [{}] * len(infos)
        found: np.ndarray = desired["door"] * 100 + achieved["door"] + desired["arm"][:, 0]
        return found

    for step in range(9):
        last = step == 8
        buffer.add(observed(step), step % 2, 0.0, observed(step + 1), last, False, env_ids=0)
    replay.add(buffer.take(everything=True))
    batch = replay.sample_transitions(100, relabel=Hindsight(compute, "future", math.inf))
    seen: Any = batch.observation
    number, arm, door = seen["observation"], *(seen["desired_goal"][k] for k in ("arm", "door"))
    goal = np.rint(arm[:, 0] * 10).astype(int)
    assert (goal > number).all()
    assert (door == goal % 5).all()
    expected = door * 100 + (number + 1) % 5 + arm[:, 0]
    np.testing.assert_allclose(batch.reward, expected, rtol=1e-6)


# Refusals


@pytest.mark.parametrize(
    ("relabel", "named"),
    [
        (compute_reward, "Hindsight"),
        (Hindsight(cast("Any", None)), "compute_reward"),
        (Hindsight(compute_reward, cast("Any", "past")), "future, final, episode"),
        (Hindsight(compute_reward, "future", -1), "-1"),
        (Hindsight(compute_reward, "future", math.nan), "nan"),
    ],
)
def test_invalid_arguments_are_refused(relabel: Any, named: str) -> None:
    with a_goal_replay(Kind()) as played:
        in_chunks(played)
        with pytest.raises(ValueError, match=named):
            played.replay.sample_transitions(4, relabel=relabel)


def test_goals_that_are_not_two_of_one_form_or_are_stacks_are_refused() -> None:
    spec = goal_spec(SMALL)
    other = replace(spec["observation/desired_goal"], dtype="float32")
    layout = cast("dict[str, str]", spec.observation)
    without = {key: name for key, name in layout.items() if key != "desired_goal"}
    specs = [
        numbered_spec(),
        replace(spec, fields=tuple(other if f.name == other.name else f for f in spec.fields)),
        replace(
            spec, fields=tuple(f for f in spec.fields if f.name != other.name), observation=without
        ),
    ]
    stacked = tuple(replace(f, stack=3) if f.name.endswith("_goal") else f for f in spec.fields)
    messages = [r"achieved_goal.*desired_goal"] * 3 + ["stack=False"]
    replay = SequenceReplayBuffer()
    for each, message in zip([*specs, replace(spec, fields=stacked)], messages, strict=True):
        replay = SequenceReplayBuffer()
        replay.bind(each, {})
        with pytest.raises(ValueError, match=message):
            replay.count(SOME)
    assert replay.count(SOME._replace(stack=False)) == 0


@pytest.mark.parametrize(
    "compute",
    [lambda a, d, i: 0.0, lambda a, d, i: np.zeros((len(a), 2)), lambda a, d, i: ["x"] * len(a)],
    ids=["one number", "two columns", "text"],
)
def test_rewards_of_another_form_are_refused(compute: Any) -> None:
    with a_goal_replay(Kind()) as played:
        in_chunks(played)
        with pytest.raises(ValueError, match="expected 8 rewards"):
            played.replay.sample_transitions(10, relabel=Hindsight(compute))
        draw_of(SOME, played)


# Another library


def test_goals_are_those_of_stable_baselines3_with_the_same_frequencies() -> None:
    """Its buffer draws from ended episodes alone; there both have the same distribution."""
    her = pytest.importorskip("stable_baselines3.her.her_replay_buffer")
    box = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    space = spaces.Dict(place=box, achieved_goal=box, desired_goal=box)
    lengths = [2, 5, 1, 7]
    for strategy in STRATEGIES:
        env = SimpleNamespace(env_method=lambda *args, **_: [np.arange(len(args[1]))])
        theirs = her.HerReplayBuffer(
            100, space, spaces.Discrete(2), env, "cpu", 1, goal_selection_strategy=strategy
        )
        with a_goal_replay(Kind()) as played:
            whole_episodes(played, [steps + 1 for steps in lengths])
            for episode, steps in enumerate(lengths):
                for step in range(steps):
                    now, then = (
                        {
                            "place": np.array([[episode, number]]),
                            "achieved_goal": np.array([[episode, number]]),
                            "desired_goal": np.array([[-1 - episode, 0]]),
                        }
                        for number in (step, step + 1)
                    )
                    done = np.array([step == steps - 1])
                    theirs.add(now, then, np.zeros(1), np.zeros(1), done, [{}])
            np.random.seed(0)  # noqa: NPY002 - SB3 draws from it
            batch = theirs.sample(10_000)
            place, goal = (
                batch.observations[key].numpy().astype(int) for key in ("place", "desired_goal")
            )
            relabel = Hindsight(compute_reward, strategy)
            ours = draw_of(Transitions(10_000, relabel=relabel), played)
            pairs = [(place, goal), (places_of(ours)[:, 1:], goals_of(ours).astype(int))]
        shares: dict[Hashable, float] = {}
        for episode, steps in enumerate(lengths):
            for step in range(steps):
                shares[episode, step, -1] = 0.2
                rows = {"future": range(step, steps), "episode": range(steps)}.get(
                    strategy, range(steps - 1, steps)
                )
                shares.update({(episode, step, row + 1): 0.8 / len(rows) for row in rows})
        for first, goals in pairs:
            assert ((goals[:, 0] == first[:, 0]) | (goals[:, 0] < 0)).all()
            number = np.where(goals[:, 0] < 0, -1, goals[:, 1])
            assert_shares(Counter(zip(*first.T.tolist(), number.tolist(), strict=True)), shares)
