# The front door: a thin layer over the CMake presets, which can be used directly as well (cmake --preset release).

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help deps deps-library deps-ci demo demo-identical test install examples uninstall deb bench format lint asan tsan soak fuzz clean

JOBS ?= $(shell nproc)
PREFIX ?= /usr/local
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
# Everything, where a first `make demo` left parts out (scripts/demo).
release = -DBUILD_SHARED_LIBS=OFF -DTUTTI_ISA=all -DTUTTI_BUILD_TESTS=ON -DTUTTI_BUILD_BENCH=ON -DTUTTI_BUILD_TOOLS=ON
# A first build for the demo: the kernels of this machine only, and no tests, which need more packages. A build folder that is
# there already keeps its options.
first = $(if $(wildcard build/release/CMakeCache.txt),,-DTUTTI_ISA=host -DTUTTI_BUILD_TESTS=OFF -DTUTTI_BUILD_BENCH=OFF)
# What is installed; tests and benchmarks need more packages.
library = -DTUTTI_ISA=all -DTUTTI_BUILD_TOOLS=ON -DTUTTI_BUILD_TESTS=OFF -DTUTTI_BUILD_BENCH=OFF $(werror)
# The files that make install wrote, for each folder.
manifest = build/installed$(subst /,-,$(DESTDIR)$(PREFIX)).txt
# sudo, if the folder to install into needs it.
as_root = $$(at='$(DESTDIR)$(PREFIX)'; while [ ! -e "$$at" ]; do at=$$(dirname "$$at"); done; [ -w "$$at" ] || command -v sudo || true)
# What GoogleTest says it ran: an entry of CTest's is many tests.
counts = awk '/^\[  PASSED  \] [0-9]+ test/ {passed += $$4} /^\[  SKIPPED \] [0-9]+ test/ {skipped += $$4} \
  END {printf "GoogleTest: %d tests passed, %d skipped\n", passed, skipped}' build/$(1)/Testing/Temporary/LastTest.log

# Warnings are errors only with the compiler that the project is developed with (CI sets WERROR=ON), so that a newer
# compiler's new warning stops nobody.
werror = -DTUTTI_WERROR=$(if $(WERROR),$(WERROR),$$([[ $$($(CXX) -dumpfullversion 2>/dev/null) == 12.* ]] && echo ON || echo OFF))

# What a line of help shows first: `##` is for users, `###` for who works on Tutti.
help:  ## print this
	@echo "Tutti: distributed training in C++20."
	@echo; awk -F ':.*## ' '/^[a-z-]+:.*[^#]## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo; echo "To work on Tutti itself (CONTRIBUTING.md):"
	@awk -F ':.*### ' '/^[a-z-]+:.*### / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo; echo "Variables: JOBS=$(JOBS) CXX=$(CXX) PREFIX=$(PREFIX) SKIP_DEPS=1 (installs no packages) WERROR=OFF"

build:
	@mkdir -p build

deps-library: build
	@$(if $(SKIP_DEPS),:,scripts/install-deps packages.txt:build packages.txt:hosts packages.txt:features)

deps: build
	@$(if $(SKIP_DEPS),:,scripts/install-deps packages.txt)

deps-ci: deps
	@$(if $(SKIP_DEPS),:,scripts/install-deps packages.txt packages-ci.txt)

demo: build  ## train a small GPT on four ranks; draw its loss and a timeline
	@begin=$$(date +%s); $(if $(SKIP_DEPS),,scripts/install-deps packages.txt:build &&) \
	JOBS=$(JOBS) ARGS='$(ARGS)' scripts/demo $(first) $(werror) && echo && echo "make demo took $$(($$(date +%s) - begin)) s"

test: deps  ## build everything and run all tests
	@$(call configure,release,$(release) $(werror))
	@$(call build,release,tutti_tests tutti_examples tutti_tool)
	@$(call ctest,release,--no-tests=error)
	@$(call counts,release)

install: deps-library  ## install the library and the program tutti (PREFIX=/usr/local)
	@$(call configure,release,$(library) -DBUILD_SHARED_LIBS=OFF -DCMAKE_INSTALL_PREFIX='$(PREFIX)')
	@$(call build,release,tutti_install)
	@rm -f build/release/install_manifest.txt  # of another user, maybe
	@$(as_root) cmake --install build/release >build/install.log || { cat build/install.log; exit 1; }
	@$(if $(DESTDIR),,$(as_root) sh -c 'command -v ldconfig >/dev/null && [ "$$(id -u)" = 0 ] && ldconfig || true')
	@cp build/release/install_manifest.txt '$(manifest)'
	@echo "Installed into $(DESTDIR)$(PREFIX): the program is $(DESTDIR)$(PREFIX)/bin/tutti; all files are listed in $(manifest)"

examples: deps-library  ## build the programs of examples/ into build/release/examples
	@$(call configure,release,$(library) -DBUILD_SHARED_LIBS=OFF)
	@$(call build,release,tutti_examples)

uninstall:  ## remove what make install wrote
	@[ -f '$(manifest)' ] || { echo "make uninstall: nothing was installed from here into $(DESTDIR)$(PREFIX). Name the folder: PREFIX=…" >&2; exit 1; }
	@sed 's,^,$(DESTDIR),' '$(manifest)' | xargs -d '\n' $(as_root) rm -f
	@rm -f '$(manifest)' && echo "Removed what make install wrote into $(DESTDIR)$(PREFIX)"

# From the folder of the other builds: the same objects, linked as a shared library. Whatever is built next links them anew.
deb: deps-library  ## make libtutti0, libtutti-dev and tutti-tools in build/packages
	@$(if $(SKIP_DEPS),:,scripts/install-deps packages.txt:packages)
	@$(call configure,release,$(library) -DBUILD_SHARED_LIBS=ON -DCMAKE_INSTALL_PREFIX=/usr)
	@$(call build,release,tutti_install)
	@rm -rf build/packages build/release/packages && cd build/release && \
	  cpack -G DEB >cpack.log 2>&1 && mv packages .. || { cat cpack.log; exit 1; }
	@ls build/packages/*.deb

demo-identical: build  ## train it on threads, processes and two hosts: the same bits
	@$(if $(SKIP_DEPS),:,scripts/install-deps packages.txt:build packages.txt:hosts)
	@$(call configure,release,$(first) $(werror))
	@$(call build,release,example_train_gpt)
	@scripts/demo-identical build/release/examples/train_gpt

# NAME: one benchmark, all without. PEERS=1: beside Debian's PyTorch and Open MPI; PEERS=pypi: beside the current PyTorch.
bench: deps  ## measure: NAME=train (or ops, comm, ddp, rpc, compile), PEERS=pypi
	@$(if $(PEERS),$(if $(SKIP_DEPS),:,scripts/install-deps packages-bench.txt$(if $(filter pypi,$(PEERS)),:mpi)))
	@torch=$(if $(filter pypi,$(PEERS)),$$(scripts/install-torch)); \
	$(call configure,release,$(release) $(werror) -DTUTTI_TORCH="$$torch")
	@$(call build,release,$(if $(NAME),bench_$(NAME),tutti_bench))
	@shopt -s nullglob; found=; $(if $(filter pypi,$(PEERS)),export TUTTI_BENCH_PYTHON=$$PWD/build/torch/bin/python;) \
	for program in build/release/bench/bench_$(or $(NAME),*); do \
	  [[ -f $$program && -x $$program ]] || continue; found=1; \
	  $(if $(NAME),,echo "== $${program##*/bench_}";) "$$program" $(ARGS); \
	done; [[ $$found ]] || echo "There are no benchmarks yet."

format: deps-ci  ### format the C++ files
	@scripts/lint --format

lint: deps-ci  ### check format, clang-tidy, file lengths (CHANGED=1: changed files)
	@$(call configure,release,-B build/lint -DTUTTI_UNITE=OFF)
	@mkdir -p build/lint/bitcode && echo '#define TUTTI_BITCODE_HASH ""' >build/lint/bitcode/digest.h  # a build writes it; native/bitcode.cpp includes it
	@scripts/lint $(if $(CHANGED),--changed)

asan: deps-ci  ### tests under AddressSanitizer and UBSan (LABEL=fast)
	@$(call configure,asan,)
	@$(call build,asan,tutti_tests)
	@$(call ctest,asan,--no-tests=error -L '$(LABEL)')
	@$(call counts,asan)

tsan: deps-ci  ### tests under ThreadSanitizer (LABEL=threads: modules with threads)
	@$(call configure,tsan,)
	@$(call build,tsan,$(if $(filter threads,$(LABEL)),tutti_thread_tests,tutti_tests))
	@$(call ctest,tsan,--no-tests=error -L '$(LABEL)' -LE slow)
	@$(call counts,tsan)

soak fuzz: deps
	@$(call configure,release,$(release) $(werror))
	@$(call build,release,tutti_tests)
	@shopt -s nullglob; found=; \
	for program in build/release/tests/$@_*; do \
	  [[ -f $$program && -x $$program ]] || continue; found=1; \
	  echo "== $${program##*/}"; "$$program" $(if $(MINUTES),$(if $(filter soak,$@),--seconds $$(($(MINUTES) * 60)))) $(ARGS); \
	done; [[ $$found ]] || echo "There are no $@ programs yet (tests/$@/*.cpp)."

soak:  ### run the long programs of tests/soak (MINUTES=20 for each)
fuzz:  ### run the programs of tests/fuzz

clean:  ### remove build/
	rm -rf build
