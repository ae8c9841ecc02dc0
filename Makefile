# The commands of the README. Each makes the environment it needs; `make check` is the whole gate.
#
#   PYTHON=python3.12 make test      another interpreter (3.11 or newer)
#   PIP_ARGS="-c constraints.txt"    further arguments to pip install

VENV := .venv
BIN := $(VENV)/bin
PIP_ARGS ?=
INSTALL := $(BIN)/python -m pip install --quiet $(PIP_ARGS)

COMPILED := .venv-compiled
# GUIDED=1 make compiled: by the counts of a replay, with GCC; it takes twice as long.
GUIDED ?= 0

.PHONY: demo test check prove bench venv fast compiled test-compiled clean

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

# The C module for a handful of numbers, beside its source: the kernel uses it where it is. It needs a C
# compiler and Python's headers.
fast: $(VENV)/.installed-test
	$(BIN)/python tools/fast_build.py

# The same project with kernel and simulators compiled, in an environment of its own, where it is not
# editable: the sources here stay as they are. It needs a C compiler and Python's headers.
compiled: $(COMPILED)/.installed-$(GUIDED)

# That it gives the same bytes as the sources, and what the suite says of it. What is not compiled is
# that of this folder. COMPILED_TESTS=tests/compiled compares the bytes alone, as CI does.
COMPILED_TESTS ?= tests/compiled tests/kernel tests/models tests/specs
test-compiled: $(COMPILED)/.installed-$(GUIDED)
	$(COMPILED)/bin/python -m pytest -o pythonpath="specs tools" -m "not campaign and not interpreted" \
		$(COMPILED_TESTS)

# The stamps make a second `make` quick and a changed pyproject.toml install again.
$(VENV)/.installed-test: pyproject.toml | $(BIN)/python
	@echo "installing stepahead and its tests into $(VENV) ..."
	@$(INSTALL) --editable '.[test]'
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	@echo "installing stepahead and its gate into $(VENV) ..."
	@$(INSTALL) --editable '.[dev]'
	@touch $@ $(VENV)/.installed-test

$(COMPILED)/.installed-$(GUIDED): pyproject.toml $(wildcard tools/compiled_*.py) \
		$(shell find kernel models -name '*.py' -o -name '*.c') \
		| $(COMPILED)/bin/python
	@echo "compiling stepahead into $(COMPILED), which takes minutes ..."
	@rm -f $(COMPILED)/.installed-*
	@STEPAHEAD_GUIDED=$(GUIDED) HATCH_BUILD_HOOKS_ENABLE=1 $(COMPILED)/bin/python -m pip install --quiet $(PIP_ARGS) '.[test]'
	@touch $@

$(BIN)/python $(COMPILED)/bin/python:
	@PYTHON=$(PYTHON) tools/make-venv $(@D:/bin=)

clean:
	rm -f kernel/stepahead/_fast*.so
	rm -rf $(VENV) $(COMPILED) dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
