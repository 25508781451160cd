package bench

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Endpoint is one server under load.
type Endpoint struct {
	Name  string
	Model string

	api       string // chat or completions
	base      *url.URL
	key       string
	client    *http.Client
	vocab     vocabulary
	scale     scale
	ignoreEOS bool
	usage     bool // ask for usage in streams
	stream    bool
	silence   time.Duration
	timeout   time.Duration
	number    uint64 // among the endpoints, so that no two send the same prompts
	info      json.RawMessage
	backend   string // as bench_serving names it
}

func newEndpoint(arg string, o *Options) (*Endpoint, error) {
	name, base, err := parseEndpoint(arg)
	if err != nil {
		return nil, err
	}
	return &Endpoint{
		Name: name, api: o.API, base: base, vocab: newVocabulary(), scale: scale{perWord: 1},
		ignoreEOS: !o.KeepEOS, usage: !o.NoUsage, stream: !o.NoStream, silence: o.Silence, timeout: o.Timeout, backend: "openai",
		client: &http.Client{Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment,
			// One request on each connection: a lost or slow one holds up no other.
			TLSNextProto:        map[string]func(string, *tls.Conn) http.RoundTripper{},
			MaxIdleConns:        0,
			MaxIdleConnsPerHost: 1 << 16,
			IdleConnTimeout:     4 * time.Second, // engines close after 5
			DisableCompression:  true,
			ReadBufferSize:      16 << 10,
		}},
	}, nil
}

// maxAnswer bounds an answer that is read as a whole.
const maxAnswer = 64 << 20

// prepareTimeout bounds each request before the load begins.
const prepareTimeout = 2 * time.Minute

func (e *Endpoint) request(ctx context.Context, method, path string, body io.Reader) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, method, e.base.String()+path, body)
	if err != nil {
		return nil, err
	}
	if e.key != "" {
		req.Header.Set("Authorization", "Bearer "+e.key)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("User-Agent", "penstock-bench")
	return req, nil
}

// get asks for a JSON answer.
func (e *Endpoint) get(ctx context.Context, path string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, prepareTimeout)
	defer cancel()
	req, err := e.request(ctx, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	resp, err := e.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s: %.200s", req.URL.Path, resp.Status, b)
	}
	return json.Unmarshal(b, into)
}

// findModel takes the first model that the endpoint lists.
func (e *Endpoint) findModel(ctx context.Context) error {
	if e.Model != "" {
		return nil
	}
	var list struct {
		Data []struct{ ID string }
	}
	if err := e.get(ctx, "/models", &list); err != nil {
		return fmt.Errorf("endpoint %s: which model? name it with --model: %w", e.Name, err)
	}
	if len(list.Data) == 0 {
		return fmt.Errorf("endpoint %s lists no model; name one with --model", e.Name)
	}
	e.Model = list.Data[0].ID
	return nil
}

// findInfo asks for the server's own description, which only some have.
func (e *Endpoint) findInfo(ctx context.Context) {
	root := *e
	base := *e.base
	base.Path = strings.TrimSuffix(base.Path, "/v1")
	root.base = &base
	for _, path := range []string{"/server_info", "/get_server_info"} {
		if root.get(ctx, path, &e.info) == nil {
			e.backend = "sglang"
			return
		}
	}
	e.info = nil
}
