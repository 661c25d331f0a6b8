"""Train Stable-Baselines3's own PPO on rollouts from Stepwell; it balances CartPole.

python examples/feed_sb3_ppo.py --steps 100000 --out runs/sb3_ppo --seed 0

It needs Stable-Baselines3; without it, the script says how to install it and exits.
"""

import argparse
from pathlib import Path

import stepwell as sw

try:
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
except ImportError:
    print("this example needs Stable-Baselines3: pip install 'stepwell[sb3]'")
    raise SystemExit from None

NUM_ENVS, ROWS = 8, 32


def main() -> None:
    """Train, save the model and evaluate it on fresh episodes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split(";")[0])
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--out", type=Path, default=Path("runs/sb3_ppo"))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # more threads do not help a network this small
    model = PPO(
        "MlpPolicy",
        make_vec_env("CartPole-v1", NUM_ENVS),  # declares the spaces; it is never stepped
        learning_rate=lambda left: 1e-3 * left,
        clip_range=lambda left: 0.2 * left,
        n_steps=ROWS,
        batch_size=256,
        n_epochs=20,
        gamma=0.98,
        gae_lambda=0.8,
        seed=options.seed,
    )
    # In place of model.learn(options.steps):
    envs = sw.make_vec("CartPole-v1", NUM_ENVS, num_workers=0)
    with sw.Collector(envs, sw.bridges.sb3_policy(model), seed=options.seed) as collector:
        while model.num_timesteps < options.steps:
            sw.bridges.to_sb3_rollout(collector.rollout(ROWS), model, total_steps=options.steps)
            model.train()
    model.save(options.out / "model.zip")
    greedy = sw.bridges.sb3_policy(model, deterministic=True)
    evaluation = sw.evaluate("CartPole-v1", greedy, episodes=20, seed=1_000)
    print(f"mean return of 20 fresh greedy episodes: {evaluation.mean:.1f}")


if __name__ == "__main__":
    main()
