"""`resimulate`: every kind of store is proved, and every lie and every missing fact is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from time import sleep as wait
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import wrappers
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

import stepwell as sw
from demo_rom import write_demo
from stepwell.buffers import Chunk, SequenceReplayBuffer, copy_episodes
from stepwell.buffers.storage.joined import ID_BITS
from stepwell.collectors import resimulate
from stepwell.collectors.simulation import lanes as lanes_module
from stepwell.collectors.simulation import player as player_module
from stepwell.collectors.simulation.resimulate import first_difference
from stepwell.wrappers import ClipReward
from support.envs.nes_backends import needs_a_backend
from support.replayed import (
    MoodyEnv,
    RandomBoxes,
    as_recorded_before,
    changed_chunk,
    check_all_equal,
    moody,
    proofs,
    recorded,
    register_moody,
    rewritten,
    whole_episodes,
    with_lie,
)

pytest.importorskip("cv2", reason="needs OpenCV")

LIVES = {"lives": -1}


def cartpole(num_envs: int = 2, workers: int = 0) -> Any:
    return sw.make_vec("CartPole-v1", num_envs, num_workers=workers)


def collect_seeds() -> SequenceReplayBuffer:
    return recorded(cartpole(3), goal={"seeds": [5, 5, 8, 2**31 - 1, 1]})


def two_groups() -> SequenceReplayBuffer:
    return recorded([cartpole(2), cartpole(2)])


def two_calls() -> SequenceReplayBuffer:
    """Episodes by number and by steps, with rows of some that are cut, and of some not stored."""
    replay = SequenceReplayBuffer()
    with sw.Collector(cartpole(3), sw.RandomPolicy(), replay, seed=1) as collector:
        collector.collect(episodes=4)
        collector.collect(steps=60)
        collector.collect(episodes=2)
        collector.collect(steps=31)
        collector.collect(steps=30)
    return replay


def two_collectors() -> SequenceReplayBuffer:
    """Two that write in turns, so that each has to begin anew, in one session each."""
    replay = SequenceReplayBuffer()
    with (
        sw.Collector(cartpole(2), sw.RandomPolicy(), replay, seed=1) as one,
        sw.Collector(cartpole(2), sw.RandomPolicy(), replay, seed=2) as other,
    ):
        for _ in range(2):
            one.collect(steps=60)
            other.collect(steps=60)
    return replay


def resumed() -> SequenceReplayBuffer:
    replay = SequenceReplayBuffer()
    for _ in range(3):
        with sw.Collector(cartpole(2), sw.RandomPolicy(), replay, seed=1) as collector:
            collector.collect(steps=100)
    return replay


def wrapped() -> SequenceReplayBuffer:
    """Wrappers of Gymnasium's and of ours, a stack of frames among them."""
    layers = (
        partial(wrappers.RescaleAction, min_action=-1, max_action=1),  # type: ignore[arg-type]
        partial(wrappers.FrameStackObservation, stack_size=3),
        partial(ClipReward, limit=5.0),
    )
    envs = sw.make_vec("Pendulum-v1", 2, num_workers=0, wrappers=layers)
    return recorded(envs, 500, policy=RandomBoxes())


def atari(game: str, backend: Any, steps: int, **settings: Any) -> SequenceReplayBuffer:
    more = {"frame_skip": 4, "max_frames": 500, **settings}
    envs = sw.make_atari(game, 2, backend=backend, **more)
    return recorded(envs, steps, info=LIVES)


def demo(**settings: Any) -> SequenceReplayBuffer:
    rom, game = write_demo(Path("demo"))
    chosen = {"game": game, "max_frames": 60, "noop_max": 5, "num_workers": 0, **settings}
    return recorded(sw.make_nes(rom, 2, **chosen), 40, info={**LIVES, "player_x": -1})


ZOO: dict[str, Callable[[], SequenceReplayBuffer]] = {
    "CartPole, 1 env": lambda: recorded(cartpole(1)),
    "CartPole, 3 envs": lambda: recorded(cartpole(3)),
    "CartPole, 4 envs in workers": lambda: recorded(cartpole(4, 2)),
    "CartPole, a single env": lambda: recorded(gym.make("CartPole-v1")),
    "CartPole, seeds": collect_seeds,
    "CartPole, two groups": two_groups,
    "CartPole, several calls": two_calls,
    "CartPole, two Collectors": two_collectors,
    "CartPole, resumed": resumed,
    "FrozenLake": lambda: recorded(sw.make_vec("FrozenLake-v1", 3, num_workers=0)),
    "Taxi": lambda: recorded(sw.make_vec("Taxi-v4", 2, num_workers=0), 500),
    "Blackjack": lambda: recorded(sw.make_vec("Blackjack-v1", 2, num_workers=0), info={"x": -1}),
    "Pendulum": lambda: recorded(sw.make_vec("Pendulum-v1", 2), 500, policy=RandomBoxes()),
    "wrapped": wrapped,
    "Pong, native": lambda: atari("Pong", "native", 500),
    "Pong, native, small": lambda: atari("Pong", "native", 300, size=(21, 25), frame_stack=2),
    "Pong, python": lambda: atari("Pong", "python", 400, num_workers=0),
    "Pong, python, workers": lambda: atari("Pong", "python", 400, num_workers=2),
    "Breakout, lives": lambda: atari("Breakout", "python", 600, life_loss="end", fire_reset=True),
    "Seaquest": lambda: atari("Seaquest", "native", 600),
    "Qbert, RGB": lambda: atari("Qbert", "python", 120, size=None, grayscale=False, frame_stack=1),
    "Boxing, clipped": lambda: atari("Boxing", "native", 300, clip_rewards=True, sticky=0.0),
}


@pytest.mark.proof
@pytest.mark.parametrize("name", ZOO)
def test_what_was_recorded_is_proved(name: str) -> None:
    check_all_equal(ZOO[name](), lanes=1 if "CartPole" in name else 2)


@needs_a_backend
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"life_loss": "end", "frame_stack": 1, "size": None, "grayscale": False},
        {"ram_obs": True, "actions": "multibinary", "sticky": 0.25},
        {"boot": ["NOOP 20, START 3, NOOP 5", "NOOP 20, START 3, NOOP 40"], "crop": "overscan"},
    ],
)
def test_a_cartridge_is_proved_with_its_file(settings: dict[str, Any]) -> None:
    check_all_equal(demo(**settings), rom="demo/game.nes", lanes=2)


def test_mujoco_is_proved() -> None:
    pytest.importorskip("mujoco")
    check_all_equal(recorded(sw.make_vec("HalfCheetah-v5", 2), policy=RandomBoxes()), lanes=2)


def plain() -> gym.Env[Any, Any]:
    return gym.make("CartPole-v1", max_episode_steps=30)


MODES = [
    *(pytest.param(SyncVectorEnv, mode, id=mode.name) for mode in AutoresetMode),
    pytest.param(AsyncVectorEnv, AutoresetMode.NEXT_STEP, id="NEXT_STEP in processes"),
    pytest.param(AsyncVectorEnv, AutoresetMode.SAME_STEP, id="SAME_STEP in processes"),
]


@pytest.mark.proof
@pytest.mark.parametrize("reseed_steps", [None, 1, 50])
@pytest.mark.parametrize(("vector", "mode"), MODES)
def test_envs_of_every_autoreset_mode_are_proved(
    vector: Any, mode: AutoresetMode, reseed_steps: int | None
) -> None:
    replay = recorded(vector([plain] * 3, autoreset_mode=mode), reseed_steps=reseed_steps)
    env = plain if vector is AsyncVectorEnv else None
    check_all_equal(replay, env=env)


@pytest.mark.proof
@pytest.mark.parametrize("lanes", [2, 3, 5, 16])
def test_any_number_of_lanes_gives_the_same_proofs(lanes: int) -> None:
    replay = recorded(SyncVectorEnv([plain] * 6), 600, reseed_steps=100)
    rng = np.random.default_rng(0)
    lies = {3, 11, 20}
    replay = rewritten(
        replay, lambda chunk: with_lie(chunk, "reward", 2, rng) if chunk.episode in lies else chunk
    )
    found = proofs(replay, lanes=lanes)
    assert found == proofs(replay, lanes=1)
    assert {proof.reason for proof in found.values()} == {"equal", "differs", "unreachable"}


# Stores of version 0.1: seeds of resets of all envs alone, and no session in the episodes.


def old_python_atari(lives: str = "ignore", frame_stack: int = 4) -> SequenceReplayBuffer:
    from stepwell.wrappers.atari_python import FusedAtari
    from stepwell.wrappers.frames import FrameStack

    settings: dict[str, Any] = {"max_frames": 200, "life_loss": lives, "frame_stack": frame_stack}
    made = sw.make_atari("Breakout", 1, backend="python", num_workers=0, **settings)
    recipe = made.metadata["stepwell"]
    made.close()
    from stepwell.wrappers.atari_settings import AtariSettings

    names = AtariSettings.__dataclass_fields__
    chosen: dict[str, Any] = {**{name: recipe[name] for name in names}, "size": (84, 84)}
    values = AtariSettings(**chosen)
    envs = SyncVectorEnv([lambda: FrameStack(FusedAtari(values), frame_stack, padding="zero")] * 2)
    envs.metadata = {**envs.metadata, "stepwell": recipe}
    return recorded(envs, 500, info=LIVES, reseed_steps=None)


def old_vec() -> SequenceReplayBuffer:
    envs = SyncVectorEnv([plain] * 3)
    return recorded(envs, 400, reseed_steps=None)


OLD: dict[str, Callable[[], SequenceReplayBuffer]] = {
    "CartPole": old_vec,
    "native": lambda: recorded(
        sw.make_atari("Pong", 2, backend="native", max_frames=200), 300, reseed_steps=None
    ),
    "python": old_python_atari,
    "python, lives": lambda: old_python_atari("end"),
    "python, no stack": lambda: old_python_atari(frame_stack=1),
}


@pytest.mark.proof
@pytest.mark.parametrize("name", OLD)
def test_stores_of_version_0_1_are_proved(name: str) -> None:
    replay = as_recorded_before(OLD[name]())
    assert all(
        set(episode.metadata) <= {"seed", "stream_episode"} for episode, _ in whole_episodes(replay)
    )
    check_all_equal(replay)


# The other backend of Atari.


@pytest.mark.proof
@pytest.mark.parametrize(
    ("game", "recorded_on", "settings"),
    [
        ("Pong", "native", {}),
        ("Breakout", "native", {"fire_reset": True, "size": (40, 30), "frame_stack": 1}),
        ("Pong", "python", {"noop_max": 0}),
    ],
)
def test_one_backend_proves_what_the_other_one_showed(
    game: str, recorded_on: Any, settings: dict[str, Any]
) -> None:
    other: Any = "python" if recorded_on == "native" else "native"
    envs = sw.make_atari(game, 2, backend=recorded_on, max_frames=100, **settings)
    replay = recorded(envs, 120, info=LIVES)
    check_all_equal(replay, backend=other)
    whole = [one for one in proofs(replay, backend=other).values() if not one.why]
    ended = sum(episode.has_ended for episode, _ in whole_episodes(replay))
    assert ended == len(list(whole_episodes(replay))) - len(whole)
    rng = np.random.default_rng(0)
    for name, row in (("observation", 5), ("reward", 3), ("info/lives", 0)):
        lie = rewritten(replay, partial(with_lie, name=name, row=row, rng=rng))
        assert proofs(lie, backend=other)[0].first_difference == (name, row)


@pytest.mark.proof
def test_no_ops_that_were_not_counted_are_not_guessed() -> None:
    envs = sw.make_atari("Pong", 2, backend="native", max_frames=100, size=(20, 20))
    replay = recorded(envs, 120)

    def change(chunk: Chunk) -> Chunk:
        facts = {key: value for key, value in chunk.metadata.items() if key != "noops"}
        return changed_chunk(chunk, metadata=facts) if chunk.episode == 2 else chunk

    lost = rewritten(replay, change)
    check_all_equal(lost)
    found = proofs(lost, backend="python")
    stream = {episode.id: episode.stream for episode, _ in whole_episodes(lost)}
    for one in found.values():
        is_lost = stream[one.episode] == stream[2] and one.episode >= 2
        assert one.reason == ("unreachable" if is_lost else "equal")
    assert "no-ops" in found[2].why


# Lies.

FIELDS = ("observation", "reward", "action", "end", "info/lives")


def lied_about(replay: SequenceReplayBuffer, count: int, seed: int) -> Iterator[tuple[Any, ...]]:
    """Stores in which one value of one row is a lie: (store, field, episode, row)."""
    rng = np.random.default_rng(seed)
    episodes = [(episode.id, episode.rows) for episode, _ in whole_episodes(replay)]
    names = [name for name in FIELDS if name == "end" or name in replay.spec.names]
    for k in range(count):
        name = names[k % len(names)]
        episode, rows = episodes[int(rng.integers(len(episodes)))]
        row = rows - 1 if name == "end" else int(rng.integers(rows))

        def change(chunk: Chunk, name: str = name, episode: int = episode, row: int = row) -> Chunk:
            return with_lie(chunk, name, row, rng) if chunk.episode == episode else chunk

        yield rewritten(replay, change), name, episode, row, rows


@pytest.mark.proof
@pytest.mark.parametrize("kind", ["CartPole", "native", "python"])
@pytest.mark.parametrize("count", [20, pytest.param(350, marks=pytest.mark.full)])
def test_every_lie_is_found_in_its_episode_and_row(kind: Any, count: int) -> None:
    if kind == "CartPole":
        replay = recorded(SyncVectorEnv([plain] * 2), 150, reseed_steps=None)
    else:
        envs = sw.make_atari(
            "Pong", 2, backend=kind, max_frames=120, size=(16, 16), sticky=0.0, num_workers=1
        )
        replay = recorded(envs, 100, info={"lives": -1})
    found = 0
    for lie, name, episode, row, rows in lied_about(replay, count, seed=len(kind)):
        proved = proofs(lie)
        wrong = [one for one in proved.values() if one.reason == "differs"]
        where = f"{name} at row {row} of {rows} of episode {episode}"
        if name == "action":
            # An action shows in what follows it, if it has an effect; a final row must have none.
            has_effect = row < rows - 1 and kind == "CartPole"
            assert len(wrong) <= 1, where
            if wrong:
                assert wrong[0].episode == episode, where
                assert wrong[0].first_difference is not None
                assert wrong[0].first_difference[1] >= min(row + 1, rows - 1), where
            elif has_effect:
                pytest.fail(f"not found: {where}")
            else:
                continue
        else:
            (one,) = wrong
            assert (one.episode, one.first_difference) == (episode, (name, row)), where
        found += 1
        others = {one.reason for one in proved.values()} - {"differs"}
        assert others <= {"equal", "unreachable"}
        for one in proved.values():
            if one.reason == "unreachable":
                # An end that is taken away looks like a cut.
                assert f"episode {episode}" in one.why or name == "end"
    assert found >= count * 0.75


def test_the_later_episodes_of_a_chain_are_unreachable_after_a_lie_and_all_others_are_not() -> None:
    replay = recorded(SyncVectorEnv([plain] * 2), 200, reseed_steps=None)
    rng = np.random.default_rng(0)
    lie = rewritten(replay, lambda c: with_lie(c, "observation", 3, rng) if c.episode == 4 else c)
    streams = {episode.id: episode.stream for episode, _ in whole_episodes(lie)}
    for one in proofs(lie).values():
        if one.episode == 4:
            assert one.reason == "differs"
        elif streams[one.episode] == streams[4] and one.episode > 4:
            assert one.reason == "unreachable"
        else:
            assert one.reason == "equal"


def shifted(chunk: Chunk, row: int, value: int) -> Chunk:
    """The chunk with another action in a row."""
    action = chunk.fields["action"].copy()
    action[row] = value
    return changed_chunk(chunk, fields={**chunk.fields, "action": action})


def longer(chunk: Chunk, more: int) -> Chunk:
    """The chunk with rows behind its end, or without its last rows."""
    rows = range(len(chunk.fields["reward"]))
    taken = [*rows, *rows[:more]] if more > 0 else rows[:more]
    fields = {name: values[taken] for name, values in chunk.fields.items()}
    return changed_chunk(chunk, fields=fields)


WRONG_ROWS: dict[str, tuple[Callable[[Chunk], Chunk], Callable[[int], tuple[str, int]]]] = {
    "an action below the space": (partial(shifted, row=3, value=-1), lambda rows: ("action", 3)),
    "an action above it": (partial(shifted, row=3, value=1 << 40), lambda rows: ("action", 3)),
    "an action in the last row": (
        partial(shifted, row=-1, value=1),
        lambda rows: ("action", rows - 1),
    ),
    "a row more": (partial(longer, more=1), lambda rows: ("end", rows - 2)),
    "five rows more": (partial(longer, more=5), lambda rows: ("end", rows - 6)),
    "two rows less": (
        lambda chunk: shifted(longer(chunk, -2), -1, 0),
        lambda rows: ("end", rows - 1),
    ),
}


@pytest.mark.parametrize("piece", [1, 256])
@pytest.mark.parametrize("name", WRONG_ROWS)
def test_wrong_actions_and_numbers_of_rows_are_differences(
    name: str, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(player_module, "PIECE_ROWS", piece)
    change, expected = WRONG_ROWS[name]
    replay = recorded(cartpole(2))
    wrong = proofs(rewritten(replay, lambda c: c if c.episode else change(c)))[0]
    assert wrong.first_difference == expected(wrong.rows)


# Missing facts, planted as bugs.


def reseeded(chunk: Chunk, seed: int | None) -> Chunk:
    """The chunk with another seed, or none, if it has one."""
    facts = {key: value for key, value in chunk.metadata.items() if key != "seed"}
    if seed is not None and "seed" in chunk.metadata:
        facts["seed"] = seed
    return changed_chunk(chunk, metadata=facts)


def test_a_wrong_seed_is_found_and_lies_and_missing_seeds_stay_where_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(player_module, "PIECE_ROWS", 1)
    replay = collect_seeds()
    rng = np.random.default_rng(0)
    found = proofs(rewritten(replay, lambda c: reseeded(c, 1)))
    assert sorted(one.reason for one in found.values()) == ["differs"] * 4 + ["equal"]
    assert {one.first_difference for one in found.values()} == {("observation", 0), None}
    found = proofs(rewritten(replay, lambda c: reseeded(c, None) if c.episode == 2 else c))
    assert [found[k].reason for k in range(3)] == ["equal", "equal", "unreachable"]
    lie = rewritten(replay, lambda c: with_lie(c, "reward", 1, rng) if c.episode == 1 else c)
    reasons = [one.reason for one in proofs(lie).values()]
    assert sorted(reasons) == ["differs", "equal", "equal", "equal", "equal"]


def test_an_episode_that_was_left_out_makes_its_followers_unreachable() -> None:
    replay = recorded(SyncVectorEnv([plain]), 200, reseed_steps=None)
    found = proofs(rewritten(replay, lambda chunk: None if chunk.episode == 3 else chunk))
    assert [one.reason for one in found.values() if one.episode < 3] == ["equal"] * 3
    assert {one.reason for one in found.values() if one.episode > 3} == {"unreachable"}
    assert "episode 3 of env 0" in found[4].why


@pytest.mark.proof
def test_a_recipe_with_other_sticky_actions_is_found() -> None:
    replay = recorded(sw.make_atari("Pong", 2, backend="native", max_frames=300), 150)

    def other(facts: Any) -> Any:
        return {**facts, "recipe": {**facts["recipe"], "sticky": 0.5}}

    found = proofs(rewritten(replay, sessions=other))
    assert {one.reason for one in found.values()} == {"differs"}


class Heavier(gym.Wrapper[Any, Any, Any, Any]):
    """Another version of CartPole, with the same spaces."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        env.unwrapped.gravity = 9.81  # type: ignore[attr-defined]


def test_another_version_of_an_env_is_found() -> None:
    found = proofs(recorded(cartpole(2)), env=lambda: Heavier(gym.make("CartPole-v1")))
    assert {one.reason for one in found.values()} <= {"differs", "unreachable"}
    assert found[0].first_difference is not None
    assert found[0].first_difference[0] == "observation"
    assert found[0].first_difference[1] in (1, 2)


class Fragile(gym.Wrapper[Any, Any, Any, Any]):
    """Raises in some step of some episodes."""

    steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.steps, self.breaks = 0, seed == 8
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.breaks and self.steps == 4:
            raise RuntimeError("out of order")
        return self.env.step(action)


@pytest.mark.parametrize("lanes", [1, 2])
def test_an_error_of_an_env_is_a_difference_of_its_row_alone(lanes: int) -> None:
    found = proofs(collect_seeds(), env=lambda: Fragile(gym.make("CartPole-v1")), lanes=lanes)
    (wrong,) = (one for one in found.values() if not one.is_equal)
    assert (wrong.episode, wrong.first_difference) == (2, ("env", 4))
    assert "RuntimeError: out of order" in wrong.why


# The rest of the interface.


@pytest.mark.proof
def test_some_episodes_and_samples_are_proved_as_all_are() -> None:
    replay = recorded(SyncVectorEnv([plain] * 2), 300, reseed_steps=None)
    whole = proofs(replay)
    assert proofs(replay, episodes=[5, 9]) == {number: whole[number] for number in (5, 9)}
    found = proofs(replay, sample=5)
    assert len(found) == 5
    assert found.items() <= whole.items()
    assert found == proofs(replay, sample=5, lanes=2)
    assert proofs(replay, sample=10_000) == whole
    with resimulate(replay, lanes=2) as proving:  # which is left early: its processes end
        assert next(proving).is_equal


def test_progress_is_told_in_steps() -> None:
    replay = recorded(cartpole(2), 800)
    calls: list[tuple[int, int]] = []
    with resimulate(replay, lanes=1, progress=lambda *counts: calls.append(counts)) as proving:
        assert proving.steps == replay.steps
        for _ in proving:
            pass
    assert calls[-1] == (replay.steps, replay.steps)
    assert calls == sorted(calls)


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"lanes": 0}, ["lanes", "0"]),
        ({"sample": 0}, ["sample", "0"]),
        ({"episodes": [999]}, ["episodes", "999"]),
        ({"episodes": [1.5]}, ["episodes", "1.5"]),
        ({"env": 3}, ["env", "3"]),
        ({"backend": "native"}, ["backend", "native", "make_vec"]),
        ({"rom": "x.nes"}, ["rom", "make_vec"]),
    ],
)
def test_wrong_arguments_are_refused_before_a_step(settings: Any, names: list[str]) -> None:
    with pytest.raises((ValueError, TypeError), match=".*".join(names)):
        resimulate(recorded(cartpole(1), 50), **settings)


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float32, np.float64, np.complex64, bool])
@pytest.mark.parametrize("shape", [(), (3,), (2, 2)])
def test_first_difference_finds_every_bit(dtype: Any, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 2, (6, *shape)).astype(dtype)
    assert first_difference(rows, rows.copy()) is None
    for row in range(6):
        other = rows.copy()
        flat = other[row : row + 1].reshape(-1)
        if np.dtype(dtype).kind in "fc":
            flat[-1] += np.finfo(dtype).eps
        else:
            flat[-1] = 1 - flat[-1]
        assert first_difference(rows, other) == row
    if np.dtype(dtype).kind in "fc":
        nans = np.full_like(rows, np.nan)
        assert first_difference(nans, nans.copy()) is None
        if np.dtype(dtype).kind == "f":  # another bit, and as little of a number
            assert first_difference(nans, -nans) is None
        zeros = np.zeros_like(rows)
        assert first_difference(zeros, -zeros) == 0


# Bounds of what a store can ask for, and envs that prove nothing.


@pytest.fixture
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    if lanes_module._has_jax_or_windows():
        pytest.skip("a test before this one loaded JAX: a spawned process has the usual bounds")
    monkeypatch.setattr(lanes_module, "MOST_BYTES", 300 << 20)
    monkeypatch.setattr(lanes_module, "MOST_SECONDS", 0.6)
    monkeypatch.setattr(lanes_module, "SECONDS_A_STEP", 0.1)


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize(
    ("mood", "parts"),
    [
        ("sleep", ["too long", "0.6 s", "--env"]),
        ("hoard", ["300 MB", "MemoryError", "--env"]),
        ("abort", ["SIGABRT", "--env"]),
    ],
)
def test_steps_without_bounds_end_the_proof_of_the_session(
    mood: str, parts: list[str], lanes: int, small_bounds: None
) -> None:
    found = proofs(moody(mood), lanes=lanes)
    assert {proof.reason for proof in found.values()} == {"unreachable"}
    (why,) = {proof.why for proof in found.values()}
    assert all(part in why for part in parts)


@pytest.mark.parametrize(
    ("mood", "part"), [("sleep", "too long"), ("hoard", "MemoryError"), ("abort", "SIGABRT")]
)
def test_an_env_that_is_made_without_bounds_is_refused(
    mood: str, part: str, small_bounds: None
) -> None:
    with pytest.raises(ValueError, match=f"(?s)cannot be made again.*{part}.*--env"):
        sw.resimulate(moody(f"init {mood}"))


@pytest.mark.proof
def test_the_other_sessions_are_proved(small_bounds: None) -> None:
    calm = recorded(sw.make_vec(register_moody(), 2, num_workers=0), 30)
    folders = [Path("sleeps"), Path("calm")]
    for folder, source in zip(folders, (moody("sleep", calm), calm), strict=True):
        with SequenceReplayBuffer(folder) as target:
            copy_episodes(source, target)
    with SequenceReplayBuffer.open(folders, read_only=True) as both:
        found = proofs(both)
        assert set(found) == set(both.storage.index.records["episode"].tolist())
        of_calm = {proof.reason for key, proof in found.items() if key >> ID_BITS}
        assert of_calm == {"equal"}
        assert {proof.reason for proof in found.values()} == {"unreachable", "equal"}


def test_the_users_own_env_has_no_bounds(small_bounds: None) -> None:
    def make() -> gym.Env[Any, Any]:
        return MoodyEnv("init hoard")

    check_all_equal(moody("abort"), env=make)


def test_a_slow_mean_step_is_too_long_too(
    monkeypatch: pytest.MonkeyPatch, small_bounds: None
) -> None:
    monkeypatch.setattr("support.replayed.time.sleep", lambda seconds: wait(0.2))
    (why,) = {proof.why for proof in proofs(moody("sleep")).values()}
    assert "too long" in why


@pytest.mark.proof
@pytest.mark.parametrize("mood", ["global", "own"])
@pytest.mark.parametrize("lanes", [1, 2])
def test_an_env_that_ignores_its_seed_is_no_damage(mood: str, lanes: int) -> None:
    kwargs = {"mood": mood}
    replay = recorded(sw.make_vec(register_moody(), 2, num_workers=0, env_kwargs=kwargs), 30)
    for source in (None, lambda: MoodyEnv(mood)):
        found = proofs(replay, lanes=lanes, env=source)
        assert {proof.reason for proof in found.values()} == {"unreachable"}
        assert all("ignores its seed" in proof.why for proof in found.values())


def test_a_lie_about_an_env_with_seeds_is_a_difference(small_bounds: None) -> None:
    replay = recorded(sw.make_vec(register_moody(), 2, num_workers=0), 30)
    rng = np.random.default_rng(0)
    found = proofs(rewritten(replay, lambda c: with_lie(c, "observation", 0, rng)))
    assert {proof.reason for proof in found.values()} == {"differs"}
