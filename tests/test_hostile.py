"""A slice of benchmarks/hostile.py: bad input through every entry point, and the check itself."""

import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

from benchmarks.damage import npy_bytes, zip_bytes
from benchmarks.hostile import Outcome, Scratch, attack, in_scratch, judge, keep_verdicts
from benchmarks.hostile_inputs import GENERATORS, Case, good_images
from fl2fast.cli.main import main

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


# -- the worst, one by one -------------------------------------------------------------------------


def refused(capsys: pytest.CaptureFixture[str], *args: str | Path) -> str:
    with pytest.raises(SystemExit) as stop:
        main([str(arg) for arg in args])
    said = capsys.readouterr()
    assert stop.value.code == 2, said
    assert said.err.count("\n") == 1, said.err
    return said.err


@pytest.mark.parametrize(
    ("label", "words"),
    [
        (np.int64(10**12), "has the label 1000000000000, but labels count from 0 to at most 9,999"),
        (np.int64(-(2**63)), "has the label -9223372036854775808"),
        (np.uint64(2**64 - 1), "has the label 18446744073709551615"),
        (np.float64("nan"), "holds float64"),
        (np.float64(1.0), "holds float64"),
    ],
)
def test_labels_that_make_no_sense_are_refused(
    label: np.generic, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arrays = good_images()
    labels = arrays["train_labels"].astype(label.dtype)
    labels[3] = label
    write_folder_of(tmp_path, arrays | {"train_labels": labels})
    assert words in refused(capsys, "train", "--dataset", tmp_path)


def test_an_array_is_what_its_file_bears_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A header that claims a petabyte, one of Python objects, and a pickle."""
    write_folder_of(tmp_path, good_images())
    path, claim = tmp_path / "train_images.npy", "{'descr': '|u1', 'fortran_order': False, "
    header = f"{claim}'shape': (1099511627776, 3, 32, 32)}}\n".encode()
    for content, words in (
        (b"\x93NUMPY\x01\0" + len(header).to_bytes(2, "little") + header, "claims uint8 of shape"),
        (npy_bytes(np.array([{"a": 1}])), "holds object, not plain numbers"),
        (b"\x80\x04N.", "header cannot be read"),
    ):
        path.write_bytes(content)
        assert words in refused(capsys, "train", "--dataset", tmp_path)


def test_a_trace_unpacks_to_what_it_may_and_no_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    zeros, path = npy_bytes(np.zeros(40 << 20, np.uint8)), tmp_path / "t.npz"
    bomb = zip_bytes({"a.npy": zeros}, zipfile.ZIP_DEFLATED)
    path.write_bytes(bomb)
    assert "it states 41,943,168 bytes of arrays" in refused(capsys, "verify", path)
    place = bomb.index(b"PK\x01\x02") + 24
    path.write_bytes(bomb[:place] + (1000).to_bytes(4, "little") + bomb[place + 4 :])
    assert "not a whole trace" in refused(capsys, "verify", path)
    path.write_bytes(zip_bytes({"a.npy": zeros}, zipfile.ZIP_LZMA))
    assert "not a whole trace" in refused(capsys, "verify", path)
    with zipfile.ZipFile(path, "w") as archive:
        for i in range(50_000):
            archive.writestr(f"{i:080}", b"")
    assert "table of contents" in refused(capsys, "verify", path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"mean = " + b"[" * 900, "nested too deeply"),
        (b"lr = " + b"\n" * 3 + b"9" * 5000, "line 4 has more than 1,000 characters"),
        (b"rounds = 0x" + b"f" * 900, "rounds is"),
        (b"lr = 1" + b"0" * 400, "lr is 1000"),
        (b"rounds = 9223372036854775808", "rounds is 9223372036854775808, but it must be from 1"),
        (b"model = '\xff'", "byte 9 is not UTF-8"),
        (b"out = 'a\0b'", "not valid TOML"),
        (b'out = "a\\u0000b"', "holds a null byte"),
        (b"#" * 70_000, "more than 65,536 bytes"),
        (b"a." * 400 + b"a = 1\n", "unknown setting"),
    ],
)
def test_configs_that_would_break_a_parser_are_refused(
    content: bytes, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "c.toml").write_bytes(content)
    assert words in refused(capsys, "train", "--dry-run", "--config", tmp_path / "c.toml")


def test_a_pipe_is_not_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    flags = ("train", "--dry-run", "--config", tmp_path / "pipe")
    assert "not a regular file" in refused(capsys, *flags)
    assert "not a regular file" in refused(capsys, "verify", tmp_path / "pipe")


def test_a_plug_in_leaves_nothing_and_ends_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.py"
    for source in ("raise SystemExit(0)", "def f():\n    raise SystemExit(0)"):
        path.write_text(source)
        said = refused(capsys, "train", "--dry-run", "--method", f"{path}:f")
        assert "SystemExit(0)" in said
    assert [p.name for p in tmp_path.iterdir()] == ["m.py"]


def write_folder_of(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    for name, array in arrays.items():
        (folder / f"{name}.npy").write_bytes(npy_bytes(array))
