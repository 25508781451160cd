package router

import (
	"cmp"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zeebo/xxh3"
)

const (
	defaultIndexFactor  = 1.1
	defaultStreamWeight = 0.02
	defaultBalance      = 0.5
	defaultStepTime     = 16 * time.Millisecond
	defaultWaitMost     = 5 * time.Second
	defaultFollowers    = 10
	defaultScoreTokens  = 16384
	defaultScoreBeside  = 2048
	// defaultMaxRunning is a replica's running limit until it is told or learned.
	defaultMaxRunning = 256
	// defaultKVTokens sizes the index of a replica that does not tell its KV
	// capacity; such a replica is never full for the room check.
	defaultKVTokens = 524288
)

// Options are a pool's parameters; zero values mean the defaults.
type Options struct {
	// Policy is prefix (default), least_load, round_robin, random_two or session.
	Policy string
	// BlockTokens is the block size of the keys. Default 64.
	BlockTokens int
	// IndexFactor is the index's capacity over the KV capacity. Default 1.1.
	IndexFactor float64
	// StreamWeight is what a running stream adds to the price of a prefill. Default 0.02; below 0: nothing.
	StreamWeight float64
	// BalanceWeight is what the mean number of streams adds to it; requests that
	// ran or began of late add in proportion (see prefix). Default 0.5; below 0: nothing.
	BalanceWeight float64
	// StepTime is what a prefill takes however short it is. Default 16 ms; below 0: nothing.
	StepTime time.Duration
	// WaitMost bounds waiting for a better replica while one has room. Default 5 s; below 0: none.
	WaitMost time.Duration
	// Followers is how many may wait for one prefix before it is as cheap to compute it once more. Default 10.
	Followers int
	// RunningAllowance may be bound beyond a replica's running limit. Default 0.
	RunningAllowance int
	// ScoreTokens bounds the scoring tokens in flight on one replica; a single larger request goes alone. Default 16384.
	ScoreTokens int
	// ScoreBeside takes its place on a replica with chat, or that had some of late. Default 2048; ScoreTokens and more: chat is given no precedence.
	ScoreBeside int
	// Seed makes the random choices reproducible.
	Seed uint64
	// Custom replaces Policy: the replay tool's baselines.
	Custom Policy
	// Eager binds at once whether or not a request fits: engines queue, not the gateway.
	Eager bool
}

func (o Options) withDefaults() Options {
	o.Policy = cmp.Or(o.Policy, "prefix")
	o.BlockTokens = cmp.Or(o.BlockTokens, defaultBlockTokens)
	o.IndexFactor = cmp.Or(o.IndexFactor, defaultIndexFactor)
	o.StreamWeight = max(0, cmp.Or(o.StreamWeight, defaultStreamWeight))
	o.BalanceWeight = max(0, cmp.Or(o.BalanceWeight, defaultBalance))
	o.StepTime = max(0, cmp.Or(o.StepTime, defaultStepTime))
	o.WaitMost = max(0, cmp.Or(o.WaitMost, defaultWaitMost))
	o.Followers = max(1, cmp.Or(o.Followers, defaultFollowers))
	o.ScoreTokens = cmp.Or(o.ScoreTokens, defaultScoreTokens)
	o.ScoreBeside = cmp.Or(o.ScoreBeside, defaultScoreBeside)
	return o
}

// The reasons for which Choose binds nothing.
var (
	// ErrNoReplica: no replica is usable; waiting for room does not help.
	ErrNoReplica = errors.New("router: no usable replica")
	// ErrNoRoom: no usable replica has room now; the request belongs in the queue.
	ErrNoRoom = errors.New("router: no replica has room")
	// ErrHeld: some have room, but waiting is cheaper; only with Request.MayWait.
	ErrHeld = errors.New("router: waiting is cheaper than any replica with room")
)

// Capacity is what a replica's engine can hold; 0: unknown.
type Capacity struct {
	KVTokens   int // tokens of KV cache
	MaxRunning int // requests running at once
	PageSize   int // tokens of one KV page; a hit is whole pages
}

// Pool is the replicas of one model.
type Pool struct {
	o      Options
	policy Policy
	block  int                        // tokens of a block of the keys; never changes, so it is read without the lock
	list   atomic.Pointer[[]*Replica] // copied on write, under mu

	scratch sync.Pool // *Choice

	mu      sync.Mutex // guards what follows, and the reservations of all replicas
	held    int        // requests in the gateway's queue
	due     dueHeap    // reservations of unstreamed answers, by predicted first token
	rates   rate       // the fleet's
	sum     rate       // Σ of the replicas' own
	reports reports    // what engines report of theirs
	ratio   ratio      // bytes of key for each token, learned
	fresh   ratio      // uncached tokens for each request
	output  ratio      // output tokens for each request, learned
	rnd     *rand.Rand
	outbox  outbox
}

// NewPool makes an empty pool. An unknown policy name means prefix; the
// configuration refuses it earlier.
func NewPool(o Options) *Pool {
	o = o.withDefaults()
	p := &Pool{o: o, block: o.BlockTokens, policy: o.Custom, rnd: rand.New(rand.NewPCG(o.Seed, 0x70656e73746f636b))}
	if p.policy == nil {
		p.policy = newPolicy(o.Policy)
	}
	p.scratch.New = func() any { return new(Choice) }
	p.list.Store(new([]*Replica))
	p.rates = rate{work: startRate * priorTime, time: priorTime}
	p.ratio = ratio{num: bytesPerToken * 16384, den: 16384, decay: 0.999}
	p.fresh = ratio{num: 512 * 8, den: 8, decay: 0.99}
	p.output = ratio{num: 256 * 8, den: 8, decay: 0.998}
	return p
}

// Replica is one engine replica of one pool, with the reservations made on it.
type Replica struct {
	id     string
	hash   uint64 // of the id
	pool   *Pool
	usable func() bool
	index  *index

	// Under pool.mu.
	capacity   Capacity
	maxRunning int       // capacity's, or learned
	queued     int       // Q: uncached tokens reserved, first token not seen
	waiting    int       // w: requests behind Q
	streams    int       // d: requests past their first token
	inFlight   int       // all requests bound here
	peak       int       // most of them since the last load report
	loose      int       // KV tokens in flight that no block of the index stands for
	input      int       // Σ prompt tokens in flight, shared or not
	scoring    int       // prompt tokens of scoring requests in flight
	lane       lane      // what of it is scoring
	order      []*Lease  // bound and not prefilled, in the order of their binding
	started    time.Time // when the first of them began, as far as seen
	round      uint64    // counts prefills
	followers  int       // requests that wait for a prefix computed here
	usual      level     // requests in flight, over usualSpan
	turns      fading    // generating requests bound, over turnSpan
	ends       ratio     // seconds between the ends of requests
	lastEnd    time.Time
	rate       rate    // prefill tokens per second, learned
	off        bool    // it is not the fleet's, by a factor of two
	engine     engine  // what the engine reports
	remote     remote  // what other gateways have in flight here
	hits       hits    // predicted and reported cached tokens
	total      uint64  // requests ever bound here
	blockRoom  float64 // correction of the index's capacity by reported hits, at most 1
	lost       int     // predicted hits in a row of which nothing was found
	gone       bool
}

// Add adds a replica. usable is asked at every choice, outside all locks of the
// router, and must be cheap.
func (p *Pool) Add(id string, c Capacity, usable func() bool) *Replica {
	r := &Replica{id: id, hash: xxh3.HashString(id), pool: p, usable: usable, index: newIndex(1), blockRoom: 1, ends: ratio{decay: 0.95}}
	p.mu.Lock()
	defer p.mu.Unlock()
	r.setCapacity(c)
	list := append(slices.Clone(*p.list.Load()), r)
	p.list.Store(&list)
	return r
}

// Remove takes a replica out. Leases on it stay valid.
func (p *Pool) Remove(r *Replica) {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := slices.DeleteFunc(slices.Clone(*p.list.Load()), func(o *Replica) bool { return o == r })
	if len(list) == len(*p.list.Load()) {
		return
	}
	p.list.Store(&list)
	r.gone = true
	p.sum.work -= r.rate.work
	p.sum.time -= r.rate.time
	p.sum.n -= r.rate.n
	if r.engine.rate > 0 {
		p.reports.sum -= r.engine.rate
		p.reports.n--
	}
}

// Replicas are the pool's, in the order of their addition. Not to be changed.
func (p *Pool) Replicas() []*Replica { return *p.list.Load() }

// SetHeld says how many requests wait in the gateway's queue: they count as
// waiting behind whatever is bound now.
func (p *Pool) SetHeld(n int) {
	p.mu.Lock()
	p.held = n
	p.mu.Unlock()
}

// Policy is the name of the policy in force.
func (p *Pool) Policy() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.o.Policy
}

// TokensPerUnit is what a unit of the key is worth, as learned from usage.
func (p *Pool) TokensPerUnit() float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.tokensPerUnit()
}

func (p *Pool) tokensPerUnit() float64 {
	perToken := min(max(p.ratio.value(), 1), 8)
	return float64(p.o.BlockTokens) * bytesPerToken / perToken
}

// ID is the replica's name.
func (r *Replica) ID() string { return r.id }

// SetCapacity replaces what is known of the engine's capacity.
func (r *Replica) SetCapacity(c Capacity) {
	r.pool.mu.Lock()
	defer r.pool.mu.Unlock()
	r.setCapacity(c)
}

func (r *Replica) setCapacity(c Capacity) {
	if c.MaxRunning != r.capacity.MaxRunning || r.maxRunning == 0 {
		r.maxRunning = cmp.Or(c.MaxRunning, defaultMaxRunning)
	}
	r.capacity = c
	r.sizeIndex()
}

// sizeIndex sets the index's capacity from the KV capacity, the learned ratio
// of bytes to tokens and the correction that reported hits suggest.
func (r *Replica) sizeIndex() {
	units := r.indexUnits()
	r.index.mu.Lock()
	r.index.setCapacity(units)
	r.index.mu.Unlock()
}

func (r *Replica) indexUnits() int {
	tokens := float64(cmp.Or(r.capacity.KVTokens, defaultKVTokens))
	return int(tokens * r.pool.o.IndexFactor * r.blockRoom / r.pool.tokensPerUnit())
}

// Flush forgets what the replica holds: its engine was restarted or flushed.
// Requests in flight keep their reservations.
func (r *Replica) Flush() {
	r.index.mu.Lock()
	r.index.reset()
	r.index.mu.Unlock()
}

// kvInFlight is the KV in use by requests in flight, in tokens, prefixes that
// they share counted once. Under pool.mu.
func (r *Replica) kvInFlight() int {
	return int(float64(r.index.pinned.Load())*r.pool.tokensPerUnit()) + r.loose
}

// Stats is a replica's state for /replicas and the metrics.
type Stats struct {
	ID           string
	InFlight     int
	Streams      int
	Waiting      int
	QueuedTokens int
	KVInFlight   int
	KVTokens     int
	MaxRunning   int
	IndexBlocks  int
	// ScoringTokens are the prompt tokens of scoring requests in flight.
	ScoringTokens int
	// RequestsTotal counts the requests ever bound here.
	RequestsTotal uint64
	// PredictedTokens, CachedTokens and PromptTokens are sums over the requests whose engine reported cached tokens.
	PredictedTokens, CachedTokens, PromptTokens uint64
	// HitPredicted and HitActual are recent shares of prompt tokens; -1: unknown.
	HitPredicted, HitActual float64
	// PrefillRate is the learned rate in tokens per second, as the cost uses it.
	PrefillRate float64
}

// Stats reads the replica's state.
func (r *Replica) Stats() Stats {
	r.pool.mu.Lock()
	defer r.pool.mu.Unlock()
	r.index.mu.RLock()
	blocks := r.index.count
	r.index.mu.RUnlock()
	s := Stats{
		ID: r.id, InFlight: r.inFlight, Streams: r.streams, Waiting: r.waiting, QueuedTokens: r.queued,
		KVInFlight: r.kvInFlight(), KVTokens: r.capacity.KVTokens, MaxRunning: r.maxRunning,
		IndexBlocks: blocks, ScoringTokens: r.scoring, RequestsTotal: r.total,
		PredictedTokens: r.hits.predicted, CachedTokens: r.hits.cached, PromptTokens: r.hits.prompt,
		HitPredicted: -1, HitActual: -1, PrefillRate: r.prefillRate(),
	}
	if r.hits.recentPrompt > 0 {
		s.HitPredicted = r.hits.recentPredicted / r.hits.recentPrompt
		s.HitActual = r.hits.recentCached / r.hits.recentPrompt
	}
	return s
}

// hits are the cached tokens that the router predicted and the engine reported.
type hits struct {
	predicted, cached, prompt                   uint64
	recentPredicted, recentCached, recentPrompt float64
}

func (h *hits) add(predicted, cached, prompt int) {
	h.predicted += uint64(predicted)
	h.cached += uint64(cached)
	h.prompt += uint64(prompt)
	const decay = 0.98
	h.recentPredicted = h.recentPredicted*decay + float64(predicted)
	h.recentCached = h.recentCached*decay + float64(cached)
	h.recentPrompt = h.recentPrompt*decay + float64(prompt)
}

// Tick releases the reservations of unstreamed answers whose first token must
// have come by now. Choose does it too; a gateway that holds requests back
// calls it at Due, when room may have come.
func (p *Pool) Tick(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tick(now)
}

// Due is when Tick has something to do next; the zero time: nothing is due.
func (p *Pool) Due() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.due) == 0 {
		return time.Time{}
	}
	return p.due[0].dueAt
}
