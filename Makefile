# Hearth's commands. `make` alone explains them.

VENV := .venv
BIN := $(VENV)/bin

# Passed on to the command, e.g. make test ARGS='tests/gateway -k stream'
ARGS ?=
# Processes of `make test`, more than two cores need, for tests wait as long as they compute; 0 runs everything in one.
WORKERS ?= 4
# What a machine without a GPU cannot run; `make gpu` does.
NO_GPU := not gpu and not multi_gpu
# How long `make soak` takes, without its start and its checks.
MINUTES ?= 60
# A benchmark, e.g. make bench WHAT=gateway.bench_relay
WHAT ?=
# The interpreter of `make gpu`, which installs nothing: on a GPU machine torch may be there already.
GPU_PYTHON ?= $(BIN)/python
# What `python -m benchmarks.gpu` and `make gpu` import besides torch, triton, transformers and what those need.
GPU_WHEELS := aiohappyeyeballs aiohttp aiosignal aiosqlite alembic annotated-doc annotated-types anyio asyncpg \
    attrs certifi cffi click cryptography execnet frozenlist greenlet h11 httpcore httptools httpx hypothesis \
    idna iniconfig jinja2 llguidance mako markdown-it-py markupsafe mdurl msgspec multidict nixl-cu12 packaging pluggy \
    prometheus-client propcache pycparser pydantic pydantic-core pygments pytest pytest-asyncio pytest-timeout \
    pytest-xdist pyzmq redis rich shellingham sortedcontainers sqlalchemy starlette structlog typer \
    tiktoken typing-extensions typing-inspection uvicorn uvloop xxhash yarl
# The interpreter that sets up: the first that is new enough.
ifndef PYTHON
PYTHON := $(shell for name in $(BIN)/python python3.13 python3.12 python3.11 python3; do \
    $$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$name && exit; \
    done; echo python3)
endif

.DEFAULT_GOAL := help
.PHONY: help run test test-slow compose-proof prove-fleet soak dashboards check style lint types layers architecture format bench gpu \
        gpu-wheels lock sbom wheel clean setup-run setup-dev

help: ## explain these commands
	@echo "Hearth: an inference platform on your own GPUs."
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "Start with 'make run'; before a commit, 'make check test'. The first call builds .venv."

run: setup-run ## start everything on this machine (hearth dev)
	$(BIN)/hearth dev $(ARGS)

test: setup-dev ## run the tests, but for the long proofs (ARGS='tests/gateway -k stream': a part, long ones too)
	$(BIN)/pytest -n $(WORKERS) --dist loadfile $(or $(ARGS),-m 'not slow and $(NO_GPU)')

test-slow: setup-dev ## run the long proofs: storms, kills, canaries, the browser
	$(BIN)/pytest -n $(WORKERS) --dist loadfile -m 'slow and $(NO_GPU)' $(ARGS)

compose-proof: ## build, start, use and hurt the fleet of docker-compose.yml (root, Debian 12)
	$(PYTHON) -m tools.compose_proof $(ARGS)

check: style lint types layers architecture ## format, lint, types, layers, sizes: all that is not a test

style: setup-dev
	$(BIN)/ruff format --check .

lint: setup-dev
	$(BIN)/ruff check .

types: setup-dev
	$(BIN)/basedpyright

layers: setup-dev
	$(BIN)/lint-imports --no-logo --cache-dir .cache/import-linter

architecture: setup-dev
	$(BIN)/pytest -q tests/architecture --durations=0 --durations-min=10

format: setup-dev ## rewrite the code in the house format
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

bench: setup-dev ## run one benchmark (WHAT=gateway.bench_relay), or list them
ifeq ($(WHAT),)
	@echo "make bench WHAT=<one of these> [ARGS=...]"
	@find benchmarks \( -name 'bench_*.py' -o -path benchmarks/gpu/__main__.py -o -path benchmarks/routing/__main__.py -o -path benchmarks/split/__main__.py -o -path benchmarks/standby/__main__.py \) | \
	    sed 's,^benchmarks/,  ,; s,\(/__main__\)*\.py$$,,; s,/,.,g' | sort
else
	$(BIN)/python -m benchmarks.$(WHAT) $(ARGS)
endif

prove-fleet: setup-dev ## gateways, nodes, regions under 200 streams, replaced and hurt (ARGS=rolling | faults | split)
	$(BIN)/python -m benchmarks.fleet $(ARGS)

soak: setup-dev ## an hour of moderate load on real processes: memory, descriptors, tasks, ledger (MINUTES=60)
	nice -n 5 $(BIN)/python -m benchmarks.soak --minutes $(MINUTES) $(ARGS)

dashboards: ## write Grafana's dashboard and the alert rules from tools/observability/panels.py and alerts.py
	$(PYTHON) -m tools.observability.generate

gpu: ## run the tests that need an NVIDIA GPU
	$(GPU_PYTHON) -m pytest -rs -m 'gpu or multi_gpu' $(ARGS)

gpu-wheels: ## fetch the small wheels that a GPU machine without a network lacks
	rm -rf .gpu-wheels
	$(PYTHON) -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
	    $(foreach libc,$(shell seq 5 35),--platform manylinux_2_$(libc)_x86_64) --platform manylinux2014_x86_64 \
	    --dest .gpu-wheels --constraint constraints.txt $(GPU_WHEELS)
	$(PYTHON) -m tools.thin_wheel .gpu-wheels/nixl_cu12-*.whl nixl_ep_cu12

lock: ## refresh the pinned versions in constraints.txt
	$(PYTHON) tools/lock.py $(ARGS)

sbom: setup-dev ## list every package of an installation with version and licence (CycloneDX)
	$(BIN)/python tools/sbom.py

wheel: setup-dev ## build dist/hearth-*.whl
	rm -rf build
	$(BIN)/python -m build --wheel --outdir dist

clean: ## remove what was built, .venv included; .hearth (your data) stays
	rm -rf $(VENV) build dist *.egg-info .cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

setup-run:
	@$(PYTHON) tools/setup_env.py --profile run

setup-dev:
	@$(PYTHON) tools/setup_env.py --profile dev
