"""Snapshots of a `NesEnv`: kept, written, gone back to, and refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from hypothesis import example, given, settings
from hypothesis import strategies as st

from demo_rom import write_demo
from stepwell.wrappers.nes.cartridge import Image
from stepwell.wrappers.nes.emulators import NesBackend
from stepwell.wrappers.nes.snapshot import Snapshot
from support.envs.nes_backends import ANY, RIGHT, console_of, each_backend, needs_a_backend
from support.envs.nes_envs import BUTTONS, LOSE, NOTHING, env_of, episode, ram_of, random_actions
from support.examples import examples
from support.models.nes_model import SlowGame

pytestmark = needs_a_backend


@each_backend
def test_rewards_and_standing_still_go_on_where_the_snapshot_was(
    demo: tuple[Path, Path], backend: NesBackend
) -> None:
    """E5: a change is counted from the snapshot's values, not from those of what came between."""
    right = BUTTONS.index(RIGHT)
    with env_of(demo, backend, ram_obs=True, stuck_frames=9) as env:
        env.reset()
        for action in [right] * 45 + [NOTHING] * 4:  # 40 frames to the middle, then it scrolls
            env.step(action)
        snapshot = env.snapshot()
        for _ in range(2):
            assert env.step(right)[1] == pytest.approx(0.2)
            env.reset()
            env.step(NOTHING)
            env.restore(snapshot)
        ends = [env.step(NOTHING)[3] for _ in range(5)]
    assert ends == [False] * 4 + [True]


@each_backend
def test_sticking_buttons_are_in_a_snapshot_and_the_generator_is_not(
    demo: tuple[Path, Path], backend: NesBackend
) -> None:
    """E2: with the generator put back by hand the same buttons stick."""
    with env_of(demo, backend, sticky=0.9, ram_obs=True) as env:
        env.reset(seed=1)
        for _ in range(30):
            env.step(BUTTONS.index(RIGHT))
        snapshot, drawn = env.snapshot(), env.np_random.bit_generator.state
        first = [env.step(NOTHING)[0].tobytes() for _ in range(12)]
        env.reset()
        env.step(NOTHING)
        env.restore(snapshot)
        env.np_random.bit_generator.state = drawn
        assert [env.step(NOTHING)[0].tobytes() for _ in range(12)] == first


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("step"), st.integers(0, len(BUTTONS) - 1)),
        st.tuples(st.sampled_from(["keep", "reset", "render"]), st.just(0)),
        st.tuples(st.just("restore"), st.integers(0, 3)),
    ),
    max_size=14,
)


@each_backend
def test_any_mixture_of_steps_resets_and_snapshots_shows_what_its_path_leads_to(
    backend: NesBackend, tmp_path: Path
) -> None:
    """C3, E1: what an env shows depends on the buttons since the last reset, and on nothing else.

    The model keeps that path, and replays it on a new console each time.
    """
    demo = write_demo(tmp_path)
    with (
        env_of(demo, backend, frame_skip=3, render_mode="rgb_array") as env,
        console_of(backend) as console,
    ):
        SlowGame(console)
        booted, first = console.save(), console.screen()

        def pictures(path: tuple[int, ...]) -> tuple[Image, Image]:
            """The observation at the end of a path, and the screen."""
            if not path:
                return first, first
            console.load(booted)
            game = SlowGame(console, boot=())
            for action in path[:-1]:
                game.step([BUTTONS[action]] * 3)
            return game.step([BUTTONS[path[-1]]] * 3).picture, console.screen()

        @settings(max_examples=examples(15))
        @given(OPERATIONS)
        @example([("step", 1), ("keep", 0), ("step", 2), ("restore", 0)])
        def run(operations: list[tuple[str, int]]) -> None:
            path: tuple[int, ...] = ()
            kept = []
            observation = env.reset()[0]
            for name, number in operations:
                if name == "step":
                    if path.count(LOSE) == 2 and number == LOSE:
                        continue  # the game's end: tested elsewhere
                    observation = env.step(number)[0]
                    path = (*path, number)
                elif name == "keep":
                    kept.append((env.snapshot(), path))
                elif name == "reset":
                    observation, path = env.reset()[0], ()
                elif name == "restore" and kept:
                    snapshot, path = kept[number % len(kept)]
                    observation = env.restore(snapshot)[0]
                    np.testing.assert_array_equal(observation, pictures(path)[1])
                    continue
                shown = pictures(path)
                if name != "render":
                    np.testing.assert_array_equal(env.snapshot().screen, shown[1])
                if name == "step":
                    np.testing.assert_array_equal(observation, shown[0])
                np.testing.assert_array_equal(env.render(), shown[1])

        run()


@each_backend
def test_a_snapshot_of_an_end_is_an_end(demo: tuple[Path, Path], backend: NesBackend) -> None:
    with env_of(demo, backend) as env:
        episode(env, [LOSE, NOTHING] * 3)
        snapshot = env.snapshot()
        env.reset()
        env.restore(snapshot)
        with pytest.raises(ResetNeeded):
            env.step(NOTHING)


@each_backend
def test_a_snapshot_in_a_file_is_the_same_snapshot(
    demo: tuple[Path, Path], backend: NesBackend, tmp_path: Path
) -> None:
    """C4: also for another env; nes-py's states cannot leave the process, which is an error."""
    path = tmp_path / "start.snapshot"
    actions = random_actions(20, seed=6)
    with env_of(demo, backend, frame_skip=2) as env:
        episode(env, actions[:10])
        snapshot = env.snapshot()
        if backend == "nes-py":
            with pytest.raises(ValueError, match=r"state.*nes-py"):
                snapshot.save(path)
            assert not path.exists()
            return
        snapshot.save(path)
        first = [env.step(action)[0].tobytes() for action in actions[10:]]
    loaded = Snapshot.load(path)
    np.testing.assert_array_equal(loaded.screen, snapshot.screen)
    assert (loaded.state, loaded.sha256, loaded.backend) == (
        snapshot.state,
        snapshot.sha256,
        backend,
    )
    with env_of(demo, backend, frame_skip=2) as env:
        env.restore(loaded)
        assert [env.step(action)[0].tobytes() for action in actions[10:]] == first
    with pytest.raises(FileExistsError):
        snapshot.save(path)


def test_a_file_that_is_no_snapshot_is_refused(tmp_path: Path, demo: tuple[Path, Path]) -> None:
    with env_of(demo) as env:
        env.reset()
        if ANY == "nes-py":
            pytest.skip("its states cannot be saved")
        env.snapshot().save(tmp_path / "good")
    good = (tmp_path / "good").read_bytes()
    cases = {"empty": b"", "text": b"hello", "short": good[: len(good) // 2], "zip": good[:-30]}
    for name, data in cases.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(
            ValueError, match=rf"^snapshot: .*Snapshot\.save.*got '.*/{name}'"
        ) as error:
            Snapshot.load(tmp_path / name)
        assert "\n" not in str(error.value)
    with pytest.raises(FileNotFoundError, match=r"^snapshot: .*got '.*/nowhere'"):
        Snapshot.load(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileNotFoundError, match=r"^snapshot: .*got '.*/pipe'"):
        Snapshot.load(tmp_path / "pipe")
    np.savez_compressed(tmp_path / "bomb.npz", state=np.zeros(100 << 20, np.uint8))
    with pytest.raises(ValueError, match=r"^snapshot: .*got '.*/bomb\.npz'.*104,857,728 bytes"):
        Snapshot.load(tmp_path / "bomb.npz")


def changed(snapshot: Snapshot, **facts: Any) -> Snapshot:
    names = ("cartridge", "sha256", "backend", "version", "state", "screen", "episode")
    return Snapshot(**{name: facts.get(name, getattr(snapshot, name)) for name in names})


@each_backend
def test_a_snapshot_that_does_not_fit_is_refused_and_changes_nothing(
    demo: tuple[Path, Path], backend: NesBackend
) -> None:
    """C2: cartridge, backend, version, length of the state and shape of the screen are checked."""
    with env_of(demo, backend) as env:
        env.reset()
        env.step(1)
        snapshot = env.snapshot()
        env.step(1)
        ram, play = ram_of(env), snapshot.episode["play"]
        wrong: list[tuple[dict[str, Any], str]] = [
            ({"sha256": "0" * 64}, "snapshot .*cartridge: .*got game.nes, 0{12}"),
            ({"backend": "fceux"}, f"snapshot .*backend: .*{backend}, got fceux"),
            ({"version": "0.0.1"}, r"snapshot .*version .*got 0\.0\.1"),
            ({"state": b"0123456789"}, f"state: .*{backend}.*got "),
            ({"state": np.zeros(13_574)}, f"state: .*{backend}.*got "),
            ({"screen": np.zeros((10, 10, 3), np.uint8)}, r"screen .*got uint8 \(10, 10, 3\)"),
            ({"screen": snapshot.screen.astype(np.float64)}, "uint8 screen .*got float64 "),
            ({"episode": {}}, r"snapshot: .*game, tracker, play, must_reset.*got \[\] "),
            (
                {"episode": {**snapshot.episode, "play": {"held": 0}}},
                "snapshot: .*play .*got .*{'held': 0}",
            ),
            (
                {
                    "episode": {
                        **snapshot.episode,
                        "play": {**play, "held": 256},
                    }
                },
                "snapshot: .*play .*'held': 256",
            ),
            ({"episode": {**snapshot.episode, "tracker": {}}}, "tracker state: .*got {}"),
        ]
        for facts, message in wrong:
            with pytest.raises(ValueError, match=message) as error:
                env.restore(changed(snapshot, **facts))
            assert "\n" not in str(error.value)
            np.testing.assert_array_equal(ram_of(env), ram)
        with pytest.raises(TypeError, match=r"restore: .*Snapshot.*got 'there\.state'"):
            env.restore("there.state")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        env.step(1)


def test_another_map_begins_an_episode_at_the_snapshot(demo: tuple[Path, Path]) -> None:
    with env_of(demo, max_frames=50) as env:
        episode(env, [1] * 30)
        snapshot = env.snapshot()
    with env_of(demo, game=None, max_frames=50) as other:
        _, info = other.restore(snapshot)
        assert info["episode_frame_number"] == 0
        assert other.step(NOTHING)[1:4] == (0.0, False, False)
