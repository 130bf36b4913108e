"""(FL)^2 between its two bounds, on the embedded dataset, in minutes on a CPU."""

import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from fl2fast.experiment import experiment
from fl2fast.machine import environment
from fl2fast.plot import draw_curves
from fl2fast.run_folder import claim_folder
from fl2fast.simulate import RoundReport
from fl2fast.train import train

LINES = {"supervised": "labels only", "flfl": "(FL)^2", "fedavg": "all labels"}

# The quick preset on a smaller draw of streetdigits, so that three methods x three seeds fit into
# a coffee break on two cores.
SETTINGS: dict[str, Any] = {
    "dataset": "streetdigits",
    "train_size": 6000,
    "test_size": 2000,
    "seeds": 3,
    "eval_every": 2,
}


def demo(
    out: Path,
    listener: Callable[[str], AbstractContextManager[Callable[[RoundReport], object]]],
    **changes: Any,
) -> dict[str, Any]:
    """Train the three methods, write a run folder each, and one figure and summary of all."""
    claim_folder(out)
    started = time.perf_counter()
    curves, table = {}, []
    for method, title in LINES.items():
        made = experiment(**SETTINGS | changes | {"method": method})
        with listener(title) as on_round:
            summary = train(made, out / method, on_round=on_round)
        last = [seed["test_accuracy_last"] for seed in summary["seeds"]]
        table.append(
            {
                "method": method,
                "title": title,
                "test_accuracy": last,
                "mean": float(np.mean(last)),
                "std": float(np.std(last, ddof=1)) if len(last) > 1 else 0.0,
                "images_per_second": summary["images_per_second"],
                "wall_seconds": summary["wall_seconds"],
            }
        )
        lines = (out / method / "metrics.jsonl").read_text().splitlines()
        curves[title] = [json.loads(line) for line in lines]
    for suffix in (".png", ".svg"):
        draw_curves(curves, out / f"curves{suffix}")
    config = json.loads((out / "flfl" / "config.json").read_text())
    summary = {
        "rows": table,
        "wall_seconds": time.perf_counter() - started,
        "config": config,
        "environment": environment("cpu"),
    }
    (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    return summary
