# One command each: `make test` checks everything, `make demo` shows something. Both start from nothing.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip -qq --disable-pip-version-check
JOBS   ?= 2

# One thread per process: the tests run in $(JOBS) processes, and timings then mean something.
export OMP_NUM_THREADS      := 1
export OPENBLAS_NUM_THREADS := 1
export MKL_NUM_THREADS      := 1

.DEFAULT_GOAL := help
.PHONY: help setup test lint types unit wheel prove demo bench format clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# The stamps are written last, so an interrupted run is simply taken up again.
$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "privet needs Python 3.11 or newer: make PYTHON=python3.12")'
	@$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(VENV)/.installed: $(VENV)/.made pyproject.toml constraints.txt
	@echo "setting up $(VENV) (once; a few minutes without pip's cache)"
	@$(PIP) install -c constraints.txt -e '.[dev]'
	@touch $@

setup: $(VENV)/.installed  ## make .venv and install everything into it

test: lint types unit wheel  ## ruff, mypy, the tests, and the wheel installed alone

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: setup
	@$(BIN)/mypy

unit: setup
	@$(BIN)/python -m pytest -q -m "not prove" -n $(JOBS)

# The package as users get it: the built wheel, alone in an environment of its own.
wheel: setup
	@set -eu; there=$$(mktemp -d); trap 'rm -rf "$$there"' EXIT INT TERM; \
	$(PIP) wheel --no-deps -w "$$there" . ; \
	$(PYTHON) -m venv --without-pip "$$there/venv"; \
	$(PIP) --python "$$there/venv/bin/python" install -c constraints.txt "$$there"/*.whl; \
	cd "$$there"; \
	./venv/bin/python -c 'import privet; print("wheel: privet", privet.__version__, "imports alone")'; \
	./venv/bin/privet epsilon --rate 256/60000 --noise 1.1 --steps 14063 --delta 1e-5

prove: setup  ## the long proofs (up to half an hour)
	@$(BIN)/python -m pytest -q -m prove

demo: setup  ## what a schedule costs, step by step: a table and a figure
	@mkdir -p demo
	@$(BIN)/privet epsilon --rate 256/60000 --noise 2.0 --noise-schedule exponential:end=1/3.3 --steps 14063 \
	    --delta 1e-5 --size 60000 --accountant all --curve demo/epsilon.png

bench: setup  ## speed and tightness beside the peers (hours; OPTIONS=--quick: some minutes)
	@$(BIN)/python benchmarks/accounting.py $(OPTIONS)
	@$(BIN)/python benchmarks/planning.py $(OPTIONS)
	@$(BIN)/python benchmarks/engine.py $(OPTIONS)
	@$(BIN)/python benchmarks/sampling.py
	@$(BIN)/python benchmarks/ledger.py

format: setup  ## let ruff put the code in order
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

clean:  ## remove everything that was made
	rm -rf $(VENV) demo build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
