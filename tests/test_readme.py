"""The README says what the records say, and its two commands come first."""

import re

from benchmarks.readme import PAGES, TABLES, render
from fl2fast.experiment import Experiment

README = PAGES[0]


def test_tables_come_from_the_records() -> None:
    fences = set()
    for page in PAGES:
        text = page.read_text()
        assert render(text) == text, "run python -m benchmarks.readme"
        fences |= set(re.findall("<!-- ([a-z]+) -->", text))
    assert fences == set(TABLES)


def test_the_two_commands_come_first() -> None:
    commands = [line for line in README.read_text().splitlines() if line.startswith("    ")]
    assert commands[0].split("#")[0].strip() == "make demo"
    assert commands[1].split("#")[0].strip() == "make test"


def test_the_options_it_names_exist() -> None:
    text = README.read_text()
    start = text.index("the code: `perturbation`")
    named = text[start : text.index("One default", start)].split("`")[1::2]
    assert len(named) > 10
    assert set(named) <= set(Experiment.__dataclass_fields__)
