"""Checks of envs that run in JAX, for a process of their own: those that are named, or all.

Once JAX is loaded, a process that forks is warned; other tests fork. Says the names of the checks
that passed, one a line, and behind a name why a check was left out.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import os
import pickle
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from doctest import DocTestFinder, DocTestRunner
from functools import cache, partial
from typing import Any, NamedTuple

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs import functional_jax_env
from gymnasium.envs.phys2d.cartpole import CartPoleFunctional
from gymnasium.envs.phys2d.pendulum import PendulumFunctional
from gymnasium.vector import AutoresetMode

import stepwell as sw
from stepwell.buffers import End, SequenceReplayBuffer
from stepwell.buffers.libraries import jax_learners
from stepwell.buffers.libraries.jax_learners import JaxPolicy
from stepwell.collectors.loop.collector import Seeds
from stepwell.wrappers import jax_envs


class LeftOut(Exception):
    """A check cannot run here; the text says why."""


class Walk(NamedTuple):
    """The state of a `Walker`."""

    place: Any
    steps: Any


class Walker:
    """An env of whole numbers that ends at random in each of the three ways.

    Args:
        dtype: Dtype of the number that is observed.
    """

    observation_space = spaces.Dict(
        {"place": spaces.Box(-999, 999, (2,), np.int32), "steps": spaces.Box(0, 999, (), np.int32)}
    )
    action_space = spaces.Discrete(5, dtype=np.int32)

    def _observation(self, state: Walk) -> Any:
        return {"place": state.place, "steps": state.steps}

    def reset(self, key: Any) -> Any:
        state = Walk(jax.random.randint(key, (2,), -9, 9), jnp.int32(0))
        return state, self._observation(state)

    def step(self, key: Any, state: Walk, action: Any) -> Any:
        drawn = jax.random.randint(key, (3,), 0, 8)
        after = Walk(state.place + action * drawn[2], state.steps + 1)
        info = {"drawn": drawn[2]}
        reward = (action - drawn[2]).astype(jnp.float32)
        ends = drawn[0] == 0, drawn[1] == 0
        return after, self._observation(after), reward, *ends, info


def wander(params: Any, key: Any, observation: Any, is_first: Any) -> Any:
    """Actions for a `Walker`, of all arguments, with extras."""
    drawn = jax.random.randint(key, is_first.shape, 0, 5, dtype=jnp.int32)
    action = (drawn + observation["steps"] + params) % 5
    return action, {"drawn": drawn, "begins": is_first}


def act(params: Any, key: Any, observation: Any, is_first: Any) -> Any:
    """Actions of two, drawn by a linear function, and their log-probability."""
    logits = observation.reshape(len(is_first), -1)[:, :4] @ params
    action = jax.random.categorical(key, logits)
    log_prob = jax.nn.log_softmax(logits)[jnp.arange(len(action)), action]
    return action, {"log_prob": log_prob, "value": logits.mean(axis=1)}


def push(params: Any, key: Any, observation: Any, is_first: Any) -> Any:
    """Continuous actions."""
    mean = jnp.tanh(observation[:, :3] @ params)
    noise = jax.random.normal(key, mean.shape)
    return mean + 0.3 * noise, {"log_prob": (-0.5 * noise**2).sum(axis=1)}


class Stepped:
    """A policy that a Collector does not know as one of JAX: envs are stepped one by one."""

    def __init__(self, policy: JaxPolicy) -> None:
        self._policy, self.begin = policy, policy.begin
        if hasattr(policy, "value"):
            self.value = policy.value

    def __call__(self, observation: Any, is_first: np.ndarray) -> Any:
        """The policy's result."""
        return self._policy(observation, is_first)


class Case(NamedTuple):
    """Envs, which keep what they have compiled and are given again, and a policy."""

    envs: Callable[[int], sw.JaxEnvs]
    policy: Callable[[], JaxPolicy]


WEIGHTS = np.linspace(-1, 1, 8, dtype=np.float32).reshape(4, 2)
WALK = Case(
    cache(lambda n: sw.JaxEnvs(Walker(), n, max_episode_steps=9)),
    cache(lambda: sw.bridges.jax_policy(wander, jnp.int32(1))),
)
CARTPOLE = Case(
    cache(lambda n: sw.JaxEnvs(CartPoleFunctional(), n, max_episode_steps=40)),
    cache(
        lambda: sw.bridges.jax_policy(
            act, WEIGHTS, value=lambda params, seen: (seen @ params)[:, 0]
        )
    ),
)
PENDULUM = Case(
    cache(lambda n: sw.JaxEnvs(PendulumFunctional(), n, max_episode_steps=50)),
    cache(lambda: sw.bridges.jax_policy(push, WEIGHTS[:3, :1])),
)


def rows_of(replay: SequenceReplayBuffer) -> list[Any]:
    """All that a replay holds, but for how its rows are chunked."""
    return [
        (one.id, one.stream, one.end, one.metadata, {k: v.tobytes() for k, v in one.fields.items()})
        for one in replay.iter_episodes()
    ]


def assert_same_rows(
    case: Case, num_envs: int = 8, has_functions: bool = False, **options: Any
) -> SequenceReplayBuffer:
    """A Collector that scans gives rows, rollouts and reports of one that steps.

    With ``has_functions`` it shows functions of the user the same, too.
    """
    replays: list[SequenceReplayBuffer] = []
    seen: list[list[Any]] = [[], []]
    rollouts: list[list[Any]] = [[], []]
    for number, wrap in enumerate((lambda policy: policy, Stepped)):
        replay = SequenceReplayBuffer(seed=0)
        envs, policy = case.envs(num_envs), wrap(case.policy())

        def on_step(step: Any, seen: list[Any] = seen[number]) -> None:
            seen.append(jax.tree.map(lambda a: np.asarray(a).tolist(), tuple(step)))

        if has_functions:
            options |= {"on_step": on_step, "on_episode": seen[number].append}
        with sw.Collector(envs, policy, replay, seed=3, **options) as collector:
            calls: list[Callable[[], object]] = [
                partial(collector.collect, steps=700),
                *(partial(collector.rollout, k) for k in (7, 13, 64, 1)),
                partial(collector.collect, steps=1),
                partial(collector.collect, episodes=9),
                partial(collector.collect, seeds=[5, 6, 7, 8, 9, 10, 11, 12, 13, 14]),
                partial(collector.collect, steps=300),
            ]
            for call in calls:
                if isinstance(given := call(), sw.Rollout):
                    rollouts[number].append(vars_of(given))
                report = collector.report.to_json()
                seen[number].append({k: v for k, v in report.items() if "second" not in k})
                for name in ("stored_bytes", "compression"):  # chunks may be others
                    del seen[number][-1][name]
        replays.append(replay)
    assert seen[0] == seen[1]
    assert_same_tree(*rollouts)
    scanned, stepped = map(rows_of, replays)
    assert scanned == stepped
    return replays[0]


def check_the_rows_of_whole_numbers_are_those_of_single_steps() -> None:
    replay = assert_same_rows(WALK, info={"drawn": -1, "unknown": 2.5}, has_functions=True)
    ends = {int(one.end) for one in replay.iter_episodes()}
    assert {int(End.TERMINATED), int(End.TRUNCATED), 3} <= ends


def check_the_rows_of_a_network_are_those_of_single_steps() -> None:
    assert_same_rows(CARTPOLE)


def check_the_rows_of_continuous_actions_are_those_of_single_steps() -> None:
    assert_same_rows(PENDULUM)


def check_the_rows_are_those_of_a_loop_over_one_env_at_a_time() -> None:
    """The model: plain functions, the documented keys, and no vector env."""
    n, seed, limit = 3, 3, 9
    replay = SequenceReplayBuffer(seed=0)
    with sw.Collector(WALK.envs(n), WALK.policy(), replay, seed=seed) as collector:
        collector.collect(steps=400)
    stored = [[one for one in replay.iter_episodes() if one.stream == env] for env in range(n)]
    # The seed of the reset is in the metadata; the policy's key comes from a generator.
    policy_key = jax.random.key(int(Seeds(seed, 0).policy_rng().integers(1 << 32)))
    env = Walker()
    reset, step, choose = jax.jit(env.reset), jax.jit(env.step), jax.jit(wander)  # whole numbers
    seeds: list[Any] = [episodes[0].metadata["seed"] for episodes in stored]
    keys = [jax.random.key(one) for one in seeds]
    states: list[Any] = [None] * n
    action: Any = None
    extras: Any = None
    model: list[list[dict[str, Any]]] = [[] for _ in range(n)]
    for number in range(-1, sum(one.rows for one in stored[0]) - 1):
        if number >= 0:
            seen = [rows[-1]["seen"] for rows in model]
            together = {name: jnp.stack([one[name] for one in seen]) for name in seen[0]}
            first = jnp.array([rows[-1]["first"] for rows in model])
            now = jax.random.fold_in(policy_key, number)
            action, extras = choose(jnp.int32(1), now, together, first)
        for i, rows in enumerate(model):
            keys[i], now = jax.random.split(keys[i])
            if number < 0 or rows[-1]["end"]:
                states[i], shown = reset(now)
                rows.append({"seen": shown, "reward": 0.0, "first": True, "end": 0})
                continue
            rows[-1] |= {"action": int(action[i]), "drawn": int(extras["drawn"][i])}
            states[i], shown, reward, terminated, truncated, _ = step(now, states[i], action[i])
            late = bool(truncated) or int(shown["steps"]) >= limit
            end = int(terminated) * int(End.TERMINATED) | late * int(End.TRUNCATED)
            rows.append({"seen": shown, "reward": float(reward), "first": False, "end": end})
    for episodes, rows in zip(stored, model, strict=True):
        names = "observation/place", "observation/steps", "reward", "action", "extra/drawn"
        found = [
            tuple(np.asarray(value).tolist() for value in row)
            for one in episodes
            for row in zip(*(one.fields[name] for name in names), strict=True)
        ]
        wanted = [
            (
                *(np.asarray(row["seen"][name]).tolist() for name in ("place", "steps")),
                *(row["reward"], row.get("action", 0), row.get("drawn", 0)),
            )
            for row in rows
        ]
        if len(wanted) == len(found) + 1:  # the reset's row of an episode without a step
            assert wanted.pop()[1] == 0
        assert found == wanted
        ends = [row["end"] for row in rows if row["end"]]
        assert [int(one.end) for one in episodes if int(one.end) & 3] == ends


def vars_of(rollout: sw.Rollout) -> dict[str, Any]:
    names = "observation action reward is_first terminated truncated cut mask info extras".split()
    ends = rollout.bootstrap
    return {name: getattr(rollout, name) for name in names} | {
        "bootstrap": [ends.step, ends.env, ends.observation, ends.value],
        "returns": list(rollout.episode_returns),
        "lengths": list(rollout.episode_lengths),
    }


def assert_same_tree(one: Any, two: Any) -> None:
    """Nested arrays are the same, with their dtypes."""
    leaves = [jax.tree.flatten(each, is_leaf=lambda leaf: leaf is None) for each in (one, two)]
    assert leaves[0][1] == leaves[1][1]
    for a, b in zip(leaves[0][0], leaves[1][0], strict=True):
        if a is None:
            assert b is None
            continue
        assert np.asarray(a).dtype == np.asarray(b).dtype
        np.testing.assert_array_equal(a, b)


def check_an_error_of_the_users_function_keeps_the_rows_that_were_counted() -> None:
    kept: list[Any] = []
    for wrap in (lambda policy: policy, Stepped):
        raised: list[int] = []

        def on_step(step: Any, raised: list[int] = raised) -> None:
            if step.total_steps >= 12 and not raised:
                raised.append(step.total_steps)
                raise RuntimeError("enough")

        replay = SequenceReplayBuffer(seed=0)
        with sw.Collector(
            WALK.envs(2), wrap(WALK.policy()), replay, seed=2, on_step=on_step
        ) as collector:
            with pytest.raises(RuntimeError, match="enough") as caught:
                collector.collect(steps=60)
            notes = caught.value.__notes__
            assert any(f"kept: {raised[0]} steps" in note for note in notes), notes
            collector.collect(steps=60)  # what the policy draws goes on behind the last step seen
        kept.append(rows_of(replay))
    assert kept[0] == kept[1]


def check_an_action_outside_of_the_space_is_refused_before_a_row_is_stored() -> None:
    replay = SequenceReplayBuffer(seed=0)
    policy = sw.bridges.jax_policy(
        lambda params, key, seen, first: jnp.full(first.shape, 5, jnp.int32)
    )
    with (
        sw.Collector(WALK.envs(2), policy, replay, seed=0) as collector,
        pytest.raises(ValueError, match=r"action 5 .*Discrete\(5"),
    ):
        collector.collect(steps=10)
    assert not replay.is_bound


def check_other_params_need_no_other_compilation() -> None:
    traced: list[int] = []

    def counted(params: Any, key: Any, observation: Any, is_first: Any) -> Any:
        traced.append(1)
        return act(params, key, observation, is_first)

    policy = sw.bridges.jax_policy(counted, WEIGHTS)
    digests = []
    with sw.Collector(CARTPOLE.envs(4), policy, SequenceReplayBuffer(seed=0), seed=0) as collector:
        collector.rollout(16)
        before = len(traced)
        for factor in (2.0, -3.0):
            policy.params = WEIGHTS * np.float32(factor)
            digests.append(collector.rollout(16).extras["value"].tobytes())
            collector.collect(steps=40)
    assert len(traced) == before
    assert len(set(digests)) == 2


def check_the_envs_are_a_right_vector_env() -> None:
    envs = sw.JaxEnvs(Walker(), 3)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    with pytest.raises(ValueError, match="reset before"):
        envs.step(np.zeros(3, np.int32))
    first, info = envs.reset(seed=4)
    assert info == {}
    assert envs.observation_space.contains(first)
    again, _ = envs.reset(seed=[4, 5, 6])
    assert_same_tree(first, again)
    later, _ = envs.reset()
    assert not np.array_equal(first["place"], later["place"])
    with pytest.raises(ValueError, match="2"):
        envs.reset(seed=[1, 2])
    with pytest.raises(ValueError, match="options"):
        envs.reset(seed=1, options={"reset_mask": np.ones(3, bool)})
    assert sw.check_vector_env(lambda: sw.JaxEnvs(Walker(), 3, max_episode_steps=9)) is not None


def check_a_policy_of_jax_steps_any_env() -> None:
    policy = sw.bridges.jax_policy(act, WEIGHTS)
    with sw.Collector(sw.make_vec("CartPole-v1", 2, num_workers=0), policy, seed=0) as collector:
        rollout = collector.rollout(16)
    assert sorted(rollout.extras) == ["log_prob", "value"]
    assert not np.array_equal(rollout.action, np.zeros_like(rollout.action))


class Wrong(Walker):
    """A `Walker` one of whose functions is replaced."""

    def __init__(self, **changes: Any) -> None:
        for name, value in changes.items():
            setattr(self, name, value)


def wrong_envs() -> Iterator[tuple[type[Exception], str, Callable[[], Any]]]:
    """Errors, a pattern of their text, and what is wrong."""
    right = Walker()

    def stepping(change: Callable[[Any], Any]) -> Callable[..., Any]:
        return lambda *given: change(right.step(*given))

    def other(place: int, value: Any) -> Callable[[Any], Any]:
        return lambda result: (*result[:place], value, *result[place + 1 :])

    yield TypeError, "observation_space", lambda: object()
    yield TypeError, "action_space.*5", lambda: Wrong(action_space=5)
    yield TypeError, "instance", lambda: Walker
    # As envs of other libraries with gymnax's interface, of which a new gymnax would not help.
    theirs = {"step_env": None, "reset_env": None, "__module__": "craftax.envs"}
    yield TypeError, r"is_truncated.*Crafting of craftax(?!.*gymnax)", type("Crafting", (), theirs)
    old = {**theirs, "__module__": "gymnax.environments"}
    yield TypeError, r"is_truncated.*Old of gymnax.*pip install -U gymnax", type("Old", (), old)
    box = spaces.Box(0, 1, (3,))
    yield ValueError, "observation.*Tuple", lambda: Wrong(observation_space=spaces.Tuple([box]))
    float_steps = {"place": right.observation_space["place"], "steps": box}
    yield ValueError, "steps.*int32", lambda: Wrong(observation_space=spaces.Dict(float_steps))
    yield ValueError, r"reward.*\(2,\)", lambda: Wrong(step=stepping(other(2, jnp.zeros(2))))
    yield ValueError, "structure", lambda: Wrong(step=stepping(other(0, (1, 2, 3))))
    yield (
        ValueError,
        "float32",
        lambda: Wrong(step=stepping(lambda r: (r[0]._replace(steps=1.0), *r[1:]))),
    )


def check_wrong_envs_are_refused_before_the_first_step() -> None:
    for error, words, make in wrong_envs():
        with pytest.raises(error, match=words):
            sw.JaxEnvs(make(), 2)
    for number in (0, True, 2.0):
        with pytest.raises(ValueError, match="num_envs"):
            sw.JaxEnvs(Walker(), number)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_episode_steps"):
        sw.JaxEnvs(Walker(), 2, max_episode_steps=0)
    with pytest.raises(TypeError, match="params"):
        sw.JaxEnvs(Walker(), 2, params=3)
    with pytest.raises(TypeError, match="function"):
        sw.bridges.jax_policy(5)  # type: ignore[arg-type]


def check_envs_are_not_pickled_or_copied() -> None:
    envs = sw.JaxEnvs(Walker(), 2)
    for copied in (pickle.dumps, copy.deepcopy, copy.copy):
        with pytest.raises(TypeError, match=r"cannot be pickled or copied: .*from a function"):
            copied(envs)


def check_gymnasiums_own_vector_env_which_drops_steps_is_refused() -> None:
    def made(num_envs: int) -> Any:
        return functional_jax_env.FunctionalJaxVectorEnv(
            CartPoleFunctional(), num_envs, metadata={"autoreset_mode": AutoresetMode.NEXT_STEP}
        )

    move = jax.jit(jax.vmap(lambda state, action: CartPoleFunctional().transition(state, action)))
    envs = made(4)
    envs.reset(seed=0)
    dropped = 0
    for _ in range(60):
        has_reset, before, action = envs.prev_done, envs.state, jnp.ones(4, jnp.int32)
        envs.step(action)
        others = ~np.asarray(has_reset)
        moved = np.isclose(move(before, action), envs.state, atol=1e-4).all(axis=1)
        assert np.asarray(has_reset).any() or moved.all()
        dropped += int((others & ~moved).sum())
    assert dropped > 0  # else it is mended, and need not be refused
    replay = SequenceReplayBuffer()
    for refuse in (lambda: sw.Collector(envs, "random"), lambda: sw.record(envs, replay)):
        with pytest.raises(ValueError, match=r"FunctionalJaxVectorEnv.*JaxEnvs.*make_vec"):
            refuse()
    with sw.Collector(made(1), "random", replay, seed=0) as collector:
        collector.collect(steps=30)  # of one env there are no others
    assert sw.check_vector_env(made(4), steps=100).stands_still


def needs(module: str) -> Any:
    """An optional library."""
    if importlib.util.find_spec(module.partition(".")[0]) is None:
        raise LeftOut(f"needs {module}")
    return importlib.import_module(module)


def check_gymnax_rows_are_those_of_single_steps() -> None:
    gymnax = needs("gymnax")
    for name, policy in (("CartPole-v1", act), ("Pendulum-v1", push), ("Breakout-MinAtar", act)):
        env, params = gymnax.make(name)
        weights = WEIGHTS[:3, :1] if policy is push else WEIGHTS
        case = Case(
            cache(partial(sw.JaxEnvs, env, params=params)),
            cache(partial(sw.bridges.jax_policy, policy, weights)),
        )
        assert_same_rows(case, 4)


def check_gymnax_time_limits_and_ends_are_apart() -> None:
    gymnax = needs("gymnax")
    env, params = gymnax.make("CartPole-v1")
    params = params.replace(max_steps_in_episode=25)
    replay = SequenceReplayBuffer(seed=0)
    with sw.Collector(
        sw.JaxEnvs(env, 8, params=params), sw.bridges.jax_policy(act, WEIGHTS), replay, seed=0
    ) as collector:
        collector.collect(steps=3000)
    ends = [(int(one.end) & 3, one.steps) for one in replay.iter_episodes()]
    assert {2} <= {end for end, _ in ends}
    assert {1} <= {end for end, _ in ends}
    for end, steps in ends:
        if end:
            assert (end & int(End.TRUNCATED) > 0) == (steps == 25)


def check_brax_rows_are_those_of_single_steps() -> None:
    if "full" not in sys.argv:
        raise LeftOut("needs --full: Brax compiles for minutes")
    with warnings.catch_warnings():  # that it is not maintained, and of its own use of MuJoCo
        warnings.simplefilter("ignore")
        envs = needs("brax.envs")
        wrappers = importlib.import_module("brax.envs.wrappers.training")
        inner = envs.get_environment("inverted_pendulum", backend="spring")
        limited = wrappers.EpisodeWrapper(inner, episode_length=20, action_repeat=1)
        case = Case(
            cache(partial(sw.JaxEnvs, limited)),
            cache(partial(sw.bridges.jax_policy, push, WEIGHTS[:3, :1])),
        )
        made = case.envs(4)
        assert made.single_action_space == spaces.Box(-3, 3, (1,), np.float32)
        replay = assert_same_rows(case, 4)
        ends = [(int(one.end) & 3, one.steps) for one in replay.iter_episodes()]
        assert (int(End.TRUNCATED), 20) in ends
        assert all(steps <= 20 for _, steps in ends)
        for wrapper in ("AutoResetWrapper", "VmapWrapper"):
            with pytest.raises(TypeError, match=wrapper):
                sw.JaxEnvs(getattr(wrappers, wrapper)(limited), 2)


def check_the_examples_in_docstrings_run() -> None:
    for module in (jax_envs, jax_learners):
        for test in DocTestFinder().find(module):
            report: list[str] = []
            assert DocTestRunner(verbose=False).run(test, out=report.append).failed == 0, report


ON_ANY_DEVICE = [
    "check_the_rows_of_whole_numbers_are_those_of_single_steps",
    "check_the_rows_are_those_of_a_loop_over_one_env_at_a_time",
    "check_other_params_need_no_other_compilation",
]
CHECKS = [name for name in list(globals()) if name.startswith("check_")]

if __name__ == "__main__":
    if "any-device" in sys.argv:
        assert jax.default_backend() != "cpu"
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        # Each envs compile their own loops; many here are the same.
        jax.config.update("jax_compilation_cache_dir", f"{place}/compiled")
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        named = [name for name in CHECKS if name in sys.argv]
        for name in ON_ANY_DEVICE if "any-device" in sys.argv else named or CHECKS:
            began = time.perf_counter()
            try:
                globals()[name]()
            except LeftOut as reason:
                print(name, f"left out: {reason}", flush=True)
            else:
                print(name, flush=True)
            print(f"{time.perf_counter() - began:.1f} s", file=sys.stderr)
