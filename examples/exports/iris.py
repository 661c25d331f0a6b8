"""Write the files that IRIS (Micheli et al., 2023) trains on: tensors of T steps for each episode.

python examples/exports/iris.py runs/pong --out data/iris

Among IRIS's sources, `EpisodesDataset().load_disk_checkpoint(Path("data/iris"))` reads them. IRIS
has no place for the last observation of an episode, and one flag, `ends`: here it is 1 only where
the game was over. IRIS's own collector also sets it at time limits.
"""

import argparse
from pathlib import Path

import numpy as np

import stepwell as sw

try:
    import torch
except ImportError:
    print("this example needs PyTorch: pip install 'stepwell[torch]'")
    raise SystemExit from None


def write(replay: sw.SequenceReplayBuffer, folder: Path) -> int:
    """Write 0.pt, 1.pt, ... into a new folder, and return their number."""
    frame, action = replay.spec["observation"], replay.spec["action"]
    *stack, height, width, channels = (1, 1, *frame.shape)[-4:]
    is_picture = frame.dtype == "uint8" and stack == [1] and channels < min(height, width)
    if not is_picture or action.shape or "int" not in action.dtype:
        raise SystemExit(
            f"IRIS takes uint8 pictures (H, W, C), and one whole number as action, got "
            f"{frame.dtype} {frame.shape} and {action.dtype} {action.shape}"
        )
    folder.mkdir(parents=True)  # IRIS reads every file in it
    played = [episode for episode in replay.iter_episodes() if episode.steps]
    for number, episode in enumerate(played):
        steps = episode.steps
        frames = episode.observation[:-1].reshape(steps, height, width, channels)
        ends = np.zeros(steps, np.int64)
        ends[-1] = episode.terminated[-1]
        arrays = {
            "observations": np.moveaxis(frames, -1, 1),
            "actions": episode.action[:-1].astype(np.int64),
            "rewards": episode.reward[1:].astype(np.float32),
            "ends": ends,
            "mask_padding": np.ones(steps, np.bool_),
        }
        tensors = {name: torch.tensor(array) for name, array in arrays.items()}
        torch.save(tensors, folder / f"{number}.pt")
    return len(played)


def main() -> None:
    """Read a store, and write the folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("--out", type=Path, default=Path("data/iris"))
    options = parser.parse_args()
    with sw.SequenceReplayBuffer.open(options.store, read_only=True) as replay:
        print(f"{write(replay, options.out):,} episodes in {options.out}")


if __name__ == "__main__":
    main()
