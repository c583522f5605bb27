# `make run` and `make test` set everything up by themselves; PYTHON and KERNELWRIGHT_TORCH may be overridden.
PYTHON ?= python3
VENV ?= .venv
# One exact torch, so that two machines install the same; any 2.9 or newer works.
KERNELWRIGHT_TORCH ?= torch==2.13.0
BIN := $(VENV)/bin
# One more than there are cores: much of a test is waiting for a child.
TEST_WORKERS ?= $(shell expr $$(nproc) + 1)

.PHONY: run test prove corpus check demo doctor bench setup clean

run demo: setup
	$(BIN)/kernelwright run --suite demo

test: setup
	$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile -m "not corpus and not long" --ignore tests/hostile --ignore tests/honest

# Every attack on the jail, as root and as an ordinary user, and every hostile and honest candidate of the judge's corpus,
# one after the other on an otherwise idle machine: they look at the whole machine for what an attack left behind.
prove: setup
	$(BIN)/python -m pytest tests/hostile tests/honest
	$(BIN)/python -m pytest -m long

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Every extension of a varied corpus built as torch would and as we do; about half an hour.
corpus: setup
	$(BIN)/python -m pytest tests/builds -m corpus

doctor: setup
	$(BIN)/kernelwright doctor

# What our own machinery costs; measured side by side, so a busy machine hits both sides.
bench: setup
	$(BIN)/python -m bench

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$(KERNELWRIGHT_TORCH)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
