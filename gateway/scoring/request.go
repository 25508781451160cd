package scoring

import (
	"strconv"

	"penstock/gateway/body"
)

// The kinds of engines, as the configuration names them.
const (
	KindSGLang = "sglang"
	KindVLLM   = "vllm"
	KindOpenAI = "openai"
	KindLocal  = "local"
)

// Request is what one part of a job sends to one engine.
type Request struct {
	Path string        // the path to send it to; empty: the client's own
	Body body.Segments // valid until the edits or the view change
	Part Part

	kind   string
	native bool // sent to /generate in place of /v1/completions
}

// Request writes what part p sends to an engine of that kind. e holds the caller's own edits (model name, rank,
// cache salt) and takes on further ones; segs is appended to.
func (j *Job) Request(kind string, p Part, e *body.Edits, segs body.Segments) Request {
	r := Request{Part: p, kind: kind, Path: j.Path(kind)}
	if r.Path != "" {
		r.native = true
		r.Body = j.generateBody(p, e, segs)
		return r
	}
	if j.mode == echo && j.v.Stream {
		e.Set("stream", []byte("false"))
		e.Delete("stream_options")
	}
	if j.mode == echo && kind == KindSGLang && j.v.Logprobs == 0 {
		e.Set("logprobs", []byte("1")) // for 0 it leaves the prompt out
	}
	if p.From > 0 || p.To < j.prompts() {
		e.SetList("prompt", j.elements(p))
	}
	if e.Empty() {
		r.Body = append(segs, j.v.Body)
	} else {
		r.Body = j.v.Apply(e, segs)
	}
	return r
}

// Path is where the job is sent on an engine of that kind; empty: to the client's own path.
func (j *Job) Path(kind string) string {
	if j.mode == echo && kind == KindSGLang && j.maxTokens() == 0 {
		return "/generate"
	}
	return ""
}

// elements are the part's prompts as the batch has them, the commas between them included.
func (j *Job) elements(p Part) []byte {
	return j.v.Body[j.v.Prompts[p.From].Start:j.v.Prompts[p.To-1].End]
}

// generateBody writes an echo request in the words of SGLang's /generate. A few hundred bytes of it are new;
// the prompts and the other values are the client's.
func (j *Job) generateBody(p Part, e *body.Edits, segs body.Segments) body.Segments {
	b := make([]byte, 0, 512)
	b = append(b, `{"return_logprob":true,"logprob_start_len":0,"return_text_in_logprobs":true,"stream":false,"top_logprobs_num":`...)
	b = strconv.AppendInt(b, int64(max(1, j.v.Logprobs)), 10)
	b = append(b, `,"sampling_params":{"max_new_tokens":`...)
	b = strconv.AppendInt(b, int64(j.maxTokens()), 10)
	for name, value := range j.v.Fields() {
		if to := samplingParam(string(name)); to != "" && string(value) != "null" {
			b = append(append(append(b, `,"`...), to...), `":`...)
			b = append(b, value...)
		}
	}
	b = append(b, '}')
	set := map[string]bool{}
	e.Each(func(name string, before, value, after []byte) {
		if to := generateField(name); to != "" && !set[to] {
			set[to] = true
			b = append(append(append(b, `,"`...), to...), `":`...)
			b = append(append(append(b, before...), value...), after...)
		}
	})
	for name, value := range j.v.Fields() {
		if to := generateField(string(name)); to != "" && !set[to] && string(value) != "null" {
			set[to] = true
			b = append(append(append(b, `,"`...), to...), `":`...)
			b = append(b, value...)
		}
	}
	field := `,"text":`
	if j.v.Prompts[p.From].Kind == body.Tokens {
		field = `,"input_ids":`
	}
	b = append(b, field...)
	prompts := j.elements(p)
	if p.To-p.From == 1 && len(j.v.Prompts) == 1 {
		return append(segs, b, prompts, []byte{'}'})
	}
	return append(segs, append(b, '['), prompts, []byte("]}"))
}

// samplingParam is what a field of completions is called in sampling_params; empty: it is none.
func samplingParam(name string) string {
	switch name {
	case "temperature", "top_p", "top_k", "min_p", "stop", "stop_token_ids", "stop_regex", "presence_penalty", "frequency_penalty",
		"repetition_penalty", "regex", "json_schema", "ebnf", "structural_tag", "no_stop_trim", "ignore_eos", "skip_special_tokens",
		"logit_bias", "n", "custom_params":
		return name
	case "min_tokens":
		return "min_new_tokens"
	case "seed":
		return "sampling_seed"
	}
	return ""
}

// generateField is what a field of completions is called in /generate; empty: it does not go there.
func generateField(name string) string {
	switch name {
	case "lora_path", "priority", "extra_key", "routed_dp_rank", "data_parallel_rank", "bootstrap_host", "bootstrap_port", "bootstrap_room",
		"custom_logit_processor", "session_params", "rid":
		return name
	case "cache_salt":
		return "extra_key" // its OpenAI route does the same
	}
	return ""
}
