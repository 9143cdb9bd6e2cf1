# Everything is installed into .venv, from pyproject.toml at the versions in constraints.txt.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help demo test test-fast test-full test-versions test-gpu sanitize dist fuzz docs results bench clean
.NOTPARALLEL:

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/.run ## draw every structure, compare the estimators; pictures go to demo/
	@$(BIN)/gumtrace demo --out demo
	@$(BIN)/gumtrace toy spanning-tree --out demo

# One thread for each process: more would only wait for each other. Tests of threads ask for them.
test test-fast dist: export OMP_NUM_THREADS = 1
test: $(VENV)/.dev ## lint, format check, type check, tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@.ci/chromium
	@.ci/postgresql
# Types are checked while the tests are collected: one core would idle as both processes need the same kernels compiled.
	$(BIN)/pyright --pythonpath $(BIN)/python & types=$$!; $(BIN)/pytest -n 2 && wait $$types

test-fast: $(VENV)/.dev ## the quick half of the tests of every part: three minutes
	$(BIN)/pytest -n 2 -m "not slow"

test-full: $(VENV)/.dev ## the tests with a million draws where `make test` makes 20 000, and warm-up of all structures: half an hour
	GUMTRACE_DRAWS=1000000 $(BIN)/pytest tests/traces/test_conditional.py tests/cli/test_cli_warm_up.py -k "round_trip or forgotten"

test-versions: ## the fast tests with the oldest and the newest versions of what the library needs, each in a fresh environment
	$(PYTHON) tests/helpers/versions.py

# Most of it is compilation, on the CPU: more workers help where there are more cores. They begin far apart: tests that
# follow one another share kernels, and neighbours would compile the same ones at the same time. In this order the longest
# tests, of large items, begin early. Files without such tests are not collected.
GPU_WORKERS ?= 6
# The tests compare with results of the CPU: each worker computes them on its share of the cores.
test-gpu: export OMP_NUM_THREADS = $(or $(shell { cores=$$(( $$(nproc --all) / $(GPU_WORKERS) )); echo $$(( cores > 0 ? cores : 1 )); } 2> /dev/null),1)
# One Triton cache for all workers: unless it is named, torch.compile moves its process to a folder of torch's own.
test-gpu: export TRITON_CACHE_DIR ?= $(or $(TRITON_HOME),$(HOME))/.triton/cache
test-gpu: $(VENV)/.dev ## the tests of kernels on a real GPU, by GPU_WORKERS=6 processes: needs a CUDA build of torch in .venv
# The CPU's kernels, which the tests compare with, are compiled side by side with the first tests, on other cores.
	$(BIN)/gumtrace warm-up & ahead=$$!; trap "kill $$ahead 2> /dev/null" EXIT INT TERM; \
	PYTHONPATH=tests/helpers $(BIN)/pytest -n $(GPU_WORKERS) --dist worksteal -m "device or gpu" --tb=short -p failures_at_once \
		$$(grep -rlE "mark\.(device|gpu)|every_device" --include="test_*.py" tests experiments/tests | sort -r) && wait $$ahead

# A whole run of each tool: racecheck looks at shared memory, synccheck at barriers. Racecheck reports torch's own
# reductions of booleans, which are not ours to mend. The kernels are compiled before, without a tool, which slows down
# all that it watches, racecheck most: it has items of up to 500 nodes, and each structure a process beside the others.
# The compilers that a process may start have no kernels. Torch takes memory in large blocks, and an access behind a
# tensor would be inside one: not so without its cache.
sanitize: $(VENV)/.dev ## every kernel once under compute-sanitizer: needs an NVIDIA GPU and CUDA's tools
	$(BIN)/python tests/helpers/every_kernel.py --device cuda
	set -e; export PYTORCH_NO_CUDA_MEMORY_CACHING=1; \
	sanitized() { compute-sanitizer --target-processes application-only --error-exitcode 1 "$$@"; }; \
	sanitized --tool memcheck $(BIN)/python tests/helpers/every_kernel.py --device cuda; \
	sanitized --tool synccheck $(BIN)/python tests/helpers/every_kernel.py --device cuda; \
	for name in $$($(BIN)/python tests/helpers/every_kernel.py --list); do \
		sanitized --tool racecheck --kernel-name-exclude kns=reduce_kernel \
			$(BIN)/python tests/helpers/every_kernel.py --device cuda --most 300000 --only $$name & racing="$$racing $$!"; \
	done; for process in $$racing; do wait $$process; done

ENVIRONMENTS ?= oldest newest
DISTRIBUTIONS ?= gumtrace gumtrace-experiments
dist: ## build wheels and sdists into dist/, check them, run the fast tests with them in ENVIRONMENTS="oldest newest"
	$(PYTHON) tests/helpers/distributions.py $(ENVIRONMENTS) $(DISTRIBUTIONS)

SECONDS ?= 60
SEED ?= 0
fuzz: $(VENV)/.dev ## look for wrong answers and crashes for SECONDS=60, from SEED=0; needs two cores
	$(BIN)/python -m gumtrace.fuzz --seconds $(SECONDS) --seed $(SEED)

# One thread for each of the pages that are executed at a time: more would only wait for each other.
docs: export OMP_NUM_THREADS = 1
docs: $(VENV)/.docs ## build the site into docs/_build/html, execute its pages, check its links
	@rm -rf docs/_build docs/_generated
	$(BIN)/sphinx-build -q -W --keep-going -E -j 2 -b html docs docs/_build/html
	$(BIN)/python docs/check.py docs/_build/html

RESULTS := experiments/results
# Some figures are of single recordings, for what these show beside all of them. Not renewed is what needs trained models, which are not
# kept: pictures of what they found, and what experiments/benchmarks/results/ has. CONTRIBUTING.md ("What `make results` leaves") has the commands.
results: $(VENV)/.dev ## put recorded runs into the pages that show them: tables and curves
	@$(BIN)/gumtrace plot graph-layout $(RESULTS)/graph-layout/one-start.jsonl --out build/one-start
	@$(BIN)/gumtrace plot graph-layout $(RESULTS)/graph-layout/unrolled-three-starts.jsonl --out build/slow-decoder
	@cp build/one-start/precision.png $(RESULTS)/graph-layout/one-start.png
	@cp build/slow-decoder/precision.png $(RESULTS)/graph-layout/slow-decoder.png
	@$(BIN)/gumtrace plot graph-layout --out $(RESULTS)/graph-layout
	@$(BIN)/gumtrace plot listops --out build/listops
	@cp build/listops/accuracy.png build/listops/recall-seconds.png $(RESULTS)/listops
	@$(BIN)/gumtrace plot listops $(RESULTS)/listops/listops.jsonl $(RESULTS)/listops/listops-items.jsonl --out build/listops-one-start
	@cp build/listops-one-start/precision.png $(RESULTS)/listops/one-start.png
	@$(BIN)/gumtrace plot parentheses-tree $(RESULTS)/parentheses-tree/all-types.jsonl --out build/parentheses-tree
	@cp build/parentheses-tree/types.png build/parentheses-tree/entropy.png $(RESULTS)/parentheses-tree
	@$(BIN)/gumtrace plot parentheses-insertion $(RESULTS)/parentheses-insertion/all-types.jsonl --out build/parentheses-insertion
	@cp build/parentheses-insertion/types.png build/parentheses-insertion/entropy.png $(RESULTS)/parentheses-insertion
	@for name in graph-layout kset-autoencoder kset-features kset-neighbours l2x listops parentheses-insertion parentheses-tree treebank; do $(BIN)/gumtrace table $$name --into $(RESULTS)/$$name/NOTES.md || exit 1; done
	@$(BIN)/python benchmarks/table.py
	@$(BIN)/python experiments/benchmarks/experiment_tables.py

bench: $(VENV)/.run ## time the kernels on the CPU
	@$(BIN)/gumtrace bench --device cpu

clean: ## remove caches, build outputs and demo/; keeps .venv
	@rm -rf build dist demo docs/_build docs/_generated docs/_static/explorer/generated .pytest_cache .ruff_cache .hypothesis
	@find src tests experiments docs benchmarks -name __pycache__ -prune -exec rm -rf {} +

# Stamp files: install again only when the requirements changed.
$(VENV)/.run: parts = -e ".[cli,plot]"
$(VENV)/.dev: parts = -e ".[dev]" -e ./experiments
$(VENV)/.docs: parts = -e ".[docs]" -e ./experiments
$(VENV)/.run $(VENV)/.dev $(VENV)/.docs: pyproject.toml experiments/pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt $(parts)
	@touch $@
