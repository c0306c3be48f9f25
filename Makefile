# oncepay: everything a person types. `make help` lists it.

SHELL := /bin/bash
GO ?= go
USER_ID := $(if $(filter command line,$(origin USER)),$(USER),1001)

.DEFAULT_GOAL := help
.PHONY: help setup run test check ablation token build clean-data

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "  NO_INSTALL=1 keeps run, test and setup from installing anything."
	@echo "  MYSQL_DSN, REDIS_ADDR (run) and TEST_MYSQL_DSN, TEST_REDIS_ADDR (test, where no private one is needed) name servers to use."

setup: ## install what run and test need and this machine lacks
	@scripts/setup.sh --tests

run: ## start the service with a private MySQL-compatible server and Redis
	@scripts/setup.sh
	@$(GO) build -o bin/api ./cmd/api
	@exec bin/api

test: ## run the whole test suite on real servers
	@env $(foreach v,MYSQL_DSN REDIS_ADDR REDIS_URL TEST_MYSQL_DSN TEST_REDIS_ADDR,-u $(v)) scripts/setup.sh --tests
	$(GO) test -race -shuffle=on -timeout 12m ./...

check: ## formatting, vet, staticcheck, architecture, docs against code
	@out=$$(gofmt -l $$(git ls-files '*.go')); if [ -n "$$out" ]; then echo "gofmt these:"; echo "$$out"; exit 1; fi
	$(GO) mod tidy -diff
	$(GO) vet ./...
	$(GO) tool staticcheck ./...
	$(GO) test -count=1 ./internal/arch ./docs ./migrations

ablation: ## switch guards off one by one and see who stops 100 repeats
	@env $(foreach v,MYSQL_DSN REDIS_ADDR REDIS_URL TEST_MYSQL_DSN TEST_REDIS_ADDR,-u $(v)) scripts/setup.sh
	@set -o pipefail; $(GO) test -count=1 -run 'Ablation' -v ./cmd/api -ablation | grep -Ev '^(=== | *--- PASS|PASS|ok)'

token: ## print a bearer token: make token USER=1001 [ROLE=ops]
	@$(GO) run ./cmd/api token -user $(USER_ID) $(if $(ROLE),-role $(ROLE))

build: ## build bin/api
	$(GO) build -o bin/api ./cmd/api

clean-data: ## remove the embedded default's data (.oncepay)
	rm -rf .oncepay
