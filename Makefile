# Two commands on a fresh machine: `make demo` and `make test`. Both set up what they need.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PROMPTS ?= tests/data/spec_bench_26.jsonl
MINUTES ?= 10

.PHONY: help setup demo test test-all check format bench soak audit docs clean

help:
	@echo "make demo      set up, pull the model, show it with and without speculation"
	@echo "make test      set up, run the tests (under 20 minutes on 2 cores)"
	@echo "make test-all  the tests and the slow ones"
	@echo "make check     format, lint, types, import order"
	@echo "make bench     measure, write benchmarks/results/"
	@echo "make soak      sixteen clients for ten minutes, faults injected"
	@echo "make audit     known vulnerabilities of the dependencies"
	@echo "make docs      build the documentation into site/"

$(VENV)/.run: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e .
	touch $@

$(VENV)/.dev: $(VENV)/.run
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	touch $@

$(VENV)/.docs: $(VENV)/.run
	$(BIN)/python -m pip install --quiet -e '.[docs]'
	touch $@

setup: $(VENV)/.dev

demo: $(VENV)/.run
	$(BIN)/outrider pull smollm2-135m
	$(BIN)/outrider pull smollm2-135m-draft
	$(BIN)/outrider demo --draft smollm2-135m-draft

test: $(VENV)/.dev
	$(BIN)/outrider pull smollm2-135m
	$(BIN)/pytest -m "not slow"

test-all: $(VENV)/.dev
	$(BIN)/outrider pull smollm2-135m
	$(BIN)/outrider pull smollm2-135m-q4
	$(BIN)/pytest

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# OpenBLAS is not on the hot path; a variable that slows numpy down must not be in the numbers all the same.
bench: $(VENV)/.run
	mkdir -p benchmarks/results
	env -u OPENBLAS_CORETYPE $(BIN)/outrider bench --prompts $(PROMPTS) --per-category 1 --max-tokens 64 --repeat 5 \
		--modes off,fixed:4,threshold,auto --json benchmarks/results/spec_bench.json
	env -u OPENBLAS_CORETYPE $(BIN)/python benchmarks/genai_baseline.py --prompts $(PROMPTS) --json benchmarks/results/genai_baseline.json
	env -u OPENBLAS_CORETYPE $(BIN)/python benchmarks/mixed_prefill.py --prompts $(PROMPTS) --json benchmarks/results/mixed_prefill.json
	env -u OPENBLAS_CORETYPE $(BIN)/python benchmarks/load.py --prompts $(PROMPTS) --json benchmarks/results/load.json
	env -u OPENBLAS_CORETYPE $(BIN)/outrider bench -m smollm2-135m-q4 --prompts $(PROMPTS) --per-category 1 \
		--max-tokens 64 --repeat 5 --modes off,auto --json benchmarks/results/spec_bench_q4.json
	env -u OPENBLAS_CORETYPE $(BIN)/python benchmarks/repeated.py --prompts $(PROMPTS) --json benchmarks/results/repeated.json
	env -u OPENBLAS_CORETYPE $(BIN)/python benchmarks/hindsight.py --prompts $(PROMPTS) --json benchmarks/results/hindsight.json
	env -u OPENBLAS_CORETYPE $(BIN)/python benchmarks/policy_replay.py --prompts $(PROMPTS) --json benchmarks/results/policy_replay.json
	env -u OPENBLAS_CORETYPE $(BIN)/outrider compare --prompts $(PROMPTS) --per-category 1 --json benchmarks/results/compare.json
	env -u OPENBLAS_CORETYPE $(BIN)/outrider draft eval --target smollm2-135m --draft smollm2-135m-draft \
		--prompts $(PROMPTS) --per-category 1 --json benchmarks/results/draft_eval.json
	env -u OPENBLAS_CORETYPE $(BIN)/outrider bench --draft smollm2-135m-draft --prompts $(PROMPTS) --per-category 1 \
		--max-tokens 64 --repeat 5 --modes off,auto --json benchmarks/results/spec_bench_draft.json
	env -u OPENBLAS_CORETYPE $(BIN)/python benchmarks/grid.py --prompts $(PROMPTS) --json benchmarks/results/grid.json
	env -u OPENBLAS_CORETYPE $(BIN)/python benchmarks/verify_cost.py --json benchmarks/results/verify_cost.json

soak: $(VENV)/.dev
	mkdir -p benchmarks/results
	$(BIN)/python benchmarks/soak.py --minutes $(MINUTES) --json benchmarks/results/soak.json

audit: $(VENV)/.run
	$(BIN)/python -m pip install --quiet pip-audit
	$(BIN)/pip-audit --skip-editable

docs: $(VENV)/.docs
	$(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) site dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
