"""Ctrl-C and SIGTERM, sent to real processes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fl2fast.checkpoint.restore import newest_whole
from fl2fast.checkpoint.writer import FOLDER

SLOW = ("--labels", "20", "--clients", "4", "--cohort", "2", "--rounds", "500", "--epochs", "1")
SLOW += ("--lowering", "cores", "--augment", "torch")


def start(run: Path, small_digits: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "fl2fast", "train", *SLOW, "--dataset", small_digits]
    process = subprocess.Popen(
        [*words, "--out", str(run)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "2"},
    )
    deadline = time.monotonic() + 60
    while not (run / FOLDER / "round-000002.json").exists():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_stops_between_steps(
    number: signal.Signals, tmp_path: Path, small_digits: str
) -> None:
    run = tmp_path / "run"
    process = start(run, small_digits)
    process.send_signal(number)
    said = process.communicate(timeout=30)[1]
    assert process.returncode == 130
    checkpoint = newest_whole(run, pytest.fail)
    assert checkpoint is not None
    assert "stopping after this step" in said
    assert f"rounds 1 to {checkpoint.manifest.round} are kept" in said
    assert f"fl2fast train --resume {run}" in said
    assert "Traceback" not in said
    rows = (run / "metrics.jsonl").read_text().splitlines()
    assert len(rows) == checkpoint.manifest.round


def test_the_second_signal_leaves_at_once(tmp_path: Path, small_digits: str) -> None:
    run = tmp_path / "run"
    process = start(run, small_digits)
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.001)
    said = process.communicate(timeout=10)[1]
    assert process.returncode == 130
    assert "Traceback" not in said
    assert newest_whole(run, pytest.fail) is not None
