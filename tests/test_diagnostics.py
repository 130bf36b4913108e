"""What a run folder tells about the inside of a round."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.image import imread
from test_federation import BASE

import fl2fast
from fl2fast.engine.server import aggregation_weights
from fl2fast.evaluate import LABEL_FIGURES
from fl2fast.methods import METHODS


def trained(tmp_path: Path, dataset: str, **changes: Any) -> Path:
    made = BASE | {"dataset": dataset, "lowering": "grouped", "sure": 0.25} | changes
    fl2fast.train(fl2fast.experiment(**made), tmp_path / "run")
    return tmp_path / "run"


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_round_adds_up(tmp_path: Path, small_digits: str) -> None:
    out = trained(tmp_path, small_digits, rounds=2, seeds=2)
    inside, metrics = lines(out / "diagnostics.jsonl"), lines(out / "metrics.jsonl")
    assert [(r["round"], r["seed"]) for r in inside] == [(r["round"], r["seed"]) for r in metrics]
    partition = json.loads((out / "partition.json").read_text())["seeds"]
    for row, figures in zip(inside, metrics, strict=True):
        clients = partition[row["seed"] - BASE["seed"]]["clients"]
        assert len(set(row["clients"])) == BASE["cohort"]
        rows = sum(clients[c]["size"] for c in row["clients"])
        assert 100 * sum(row["accepted"]) / rows == pytest.approx(figures["label_ratio"])
        expected = aggregation_weights(1 - torch.tensor([row["status"]], dtype=torch.float64))
        assert row["aggregation_weights"] == pytest.approx(expected[0].tolist(), abs=1e-5)
        best = np.max(row["thresholds"], axis=1)
        assert best == pytest.approx(row["status"])  # the best-learnt class gets tau itself
    last = json.loads((out / "confusion.json").read_text())
    for row, figures in zip(last, metrics[-2:], strict=True):
        confusion = np.array(row["confusion"])
        accuracy = 100 * np.trace(confusion) / confusion.sum()
        assert accuracy == pytest.approx(figures["pseudo_label_accuracy"])


@pytest.mark.parametrize("method", METHODS)
def test_every_method_fills_its_folder(tmp_path: Path, small_digits: str, method: str) -> None:
    options = {"hidden": 8} if method == "fedcon" else {}
    out = trained(tmp_path, small_digits, rounds=1, epochs=1, method=method, options=options)
    client = METHODS[method]().client
    pictures = {"curves.png", "partition.png"} | ({"diagnostics.png"} if client else set())
    assert {path.name for path in out.glob("*.png")} == pictures
    for name in pictures:
        assert imread(out / name).std() > 0.02, f"{name} is blank"
    assert (out / "diagnostics.jsonl").exists() == (client is not None)
    (row,) = lines(out / "metrics.jsonl")
    for name in set(LABEL_FIGURES) - {"cw_ratio", "pseudo_label_accuracy"}:
        assert (row[name] is not None) == (client is not None and client.predicts), name


def test_no_aggregation_has_no_weights(tmp_path: Path, small_digits: str) -> None:
    changes = {"method": "semifl", "sure": 1.0, "rounds": 1, "epochs": 1}
    (row,) = lines(trained(tmp_path, small_digits, **changes) / "diagnostics.jsonl")
    assert row["accepted"] == [0] * BASE["cohort"]
    assert row["aggregation_weights"] == [0.0] * BASE["cohort"]


def test_a_central_run_tells_its_own_rate_and_speed(tmp_path: Path, small_digits: str) -> None:
    out = trained(tmp_path, small_digits, method="fixmatch-central", rounds=2, epochs=1, lr=0.1)
    rates = [row["lr"] for row in lines(out / "metrics.jsonl")]
    assert rates == pytest.approx([0.1, 0.1 * np.cos(7 * np.pi / 32)])
    assert json.loads((out / "summary.json").read_text())["images_per_second"] > 0
