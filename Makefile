# `make demo` and `make test` do everything from a fresh clone: environment in .venv, pinned packages, then the work.
# The first time fetches about 3 GB and takes minutes; later ones start at once, until the lock or pyproject.toml changes.

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SEEDS ?= 1
# The campaign's time, its seed and its families (all of them): make campaign HOURS=4 ONLY=kills,files
HOURS ?= 0.1
SEED ?= 1
ONLY ?=
# Another interpreter: make venv PYTHON=/path/to/python3.12
PYTHON ?=
# Further arguments for the demo or for pytest: make test ARGS="tests/pipeline -x"
ARGS ?=

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help venv test test-slow campaign demo lint types figures lock clean

help:
	@echo "make venv     the environment in $(VENV), from requirements.lock"
	@echo "make demo     the ablation on handwritten digits: table and figure (SEEDS=3 repeats it over seeds)"
	@echo "make test     all tests but the slow ones (ARGS=... for pytest);  make test-slow  those: more ranks, killed ranks"
	@echo "make campaign  kills, damaged files, full disks, nonsense (HOURS=4 SEED=1 ONLY=kills,files)"
	@echo "make lint     ruff, its rules and its format;  make types  mypy"
	@echo "make figures  the paper's figures and tables from the logged runs"
	@echo "make lock     requirements.lock anew, from pyproject.toml (needs uv)"
	@echo "make clean    caches and build folders; keeps $(VENV) and results"

venv: $(STAMP)

# Each candidate is run, for a name on the PATH may be a version manager's empty shim, and Debian's python3 may lack venv.
$(STAMP): requirements.lock pyproject.toml
	@set -eu; \
	ok='import sys; sys.exit(0 if (3, 11) <= sys.version_info[:2] <= (3, 12) else 1)'; \
	if [ -x $(BIN)/python ] && $(BIN)/python -c "$$ok" 2>/dev/null && $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	    echo "Bringing $(VENV) up to date."; \
	else \
	    python=; seen=; \
	    for candidate in $(or $(PYTHON),python3.11 python3.12 python3 python); do \
	        if ! said=$$($$candidate --version 2>&1); then \
	            seen="$$seen\n  $$candidate: does not run"; \
	        elif ! $$candidate -c "$$ok" 2>/dev/null; then \
	            seen="$$seen\n  $$candidate: $$said"; \
	        elif ! $$candidate -c 'import venv, ensurepip' 2>/dev/null; then \
	            seen="$$seen\n  $$candidate: $$said, but without venv and ensurepip (Debian, Ubuntu: install python3-venv)"; \
	        else \
	            python=$$candidate; break; \
	        fi; \
	    done; \
	    if [ -z "$$python" ]; then \
	        printf "Python 3.11 or 3.12 is needed, and none was found. Tried:$$seen\n" >&2; \
	        echo "Install one, or name it: make venv PYTHON=/path/to/python3.11" >&2; \
	        exit 1; \
	    fi; \
	    echo "Making $(VENV) with $$python ($$said)."; \
	    $$python -m venv --clear $(VENV); \
	fi; \
	echo "Installing the packages of requirements.lock (about 3 GB to fetch, 6.5 GB on disk; minutes)."; \
	$(BIN)/python -m pip install --quiet --require-hashes --use-pep517 --requirement requirements.lock; \
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .; \
	$(BIN)/python -m pip check; \
	touch $(STAMP)

# One thread: small operations on two threads crawl when anything else runs beside them.
test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadfile -m "not slow" $(ARGS)

test-slow: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m slow $(ARGS)

campaign: $(STAMP)
	$(BIN)/python -m tests.campaign --hours $(HOURS) --seed $(SEED) $(if $(ONLY),--only $(ONLY)) $(ARGS)

demo: $(STAMP)
	$(BIN)/pipemare demo --seeds $(SEEDS) $(ARGS)

lint: $(STAMP)
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .

types: $(STAMP)
	$(BIN)/python -m mypy pipemare_exp paper_figures

figures: $(STAMP)
	$(BIN)/pipemare figures $(ARGS)

# Keeps the versions that the present lock has, where pyproject.toml allows them; UPGRADE=--upgrade takes the newest.
# The markers are cut: on another platform pip shall say what is missing, not install nothing.
lock:
	@command -v uv >/dev/null || { echo "make lock needs uv (pip install uv, in another environment than $(VENV))" >&2; exit 1; }
	@cp requirements.lock requirements.lock.new
	uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --generate-hashes --no-annotate \
	    --no-header --no-emit-index-url --no-emit-find-links --quiet $(UPGRADE) --output-file requirements.lock.new >/dev/null
	@{ echo "# Exact versions with hashes, for CPython 3.11 and 3.12 on x86_64 Linux. Made by: make lock"; \
	   sed -E 's/^([A-Za-z0-9_.-]+==[^ ]+) ;[^\\]*/\1 /' requirements.lock.new; } > requirements.lock
	@rm requirements.lock.new

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache htmlcov .coverage *.egg-info
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
