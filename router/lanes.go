package router

import "time"

// Scoring requests compute every prompt token and keep log-probabilities of all
// of them: they go where the fewest tokens wait for their prefill, bounded by a
// cap of their own on each replica, and stay out of the index. Embeddings are
// chosen by the pool's policy with nothing cached.
//
// An engine computes in the order in which requests come, so what scoring has
// in flight is what the next chat request waits for. Where there is chat, that
// is kept to a small part (Options.ScoreBeside), and none is added while chat
// waits for a first token.

const (
	// chatMemory is how long after its last chat request a replica still counts as one with chat.
	chatMemory = 10 * time.Second
	// scorePatience is how long scoring lets waiting chat go first: under chat
	// without a pause each replica still scores one request in that time.
	scorePatience = time.Second
)

// lane is what a replica has in flight of scoring and of all else. Under pool.mu.
type lane struct {
	others    int       // requests in flight that do not score
	computing int       // scoring requests whose prefill is not over
	scored    time.Time // when scoring was last bound here
	chat      time.Time // when anything else was last in flight here
}

func (s *lane) bound(l *Lease, now time.Time) {
	if l.lane == Score {
		s.computing++
		s.scored = now
		return
	}
	s.others++
}

// computed is told once of each lease whose prefill is over.
func (s *lane) computed(l *Lease) {
	if l.lane == Score {
		s.computing--
	}
}

func (s *lane) ended(l *Lease, now time.Time) {
	if l.lane != Score {
		s.others--
		s.chat = now
	}
}

// besideChat says whether the replica serves chat too, these days.
func (s *lane) besideChat(now time.Time) bool {
	return s.others > 0 || !s.chat.IsZero() && now.Sub(s.chat) < chatMemory
}

// scoreRoom says whether a scoring request fits under the replica's cap. One
// that is larger than the cap goes alone.
func (p *Pool) scoreRoom(now time.Time, q *Request, r *Replica) bool {
	limit := p.o.ScoreTokens
	if p.o.ScoreBeside < limit && r.lane.besideChat(now) {
		limit = p.o.ScoreBeside
		if r.waiting > r.lane.computing && now.Sub(r.lane.scored) < scorePatience {
			return false
		}
	}
	return r.scoring == 0 || r.scoring+q.Tokens <= limit
}

// ScorePart is how many tokens one part of a scoring batch should have at most:
// the cap, which is lower where there is chat.
func (p *Pool) ScorePart(now time.Time) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range *p.list.Load() {
		if r.lane.besideChat(now) {
			return min(p.o.ScoreTokens, p.o.ScoreBeside)
		}
	}
	return p.o.ScoreTokens
}

// fewestTokens is the candidate with the fewest outstanding prefill tokens.
func fewestTokens(c *Choice) int {
	return c.leastBy(func(a, b *Candidate) bool {
		if a.Queued != b.Queued {
			return a.Queued < b.Queued
		}
		return a.InFlight < b.InFlight
	})
}
