"""Wrong arguments of wrappers, and of the functions that make envs, are refused in one sentence."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import pytest

import stepwell as sw
from stepwell.wrappers import (
    AleFrameSkip,
    Crop,
    EmulatorSeed,
    EpisodicLife,
    FireReset,
    FrameSkip,
    FrameStack,
    NoopStart,
    Resize,
    WorkerVectorEnv,
    vectorize,
)
from support.envs.fakes import CounterEnv
from support.models.atari_reference import bare

five: Any = lambda *_: 5  # noqa: E731
cart_pole = partial(gym.make, "CartPole-v1")
blackjack = partial(gym.make, "Blackjack-v1")
backgammon = partial(bare, "Backgammon")

# A call, the wrapper and its env or the function that is called in it, and what the error names.
WRAPPERS: list[tuple[Callable[..., Any], Callable[..., Any], dict[str, Any], str]] = [
    *((FrameSkip, cart_pole, {"skip": n}, f"skip: .*{n!r}") for n in ("2", 1.5, True, 0)),
    (FrameSkip, bare, {"pool": "mean"}, "pool: .*'max'.*'none'.*'mean'"),
    (FrameSkip, blackjack, {"skip": 1}, "Box.*pool='none'"),
    *((FrameStack, cart_pole, {"size": n}, f"size: .*{n!r}") for n in ("2", 1.5, True, 0)),
    (FrameStack, bare, {"padding": "reset"}, "padding: .*'zero'.*'repeat'.*'reset'"),
    (FrameStack, blackjack, {"size": 2}, "FrameStack.*Box.*Tuple"),
    (AleFrameSkip, bare, {"skip": 0}, "skip: .*1.*got 0"),
    (AleFrameSkip, bare, {"pool": "mean"}, "pool: .*'max'.*'none'.*'mean'"),
    (AleFrameSkip, bare, {"max_frames": 0}, "max_frames: .*1.*got 0.*None"),
    (AleFrameSkip, partial(bare, frameskip=4), {}, "AtariEnv.*frameskip=1"),
    (AleFrameSkip, partial(bare, obs_type="ram"), {}, r"obs_type .*'grayscale'.*'rgb'.*\(128,\)"),
    (AleFrameSkip, cart_pole, {}, "AtariEnv.*CartPole-v1.*FrameSkip"),
    (NoopStart, bare, {"noop_max": -1}, "noop_max: .*0.*got -1"),
    (NoopStart, bare, {"noop_action": 1}, r"noop_action: .*\['NOOP'.*got 1"),
    (NoopStart, bare, {"noop_action": 99}, r"noop_action: .*\['NOOP'.*got 99"),
    (NoopStart, backgammon, {"noop_action": 1}, "noop_action: .*'FIRE', 'RIGHT', 'LEFT'.*got 1"),
    (NoopStart, partial(backgammon, obs_type="ram"), {}, "'FIRE', 'RIGHT', 'LEFT'.*NOOP.*Box"),
    (NoopStart, lambda: Crop(backgammon(), top=20), {}, "'FIRE', 'RIGHT', 'LEFT'.*NOOP.*Box"),
    (FireReset, partial(bare, "MsPacman"), {}, r"FireReset.*FIRE.*\['NOOP"),
    *(
        (Resize, bare, {"size": size}, rf"size: .*\(rows, columns\).*got {re.escape(str(size))}")
        for size in ((0, 84), (84,), (84, 84, 3))
    ),
    (Resize, cart_pole, {"size": (84, 84)}, r"^Resize\b.*uint8.*got Box"),
    (Crop, cart_pole, {"top": 1}, r"^Crop\b.*uint8.*got Box"),
    (Crop, bare, {"top": -1}, r"Crop.*210.*160.*got"),
    (Crop, bare, {"top": 1.5}, r"Crop.*210.*160.*got top=1\.5"),
    (Crop, bare, {"top": 100, "bottom": 110}, r"Crop.*210.*160.*got"),
    (Crop, bare, {"left": 160}, r"Crop.*210.*160.*got"),
]


@pytest.mark.parametrize(
    ("wrapper", "env", "arguments", "words"), WRAPPERS, ids=range(len(WRAPPERS))
)
def test_a_wrapper_refuses(
    wrapper: Callable[..., Any], env: Callable[..., Any], arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        wrapper(env(), **arguments)


no_env = r"env: .* int .*observation_space"
make: Any = partial(sw.make_vec, "CartPole-v1")
make_atari: Any = partial(sw.make_atari, "Pong")
CALLS: list[tuple[Callable[[], Any], type[Exception], str]] = [
    *(
        (call, ValueError, f"num_envs.*{number!r}")
        for number in ("2", 1.5, 0, True, 100_000_000)
        for call in (partial(make, number), partial(make_atari, number))
    ),
    *(
        (call, ValueError, f"num_workers: .*{number!r}")
        for number in ("2", 1.5, -1, True)
        for call in (
            partial(make, 2, num_workers=number),
            partial(make_atari, num_workers=number),
        )
    ),
    *(
        (call, TypeError, no_env)
        for number in (0, 1)
        for call in (
            partial(sw.make_vec, five, 2, num_workers=number),
            partial(sw.make_vec, cart_pole, 2, num_workers=number, wrappers=(five,)),
        )
    ),
    (lambda: WorkerVectorEnv([five]), TypeError, no_env),
    (partial(make, 2, wrappers=[5]), TypeError, "wrappers: .*5"),
    (partial(vectorize, [5]), TypeError, "env_fns: .*5"),  # type: ignore[list-item]
    (partial(vectorize, []), ValueError, "env_fns .*got none"),
    (partial(sw.make_vec, 3), TypeError, "env .*factory.*got int"),  # type: ignore[arg-type]
    (
        partial(sw.make_vec, CounterEnv, env_kwargs={"length": 1}),
        ValueError,
        "env_kwargs.*CounterEnv",
    ),
    (lambda: EpisodicLife(cart_pole()).reset(), KeyError, "EpisodicLife.*'lives'"),
    *(
        (
            lambda seed=seed: EmulatorSeed(bare()).reset(seed=seed),
            ValueError,
            f"seed.*2147483647.*{seed}",
        )
        for seed in (-1, 2**31)
    ),
]


@pytest.mark.parametrize(("call", "error", "words"), CALLS, ids=range(len(CALLS)))
def test_a_call_is_refused(call: Callable[[], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()
