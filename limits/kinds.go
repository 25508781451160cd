package limits

import (
	"fmt"

	"penstock/configs"
)

// Scope is whom a limit holds for.
type Scope uint8

const (
	// ScopeKey is one client, over all models.
	ScopeKey Scope = iota
	// ScopeKeyModel is one client on one model.
	ScopeKeyModel
	// ScopeModel is one model, over all clients.
	ScopeModel
	scopes
)

// String is the scope as metrics, logs and GET /limits write it.
func (s Scope) String() string {
	switch s {
	case ScopeKey:
		return "key"
	case ScopeKeyModel:
		return "key_model"
	case ScopeModel:
		return "model"
	}
	return "unknown"
}

// Kind is what a limit counts.
type Kind uint8

const (
	// KindRequests counts requests per minute.
	KindRequests Kind = iota
	// KindTokens counts input and output tokens per minute.
	KindTokens
	// KindInput counts input tokens per minute.
	KindInput
	// KindOutput counts output tokens per minute.
	KindOutput
	rates

	// KindConcurrency counts requests at once.
	KindConcurrency
	// KindQueueFull is the bound on requests waiting.
	KindQueueFull
	// KindQueueTimeout is the bound on the time of waiting for room on a replica.
	KindQueueTimeout
	// KindUnavailable says that Redis is away and redis.on_error is closed.
	KindUnavailable
)

const unitKinds = int(rates)

// String is the kind as metrics, logs and GET /limits write it.
func (k Kind) String() string {
	switch k {
	case KindRequests:
		return "requests"
	case KindTokens:
		return "tokens"
	case KindInput:
		return "input_tokens"
	case KindOutput:
		return "output_tokens"
	case KindConcurrency:
		return "concurrency"
	case KindQueueFull:
		return "queue_full"
	case KindQueueTimeout:
		return "queue_timeout"
	case KindUnavailable:
		return "unavailable"
	}
	return "unknown"
}

// Type is OpenAI's error type of a 429 by a limit of this kind: requests,
// tokens or concurrency. Others have none.
func (k Kind) Type() string {
	switch k {
	case KindRequests:
		return "requests"
	case KindTokens, KindInput, KindOutput:
		return "tokens"
	case KindConcurrency:
		return "concurrency"
	}
	return ""
}

// Cost is what a request is charged: before it is sent an estimate, afterwards
// what was used. Total tokens are Input and Output.
type Cost struct {
	Requests, Input, Output int64
}

// Add is both together.
func (c Cost) Add(o Cost) Cost {
	return Cost{c.Requests + o.Requests, c.Input + o.Input, c.Output + o.Output}
}

// Sub is c less o.
func (c Cost) Sub(o Cost) Cost {
	return Cost{c.Requests - o.Requests, c.Input - o.Input, c.Output - o.Output}
}

// of is the part of the cost that limits of kind k count.
func (c Cost) of(k Kind) int64 {
	switch k {
	case KindRequests:
		return c.Requests
	case KindTokens:
		return c.Input + c.Output
	case KindInput:
		return c.Input
	case KindOutput:
		return c.Output
	}
	return 0
}

// Outcome is how a reserved request ended.
type Outcome uint8

const (
	// OutcomeReturned: it was never sent (the queue refused it, the client left
	// while it waited, no replica was healthy). Everything is given back.
	OutcomeReturned Outcome = iota
	// OutcomeDone: it was answered. Requests stay charged, tokens become what was used.
	OutcomeDone
	// OutcomeAborted: the client left after it was sent. As OutcomeDone.
	OutcomeAborted
	// OutcomeFailed: the engine failed. The request stays charged, all tokens are given back.
	OutcomeFailed
)

// String is the outcome as metrics and logs write it.
func (o Outcome) String() string {
	switch o {
	case OutcomeReturned:
		return "returned"
	case OutcomeDone:
		return "done"
	case OutcomeAborted:
		return "aborted"
	case OutcomeFailed:
		return "failed"
	}
	return "unknown"
}

// Actual is what a request used in the end.
type Actual struct {
	Outcome Outcome
	// Input and Output are tokens, cached ones included; -1 where nobody
	// knows: what was reserved stays charged.
	Input, Output int64
}

// cost is what stays charged of a reservation.
func (a Actual) cost(reserved Cost) Cost {
	switch a.Outcome {
	case OutcomeReturned:
		return Cost{}
	case OutcomeFailed:
		return Cost{Requests: reserved.Requests}
	}
	c := reserved
	if a.Input >= 0 {
		c.Input = min(a.Input, maxTokens)
	}
	if a.Output >= 0 {
		c.Output = min(a.Output, maxTokens)
	}
	return c
}

// rate is one limit as a bucket applies it, in tokens (or requests).
type rate struct {
	// limit is the refill per minute; 0: no limit.
	limit int64
	// burst is the bucket's size.
	burst int64
	// whole is the bucket's size over all gateways: what costs more is never
	// admitted. It differs from burst only where limits are divided.
	whole int64
}

// rateOf reads the limit of kind k. share divides it by the number of gateways.
func rateOf(l *configs.Limits, k Kind, share int64) rate {
	if l == nil {
		return rate{}
	}
	var r rate
	switch k {
	case KindRequests:
		r = rate{limit: l.RequestsPerMinute, burst: l.RequestsBurst}
	case KindTokens:
		r = rate{limit: l.TokensPerMinute, burst: l.TokensBurst}
	case KindInput:
		r = rate{limit: l.InputTokensPerMinute, burst: l.InputTokensBurst}
	case KindOutput:
		r = rate{limit: l.OutputTokensPerMinute, burst: l.OutputTokensBurst}
	}
	if r.limit <= 0 {
		return rate{}
	}
	r.limit = min(r.limit, maxTokens)
	if r.burst <= 0 {
		r.burst = r.limit
	}
	r.burst = min(r.burst, maxTokens)
	r.whole = r.burst
	if share > 1 {
		r.limit = max(1, r.limit/share)
		r.burst = max(1, r.burst/share)
	}
	return r
}

// slotsOf is the concurrency limit; 0: none.
func slotsOf(l *configs.Limits, share int64) int64 {
	if l == nil || l.Concurrency <= 0 {
		return 0
	}
	return max(1, int64(l.Concurrency)/max(1, share))
}

// ConfigKey names the configuration key that sets a limit, as messages tell it.
func ConfigKey(s Scope, k Kind, key, model string) string {
	field := map[Kind]string{
		KindRequests:     "requests_per_minute",
		KindTokens:       "tokens_per_minute",
		KindInput:        "input_tokens_per_minute",
		KindOutput:       "output_tokens_per_minute",
		KindConcurrency:  "concurrency",
		KindQueueFull:    "max_length",
		KindQueueTimeout: "max_wait",
		KindUnavailable:  "on_error",
	}[k]
	switch {
	case k == KindUnavailable:
		return "redis.on_error"
	case (k == KindQueueFull || k == KindQueueTimeout) && s == ScopeModel:
		return fmt.Sprintf("models[%s].queue.%s", model, field)
	case k == KindQueueFull || k == KindQueueTimeout:
		return fmt.Sprintf("keys[%s].queue.%s", key, field)
	case s == ScopeModel:
		return fmt.Sprintf("models[%s].limits.%s", model, field)
	case s == ScopeKeyModel:
		return fmt.Sprintf("keys[%s].model_limits[%s].%s", key, model, field)
	}
	return fmt.Sprintf("keys[%s].limits.%s", key, field)
}
