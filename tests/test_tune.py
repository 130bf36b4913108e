"""Choosing by measurement: timed once, kept under everything it depends on."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fl2fast.errors import UsageError
from fl2fast.tune import REPEATS, Verdict, fastest, interleave, race

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "fl2fast" / "tuned"


class Candidates:
    """Two ways that differ by far more than the clock's noise, and a count of their calls."""

    def __init__(self) -> None:
        self.calls = {"slow": 0, "quick": 0}

    def make(self) -> dict[str, Callable[[], Callable[[], None]]]:
        def run(name: str, seconds: float) -> None:
            self.calls[name] += 1
            time.sleep(seconds)

        return {
            "slow": lambda: lambda: run("slow", 0.03),
            "quick": lambda: lambda: run("quick", 0.0),
        }


def test_the_fastest_is_timed_once_and_recalled(own_cache: Path) -> None:
    ways = Candidates()
    verdict = fastest("test", ways.make(), CPU, rows=3)
    assert verdict.choice == "quick"
    assert ways.calls == {"slow": 1, "quick": 2}
    assert fastest("test", ways.make(), CPU, rows=3) == verdict
    assert ways.calls == {"slow": 1, "quick": 2}
    (path,) = own_cache.iterdir()
    key = json.loads(path.read_text())["key"]
    assert key["rows"] == 3
    assert {"device", "threads", "versions", "candidates"} <= set(key)


def test_other_shapes_are_timed_anew(own_cache: Path) -> None:
    ways = Candidates()
    for rows in (1, 2):
        fastest("test", ways.make(), CPU, rows=rows)
    assert ways.calls["slow"] == 2
    assert len(list(own_cache.iterdir())) == 2


@pytest.mark.parametrize("text", ["", "{}", '{"seconds": {}}', '{"seconds": 3}'])
def test_a_broken_entry_is_timed_anew(text: str, own_cache: Path) -> None:
    ways = Candidates()
    fastest("test", ways.make(), CPU)
    (path,) = own_cache.iterdir()
    path.write_text(text)
    assert fastest("test", ways.make(), CPU).choice == "quick"
    assert ways.calls["slow"] == 2
    assert json.loads(path.read_text())["seconds"]["slow"] > 0.02


def test_what_cannot_be_used_is_not_chosen() -> None:
    def absent() -> Callable[[], None]:
        raise UsageError("not on this machine")

    assert fastest("test", {"absent": absent} | Candidates().make(), CPU).choice == "quick"


def test_an_unwritable_cache_only_costs_time(tmp_path: Path) -> None:
    (tmp_path / "fl2fast").write_text("a file where the cache would be")
    assert fastest("test", Candidates().make(), CPU).choice == "quick"


def test_a_verdict_reads_well() -> None:
    assert str(Verdict("torch", {"torch": 0.01, "dali": 0.123})) == "torch, 12.3x dali"
    assert str(Verdict("torch", {"torch": 0.0})) == "torch"


def test_the_first_call_is_not_timed() -> None:
    pauses = iter([0.2, 0.0, 0.0, 0.0])
    seconds = interleave({"late": lambda: time.sleep(next(pauses))}, 3, CPU)
    assert len(seconds["late"]) == 3
    assert max(seconds["late"]) < 0.1


def test_close_candidates_are_called_often_and_slow_ones_once() -> None:
    calls: list[str] = []

    def way(name: str, seconds: float) -> Callable[[], None]:
        return lambda: (calls.append(name), time.sleep(seconds))[1]

    ways = {"a": way("a", 0.02), "b": way("b", 0.022), "slow": way("slow", 0.2)}
    seconds = race(ways, CPU)
    assert calls.count("a") == calls.count("b") == 1 + REPEATS
    assert calls.count("slow") == 1
    assert seconds["slow"] > 5 * seconds["a"]


def test_a_race_ends_with_its_budget() -> None:
    calls: list[str] = []
    ways = {name: (lambda n=name: (calls.append(n), time.sleep(0.02))[1]) for name in "ab"}
    race(ways, CPU, budget=0.01)
    assert len(calls) == 4  # the first calls and one that counts, of each
