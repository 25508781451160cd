package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// score asks for the log-probabilities of a prompt, as perplexity evals do, and
// checks that they are there: some endpoints answer 200 without them.
func (e *Endpoint) score(ctx context.Context, text []byte) *sample {
	b := appendJSON([]byte(`{"model":`), e.Model)
	b = appendJSON(append(b, `,"prompt":`...), string(text))
	b = append(b, `,"max_tokens":1,"echo":true,"logprobs":1,"temperature":0}`...)
	ctx, cancel := context.WithTimeoutCause(ctx, e.silence, errSilent)
	defer cancel()
	s := &sample{start: time.Now()}
	s.scored(ctx, e, b)
	if s.latency == 0 {
		s.latency = time.Since(s.start)
	}
	if s.kind != "" {
		s.blame(context.Cause(ctx))
	}
	return s
}

func (s *sample) scored(ctx context.Context, e *Endpoint, body []byte) {
	req, err := e.request(ctx, http.MethodPost, "/completions", bytes.NewReader(body))
	if err != nil {
		s.fail(kindBad, err)
		return
	}
	resp, err := e.client.Do(req)
	if err != nil {
		s.fail(kindOf(err), err)
		return
	}
	defer resp.Body.Close()
	s.status = resp.StatusCode
	if resp.StatusCode != http.StatusOK {
		s.refused(resp)
		return
	}
	whole, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		s.fail(kindLost, err)
		return
	}
	var a answer
	if err := json.Unmarshal(whole, &a); err != nil {
		s.fail(kindBad, err)
		return
	}
	s.take(a.Usage)
	if err := a.checkLogprobs(); err != nil {
		s.fail("NoLogprobs", err)
	}
}

// checkLogprobs wants a number for each token of the prompt but the first, and
// not zero for all.
func (a *answer) checkLogprobs() error {
	if len(a.Choices) == 0 || a.Choices[0].Logprobs == nil {
		return errors.New("no log-probabilities in the answer")
	}
	all := a.Choices[0].Logprobs.TokenLogprobs
	if a.Usage != nil && len(all) < a.Usage.PromptTokens {
		return fmt.Errorf("%d log-probabilities for a prompt of %d tokens", len(all), a.Usage.PromptTokens)
	}
	sum := 0.0
	for i, p := range all {
		if p == nil && i > 0 {
			return fmt.Errorf("token %d has no log-probability", i)
		}
		if p != nil {
			sum += *p
		}
	}
	if sum == 0 {
		return errors.New("all log-probabilities are zero")
	}
	return nil
}
