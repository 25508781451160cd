package engine

import (
	"fmt"
	"slices"
	"time"
)

// Kind is a kind of engine.
type Kind string

// The kinds. KindLocal is the embedded engine, which speaks SGLang's or vLLM's tongue.
const (
	KindSGLang Kind = "sglang"
	KindVLLM   Kind = "vllm"
	KindOpenAI Kind = "openai"
	KindLocal  Kind = "local"
)

// ModelInfo is one model that an engine serves.
type ModelInfo struct {
	ID          string
	Root        string // what it was loaded from
	Parent      string // of a LoRA adapter: its base model
	MaxModelLen int    // context length in tokens; 0: not told
}

// Capacity is the size of one replica. 0: the engine does not tell.
type Capacity struct {
	KVTokens   int    // tokens that fit in its KV cache
	MaxRunning int    // requests that it runs at once
	PageSize   int    // tokens per page (SGLang) or block (vLLM) of its prefix cache
	RunningBy  string // where MaxRunning comes from: engine, config or learned
}

// Load is what an engine last said of one rank.
type Load struct {
	Running         int
	Waiting         int
	WaitingUncached int     // tokens that wait for their prefill; -1: not told
	UsedTokens      int     // tokens held in the KV cache; -1: not told
	PrefillRate     float64 // uncached prompt tokens per second of prefill since the poll before; 0: not told
	At              time.Time
}

// Facts is what an engine tells about itself.
type Facts struct {
	Kind    Kind
	Tongue  Kind // whose API it speaks: Kind, but for the embedded engine
	Version string
	Models  []ModelInfo
	Ranks   []RankFacts // one at least; more than one: data parallelism
	Boot    string      // differs from one start of the process to the next; "": not told

	owner Kind // whom its list of models names; "": none that is known
}

// maxRanks bounds the ranks that an engine is believed to have: each is a
// replica, and a number out of a broken answer must not cost the gateway its
// memory.
const maxRanks = 1024

func boundRanks(n int) error {
	if n > maxRanks {
		return fmt.Errorf("it tells of %d data-parallel ranks, at most %d are believed", n, maxRanks)
	}
	return nil
}

// RankFacts is one data-parallel rank of an engine, or all of one without ranks.
type RankFacts struct {
	Rank int // its global number
	Capacity
}

// base is the first model that is not an adapter; "" where none is told.
func (f *Facts) base() string {
	for _, m := range f.Models {
		if m.Parent == "" {
			return m.ID
		}
	}
	if len(f.Models) > 0 {
		return f.Models[0].ID
	}
	return ""
}

// total adds up all ranks, for a URL that is one replica.
func (f *Facts) total() Capacity {
	var c Capacity
	for _, r := range f.Ranks {
		c.KVTokens += r.KVTokens
		c.MaxRunning += r.MaxRunning
		c.PageSize = max(c.PageSize, r.PageSize)
		c.RunningBy = r.RunningBy
	}
	return c
}

// sortRanks puts them in the order of their numbers.
func (f *Facts) sortRanks() {
	slices.SortFunc(f.Ranks, func(a, b RankFacts) int { return a.Rank - b.Rank })
}
