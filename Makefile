# Two commands do all set-up on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Tools of the supply chain have an environment of their own, so that the lock does not hold them.
TOOLS := build/supply/.installed
TOOLS_BIN := build/supply/bin
LOCK := requirements-dev.lock
# The extras of lucidctl, lucidd and lucid-web in the packages.
PACKED := models peers tuner web top
# Environment of the program that builds packages: the same lock, for the Python at hand.
PACK := build/packages/tools/.installed
PACK_FLAGS ?=
# Sphinx, for the site alone: docs/decisions/0057-site.md.
SITE := build/docs/.installed
# submitit and its like, for make clients alone: outside of the clone, for all of this user's clones.
CLIENTS := $(HOME)/.cache/lucid/clients
CLIENTS_NEED := 'submitit==1.5.4' 'dask-jobqueue==0.9.0' 'parsl==2026.10.26' 'snakemake==9.27.1' 'snakemake-executor-plugin-slurm==2.8.0'
# Ansible, for the role's test alone.
ANSIBLE := build/ansible/.installed
# Each drives a testbed of its own (about 300 MB); the tests mostly wait.
E2E_PROCESSES ?= 3
# Debian suite of the testbed, and of the packages where it is given to make: trixie has Slurm 24.11, sid 26.05; others: docs/testbed.md.
SUITE ?= $(or $(LUCID_TESTBED_SUITE),trixie)
export LUCID_TESTBED_SUITE := $(SUITE)
SEED ?= 1
MINUTES ?= 5
SAMPLE ?= 600
# The tests that need no real Slurm and that make test runs: two processes.
QUICK := -n 2 --dist loadfile --timeout 300 --ignore=tests/e2e -m "not slow and not nightly"
# CPU seconds that the tests of make check may take in all.
WITHIN ?= 25
# What make test runs on a real Slurm: one testbed, one story. make e2e runs all.
LIVE := -rs -m story tests/e2e
TORCH ?= torch==2.13.0
export LUCID_SHARED ?= $(abspath ../shared)
# Where it is set, each of the hundreds of processes of a test run compiles all of Lucid anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install install-locked lock sbom audit deb rpm lint-packages release build-release demo cluster demo-slurm demo-elastic \
	campaign slurm-suite sbatch-fuzz clients cluster-down check guard test typed test-times test-adaptdl test-examples e2e \
	nightly golden mutants bench lint types fast quick story docs clean

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

$(ANSIBLE):
	@test -x build/ansible/bin/python || $(PYTHON) -m venv build/ansible
	@build/ansible/bin/python -m pip install --quiet --disable-pip-version-check 'ansible-core>=2.15' 'ansible-lint>=24'
	@touch $@

$(SITE): pyproject.toml
	@test -x build/docs/bin/python || $(PYTHON) -m venv build/docs
	@build/docs/bin/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"], sep="\n")' \
	  >build/docs/wanted.txt
	@build/docs/bin/python -m pip install --quiet --disable-pip-version-check -r build/docs/wanted.txt
	@touch $@

docs: $(SITE) ## these pages as a site: out/site/index.html; an error: a warning, a question that the search does not answer
	build/docs/bin/sphinx-build -E -q -W --keep-going -n -c docs/site -b html . out/site
	build/docs/bin/python docs/site/asked.py out/site

lock: $(TOOLS) ## work out requirements-dev.lock anew: every package of the environment, with hashes
	@# pip's own time limit and certificates are the environment's; uv takes them from the system
	$(TOOLS_BIN)/uv pip compile --quiet --native-tls --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --custom-compile-command "make lock" --extra dev -o $(LOCK) pyproject.toml
	@# what the packages hold, no later than what the tests ran with; of lucid-node its extra alone, without numpy and the rest
	$(TOOLS_BIN)/uv pip compile --quiet --native-tls --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --custom-compile-command "make lock" $(addprefix --extra ,$(PACKED)) -c $(LOCK) \
	  --no-annotate -o requirements.lock pyproject.toml
	$(TOOLS_BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["node"], sep="\n")' | \
	  $(TOOLS_BIN)/uv pip compile --quiet --native-tls --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --custom-compile-command "make lock" -c $(LOCK) --no-annotate -o requirements-node.lock -

install-locked: ## create .venv from the lock alone: nothing whose hash is not in it is installed
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $(LOCK)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(STAMP)

$(PACK): $(TOOLS) requirements.lock requirements-node.lock
	@$(TOOLS_BIN)/uv pip install --quiet --native-tls --python $(TOOLS_BIN)/python --target $(@D) --only-binary :all: \
	  --no-deps --require-hashes -r requirements.lock -r requirements-node.lock
	@touch $@

deb: $(PACK) ## out/packages/*.deb for this Debian or Ubuntu; SUITE=trixie for another one: docs/install.md
	@sh packaging/tools dpkg-deb:dpkg readelf:binutils
	PYTHONPATH=$(CURDIR):$(dir $(CURDIR)/$(PACK)) $(TOOLS_BIN)/python packaging deb $(if $(filter command,$(origin SUITE)),--suite $(SUITE)) $(PACK_FLAGS)

rpm: $(PACK) ## out/packages/*.rpm (for Python 3.12; PACK_FLAGS='--python 3.13' for another one)
	@sh packaging/tools rpmbuild:rpm:rpm-build
	PYTHONPATH=$(CURDIR):$(dir $(CURDIR)/$(PACK)) $(TOOLS_BIN)/python packaging rpm $(PACK_FLAGS)

lint-packages: ## lintian and rpmlint on what make deb and make rpm made
	@sh packaging/tools lintian:lintian rpmlint:rpmlint
	@! ls out/packages/*.deb >/dev/null 2>&1 || lintian --fail-on error --allow-root out/packages/*.deb
	@! ls out/packages/*.rpm >/dev/null 2>&1 || \
	  { rpmlint --rpmlintrc packaging/files/rpmlintrc out/packages/*.rpm | grep -v ': W: '; } 2>&1 | tee out/packages/rpmlint.txt
	@! grep -s ': E: ' out/packages/rpmlint.txt

sbom: $(STAMP) $(TOOLS) ## write out/sbom.cdx.json: CycloneDX, of what is installed in .venv
	@mkdir -p out
	$(TOOLS_BIN)/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible --output-format JSON \
	  --validate --output-file out/sbom.cdx.json $(BIN)/python

audit: $(TOOLS) ## ask a database of vulnerabilities about the lock (needs a network that reaches one)
	$(TOOLS_BIN)/pip-audit --strict --require-hashes --disable-pip -r $(LOCK)

build-release: $(TOOLS)
	$(TOOLS_BIN)/uv build --native-tls --quiet --out-dir $(or $(RELEASE),out/release)

release: $(STAMP) ## wheel, sdist, deb, rpm, SBOM, checksums, and the tag; DRY=1: no tag (docs/checks.md)
	$(BIN)/python tools/release.py $(if $(DRY),--dry) $(if $(QUICK),--quick)

install: $(STAMP) ## create .venv with everything

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/zizmor --quiet --offline .github/workflows
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml

types: $(STAMP)
	$(BIN)/mypy

fast: $(STAMP)
	LUCID_EXAMPLES_SHARE=0.1 $(BIN)/python -m pytest $(QUICK) --within $(WITHIN)

check: lint types fast ## the inner loop, a minute: ruff, mypy, the cheapest tests and those you changed
	@$(BIN)/python -m benchmarks.guard --last

guard: $(STAMP) ## has a hot figure become worse than benchmarks/guard/record.json? RECORD="why": change that (a minute or two)
	@$(BIN)/python -m benchmarks.guard $(if $(RECORD),--record "$(RECORD)") $(if $(JSON),--json)

test: $(STAMP) ## everything CI runs, side by side; on a real Slurm too, where it is root and debootstrap is installed
	@$(MAKE) --no-print-directory -j4 lint types quick story

quick: $(STAMP)
	LUCID_SAME_EXAMPLES=1 LUCID_EXAMPLES_SHARE=0.1 nice -n 10 $(BIN)/python -m pytest $(QUICK)

# The story mostly waits for daemons, and its limits are seconds: it runs beside the tests, which are nice to it.
story: $(STAMP)
	@mkdir -p out && echo "the story on a real Slurm runs beside these; its output follows at its end (out/story.txt)"
	@$(BIN)/python -m pytest $(LIVE) >out/story.txt 2>&1; code=$$?; cat out/story.txt; exit $$code

typed: $(STAMP) ## every command of every page, from the wheel in environments of their own (three minutes)
	$(BIN)/python -m pytest -rs -n 2 --dist loadgroup tests/unit/test_typed_from_a_wheel.py

test-times: $(STAMP) ## what each test and fixture of make test takes: tools/times/table.csv anew (a quiet machine, please)
	@rm -rf out/times
	@LUCID_TEST_TIMES=out/times $(MAKE) --no-print-directory test
	@$(BIN)/python tools/times out/times

e2e: $(STAMP) ## every test on a real Slurm, SUITE=trixie|sid; FOR="path…": those that go with it: docs/testbed.md
	@files=tests/e2e; $(if $(FOR),files=$$($(BIN)/python tests/e2e/rooms.py $(FOR)) || exit; test -n "$$files" || exit 0;) set -x; \
	LUCID_E2E_PROCESSES=1 $(BIN)/python -m pytest -rs -n $(E2E_PROCESSES) --dist worksteal -m e2e --durations=40 $$files

sbatch-fuzz: $(STAMP) ## random sbatch, srun and salloc lines on plain Slurm and under Lucid: SEED=n CASES=n, CASE=n, LINE="…", PLAIN=1, or WALK=150 operations (root; 2 s a line)
	@$(BIN)/python tools/sbatch_fuzz --seed $(SEED) --cases $(or $(CASES),100) $(if $(CASE),--case $(CASE)) $(if $(LINE),--line '$(LINE)') $(if $(WALK),--walk $(WALK)) $(if $(PLAIN),--plain) $(if $(JSON),--json)

clients: $(STAMP) ## submitit, dask-jobqueue, parsl, snakemake, and what Lightning and Nextflow type, on plain Slurm and in pack mode (root; 15 minutes)
	@test -x $(CLIENTS)/bin/python || $(PYTHON) -m venv $(CLIENTS)
	@$(CLIENTS)/bin/python -m pip install --quiet --disable-pip-version-check $(CLIENTS_NEED)
	@$(BIN)/python tools/clients --python $(CLIENTS)/bin/python $(if $(ONLY),--only $(ONLY))

nightly: $(STAMP) ## all that make test leaves out: slow tests, every example, large randomised safety runs
	LUCID_NIGHTLY=1 $(BIN)/python -m pytest -n 2 --ignore=tests/e2e
	LUCID_EXAMPLES_SHARE=20 $(BIN)/python -m pytest tests/property
	LUCID_FUZZ_SEED=$$(date +%s) LUCID_FUZZ_TIMES=20 $(BIN)/python -m pytest tests/fuzz

golden: $(STAMP) ## what must not change: schedules of 40 replays, words, plan records, what b7b0384e left on disk (five minutes)
	$(BIN)/python -m pytest tests/golden

mutants: $(STAMP) ## small mistakes put into the deciding half: how many do tests notice? SAMPLE=n SEED=s, SAMPLE=0: all
	@$(BIN)/python -m mutmut --version >/dev/null 2>&1 || \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[mutants]'
	@$(BIN)/python tools/mutants --sample $(SAMPLE) --seed $(SEED)

bench: $(STAMP) ## figures of speed and quality, as README names them
	$(BIN)/python -m benchmarks

demo: $(STAMP) ## simulate a synthetic month under five policies; table, one explanation, report page
	@$(BIN)/lucidctl demo --out out/demo

cluster: $(STAMP) ## a real Slurm on this machine (root, Debian's debootstrap); prints how to use it: docs/testbed.md
	@$(BIN)/python slurm/testbed up

demo-slurm: $(STAMP) ## 60 jobs of three users on a real Slurm, plain and with Lucid packing (root; about 8 minutes)
	@$(BIN)/python slurm/demo.py

demo-elastic: $(STAMP) ## 20 elastic jobs on a real Slurm, at fixed size and resized; STREAM=n, JSON=1 (root; 16 minutes)
	@$(BIN)/python benchmarks/elastic_live.py $(if $(STREAM),--seed $(STREAM)) $(if $(JSON),--json)

campaign: $(STAMP) ## random faults over counted jobs on a real Slurm: SEED=n MINUTES=m, JSON=1 (root): docs/checks.md
	@$(BIN)/python tools/campaign --seed $(SEED) --minutes $(MINUTES) $(if $(JSON),--json) $(CAMPAIGN)

slurm-suite: $(STAMP) ## Slurm's own tests, plain and with Lucid: SRC=folder ONLY="17.60 39.*", AGAIN=1, JSON=1 (root): docs/checks.md
	@test -n "$(SRC)" || { echo "SRC= names a source folder of Slurm: docs/checks.md"; exit 2; }
	@$(BIN)/python tools/slurm_suite "$(SRC)" --only "$(ONLY)" $(if $(AGAIN),--plain-again) $(if $(SIDE),--side $(SIDE)) $(if $(REST),--rest) $(if $(KEPT),--kept) $(if $(JSON),--json)

test-adaptdl: $(STAMP) ## jobs of the real AdaptDL and PyTorch, on CPUs and a real Slurm (CPython 3.11, root; TORCH= names the wheel)
	@test -x .venv-adaptdl/bin/python || $(PYTHON) -m venv .venv-adaptdl
	@.venv-adaptdl/bin/python -m pip install --quiet --disable-pip-version-check --no-deps '$(TORCH)' adaptdl==0.2.11
	@.venv-adaptdl/bin/python -m pip install --quiet --disable-pip-version-check -r tests/adaptdl-requirements.txt
	LUCID_ADAPTDL_PYTHON=$(CURDIR)/.venv-adaptdl/bin/python $(BIN)/python -m pytest -v tests/unit/job_programs/test_lucid_torch.py
	LUCID_ADAPTDL_PYTHON=$(CURDIR)/.venv-adaptdl/bin/python $(BIN)/python -m pytest -v -m e2e -n 0 tests/e2e/test_adaptdl_live.py

test-examples: $(STAMP) ## the programs of examples/ with PyTorch, Lightning and transformers, on CPUs and a real Slurm (CPython 3.11, root)
	@test -x .venv-examples/bin/python || $(PYTHON) -m venv .venv-examples
	@.venv-examples/bin/python -m pip install --quiet --disable-pip-version-check '$(TORCH)' -r tests/examples-requirements.txt
	LUCID_EXAMPLES_PYTHON=$(CURDIR)/.venv-examples/bin/python $(BIN)/python -m pytest -v tests/unit/job_programs/test_lucid_elastic.py
	LUCID_EXAMPLES_PYTHON=$(CURDIR)/.venv-examples/bin/python $(BIN)/python -m pytest -v -m e2e -n 0 tests/e2e/test_examples_live.py

cluster-down: $(STAMP) ## end it and remove every trace but the cached tree
	@$(BIN)/python slurm/testbed down

clean: ## remove what make created
	rm -rf $(VENV) out build mutants mutants.log *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
