package relay

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"testing"
	"time"
)

func TestDecide(t *testing.T) {
	sent := func(k Kind) *Error { return &Error{Kind: k, Sent: true} }
	cancel := func(cause error, sent bool) *Error { return &Error{Kind: KindCanceled, Err: cause, Sent: sent} }
	limit := func(l Limit) *Error { return &Error{Kind: KindTimeout, Limit: l, Sent: l != LimitConnect} }
	for _, c := range []struct {
		name   string
		facts  Facts
		pass   bool
		retry  bool // with others, at the first attempt
		score  bool // likewise, of a scoring request
		status int
		code   string
		health Health
	}{
		{"200", Facts{Status: 200}, true, false, false, 0, "", Healthy},
		{"400 passes", Facts{Status: 400}, true, false, false, 0, "", Healthy},
		{"404 passes", Facts{Status: 404}, true, false, false, 0, "", Healthy},
		{"429", Facts{Status: 429}, false, true, true, 503, "engine_overloaded", Neutral},
		{"503", Facts{Status: 503}, false, true, true, 503, "engine_overloaded", Neutral},
		{"529", Facts{Status: 529}, false, true, true, 503, "engine_overloaded", Neutral},
		{"500", Facts{Status: 500}, false, true, false, 502, "upstream_error", Failing},
		{"502", Facts{Status: 502}, false, true, false, 502, "upstream_error", Failing},
		{"504", Facts{Status: 504}, false, true, false, 502, "upstream_error", Failing},
		{"refused", Facts{Err: &Error{Kind: KindConnect}}, false, true, true, 502, "upstream_error", Failing},
		{"connect timeout", Facts{Err: limit(LimitConnect)}, false, true, true, 502, "upstream_error", Failing},
		{"first token", Facts{Err: limit(LimitFirst)}, false, false, false, 504, "first_token_timeout", Failing},
		{"idle", Facts{Err: limit(LimitIdle)}, false, false, false, 504, "stream_idle_timeout", Failing},
		{"whole request", Facts{Err: limit(LimitRequest)}, false, false, false, 504, "upstream_timeout", Neutral},
		{"disconnected", Facts{Err: sent(KindDisconnected), Died: 1}, false, true, false, 502, "upstream_disconnected", Failing},
		{"truncated", Facts{Err: sent(KindTruncated), Died: 1}, false, true, false, 502, "upstream_disconnected", Failing},
		{"garbage", Facts{Err: sent(KindProtocol), Died: 1}, false, true, false, 502, "upstream_error", Failing},
		{"too large", Facts{Err: sent(KindTooLarge)}, false, false, false, 502, "upstream_error", Neutral},
		{"client gone", Facts{Err: cancel(ErrClientGone, true)}, false, false, false, 499, "client_closed_request", Neutral},
		{"client not reading", Facts{Err: sent(KindClient)}, false, false, false, 499, "client_closed_request", Neutral},
		{"draining", Facts{Err: cancel(ErrDraining, true)}, false, false, false, 503, "draining", Neutral},
		{"unhealthy", Facts{Err: cancel(ErrUnhealthy, true), Died: 1}, false, true, false, 502, "upstream_disconnected", Neutral},
		{"unhealthy, not sent", Facts{Err: cancel(ErrUnhealthy, false)}, false, true, true, 502, "upstream_disconnected", Neutral},
		{"taken away", Facts{Err: cancel(errors.New("removed"), false)}, false, true, true, 503, "no_healthy_replica", Neutral},
		{"an error that is not ours", Facts{Err: errors.New("x")}, false, false, false, 500, "internal_error", Neutral},
	} {
		f := c.facts
		f.Attempt, f.MaxAttempts, f.Others = 1, 3, true
		v := Decide(f)
		if want := (Verdict{Pass: c.pass, Retry: c.retry, Status: c.status, Code: c.code, Health: c.health}); v != want {
			t.Errorf("%s: got %+v, want %+v", c.name, v, want)
		}
		f.Scoring = true
		if v := Decide(f); v.Retry != c.score {
			t.Errorf("%s, scoring: retry %v, want %v", c.name, v.Retry, c.score)
		}
		f.Scoring = false
		for name, change := range map[string]func(*Facts){
			"no others":           func(f *Facts) { f.Others = false },
			"the last attempt":    func(f *Facts) { f.Attempt = 3 },
			"after bytes":         func(f *Facts) { f.Started = true },
			"two replicas died":   func(f *Facts) { f.Died = 2 },
			"one died before":     func(f *Facts) { f.Died++; f.Died = max(f.Died, 2) },
			"one died, then this": func(f *Facts) { f.Err, f.Status, f.Died = nil, 503, 1 },
		} {
			g := f
			change(&g)
			if v := Decide(g); v.Retry {
				t.Errorf("%s, %s: retried", c.name, name)
			}
		}
	}
	if v := Decide(Facts{Err: limit(LimitFirst), Scoring: true}); v.Status != 504 {
		t.Errorf("scoring that timed out: %+v, want 504", v)
	}
	if v := Decide(Facts{Err: cancel(ErrUnhealthy, true), Scoring: true}); v.Status != 504 || v.Code != "upstream_timeout" {
		t.Errorf("scoring on a replica found unhealthy: %+v, want 504 upstream_timeout", v)
	}
	if v := Decide(Facts{Status: 429, RetryAfter: 7 * time.Second}); v.RetryAfter != 7*time.Second {
		t.Errorf("429 that asks for 7 s: %+v", v)
	}
}

func TestBudgetIsAShareOfTheRequestsAndAFewASecond(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	b := NewBudget(0.2, 10)
	allowed := 0
	for range 100 {
		b.Request(now)
	}
	for range 100 {
		if b.Allow(now) {
			allowed++
		}
	}
	if allowed != 20+10 {
		t.Errorf("%d of 100 retries allowed after 100 requests, want a fifth and ten", allowed)
	}
	now = now.Add(9 * time.Second) // still within ten seconds: only the few a second
	allowed = 0
	for range 100 {
		if b.Allow(now) {
			allowed++
		}
	}
	if allowed != 10 {
		t.Errorf("%d allowed nine seconds later, want 10", allowed)
	}
	now = now.Add(2 * time.Second) // the requests are forgotten, and so are the retries
	for range 50 {
		b.Request(now)
	}
	allowed = 0
	for range 100 {
		if b.Allow(now) {
			allowed++
		}
	}
	if allowed != 10+10 {
		t.Errorf("%d of 100 allowed after 50 more requests, want 20", allowed)
	}
	if none := NewBudget(0, 0); none.Allow(now) {
		t.Error("a budget of nothing allows a retry")
	}
}

func TestErrorTextNamesWhatHappenedAndWhere(t *testing.T) {
	for want, e := range map[string]*Error{
		"upstream: timeout (first_token) while waiting for headers":                      {Kind: KindTimeout, Limit: LimitFirst, Phase: PhaseHeaders},
		"upstream: disconnected while reading the body: EOF":                             {Kind: KindDisconnected, Phase: PhaseBody, Err: errors.New("EOF")},
		"upstream: canceled while connecting: the client went away":                      {Kind: KindCanceled, Phase: PhaseConnect, Err: ErrClientGone},
		"upstream: protocol error while reading the body: the chunked framing is broken": {Kind: KindProtocol, Phase: PhaseBody, Err: errChunk},
		"upstream: ended without its end marker while reading the body":                  {Kind: KindTruncated, Phase: PhaseBody},
		fmt.Sprintf("upstream: %s", Kind(99)):                                            {Kind: 99},
	} {
		if got := e.Error(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestWantOfTheGatewaysOwnIsNoFaultOfTheEngine(t *testing.T) {
	for _, err := range []error{syscall.EMFILE, syscall.EADDRNOTAVAIL} {
		e := &Error{Kind: KindConnect, Err: &net.OpError{Op: "dial", Err: os.NewSyscallError("socket", err)}}
		v := Decide(Facts{Err: e, Attempt: 1, MaxAttempts: 3, Others: true})
		if v.Retry || v.Health != Neutral || v.Status != 502 {
			t.Errorf("%v: got %+v, want 502, no retry and nothing held against the engine", err, v)
		}
	}
}
