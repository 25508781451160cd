package score

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/sync/errgroup"
)

// Getenv is os.LookupEnv, or a test's.
type Getenv func(string) (string, bool)

// Run scores the files and writes the report to stdout.
func Run(ctx context.Context, o Options, getenv Getenv, stdin io.Reader, stdout, stderr io.Writer) error {
	docs, err := load(&o, stdin)
	if err != nil {
		return err
	}
	r := &run{opts: &o, prefix: -1}
	if r.client, err = newClient(ctx, &o, getenv); err != nil {
		return err
	}
	if err := r.findPrefix(ctx); err != nil {
		return err
	}
	if r.store, err = openStore(o.Out); err != nil {
		return err
	}
	r.showBar(docs, stderr)
	began := time.Now()
	err = r.all(ctx, docs)
	if r.bar != nil {
		_ = r.bar.Finish()
	}
	err = errors.Join(err, r.store.close())
	if err != nil {
		if o.Out != "" {
			err = fmt.Errorf("%w (what is done is in %s: the same command goes on from there)", err, o.Out)
		}
		return err
	}
	return report(stdout, &o, r.client.model, docs, r.prefix >= 0, r.kept, time.Since(began))
}

// run is one run.
type run struct {
	opts   *Options
	client *client
	store  *store
	prefix int // -1: none
	bar    *progressbar.ProgressBar

	mu   sync.Mutex // guards the documents' results, and
	kept int        // how many windows the file had
}

func newClient(ctx context.Context, o *Options, getenv Getenv) (*client, error) {
	base, err := baseURL(o.BaseURL)
	if err != nil {
		return nil, err
	}
	c := &client{
		base: base, model: o.Model, timeout: o.Timeout, retries: o.Retries, pause: time.Second,
		http: &http.Client{Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, MaxIdleConnsPerHost: o.Concurrency,
			IdleConnTimeout: 4 * time.Second, // engines close after 5
		}},
	}
	c.full.Store(!o.Zero)
	if o.KeyEnv != "" {
		key, ok := getenv(o.KeyEnv)
		if !ok {
			return nil, fmt.Errorf("--key-env %s: the environment variable is not set", o.KeyEnv)
		}
		c.key = key
	}
	if c.model == "" {
		c.model, err = c.firstModel(ctx)
	}
	return c, err
}

// findPrefix reads --prefix: an id, or text that is one token.
func (r *run) findPrefix(ctx context.Context) error {
	p := r.opts.Prefix
	if p == "" {
		return nil
	}
	if id, err := strconv.Atoi(p); err == nil && id >= 0 {
		r.prefix = id
		return nil
	}
	ids, err := r.client.tokenize(ctx, p)
	if err != nil {
		return fmt.Errorf("--prefix %q: %w", p, err)
	}
	if len(ids) != 1 {
		return fmt.Errorf("--prefix %q is %d tokens: want one, or an id", p, len(ids))
	}
	r.prefix = ids[0]
	return nil
}

func (r *run) showBar(docs []*document, stderr io.Writer) {
	if !r.opts.Bar {
		return
	}
	size := 0
	for _, d := range docs {
		size += len(d.text)
	}
	r.bar = progressbar.NewOptions(size, progressbar.OptionSetWriter(stderr), progressbar.OptionSetDescription("scoring"),
		progressbar.OptionShowBytes(true), progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionClearOnFinish())
}

// task is one window of a document on its way.
type task struct {
	doc *document
	i   int
	key string
}

// all scores every document: some goroutines cut texts, others send windows. The first error ends it.
func (r *run) all(ctx context.Context, docs []*document) error {
	g, ctx := errgroup.WithContext(ctx)
	tasks := make(chan task, r.opts.Batch*r.opts.Concurrency)
	g.Go(func() error {
		defer close(tasks)
		cut, ctx := errgroup.WithContext(ctx)
		cut.SetLimit(r.opts.Concurrency)
		for _, d := range docs {
			cut.Go(func() error { return r.cut(ctx, d, tasks) })
		}
		return cut.Wait()
	})
	for range r.opts.Concurrency {
		g.Go(func() error { return r.work(ctx, tasks) })
	}
	return g.Wait()
}

// cut makes a document's windows and hands out those that have no result yet.
func (r *run) cut(ctx context.Context, d *document, tasks chan<- task) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if r.opts.TextBytes > 0 {
		d.windows = pieces(d.text, r.opts.TextBytes)
	} else {
		ids, err := r.client.tokenize(ctx, d.text)
		if err != nil {
			return fmt.Errorf("%s: %w", d.name, err)
		}
		d.windows = rolling(ids, r.opts.Window, r.opts.Context, r.prefix)
	}
	d.results = make([]result, len(d.windows))
	r.mu.Lock()
	d.left = len(d.windows)
	r.mu.Unlock()
	if len(d.windows) == 0 {
		r.progress(len(d.text))
	}
	for i, w := range d.windows {
		key := keyOf(r.client.base, r.client.model, w)
		if res, ok := r.store.get(key); ok {
			r.settle(task{doc: d, i: i}, res, true)
			continue
		}
		select {
		case tasks <- task{doc: d, i: i, key: key}:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// work sends batches until there are no more tasks.
func (r *run) work(ctx context.Context, tasks <-chan task) error {
	batch := make([]task, 0, r.opts.Batch)
	for {
		batch = gather(batch[:0], tasks)
		if len(batch) == 0 {
			return nil
		}
		if err := r.send(ctx, batch); err != nil {
			return fmt.Errorf("%s: %w", batch[0].doc.name, err)
		}
	}
}

// gather waits for one task and takes what else is there.
func gather(batch []task, tasks <-chan task) []task {
	t, ok := <-tasks
	for ok {
		if batch = append(batch, t); len(batch) == cap(batch) {
			return batch
		}
		select {
		case t, ok = <-tasks:
		default:
			ok = false
		}
	}
	return batch
}

func (r *run) send(ctx context.Context, batch []task) error {
	windows := make([]window, len(batch))
	for i, t := range batch {
		windows[i] = t.doc.windows[t.i]
	}
	results, err := r.client.score(ctx, windows)
	if err != nil {
		return err
	}
	for i, t := range batch {
		res := results[i]
		if err := r.store.put(line{Key: t.key, Document: t.doc.name, Window: t.i, Tokens: res.tokens, Sum: res.sum}); err != nil {
			return err
		}
		r.settle(t, res, false)
	}
	return nil
}

// settle keeps a window's result.
func (r *run) settle(t task, res result, kept bool) {
	r.mu.Lock()
	d := t.doc
	d.results[t.i] = res
	d.left--
	if kept {
		r.kept++
	}
	left, n := d.left, len(d.windows)
	r.mu.Unlock()
	r.progress(len(d.text)*(n-left)/n - len(d.text)*(n-left-1)/n)
}

func (r *run) progress(bytes int) {
	if r.bar != nil {
		_ = r.bar.Add(bytes)
	}
}
