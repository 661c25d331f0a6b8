"""A plugin of pytest for Minari's own tests: their data sets went through an import and export.

`.ci/real_loaders` loads it. Each data set that a test makes is imported by Stepwell, deleted, and
exported again under its id before the test sees it.
"""

from __future__ import annotations

import functools
from typing import Any

import minari
import minari.utils

import stepwell as sw
from stepwell.buffers.bridges import export_episodes, import_episodes


def through(dataset: Any) -> Any:
    """The data set, imported and exported; Parquet's as Arrow's, which Stepwell writes."""
    id_ = dataset.id
    data_format = "hdf5" if dataset.storage.FORMAT == "hdf5" else "arrow"
    replay = sw.SequenceReplayBuffer()
    import_episodes("minari", id_, replay)
    minari.delete_dataset(id_)
    export_episodes(replay, "minari", id_, options={"data_format": data_format})
    return minari.load_dataset(id_)


def patched(owner: Any, name: str) -> None:
    made = getattr(owner, name)

    @functools.wraps(made)
    def call(*args: Any, **kwargs: Any) -> Any:
        return through(made(*args, **kwargs))

    setattr(owner, name, call)


patched(minari.DataCollector, "create_dataset")
patched(minari.utils, "create_dataset_from_buffers")
minari.create_dataset_from_buffers = minari.utils.create_dataset_from_buffers
