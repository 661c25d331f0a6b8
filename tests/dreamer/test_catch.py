"""The Catch game of the Dreamer example, against a slow drawing of it and scripted players."""

from __future__ import annotations

import importlib.util
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given
from hypothesis import strategies as st

import stepwell as sw

pytest.importorskip("torch", reason="needs PyTorch: pip install 'stepwell[torch]'")

from dreamer import catch
from dreamer.catch import BALL, COLUMNS, ID, PADDLE, REACH, ROWS, WALL, Catch

STEPS = 49  # of five balls: 10 rows each, the first of which is the reset's
MIDDLES = range(REACH, COLUMNS - REACH)  # where the paddle's middle may be


def place(column: int, drift: int, steps: int) -> int:
    """Column of a ball some steps later: a walk to and fro over 0, 1, ..., 9, 8, ..., 1."""
    there_and_back: list[int] = [*range(COLUMNS), *range(COLUMNS - 2, 0, -1)]
    begin = column if drift > 0 else -column
    return there_and_back[(begin + steps) % len(there_and_back)]


def drawing(row: int, column: int, paddle: int, hidden: int) -> np.ndarray:
    """The picture, pixel by pixel."""
    picture = np.zeros((32, 32, 1), np.uint8)
    for y in range(32):
        for x in range(32):
            cell_row, cell_column = (y - 1) // 3, (x - 1) // 3
            if x in (0, 31) or y in (0, 31):
                picture[y, x] = WALL
            elif ROWS - 1 - hidden <= cell_row < ROWS - 1:
                picture[y, x] = WALL  # the curtain
            elif (cell_row, cell_column) == (row, column):
                picture[y, x] = BALL
            elif cell_row == ROWS - 1 and abs(cell_column - paddle) <= REACH:
                picture[y, x] = PADDLE
    return picture


def ball_in(picture: np.ndarray) -> tuple[int, int] | None:
    """Row and column of the ball that a picture [32, 32, 1] shows."""
    found = np.argwhere(picture[..., 0] == BALL)
    if len(found) == 0:
        return None
    return (int(found[0, 0]) - 1) // 3, (int(found[0, 1]) - 1) // 3


def paddle_in(picture: np.ndarray) -> int:
    """Column of the paddle's middle, also where a ball covers one of its cells."""
    pixels = np.flatnonzero(picture[-2, :, 0] == PADDLE).tolist()
    columns = sorted({(x - 1) // 3 for x in pixels})
    if len(columns) == 2 * REACH + 1:
        return columns[REACH]
    ball = ball_in(picture)
    assert ball is not None
    return next(middle for middle in MIDDLES if set(near(middle)) == {*columns, ball[1]})


def near(middle: int) -> range:
    return range(middle - REACH, middle + REACH + 1)


def towards(goal: int, paddle: int) -> int:
    return int(np.sign(goal - paddle)) + 1


class Remembering:
    """Plays perfectly from pixels: it stores where a ball was, to compute where it goes."""

    def __init__(self) -> None:
        self.before: dict[int, tuple[int, int]] = {}
        self.goals: dict[int, int] = {}

    def __call__(self, pictures: np.ndarray, is_first: np.ndarray) -> np.ndarray:
        return np.array([self.action(env, picture) for env, picture in enumerate(pictures)])

    def action(self, env: int, picture: np.ndarray) -> int:
        ball = ball_in(picture)
        if ball is not None:
            row, column = ball
            before = self.before.get(env)
            drift = column - before[1] if row > 0 and before is not None else 1
            self.before[env] = ball
            self.goals[env] = place(column, drift, ROWS - 1 - row)
        return towards(self.goals[env], paddle_in(picture))


def follow(pictures: np.ndarray, is_first: np.ndarray) -> np.ndarray:
    """Plays without memory: below the visible ball, and still while it is hidden."""
    balls = [(ball_in(picture), paddle_in(picture)) for picture in pictures]
    return np.array([1 if ball is None else towards(ball[1], paddle) for ball, paddle in balls])


def played(env: Catch, actions: list[int], seed: int) -> tuple[list[np.ndarray], list[float]]:
    """The pictures and rewards of an episode; it ends with the last action, and never before."""
    pictures, rewards = [env.reset(seed=seed)[0]], []
    for step, action in enumerate(actions):
        picture, reward, terminated, truncated, info = env.step(np.int64(action))
        assert (terminated, truncated, info) == (step == len(actions) - 1, False, {})
        pictures.append(picture)
        rewards.append(reward)
    return pictures, rewards


@given(st.data(), st.integers(1, 3), st.integers(0, ROWS - 3), st.integers(0, 2**31))
def test_an_episode_is_the_one_that_is_drawn_pixel_by_pixel(
    data: st.DataObject, balls: int, hidden: int, seed: int
) -> None:
    count = balls * ROWS - 1
    actions = data.draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
    pictures, rewards = played(Catch(balls, hidden), actions, seed)
    paddle = COLUMNS // 2
    for step, picture in enumerate(pictures):
        row, begin = step % ROWS, step - step % ROWS
        first, second = ball_in(pictures[begin]), ball_in(pictures[begin + 1])
        assert first is not None
        assert second is not None
        if step > 0:
            paddle = min(max(paddle + actions[step - 1] - 1, MIDDLES[0]), MIDDLES[-1])
        column = place(first[1], second[1] - first[1], row)
        assert np.array_equal(picture, drawing(row, column, paddle, hidden))
        if step > 0:
            landed = 1.0 if column in near(paddle) else -1.0
            assert rewards[step - 1] == (landed if row == ROWS - 1 else 0.0)


def test_one_picture_does_not_show_where_the_ball_drifts() -> None:
    seen = defaultdict(set)
    env = Catch()
    for seed in range(400):
        first, _ = env.reset(seed=seed)
        seen[first.tobytes()].add(env.step(np.int64(1))[0].tobytes())
    assert len(seen) == COLUMNS
    assert sorted(map(len, seen.values())) == [1, 1] + [2] * (
        COLUMNS - 2
    )  # next to a wall: one way


@pytest.mark.parametrize("render_mode", [None, "rgb_array"])
def test_gymnasium_finds_nothing_wrong(render_mode: str | None) -> None:
    check_env(gym.make(ID, render_mode=render_mode).unwrapped)


def test_it_may_be_imported_under_another_name_as_well() -> None:
    spec = importlib.util.spec_from_file_location("catch_again", catch.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.Catch is not Catch
    assert isinstance(gym.make(ID).unwrapped, Catch)


@pytest.mark.parametrize(
    ("player", "low", "high"),
    [
        pytest.param(sw.RandomPolicy, -2.5, -1.6, id="random"),
        pytest.param(lambda: follow, -3.4, -2.6, id="without memory"),
        pytest.param(Remembering, 5.0, 5.0, id="with memory"),
    ],
)
def test_memory_makes_play_perfect_and_without_it_is_worse_than_random(
    player: Callable[[], Any], low: float, high: float
) -> None:
    evaluation = sw.evaluate(ID, player(), episodes=200)
    assert low <= evaluation.mean <= high
    assert {episode.steps for episode in evaluation.episodes} == {STEPS}
    assert all(episode.terminated for episode in evaluation.episodes)


def test_without_a_curtain_following_the_ball_is_perfect_play() -> None:
    envs = sw.make_vec(ID, 8, num_workers=0, env_kwargs={"hidden": 0})
    assert sw.evaluate(envs, follow, episodes=40).mean == 5.0
    envs.close()


def test_a_seed_repeats_an_episode_and_a_reset_without_one_goes_on() -> None:
    actions = [0, 1, 2] * 16 + [1]
    env = Catch()
    first, again = played(env, actions, seed=3), played(Catch(), actions, seed=3)
    assert np.array_equal(first[0], again[0])
    assert first[1] == again[1]
    assert not np.array_equal(first[0], played(env, actions, seed=4)[0])
    env.reset(seed=3)
    begins = {env.reset()[0].tobytes() for _ in range(50)}
    assert len(begins) > 5


def test_workers_play_what_this_process_plays() -> None:
    digests = []
    for workers in (0, 2):
        envs = sw.make_vec(ID, num_envs=4, num_workers=workers)
        replay = sw.SequenceReplayBuffer(capacity=1_000)
        with sw.Collector(envs, sw.RandomPolicy(), replay, seed=0) as collector:
            digests.append(collector.collect(steps=400).digest)
    assert digests[0] == digests[1]


def test_an_evaluation_films_it_as_it_is_seen() -> None:
    video = sw.evaluate(ID, Remembering(), episodes=1, video=True).videos[0]
    assert video.frames.shape == (STEPS + 1, 256, 256, 3)
    assert video.fps == Catch.metadata["render_fps"]
    env = gym.make(ID, render_mode="rgb_array")
    observation, _ = env.reset(seed=0)
    rendered = env.render()
    assert isinstance(rendered, np.ndarray)
    assert (rendered[4::8, 4::8] == observation).all()


def test_without_a_render_mode_nothing_is_rendered() -> None:
    env = Catch()
    env.reset(seed=0)
    assert env.render() is None


@pytest.mark.parametrize("wrong", [{"balls": 0}, {"hidden": -1}, {"hidden": ROWS - 2}])
def test_impossible_settings_are_refused(wrong: dict[str, Any]) -> None:
    settings = {"balls": 5, "hidden": 2, **wrong}
    message = r"balls .*1 .*hidden .*0 to 7, got balls={balls} and hidden={hidden}"
    with pytest.raises(ValueError, match=message.format(**settings)):
        Catch(**wrong)


@pytest.mark.parametrize("action", [-1, 3, 0.5, "left"])
def test_an_invalid_action_is_refused(action: object) -> None:
    env = Catch()
    env.reset(seed=0)
    with pytest.raises(ValueError, match=rf"action: .*0, 1 or 2, got {action!r}"):
        env.step(action)  # type: ignore[arg-type]
