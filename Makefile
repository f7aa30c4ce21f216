# Everything a contributor runs. Tools are pinned in scripts/tool.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

ONCE ?=
ARGS ?=
PKG ?= ./...
FUZZ_TIME ?= 30000x

.PHONY: help
help: ## Show this help
	@grep -hE '^[a-z][a-z0-9-]*:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

.PHONY: deps
deps: ## Install the pinned tools into .tools (Envoy, Python client, linter), and Debian's redis-server
	@scripts/tool cc envoy pyclient golangci-lint redis

.PHONY: build
build: ## Build bin/kvlane
	@[ -e bin/kvlane ] || echo "building kvlane; the first build compiles its dependencies too and takes minutes"
	@go build -o bin/ ./cmd/kvlane

.PHONY: up
up: build ## Start Envoy, picker and simulated engines and send requests (ONCE=1: end after the demo; ARGS=...)
	@scripts/tool envoy
	@bin/kvlane up $(if $(ONCE),--once) $(ARGS)

.PHONY: test
test: build ## Unit and end-to-end tests with the race detector (PKG=./picker/...)
	@scripts/tool cc envoy pyclient redis
	@go test -race -timeout 30m $(PKG)

.PHONY: e2e
e2e: build ## Only the end-to-end tests, through a real Envoy
	@scripts/tool cc envoy pyclient redis
	@go test -race -timeout 30m -count=1 -v ./test/e2e/...

.PHONY: check
check: ## Format, vet, lint, generated files, import rules, 30,000 inputs of each fuzz test
	@scripts/tool golangci-lint
	@FUZZ_TIME=$(FUZZ_TIME) scripts/check

.PHONY: bench-replay
bench-replay: build ## Replay both traces under each policy, write out/bench/replay.json
	@scripts/tool envoy
	@go run ./test/bench/replay $(ARGS)

.PHONY: bench-index
bench-index: $(if $(BENCH_SHORT),,bench-index-peer) ## The index against Dynamo's indexers, write out/bench/index.json (BENCH_SHORT=1: in 50 s, peer as built)
	@mkdir -p out/bench && go build -o out/bench/index ./test/bench/index
	@out/bench/index $(ARGS)

.PHONY: bench-index-peer
bench-index-peer: ## Build Dynamo's indexers for bench-index (needs cargo; cmake and g++ for the whole decision)
	@test/peers/dynamo-index/build

.PHONY: protocol
protocol: build ## The protocol suite against our picker, over gRPC and through Envoy (PEER=1: upstream's lightweight picker too, writes docs/protocol.md)
	@scripts/tool envoy
	@test/protocol/run

.PHONY: test-engines
test-engines: build ## Two real vLLM engines on the CPU behind Envoy, picker and agents; prefill and decode over NIXL (installs some 6 GB)
	@scripts/tool cc envoy pyclient vllm
	@go test -race -tags engines -timeout 40m -count=1 -v -run 'TestVLLM' ./test/e2e/

.PHONY: sim
sim: ## The fleet simulator against Dynamo's own replay of both traces (without the race detector, under a minute)
	@go test -count=1 ./test/sim/...

.PHONY: bench-fleet
bench-fleet: build ## Simulate a fleet under every routing policy, write out/bench/fleet.json
	@bin/kvlane sim bench $(ARGS)

.PHONY: bench-log
bench-log: ## The log in Redis: throughput, latency, a fresh replica, memory; write out/bench/log.json (BENCH_SHORT=1: in 50 s)
	@scripts/tool redis
	@mkdir -p out/bench && go build -o out/bench/log ./test/bench/log
	@out/bench/log $(ARGS)

.PHONY: gen
gen: ## Regenerate files made by tools
	@scripts/gen

.PHONY: clean
clean: ## Remove what was built and written here (the tool cache stays)
	@rm -rf bin out .tools
