"""Write the files that DIAMOND (Alonso et al., 2024) trains on: tensors, and counts of them.

python examples/exports/diamond.py runs/pong --out data/train

DIAMOND's `static_dataset.path=data` is a folder with two of them, `train` and `test`: write each
from a store of its own (`stepwell filter`). An episode of T steps has T of everything; what the env
showed after the last one is in its info, unless the recording just stopped.
"""

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import stepwell as sw

try:
    import torch
except ImportError:
    print("this example needs PyTorch: pip install 'stepwell[torch]'")
    raise SystemExit from None


def file_of(folder: Path, number: int) -> Path:
    """The path at which DIAMOND keeps an episode: 000/10/1/1011.pt."""
    digits = f"{number:03d}"[-3:]
    return folder / f"{digits[0]}00" / f"{digits[1]}0" / digits[2] / f"{number}.pt"


def tensors_of(episode: sw.Episode, shape: tuple[int, ...]) -> dict[str, Any]:
    """An episode as DIAMOND keeps it, pictures with their channels first."""
    pictures = np.moveaxis(episode.observation.reshape(-1, *shape), -1, 1)
    arrays = {
        "obs": pictures[:-1],
        "act": episode.action[:-1].astype(np.int64),
        "rew": episode.reward[1:].astype(np.float32),
        "end": episode.terminated[1:].astype(np.uint8),
        "trunc": episode.truncated[1:].astype(np.uint8),
    }
    found: dict[str, Any] = {name: torch.tensor(array) for name, array in arrays.items()}
    # The arithmetic is DIAMOND's own, so that its pictures are bit for bit the same.
    final = torch.tensor(pictures[-1]).div(255).mul(2).sub(1)
    return found | {"info": {"final_observation": final} if episode.end.is_final else {}}


def write(replay: sw.SequenceReplayBuffer, folder: Path) -> int:
    """Write a file for each episode and info.pt into a new folder, and return their number."""
    frame, action = replay.spec["observation"], replay.spec["action"]
    *stack, height, width, channels = (1, 1, *frame.shape)[-4:]
    is_picture = frame.dtype == "uint8" and stack == [1] and channels < min(height, width)
    if not is_picture or action.shape or "int" not in action.dtype:
        raise SystemExit(
            f"DIAMOND takes uint8 pictures (H, W, C), and one whole number as action, got "
            f"{frame.dtype} {frame.shape} and {action.dtype} {action.shape}"
        )
    folder.mkdir(parents=True)
    lengths: list[int] = []
    rewards: Counter[float] = Counter()
    ends: Counter[int] = Counter()
    for episode in replay.iter_episodes():
        if episode.steps:
            tensors = tensors_of(episode, (height, width, channels))
            file = file_of(folder, len(lengths))
            file.parent.mkdir(parents=True, exist_ok=True)
            torch.save(tensors, file)
            lengths.append(episode.steps)
            rewards.update(np.sign(tensors["rew"].numpy()).tolist())
            ends.update(tensors["end"].tolist())
    # DIAMOND keeps these two as numpy's arrays, which torch >= 2.6 does not load. Tensors do.
    counts = torch.tensor(lengths, dtype=torch.int64)
    info = {
        "is_static": False,
        "num_episodes": len(lengths),
        "num_steps": sum(lengths),
        "start_idx": counts.cumsum(0) - counts,
        "lengths": counts,
        "counter_rew": rewards,
        "counter_end": ends,
    }
    torch.save(info, folder / "info.pt")
    return len(lengths)


def main() -> None:
    """Read a store, and write the folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("--out", type=Path, default=Path("data/train"))
    options = parser.parse_args()
    with sw.SequenceReplayBuffer.open(options.store, read_only=True) as replay:
        print(f"{write(replay, options.out):,} episodes in {options.out}")


if __name__ == "__main__":
    main()
