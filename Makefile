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

.PHONY: help demo test lint format docs bench bench-accuracy audit matrix package clean
.DEFAULT_GOAL := demo

help:
	@echo "make demo | test | lint | format | docs | bench | bench-accuracy (hours) | audit | matrix | package | clean"

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
	$(BIN)/python -m benchmarks.workers

# Accuracy against known truth: hours on two cores (coverage alone takes most); stop and resume at will.
bench-accuracy: $(STAMP)
	$(BIN)/logel reproduce accuracy-random --runs 40 --out runs
	$(BIN)/logel reproduce accuracy-paper --runs 20 --out runs
	$(BIN)/logel reproduce accuracy-known --runs 20 --out runs
	$(BIN)/logel reproduce accuracy-null --runs 40 --seed 5000 --out runs
	$(BIN)/logel reproduce accuracy-worlds --runs 10 --out runs
	$(BIN)/logel reproduce accuracy-control --runs 25 --out runs
	$(BIN)/logel reproduce accuracy-bound --runs 20 --out runs
	$(BIN)/logel reproduce accuracy-jacobians --runs 20 --out runs
	$(BIN)/logel reproduce accuracy-coverage --runs 500 --out runs

# Known vulnerabilities in the locked versions (needs the network; a package that cannot be checked is
# a failure), and the licences of everything installed.
audit: $(STAMP)
	$(PYTHON) -m venv $(VENV)-audit
	$(VENV)-audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	$(BIN)/python -m benchmarks.licences
	$(VENV)-audit/bin/pip-audit --strict --no-deps --disable-pip -r constraints.txt

# The tests that need no simulator, with the newest versions of everything, or the oldest supported:
# make matrix PYTHON=python3.13, make matrix OLDEST=1
MATRIX := $(VENV)-$(notdir $(PYTHON))$(if $(OLDEST),-oldest)
matrix:
	$(PYTHON) -m venv $(MATRIX)
	$(MATRIX)/bin/python -m pip install --quiet --disable-pip-version-check -e ".[minari,tables,report]" \
		$(if $(OLDEST),-r constraints-oldest.txt,stable-baselines3 sb3-contrib) \
		pytest pytest-xdist hypothesis psutil radon
	$(MATRIX)/bin/python -m pytest -q tests/data tests/rules tests/policies tests/worlds \
		tests/inference/test_infer.py tests/learners/test_sb3_recorder.py tests/learners/test_checkpoints.py

# Wheel and source distribution, in dist/.
package: $(STAMP)
	$(BIN)/python -m build --no-isolation

# Everything that can be made again; results of studies (runs/) are kept.
clean:
	rm -rf $(VENV) $(VENV)-* demo.png dist build site .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
