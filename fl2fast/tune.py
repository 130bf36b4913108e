"""Measure, then choose: which of several equivalent ways is the fastest on this device.

The candidates give equal results, so a verdict only costs or saves time. It is kept in the cache
under everything it depends on: device, threads, versions and the caller's shapes.
"""

import hashlib
import json
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fl2fast.cache import cache_dir
from fl2fast.errors import UsageError
from fl2fast.machine import PACKAGES, device_name, version
from fl2fast.reading import read_small

MOST_BYTES = 1 << 20  # of a verdict that was kept
REPEATS = 5
BUDGET = 15.0  # seconds after which no candidate is called again
HOPELESS = 2.0  # a candidate that is so many times slower than the best is not called again;
FIRST = 2.0  # on its first call, which may set something up, so many times more


class Verdict(NamedTuple):
    choice: str
    seconds: dict[str, float]  # median of each candidate

    def __str__(self) -> str:
        """torch, 12.3x dali"""
        others = (name for name in self.seconds if name != self.choice)
        best = self.seconds[self.choice]
        return ", ".join([self.choice, *(f"{self.seconds[n] / best:.1f}x {n}" for n in others)])


def interleave(
    calls: Mapping[str, Callable[[], object]], repeats: int, device: torch.device
) -> dict[str, list[float]]:
    """Seconds of each call, over and over; they take turns, after one untimed call each."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for repeat in range(repeats + 1):
        for name, value in _turn(calls, device).items():
            if repeat:
                seconds[name].append(value)
    return seconds


def race(
    calls: Mapping[str, Callable[[], object]], device: torch.device, budget: float = BUDGET
) -> dict[str, float]:
    """Median seconds of each call, taking turns; the hopeless drop out with what they took.

    First calls count only to tell the hopeless.
    """
    started = time.perf_counter()
    seconds = _turn(calls, device)
    left = _in_the_race(calls, seconds, FIRST * HOPELESS)
    timed: dict[str, list[float]] = {name: [] for name in calls}
    for repeat in range(REPEATS):
        if repeat and (time.perf_counter() - started > budget or len(left) == 1):
            break
        for name, value in _turn(left, device).items():
            timed[name].append(value)
            seconds[name] = statistics.median(timed[name])
        left = _in_the_race(left, seconds, HOPELESS)
    return seconds


def _in_the_race(
    calls: Mapping[str, Callable[[], object]], seconds: Mapping[str, float], times: float
) -> dict[str, Callable[[], object]]:
    best = min(seconds[name] for name in calls)
    return {name: call for name, call in calls.items() if seconds[name] <= times * best}


def _turn(calls: Mapping[str, Callable[[], object]], device: torch.device) -> dict[str, float]:
    return {name: seconds_of(call, device) for name, call in calls.items()}


def seconds_of(call: Callable[[], object], device: torch.device) -> float:
    start = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def fastest(
    what: str,
    candidates: Mapping[str, Callable[[], Callable[[], object]]],
    device: torch.device,
    **shapes: Any,
) -> Verdict:
    """Time the candidates, or recall the verdict; each makes the function that is to be timed."""
    key = {"what": what, "candidates": list(candidates), **_machine(device), **shapes}
    name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    path = cache_dir() / "tuned" / f"{what}-{name}.json"
    seconds = None if _anew.get() else _recall(path, candidates)
    if seconds is None:
        calls = {}
        for name, make in candidates.items():
            with suppress(UsageError):  # it cannot be used here
                calls[name] = make()
        seconds = race(calls, device)
        _keep(path, {"key": key, "seconds": seconds})
    return Verdict(min(seconds, key=seconds.__getitem__), seconds)


_anew: ContextVar[bool] = ContextVar("anew", default=False)


@contextmanager
def anew() -> Iterator[None]:
    """Inside, verdicts are not recalled but made again, and kept."""
    token = _anew.set(True)
    try:
        yield
    finally:
        _anew.reset(token)


def _machine(device: torch.device) -> dict[str, Any]:
    return {
        "device": device_name(device),
        "threads": torch.get_num_threads(),
        "versions": {package: version(package) for package in PACKAGES},
    }


def _recall(path: Path, candidates: Mapping[str, object]) -> dict[str, float] | None:
    try:
        kept = json.loads(read_small(path, MOST_BYTES))["seconds"]
        seconds = {name: float(kept[name]) for name in candidates if name in kept}
        return seconds if seconds and all(0 < s < math.inf for s in seconds.values()) else None
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None  # not there, or not whole: measure


def _keep(path: Path, verdict: dict[str, Any]) -> None:
    """Written beside and renamed; a cache that cannot be written only costs time."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_suffix(f".{os.getpid()}")
        scratch.write_text(json.dumps(verdict, indent=2) + "\n")
        scratch.rename(path)
    except OSError:
        return
