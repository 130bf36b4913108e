"""Dated records: a number has a machine, versions and a date."""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fl2fast.machine import environment

RECORDS = Path(__file__).parent / "records"
PICTURE = Path(__file__).parents[1] / "docs" / "demo.svg"


def write_record(name: str, rows: list[dict[str, Any]], **about: Any) -> Path:
    """benchmarks/records/DATE_NAME.json with machine, versions and date."""
    env = environment("cpu")
    RECORDS.mkdir(exist_ok=True)
    path = RECORDS / f"{env['date'][:10]}_{name}.json"
    path.write_text(json.dumps({"environment": env, **about, "rows": rows}, indent=2) + "\n")
    return path


def latest_record(name: str) -> dict[str, Any]:
    return all_records(name)[-1]


def all_records(name: str) -> list[dict[str, Any]]:
    """Records of a name, by date."""
    return [json.loads(path.read_text()) for path in sorted(RECORDS.glob(f"*_{name}.json"))]


def machine(record: dict[str, Any]) -> str:
    """Where and when a record was made, in a few words."""
    env = record["environment"]
    return (
        f"{env['cores']} cores of {env['cpu']}, torch {env['versions']['torch']}, "
        f"{env['date'][:10]}"
    )


def median_and_spread(values: Sequence[float]) -> dict[str, float]:
    """What a table shows of repeated measurements."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}
