# Two commands do all: `make demo` and `make test`. Each sets up what it needs and is missing first; a second run is quick.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help

# Debian's own, as in the image, where it is: compiled with profiles, it takes a fifth less time than one of pyenv's (measured).
PYTHON ?= $(firstword $(wildcard /usr/bin/python3.11) python3.11)
VENV := .venv
BIN := $(VENV)/bin
# What daemon and lab import is there; what checks and tests import is there too.
RUNS := $(VENV)/.runs
STAMP := $(VENV)/.tests
PYTEST := $(BIN)/python -m pytest
# Thousands of processes start here: none compiles what another has compiled.
unexport PYTHONDONTWRITEBYTECODE

# Tests wait for daemons, deadlines and cooldowns four fifths of their time, so eight workers keep two cores busy.
WORKERS ?= 8

# Files whose tests look at fewer cases without VPC_IPAMD_HEAVY, or which leave the processor to few
HEAVIER := tests/lab/cloud/test_lab_against_moto.py tests/lab/cloud_adapter/test_probe_cleanup.py tests/lab/chaos/test_run.py \
           tests/property/test_datastore_machine.py \
           tests/contract/plugin/test_plugin_onefile.py::test_two_builds_give_the_same_bytes
# What has no test marked heavy but those that the line above has
NOT_HEAVY := tests/contract/plugin tests/heavy tests/lab/chaos/test_run.py tests/lab/cloud_adapter/test_probe_cleanup.py

# of `make chaos` and `make fuzz`
SEED ?= 1
MINUTES ?= 30

# of `make fuzz`: usual (100,000 cases), full (above a million), short (as in `make test`)
FUZZ ?= usual

# What decides the bytes of the static plugin; lab/node/plugin.py has the same list.
PLUGIN_SOURCES := $(wildcard cni_plugin/*.py cni_plugin/micropython/*)

.PHONY: help setup plugin plugin-arm64 plugin-if-possible fmt lint type imports docstrings proto proto-check unit test test-all \
        demo chaos bench docs clean heavy image test-arm64 newest-python lock

help: ## list the commands
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(STAMP) ## install what is missing for tests and checks: Debian packages, the virtual environment, generated data
	@$(if $(IS_NEW),,PYTHON=$(PYTHON) tools/setup.sh for_tests beside)

$(STAMP): setup.cfg pyproject.toml tools/setup.sh
	@PYTHON=$(PYTHON) tools/setup.sh for_tests beside venv_tests
	touch $(RUNS) $(STAMP) # $(eval IS_NEW := yes)

$(RUNS): setup.cfg pyproject.toml tools/setup.sh
	@PYTHON=$(PYTHON) tools/setup.sh venv
	touch $(RUNS)

# What Debian has for a need; a target of its own, because `make -n` runs a recipe that calls make.
.PHONY: debian-for-plugin debian-for-lab debian-for-tests debian-for-newest-python arm64-tools image-tools
debian-for-plugin debian-for-lab debian-for-tests debian-for-newest-python:
	@tools/setup.sh $(subst -,_,$(@:debian-%=%))

arm64-tools:
	@tools/setup.sh for_plugin arm64

image-tools:
	@PYTHON=$(PYTHON) tools/setup.sh image

plugin: build/vpc-cni ## build/vpc-cni: the plugin as one static file for this machine

plugin-arm64: build/vpc-cni-arm64 ## build/vpc-cni-arm64: the same for arm64; installs Debian's cross compiler and QEMU

build/vpc-cni: $(PLUGIN_SOURCES) tools/build_plugin.sh tools/fetch_micropython.sh | debian-for-plugin
	@tools/build_plugin.sh $@

build/vpc-cni-arm64: $(PLUGIN_SOURCES) tools/build_plugin.sh tools/fetch_micropython.sh | arm64-tools
	@tools/build_plugin.sh $@ arm64

plugin-if-possible: setup plugin-alone

.PHONY: plugin-alone
plugin-alone:
	@$(MAKE) --no-print-directory build/vpc-cni || echo "make: the lab's nodes get the interpreted plugin instead" >&2

# One run of apt, then the compiler of the plugin and pip side by side: each has a core.
.PHONY: ready-for-tests ready-for-lab
ready-for-tests: debian-for-tests
	@$(MAKE) --no-print-directory -j2 setup plugin-alone

ready-for-lab: debian-for-lab
	@$(MAKE) --no-print-directory -j2 $(RUNS) plugin-alone

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

test: ready-for-tests ## everything: all tests, and all checks beside them
	# pytest compiles each file once, not once in each worker. The tests wait a tenth of their time, which the checks use.
	mkdir -p build
	nice $(MAKE) --no-print-directory lint type imports docstrings proto-check >build/checks.log 2>&1 & checks=$$!
	$(PYTEST) --collect-only -qq tests >/dev/null
	failed=0
	$(PYTEST) -n $(WORKERS) --dist loadfile --no-loadscope-reorder tests || failed=$$?
	wait $$checks || failed=1
	cat build/checks.log
	exit $$failed

test-all: setup plugin plugin-arm64 heavy ## what needs heavy tools, beside `make test`: image, manifests, and the plugin on arm64 under QEMU
	# Each of the last two runs waits for a third of its time, which the other one uses.
	VPC_CNI_ARM64=1 $(PYTEST) -n $(WORKERS) tests/contract/plugin -k arm64
	VPC_IPAMD_HEAVY=1 $(PYTEST) -n 3 --dist loadfile --no-loadscope-reorder $(HEAVIER) tests/heavy >build/heavier.log 2>&1 & heavier=$$!
	failed=0
	VPC_IPAMD_HEAVY=1 $(PYTEST) -n 4 --dist loadfile --no-loadscope-reorder -m heavy tests $(NOT_HEAVY:%=--ignore=%) || failed=$$?
	wait $$heavier || failed=1
	cat build/heavier.log
	exit $$failed

heavy: setup
	@PYTHON=$(PYTHON) tools/setup.sh heavy

image: $(RUNS) plugin $(if $(filter arm64,$(ARCH)),plugin-arm64) image-tools ## the image by Debian's buildah, its list of contents, build/sbom.json: build/image/; ARCH=arm64 for the other one
	@tools/image.sh all

test-arm64: setup plugin plugin-arm64 image-tools ## the arm64 image built whole, twice, and tried under QEMU (`make test-all` tries it on a base that is not configured)
	@tools/setup.sh machine
	VPC_IPAMD_ARM64=1 VPC_IPAMD_HEAVY=1 $(PYTEST) tests/heavy/test_image_arm64.py

# tests/unit/manifests runs images, charts and policies with Debian's programs: they say nothing about Python.
newest-python: debian-for-newest-python ## unit tests and the demo with the newest Python of Debian, in a root of its own: build/newest-python
	tools/newest_python.sh PYTEST="$(BIN)/python -m pytest -n $(WORKERS) --ignore=tests/unit/manifests" unit demo

lock: ## renew manifests/image/*.lock: the Python packages of the image, by hash
	@PYTHON=$(PYTHON) tools/setup.sh lock
	@tools/lock.sh

demo: ready-for-lab ## the main job on the embedded lab: nodes with real containerd, real daemon, real plugin
	$(BIN)/vpc-lab demo

chaos: ready-for-lab ## random kills, faults and clock steps on two nodes, judged from outside: SEED=1 MINUTES=30; build/chaos.json
	$(BIN)/python -m lab.chaos --seed $(SEED) --minutes $(MINUTES) $(POLICY) $(BRANCH) $(MOVES) $(POOLS)

.PHONY: neighbours
neighbours: ready-for-tests ## Istio's installer and plugin and kube-proxy, of Go modules, and Debian's networkd for twice ten minutes beside the daemon
	@tools/setup.sh neighbours
	tools/neighbours.sh build/neighbours
	VPC_IPAMD_NEIGHBOURS=1 $(PYTEST) tests/neighbours

# of `make cluster`: what is tried beside the checkout
BEFORE ?= HEAD~1

.PHONY: cluster
cluster: image ## Kubernetes of Go modules on two lab nodes, vpc-ipamd by its chart, and what a cluster does to it; build/cluster.json
	@PYTHON=$(PYTHON) tools/setup.sh cluster
	tools/cluster.sh build/cluster
	tools/image_before.sh build/cluster-before $(BEFORE) || rm -rf build/cluster-before
	timeout -k 30 2400 $(BIN)/python -m lab.cluster

.PHONY: screens
screens: ready-for-lab ## what ipamctl and kubectl ipamd show in the tickets of docs/troubleshooting.md, on 80 and 200 columns; docs/screens/
	VPC_IPAMD_HEAVY=1 VPC_IPAMD_SCREENS=docs/screens $(BIN)/python -m pytest -q tests/lab/tickets/test_tickets.py \
	  tests/unit/kubectl/test_tickets.py
	$(BIN)/python tools/screen_picture.py

# of `make incumbent-tests`: a folder with built tests (docs/upstream_tests.md), without it they are fetched and built; and what to run of
# them: ONLY="--suites ipamd --focus Tag"
TESTS ?=
BUILT_TESTS := build/upstream-tests/built
ONLY ?=
RECORD ?=

.PHONY: incumbent-tests
incumbent-tests: image ## the integration tests of amazon-vpc-cni-k8s, fetched as Go modules and built, on the cluster of `make cluster`; build/upstream-tests/results.json
	@[ -z "$(TESTS)" ] || [ -d "$(TESTS)/tests" ] || { echo "make: TESTS=FOLDER: docs/upstream_tests.md says what is in it" >&2; exit 2; }
	$(if $(TESTS),,tools/upstream_tests.sh $(BUILT_TESTS))
	PYTHON=$(PYTHON) tools/setup.sh cluster
	tools/cluster.sh build/cluster
	tools/image_before.sh build/cluster-before $(BEFORE) || rm -rf build/cluster-before
	tools/stand_in_rootfs.sh build/upstream-tests/rootfs.tar
	timeout -k 60 20000 $(BIN)/python -m lab.cluster.upstream_tests $(or $(TESTS),$(BUILT_TESTS)) $(if $(RECORD),--record) $(ONLY)

bench: plugin-if-possible ## measure the budgets; table and build/bench.json
	$(BIN)/python -m bench

# of `make beside`: a folder with the built programs of amazon-vpc-cni-k8s (docs/comparison.md, Measured)
THEIRS ?=

.PHONY: beside
beside: plugin-if-possible ## us, amazon-vpc-cni-k8s, built elsewhere, and ptp in turn on this machine: THEIRS=FOLDER; build/beside.json
	$(BIN)/python -m bench.beside $(if $(THEIRS),--theirs $(THEIRS))

.PHONY: fleet
fleet: $(STAMP) ## simulate 150 to 5,000 nodes on EC2's request limits, beside amazon-vpc-cni-k8s's rules; build/fleet.json
	$(BIN)/python -m bench.fleet

# of `make randomised`
SEEDS ?= 1-100

.PHONY: randomised
randomised: $(STAMP) ## the shipped graph in simulated time: faults, kills and other hands at random, judged from outside: SEEDS=1-2000
	$(BIN)/python -m tests.property.graph --seeds $(SEEDS) --shrink 60

.PHONY: fuzz
fuzz: plugin-if-possible ## random and damaged input for all that reads it: SEED=1 FUZZ=usual or full; build/fuzz.json
	$(BIN)/python -m fuzz --scale $(FUZZ) --seed $(SEED)

docs: $(STAMP) ## generate docs/settings.md, docs/metrics.md, docs/ipamctl.md, the manual page and the pictures from the code's own sentences
	$(BIN)/python tools/gen_docs.py

# Of PyPI, in an environment of its own.
MATERIAL := mkdocs-material >= 9.6, < 10
SITE := build/site/venv

$(SITE)/.made: Makefile
	rm -rf $(SITE)
	$(PYTHON) -m venv $(SITE)
	$(SITE)/bin/pip install --quiet --disable-pip-version-check "$(MATERIAL)"
	touch $@

.PHONY: site
site: $(RUNS) $(SITE)/.made ## a static site with search of the pages that are there, links checked: build/site/html; not in `.ci/run`
	NO_MKDOCS_2_WARNING=1 $(BIN)/python tools/static_site.py

.PHONY: man
man: $(RUNS) ## generate the manual page ipamctl(1): docs/man/ipamctl.1
	@$(BIN)/python tools/man_page.py

clean: ## remove what the commands made, the lab's leftovers included
	if [ -x $(BIN)/vpc-lab ]; then $(BIN)/vpc-lab down || true; fi
	rm -rf $(VENV) build kubectl_ipamd/build *.egg-info .mypy_cache .ruff_cache .hypothesis .import_linter_cache ipamd/cloud/data ipamd/cloud/inventory_data
