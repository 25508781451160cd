package bench

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// answer is a whole answer, or an event of a stream: of chat or of completions.
type answer struct {
	Choices []choice        `json:"choices"`
	Usage   *usage          `json:"usage"`
	Error   json.RawMessage `json:"error"`
	Message string          `json:"message"` // of an error body without "error"
	Object  string          `json:"object"`
	Code    any             `json:"code"`
}

type choice struct {
	Text     string           `json:"text"`
	Delta    *said            `json:"delta"`
	Message  *said            `json:"message"`
	Logprobs *choiceLogprobs  `json:"logprobs"`
	Tools    *json.RawMessage `json:"tool_calls"`
}

type said struct {
	Content          string          `json:"content"`
	Reasoning        string          `json:"reasoning"`
	ReasoningContent string          `json:"reasoning_content"`
	ToolCalls        json.RawMessage `json:"tool_calls"`
}

type choiceLogprobs struct {
	TokenLogprobs []*float64 `json:"token_logprobs"`
}

type usage struct {
	PromptTokens     int `json:"prompt_tokens"`
	CompletionTokens int `json:"completion_tokens"`
	Details          *struct {
		CachedTokens int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

// text is what a choice says, in the fields that answers are streamed in.
func (c *choice) text() string {
	for _, m := range []*said{c.Delta, c.Message} {
		if m != nil {
			return m.ReasoningContent + m.Reasoning + m.Content
		}
	}
	return c.Text
}

// bears tells whether an event carries a part of the answer, not only a role
// or an end.
func (c *choice) bears() bool {
	return c.text() != "" || c.Delta != nil && len(c.Delta.ToolCalls) > 0 && string(c.Delta.ToolCalls) != "null"
}

// failure is the code and the message of an error, "" without one.
func (a *answer) failure() (code, message string) {
	if len(a.Error) == 0 || string(a.Error) == "null" {
		if a.Object == "error" {
			return codeText(a.Code), a.Message
		}
		return "", ""
	}
	var e struct {
		Message string `json:"message"`
		Type    string `json:"type"`
		Code    any    `json:"code"`
	}
	if json.Unmarshal(a.Error, &e) != nil {
		return "", string(a.Error)
	}
	if code = codeText(e.Code); code == "" {
		code = e.Type
	}
	if e.Message == "" {
		e.Message = "an error without a message"
	}
	return code, e.Message
}

func codeText(code any) string {
	if code == nil {
		return ""
	}
	return fmt.Sprint(code)
}

func (s *sample) take(u *usage) {
	if u == nil {
		return
	}
	s.in, s.out, s.reported = u.PromptTokens, u.CompletionTokens, true
	if u.Details != nil {
		s.cached = u.Details.CachedTokens
	}
}

// readStream reads events until the end marker.
func (s *sample) readStream(r io.Reader, alive func()) {
	in := bufio.NewReaderSize(r, 16<<10)
	var last time.Time
	for {
		line, err := readLine(in)
		if err != nil {
			s.endedEarly(err)
			return
		}
		data, ok := bytes.CutPrefix(line, []byte("data:"))
		if !ok {
			continue
		}
		alive()
		data = bytes.TrimSpace(data)
		if string(data) == "[DONE]" {
			s.finish(last)
			return
		}
		if !s.event(data, &last) {
			return
		}
	}
}

// event takes in one event; false when it is an error.
func (s *sample) event(data []byte, last *time.Time) bool {
	now := time.Now()
	var a answer
	if err := json.Unmarshal(data, &a); err != nil {
		s.fail(kindBad, err)
		return false
	}
	if s.code, s.message = a.failure(); s.code != "" || s.message != "" {
		s.kind = kindStream
		return false
	}
	s.take(a.Usage)
	bears := false
	for i := range a.Choices {
		bears = bears || a.Choices[i].bears()
		s.text = append(s.text, a.Choices[i].text()...)
	}
	switch {
	case !bears:
		return true
	case s.ttft == 0:
		s.ttft = now.Sub(s.start)
	default:
		s.gaps = append(s.gaps, now.Sub(*last))
	}
	*last = now
	if !s.reported {
		s.out++
	}
	return true
}

// finish notes the end of an answer: its last text, not the end of the stream.
func (s *sample) finish(last time.Time) {
	if !last.IsZero() {
		s.latency = last.Sub(s.start)
	}
}

func (s *sample) endedEarly(err error) {
	if errors.Is(err, io.EOF) {
		s.fail(kindTruncated, errors.New("the stream ended without [DONE]"))
		return
	}
	s.fail(kindLost, err)
}

// readLine reads a line of any length, without its end.
func readLine(r *bufio.Reader) ([]byte, error) {
	line, err := r.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		long := append([]byte(nil), line...)
		for errors.Is(err, bufio.ErrBufferFull) {
			line, err = r.ReadSlice('\n')
			long = append(long, line...)
			if len(long) > maxAnswer {
				return nil, fmt.Errorf("a line of more than %d bytes", maxAnswer)
			}
		}
		line = long
	}
	if err != nil && (len(line) == 0 || !errors.Is(err, io.EOF)) {
		return nil, err
	}
	return bytes.TrimRight(line, "\r\n"), nil
}
