# The commands of this checkout; `make help` lists them. All of them work in .venv.
SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= python3
BIN := .venv/bin
KIT ?= ../shared/conformance
# arguments for `make bench`, e.g. make bench BENCH='--record end_to_end'
BENCH ?=
# flags for `make serve`, e.g. make serve FLAGS='--http-address 0.0.0.0'
FLAGS ?=
# arguments for pytest, e.g. make test TESTS=tests/config
TESTS ?= tests

.PHONY: hw-check help serve test slow test-ota ota-demo lint check conformance bench models docs proto clean \
	install install-system deb lock test-system test-packs test-vm test-powercut image image-arm64 image-run flash \
	test-image test-image-boot test-image-system test-image-data test-image-update

help:  ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

# models whose files are in the checkout; `make models` fetches the real ones (densenet_onnx, magika, text_*, silero_vad)
HERE = $(notdir $(patsubst %/1/,%,$(dir $(wildcard model_repository/*/1/model.*))))

serve: .venv/serve  ## serve model_repository/ on 127.0.0.1:8000, gRPC on :8001, metrics on :8002 (FLAGS=... adds flags)
ifeq ($(wildcard model_repository/magika/1/model.onnx),)
	@echo "serving the small models only: the real models (densenet_onnx, magika, text_*, silero_vad) are not fetched yet (make models)"
	$(BIN)/edge-serve --model-repository model_repository --model-control-mode explicit $(HERE:%=--load-model %) $(FLAGS)
else
	$(BIN)/edge-serve --model-repository model_repository --exit-on-error=false $(FLAGS)
endif

# test processes of `make test`, one more than cores: each waits for servers two fifths of its time. The tests of a file run in one process
JOBS ?= 3

test: .venv/test  ## run the default tests (TESTS=... selects some)
	$(BIN)/python -m pytest -q -m "not slow" -n $(JOBS) --dist loadfile --no-loadscope-reorder $(TESTS)

slow: .venv/test  ## run the tests that need minutes or a package index
	$(BIN)/python -m pytest -q -m slow $(TESTS)

test-ota: .venv/test  ## run the long tests of edge-ota, under 15 minutes
	$(BIN)/python -m pytest -q -rs -m slow tests/ota

ota-demo: .venv/ota  ## publish, roll out, and refuse releases of a model on this machine, in a minute (docs/ota.md)
	$(BIN)/python docs/examples/ota_demo.py

lint: .venv/test  ## run ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check: lint  ## run lint, and the tests of layers, structure, generated docs, and installed size
	$(BIN)/python -m pytest -q -m "not slow" tests/test_layers.py tests/test_structure.py tests/test_doorplates.py tests/docs
	$(BIN)/python -m pytest -q -m slow tests/test_sizes.py

conformance: .venv/test  ## replay the transcripts recorded from Triton (KIT=... names the folder of the kit)
	@test -f $(KIT)/run.py || { echo "conformance: no kit at $(KIT); set KIT=<folder with run.py>" >&2; exit 2; }
	$(BIN)/python tests/conformance/replay.py --kit $(KIT)

bench: .venv/test  ## run the benchmarks beside the real Triton, about 10 minutes (BENCH=--record writes benchmarks/results/)
	$(BIN)/python -m benchmarks.run $(BENCH)

hw-check: .venv/test  ## test and measure this machine's GPU into build/hw-check/report.json (FLAGS='--only onnx'; docs/hardware.md)
	$(BIN)/python -m benchmarks.hardware.check $(FLAGS)

models: .venv/serve  ## fetch the real models into model_repository/
	$(BIN)/python model_repository/fetch_models.py

docs: .venv/test  ## update the generated pages of docs/
	$(BIN)/python -m tests.docs.generated --write

proto: .venv/test  ## generate the files that are made from the .proto files
	$(BIN)/python -m deploy.protoc

clean:  ## remove .venv, caches and build output; fetched models stay
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- install the service: docs/service.md ---

# root of the installation, for packages; empty = this system
DESTDIR ?=
# version of systemd; drop-ins for newer versions are left out, because they cause warnings
SYSTEMD ?= $(or $(shell systemctl --version 2>/dev/null | awk 'NR == 1 { print int($$2) }'),249)
MACHINE ?= $(shell uname -m)
# arguments for `make deb`, e.g. make deb DEB='--release trixie --arch arm64'
DEB ?=
# arguments for pytest on booted machines, e.g. make test-system SYSTEM='--release trixie -k restarts'
SYSTEM ?=
UNITDIR := $(DESTDIR)/usr/lib/systemd/system
# the systemd package of Debian 12 and Ubuntu 22.04 has this folder as /lib/..., and dpkg compares the paths of two packages as text
PRESETDIR := $(DESTDIR)$(shell [ $(SYSTEMD) -ge 255 ] && echo /usr)/lib/systemd/system-preset

install: .venv/pip install-system  ## install the service and its program into DESTDIR (default: this system)
	$(BIN)/python -m deploy.program '$(DESTDIR)/'

# units, configuration, pages: everything but the program
install-system:
	install -d '$(UNITDIR)/edge-serve.service.d' '$(DESTDIR)/usr/bin' '$(DESTDIR)/usr/lib/edge-serve' \
	  '$(DESTDIR)/etc/edge-serve/conf.d' '$(DESTDIR)/usr/share/doc/edge-serve'
	install -m 644 systemd/*.service systemd/*.socket systemd/*.timer '$(UNITDIR)'
	for unit in edge-serve edge-ota-build@ edge-ota-trial@; do \
	  install -D -m 644 -t "$(UNITDIR)/$$unit.service.d" systemd/edge-serve.service.d/10-nvidia.conf; \
	  if [ '$(MACHINE)' = aarch64 ]; then \
	    install -m 644 systemd/edge-serve.service.d/11-tegra.conf "$(UNITDIR)/$$unit.service.d"; fi; done
	install -m 644 systemd/edge-serve.service.d/20-network.conf '$(UNITDIR)/edge-serve.service.d'
	for file in systemd/edge-serve.service.d/50-systemd-*.conf; do version=$${file##*-}; \
	  if [ $${version%.conf} -le $(SYSTEMD) ]; then install -m 644 $$file '$(UNITDIR)/edge-serve.service.d'; fi; done
	for name in edge-serve edge-ota; do \
	  install -D -m 644 systemd/$$name.sysusers "$(DESTDIR)/usr/lib/sysusers.d/$$name.conf"; \
	  install -D -m 644 systemd/$$name.tmpfiles "$(DESTDIR)/usr/lib/tmpfiles.d/$$name.conf"; done
	install -D -m 644 systemd/edge-serve.preset '$(PRESETDIR)/80-edge-serve.preset'
	install -m 644 systemd/edge-serve.conf '$(DESTDIR)/usr/lib/edge-serve'
	install -d -m 700 '$(DESTDIR)/etc/edge-serve/credentials'
	$(PYTHON) -m deploy.pages '$(DESTDIR)/usr/share/doc/edge-serve'
	for name in edge-serve tritonserver; do ln -sf /opt/edge-serve/bin/edge-serve "$(DESTDIR)/usr/bin/$$name"; done
	ln -sf /opt/edge-serve/bin/edge-ota '$(DESTDIR)/usr/bin/edge-ota'
	for name in edge-ota edge-serve; do \
	  install -D -m 644 deploy/share/$$name.1 "$(DESTDIR)/usr/share/man/man1/$$name.1"; \
	  install -D -m 644 deploy/share/$$name.bash "$(DESTDIR)/usr/share/bash-completion/completions/$$name"; done
	install -m 644 deploy/share/edge-serve.1 '$(DESTDIR)/usr/share/man/man1/tritonserver.1'
	install -m 644 deploy/share/edge-serve.bash '$(DESTDIR)/usr/share/bash-completion/completions/tritonserver'

deb: .venv/pip  ## build edge-serve_*.deb for this release of Debian or Ubuntu in dist/ (DEB='--release trixie' for another)
	$(BIN)/python -m deploy.debian $(DEB)

lock: .venv/pip  ## update deploy/requirements-*.txt to the newest wheels that pyproject.toml allows
	$(BIN)/python -m deploy.lock

test-system: .venv/test  ## boot Debian in systemd-nspawn, install the package, inject faults (root; under 6 minutes)
	$(BIN)/python -m pytest -q -rs -s -m 'not powercut and not slow' tests/system --machine nspawn $(SYSTEM)

# the model of pytorch is written with the pack's library on this machine; elsewhere that test is skipped
test-packs: .venv/test  ## build the packages of all packs, install and serve them on booted Debian 12 and 13 (root; by hand, a quarter of an hour)
	$(BIN)/python -m pytest -q -rs -s --durations=0 tests/system/test_packs.py --machine nspawn --release bookworm --release trixie $(SYSTEM)

test-vm: .venv/test  ## do the same in QEMU, Debian 12 and 13 (emulated, tens of minutes)
	$(BIN)/python -m pytest -q -rs -s -m 'not powercut and not slow' tests/system --machine vm $(SYSTEM)

test-powercut: .venv/test  ## cut a virtual machine's power 20 times while models load (by hand; long)
	$(BIN)/python -m pytest -q -rs -s -m powercut tests/system --machine vm $(SYSTEM)

# --- the image of a device: docs/image.md ---

# arguments for `make image`, e.g. make image IMAGE='--fresh'; IMAGE_VERSION=<number> overrides the number of commits
IMAGE ?=

image: .venv/pip  ## build the image of a device into dist/ (root; the first takes minutes, and 8 GB in ~/.cache)
	$(BIN)/python -m image build $(IMAGE)

image-arm64: .venv/pip  ## build an image for ARM machines with UEFI, by emulation (root, qemu-user-static; by hand, 10 minutes)
	$(BIN)/python -m image build --arch arm64 $(IMAGE)

# options for `make image-run`, e.g. make image-run RUN='--fresh --http-port 9000'
RUN ?=

image-run: .venv/serve  ## boot the newest image of dist/ in QEMU, with its ports on loopback
	$(BIN)/python -m image run $(RUN)

# the disk, e.g. make flash DEVICE=/dev/sdb; FLASH='--image FILE --yes sdb' chooses an image, and answers for a script
DEVICE ?=
FLASH ?=
flash: .venv/serve  ## write the newest image of dist/ to a disk, and read it back (root; DEVICE=/dev/sdb)
	$(BIN)/python -m image flash '$(DEVICE)' $(FLASH)

# the image as shipped, its sizes, a changed root, and the rights of its units; Prometheus, chromium, nginx-light, mtools, and ovmf are
# needed besides QEMU. Without one of them nothing is built, because its test would be skipped
test-image: .venv/test  ## build the image, boot it as shipped in QEMU, use it from outside, and tamper with it (root; by hand, 13 minutes)
	@$(BIN)/python -m tests.system.image.needs
	@SECONDS=0; $(MAKE) --no-print-directory image && echo "the image was built in $$SECONDS s" && \
	  $(BIN)/python -m pytest -q -rs -s --durations=0 --no-skips \
	  tests/system/image/test_{sizes,tampering,smoke,exposure,readahead}.py --machine disk $(SYSTEM); \
	  status=$$?; echo "make test-image: $$SECONDS s in all"; exit $$status

test-image-boot: .venv/test  ## measure the time from the kernel to health ready on the newest image of dist/ (by hand, quiet cores; a quarter of an hour)
	$(BIN)/python -m pytest -q -rs -s tests/system/image/test_boot.py --machine disk $(SYSTEM)

test-image-system: .venv/test  ## test restarts, faults, and the status on the newest image of dist/ (by hand; half an hour)
	$(BIN)/python -m pytest -q -rs -s tests/system/test_{restarts,faults,status}.py --machine disk $(SYSTEM)

test-image-data: .venv/test  ## change the settings, then damage, fill, swap, and erase the data partition of the newest image of dist/ (by hand; an hour)
	$(BIN)/python -m pytest -q -rs -s --durations=0 tests/system/image/test_{settings,network,data,shutdown}.py --machine disk $(SYSTEM)

test-image-update: .venv/test  ## build two versions, and update one to the other: good, broken, and cut off (root; by hand, two hours)
	@set -e; rm -rf build/updates; for version in 1 2; do IMAGE_VERSION=$$version $(BIN)/python -m image build --out build/updates/$$version; done; \
	  $(BIN)/python -m pytest -q -rs -s --durations=0 tests/system/image/test_{updates,ota_update,powercuts}.py --machine disk \
	  --image build/updates/1/*.img.zst --update build/updates/2/edge_2.build.json $(SYSTEM)

# --- the virtual environment, updated when the requirements change ---

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || \
	  { echo "make: Python 3.10 or newer is needed; $(PYTHON) is missing or older (PYTHON=... picks another)" >&2; exit 2; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "make: $(PYTHON) has no venv module: apt-get install python3-venv (Debian, Ubuntu)" >&2; exit 2; }
	$(PYTHON) -m venv .venv

# pip does not compile an editable install; without byte code and with PYTHONDONTWRITEBYTECODE each start would compile again
.venv/serve: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --disable-pip-version-check -e '.[onnx]'
	$(BIN)/python -m compileall -q edge_serve
	@touch $@

.venv/ota: pyproject.toml .venv/serve
	$(BIN)/python -m pip install --disable-pip-version-check -e '.[onnx,ota]'
	@touch $@

# --group needs pip 25.1, and pip 23.2 (Python 3.11) refuses wheels for a newer Python than its own, which the images and packages have
.venv/pip: .venv/serve
	$(BIN)/python -m pip install --disable-pip-version-check --upgrade 'pip>=25.1'
	@touch $@

.venv/test: pyproject.toml .venv/serve .venv/pip
	$(BIN)/python -m pip install --disable-pip-version-check --group test --group lint
	@touch $@
