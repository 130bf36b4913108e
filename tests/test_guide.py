"""docs/your-own-method.md, as written."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from test_federation import BASE, assert_same

import fl2fast
from fl2fast.cli.main import main
from fl2fast.simulate import RoundReport

GUIDE = (Path(__file__).parents[1] / "docs" / "your-own-method.md").read_text()


def block(language: str) -> str:
    (text,) = re.findall(rf"```{language}\n(.*?)```", GUIDE, flags=re.DOTALL)
    return text


@pytest.fixture
def pasted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("calm.py").write_text(block("python"))
    Path("three.toml").write_text("options = 3\n")
    return tmp_path


def test_the_example_has_forty_lines() -> None:
    assert block("python").count("\n") <= 40


@pytest.mark.usefixtures("pasted")
def test_the_command_trains(tmp_path: Path, small_digits: str, capsys: Any) -> None:
    name, *args = shlex.split(block("sh"))
    assert name == "fl2fast"
    Path("small.toml").write_text('clients = 4\ncohort = 2\nlowering = "grouped"\n')
    with pytest.raises(SystemExit) as stop:
        main([*args, "--dataset", small_digits, "--config", "small.toml", "--out", "run"])
    assert not stop.value.code, capsys.readouterr().err
    assert (tmp_path / "run" / "summary.json").exists()
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 5
    with pytest.raises(SystemExit) as stop:
        main(["show", "calm.py:calm"])
    assert not stop.value.code
    shown = capsys.readouterr().out
    assert "min(round / ramp, 1)" in shown
    assert "strength" in shown


@pytest.mark.usefixtures("pasted")
def test_the_example_is_the_same_stacked(small_digits: str) -> None:
    def run(**changes: Any) -> list[RoundReport]:
        own = {"dataset": small_digits, "method": "calm.py:calm", "sure": 0.25, "rounds": 2}
        world = fl2fast.build_world(fl2fast.experiment(**BASE | own | changes))
        return list(fl2fast.simulate(world))

    truth = run(lowering="loop", chunk=1)
    for lowering in ("vmap", "grouped", "cores"):
        assert_same(run(lowering=lowering), truth)
    stronger = run(lowering="grouped", options={"strength": 1.0})
    assert not torch.allclose(stronger[-1].state.params_SP, truth[-1].state.params_SP)


BAD_OPTIONS = {
    ("--option", "strength"): "option 'strength' is not NAME=VALUE, such as beta=0.75",
    ("--option", "strengh=1"): "method calm.py:calm has no option 'strengh': choose strength, ramp",
    ("--option", "ramp=fast"): "option ramp of calm.py:calm is 'fast', but it must be of the kind",
    ("--option", "sure=0.5"): "'sure' is a setting of the run, not an option of calm.py:calm",
    ("--method", "calm.py:storm"): "method file 'calm.py' has no function 'storm'",
    ("--method", "semifl", "--option", "partners=some"): "'some': choose all, kept",
    ("--method", "semifl", "--option", "beta=0"): "beta of semifl is 0, but it must be at least",
    ("--method", "fedmatch", "--option", "helpers=0"): "is 0, but it must be from 1 to 65536",
    ("--method", "fedmatch", "--option", "helper_every=0"): "is 0, but it must be from 1 to 65536",
    ("--method", "fedcon", "--option", "hidden=-3"): "is -3, but it must be from 1 to 65536",
    ("--method", "freematch", "--option", "ema=nan"): "is nan, but it must be from 0 to 1",
    ("--method", "flfl", "--option", "eta=-1"): "is -1, but it must be at least 0",
    ("--option", "strength=inf"): "strength of calm.py:calm is inf, but it must be a finite number",
    ("--config", "three.toml", "--option", "ramp=2"): "options is 3, but it must be of the kind",
}


BAD_METHODS = {
    "nothing": ("return None", "makes None: return a Method that has a server, client or central"),
    "empty": ("return Method(None, None)", "return a Method that has a server, client or central"),
    "raising": ("raise RuntimeError('no')", "cannot be made: RuntimeError('no')"),
}


@pytest.mark.parametrize("case", BAD_METHODS)
def test_a_method_that_cannot_be_made_is_refused(case: str, tmp_path: Path, capsys: Any) -> None:
    body, expected = BAD_METHODS[case]
    source = "from fl2fast.methods.method import Method\n\ndef f():\n    " + body + "\n"
    (tmp_path / "mine.py").write_text(source)
    with pytest.raises(SystemExit) as stop:
        main(["train", "--method", f"{tmp_path / 'mine.py'}:f", "--dry-run"])
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert expected in said
    assert said.count("\n") == 1


def test_a_method_whose_arguments_have_no_value_is_refused(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "mine.py").write_text("def f(a, *, b):\n    return None\n")
    with pytest.raises(SystemExit) as stop:
        main(["train", "--method", f"{tmp_path / 'mine.py'}:f", "--dry-run"])
    assert stop.value.code == 2
    assert "cannot be made: TypeError" in capsys.readouterr().err


@pytest.mark.usefixtures("pasted")
@pytest.mark.parametrize("args", BAD_OPTIONS, ids=" ".join)
def test_wrong_options_are_refused(args: tuple[str, ...], capsys: Any) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["train", "--method", "calm.py:calm", *args, "--dry-run"])
    assert stop.value.code == 2
    said = capsys.readouterr()
    assert BAD_OPTIONS[args] in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""
