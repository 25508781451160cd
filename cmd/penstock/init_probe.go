package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"penstock/configs"
	"penstock/engine"
)

// probed is what an engine told of itself; kind is empty when it did not answer.
type probed struct {
	url      string
	asked    bool
	kind     string
	version  string
	model    string
	context  int // tokens; 0: not told
	replicas int
	kvTokens int // of one replica; 0: not told
	running  int // of one replica; 0: not told
}

// describe is the comment on an engine's line.
func (p probed) describe() string {
	switch {
	case !p.asked:
		return "not asked"
	case p.kind == "":
		return "did not answer; what it is will be found out when it does"
	}
	parts := []string{strings.TrimSpace(p.kind + " " + p.version)}
	add := func(n int, format string) {
		if n > 0 {
			parts = append(parts, fmt.Sprintf(format, n))
		}
	}
	if p.replicas > 1 {
		add(p.replicas, "%d data-parallel ranks, each:")
	}
	add(p.kvTokens, "%d tokens of KV cache")
	add(p.running, "%d requests at once")
	add(p.context, "context of %d tokens")
	return strings.Replace(strings.Join(parts, ", "), "each:,", "each:", 1)
}

func unprobed(urls []string) []probed {
	all := make([]probed, len(urls))
	for i, u := range urls {
		all[i] = probed{url: u}
	}
	return all
}

// probe asks all engines at once, as serve would, until all have answered or
// ctx ends.
func probe(ctx context.Context, urls []string) ([]probed, error) {
	var text strings.Builder
	text.WriteString("models:\n")
	for _, u := range urls {
		// One model for each, so that each keeps the name that it tells.
		fmt.Fprintf(&text, "  - engines: [{url: %q}]\n", u)
	}
	c, err := configs.Parse("", []byte(text.String()), func(string) (string, bool) { return "", false })
	if err != nil {
		return nil, err
	}
	fleet := engine.NewFleet(engine.Options{})
	defer fleet.Close()
	if err := fleet.Apply(ctx, c); err != nil {
		return nil, err
	}
	_ = fleet.WaitKnown(ctx) // those that have not answered are said to have not
	found := unprobed(urls)
	for i := range found {
		found[i].asked = true
		for _, r := range fleet.Replicas() {
			if r.URL() == found[i].url && r.Kind() != "" && len(r.Served()) > 0 {
				found[i].add(r)
			}
		}
	}
	return found, ctxCause(ctx)
}

// ctxCause is an interruption by the user; the time being up is none.
func ctxCause(ctx context.Context) error {
	if err := ctx.Err(); errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

func (p *probed) add(r *engine.Replica) {
	p.kind, p.version, p.model, p.context = string(r.Kind()), r.Version(), r.Model(), r.MaxModelLen()
	p.replicas++
	size := r.Capacity()
	p.kvTokens, p.running = size.KVTokens, 0
	if size.RunningBy == "engine" {
		p.running = size.MaxRunning
	}
}

// engineURL makes an engine's root of what people paste: an address without
// scheme, a base_url with /v1.
func engineURL(raw string) (string, error) {
	if !strings.Contains(raw, "://") {
		raw = "http://" + raw
	}
	u, err := url.Parse(raw)
	if err != nil || u.Hostname() == "" {
		return "", fmt.Errorf("want a URL, as http://10.0.0.1:30000")
	}
	if u.User != nil {
		return "", fmt.Errorf("credentials in a URL: give it without, and the engine's key as key: ${NAME} in the file")
	}
	u.Path = strings.TrimSuffix(strings.TrimRight(u.Path, "/"), "/v1")
	return u.String(), nil
}
