"""Collect an Atari data set in a folder, then open it again and print its episodes.

python examples/atari_dataset.py --game Pong --steps 20000 --out runs/pong
"""

import argparse

import stepwell as sw


def main() -> None:
    """Collect with random actions; run again, the script continues where it stopped."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--game", default="Pong")
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--out", default="runs/pong")
    options = parser.parse_args()

    envs = sw.make_atari(options.game, num_envs=options.num_envs)
    with (
        sw.SequenceReplayBuffer(options.out) as replay,
        sw.Collector(envs, sw.RandomPolicy(), replay, seed=0, info={"lives": -1}) as collector,
    ):
        print(collector.collect(steps=options.steps))

    with sw.SequenceReplayBuffer.open(options.out, read_only=True) as replay:
        for field in replay.spec.fields:
            print("  ", field)
        for episode in list(replay.iter_episodes())[:10]:
            ended = "ended" if episode.end.is_final else "cut"
            print(
                f"   episode {episode.id:3} of env {episode.stream}: {episode.steps:5} steps, "
                f"return {episode.total_reward:6.1f}, {ended}"
            )


if __name__ == "__main__":
    main()
