"""The paper's numbers as published, and cells that survive interruptions."""

import csv
import fcntl
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fl2fast.cli.main import main
from fl2fast.errors import UsageError
from fl2fast.experiment import Experiment
from fl2fast.guards import Diverged
from fl2fast.reproduce import scales
from fl2fast.reproduce.cells import Cell, Target, choose_cells, find_target, make_cells, targets
from fl2fast.reproduce.outputs import fill, write_outputs
from fl2fast.reproduce.run import Result, cell_folder, make_experiment, read_result, run_cells
from fl2fast.reproduce.tables import (
    Filled,
    beside,
    describe_settings,
    latex,
    markdown,
    mean_std,
)

TINY = {
    **{"rounds": 2, "epochs": 1, "clients": 4, "cohort": 2, "pretrain": 1, "eval_every": 1},
    **{"train_size": 300, "test_size": 50, "lowering": "loop", "server_lowering": "loop"},
    "augment": "torch",
}


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    made = scales.Scale("tiny, for a test", "quick", TINY, {}, {}, {})
    monkeypatch.setitem(scales.SCALES, "mini", made)


TOY = Target(
    name="table2",
    source="Table 0",
    title="Toys",
    note="A note.",
    columns=[{"label": "digits", "dataset": "streetdigits", "labels": 20}],
    rows=[
        {"label": "Labels", "partition": "iid", "method": "supervised", "mean": [12.5]},
        {"label": "(FL)^2", "partition": "iid", "method": "flfl", "mean": [99.0], "std": [1.0]},
    ],
)


def call(*args: str | Path) -> int:
    with pytest.raises(SystemExit) as stop:
        main([str(arg) for arg in args])
    return int(stop.value.code or 0)


class Watcher:
    """Which cells trained; stops in round `stop_at` of the cell of `stop_in`."""

    def __init__(self, stop_in: str = "", stop_at: int = 1) -> None:
        self.stop_in, self.stop_at = stop_in, stop_at
        self.trained: list[str] = []

    @contextmanager
    def listen(self, cell: Cell, made: Experiment) -> Iterator[Callable[[Any], None]]:
        def on_round(report: Any) -> None:
            if cell.row == self.stop_in and report.round == self.stop_at:
                raise KeyboardInterrupt

        self.trained.append(cell.row)
        yield on_round


def published(name: str) -> dict[tuple[str, str], tuple[float | None, float | None]]:
    return {(c.row, c.column): (c.mean, c.std) for c in make_cells(find_target(name))}


def test_every_published_number_is_there() -> None:
    assert targets() == ["table1", "table2", "table3", "fig1", "fig3", "fig4"]
    counts = {name: published(name).values() for name in targets()}
    assert {name: len(found) for name, found in counts.items()} == {
        **{"table1": 4 * 3 * 6, "table2": 5, "table3": 2 * 2 * 2},
        **{"fig1": 6 * 4, "fig3": 5, "fig4": 5},
    }
    for name, found in counts.items():
        assert all((mean is None) == name.startswith("fig") for mean, _ in found)
        assert all((std is None) == (name not in ("table1", "table3")) for _, std in found)


@pytest.mark.parametrize(
    ("target", "row", "column", "expected"),
    [
        ("table1", "Dir(0.1) FedMatch", "CIFAR-10 with 10 labels", (16.0, 2.3)),
        ("table1", "Dir(0.1) FedCon", "SVHN with 250 labels", (73.1, 2.0)),
        ("table1", "Dir(0.3) SemiFL", "SVHN with 250 labels", (42.7, 40.1)),
        ("table1", "Dir(0.3) (FL)^2", "CIFAR-100 with 100 labels", (12.1, 1.1)),
        ("table1", "IID SemiFL", "CIFAR-10 with 40 labels", (75.3, 2.8)),
        ("table1", "IID (FL)^2", "CIFAR-100 with 400 labels", (28.1, 2.2)),
        ("table2", "CAT + FedAvg", "SVHN with 40 labels IID", (68.2, None)),
        ("table3", "IID (FL)^2", "AG News with 20 labels", (87.0, 0.6)),
        ("table3", "Dir(0.3) SemiFL", "Fashion-MNIST with 40 labels", (12.8, 4.8)),
    ],
)
def test_published_numbers(target: str, row: str, column: str, expected: tuple) -> None:
    assert published(target)[row, column] == expected


def test_the_sums_of_table_1_and_the_margins_in_its_text() -> None:
    table = published("table1")
    assert sum(mean or 0 for mean, _ in table.values()) == pytest.approx(2178.6)
    assert sum(std or 0 for _, std in table.values()) == pytest.approx(268.4)
    for partition, best, margin in (("Dir(0.3)", "FedMatch", 20.3), ("IID", "FedCon", 23.0)):
        ours, theirs = (table[f"{partition} {m}", "SVHN with 250 labels"] for m in ("(FL)^2", best))
        assert (ours[0] or 0) - (theirs[0] or 0) == pytest.approx(margin)


def test_the_deviation_is_the_papers() -> None:
    """Table 3's footnote: runs of 10, 69.0 and 70.4 make 49.8(34.5)."""
    mean, std = mean_std([10.0, 69.0, 70.4])
    assert (round(mean, 1), round(std or 0, 1)) == (49.8, 34.5)
    assert mean_std([3.0]) == (3.0, None)


def test_scales_are_the_papers_protocol_and_a_stated_reduction() -> None:
    cells = {c.row: c for c in make_cells(find_target("table2"))}
    paper = make_experiment(cells["(FL)^2: CAT + SACR + LSAA"])
    assert (paper.rounds, paper.clients, paper.model, paper.seeds) == (800, 100, "wrn-28-2", 3)
    assert (paper.pretrain, paper.train_size) == (102, 0)
    mini = {c.row: c for c in make_cells(find_target("table2"), "mini")}
    small = make_experiment(mini["(FL)^2: CAT + SACR + LSAA"])
    assert (small.rounds, small.clients, small.model) == (30, 20, "cnn")
    assert (small.train_size, small.test_size) == (6_000, 2_000)
    heads = {c.row: c.settings.get("options") for c in make_cells(find_target("table1"), "mini")}
    assert heads["IID FedCon"] == {"hidden": 64}
    assert heads["IID SemiFL"] is None
    for scale in scales.SCALES:
        cells = make_cells(find_target("fig3"), scale)
        semifl = next(c for c in cells if c.settings["method"] == "semifl")
        made = make_experiment(semifl)
        assert (made.batch_size, made.pretrain) == (10, 0)
    with pytest.raises(UsageError, match="unknown scale 'huge': choose paper or mini"):
        make_cells(find_target("table2"), "huge")


def test_other_labels_than_the_papers_are_told() -> None:
    (column,) = {c.column for c in make_cells(find_target("table2"), "mini")}
    assert column == "SVHN with 40 labels IID, run with 250"
    cells = make_cells(find_target("table2"), "mini", dataset="streetdigits")
    assert {c.column for c in cells} == {"streetdigits with 60 labels"}
    assert {c.settings["labels"] for c in cells} == {60}
    svhn = [c for c in make_cells(find_target("table1"), "mini") if c.settings["dataset"] == "svhn"]
    assert {c.settings["labels"] for c in svhn} == {250, 1_000}  # still two columns
    assert all("run with" not in c.column for c in make_cells(find_target("table1")))


def test_texts_keep_their_model_and_lose_the_mix_loss() -> None:
    for scale, epochs in (("paper", 20), ("mini", 2)):
        cells = make_cells(find_target("table3"), scale)
        texts = [c for c in cells if c.settings["dataset"] == "agnews"]
        assert len(texts) == 4
        for cell in texts:
            made = make_experiment(cell)
            assert (made.epochs, made.model) == (epochs, "linear")
            assert made.options == ({"mix_loss": False} if made.method == "semifl" else {})
        assert not any("options" in c.settings for c in cells if c not in texts)


def test_shared_cells_have_one_folder_and_others_their_own(tmp_path: Path) -> None:
    def folders(name: str, **how: Any) -> set[Path]:
        return {cell_folder(cell, tmp_path) for cell in make_cells(find_target(name), **how)}

    assert len(folders("table2") & folders("fig3")) == 4
    assert len(folders("table1") & folders("fig1")) == 8
    for other in ({"seeds": 1}, {"scale": "mini"}, {"dataset": "streetdigits"}):
        assert not folders("table2") & folders("table2", **other)


def test_another_dataset_stands_alone() -> None:
    cells = make_cells(find_target("table1"), "mini", 3, "streetdigits")
    assert len(cells) == 12 * 5  # 40 labels of two datasets fall together
    assert {(c.mean, c.std) for c in cells} == {(None, None)}
    text = markdown(find_target("table1"), [Filled(c, None) for c in cells], "streetdigits")
    assert "no published number stands beside" in text
    assert "- / -" in text
    with pytest.raises(UsageError, match="unknown dataset 'mnist'"):
        make_cells(find_target("table1"), dataset="mnist")


def test_the_filter() -> None:
    cells = make_cells(find_target("table1"))
    assert len(choose_cells(cells, None)) == 72
    assert len(choose_cells(cells, "svhn")) == 24
    assert len(choose_cells(cells, "svhn with 250 labels")) == 12
    assert len(choose_cells(cells, "IID SemiFL")) == 6
    assert len(choose_cells(cells, "fedcon,SemiFL")) == 36
    assert len(choose_cells(cells, "dirichlet:0.1")) == 24
    with pytest.raises(UsageError, match=r"no cell matches 'void'.*IID FedCon.*SVHN with 250"):
        choose_cells(cells, "void")


def toys() -> list[Cell]:
    return make_cells(TOY, "mini", seeds=2)


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(("stop_in", "kept"), [("Labels", []), ("(FL)^2", ["Labels"])])
def test_an_interruption_costs_one_cell(stop_in: str, kept: list[str], tmp_path: Path) -> None:
    out, cells = tmp_path / "out", toys()
    first = Watcher(stop_in)

    def write(_: Cell) -> None:
        write_outputs(TOY, cells, out)

    with pytest.raises(KeyboardInterrupt):
        run_cells(cells, out, first.listen, write)
    assert [f.cell.row for f in fill(cells, out) if f.result is not None] == kept
    assert (out / "mini" / "table2.md").is_file() == bool(kept)
    again = Watcher()
    run_cells(cells, out, again.listen, write)
    assert again.trained == [cell.row for cell in cells if cell.row not in kept]
    assert all(f.result is not None for f in fill(cells, out))
    last = Watcher()
    run_cells(cells, out, last.listen, write)
    assert last.trained == []


@pytest.mark.usefixtures("tiny")
def test_an_interrupted_cell_goes_on_where_it_was(tmp_path: Path) -> None:
    """After its last whole round, and on another execution if that is asked for."""
    out, (_, cell) = tmp_path / "out", toys()
    with pytest.raises(KeyboardInterrupt):
        run_cells([cell], out, Watcher("(FL)^2", 1).listen)
    said: list[str] = []
    run_cells([cell], out, Watcher().listen, say=said.append, lowering="grouped")
    assert any("goes on after round 1" in sentence for sentence in said)
    config = json.loads((cell_folder(cell, out) / "config.json").read_text())
    assert config["lowering"] == "grouped"
    assert read_result(cell, out) is not None


@pytest.mark.usefixtures("tiny")
def test_a_cell_that_diverges_stops_no_other(tmp_path: Path) -> None:
    first, second = toys()
    wild = first._replace(settings=first.settings | {"lr": 1e30})
    out, said = tmp_path / "out", list[str]()
    with pytest.raises(Diverged, match="seed 0 diverged"):
        run_cells([wild, second], out, Watcher().listen, say=said.append)
    assert any("Labels" in s and "seed 0 diverged in round 0" in s for s in said)
    assert read_result(second, out) is not None


def test_a_seed_that_diverged_is_missed_in_the_table() -> None:
    cell = Cell("(FL)^2", "digits", "mini", {"seeds": 3}, 73.2)
    filled = Filled(cell, Result([50.0, 60.0], []))
    assert beside(filled) == "55.0(7.1) [2 of 3 seeds, the others diverged] / 73.2"


@pytest.mark.usefixtures("tiny")
def test_equal_runs_write_equal_bytes(tmp_path: Path) -> None:
    written = []
    for name in ("a", "b"):
        run_cells(toys(), tmp_path / name, Watcher().listen)
        written.append(write_outputs(TOY, toys(), tmp_path / name))
    assert [path.name for path in written[0]] == [
        f"table2.{suffix}" for suffix in ("md", "tex", "csv", "png")
    ]
    for one, other in zip(*written, strict=True):
        assert one.read_bytes() == other.read_bytes()
    assert {path.name for path in written[0][0].parent.iterdir()} == {p.name for p in written[0]}
    check_contents(*written[0][:3], tmp_path / "a")


def check_contents(md: Path, tex: Path, table: Path, out: Path) -> None:
    result = read_result(toys()[1], out)
    assert result is not None
    mean, std = np.mean(result.accuracy), np.std(result.accuracy, ddof=1)
    ours = f"{mean:.1f}({std:.1f}) / 99.0(1.0)"
    text = md.read_text()
    assert f"| (FL)^2 | {ours} |" in text
    for words in ("Scale mini: tiny", "n = 2 seeds", "rounds = 2", "Table 0 of (FL)^2", "A note."):
        assert words in text
    assert "2 of 2 cells are run" in text
    assert rf"(FL)\textsuperscript{{2}} & {ours} \\" in tex.read_text()
    lines = table.read_text().splitlines()
    assert lines[0].startswith("# Scale mini")
    row = list(csv.DictReader(lines[1:]))[1]
    assert float(row["mean"]) == pytest.approx(mean)
    assert (row["published_mean"], row["n"], row["method"]) == ("99.0", "2", "flfl")


@pytest.mark.usefixtures("tiny")
def test_a_finished_run_with_other_settings_is_not_deleted(tmp_path: Path) -> None:
    cell = toys()[0]
    run_cells([cell], tmp_path, Watcher().listen)
    path = cell_folder(cell, tmp_path) / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"lowering": "vmap", "device": "cuda:7"}))
    assert read_result(cell, tmp_path) is not None  # computed elsewhere, but the same
    path.write_text(json.dumps(config | {"lr": 7.0}))
    assert read_result(cell, tmp_path) is None
    with pytest.raises(UsageError, match="something else than"):
        run_cells([cell], tmp_path, Watcher().listen)
    assert path.is_file()
    path.write_text(json.dumps(config))
    (path.parent / "summary.json").write_text('{"seeds": [')  # died while writing it
    again = Watcher()
    run_cells([cell], tmp_path, again.listen)
    assert again.trained == ["Labels"]


@pytest.mark.usefixtures("tiny")
def test_a_cell_of_another_process_is_left_to_it(tmp_path: Path) -> None:
    cell, said = toys()[0], []
    folder = cell_folder(cell, tmp_path)
    folder.parent.mkdir(parents=True)
    with (folder.parent / f"{folder.name}.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        watcher = Watcher()
        run_cells([cell], tmp_path, watcher.listen, say=said.append)
    assert watcher.trained == []
    assert "another process" in said[-1]


def result_of(value: float) -> Result:
    rows = [
        {"round": r, "seed": s, "test_accuracy": value, "pseudo_label_accuracy": value}
        | {"label_ratio": 50.0, "correct_ratio": 40.0, "wrong_ratio": 10.0 + s, "cw_ratio": 4.0}
        for r in (1, 2)
        for s in (0, 1)
    ]
    return Result([value, value + 1], rows)


def test_figures_draw_what_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, has_picture in (("table1", False), ("fig1", True), ("fig3", True), ("fig4", True)):
        target = find_target(name)
        cells = make_cells(target)
        assert len(write_outputs(target, cells, tmp_path / name)) == 3  # nothing to draw yet
        some = [Filled(c, result_of(40.0 + i) if i != 1 else None) for i, c in enumerate(cells)]
        monkeypatch.setattr("fl2fast.reproduce.outputs.fill", lambda cells, out, some=some: some)
        written = write_outputs(target, cells, tmp_path / name)
        monkeypatch.undo()
        assert (written[-1].suffix == ".png") == has_picture
    text = (tmp_path / "fig3" / "paper" / "fig3.md").read_text()
    assert "| SACR | - / - |" in text
    assert "| (FL)^2: wrong label ratio (%) | 10.5 | approximately 30 |" in text


def test_settings_are_told_once_and_exceptions_by_name() -> None:
    cells = [Filled(c, None) for c in make_cells(find_target("table3"), "mini")]
    said = describe_settings(cells)
    assert said.count("rounds = 30") == 1
    assert "semifl on agnews" in said
    assert "mix_loss = false" in said
    assert describe_settings([Filled(c, None) for c in make_cells(find_target("table2"))]) == "none"
    tex = latex(find_target("table3"), cells)
    assert r"batch\_size = 10" in tex
    assert r"10 \%" in tex


@pytest.mark.usefixtures("tiny")
def test_the_command_runs_lists_and_prints(tmp_path: Path, capsys) -> None:
    flags = ("--scale", "mini", "--dataset", "streetdigits", "--seeds", "1", "--out", tmp_path)
    assert call("reproduce", "table2", *flags, "--cells", "(fl)^2", "--lowering", "loop") == 0
    printed = capsys.readouterr().out
    assert printed.startswith("1 cells, 1 to run: 1 runs")
    assert "(FL)^2: CAT + SACR + LSAA, streetdigits with 40 labels: round 2/2" in printed
    assert "| FixMatch + FedAvg | - / - |" in printed
    assert (tmp_path / "mini" / "table2-streetdigits.md").read_text() in printed
    assert call("reproduce", "fig3", *flags, "--list") == 0
    states = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert states == ["missing"] * 4 + ["done"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["fig2"], "table1, table2"),
        (["table2", "--scale", "huge"], "paper or mini"),
        (["table2", "--seeds", "0"], "seeds is 0"),
        (["table2", "--cells", "void"], "CAT + FedAvg"),
        (["table2", "--cells", ","], "CAT + FedAvg"),
        (["table2", "--dataset", "mnist"], "mnist"),
        (["table2", "--cells", "(FL)^2", "--device", "toaster"], "toaster"),
        (["table2", "--cells", "(FL)^2", "--out", "file/below"], "file/below"),
    ],
)
def test_refusals_are_one_sentence(
    flags: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    assert call("reproduce", *flags) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
