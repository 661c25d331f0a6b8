"""Tensors share the memory of the arrays, or are copies where that is impossible."""

from __future__ import annotations

import contextlib
import importlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple, cast

import numpy as np
import pytest

from stepwell.buffers.sampling.batch import Batch, TransitionBatch
from stepwell.buffers.sampling.loader import Loader
from stepwell.buffers.sampling.tensors import ToTensors

torch: Any = pytest.importorskip("torch", reason="needs PyTorch: pip install 'stepwell[torch]'")


class Pair(NamedTuple):
    left: np.ndarray
    right: np.ndarray


def a_batch(number: int = 0, batch_size: int = 2, length: int = 3, k: int = 4) -> Batch:
    """A batch as the replay makes them: flags and stacks are views into its memory."""
    frames = np.arange(batch_size * (length + k - 1) * 6, dtype=np.uint8)
    frames = frames.reshape(batch_size, length + k - 1, 2, 3) + np.uint8(number)
    flags = np.zeros((6, batch_size, length), np.bool_)
    flags[0, :, 0] = True
    row = frames.strides[1]
    shape, strides = (batch_size, length, k, 2, 3), (frames.strides[0], row, *frames.strides[1:])
    stacks = np.ndarray(shape, frames.dtype, frames, 0, strides)
    place = np.full((batch_size, length), number, np.int64)
    memory = {"frames": frames, "flags": flags}
    return Batch(
        observation=cast("Any", {"image": stacks, "both": (place, Pair(place + 1, place + 2))}),
        action=cast("Any", None),
        reward=np.full((batch_size, length), number / 8, np.float32),
        **dict(zip(("is_first", "is_last", "terminated", "truncated"), flags, strict=False)),
        cut=flags[4],
        mask=flags[5],
        lengths=np.full(batch_size, length),
        info={"lives": place.astype(np.int32)},
        extras={},
        ids=np.arange(batch_size),
        weights=np.ones(batch_size, np.float32),
        state={},
        burn_in=1,
        memory=memory,
    )


def assert_equal(tensors: Any, arrays: Any) -> None:
    """Same nesting, same dtypes, same numbers."""
    if isinstance(arrays, np.ndarray):
        assert isinstance(tensors, torch.Tensor)
        got = tensors.cpu().numpy()
        assert got.dtype == arrays.dtype.newbyteorder("=")
        np.testing.assert_array_equal(got, arrays)
    elif isinstance(arrays, Mapping):
        assert list(tensors) == list(arrays)
        for key, part in arrays.items():
            assert_equal(tensors[key], part)
    elif isinstance(arrays, tuple):
        assert type(tensors) is type(arrays)
        for part, other in zip(tensors, arrays, strict=True):
            assert_equal(part, other)
    elif isinstance(arrays, Batch | TransitionBatch):
        assert type(tensors) is type(arrays)
        for field in fields(arrays):
            if field.name != "memory":
                assert_equal(getattr(tensors, field.name), getattr(arrays, field.name))
    else:
        assert tensors == arrays


def test_a_batch_keeps_its_type_and_nesting() -> None:
    batch = a_batch(7)
    tensors = ToTensors()(batch)
    assert_equal(tensors, batch)
    assert tensors.memory == {}
    assert tensors.burn_in == 1


def test_tensors_share_the_memory_of_the_arrays() -> None:
    batch = a_batch()
    tensors = ToTensors()(batch)
    batch.reward[:] = 5
    batch.memory["frames"][:] = 9
    batch.memory["flags"][:] = True
    assert tensors.reward.unique().tolist() == [5]
    assert tensors.observation["image"].unique().tolist() == [9]
    assert tensors.mask.all()


@pytest.mark.parametrize("name", "b1 u1 u2 u4 u8 i1 i2 i4 i8 f2 f4 f8 c8 c16".split())
def test_all_numeric_dtypes_have_tensors(name: str) -> None:
    array = np.array([0, 1, 1]).astype(name)
    assert_equal(ToTensors()([array])[0], array)


@pytest.mark.parametrize("dtype", ["U3", "O", "M8[s]", "g", "V0", "U0"])
def test_other_dtypes_are_refused_with_the_name_of_the_field(dtype: str) -> None:
    array = np.zeros(3, dtype)
    with pytest.raises(TypeError, match=rf"\binfo/word: .* {re.escape(str(array.dtype))};"):
        ToTensors()({"info": {"word": array}})


def read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6)[::-1],
        np.arange(12).reshape(3, 4)[:, ::-2],
        read_only(np.arange(6)),
        read_only(np.arange(6)).reshape(2, 3),
        np.broadcast_to(np.arange(3), (2, 3)),
        np.arange(6, dtype=">i4"),
        np.zeros(3, [("a", "i1"), ("b", "f8")])["b"],
    ],
    ids="reversed,reversed columns,read only,a view of that,broadcast,big endian,in a record".split(
        ","
    ),
)
def test_arrays_that_torch_cannot_share_are_copied(array: np.ndarray) -> None:
    before = array.copy()
    tensor = ToTensors()((array,))[0]
    assert_equal(tensor, before)
    tensor += 1
    np.testing.assert_array_equal(array, before)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(24).reshape(2, 3, 4).transpose(1, 0, 2),
        np.arange(12).reshape(3, 4)[:, 1::2],
        np.lib.stride_tricks.sliding_window_view(np.arange(8), 3),
        np.zeros((0, 3)),
        np.array(3.0),
        np.arange(6)[2:3],
        np.arange(16, dtype=np.uint8).view(np.float32),
    ],
    ids=["time major", "columns", "windows", "empty", "a scalar", "one", "other dtype"],
)
def test_other_views_are_shared(array: np.ndarray) -> None:
    tensor = ToTensors()((array,))[0]
    assert_equal(tensor, array)
    assert tensor.data_ptr() in (array.__array_interface__["data"][0], 0)
    assert array.size < 2 or tensor.stride() == tuple(s // array.itemsize for s in array.strides)


def test_shared_memory_is_copied_to_a_device_once() -> None:
    batch = a_batch()
    moved = ToTensors("meta")(batch)
    assert moved.reward.device.type == "meta"
    stacks = moved.observation["image"]
    assert (stacks.shape, stacks.dtype) == ((2, 3, 4, 2, 3), torch.uint8)
    assert stacks.stride() == batch.observation["image"].strides
    assert stacks.untyped_storage().nbytes() == 2 * 6 * 6
    assert ToTensors("meta").copies
    assert not ToTensors("cpu").copies


def test_an_unknown_or_missing_device_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^device: .*'cuda'.*'cpu'.*'gpu'"):
        ToTensors("gpu")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match=r"^device='cuda:1': .*\bCUDA\b.*\bnone\b"):
            ToTensors("cuda:1")
        with pytest.raises(ValueError, match=r"^pin_memory=True: .*\bCUDA\b.*\bnone\b"):
            Loader([1], to="torch", pin_memory=True)


class Pinned:
    """Stands for a tensor in pinned memory; records its calls."""

    def __init__(self, calls: list[object], tensor: Any) -> None:
        self.calls, self.tensor = calls, tensor

    def pin_memory(self) -> Pinned:
        self.calls.append("pin")
        return self

    def to(self, device: object, non_blocking: bool = False) -> Pinned:
        self.calls.append((str(device), non_blocking))
        return self

    def as_strided(self, *place: object) -> Any:
        return self.tensor.as_strided(*place)


def test_pinned_memory_moves_in_the_callers_thread_without_blocking(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[object] = []

    @contextlib.contextmanager
    def device(index: int) -> Iterator[None]:
        calls.append(f"on {index}")
        yield

    cuda = SimpleNamespace(is_available=lambda: True, current_device=lambda: 3, device=device)
    fake = SimpleNamespace(
        cuda=cuda,
        device=torch.device,
        from_numpy=lambda array: Pinned(calls, torch.from_numpy(array)),
    )
    monkeypatch.setattr(importlib, "import_module", lambda name: fake)
    to_tensors = ToTensors("cuda", pin_memory=True)
    prepared = to_tensors.prepare({"x": np.zeros(3), "y": np.ones(2)})
    assert calls == ["on 3", "pin", "on 3", "pin"]
    calls.clear()
    to_tensors.finish(prepared)
    assert calls == [("cuda:3", True), ("cuda:3", True)]
    calls.clear()
    ToTensors(pin_memory=True)({"x": np.zeros(3)})
    assert calls == ["on 3", "pin"]
    calls.clear()
    ToTensors("cuda:1")({"x": np.zeros(3)})
    assert calls == [("cuda:1", False)]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("pin_memory", [False, True])
def test_tensors_on_a_cuda_device_equal_the_arrays(pin_memory: bool) -> None:
    batch = a_batch()
    tensors = ToTensors("cuda", pin_memory)(batch)
    assert tensors.reward.is_cuda
    assert_equal(tensors, batch)


@pytest.mark.parametrize("options", [{}, {"device": "cpu", "threads": 2}])
def test_a_loader_gives_tensors(options: dict[str, Any]) -> None:
    made = [a_batch(number) for number in range(20)]
    found = list(Loader(made, to="torch", **options))
    assert len(found) == 20
    for tensors, batch in zip(found, made, strict=True):
        assert_equal(tensors, batch)


def test_memory_is_reused_by_default_when_tensors_are_copied_to_a_device() -> None:
    made: list[None] = []

    def draw(out: dict[str, np.ndarray] | None) -> dict[str, np.ndarray]:
        if out is None:
            made.append(out)
        return out or {"x": np.zeros(3)}

    with Loader(draw, to="torch", device="meta") as batches:
        for _ in range(20):
            batch: Any = next(batches)
            assert batch["x"].device.type == "meta"
    assert len(made) == 1


def test_without_torch_the_error_names_the_extra_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(name: str) -> ModuleType:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ImportError, match=r"^to='torch' .*stepwell\[torch\]"):
        Loader([1], to="torch")
