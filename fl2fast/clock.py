"""Seconds by phase, without stopping a GPU between phases."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Clock:
    """Time named phases; on CUDA by events, which are read once, when `read` is called."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._spans: dict[str, list[tuple]] = defaultdict(list)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start = self._mark()
        yield
        self._spans[name].append((start, self._mark()))

    def read(self) -> dict[str, float]:
        """Seconds of every phase since the last reading; waits for the device."""
        if self._cuda:
            torch.cuda.synchronize()
        seconds = {
            name: sum(self._between(*span) for span in spans) for name, spans in self._spans.items()
        }
        self._spans.clear()
        return seconds

    def _mark(self) -> "float | torch.cuda.Event":
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _between(self, start, stop) -> float:
        return start.elapsed_time(stop) / 1000.0 if self._cuda else stop - start
