"""Minari's data sets, without JPEG, which its library loads, lists and samples from."""

from __future__ import annotations

from pathlib import Path

from ....base.untrusted_files import GivenFiles
from ..format import Format, Reader, Source, Writer
from .names import MinariExport, MinariImport, dataset_id, default_root, place_of, source_of
from .reader import MinariReader
from .writer import MinariWriter


class MinariFormat(Format):
    """A folder ``data`` of Minari's files."""

    # An episode of T steps has T + 1 observations and infos, and T of all other fields. Policy
    # extras are stored under infos as `extra/name`. An episode that was cut is marked as truncated
    # in its last step, as Minari's own DataCollector does it.

    name = "minari"
    about = "a data set that minari.load_dataset finds by its id; frames exact"
    install = "'stepwell[minari]'"
    export_options = MinariExport
    import_options = MinariImport

    def place(self, out: str, options: MinariExport | MinariImport) -> Path:
        """The data set's folder: below the root, or a path as it is."""
        if isinstance(options, MinariImport):
            return source_of(out, options.root)
        return place_of(out, options.root)

    def writer(self, source: Source, options: MinariExport) -> Writer:
        """A writer of one folder."""
        return MinariWriter(source, options)

    def reader(self, files: GivenFiles, options: MinariImport) -> Reader:
        """Open a data set."""
        return MinariReader(files, options)

    def loading(self, path: Path, out: str) -> str:
        """Lines that load it; with its root unless that is Minari's default."""
        id_ = dataset_id(path, None)
        if not path.absolute().is_relative_to(default_root().absolute()):
            if path.as_posix().endswith(f"/{out}"):
                id_ = out
            root = path.absolute().parents[id_.count("/")]
            where = f'import os\nos.environ["MINARI_DATASETS_PATH"] = "{root}"\n'
        else:
            where = ""
        return f'{where}import minari\ndataset = minari.load_dataset("{id_}")'
