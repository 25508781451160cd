package main

import (
	"context"
	"errors"
	"net"
	"path/filepath"
)

// peer starts one of the routers that are installed from PyPI (see run.sh),
// each with its cache-aware policy over the upstreams, its log at warnings and
// its own limits on concurrency out of the way.
func (l *lab) peer(_ context.Context, name string) ([]*target, error) {
	addr := freeAddr()
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	_, metrics, err := net.SplitHostPort(freeAddr())
	if err != nil {
		return nil, err
	}
	args := []string{"--host", host, "--port", port, "--policy", "cache_aware", "--prometheus-port", metrics, "--max-concurrent-requests", "100000"}
	switch name {
	case "sglang-router":
		args = append([]string{"launch"}, append(args, "--log-level", "warn")...)
	case "smg":
		args = append([]string{"launch"}, append(args, "--log-level", "warn", "--disable-tokenizer-autoload", "--backend", "openai")...)
	case "vllm-router":
		args = append(args, "--log-level", "warning")
	default:
		return nil, errors.New("unknown target; there are direct, floor, nginx, haproxy, penstock, bare, sglang-router, smg, vllm-router")
	}
	args = append(args, "--worker-urls")
	for _, u := range l.upstreams {
		args = append(args, "http://"+u)
	}
	if l.o.peers == "" {
		return nil, errors.New("want -peers, the folder where it is installed")
	}
	p, err := l.spawn(nil, filepath.Join(l.o.peers, name, "bin", name), args...)
	return []*target{{name: name, whole: addr, proc: p}}, err
}
