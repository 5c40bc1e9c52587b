# Everything that a checkout needs. Requires Python 3.11 to 3.14, make, and access to PyPI.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help install demo survive up down test test-fast bench-test faults chaos gpu-checks histories lint \
  format bench docs site lock clean

# A run of all tests starts several hundred Python processes: what they import is compiled once.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTHON ?=
PYTEST ?=
FOLDER ?= tests
SHARE ?= 1/1
NODES ?=
MINUTES ?= 10
SEED ?=
# Three workers for a core, each with servers of its own: most of a test's time is waiting. Two
# leave a third of the cores idle.
WORKERS ?= $(shell echo $$((3 * $(CORES))))
CORES = $(shell getconf _NPROCESSORS_ONLN)
# A module stays on one worker, and the longest begin (tests/support/spread.py).
SPREAD = --dist loadfile --no-loadscope-reorder
PARALLEL = -n $(WORKERS) $(SPREAD)
# Tests that wait for nothing: a worker for each core.
COMPUTING = -n $(CORES) $(SPREAD)
# Tests in a random order, the same for the same seed.
ORDER = $(if $(SEED),-p randomly --randomly-seed=$(SEED))
# ALL=1: also those that `make faults` alone has, of a folder that somebody works on.
ALL ?=
PURE = tests/models tests/scheduling tests/checkpoints

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(STAMP) ## Make the virtual environment in .venv (again only when something changed)
	@true

demo: $(STAMP) ## Start everything and run a small fleet of jobs on it
	@$(BIN)/longshore demo

survive: $(STAMP) ## Put one training through everything, and compare its weights with a twin's
	@$(BIN)/longshore demo --survive

up: $(STAMP) ## Start the local stack; NODES=4 for four simulated nodes
	@$(BIN)/longshore up $(if $(NODES),--nodes $(NODES))

down: $(STAMP) ## Stop the local stack
	@$(BIN)/longshore down

test: $(STAMP) ## Run the tests; FOLDER=tests/client for some, ALL=1 with the dear ones, SEED=7 for a random order
	@$(BIN)/python -m pytest $(PARALLEL) $(ORDER) $(if $(ALL),-m "not benchmark and not gpu") $(FOLDER) $(PYTEST)

test-fast: $(STAMP) ## Run the tests of what needs no server: in about a minute
	@$(BIN)/python -m pytest -q $(COMPUTING) $(ORDER) $(PURE) $(PYTEST)

bench-test: $(STAMP) ## Run the tests of the benchmarks
	@$(BIN)/python -m pytest $(COMPUTING) $(ORDER) tests/benchmarks -m "benchmark" $(PYTEST)

faults: $(STAMP) ## Kill every process at every step, and at random; SHARE=1/8 for an eighth of it, SEED=n to repeat
	@$(if $(SEED),LONGSHORE_SEED=$(SEED)) $(BIN)/python -m pytest $(PARALLEL) $(ORDER) tests -m "exhaustive" --share $(SHARE) $(PYTEST)
	@$(if $(filter $(lastword $(subst /, ,$(SHARE))),$(firstword $(subst /, ,$(SHARE)))),$(SEARCH))

# Twenty times the cases of `make test`, and others each time. The last share has them, n/n.
SEARCH = echo "Now each property on 300 random cases: about 5 minutes on two cores" && \
  HYPOTHESIS_PROFILE=long $(BIN)/python -m pytest -q $(COMPUTING) $(ORDER) $(PURE) $(PYTEST)

chaos: $(STAMP) ## Random faults under load, then count what was lost; MINUTES=10 SEED=n to repeat a run
	@$(BIN)/python -m tests.faults.chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

# TESTS_TORCH names a Python with PyTorch, where `python3` has none.
gpu-checks: $(STAMP) ## Check what only a machine with a GPU shows, and print what was seen
	@$(BIN)/python -m pytest -s -v tests/gpu -m "gpu" $(PYTEST)

histories: $(STAMP) ## Record histories of new paths for the replay test; what is there stays
	@$(BIN)/python -m tests.histories.record

lint: $(STAMP) ## Check style, types and the direction of imports
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet . || { echo "run 'make format'"; exit 1; }
	@$(BIN)/pyright --warnings
	@$(BIN)/lint-imports --no-cache

format: $(STAMP) ## Put the code in its standard form
	@$(BIN)/ruff check --quiet --fix . || true
	@$(BIN)/ruff format .

bench: $(STAMP) ## Measure how fast the packer decides, and jobs through the whole system
	@$(BIN)/python -m benchmarks.decisions
	@$(BIN)/python -m benchmarks.end_to_end

docs: $(STAMP) ## Write the pages that are made from the code
	@$(BIN)/python -m longshore.workers.settings_page
	@$(BIN)/python -m longshore.models.job_docs
	@$(BIN)/python -m longshore.client.pool_page

# The pages link to each other as they lie in the repository, so the site has its folders.
# Not --quiet: warnings that are not written do not count for --strict.
PAGES = README.md CHANGELOG.md LICENSE docs deploy examples
site: $(STAMP) ## Build the pages as a website in site/; a broken link is an error
	@rm -rf build/pages && mkdir -p build/pages && cp -R $(PAGES) build/pages
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --clean
	@echo "The site is in site/: open site/index.html, or $(BIN)/python -m http.server -d site"

lock: $(STAMP) ## Choose versions anew and write requirements.lock (all platforms, with hashes)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@$(BIN)/uv pip compile pyproject.toml --group dev --group docs --universal --generate-hashes --upgrade \
	  --no-config --no-annotate --no-header --quiet -o requirements.lock
	@grep -c '==' requirements.lock | sed 's/$$/ packages in requirements.lock/'

clean: ## Remove caches, and the virtual environment
	@rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis build dist site *.egg-info

# The lock has a hash for every file, and only wheels are taken: nothing is built from
# unpinned parts. The project itself is linked in place with the setuptools of the lock, by a plain
# path: pyright and editors follow no import hook.
$(STAMP): requirements.lock pyproject.toml
	@$(make-venv)
	@echo "Installing the packages of requirements.lock into $(VENV) (about 250 MB, the first time)"
	@$(BIN)/python -m pip install --disable-pip-version-check --no-input --require-hashes \
	  --only-binary :all: -r requirements.lock | awk '/(Downloading|Using cached).* MB\)/'
	@PYTHONWARNINGS=ignore $(BIN)/python -m pip install --disable-pip-version-check --no-input --quiet \
	  --no-deps --no-build-isolation --no-index --config-settings editable_mode=compat -e .
	@touch $@
	@echo "Installed. Next: make up, or make demo"

define make-venv
if ! $(BIN)/python -c 'import pip' 2>/dev/null; then \
  found=; \
  for name in $(PYTHON) python3.13 python3.12 python3.11 python3.14 python3; do \
    if "$$name" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null; then \
      found=$$name; break; \
    fi; \
    [ "$$name" != "$(PYTHON)" ] || { echo "$$name is not Python 3.11 to 3.14"; exit 1; }; \
  done; \
  [ -n "$$found" ] || { echo "No Python 3.11 to 3.14 was found." \
    "Install one, or say where it is: make install PYTHON=/path/to/python3"; exit 1; }; \
  "$$found" -c 'import ensurepip, venv' 2>/dev/null || { echo "$$found has no venv module:" \
    "install it first (Debian and Ubuntu: apt install python3-venv)."; exit 1; }; \
  echo "Making $(VENV) with $$("$$found" --version)"; \
  "$$found" -m venv --clear $(VENV); \
fi
endef
