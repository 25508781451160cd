package scripted

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"net/http"
	"strings"
)

func modelList() object {
	return object{"object": "list", "data": []any{
		object{"id": Model, "object": "model", "created": created, "owned_by": "org", "root": Model, "max_model_len": 32768},
	}}
}

func (c *call) completion() {
	text := "You said: " + c.text
	if !c.body.Stream {
		writeJSON(c.w, c.textCompletion(text, "stop"))
		return
	}
	var events []any
	for _, word := range words(text) {
		events = append(events, c.textCompletion(word, nil))
	}
	c.events(append(events, c.textCompletion("", "stop"), "[DONE]")...)
}

func (c *call) textCompletion(text string, finish any) object {
	o := object{
		"id": "cmpl-1", "object": "text_completion", "created": created, "model": c.body.Model,
		"choices":  []any{object{"index": 0, "text": text, "finish_reason": finish, "logprobs": nil}},
		"x_engine": unknown(),
	}
	if !c.body.Stream {
		o["usage"] = usage()
	}
	return o
}

// Vector is what the upstream embeds a text as: four numbers from its hash.
func Vector(text string) []float32 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(text))
	sum := h.Sum64()
	var v []float32
	for i := range 4 {
		v = append(v, float32(sum>>(16*i)&0xffff)/65536)
	}
	return v
}

func (c *call) embeddings() {
	v := Vector(c.text)
	var out any = v
	if c.body.EncodingFormat == "base64" {
		var raw []byte
		for _, x := range v {
			raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(x))
		}
		out = base64.StdEncoding.EncodeToString(raw)
	}
	writeJSON(c.w, object{
		"object": "list", "model": c.body.Model,
		"data":  []any{object{"object": "embedding", "index": 0, "embedding": out}},
		"usage": object{"prompt_tokens": 4, "total_tokens": 4},
	})
}

func (c *call) responses() {
	id := "resp_1"
	if rest, ok := strings.CutPrefix(c.r.URL.Path, "/v1/responses/"); ok {
		id, _, _ = strings.Cut(rest, "/")
	}
	text := "You said: " + c.text
	if c.body.PreviousResponseID != "" {
		text = "After " + c.body.PreviousResponseID + ": " + c.text
	}
	if !c.body.Stream {
		writeJSON(c.w, c.response(id, "completed", text))
		return
	}
	c.w.Header().Set("Content-Type", "text/event-stream")
	item := object{"item_id": "msg_1", "output_index": 0, "content_index": 0}
	number := 0
	send := func(typ string, more object) {
		e := object{"type": typ, "sequence_number": number}
		number++
		maps.Copy(e, more)
		c.event(typ, e)
	}
	send("response.created", object{"response": c.response(id, "in_progress", "")})
	for _, word := range words(text) {
		delta := object{"delta": word, "logprobs": []any{}}
		maps.Copy(delta, item)
		send("response.output_text.delta", delta)
	}
	if c.script == "unfinished" {
		return
	}
	send("response.completed", object{"response": c.response(id, "completed", text)})
}

func (c *call) response(id, status, text string) object {
	output := []any{}
	if text != "" {
		output = append(output, object{
			"id": "msg_1", "type": "message", "role": "assistant", "status": "completed",
			"content": []any{object{"type": "output_text", "text": text, "annotations": []any{}}},
		})
	}
	return object{
		"id": id, "object": "response", "created_at": created, "status": status, "model": c.body.Model,
		"output": output, "parallel_tool_calls": true, "tool_choice": "auto", "tools": []any{}, "error": nil,
		"usage": object{
			"input_tokens": 20, "output_tokens": 5, "total_tokens": 25,
			"input_tokens_details": object{"cached_tokens": 16}, "output_tokens_details": object{"reasoning_tokens": 0},
		},
	}
}

// messages is Anthropic's route.
func (c *call) messages() {
	text := "You said: " + c.text
	start := object{
		"id": "msg_1", "type": "message", "role": "assistant", "model": c.body.Model, "content": []any{},
		"stop_reason": nil, "stop_sequence": nil, "usage": object{"input_tokens": 4, "cache_read_input_tokens": 16, "output_tokens": 1},
	}
	if !c.body.Stream {
		start["content"] = []any{object{"type": "text", "text": text}}
		start["stop_reason"] = "end_turn"
		writeJSON(c.w, start)
		return
	}
	c.w.Header().Set("Content-Type", "text/event-stream")
	c.event("message_start", object{"type": "message_start", "message": start})
	c.event("content_block_start", object{"type": "content_block_start", "index": 0, "content_block": object{"type": "text", "text": ""}})
	for _, word := range words(text) {
		c.event("content_block_delta", object{"type": "content_block_delta", "index": 0, "delta": object{"type": "text_delta", "text": word}})
	}
	c.event("content_block_stop", object{"type": "content_block_stop", "index": 0})
	c.event("message_delta", object{"type": "message_delta", "delta": object{"stop_reason": "end_turn"}, "usage": object{"output_tokens": 5}})
	if c.script != "unfinished" {
		c.event("message_stop", object{"type": "message_stop"})
	}
}

// fail answers as an engine does that is in trouble.
func (c *call) fail(status int, code string) {
	c.w.Header().Set("Content-Type", "application/json")
	c.w.WriteHeader(status)
	fmt.Fprintf(c.w, `{"error":{"message":%q,"type":"server_error","param":null,"code":%q}}`, http.StatusText(status), code)
}
