# Everything is installed into .venv, by `make demo` and `make test` themselves.
#
#   make demo          speak a sentence into hello.wav         TEXT="..." another one, WAV=... elsewhere
#   make test          lint, types and tests                   PYTEST="-k truss" arguments of pytest
#   make test-clients  LiveKit, Pipecat and others against the server, in an environment of their own (.venv-clients, 1 GB)
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
PIP := $(BIN)/pip --disable-pip-version-check install -c $(CONSTRAINTS)

.PHONY: demo test test-clients lint types format setup setup-dev clean
.DELETE_ON_ERROR:

demo: setup
	$(BIN)/orpheus-serving say "$$TEXT" --output "$$WAV"
export TEXT WAV

test: setup-dev lint types
	$(BIN)/python -m pytest $(PYTEST)

# --confcutdir: the project's own conftest.py needs torch, which the clients do without.
test-clients: setup-dev .venv-clients/made.stamp
	ORPHEUS_SERVER_PYTHON="$(CURDIR)/$(BIN)/python" .venv-clients/bin/python -m pytest --confcutdir=tests/clients tests/clients $(PYTEST)

lint: setup-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup-dev
	$(BIN)/mypy

format: setup-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv .venv-clients .pytest_cache .mypy_cache .ruff_cache .hypothesis

# ------------------------------------------------------------------------------------------------------------- set-up
# A stamp stands for a set that is installed. A file that names the set and is newer than the stamp installs it again.

setup: .venv/cpu.stamp
setup-dev: .venv/dev.stamp

# Only torch can bring CUDA, so only its plan is looked at, before anything large is downloaded.
.venv/cpu.stamp: pyproject.toml requirements/cpu.txt $(CONSTRAINTS) | .venv/made.stamp
	$(if $(TORCH_INDEX),$(PIP) --no-deps --index-url "$(TORCH_INDEX)" torch)
	@$(PIP) --quiet --dry-run --report .venv/plan.json -r requirements/cpu.txt
	@if test -z "$(ALLOW_CUDA)" && grep -Eq '"name": "(nvidia|cuda)-' .venv/plan.json; then \
	  echo "Stopped: the package index serves a CUDA build of torch, which brings several GB of libraries." >&2; \
	  echo "This project needs none of them on a CPU. Name an index that has the CPU build of torch:" >&2; \
	  echo "    make TORCH_INDEX=URL $(MAKECMDGOALS)" >&2; \
	  echo "or take the CUDA build all the same:" >&2; \
	  echo "    make ALLOW_CUDA=1 $(MAKECMDGOALS)" >&2; \
	  exit 1; \
	fi
	$(PIP) -r requirements/cpu.txt -e .
	@echo "compiling a step of the language model for this processor, once"
	@$(BIN)/orpheus-serving say "Ready." --output .venv/ready.wav >.venv/ready.log 2>&1 || { cat .venv/ready.log >&2; exit 1; }
	@touch $@

.venv/dev.stamp: requirements/truss.txt requirements/server.txt requirements/dev.txt .venv/cpu.stamp
	$(PIP) -r requirements/truss.txt -r requirements/server.txt -r requirements/dev.txt
	@touch $@

.venv-clients/made.stamp: requirements/clients.txt
	"$(PYTHON)" -m venv .venv-clients
	.venv-clients/bin/pip --disable-pip-version-check install -r requirements/clients.txt
	@touch $@

.venv/made.stamp:
	@command -v "$(PYTHON)" >/dev/null || \
	  { echo "$(PYTHON) is not there. Name a Python 3.11 to 3.13: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; v = sys.version_info; sys.exit(not (3, 11) <= v[:2] <= (3, 13) and \
	  "$(PYTHON) is Python %d.%d, and this project needs 3.11 to 3.13. Name another one: make PYTHON=python3.11 ..." % v[:2])'
	"$(PYTHON)" -m venv .venv
	@touch $@
