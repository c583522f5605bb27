# `make run` and `make test` set everything up by themselves; PYTHON and KERNELWRIGHT_TORCH may be overridden.
PYTHON ?= python3
VENV ?= .venv
# Exact versions, so that two machines install the same. Any torch from 2.9 works; its line stands for itself there.
PINS := requirements-dev.txt
KERNELWRIGHT_TORCH ?= $(shell grep '^torch==' $(PINS))
BIN := $(VENV)/bin
# One more than there are cores: much of a test is waiting for a child, or for its turn to time.
TEST_WORKERS ?= $(shell expr $$(nproc) + 1)

.PHONY: run example example-card quick test prove corpus check demo doctor bench results docs setup clean

run demo: setup
	$(BIN)/kernelwright run --suite demo

# A program of somebody's: captured, its two worst parts replaced by recorded answers, and the whole judged end to end.
BIRDS := examples/birds
EXAMPLE := runs/birds-$(shell date +%Y%m%d-%H%M%S)

example: setup
	$(BIN)/kernelwright capture $(BIRDS)/birds.py --top 2 --out $(EXAMPLE)/capture
	$(BIN)/kernelwright run $(EXAMPLE)/capture --top 2 --folder $(BIRDS)/answers --out $(EXAMPLE)/run
	$(BIN)/python $(BIRDS)/use.py $(EXAMPLE)/run
	$(BIN)/kernelwright compare $(BIRDS)/birds.py --run $(EXAMPLE)/run --picture $(EXAMPLE)/birds.svg
	$(BIN)/kernelwright export $(EXAMPLE)/run --package $(EXAMPLE)/listener_kernels

# The same on a card, with programs and answers for one: transformer blocks and ResNet-50, in some eight minutes.
example-card: setup
	$(BIN)/python -m examples.card.compare_all

SIDE_BY_SIDE := $(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder --ignore tests/hostile --ignore tests/honest

# What one runs while working: nothing that judges or builds for seconds.
quick: setup
	$(SIDE_BY_SIDE) -m "not slow and not long and not gpu and not corpus"

test: setup
	$(SIDE_BY_SIDE) -m "not corpus and not long"

# Every attack on the jail, as root and as an ordinary user, and every hostile and honest candidate of the judge's corpus,
# one after the other on an otherwise idle machine: they look at the whole machine for what an attack left behind.
prove: setup
	$(BIN)/python -m pytest tests/hostile tests/honest
	$(BIN)/python -m pytest -m long

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m tests.structure

# Every extension of a varied corpus built as torch would and as we do; about half an hour.
corpus: setup
	$(BIN)/python -m pytest tests/sandbox/build -m corpus

doctor: setup
	$(BIN)/kernelwright doctor

# What our own machinery costs; measured side by side, so a busy machine hits both sides.
bench: setup
	$(BIN)/python -m bench all

# The page on what the search reached on a benchmark that is not ours, drawn from the folder results; needs no device.
results: setup
	$(BIN)/python -m bench results draw

# The pages in docs as a site in build/site; a link that leads nowhere fails it. Only the first time needs the network.
docs: $(VENV)/.ready-docs
	$(BIN)/zensical build --strict --clean

setup: $(VENV)/.ready

# What a machine may lack is told in one sentence, before the long download where it can be known by then.
SAY := echo >&2 "kernelwright:"
NO_PYTHON = $(PYTHON) is not Python 3.11 or newer; install one, or name another: make setup PYTHON=python3.12
NO_VENV = $(PYTHON) can make no virtual environment; install what it lacks (Debian: apt-get install python3-venv)
NO_COMPILER = no C++ compiler $${CXX:-g++} is found; kernels in C++ need one (Debian: apt-get install g++), or set CXX
NO_HEADERS = $(PYTHON) has no Python.h; kernels that include torch/extension.h need it (Debian: apt-get install python3-dev)
FETCHING = fetching $(KERNELWRIGHT_TORCH) and other packages into $(VENV): minutes, and 2 to 6 GB on disk
NO_PACKAGES = pip could not install the packages, for the first reason that it gives above; \
	check network and disk (behind a proxy set HTTPS_PROXY, for a mirror PIP_INDEX_URL), then run make again
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
PINNED := --constraint $(VENV)/constraints.txt
# As a folder on Python's path: setuptools' own way loses to any folder here that is named like a package of ours.
EDITABLE := --config-settings editable_mode=compat

$(VENV)/.ready: pyproject.toml $(PINS)
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
		|| { $(SAY) "$(NO_PYTHON)"; exit 3; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { $(SAY) "$(NO_VENV)"; exit 3; }
	@command -v "$${CXX:-g++}" >/dev/null || $(SAY) "$(NO_COMPILER)"
	@"$(PYTHON)" -c 'import os, sys, sysconfig as c; sys.exit(not os.path.exists(c.get_path("include") + "/Python.h"))' \
		|| $(SAY) "$(NO_HEADERS)"
	@$(SAY) "$(FETCHING)"
	@"$(PYTHON)" -m venv $(VENV)
	@grep -v '^torch==' $(PINS) > $(VENV)/constraints.txt
	@$(PIP) $(PINNED) "$(KERNELWRIGHT_TORCH)" && $(PIP) $(PINNED) $(EDITABLE) -e ".[dev]" \
		|| { $(SAY) "$(NO_PACKAGES)"; exit 3; }
	@touch $@

$(VENV)/.ready-docs: $(VENV)/.ready
	@$(PIP) $(PINNED) $(EDITABLE) -e ".[docs]" || { $(SAY) "$(NO_PACKAGES)"; exit 3; }
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
