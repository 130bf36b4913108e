"""Run the demo, keep its summary and its picture: python -m benchmarks.demo"""

import shutil
import tempfile
from pathlib import Path

from benchmarks.harness import PICTURE, write_record
from fl2fast.cli.progress import progress
from fl2fast.demo import demo


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "demo"
        summary = demo(out, lambda title: progress(f"{title}: "))
        rows = summary.pop("rows")
        del summary["environment"]  # the record has its own
        print(write_record("demo", rows, **summary))
        shutil.copy(out / "curves.svg", PICTURE)


if __name__ == "__main__":
    main()
