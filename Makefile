# Everything a clone needs: `make demo` and `make test` set themselves up. Only python3 (3.11 or newer), java and make
# are assumed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SOURCES := src tests benchmarks lab examples
PYTEST := $(BIN)/python -m pytest -q
# Two processes: the tests that share a Spark session in one of them, all others beside it.
SIDE_BY_SIDE := -n 2 --dist loadgroup

# Local Spark binds to the loopback address, whatever the machine's name resolves to.
export SPARK_LOCAL_IP ?= 127.0.0.1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1

.DEFAULT_GOAL := help
.PHONY: help setup test test-all test-nightly test-versions check format golden demo lab bench bench-flink faults soak docs wheel doctor clean

help: ## this list
	@grep -hE '^[a-z-]+:.*?## ' $(MAKEFILE_LIST) | awk -F ':.*?## ' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: $(READY) ## virtual environment with the package and its tools, then the Java check
	@:

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and f"error: Python {v[0]}.{v[1]} is too old\nhint: install Python 3.11 or newer and run make PYTHON=python3.11")'
	@test -x $(BIN)/python || { echo "== creating $(VENV)"; $(PYTHON) -m venv $(VENV) || { echo "error: the virtual environment could not be made"; echo "hint: install the venv module of your Python (Debian: apt-get install python3-venv)"; exit 1; }; }
	@echo "== installing the package and its tools into $(VENV) (a few minutes the first time)"
	@$(BIN)/python -m pip install -qq --editable '.[dev]'
	@$(BIN)/anabranch doctor
	@echo "== compiling the kernels and archiving Spark's classes (about a minute, once)"
	@$(BIN)/anabranch prepare || echo "hint: everything works without it; only each start of Spark takes longer"
	@touch $@

doctor: setup ## Python, Java, Spark and memory of this machine
	@$(BIN)/anabranch doctor

check: setup ## style, types, import rules between packages, spelling
	@echo "== ruff";        $(BIN)/ruff check --quiet $(SOURCES)
	@echo "== ruff format"; $(BIN)/ruff format --check --quiet $(SOURCES)
	@echo "== mypy";        $(BIN)/mypy
	@echo "== lint-imports"; $(BIN)/lint-imports > $(VENV)/.lint-imports 2>&1 || { cat $(VENV)/.lint-imports; exit 1; }
	@echo "== codespell";   $(BIN)/codespell src tests docs examples benchmarks lab README.md CONTRIBUTING.md CHANGELOG.md Makefile
	@echo "== links";       $(PYTEST) -p no:cacheprovider tests/unit/test_docs.py -k links > $(VENV)/.links 2>&1 || { cat $(VENV)/.links; exit 1; }

format: setup ## reformat the sources
	@$(BIN)/ruff check --quiet --fix $(SOURCES); $(BIN)/ruff format --quiet $(SOURCES)

test: setup check ## the checks, then every test that is not slow
	@echo "== pytest"
	@$(PYTEST) $(SIDE_BY_SIDE) -m "not slow"

test-all: setup check ## the checks, then every test, with new random examples
	@echo "== pytest, slow ones too"
	@HYPOTHESIS_PROFILE=explore $(PYTEST) $(SIDE_BY_SIDE)

test-nightly: setup ## the property tests with 1,000 new random examples each (hours)
	@HYPOTHESIS_PROFILE=nightly $(PYTEST) $(SIDE_BY_SIDE) tests/oracle tests/unit

test-versions: setup ## a short set of the Spark tests on other versions of Python and PySpark (PAIRS="3.13/4.1")
	@$(BIN)/python -m tests.versions $(PAIRS)

golden: setup ## rewrite the golden files; review the difference before committing
	@$(PYTEST) tests/golden --regold

demo: setup ## streams that drift, streams that are skewed; two queries, about three minutes
	@$(BIN)/python -m examples.demo

lab: setup ## the papers' experiments (LAB="regret --quick"; `list` without it)
	@$(BIN)/python -m lab $(or $(LAB),list)

bench: setup ## every benchmark, side by side with the system compared (BENCH="names --quick" to choose)
	@$(BIN)/python -m benchmarks $(BENCH)

FLINK := .venv-flink

bench-flink: setup ## W3 against Flink's interval joins, which get an environment of their own (1 GB)
	@test -x $(FLINK)/bin/python || $(PYTHON) -m venv $(FLINK)
	@$(FLINK)/bin/python -c 'import pyflink' 2>/dev/null || { echo "== installing Flink into $(FLINK) (some minutes)"; $(FLINK)/bin/python -m pip install -qq apache-flink==2.3.0; }
	@ANABRANCH_FLINK_PYTHON=$(CURDIR)/$(FLINK)/bin/python $(BIN)/python -m benchmarks flink-w3 flink-w3-10 flink-latency-half $(BENCH)

faults: setup ## drawn schedules of faults against the batch answer (SCHEDULES=10000, SEED=0); goes on where it was stopped
	@$(BIN)/python -m tests.faults --schedules $(or $(SCHEDULES),10000) --seed $(or $(SEED),0)

docs: setup ## the pages as a site, into build/site; a link that leads nowhere is an error
	@$(BIN)/mkdocs build --strict --quiet
	@echo "wrote build/site/index.html"

soak: setup ## a query on live sources for two hours (SOAK_MINUTES=120, SOAK=--real-time): does anything grow?
	@$(BIN)/python -m benchmarks.soak --minutes $(or $(SOAK_MINUTES),120) $(SOAK)

wheel: setup ## the wheel and the source archive, into dist/
	@$(BIN)/python -m build --outdir dist .

clean: ## remove everything that can be rebuilt
	rm -rf $(VENV) $(FLINK) build dist demo-output lab-output spark-warehouse metastore_db derby.log
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
