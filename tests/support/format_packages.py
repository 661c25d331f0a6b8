"""The packages that the formats of data sets need."""

from __future__ import annotations

import importlib.util
import re

import pytest

PACKAGES: dict[str, tuple[str, ...]] = {
    "npz": (),
    "dreamerv3": (),
    "rlds": ("google_crc32c",),
    "d3rlpy": ("h5py",),
    "minari": ("minari", "h5py", "pyarrow"),
    "parquet": ("pyarrow",),
    "lerobot": ("pyarrow",),
}
"""By the name of the format, of all that are written."""


def missing(format_: str) -> list[str]:
    """Those that are not installed; of a kind such as ``minari arrow`` all of the format."""
    packages = PACKAGES.get(re.split("[ -]", format_)[0], ())
    return [package for package in packages if importlib.util.find_spec(package) is None]


def require(format_: str) -> None:
    """Skip the test where a package of the format is not installed."""
    if found := missing(format_):
        pytest.skip(f"needs {', '.join(found)}")
