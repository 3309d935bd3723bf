# Two commands do all set-up on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Tools of the supply chain have an environment of their own, so that the lock does not hold them.
TOOLS := build/supply/.installed
TOOLS_BIN := build/supply/bin
LOCK := requirements-dev.lock
# Each drives a testbed of its own (about 300 MB); the tests mostly wait.
E2E_PROCESSES ?= 3
SEED ?= 1
MINUTES ?= 5
SAMPLE ?= 600
export LUCID_SHARED ?= $(abspath ../shared)

.PHONY: help install install-locked lock sbom audit demo cluster demo-slurm campaign cluster-down check test e2e \
	nightly mutants bench lint types fast clean

help: ## this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

$(STAMP): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (first time: about a minute)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

$(TOOLS): pyproject.toml
	@test -x $(TOOLS_BIN)/python || $(PYTHON) -m venv build/supply
	@$(TOOLS_BIN)/python -m pip install --quiet --disable-pip-version-check 'uv>=0.9' 'cyclonedx-bom>=7' 'pip-audit>=2.7'
	@touch $@

lock: $(TOOLS) ## work out requirements-dev.lock anew: every package of the environment, with hashes
	@# pip's own time limit and certificates are the environment's; uv takes them from the system
	$(TOOLS_BIN)/uv pip compile --quiet --native-tls --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --custom-compile-command "make lock" --extra dev -o $(LOCK) pyproject.toml

install-locked: ## create .venv from the lock alone: nothing whose hash is not in it is installed
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $(LOCK)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(STAMP)

sbom: $(STAMP) $(TOOLS) ## write out/sbom.cdx.json: CycloneDX, of what is installed in .venv
	@mkdir -p out
	$(TOOLS_BIN)/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible --output-format JSON \
	  --validate --output-file out/sbom.cdx.json $(BIN)/python

audit: $(TOOLS) ## ask a database of vulnerabilities about the lock (needs a network that reaches one)
	$(TOOLS_BIN)/pip-audit --strict --require-hashes --disable-pip -r $(LOCK)

install: $(STAMP) ## create .venv with everything

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(STAMP)
	$(BIN)/mypy

fast: $(STAMP)
	LUCID_EXAMPLES_SHARE=0.1 $(BIN)/python -m pytest -n 2 -m "not slow and not nightly"

check: lint types fast ## the inner loop: ruff, mypy, import-linter, fast tests (under 2 minutes)

test: lint types ## everything CI runs; on a real Slurm too, where it is root and debootstrap is installed
	$(BIN)/python -m pytest -n 2 -m "not nightly and not e2e"
	$(BIN)/python -m pytest -rs -m "e2e and not slow"

e2e: $(STAMP) ## every test on a real Slurm (root, debootstrap): docs/testbed.md
	LUCID_E2E_PROCESSES=1 $(BIN)/python -m pytest -rs -n $(E2E_PROCESSES) --dist worksteal -m e2e --durations=40 tests/e2e

nightly: $(STAMP) ## large randomised safety runs
	LUCID_NIGHTLY=1 $(BIN)/python -m pytest -m nightly
	LUCID_EXAMPLES_SHARE=20 $(BIN)/python -m pytest tests/property
	LUCID_FUZZ_SEED=$$(date +%s) LUCID_FUZZ_TIMES=20 $(BIN)/python -m pytest tests/fuzz

mutants: $(STAMP) ## small mistakes put into the deciding half: how many do tests notice? SAMPLE=n SEED=s, SAMPLE=0: all
	@$(BIN)/python -m mutmut --version >/dev/null 2>&1 || \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[mutants]'
	@$(BIN)/python tests/mutants --sample $(SAMPLE) --seed $(SEED)

bench: $(STAMP) ## figures of speed and quality, as README names them
	$(BIN)/python -m benchmarks

demo: $(STAMP) ## simulate a synthetic month under four policies; table, one explanation, report page
	@$(BIN)/lucidctl demo --out out/demo

cluster: ## a real Slurm on this machine (root, Debian's debootstrap); prints how to use it: docs/testbed.md
	@$(PYTHON) slurm/testbed up

demo-slurm: $(STAMP) ## 60 jobs of three users on a real Slurm, plain and with Lucid packing (root; about 8 minutes)
	@$(BIN)/python slurm/demo.py

campaign: $(STAMP) ## random faults over counted jobs on a real Slurm: SEED=n MINUTES=m, JSON=1 (root): docs/campaign.md
	@$(BIN)/python tests/campaign --seed $(SEED) --minutes $(MINUTES) $(if $(JSON),--json) $(CAMPAIGN)

cluster-down: ## end it and remove every trace but the cached tree
	@$(PYTHON) slurm/testbed down

clean: ## remove what make created
	rm -rf $(VENV) out build mutants mutants.log *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
