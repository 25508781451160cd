package top

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

const (
	maxUpdate   = 16 << 20        // bytes
	silence     = 5 * time.Second // without an update the gateway is taken for gone
	retryPause  = time.Second
	firstUpdate = 10 * time.Second
)

var errSilent = errors.New("no update came")

// news is one update, or why there is none.
type news struct {
	state *state
	err   error
}

// follow sends updates until ctx ends, connecting again after errors.
func follow(ctx context.Context, url string, out chan<- news) {
	for ctx.Err() == nil {
		err := stream(ctx, url, func(s *state) { tell(ctx, out, news{state: s}) })
		tell(ctx, out, news{err: err})
		select {
		case <-ctx.Done():
		case <-time.After(retryPause):
		}
	}
}

func tell(ctx context.Context, out chan<- news, n news) {
	select {
	case out <- n:
	case <-ctx.Done():
	}
}

// one is the first update.
func one(ctx context.Context, url string) (*state, error) {
	ctx, cancel := context.WithTimeout(ctx, firstUpdate)
	defer cancel()
	var got *state
	err := stream(ctx, url, func(s *state) {
		got = s
		cancel()
	})
	if got != nil {
		return got, nil
	}
	return nil, err
}

// stream reads updates until it breaks.
func stream(ctx context.Context, url string, each func(*state)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watchdog := time.AfterFunc(silence, func() { cancel(errSilent) })
	defer watchdog.Stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/events", nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return reason(ctx, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 200))
		return fmt.Errorf("%s/events answered %d: %s", url, resp.StatusCode, bytes.TrimSpace(text))
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(make([]byte, 0, 64<<10), maxUpdate)
	var name []byte
	for lines.Scan() {
		if v, ok := bytes.CutPrefix(lines.Bytes(), []byte("event: ")); ok {
			name = append(name[:0], v...)
			continue
		}
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !ok || string(name) != "status" {
			continue
		}
		s := new(state)
		if err := json.Unmarshal(data, s); err != nil {
			return fmt.Errorf("%s/events is not a Penstock's: %w", url, err)
		}
		watchdog.Reset(silence)
		each(s)
	}
	return reason(ctx, lines.Err())
}

// reason is why a stream ended.
func reason(ctx context.Context, err error) error {
	switch {
	case context.Cause(ctx) != nil:
		return context.Cause(ctx)
	case err == nil:
		return io.ErrUnexpectedEOF
	}
	return err
}
