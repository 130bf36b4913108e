"""The lists and pages about what can be asked for agree with the code that does it."""

from typing import Literal

import pytest

from fl2fast.catalogue import KINDS, describe_method, entries
from fl2fast.cli.main import main
from fl2fast.data.partition import PARTITION_NAMES
from fl2fast.data.settings import SETTINGS
from fl2fast.experiment import PRESETS
from fl2fast.methods import METHODS, Method
from fl2fast.models import MODEL_NAMES


def call(*args: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(list(args))
    return int(stop.value.code or 0)


def test_every_name_is_listed_with_a_line() -> None:
    assert set(entries("methods")) == set(METHODS)
    assert set(entries("presets")) == set(PRESETS)
    assert set(entries("datasets")) == {*SETTINGS, "path/to/folder"}
    assert all(name in MODEL_NAMES for name in entries("models"))
    assert all(name in PARTITION_NAMES for name in entries("partitions"))
    for kind in KINDS:
        assert all(line and "\n" not in line for line in entries(kind).values())


@pytest.mark.parametrize("name", METHODS)
def test_every_method_explains_itself(name: str) -> None:
    found = describe_method(name)
    assert found.text
    assert found.reference != "none given"
    assert "Reference" not in found.text
    assert [option.name for option in found.options] == list(METHODS[name].__kwdefaults__ or {})


def test_options_have_defaults_and_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    def method(*, mode: Literal["a", "b"] = "b", rate: float = 0.5) -> Method:
        """A method."""
        raise NotImplementedError

    monkeypatch.setitem(METHODS, "mine", method)
    found = describe_method("mine")
    assert found.options == [("mode", "b", ("a", "b")), ("rate", 0.5, ())]
    assert found.reference == "none given"


def test_the_commands(capsys) -> None:
    assert call("list", "methods") == 0
    assert capsys.readouterr().out.startswith("flfl")
    assert call("show", "flfl") == 0
    printed = capsys.readouterr().out
    for words in ("beta_k", "perturbation", "rho                 0.1", "NeurIPS 2024"):
        assert words in printed
    assert "settings of its own" not in printed
    assert call("show", "semifl") == 0
    assert "unless you give others: batch_size = 10, pretrain = 0" in capsys.readouterr().out
    for words, expected in ((["list", "colours"], "datasets"), (["show", "nope"], "flfl")):
        assert call(*words) == 2
        captured = capsys.readouterr()
        assert expected in captured.err
        assert captured.err.count("\n") == 1
