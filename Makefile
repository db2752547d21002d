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
# The tests start many processes: Python may keep what it compiled, whatever the shell says.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup test lint types unit wheel browser prove freeze demo bench docs format clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# The stamps are written last, so an interrupted run is simply taken up again.
$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "privet needs Python 3.11 or newer: make PYTHON=python3.12")'
	@$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(VENV)/.installed: $(VENV)/.made pyproject.toml papers/pyproject.toml constraints.txt
	@echo "setting up $(VENV) (once; a few minutes without pip's cache)"
	@$(PIP) install -c constraints.txt -e '.[dev]' -e papers
	@touch $@

setup: $(VENV)/.installed  ## make .venv and install everything into it

test: lint types unit wheel  ## ruff, mypy, the tests, and the wheels installed alone

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: setup
	@$(BIN)/mypy

unit: setup
	@$(BIN)/python -m pytest -q -m "not prove and not freeze" -n $(JOBS) --dist worksteal

# The packages as users get them: the built wheels in an environment of their own, first the product's alone.
wheel: setup
	@$(BIN)/python tests/wheels.py

# The planner page is proven in Chromium: the system's, or Debian's where we may install it.
browser: setup
	@command -v chromedriver >/dev/null || \
	{ [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && echo "installing Chromium" && \
	  { apt-get -qq install -y chromium chromium-driver || \
	    { apt-get -qq update && apt-get -qq install -y chromium chromium-driver; }; } >/dev/null 2>&1; } || \
	{ echo "no Chromium with chromedriver: the planner page cannot be proven. Install both." >&2; exit 1; }

prove: setup browser  ## the long proofs (up to half an hour)
	@$(BIN)/python -m pytest -q -m prove -n $(JOBS)

freeze: setup  ## the redesign changed no behaviour: the version before it beside this one (a quarter of an hour)
	@$(BIN)/python -m pytest -q -m "freeze or prove" tests/freeze

# Interrupted, it is taken up again: parts that are whole are not done again.
demo: setup  ## plan, train, audit, attack and report on real digits: open demo/report.html
	@$(BIN)/privet demo --out demo

bench: setup  ## speed and tightness beside the peers (hours; OPTIONS=--quick: some minutes)
	@$(BIN)/python benchmarks/accounting.py $(OPTIONS)
	@$(BIN)/python benchmarks/planning.py $(OPTIONS)
	@$(BIN)/python benchmarks/engine.py $(OPTIONS)
	@$(BIN)/python benchmarks/sampling.py
	@$(BIN)/python benchmarks/ledger.py
	@$(BIN)/python benchmarks/training.py $(OPTIONS)
	@$(BIN)/python benchmarks/checks.py
	@$(BIN)/python benchmarks/attacks.py
	@$(BIN)/python benchmarks/federated.py $(OPTIONS)

# Strict: a warning is an error (not with --quiet). `make test` builds it too, and looks at what came out: tests/test_docs_site.py.
docs: setup  ## the documentation as a site: build/site/index.html
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
	@echo "open build/site/index.html"

format: setup  ## let ruff put the code in order
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

clean:  ## remove everything that was made
	rm -rf $(VENV) demo build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
