package scripted

import (
	"encoding/json"
	"strings"
)

type object = map[string]any

// unknown is a field that no SDK knows; its number must arrive as it is written.
func unknown() json.RawMessage { return json.RawMessage(`{"nested":[1,2.50,"é"]}`) }

const created = 1_700_000_000

func usage() object {
	return object{
		"prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 25,
		"prompt_tokens_details": object{"cached_tokens": 16},
	}
}

// reply is what a chat answers, whole or in pieces.
type reply struct {
	content   string
	reasoning string
	tool      object // a function call
	finish    string
}

func (c *call) reply() reply {
	switch c.script {
	case "tools":
		for _, m := range c.body.Messages {
			if m.Role == "tool" {
				return reply{content: "It is " + textOf(m.Content) + ".", finish: "stop"}
			}
		}
		return reply{tool: object{"name": "get_weather", "arguments": `{"city":"Oslo"}`}, finish: "tool_calls"}
	case "schema":
		return reply{content: `{"answer":42,"unit":"m"}`, finish: "stop"}
	case "reason":
		return reply{reasoning: "First, the river.", content: "The sea.", finish: "stop"}
	case "vision":
		return reply{content: "parts: " + strings.Join(c.partTypes(), ","), finish: "stop"}
	}
	return reply{content: "You said: " + c.text, finish: "stop"}
}

// partTypes lists the kinds of parts of the last message.
func (c *call) partTypes() []string {
	var parts []struct {
		Type string `json:"type"`
	}
	if err := json.Unmarshal(c.body.Messages[len(c.body.Messages)-1].Content, &parts); err != nil {
		return []string{"not parts: " + err.Error()}
	}
	var types []string
	for _, p := range parts {
		types = append(types, p.Type)
	}
	return types
}

func (c *call) chat() {
	r := c.reply()
	if c.body.Stream {
		c.events(c.chunks(r)...)
		return
	}
	message := object{"role": "assistant", "content": r.content}
	if r.reasoning != "" {
		message["reasoning_content"] = r.reasoning
	}
	if r.tool != nil {
		message["content"] = nil
		message["tool_calls"] = []any{object{"id": "call_1", "type": "function", "function": r.tool}}
	}
	writeJSON(c.w, object{
		"id": "chatcmpl-1", "object": "chat.completion", "created": created, "model": c.body.Model,
		"choices":  []any{object{"index": 0, "message": message, "finish_reason": r.finish, "logprobs": nil}},
		"usage":    usage(),
		"x_engine": unknown(),
	})
}

// chunks are the events of a stream, [DONE] included.
func (c *call) chunks(r reply) []any {
	deltas := []object{{"role": "assistant", "content": ""}}
	for _, word := range words(r.reasoning) {
		deltas = append(deltas, object{"reasoning_content": word})
	}
	for _, word := range words(r.content) {
		deltas = append(deltas, object{"content": word})
	}
	if r.tool != nil {
		deltas = append(deltas,
			object{"tool_calls": []any{object{"index": 0, "id": "call_1", "type": "function", "function": object{"name": r.tool["name"], "arguments": ""}}}},
			object{"tool_calls": []any{object{"index": 0, "function": object{"arguments": r.tool["arguments"]}}}})
	}
	var events []any
	for _, delta := range deltas {
		events = append(events, c.chunk(delta, nil))
	}
	events = append(events, c.chunk(object{}, r.finish))
	if c.body.StreamOptions.IncludeUsage {
		last := c.chunk(nil, nil)
		last["choices"], last["usage"] = []any{}, usage()
		events = append(events, last)
	}
	return append(events, "[DONE]")
}

func (c *call) chunk(delta object, finish any) object {
	return object{
		"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": created, "model": c.body.Model,
		"choices":  []any{object{"index": 0, "delta": delta, "finish_reason": finish}},
		"x_engine": unknown(),
	}
}

// words splits a text behind each space, so that the pieces make it up again.
func words(text string) []string {
	if text == "" {
		return nil
	}
	return strings.SplitAfter(text, " ")
}
