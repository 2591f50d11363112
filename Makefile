# Everything that is checked, measured or generated here. `make` lists the targets; `make test` is what CI runs.

SHELL       := bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS   += --no-print-directory

# Stamping binaries with the commit fails where git distrusts the owner of the checkout.
export GOFLAGS := $(GOFLAGS) -buildvcs=false

GOLANGCI_VERSION := 2.15.0
GOLANGCI         := build/bin/golangci-lint

# Each fuzz target below the folders FUZZ is run FUZZTIME, which may be a time as well (30s); but then Go sometimes takes the end
# of the time for a failure. `make test` leaves fuzzers to their seeds: instrumenting all that they depend on takes minutes.
FUZZ     ?= .
FUZZTIME ?= 10000x

# The parts of `make test`, the quick ones first.
STAGES := build vet generated lint mnist unit noasm race

# Packages whose tests mean something on a machine with cards.
GPU_PACKAGES := ./cudaops ./cudaops/internal/cublas ./cudaops/internal/cudnn ./cudaops/internal/exec ./cudaops/internal/nccl ./cudaops/internal/peer ./dp ./dp/comm ./internal/host ./internal/host/kernel ./nn ./tensorboard

# about prints what a target does: the text after ## on its line below.
about = sed -n "s/^$(1):.*\#\# *//p" Makefile

# verbose runs go test -v, keeps all it says in build/log, and shows the line of each test and package. When a test fails, it
# shows all.
define verbose
@mkdir -p build/log
@$(1) -v $(2) >build/log/$@ 2>&1 && grep -E '^(--- |ok )' build/log/$@ || { cat build/log/$@; exit 1; }
endef

.PHONY: help test fuzz bench gpu clean tools $(STAGES)

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "%-10s %s\n", $$1, $$2 }' Makefile

test: ## run every check that CI runs: all targets from build to race below
	@failed=; table=; begin=$$SECONDS; \
	for stage in $(STAGES); do \
		echo "==> $$stage: $$($(call about,$$stage))"; \
		start=$$SECONDS; result=ok; \
		$(MAKE) $$stage || { result=FAILED; failed+=" $$stage"; }; \
		echo "<== $$stage: $$result in $$((SECONDS - start)) s"; \
		table+=$$(printf '%-10s %-6s %4d s' $$stage $$result $$((SECONDS - start)))$$'\n'; \
		if [[ $$result == FAILED && $$stage == build ]]; then break; fi; \
	done; \
	printf '\n%s%-10s %-6s %4d s\n' "$$table" total '' $$((SECONDS - begin)); \
	if [[ $$failed ]]; then echo "failed:$$failed"; exit 1; fi

build: ## compile everything without cgo, then with it
	CGO_ENABLED=0 go build ./...
	CGO_ENABLED=1 go build ./...

vet: ## go vet with the assembly and without it
	go vet ./...
	go vet -tags noasm ./internal/host/...

generated: ## see that generated code is what its generator writes today
	@old=$$(mktemp -d); new=$$(mktemp -d); trap 'rm -rf "$$old" "$$new"' EXIT; \
	cp internal/host/kernel/gen_* "$$old"; \
	go generate ./internal/host/kernel; \
	cp internal/host/kernel/gen_* "$$new"; \
	diff -ru "$$old" "$$new" || { echo "generated code was stale; it is fresh now: commit it"; exit 1; }

lint: tools ## run golangci-lint with .golangci.yml
	$(GOLANGCI) run ./...

tools: ## install the linter into build/bin, where it is missing or of another version
	@if [[ $$($(GOLANGCI) version --short 2>/dev/null) != $(GOLANGCI_VERSION) ]]; then \
		echo "installing golangci-lint $(GOLANGCI_VERSION) into build/bin (some minutes)"; \
		GOBIN=$(CURDIR)/build/bin go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v$(GOLANGCI_VERSION); \
	fi

# Without a bound, minimising the first interesting inputs of a large binary would take all of the time.
fuzz: ## run every fuzz target below FUZZ (all) FUZZTIME (10000 times)
	@grep -r --include='*_test.go' -o '^func Fuzz[A-Za-z0-9_]*' $(FUZZ) | sort | while IFS=: read -r file func; do \
		go test -run '^$$' -fuzz "^$${func#func }\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x "./$$(dirname "$$file")" </dev/null; \
	done

mnist: ## train on real MNIST for an epoch, on the host and on three simulated cards, and look at the accuracy
	@mkdir -p build/mnist
	go build -o build/mnist/ ./examples/mnist
	build/mnist/mnist --epochs 1 --no-progress --report build/mnist/host.json
	TANDEM_SIM_CARDS=4 build/mnist/mnist --epochs 1 --no-progress --devices 0,2,3 --report build/mnist/cards.json
	@for f in host cards; do \
		accuracy=$$(sed -n 's/.*"test_accuracy": *\([0-9.]*\).*/\1/p' build/mnist/$$f.json); \
		awk -v a="$$accuracy" -v f=$$f 'BEGIN { print f ": test accuracy " a; exit !(a >= 0.96) }' \
			|| { echo "mnist: $$f: below 0.96"; exit 1; }; \
	done

unit: ## all tests, without cgo
	$(call verbose,CGO_ENABLED=0 go test,./...)

noasm: ## tests of the host's kernels and of its executor in plain Go
	go test -tags noasm ./internal/host/...

# The suite of backends has no goroutines in it, and takes long; the host runs it under the race detector, too.
race: ## all tests under the race detector, without the largest shapes
	$(call verbose,go test -race -short,$$(go list ./... | grep -v /internal/ir/backendtest$$))

bench: ## time training steps, kernels, processes and their start on this machine
	go run ./benchmarks --suite host,collectives,launch

gpu: ## put stripped test and benchmark binaries for a machine with cards, but no Go, into build/gpu and build/gpu.tar.gz
	@rm -rf build/gpu; mkdir -p build/gpu
	CGO_ENABLED=0 go test -c -trimpath -ldflags '-s -w' -o build/gpu/ $(GPU_PACKAGES)
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o build/gpu/ ./benchmarks ./examples/mnist ./examples/shareacard ./launcher/tandem
	@cp internal/tools/gpurun build/gpu/run && cp internal/tools/gpuaccept build/gpu/accept
	@cp -r nn/testdata build/gpu/ && cp -r tensorboard/testdata build/gpu/
	tar -czf build/gpu.tar.gz -C build gpu
	@ls -lh build/gpu.tar.gz

clean: ## remove build, where all of the above write
	rm -rf build
