# Everything that a fresh machine with Python (3.10 to 3.14) and make needs.
#   make demo   install, run all methods on a repulsive grid, draw the convergence picture
#   make test   install, run the whole test suite
#   make lint   ruff and mypy

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
JOBS ?= 2

.PHONY: demo test lint format clean

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("proxfield needs Python 3.10 to 3.14, this is " + sys.version.split()[0]) if not (3, 10) <= sys.version_info[:2] <= (3, 14) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[plot,dev]"
	@touch $@

demo: $(STAMP)
	@mkdir -p out
	$(BIN)/proxfield make grid --rows 40 --cols 40 --strength 3 --repulsive --seed 1 -o out/grid.uai
	$(BIN)/proxfield info out/grid.uai
	$(BIN)/proxfield compare out/grid.uai --max-iters 2000 --plot out/convergence.png
	@echo "The picture is in out/convergence.png"

test: $(STAMP)
	$(BIN)/python -m pytest -n $(JOBS)

lint: $(STAMP)
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix src tests benchmarks
	$(BIN)/ruff format src tests benchmarks

clean:
	rm -rf $(VENV) out build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
