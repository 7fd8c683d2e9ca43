# Everything works from a fresh clone; `make` alone lists the targets.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help install up demo ui screenshots servers page-tools test test-fast lint type bench lock clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'

# uv installs in seconds where pip takes a minute; pip is the fallback when uv cannot be had.
$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip --disable-pip-version-check -q install -c constraints.txt uv 2>/dev/null || true
	@if [ -x $(BIN)/uv ]; then \
		$(BIN)/uv pip install -q --python $(BIN)/python -c constraints.txt -e . --group dev; \
	else \
		$(BIN)/python -m pip --disable-pip-version-check -q install -U pip && \
		$(BIN)/python -m pip --disable-pip-version-check -q install -c constraints.txt -e . --group dev; \
	fi
	@touch $(STAMP)

install: $(STAMP) ## set up .venv with everything in it

up: $(STAMP) ## start server, built-in worker and page on http://127.0.0.1:8070/ui
	@exec $(BIN)/onward up

demo: $(STAMP) ## fill that server with life, until Ctrl-C; starts one if there is none
	@exec $(BIN)/onward demo

# The built page is committed: only those who change web/ need Node (20.19 or later).
ui: $(STAMP) ## build the page from web/ into the package
	@cd web && npm ci --silent
	$(BIN)/python web/openapi.py
	cd web && npm run -s types && npm run -s check && npm run -s build

screenshots: $(STAMP) ## take the pictures of the README anew, from the demo, in Chromium
	$(BIN)/python docs/images/take.py

# Valkey 9 comes in a wheel with the other packages; Redis 7, the oldest we promise, from Debian.
servers: ## see to the servers that the tests start by themselves
	@command -v redis-server >/dev/null || [ "$$(id -u)" != 0 ] || \
		{ apt-get -qq update && apt-get -qq install -y --no-install-recommends redis-server; } || true
	@command -v redis-server >/dev/null || \
		echo "no redis-server here: tests on Redis 7 are left out (apt-get install redis-server)"

page-tools: ## see to what tests of the page and of the TypeScript worker need: a browser, Node's packages
	@command -v chromium-headless-shell >/dev/null || [ "$$(id -u)" != 0 ] || \
		{ apt-get -qq update && apt-get -qq install -y --no-install-recommends chromium-headless-shell; } || \
		command -v chromium >/dev/null || apt-get -qq install -y --no-install-recommends chromium || true
	@command -v chromium-headless-shell >/dev/null || command -v chromium >/dev/null || \
		echo "no chromium here: tests in a browser are left out (apt-get install chromium-headless-shell)"
	@if ! command -v npm >/dev/null; then echo "no Node here: the page is not rebuilt and compared"; \
	elif [ ! web/node_modules/.package-lock.json -nt web/package-lock.json ]; then (cd web && npm ci --silent) || echo "the page is not rebuilt and compared (Node 20.19 or later)"; fi
	@if ! command -v npm >/dev/null; then echo "no Node here: tests of the TypeScript worker are left out"; \
	elif [ ! clients/typescript/node_modules/.package-lock.json -nt clients/typescript/package-lock.json ]; then \
		(cd clients/typescript && npm ci --silent) || echo "tests of the TypeScript worker are left out (Node 20.19 or later)"; fi

test: $(STAMP) servers page-tools lint type ## lint, types and the whole test suite
	$(BIN)/python -m pytest -n 3 --dist worksteal

test-fast: $(STAMP) ## only the tests that need no processes of their own
	$(BIN)/python -m pytest -n 2 -m "not slow"

lint: $(STAMP) ## ruff and the import law
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

type: $(STAMP) ## mypy, strict
	$(BIN)/mypy

bench: $(STAMP) ## ratios against raw limits and peers, in one run
	@$(BIN)/uv pip install -q --python $(BIN)/python -c constraints.txt --group bench
	$(BIN)/python -m bench

lock: $(STAMP) ## resolve constraints.txt anew
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --no-header --no-annotate \
		pyproject.toml --group dev --group bench -o constraints.txt

clean: ## remove what the targets above made
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
