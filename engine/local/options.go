package local

import (
	"cmp"
	"fmt"
	"log/slog"

	"penstock/engine/local/sched"
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
	// Faults are in force from the beginning.
	Faults []Fault
	// Quirks imitates where SGLang's OpenAI routes fall short: max_tokens 0 is
	// refused, text_offset is -1, a token is missing among its own alternatives,
	// logprobs 0 gives none. Default: done right.
	Quirks bool
	// Logger gets what is worth saying. Default: nothing is said.
	Logger *slog.Logger
}

// Check tells what is wrong with the options, before anything is started.
func (o Options) Check() error {
	_, _, err := o.withDefaults()
	return err
}

// withDefaults checks the options, fills in what is left out, and returns the
// profile that results.
func (o Options) withDefaults() (Options, sched.Profile, error) {
	p, err := sched.ProfileNamed(o.Profile)
	if err != nil {
		return o, p, err
	}
	o.Kind = cmp.Or(o.Kind, SGLang)
	if o.Kind != SGLang && o.Kind != VLLM {
		return o, p, fmt.Errorf("kind %q: expected sglang or vllm", o.Kind)
	}
	o.Model = cmp.Or(o.Model, DefaultModel)
	o.Profile = p.Name
	o.DP = cmp.Or(o.DP, 1)
	o.TimeScale = cmp.Or(o.TimeScale, 1)
	if o.Kind == VLLM {
		p.PageSize = max(p.PageSize, 16)
	}
	o.PageSize = cmp.Or(o.PageSize, p.PageSize)
	o.KVTokens = cmp.Or(o.KVTokens, p.KVTokens)
	o.ContextLen = cmp.Or(o.ContextLen, p.ContextLen)
	o.MaxRunning = cmp.Or(o.MaxRunning, p.MaxRunning)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if err := o.check(); err != nil {
		return o, p, err
	}
	o.KVTokens -= o.KVTokens % o.PageSize
	p = p.Scaled(o.TimeScale)
	p.PageSize, p.KVTokens, p.ContextLen, p.MaxRunning = o.PageSize, o.KVTokens, o.ContextLen, o.MaxRunning
	return o, p, nil
}

// maxDP bounds the ranks of one server: each has a cache and a goroutine of its own.
const maxDP = 1024

func (o *Options) check() error {
	for _, v := range []struct {
		name  string
		value float64
	}{
		{"dp", float64(o.DP)},
		{"kv-tokens", float64(o.KVTokens)},
		{"page-size", float64(o.PageSize)},
		{"max-running", float64(o.MaxRunning)},
		{"time-scale", o.TimeScale},
		{"context length", float64(o.ContextLen)},
	} {
		if !(v.value > 0) {
			return fmt.Errorf("%s %v: expected a number above 0", v.name, v.value)
		}
	}
	if o.DP > maxDP {
		return fmt.Errorf("dp %d: expected %d at most", o.DP, maxDP)
	}
	if o.MaxQueued < 0 {
		return fmt.Errorf("max-queued %d: expected 0 (no limit) or more", o.MaxQueued)
	}
	if o.KVTokens < 4*o.PageSize {
		return fmt.Errorf("kv-tokens %d: expected at least four pages of %d", o.KVTokens, o.PageSize)
	}
	return nil
}
