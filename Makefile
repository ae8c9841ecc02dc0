# The commands of the README. Each makes the environment it needs; `make check` is the whole gate.
#
#   PYTHON=python3.12 make test      another interpreter (3.11 or newer)
#   PIP_ARGS="-c constraints.txt"    further arguments to pip install

VENV := .venv
BIN := $(VENV)/bin
PIP_ARGS ?=
INSTALL := $(BIN)/python -m pip install --quiet $(PIP_ARGS)

.PHONY: demo test check prove bench venv clean

demo: $(VENV)/.installed-test
	$(BIN)/stepahead compare demo

test: $(VENV)/.installed-test
	$(BIN)/python -m pytest

check: $(VENV)/.installed-dev
	$(BIN)/python tools/check.py

# The long campaigns: explorer, formal models, thousands of examples, mutants; one table at the end.
prove: $(VENV)/.installed-test
	$(BIN)/python tools/prove.py

# Speed, as ratios: see tools/bench/README.md. BENCH="replay --trace FILE" runs a part of it.
BENCH ?=
bench: $(VENV)/.installed-test
	$(BIN)/python -m bench $(BENCH)

venv: $(VENV)/.installed-dev

# The stamps make a second `make` quick and a changed pyproject.toml install again.
$(VENV)/.installed-test: pyproject.toml | $(BIN)/python
	@echo "installing stepahead and its tests into $(VENV) ..."
	@$(INSTALL) --editable '.[test]'
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	@echo "installing stepahead and its gate into $(VENV) ..."
	@$(INSTALL) --editable '.[dev]'
	@touch $@ $(VENV)/.installed-test

$(BIN)/python:
	@PYTHON=$(PYTHON) tools/make-venv $(VENV)

clean:
	rm -rf $(VENV) dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
