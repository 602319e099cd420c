# Everything happens in a virtual environment of its own; the first target that needs it makes it.
PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
EXTRAS := bullet,plot,tb,onnx,play,dev
# Two single-threaded processes are faster on two cores than one with two threads.
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1

.PHONY: demo test test-long check bench torture soak clean

demo: $(STAMP)  ## train an agent, evaluate it at all thresholds, print the table and the picture's place
	$(BIN)/ccpo train --task BallCircle --preset demo --evaluate

test: $(STAMP)  ## what decides whether a change lands
	$(BIN)/pytest -n 2 -m "not long"

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

$(STAMP): pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "make: $(PYTHON) was not found; install it or give another: make PYTHON=python3 $(MAKECMDGOALS)"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[$(EXTRAS)]'
	touch $(STAMP)

clean:
	rm -rf $(VENV) build dist src/*.egg-info
