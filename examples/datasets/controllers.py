"""Controllers of classic control and of LunarLander: short, known, and without training."""

from typing import Any

import numpy as np


class Controller:
    """A policy that is a function of observations ``[N, ...]``."""

    def __init__(self, choose: Any) -> None:
        self._choose = choose

    def __call__(self, observation: np.ndarray, is_first: np.ndarray) -> np.ndarray:
        """The actions [N]."""
        return np.asarray(self._choose(observation))


def cart_pole(seen: np.ndarray) -> np.ndarray:
    """Push to where the pole falls, and a little against where the cart is."""
    x, speed, angle, turn = seen.T.astype(np.float64)
    return np.asarray(np.where(0.05 * x + 0.1 * speed + angle + 0.3 * turn > 0, 1, 0))


def mountain_car(seen: np.ndarray) -> np.ndarray:
    """Push the way that the car rolls."""
    return np.where(seen[:, 1] >= 0, 2, 0)


def acrobot(seen: np.ndarray) -> np.ndarray:
    """Pump energy into the swing: torque against the turn of the first link."""
    return np.where(seen[:, 4] > 0, 0, 2)


def pendulum(seen: np.ndarray) -> np.ndarray:
    """Add the energy that is missing for the top; near it, hold the angle like a spring."""
    cosine, sine, turn = seen.T.astype(np.float64)
    angle = np.arctan2(sine, cosine)
    missing = 15 * (1 - cosine) - turn**2 / 2  # of the energy that it has at rest on top
    swing = 2 * np.sign(turn + 1e-9) * np.sign(missing)
    torque = np.where(cosine > 0.9, -16 * angle - 4 * turn, swing)
    return np.asarray(np.clip(torque, -2, 2)[:, None], np.float32)


def lunar_lander(seen: np.ndarray) -> list[int]:
    """The heuristic that Gymnasium has for its LunarLander-v3."""
    from types import SimpleNamespace

    from gymnasium.envs.box2d import lunar_lander as module

    heuristic: Any = module.heuristic
    env: Any = SimpleNamespace(unwrapped=SimpleNamespace(continuous=False))
    return [int(heuristic(env, one)) for one in seen]
