package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// message is one of a conversation.
type message struct {
	role string
	text []byte
}

// wire is a request before it is sent.
type wire struct {
	endpoint  *Endpoint
	messages  []message
	output    int
	stream    bool
	ignoreEOS bool
}

// sample is what became of one request.
type sample struct {
	start    time.Time
	late     time.Duration   // after the time that the plan had for it
	ttft     time.Duration   // 0: no answer came, or it was not streamed
	latency  time.Duration   // until the end of the answer, or the error
	gaps     []time.Duration // between events that bear text
	in, out  int             // tokens, as reported; else as counted
	cached   int
	reported bool   // in and out are the endpoint's own
	text     []byte // of the answer, when it is needed

	kind       string // of error; "": none
	code       string // the endpoint's own name for it
	message    string
	status     int
	retryAfter time.Duration // 0: none was said
	hung       bool
}

// Kinds of errors. Those of a status are "HTTP 429" and so on.
const (
	kindConnect   = "ConnectError"
	kindSilent    = "ReadTimeout" // no byte for --silence
	kindTimeout   = "Timeout"     // not complete within --timeout
	kindLost      = "Disconnected"
	kindStream    = "StreamError" // an error event in a stream
	kindTruncated = "Truncated"   // a stream without its end marker
	kindBad       = "BadAnswer"
)

// minRetry is the wait after a refusal without Retry-After, while calibrating.
const minRetry = time.Second

var (
	errSilent  = errors.New("no byte came in time")
	errTimeout = errors.New("not complete in time")
)

// body is the request as JSON.
func (w *wire) body() []byte {
	n := 256
	for _, m := range w.messages {
		n += len(m.text) + 40
	}
	b := append(make([]byte, 0, n), `{"model":`...)
	b = appendJSON(b, w.endpoint.Model)
	if w.endpoint.api == "completions" {
		b = appendJSON(append(b, `,"prompt":`...), string(joined(w.messages)))
	} else {
		b = append(b, `,"messages":[`...)
		for i, m := range w.messages {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendJSON(append(b, `{"role":`...), m.role)
			b = append(appendJSON(append(b, `,"content":`...), string(m.text)), '}')
		}
		b = append(b, ']')
	}
	b = strconv.AppendInt(append(b, `,"max_tokens":`...), int64(w.output), 10)
	b = append(b, `,"temperature":0`...)
	if w.ignoreEOS {
		b = append(b, `,"ignore_eos":true`...)
	}
	if w.stream {
		b = append(b, `,"stream":true`...)
		if w.endpoint.usage {
			b = append(b, `,"stream_options":{"include_usage":true}`...)
		}
	}
	return append(b, '}')
}

func joined(messages []message) []byte {
	var all []byte
	for _, m := range messages {
		all = append(all, m.text...)
	}
	return all
}

func appendJSON(b []byte, s string) []byte {
	q, _ := json.Marshal(s) // a string always can
	return append(b, q...)
}

func (w *wire) path() string {
	if w.endpoint.api == "completions" {
		return "/completions"
	}
	return "/chat/completions"
}

// send sends a request and reads its answer to the end.
func (e *Endpoint) send(ctx context.Context, w *wire) *sample {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	total := time.AfterFunc(e.timeout, func() { cancel(errTimeout) })
	defer total.Stop()
	silence := time.AfterFunc(e.silence, func() { cancel(errSilent) })
	defer silence.Stop()
	body := w.body()
	s := &sample{start: time.Now()}
	s.exchange(ctx, e, w, body, func() { silence.Reset(e.silence) })
	if s.latency == 0 {
		s.latency = time.Since(s.start)
	}
	if s.kind != "" {
		s.blame(context.Cause(ctx))
	}
	return s
}

// blame finds out whether an error was our own giving up.
func (s *sample) blame(cause error) {
	switch {
	case errors.Is(cause, errSilent):
		s.kind, s.hung = kindSilent, true
	case errors.Is(cause, errTimeout):
		s.kind, s.hung = kindTimeout, true
	}
}

func (s *sample) fail(kind string, err error) {
	s.kind, s.message = kind, err.Error()
}

func (s *sample) exchange(ctx context.Context, e *Endpoint, w *wire, body []byte, alive func()) {
	req, err := e.request(ctx, http.MethodPost, w.path(), bytes.NewReader(body))
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
	alive()
	s.status = resp.StatusCode
	if resp.StatusCode != http.StatusOK {
		s.refused(resp)
		return
	}
	if mediaType(resp) == "text/event-stream" {
		s.readStream(resp.Body, alive)
		return
	}
	s.readWhole(resp.Body)
}

// kindOf tells a connection that was never made from one that was lost.
func kindOf(err error) string {
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return kindConnect
	}
	return kindLost
}

func mediaType(resp *http.Response) string {
	t, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	return t
}

// refused reads a status other than 200.
func (s *sample) refused(resp *http.Response) {
	s.kind = "HTTP " + strconv.Itoa(resp.StatusCode)
	s.retryAfter = retryAfter(resp.Header, time.Now())
	b, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	var a answer
	if json.Unmarshal(b, &a) == nil {
		s.code, s.message = a.failure()
	}
	if s.message == "" {
		s.message = strings.TrimSpace(string(b[:min(len(b), 200)]))
	}
}

// retryAfter reads retry-after-ms or Retry-After, in seconds or as a date.
func retryAfter(h http.Header, now time.Time) time.Duration {
	if ms, err := strconv.ParseFloat(h.Get("Retry-After-Ms"), 64); err == nil && ms > 0 {
		return time.Duration(ms * float64(time.Millisecond))
	}
	v := h.Get("Retry-After")
	if sec, err := strconv.ParseFloat(v, 64); err == nil && sec > 0 {
		return time.Duration(sec * float64(time.Second))
	}
	if t, err := http.ParseTime(v); err == nil {
		return max(0, t.Sub(now))
	}
	return 0
}

// readWhole reads an answer that is not streamed.
func (s *sample) readWhole(r io.Reader) {
	b, err := io.ReadAll(io.LimitReader(r, maxAnswer))
	if err != nil {
		s.fail(kindLost, err)
		return
	}
	s.latency = time.Since(s.start)
	var a answer
	if err := json.Unmarshal(b, &a); err != nil {
		s.fail(kindBad, err)
		return
	}
	if s.code, s.message = a.failure(); s.code != "" || s.message != "" {
		s.kind = kindStream
		return
	}
	for _, c := range a.Choices {
		s.text = append(s.text, c.text()...)
	}
	s.take(a.Usage)
}
