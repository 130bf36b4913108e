# make test and make demo do all set-up themselves.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup lint types test demo clean

setup: .venv/.installed

.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# kernels/ and cli/ install as fl2fast.kernels and fl2fast.cli; checkers need to see them there.
types: setup
	rm -rf build/package && mkdir -p build/package
	cp -r fl2fast build/package/ && cp -r kernels cli build/package/fl2fast/
	$(BIN)/pyright --pythonpath $(BIN)/python

test: lint types
	$(BIN)/pytest

demo: setup
	$(BIN)/fl2fast demo

clean:
	rm -rf .venv build runs *.egg-info
