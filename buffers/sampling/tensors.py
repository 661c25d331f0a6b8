"""Batches of numpy arrays as batches of torch tensors, copied only where they must be."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from ..base.number_checks import check_choice
from ..base.optional_libraries import load_library

DTYPES = frozenset(  # of torch and of JAX
    "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 float32 float64 complex64 "
    "complex128".split()
)
_NOT_FOR_TENSORS = "memory"  # the field of a batch that says where `out=` puts the next one


class _View(NamedTuple):
    """A tensor of the list, or a view into it; counted in elements."""

    tensor: int
    place: tuple[tuple[int, ...], tuple[int, ...], int] | None


class Prepared(NamedTuple):
    """A batch on its way to its device."""

    tree: object  # the batch, with a `_View` for each array
    tensors: list[Any]  # that the views refer to


class ToTensors:
    """Converts the arrays of a batch to tensors, in a batch of the same type and nesting."""

    # On the CPU tensors share the arrays' memory. Views stay views: memory that several arrays
    # share, such as the frames of stacked observations, is moved once. Arrays that torch cannot
    # share (read-only, of another byte order, with a negative stride) are copied.

    def __init__(
        self,
        # as torch names it: "cuda", "cuda:1"; None leaves the tensors on the CPU
        device: object = None,
        # copy to pinned memory first, which is copied to the device asynchronously
        pin_memory: bool = False,
    ) -> None:
        self._torch = load_torch("to='torch'")
        self._device: Any = None if device is None else _device(self._torch, device)
        self._is_pinned = pin_memory
        self._cuda = 0
        if pin_memory:
            _check_cuda(self._torch, "pin_memory=True")
            # Each thread has its own current device, which is the first one in a new thread.
            index = getattr(self._device, "index", None)
            self._cuda = self._torch.cuda.current_device() if index is None else index

    @property
    def copies(self) -> bool:
        """The tensors never share the arrays' memory."""
        return self._is_pinned or (self._device is not None and self._device.type != "cpu")

    def __call__(self, batch: object) -> Any:
        """Return the batch with tensors. Any, as the batch's annotations are arrays."""
        return self.finish(self.prepare(batch))

    def prepare(self, batch: object) -> Prepared:
        """Do the slow part of the conversion, in any thread."""
        owners = _Owners(batch)
        tree = mapped(batch, "", owners.view)
        tensors = [self._moved(self._torch.from_numpy(array)) for array in owners.arrays]
        return Prepared(tree, tensors)

    def finish(self, prepared: Prepared) -> Any:
        """Complete the conversion in the thread that uses the batch, on its CUDA stream."""
        tensors = prepared.tensors
        if self._is_pinned and self._device is not None:
            tensors = [tensor.to(self._device, non_blocking=True) for tensor in tensors]

        def tensor_of(view: _View, path: str) -> Any:
            tensor = tensors[view.tensor]
            return tensor if view.place is None else tensor.as_strided(*view.place)

        return mapped(prepared.tree, "", tensor_of, leaf=_View)

    def _moved(self, tensor: Any) -> Any:
        if self._is_pinned:
            with self._torch.cuda.device(self._cuda):
                return tensor.pin_memory()
        return tensor if self._device is None else tensor.to(self._device)


class _Owners:
    """The arrays that a batch's arrays are parts of, each to be moved once."""

    def __init__(self, batch: object) -> None:
        self.arrays: list[np.ndarray] = []
        self._numbers: dict[int, int] = {}
        self._shown: dict[int, int] = {}
        mapped(batch, "", self._note)

    def _note(self, array: np.ndarray, path: str) -> None:
        owner = id(_owner(array))
        self._shown[owner] = self._shown.get(owner, 0) + array.nbytes

    def view(self, array: np.ndarray, path: str) -> _View:
        """Locate an array in `arrays`."""
        native = array.dtype.newbyteorder("=")
        if native.name not in DTYPES:
            raise TypeError(
                f"{path}: expected a dtype that torch supports, got {array.dtype}; leave the field "
                f"out with fields=, or use to='numpy'"
            )
        owner = _owner(array)
        # If the batch uses a small part of a large array, only that part is moved.
        if owner is not array and owner.nbytes <= self._shown[id(owner)]:
            size = array.itemsize
            offset = (_address(array) - _address(owner)) // size
            strides = tuple(stride // size for stride in array.strides)
            return _View(self._number(owner), (array.shape, strides, offset))
        plain = array if _can_be_shared(array) else np.array(array, native)
        return _View(self._number(plain), None)

    def _number(self, array: np.ndarray) -> int:
        number = self._numbers.setdefault(id(array), len(self.arrays))
        if number == len(self.arrays):
            self.arrays.append(array)  # keeps it alive, so that no other one takes its id
        return number


def converter(to: str, device: object, pin_memory: bool = False) -> ToTensors | None:
    """The converter of batches to tensors; None where arrays are wanted."""
    check_choice("to", to, ("numpy", "torch"))
    for name, given, usual in (("device", device, None), ("pin_memory", bool(pin_memory), False)):
        if to == "numpy" and given is not usual:
            raise ValueError(
                f"{name}: expected {usual}, or to='torch' with it, got to='numpy' and {given!r}"
            )
    return ToTensors(device, pin_memory) if to == "torch" else None


def load_torch(wanted_for: str) -> ModuleType:
    """Import PyTorch."""
    return load_library("torch", wanted_for, install="'stepwell[torch]'")


def _device(torch: ModuleType, wanted: object) -> Any:
    """Return the device, with its index if it is a CUDA device."""
    try:
        device = torch.device(wanted)
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            f"device: expected one that torch knows, such as 'cuda' or 'cpu', got {wanted!r}"
        ) from error
    if device.type == "cuda":
        _check_cuda(torch, f"device={wanted!r}")
        if device.index is None:  # the current one differs from thread to thread
            return torch.device("cuda", torch.cuda.current_device())
    return device


def _check_cuda(torch: ModuleType, argument: str) -> None:
    if not torch.cuda.is_available():
        raise ValueError(f"{argument}: expected a CUDA device, torch finds none; leave it out")


def mapped(
    value: Any,
    path: str,
    convert: Callable[[Any, str], object],
    left: Collection[str] = (),  # fields of a batch that stay as they are
    leaf: type = np.ndarray,
) -> Any:
    """Replace each array, or other leaf, of a batch or of a part of it."""
    if isinstance(value, leaf):
        return convert(value, path)
    if isinstance(value, (tuple, list)):
        parts = [mapped(part, f"{path}/{i}", convert, left, leaf) for i, part in enumerate(value)]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, (dict, Mapping)):  # a dict is told sooner
        return {
            key: mapped(part, f"{path}/{key}", convert, left, leaf) for key, part in value.items()
        }
    if is_dataclass(value) and not isinstance(value, type):
        changes = {
            field.name: {}
            if field.name == _NOT_FOR_TENSORS
            else mapped(
                getattr(value, field.name), f"{path}/{field.name}".strip("/"), convert, left, leaf
            )
            for field in fields(value)
            if field.name not in left
        }
        return _changed(value, changes)
    return value


def _changed(value: Any, changes: Mapping[str, Any]) -> Any:
    """A batch with other values, also of fields that its constructor does not take."""
    kind: Any = type(value)
    if _takes_all_fields(kind):
        return replace(value, **changes)
    changed = copy.copy(value)
    for name, part in changes.items():
        setattr(changed, name, part)
    return changed


@cache
def _takes_all_fields(kind: Any) -> bool:
    return all(field.init for field in fields(kind))


def _owner(array: np.ndarray) -> np.ndarray:
    """The array that owns this one's memory, if torch can share it; else this one."""
    owner, link = array, array.base
    while link is not None:
        owner = link if isinstance(link, np.ndarray) else owner
        link = getattr(link, "base", None)
    fits = owner.dtype == array.dtype and owner.flags.c_contiguous and owner.flags.writeable
    steps = zip(array.shape, array.strides, strict=True)
    size = array.itemsize or 1
    goes_on = all(n < 2 or (step > 0 and step % size == 0) for n, step in steps)
    return owner if fits and goes_on and array.dtype.isnative else array


def _can_be_shared(array: np.ndarray) -> bool:
    """True if torch can share an array's memory."""
    is_plain = array.flags.writeable and array.dtype.isnative
    return is_plain and all(step >= 0 and step % array.itemsize == 0 for step in array.strides)


def _address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])
