"""Independent work over the cores of a CPU, a thread each; on a GPU the caller does it alone.

A thread that computes by itself waits at no barrier, and what it works on stays in its core's
cache. Lanes share nothing, so who computes which, and when, changes no result.
"""

import heapq
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Generic, NamedTuple, TypeVar

import torch

from fl2fast.interrupt import stop_if_asked
from fl2fast.models.network import Network

Item = TypeVar("Item")
Result = TypeVar("Result")


class Stream(NamedTuple, Generic[Item]):
    """Items that must be worked off in their order; `size` of them."""

    size: int
    items: Iterator[Item]


class Cores:
    """The threads that a network may use: as many as torch has on a CPU, one on a GPU.

    Every thread has a network of its own, since `functional_call` lends a module its parameters.
    """

    def __init__(self, network: Network, most: int = 0) -> None:
        """`most`, if not 0, bounds the threads, and with them the memory."""
        on_cpu = network.weights_P.device.type == "cpu"
        threads = torch.get_num_threads() if on_cpu else 1
        self.count = min(most or threads, threads)
        self.network = network
        self._twins: list[Network] = []

    def map(self, task: Callable[[Network, Item], Result], items: Iterable[Item]) -> list[Result]:
        """task(network, item) of every item, in their order; the items are of about one size."""
        results: dict[int, Result] = {}

        def put(network: Network, numbered: tuple[int, Item]) -> None:
            results[numbered[0]] = task(network, numbered[1])

        streams = [Stream(1, iter([numbered])) for numbered in enumerate(items)]
        even = len(streams) - len(streams) % self.count
        self.fold(put, streams[:even])
        self.fold(put, streams[even:])  # fewer than cores: several threads work on each
        return [results[number] for number in range(len(results))]

    def fold(
        self, step: Callable[[Network, Item], object], streams: Sequence[Stream[Item]]
    ) -> None:
        """step(network, item) of every item of every stream, each stream in its own order."""
        workers = min(self.count, len(streams))
        if workers <= 1:
            for stream in streams:
                for item in stream.items:
                    stop_if_asked()
                    step(self.network, item)
            return
        while len(self._twins) < workers:
            self._twins.append(self.network.twin())
        queue = _Queue(streams, 2 * workers - 1)
        threads = torch.get_num_threads()
        with_grad = torch.is_grad_enabled()

        def work(network: Network) -> None:
            torch.set_num_threads(max(self.count // workers, 1))
            with torch.set_grad_enabled(with_grad), queue.stopped_by_error():
                for item in queue:
                    stop_if_asked()
                    step(network, item)

        try:
            with ThreadPoolExecutor(workers) as pool, queue.stopped_by_error():
                for done in [pool.submit(work, network) for network in self._twins[:workers]]:
                    done.result()
        finally:
            torch.set_num_threads(threads)  # torch gives a new thread what was set last


class _Queue(Generic[Item]):
    """Hands items out to threads; the stream with most items left goes first.

    Always advancing the longest lets streams end together, whatever their number, and so keeps
    every core busy to the end. Only a few streams are open at a time: an open one holds memory.
    """

    def __init__(self, streams: Sequence[Stream[Item]], num_open: int) -> None:
        shortest_first = sorted(enumerate(streams), key=lambda s: (s[1].size, -s[0]))
        self._unopened = [(-s.size, number, s.items) for number, s in shortest_first]
        self._idle: list[tuple[int, int, Iterator[Item]]] = []
        self._places, self._lock, self._stop = num_open, threading.Lock(), False

    def __iter__(self) -> Iterator[Item]:
        while (stream := self._take()) is not None:
            left, number, items = stream
            for item in items:
                yield item
                self._give_back((left + 1, number, items))
                break
            else:
                self._close()

    def _take(self) -> tuple[int, int, Iterator[Item]] | None:
        """A stream that nobody works on; None: those that work on the others finish them."""
        with self._lock:
            while self._places and self._unopened:
                heapq.heappush(self._idle, self._unopened.pop())
                self._places -= 1
            return heapq.heappop(self._idle) if self._idle and not self._stop else None

    def _give_back(self, stream: tuple[int, int, Iterator[Item]]) -> None:
        with self._lock:
            heapq.heappush(self._idle, stream)

    def _close(self) -> None:
        with self._lock:
            self._places += 1

    @contextmanager
    def stopped_by_error(self) -> Iterator[None]:
        """Hand out nothing more once an error, or an interrupt, passes through."""
        try:
            yield
        except BaseException:
            self._stop = True
            raise
