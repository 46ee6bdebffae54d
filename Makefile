# Commands of the project. `make check` is quick; `make test` needs what `./install.sh test` made.
PYTHON ?= $(if $(wildcard .venv/bin/python),.venv/bin/python,python3)

.PHONY: help check format lint types unit test docs report-prediction bench-gateway bench-residency bench-sim bench-parity bench-core bench-live bench-predictor soak-kv

help:
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

check: lint types unit ## format, lint, strict types, architecture and unit tests

format: ## rewrite files in the project's format
	$(PYTHON) -m ruff format .
	$(PYTHON) -m ruff check --fix .

lint:
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .

types:
	$(PYTHON) -m mypy

unit:
	$(PYTHON) -m pytest -q tests/unit tests/test_architecture.py tests/test_paper_map.py

test: ## everything, the real engine included
	MAESTROCTL_REQUIRE_ENGINE=1 $(PYTHON) -m pytest

docs: ## regenerate what is generated in docs/
	$(PYTHON) -m maestroctl.config.reference > docs/configuration.md

bench-gateway: ## added latency, throughput, 1,200 streams; direct and bare-proxy baselines in one run
	$(PYTHON) -m maestroctl.testing.bench.gateway

bench-residency: ## wake against cold start on the real engine
	$(PYTHON) -m maestroctl.testing.bench.residency

bench-sim: ## 144,524 stages through the simulator on one core
	$(PYTHON) -m maestroctl.sim.bench

bench-parity: ## the same jobs on the real engine and in the simulator
	$(PYTHON) -m maestroctl.testing.bench.parity

soak-kv: ## Eq 4 after each of a million random operations on node cores (OPERATIONS=N)
	$(PYTHON) -m maestroctl.testing.soak_kv --operations $(or $(OPERATIONS),1000000)

bench-core: ## decision time and memory at 100,000 queued stages, 1,000 engines
	$(PYTHON) -m maestroctl.testing.bench.core

bench-live: ## our policies against swapping models on demand, one of three models awake
	$(PYTHON) -m maestroctl.testing.bench.live

report-prediction: ## measure the predictors on DATA (folder of traces) and write docs/prediction.md
	$(PYTHON) -m maestroctl predictor report --stages $(DATA)/stages --routing $(DATA)/routing

bench-predictor: ## share of predictions in the latency of requests, with and without them
	$(PYTHON) -m maestroctl.testing.bench.predictor
