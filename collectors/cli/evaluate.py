"""`stepwell evaluate`: play whole episodes with a policy and show their scores."""

from __future__ import annotations

import statistics
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..loop.report import collect_status
from .game_options import EnvName, GivenGameOptions, Workers, run_option, with_game_options
from .load_policy import Policy, load_policy
from .make_envs import make_envs, refuse_endless
from .options import count_in, parse_ids
from .output import Output, with_output

if TYPE_CHECKING:
    from ..evaluation.evaluate import Evaluation

_DEFAULT_EPISODES = 10
_DEFAULT_ENVS = 8
_MOST_NUMBERS = 1_000_000  # of seeds, and of episodes to film
_video_option = partial(typer.Option, rich_help_panel="Video")


@with_game_options
@with_output()
def evaluate(
    env: EnvName,
    *,
    policy: Policy,
    deterministic: Annotated[
        bool,
        run_option(
            "--deterministic",
            help="A model of sb3: takes its best actions. Default: it explores as in training.",
        ),
    ] = False,
    episodes: Annotated[
        str | None,
        run_option(
            metavar="N",
            help=f"Whole episodes to play, over all envs: the first ones to start. Default: "
            f"{_DEFAULT_EPISODES}.",
        ),
    ] = None,
    seeds: Annotated[
        str | None,
        run_option(
            metavar="SEEDS",
            help="Or: play one episode from each of these seeds, such as 3,100-119. The scores "
            "then do not depend on the number of envs, if the policy draws nothing.",
        ),
    ] = None,
    seed: Annotated[
        str | None,
        run_option(
            metavar="N", help="The same seed and number of envs play the same episodes. Default: 0."
        ),
    ] = None,
    num_envs: Annotated[
        str | None,
        run_option(
            metavar="N",
            help=f"Envs that are stepped together. Default: {_DEFAULT_ENVS}, or one for each "
            f"episode.",
        ),
    ] = None,
    workers: Workers = None,
    video: Annotated[
        Path | None,
        _video_option(
            metavar="DIR",
            help="Write episode-0.mp4 and so on there, or one file that ends in .mp4. The envs "
            "are then stepped in the command's own process.",
        ),
    ] = None,
    video_episodes: Annotated[
        str | None,
        _video_option(
            metavar="NUMBERS",
            help="Numbers of the episodes to film, from 0 on, such as 0,5-7. Default: 0.",
        ),
    ] = None,
    games: GivenGameOptions,
    output: Output,
) -> None:
    """Play whole episodes with a policy and show their scores. Nothing is stored.

    stepwell evaluate CartPole-v1 --policy random
    stepwell evaluate CartPole-v1 --policy sb3:model.zip --deterministic
    stepwell evaluate Pong --policy sb3:dqn:pong.zip --episodes 30 --video films
    stepwell evaluate CartPole-v1 --policy torch:net.pt:nets:make_net --seeds 0-99
    stepwell evaluate game.nes --game map --policy agent:act --json

    Scores are sums of the env's own rewards, even with --clip-rewards.
    Exit codes: 0 done, 2 an error that you can correct, 130 Ctrl-C.
    """
    # Imported here: the other commands need no scores and videos.
    from ..evaluation.evaluate import evaluate as play_episodes

    if episodes is not None and seeds is not None:
        raise ValueError("expected either --episodes or --seeds, got both; give one of them")
    numbers = None if seeds is None else _numbers("--seeds", seeds)
    count = count_in("--episodes", episodes) or _DEFAULT_EPISODES
    wanted = count if numbers is None else len(numbers)
    if video is None and video_episodes is not None:
        raise ValueError("--video-episodes: expected --video DIR with it, got none; add it")
    filmed = _numbers("--video-episodes", video_episodes or "0")
    num_workers = count_in("--workers", workers, 0)
    if video is not None and num_workers:
        raise ValueError(
            f"--video: expected --workers 0, as frames are taken in the command's own "
            f"process, got {num_workers}; leave --workers out"
        )
    at_once = count_in("--num-envs", num_envs) or min(_DEFAULT_ENVS, wanted)
    request = games.request(env, at_once, num_workers, is_filmed=video is not None)
    used_seed = count_in("--seed", seed, 0) or 0
    refuse_endless(env, request.options)
    agent = load_policy(policy, deterministic=deterministic)
    with output.line(f"making {request.num_envs} envs of {env} ...") as line:
        envs = make_envs(request)
        try:
            result = play_episodes(
                envs,
                agent,
                episodes=None if numbers else count,
                seeds=numbers,
                seed=used_seed,
                video=video,
                video_episodes=filmed,
                progress=line.reporter(partial(collect_status, episodes=wanted)),
            )
        finally:
            envs.close()
    made = {"env": env, "policy": policy, "deterministic": deterministic}
    made |= {"num_envs": request.num_envs, "seed": used_seed}
    output.show({**result.to_json(), **made}, *_lines_of(result))


def _numbers(option: str, text: str) -> list[int]:
    ranges = parse_ids(option, text)
    count = sum(each.stop - each.start for each in ranges)
    if count > _MOST_NUMBERS:
        raise ValueError(
            f"{option}: expected at most {_MOST_NUMBERS:,} numbers, got {count:,}; give fewer"
        )
    return [number for each in ranges for number in each]


def _lines_of(result: Evaluation) -> list[str]:
    """The table of the episodes, with a line about their lengths."""
    lengths = [one.steps for one in result.episodes]
    line = f"mean length {statistics.fmean(lengths):,.1f}"
    if len(lengths) > 1:
        line += f"  median {statistics.median(lengths):,.1f}"
        line += f"  min {min(lengths):,}  max {max(lengths):,}"
    return [*str(result).splitlines(), line]
