package gateway

import (
	"bufio"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/valyala/fasthttp"

	"penstock/engine"
	"penstock/gateway/body"
	"penstock/gateway/relay"
	"penstock/gateway/scoring"
	"penstock/gateway/sse"
	"penstock/limits"
	"penstock/router"
)

// leg is what makes a request one part of a scoring request: it has a ticket,
// a lease and attempts of its own, and hands its answer to the whole. The first
// part waits for room on behalf of all; only then the others ask for theirs.
type leg struct {
	chosen   chan struct{} // of the first: closed when it has room, or failed
	follows  chan struct{} // of the others: the first's
	whole    *request
	job      *scoring.Job
	part     scoring.Part
	sent     scoring.Request
	header   fasthttp.RequestHeader // its own copy of the client's
	response fasthttp.Response
	answer   *scoring.Answer
	refused  int // the status of an engine's refusal, which is the whole's answer; 0: none
	usage    sse.Usage
}

// errSibling ends the other parts when one has failed: the whole has failed.
var errSibling = errors.New("another part of the request failed")

// score is the way of a request for the log-probabilities of its prompt, from
// admission on: split over replicas, each part checked, merged into one answer.
func (s *Server) score(r *request) error {
	job := scoring.New(&r.look.view)
	legs := r.split(&job)
	failed := s.runLegs(r, legs)
	if failed != nil {
		if r.gone() {
			r.sumLegs(legs, limits.OutcomeAborted)
			return errClientGone
		}
		r.sumLegs(legs, limits.OutcomeFailed)
		return failed
	}
	r.sumLegs(legs, limits.OutcomeDone)
	if l := refusedLeg(legs); l != nil {
		r.passRefusal(l)
		return nil
	}
	r.deliverMerged(&job, legs)
	return nil
}

// split deals the prompts out over the replicas that score.
func (r *request) split(job *scoring.Job) []*request {
	v, pl := &r.look.view, r.target.pool
	only := r.only()
	replicas, most := 0, 0
	for route, m := range *pl.members.Load() {
		if m.engine.Usable() && (only == nil || only(route)) {
			replicas++
			if n := scoring.MaxPromptsOf(string(m.engine.Tongue())); n > 0 && (most == 0 || n < most) {
				most = n
			}
		}
	}
	cfg := &r.snap.cfg.Scoring
	tokens := func(i int) int {
		if p := v.Prompts[i]; p.Kind == body.Text {
			return int(pl.estimator.Input(pl.name, limits.Size{Bytes: p.End - p.Start - 2}))
		}
		return v.Prompts[i].Tokens
	}
	if len(v.Prompts) == 0 {
		tokens = func(int) int { return r.input }
	}
	parts := job.Split(tokens, scoring.SplitOptions{Parts: replicas, MinTokens: cfg.SplitTokens, MaxTokens: pl.router.ScorePart(r.start), MaxPrompts: most})
	legs := make([]*request, len(parts))
	for i, p := range parts {
		legs[i] = r.newLeg(job, p)
		if i > 0 {
			legs[i].leg.follows = legs[0].leg.chosen
			legs[i].noQueue = false // the request does not wait to begin: it is the gateway that made parts of it
		}
	}
	return legs
}

// newLeg makes one part a request of its own.
func (r *request) newLeg(job *scoring.Job, p scoring.Part) *request {
	l := &leg{whole: r, job: job, part: p, chosen: make(chan struct{})}
	q := &request{
		s: r.s, ctx: r.ctx, snap: r.snap, route: r.route, id: r.id, start: r.start, leg: l, response: &l.response,
		client: r.client, target: r.target, asked: r.asked, steers: r.steers, lane: r.lane,
		reservation: r.reservation, clientWait: r.clientWait, noQueue: r.noQueue, rankHeader: r.rankHeader, trace: r.trace.part(),
		choice: router.Request{Session: r.session()}, // read here: the parts share the client's headers
		input:  max(1, p.Tokens), output: r.output * (p.To - p.From) / max(1, r.look.view.PromptCount()),
	}
	q.record.queued = r.record.queued
	q.look = &look{view: r.look.view, key: r.look.key}
	r.ctx.Request.Header.CopyTo(&l.header)
	q.wait.parent = &r.wait
	return q
}

// runLegs runs all parts at once; the first failure ends the others.
func (s *Server) runLegs(r *request, legs []*request) (failed error) {
	var (
		wg sync.WaitGroup
		mu sync.Mutex
	)
	for _, q := range legs {
		wg.Go(func() {
			err := s.runLeg(q)
			if err == nil && q.leg.refused == 0 {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil && (failed == nil || errors.Is(failed, errSibling)) {
				failed = err
			}
			for _, other := range legs {
				if other != q {
					other.wait.end(errSibling)
				}
			}
		})
	}
	wg.Wait()
	if failed != nil && errors.Is(failed, errSibling) { // an engine refused one part, the others were ended
		return nil
	}
	return failed
}

// runLeg is choose and relayAttempt for one part.
func (s *Server) runLeg(q *request) (err error) {
	decided := sync.OnceFunc(func() { close(q.leg.chosen) })
	defer func() {
		if v := recover(); v != nil {
			err = s.legPanicked(q, v)
		}
		decided()
	}()
	if q.leg.follows != nil { // the first one's wait is bounded, and this one's by what that leaves
		began := time.Now()
		<-q.leg.follows
		q.record.queued += time.Since(began)
	}
	stop := context.AfterFunc(&q.wait, func() {
		if c := q.calling.Load(); c != nil {
			c.Cancel(q.over())
		}
	})
	defer stop()
	for again := true; err == nil && again; {
		err = s.choose(q)
		decided()
		if err == nil {
			again, err = s.relayAttempt(q)
		}
	}
	if q.ticket != nil {
		q.target.pool.queue.Settle(time.Now(), q.ticket, q.uncachedUsed(), max(0, q.leg.usage.Completion))
	}
	if err != nil && errors.Is(q.wait.why(), errSibling) {
		return errSibling
	}
	return err
}

func (s *Server) legPanicked(q *request, v any) error {
	s.panicked(q, v)
	return internalError(errPanic)
}

// take is the delivery of a part's answer: it is checked, and kept for the merge.
func (l *leg) take(a *attempt, ans relay.Answer) error {
	a.status = ans.Status
	b := l.response.Body()
	l.usage = ans.Usage
	ans.Discard()
	if ans.Status >= 400 {
		l.refused = ans.Status
		a.end(time.Now(), relay.Result{Usage: sse.NoUsage()}, limits.OutcomeFailed)
		return nil
	}
	answer, err := l.job.Check(&l.sent, b)
	if err != nil {
		a.end(time.Now(), relay.Result{Usage: ans.Usage}, limits.OutcomeDone)
		a.member.fail("protocol")
		e := serverError(fasthttp.StatusBadGateway, "upstream_error", "The engine's answer could not be read.")
		if m, ok := errors.AsType[*scoring.Missing](err); ok {
			e = serverError(fasthttp.StatusBadGateway, "echo_logprobs_missing", "The engine answered 200, but without the log-probabilities of the prompt: %s.", m.Reason)
		}
		e.Cause, e.Retry = err, retryNo
		return e
	}
	l.answer = answer
	a.end(time.Now(), relay.Result{Usage: ans.Usage, Bytes: int64(len(b))}, limits.OutcomeDone)
	return nil
}

// sumLegs makes the whole's record of its parts'.
func (r *request) sumLegs(legs []*request, out limits.Outcome) {
	r.used.Outcome = out
	var replicas []string
	sent := false
	for _, q := range legs {
		sent = sent || q.tried > 0
		if q.record.replica != "" && !slices.Contains(replicas, q.record.replica) {
			replicas = append(replicas, q.record.replica)
		}
		r.record.queued = max(r.record.queued, q.record.queued)
		r.record.retries = append(r.record.retries, q.record.retries...)
		r.record.attempts = append(r.record.attempts, q.record.attempts...)
		if q.leg.answer == nil {
			if out == limits.OutcomeAborted && q.tried > 0 { // computed, or being computed, when the client left
				r.used.Input += int64(q.input)
			}
			continue
		}
		r.used.Input += orReserved(q.leg.usage.Prompt, q.input)
		r.used.Output += orReserved(q.leg.usage.Completion, q.output)
		r.record.prompt += max(0, q.leg.usage.Prompt)
		r.record.cached += max(0, q.leg.usage.Cached)
		r.record.completion += max(0, q.leg.usage.Completion)
	}
	if !sent {
		r.used.Outcome = limits.OutcomeReturned
	}
	r.record.replica = joinShort(replicas)
}

// orReserved is what the engine reported, or, where it did not, what was reserved.
func orReserved(reported, reserved int) int64 {
	if reported < 0 {
		return int64(reserved)
	}
	return int64(reported)
}

func joinShort(names []string) string {
	const most = 4
	out := ""
	for i, n := range names {
		if i == most {
			return out + ",…"
		}
		if i > 0 {
			out += ","
		}
		out += n
	}
	return out
}

func refusedLeg(legs []*request) *leg {
	for _, q := range legs {
		if q.leg.refused > 0 {
			return q.leg
		}
	}
	return nil
}

// passRefusal answers with an engine's own refusal of one part.
func (r *request) passRefusal(l *leg) {
	r.used = limits.Actual{Outcome: limits.OutcomeFailed}
	l.response.CopyTo(&r.ctx.Response)
	r.record.status, r.record.code = l.refused, "upstream"
	r.finish()
}

// deliverMerged starts the answer that is made of the parts'.
func (r *request) deliverMerged(job *scoring.Job, legs []*request) {
	parts := make([]*scoring.Answer, len(legs))
	for i, q := range legs {
		parts[i] = q.leg.answer
	}
	m := job.Merge(parts, scoring.MergeOptions{Model: jsonString(r.modelName()), Created: time.Now().Unix()})
	first := &legs[0].leg.response
	first.Header.CopyTo(&r.ctx.Response.Header)
	r.record.status = fasthttp.StatusOK
	r.ctx.Response.Header.SetContentType("application/json")
	size := -1
	if m.Streamed() {
		r.ctx.Response.Header.SetContentType("text/event-stream")
	} else {
		size = m.Len()
	}
	if b := m.Verbatim(); b != nil && len(legs) == 1 {
		r.ctx.Response.SetBodyRaw(b)
		r.record.bytes = int64(len(b))
		r.finish()
		return
	}
	r.headers()
	r.ctx.Response.SetBodyStream(&mergedBody{r: r, m: m}, size)
}

// modelName is the model as the client named it.
func (r *request) modelName() string {
	if r.asked != "" {
		return r.asked
	}
	return r.target.pool.name
}

// mergedBody writes a merged answer and then ends its request.
type mergedBody struct {
	r      *request
	m      *scoring.Merged
	failed bool
}

// SupportsBodyWriteTo tells fasthttp to call WriteTo instead of Read.
func (b *mergedBody) SupportsBodyWriteTo() bool { return true }

func (b *mergedBody) Read([]byte) (int, error) { return 0, errors.ErrUnsupported }

// WriteTo writes the answer. It is called outside of the handler, so a panic is
// contained here.
func (b *mergedBody) WriteTo(w io.Writer) (n int64, err error) {
	defer func() {
		if v := recover(); v != nil {
			b.r.s.panicked(b.r, v)
			b.failed, err = true, io.ErrUnexpectedEOF
		}
	}()
	bw := bufio.NewWriterSize(w, 64<<10)
	n, err = b.m.WriteTo(bw)
	if err == nil {
		err = bw.Flush()
	}
	b.r.record.bytes, b.failed = n, err != nil
	if err != nil {
		return n, io.ErrUnexpectedEOF
	}
	return n, nil
}

func (b *mergedBody) Close() error {
	if b.failed {
		b.r.record.status, b.r.record.code = errClientGone.Status, errClientGone.Code
	}
	b.r.stopWatching()
	b.r.settle(time.Now())
	return nil
}

// pathFor is where the request is sent on an engine: the client's path, but for
// echo requests that this engine's own route cannot answer.
func (r *request) pathFor(e *engine.Replica) string {
	path := r.route.path // as an engine knows it, however the client wrote it
	if strings.Contains(path, "{") {
		path = string(r.ctx.URI().PathOriginal())
	}
	if r.leg == nil {
		return path
	}
	if p := r.leg.job.Path(string(e.Tongue())); p != "" {
		return p
	}
	return path
}

// isScoring says that the request asks for the log-probabilities of its prompt.
func isScoring(v *body.View) bool { return scoring.Scores(v) }

// splits says that the request goes the way of score: what only an engine
// understands, a stream of prompt_logprobs, is relayed as it comes.
func (r *request) splits() bool {
	if r.lane != router.Score {
		return false
	}
	job := scoring.New(&r.look.view)
	return job.Whole()
}
