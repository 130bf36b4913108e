"""The choice of a backend changes time, never a result."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import fl2fast
from fl2fast.data import backends, dali
from fl2fast.data.backends import choose, usable
from fl2fast.engine.batches import block_rows
from fl2fast.engine.side_stream import on_side_stream

TINY = {
    "labels": 20,
    "clients": 4,
    "cohort": 2,
    "rounds": 2,
    "epochs": 1,
    "pretrain": 1,
    "train_size": 300,
    "test_size": 50,
}


def test_auto_is_resolved_said_and_recorded(tmp_path: Path) -> None:
    said: list[str] = []
    fl2fast.train(fl2fast.experiment(**TINY), tmp_path / "run", say=said.append)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["augment"] in usable((3, 32, 32))
    for field in ("lowering", "server_lowering", "augment"):
        start = f"{field.replace('_', ' ')} auto: {config[field]}"
        assert any(sentence.startswith(start) for sentence in said), said


@pytest.mark.skipif(not dali.is_installed(), reason="NVIDIA DALI is not installed")
def test_dali_and_torch_train_the_same_models(tmp_path: Path) -> None:
    for backend in ("torch", "dali"):
        fl2fast.train(fl2fast.experiment(**TINY, augment=backend), tmp_path / backend)
    for file in ("metrics.jsonl", "model.safetensors"):
        ours, theirs = ((tmp_path / name / file).read_bytes() for name in ("torch", "dali"))
        assert ours == theirs


def test_large_images_are_for_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "fastest", None)
    side = dali.LARGEST_SIDE + 1
    assert choose((3, side, side), 4, torch.device("cpu")).choice == "torch"


def test_without_dali_nothing_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dali, "is_installed", lambda: False)
    monkeypatch.setattr(backends, "fastest", None)
    assert str(choose((3, 32, 32), 64, torch.device("cpu"))) == "torch"
    with pytest.raises(fl2fast.UsageError, match=r"fl2fast\[dali\]"):
        fl2fast.build_world(fl2fast.experiment(**TINY, augment="dali"))


def test_a_block_is_made_of_whole_waves() -> None:
    made = fl2fast.experiment(cohort=10, seeds=3, batch_size=32)
    assert block_rows(made) == 2880  # the fewest waves of 960 that reach 2,048
    many = fl2fast.experiment(clients=200, cohort=100, batch_size=32)
    assert block_rows(many) == 3200
    assert block_rows(replace(many, chunk=3)) == 2112


def test_a_side_stream_changes_no_item() -> None:
    items = [torch.arange(3), torch.arange(2)]
    assert list(on_side_stream(iter(items), torch.device("cpu"))) == items


@pytest.mark.cuda
def test_a_side_stream_hands_over_finished_items(cuda: torch.device) -> None:
    def make():
        for step in range(20):
            big = torch.full((2048, 2048), float(step), device=cuda)
            yield {"big": big @ big, "step": step}

    for item in on_side_stream(make(), cuda):
        expected = 2048.0 * item["step"] ** 2
        assert bool((item["big"] == expected).all())
