"""Batches of tensors out of a dataset: PyTorch's DataLoader, and what is done to its batches."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

from stepwell.buffers.dropin.memmap.datasets import Items
from stepwell.buffers.dropin.memmap.named_batch import check_names, named_batch, to_device
from stepwell.buffers.sampling.tensors import load_torch

__all__ = ["Finish", "make_loader"]


class Finish(NamedTuple):
    """What is done to a batch in the process that learns, so that no worker need do it.

    Args:
        padded: Names of what is padded in time, in batches that are made of single items; None
            where nothing is.
        return_mask: Give ``_mask`` [B, T] bool: which steps are the episodes' own.
        to_named_tuple: Names that make up a named tuple; None for a dict.
        device: Where the tensors go; None leaves them.
    """

    padded: frozenset[str] | None = None
    return_mask: bool = False
    to_named_tuple: Sequence[str] | None = None
    device: object = None

    def __call__(self, batch: dict[str, Any]) -> Any:
        """The batch as it is handed out."""
        batch = to_device(batch, self.device)
        if self.return_mask:
            lengths = batch["_lens"]
            torch = importlib.import_module("torch")
            padded = [batch[name] for name in self.padded or () if name in batch]
            most = padded[0].shape[1] if padded else int(lengths.max())
            steps = torch.arange(most, device=lengths.device)
            batch["_mask"] = steps[None] < lengths[:, None]
        if self.to_named_tuple is None:
            return batch
        return named_batch(batch, self.to_named_tuple)


def make_loader(dataset: Any, finish: Finish, options: Mapping[str, Any]) -> Any:
    """A `torch.utils.data.DataLoader` of a dataset.

    Args:
        dataset: What the items come from.
        finish: What is done to each batch.
        options: Arguments of DataLoader, ``batch_size`` and so on.

    Raises:
        ValueError: A name cannot stand in a named tuple.
        ImportError: PyTorch is not installed.
    """
    if finish.to_named_tuple is not None:
        check_names(finish.to_named_tuple)
    # In the workers: a function that can be sent to them.
    collate = partial(_collated, finish.padded)
    loader = _loader_class()(dataset, collate_fn=collate, **options)
    loader.finish = finish
    return loader


def _collated(padded: frozenset[str] | None, items: Any) -> dict[str, Any]:
    """One batch out of items, those of another dataset included."""
    if isinstance(items, Items):
        return items.collated
    torch = importlib.import_module("torch")
    if padded is None:
        collate: Any = importlib.import_module("torch.utils.data").default_collate
        found: dict[str, Any] = collate(list(items))
        return found
    pad = torch.nn.utils.rnn.pad_sequence
    batch: dict[str, Any] = {}
    for name in items[0]:
        values = [torch.as_tensor(item[name]) for item in items]
        is_padded = name in padded and values[0].ndim > 0
        batch[name] = pad(values, batch_first=True) if is_padded else torch.stack(values)
    return batch


@cache
def _loader_class() -> Any:
    """The class of the loaders, made when PyTorch is first needed.

    Raises:
        ImportError: PyTorch is not installed.
    """
    load_torch("a dataloader")
    base: Any = importlib.import_module("torch.utils.data").DataLoader

    class ReplayDataLoader(base):  # type: ignore[misc]
        """What `make_loader` gives."""

        finish = Finish()

        def __iter__(self) -> Iterator[Any]:
            return (self.finish(batch) for batch in super().__iter__())

    return ReplayDataLoader
