# `make demo` and `make test` do everything, set-up included, on a machine with Python 3.11+ and make.
PYTHON ?= python3
PY := .venv/bin/python

.PHONY: demo test test-other test-slow coverage table package site clean

# Trains three heads side by side on a small language whose exact probabilities are known, and makes a page of them:
# out/demo.html. A thread each. Ctrl-C saves; the same command goes on.
ROWS := baseline smooth_gpt entmax15
RUNS := $(foreach row,$(ROWS),$(row)=out/$(row)-tiny)
demo: .venv/done
	$(MAKE) --no-print-directory -j$(words $(ROWS)) $(ROWS:%=demo-%)
	$(PY) eval_diversity.py $(RUNS) --texts 40 --prompt_tokens 14 --new_tokens 50 --out out/demo > out/demo.log
	$(PY) table.py --measure=truth $(RUNS) --out out/demo >> out/demo.log
	$(PY) report.py out/demo --out out/demo.html
	@echo 'A page to play with them: $(PY) labs/play/serve.py $(RUNS)'

# Whoever reads its lines outlives the Ctrl-C that training answers, and puts the row's name before each.
demo-%: SHELL := bash
demo-%: .venv/done
	@set -o pipefail; resume=$$([ -d out/$*-tiny/last ] && echo --resume); \
	OMP_NUM_THREADS=1 $(PY) train.py config/$*.py config/tiny.py $$resume --log_interval=50 2>&1 | \
		(trap '' INT TERM HUP; while IFS= read -r line; do echo "$*: $$line"; done)

# The tests on as many processes as JOBS says, a file at a time, for what a file's tests share is made once; in the order
# of names, for by default files of few tests come last, and some of these take longest.
JOBS ?= 2
PARALLEL := -n $(JOBS) --dist loadfile --no-loadscope-reorder

# Each process has one core: two with two threads each wait for one another.
test: .venv/dev
	OMP_NUM_THREADS=1 $(PY) -m pytest $(PARALLEL)

# The same, and which lines no test reached. What runs in a process of its own is not counted.
coverage: .venv/dev
	$(PY) -m pytest $(PARALLEL) --cov --cov-report=term-missing:skip-covered

# The arithmetic once more, as another kind of CPU does it: no AVX-512, no bfloat16 instructions, two threads.
test-other: .venv/dev
	ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=AVX2 OMP_NUM_THREADS=2 \
		$(PY) -m pytest tests/test_heads.py tests/test_scoring.py tests/test_model.py tests/test_device.py

# Tests of minutes, and those that a GPU is needed for, which are skipped where there is none.
test-slow: .venv/dev
	$(PY) -m pytest -m "slow or gpu"

# Style and types
.PHONY: lint
lint: .venv/dev
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m mypy

# The pages as a site, out/site/index.html: mkdocs.yml.
site: out/mkdocs/done
	rm -rf out/pages
	git checkout-index --all --prefix=out/pages/
	NO_MKDOCS_2_WARNING=1 out/mkdocs/bin/mkdocs build

out/mkdocs/done: docs/site.lock
	$(PYTHON) -m venv out/mkdocs
	out/mkdocs/bin/python -m pip install --quiet --disable-pip-version-check -r docs/site.lock
	touch $@

# The sdist and, from it, the wheel, in out/dist; checked, and installed in an empty environment, where it trains, samples and is a library.
EMPTY := out/empty
package:
	rm -rf out/dist $(EMPTY)
	$(PYTHON) -m venv out/packager
	out/packager/bin/python -m pip install --quiet --disable-pip-version-check build twine
	out/packager/bin/python -m build --outdir out/dist
	out/packager/bin/python -m twine check --strict out/dist/*
	$(PYTHON) -m venv $(EMPTY)
	$(EMPTY)/bin/python -m pip install --quiet --disable-pip-version-check out/dist/*.whl
	cd $(EMPTY) && bin/nanoheads train config/baseline.py config/tiny.py
	cd $(EMPTY) && bin/nanoheads sample out/baseline-tiny --length 40
	cd $(EMPTY) && bin/python -c "from nanoheads import GPT, HEADS, linear_loss; from nanoheads.truth import Language"

# What the demo, training and tables need; and, laid over it, what the tests need. By uv where it is installed.
INSTALL := $(if $(shell command -v uv),uv pip install --quiet --python $(PY),$(PY) -m pip install --quiet --disable-pip-version-check)
.venv/done: requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: $$($(PYTHON) --version) is too old: Python 3.11 or newer is needed; give one with PYTHON=python3.12" >&2; exit 2; }
	@echo "installing $$(grep -c == $<) packages into .venv: a minute or two, once"
	$(PYTHON) -m venv .venv
	$(INSTALL) -r $<
	touch $@

.venv/dev: requirements-dev.lock .venv/done
	@echo "installing $$(grep -c == $<) more packages for the tests: some minutes, once"
	$(INSTALL) -r $<
	touch $@

# A table of config/tables, and the search of each row's own settings, which comes first: hours, resumable.
# Prepare the data first, as the table's file says. TABLE="heads grammar": the second file laid over the first.
.PHONY: tune
TABLE ?= heads
tune: .venv/dev
	$(PY) table.py $(TABLE:%=config/tables/%.py) --search --jobs=2

table: .venv/done
	$(PY) table.py $(TABLE:%=config/tables/%.py) --jobs=2

clean:
	rm -rf .venv out
