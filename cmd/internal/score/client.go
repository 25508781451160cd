package score

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"
)

// maxAnswer bounds what is read of an answer.
const maxAnswer = 1 << 30

// client speaks to the endpoint. Its methods may be called by many goroutines.
type client struct {
	base    string
	model   string
	key     string
	http    *http.Client
	timeout time.Duration
	retries int
	// full: send max_tokens 1 and logprobs 1, since the endpoint refuses 0.
	full atomic.Bool
	// pause is what one more attempt waits where the endpoint does not say; tests shorten it.
	pause time.Duration
}

// refusal is an answer with another status than 200.
type refusal struct {
	status  int
	message string
	after   time.Duration // the endpoint's own word on when to try again; 0: none
	never   bool          // it says that trying again is of no use
}

func (r *refusal) Error() string { return fmt.Sprintf("HTTP %d: %s", r.status, r.message) }

// again says whether another attempt may fare better.
func (r *refusal) again() bool {
	return !r.never && (r.status == http.StatusTooManyRequests || r.status == http.StatusRequestTimeout || r.status >= 500)
}

// errBad is an answer that holds something else than was asked for: asking again is of no use.
var errBad = errors.New("unusable answer")

// post sends body and decodes the answer, with as many attempts as it may take.
func (c *client) post(ctx context.Context, path string, body []byte, into any) error {
	for attempt := 0; ; attempt++ {
		err := c.once(ctx, http.MethodPost, path, body, into)
		if err == nil || ctx.Err() != nil || errors.Is(err, errBad) || attempt >= c.retries {
			return err
		}
		wait := min(c.pause<<min(attempt, 6), 30*time.Second)
		wait += rand.N(wait/4 + 1)
		if r, ok := errors.AsType[*refusal](err); ok {
			if !r.again() {
				return err
			}
			if r.after > 0 {
				wait = r.after
			}
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return err
		}
	}
}

func (c *client) once(ctx context.Context, method, path string, body []byte, into any) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "penstock-score")
	if c.key != "" {
		req.Header.Set("Authorization", "Bearer "+c.key)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return refused(resp, b)
	}
	if err := json.Unmarshal(b, into); err != nil {
		return fmt.Errorf("%w to %s: %w", errBad, path, err)
	}
	return nil
}

// refused reads an error answer: OpenAI's shape, SGLang's flat one, or whatever it is.
func refused(resp *http.Response, b []byte) *refusal {
	var e struct {
		Error   json.RawMessage `json:"error"`
		Message string          `json:"message"`
	}
	r := &refusal{status: resp.StatusCode, message: string(bytes.TrimSpace(b[:min(len(b), 300)]))}
	if json.Unmarshal(b, &e) == nil {
		var inner struct {
			Message string `json:"message"`
		}
		switch {
		case json.Unmarshal(e.Error, &inner) == nil && inner.Message != "":
			r.message = inner.Message
		case e.Message != "":
			r.message = e.Message
		}
	}
	r.never = resp.Header.Get("X-Should-Retry") == "false"
	if ms, err := strconv.Atoi(resp.Header.Get("Retry-After-Ms")); err == nil {
		r.after = time.Duration(ms) * time.Millisecond
	} else if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil {
		r.after = time.Duration(s) * time.Second
	}
	return r
}

// firstModel is the first model that the endpoint lists.
func (c *client) firstModel(ctx context.Context) (string, error) {
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := c.once(ctx, http.MethodGet, "/v1/models", nil, &list); err != nil {
		return "", fmt.Errorf("asking %s for its models: %w", c.base, err)
	}
	if len(list.Data) == 0 {
		return "", fmt.Errorf("%s lists no model: name one with --model", c.base)
	}
	return list.Data[0].ID, nil
}

// tokenize turns text into ids, without special tokens.
func (c *client) tokenize(ctx context.Context, text string) ([]int, error) {
	body, err := json.Marshal(map[string]any{"model": c.model, "prompt": text, "add_special_tokens": false})
	if err != nil {
		return nil, err
	}
	var answer struct {
		Tokens []int `json:"tokens"`
	}
	err = c.post(ctx, "/tokenize", body, &answer)
	if r, ok := errors.AsType[*refusal](err); ok && (r.status == http.StatusNotFound || r.status == http.StatusMethodNotAllowed) {
		return nil, fmt.Errorf("the endpoint has no /tokenize (%w): --text-bytes 4000 scores pieces of text instead", err)
	}
	return answer.Tokens, err
}

// completion is an answer to echo, so far as it is needed.
type completion struct {
	Choices []struct {
		Index    int `json:"index"`
		Logprobs *struct {
			TokenLogprobs []*float64 `json:"token_logprobs"`
		} `json:"logprobs"`
	} `json:"choices"`
}

// score asks for the log-probabilities of a batch of windows.
func (c *client) score(ctx context.Context, batch []window) ([]result, error) {
	full := c.full.Load()
	var answer completion
	err := c.post(ctx, "/v1/completions", c.scoreBody(batch, full), &answer)
	if r, ok := errors.AsType[*refusal](err); ok && r.status == http.StatusBadRequest && !full {
		// Some endpoints refuse a request that generates nothing. Another 400 comes again.
		answer = completion{}
		if err = c.post(ctx, "/v1/completions", c.scoreBody(batch, true), &answer); err == nil {
			c.full.Store(true)
			full = true
		}
	}
	if err != nil {
		return nil, err
	}
	return results(batch, &answer, full)
}

func (c *client) scoreBody(batch []window, full bool) []byte {
	prompts := make([]any, len(batch))
	for i, w := range batch {
		if prompts[i] = w.text; w.ids != nil {
			prompts[i] = w.ids
		}
	}
	least := 0
	if full {
		least = 1
	}
	b, _ := json.Marshal(map[string]any{ // of such values it always can
		"model": c.model, "prompt": prompts, "echo": true, "logprobs": least, "max_tokens": least, "temperature": 0,
	})
	return b
}

// results reads the windows' log-probabilities. What is missing is an error: a perplexity of less than the text
// would look like a better one.
func results(batch []window, answer *completion, full bool) ([]result, error) {
	if len(answer.Choices) != len(batch) {
		return nil, fmt.Errorf("%w: %d choices for %d prompts", errBad, len(answer.Choices), len(batch))
	}
	out := make([]result, len(batch))
	for _, ch := range answer.Choices {
		if ch.Index < 0 || ch.Index >= len(batch) || out[ch.Index].done || ch.Logprobs == nil {
			return nil, fmt.Errorf("%w: choice %d has no logprobs, or comes twice", errBad, ch.Index)
		}
		lps := ch.Logprobs.TokenLogprobs
		w := batch[ch.Index]
		n := len(lps)
		if full && n > 0 {
			n-- // the generated one
		}
		if w.ids != nil && len(w.ids) != n {
			return nil, fmt.Errorf("%w: %d log-probabilities for %d tokens", errBad, n, len(w.ids))
		}
		count := w.count
		if w.ids == nil {
			count = max(0, n-1)
		}
		r := result{done: true, tokens: count}
		for i := n - count; i < n; i++ {
			if lps[i] == nil || math.IsNaN(*lps[i]) || math.IsInf(*lps[i], 0) {
				return nil, fmt.Errorf("%w: no log-probability for token %d", errBad, i)
			}
			r.sum += *lps[i]
		}
		out[ch.Index] = r
	}
	return out, nil
}
