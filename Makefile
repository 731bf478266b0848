# Targets for people; .ci/run uses lint and test.

SHELL := /bin/bash
.DEFAULT_GOAL := help

# The caller may own the files otherwise than git likes; that must not fail a build.
export GOFLAGS := -buildvcs=false $(filter-out -buildvcs=%,$(GOFLAGS))
VERSION := $(shell git -c safe.directory='*' describe --tags --always --dirty 2>/dev/null || echo unknown)

# Fetched and built tools are kept here, as internal/servers does.
CACHE := $(or $(FORWARDER_CACHE),$(if $(XDG_CACHE_HOME),$(XDG_CACHE_HOME)/forwarder),$(HOME)/.cache/forwarder)
LINT_VERSION = $(shell awk '$$1 == "github.com/golangci/golangci-lint/v2" {print $$2}' tools/go.mod)
LINT = $(CACHE)/golangci-lint-$(LINT_VERSION)-$(shell go env GOVERSION)

.PHONY: help build test race lint bench fuzz clean withservers

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  %-8s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

build: ## build the static binary bin/forwarder
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o bin/forwarder ./cmd/forwarder

test: withservers ## run all tests against real PostgreSQL, MongoDB and Kafka, fetching what they need
	@bin/withservers scripts/test

race: withservers ## run all tests, the end-to-end ones too, with the race detector
	@CGO_ENABLED=1 bin/withservers go test -race -timeout 30m ./...

lint: ## check format, style and the import rules
	@[ -x '$(LINT)' ] || { \
	  echo 'building golangci-lint $(LINT_VERSION), once' >&2; \
	  mkdir -p '$(CACHE)' && \
	  CGO_ENABLED=0 go build -C tools -o '$(LINT).$$PPID' github.com/golangci/golangci-lint/v2/cmd/golangci-lint && \
	  mv '$(LINT).$$PPID' '$(LINT)'; }
	@'$(LINT)' run --allow-parallel-runners ./...

bench: build ## measure the forwarder beside a bare pipe
	go run ./bench

fuzz: ## run each fuzz test for ten seconds
	@scripts/fuzz

clean: ## remove what was built here; the cache folder stays
	rm -rf bin

withservers:
	@go build -o bin/withservers ./internal/servers/cmd/withservers
