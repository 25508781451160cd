package gateway

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock/metrics"
)

// fakePlacements export what they are given and remember what they import.
type fakePlacements struct {
	news     []byte
	imported []byte
	err      error
}

func (f *fakePlacements) Export(time.Time) []byte {
	news := f.news
	f.news = nil
	return news
}

func (f *fakePlacements) Import(_ time.Time, batch []byte) error {
	f.imported = append(f.imported, batch...)
	return f.err
}

func testSharing(self uint64, models map[string]placements) *sharing {
	return &sharing{
		self: self, models: func() map[string]placements { return models },
		metrics: metrics.New(prometheus.NewRegistry(), metrics.Options{}), log: slog.New(slog.DiscardHandler),
	}
}

func TestPlacementsArriveAtTheSameModelsOfOtherGateways(t *testing.T) {
	a := testSharing(1, map[string]placements{"m": &fakePlacements{news: []byte("one")}, "org/n": &fakePlacements{news: []byte("two")}, "quiet": &fakePlacements{}})
	if n := a.compose(time.Now()); n != 2 {
		t.Errorf("compose: %d batches, want those of two models", n)
	}
	m, other := &fakePlacements{}, &fakePlacements{}
	b := testSharing(2, map[string]placements{"m": m, "other": other})
	b.take(time.Now(), a.buf)
	if string(m.imported) != "one" || other.imported != nil {
		t.Errorf("model m imported %q, another model %q; want one, and nothing", m.imported, other.imported)
	}
	own := &fakePlacements{}
	testSharing(1, map[string]placements{"m": own}).take(time.Now(), a.buf)
	if own.imported != nil {
		t.Errorf("a gateway took in its own message: %q", own.imported)
	}
	if n := a.compose(time.Now()); n != 0 {
		t.Errorf("without news: %d batches, want no message", n)
	}
}

func TestAMessageIsBounded(t *testing.T) {
	big := bytes.Repeat([]byte("x"), shareMost-100)
	s := testSharing(1, map[string]placements{"m": &fakePlacements{news: big}, "n": &fakePlacements{news: big}})
	if n := s.compose(time.Now()); n != 1 || len(s.buf) > shareMost {
		t.Errorf("two batches of %d bytes: %d in a message of %d bytes, want one in at most %d", len(big), n, len(s.buf), shareMost)
	}
}

// TestBrokenMessagesAreDropped cuts a message off at every byte, and garbles it.
func TestBrokenMessagesAreDropped(t *testing.T) {
	a := testSharing(1, map[string]placements{"m": &fakePlacements{news: []byte("news")}})
	a.compose(time.Now())
	m := &fakePlacements{err: errors.New("not understood")}
	b := testSharing(2, map[string]placements{"m": m})
	for i := range a.buf {
		b.take(time.Now(), a.buf[:i])
		garbled := bytes.Clone(a.buf)
		garbled[i] ^= 0xff
		b.take(time.Now(), garbled)
	}
	if len(m.imported) > 3*len("news")*len(a.buf) {
		t.Errorf("%d bytes were taken from broken messages", len(m.imported))
	}
}

// TestSharingBacksOff: failures in a row are tried again ever later, said once,
// and forgotten when it works again.
func TestSharingBacksOff(t *testing.T) {
	var log bytes.Buffer
	s := testSharing(1, nil)
	s.log = slog.New(slog.NewTextHandler(&log, nil))
	now := time.Unix(1000, 0)
	var f backOff
	var pauses []time.Duration
	for range 7 {
		s.told("sending", &f, now, 0, errors.New("refused"))
		pauses = append(pauses, f.until.Sub(now))
		now = f.until
	}
	if pauses[0] != shareBackOff || pauses[1] != 2*shareBackOff || pauses[6] != shareLongest {
		t.Errorf("pauses %v, want them to double from %v to %v", pauses, shareBackOff, shareLongest)
	}
	s.told("sending", &f, now, 0, nil) // nothing was to be sent: says nothing
	s.told("sending", &f, now, 1, nil)
	if f != (backOff{}) || bytes.Count(log.Bytes(), []byte("\n")) != 2 {
		t.Errorf("after a success: %+v and the log\n%s\nwant nothing held, and two lines", f, log.String())
	}
	s.told("sending", &f, now, 0, context.Canceled)
	if f != (backOff{}) {
		t.Errorf("the end counts as a failure: %+v", f)
	}
}
