package engine

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// maxAnswer bounds the body of a control-plane answer. The largest seen are
// SGLang's server info (100 KB) and metrics (110 KB with two ranks).
const maxAnswer = 16 << 20

// controlIdle closes idle control connections before the engines do (5 s).
const controlIdle = 4 * time.Second

// client asks one engine about itself. It is safe for concurrent use.
type client struct {
	base string // scheme://host:port, with a path prefix where there is one
	key  string
	hc   *http.Client
}

// statusError is an answer other than 200.
type statusError struct {
	path   string
	status int
	body   string // its beginning
}

func (e *statusError) Error() string {
	return fmt.Sprintf("GET %s: status %d: %s", e.path, e.status, e.body)
}

// notThere says that the engine has no such endpoint, so that an older one may be tried.
func notThere(err error) bool {
	se, ok := errors.AsType[*statusError](err)
	return ok && (se.status == http.StatusNotFound || se.status == http.StatusMethodNotAllowed ||
		se.status == http.StatusNotImplemented)
}

func newTransport(dial func(ctx context.Context, network, addr string) (net.Conn, error), tc *tls.Config) *http.Transport {
	if dial == nil {
		dial = (&net.Dialer{Timeout: 2 * time.Second}).DialContext
	}
	return &http.Transport{
		DialContext:         dial,
		TLSClientConfig:     tc,
		TLSHandshakeTimeout: 3 * time.Second,
		MaxIdleConnsPerHost: 2,
		IdleConnTimeout:     controlIdle,
		DisableCompression:  true,
	}
}

// get fetches one path. The context bounds it.
func (c *client) get(ctx context.Context, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+path, nil)
	if err != nil {
		return nil, err
	}
	if c.key != "" {
		req.Header.Set("Authorization", "Bearer "+c.key)
	}
	req.Header.Set("User-Agent", "penstock")
	resp, err := c.hc.Do(req)
	if err != nil {
		return nil, fmt.Errorf("GET %s: %w", path, bareError(err))
	}
	defer resp.Body.Close()
	body, err := readAnswer(resp)
	if err != nil {
		return nil, fmt.Errorf("GET %s: %w", path, err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, &statusError{path: path, status: resp.StatusCode, body: firstLine(body, 200)}
	}
	return body, nil
}

func readAnswer(resp *http.Response) ([]byte, error) {
	if n := resp.ContentLength; n > 0 && n <= maxAnswer {
		body := make([]byte, n)
		_, err := io.ReadFull(resp.Body, body)
		return body, err
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err == nil && len(body) > maxAnswer {
		err = fmt.Errorf("the answer is larger than %d MiB", maxAnswer>>20)
	}
	return body, err
}

// bareError takes off the URL that net/http puts before every error: the
// caller says which engine it was.
func bareError(err error) error {
	type unwrapper interface{ Unwrap() error }
	if u, ok := err.(unwrapper); ok && strings.HasPrefix(err.Error(), "Get ") {
		return u.Unwrap()
	}
	return err
}

func firstLine(b []byte, limit int) string {
	s := string(b[:min(len(b), limit)])
	if i := strings.IndexByte(s, '\n'); i >= 0 {
		s = s[:i]
	}
	return strings.TrimSpace(s)
}
