package replay

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

// HTTPOptions say how a trace is sent to a running gateway.
type HTTPOptions struct {
	Model string // asked for; empty: the first that the gateway lists
	Key   string // the API key
	Most  int    // requests in flight at once; 0: as many as the trace has
}

const (
	// lineLimit bounds one line of a stream.
	lineLimit = 1 << 20
	// requestLimit bounds one request of the replay.
	requestLimit = 30 * time.Minute
)

// client sends one trace.
type client struct {
	http  *http.Client
	base  string
	o     HTTPOptions
	trace *Trace

	mu     sync.Mutex
	out    samples
	failed int
	why    error // the first failure
}

// overHTTP sends every row at its time and measures the answers from here.
// What only the replicas know (hotspot, imbalance, regret) stays zero.
func overHTTP(ctx context.Context, t *Trace, o Options, stderr io.Writer) (Result, error) {
	transport := &http.Transport{MaxIdleConnsPerHost: 1024}
	defer transport.CloseIdleConnections()
	c := &client{http: &http.Client{Transport: transport, Timeout: requestLimit}, base: strings.TrimRight(o.BaseURL, "/"), o: o.HTTP, trace: t}
	if c.o.Model == "" {
		name, err := c.firstModel(ctx)
		if err != nil {
			return Result{}, err
		}
		c.o.Model = name
	}
	if err := c.sendAll(ctx, cmp.Or(o.Fleet.Speed, 1), o.Fleet.Unstreamed); err != nil {
		return Result{}, err
	}
	if c.failed > 0 {
		fmt.Fprintf(stderr, "%d of %d requests failed; the first: %v\n", c.failed, len(t.Rows), c.why)
	}
	if c.failed == len(t.Rows) {
		return Result{}, fmt.Errorf("every request to %s failed; the first: %w", c.base, c.why)
	}
	r := c.out.result("gateway", t.best(), nil, nil)
	r.Failed = c.failed
	return r, nil
}

// sendAll starts the rows at their times and waits for all of them.
func (c *client) sendAll(ctx context.Context, speed, unstreamed float64) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	slots := make(chan struct{}, cmp.Or(c.o.Most, len(c.trace.Rows)))
	begin, streamed := time.Now(), coins(unstreamed)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for i := range c.trace.Rows {
		row := &c.trace.Rows[i]
		due := begin.Add(time.Duration((row.At - c.trace.Rows[0].At) / speed * float64(time.Millisecond)))
		timer.Reset(time.Until(due))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case slots <- struct{}{}:
		}
		stream := streamed()
		wg.Go(func() {
			defer func() { <-slots }()
			c.send(ctx, row, stream)
		})
	}
	return nil
}

// send sends one row and takes its measurements.
func (c *client) send(ctx context.Context, row *Row, stream bool) {
	began := time.Now()
	a, err := c.ask(ctx, row, stream)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		if c.failed++; c.why == nil {
			c.why = err
		}
		return
	}
	if stream { // else its first token was not seen
		c.out.ttft = append(c.out.ttft, ms(a.first.Sub(began)))
	}
	c.out.answered++
	c.out.hit += a.usage.Details.Cached
	c.out.total += a.usage.Prompt
	if n := a.usage.Output; stream && n > 1 {
		c.out.tpot = append(c.out.tpot, ms(a.last.Sub(a.first))/float64(n-1))
	}
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// answer is what the measurements need of an answer.
type answer struct {
	first, last time.Time
	usage       usage
}

type usage struct {
	Prompt  int `json:"prompt_tokens"`
	Output  int `json:"completion_tokens"`
	Details struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

// ask makes one completion request and reads its answer to the end.
func (c *client) ask(ctx context.Context, row *Row, stream bool) (a answer, err error) {
	q := map[string]any{
		"model": c.o.Model, "prompt": c.trace.prompt(row), "max_tokens": row.Output,
		"temperature": 0, "ignore_eos": true, "stream": stream,
	}
	if stream {
		q["stream_options"] = map[string]bool{"include_usage": true}
	}
	body, err := json.Marshal(q)
	if err != nil {
		return a, err
	}
	resp, err := c.do(ctx, http.MethodPost, "/completions", body)
	if err != nil {
		return a, err
	}
	defer resp.Body.Close()
	if stream {
		return readStream(resp.Body)
	}
	var whole struct {
		Usage usage `json:"usage"`
	}
	err = json.NewDecoder(resp.Body).Decode(&whole)
	return answer{usage: whole.Usage}, err
}

// readStream reads events up to [DONE].
func readStream(r io.Reader) (a answer, err error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 4096), lineLimit)
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data:"))
		if !ok {
			continue
		}
		if data = bytes.TrimSpace(data); string(data) == "[DONE]" {
			return a, nil
		}
		var event struct {
			Choices []json.RawMessage `json:"choices"`
			Usage   *usage            `json:"usage"`
			Error   json.RawMessage   `json:"error"`
		}
		if err := json.Unmarshal(data, &event); err != nil {
			return a, fmt.Errorf("event %.80q: %w", data, err)
		}
		if len(event.Error) > 0 && string(event.Error) != "null" {
			return a, fmt.Errorf("the stream ended with an error: %.200s", event.Error)
		}
		if len(event.Choices) > 0 {
			if a.last = time.Now(); a.first.IsZero() {
				a.first = a.last
			}
		}
		if event.Usage != nil {
			a.usage = *event.Usage
		}
	}
	if err := lines.Err(); err != nil {
		return a, err
	}
	return a, io.ErrUnexpectedEOF
}

// firstModel asks the gateway what it serves.
func (c *client) firstModel(ctx context.Context) (string, error) {
	resp, err := c.do(ctx, http.MethodGet, "/models", nil)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil {
		return "", fmt.Errorf("%s/models: %w", c.base, err)
	}
	if len(list.Data) == 0 {
		return "", fmt.Errorf("%s/models lists no model: name one with --model", c.base)
	}
	return list.Data[0].ID, nil
}

// do makes a request; an answer other than 200 is an error.
func (c *client) do(ctx context.Context, method, path string, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if c.o.Key != "" {
		req.Header.Set("Authorization", "Bearer "+c.o.Key)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 300)) // as much of the reason as there is
		resp.Body.Close()
		return nil, fmt.Errorf("%s %s: status %d: %s", method, path, resp.StatusCode, bytes.TrimSpace(text))
	}
	return resp, nil
}
