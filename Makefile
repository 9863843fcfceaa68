# make demo: train on the embedded data and compare. make test: everything that must hold. make setup: only set up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
OLDEST := $(VENV)-oldest/bin

# Compiled bytecode makes every later start three times as fast; some machines switch it off.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo test lint unit test-oldest clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "nofe needs Python 3.11 or newer; try make PYTHON=python3.12")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(READY)
	$(BIN)/nofe train

test: lint unit

lint: $(READY)
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

unit: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist worksteal

# With the oldest versions that pyproject.toml admits.
test-oldest:
	test -x $(OLDEST)/python || $(PYTHON) -m venv $(VENV)-oldest
	$(OLDEST)/python -m pip install --quiet uv
	$(OLDEST)/uv pip install --quiet --python $(OLDEST)/python --resolution lowest-direct --editable '.[test]'
	OMP_NUM_THREADS=1 $(OLDEST)/python -m pytest --numprocesses auto --dist worksteal

clean:
	rm -rf $(VENV) $(VENV)-oldest build .mypy_cache .ruff_cache .pytest_cache .hypothesis
