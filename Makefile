# Everything that a fresh machine with Python (3.10 to 3.14) and make needs.
#   make demo   install what it needs (not the development tools), refine the labels of a photograph,
#               run five methods on a repulsive grid, draw both; about a minute
#   make check  a minute: lint what has changed, test the core on the reference and the numba kernels
#   make test   install, run all tests but the slow ones (about five minutes on two cores)
#   make test-all  the slow ones, too
#   make test-oldest  install the oldest dependencies that are allowed (constraints/oldest.txt; needs
#               Python 3.10 or 3.11), run some tests of every part on them
#   make test-gpu  install torch and Triton (pinned in constraints/gpu.txt), run the GPU kernels in
#               Triton's interpreter and in plain torch, and the torch layer; on the GPU if there is one
#   make figures  make the pictures of docs/images again (minutes; those that need torch after
#               make test-gpu has installed it)
#   make figures-check  check in seconds that none of them is stale
#   make test-studio  the page of proxfield studio in Chromium, which is installed if this is root
#   make soak   check every promise of docs/project/reliability.md on many seeded cases, for 30 minutes
#   make mutants  put small faults into a copy of the package, one at a time, and check that tests
#               notice them (those of the torch layer after make test-gpu has installed torch)
#   make docs   build the documentation site in docs/_build/html; warnings are errors
#   make docs-links  check the links of the site that leave it (needs the network)
#   make lint   ruff, mypy, and the layers (import-linter)
#   make coverage  the whole test suite with its coverage, which has a floor; pages in out/coverage
#   make package  wheel and source archive in dist/, checked as the package index would
#   make check-wheel  the same, and the wheel installed and used in a fresh environment

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO_STAMP := $(VENV)/.installed-demo
GPU_VENV ?= .venv-gpu
GPU_BIN := $(GPU_VENV)/bin
GPU_STAMP := $(GPU_VENV)/.installed
OLDEST_VENV ?= .venv-oldest
OLDEST_BIN := $(OLDEST_VENV)/bin
OLDEST_STAMP := $(OLDEST_VENV)/.installed
DOCS_VENV ?= .venv-docs
DOCS_BIN := $(DOCS_VENV)/bin
DOCS_STAMP := $(DOCS_VENV)/.installed
PACKAGE_VENV ?= .venv-package
PACKAGE_STAMP := $(PACKAGE_VENV)/.installed
JOBS ?= 2
PYTHON_SOURCES := src tests benchmarks examples scripts docs/conf.py docs/publish.py docs/_extensions
# one file or more of every part of the package, few of those that compile much
SMOKE := tests/test_result.py::test_labels_are_the_most_probable_ones \
	tests/bench/test_bench_report.py tests/cli/test_cli_errors.py tests/compat/test_compat_utils.py \
	tests/compiled/test_math.py tests/compiled/test_simd.py tests/devices tests/filters/test_bounds.py \
	tests/io/test_images.py tests/io/test_io_archives.py tests/io/test_io_model.py \
	tests/lowering/test_lowering.py tests/properties/test_curvature.py tests/rules/test_kinds.py \
	tests/terms/test_terms.py tests/viz

CORE_TESTS := tests/conformance tests/filters tests/lowering tests/rules tests/terms tests/test_field.py

MINUTES ?= 30

.PHONY: demo check test test-all figures figures-check coverage test-oldest test-gpu test-studio soak mutants docs docs-links lint package check-wheel format clean

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit("proxfield needs Python 3.10 to 3.14, this is " + sys.version.split()[0]) if not (3, 10) <= sys.version_info[:2] <= (3, 14) else None'
	$(PYTHON) -m venv $(VENV)

# the demo needs few packages, and only some of their modules: those are compiled when they are imported
$(DEMO_STAMP): pyproject.toml | $(BIN)/python
	@echo "Installing proxfield and what the demo needs in $(VENV), once"
	$(BIN)/python -m pip install --no-compile --disable-pip-version-check --editable ".[plot]"
	@touch $@

$(STAMP): pyproject.toml | $(BIN)/python
	@echo "Installing proxfield and all development tools in $(VENV), once"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[plot,dev]"
	@touch $@ $(DEMO_STAMP)

demo: $(DEMO_STAMP)
	@$(BIN)/python examples/demo.py --output out

check: $(STAMP)
	@changed=$$(git diff --name-only --diff-filter=d HEAD -- '*.py'; git ls-files --others --exclude-standard -- '*.py'); \
		if [ -n "$$changed" ]; then $(BIN)/ruff check $$changed && $(BIN)/ruff format --check $$changed; fi
	$(BIN)/mypy
	$(BIN)/python -m pytest -n $(JOBS) -q -m "not slow" $(CORE_TESTS)

test: $(STAMP)
	$(BIN)/python -m pytest -n $(JOBS) -m "not slow"

test-all: $(STAMP)
	$(BIN)/python -m pytest -n $(JOBS)

coverage: $(STAMP)
	$(BIN)/python -m pytest -n $(JOBS) --cov --cov-report=term:skip-covered --cov-report=html

$(OLDEST_STAMP): pyproject.toml constraints/oldest.txt
	@$(PYTHON) -c 'import sys; sys.exit("the oldest dependencies need Python 3.10 or 3.11, this is " + sys.version.split()[0]) if not (3, 10) <= sys.version_info[:2] <= (3, 11) else None'
	$(PYTHON) -m venv $(OLDEST_VENV)
	$(OLDEST_BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints/oldest.txt pytest hypothesis pytest-xdist --editable ".[plot,images,bench]"
	@touch $@

test-oldest: $(OLDEST_STAMP)
	$(OLDEST_BIN)/python -m pytest -n $(JOBS) $(SMOKE) \
		--deselect tests/compiled/test_simd.py::test_dense_fields_come_out_the_same

$(GPU_STAMP): pyproject.toml constraints/gpu.txt
	$(PYTHON) -m venv $(GPU_VENV)
	$(GPU_BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints/gpu.txt torch triton
	$(GPU_BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints/gpu.txt --editable ".[gpu,plot,dev]"
	@touch $@

test-gpu: $(GPU_STAMP)
	$(GPU_BIN)/python tests/gpu/run_all.py --jobs $(JOBS)

$(DOCS_STAMP): pyproject.toml constraints/gpu.txt
	$(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints/gpu.txt --editable ".[docs]"
	@touch $@

docs: $(DOCS_STAMP)
	$(DOCS_BIN)/python -m sphinx --quiet --fail-on-warning --keep-going --builder html docs docs/_build/html
	@echo "The site is in docs/_build/html/index.html"

docs-links: $(DOCS_STAMP)
	$(DOCS_BIN)/python -m sphinx --quiet --keep-going --builder linkcheck docs docs/_build/linkcheck

figures: $(STAMP)
	$(BIN)/python scripts/figures.py
	$(if $(wildcard $(GPU_STAMP)),$(GPU_BIN)/python scripts/figures.py torch-training)

figures-check: $(STAMP)
	$(BIN)/python scripts/figures.py --check --quick

test-studio: $(STAMP)
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || \
		{ [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && apt-get install -y -qq chromium; } || \
		{ echo "the tests of the studio need Chromium on the PATH" >&2; exit 1; }
	PROXFIELD_TEST_BROWSER=1 $(BIN)/python -m pytest tests/studio/test_studio_browser.py

soak: $(STAMP)
	$(BIN)/python tests/reliability/soak.py --minutes $(MINUTES) --jobs $(JOBS)

mutants: $(STAMP)
	$(BIN)/python tests/mutants/run.py --jobs $(JOBS) --report benchmarks/results/mutants.md \
		$(if $(wildcard $(GPU_STAMP)),--torch-python $(GPU_BIN)/python)

lint: $(STAMP)
	$(BIN)/ruff check $(PYTHON_SOURCES)
	$(BIN)/ruff format --check $(PYTHON_SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports

$(PACKAGE_STAMP):
	$(PYTHON) -m venv $(PACKAGE_VENV)
	$(PACKAGE_VENV)/bin/python -m pip install --quiet --disable-pip-version-check build twine
	@touch $@

package: $(PACKAGE_STAMP)
	rm -rf dist
	$(PACKAGE_VENV)/bin/python -m build --quiet
	$(PACKAGE_VENV)/bin/python -m twine check --strict dist/*

check-wheel: package
	$(PYTHON) scripts/check_wheel.py

format: $(STAMP)
	$(BIN)/ruff check --fix $(PYTHON_SOURCES)
	$(BIN)/ruff format $(PYTHON_SOURCES)

clean:
	rm -rf $(VENV) $(OLDEST_VENV) $(GPU_VENV) $(DOCS_VENV) $(PACKAGE_VENV) docs/_build out build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage .coverage.*
