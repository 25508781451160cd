# What people type. CI runs `make check test race` (see .ci/run).

GOLANGCI = go tool -modfile=tools/go.mod golangci-lint

.PHONY: run build test race check lint fmt bench bench-peers soak e2e-engines clean

# Four local replicas behind the gateway, no configuration needed.
run:
	go run ./cmd/penstock serve

build:
	CGO_ENABLED=0 go build -trimpath -o bin/penstock ./cmd/penstock

# All tests. Those that need a program which is not there (Redis, Prometheus,
# Python, Node) say so and are skipped; with CI=true that is a failure.
test:
	go test -timeout 30m ./...
	go -C deploy/check test ./...

# The packages under the race detector. The tests from outside measure times of
# a running binary, which the detector slows down several times; they take
# `go test -race ./e2e/...` too, but not beside anything else. Short: without
# simulations, which are one goroutine each.
race:
	go test -race -short -timeout 30m $$(go list ./... | grep -v /e2e)

# What a commit must pass: formatting, linters, structure.
check: lint
	go test -count=1 ./e2e/structure

lint:
	$(GOLANGCI) run --allow-parallel-runners ./...

fmt:
	$(GOLANGCI) fmt ./...

# Side by side with nginx and HAProxy, then the seed phases: docs/performance.md.
bench:
	e2e/bench/run.sh
	e2e/bench/run.sh seeds

# The same with other routers, from PyPI.
bench-peers:
	e2e/bench/run.sh peers

# Ten minutes of random faults that must end with everything at rest.
soak:
	PENSTOCK_SOAK=10m go test -count=1 -timeout 20m -run Soak ./e2e/...

# Against real vLLM and SGLang: sets up what is missing, takes half an hour.
e2e-engines:
	PENSTOCK_ENGINES=1 go test -count=1 -timeout 60m -v ./e2e/engines

clean:
	rm -rf bin .e2e .engines
