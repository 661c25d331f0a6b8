"""The whole agent: acting and learning compute equal states; a step moves the right parameters."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import batch_space

pytest.importorskip("torch", reason="needs PyTorch: pip install 'stepwell[torch]'")

import torch
from torch import Tensor

import stepwell as sw
from dreamer.actor_critic import ActorCritic
from dreamer.agent import DreamerPolicy, Models, compute_actions, learning_step
from dreamer.world_model import Rows, State, WorldModel
from support.chi_square import assert_shares
from support.envs.fakes import CounterEnv
from support.libraries.tiny_dreamers import (
    agent,
    changed,
    labelled_envs,
    no_noise,
    random_rows,
    snapshot,
    tiny,
)

MODES = pytest.mark.parametrize("mode", list(AutoresetMode))
NUMBERS = spaces.Box(-np.inf, np.inf, (4,))
ACTIONS: list[spaces.Space[Any]] = [
    spaces.Discrete(3),
    spaces.Discrete(4, start=-2),
    spaces.MultiDiscrete([3, 2]),
    spaces.MultiBinary(2),
    spaces.Box(-2, 5, (2,)),
    spaces.Box(-1, 1, (2, 2), np.float64),
    spaces.Tuple((spaces.Discrete(3, start=1), spaces.Box(0, 1, (1,)))),
    spaces.Dict({"z": spaces.MultiDiscrete([2, 2]), "a": spaces.Box(-1, 1, (2,))}),
]
OBSERVATIONS: list[spaces.Space[Any]] = [
    NUMBERS,
    spaces.Box(-1, 1, (2, 3), np.float64),
    spaces.Discrete(5, start=2),
    spaces.Box(0, 255, (42, 42), np.uint8),
    spaces.Box(0, 255, (30, 20, 3), np.uint8),
    spaces.Box(0, 255, (3, 20, 30), np.uint8),
    spaces.Box(0, 255, (2, 9, 8, 3), np.uint8),
    spaces.Dict({"image": spaces.Box(0, 255, (9, 9, 1), np.uint8), "speed": NUMBERS}),
    spaces.Tuple((spaces.MultiBinary(3), spaces.Discrete(2))),
]
each_action = pytest.mark.parametrize("action", ACTIONS, ids=str)
each_observation = pytest.mark.parametrize("observation", OBSERVATIONS, ids=str)
CARRIED = ["actions", "posteriors", "hidden_states", "initializations"]


def batch_of(space: spaces.Space[Any], count: int, seed: int = 0) -> Any:
    batch = batch_space(space, count)
    batch.seed(seed)
    return batch.sample()


def carried_by(models: Models, count: int) -> dict[str, Any]:
    """Random earlier states, in an episode that continues."""
    latent = torch.nn.functional.one_hot(torch.randint(4, (count, 3)), 4).float()
    return {
        "actions": torch.randn(count, models.utilities.actions.output_dim),
        "posteriors": latent.flatten(-2),
        "hidden_states": torch.randn(count, 10).tanh(),
        "initializations": torch.zeros(count, dtype=torch.bool),
    }


def assert_contract(found: dict[str, Any], models: Models, action: spaces.Space[Any]) -> None:
    actions = models.utilities.actions
    assert batch_space(action, 3).contains(found["env_actions"]), found["env_actions"]
    assert found["actions"].shape == (3, actions.output_dim)
    assert found["posterior"].shape == (3, 3 * 4)
    assert found["hidden_state"].shape == (3, 10)
    assert found["posterior_logits"].shape == (3, 3, 4)
    assert found["action_logits"].shape == (3, actions.input_dim)
    tensors = [found[name] for name in found if name != "env_actions"]
    assert len(tensors) == 5
    for tensor in tensors:
        assert tensor.dtype == torch.float32
        assert tensor.isfinite().all()
        assert not tensor.requires_grad
    # The vectors are those of the actions that the env gets.
    got = actions.from_env(found["env_actions"])
    assert torch.allclose(got, found["actions"], atol=1e-5)
    latents = found["posterior"].view(3, 3, 4)
    assert torch.equal(latents.amax(-1), torch.ones(3, 3))
    assert torch.equal(latents.sum(-1), torch.ones(3, 3))


# compute_actions


@each_action
@pytest.mark.parametrize("greedy", [False, True])
def test_actions_of_any_space_come_as_the_env_takes_them(
    action: spaces.Space[Any], greedy: bool
) -> None:
    models = agent(NUMBERS, action)
    first = compute_actions(batch_of(NUMBERS, 3), models, greedy=greedy)
    assert_contract(first, models, action)
    again = compute_actions(
        batch_of(NUMBERS, 3, seed=1),
        models,
        first["actions"],
        first["posterior"],
        first["hidden_state"],
        torch.tensor([False, True, False]),
        greedy=greedy,
    )
    assert_contract(again, models, action)
    assert again.keys() == first.keys()


@each_observation
def test_observations_of_any_space_are_taken(observation: spaces.Space[Any]) -> None:
    models = agent(observation, ACTIONS[0])
    batch = batch_of(observation, 3)
    assert_contract(compute_actions(batch, models), models, ACTIONS[0])
    assert_contract(compute_actions(batch, models, **carried_by(models, 3)), models, ACTIONS[0])


@pytest.mark.parametrize(
    "given",
    [some for count in (1, 2, 3) for some in itertools.combinations(CARRIED, count)],
    ids=",".join,
)
def test_a_part_of_the_carried_state_without_the_rest_is_refused(given: tuple[str, ...]) -> None:
    """FishyRL's rule for actions without initializations, for all four."""
    models = agent(NUMBERS, ACTIONS[0])
    some = {name: part for name, part in carried_by(models, 3).items() if name in given}
    with pytest.raises(ValueError, match=rf"initializations .*got {', '.join(given)};"):
        compute_actions(batch_of(NUMBERS, 3), models, **some)


def test_without_anything_carried_all_envs_begin() -> None:
    models = agent(NUMBERS, ACTIONS[6])
    batch, carried = batch_of(NUMBERS, 3), carried_by(models, 3)
    carried["initializations"][:] = True
    with no_noise():
        first = compute_actions(batch, models, greedy=True)
        same = compute_actions(batch, models, **carried, greedy=True)
        for name in ("posterior", "hidden_state", "actions", "posterior_logits", "action_logits"):
            assert torch.equal(first[name], same[name]), name
        carried["initializations"][1] = False
        other = compute_actions(batch, models, **carried, greedy=True)
    moved = (other["hidden_state"] != first["hidden_state"]).any(-1)
    assert moved.tolist() == [False, True, False]


@pytest.mark.parametrize("name", CARRIED[:3])
def test_each_part_that_is_carried_counts(name: str) -> None:
    models = agent(NUMBERS, ACTIONS[0])
    batch, carried = batch_of(NUMBERS, 3), carried_by(models, 3)
    with no_noise():
        before = compute_actions(batch, models, **carried)["hidden_state"]
        carried[name] = carried_by(models, 3)[name]
        after = compute_actions(batch, models, **carried)["hidden_state"]
    assert (before != after).any(-1).all()


def test_each_env_is_on_its_own() -> None:
    models = agent(NUMBERS, ACTIONS[7])
    batch, carried = batch_of(NUMBERS, 3), carried_by(models, 3)
    carried["initializations"][2] = True
    with no_noise():
        together = compute_actions(batch, models, **carried, greedy=True)
        for env in range(3):
            own = {name: part[env : env + 1] for name, part in carried.items()}
            alone = compute_actions(batch[env : env + 1], models, **own, greedy=True)
            for name in ("posterior", "hidden_state", "actions", "action_logits"):
                assert torch.allclose(alone[name][0], together[name][env], atol=1e-5), name


def test_what_is_given_stays_as_it_is() -> None:
    models = agent(NUMBERS, ACTIONS[0])
    carried = carried_by(models, 3)
    carried["initializations"][1] = True
    before = {name: part.clone() for name, part in carried.items()}
    compute_actions(batch_of(NUMBERS, 3), models, **carried)
    assert all(torch.equal(carried[name], before[name]) for name in carried)


def test_actions_are_drawn_as_the_logits_say_and_greedy_ones_are_the_likeliest() -> None:
    models, draws = agent(NUMBERS, ACTIONS[1]), 3_000
    batch = np.repeat(batch_of(NUMBERS, 1), draws, 0)
    with patch("dreamer.world_model.sample_one_hot", lambda log_probs: log_probs.exp()):
        drawn = compute_actions(batch, models)
        greedy = compute_actions(batch, models, greedy=True)
    probs = 0.99 * drawn["action_logits"][0].softmax(-1) + 0.01 / 4
    shares = {choice - 2: share for choice, share in enumerate(probs.tolist())}
    assert_shares(Counter(drawn["env_actions"].tolist()), shares)
    assert set(greedy["env_actions"].tolist()) == {int(probs.argmax()) - 2}
    assert torch.equal(drawn["action_logits"], greedy["action_logits"])


# What acts, and what learns


class Numbered(DreamerPolicy):
    """Stores its state after each row in the replay."""

    def __call__(self, observation: Any, is_first: np.ndarray, state: Any) -> Any:
        action, after = super().__call__(observation, is_first, state)
        known = {"hidden": after["hidden"], "latent": after["posterior"]}
        return action, after, known | {"asked": np.ones(len(is_first), bool)}


def counting_envs(mode: AutoresetMode, ends: Any = "terminated") -> Any:
    lengths: list[Any] = [[3, 5, 1], 4, 70]
    make = [partial(CounterEnv, own, tag, ends) for tag, own in enumerate(lengths)]
    return SyncVectorEnv(make, autoreset_mode=mode)


def assert_same_states(models: Models, batch: sw.Batch) -> Counter[str]:
    """`observe` computes from stored rows the states that the policy had when it acted there.

    A sequence's first rows may lie within an episode of which the agent that acted had seen more,
    so it is compared from the first reset on. At an episode's last row there may be nothing to do,
    and at the newest one nothing was done yet.
    """
    model, _, utilities = models
    with torch.no_grad():
        embedded = model.encoder(utilities.observations(batch.observation))
        taken = utilities.actions.from_env(batch.action, 2)
        states, _ = model.rssm.observe(embedded, taken, torch.from_numpy(batch.is_first))
    counts: Counter[str] = Counter()
    for b in range(len(batch.is_first)):
        age = -1
        for t, is_first in enumerate(batch.is_first[b]):
            age = 0 if is_first else age + 1 if age >= 0 else -1
            if not batch.extras["asked"][b, t]:
                assert batch.is_last[b, t] or t == len(batch.is_first[b]) - 1
                continue
            if age < 0:
                continue
            hidden, latent = states.hidden[b, t].numpy(), states.latent[b, t].numpy()
            assert np.allclose(hidden, batch.extras["hidden"][b, t], atol=1e-4), (b, t, age)
            assert np.array_equal(latent, batch.extras["latent"][b, t]), (b, t, age)
            counts["with a past"] += age > 0
            counts["behind another episode"] += bool(is_first) and t > 0
    return counts


@MODES
@pytest.mark.parametrize("kind", ["numbered", "counting", "cut short"])
def test_acting_and_learning_have_the_same_state_at_every_row(
    mode: AutoresetMode, kind: str
) -> None:
    """States carried along by a Collector are those of the stored rows: all is aligned (trap F1).

    Under every autoreset mode, for episodes that end by themselves and for those that are cut.
    """
    if kind == "numbered":
        envs = labelled_envs(mode)
    else:
        envs = counting_envs(mode, "terminated" if kind == "counting" else "truncated")
    models = agent(envs.single_observation_space, envs.single_action_space)
    replay = models.utilities.replay
    with no_noise(), sw.Collector(envs, Numbered(models), replay, seed=0) as collector:
        for steps in (100, 1, 49):
            collector.collect(steps=steps)
        batch = replay.sample_sequences(40, 12, borders="cross")
        counts = assert_same_states(models, batch)
    assert counts["with a past"] > 80
    assert counts["behind another episode"] > 30
    distinct = {row.tobytes() for row in batch.extras["latent"].reshape(-1, 12)}
    assert len(distinct) > 3, "else a state that is never updated would pass"


def test_acting_and_learning_agree_after_an_interrupted_collect() -> None:
    """No sequence joins the two runs without a reset between (trap F2)."""
    envs = counting_envs(AutoresetMode.NEXT_STEP)
    models = agent(envs.single_observation_space, envs.single_action_space)
    replay = models.utilities.replay
    for _ in range(8):
        envs = counting_envs(AutoresetMode.NEXT_STEP)
        with no_noise(), sw.Collector(envs, Numbered(models), replay, seed=0) as collector:
            collector.collect(steps=12)
    batch = replay.sample_sequences(60, 12, borders="cross")
    assert batch.cut.any()
    with no_noise():
        counts = assert_same_states(models, batch)
    assert counts["behind another episode"] > 60


def test_the_row_that_learns_has_the_action_that_the_env_got() -> None:
    """Observed in the row after: so the action of a row led from it to the next one."""
    replay = random_rows()
    models = agent(labelled_envs().single_observation_space, labelled_envs().single_action_space)
    batch = replay.sample_sequences(40, 12, borders="cross")
    stick, button = batch.action
    taken = np.concatenate([stick, button[..., None]], -1)[:, :-1]
    observed = batch.observation["numbers"][:, 1:, 2:5]
    goes_on = ~batch.is_first[:, 1:]
    assert np.allclose(taken[goes_on], observed[goes_on], atol=1e-6)
    assert not observed[~goes_on].any()
    with patch.object(models.world_model, "learn", side_effect=StopIteration) as learn:
        with pytest.raises(StopIteration):
            learning_step(batch, models)
    rows: Rows = learn.call_args.args[0]
    assert np.allclose(rows.reward.numpy(), batch.reward)
    assert np.array_equal(rows.is_first.numpy(), batch.is_first)
    assert np.array_equal(rows.terminated.numpy(), batch.terminated)
    assert rows.is_first.dtype == rows.terminated.dtype == torch.bool
    assert rows.reward.dtype == torch.float32
    assert torch.equal(rows.action, models.utilities.actions.from_env(batch.action, 2))
    scaled = 2 * (stick + 2) / 5 - 1
    assert np.allclose(rows.action[..., :2].numpy(), scaled, atol=1e-5)
    assert np.array_equal(
        rows.action[..., 2:].argmax(-1)[:, :-1][goes_on] + 1, taken[goes_on][:, 2]
    )


def test_a_policy_s_state_begins_as_zeros_and_goes_back_when_an_episode_begins() -> None:
    models = agent(NUMBERS, ACTIONS[0])
    policy = DreamerPolicy(models)
    start = policy.initial_state(3)
    assert {name: part.shape for name, part in start.items()} == {
        "action": (3, 3),
        "posterior": (3, 12),
        "hidden": (3, 10),
    }
    assert all(part.dtype == np.float32 and not part.any() for part in start.values())
    rng = np.random.default_rng(0)
    used = {name: rng.normal(size=part.shape).astype(np.float32) for name, part in start.items()}
    first, batch = np.array([True, False, True]), batch_of(NUMBERS, 3)
    with no_noise():
        _, fresh = policy(batch, np.ones(3, bool), start)
        _, after = policy(batch, first, used)
    assert list(fresh) == list(start)
    for name in ("posterior", "hidden"):
        assert isinstance(after[name], np.ndarray)
        assert np.array_equal(after[name][first], fresh[name][first])
    assert not np.array_equal(after["hidden"][1], fresh["hidden"][1])


def test_on_override_gets_the_action_that_was_taken() -> None:
    space = spaces.Tuple((spaces.Discrete(3), spaces.Box(-2, 4, (2,), np.float32)))
    policy = DreamerPolicy(agent(NUMBERS, space))
    before = {name: part + 1 for name, part in policy.initial_state(2).items()}
    taken = np.array([2, 0]), np.array([[-2, 4], [1, 2.5]], np.float32)
    after = policy.on_override(taken, before)
    assert after["action"].tolist() == [[0, 0, 1, -1, 1], [1, 0, 0, 0, 0.5]]
    assert after["action"].dtype == np.float32
    assert after["hidden"] is before["hidden"]
    assert after["posterior"] is before["posterior"]


def test_a_greedy_policy_takes_the_likeliest_action_and_another_one_draws() -> None:
    models, batch = agent(NUMBERS, ACTIONS[0]), np.repeat(batch_of(NUMBERS, 1), 200, 0)
    first = np.ones(200, bool)
    with patch("dreamer.world_model.sample_one_hot", lambda log_probs: log_probs.exp()):
        kinds = [DreamerPolicy(models, greedy=True), DreamerPolicy(models)]
        found = [set(one(batch, first, one.initial_state(200))[0].tolist()) for one in kinds]
    assert [len(choices) for choices in found] == [1, 3]


# learning_step


def learner(**numbers: Any) -> tuple[Models, sw.Batch]:
    """An agent, and a batch of sequences of which most hold the end of an episode."""
    envs, replay = labelled_envs(), random_rows()
    models = agent(envs.single_observation_space, envs.single_action_space, tiny(**numbers), replay)
    batch = replay.sample_sequences(4, 6, borders="cross")
    assert batch.is_first[:, 1:].any()
    assert batch.terminated.any()
    assert batch.truncated.any()
    return models, batch


def test_a_learning_step_moves_all_parameters_and_returns_losses() -> None:
    models, batch = learner(free_nats=0)
    before = [snapshot(net) for net in models[:2]]
    learning_step(batch, models)
    metrics = learning_step(batch, models)
    for net, was in zip(models[:2], before, strict=True):
        assert changed(net, was) == was.keys()
    assert metrics.keys() == {
        *("model", "reconstruction", "reward", "continue", "kl_dyn", "kl_rep"),
        *("actor", "critic", "entropy", "value"),
    }
    for name, value in metrics.items():
        assert value.shape == (), name
        assert value.isfinite(), name
        assert not value.requires_grad, name
    assert models.utilities.scale.average.abs().sum() > 0


def test_the_model_learns_without_actor_and_critic_and_they_do_not_move_it() -> None:
    models, batch = learner(free_nats=0)
    before = [snapshot(net) for net in models[:2]]
    with patch.object(ActorCritic, "learn", return_value={}):
        learning_step(batch, models)
    assert changed(models.world_model, before[0]) == before[0].keys()
    assert not changed(models.actor_critic, before[1])
    states = State(torch.zeros(4, 6, 10), torch.zeros(4, 6, 12))
    before = [snapshot(net) for net in models[:2]]
    with patch.object(WorldModel, "learn", return_value=(states, {})):
        learning_step(batch, models)
    assert not changed(models.world_model, before[0])
    assert changed(models.actor_critic, before[1]) == before[1].keys()


def dreamt_from(models: Models, batch: sw.Batch) -> tuple[State, Tensor]:
    """The states from which a learning step imagines, and which of them did not end."""
    with patch.object(models.actor_critic, "dream", side_effect=StopIteration) as dream:
        with pytest.raises(StopIteration):
            learning_step(batch, models)
    _, start, goes_on = dream.call_args.args
    return start, goes_on


def test_all_rows_are_dreamt_from_but_those_that_ended_weigh_nothing() -> None:
    """Truncated ones count in full: only the clock ended there."""
    models, batch = learner(starts=None)
    torch.manual_seed(1)
    start, goes_on = dreamt_from(models, batch)
    again, _ = learner(starts=None)
    torch.manual_seed(1)
    _, states, _ = again.world_model.loss(rows_as_given(again, batch))
    assert torch.allclose(start.features, states.features.flatten(0, 1), atol=1e-5)
    assert np.array_equal(goes_on.numpy(), ~batch.terminated.reshape(-1))
    assert not any(part.requires_grad for part in start)


def rows_as_given(models: Models, batch: sw.Batch) -> Rows:
    with patch.object(models.world_model, "learn", side_effect=StopIteration) as learn:
        with pytest.raises(StopIteration):
            learning_step(batch, models)
    rows: Rows = learn.call_args.args[0]
    return rows


def test_some_rows_are_drawn_to_dream_from_each_with_its_own_end() -> None:
    models, batch = learner(starts=7)
    rows = torch.arange(24.0).view(4, 6, 1)
    states = State(rows.expand(4, 6, 10), -rows.expand(4, 6, 12))
    drawn: Counter[int] = Counter()
    with patch.object(WorldModel, "learn", return_value=(states, {})):
        for _ in range(300):
            start, goes_on = dreamt_from(models, batch)
            index = start.hidden[:, 0].int().numpy()
            assert len(set(index)) == len(start.latent) == len(goes_on) == 7
            assert np.array_equal(start.latent[:, 0].int().numpy(), -index)
            assert np.array_equal(goes_on.bool().numpy(), ~batch.terminated.reshape(-1)[index])
            drawn.update(index.tolist())
    assert drawn.keys() == set(range(24))
    assert min(drawn.values()) > 40, "of 87.5 expected"


def test_more_starts_than_rows_are_all_rows() -> None:
    models, batch = learner(starts=1_000)
    start, _ = dreamt_from(models, batch)
    assert len(start.hidden) == 24


def step_with(batch: sw.Batch, **numbers: Any) -> dict[str, float]:
    models, _ = learner(**numbers)
    torch.manual_seed(4)
    metrics = learning_step(batch, models)
    return {name: value.item() for name, value in metrics.items()}


def test_a_truncated_episode_goes_on_for_the_model_and_a_terminated_one_does_not() -> None:
    _, batch = learner()
    found = step_with(batch)
    flags: dict[str, Any] = {
        "truncated": ~batch.truncated,
        "is_last": ~batch.is_last,
        "cut": ~batch.cut,
    }
    assert step_with(replace(batch, **flags)) == found, "only is_first and terminated are looked at"
    other = step_with(replace(batch, terminated=~batch.terminated))
    assert other["continue"] != found["continue"]
    assert other["actor"] != found["actor"]
    assert step_with(replace(batch, is_first=~batch.is_first))["model"] != found["model"]


def test_tensors_are_taken_like_arrays() -> None:
    _, batch = learner()
    assert step_with(sw.bridges.to_torch(batch)) == step_with(batch)


def test_the_same_generator_gives_the_same_step() -> None:
    _, batch = learner()
    assert step_with(batch) == step_with(batch)


def test_gamma_comes_in_once_between_the_model_and_the_critic() -> None:
    """F8: reward 1 and certainly going on, so the last step's return at lambda 0 is 1 + gamma v."""
    models, batch = learner(gamma=0.5, lam=0.0)
    for name in ("expected_reward", "continues"):
        setattr(models.world_model, name, lambda features: torch.ones(features.shape[:-1]))
    two_hot = models.actor_critic.two_hot
    with patch.object(two_hot, "mean", lambda logits: torch.full(logits.shape[:-1], 3.0)):
        with patch.object(two_hot, "loss", wraps=two_hot.loss) as loss:
            learning_step(batch, models)
    returns = loss.call_args_list[0].args[1]
    assert returns.flatten().tolist() == pytest.approx([1 + 0.5 * 3] * returns.numel())


def test_the_continue_head_learns_a_probability_without_gamma_in_it() -> None:
    """F8, the other half: where nothing ended its loss falls below what gamma 0.5 would leave."""
    models, batch = learner(gamma=0.5)
    batch = replace(batch, terminated=np.zeros_like(batch.terminated))
    optimizer = models.world_model.optimizer
    optimizer.param_groups[0]["lr"] = 1e-2
    for _ in range(40):
        learning_step(batch, models)
    metrics = learning_step(batch, models)
    assert metrics["continue"].item() < 0.05  # an entropy of 0.69 nats would be left


def test_many_steps_on_a_few_rows_lower_the_model_s_losses() -> None:
    """By about half the least factors that were seen with five seeds: 2.2, 4.7 and 6."""
    envs, replay = labelled_envs(), random_rows(60)
    numbers = tiny(world_lr=1e-2, embedded=32, dense=32, deterministic=32, channels=4, bins=31)
    models = agent(
        envs.single_observation_space,
        envs.single_action_space,
        numbers,
        replay,
        stirred=False,
    )
    history: list[dict[str, float]] = []
    for _ in range(150):
        batch = replay.sample_sequences(4, 8, borders="cross")
        metrics = learning_step(batch, models)
        history.append({name: value.item() for name, value in metrics.items()})
    for name, factor in {"reconstruction": 1.6, "reward": 2.5, "continue": 3}.items():
        before = np.mean([metrics[name] for metrics in history[:5]])
        after = np.mean([metrics[name] for metrics in history[-10:]])
        assert after < before / factor, (name, before, after)


def test_unsupported_spaces_are_refused() -> None:
    with pytest.raises(ValueError, match=r"action space: .*finite.*\[-inf\] to \[inf\]"):
        agent(NUMBERS, spaces.Box(-np.inf, np.inf, (1,)))
    with pytest.raises(TypeError, match=r"observation space Text\(.*Box, Discrete"):
        agent(spaces.Text(3), ACTIONS[0])


def test_the_prefill_adds_no_gradient_steps() -> None:
    models = agent(NUMBERS, ACTIONS[0], tiny(replay_ratio=0.5, pretrain_steps=100))
    assert [models.utilities.ratio(steps) for steps in (0, 100, 104, 105, 106)] == [0, 0, 2, 0, 1]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that PyTorch can use")
def test_on_a_gpu_it_acts_and_learns_like_on_the_cpu() -> None:
    replay = random_rows()
    batch = replay.sample_sequences(4, 6, borders="cross")
    found = []
    for device in ("cpu", "cuda"):
        envs = labelled_envs()
        kinds = envs.single_observation_space, envs.single_action_space
        models = agent(*kinds, tiny(starts=None), replay, device=device)
        assert all(part.device.type == device for part in models.world_model.parameters())
        with no_noise():
            metrics = learning_step(batch, models)
            acted = compute_actions(batch_of(kinds[0], 3), models, greedy=True)
        assert all(value.device.type == device for value in metrics.values())
        assert acted["actions"].device.type == device
        assert isinstance(acted["env_actions"][1], np.ndarray)
        found.append({name: metrics[name].item() for name in ("reconstruction", "reward")})
        with sw.Collector(envs, DreamerPolicy(models), None, seed=0) as collector:
            collector.collect(steps=6)
    assert found[0] == pytest.approx(found[1], rel=1e-2)
