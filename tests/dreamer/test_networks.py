"""World model, actor and critic of the Dreamer example against plain loops and numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="needs PyTorch: pip install 'stepwell[torch]'")

import torch
from torch import Tensor, nn

from dreamer.actions import Actions
from dreamer.actor_critic import ActorCritic, Dream
from dreamer.maths import Scale
from dreamer.nets import Decoder, Encoder, Seen, Shapes
from dreamer.world_model import RSSM, Rows, State, WorldModel
from support.libraries.tiny_dreamers import changed, no_noise, snapshot, stir, tiny

EMBEDDED, ACTION, FEATURES = 6, 3, 10 + 3 * 4
SPACES: list[spaces.Space[Any]] = [
    spaces.Discrete(3),
    spaces.Tuple((spaces.Box(0, 1, (1,)), spaces.MultiDiscrete([2, 3]))),
]
sides = st.integers(8, 70)
each_space = pytest.mark.parametrize("space", SPACES, ids=str)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def array(tensor: Tensor) -> np.ndarray:
    found: np.ndarray = tensor.detach().double().numpy()
    return found


def norm(x: np.ndarray, layer: Any) -> np.ndarray:
    x = (x - x.mean()) / np.sqrt(x.var() + layer.eps)
    return np.asarray(x * array(layer.weight) + array(layer.bias))


def sigmoid(x: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-x)))


def slow_mlp(layers: Any, x: np.ndarray) -> np.ndarray:
    """Linear, normalised to mean 0 and deviation 1, SiLU; x [D] of float64."""
    for layer in layers:
        if isinstance(layer, nn.Linear):
            x = array(layer.weight) @ x + (0 if layer.bias is None else array(layer.bias))
        else:
            x = norm(x, layer) if isinstance(layer, nn.LayerNorm) else x * sigmoid(x)
    return x


def slow_symlog(x: Tensor) -> np.ndarray:
    return np.array([np.sign(one) * np.log(1 + abs(one)) for one in array(x)])


# Encoder and decoder


def test_the_encoder_is_a_normalised_mlp_of_the_symlog() -> None:
    net, x = stir(Encoder(Shapes(3, ()), tiny(blocks=2))), torch.tensor([1e6, -2.0, 0.1])
    wanted = slow_mlp(net.vector, slow_symlog(x))
    assert np.allclose(array(net(Seen(x, ()))), wanted, atol=1e-4)


@given(height=sides, width=sides, channels=st.integers(1, 4))
def test_images_of_any_size_are_halved_and_come_back_in_their_own_size(
    height: int, width: int, channels: int
) -> None:
    shapes = Shapes(0, ((channels, height, width),))
    net = Encoder(shapes, tiny(channels=1))
    small = net.images[0](torch.zeros(1, channels, height, width))
    assert 4 <= min(small.shape[2:]) < 8
    halvings = small.shape[1].bit_length()  # channels 1, 2, 4, ... behind each convolution
    assert small.shape == (1, 2 ** (halvings - 1), height >> halvings, width >> halvings)
    assert net.outputs == small.numel()
    guess = Decoder(7, shapes, tiny(channels=1))(torch.randn(2, 7))
    assert guess.images[0].shape == (2, channels, height, width)


def test_the_decoders_loss_is_the_sum_of_squared_errors_of_symlogs_and_pixels() -> None:
    shapes, states = Shapes(3, ((1, 9, 15), (3, 16, 11))), torch.randn(2, 2, 7)
    net = Decoder(7, shapes, tiny())
    images = tuple(torch.rand(2, 2, *shape) - 0.5 for shape in shapes.images)
    seen = Seen(3 * torch.randn(2, 2, shapes.vector), images)
    found, guess = net.loss(states, seen), net(states)
    for index in np.ndindex(2, 2):
        truth = slow_symlog(seen.vector[index])
        total = ((array(guess.vector[index]) - truth) ** 2).sum()
        for image, pixels in zip(guess.images, images, strict=True):
            total += (array(image[index] - pixels[index]) ** 2).sum()
        assert found[index].item() == pytest.approx(total, rel=1e-5)


# World model


def test_advance_is_a_gru_whose_gates_are_normalised_and_that_rather_keeps() -> None:
    """DreamerV2's cell: h' = u c + (1 - u) h with u = sigmoid(update - 1), c = tanh(r new)."""
    net = stir(RSSM(EMBEDDED, ACTION, tiny()))
    state, action = State(torch.randn(10), torch.randn(12)), torch.randn(ACTION)
    inputs = slow_mlp(net.before, np.concatenate([array(state.latent), array(action)]))
    both = np.concatenate([inputs, array(state.hidden)])
    parts = norm(array(net.cell.weight) @ both, net.cell_norm)
    reset, new, update = parts[:10], parts[10:20], parts[20:]
    keep = 1 - sigmoid(update - 1)
    wanted = keep * array(state.hidden) + (1 - keep) * np.tanh(sigmoid(reset) * new)
    assert np.allclose(array(net.advance(state, action)), wanted, atol=1e-5)


@given(
    is_first=st.lists(st.lists(st.booleans(), min_size=5, max_size=5), min_size=1, max_size=3),
    seed=st.integers(0, 999),
)
def test_observe_is_what_look_gives_row_by_row(is_first: list[list[bool]], seed: int) -> None:
    """So acting and learning compute the same states; a reset forgets h, z and the action."""
    torch.manual_seed(seed)
    net, first = stir(RSSM(EMBEDDED, ACTION, tiny())), torch.tensor(is_first)
    embedded, action = torch.randn(*first.shape, EMBEDDED), torch.randn(*first.shape, ACTION)
    with no_noise(), torch.no_grad():
        states, posteriors = net.observe(embedded, action, first)
        for b in range(len(first)):
            state, last = net.initial(1), torch.zeros(1, ACTION)
            for t in range(first.shape[1]):
                if first[b, t]:
                    state, last = net.initial(1), torch.zeros(1, ACTION)
                state, posterior = net.look(state, last, embedded[b : b + 1, t])
                assert torch.allclose(state.hidden[0], states.hidden[b, t], atol=1e-5)
                assert torch.equal(state.latent[0], states.latent[b, t])
                assert torch.allclose(posterior[0], posteriors[b, t], atol=1e-5)
                last = action[b : b + 1, t]


def rows_of(batch: int = 2, length: int = 5) -> Rows:
    """Random rows of vectors [4]; episodes begin and end anywhere."""
    return Rows(
        Seen(torch.randn(batch, length, 4), ()),
        torch.randn(batch, length, ACTION),
        torch.randn(batch, length),
        torch.rand(batch, length) < 0.3,
        torch.rand(batch, length) < 0.3,
    )


def test_the_models_loss_is_the_mean_over_rows_of_five_parts() -> None:
    """Each spelt out for one row after the other; rewards and ends are those of the same row."""
    config = tiny(free_nats=0.5, kl_dyn=0.7, kl_rep=0.2)
    model, rows = stir(WorldModel(Shapes(4, ()), ACTION, config)), rows_of()
    with no_noise(), torch.no_grad():
        loss, states, parts = model.loss(rows)
        _, posteriors = model.rssm.observe(model.encoder(rows.seen), rows.action, rows.is_first)
        sums = dict.fromkeys(["reconstruction", "reward", "continue", "kl_dyn", "kl_rep"], 0.0)
        for at in np.ndindex(2, 5):
            features = torch.cat([states.hidden[at], states.latent[at]])
            seen = Seen(rows.seen.vector[at], ())
            sums["reconstruction"] += model.decoder.loss(features, seen).item()
            logits = model.reward(features)
            sums["reward"] += model.two_hot.loss(logits, rows.reward[at]).item()
            goes_on = sigmoid(array(model.goes_on(features))).item()
            sums["continue"] -= np.log(1 - goes_on if rows.terminated[at] else goes_on)
            prior, posterior = model.rssm.prior(states.hidden[at]), posteriors[at]
            kl = float((posterior.exp() * (posterior - prior)).sum())
            sums["kl_dyn"] += max(kl, 0.5)
            sums["kl_rep"] += max(kl, 0.5)
    assert {name: part.item() for name, part in parts.items()} == pytest.approx(
        {name: part / 10 for name, part in sums.items()}, rel=1e-4
    )
    weights = {"kl_dyn": 0.7, "kl_rep": 0.2}
    total = sum(weights.get(name, 1) * part for name, part in sums.items())
    assert loss.item() == pytest.approx(total / 10, rel=1e-4)


# Actor and critic


@each_space
def test_a_dream_is_the_model_and_the_actor_in_turn(space: spaces.Space[Any]) -> None:
    """Spelt out step by step; gamma comes in once, and the reward is that of the next state."""
    nets = stir(ActorCritic(FEATURES, Actions(space), tiny()))
    start = State(torch.randn(5, 10).tanh(), torch.eye(4)[[0, 1, 3] * 5].view(5, -1))
    model = stir(WorldModel(Shapes(4, ()), nets.actions.output_dim, tiny()))
    weight = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0])
    torch.manual_seed(7)
    with no_noise():
        dream = nets.dream(model, start, weight)
    torch.manual_seed(7)
    with no_noise(), torch.no_grad():
        state = start
        for step in range(4):
            assert torch.equal(dream.features[step], state.features)
            assert torch.allclose(dream.weight[step], weight, atol=1e-6)
            action = nets.actions.dist(nets.actor(state.features)).sample()
            assert torch.equal(dream.action[step], action)
            hidden = model.rssm.advance(state, nets.actions.clamp(action))
            state = State(hidden, torch.eye(4)[model.rssm.prior(hidden).argmax(-1)].flatten(-2))
            reward = model.expected_reward(state.features)
            discount = 0.997 * model.continues(state.features)
            assert torch.allclose(dream.reward[step], reward, atol=1e-6)
            assert torch.allclose(dream.discount[step], discount, atol=1e-6)
            weight = weight * discount
    assert torch.equal(dream.features[4], state.features)
    assert not any(part.requires_grad for part in dream)


@each_space
def test_losses_are_what_loops_over_steps_and_starts_give(space: spaces.Space[Any]) -> None:
    config = tiny(entropy=0.05, tau=0.25, critic_lr=0.1)
    nets = stir(ActorCritic(FEATURES, Actions(space), config))
    stir(nets.slow_critic, 5)
    features, scale = torch.randn(5, 6, FEATURES), Scale(decay=0.5, least=0.1)
    with torch.no_grad():
        dist = nets.actions.dist(nets.actor(features[:-1]))
        dream = Dream(
            features, dist.sample(), torch.randn(4, 6), 0.9 * torch.ones(4, 6), torch.rand(4, 6)
        )
        logits = nets.critic(features)
        value = nets.two_hot.mean(logits)
        slow = nets.two_hot.mean(nets.slow_critic(features))
        log_probs, entropies = dist.log_prob(dream.action), dist.entropy()
    returns = np.zeros((5, 6))
    returns[-1] = value[-1].numpy()
    for k in reversed(range(4)):
        later = 0.05 * value[k + 1].numpy() + 0.95 * returns[k + 1]
        returns[k] = dream.reward[k].numpy() + 0.9 * later
    low, high = 0.5 * np.quantile(returns[:-1], [0.05, 0.95])
    actor_loss = critic_loss = 0.0
    for k, m in np.ndindex(4, 6):
        advantage = (returns[k, m] - value[k, m].item()) / max(0.1, high - low)
        gain = log_probs[k, m].item() * advantage + 0.05 * entropies[k, m].item()
        actor_loss -= dream.weight[k, m].item() * gain
        for target in (torch.tensor(returns[k, m], dtype=torch.float32), slow[k, m]):
            miss = nets.two_hot.loss(logits[k, m], target).item()
            critic_loss += dream.weight[k, m].item() * miss
    before = snapshot(nets)
    metrics = nets.learn(dream, scale)
    assert metrics["actor"].item() == pytest.approx(actor_loss / 24, rel=1e-3)
    assert metrics["critic"].item() == pytest.approx(critic_loss / 24, rel=1e-3)
    assert metrics["entropy"].item() == pytest.approx(entropies.mean().item(), rel=1e-4)
    assert changed(nets, before) == before.keys()
    after = snapshot(nets)
    for name in before:
        if name.startswith("slow_critic"):
            now = after[name.removeprefix("slow_")]
            assert torch.allclose(after[name], 0.75 * before[name] + 0.25 * now, atol=1e-6)
