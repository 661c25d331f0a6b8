"""Collect one game on every NES emulator that is installed, and show the stored frames.

python examples/nes_dataset.py                  # the demo game
python examples/nes_dataset.py my.nes my-map    # your cartridge and its RAM map
"""

import argparse

import cv2
import numpy as np

import stepwell as sw
from demo_rom import write_demo
from stepwell.wrappers.nes import Game, installed_backends


def strip(title: str, episode: sw.Episode, env: sw.NesEnv) -> np.ndarray:
    """Draw stored frames above the screen, which is rendered by replaying the actions."""
    frames = [env.reset()[0], *(env.step(action)[0] for action in episode.action[:-1])]
    times = np.linspace(1, episode.steps, 4).astype(int)
    stored = [np.kron(episode.observation[t], np.ones((3, 3), np.uint8)) for t in times]
    above = [np.pad(one, [(4, 4), (6, 6)], constant_values=255) for one in stored]
    edges = [*(np.reshape(env.screen_edges, (2, 2)) + 4), (0, 0)]  # the hidden edges, and a gap
    below = [np.pad(frames[t], edges, constant_values=255) for t in times]
    band = cv2.putText(np.full((34, 1056, 3), 255, np.uint8), title, (6, 25), 0, 0.6, (0, 0, 0))
    return np.vstack([band, np.stack([np.hstack(above)] * 3, -1), np.hstack(below)])


def main() -> None:
    """Press random buttons, print the episodes, and save a picture for each backend."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", help="my.nes my-map; default: the demo game")
    parser.add_argument("--steps", type=int, default=4_000)
    parser.add_argument("--out", default="runs/nes")
    options = parser.parse_args()
    rom, ram_map = [*options.files, None][:2] if options.files else write_demo(options.out)
    game = Game.load(ram_map)
    actions = "game" if game.actions else "simple"
    info = {name: -1 for name in ("score", "lives") if name in game.variables}
    print("NES emulators:", *(installed_backends() or ["none; pip install 'stepwell[nes]'"]))
    strips = [np.full((4, 1056, 3), 255, np.uint8)]
    for backend, version in installed_backends().items():
        envs = sw.make_nes(rom, 8, backend=backend, game=game, actions=actions, max_frames=3_600)
        replay = sw.SequenceReplayBuffer(f"{options.out}/{backend}")
        with replay, sw.Collector(envs, sw.RandomPolicy(), replay, seed=0, info=info) as collector:
            print(f"{backend}: {collector.collect(steps=options.steps)}")
            episodes = list(replay.iter_episodes())
        print("   id env steps return", *(f"{name:>5}" for name in info), "end")
        for one in episodes[:16]:
            end = next(way for way in ("terminated", "truncated", "cut") if getattr(one, way)[-1])
            facts = (f"{one.fields[f'info/{name}'][-1]:5}" for name in info)
            print(f"{one.id:5} {one.stream:3} {one.steps:5} {one.total_reward:6.1f}", *facts, end)
        screen = sw.NesEnv(rom, backend=backend, game=game, actions=actions, frame_skip=4)
        strips.append(strip(f"{backend} {version}", max(episodes, key=lambda e: e.steps), screen))
    picture = np.vstack(strips)[..., ::-1]  # OpenCV's channel order
    cv2.imwrite(f"{options.out}/nes_frames.png", picture, [cv2.IMWRITE_PNG_COMPRESSION, 9])


if __name__ == "__main__":
    main()
