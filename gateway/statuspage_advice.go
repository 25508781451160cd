package gateway

// advice is what an error code means to an operator, and what to do.
type advice struct{ level, title, todo string }

// adviceFor is what is said of an error code. It is one table, longer than a
// function should be.
func adviceFor(code string) advice {
	switch code {
	// Limits and capacity.
	case "rate_limit_exceeded":
		return advice{levelWarn, "Refused: over a limit", "Nothing is broken. The client was told when to try again; raise the limit named here if it should have more."}
	case "queue_full":
		return advice{levelWarn, "Refused: the queue is full", "More comes in than the engines serve. Add replicas, lower the concurrency of the keys that wait most, or lengthen queue.max_length."}
	case "queue_timeout":
		return advice{levelWarn, "Refused: no room on any replica in time", "Capacity is short. Add replicas, or let requests wait longer with queue.max_wait."}
	case "no_healthy_replica":
		return advice{levelBad, "Failed: no replica can take requests", "See the replicas above: their engines do not run, or cannot be reached from here."}
	case "engine_overloaded":
		return advice{levelBad, "Failed: the engines are overloaded", "Every replica that was tried refused the request. Lower the engine's max_running here, or add replicas."}
	case "draining":
		return advice{levelNote, "Refused: this gateway is shutting down", "Its successor takes the requests. Give the proxy before it time to notice (docs/operations.md)."}
	case "limits_unavailable":
		return advice{levelBad, "Refused: the limits cannot be checked", "Redis is away and redis.on_error is closed. Bring Redis back, or set redis.on_error to local."}
	// Engines.
	case "upstream_error":
		return advice{levelBad, "Failed: an engine's error", "The engine's own log says why; its requests carry the attempt's id as x-request-id."}
	case "upstream":
		return advice{levelNote, "Refused by the engine itself", "The engine's own answer was passed on as it is; the client was told what it objects to."}
	case "upstream_disconnected":
		return advice{levelBad, "Failed: an engine broke off its answer", "Engines do that when they crash or are restarted: look at its log and at its memory."}
	case "upstream_timeout":
		return advice{levelBad, "Failed: an answer took too long", "Longer answers than timeouts.request allows need a larger value, or a smaller max_tokens."}
	case "first_token_timeout":
		return advice{levelBad, "Failed: no first token in time", "The engine is frozen, or its prefills are too long for timeouts.first_token. Compare the other replicas' times."}
	case "stream_idle_timeout":
		return advice{levelBad, "Failed: a stream fell silent", "The engine is frozen or overfull: nothing came for timeouts.idle in the middle of an answer."}
	case "echo_logprobs_missing":
		return advice{levelBad, "Failed: a score without log-probabilities", "The engine ignored echo or logprobs. docs/scoring.md lists which engines and flags can score."}
	case "internal_error":
		return advice{levelBad, "Failed: an error inside Penstock", "This is a bug. The log names the cause by the request's id; please report it."}
	// Clients.
	case "client_closed_request":
		return advice{levelNote, "The client left before its answer was complete", "If many do, they wait too long: compare their own time-outs with the queue and the first-token times."}
	case "invalid_api_key":
		return advice{levelNote, "Refused: no valid key", "The client sends no key, an unknown or an expired one. Keys are under 'keys' in the configuration."}
	case "model_not_allowed":
		return advice{levelNote, "Refused: the key may not use that model", "Add the model to the key's 'models' if it should."}
	case "model_not_found":
		return advice{levelNote, "Refused: no such model", "The client asks for a name that is neither configured nor served; 'aliases' gives a model further names."}
	case "request_too_large":
		return advice{levelNote, "Refused: the body is too large", "Raise max_body if such requests are meant to pass."}
	case "headers_too_large":
		return advice{levelNote, "Refused: the headers are too large", "Raise max_headers if such requests are meant to pass; it needs a restart."}
	case "request_timeout":
		return advice{levelNote, "Refused: the body came too slowly", "The client's connection is slow, or timeouts.read_body is too short."}
	}
	return advice{levelNote, "Answered with " + code, "The message says what was wrong with the request."}
}

// hint is what an operator should do about an error that the gateway answered
// with, for the log; "" for what is the client's own affair.
func hint(code string) string {
	if a := adviceFor(code); a.level == levelBad {
		return a.todo
	}
	return ""
}
