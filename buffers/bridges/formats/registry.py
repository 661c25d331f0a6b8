"""The formats that there are, by name."""

from __future__ import annotations

import difflib
import importlib
from typing import Final

from stepwell.buffers.bridges.formats.format import Format

__all__ = ["format_names", "format_of"]

_FORMATS: Final = {
    "minari": "minari.format:MinariFormat",
    "d3rlpy": "d3rlpy:D3rlpyFormat",
    "iris": "iris:IrisFormat",
    "diamond": "diamond:DiamondFormat",
    "dreamerv3": "dreamer_v3:DreamerV3Format",
    "npz": "npz:NpzFormat",
    "parquet": "parquet:ParquetFormat",
    "lerobot": "lerobot:LeRobotFormat",
    "rlds": "rlds:RldsFormat",
}


def format_names() -> list[str]:
    """Names of all formats.

    Example:
        >>> "minari" in format_names()
        True
    """
    return list(_FORMATS)


def format_of(name: str) -> Format:
    """The format of that name; nothing that it needs is loaded yet.

    Raises:
        ValueError: There is none.

    Example:
        >>> format_of("npz").kind
        'folder'
    """
    if name not in _FORMATS:
        near = difflib.get_close_matches(name.lower(), _FORMATS, 1)
        hint = f"did you mean {near[0]!r}?" if near else "see `stepwell formats`"
        raise ValueError(f"format: expected one of {', '.join(_FORMATS)}, got {name!r}; {hint}")
    module, _, made = _FORMATS[name].partition(":")
    found = importlib.import_module(f"stepwell.buffers.bridges.formats.{module}")
    format_: Format = getattr(found, made)()
    return format_
