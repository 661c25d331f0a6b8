#!/usr/bin/env bash
# minari 0.5.4: `combine_datasets` of data sets with exact images gives JPEG images, without seeds.
#
# One would expect that a combination of two data sets has their episodes as they are: both are
# written with jpeg_encoding=False, and each episode notes the seed of its reset.
# Seen: the combination has jpeg_encoding=True, so that its images differ from those that were
# given, and no episode has a seed. Exit code 1 if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q --disable-pip-version-check \
  minari==0.5.4 gymnasium==1.4.0 numpy==2.3.5 h5py==3.16.0 pillow==12.0.0
export MINARI_DATASETS_PATH=$folder/data
"$folder/venv/bin/python" -W ignore - << 'PYTHON'
import sys

import minari
import numpy as np
from gymnasium import spaces
from minari.data_collector import EpisodeBuffer

image = spaces.Box(0, 255, (40, 40, 3), np.uint8)
shown = np.random.default_rng(0).integers(0, 256, (4, 40, 40, 3), np.uint8)
ends = np.arange(3) == 2
episode = EpisodeBuffer(
    seed=7, observations=shown, actions=np.zeros(3, np.int64), rewards=np.ones(3),
    terminations=ends, truncations=np.zeros(3, bool), infos={},
)
made = [
    minari.create_dataset_from_buffers(
        name, [episode], observation_space=image, action_space=spaces.Discrete(2),
        data_format="hdf5", jpeg_encoding=False,
    )
    for name in ("one-v0", "two-v0")
]
both = minari.combine_datasets(made, "both-v0")
seeds = [
    [facts.get("seed") for facts in data.storage.get_episode_metadata(range(len(data)))]
    for data in (made[0], both)
]
exact = [bool(np.array_equal(data[0].observations, shown)) for data in (made[0], both)]
print("images are exact:", exact, "seeds:", seeds)
sys.exit((exact, seeds) != ([True, False], [[7], [None, None]]))
PYTHON
