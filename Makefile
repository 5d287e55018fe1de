# Short commands for CMake. `make help` lists the targets.
#
#   BUILD=dir       build folder (build)            JOBS=n      parallel jobs (all CPUs)
#   CMAKE_FLAGS=... for the first configuration     PREFIX=dir  for `make install` (/usr/local)
BUILD      ?= build
BUILD_ASAN ?= build-asan
JOBS       ?= $(shell nproc 2>/dev/null || echo 2)
PREFIX     ?= /usr/local
GENERATOR  := $(shell command -v ninja >/dev/null 2>&1 && echo -G Ninja)

# Configures a build folder once. After that CMake notices when it must configure again. What a configuration
# that failed has left is removed.
configure = test -f $(1)/build.ninja || test -f $(1)/Makefile || { \
    rm -rf $(1)/CMakeCache.txt $(1)/CMakeFiles && cmake -S . -B $(1) $(GENERATOR) $(2) $(CMAKE_FLAGS); }

.PHONY: all cuda demo test test-long deps asan fuzz coverage program-build release-build asan-build bench docs format install clean help

# Prerequisites are steps that run in order. CMake runs the build in parallel.
.NOTPARALLEL:

all: ## build haggle (default); tests are built by the targets that run them
	@scripts/deps.sh --check build || { echo "Run 'make deps' first." >&2; exit 1; }
	@$(MAKE) --no-print-directory program-build
	@printf '\nThe program is %s/haggle. Try\n  %s/haggle doctor\n  %s/haggle train model=tiny steps=200\n  %s/haggle help\n' \
	    $(BUILD) $(BUILD) $(BUILD) $(BUILD)

demo: ## set up, build, tune the built-in model within a budget, train with the choice
	@begin=$$(date +%s); scripts/deps.sh build run && packages=$$(date +%s) && \
	    $(MAKE) --no-print-directory program-build && \
	    echo "packages took $$((packages - begin)) s, the build $$(($$(date +%s) - packages)) s"
	@HAGGLE=$(BUILD)/haggle scripts/demo.sh

test: deps ## set up, build, run all tests, then the unit tests again under ASan and UBSan
	@BUILD=$(BUILD) BUILD_ASAN=$(BUILD_ASAN) JOBS=$(JOBS) scripts/test.sh

test-long: deps release-build ## run the tests with larger cases and more rounds
	@HAGGLE_TEST_LONG=1 ctest --test-dir $(BUILD) --output-on-failure -j $(JOBS)

deps: ## install missing packages (as root), or print the command that does
	@scripts/deps.sh

asan: asan-build ## build with ASan and UBSan and run the unit tests
	@ctest --test-dir $(BUILD_ASAN) --output-on-failure -j $(JOBS) -L unit

fuzz: ## fuzz every parser for SECONDS (60) each; needs clang
	@JOBS=$(JOBS) scripts/fuzz.sh all $(or $(SECONDS),60)

coverage: ## measure line coverage of the parsers, from their tests and the fuzz seeds
	@JOBS=$(JOBS) scripts/coverage.sh

# The program, its library and its plug-ins. release-build and asan-build also build the tests.
program-build:
	@$(call configure,$(BUILD),-DCMAKE_BUILD_TYPE=Release)
	@cmake --build $(BUILD) -j $(JOBS) --target program

release-build:
	@$(call configure,$(BUILD),-DCMAKE_BUILD_TYPE=Release)
	@cmake --build $(BUILD) -j $(JOBS)

asan-build:
	@$(call configure,$(BUILD_ASAN),-DCMAKE_BUILD_TYPE=Debug -DHAGGLE_SANITIZE=ON)
	@cmake --build $(BUILD_ASAN) -j $(JOBS)

cuda: ## build the CUDA plug-in (needs nvcc)
	@$(call configure,$(BUILD),-DCMAKE_BUILD_TYPE=Release)
	@cmake -S . -B $(BUILD) -DHAGGLE_CUDA=ON >/dev/null
	@cmake --build $(BUILD) -j $(JOBS) --target cuda

bench: program-build ## measure a small grid on the built-in model
	@$(BUILD)/haggle bench model=tiny batch.micro=1,2,4,8

# A comparison with other trainers, if bench/train.sh exists.
ifneq ($(wildcard bench/train.sh),)
.PHONY: bench-train
bench-train: program-build ## compare training speed with other programs
	@scripts/deps.sh bench
	@BUILD=$(BUILD) bench/train.sh
endif

.PHONY: bench-memory
bench-memory: program-build ## compare planned and measured memory for a dozen settings of gpt2-124m (needs 4 GiB)
	@cmake --build $(BUILD) --target bench_memory
	@$(BUILD)/bench_memory

.PHONY: bench-tradeoffs
bench-tradeoffs: program-build ## measure what each strategy trades, write docs/tradeoffs.md (minutes; needs a quiet machine)
	@HAGGLE=$(BUILD)/haggle scripts/tradeoffs.sh > docs/tradeoffs.md.new && mv docs/tradeoffs.md.new docs/tradeoffs.md

.PHONY: bench-predict
bench-predict: program-build ## compare predicted and measured step times, 100 settings of tiny and 30 of gpt2-124m
	@cmake --build $(BUILD) --target bench_predict
	@$(BUILD)/bench_predict

docs: program-build ## generate the pages of docs/ that come from tables in the code
	@cmake --build $(BUILD) -j $(JOBS) --target test_support
	@for page in knobs ops; do \
	    $(BUILD)/haggle docs $$page > docs/$$page.md.new && mv docs/$$page.md.new docs/$$page.md || \
	        { rm -f docs/$$page.md.new; exit 1; }; \
	done
	@$(BUILD)/tests/test_support --print > docs/support.md

format: ## clang-format every C and CUDA file
	@scripts/deps.sh --check format
	@find src include tests bench -name '*.[ch]' -print0 -o -name '*.inc' -print0 -o -name '*.cu' -print0 -o -name '*.cuh' -print0 | xargs -0 clang-format -i

install: program-build ## install into PREFIX
	@cmake --install $(BUILD) --prefix $(PREFIX)

clean: ## remove the build folders
	rm -rf $(BUILD) $(BUILD_ASAN) build-fuzz build-coverage

help: ## print this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-18s %s\n", $$1, $$2 }'
