"""Train Stable-Baselines3's own DQN from a Stepwell replay in a folder; it balances CartPole.

python examples/feed_sb3_dqn.py --steps 50000 --out runs/sb3_dqn --seed 0
"""

import argparse
from pathlib import Path

import stepwell as sw

try:
    import torch
    from stable_baselines3 import DQN
except ImportError:
    print("this example needs Stable-Baselines3: pip install 'stepwell[sb3]'")
    raise SystemExit from None


def main() -> None:
    """Train, then evaluate the best model of the training on fresh episodes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split(";")[0])
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--out", type=Path, default=Path("runs/sb3_dqn"))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)  # more threads do not help a network this small
    model = DQN(
        "MlpPolicy",
        "CartPole-v1",  # declares the spaces; it is never stepped
        learning_rate=2.3e-3,
        buffer_size=1,  # of SB3's own replay, which is not used
        learning_starts=1_000,
        target_update_interval=10,
        exploration_fraction=0.16,
        policy_kwargs={"net_arch": [256, 256]},
        seed=options.seed,
    )
    greedy, explore = (sw.bridges.sb3_policy(model, deterministic=best) for best in (True, False))
    envs = sw.make_vec("CartPole-v1", 4, num_workers=0)
    replay = sw.SequenceReplayBuffer(options.out / "steps", seed=options.seed)
    model.replay_buffer = sw.bridges.as_sb3_replay(replay, model)
    scores = [-1.0]
    # In place of model.learn(options.steps):
    with replay, sw.Collector(envs, explore, replay, seed=options.seed) as collector:
        while model.num_timesteps < options.steps:
            report = collector.collect(steps=256)
            sw.bridges.count_sb3_steps(model, report.steps, total_steps=options.steps)
            model.train(gradient_steps=128, batch_size=64)
            if model.num_timesteps >= min(2_500 * len(scores), options.steps):
                scores.append(sw.evaluate("CartPole-v1", greedy, episodes=10, seed=500).mean)
                if scores[-1] > max(scores[:-1]):  # DQN may become worse later
                    model.save(options.out / "best.zip")
    model.set_parameters(options.out / "best.zip")
    evaluation = sw.evaluate("CartPole-v1", greedy, episodes=20, seed=1_000)
    print(f"mean return of 20 fresh greedy episodes: {evaluation.mean:.1f}")


if __name__ == "__main__":
    main()
