# `make run` and `make test` set everything up by themselves; PYTHON and KERNELWRIGHT_TORCH may be overridden.
PYTHON ?= python3
VENV ?= .venv
# One exact torch, so that two machines install the same; any 2.9 or newer works.
KERNELWRIGHT_TORCH ?= torch==2.13.0
BIN := $(VENV)/bin

.PHONY: run test check demo doctor setup clean

run demo: setup
	$(BIN)/kernelwright run --suite demo

test: setup
	$(BIN)/python -m pytest -n auto --dist loadfile

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

doctor: setup
	$(BIN)/kernelwright doctor

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$(KERNELWRIGHT_TORCH)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
