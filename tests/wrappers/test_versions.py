"""Recipes name the versions of the packages that decide pixels and numbers."""

from importlib.metadata import version
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.wrappers import AddRenderObservation

from stepwell.wrappers import make_vec
from stepwell.wrappers.versions import module_versions, versions_of

ALWAYS = ["gymnasium", "numpy"]


def names(env: gym.Env[Any, Any]) -> list[str]:
    layers: list[Any] = [env]
    while isinstance(layers[-1], gym.Wrapper):
        layers.append(layers[-1].env)
    found = versions_of(layers)
    assert found == {name: version(name) for name in found}
    return list(found)


def test_drawings_count_where_they_are_observed() -> None:
    pytest.importorskip("pygame")
    env = gym.make("CartPole-v1", render_mode="rgb_array")
    env.reset()
    assert names(AddRenderObservation(env)) in ([*ALWAYS, "pygame"], [*ALWAYS, "pygame-ce"])


@pytest.mark.parametrize(
    ("env_id", "module", "package"),
    [
        ("HalfCheetah-v5", "mujoco", "mujoco"),
        ("LunarLander-v3", "Box2D", "box2d"),
        ("ALE/Pong-v5", "ale_py", "ale-py"),
    ],
)
def test_a_package_that_computes_the_env_counts(env_id: str, module: str, package: str) -> None:
    pytest.importorskip(module)
    assert package in names(make_vec(env_id, num_workers=0).envs[0])  # type: ignore[attr-defined]


def test_a_module_without_a_package_has_its_own_version_or_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import support

    assert module_versions(["support", "json", "builtins", "__main__", "not_there"]) == {}
    monkeypatch.setattr(support, "__version__", "3.1", raising=False)
    module_versions.__globals__["_version"].cache_clear()
    assert module_versions(["support"]) == {"support": "3.1"}
    module_versions.__globals__["_version"].cache_clear()
