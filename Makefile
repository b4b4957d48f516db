# Each target does its own set-up in .venv, once: a stamp remembers it until pyproject.toml changes.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/sh

# The first interpreter found that is new enough. Choose another with `make PYTHON=...`.
PYTHON ?= $(shell for p in python3.11 python3 python3.13 python3.12; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$p"; break; }; done)

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

.PHONY: help demo demo-s3 test lint clean

help:  ## Print this list.
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/.installed  ## Train on 4 ranks in a temporary folder, kill one, resume with 3, verify every file.
	$(BIN)/tallymark demo

demo-s3: $(VENV)/.installed-s3  ## The same on an S3 server, started for it on a free loopback port.
	$(BIN)/python scripts/demo_s3.py

test: $(VENV)/.installed-dev  ## Run all tests, two at a time.
	$(BIN)/python -m pytest -n 2

lint: $(VENV)/.installed-dev  ## Check style, format, types and the arrows between modules.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

clean:  ## Remove the virtual environment, caches and built files.
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; say which with: make PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable .
	@touch $@

$(VENV)/.installed-s3: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable '.[demo-s3]'
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable '.[dev]'
	$(PIP) --no-deps ministack==1.5.33
	@touch $@ $(VENV)/.installed $(VENV)/.installed-s3
