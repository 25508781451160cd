package score

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/zeebo/xxh3"
)

// store is the file of results: one JSON line for each window, by a hash of all that its result depends on. It
// only ever grows, so that a run which was stopped loses nothing.
type store struct {
	mu    sync.Mutex
	file  *os.File
	known map[string]result
}

// line is one window's result. Of a float64 JSON holds every bit.
type line struct {
	Key      string  `json:"key"`
	Document string  `json:"document"`
	Window   int     `json:"window"`
	Tokens   int     `json:"tokens"`
	Sum      float64 `json:"logprob_sum"`
}

// openStore reads what path has and appends to it. Without a path nothing is kept.
func openStore(path string) (*store, error) {
	s := &store{known: map[string]result{}}
	if path == "" {
		return s, nil
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	s.file = f
	end := int64(0)
	if info, e := f.Stat(); e != nil || !info.Mode().IsRegular() { // a device may be read without end
		err = errors.Join(e, errors.New("not a regular file, which --out is read from and appended to"))
	} else {
		end, err = s.read(f)
	}
	if err == nil {
		err = f.Truncate(end) // half a line that a killed run has left
	}
	if err == nil {
		_, err = f.Seek(end, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

// read takes in the lines of f and returns where the last whole one ends.
func (s *store) read(f io.Reader) (int64, error) {
	r := bufio.NewReader(f)
	end := int64(0)
	for n := 1; ; n++ {
		b, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return end, nil
		}
		if err != nil {
			return end, err
		}
		var l line
		if err := json.Unmarshal(b, &l); err != nil || l.Key == "" {
			return end, fmt.Errorf("line %d is no result of penstock score: name another file with --out", n)
		}
		s.known[l.Key] = result{done: true, tokens: l.Tokens, sum: l.Sum}
		end += int64(len(b))
	}
}

// keyOf hashes what a window's result depends on: two endpoints may serve different weights under one name.
func keyOf(endpoint, model string, w window) string {
	h := xxh3.New()
	var b [8]byte
	put := func(n int) {
		binary.LittleEndian.PutUint64(b[:], uint64(n))
		_, _ = h.Write(b[:])
	}
	put(len(endpoint))
	_, _ = h.WriteString(endpoint)
	put(len(model))
	_, _ = h.WriteString(model)
	put(w.count)
	put(len(w.ids))
	for _, id := range w.ids {
		put(id)
	}
	_, _ = h.WriteString(w.text)
	sum := h.Sum128().Bytes()
	return fmt.Sprintf("%x", sum)
}

func (s *store) get(key string) (result, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.known[key]
	return r, ok
}

func (s *store) put(l line) error {
	if s.file == nil {
		return nil
	}
	b, err := json.Marshal(l)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err = s.file.Write(append(b, '\n'))
	return err
}

func (s *store) close() error {
	if s.file == nil {
		return nil
	}
	return s.file.Close()
}
