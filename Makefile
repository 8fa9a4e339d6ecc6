# The front door: a thin layer over the CMake presets, which can be used directly as well (cmake --preset release).

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help deps deps-ci demo demo-identical test bench format lint asan tsan soak fuzz clean

JOBS ?= $(shell nproc)
# Tests of processes and their deaths wait about as much as they compute.
TEST_JOBS ?= $(shell expr $(JOBS) '*' 2)
# Objects in ccache's store serve every checkout.
export CCACHE_BASEDIR ?= $(CURDIR)
export CCACHE_NOHASHDIR ?= 1
LABEL ?= fast
# Make's own default for CXX is g++; an environment or command-line CXX is taken as it is. (The tsan preset names clang.)
export CXX

# $(call configure,preset,options): ninja where there is one. $(call build,preset,targets).
configure = generator=(); command -v ninja >/dev/null || generator=(-G 'Unix Makefiles'); \
  cmake --preset $(1) "$${generator[@]}" $(2) >build/$(1).configure.log 2>&1 || { cat build/$(1).configure.log; exit 1; }
build = cmake --build --preset $(1) -j $(JOBS) --target $(2)
ctest = ctest --preset $(1) -j $(TEST_JOBS) $(2)
# What GoogleTest says it ran: an entry of CTest's is many tests.
counts = awk '/^\[  PASSED  \] [0-9]+ test/ {passed += $$4} /^\[  SKIPPED \] [0-9]+ test/ {skipped += $$4} \
  END {printf "GoogleTest: %d tests passed, %d skipped\n", passed, skipped}' build/$(1)/Testing/Temporary/LastTest.log

# Warnings are errors for the tests; for the demo and the benchmarks only with the compiler that the project is developed
# with, where it is the same build as the tests', so that a newer compiler's new warning stops nobody at the door.
werror = -DTUTTI_WERROR=$(if $(WERROR),$(WERROR),$$([[ $$($(CXX) -dumpfullversion 2>/dev/null) == 12.* ]] && echo ON || echo OFF))

help:  ## print this
	@echo "Tutti: distributed training in C++20. Targets:"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "Variables: JOBS=$(JOBS) CXX=$(CXX) SKIP_DEPS=1 (packages are your affair) WERROR=OFF"

build:
	@mkdir -p build

deps: build  ## install the Debian packages that building needs
	@$(if $(SKIP_DEPS),:,scripts/install-deps packages.txt)

deps-ci: deps
	@$(if $(SKIP_DEPS),:,scripts/install-deps packages-ci.txt)

demo: deps  ## train a small GPT on four ranks: progress, sampled text, a picture of the loss, a trace
	@$(call configure,release,$(werror))
	@$(call build,release,example_train_gpt)
	@build/release/examples/train_gpt --out build $(ARGS) && echo "demo took $$SECONDS s"

demo-identical: deps  ## the same on threads, processes and two hosts (network namespaces): equal to the last bit
	@$(call configure,release,$(werror))
	@$(call build,release,example_train_gpt)
	@scripts/demo-identical build/release/examples/train_gpt

test: deps  ## build the library, its tools, examples and tests, and run all tests
	@$(call configure,release,-DTUTTI_WERROR=$(or $(WERROR),ON))
	@$(call build,release,tutti_tests tutti_examples tutti_tool)
	@$(call ctest,release,--no-tests=error)
	@$(call counts,release)

bench: deps  ## run a benchmark: NAME=ops (all without NAME), ARGS=..., PEERS=1 (Debian's PyTorch and Open MPI) or PEERS=pypi (the current PyTorch)
	@$(if $(PEERS),$(if $(SKIP_DEPS),:,scripts/install-deps packages-bench.txt))
	@torch=$(if $(filter pypi,$(PEERS)),$$(scripts/install-torch)); \
	$(call configure,release,$(werror) -DTUTTI_TORCH="$$torch")
	@$(call build,release,$(if $(NAME),bench_$(NAME),tutti_bench))
	@shopt -s nullglob; found=; $(if $(filter pypi,$(PEERS)),export TUTTI_BENCH_PYTHON=$$PWD/build/torch/bin/python;) \
	for program in build/release/bench/bench_$(or $(NAME),*); do \
	  [[ -f $$program && -x $$program ]] || continue; found=1; \
	  $(if $(NAME),,echo "== $${program##*/bench_}";) "$$program" $(ARGS); \
	done; [[ $$found ]] || echo "There are no benchmarks yet."

format: deps-ci  ## format the C++ files
	@scripts/lint --format

lint: deps-ci  ## format, clang-tidy, generated files, file lengths (CHANGED=1: only files that differ from HEAD)
	@$(call configure,release,-B build/lint -DTUTTI_UNITE=OFF)
	@mkdir -p build/lint/bitcode && echo '#define TUTTI_BITCODE_HASH ""' >build/lint/bitcode/digest.h  # a build writes it; native/bitcode.cpp includes it
	@scripts/lint $(if $(CHANGED),--changed)

asan: deps-ci  ## tests under AddressSanitizer and UBSan: LABEL=fast
	@$(call configure,asan,)
	@$(call build,asan,tutti_tests)
	@$(call ctest,asan,--no-tests=error -L '$(LABEL)')
	@$(call counts,asan)

tsan: deps-ci  ## tests under ThreadSanitizer: LABEL=fast, or LABEL=threads for only the rooms that start threads
	@$(call configure,tsan,)
	@$(call build,tsan,$(if $(filter threads,$(LABEL)),tutti_thread_tests,tutti_tests))
	@$(call ctest,tsan,--no-tests=error -L '$(LABEL)' -LE slow)
	@$(call counts,tsan)

soak fuzz: deps
	@$(call configure,release,$(werror))
	@$(call build,release,tutti_tests)
	@shopt -s nullglob; found=; \
	for program in build/release/tests/$@_*; do \
	  [[ -f $$program && -x $$program ]] || continue; found=1; \
	  echo "== $${program##*/}"; "$$program" $(if $(MINUTES),$(if $(filter soak,$@),--seconds $$(($(MINUTES) * 60)))) $(ARGS); \
	done; [[ $$found ]] || echo "There are no $@ programs yet (tests/$@/*.cpp)."

soak:  ## run the long-running programs of tests/soak: MINUTES=20 for each
fuzz:  ## run the programs of tests/fuzz

clean:  ## remove build/
	rm -rf build
