# Everything is installed into .venv, by `make demo` and `make test` themselves.
#
#   make demo          speak a sentence into hello.wav         TEXT="..." another one, WAV=... elsewhere
#   make test          lint, types and tests                   PYTEST="-k truss" arguments of pytest
#   make format        let ruff rewrite what it can
#   make clean         remove .venv and the caches
#
#   PYTHON=python3.12                another interpreter than python3 (3.11 to 3.13)
#   TORCH_INDEX=URL                  the package index that torch comes from, where the usual one serves CUDA builds
#   ALLOW_CUDA=1                     take the CUDA build after all (several GB)

PYTHON ?= python3
TEXT ?= Hello! This sentence was spoken while it was still being generated. <chuckle> That is the whole point.
WAV ?= hello.wav
PYTEST ?=

BIN := .venv/bin
CONSTRAINTS := requirements/constraints.txt

.PHONY: demo test lint types format setup setup-dev clean
.DELETE_ON_ERROR:

demo: setup
	$(BIN)/orpheus-serving say "$$TEXT" --output "$$WAV"
export TEXT WAV

test: setup-dev lint types
	$(BIN)/python -m pytest $(PYTEST)

lint: setup-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup-dev
	$(BIN)/mypy

format: setup-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis

# ------------------------------------------------------------------------------------------------------------- set-up
# A stamp stands for a set that is installed; it is older than the files that name the set when these have changed.

setup: .venv/cpu.stamp
setup-dev: .venv/dev.stamp

.venv/cpu.stamp: pyproject.toml requirements/cpu.txt $(CONSTRAINTS) | .venv/made.stamp
	$(call install, -r requirements/cpu.txt -e .)
	@touch $@

.venv/dev.stamp: requirements/truss.txt requirements/dev.txt .venv/cpu.stamp
	$(call install, -r requirements/truss.txt -r requirements/dev.txt -r requirements/cpu.txt)
	@touch $@

.venv/made.stamp:
	@command -v "$(PYTHON)" >/dev/null || { echo "$(PYTHON) not found. Name a Python 3.11 to 3.13: make PYTHON=..." >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; v = sys.version_info; sys.exit(not (3, 11) <= v[:2] <= (3, 13) and \
	  "$(PYTHON) is Python %d.%d, and this project needs 3.11 to 3.13. Name another one: make PYTHON=python3.11" % v[:2])'
	"$(PYTHON)" -m venv .venv
	@touch $@

# $(call install,ARGUMENTS OF PIP). Looks at the plan before anything large is downloaded.
define install
	$(if $(TORCH_INDEX),$(BIN)/pip install --no-deps --index-url "$(TORCH_INDEX)" -c $(CONSTRAINTS) torch)
	@echo "Looking at what would be installed:$(1)"
	@$(BIN)/pip install --quiet --dry-run --report .venv/plan.json -c $(CONSTRAINTS)$(1)
	@if test -z "$(ALLOW_CUDA)" && grep -Eq '"name": "(nvidia|cuda)-' .venv/plan.json; then \
	  echo "Stopped: your package index serves a CUDA build of torch, which brings several GB of libraries." >&2; \
	  echo "Nothing here needs it. Either name an index that has the CPU build:   make TORCH_INDEX=URL ..." >&2; \
	  echo "or take the CUDA build all the same:                                  make ALLOW_CUDA=1 ..." >&2; \
	  exit 1; \
	fi
	$(BIN)/pip install -c $(CONSTRAINTS)$(1)
endef
