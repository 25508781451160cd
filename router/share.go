package router

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Gateways that share engines tell each other what they placed where and what
// they have in flight, in batches that the caller carries. A batch that is lost,
// late or doubled does no harm: what it told is found out by use, or forgotten.
//
// A batch is: the version, the sender, the replicas it speaks of with what is in
// flight there, and the placements. A placement names its replica, the block
// before it and the blocks that are new there, 8 bytes each.

const (
	shareVersion = 2 // of the batch, and of how prompts are cut into blocks
	// outboxBlocks bounds the blocks kept for the next batch; what is beyond is not told.
	outboxBlocks = 1 << 16
	// keepEvery is how often the others are told what is still in use here: they
	// have no pins on it, and would take it for old.
	keepEvery = 2 * time.Second
	// remoteLife is how long what another gateway has in flight is believed.
	remoteLife = 3 * time.Second
)

// outbox collects this gateway's placements for the others.
type outbox struct {
	on     atomic.Bool
	origin uint64

	mu     sync.Mutex // taken after an index's
	items  []placement
	blocks []uint64
	told   bool              // the last batch spoke of requests in flight
	flying map[*Lease]uint64 // the last block of every request in flight that is computed
	kept   time.Time         // when the others were last told to keep those
}

// placement is a run of blocks that became ready on a replica.
type placement struct {
	replica *Replica
	parent  uint64 // the block before them, 0: none
	n       int    // blocks, in outbox.blocks
}

// placed marks the blocks of a request as computed and notes those that are new.
func (o *outbox) placed(l *Lease) {
	r, from := l.replica, len(o.blocks)
	blocks, parent := r.index.markReady(l.slot, o.blocks)
	if o.flying == nil {
		o.flying = map[*Lease]uint64{}
	}
	o.flying[l] = r.index.entries[l.slot].hash
	if len(blocks) > outboxBlocks {
		o.blocks = blocks[:from]
		return
	}
	slices.Reverse(blocks[from:])
	o.blocks = blocks
	o.items = append(o.items, placement{replica: r, parent: parent, n: len(blocks) - from})
}

// landed forgets a request that has ended.
func (o *outbox) landed(l *Lease) {
	o.mu.Lock()
	delete(o.flying, l)
	o.mu.Unlock()
}

// Share begins to collect placements for other gateways. origin names this
// gateway among them; its own batches are ignored when they come back.
func (p *Pool) Share(origin uint64) {
	p.outbox.origin = origin
	p.outbox.on.Store(true)
}

// Export is the batch for the other gateways: what was placed since the last
// one, and what is in flight. nil when there is nothing to tell. It is meant to
// be called every 20 ms or so.
func (p *Pool) Export(now time.Time) []byte {
	o := &p.outbox
	list := p.Replicas()
	number := make(map[*Replica]int, len(list))
	b := append(make([]byte, 0, 1024), shareVersion)
	b = binary.LittleEndian.AppendUint64(b, o.origin)
	b = binary.AppendUvarint(b, uint64(len(list)))
	busy := false
	p.mu.Lock()
	for i, r := range list {
		number[r] = i
		b = binary.AppendUvarint(b, uint64(len(r.id)))
		b = append(b, r.id...)
		for _, v := range []int{r.backlog(now), r.waiting, r.streams, r.inFlight, r.kvInFlight()} {
			b = binary.AppendUvarint(b, uint64(max(0, v)))
		}
		busy = busy || r.inFlight > 0
	}
	p.mu.Unlock()

	o.mu.Lock()
	defer o.mu.Unlock()
	if !busy && !o.told && len(o.items) == 0 {
		return nil
	}
	o.told = busy
	if now.Sub(o.kept) >= keepEvery {
		o.kept = now
		for l, last := range o.flying {
			o.items = append(o.items, placement{replica: l.replica, parent: last})
		}
	}
	for _, it := range o.items {
		i, ok := number[it.replica]
		blocks := o.blocks[:it.n]
		o.blocks = o.blocks[it.n:]
		if !ok {
			continue
		}
		b = binary.AppendUvarint(b, uint64(i))
		b = binary.LittleEndian.AppendUint64(b, it.parent)
		b = binary.AppendUvarint(b, uint64(it.n))
		for _, h := range blocks {
			b = binary.LittleEndian.AppendUint64(b, h)
		}
	}
	o.items, o.blocks = o.items[:0], nil
	return b
}

// Import takes another gateway's batch. Replicas that this pool does not have
// are passed over.
func (p *Pool) Import(now time.Time, batch []byte) error {
	r := reader{rest: batch}
	if v := r.byte(); r.err == nil && v != shareVersion {
		return fmt.Errorf("router: placements of version %d, want %d", v, shareVersion)
	}
	origin := r.word()
	if r.err != nil || origin == p.outbox.origin {
		return r.err
	}
	replicas := p.importLoads(now, origin, &r)
	for r.err == nil && len(r.rest) > 0 {
		i, parent, n := r.number(), r.word(), r.number()
		if r.err == nil && (i >= len(replicas) || n > len(r.rest)/8) {
			r.err = errShort
		}
		if r.err != nil {
			break
		}
		r.hashes = r.hashes[:0]
		for range n {
			r.hashes = append(r.hashes, r.word())
		}
		if to := replicas[i]; to != nil {
			to.index.mu.Lock()
			to.index.attach(parent, r.hashes)
			to.index.mu.Unlock()
		}
	}
	return r.err
}

// importLoads reads the replicas of a batch; nil for those not known here.
func (p *Pool) importLoads(now time.Time, origin uint64, r *reader) []*Replica {
	n := r.number()
	if n > len(r.rest)/6 { // the least that one takes
		r.err = errShort
		return nil
	}
	known := make(map[string]*Replica, n)
	for _, to := range p.Replicas() {
		known[to.id] = to
	}
	replicas := make([]*Replica, 0, n)
	p.mu.Lock()
	defer p.mu.Unlock()
	for range n {
		to := known[string(r.bytes(r.number()))]
		l := remoteLoad{
			origin: origin, at: now, queued: r.number(), waiting: r.number(), streams: r.number(),
			inFlight: r.number(), kv: r.number(),
		}
		if r.err != nil {
			return nil
		}
		if to != nil {
			to.remote.set(l)
		}
		replicas = append(replicas, to)
	}
	return replicas
}

// remote is what other gateways have in flight on a replica. Under pool.mu.
type remote struct{ loads []remoteLoad }

type remoteLoad struct {
	origin                                 uint64
	at                                     time.Time
	queued, waiting, streams, inFlight, kv int
}

func (m *remote) set(l remoteLoad) {
	m.loads = slices.DeleteFunc(m.loads, func(o remoteLoad) bool {
		return o.origin == l.origin || l.at.Sub(o.at) > remoteLife
	})
	m.loads = append(m.loads, l)
}

// sum adds up what the other gateways have in flight by now.
func (m *remote) sum(now time.Time) (s remoteLoad) {
	for i := range m.loads {
		if l := &m.loads[i]; now.Sub(l.at) <= remoteLife {
			s.queued += l.queued
			s.waiting += l.waiting
			s.streams += l.streams
			s.inFlight += l.inFlight
			s.kv += l.kv
		}
	}
	return s
}

var errShort = errors.New("router: placements cut short or garbled")

// reader reads a batch; after an error everything is zero.
type reader struct {
	rest   []byte
	hashes []uint64
	err    error
}

func (r *reader) bytes(n int) []byte {
	if r.err != nil || n > len(r.rest) {
		r.err = errShort
		return nil
	}
	b := r.rest[:n]
	r.rest = r.rest[n:]
	return b
}

func (r *reader) byte() byte {
	if b := r.bytes(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) word() uint64 {
	if b := r.bytes(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// number reads a count; above 2^40 it is garbled.
func (r *reader) number() int {
	v, n := binary.Uvarint(r.rest)
	if r.err != nil || n <= 0 || v > 1<<40 {
		r.err = errShort
		return 0
	}
	r.rest = r.rest[n:]
	return int(v)
}
