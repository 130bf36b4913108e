"""Interleaved timing and dated records: a ratio is only worth something from one run."""

import json
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fl2fast.record import environment

RECORDS = Path(__file__).parent / "records"
PICTURE = Path(__file__).parents[1] / "docs" / "demo.svg"


def interleave(candidates: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median seconds of each candidate; they take turns, after one untimed call each."""
    for call in candidates.values():
        call()
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(repeats):
        for name, call in candidates.items():
            start = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def write_record(name: str, rows: list[dict[str, Any]], **about: Any) -> Path:
    """benchmarks/records/DATE_NAME.json with machine, versions and date."""
    env = environment("cpu")
    RECORDS.mkdir(exist_ok=True)
    path = RECORDS / f"{env['date'][:10]}_{name}.json"
    path.write_text(json.dumps({"environment": env, **about, "rows": rows}, indent=2) + "\n")
    return path


def latest_record(name: str) -> dict[str, Any]:
    return json.loads(max(RECORDS.glob(f"*_{name}.json")).read_text())
