"""Train small agents on the emulator's RAM with PPO, and keep them along the way as integers.

python examples/datasets/atari_trained.py Pong --steps 350000 130000 --out runs/agents
python examples/datasets/atari_trained.py Breakout --steps 120000 --out runs/agents
python examples/datasets/atari_trained.py Boxing --steps 300000 --out runs/agents

Needs stable-baselines3 2.x and some minutes of one core. Training again may give other agents, for
floats are not summed alike on every machine. What the kept ones play is the same everywhere:
`ram_agents.py` plays them, with integers alone.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ale_py
import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.atari_wrappers import ClipRewardEnv, EpisodicLifeEnv
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

from ram_agents import SIGHTS, UNIT, Sight, features

# Parts of the training after which an agent is kept.
CURVE = (0, 0.125, 0.25, 0.375, 0.5, 0.75, 1)
LAYER_NAMES = "mlp_extractor.policy_net.0", "mlp_extractor.policy_net.2", "action_net"


class Features(gym.Wrapper[Any, Any, Any, Any]):
    """Shows what an agent sees of the RAM, as floats."""

    def __init__(self, env: Any, sight: Sight) -> None:
        super().__init__(env)
        self._sight = sight
        self._seen: list[np.ndarray] = []
        places, pairs = sight
        self.observation_space = gym.spaces.Box(-4, 4, (3 * len(places) + len(pairs),), np.float32)

    def reset(self, **options: Any) -> Any:
        """Begin with a RAM that seems to have stood still."""
        ram, info = self.env.reset(**options)
        self._seen = [ram.astype(int)] * 3
        return self._shown(), info

    def step(self, action: Any) -> Any:
        """Step, and show the new RAM."""
        ram, *rest = self.env.step(action)
        self._seen = [ram.astype(int), *self._seen[:2]]
        return self._shown(), *rest

    def _shown(self) -> np.ndarray:
        return (features(self._seen, self._sight) / UNIT).astype(np.float32)


class Curve(BaseCallback):
    """Keeps the policy along its training, and prints how it scores there."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self._due = [part * steps for part in CURVE]
        self.before = 0  # steps of the parts of training that are over
        self.kept: dict[int, dict[str, np.ndarray]] = {}

    def _on_rollout_start(self) -> None:
        steps = self.before + self.num_timesteps
        if self._due and steps >= self._due[0]:
            self._due.pop(0)
            state = self.model.policy.state_dict()
            self.kept[steps] = {name: one.numpy().copy() for name, one in state.items()}
            returns = [one["r"] for one in self.model.ep_info_buffer or ()]
            score = f"{np.mean(returns):.1f}" if returns else "no episode has ended"
            print(f"{steps:,} steps: {score}", flush=True)

    _on_training_end = _on_rollout_start

    def _on_step(self) -> bool:
        return True


def trained(game: str, parts: Sequence[int]) -> dict[int, dict[str, np.ndarray]]:
    """The weights of the policy along its training, by the steps that it learned from.

    In each part the learning rate falls anew.
    """
    torch.set_num_threads(1)
    gym.register_envs(ale_py)
    envs = make_vec_env(
        f"ALE/{game}-v5",  # 4 frames a step and sticky actions, as `make_atari`
        16,
        seed=0,
        env_kwargs={"obs_type": "ram", "disable_env_checker": True},
        wrapper_class=lambda env: Features(ClipRewardEnv(EpisodicLifeEnv(env)), SIGHTS[game]),
    )
    curve = Curve(sum(parts))
    state: Any = None
    for seed, steps in enumerate(parts):
        model = PPO(
            "MlpPolicy",
            envs,
            learning_rate=lambda left: 1e-3 * max(left, 0.1),
            n_steps=64,
            batch_size=256,
            n_epochs=6,
            ent_coef=0.01,
            policy_kwargs={"net_arch": [64, 64], "activation_fn": torch.nn.ReLU},
            seed=seed,
            device="cpu",
        )
        if state is not None:
            model.policy.load_state_dict(state)
        model.learn(steps, callback=curve)
        state = model.policy.state_dict()
        curve.before += model.num_timesteps
    return curve.kept


def quantized(state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The policy's layers, each in units of the power of two in which its weights fill 8 bits."""
    found: dict[str, np.ndarray] = {}
    for n, name in enumerate(LAYER_NAMES):
        weights, bias = (state[f"{name}.{kind}"].astype(float) for kind in ("weight", "bias"))
        shift = int(np.log2(127 / np.abs(weights).max()))
        found[f"weights{n}"] = np.rint(weights * 2.0**shift).astype(np.int8)
        found[f"bias{n}"] = np.rint(bias * 2.0**shift * UNIT).astype(np.int32)
        found[f"shift{n}"] = np.array(shift, np.int8)
    return found


def save(file: Path, game: str, kept: dict[int, dict[str, np.ndarray]]) -> None:
    """Write the agents of a game, quantized, as `kept_agents` reads them."""
    each = [quantized(state) for state in kept.values()]
    arrays: dict[str, Any] = {name: np.stack([one[name] for one in each]) for name in each[0]}
    places, pairs = (one.astype(np.uint8) for one in SIGHTS[game])
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(file, places=places, pairs=pairs, steps=list(kept), **arrays)


def main() -> None:
    """Train the agents of a game, and keep them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("game", choices=list(SIGHTS))
    parser.add_argument("--steps", type=int, nargs="+", default=[300_000], help="of each part")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "agents")
    options = parser.parse_args()
    kept = trained(options.game, options.steps)
    save(options.out / f"{options.game.lower()}.npz", options.game, kept)


if __name__ == "__main__":
    main()
