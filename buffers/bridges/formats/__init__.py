"""Data sets in the formats of other libraries: written, and read back.

A format of your own implements `Format`, `Writer` and `Reader`; ``docs/feeding.md`` shows one.
"""

from typing import TYPE_CHECKING

from ...base.package import lazy_names

if TYPE_CHECKING:  # loaded on first use
    from ...base.untrusted_files import GivenFiles
    from ...exchange.formats.format import Format, NoOptions, Reader, Source, Writer

__all__ = ["Format", "GivenFiles", "NoOptions", "Reader", "Source", "Writer"]

if not TYPE_CHECKING:  # type checkers know the imports above, and no other name
    __getattr__, __dir__ = lazy_names(__name__, {"..exchange.formats.format": __all__})
