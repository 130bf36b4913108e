"""Prepare what a step needs beside the step that runs."""

from collections.abc import Iterator
from functools import cache
from typing import TypeVar

import torch
from torch.utils._pytree import tree_leaves

Item = TypeVar("Item")


def on_side_stream(items: Iterator[Item], device: torch.device) -> Iterator[Item]:
    """The same items; on CUDA their kernels run on a stream of their own.

    The host asks for the next item as soon as it has launched the steps of the last one, so the
    views of the next steps are made while those still compute. A CPU has no streams.
    """
    if device.type != "cuda":
        yield from items
        return
    main, side = torch.cuda.current_stream(device), _side_stream(device)
    side.wait_stream(main)  # what the items read may still be on its way
    while True:
        with torch.cuda.stream(side):
            item = next(items, None)
        if item is None:
            return
        main.wait_stream(side)
        for leaf in tree_leaves(item):
            if isinstance(leaf, torch.Tensor):
                leaf.record_stream(main)  # its memory is the main stream's to free
        yield item


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all: freed memory is only used again on the stream that had it."""
    return torch.cuda.Stream(device)
