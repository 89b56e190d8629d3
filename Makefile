# The edge-MoE testbed from the shell.  `make` alone prints what there is.

TOPOLOGY ?= topologies/edge10.yaml
SCENARIO ?= link_congestion
NAME     ?=
BACKEND  ?= netns
RELAYS   ?= auto
PYTHON   ?= python3
ARGS     ?=

DEMO      := $(or $(NAME),demo)
NAMED     := $(if $(NAME),--name $(NAME))
BIN       := .venv/bin
INSTALLED := .venv/.installed
TESTABLE  := .venv/.testable
# Tests that need no root keep to themselves, so they run side by side; those of one file stay together.
PARALLEL  := -n auto --dist loadfile

.DEFAULT_GOAL := help
.PHONY: help demo testbed up status verify graph run plots agreement sweep down list plan check lint types test test-vm fast-test benchmarks clean

##@ All in one

demo: testbed ## a scenario under the four main frameworks, and figures: on packets, or simulated where none are possible
	@if $(BIN)/testbed doctor --quiet; then \
	  $(BIN)/testbed up $(TOPOLOGY) --name $(DEMO) || exit $$?; \
	  trap '$(BIN)/testbed down --name $(DEMO)' EXIT; \
	  $(BIN)/python scenarios/$(SCENARIO).py --testbed $(DEMO) $(ARGS) && $(BIN)/python -m analysis; \
	else \
	  $(BIN)/python scenarios/$(SCENARIO).py --topology $(TOPOLOGY) $(ARGS) && $(BIN)/python -m analysis; \
	fi

##@ Step by step

testbed: $(INSTALLED) ## the virtual environment with everything the testbed needs, and the image of containers where an engine runs
	@$(BIN)/python -m testbed.images --if-possible --quiet

up: testbed ## servers and links of TOPOLOGY (default topologies/edge10.yaml) on BACKEND netns, docker or mininet; as root
	@$(BIN)/testbed up $(TOPOLOGY) --backend $(BACKEND) --relays $(RELAYS) $(NAMED) $(if $(filter run plots demo,$(MAKECMDGOALS)),,$(ARGS))

status: testbed ## what is up, and whether it is as the file says
	@$(BIN)/testbed status $(NAMED)

verify: testbed ## measure every link against the file
	@$(BIN)/testbed verify $(NAMED)

graph: testbed ## draw TOPOLOGY as topology.svg
	@$(BIN)/testbed graph $(TOPOLOGY) -o topology.svg --force

run: testbed ## play SCENARIO (default link_congestion) under the main frameworks; others by ARGS
	@$(BIN)/python scenarios/$(SCENARIO).py $(if $(NAME),--testbed $(NAME)) $(ARGS)

agreement: testbed ## up, the default load simulated and emulated, both side by side, down (about six minutes)
	@$(BIN)/testbed up $(TOPOLOGY) --name $(or $(NAME),agreement) || exit $$?; \
	trap '$(BIN)/testbed down --name $(or $(NAME),agreement)' EXIT; \
	$(BIN)/python orchestrator.py agreement --testbed $(or $(NAME),agreement) $(ARGS)

sweep: testbed ## SCENARIO in virtual time over loads and seeds: ARGS='--rates 4,8,16 --seeds 0-4'; goes on where it was
	@$(BIN)/python orchestrator.py sweep $(SCENARIO) $(ARGS)

plots: testbed ## figures, tables and report.html of the newest results
	@$(BIN)/python -m analysis

down: testbed ## remove everything that `up` made, whatever state it is in
	@$(BIN)/testbed down $(NAMED)

##@ Look before you run

list: testbed ## frameworks, scenarios, topologies
	@$(BIN)/python orchestrator.py list

plan: testbed ## both timelines of SCENARIO, without running anything
	@$(BIN)/python orchestrator.py plan $(SCENARIO) --topology $(TOPOLOGY) $(ARGS)

##@ For developers

check: lint types fast-test ## lint, types and the tests that need neither root nor much time

lint: $(TESTABLE)
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: $(TESTABLE)
	@$(BIN)/mypy

fast-test: $(TESTABLE)
	@$(BIN)/pytest $(PARALLEL) tests/unit tests/golden tests/system -m "not slow and not root"

test: $(TESTABLE) ## install what the tests need and run all that this machine can run
	@$(BIN)/python -m testbed.images --if-possible
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy \
	&& $(BIN)/pytest $(PARALLEL) -m "not root" && $(BIN)/pytest -m root

test-vm: $(TESTABLE) ## the tests of links that the kernel shapes, in a virtual machine whose kernel can (downloads one once)
	@tests/vm/run

benchmarks: $(TESTABLE) ## print the figures that the README states (some minutes; as root)
	@for file in benchmarks/bringup.py benchmarks/relay.py benchmarks/routing_model.py benchmarks/simulated_links.py benchmarks/simulation.py; do echo "== $$file"; $(BIN)/python $$file || exit 1; done

clean: ## remove the virtual environment, results and figures
	rm -rf .venv results figures sweeps .mypy_cache .ruff_cache .pytest_cache .hypothesis

help:
	@awk 'BEGIN {FS = ":.*## "} \
	/^##@/ {printf "\n%s\n", substr($$0, 5)} \
	/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo; echo "Variables: TOPOLOGY BACKEND RELAYS SCENARIO NAME ARGS, e.g. make run SCENARIO=steady_load ARGS='--rate 20'"

# Debian ships Python without ensurepip; say what to type, or, as root, type it.
$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	|| { echo "Python 3.11 or newer is needed: set PYTHON=..."; exit 2; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null \
	|| { [ "$$(id -u)" = 0 ] && apt-get install -y python3-venv; } \
	|| { echo "the venv module is missing: apt-get install python3-venv"; exit 2; }
	@echo "installing into .venv (once)"
	@$(PYTHON) -m venv .venv
	@$(BIN)/pip install --quiet --disable-pip-version-check --root-user-action=ignore --editable .
	@touch $@

$(TESTABLE): $(INSTALLED)
	@$(BIN)/pip install --quiet --disable-pip-version-check --root-user-action=ignore --editable '.[test]'
	@touch $@
