package local

import (
	"encoding/json"
	"strings"

	"penstock/engine/local/lm"
)

// readPrompts fills in the prompts: the one chat, or all four forms of a
// completion's prompt.
func (s *Server) readPrompts(c *call, w *wire) error {
	if !c.chat {
		prompts, err := s.completionPrompts(w.Prompt)
		c.prompts = prompts
		return err
	}
	if len(w.Messages) == 0 {
		return badRequest("messages", "1 validation error: messages: a list of at least one message is required.")
	}
	tools := strings.TrimSpace(string(w.Tools))
	if tools == "null" || tools == "[]" {
		tools = ""
	}
	c.prompts = []prompt{{tokens: s.chatTokens(w.Messages, tools, true)}}
	return nil
}

// chatTokens writes a conversation as the model reads it. Tools are shown to
// it, as a template would, but it never calls one.
func (s *Server) chatTokens(messages []message, tools string, answer bool) []uint32 {
	n := 0
	for i := range messages {
		n += len(messages[i].Content)
	}
	t := make([]uint32, 0, n/2+len(tools)/2+16*len(messages))
	if tools != "" {
		t = s.turn(t, "system", "Tools: "+tools)
	}
	for _, m := range messages {
		text := string(m.Content)
		if calls := string(m.ToolCalls); calls != "" && calls != "null" {
			text += "\n" + calls
		}
		t = s.turn(t, m.Role, text)
	}
	if answer {
		t = s.model.EncodePlain(append(t, lm.StartTurn), "assistant\n")
	}
	return t
}

func (s *Server) turn(t []uint32, role, text string) []uint32 {
	t = s.model.EncodePlain(append(t, lm.StartTurn), role)
	t = s.model.EncodePlain(t, "\n")
	t = append(s.model.EncodePlain(t, text), lm.EndTurn)
	return s.model.EncodePlain(t, "\n")
}

// completionPrompts reads a string, a list of strings, a list of ids or a list
// of lists of ids.
func (s *Server) completionPrompts(raw json.RawMessage) ([]prompt, error) {
	bad := badRequest("prompt", "prompt: expected a string, a list of strings, a list of token ids or a list of lists of token ids.")
	if len(raw) == 0 {
		return nil, badRequest("prompt", "1 validation error: prompt: field required.")
	}
	if text, ok := unquote(raw); ok {
		return s.checkPrompts([]prompt{s.textPrompt(text)})
	}
	if ids, ok := readIDs(raw); ok {
		return s.checkPrompts([]prompt{{tokens: ids}})
	}
	items, ok := elements(raw)
	if !ok {
		return nil, bad
	}
	prompts := make([]prompt, len(items))
	for i, item := range items {
		if item[0] != items[0][0] {
			return nil, bad // strings and lists mixed
		}
		if text, ok := unquote(item); ok {
			prompts[i] = s.textPrompt(text)
		} else if prompts[i].tokens, ok = readIDs(item); !ok {
			return nil, bad
		}
	}
	return s.checkPrompts(prompts)
}

func (s *Server) textPrompt(text string) prompt {
	return prompt{tokens: s.model.Encode(make([]uint32, 0, len(text)/3+1), text), text: text, isText: true}
}

// maxPrompts bounds one request's prompts, as vLLM does.
const maxPrompts = 1024

func (s *Server) checkPrompts(prompts []prompt) ([]prompt, error) {
	if len(prompts) == 0 {
		return nil, badRequest("prompt", "prompt: must not be empty.")
	}
	if len(prompts) > maxPrompts {
		return nil, badRequest("prompt", "prompt: %d prompts in one request, at most %d are allowed.", len(prompts), maxPrompts)
	}
	for _, p := range prompts {
		if len(p.tokens) == 0 {
			return nil, badRequest("prompt", "prompt: must not be empty.")
		}
		for _, id := range p.tokens {
			if int(id) >= s.model.Size() {
				return nil, badRequest("prompt", "prompt: token id %d is out of the vocabulary of %d.", id, s.model.Size())
			}
		}
	}
	return prompts, nil
}
