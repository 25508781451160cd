package body

import (
	"iter"
	"math"
	"unsafe"

	"penstock/gateway/body/scan"
)

// Endpoint is what a body was sent to. It decides which fields hold the prompt and what is required.
type Endpoint uint8

// The endpoints whose bodies are viewed. Of those that stand for nothing of the gateway's (Other), only the
// fields that mean the same everywhere are read.
const (
	Other Endpoint = iota
	Chat
	Completions
	Embeddings
	Responses
	Messages
	Generate
	Tokenize
	Detokenize
	Rerank
	Score
	Pooling // and classification
	Audio   // a multipart form; only its model, user and stream are read
)

// Bounds of what is accepted, each far beyond what engines take; they keep a view's memory near the body's.
const (
	DefaultMaxN = 1024    // n and best_of; View.MaxN overrides it
	MaxPrompts  = 1 << 16 // in one batch
	MaxMessages = 1 << 16 // in one conversation
)

// AllLogprobs is the value of PromptLogprobs where the client asks for the whole vocabulary (vLLM's -1).
const AllLogprobs = math.MaxInt32

// keepScratch bounds what a View keeps for its next body.
const keepScratch = 64 << 10

// Kind is the form of a prompt.
type Kind uint8

// The forms of a prompt: text, token ids, or something that only the engine understands.
const (
	Text Kind = iota
	Tokens
	Object
)

// Prompt is one prompt of a body: the JSON value Body[Start:End], quotes or brackets included.
type Prompt struct {
	Start, End int
	Kind       Kind
	Tokens     int // how many ids, for Tokens
}

// span is a JSON value's place. End 0: not there.
type span struct{ start, end int32 }

func (s span) there() bool           { return s.end > 0 }
func (s span) inner(b []byte) []byte { return b[s.start+1 : s.end-1] }

// place is where a top-level member stands: its key, its value, and the end of the member before it (0: it is
// the first).
type place struct{ key, val, end, prev int32 }

// message is one message's (or, in Responses, one input item's) parts that enter the key.
type message struct {
	role, content, calls span
	whole                span // of an item without role
}

// View is what the gateway knows of a request body. Byte slices in it lie in Body or in the view's own scratch
// and are valid until the next Parse.
type View struct {
	Endpoint Endpoint
	Body     []byte

	// MaxN bounds n and best_of; 0: DefaultMaxN. Set before Parse, kept by it.
	MaxN int

	Model              []byte // as asked for, decoded; nil: not given
	User               []byte // user
	Session            []byte // prompt_cache_key
	PreviousResponseID []byte
	LoRA               []byte // lora_path
	CacheSalt          []byte // cache_salt
	ExtraKey           []byte // extra_key, which SGLang adds to its cache's keys

	Stream       bool
	IncludeUsage bool // stream_options.include_usage
	Echo         bool

	N, BestOf      int // 1 where not given
	MaxTokens      int // max_completion_tokens, else max_tokens, else max_output_tokens, else max_new_tokens; -1: not given
	Logprobs       int // completions: how many; chat: 0 when asked for; -1: not asked for
	TopLogprobs    int // chat's; -1: not given
	PromptLogprobs int // -1: not asked for; AllLogprobs: every one
	ReturnTokenIDs bool

	ReturnLogprob   bool // /generate
	LogprobStartLen int  // /generate; the least of a list; -1: not given
	TopLogprobsNum  int  // /generate; -1: not given

	Prompts   []Prompt // completions, embeddings, /generate; empty for conversations
	TokenIDs  int      // token ids in all prompts
	TextBytes int      // bytes of text in the prompt as JSON spells it (the key's are exact), media left out
	Media     int      // images, audio and files

	messages  []message
	at        [fieldCount]place
	steers    []byte // the first engine field's name
	members   int    // top-level ones
	open      int32  // after the body's opening brace
	last      int32  // the end of the last member, or open
	usage     place  // stream_options.include_usage
	multipart bool   // the body is a form, not JSON
	options   int    // how many members stream_options has; -1: it is no object
	scratch   []byte
	feed      []byte // what the key's feeder gathers in
}

// reset forgets the last body but keeps the memory, unless it was unusually large.
func (v *View) reset(ep Endpoint, b []byte) {
	prompts, messages, scratch, maxN := v.Prompts[:0], v.messages[:0], v.scratch[:0], v.MaxN
	if cap(prompts)*int(unsafe.Sizeof(Prompt{})) > keepScratch {
		prompts = nil
	}
	if cap(messages)*int(unsafe.Sizeof(message{})) > keepScratch {
		messages = nil
	}
	if cap(scratch) > keepScratch {
		scratch = nil
	}
	*v = View{
		Endpoint: ep, Body: b, MaxN: maxN, Prompts: prompts, messages: messages, scratch: scratch, feed: v.feed,
		N: 1, BestOf: 1, MaxTokens: -1, Logprobs: -1, TopLogprobs: -1, PromptLogprobs: -1, LogprobStartLen: -1, TopLogprobsNum: -1,
		options: -1,
	}
	if v.MaxN == 0 {
		v.MaxN = DefaultMaxN
	}
}

// Has says whether the body has the top-level field, null included.
func (v *View) Has(name string) bool { return v.find(name).end > 0 }

// Raw is a top-level field's value as it stands in the body; nil: not there.
func (v *View) Raw(name string) []byte {
	p := v.find(name)
	if p.end == 0 {
		return nil
	}
	return v.Body[p.val:p.end]
}

// Fields walks all top-level fields: their names as the body spells them, and their values.
func (v *View) Fields() iter.Seq2[[]byte, []byte] {
	return func(yield func(name, value []byte) bool) {
		if v.multipart || v.open == 0 {
			return
		}
		for w := scan.Walk(v.Body, int(v.open)-1); w.Next(); {
			if !yield(w.Key, v.Body[w.Start:w.End]) {
				return
			}
		}
	}
}

// EngineField names a field by which the client would direct the engine (its rank, priority, bootstrap fields,
// cache salt); empty: there is none.
func (v *View) EngineField() string { return string(v.steers) }

// MessageCount is how many messages the conversation has.
func (v *View) MessageCount() int { return len(v.messages) }

// PromptCount is how many prompts the engine will run: at least one.
func (v *View) PromptCount() int { return max(1, len(v.Prompts)) }

// find looks a member up; one that the gateway does not act on is searched for in the body, the last winning.
func (v *View) find(name string) place {
	if f := fieldOf([]byte(name)); f != unknown && f != fEngine {
		return v.at[f]
	}
	var found place
	if v.multipart || v.open == 0 {
		return found
	}
	prev := int32(0)
	for w := scan.Walk(v.Body, int(v.open)-1); w.Next(); prev = int32(w.End) {
		if string(w.Key) == name {
			found = place{key: int32(w.At), val: int32(w.Start), end: int32(w.End), prev: prev}
		}
	}
	return found
}
