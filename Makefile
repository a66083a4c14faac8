# The two commands most people need: `make train` and `make test`. `make help` lists the rest.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

.PHONY: help install install-dev train test test-all check snapshots docs studio clean
help:
	@echo "make train     install, then train the studio model on its five rewards (CPU, minutes)"
	@echo "make test      install, then run the tests (under 10 minutes on 2 cores)"
	@echo "make test-all  the same and the long tests (within 60 minutes on 2 cores)"
	@echo "make check     lint, format, types, spelling and plain words"
	@echo "make snapshots renew what tests expect the commands to print; look at the diff"
	@echo "make docs      the documentation as a site, build/site/index.html"
	@echo "make studio    rebuild the studio's model and reward weights from nothing (GPU advised)"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# torch comes first and pinned, so that no other package pulls in a different build of it.
$(VENV)/.train: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet -c constraints.txt "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[rewards,report]"
	@touch $@

$(VENV)/.dev: $(VENV)/.train
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[rewards,report,serve,studio,torchjd,docs,dev]"
	@touch $@

install: $(VENV)/.train
install-dev: $(VENV)/.dev

train: install
	$(BIN)/marble train studio

test: install-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow" -n 2 --dist loadfile

test-all: install-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --durations=40

docs: install-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
	@echo "build/site/index.html"

studio: install-dev
	$(BIN)/python -m marble.studio.pretrain

snapshots: install-dev
	MARBLE_SNAPSHOTS=write $(BIN)/python -m pytest tests/snapshots
	git status --short tests/snapshots

check: install-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python scripts/readability.py

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
