"""Run the demo and keep its summary and its picture: python -m benchmarks.demo"""

import shutil
import tempfile
from contextlib import nullcontext
from pathlib import Path

from benchmarks.harness import ROOT_PICTURE, write_record
from fl2fast.demo import demo


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "demo"
        summary = demo(out, lambda title, rounds: nullcontext(print))
        rows = summary.pop("rows")
        summary.pop("environment")
        print(write_record("demo", rows, **summary))
        shutil.copy(out / "curves.svg", ROOT_PICTURE)


if __name__ == "__main__":
    main()
