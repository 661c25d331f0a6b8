"""`maker_of`: envs are made again, or refused before a step; a store cannot make it run code."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import wrappers

import stepwell as sw
from demo_rom import write_demo
from stepwell.buffers import Field, Spec
from stepwell.collectors.simulation.remake import maker_of
from support.envs.nes_backends import needs_a_backend
from support.replayed import proofs, recorded

pytest.importorskip("cv2", reason="needs OpenCV")

Facts = dict[str, Any]


def facts_of(envs: Any, **settings: Any) -> tuple[Facts, Spec]:
    """The facts that a Collector stores about the envs, and the fields of its rows."""
    replay = recorded(envs, 5, **settings)
    return json.loads(json.dumps(dict(replay.sessions[0]))), replay.spec


@pytest.fixture(scope="module")
def cartpole() -> tuple[Facts, Spec]:
    return facts_of(sw.make_vec("CartPole-v1", 1, num_workers=0))


def check_refused(facts: Facts, spec: Spec, *parts: str, **settings: Any) -> None:
    with pytest.raises(ValueError, match=".*".join(map(re.escape, parts))):
        maker_of(facts, spec, **settings)


def test_an_env_is_made_with_all_its_wrappers() -> None:
    def wrap(env: Any) -> Any:
        return wrappers.FrameStackObservation(wrappers.FlattenObservation(env), 3)

    envs = sw.make_vec("Taxi-v4", 1, wrappers=[wrap], env_kwargs={"is_rainy": True})
    maker = maker_of(*facts_of(envs))
    env = maker.single()
    assert env.observation_space.shape == (3, 500)
    assert env.unwrapped.spec is not None
    assert env.unwrapped.spec.kwargs["is_rainy"]
    assert not isinstance(maker.lane(), sw.SeededResets)


@pytest.mark.parametrize(
    "change",
    [
        lambda facts: facts["recipe"].update(wrappers=[]),
        lambda facts: facts["recipe"].update(kwargs={"sutton_barto_reward": True}),
        lambda facts: facts["recipe"].update(id="CartPole-v0"),
        lambda facts: facts["recipe"].update(frame_skip=4),
        lambda facts: facts["recipe"].update(weather="rain"),
        lambda facts: facts["spaces"]["action"].update(n=3),
    ],
    ids=["wrappers", "kwargs", "id", "frame_skip", "another key", "space"],
)
def test_an_env_of_another_recipe_is_refused(
    cartpole: tuple[Facts, Spec], change: Callable[[Facts], None]
) -> None:
    facts = json.loads(json.dumps(cartpole[0]))
    change(facts)
    check_refused(facts, cartpole[1], "differs from the recorded one", "--env")


def test_a_wrapper_without_recorded_arguments_is_refused_and_env_is_the_cure() -> None:
    class Louder(gym.RewardWrapper[Any, Any]):
        def reward(self, reward: Any) -> Any:
            return 2 * float(reward)

    def make() -> Any:
        return Louder(gym.make("CartPole-v1"))

    replay = recorded(sw.make_vec(make, 2, num_workers=0), 50)
    with pytest.raises(ValueError, match=r"Louder.*--env"):
        sw.resimulate(replay)
    assert {proof.reason for proof in proofs(replay, env=make).values()} == {"equal"}


@pytest.mark.parametrize(
    ("env", "parts"),
    [
        (lambda: gym.make("Pendulum-v1"), ["observation", "(4,)", "(3,)"]),
        (lambda: None, ["expected a function that makes an env", "NoneType"]),
        (lambda: 1 / 0, ["ZeroDivisionError"]),
        ("Unknown-v0", ["unknown env id", "Unknown-v0"]),
        ("math:nothing", ["math:nothing"]),
        ("no_such_module:make", ["no_such_module"]),
        ("math:pi", ["expected a function", "float"]),
    ],
    ids=["spaces", "None", "an error", "id", "name", "module", "no function"],
)
def test_wrong_envs_of_the_user_are_refused(
    cartpole: tuple[Facts, Spec], env: Any, parts: list[str]
) -> None:
    check_refused(*cartpole, *parts, env=env)


def test_facts_without_a_recipe_need_an_env(cartpole: tuple[Facts, Spec]) -> None:
    others: list[Facts] = [{}, {"recipe": 3}, {"recipe": {}}, {"recipe": {"maker": "mine"}}]
    for facts in others:
        check_refused(facts, cartpole[1], "--env")
        assert maker_of(facts, cartpole[1], env="CartPole-v1").single().spec is not None


def test_imported_rows_are_told_as_such(cartpole: tuple[Facts, Spec]) -> None:
    facts = {**cartpole[0], "recipe": {"source": "minari"}}  # which keeps the env spec
    check_refused(facts, cartpole[1], "minari", "--env")
    assert maker_of(facts, cartpole[1], env="CartPole-v1").single().spec is not None


def test_vector_envs_that_share_a_generator_are_refused() -> None:
    envs = gym.make_vec("CartPole-v1", 2, vectorization_mode="vector_entry_point")
    check_refused(*facts_of(envs), "one generator", "make_vec")


# Games.


@pytest.mark.proof
def test_the_other_backend_of_atari_is_refused_where_it_cannot_do_the_same() -> None:
    envs = sw.make_atari("Pong", 1, backend="python", num_workers=0)
    check_refused(*facts_of(envs), "noop_max", backend="native")
    envs = sw.make_atari("Breakout", 1, backend="python", life_loss="end", noop_max=0)
    check_refused(*facts_of(envs), "life_loss", backend="native")


@needs_a_backend
def test_a_cartridge_needs_its_own_file() -> None:
    rom, game = write_demo(Path("demo"))
    facts, spec = facts_of(sw.make_nes(rom, 1, game=game, num_workers=0))
    sha = facts["recipe"]["cartridge"]["sha256"]
    check_refused(facts, spec, sha, "--rom")
    other = bytearray(rom.read_bytes())
    other[-1] ^= 1
    check_refused(facts, spec, sha, "bytes", rom=bytes(other))
    check_refused(facts, spec, "rom", "make_nes", rom=rom, env=lambda: None)
    Path("renamed.nes").write_bytes(rom.read_bytes())
    assert maker_of(facts, spec, rom="renamed.nes").single().action_space.n == 7  # type: ignore[attr-defined]


@needs_a_backend
@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"start": ["abc"]}, ["snapshots", "--env"]),
        ({"game": {"name": 3}}, ["cannot be made"]),
        ({"backend": "none"}, ["cannot be made", "none"]),
        ({"boot": "JUMP 3"}, ["cannot be made", "JUMP"]),
        ({"frame_skip": 3}, []),
        ({"later": 3}, ["later"]),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_a_recipe_of_a_cartridge_is_checked(change: Facts, parts: list[str]) -> None:
    rom, game = write_demo(Path("demo"))
    facts, spec = facts_of(sw.make_nes(rom, 1, game=game, num_workers=0))
    facts["recipe"].update(change)
    if parts:
        check_refused(facts, spec, *parts, rom=rom)
    else:
        assert maker_of(facts, spec, rom=rom).single().unwrapped.metadata  # another recipe, made


# Values that stand for what is not there, and what has changed since.


def test_missing_values_are_those_of_the_facts_or_the_usual_ones() -> None:
    fields = (
        Field("info/lives", "int64", (), "raw"),
        Field("info/speed", "float32", (2,), "raw"),
        Field("info/won", "bool", (), "raw"),
        Field("info/count", "uint8", (), "raw"),
    )
    spec = Spec.from_spaces(gym.spaces.Discrete(2), gym.spaces.Discrete(2), more=fields)

    def values(missing: Any) -> dict[str, Any]:
        maker = maker_of({"missing": missing}, spec, env=lambda: gym.make("Tiny-v0"))
        return {name: value.tolist() for name, value in maker.missing.items()}

    gym.register("Tiny-v0", "support.replayed:TinyEnv")
    try:
        found = values({"lives": 7, "speed": ["inf", "1.5"], "won": True, "count": 9})
        assert found == {
            "info/lives": 7,
            "info/speed": [np.inf, 1.5],
            "info/won": True,
            "info/count": 9,
        }
        found = values(None)
        assert np.isnan(found.pop("info/speed")).all()
        assert found == {"info/lives": -1, "info/won": False, "info/count": 0}
        wrong: list[tuple[str, Any]] = [("lives", "x"), ("speed", [1, 2, 3]), ("lives", {})]
        for name, value in [*wrong, ("count", 300)]:
            with pytest.raises(ValueError, match=f"info/{name}"):
                values({name: value})
    finally:
        del gym.registry["Tiny-v0"]


def test_changes_of_versions_and_machine_are_told(cartpole: tuple[Facts, Spec]) -> None:
    facts = json.loads(json.dumps(cartpole[0]))
    assert maker_of(facts, cartpole[1]).differences == []
    facts["versions"].update(numpy="0.1", nothing_such="3")
    facts["machine"]["machine"] = "z80"
    told = " ".join(maker_of(facts, cartpole[1]).differences)
    for part in ("numpy 0.1, now", "nothing_such 3, now not installed", "machine z80, now"):
        assert part in told
    facts["versions"], facts["machine"] = 3, None
    assert maker_of(facts, cartpole[1]).differences == []
