"""Options of Minari data sets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["MinariExport", "MinariImport"]


@dataclass(frozen=True, slots=True)
class MinariExport:
    """Options for writing a Minari data set.

    Args:
        root: Folder below which data sets lie; MINARI_DATASETS_PATH, or Minari's own, when none.
        data_format: Minari's own word for how episodes are kept.
        compress: Compress columns exactly, hdf5 by gzip and arrow by zstd; Minari need not know.
        stack: Write frame-stacked observations in full, as the env gave them; else single frames.
        env: Whose spaces and spec are noted: "recorded" for the recorded env's, as far as the store
            knows them, an id for those of an env that is made for that, or none for spaces made
            from the rows.
        author: Who made the data.
        author_email: How to reach them.
        code_permalink: Link to the code that made the data.
        algorithm_name: What chose the actions.
        description: A few words about the data.
        requirements: What pip needs for the env, with commas between: "ale-py>=0.12".
    """

    root: str | None = None
    data_format: Literal["hdf5", "arrow"] = "hdf5"
    compress: bool = True
    stack: bool = True
    env: str | None = "recorded"
    author: str | None = None
    author_email: str | None = None
    code_permalink: str | None = None
    algorithm_name: str | None = None
    description: str | None = None
    requirements: str | None = None


@dataclass(frozen=True, slots=True)
class MinariImport:
    """Options for reading a Minari data set.

    Args:
        root: Folder below which data sets lie; MINARI_DATASETS_PATH, or Minari's own, when none.
        record: Make use of what Stepwell noted when it wrote the data set; else read it as if
            somebody else had.
        infos: Keep infos as fields info/name, where all episodes have them alike.
    """

    root: str | None = None
    record: bool = True
    infos: bool = True
