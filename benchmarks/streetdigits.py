"""What streetdigits is worth: all labels against a few: python -m benchmarks.streetdigits

One central learner, no federation: `supervised` with the server holding the labels, on the default
20,000 images.
"""

from typing import Any

import numpy as np

import fl2fast
from benchmarks.harness import write_record

SETTINGS: dict[str, Any] = {
    "method": "supervised",
    "clients": 1,
    "cohort": 1,
    "seeds": 3,
    "pretrain": 0,
    "eval_every": 10**6,
}
CASES: dict[str, dict[str, Any]] = {
    "19,990 labels (all but ten images)": {"labels": 19_990, "rounds": 2, "server_batch_size": 50},
    "40 labels": {"labels": 40, "rounds": 20, "pretrain": 10},
    "60 labels": {"labels": 60, "rounds": 20, "pretrain": 10},
}


def main() -> None:
    rows = []
    for title, case in CASES.items():
        made = fl2fast.experiment(**SETTINGS | case)
        *_, last = fl2fast.simulate(fl2fast.build_world(made))
        accuracy = [row["test_accuracy"] for row in last.metrics]
        spread = {"mean": float(np.mean(accuracy)), "std": float(np.std(accuracy, ddof=1))}
        rows.append({"title": title, "test_accuracy": accuracy, **spread, "case": case})
        print(rows[-1])
    about = "The quick preset's CNN, three seeds, 4,000 test images;"
    print(write_record("streetdigits", rows, about=about))


if __name__ == "__main__":
    main()
