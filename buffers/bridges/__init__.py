"""Bridges to libraries that people already use: live ones, and data sets out and in.

What a bridge leads to is imported when it is crossed. ``docs/feeding.md`` shows each.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # loaded when it is first asked for
    from stepwell.buffers.bridges.formats.exporting import ExportReport, export_episodes
    from stepwell.buffers.bridges.formats.importing import ImportReport, import_episodes
    from stepwell.buffers.bridges.formats.registry import format_names

__all__ = [
    "ExportReport",
    "ImportReport",
    "export_episodes",
    "format_names",
    "import_episodes",
]

_LATER = {
    "ExportReport": "formats.exporting",
    "ImportReport": "formats.importing",
    "export_episodes": "formats.exporting",
    "format_names": "formats.registry",
    "import_episodes": "formats.importing",
}


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    found: object = getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
    return found
