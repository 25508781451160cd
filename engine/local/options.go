package local

import (
	"fmt"
	"log/slog"
)

// Kind is the engine whose ways a Server takes on.
type Kind string

// The kinds.
const (
	SGLang Kind = "sglang"
	VLLM   Kind = "vllm"
)

// DefaultModel is the name under which the embedded model is served.
const DefaultModel = "penstock-local"

// Options describe a Server. The zero value is an SGLang-like engine of one
// rank that answers as fast as it can.
type Options struct {
	// Kind is whose API, error bodies, metrics and limits it shows. Default SGLang.
	Kind Kind
	// Model is the served name. Default penstock-local.
	Model string
	// DP is the number of data-parallel ranks behind the one port. Default 1.
	DP int
	// Profile is the pace: instant (default), qwen3-30b or glm52-dp4.
	Profile string
	// KVTokens is the KV capacity of each rank. Default: the profile's.
	KVTokens int
	// PageSize is the KV page in tokens. Default: the profile's; 16 for vLLM.
	PageSize int
	// MaxRunning is how many sequences each rank runs at once. Default: the profile's.
	MaxRunning int
	// MaxQueued is how many may wait on each rank; more are refused with 503. 0: no limit.
	MaxQueued int
	// ContextLen bounds prompt and answer together. Default: the profile's.
	ContextLen int
	// TimeScale divides the profile's times: 10 is ten times as fast. Default 1.
	TimeScale float64
	// Logger gets what is worth saying. Default: nothing is said.
	Logger *slog.Logger
}

func (o Options) withDefaults() (Options, error) {
	if o.Kind == "" {
		o.Kind = SGLang
	}
	if o.Kind != SGLang && o.Kind != VLLM {
		return o, fmt.Errorf("kind %q: expected sglang or vllm", o.Kind)
	}
	if o.Model == "" {
		o.Model = DefaultModel
	}
	if o.DP == 0 {
		o.DP = 1
	}
	if o.TimeScale == 0 {
		o.TimeScale = 1
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.PageSize == 0 {
		o.PageSize = 1
		if o.Kind == VLLM {
			o.PageSize = 16
		}
	}
	if o.KVTokens == 0 {
		o.KVTokens = 1 << 20
	}
	if o.ContextLen == 0 {
		o.ContextLen = 1 << 17
	}
	if o.MaxRunning == 0 {
		o.MaxRunning = 256
	}
	for _, v := range []struct {
		name  string
		value float64
	}{
		{"dp", float64(o.DP)}, {"kv-tokens", float64(o.KVTokens)}, {"page-size", float64(o.PageSize)},
		{"max-running", float64(o.MaxRunning)}, {"time-scale", o.TimeScale}, {"context length", float64(o.ContextLen)},
	} {
		if v.value < 0 {
			return o, fmt.Errorf("%s %v: expected a number above 0", v.name, v.value)
		}
	}
	if o.MaxQueued < 0 {
		return o, fmt.Errorf("max-queued %d: expected 0 (no limit) or more", o.MaxQueued)
	}
	return o, nil
}
