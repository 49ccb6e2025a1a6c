# Two commands do everything on a machine with Python 3.11 and make: `make demo` and `make test`.
# `make help` lists the others.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# One thread per process: seeds run in parallel, and timings stay comparable.
export OMP_NUM_THREADS := 1
export MKL_NUM_THREADS := 1
export OPENBLAS_NUM_THREADS := 1

.PHONY: help demo test lint format docs bench bench-accuracy package clean
.DEFAULT_GOAL := demo

help:
	@echo "make demo | test | lint | format | docs | bench | bench-accuracy (hours) | package | clean"

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 -c constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

demo: $(STAMP)
	$(BIN)/logel demo --out demo.png

test: $(STAMP)
	$(BIN)/python -m pytest -q -n 2 --dist loadfile

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

bench: $(STAMP)
	$(BIN)/python -m benchmarks.jacobian
	$(BIN)/python -m benchmarks.streaming
	$(BIN)/python -m benchmarks.inference
	$(BIN)/python -m benchmarks.smoother
	$(BIN)/python -m benchmarks.crossroad
	$(BIN)/python -m benchmarks.recording
	$(BIN)/python -m benchmarks.threads

# Accuracy against known truth: hours on two cores (coverage alone takes most); stop and resume at will.
bench-accuracy: $(STAMP)
	$(BIN)/logel reproduce accuracy-random --runs 40 --out runs
	$(BIN)/logel reproduce accuracy-paper --runs 20 --out runs
	$(BIN)/logel reproduce accuracy-known --runs 20 --out runs
	$(BIN)/logel reproduce accuracy-null --runs 40 --seed 5000 --out runs
	$(BIN)/logel reproduce accuracy-worlds --runs 10 --out runs
	$(BIN)/logel reproduce accuracy-bound --runs 20 --out runs
	$(BIN)/logel reproduce accuracy-jacobians --runs 20 --out runs
	$(BIN)/logel reproduce accuracy-coverage --runs 500 --out runs

# Wheel and source distribution, in dist/.
package: $(STAMP)
	$(BIN)/python -m build --no-isolation

# Everything that can be made again; results of studies (runs/) are kept.
clean:
	rm -rf $(VENV) demo.png dist build site .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
