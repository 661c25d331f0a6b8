"""The host: collect, store, draw, learn, evaluate, keep. All data handling is Stepwell's."""

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

SCREEN = 64  # pixels a side of Atari's screens


def get_environments_and_actions(
    env_name: str, env_num: int = 1, *, render: bool = False
) -> tuple[VectorEnv[Any, Any, Any], Actions]:
    """Envs side by side, in this process but for Atari's, and what their actions are as vectors.

    Args:
        env_name: An id of gymnasium's; Atari games ("ALE/Pong-v5") in colour, 64 x 64 pixels,
            without a stack: the model remembers by itself.
        env_num: How many.
        render: Make them so that they can be filmed.

    Raises:
        ValueError: There is no such env, or its actions have no finite bounds.
    """
    if env_name.startswith("ALE/"):
        game = env_name.removeprefix("ALE/").removesuffix("-v5")
        envs = sw.make_atari(
            game,
            env_num,
            backend="python" if render else "native",
            size=(SCREEN, SCREEN),
            grayscale=False,
            frame_stack=1,
        )
    else:
        arguments = {"render_mode": "rgb_array"} if render else {}
        envs = sw.make_vec(env_name, env_num, num_workers=0, env_kwargs=arguments)
    return envs, Actions(envs.single_action_space)


class Judges:
    """Envs in which the agent plays greedily, from seeds that stay the same.

    Args:
        env_name: Id of the env.
        episodes: How many episodes are played.
        first_seed: Seed of the first one; the others follow.
    """

    def __init__(self, env_name: str, episodes: int, first_seed: int = 1_000_000) -> None:
        self._envs, _ = get_environments_and_actions(env_name, episodes)
        self._seeds = range(first_seed, first_seed + episodes)

    def play(self, models: Models) -> sw.Evaluation:
        """What the agent scores."""
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
    """Train until `config.steps` env steps have been collected, and all that is owed is learned.

    Goes on where a run was stopped: what is due is told from the replay, the ratio and the curve.

    Args:
        envs: They are stepped, and closed at the end.
        models: The agent, as `construct_models` made it or `load_checkpoint` brought it back.
        config: Sizes and rates.
        progress: Is told how it goes.
        env_name: Id of the env that evaluations play.
        best: File for the agent of the best evaluation.
        seed: From it the envs' seeds are derived.
    """
    replay, ratio, saved = models.utilities.replay, models.utilities.ratio, 0
    request = sw.Sequences(config.batch_size, config.length, borders="cross")
    judges = Judges(env_name, config.eval_episodes)
    if (missing := min(config.pretrain_steps, config.steps) - replay.steps) > 0:
        sw.Collector(envs, sw.RandomPolicy(), replay, seed=seed).collect(steps=missing)
    policy, ended = DreamerPolicy(models), progress.episode
    with judges, sw.Collector(envs, policy, replay, seed=seed, on_episode=ended) as collector:
        while True:
            for _ in range(ratio(replay.steps)):
                metrics = learning_step(replay.sample(request), models)
                progress.losses(metrics, replay.steps)
            now, is_last = replay.steps, replay.steps >= config.steps
            if _due(config.eval_every, progress.evaluated_at, now, is_last):
                found = judges.play(models)
                if found.mean >= progress.best:
                    save_models(best, models, include_optimizers=False)
                progress.evaluated(found, now)  # after the file, so that the curve never lies
            if _due(config.save_every, saved, now, is_last):
                save_checkpoint(models, progress.state())
                saved = now
            if is_last:
                return
            collector.collect(steps=config.collect_steps)


def _due(every: int, before: int, now: int, is_last: bool) -> bool:
    """Whether a multiple of env steps has been reached since it was done, or the end."""
    return now // every > before // every or (is_last and now > before)


def evaluate(
    env_name: str, models: Models, seed: int = 0, video: Path | None = None
) -> tuple[np.ndarray, float]:
    """Play one episode greedily and film it.

    Args:
        env_name: Id of the env.
        models: The agent.
        seed: Of the episode.
        video: A file that ends in ".mp4", if the film is wanted as a file, too.

    Returns:
        Frames uint8 [T + 1, H, W, 3], the reset's first, and how many a second play in real time.
    """
    envs, _ = get_environments_and_actions(env_name, render=True)
    with closing(envs):
        policy = DreamerPolicy(models, greedy=True)
        found = sw.evaluate(envs, policy, seeds=[seed], video=video or True)
    return found.videos[0].frames, found.videos[0].fps
