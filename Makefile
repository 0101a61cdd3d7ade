# Needs make, git and Python 3.11 or newer. `make` lists what can be done.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# The first interpreter that is new enough and can make environments; PYTHON=... chooses another.
new_enough := -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))'
candidates := python3 python3.13 python3.12 python3.11
ifeq ($(origin PYTHON),undefined)
PYTHON := $(shell for python in $(candidates); do $$python $(new_enough) 2>/dev/null && echo $$python && break; done)
endif

venv := .venv
installed := $(venv)/.installed
# The commands of the environment come first, for the recipes and for what they start.
export PATH := $(CURDIR)/$(venv)/bin:$(PATH)

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: venv
venv: $(installed) ## Make .venv from requirements.lock; made again when the lock changes

# stdout belongs to the programs: `make demo` must end with their lines and nothing else.
$(installed): requirements.lock pyproject.toml
	@if [ -z "$(PYTHON)" ] || ! $(PYTHON) $(new_enough) 2>/dev/null; then \
	  echo "Python 3.11 or newer with venv (on Debian: python3-venv) is needed, and $(or $(PYTHON),none of $(candidates)) is" \
	    "not that. Set PYTHON=/path/to/python." >&2; \
	  exit 1; \
	fi
	@echo "making $(venv) with $(PYTHON) (once, a minute or two)" >&2
	@$(PYTHON) -m venv --clear $(venv) >&2
	@$(venv)/bin/python -m pip --disable-pip-version-check install --quiet --require-hashes -r requirements.lock >&2
	@$(venv)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --no-build-isolation -e . >&2
	@touch $@

# Most tests wait for something. Each worker has a MySQL and an event loop of its own; the slow files come first.
parallel := --numprocesses 2 --dist loadfile --no-loadscope-reorder

.PHONY: lint
lint: $(installed) ## Check style, types and who imports whom
	@ruff check .
	@ruff format --check .
	@mypy
	@lint-imports

.PHONY: test
test: $(installed) ## Run every test, on a real MySQL; two at a time, each file by one worker
	@pytest $(parallel)

.PHONY: unit
unit: $(installed) ## Run the tests that need no database
	@pytest tests/unit tests/contract

.PHONY: integration
integration: $(installed) ## Run the tests with real MySQL, sockets, processes and faults
	@pytest $(parallel) tests/integration tests/faults

.PHONY: chaos
chaos: $(installed) ## Cut network, nodes and MySQL at random under a worker for two minutes
	@ORBIT_TEST_CHAOS_S=120 pytest tests/faults/test_runner_chaos.py

.PHONY: demo
demo: $(installed) ## Show the main job on a real MySQL and a real Orbit
	@orbit-sandbox run -- sh -c 'receiver init && receiver demo'

.PHONY: demo-lost-commit
demo-lost-commit: $(installed) ## The same, with the OK of a COMMIT swallowed on its way back
	@orbit-sandbox run -- sh -c 'receiver init && python -m toxiproxy run --dsn-env ORBIT_RECEIVER_DSN \
	  --fault drop-commit-ok --nth 1 -- receiver demo'

.PHONY: clean
clean: ## Remove what these targets made: .venv, the sandbox's cache, build results
	@rm -rf $(venv) .cache build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
