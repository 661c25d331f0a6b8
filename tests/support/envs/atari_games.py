"""Small games of ale-py's vector env, and what a plain loop over the same envs sees."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from ale_py.vector_env import AtariVectorEnv
from gymnasium.vector import AutoresetMode

from stepwell.collectors.loop.collector import Seeds

__all__ = ["LIFE_LOSS", "Game", "atari", "choose", "play", "worth"]

# Breakout loses a life about every 90 frames, from 5.
LIFE_LOSS: dict[str, Any] = {
    "life_loss_info": True,
    "max_num_frames_per_episode": 200,
    "noop_max": 0,
}


def atari(num_envs: int = 2, mode: Any = AutoresetMode.NEXT_STEP, **knobs: Any) -> AtariVectorEnv:
    """Small frames, none skipped, games of at most 60 frames: resets come often."""
    defaults = {"img_height": 12, "img_width": 10, "frameskip": 1}
    defaults |= {"max_num_frames_per_episode": 60, "noop_max": 10}
    game = knobs.pop("game", "breakout")
    return AtariVectorEnv(game, num_envs, autoreset_mode=mode, **{**defaults, **knobs})


def worth(observation: np.ndarray) -> np.ndarray:
    """A number [n] for each observation [n, k, H, W], to distinguish them."""
    sums = observation.reshape(len(observation), -1).astype(np.int64)
    return (sums @ np.arange(1, sums.shape[1] + 1)).astype(np.float64)


def choose(observation: np.ndarray) -> np.ndarray:
    """An action from the newest frames: reproducible, and all four occur."""
    return worth(observation).astype(np.int64) % 4


@dataclass(eq=False)
class Game:
    """One game, as a plain loop observed it; of T steps there are T + 1 stacks."""

    stacks: list[np.ndarray]
    rewards: list[float] = field(default_factory=list)
    actions: list[int] = field(default_factory=list)
    terminated: bool = False
    truncated: bool = False


@cache
def play(num_envs: int, vector_steps: int, **knobs: Any) -> list[list[Game]]:
    """Games of each env in NEXT_STEP mode; a game ends where `episode_frame_number` falls."""
    envs, seed = atari(num_envs, **knobs), Seeds(7, 0).next_envs_seed(num_envs)
    observation, info = envs.reset(seed=seed)
    games = [[Game([stack])] for stack in observation.copy()]
    before = info["episode_frame_number"].copy()
    for _ in range(vector_steps):
        action = choose(observation)
        observation, reward, terminated, truncated, info = envs.step(action)
        for env, own in enumerate(games):
            if info["episode_frame_number"][env] <= before[env]:  # this was the reset
                own.append(Game([observation[env].copy()]))
                continue
            game = own[-1]
            game.actions.append(int(action[env]))
            game.stacks.append(observation[env].copy())
            game.rewards.append(float(reward[env]))
            game.terminated, game.truncated = bool(terminated[env]), bool(truncated[env])
        before = info["episode_frame_number"].copy()
    envs.close()
    return games
