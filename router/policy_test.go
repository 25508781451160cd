package router

import (
	"fmt"
	"testing"
)

// spread binds n requests and counts them by replica.
func spread(t *testing.T, p *Pool, n int, q func(i int) *Request) map[string]int {
	t.Helper()
	got := map[string]int{}
	for i := range n {
		got[mustChoose(t, p, t0, q(i)).Replica().ID()]++
	}
	return got
}

func TestRoundRobinTakesTurns(t *testing.T) {
	p := newTestPool(Options{Policy: "round_robin"}, 4, Capacity{})
	for id, n := range spread(t, p, 40, func(int) *Request { return prompt(1, 10) }) {
		if n != 10 {
			t.Errorf("%s got %d of 40 requests, want 10", id, n)
		}
	}
}

func TestLeastLoadFillsTheEmptiest(t *testing.T) {
	p := newTestPool(Options{Policy: "least_load"}, 4, Capacity{})
	first := mustChoose(t, p, t0, prompt(1, 10))
	got := spread(t, p, 3, func(int) *Request { return prompt(1, 10) })
	if got[first.Replica().ID()] != 0 || len(got) != 3 {
		t.Errorf("after one request on %s three more went to %v, want one to each of the others", first.Replica().ID(), got)
	}
}

func TestRandomTwoStaysBalanced(t *testing.T) {
	p := newTestPool(Options{Policy: "random_two", Seed: 4}, 8, Capacity{MaxRunning: 1000})
	for id, n := range spread(t, p, 800, func(int) *Request { return prompt(1, 1) }) {
		if n < 90 || n > 110 {
			t.Errorf("%s got %d of 800 requests, want about 100", id, n)
		}
	}
}

func TestASessionStaysWithinItsBound(t *testing.T) {
	p := newTestPool(Options{Policy: "session"}, 8, Capacity{MaxRunning: 1000})
	q := func(i int) *Request { q := prompt(1, 1); q.Session = fmt.Sprintf("s%d", i%100); return q }
	home := map[string]string{}
	for i := range 100 {
		l := mustChoose(t, p, t0, q(i))
		home[q(i).Session] = l.Replica().ID()
		finish(l, t0)
	}
	for i := range 100 {
		l := mustChoose(t, p, t0, q(i))
		if got, want := l.Replica().ID(), home[q(i).Session]; got != want {
			t.Errorf("session %s moved from %s to %s at no load", q(i).Session, want, got)
		}
		finish(l, t0)
	}
	for id, n := range spread(t, p, 400, func(int) *Request { return q(7) }) {
		if n > 400/8*5/4+2 {
			t.Errorf("%s got %d of 400 requests of one session, the bound is 1.25 times the mean", id, n)
		}
	}
}

func TestAReplicaThatComesMovesOnlyItsOwnSessions(t *testing.T) {
	p := newTestPool(Options{Policy: "session"}, 8, Capacity{})
	where := func() map[string]string {
		m := map[string]string{}
		for i := range 200 {
			q := prompt(1, 1)
			q.Session = fmt.Sprint(i)
			l := mustChoose(t, p, t0, q)
			m[q.Session] = l.Replica().ID()
			finish(l, t0)
		}
		return m
	}
	before := where()
	p.Add("new", Capacity{}, nil)
	for s, id := range where() {
		if id != before[s] && id != "new" {
			t.Errorf("session %s moved from %s to %s when another replica came", s, before[s], id)
		}
	}
}
