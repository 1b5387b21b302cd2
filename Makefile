# One target per verb; CI calls the same. `make help` lists them.
#
# Variables:  ARGS="--port 9000"  options for serve, bench and the test targets
#             PYTHON=python3.12   the interpreter that .venv is made with

.DEFAULT_GOAL := help
.NOTPARALLEL:
.SUFFIXES:

PY := .venv/bin/python
RUN_TESTS := PY=$(PY) tools/run_tests.sh
# Tests run side by side, on each processor some. ARGS="-n 0" runs them in one process, as debuggers
# want it. Short ones go file by file, in the order of the command line: long files come first.
SPREAD := -n logical --maxprocesses 8 --dist loadfile --no-loadscope-reorder
# Long ones go one by one, and who has none left takes some of another's. Each of these processes
# starts services and a server of its own, whose engine has a thread for each processor too.
SERVERS := -n logical --maxprocesses 4 --dist worksteal
INPUTS := pyproject.toml requirements/build.in tools/setup.sh

# Folders of the type checker; benchmarks run in environments of their own.
TYPED := headway tests tools

.PHONY: help setup services serve bench fmt lint types imports sizes unit prop parity fault e2e docs \
    quick test soak lock clean

help: ## this list
	@sed -n 's/^\([a-z0-9]*\):.*## /\1\t/p' Makefile | expand -t 10

.venv/.serve: requirements/serve.lock $(INPUTS)
	@tools/setup.sh serve

.venv/.dev: requirements/dev.lock $(INPUTS)
	@tools/setup.sh dev
	@touch .venv/.serve  # dev.lock has every pin of serve.lock

setup: .venv/.dev ## .venv with everything that the tests need

services: ## PostgreSQL, Redis and nginx, which tests need: installed with apt where that may be
	@tools/services.sh

serve: .venv/.serve ## start the service: make serve ARGS="--port 9000"
	@exec .venv/bin/headway serve $(ARGS)

bench: .venv/.serve ## load a running server: make bench ARGS="--num-prompts 100"
	@exec .venv/bin/headway bench serve $(ARGS)

fmt: .venv/.dev ## rewrite sources in the house format, and the pages made from code
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .
	$(PY) tools/write_docs.py

lint: .venv/.dev ## format and lint rules
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .

types: .venv/.dev ## mypy, strict
	$(PY) -m mypy $(TYPED)

imports: .venv/.dev ## the import contracts
	.venv/bin/lint-imports

sizes: .venv/.dev ## limits on files and classes
	$(PY) tools/check_sizes.py

unit: .venv/.dev services ## unit and conformance tests; branch coverage of headway.core
	$(RUN_TESTS) "tests/conformance tests/unit" $(SPREAD) \
	    --cov=headway.core --cov-branch --cov-report=term:skip-covered $(ARGS)

prop: .venv/.dev ## property tests
	$(RUN_TESTS) "tests/property tests/replay" $(SPREAD) $(ARGS)

parity: .venv/.dev ## our numbers against transformers'
	$(RUN_TESTS) tests/parity $(SPREAD) $(ARGS)

fault: .venv/.dev services ## processes that die, hang and stop
	$(RUN_TESTS) tests/fault $(SERVERS) $(ARGS)

e2e: .venv/.dev services ## a real server and real clients over HTTP
	$(RUN_TESTS) "tests/e2e tests/cases" $(SERVERS) $(ARGS)

docs: .venv/.dev ## what the documents say: links, options, samples
	$(RUN_TESTS) tests/docs $(SPREAD) $(ARGS)

quick: ## what to run before every commit: two minutes
	@$(MAKE) lint types imports sizes
	@MARKS="not soak and not e2e" $(MAKE) unit

test: ## everything that CI runs, cheap checks first
	@$(MAKE) lint types imports sizes
	@$(MAKE) unit
	@$(MAKE) prop
	@$(RUN_TESTS) tests/soak $(ARGS)  # at a twentieth; their engines use every core
	@$(MAKE) parity
	@$(MAKE) fault
	@$(MAKE) e2e
	@$(MAKE) docs

soak: .venv/.dev services ## the tests marked soak, whole: hours
	HEADWAY_TEST_SOAK=1 MARKS=soak $(RUN_TESTS) tests --timeout=0 $(ARGS)

lock: .venv/.dev ## write requirements/*.lock anew from pyproject.toml
	tools/lock.sh $(ARGS)

clean: ## remove .venv and every cache of the tools
	rm -rf .venv build dist ./*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis \
	    .import_linter_cache .coverage*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
