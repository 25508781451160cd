package gateway

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"penstock/configs"
	"penstock/limits"
	"penstock/metrics"
)

const (
	// shareEvery is how often a gateway tells the others what it has placed.
	shareEvery = 75 * time.Millisecond
	// shareMost bounds one message.
	shareMost = 1 << 20
	// shareQuiet is for how long a subscription may be silent before it is tried.
	shareQuiet = 5 * time.Second
	// shareBackOff is the pause after a failure; it doubles up to shareLongest.
	shareBackOff, shareLongest = 500 * time.Millisecond, 8 * time.Second
	// shareVersion begins every message; others are not understood.
	shareVersion = 1
)

// placements are what one model's router tells those of other gateways.
type placements interface {
	// Export is what was placed since the last call and what is in flight; empty: no news.
	Export(now time.Time) []byte
	// Import takes over what another gateway exported.
	Import(now time.Time, batch []byte) error
}

// sharing sends this gateway's placements to the others through Redis, and
// takes theirs in. It is lossy by design: no request waits for it, nothing is
// kept for later, and without Redis every gateway routes by what it knows itself.
type sharing struct {
	client  redis.UniversalClient
	channel string
	self    uint64
	timeout time.Duration
	models  func() map[string]placements
	metrics *metrics.Metrics
	log     *slog.Logger

	stop context.CancelFunc
	done chan struct{}
	buf  []byte // of the sender
}

// newSharing makes it as the configuration says; nil: nothing is shared.
func newSharing(c *configs.Redis, models func() map[string]placements, m *metrics.Metrics, log *slog.Logger) (*sharing, error) {
	if c.URL == "" || !c.SharePlacements {
		return nil, nil //nolint:nilnil // nothing to share is no error
	}
	o, err := limits.RedisOptions(c)
	if err != nil {
		return nil, err
	}
	o.PoolSize, o.MaxActiveConns, o.MinIdleConns = 4, 0, 0
	s := &sharing{
		client: redis.NewUniversalClient(o), channel: limits.RedisPrefix(c) + "placements", timeout: o.ReadTimeout,
		models: models, metrics: m, log: log, done: make(chan struct{}),
	}
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails
	s.self = binary.LittleEndian.Uint64(id[:])
	return s, nil
}

// start runs it until close.
func (s *sharing) start(in func(func())) {
	if s == nil {
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	received := make(chan struct{})
	in(func() {
		defer close(received)
		s.receive(ctx)
	})
	in(func() {
		defer close(s.done)
		s.send(ctx)
		<-received
	})
}

func (s *sharing) close() {
	if s == nil {
		return
	}
	s.stop()
	_ = s.client.Close() // ends what the receiver waits for
	<-s.done
}

// send publishes what was placed, again and again.
func (s *sharing) send(ctx context.Context) {
	tick := time.NewTicker(shareEvery)
	defer tick.Stop()
	var fails backOff
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			n, err := s.publish(ctx, now, fails.until.After(now))
			s.told("sending", &fails, now, n, err)
		}
	}
}

// publish sends one message, or drops its placements while Redis is away: what
// is old when it comes back helps nobody. n is above 0 when Redis took it.
func (s *sharing) publish(ctx context.Context, now time.Time, away bool) (n int, err error) {
	n = s.compose(now)
	if n == 0 {
		return 0, nil
	}
	if away {
		s.metrics.Placements(0, 0, n)
		return 0, nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	if err := s.client.Publish(ctx, s.channel, s.buf).Err(); err != nil {
		s.metrics.Placements(0, 0, n)
		return 0, err
	}
	s.metrics.Placements(n, 0, 0)
	return n, nil
}

// compose writes the next message into s.buf: version, this gateway, and for
// each model with news its name, the batch's length and the batch. It returns
// the number of batches. One that finds no room is dropped: the other gateways
// do without.
func (s *sharing) compose(now time.Time) (n int) {
	s.buf = binary.LittleEndian.AppendUint64(append(s.buf[:0], shareVersion), s.self)
	for name, m := range s.models() {
		batch := m.Export(now)
		if len(batch) == 0 {
			continue
		}
		if len(s.buf)+len(name)+6+len(batch) > shareMost {
			s.metrics.Placements(0, 0, 1)
			continue
		}
		s.buf = appendString(s.buf, name)
		s.buf = binary.LittleEndian.AppendUint32(s.buf, uint32(len(batch))) //nolint:gosec // at most shareMost
		s.buf = append(s.buf, batch...)
		n++
	}
	return n
}

// receive takes in what others publish.
func (s *sharing) receive(ctx context.Context) {
	var fails backOff
	for ctx.Err() == nil {
		sub := s.client.Subscribe(ctx, s.channel)
		err := s.listen(ctx, sub, &fails)
		_ = sub.Close()
		if ctx.Err() != nil {
			return
		}
		now := time.Now()
		s.told("receiving", &fails, now, 0, err)
		pause := time.NewTimer(fails.until.Sub(now))
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
		}
	}
}

// listen reads a subscription until it breaks.
func (s *sharing) listen(ctx context.Context, sub *redis.PubSub, fails *backOff) error {
	asked := false
	for {
		v, err := sub.ReceiveTimeout(ctx, shareQuiet)
		if err != nil {
			if !isTimeout(err) || asked || ctx.Err() != nil {
				return err
			}
			if err := sub.Ping(ctx); err != nil { // the answer counts as a message
				return err
			}
			asked = true
			continue
		}
		asked = false
		s.told("receiving", fails, time.Now(), 1, nil)
		if m, ok := v.(*redis.Message); ok {
			s.take(time.Now(), []byte(m.Payload))
		}
	}
}

func isTimeout(err error) bool {
	t, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](err)
	return ok && t.Timeout()
}

// take reads a message of another gateway. One that cannot be read, or a part
// of it, is dropped.
func (s *sharing) take(now time.Time, b []byte) {
	if len(b) < 9 || b[0] != shareVersion || len(b) > shareMost {
		s.metrics.Placements(0, 0, 1)
		return
	}
	from := binary.LittleEndian.Uint64(b[1:])
	if from == s.self {
		return
	}
	models := s.models()
	for b = b[9:]; len(b) > 0; {
		name, rest, ok := cutString(b)
		if !ok || len(rest) < 4 {
			s.metrics.Placements(0, 0, 1)
			return
		}
		size := int(binary.LittleEndian.Uint32(rest))
		if rest = rest[4:]; size > len(rest) {
			s.metrics.Placements(0, 0, 1)
			return
		}
		if m := models[name]; m == nil || m.Import(now, rest[:size]) != nil {
			s.metrics.Placements(0, 0, 1)
		} else {
			s.metrics.Placements(0, 1, 0)
		}
		b = rest[size:]
	}
}

// backOff is the pause after failures in a row.
type backOff struct {
	next  time.Duration
	until time.Time
}

// told notes how a step went, and logs where that changes. n 0 and no error: nothing was done.
func (s *sharing) told(what string, f *backOff, now time.Time, n int, err error) {
	switch {
	case err != nil && !errors.Is(err, context.Canceled):
		if f.next == 0 {
			s.log.Warn("placements are not shared: Redis is away", "what", what, "error", err)
			f.next = shareBackOff
		}
		f.until = now.Add(f.next)
		f.next = min(2*f.next, shareLongest)
	case n > 0 && f.next > 0:
		s.log.Info("placements are shared again", "what", what)
		*f = backOff{}
	}
}

func appendString(b []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint16(b, uint16(min(len(s), 1<<16-1))), s[:min(len(s), 1<<16-1)]...) //nolint:gosec // bounded
}

func cutString(b []byte) (s string, rest []byte, ok bool) {
	if len(b) < 2 {
		return "", nil, false
	}
	n := int(binary.LittleEndian.Uint16(b))
	if len(b) < 2+n {
		return "", nil, false
	}
	return string(b[2 : 2+n]), b[2+n:], true
}
