"""`play` with the keys of a script: every stored row against what the env itself has seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import stepwell as sw
from stepwell.collectors.person import play as play_module
from stepwell.collectors.person.window import Window

pygame: Any = pytest.importorskip("pygame", reason="needs pygame: pip install 'stepwell[play]'")
pytestmark = pytest.mark.usefixtures("without_display")

NOOP, LEFT, RIGHT = range(3)
LENGTH = 12
Script = Mapping[int, list[Any]]


def down(key: int) -> Any:
    return pygame.event.Event(pygame.KEYDOWN, key=key)


def up(key: int) -> Any:
    return pygame.event.Event(pygame.KEYUP, key=key)


def tap(key: int) -> list[Any]:
    return [down(key), up(key)]


class Walk(gymnasium.Env[Any, Any]):
    """A walk of 12 steps that a seed determines; it notes its actions, and presses the keys.

    Args:
        script: Events by the number of steps of all episodes after which they happen.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 50}  # noqa: RUF012
    render_mode = "rgb_array"
    observation_space = spaces.Box(-1e6, 1e6, (3,), np.float64)
    action_space: Any = spaces.Discrete(3)

    def __init__(self, script: Script | None = None) -> None:
        self.script = script or {}
        self.episodes: list[list[int]] = []
        self.count = 0
        self.call: Callable[[int], None] | None = None

    def get_action_meanings(self) -> list[str]:
        return ["NOOP", "LEFT", "RIGHT"]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place = float(self.np_random.integers(100))
        self.episodes.append([])
        return self.observation(), {}

    def observation(self) -> np.ndarray:
        return np.array([self.place, len(self.episodes[-1]), 0.0])

    def step(self, action: int) -> Any:
        self.episodes[-1].append(int(action))
        self.count += 1
        self.place += (0, -1, 1)[action] + self.np_random.random()
        for event in self.script.get(self.count, []):
            pygame.event.post(event)
        if self.call is not None:
            self.call(self.count)
        return self.observation(), 1.0, len(self.episodes[-1]) == LENGTH, False, {}

    def render(self) -> Any:
        return np.full((8, 10, 3), len(self.episodes[-1]), np.uint8)


def played(env: Walk, **settings: Any) -> tuple[sw.SequenceReplayBuffer, Any]:
    replay = sw.SequenceReplayBuffer()
    report = sw.play(env, replay, seed=0, speed=50, **settings)
    return replay, report


def stored(replay: sw.SequenceReplayBuffer) -> list[list[int]]:
    return [one.action[: one.steps].tolist() for one in replay.iter_episodes()]


QUIT = tap(27)


def on_show(patch: pytest.MonkeyPatch, call: Callable[[str], None]) -> None:
    """Call with the sign of a frame, once it is shown."""
    show = Window.show

    def shown(self: Any, frame: Any, period: float, line: str, sign: str = "", **more: Any) -> None:
        show(self, frame, period, line, sign, **more)
        call(sign)

    patch.setattr(Window, "show", shown)


def test_keys_that_are_held_are_the_actions_of_the_rows() -> None:
    env = Walk(
        {
            2: [down(pygame.K_LEFT)],
            5: [down(pygame.K_RIGHT)],
            7: [up(pygame.K_LEFT), up(pygame.K_RIGHT)],
            9: QUIT,
        }
    )
    replay, report = played(env)
    assert stored(replay) == env.episodes == [[NOOP] * 2 + [LEFT] * 3 + [RIGHT] * 2 + [NOOP] * 2]
    (episode,) = replay.iter_episodes()
    assert episode.fields["extra/human"][:9].tolist() == [True] * 9
    assert episode.metadata["source"] == "human"
    assert (report.steps, report.human_steps, report.episodes) == (9, 9, 0)


def test_a_tap_shorter_than_a_step_is_the_action_of_one_row() -> None:
    env = Walk({2: tap(pygame.K_LEFT), 5: QUIT})
    replay, _ = played(env)
    assert stored(replay) == [[NOOP, NOOP, LEFT, NOOP, NOOP]]


@pytest.mark.parametrize("flush_seconds", [0, 10])
@pytest.mark.parametrize("held_bytes", [0, 200, 1 << 20])
def test_episodes_follow_each_other_and_are_proved_by_playing_them_again(
    monkeypatch: pytest.MonkeyPatch, flush_seconds: int, held_bytes: int
) -> None:
    monkeypatch.setattr(play_module, "_FLUSH_SECONDS", flush_seconds)
    monkeypatch.setattr(play_module, "_HELD_BYTES", held_bytes)
    env = Walk({3: [down(pygame.K_LEFT)], 20: [up(pygame.K_LEFT)], 30: QUIT})
    replay, report = played(env)
    assert stored(replay) == env.episodes
    assert [one.steps for one in replay.iter_episodes()] == [12, 12, 6]
    assert (report.episodes, report.returns) == (2, (12.0, 12.0))
    proofs = list(sw.resimulate(replay, env=Walk, lanes=1))
    assert [proof.is_equal for proof in proofs] == [True] * 3


@pytest.mark.parametrize("flush_seconds", [0, 10])
def test_nothing_is_stored_of_an_episode_that_was_discarded(
    monkeypatch: pytest.MonkeyPatch, flush_seconds: int
) -> None:
    monkeypatch.setattr(play_module, "_FLUSH_SECONDS", flush_seconds)
    env = Walk({4: [down(pygame.K_LEFT)], 6: tap(pygame.K_BACKSPACE), 9: QUIT})
    replay, report = played(env)
    assert env.episodes == [[NOOP] * 4 + [LEFT] * 2, [LEFT] * 3]
    assert stored(replay) == env.episodes[1:]
    assert (report.steps, report.discarded) == (3, 1)


def test_an_episode_can_be_discarded_when_it_is_over() -> None:
    env = Walk({LENGTH: tap(pygame.K_BACKSPACE), LENGTH + 2: QUIT})
    replay, report = played(env)
    assert stored(replay) == env.episodes[1:] == [[NOOP] * 2]
    assert (report.episodes, report.discarded) == (0, 1)


def test_an_episode_that_is_stored_in_part_is_not_discarded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(play_module, "_HELD_BYTES", 0)
    env = Walk({4: tap(pygame.K_BACKSPACE), 6: QUIT})
    replay, report = played(env)
    assert stored(replay) == env.episodes == [[NOOP] * 6]
    assert report.discarded == 0


def test_reset_cuts_the_episode_and_begins_another_from_another_seed() -> None:
    env = Walk({4: tap(pygame.K_r), 6: QUIT})
    replay, _ = played(env)
    assert stored(replay) == env.episodes == [[NOOP] * 4, [NOOP] * 2]
    assert len({one.metadata["seed"] for one in replay.iter_episodes()}) == 2


def test_no_step_is_taken_while_the_game_is_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    env = Walk({3: tap(pygame.K_p), 5: QUIT})
    shows: list[str] = []

    def noted(sign: str) -> None:
        shows.append(sign)
        if shows.count("PAUSED") == 20:
            assert env.count == 3
            for event in tap(pygame.K_p):
                pygame.event.post(event)

    on_show(monkeypatch, noted)
    replay, _ = played(env)
    assert shows.count("PAUSED") >= 20
    assert stored(replay) == [[NOOP] * 5]


def test_loading_begins_an_episode_that_repeats_the_saved_one_up_to_there() -> None:
    env = Walk(
        {
            2: [down(pygame.K_LEFT)],
            4: tap(pygame.K_F5),
            7: [up(pygame.K_LEFT), *tap(pygame.K_F9)],
            13: QUIT,
        }
    )
    replay, _ = played(env)
    saved = [NOOP] * 2 + [LEFT] * 2
    assert stored(replay) == env.episodes == [saved + [LEFT] * 3, saved + [NOOP] * 2]
    first, second = replay.iter_episodes()
    assert (first.observation[:5] == second.observation[:5]).all()
    assert "loaded_steps" not in first.metadata
    assert second.metadata["loaded_steps"] == 4
    assert second.metadata["seed"] == first.metadata["seed"]
    assert all(proof.is_equal for proof in sw.resimulate(replay, env=Walk, lanes=1))


class Follower:
    """Walks to the right, counts its calls, and is told of other actions."""

    def __init__(self) -> None:
        self.told: list[int] = []

    def initial_state(self, num_envs: int) -> np.ndarray:
        return np.zeros(num_envs, np.int64)

    def __call__(self, observation: Any, is_first: Any, state: Any) -> Any:
        return np.full(len(is_first), RIGHT), state + 1, {"calls": state}

    def on_override(self, action: Any, state: Any) -> Any:
        self.told += action.tolist()
        return state + 100


def test_the_person_takes_over_and_hands_back_and_rows_say_who_chose() -> None:
    env = Walk({3: [down(pygame.K_LEFT), *tap(pygame.K_TAB)], 5: tap(pygame.K_TAB), 8: QUIT})
    policy = Follower()
    replay, report = played(env, policy=policy)
    assert stored(replay) == env.episodes == [[RIGHT] * 3 + [LEFT] * 2 + [RIGHT] * 3]
    (episode,) = replay.iter_episodes()
    assert episode.fields["extra/human"][:8].tolist() == [False] * 3 + [True] * 2 + [False] * 3
    assert episode.fields["extra/calls"][:8].tolist() == [0, 1, 2, 3, 104, 205, 206, 207]
    assert policy.told == [LEFT] * 2
    assert (report.steps, report.human_steps) == (8, 2)
    assert episode.metadata["source"] == "human and policy"


def test_a_policy_that_stores_the_extra_human_is_refused() -> None:
    def policy(observation: Any, is_first: Any) -> Any:
        return np.zeros(len(is_first), np.int64), {"human": is_first}

    with pytest.raises(ValueError, match="'human'"):
        played(Walk({3: QUIT}), policy=policy)


def test_rows_are_kept_when_the_window_is_closed() -> None:
    env = Walk({5: [pygame.event.Event(pygame.QUIT)]})
    replay, _ = played(env)
    assert stored(replay) == [[NOOP] * 5]


@pytest.mark.parametrize(("where", "steps"), [("in a step", 5), ("between steps", 6)])
def test_rows_are_kept_and_told_when_ctrl_c_comes(
    where: str, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = Walk()

    def interrupt(count: int) -> None:
        if count == 6:
            raise KeyboardInterrupt

    if where == "in a step":
        env.call = interrupt
    else:
        on_show(monkeypatch, lambda sign: interrupt(env.count))
    replay = sw.SequenceReplayBuffer()
    with pytest.raises(KeyboardInterrupt) as caught:
        sw.play(env, replay, seed=0, speed=50)
    assert stored(replay) == [[NOOP] * steps]
    assert any(note.startswith(f"kept: {steps} steps") for note in caught.value.__notes__)
    assert not pygame.display.get_init()


def test_a_gamepad_holds_buttons_by_its_axes_hats_and_buttons() -> None:
    def axis(value: float) -> Any:
        return pygame.event.Event(pygame.JOYAXISMOTION, instance_id=0, axis=0, value=value)

    def hat(x: int) -> Any:
        return pygame.event.Event(pygame.JOYHATMOTION, instance_id=0, hat=0, value=(x, 0))

    env = Walk(
        {
            1: [axis(-0.9)],
            2: [axis(-0.55)],
            3: [axis(-0.1)],
            4: [hat(1)],
            6: [hat(-1)],
            8: [hat(0)],
            9: QUIT,
        }
    )
    replay, _ = played(env)
    assert stored(replay) == [[NOOP] + [LEFT] * 2 + [NOOP] + [RIGHT] * 2 + [LEFT] * 2 + [NOOP]]


def test_other_keys_take_the_place_of_the_usual_ones() -> None:
    keys = {"buttons": {"LEFT": ["a", "pad button 3"]}, "commands": {"quit": "q"}}
    pad = pygame.event.Event(pygame.JOYBUTTONDOWN, instance_id=0, button=3)
    env = Walk(
        {
            1: [down(pygame.K_LEFT)],
            2: [down(pygame.K_a)],
            3: [up(pygame.K_a)],
            4: [pad],
            5: QUIT,
            6: tap(pygame.K_q),
        }
    )
    replay, _ = played(env, keys=keys)
    assert stored(replay) == [[NOOP] * 2 + [LEFT] + [NOOP] + [LEFT] * 2]


def test_several_envs_are_refused() -> None:
    envs = gymnasium.vector.SyncVectorEnv([Walk, Walk])
    with pytest.raises(ValueError, match="2"):
        sw.play(envs, sw.SequenceReplayBuffer())


def test_without_a_no_op_the_env_waits_for_the_person(monkeypatch: pytest.MonkeyPatch) -> None:
    class Waiting(Walk):
        def get_action_meanings(self) -> list[str]:
            return []

    env = Waiting({1: [up(pygame.K_2)], 3: QUIT})
    pressed: list[int] = []

    def noted(sign: str) -> None:
        pressed.append(env.count)
        if len(pressed) in (10, 30):
            pygame.event.post(down(pygame.K_2))
        if len(pressed) == 25:
            assert env.count == 1

    on_show(monkeypatch, noted)
    replay, _ = played(env)
    assert stored(replay) == [[2, 2, 2]]
