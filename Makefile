# Builds, tests and installs weir. `make` alone lists all targets. They write to out/ and target/ only, with one
# exception: as root, `make test` installs Debian's chromium, nftables, clang and strace, and `make suites-hosts` its hpcc, if they are missing.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PREFIX ?= /usr/local
CARGO ?= cargo
PYTHON ?= python3
# The directory in which cargo builds. It is cargo's own variable, so a value from the environment is used.
export CARGO_TARGET_DIR ?= $(CURDIR)/target
export PYTHONDONTWRITEBYTECODE := 1
DENY_VERSION := 0.20.2
MDBOOK_VERSION := 0.5.4
HYPERLINK_VERSION := 0.3.2
PYTEST := out/env/tools/bin/python -m pytest -p no:cacheprovider
ENVS := mpich intel openmpi

define say
@printf '\n== %s\n' "$(1)"
endef

## help: this list
.PHONY: help
help:
	@sed -n 's/^## \([a-z0-9-]*\): /\1\t/p' Makefile | awk -F'\t' '{ printf "  make %-15s %s\n", $$1, $$2 }'

## build: out/bin/weir; in out/lib libweir-fi.so, libweir-mpi.so, libweir-session.so and libweir.so; out/include/weir.h
.PHONY: build
build:
	$(call say,building the provider and the command)
	$(CARGO) build --release --locked -p weir-provider -p weir-collectives -p weir-session -p weir-native -p weir-cli
	@mkdir -p out/bin out/lib out/include
	@install -m 755 "$$CARGO_TARGET_DIR/release/weir" out/bin/weir
	@install -m 755 "$$CARGO_TARGET_DIR/release/libweir_fi.so" out/lib/libweir-fi.so
	@install -m 755 "$$CARGO_TARGET_DIR/release/libweir_collectives.so" out/lib/libweir-mpi.so
	@install -m 755 "$$CARGO_TARGET_DIR/release/libweir_session.so" out/lib/libweir-session.so
	@install -m 755 "$$CARGO_TARGET_DIR/release/libweir_native.so" out/lib/libweir.so.1
	@ln -sfn libweir.so.1 out/lib/libweir.so
	@install -m 644 crates/native/include/weir.h out/include/weir.h
	@echo "built: out/bin/weir, out/include/weir.h, and in out/lib libweir-fi.so, libweir-mpi.so, libweir-session.so, libweir.so"

## demo: build everything, run Intel's MPI benchmarks over weir, and compare weir with MPICH's own transport
.PHONY: demo
demo: build env-mpich env-intel
	$(call say,IMB-MPI1 with 4 ranks over weir and the report of weir run)
	out/bin/weir run -n 4 --mpi mpich -- out/env/intel/bin/IMB-MPI1 -npmin 4 -msglog 0:20 -iter 200 -time 2 Allreduce Alltoall Barrier
	$(call say,weir beside MPICH's own transport)
	out/bin/weir bench pingpong --only weir,mpich-shm

## test: all tests: machines, links, engine, provider, 20 s of fuzzing, then unmodified MPI programs
.PHONY: test
# The environments come first: tests in Rust use the libfabrics of the MPIs.
test: env test-rust test-loom test-fuzz test-mpi
	@echo "make test: all passed"

.PHONY: test-rust test-loom test-fuzz test-mpi
test-rust:
	$(call say,cargo tests)
	$(CARGO) test --locked --workspace

test-loom:
	$(call say,every interleaving of the ring (loom))
	CARGO_TARGET_DIR="$$CARGO_TARGET_DIR/loom" CARGO_PROFILE_RELEASE_LTO=off RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=3 \
		$(CARGO) test --locked -p weir-link --release --lib loom_

# Most of the tests wait longer than they compute, so three at a time end earlier also on two cores.
TEST_JOBS ?= 3
test-mpi: build env
	$(call say,unmodified MPI programs over weir)
	$(PYTEST) --numprocesses $(TEST_JOBS) --dist worksteal --durations=5 -q tests/mpi

test-fuzz:
	$(MAKE) --no-print-directory fuzz FUZZ_S=20

FUZZ_S ?= 3600
FUZZ_TARGET := x86_64-unknown-linux-gnu
FUZZ_DIR := $(CARGO_TARGET_DIR)/fuzz
# The coverage that libFuzzer reads, by a pass of the stable compiler. `cfg(fuzzing)` opens the seal of datagrams.
FUZZ_RUSTFLAGS := --cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
	-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
	-Cllvm-args=-sanitizer-coverage-trace-compares

## fuzz: feed FUZZ_S (3600) seconds of bytes to everything that reads bytes from outside; a finding is a file in out/fuzz
.PHONY: fuzz
fuzz:
	$(call say,fuzzing for $(FUZZ_S) s)
	$(CARGO) run --quiet --locked -p weir-fuzz --bin weir-fuzz-seeds -- out/fuzz/corpus
	CARGO_TARGET_DIR="$(FUZZ_DIR)" CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true \
		CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS=true RUSTFLAGS="$(FUZZ_RUSTFLAGS)" \
		$(CARGO) build --locked --release --target $(FUZZ_TARGET) -p weir-fuzz --features libfuzzer --bin weir-fuzz
	"$(FUZZ_DIR)/$(FUZZ_TARGET)/release/weir-fuzz" -max_total_time=$(FUZZ_S) -max_len=8192 -timeout=10 -rss_limit_mb=1024 \
		-print_final_stats=1 -verbosity=0 -artifact_prefix=out/fuzz/finding- out/fuzz/corpus

## prove: search every state of small worlds of the flow-control schemes, and catch the wrong rules
.PHONY: prove
prove:
	$(call say,every state of small worlds; wrong rules)
	$(CARGO) run --locked --release -p weir-prove

WORLDS ?= 1000000

## worlds: check WORLDS (a million) random worlds: flow control, whole endpoints with every byte, paths with loss, gates, simulated with faults; executors
.PHONY: worlds
worlds:
	$(call say,random worlds of the flow-control schemes)
	$(CARGO) run --locked --release -p weir-prove -- worlds $(WORLDS)
	$(call say,random worlds of whole endpoints with every byte)
	WEIR_WORLDS=$$(($(WORLDS) / 10)) $(CARGO) test --locked --release -p weir-proto --test worlds -- --nocapture --test-threads 2
	$(call say,random worlds of paths over a network that loses and of gates of admission)
	WEIR_WORLDS=$$(($(WORLDS) / 100)) $(CARGO) test --locked --release -p weir-proto --lib -- random_worlds_keep_the_rules
	$(call say,random simulated worlds with faults)
	WEIR_WORLDS=$$(($(WORLDS) / 100)) $(CARGO) test --locked --release -p weir-sim --test simulator faults:: -- --nocapture
	$(MAKE) --no-print-directory executors CASES=$(WORLDS)

CASES ?= 1000000
FIRST_TEAM ?= 0

## executors: compare all executors of offloaded operations in CASES (a million) random cases with plain loops; FIRST_TEAM resumes
.PHONY: executors
executors:
	$(call say,random operations by all executors)
	WEIR_CASES=$(CASES) WEIR_FIRST_TEAM=$(FIRST_TEAM) CARGO_PROFILE_RELEASE_LTO=off $(CARGO) test --locked --release -p weir-sim --test executors -- --nocapture

## stress: the stress program, which checks its data, with 2 to 8 ranks and all settings
.PHONY: stress
stress: build env-mpich
	$(call say,data-checking stress)
	$(PYTHON) tools/stress.py

## faults: ranks that are killed during traffic, and malformed input
.PHONY: faults
faults: build env-mpich env-tools
	$(call say,killed ranks and bad input)
	$(PYTEST) -v tests/mpi/test_faults.py tests/mpi/test_bad_input.py

## faults-list: each fault of hosts and of networks once, across pretended hosts; a table of what was injected and lost
.PHONY: faults-list
faults-list: build env-mpich packages
	$(call say,each fault across hosts)
	$(PYTHON) tools/faults.py --list $(ARGS)

HOURS ?= 1

## faults-hosts: HOURS (1) of mixed traffic across pretended hosts with random faults; prints counts
.PHONY: faults-hosts
faults-hosts: build env-mpich packages
	$(call say,random faults across hosts)
	$(PYTHON) tools/faults.py --hours $(HOURS) $(ARGS)

IMB := IMB-MPI1,IMB-P2P,IMB-RMA,IMB-NBC

## imb: Intel's MPI benchmarks with all their default sizes, under MPICH, Intel MPI and Open MPI
.PHONY: imb
imb: build env
	$(call say,$(IMB) with their default sizes)
	$(PYTHON) tools/imb.py --programs $(IMB)

SCHEMES := unlimited,hardware,static,static-connection,adaptive,dynamic,demand

## schemes: stress, IMB (2 s for a size) and mpi4py's suite under every flow-control scheme, with 2, 4 and 8 ranks; hours
.PHONY: schemes
schemes: build env
	$(call say,data-checking stress under every scheme)
	$(PYTHON) tools/stress.py --ranks 2,4,8 --rounds 20
	$(call say,$(IMB) under every scheme)
	$(PYTHON) tools/imb.py --programs $(IMB) --flow $(SCHEMES) --time 2
	$(call say,mpi4py's test suite under every scheme)
	$(PYTHON) tools/mpi4py_compare.py --ranks 2,4,8 --flow $(SCHEMES)

## compare-mpi4py: mpi4py's own test suite without and with weir; prints what differs
.PHONY: compare-mpi4py
compare-mpi4py: build env-mpich env-intel env-openmpi
	$(call say,mpi4py's test suite without and with weir)
	$(PYTHON) tools/mpi4py_compare.py $(ARGS)

## suites-hosts: mpi4py's suite, Intel's benchmarks and HPCC across pretended hosts, beside the MPIs' own networks; hours
.PHONY: suites-hosts
suites-hosts: build env
	$(call say,mpi4py's test suite across two hosts)
	$(PYTHON) tools/mpi4py_compare.py --hosts 2 --ranks 4 --link udp
	$(PYTHON) tools/mpi4py_compare.py --hosts 2 --ranks 4 --link ofi:tcp
	$(call say,Intel's benchmarks across two and four hosts)
	$(PYTHON) tools/imb_hosts.py --hosts 2 --ranks 4
	$(PYTHON) tools/imb_hosts.py --hosts 4 --ranks 4
	$(call say,with collective operations by groups, also across hosts)
	$(PYTHON) tools/mpi4py_compare.py --hosts 2 --ranks 4 --collectives on
	$(PYTHON) tools/imb_hosts.py --hosts 2 --ranks 4 --programs IMB-MPI1,IMB-RMA,IMB-NBC --collectives on
	$(call say,HPCC across two hosts)
	$(PYTHON) tools/hpcc.py

## suites-admission: mpi4py's suite and Intel's benchmarks across two pretended hosts with each mechanism of admission forced on; hours
.PHONY: suites-admission
suites-admission: build env
	$(call say,both suites with each mechanism of admission)
	$(PYTHON) tools/admission_suites.py $(ARGS)

## bench: micro benchmarks, and weir beside the other transports on this host
.PHONY: bench
bench: build env
	$(call say,micro benchmarks)
	$(CARGO) bench --locked --workspace
	$(call say,half round trip by size beside the other transports)
	out/bin/weir bench pingpong

## lint: format, clippy and documentation warnings as errors; circles of files
.PHONY: lint
lint:
	$(call say,format)
	$(CARGO) fmt --all --check
	$(call say,clippy)
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	$(call say,documentation)
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --workspace --no-deps --document-private-items
	$(call say,circles of files)
	$(PYTHON) tools/file_circles.py
	@echo "lint: clean"

## licences: the licences and sources of all dependencies, by deny.toml
.PHONY: licences
licences: out/tools/bin/cargo-deny-$(DENY_VERSION)
	$(call say,dependency licences)
	PATH="$(CURDIR)/out/tools/bin:$$PATH" cargo-deny --locked --log-level error check licenses bans sources

## docs: the documentation site in out/docs; a page, link or anchor that does not exist is an error
.PHONY: docs
docs: out/tools/bin/mdbook-$(MDBOOK_VERSION) out/tools/bin/hyperlink-$(HYPERLINK_VERSION)
	$(call say,documentation site)
	out/tools/bin/mdbook build docs
	out/tools/bin/hyperlink out/docs --check-anchors
	@echo "documentation: out/docs/index.html"

## reference: write the generated pages again, after a change to settings, commands, plan keys, counters, or results in experiments (results, e3, e4, demand)
.PHONY: reference
reference:
	$(call say,generated pages of the reference)
	$(CARGO) run --quiet --locked -p weir-cli -- reference pages docs/reference
	$(CARGO) run --quiet --locked -p weir-cli -- reference fidelity experiments/results.json experiments/e3.json experiments/e4.json docs/explanation
	$(CARGO) run --quiet --locked -p weir-cli -- reference demand experiments/demand.json docs

# Installs a tool from crates.io into out/tools: name, version, further flags. The tools run for seconds, so an unoptimised
# build is the cheapest. They share what they depend on.
define install_tool
$(call say,installing $(1) $(2))
CARGO_TARGET_DIR="$$CARGO_TARGET_DIR/tools" CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_PROFILE_RELEASE_LTO=off \
	CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 CARGO_PROFILE_RELEASE_DEBUG=0 \
	$(CARGO) install --quiet --locked --force $(1) --version $(2) $(3) --root out/tools
@touch $@
endef

out/tools/bin/cargo-deny-$(DENY_VERSION):
	$(call install_tool,cargo-deny,$(DENY_VERSION),--no-default-features)

# Without mdBook's web server and file watcher.
out/tools/bin/mdbook-$(MDBOOK_VERSION):
	$(call install_tool,mdbook,$(MDBOOK_VERSION),--no-default-features --features search)

out/tools/bin/hyperlink-$(HYPERLINK_VERSION):
	$(call install_tool,hyperlink,$(HYPERLINK_VERSION))

## env: the private Python environments with MPICH, Intel MPI and Open MPI, in out/env
.PHONY: env env-tools packages $(ENVS:%=env-%)
env: $(ENVS:%=env-%) env-tools
	@echo "env: ready in out/env"
$(ENVS:%=env-%) env-tools: env-%: out/env/%/complete

env-tools: packages
packages:
	@tools/install_packages.sh

# One environment for each MPI, because each has its own mpiexec.
out/env/%/complete: tools/requirements/%.txt tools/make_env.sh
	$(call say,private environment out/env/$*)
	PYTHON="$(PYTHON)" tools/make_env.sh $* $<

## install: into PREFIX (default /usr/local), below DESTDIR if given
.PHONY: install
install: build
	install -D -m 755 out/bin/weir "$(DESTDIR)$(PREFIX)/bin/weir"
	install -D -m 755 out/lib/libweir-fi.so "$(DESTDIR)$(PREFIX)/lib/weir/libweir-fi.so"
	install -D -m 755 out/lib/libweir-mpi.so "$(DESTDIR)$(PREFIX)/lib/weir/libweir-mpi.so"
	install -D -m 755 out/lib/libweir-session.so "$(DESTDIR)$(PREFIX)/lib/weir/libweir-session.so"
	install -D -m 755 out/lib/libweir.so.1 "$(DESTDIR)$(PREFIX)/lib/libweir.so.1"
	ln -sfn libweir.so.1 "$(DESTDIR)$(PREFIX)/lib/libweir.so"
	install -D -m 644 out/include/weir.h "$(DESTDIR)$(PREFIX)/include/weir.h"
	find experiments -type f -print0 | xargs -0 -I{} install -D -m 644 {} "$(DESTDIR)$(PREFIX)/share/weir/{}"
	umask 022 && out/bin/weir reference share "$(DESTDIR)$(PREFIX)/share"
	@echo "installed: $(PREFIX)/bin/weir (see weir --help and man weir), libweir-fi.so, libweir-mpi.so and libweir-session.so in $(PREFIX)/lib/weir, libweir.so in $(PREFIX)/lib, weir.h in $(PREFIX)/include, experiments in $(PREFIX)/share/weir"

## clean: remove out/ and target/
.PHONY: clean
clean:
	rm -rf out target
	@echo "clean"
