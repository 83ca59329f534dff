# Two commands do all: `make demo` and `make test`. Both set up what is missing first; a second run is quick.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.set-up
PYTEST := $(BIN)/python -m pytest

# of `make chaos` and `make fuzz`
SEED ?= 1
MINUTES ?= 30

# of `make fuzz`: usual (100,000 cases), full (above a million), short (as in `make test`)
FUZZ ?= usual

.PHONY: help setup fmt lint type imports docstrings proto proto-check unit test demo chaos bench docs clean

help: ## list the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(STAMP) ## install what is missing: Debian packages, the virtual environment, generated data
	@PYTHON=$(PYTHON) tools/setup.sh packages

$(STAMP): setup.cfg pyproject.toml tools/setup.sh
	@PYTHON=$(PYTHON) tools/setup.sh packages venv
	touch $(STAMP)

fmt: $(STAMP) ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: $(STAMP) ## ruff: format and rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

type: $(STAMP) ## mypy --strict
	$(BIN)/mypy

imports: $(STAMP) ## who may import whom
	$(BIN)/lint-imports

docstrings: $(STAMP) ## every public object says what it promises
	$(BIN)/interrogate -c pyproject.toml

proto: $(STAMP) ## generate ipamd/pb from proto/
	$(BIN)/python tools/gen_proto.py

proto-check: $(STAMP) ## is ipamd/pb what proto/ says?
	$(BIN)/python tools/gen_proto.py --check

unit: $(STAMP) ## tests that need neither root nor a runtime
	$(PYTEST) tests/unit tests/property

test: setup lint type imports docstrings proto-check ## everything: checks, then all tests
	$(PYTEST) -n 2 --dist loadfile tests

demo: setup ## the main job on the embedded lab: two nodes, real containerd, real daemon, real plugin
	$(BIN)/vpc-lab demo

chaos: setup ## random kills, faults and clock steps on two nodes, judged from outside: SEED=1 MINUTES=30; build/chaos.json
	$(BIN)/python -m lab.chaos --seed $(SEED) --minutes $(MINUTES)

bench: setup ## measure the budgets; table and build/bench.json
	$(BIN)/python -m bench

.PHONY: fuzz
fuzz: setup ## random and damaged input for all that reads it: SEED=1 FUZZ=usual or full; build/fuzz.json
	$(BIN)/python -m fuzz --scale $(FUZZ) --seed $(SEED)

docs: $(STAMP) ## generate docs/settings.md from the settings' own sentences
	$(BIN)/python tools/gen_docs.py

clean: ## remove what the commands made, the lab's leftovers included
	if [ -x $(BIN)/vpc-lab ]; then $(BIN)/vpc-lab down || true; fi
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .hypothesis .import_linter_cache ipamd/cloud/data
