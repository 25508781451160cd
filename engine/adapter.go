package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
)

// adapter is what one kind of engine is asked. One belongs to one URL and may
// remember which of several endpoints that engine has. Its methods may be
// called at once.
type adapter interface {
	// discover reads what the engine is.
	discover(ctx context.Context, c *client) (*Facts, error)
	// load reads what its ranks do; errNoLoad where the engine does not tell.
	load(ctx context.Context, c *client) ([]rankLoad, error)
	// probe asks for a sign of life that costs the engine next to nothing.
	probe(ctx context.Context, c *client) error
}

// readier is the part of an adapter whose engine answers questions before it
// takes requests.
type readier interface {
	ready(ctx context.Context, c *client) error
}

// rankLoad is one rank's load with the counters that show restarts, prefill
// speed and where requests really went.
type rankLoad struct {
	rank int
	Load
	prefillTokens float64 // uncached prompt tokens since the start; -1: not told
	prefillBusy   float64 // seconds of prefill since the start; -1: not told
	requests      float64 // requests counted since the start; -1: not told
	capacity      Capacity
}

var errNoLoad = fmt.Errorf("the engine reports no load")

// newAdapter returns the adapter of a known kind.
func newAdapter(k Kind) (adapter, error) {
	switch k {
	case KindSGLang:
		return &sglang{}, nil
	case KindVLLM:
		return &vllm{}, nil
	case KindOpenAI:
		return &openai{}, nil
	case KindLocal:
		return &localKind{}, nil
	default:
		return nil, fmt.Errorf("kind %q is unknown, expected sglang, vllm, openai or local", k)
	}
}

// probeKind finds out what answers at a URL. The list of models tells for
// SGLang, vLLM and the embedded engine, which name themselves as the owner;
// behind a proxy that rewrites it their own endpoints do. Anything else that
// answers is taken for OpenAI-compatible.
func probeKind(ctx context.Context, c *client) (Kind, error) {
	models, err := readModels(ctx, c)
	if err != nil && !notThere(err) {
		return "", err
	}
	if k := ownerKind(models); k != "" {
		return k, nil
	}
	return probeEndpoints(ctx, c)
}

// ownerKind is the kind that a list of models names as its owner; "" for none
// that is known.
func ownerKind(models []servedModel) Kind {
	for _, m := range models {
		switch m.OwnedBy {
		case "sglang":
			return KindSGLang
		case "vllm":
			return KindVLLM
		case "penstock":
			return KindLocal
		}
	}
	return ""
}

// anotherKind says whether what an adapter has read, or failed to read, is that
// of another kind of engine than the configured one or, without such, than the
// one that answers now. old: what was read before.
func anotherKind(configured Kind, old, facts *Facts, err error) bool {
	if err != nil {
		return notThere(err)
	}
	want := cmp.Or(configured, facts.owner)
	if want == "" { // nor is it what it was, if that named itself
		return old != nil && old.owner != ""
	}
	return want != facts.Kind
}

// probeEndpoints returns an error when an endpoint fails for the moment: what
// else answers there would then be taken for OpenAI-compatible, for good.
func probeEndpoints(ctx context.Context, c *client) (Kind, error) {
	body, _, err := firstThere(ctx, c, sglangInfoPaths[:], 0)
	if err == nil {
		if _, err := parseServerInfo(body); err == nil {
			return KindSGLang, nil
		}
	} else if !says(err) {
		return "", unknownKind(err)
	}
	body, err = c.get(ctx, "/metrics")
	if err == nil {
		if fs, err := parseMetrics(body, "vllm:cache_config_info", "vllm:num_requests_running"); err == nil && len(fs) > 0 {
			return KindVLLM, nil
		}
	} else if !says(err) {
		return "", unknownKind(err)
	}
	return KindOpenAI, nil
}

// says tells an answer that says something of the engine's kind (no such
// endpoint, or not for us) from one that may be another at the next attempt.
func says(err error) bool {
	se, ok := errors.AsType[*statusError](err)
	return ok && (se.status < http.StatusInternalServerError && se.status != http.StatusTooManyRequests || notThere(err))
}

func unknownKind(err error) error {
	return fmt.Errorf("its kind cannot be told yet (engines[].kind sets it): %w", err)
}

// servedModel is one entry of /v1/models.
type servedModel struct {
	ID          string `json:"id"`
	OwnedBy     string `json:"owned_by"`
	Root        string `json:"root"`
	Parent      string `json:"parent"`
	MaxModelLen number `json:"max_model_len"`
	// ContextLength is what some OpenAI-compatible servers call it.
	ContextLength number `json:"context_length"`
}

func readModels(ctx context.Context, c *client) ([]servedModel, error) {
	body, err := c.get(ctx, "/v1/models")
	if err != nil {
		return nil, err
	}
	return parseModels(body)
}

func parseModels(body []byte) ([]servedModel, error) {
	var list struct {
		Data []servedModel `json:"data"`
	}
	if err := decode(body, &list); err != nil {
		return nil, fmt.Errorf("GET /v1/models: not a list of models: %w", err)
	}
	return list.Data, nil
}

func modelInfos(served []servedModel) []ModelInfo {
	infos := make([]ModelInfo, 0, len(served))
	for _, m := range served {
		if m.ID == "" {
			continue
		}
		infos = append(infos, ModelInfo{ID: m.ID, Root: m.Root, Parent: m.Parent, MaxModelLen: int(cmp.Or(m.MaxModelLen, m.ContextLength))})
	}
	return infos
}
