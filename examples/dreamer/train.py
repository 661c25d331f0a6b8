"""The training loop: collect, store, draw, learn, evaluate, save. Stepwell handles the data."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any, Self

import numpy as np
from gymnasium.vector import VectorEnv

import stepwell as sw

from . import catch as catch  # registers stepwell/Catch-v0
from .actions import Actions
from .agent import DreamerPolicy, Models, learning_step
from .checkpoint import save_checkpoint, save_models
from .config import Config
from .progress import Progress

SCREEN = 64  # pixels per side of Atari screens


def get_environments_and_actions(
    env_name: str, env_num: int = 1, *, render: bool = False
) -> tuple[VectorEnv[Any, Any, Any], Actions]:
    """Create a vector env, in this process except for Atari games, and convert its actions.

    Args:
        env_name: A gymnasium id. Atari games ("ALE/Pong-v5") are in colour, 64 x 64 pixels, without
            frame stacks, because the model has a memory.
        env_num: Number of envs.
        render: Create envs that can be recorded.

    Returns:
        The vector env, and its actions as vectors.

    Raises:
        ValueError: The env does not exist, or its actions have no finite bounds.
    """
    if env_name.startswith("ALE/"):
        game = env_name.removeprefix("ALE/").removesuffix("-v5")
        envs = sw.make_atari(
            game,
            env_num,
            size=(SCREEN, SCREEN),
            grayscale=False,
            frame_stack=1,
        )
    else:
        arguments = {"render_mode": "rgb_array"} if render else {}
        envs = sw.make_vec(env_name, env_num, num_workers=0, env_kwargs=arguments)
    return envs, Actions(envs.single_action_space)


class EvaluationEnvs:
    """Envs in which the greedy agent is evaluated, always with the same seeds.

    Args:
        env_name: Id of the env.
        episodes: Number of episodes.
        first_seed: Seed of the first episode; the others have the next seeds.
    """

    def __init__(self, env_name: str, episodes: int, first_seed: int = 1_000_000) -> None:
        self._envs, _ = get_environments_and_actions(env_name, episodes)
        self._seeds = range(first_seed, first_seed + episodes)

    def play(self, models: Models) -> sw.Evaluation:
        """Evaluate the agent."""
        return sw.evaluate(self._envs, DreamerPolicy(models, greedy=True), seeds=self._seeds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._envs.close()


def train_loop(
    envs: VectorEnv[Any, Any, Any],
    models: Models,
    config: Config,
    progress: Progress,
    env_name: str,
    best: Path,
    seed: int = 0,
) -> None:
    """Train until `config.steps` env steps are collected and all due gradient steps are taken.

    A stopped run is continued: the next work follows from the replay, the ratio and the curve.

    Args:
        envs: The envs to collect from; they are closed at the end.
        models: The agent, from `construct_models` or `load_checkpoint`.
        config: Sizes and rates.
        progress: Reports the progress.
        env_name: Id of the env for evaluations.
        best: File for the agent of the best evaluation.
        seed: Seed from which those of the envs are derived.
    """
    replay, ratio, saved = models.utilities.replay, models.utilities.ratio, 0
    request = sw.Sequences(config.batch_size, config.length, borders="cross")
    eval_envs = EvaluationEnvs(env_name, config.eval_episodes)
    if (missing := min(config.pretrain_steps, config.steps) - replay.steps) > 0:
        sw.Collector(envs, sw.RandomPolicy(), replay, seed=seed).collect(steps=missing)
    policy, ended = DreamerPolicy(models), progress.episode
    with eval_envs, sw.Collector(envs, policy, replay, seed=seed, on_episode=ended) as collector:
        while True:
            for _ in range(ratio(replay.steps)):
                metrics = learning_step(replay.sample(request), models)
                progress.losses(metrics, replay.steps)
            now, is_last = replay.steps, replay.steps >= config.steps
            if _due(config.eval_every, progress.evaluated_at, now, is_last):
                found = eval_envs.play(models)
                if found.mean >= progress.best:
                    save_models(best, models, include_optimizers=False)
                progress.evaluated(found, now)  # last: best.pt is written before the curve
            if _due(config.save_every, saved, now, is_last):
                save_checkpoint(models, progress.state())
                saved = now
            if is_last:
                return
            collector.collect(steps=config.collect_steps)


def _due(every: int, before: int, now: int, is_last: bool) -> bool:
    """Return True if a multiple of `every` was passed since `before`, or at the end."""
    return now // every > before // every or (is_last and now > before)


def evaluate(
    env_name: str, models: Models, seed: int = 0, video: Path | None = None
) -> tuple[np.ndarray, float]:
    """Play one episode greedily and record it.

    Args:
        env_name: Id of the env.
        models: The agent.
        seed: Seed of the episode.
        video: A file that ends in ".mp4", to write the video to; optional.

    Returns:
        Frames uint8 [T + 1, H, W, 3], beginning with that of the reset, and frames per second.
    """
    envs, _ = get_environments_and_actions(env_name, render=True)
    with closing(envs):
        policy = DreamerPolicy(models, greedy=True)
        found = sw.evaluate(envs, policy, seeds=[seed], video=video or True)
    return found.videos[0].frames, found.videos[0].fps
