# Every target makes its own virtual environment if there is none.
#   make demo       a private posterior of a real data set
#   make quick      the tests that take seconds: on every save
#   make test       the tests, but for sweeps and slow ones: before every commit, and what CI runs
#   make test-all   these too, but for the long versions of some: before a release
#   make test-nightly   all of them
#   make coverage   what `make test-all` runs of the package, line by line
#   make notebooks  the tutorials, run from start to end
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK = 1

# Tests go to whoever is free; those of one file stay together for as long as nobody is idle. Two workers with two threads each
# wait for one another on two cores, and what is compiled is used once: optimising it takes longer than it saves.
PYTEST := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 PYTENSOR_FLAGS=gcc__cxxflags=-O0,$$PYTENSOR_FLAGS $(BIN)/python -m pytest -n 2 --dist worksteal

.PHONY: demo quick test test-all test-nightly coverage lint docs notebooks benchmarks dist clean

demo: $(VENV)/.ready
	$(BIN)/python -m pymc_dp.demo

quick: $(VENV)/.ready
	$(PYTEST) -m "not (chain or process or page or sweep or slow or nightly)"

test: $(VENV)/.ready
	$(PYTEST) -m "not (nightly or sweep or slow)"

test-all: $(VENV)/.ready
	$(PYTEST) -m "not nightly"

test-nightly: $(VENV)/.ready
	$(PYTEST)

# Of some tests: make coverage TESTS=tests/privacy
coverage: $(VENV)/.ready
	$(PYTEST) -m "not nightly" --cov --cov-report=term $(TESTS)

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_docstrings.py

docs: $(VENV)/.ready-docs
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html

# Runs the sources and writes nothing; `notebooks/execute.py --store` writes the .ipynb.
notebooks: $(VENV)/.ready-notebooks
	$(BIN)/python notebooks/execute.py

benchmarks: $(VENV)/.ready-benchmarks $(VENV)-diffprivlib/.ready
	$(BIN)/python benchmarks/penalty_speed.py
	$(BIN)/python benchmarks/penalty_memory.py
	$(BIN)/python benchmarks/iterations_allowed.py
	$(BIN)/python benchmarks/hmc_speed.py
	$(BIN)/python benchmarks/thesis_mmd.py
	$(BIN)/python benchmarks/subsampled_epsilon.py
	$(BIN)/python benchmarks/barker_correction.py
	$(BIN)/python benchmarks/batch_cost.py
	$(BIN)/python benchmarks/subsampled_mmd.py
	$(BIN)/python benchmarks/gibbs_speed.py
	$(BIN)/python benchmarks/gibbs_mixing.py
	$(BIN)/python benchmarks/gibbs_coverage.py
	$(BIN)/python benchmarks/small_areas.py
	$(BIN)/python benchmarks/released_sums.py
	$(BIN)/python benchmarks/released_tables.py coverage
	$(BIN)/python benchmarks/released_tables.py speed
	$(BIN)/python benchmarks/released_tables.py checks
	$(BIN)/python benchmarks/surrogate_mmd.py
	$(BIN)/python benchmarks/federated.py
	$(BIN)/python benchmarks/surrogate_limit.py
	$(BIN)/python benchmarks/surrogate_constants.py
	$(BIN)/python benchmarks/hierarchical_constants.py --workers 2
	$(BIN)/python benchmarks/lost_searches.py --workers 2
	$(BIN)/python benchmarks/tails.py
	$(BIN)/python benchmarks/centring.py
	$(BIN)/python benchmarks/expected_shift.py
	$(BIN)/python benchmarks/surrogate_limit.py --n 200000 --replications 10
	$(BIN)/python benchmarks/surrogate_limit.py --real --replications 8
	$(BIN)/python benchmarks/surrogate_limit.py --real --public --replications 16
	$(BIN)/python benchmarks/surrogate_limit.py --public --seed 2036
	$(BIN)/python benchmarks/peers.py --diffprivlib $(VENV)-diffprivlib/bin/python
	$(BIN)/python benchmarks/many_parameters.py
	$(BIN)/python benchmarks/many_parameters.py horseshoe
	$(BIN)/python benchmarks/many_parameters.py constants
	$(BIN)/python benchmarks/persons.py
	$(BIN)/python benchmarks/hierarchical_models.py
	$(BIN)/python benchmarks/groups.py
	$(BIN)/python benchmarks/groups.py --sizes
	$(BIN)/python benchmarks/item_response.py --workers 2
	$(BIN)/python benchmarks/exponential_cost.py
	$(BIN)/python benchmarks/shards.py
	$(BIN)/python benchmarks/audit.py
	$(BIN)/python benchmarks/clipping_bias.py
	$(BIN)/python benchmarks/accounting_comparison.py
	$(BIN)/python benchmarks/gradient_ways.py
	$(BIN)/python benchmarks/first_draw.py
	$(BIN)/python benchmarks/ordinary_models.py
	$(BIN)/python benchmarks/combine.py
	$(BIN)/python benchmarks/average.py
	$(BIN)/python benchmarks/compare_models.py
	$(BIN)/python benchmarks/sandwich.py
	$(BIN)/python benchmarks/missing.py
	$(BIN)/python benchmarks/release_once.py
	$(BIN)/python benchmarks/release_once.py prior
	$(BIN)/python benchmarks/expected_shift.py
	$(BIN)/python benchmarks/curved_mmd.py
	$(BIN)/python benchmarks/curved_coverage.py
	$(BIN)/python benchmarks/curved_switch.py
	$(BIN)/python benchmarks/mutants.py

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -c "import sys; v = sys.version.split()[0]; sys.exit(0 if sys.version_info >= (3, 11) else 'pymc-dp needs Python 3.11 or newer, this is ' + v + ': make PYTHON=python3.12 ...')"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -e '.[test,examples]'
	touch $@

$(VENV)/.ready-docs: $(VENV)/.ready
	$(BIN)/python -m pip install --quiet -e '.[docs]'
	touch $@

$(VENV)/.ready-benchmarks: $(VENV)/.ready
	$(BIN)/python -m pip install --quiet -e '.[benchmarks]'
	touch $@

# It cannot be imported with the newest scikit-learn.
$(VENV)-diffprivlib/.ready:
	$(PYTHON) -m venv $(VENV)-diffprivlib
	$(VENV)-diffprivlib/bin/python -m pip install --quiet diffprivlib 'scikit-learn<1.8' 'scipy<1.18'
	touch $@

$(VENV)/.ready-notebooks: $(VENV)/.ready
	$(BIN)/python -m pip install --quiet -e '.[notebooks]'
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-diffprivlib docs/_build docs/notebooks/*.ipynb

# The files of a release in dist/, installed and used in empty environments first.
dist:
	.ci/check_release
