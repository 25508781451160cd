package score

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"
)

// Options are the command's.
type Options struct {
	Files []string // text, or .jsonl, each also .gz; "-": text on standard input
	Field string   // of a JSON line, which holds the text
	Limit int      // only the first documents; 0: all

	BaseURL string
	Model   string // left out: the first that the endpoint lists
	KeyEnv  string // the environment variable that holds the API key

	Window    int    // tokens of one request's prompt
	Context   int    // of these, at least so many are there only to predict the others from
	Prefix    string // a token before each document, as an id or as text; empty: none
	TextBytes int    // without /tokenize: cut texts at white space into pieces of so many bytes; 0: tokens

	Batch       int
	Concurrency int
	Timeout     time.Duration // of one request
	Retries     int           // of one request, for 429, 5xx and lost connections
	Zero        bool          // send max_tokens 0 and logprobs 0 where the endpoint takes them

	Out  string // file of results; empty: none
	JSON bool   // the report as JSON
	Bar  bool   // a progress bar on stderr, which must be a terminal
}

// Validate finds what no run can do.
func (o *Options) Validate() error {
	switch {
	case len(o.Files) == 0:
		return errors.New("no files: want at least one, or - for standard input")
	case o.TextBytes < 0:
		return fmt.Errorf("--text-bytes %d: want at least 0", o.TextBytes)
	case o.Window < 2:
		return fmt.Errorf("--window %d: want at least 2 tokens", o.Window)
	case o.Context < 1 || o.Context >= o.Window:
		return fmt.Errorf("--context %d: want at least 1 and less than --window %d", o.Context, o.Window)
	case o.Batch < 1:
		return fmt.Errorf("--batch %d: want at least 1", o.Batch)
	case o.Concurrency < 1:
		return fmt.Errorf("--concurrency %d: want at least 1", o.Concurrency)
	case o.Timeout <= 0:
		return fmt.Errorf("--timeout %v: want more than 0", o.Timeout)
	case o.Retries < 0 || o.Limit < 0:
		return errors.New("--retries and --limit: want at least 0")
	case o.Prefix != "" && o.TextBytes > 0:
		return errors.New("--prefix and --text-bytes: only one of them")
	}
	_, err := baseURL(o.BaseURL)
	return err
}

// baseURL is the URL with or without /v1 that clients are given, without it.
func baseURL(s string) (string, error) {
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return "", fmt.Errorf("--base-url %q: want http://HOST[:PORT] or https://HOST, with or without /v1", s)
	}
	return strings.TrimSuffix(strings.TrimSuffix(s, "/"), "/v1"), nil
}
