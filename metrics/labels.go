package metrics

import (
	"net/http"
	"slices"
	"strconv"
)

// Other stands for every value that is not among the known ones, so that no
// client can make the page grow.
const Other = "other"

// NoKey is the key label of a gateway without keys, and of requests refused
// before a key was known.
const NoKey = "none"

// NoModel is the model label of requests refused before a model was known.
const NoModel = "none"

// OK is the code label of a request without an error.
const OK = "ok"

// Refusal reasons, the label of penstock_limit_refusals_total.
const (
	ReasonRequests     = "requests"
	ReasonTokens       = "tokens"
	ReasonInputTokens  = "input_tokens"
	ReasonOutputTokens = "output_tokens"
	ReasonConcurrency  = "concurrency"
	ReasonTooLarge     = "too_large"
	ReasonQueueFull    = "queue_full"
	ReasonQueueTimeout = "queue_timeout"
	ReasonUnavailable  = "unavailable" // Redis is away, and redis.on_error is closed
)

// Reasons for which an attempt failed or was repeated.
const (
	FailConnect      = "connect"
	FailStatus       = "status"     // 5xx
	FailOverloaded   = "overloaded" // 429 or 503
	FailDisconnected = "disconnected"
	FailTimeout      = "timeout"
	FailUnhealthy    = "unhealthy" // cancelled since the replica was found unhealthy
	FailProtocol     = "protocol"  // an answer that is not HTTP, or not the endpoint's
	FailEvent        = "event"     // an error inside the first event of a 200 stream
)

// Modes of counting limits.
const (
	ModeMemory = "memory"
	ModeRedis  = "redis"
	ModeLocal  = "local"
	ModeOpen   = "open"
	ModeClosed = "closed"
)

// knownCodes are the error codes that Penstock itself answers with; docs/limits.md
// and docs/operations.md explain them. An engine's own code is "upstream".
func knownCodes() []string {
	return []string{
		OK, "upstream", "client_closed_request", "internal_error",
		"invalid_json", "invalid_value", "missing_required_parameter", "invalid_request",
		"invalid_api_key", "model_not_allowed", "model_not_found", "unknown_url", "not_found", "method_not_allowed",
		"request_timeout", "request_too_large", "headers_too_large", "conflict", "response_not_found",
		"rate_limit_exceeded", "queue_full", "queue_timeout", "no_healthy_replica", "engine_overloaded", "draining",
		"limits_unavailable",
		"upstream_error", "upstream_disconnected", "echo_logprobs_missing",
		"first_token_timeout", "stream_idle_timeout", "upstream_timeout",
	}
}

func knownReasons() []string {
	return []string{
		ReasonRequests, ReasonTokens, ReasonInputTokens, ReasonOutputTokens, ReasonConcurrency,
		ReasonTooLarge, ReasonQueueFull, ReasonQueueTimeout, ReasonUnavailable,
	}
}

func knownFailures() []string {
	return []string{
		FailConnect, FailStatus, FailOverloaded, FailDisconnected, FailTimeout, FailUnhealthy, FailProtocol, FailEvent,
	}
}

func knownModes() []string {
	return []string{ModeMemory, ModeRedis, ModeLocal, ModeOpen, ModeClosed}
}

// states are a replica's, as on /replicas.
func states() []string {
	return []string{"starting", "healthy", "unhealthy", "open", "half_open", "draining"}
}

func breakerStates() []string { return []string{"closed", "half_open", "open"} }

// known returns value if it is among list, and Other if not.
func known(list []string, value string) string {
	if slices.Contains(list, value) {
		return value
	}
	return Other
}

// statusLabel is the status as text: an engine may answer any number.
func statusLabel(status int) string {
	if status == 499 || http.StatusText(status) != "" {
		return strconv.Itoa(status)
	}
	return Other
}
