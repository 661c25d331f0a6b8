"""Plays whole episodes with a policy and returns their scores."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar, cast

import gymnasium
import numpy as np
from gymnasium.vector import SyncVectorEnv, VectorEnv, VectorWrapper

from ...buffers.base.number_checks import check_whole, is_whole
from ...buffers.base.progress import Progress, check_progress
from ...buffers.pictures.encode import load_av
from ...wrappers.atari_settings import atari_name
from ...wrappers.recipe import recipe_of as recipe_of_env
from ..loop.collector import Collector, check_goal
from ..loop.report import CollectReport, EpisodeReport
from ..loop.vector_envs import Vector, as_vector, is_ale, recipe_of
from ..policies.as_policy import GivenPolicy, as_policy
from .video import Video, VideoRecorder, file_names

LineT = TypeVar("LineT")
_COLUMNS = ("episode", "seed", "return", "steps", "end")
_MOST_LINES = 20  # a longer table is shortened to its first and last rows
# 97.5 % quantiles of Student's t for 1 to 10 degrees of freedom.
_QUANTILES = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)
_NORMAL_QUANTILE = 1.959964


@dataclass(frozen=True, slots=True)
class EvaluatedEpisode:
    """One episode of an evaluation.

    Args:
        episode: Its number, from 0 on, in the order of the starts or of the seeds given.
        seed: Seed of the reset that began it; None where its env used its own generator.
        total_reward: Its return: the sum of its rewards, undiscounted.
        steps: Its env steps.
        terminated: The MDP ended.
        truncated: The env's clock ended it.
    """

    episode: int
    seed: int | None
    total_reward: float
    steps: int
    terminated: bool
    truncated: bool


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The result of `evaluate`.

    Args:
        episodes: The episodes, by number.
        videos: Videos of the recorded episodes, by number.

    Example:
        >>> episodes = [EvaluatedEpisode(i, None, 10.0 * i, 7, True, False) for i in range(3)]
        >>> evaluation = Evaluation(tuple(episodes))
        >>> evaluation.mean, evaluation.median, evaluation.returns
        (10.0, 10.0, (0.0, 10.0, 20.0))
        >>> [round(bound, 1) for bound in evaluation.confidence]
        [-14.8, 34.8]
        >>> print(evaluation)
        episode  seed  return  steps  end
              0     -     0.0      7  terminated
              1     -    10.0      7  terminated
              2     -    20.0      7  terminated
        3 episodes  21 steps  mean return 10.0, 95 % from -14.8 to 34.8
        median 10.0  min 0.0  max 20.0
    """

    episodes: tuple[EvaluatedEpisode, ...]
    videos: tuple[Video, ...] = ()

    @property
    def returns(self) -> tuple[float, ...]:
        """Return of each episode."""
        return tuple(one.total_reward for one in self.episodes)

    @property
    def mean(self) -> float:
        """Mean return."""
        if self._are_finite:
            return statistics.fmean(self.returns)
        return sum(self.returns) / len(self.returns)

    @property
    def _are_finite(self) -> bool:
        return all(map(math.isfinite, self.returns))

    @property
    def confidence(self) -> tuple[float, float]:
        """Bounds of a 95 % confidence interval for the mean return, by Student's t.

        It bounds the distance between the mean over these episodes and that over all episodes. It
        assumes independent episodes, and is too narrow for few and very skewed ones. Of a single
        episode, and of returns that are not all finite, the bounds are infinite.
        """
        count = len(self.episodes)
        if count < 2 or not self._are_finite:
            return -math.inf, math.inf
        half = student_quantile(count - 1) * statistics.stdev(self.returns) / math.sqrt(count)
        return self.mean - half, self.mean + half

    @property
    def median(self) -> float:
        """Median return."""
        return statistics.median(self.returns)

    @property
    def min(self) -> float:
        """Least return."""
        return min(self.returns)

    @property
    def max(self) -> float:
        """Greatest return."""
        return max(self.returns)

    @property
    def steps(self) -> int:
        """Env steps of all episodes."""
        return sum(one.steps for one in self.episodes)

    def to_json(self) -> dict[str, object]:
        """Plain data, including the derived numbers; None for an infinite bound."""
        bounds = [bound if math.isfinite(bound) else None for bound in self.confidence]
        return {
            "episodes": [asdict(one) for one in self.episodes],
            "mean": self.mean,
            "confidence": bounds,
            "median": self.median,
            "min": self.min,
            "max": self.max,
            "steps": self.steps,
            "videos": [video.to_json() for video in self.videos],
        }

    def __str__(self) -> str:
        """A table of the episodes, shortened in the middle, and a summary line."""
        table = [_COLUMNS, *self._rows()]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ["  ".join([*map(str.rjust, row[:-1], widths), row[-1]]) for row in table]
        body = _shortened(lines[1:], lambda gap: gap.rjust(widths[0]))
        return "\n".join([lines[0], *body, self._summary()])

    def _repr_html_(self) -> str | None:
        from ...buffers.pictures.summaries import or_none  # only notebooks need it

        return or_none(self._html)

    def _html(self) -> str:
        from ...buffers.pictures.markup import paragraph, section, sparkline, table

        count = len(self.episodes)
        heading = f"{type(self).__name__} of {count:,} episode{'s' if count != 1 else ''}"
        if not count:
            return section(heading)
        return section(
            heading,
            *(paragraph(line) for line in self._summary().split("\n")[:_MOST_LINES]),
            sparkline(self.returns, f"returns of {count:,} episodes", has_caption=True),
            table(_shortened(self._rows(), lambda gap: (gap,)), _COLUMNS),
        )

    def _rows(self) -> list[tuple[str, ...]]:
        decimals = self._decimals
        return [_row(one, decimals) for one in self.episodes]

    @property
    def _decimals(self) -> int:
        """Decimals of printed returns: more where they are small."""
        return 1 if max(map(abs, self.returns)) >= 10 else 3

    def _summary(self) -> str:
        def text(number: float) -> str:
            return f"{number:,.{self._decimals}f}"

        count = len(self.episodes)
        low, high = self.confidence
        spread = f", 95 % from {text(low)} to {text(high)}" if math.isfinite(low) else ""
        parts = [
            f"{count:,} episode{'s' if count > 1 else ''}",
            f"{self.steps:,} steps",
            f"mean return {text(self.mean)}{spread}",
        ]
        lines = ["  ".join(parts)]
        if count > 1:
            extremes = (("median", self.median), ("min", self.min), ("max", self.max))
            lines.append("  ".join(f"{name} {text(number)}" for name, number in extremes))
        lines += [str(video.path) for video in self.videos if video.path is not None]
        return "\n".join(lines)


def student_quantile(freedom: int) -> float:
    """The 97.5 % quantile of Student's t, to four decimals, for 1 or more degrees of freedom."""
    # Above 10 degrees of freedom by the expansion of Abramowitz and Stegun, Handbook of
    # mathematical functions, 1964, 26.7.5, whose first terms left out matter less than that.
    if freedom <= len(_QUANTILES):
        return _QUANTILES[freedom - 1]
    x, n = _NORMAL_QUANTILE, float(freedom)
    first = (x**3 + x) / 4
    second = (5 * x**5 + 16 * x**3 + 3 * x) / 96
    third = (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / 384
    fourth = (79 * x**9 + 776 * x**7 + 1482 * x**5 - 1920 * x**3 - 945 * x) / 92160
    return x + first / n + second / n**2 + third / n**3 + fourth / n**4


def _row(one: EvaluatedEpisode, decimals: int) -> tuple[str, ...]:
    ends = [name for name in ("terminated", "truncated") if getattr(one, name)]
    seed = "-" if one.seed is None else str(one.seed)
    score = f"{one.total_reward:,.{decimals}f}"
    return str(one.episode), seed, score, f"{one.steps:,}", ", ".join(ends)


def _shortened(lines: Sequence[LineT], as_line: Callable[[str], LineT]) -> list[LineT]:
    """The lines, or the first and the last of many, with a line that says so between them."""
    if len(lines) <= _MOST_LINES:
        return [*lines]
    half = _MOST_LINES // 2
    return [*lines[:half], as_line(f"... {len(lines) - 2 * half} more ..."), *lines[-half:]]


_DEFAULT_ENVS = 8
# They change rewards irrecoverably, and no task is defined by them.
_REWARDS_LOST = {"ClipReward", "NormalizeReward"}


def evaluate(
    envs: str | Vector | gymnasium.Env[Any, Any],
    policy: GivenPolicy,
    *,
    episodes: int | None = None,
    seeds: Sequence[int] | None = None,
    seed: int | None = 0,
    num_envs: int | None = None,
    video: bool | str | PathLike[str] | None = None,
    video_episodes: Collection[int] = (0,),
    progress: Progress[CollectReport] = None,
) -> Evaluation:
    """Play whole episodes with a policy and return their scores.

    Episodes are chosen by the order of their starts, never of their ends, which would favour short
    ones. Scores are the env's own: where envs declare that they clip rewards, the raw ones count.

    The policy is evaluated as it is: one that explores keeps exploring, and the method ``begin`` of
    one that has it is called with a generator from ``seed``. So pass the inner policy, or a copy,
    rather than one that a Collector is using; of a model of Stable-Baselines3, for its best
    actions, ``sb3_policy(model, deterministic=True)``. Nothing is stored.

    Args:
        envs: An id of gymnasium's, whose envs are made and at the end closed; those of an Atari
            game ("Pong", "ALE/Pong-v5") are made by `make_atari`, with its defaults and
            backend="python". Or a vector env, or a single env, which are reset and stay open: not
            those that a Collector is using.
        policy: Chooses the actions; anything that a `Collector` takes.
        episodes: Episodes to play: the first ones to start. Give either this or ``seeds``.
        seeds: One episode is played from each seed. The observations, and so the result, then do
            not depend on ``num_envs``, unless the policy's choice for one env depends on the others
            (as random numbers drawn for all at once do).
        seed: The seeds of envs and policy are derived from it; the same one plays the same
            episodes with equal ``num_envs``. None draws one.
        num_envs: Number of parallel envs, where ``envs`` is an id; None takes 8, or fewer for fewer
            episodes.
        video: A folder, in which ``episode-0.mp4`` and so on are written, or a file that ends in
            ".mp4", for one episode; files there are replaced. True keeps the frames without a file.
            An id is then played in this process. Of Atari games the screen after each step is
            shown: what a game draws in every other frame only may be missing. A file needs PyAV:
            ``stepwell[video]``.
        video_episodes: Numbers of the episodes to record, in the order of the starts, or of the
            seeds. Only these are rendered.
        progress: True shows a line in a terminal or in a notebook; or a function of reports;
            as in `Collector.collect`.

    Returns:
        The episodes, the mean return with its confidence interval, and the videos: one frame for
        the reset and one for each step, the last one included. They play in real time: as many a
        second as the env's metadata say, for Atari 60 divided by the frame skip.

    Raises:
        ValueError: An argument is out of range, there is no such env, its episodes end at lost
            lives, it does not declare whether its rewards are clipped, or it cannot be rendered.
        TypeError: ``envs``, ``policy``, ``video`` or ``progress`` has another type.
        ImportError: A package that this env, or a video, needs is missing.

    Example:
        >>> import stepwell as sw
        >>> def push(observation, is_first):
        ...     return (observation[:, 2] + observation[:, 3] > 0).astype(np.int64)
        >>> evaluation = sw.evaluate("CartPole-v1", push, episodes=10)
        >>> len(evaluation.episodes), evaluation.mean > 400
        (10, True)
    """
    actor = as_policy(policy)
    check_progress(progress)
    if (episodes is None) == (seeds is None):
        raise ValueError(
            f"evaluate: expected either episodes or seeds, got episodes={episodes} and "
            f"seeds={seeds}"
        )
    check_goal(None, episodes, seeds, ())
    count = int(episodes or 0) if seeds is None else len(seeds)
    files = _video_files(video, video_episodes, count)
    vector = _vector_of(envs, num_envs, count, is_recorded=bool(files))
    ended: list[EpisodeReport] = []
    recorder: VideoRecorder | None = None
    try:
        raw = _raw_scores(vector)
        if files:
            recorder = VideoRecorder(vector, files)
        on_step = None if recorder is None else recorder.on_step
        # A video shows the envs after each step: no reset may come in between.
        collector = Collector(
            raw, actor, seed=seed, reseed_steps=None, on_step=on_step, on_episode=ended.append
        )
        if seeds is None:
            collector.collect(episodes=count, progress=progress)
        else:
            collector.collect(seeds=list(seeds), progress=progress)
    finally:
        if recorder is not None:
            recorder.abort()
        if isinstance(envs, str):
            vector.close()
    in_order = (
        EvaluatedEpisode(
            one.episode, one.seed, one.total_reward, one.steps, one.terminated, one.truncated
        )
        for one in sorted(ended, key=lambda report: report.episode)
    )
    return Evaluation(tuple(in_order), () if recorder is None else recorder.videos)


def _video_files(
    video: bool | str | PathLike[str] | None, video_episodes: Collection[int], count: int
) -> dict[int, Path | None]:
    """The numbers of the episodes to record, in order, with their MP4 files; makes the folder."""
    if not isinstance(video, bool | str | PathLike | None):
        raise TypeError(f"video: expected a path, True or None, got {video!r}")
    if video is None or video is False:
        return {}
    wanted: list[Any] = [*video_episodes] if isinstance(video_episodes, Iterable) else [None]
    if not all(map(is_whole, wanted)):
        raise ValueError(f"video_episodes: expected whole numbers, got {video_episodes!r}")
    numbers = sorted({int(one) for one in wanted})
    if numbers and not 0 <= numbers[0] <= numbers[-1] < count:
        raise ValueError(
            f"video_episodes: expected numbers from 0 to {count - 1}, the episodes that are "
            f"played, got {numbers}"
        )
    if not numbers or video is True:
        return dict.fromkeys(numbers)
    load_av("; video=True gives the frames without it")  # now, rather than after many steps
    files = file_names(Path(video), iter(numbers))
    for path in files.values():
        path.parent.mkdir(parents=True, exist_ok=True)
    return {**files}


def _vector_of(
    envs: str | Vector | gymnasium.Env[Any, Any],
    num_envs: int | None,
    count: int,  # of episodes
    *,
    is_recorded: bool,
) -> Vector:
    """The envs as a vector; those of an id are made now."""
    # Imported here: not needed where the envs are made already.
    from ...wrappers.make_vector_env import make_vec

    if num_envs is not None and not isinstance(envs, str):
        raise ValueError(
            f"num_envs: expected none with envs that are made already, got {num_envs}; leave it out"
        )
    if isinstance(envs, VectorEnv | gymnasium.Env):
        return as_vector(envs)
    if not isinstance(envs, str):
        raise TypeError(
            f"envs: expected an id, a gymnasium VectorEnv or an Env, got {type(envs).__name__}"
        )
    if num_envs is None:
        num_envs = min(_DEFAULT_ENVS, count)
    check_whole("num_envs", num_envs, 1)
    num_workers = 0 if is_recorded else None
    game = atari_name(envs)
    if game is not None:
        from ...wrappers.atari import make_atari

        # The backend that can be rendered, even without a video: the other one draws other no-ops,
        # so that a video would change the scores.
        return make_atari(game, num_envs, backend="python", num_workers=num_workers)
    if not is_recorded:
        return make_vec(envs, num_envs)
    try:
        return make_vec(envs, num_envs, num_workers=0, env_kwargs={"render_mode": "rgb_array"})
    except Exception as error:
        error.add_note(f"video: {envs} was made with render_mode='rgb_array'")
        raise


def _raw_scores(vector: Vector) -> Vector:
    """The same envs with the game's own rewards; refuses parts of games, and unknown changes."""
    recipe = recipe_of(vector)
    wrappers = _wrappers_of(vector)
    names = {part["name"] for part in wrappers}
    at_lives = any((part["kwargs"] or {}).get("terminal_on_life_loss") for part in wrappers)
    if recipe.get("life_loss") == "end" or "EpisodicLife" in names or at_lives:
        raise ValueError(
            "envs: expected whole games, got envs whose episodes end at lost lives; make them with "
            "make_atari(life_loss='ignore'), or without the wrapper that does it"
        )
    if lost := sorted(names & _REWARDS_LOST):
        raise ValueError(
            f"envs: expected the rewards that the env gives, got envs in the wrapper {lost[0]}; "
            f"make them without it"
        )
    if is_ale(vector) and "clip_rewards" not in recipe:
        raise ValueError(
            "envs: expected Atari envs that declare whether they clip rewards, got ale-py's own "
            "AtariVectorEnv, which does by default and does not declare it; make them with "
            "make_atari, or set envs.metadata['stepwell'] = {'clip_rewards': False} where they do "
            "not"
        )
    clips = recipe.get("clip_rewards", False) or "SignReward" in names
    return _RawReward(vector) if clips else vector


def _wrappers_of(vector: Vector) -> list[dict[str, Any]]:
    """Names and arguments of the known wrappers, around the vector env and in it."""
    found: list[dict[str, Any]] = []
    outer: Any = vector
    while isinstance(outer, VectorWrapper):
        found.append({"name": type(outer).__name__, "kwargs": None})
        outer = outer.env
    if isinstance(outer, SyncVectorEnv):
        return found + cast("list[dict[str, Any]]", recipe_of_env(outer.envs[0], None)["wrappers"])
    return found + cast("list[dict[str, Any]]", recipe_of(vector).get("wrappers", []))


class _RawReward(VectorWrapper[Any, Any, Any, Any, Any]):
    """Returns the raw rewards that clipping envs keep in their info."""

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(actions)
        clipped = np.asarray(reward)
        raw = np.zeros(clipped.shape)
        # Zeros where an info has none; SAME_STEP envs put those of last steps in a second one.
        for part in (info, info.get("final_info", {})):
            raw += np.asarray(part.get("raw_reward", 0), np.float64)
        if (clipped[raw == 0] != 0).any():
            raise ValueError(
                "envs clip rewards: expected the raw ones in info['raw_reward'], got the keys "
                f"{sorted(info)}; clip with SignReward as the outermost wrapper that touches info, "
                f"or not at all"
            )
        return observation, raw, terminated, truncated, info
