"""AG News (Zhang et al., NIPS 2015): a balanced sample of its training texts, and its test texts.

DATA_DIR/agnews holds train.csv and test.csv. The official files have no header and rows of class
(1 to 4), title, text. A file with a header names its columns: `class` counts from 1, `label` from
0, and aug_0, aug_1, ... are stored strong views of a text, such as back-translations.

N texts, V views.
"""

import csv
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fl2fast import rng
from fl2fast.data.prepare import Progress, get_files, silent
from fl2fast.data.published import OfficialFile
from fl2fast.errors import UsageError, brief

CLASSES = ("World", "Sports", "Business", "Sci/Tech")
PER_CLASS = 12_500  # the paper's sample
OFFICIAL_TRAIN, OFFICIAL_TEST = 120_000, 7_600
MEGABYTES = 31
MOST_BYTES, MOST_CHARACTERS = 1 << 28, 5_000  # of a file, and of a text: its words are drawn for

ADDRESS = "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv/"
FILES = tuple(
    OfficialFile(name, (ADDRESS + name,), md5)
    for name, md5 in (
        ("train.csv", "b1a00f826fdfbd249f79597b59e1dc12"),
        ("test.csv", "d52ea96a97a2d943681189a97654912d"),
    )
)

FIRST_CLASS = {"class": 1, "class index": 1, "label": 0}  # by the column's name
TEXT_COLUMNS = ("text", "description", "ori")
TITLE_COLUMN, AUGMENTED = "title", re.compile(r"aug_[0-9]{1,3}")
EXPECTED = "rows are class (1 to 4), title, text, or a header names class or label, and text"


class Texts(NamedTuple):
    train_NV: list[tuple[str, ...]]  # view 0 is the text itself, others are stored strong views
    train_labels: np.ndarray  # int64 [N], from 0
    train_rows: np.ndarray  # int64 [N], the place in the file: what a text's own draws are keyed by
    test: list[str]
    test_labels: np.ndarray
    train_available: int  # texts in the file


class _Columns(NamedTuple):
    label: int
    first_class: int
    title: int | None
    text: int
    augmented: tuple[int, ...]
    width: int


OFFICIAL = _Columns(label=0, first_class=1, title=1, text=2, augmented=(), width=3)


def get(data_dir: Path, progress: Progress = silent) -> Path:
    """DATA_DIR/agnews, whose files are downloaded if it is not there."""
    folder = data_dir / "agnews"
    get_files(folder, FILES, MEGABYTES, _advice(data_dir), progress)
    return folder


def _advice(data_dir: Path) -> str:
    folder = str(data_dir / "agnews")
    return f"get train.csv and test.csv from {ADDRESS} and put them into {folder!r}"


def read(data_dir: Path, train_size: int, test_size: int, data_seed: int) -> Texts:
    """A keyed sample with as many texts of each class, and the first test texts.

    A train size of 0 means 12,500 a class, or what the smallest class has; a test size of 0, all.
    """
    folder, advice = get(data_dir), _advice(data_dir)
    train, labels = _read_file(folder / "train.csv", advice)
    test, test_labels = _read_file(folder / "test.csv", advice)
    if test_size > len(test):
        raise UsageError(
            f"test_size is {test_size}, but {folder / 'test.csv'} has {len(test)} texts: choose "
            "fewer, or 0 for all"
        )
    test_size = test_size or len(test)
    rows = _balanced(labels, train_size, data_seed, folder / "train.csv")
    return Texts(
        [train[row] for row in rows],
        labels[rows],
        rows,
        [views[0] for views in test[:test_size]],
        test_labels[:test_size],
        len(train),
    )


def _balanced(labels: np.ndarray, train_size: int, seed: int, path: Path) -> np.ndarray:
    """Rows of a sample, in the file's order; a smaller sample is part of a larger one."""
    counts = np.bincount(labels, minlength=len(CLASSES))
    fewest = int(counts.argmin())
    if train_size % len(CLASSES):
        raise UsageError(
            f"train_size is {train_size}, but AG News has {len(CLASSES)} equally large classes: "
            f"choose a multiple of {len(CLASSES)}, or 0 for {PER_CLASS:,} a class"
        )
    each = train_size // len(CLASSES) or min(PER_CLASS, int(counts[fewest]))
    if not 0 < each <= counts[fewest]:
        raise UsageError(
            f"train_size is {train_size}, but {path} has {counts[fewest]} texts of the class "
            f"{CLASSES[fewest]!r}: choose at most {counts[fewest] * len(CLASSES)}, or get the "
            f"whole file from {ADDRESS}"
        )
    order = np.argsort(rng.shuffle_keys(seed, "text sample", np.arange(len(labels))), kind="stable")
    chosen = [order[labels[order] == label][:each] for label in range(len(CLASSES))]
    return np.sort(np.concatenate(chosen))


def _read_file(path: Path, advice: str) -> tuple[list[tuple[str, ...]], np.ndarray]:
    """Every row's views and labels; what is wrong is said in one sentence."""
    if not os.path.isfile(path):
        raise UsageError(f"{path} is missing: {advice}")
    if os.path.getsize(path) > MOST_BYTES:
        raise UsageError(f"{path} has more than {MOST_BYTES:,} bytes: {advice}")
    views, labels = [], []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            for row_views, label in _rows(csv.reader(file, strict=True), path):
                views.append(row_views)
                labels.append(label)
    except (csv.Error, UnicodeDecodeError, OSError) as error:
        raise UsageError(f"{path} is not a readable CSV file ({error}): {advice}") from error
    if not views:
        raise UsageError(f"{path} holds no texts: {advice}")
    return views, np.array(labels, dtype=np.int64)


def _rows(cells: Iterator[list[str]], path: Path) -> Iterator[tuple[tuple[str, ...], int]]:
    columns = None
    for number, row in enumerate(cells, start=1):
        if columns is None:
            columns = _header(row) or OFFICIAL
            if columns is not OFFICIAL:
                continue
        where = f"row {number} of {path}"
        if len(row) != columns.width:
            raise UsageError(
                f"{where} has {len(row)} columns, but {columns.width} are expected ({EXPECTED}): "
                "correct it"
            )
        title = "" if columns.title is None else row[columns.title]
        views = (
            _clean(f"{title} {row[columns.text]}"),
            *(_clean(row[i]) for i in columns.augmented),
        )
        if not all(views):
            raise UsageError(f"{where} has an empty text: fill it or remove the row")
        if (longest := max(map(len, views))) > MOST_CHARACTERS:
            raise UsageError(
                f"{where} has a text of {longest:,} characters, but at most {MOST_CHARACTERS:,} "
                "are read: shorten it"
            )
        yield views, _label(row[columns.label], columns.first_class, where)


def _header(row: list[str]) -> _Columns | None:
    """The columns that a first row names, or nothing if it is no header."""
    names = [name.strip().lower() for name in row]

    def first(allowed: Callable[[str], object]) -> int | None:
        return next((i for i, name in enumerate(names) if allowed(name)), None)

    label, text = first(FIRST_CLASS.__contains__), first(TEXT_COLUMNS.__contains__)
    if label is None or text is None:
        return None
    augmented = sorted(
        (i for i, name in enumerate(names) if AUGMENTED.fullmatch(name)),
        key=lambda i: int(names[i].removeprefix("aug_")),
    )
    title = first(TITLE_COLUMN.__eq__)
    return _Columns(label, FIRST_CLASS[names[label]], title, text, tuple(augmented), len(row))


def _label(cell: str, first_class: int, where: str) -> int:
    allowed = [str(first_class + index) for index in range(len(CLASSES))]
    if cell.strip() not in allowed:
        raise UsageError(
            f"{where} has the class {brief(cell)}, but it must be {', '.join(allowed)} "
            f"({EXPECTED}): correct it"
        )
    return allowed.index(cell.strip())


def _clean(text: str) -> str:
    """One line: the official files have a backslash in place of a newline, and before a dollar."""
    return " ".join(text.replace("\\$", "$").replace("\\", " ").split())
