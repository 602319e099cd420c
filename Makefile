# Everything happens in a virtual environment of its own; the first target that needs it makes it.
PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
EXTRAS := bullet,plot,tb,onnx,play,dev
OLDEST := .venv-oldest
# Two single-threaded processes are faster on two cores than one with two threads.
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1

.PHONY: demo test test-oldest test-long check bench torture soak docs clean

demo: $(STAMP)  ## train an agent, evaluate it at all thresholds, print the table and the picture's place
	$(BIN)/ccpo train --task BallCircle --preset demo --evaluate

test: $(STAMP)  ## what decides whether a change lands
	$(BIN)/pytest -n 2 -m "not long"

test-oldest: $(OLDEST)/.installed  ## the same with the oldest Gymnasium that is allowed, where there are no MuJoCo tasks
	$(OLDEST)/bin/pytest -n 2 -m "not long"

test-long: $(STAMP)  ## what takes longer than that
	$(BIN)/pytest -n 2 -m long

check: $(STAMP)  ## format, lint, types, tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(MAKE) test

bench: $(STAMP)  ## speed, as ratios in one run of at most 20 minutes; make bench BENCH="--only env,update"
	$(BIN)/python -m benchmarks $(BENCH)

torture: $(STAMP)  ## faults and hostile files, 30 minutes at most; longer: make torture TORTURE="--minutes 240"
	$(BIN)/python -m torture $(TORTURE)

soak: $(STAMP)  ## memory, files and threads over many short runs and many pages; make soak SOAK="--minutes 240"
	$(BIN)/python -m torture.soak $(SOAK)

docs: $(VENV)/.docs  ## the documentation as a site, in docs/_build
	$(BIN)/sphinx-build -W -q docs docs/_build

$(VENV)/.docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	touch $@

# bullet-safety-gym asks for Gymnasium 0.28 and runs on the newest; pip takes that only in two steps.
$(STAMP): pyproject.toml
	$(call make_venv,$(VENV))
	$(BIN)/python -m pip install --quiet --editable '.[$(EXTRAS)]'
	$(BIN)/python -m pip install --quiet --no-warn-conflicts --editable '.[mujoco]'
	touch $@

$(OLDEST)/.installed: pyproject.toml
	$(call make_venv,$(OLDEST))
	$(OLDEST)/bin/python -m pip install --quiet --editable '.[$(EXTRAS)]' "$$(sed -n 's/^  "\(gymnasium\)>=\([0-9.]*\).*/\1==\2/p' pyproject.toml)"
	touch $@

define make_venv
	@command -v $(PYTHON) >/dev/null || { echo "make: $(PYTHON) was not found; install it or give another: make PYTHON=python3 $(MAKECMDGOALS)"; exit 1; }
	test -x $(1)/bin/python || $(PYTHON) -m venv $(1)
	$(1)/bin/python -m pip install --quiet --upgrade pip
endef

clean:
	rm -rf $(VENV) $(OLDEST) build dist src/*.egg-info
