"""Sizes and rates: their defaults, the small preset, and what is refused."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

pytest.importorskip("torch", reason="needs PyTorch: pip install 'stepwell[torch]'")

from dreamer.config import Config, parse_settings
from support.libraries.tiny_dreamers import agent

# The defaults of FishyRL's construct_models, learning_step and train_loop, by our names.
CONTRACT = {
    "embedded": 1024,
    "blocks": 5,
    "agent_blocks": 5,
    "dense": 1024,
    "categories": 32,
    "bins": 255,
    "stochastic": 32,
    "deterministic": 4096,
    "world_lr": 1e-4,
    "world_eps": 1e-8,
    "actor_lr": 8e-5,
    "actor_eps": 1e-5,
    "critic_lr": 8e-5,
    "critic_eps": 1e-5,
    "capacity": 1_000_000,
    "replay_ratio": 0.5,
    "horizon": 15,
    "free_nats": 1.0,
    "kl_dyn": 0.5,
    "kl_rep": 0.1,
    "gamma": 0.997,
    "lam": 0.95,
    "world_clip": 1000.0,
    "actor_clip": 100.0,
    "critic_clip": 100.0,
    "steps": 1_000_000,
    "pretrain_steps": 1024,
    "batch_size": 16,
    "length": 64,
    "tau": 0.02,
}
WHOLE = ["num_envs", "steps", "length", "starts", "blocks", "pretrain_steps", "dense"]


def number(name: str, value: Any) -> dict[str, Any]:
    return {name: value}


def test_the_defaults_are_the_contract_s() -> None:
    numbers = Config().numbers()
    assert {name: numbers[name] for name in CONTRACT} == CONTRACT
    assert numbers["bin_limit"] == 20.0
    assert numbers["starts"] is None


def test_the_small_preset_has_about_180_000_parameters_on_cartpole_as_it_says() -> None:
    observation = spaces.Box(-np.inf, np.inf, (4,))
    models = agent(observation, spaces.Discrete(2), Config.small(), stirred=False)
    learnt = sum(
        part.numel() for net in models[:2] for part in net.parameters() if part.requires_grad
    )
    assert 175_000 < learnt < 190_000
    said_to_be = re.search(r"([\d,]+) parameters", Config.small.__doc__ or "")
    assert said_to_be is not None
    assert round(learnt, -3) == int(said_to_be[1].replace(",", ""))


@pytest.mark.parametrize("name", sorted(Config().numbers()))
def test_invalid_values_are_refused_for_every_number(name: str) -> None:
    for value in (-1, -0.5, float("nan"), float("inf"), "7", True, [1]):
        with pytest.raises(
            ValueError, match=rf"^config: .*\b{name} .*, got {re.escape(repr(value))}"
        ) as caught:
            replace(Config(), **number(name, value))
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", WHOLE)
def test_whole_numbers_are_not_rounded(name: str) -> None:
    with pytest.raises(ValueError, match=rf"^config: .*\b{name} .*whole number.*got 2\.5"):
        replace(Config(), **number(name, 2.5))


@pytest.mark.parametrize("name", ["gamma", "lam", "tau"])
def test_shares_are_at_most_1(name: str) -> None:
    assert replace(Config(), **number(name, 1)).numbers()[name] == 1
    with pytest.raises(ValueError, match=rf"^config: .*\b{name} .*1, got 1\.01"):
        replace(Config(), **number(name, 1.01))


@pytest.mark.parametrize(
    "name",
    ["replay_ratio", "pretrain_steps", "free_nats", "kl_dyn", "kl_rep", "gamma", "lam", "entropy"],
)
def test_what_can_be_left_out_may_be_0(name: str) -> None:
    assert replace(Config(), **number(name, 0)).numbers()[name] == 0


@pytest.mark.parametrize(
    "name", ["num_envs", "length", "blocks", "bins", "horizon", "tau", "world_lr"]
)
def test_what_cannot_be_left_out_may_not_be_0(name: str) -> None:
    with pytest.raises(ValueError, match=rf"^config: .*\b{name} .*above 0.*, got 0"):
        replace(Config(), **number(name, 0))


def test_a_config_stays_as_it_was_made() -> None:
    with pytest.raises(AttributeError):
        Config().gamma = 0.5  # type: ignore[misc]


def test_parse_settings_reads_whole_numbers_fractions_and_none() -> None:
    found = parse_settings(["length=32", "gamma=0.9", "world_lr=1e-3", "starts=none"])
    assert found == {"length": 32, "gamma": 0.9, "world_lr": 1e-3, "starts": None}
    assert isinstance(found["length"], int)
    assert parse_settings([]) == {}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("lenght=3", "num_envs, .*, got 'lenght'"),
        ("length", "length=NUMBER, got ''"),
        ("length=", "length=NUMBER, got ''"),
        ("length=three", "length=NUMBER, got 'three'"),
        ("=3", "num_envs, .*, got ''"),
        ("small=3", "num_envs, .*, got 'small'"),
    ],
)
def test_said_refuses_what_is_no_assignment(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=f"^--set {text}: .*{complaint}"):
        parse_settings(["gamma=0.9", text])


def test_what_is_said_goes_through_the_config_s_own_check() -> None:
    for text in ("length=0.5", "length=none", 'length="7"', "length=[1]", "length=true"):
        with pytest.raises(ValueError, match=r"^config: .*length .*above 0, got "):
            replace(Config(), **parse_settings([text]))
