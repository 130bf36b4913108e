"""A slice of benchmarks/hostile.py: bad input through every entry point, and the check itself."""

import os
from pathlib import Path

import pytest

from benchmarks.hostile import Outcome, Scratch, attack, in_scratch, judge, keep_verdicts
from benchmarks.hostile_inputs import GENERATORS, Case

SEED, CASES = 1, 400


def test_bad_input_is_refused_everywhere() -> None:
    with in_scratch() as scratch:
        keep_verdicts(scratch)
        found = list(attack(SEED, range(CASES), scratch))
    assert {finding.entry for finding in found} == set(GENERATORS)
    assert [(f.number, f.args, f.broken, f.outcome.stderr) for f in found if f.broken] == []
    codes = [finding.outcome.code for finding in found]
    assert codes.count(2) > CASES // 2
    assert set(codes) > {2}


GOOD = Outcome(2, "", "fl2fast: a sentence\n", 0.1)


@pytest.mark.parametrize(
    ("outcome", "left", "broken"),
    [
        (GOOD, {}, None),
        (GOOD._replace(stderr="reading svhn\nfl2fast: a sentence\n"), {}, None),
        (GOOD._replace(stderr="fl2fast: a sentence\nreading svhn\n"), {}, "not one sentence"),
        (GOOD._replace(stderr="fl2fast: one\nfl2fast: two\n"), {}, "not one sentence"),
        (GOOD._replace(stderr="a sentence\n"), {}, "not one sentence"),
        (GOOD._replace(stderr=""), {}, "not one sentence"),
        (GOOD._replace(stderr="fl2fast: \x1b[31m\n"), {}, "a sentence that cannot be read"),
        (GOOD._replace(stderr=f"fl2fast: {'x' * 2000}\n"), {}, "a sentence that cannot be read"),
        (GOOD._replace(stderr="Traceback (most recent call last):\n"), {}, "no clean end"),
        (GOOD._replace(code=None), {}, "no clean end"),
        (GOOD, {"case/run": (0, 0)}, "it left case/run"),
        (GOOD._replace(code=0), {"case/run": (0, 0)}, None),
        (GOOD._replace(code=0), {"home/x": (0, 0)}, "it left home/x"),
        (GOOD._replace(code=1), {}, "exit code 1"),
    ],
)
def test_the_check_can_fail(
    outcome: Outcome, left: dict[str, tuple[int, int]], broken: str | None
) -> None:
    assert judge(Case(["x"], made=("run",)), outcome, {}, left) == broken


def test_what_is_left_is_seen(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path)
    before = scratch.seen()
    (tmp_path / "cache" / "fine").write_text("allowed")
    assert scratch.seen() == before
    (tmp_path / "home" / "secret").write_text("left")
    assert set(scratch.seen()) - set(before) == {os.path.join("home", "secret")}
