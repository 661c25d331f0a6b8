"""The world model against plain loops: inputs of a row, resets, and the loss."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch", reason="needs PyTorch: pip install 'stepwell[torch]'")

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from dreamer.config import Config
from dreamer.nets import Seen, Shapes
from dreamer.world_model import RSSM, Rows, State, WorldModel
from support.examples import examples
from support.libraries.tiny_dreamers import changed, no_noise, snapshot, stir, tiny

EMBEDDED, ACTION = 6, 3
resets = st.lists(st.lists(st.booleans(), min_size=5, max_size=5), min_size=1, max_size=3)


def rssm(config: Config | None = None) -> RSSM:
    torch.manual_seed(0)
    net = RSSM(EMBEDDED, ACTION, config or tiny())
    stir(net)
    return net


def world(shapes: Shapes | None = None, *, stirred: bool = True, **numbers: Any) -> WorldModel:
    torch.manual_seed(0)
    model = WorldModel(shapes or Shapes(4, ()), ACTION, tiny(**numbers))
    if stirred:
        stir(model)
    return model


def rows_of(model: WorldModel, batch: int = 2, length: int = 5) -> Rows:
    """Random rows of vectors [4]; episodes begin and end anywhere."""
    return Rows(
        Seen(torch.randn(batch, length, 4), ()),
        torch.randn(batch, length, ACTION),
        torch.randn(batch, length),
        torch.rand(batch, length) < 0.3,
        torch.rand(batch, length) < 0.3,
    )


def sequences(seed: int, batch: int, length: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    embedded = torch.randn(batch, length, EMBEDDED, generator=generator)
    return embedded, torch.randn(batch, length, ACTION, generator=generator)


def slow_observe(
    net: RSSM, embedded: Tensor, action: Tensor, is_first: Tensor, noise: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """One sequence and one row after the other; noise [T, B, S, K]."""
    hiddens, latents, posteriors = [], [], []
    batch, length = is_first.shape
    for b in range(batch):
        state, last = net.initial(1), torch.zeros(1, ACTION)
        for t in range(length):
            if is_first[b, t]:
                state, last = net.initial(1), torch.zeros(1, ACTION)
            hidden = net.advance(state, last)
            seen = net.posterior_of_seen(embedded[b, t].unsqueeze(0))
            posterior = net.posterior(hidden, seen)
            best = (posterior + noise[t, b]).argmax(-1)
            state = State(hidden, one_hot(best, net.shape[1]).float().flatten(-2))
            last = action[b, t].unsqueeze(0)
            hiddens.append(state.hidden[0])
            latents.append(state.latent[0])
            posteriors.append(posterior[0])
    shape = batch, length
    return (
        torch.stack(hiddens).view(*shape, -1),
        torch.stack(latents).view(*shape, -1),
        torch.stack(posteriors).view(*shape, *net.shape),
    )


# One step


def test_an_episode_begins_with_a_learnt_state_the_same_for_all_envs() -> None:
    net = rssm()
    state = net.initial(3)
    assert state.hidden.shape == (3, 10)
    assert state.latent.shape == (3, 3 * 4)
    assert all(torch.equal(part[0], part[i]) for part in state for i in range(3))
    assert torch.allclose(state.hidden[0], net.first_hidden.tanh())
    latent = state.latent[0].view(3, 4)
    assert torch.equal(latent, one_hot(net.prior(state.hidden[0]).argmax(-1), 4).float())
    torch.autograd.backward(state.hidden.sum())
    assert net.first_hidden.grad is not None
    assert net.first_hidden.grad.all()


def test_advance_is_a_gru_whose_gates_are_normalised_and_that_rather_keeps() -> None:
    """DreamerV2's cell: h' = u c + (1 - u) h with u = sigmoid(update - 1), c = tanh(r new)."""
    net = rssm()
    state = State(torch.randn(10), torch.randn(12))
    action = torch.randn(ACTION)

    def array(tensor: Tensor) -> np.ndarray:
        return tensor.detach().double().numpy()

    def norm(x: np.ndarray, layer: Any) -> np.ndarray:
        x = (x - x.mean()) / np.sqrt(x.var() + layer.eps)
        return np.asarray(x * array(layer.weight) + array(layer.bias))

    def sigmoid(x: np.ndarray) -> np.ndarray:
        return np.asarray(1 / (1 + np.exp(-x)))

    linear, normed, _ = net.before
    assert isinstance(linear, torch.nn.Linear)
    done = np.concatenate([array(state.latent), array(action)])
    inputs = norm(array(linear.weight) @ done, normed)
    inputs = inputs * sigmoid(inputs)
    both = np.concatenate([inputs, array(state.hidden)])
    parts = norm(array(net.cell.weight) @ both, net.cell_norm)
    reset, new, update = parts[:10], parts[10:20], parts[20:]
    keep = 1 - sigmoid(update - 1)
    wanted = keep * array(state.hidden) + (1 - keep) * np.tanh(sigmoid(reset) * new)
    assert np.allclose(array(net.advance(state, action)), wanted, atol=1e-5)


def test_prior_and_posterior_are_probabilities_of_which_none_is_below_one_percent_s_share() -> None:
    net = rssm()
    stir(net, 1, much=10)
    hidden, seen = 10 * torch.randn(7, 10), torch.randn(7, 16)
    for log_probs in (net.prior(hidden), net.posterior(hidden, seen)):
        assert log_probs.shape == (7, 3, 4)
        assert torch.allclose(log_probs.exp().sum(-1), torch.ones(7, 3), atol=1e-5)
        assert (log_probs.exp() >= 0.01 / 4 - 1e-6).all()


def test_the_posterior_s_two_halves_are_one_layer_of_h_and_what_was_embedded() -> None:
    net = rssm()
    whole = torch.nn.Linear(10 + EMBEDDED, 16, bias=False)
    weights = [net.posterior_of_hidden.weight, net.posterior_of_seen.weight]
    whole.weight = torch.nn.Parameter(torch.cat(weights, 1))
    hidden, embedded = torch.randn(5, 10), torch.randn(5, EMBEDDED)
    logits = net.to_posterior(whole(torch.cat([hidden, embedded], -1))).unflatten(-1, (3, 4))
    found = net.posterior(hidden, net.posterior_of_seen(embedded))
    assert torch.allclose(found.exp(), 0.99 * logits.softmax(-1) + 0.01 / 4, atol=1e-6)


def test_imagine_draws_from_the_prior_of_the_next_h_and_look_from_the_posterior() -> None:
    net, draws = rssm(), 4_000
    state = State(torch.randn(1, 10).expand(draws, -1), torch.randn(1, 12).expand(draws, -1))
    action = torch.randn(1, ACTION).expand(draws, -1)
    embedded = torch.randn(1, EMBEDDED).expand(draws, -1)
    hidden = net.advance(state, action)
    imagined = net.imagine(state, action)
    looked, posterior = net.look(state, action, embedded)
    assert torch.equal(imagined.hidden, hidden)
    assert torch.equal(looked.hidden, hidden)
    assert torch.equal(posterior, net.posterior(hidden, net.posterior_of_seen(embedded)))
    # 5 standard deviations of a share of 4,000 draws are at most 0.04.
    for found, log_probs in ((imagined, net.prior(hidden)), (looked, posterior)):
        latents = found.latent.view(draws, 3, 4)
        assert torch.equal(latents.sum(-1), torch.ones(draws, 3))
        assert torch.allclose(latents.mean(0), log_probs[0].exp(), atol=0.04)
    assert ((net.prior(hidden)[0].exp() - posterior[0].exp()).abs() > 0.1).any()


# Along sequences


@settings(max_examples=examples(30), deadline=None)
@given(is_first=resets, seed=st.integers(0, 999))
def test_observe_is_one_row_after_the_other(is_first: list[list[bool]], seed: int) -> None:
    net, first = rssm(), torch.tensor(is_first)
    embedded, action = sequences(seed, *first.shape)
    noise = torch.randn(first.shape[1], first.shape[0], 3, 4)
    with torch.no_grad(), patch("dreamer.world_model.gumbel", lambda shape, device: noise):
        states, posteriors = net.observe(embedded, action, first)
        hidden, latent, posterior = slow_observe(net, embedded, action, first, noise)
    assert torch.allclose(states.hidden, hidden, atol=1e-5)
    assert torch.equal(states.latent, latent)
    assert torch.allclose(posteriors, posterior, atol=1e-5)
    assert states.features.shape == (*first.shape, net.outputs)


@settings(max_examples=examples(20), deadline=None)
@given(is_first=resets, seed=st.integers(0, 999))
def test_observe_is_what_look_gives_step_by_step(is_first: list[list[bool]], seed: int) -> None:
    """So acting and learning compute the same states."""
    net, first = rssm(), torch.tensor(is_first)
    embedded, action = sequences(seed, *first.shape)
    with no_noise(), torch.no_grad():
        states, posteriors = net.observe(embedded, action, first)
        state = State(*(part.clone() for part in net.initial(len(first))))
        last = torch.zeros(len(first), ACTION)
        for t in range(first.shape[1]):
            for b in range(len(first)):
                if first[b, t]:
                    state.hidden[b : b + 1], state.latent[b : b + 1] = net.initial(1)
                    last[b] = 0
            state, posterior = net.look(state, last, embedded[:, t])
            assert torch.allclose(state.hidden, states.hidden[:, t], atol=1e-5)
            assert torch.equal(state.latent, states.latent[:, t])
            assert torch.allclose(posterior, posteriors[:, t], atol=1e-5)
            last = action[:, t].clone()


def moved_by(wanted: int, reset: int | None, *, row: int = 4) -> tuple[bool, bool]:
    """True if a row's posterior has a gradient from the observation and action of another row."""
    net = rssm()
    embedded, action = sequences(0, 2, 7)
    embedded.requires_grad_()
    action.requires_grad_()
    is_first = torch.zeros(2, 7, dtype=torch.bool)
    if reset is not None:
        is_first[0, reset] = True
    torch.manual_seed(0)
    states, posteriors = net.observe(embedded, action, is_first)
    features = torch.cat([states.hidden[0, row], posteriors[0, row].flatten()])
    seen, done = torch.autograd.grad(features.square().sum(), [embedded, action])
    assert not seen[1].any(), "of the other sequence"
    assert not done[1].any(), "of the other sequence"
    return bool(seen[0, wanted].any()), bool(done[0, wanted].any())


@pytest.mark.parametrize("wanted", range(7))
def test_a_row_depends_on_observations_up_to_it_and_actions_before_it(wanted: int) -> None:
    assert moved_by(wanted, None) == (wanted <= 4, wanted < 4)


@pytest.mark.parametrize("wanted", range(7))
@pytest.mark.parametrize("reset", [1, 3, 4])
def test_an_episode_does_not_depend_on_the_one_before(wanted: int, reset: int) -> None:
    assert moved_by(wanted, reset) == (reset <= wanted <= 4, reset <= wanted < 4)


@pytest.mark.parametrize("reset", [5, 6])
def test_a_later_reset_takes_nothing_away(reset: int) -> None:
    assert moved_by(0, reset) == (True, True)


def test_rows_behind_a_reset_are_the_same_whatever_was_before() -> None:
    net, (embedded, action) = rssm(), sequences(0, 1, 8)
    is_first = torch.zeros(1, 8, dtype=torch.bool)
    is_first[0, 3] = True
    with no_noise():
        states, _ = net.observe(embedded, action, is_first)
        alone, _ = net.observe(embedded[:, 3:], action[:, 3:], is_first[:, 3:])
        embedded[:, :3], action[:, :3] = torch.nan, torch.nan
        others, _ = net.observe(embedded, action, is_first)
    for part, same, other in zip(states, alone, others, strict=True):
        assert torch.allclose(part[:, 3:], same, atol=1e-6)
        assert torch.equal(part[:, 3:], other[:, 3:])


def test_row_0_starts_from_the_initial_state_even_inside_an_episode() -> None:
    net, (embedded, action) = rssm(), sequences(0, 2, 4)
    is_first = torch.tensor([[True, False, False, False], [False] * 4])
    embedded[1], action[1] = embedded[0], action[0]
    with no_noise():
        states, _ = net.observe(embedded, action, is_first)
    # Matrix products of some machines round the rows of a batch differently.
    assert all(torch.allclose(part[0], part[1], atol=1e-6) for part in states)


def test_the_first_row_s_h_comes_from_the_learnt_state_and_no_action() -> None:
    net, (embedded, action) = rssm(), sequences(0, 2, 3)
    states, _ = net.observe(embedded, action, torch.ones(2, 3, dtype=torch.bool))
    wanted = net.advance(net.initial(1), torch.zeros(1, ACTION))
    assert torch.allclose(states.hidden, wanted.expand(2, 3, -1), atol=1e-6)


# The heads and the loss


def test_no_reward_is_expected_before_one_was_seen() -> None:
    model = world(stirred=False)
    assert not model.expected_reward(torch.randn(9, model.rssm.outputs)).any()


def test_heads_say_a_reward_and_a_probability() -> None:
    model, features = world(), torch.randn(2, 3, 10 + 12)
    reward, goes_on = model.expected_reward(features), model.continues(features)
    assert reward.shape == goes_on.shape == (2, 3)
    points = np.linspace(-5, 5, 15)
    for index in np.ndindex(2, 3):
        probs = model.reward(features[index]).softmax(-1).detach().numpy()
        mean = float((probs * points).sum())
        wanted = np.sign(mean) * (np.exp(abs(mean)) - 1)
        assert reward[index].item() == pytest.approx(wanted, rel=1e-3, abs=1e-5)
        logit = model.goes_on(features[index]).item()
        assert goes_on[index].item() == pytest.approx(1 / (1 + np.exp(-logit)), abs=1e-6)


def test_loss_is_the_mean_over_rows_of_five_parts() -> None:
    """Each spelt out for one row after the other; rewards and ends are those of the same row."""
    model = world(free_nats=0.5, kl_dyn=0.7, kl_rep=0.2)
    rows = rows_of(model)
    torch.manual_seed(5)
    with torch.no_grad():
        loss, states, parts = model.loss(rows)
        torch.manual_seed(5)
        found, posteriors = model.rssm.observe(model.encoder(rows.seen), rows.action, rows.is_first)
        assert torch.equal(states.features, found.features)
        sums = dict.fromkeys(["reconstruction", "reward", "continue", "kl_dyn", "kl_rep"], 0.0)
        for b, t in np.ndindex(2, 5):
            features = torch.cat([states.hidden[b, t], states.latent[b, t]])
            seen = Seen(rows.seen.vector[b, t], ())
            sums["reconstruction"] += model.decoder.loss(features, seen).item()
            logits = model.reward(features)
            sums["reward"] += model.two_hot.loss(logits, rows.reward[b, t]).item()
            goes_on = model.continues(features).item()
            sums["continue"] -= np.log(1 - goes_on if rows.terminated[b, t] else goes_on)
            prior, posterior = model.rssm.prior(states.hidden[b, t]), posteriors[b, t]
            kl = float((posterior.exp() * (posterior - prior)).sum())
            sums["kl_dyn"] += max(kl, 0.5)
            sums["kl_rep"] += max(kl, 0.5)
    for name, part in parts.items():
        assert part.item() == pytest.approx(sums[name] / 10, rel=1e-4)
    assert parts.keys() == sums.keys()
    total = sums["reconstruction"] + sums["reward"] + sums["continue"]
    total += 0.7 * sums["kl_dyn"] + 0.2 * sums["kl_rep"]
    assert loss.item() == pytest.approx(total / 10, rel=1e-4)


def gradients(net: str, **numbers: Any) -> Tensor:
    """Of a layer's parameters, when sequences have one row: no KL reaches another row's state."""
    model = world(**numbers)
    torch.manual_seed(1)
    rows = rows_of(model, batch=6, length=1)
    loss, _, _ = model.loss(rows)
    torch.autograd.backward(loss)
    grads = [part.grad for part in model.rssm.get_submodule(net).parameters()]
    zeros = [torch.zeros_like(part) for part in model.rssm.get_submodule(net).parameters()]
    filled = [zero if grad is None else grad for grad, zero in zip(grads, zeros, strict=True)]
    return torch.cat([part.flatten() for part in filled])


def test_the_prior_learns_from_the_kl_alone_in_proportion_to_kl_dyn() -> None:
    once = gradients("to_prior", kl_dyn=1, kl_rep=0.3, free_nats=0)
    assert once.abs().sum() > 1e-3
    assert torch.allclose(gradients("to_prior", kl_dyn=3, kl_rep=0.3, free_nats=0), 3 * once)
    assert torch.equal(gradients("to_prior", kl_dyn=1, kl_rep=9, free_nats=0), once)
    assert not gradients("to_prior", kl_dyn=0, kl_rep=0.3, free_nats=0).any()


def test_what_h_keeps_learns_from_the_prior_s_misses_too() -> None:
    """The KL that trains the prior reaches h, from which it is predicted."""
    without = gradients("cell", kl_dyn=0, kl_rep=0, free_nats=0)
    once = gradients("cell", kl_dyn=1, kl_rep=0, free_nats=0) - without
    assert once.abs().sum() > 1e-3
    twice = gradients("cell", kl_dyn=2, kl_rep=0, free_nats=0) - without
    assert torch.allclose(twice, 2 * once, atol=1e-5)


def test_the_posterior_is_pulled_in_proportion_to_kl_rep_and_not_by_kl_dyn() -> None:
    def grads(kl_dyn: float, kl_rep: float) -> Tensor:
        return gradients("to_posterior", kl_dyn=kl_dyn, kl_rep=kl_rep, free_nats=0)

    other_parts = grads(0, 0)
    once = grads(0, 1) - other_parts
    assert once.abs().sum() > 1e-3
    assert torch.allclose(grads(0, 3) - other_parts, 3 * once, atol=1e-5)
    assert torch.allclose(grads(5, 1) - other_parts, once, atol=1e-6)


def test_below_the_free_nats_the_kl_pulls_nothing() -> None:
    assert not gradients("to_prior", kl_dyn=1, kl_rep=1, free_nats=100).any()
    without = gradients("to_posterior", kl_dyn=0, kl_rep=0, free_nats=0)
    free = gradients("to_posterior", kl_dyn=1, kl_rep=1, free_nats=100)
    assert torch.allclose(free, without, atol=1e-7)


def test_free_nats_are_those_of_a_row_not_of_the_batch() -> None:
    """A row far above them has no effect on a row below, nor the reverse."""
    model = world(free_nats=0)
    torch.manual_seed(1)
    rows = rows_of(model, batch=30, length=1)
    torch.manual_seed(2)
    states, posterior = model.rssm.observe(model.encoder(rows.seen), rows.action, rows.is_first)
    prior = model.rssm.prior(states.hidden)
    kls = (posterior.exp() * (posterior - prior)).sum((-2, -1)).detach().flatten()
    free = kls.median().item()
    model = world(free_nats=free)
    torch.manual_seed(2)
    _, _, parts = model.loss(rows)
    assert parts["kl_dyn"].item() == pytest.approx(kls.clamp(min=free).mean().item(), rel=1e-4)
    assert parts["kl_dyn"].item() > max(free, kls.mean().item()) * 1.01


# Learning


def test_learn_moves_all_parameters_and_returns_no_gradient() -> None:
    model = world(Shapes(4, ((1, 9, 8),)), stirred=False, free_nats=0)
    rows = rows_of(model)
    image = torch.rand(2, 5, 1, 9, 8) - 0.5
    rows = rows._replace(seen=Seen(rows.seen.vector, (image,)))
    before = snapshot(model)
    model.learn(rows)  # a head whose last layer is 0 passes on no gradient at first
    states, metrics = model.learn(rows)
    assert changed(model, before) == before.keys()
    assert all(not part.requires_grad for part in (*states, *metrics.values()))
    assert all(part.shape == () and part.isfinite() for part in metrics.values())
    assert {"model", "reconstruction", "reward", "continue"} < metrics.keys()


def test_learn_follows_the_gradient_of_its_own_batch_alone() -> None:
    """Gradients of an earlier batch are cleared, and the norm is at most `world_clip`."""
    first, second = world(world_clip=0.5), world(world_clip=0.5)
    rows, others = rows_of(first), rows_of(first)
    torch.autograd.backward(second.loss(others)[0])  # of an earlier batch
    for model in (first, second):
        torch.manual_seed(3)
        model.learn(rows)
    for (name, part), copy in zip(first.named_parameters(), second.parameters(), strict=True):
        assert torch.equal(part, copy), name
    norm = sum(part.grad.square().sum() for part in first.parameters() if part.grad is not None)
    assert float(norm) ** 0.5 <= 0.5 + 1e-3


def test_learn_gives_the_states_of_before_its_step() -> None:
    model = world()
    rows = rows_of(model)
    torch.manual_seed(3)
    _, wanted, _ = model.loss(rows)
    torch.manual_seed(3)
    states, _ = model.learn(rows)
    assert torch.equal(states.features, wanted.features)
