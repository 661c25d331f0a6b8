"""Files of PyTorch's that hold tensors of one episode; what is in them is checked."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np

from stepwell.buffers.bridges.optional_libraries import load_library
from stepwell.buffers.given_files import GivenFiles

__all__ = [
    "arrays_of",
    "check_gapless",
    "ended_by",
    "is_number",
    "load_tensors",
    "save_tensors",
    "torch_for",
]

_PICKLE_BYTES: Final = 64 << 20


def torch_for(whose: str) -> ModuleType:
    """PyTorch.

    Raises:
        ImportError: It is not installed.
    """
    return load_library("torch", f"{whose}'s format", install="'stepwell[torch]'")


def load_tensors(torch: Any, given: GivenFiles, file: Path) -> dict[Any, Any]:
    """A dict that ``torch.save`` wrote; nothing but tensors and plain values is unpickled.

    Args:
        torch: The library.
        given: The data set.
        file: The file.

    Raises:
        ValueError: It holds something else, is damaged, or too large.
    """
    _check_archive(given, file)
    try:
        found = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # pickle's, zipfile's, torch's: they have no closer class in common
        raise ValueError(
            f"{file}: expected a dict of tensors as torch.save writes it, got another file, one "
            f"with objects in it, or a damaged one ({type(error).__name__}); mend or remove it"
        ) from error
    if not isinstance(found, dict):
        raise ValueError(f"{file}: expected a dict of tensors, got a {type(found).__name__}")
    return found


def save_tensors(torch: Any, value: Mapping[str, Any], file: Path) -> None:
    """Write what `load_tensors` reads.

    PyTorch's own writer says nothing of a full disk but that a place in the file is wrong.

    Raises:
        OSError: It cannot be written.
    """
    buffer = io.BytesIO()
    torch.save(value, buffer)
    with file.open("xb") as opened:
        opened.write(buffer.getbuffer())


def _check_archive(given: GivenFiles, file: Path) -> None:
    """Refuse what is no archive of records, as ``torch.save`` has written since PyTorch 1.6.

    Before, a file was pickles one after the other, which tell how much memory to take.

    Raises:
        ValueError: It is something else, or unpacks to too much.
    """
    try:
        with zipfile.ZipFile(given.file(file)) as archive:
            records = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, EOFError, struct.error) as error:
        raise ValueError(
            f"{file}: expected a dict of tensors as torch.save writes it, got another file, or a "
            f"damaged one ({error}); mend or remove it"
        ) from error
    given.room(file).take(sum(record.file_size for record in records))
    pickles = [r for r in records if r.filename.endswith("data.pkl")]
    if any(record.file_size > _PICKLE_BYTES for record in pickles):
        raise ValueError(
            f"{file}: expected tensors, got {pickles[0].file_size >> 20:,} MiB of plain values; "
            f"mend or remove it"
        )


def arrays_of(
    torch: Any, found: Mapping[Any, Any], dtypes: Mapping[str, str], file: Path
) -> dict[str, np.ndarray]:
    """Tensors of a file, checked.

    Args:
        torch: The library.
        found: What the file holds.
        dtypes: The dtype of each tensor that must be there; the first is pictures
            [T, C, H, W], all others are [T].
        file: Where they were found.

    Raises:
        ValueError: One is missing, is no tensor, or has another dtype, shape or length.
    """
    arrays: dict[str, np.ndarray] = {}
    steps = 0
    for name, dtype in dtypes.items():
        tensor: Any = found.get(name)
        if tensor is None or not isinstance(tensor, torch.Tensor):
            got = "none" if tensor is None else f"a {type(tensor).__name__}"
            raise ValueError(f"{file}: expected a tensor {name!r}, got {got}; mend or remove it")
        shape, kind = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
        is_good = len(shape) == 4 if not arrays else shape == (steps,)
        is_plain = tensor.layout == torch.strided and tensor.device.type == "cpu"
        if not is_plain or tensor.nbytes > tensor.untyped_storage().nbytes():  # one for many
            raise ValueError(
                f"{file}: expected {name!r} with all its numbers, got a tensor that has fewer; "
                f"mend or remove it"
            )
        if not is_good or kind != dtype:
            expected = "[T, C, H, W]" if not arrays else f"({steps},)"
            raise ValueError(
                f"{file}: expected {name!r} as {dtype} {expected}, got {kind} {shape}; mend or "
                f"remove it"
            )
        arrays[name] = tensor.detach().numpy()
        steps = shape[0]
    if not steps:
        raise ValueError(f"{file}: expected one step or more, got none; remove it")
    return arrays


def ended_by(flags: np.ndarray, name: str, file: Path) -> bool:
    """Whether the last step has a flag.

    Raises:
        ValueError: Another one has it.
    """
    if flags[:-1].any():
        raise ValueError(
            f"{file}: expected {name!r} to be set in the last step alone, got it in step "
            f"{flags.argmax()} of {len(flags)}; write each episode to a file of its own"
        )
    return bool(flags[-1])


def is_number(text: str) -> bool:
    """Whether a file is called by the number of an episode, as these formats write it.

    Example:
        >>> is_number("17"), is_number("017"), is_number("\u0663")
        (True, False, False)
    """
    return text.isascii() and text.isdecimal() and text == str(int(text))


def check_gapless(numbers: Sequence[int], where: Path, *, first: int) -> None:
    """Refuse episodes of which one is missing.

    Args:
        numbers: Theirs, in order.
        where: Where they lie.
        first: The number that is expected first.

    Raises:
        ValueError: One is.
    """
    for expected, number in enumerate(numbers, first):
        if expected != number:
            raise ValueError(
                f"{where}: expected episodes {first} to {numbers[-1]}, got none with the number "
                f"{expected}; put its file back, or number those behind it anew"
            )
