SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo setup up test lint bench soak lock clean

demo: setup  ## Index examples/knowledge and answer three questions, with nothing else installed
	$(BIN)/kshift demo

setup: $(VENV)/.installed  ## Build .venv from the pinned, hashed list

$(VENV)/.installed: requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "kshift needs Python 3.11 or newer: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $@

up: setup
	$(BIN)/kshift up

test: lint  ## Everything that CI checks
	$(BIN)/python -m pytest -m "not soak"

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup
	$(BIN)/python -m bench

soak: setup
	$(BIN)/python -m pytest -m soak

# pyduck-janitor and what only it needs are left out: docs/decisions.md#local-model
NEVER_NEEDED := pyduck-janitor pandas duckdb

lock:  ## Bring requirements.lock in step with pyproject.toml; what still fits keeps its version
	$(PYTHON) -m venv build/lock
	cp requirements.lock build/lock/requirements
	build/lock/bin/python -m pip install --quiet pip-tools
	build/lock/bin/pip-compile --quiet --generate-hashes --strip-extras --all-extras --no-header \
	    --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-emit-options \
	    $(NEVER_NEEDED:%=--unsafe-package=%) --output-file=build/lock/requirements pyproject.toml
	(head -2 requirements.lock; cat build/lock/requirements) > build/lock/requirements.lock
	mv build/lock/requirements.lock requirements.lock

clean:
	rm -rf $(VENV) build *.egg-info
