package local

import (
	"encoding/json"
	"strings"

	"github.com/valyala/fasthttp"

	"penstock/engine/local/lm"
)

// tokenizeWire is the body of /tokenize: a prompt or a chat.
type tokenizeWire struct {
	Prompt   json.RawMessage `json:"prompt"`
	Text     json.RawMessage `json:"text"`
	Messages []message       `json:"messages"`
	Tools    json.RawMessage `json:"tools"`
	Answer   *bool           `json:"add_generation_prompt"`
	Strings  bool            `json:"return_token_strs"`
}

func (s *Server) serveTokenize(ctx *fasthttp.RequestCtx) error {
	var w tokenizeWire
	if err := json.Unmarshal(ctx.PostBody(), &w); err != nil {
		return jsonError(err)
	}
	if len(w.Prompt) == 0 {
		w.Prompt = w.Text
	}
	switch {
	case len(w.Messages) > 0:
		answerOrNot := w.Answer == nil || *w.Answer
		answer(ctx, s.tokenized(s.chatTokens(w.Messages, strings.TrimSpace(string(w.Tools)), answerOrNot), w.Strings))
		return nil
	case len(w.Prompt) == 0:
		return badRequest("prompt", "1 validation error: prompt: field required.")
	case w.Prompt[0] == '[' && s.opts.Kind == SGLang:
		return s.tokenizeList(ctx, w.Prompt)
	}
	var text string
	if json.Unmarshal(w.Prompt, &text) != nil {
		return badRequest("prompt", "prompt: expected a string.")
	}
	answer(ctx, s.tokenized(s.model.Encode(nil, text), w.Strings))
	return nil
}

func (s *Server) tokenized(tokens []uint32, strs bool) []byte {
	var b []byte
	if s.opts.Kind == SGLang {
		b = appendIDs(append(b, `{"tokens":`...), tokens)
		b = appendInt(append(b, `,"count":`...), len(tokens))
		b = appendInt(append(b, `,"max_model_len":`...), s.opts.ContextLen)
		return append(b, '}')
	}
	b = appendInt(append(b, `{"count":`...), len(tokens))
	b = appendInt(append(b, `,"max_model_len":`...), s.opts.ContextLen)
	b = appendIDs(append(b, `,"tokens":`...), tokens)
	b = append(b, `,"token_strs":`...)
	if !strs {
		return append(b, "null}"...)
	}
	b = append(b, '[')
	for i, w := range tokens {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, s.model.Text(w))
	}
	return append(b, "]}"...)
}

// tokenizeList answers SGLang's form for several texts: a list for each field.
func (s *Server) tokenizeList(ctx *fasthttp.RequestCtx, raw json.RawMessage) error {
	var texts []string
	if json.Unmarshal(raw, &texts) != nil {
		return badRequest("prompt", "prompt: expected a string or a list of strings.")
	}
	b := []byte(`{"tokens":[`)
	var counts []uint32
	for i, text := range texts {
		if i > 0 {
			b = append(b, ',')
		}
		tokens := s.model.Encode(nil, text)
		b = appendIDs(b, tokens)
		counts = append(counts, uint32(len(tokens)))
	}
	b = appendIDs(append(b, `],"count":`...), counts)
	b = appendInt(append(b, `,"max_model_len":`...), s.opts.ContextLen)
	answer(ctx, append(b, '}'))
	return nil
}

func (s *Server) serveDetokenize(ctx *fasthttp.RequestCtx) error {
	var w struct {
		Tokens json.RawMessage `json:"tokens"`
	}
	if err := json.Unmarshal(ctx.PostBody(), &w); err != nil {
		return jsonError(err)
	}
	field := `{"text":`
	if s.opts.Kind == VLLM {
		field = `{"prompt":`
	}
	var lists [][]uint32
	if s.opts.Kind == SGLang && json.Unmarshal(w.Tokens, &lists) == nil && len(lists) > 0 {
		b := append([]byte(field), '[')
		for i, ids := range lists {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendString(b, s.detokenize(ids))
		}
		answer(ctx, append(b, "]}"...))
		return nil
	}
	var ids []uint32
	if len(w.Tokens) == 0 || json.Unmarshal(w.Tokens, &ids) != nil {
		return badRequest("tokens", "tokens: expected a list of token ids.")
	}
	for _, id := range ids {
		if int(id) >= s.model.Size() {
			return badRequest("tokens", "tokens: id %d is out of the vocabulary of %d.", id, s.model.Size())
		}
	}
	answer(ctx, append(appendString([]byte(field), s.detokenize(ids)), '}'))
	return nil
}

func (s *Server) detokenize(ids []uint32) []byte {
	var d lm.Detok
	var b []byte
	for _, id := range ids {
		b = d.Append(b, s.model.Text(id))
	}
	return d.Flush(b)
}

// chatTemplate says in Jinja what chatTokens does, for tokenizers elsewhere.
const chatTemplate = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"

func (s *Server) serveTokenizerInfo(ctx *fasthttp.RequestCtx) error {
	b := []byte(`{"tokenizer_class":"PenstockLocalTokenizer","bos_token":null,"eos_token":`)
	b = appendString(b, s.model.Text(lm.EndTurn))
	b = appendString(append(b, `,"pad_token":`...), s.model.Text(lm.EndOfText))
	b = appendInt(append(b, `,"vocab_size":`...), s.model.Size())
	b = appendInt(append(b, `,"model_max_length":`...), s.opts.ContextLen)
	b = appendString(append(b, `,"chat_template":`...), chatTemplate)
	answer(ctx, append(b, '}'))
	return nil
}
