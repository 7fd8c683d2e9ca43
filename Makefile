# Everything works from a fresh clone; `make` alone lists the targets.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

# Where no bytecode is kept, every process that a test starts compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install up demo ui docs docs-test screenshots servers page-tools test test-fast lint type bench interop lock clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'

# uv installs in seconds where pip takes a minute; pip is the fallback when uv cannot be had.
$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip --disable-pip-version-check -q install -c constraints.txt uv 2>/dev/null || true
	@if [ -x $(BIN)/uv ]; then \
		$(BIN)/uv pip install -q --python $(BIN)/python -c constraints.txt -e '.[server]' --group dev; \
	else \
		$(BIN)/python -m pip --disable-pip-version-check -q install -U pip && \
		$(BIN)/python -m pip --disable-pip-version-check -q install -c constraints.txt -e '.[server]' --group dev; \
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

# A link that leads nowhere, a page in no menu, a reference that cannot be made: each fails the build.
docs: $(STAMP) ## build the documents as a site into build/site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "build/site/index.html; with its search: $(BIN)/python -m http.server -d build/site 8000"

docs-test: $(STAMP) ## run every block of README, tutorial and how-tos, and the examples
	$(BIN)/python -m pytest -n 2 tests/documents

# Valkey 9 and Postgres 18 come in wheels with the other packages; the oldest we promise, from Debian.
# Debian's Postgres would make a cluster of its own and start it: the tests need only its programs.
CLUSTERS := /etc/postgresql-common
POSTGRES := ls /usr/lib/postgresql/15/bin/postgres >/dev/null 2>&1 || command -v postgres >/dev/null
# Debian's nginx and Prometheus would start servers once they are installed: of their packages one program
# each is unpacked into build/, for the tests.
UNPACK = command -v $(2) >/dev/null || [ -x build/bin/$(2) ] || ( mkdir -p build/bin build/$(1) && cd build/$(1) && \
	{ timeout 120 apt-get -qq download $(1) || { timeout 120 apt-get -qq update && timeout 120 apt-get -qq download $(1); }; } && \
	dpkg-deb -x $(1)_*.deb . && find . -name $(2) -path '*bin/*' -exec cp {} ../bin/ \; ) >/dev/null 2>&1; \
	command -v $(2) >/dev/null || [ -x build/bin/$(2) ] || echo "no $(2) here: $(3) are left out (apt-get download $(1))"
servers: ## see to the servers that the tests start by themselves
	@command -v redis-server >/dev/null || [ "$$(id -u)" != 0 ] || \
		{ apt-get -qq update && apt-get -qq install -y --no-install-recommends redis-server; } || true
	@command -v redis-server >/dev/null || \
		echo "no redis-server here: tests on Redis 7 are left out (apt-get install redis-server)"
	@{ $(POSTGRES); } || [ "$$(id -u)" != 0 ] || { mkdir -p $(CLUSTERS) && \
		{ [ -e $(CLUSTERS)/createcluster.conf ] || echo "create_main_cluster = false" >$(CLUSTERS)/createcluster.conf; } && \
		apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends postgresql; } || true
	@{ $(POSTGRES); } || echo "no Postgres here: tests on Postgres 15 are left out (apt-get install postgresql)"
	@$(call UNPACK,nginx,nginx,tests behind a proxy)
	@$(call UNPACK,prometheus,promtool,tests of the alert rules)

page-tools: | servers ## see to what tests of the page and of the TypeScript worker need: a browser, Node's packages
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

# mypy has one thread: meanwhile the other core installs what is missing.
test: $(STAMP) ## lint, types and the whole test suite
	@$(MAKE) -j2 -O --no-print-directory lint type page-tools
	$(BIN)/python -m pytest -n 3 --dist worksteal

test-fast: $(STAMP) ## only the tests that need no processes of their own
	$(BIN)/python -m pytest -n 2 -m "not slow"

lint: $(STAMP) ## ruff and the import law
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

type: $(STAMP) ## mypy, strict
	$(BIN)/mypy

bench: $(STAMP) ## ratios against raw limits and peers, in one run; of some only: make bench ONLY="redis postgres"
	@$(BIN)/uv pip install -q --python $(BIN)/python -c constraints.txt --group bench
	$(BIN)/python -m bench $(ONLY)

interop: $(STAMP) ## clients that others wrote against this tree; of some only: make interop ONLY="openai mcp celery"
	$(BIN)/python -m interop $(ONLY)

lock: $(STAMP) ## resolve constraints.txt anew
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --no-header --no-annotate \
		pyproject.toml --extra server --group dev --group bench -o constraints.txt

clean: ## remove what the targets above made
	rm -rf $(VENV) build .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
