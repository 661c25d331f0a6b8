# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportPrivateUsage=false
"""Snapshots of emulators: an env that begins at one, beside the env that goes on."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, cast

import gymnasium
import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from demo_rom import write_demo
from stepwell.wrappers import FrameStack
from stepwell.wrappers import atari_snapshots as atari
from stepwell.wrappers import snapshots as module
from stepwell.wrappers.atari import atari_env
from stepwell.wrappers.atari_python import fused_env
from stepwell.wrappers.atari_settings import AtariSettings
from stepwell.wrappers.nes.env import NesEnv
from stepwell.wrappers.nes.vector import PictureSettings, with_wrappers
from stepwell.wrappers.snapshots import SavedGame, is_snapshot, pack, unpack
from support.envs.nes_backends import each_backend
from support.envs.nes_envs import ACTIONS, LOSE, NOTHING
from support.examples import examples
from support.models.atari_reference import settings

Env = gymnasium.Env[Any, Any]


def fused(chosen: AtariSettings, *, snapshots: bool = False) -> Env:
    env = fused_env(chosen, snapshots=snapshots)
    return FrameStack(env, chosen.frame_stack or 1, padding="zero")


FORMS = [atari_env, fused]


def resume(env: Env, snapshot: bytes, observation: Any) -> tuple[Any, dict[str, Any]]:
    inner: Any = env.unwrapped
    if isinstance(inner, NesEnv):
        saved = SavedGame(*inner.unpack_snapshot(snapshot), observation)
    else:
        saved = atari.SavedAtari.of(inner, snapshot, observation)
    return env.reset(options={"snapshot": saved})


def compare(
    one: Env, others: list[Env], actions: np.random.Generator, episodes: int, steps: int = 120
) -> int:
    """Resume each episode of one env in others; returns how many continue a game."""
    continued = 0
    one.reset(seed=3)
    for episode in range(episodes):
        observation, info = one.reset()
        snapshot = info.pop("snapshot")
        info.pop("reset_seed", None)
        continued += "noops" not in info
        for other in others:
            again = resume(other, snapshot, observation[-1])
            np.testing.assert_array_equal(again[0], observation)
            assert again[1] == info
        for step in range(steps):
            action = int(actions.integers(int(cast("Any", one.action_space).n)))
            result = one.step(action)
            for other in others:
                got = other.step(action)
                np.testing.assert_array_equal(got[0], result[0], err_msg=f"{episode}, {step}")
                assert got[1:] == result[1:], (episode, step)
            if result[2] or result[3]:
                break
        state = one.unwrapped.np_random.bit_generator.state
        assert all(other.unwrapped.np_random.bit_generator.state == state for other in others)
    return continued


@pytest.mark.proof
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("changes", "continues"),
    [
        ({"game": "pong", "noop_max": 30}, False),
        ({"game": "seaquest", "noop_max": 30, "max_frames": 90}, False),
        ({"game": "breakout", "life_loss": "end", "fire_reset": True, "noop_max": 2}, True),
        ({"game": "breakout", "life_loss": "end", "sticky": 0.9, "fire_reset": True}, True),
        ({"game": "breakout", "life_loss": "end", "sticky": 0.0, "clip_rewards": True}, True),
        ({"game": "montezuma_revenge", "life_loss": "end", "max_frames": 700}, True),
        ({"game": "breakout", "grayscale": False, "size": None, "frame_stack": 1}, False),
        # Its resets draw from the emulator's generator.
        ({"game": "berzerk", "life_loss": "end"}, True),
        ({"game": "pong", "mode": 1, "difficulty": 1}, False),
    ],
)
def test_an_atari_env_goes_on_from_a_snapshot(
    form: Any, changes: dict[str, Any], continues: bool
) -> None:
    chosen = settings(**{"sticky": 0.25, **changes})
    others = [make(chosen) for make in FORMS]
    episodes, steps = (5, 120) if continues else (3, 40)
    rng = np.random.default_rng(0)
    found = compare(form(chosen, snapshots=True), others, rng, episodes, steps)
    assert (found > 0) is continues


@pytest.mark.proof
def test_the_action_that_is_held_belongs_to_the_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sticky actions repeat it, and the emulator's own state lacks it."""
    chosen = settings(game="breakout", life_loss="end", fire_reset=True, noop_max=0, sticky=0.95)
    one, other = fused(chosen, snapshots=True), fused(chosen)
    held: list[int] = []
    real = module.pack

    def noted(kind: str, facts: Any, *rest: Any) -> bytes:
        held.append(facts["held"])
        return real(kind, {**facts, "held": 0}, *rest)

    monkeypatch.setattr(atari, "pack", noted)
    with pytest.raises(AssertionError):
        compare(one, [other], np.random.default_rng(0), 40)
    assert any(held)


def nes_env(
    folder: Path, backend: Any, *, snapshots: bool = False, ram: bool = False, **changes: Any
) -> Env:
    rom, game = write_demo(folder)
    bare = partial(NesEnv, rom, backend=backend, game=game, actions=ACTIONS, ram_obs=ram, **changes)
    picture = PictureSettings(
        crop=None, size=(84, 84), grayscale=True, frame_stack=4, life_loss="end", reward_clip=1.0
    )
    return with_wrappers(bare, picture, snapshots=snapshots)


class _Losing:
    """A generator of actions most of which lose a life."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)

    def integers(self, most: int) -> int:
        if self._rng.random() < 0.3:
            return int(self._rng.choice([LOSE, NOTHING]))
        return int(self._rng.integers(most))


@each_backend
@pytest.mark.parametrize(
    "changes",
    [
        {"noop_max": 20, "sticky": 0.3, "info": "all", "max_frames": 100},
        {"boot": ["NOOP 20, START 3, NOOP 5", "NOOP 20, START 3, NOOP 30"], "start_rule": "cycle"},
        {"ram": True, "noop_max": 3, "frame_skip": 4, "stuck_frames": 30},
    ],
)
def test_an_nes_env_goes_on_from_a_snapshot(
    tmp_path: Path, backend: Any, changes: dict[str, Any]
) -> None:
    if backend == "nes-py":
        with pytest.raises(ValueError, match=r"snapshots: .*nes-py"):
            nes_env(tmp_path / "demo", backend, snapshots=True)
        return
    one = nes_env(tmp_path / "one", backend, snapshots=True, **changes)
    other = nes_env(tmp_path / "other", backend, **changes)
    try:
        assert compare(one, [other], _Losing(), 12) > 2  # type: ignore[arg-type]
    finally:
        one.close()
        other.close()


BASE = bytes(range(256)) * 30
FACTS = {"info": {"noops": 3}, "generator": [1 << 127, 3, 1, 7]}


def test_bytes_are_unpacked_as_they_were_packed() -> None:
    state = bytes(reversed(BASE))
    packed = pack("pong", FACTS, state, BASE)
    assert unpack("pong", packed, BASE) == (FACTS, state)
    assert is_snapshot(packed)
    assert not any(map(is_snapshot, ["sws", b"other", None]))


@hypothesis.settings(max_examples=examples(300), deadline=None)
@hypothesis.given(st.data())
def test_changed_bytes_are_refused_in_one_sentence(data: st.DataObject) -> None:
    good = pack("pong", FACTS, BASE[::-1], BASE)
    if data.draw(st.booleans()):
        bad = good[: data.draw(st.integers(0, len(good) - 1))]
    else:
        place = data.draw(st.integers(0, len(good) - 1))
        byte = data.draw(st.integers(1, 255))
        bad = good[:place] + bytes([good[place] ^ byte]) + good[place + 1 :]
    with pytest.raises(ValueError, match="snapshot"):
        unpack("pong", bad, BASE)


@pytest.mark.parametrize(
    ("facts", "size"),
    [
        (FACTS, len(BASE) + (1 << 16)),
        ({"info": {}}, len(BASE)),
        ({**FACTS, "generator": [1, 1, 2, 0]}, len(BASE)),
        ({**FACTS, "generator": [1 << 128, 1, 0, 0]}, len(BASE)),
        ({**FACTS, "generator": [True, 1, 0, 0]}, len(BASE)),
        ({**FACTS, "info": {"x": [1]}}, len(BASE)),
        ({**FACTS, "info": {"x": "x" * (1 << 17)}}, len(BASE)),
    ],
)
def test_a_forged_content_is_refused(facts: dict[str, Any], size: int) -> None:
    with pytest.raises(ValueError, match="damaged"):
        unpack("pong", pack("pong", facts, bytes(size), BASE), BASE)


@pytest.mark.proof
def test_a_snapshot_of_another_game_is_refused() -> None:
    chosen = settings(game="pong")
    env = fused(settings(game="breakout"))
    snapshot = fused(chosen, snapshots=True).reset(seed=0)[1]["snapshot"]
    with pytest.raises(ValueError, match="breakout of ale-py"):
        resume(env, snapshot, np.zeros((84, 84), np.uint8))


@pytest.mark.proof
@pytest.mark.parametrize(
    "change",
    [
        {"held": 18},
        {"held": -1},
        {"held": True},
        {"frames": "3"},
        {"seed": 1 << 31},
        {"draws": 1 << 60},
        {"seed": 0, "draws": None},
        {"words": "AAAA", "position": 0, "seed": ...},
        {"words": "?", "position": 0, "seed": ...},
        {"words": 3, "position": 700, "seed": ...},
        0,
        10,
        1000,
        7000,
    ],
)
def test_forged_facts_and_a_state_without_its_end_are_refused(change: dict[str, Any] | int) -> None:
    env = fused(settings(game="pong"))
    inner: Any = env.unwrapped
    snapshot = fused(settings(game="pong"), snapshots=True).reset(seed=0)[1]["snapshot"]
    base, kind = atari.base_state("pong"), atari.kind_of(inner)
    facts, state = unpack(kind, snapshot, base)
    if isinstance(change, int):
        state = state[:change]
    else:
        facts = {key: one for key, one in {**facts, **change}.items() if one is not ...}
    with pytest.raises(ValueError, match="damaged"):
        resume(env, pack(kind, facts, state, base), np.zeros((84, 84), np.uint8))


@pytest.mark.parametrize(
    "change",
    [
        {"next_start": 1},
        {"play": {"held": 300, "frames": 1, "truncated": False}},
        {"play": {"held": 0, "frames": 1, "truncated": True}},
        {"play": 3},
        {"tracker": {}},
        {"tracker": {"values": {}, "terminated": False, "still_frames": 0, "reward_terms": {}}},
    ],
)
def test_forged_facts_of_an_nes_game_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    pytest.importorskip("cynes", reason="needs cynes")
    env = nes_env(tmp_path / "demo", "cynes", snapshots=True)
    inner: Any = env.unwrapped
    facts, state = inner.unpack_snapshot(env.reset(seed=0)[1]["snapshot"])
    forged = pack(inner._kind(), {**facts, **change}, state, inner._base())
    with pytest.raises(ValueError, match=r"snapshot|tracker state"):
        resume(env, forged, np.zeros((84, 84), np.uint8))
    env.close()
