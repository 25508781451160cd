package router

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"
)

var t0 = time.Unix(1_700_000_000, 0)

func newTestPool(o Options, replicas int, c Capacity) *Pool {
	p := NewPool(o)
	for i := range replicas {
		p.Add(fmt.Sprintf("r%d", i), c, nil)
	}
	return p
}

// prompt is a request whose key is blocks numbered from of a family.
func prompt(family uint64, blocks int) *Request {
	b := NewKeyBuilder(0, 0)
	b.Reset("m", "", "")
	for i := range blocks * 64 {
		b.Token(family<<16 + uint64(i/64))
	}
	return &Request{Key: b.Key().Clone(), Tokens: blocks * 64, Streamed: true}
}

func mustChoose(t testing.TB, p *Pool, now time.Time, q *Request) *Lease {
	t.Helper()
	l, err := p.Choose(now, q)
	if err != nil {
		t.Fatalf("Choose: %v", err)
	}
	return l
}

func finish(l *Lease, now time.Time) {
	l.First(now)
	l.Done(now, Usage{PromptTokens: -1, CachedTokens: -1, OutputTokens: 1, OK: true})
}

func TestTurnsOfAConversationStayTogether(t *testing.T) {
	p := newTestPool(Options{}, 8, Capacity{KVTokens: 1 << 20})
	first := mustChoose(t, p, t0, prompt(1, 10))
	finish(first, t0.Add(time.Second))
	for turn := 2; turn <= 10; turn++ {
		now := t0.Add(time.Duration(turn) * time.Minute)
		l := mustChoose(t, p, now, prompt(1, 10*turn))
		if l.Replica() != first.Replica() {
			t.Fatalf("turn %d went to %s, the first to %s", turn, l.Replica().ID(), first.Replica().ID())
		}
		if got, want := l.Decision().Matched, 640*(turn-1); got != want {
			t.Errorf("turn %d: %d tokens matched, want %d", turn, got, want)
		}
		finish(l, now.Add(time.Second))
	}
}

func TestDifferentPromptsAtOnceSpread(t *testing.T) {
	p := newTestPool(Options{}, 8, Capacity{KVTokens: 1 << 20})
	for i := range uint64(80) {
		mustChoose(t, p, t0, prompt(i, 100))
	}
	for _, r := range p.Replicas() {
		if s := r.Stats(); s.InFlight != 10 {
			t.Errorf("%s has %d of 80 different prompts, want 10", s.ID, s.InFlight)
		}
	}
}

func TestEverythingIsGivenBack(t *testing.T) {
	p := newTestPool(Options{ScoreTokens: 1 << 20, ScoreBeside: 1 << 20}, 3, Capacity{KVTokens: 1 << 20})
	var leases []*Lease
	for i := range 300 {
		q := prompt(uint64(i%20), 1+i%50)
		q.Streamed, q.Lane = i%3 > 0, Lane(i%7%3)
		if q.Lane != Generate {
			q.Streamed = false
		}
		l, err := p.Choose(t0.Add(time.Duration(i)*time.Millisecond), q)
		if err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
		leases = append(leases, l)
	}
	for i, l := range leases {
		now := t0.Add(time.Second)
		if i%4 > 0 {
			l.First(now)
		}
		for range 2 { // the second changes nothing
			l.Done(now, Usage{PromptTokens: 100, CachedTokens: i % 100, OutputTokens: 3, OK: i%5 > 0})
		}
		l.First(now)
	}
	for _, r := range p.Replicas() {
		s := r.Stats()
		if s.InFlight != 0 || s.Streams != 0 || s.Waiting != 0 || s.QueuedTokens != 0 || s.KVInFlight != 0 || r.scoring != 0 || r.input != 0 || r.lane.others != 0 || r.lane.computing != 0 {
			t.Errorf("left behind on %s: %+v scoring %d input %d", r.ID(), s, r.scoring, r.input)
		}
		r.index.check(t)
	}
	if len(p.due) != 0 {
		t.Errorf("%d predicted releases left", len(p.due))
	}
}

func TestUnstreamedReservationIsReleasedWhenPredicted(t *testing.T) {
	p := newTestPool(Options{}, 1, Capacity{})
	q := prompt(1, 100)
	q.Streamed = false
	l := mustChoose(t, p, t0, q)
	r := p.Replicas()[0]
	if got := r.Stats().QueuedTokens; got != 6400 {
		t.Fatalf("%d tokens queued, want 6400", got)
	}
	due := p.Due()
	if want := 6400 * time.Second * 11 / 10 / startRate; due.Sub(t0) < want || due.Sub(t0) > want+50*time.Millisecond {
		t.Errorf("release is due after %v, want %v and a little", due.Sub(t0), want)
	}
	p.Tick(due)
	if s := r.Stats(); s.QueuedTokens != 0 || s.Waiting != 0 || s.Streams != 1 || s.InFlight != 1 {
		t.Errorf("after the predicted time: %+v", s)
	}
	l.Done(due.Add(time.Second), Usage{OK: true})
	if s := r.Stats(); s.InFlight != 0 || s.Streams != 0 {
		t.Errorf("after the end: %+v", s)
	}
}

func TestNoRoomIsNotNoReplica(t *testing.T) {
	usable := true
	p := NewPool(Options{})
	r := p.Add("r", Capacity{KVTokens: 10000, MaxRunning: 3}, func() bool { return usable })
	big := mustChoose(t, p, t0, prompt(1, 200)) // larger than the cache: alone
	if _, err := p.Choose(t0, prompt(2, 1)); !errors.Is(err, ErrNoRoom) {
		t.Errorf("beside a request of 12800 tokens in a cache of 10000: %v, want ErrNoRoom", err)
	}
	finish(big, t0)
	a := mustChoose(t, p, t0, prompt(3, 100))
	mustChoose(t, p, t0, prompt(3, 110)) // shares a's prefix: 7040 tokens in all
	if _, err := p.Choose(t0, prompt(4, 100)); !errors.Is(err, ErrNoRoom) {
		t.Errorf("6400 tokens beside 7040 in a cache of 10000: %v, want ErrNoRoom", err)
	}
	mustChoose(t, p, t0, prompt(3, 120))
	if _, err := p.Choose(t0, prompt(3, 120)); !errors.Is(err, ErrNoRoom) {
		t.Errorf("a fourth at a running limit of 3: %v, want ErrNoRoom", err)
	}
	finish(a, t0)
	l := mustChoose(t, p, t0, prompt(3, 120))
	if got := l.Replica().Stats().KVInFlight; got != 7680 {
		t.Errorf("KV in flight of prefixes of one prompt of 7680 tokens: %d", got)
	}
	usable = false
	if _, err := p.Choose(t0, prompt(3, 1)); !errors.Is(err, ErrNoReplica) {
		t.Errorf("nothing usable: %v, want ErrNoReplica", err)
	}
	usable = true
	q := prompt(3, 1)
	q.Avoid = []*Replica{r}
	if _, err := p.Choose(t0, q); !errors.Is(err, ErrNoReplica) {
		t.Errorf("the only one avoided: %v, want ErrNoReplica", err)
	}
}

func TestFailedRequestLeavesNoPrefixBehind(t *testing.T) {
	p := newTestPool(Options{}, 1, Capacity{})
	l := mustChoose(t, p, t0, prompt(1, 10))
	l.Done(t0, Usage{CachedTokens: -1, OK: false})
	if got := p.Work(prompt(1, 10)); got != 640 {
		t.Errorf("work after a failure before the first token: %d, want 640", got)
	}
	l = mustChoose(t, p, t0, prompt(1, 10))
	l.First(t0)
	l.Done(t0, Usage{CachedTokens: -1, OK: false})
	if got := p.Work(prompt(1, 20)); got != 640 {
		t.Errorf("work for the next 640 tokens after a failure behind the first token: %d, want 640", got)
	}
	p.Replicas()[0].Flush()
	if got := p.Work(prompt(1, 20)); got != 1280 {
		t.Errorf("work after a flush: %d, want 1280", got)
	}
}

func TestScoringStaysOutOfTheIndexAndUnderItsCap(t *testing.T) {
	p := newTestPool(Options{ScoreTokens: 1000}, 2, Capacity{})
	score := func(blocks int) *Request {
		q := prompt(9, blocks)
		q.Lane, q.Streamed = Score, false
		return q
	}
	a, b := mustChoose(t, p, t0, score(100)), mustChoose(t, p, t0, score(5))
	if a.Replica() == b.Replica() {
		t.Errorf("two scoring requests on one of two idle replicas")
	}
	if c := mustChoose(t, p, t0, score(10)); c.Replica() != b.Replica() {
		t.Errorf("640 tokens went beside 6400, not beside 320")
	}
	if _, err := p.Choose(t0, score(10)); !errors.Is(err, ErrNoRoom) {
		t.Errorf("over the cap of 1000 tokens everywhere: %v, want ErrNoRoom", err)
	}
	if got := p.Work(prompt(9, 10)); got != 640 {
		t.Errorf("a scored prompt is in the index: work %d, want 640", got)
	}
}

func TestScoringYieldsToChat(t *testing.T) {
	p := newTestPool(Options{ScoreTokens: 1000, ScoreBeside: 200}, 1, Capacity{})
	score := func(blocks int) *Request {
		q := prompt(9, blocks)
		q.Lane, q.Streamed = Score, false
		return q
	}
	refused := func(at time.Time, what string) {
		t.Helper()
		if _, err := p.Choose(at, score(3)); !errors.Is(err, ErrNoRoom) {
			t.Errorf("%s: %v, want ErrNoRoom", what, err)
		}
	}
	one := mustChoose(t, p, t0, score(5))
	two := mustChoose(t, p, t0, score(5)) // 640 of 1000 tokens: there is no chat
	chat := mustChoose(t, p, t0.Add(time.Second), prompt(1, 10))
	one.Done(t0.Add(time.Second), Usage{OK: true})
	two.Done(t0.Add(time.Second), Usage{OK: true})
	mustChoose(t, p, t0.Add(time.Second), score(3)).Done(t0.Add(time.Second), Usage{OK: true}) // the last was a second ago
	refused(t0.Add(1500*time.Millisecond), "while chat waits for its first token")
	chat.First(t0.Add(1600 * time.Millisecond))
	s := mustChoose(t, p, t0.Add(1600*time.Millisecond), score(3))
	refused(t0.Add(1700*time.Millisecond), "192 tokens beside a stream, 200 allowed")
	chat.Done(t0.Add(2*time.Second), Usage{OK: true})
	refused(t0.Add(11*time.Second), "9 s after chat")
	mustChoose(t, p, t0.Add(12*time.Second), score(5)).Done(t0.Add(12*time.Second), Usage{OK: true})
	s.Done(t0.Add(12*time.Second), Usage{OK: true})
	if got := p.ScorePart(t0.Add(11 * time.Second)); got != 200 {
		t.Errorf("a part beside chat: %d tokens, want 200", got)
	}
	if got := p.ScorePart(t0.Add(13 * time.Second)); got != 1000 {
		t.Errorf("a part without chat: %d tokens, want 1000", got)
	}
}

func TestConcurrentUseIsConsistent(t *testing.T) {
	p := newTestPool(Options{}, 4, Capacity{KVTokens: 20000, MaxRunning: 50})
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 200 {
				now := t0.Add(time.Duration(i) * time.Millisecond)
				q := prompt(uint64(g*i%17), 1+i%40)
				q.Streamed = i%2 == 0
				l, err := p.Choose(now, q)
				if err != nil {
					p.Work(q)
					continue
				}
				if i%3 > 0 {
					l.First(now)
				}
				if i%50 == 0 {
					l.Replica().Flush()
				}
				l.Done(now, Usage{PromptTokens: q.Tokens, CachedTokens: i % 64, OutputTokens: 5, OK: i%10 > 0})
			}
		})
	}
	wg.Wait()
	for _, r := range p.Replicas() {
		if s := r.Stats(); s.InFlight != 0 || s.QueuedTokens != 0 || s.KVInFlight != 0 {
			t.Errorf("left behind: %+v", s)
		}
		r.index.check(t)
	}
}
