package replay

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"

	"github.com/zeebo/xxh3"
)

// Trace is a sequence of requests. A prompt is a chain of blocks; equal block
// numbers mean that everything up to the end of the block is equal.
type Trace struct {
	Rows        []Row
	BlockTokens int // tokens in one block; the last of a prompt may be partial
	Blocks      int // distinct blocks; their numbers are below
}

// Row is one request.
type Row struct {
	At            float64 // ms
	Input, Output int     // tokens
	Blocks        []int32

	number int // among the trace's rows
}

// Load reads a trace, plain or gzip: JSON lines in Mooncake's form (timestamp,
// input_length, output_length, hash_ids), or conversations (turns or messages),
// of which every turn becomes a request. limit bounds the requests, 0: all.
func Load(path string, limit int) (*Trace, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	t, err := Read(f, limit)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}

// Read is Load from a reader.
func Read(r io.Reader, limit int) (*Trace, error) {
	in := bufio.NewReaderSize(r, 1<<20)
	if magic, _ := in.Peek(2); bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, err
		}
		in = bufio.NewReaderSize(z, 1<<20)
	}
	var rows []rawRow
	var talks []conversation
	for n := 1; ; n++ {
		line, err := in.ReadBytes('\n')
		if err != nil && err != io.EOF {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if line = bytes.TrimSpace(line); len(line) > 0 {
			var l rawLine
			if e := json.Unmarshal(line, &l); e != nil {
				return nil, fmt.Errorf("line %d: %w", n, e)
			}
			switch {
			case l.Turns != nil || l.Messages != nil:
				talks = append(talks, l.conversation)
			case l.Input != nil && l.At != nil:
				row, e := l.row()
				if e != nil {
					return nil, fmt.Errorf("line %d: %w", n, e)
				}
				rows = append(rows, row)
			default:
				return nil, fmt.Errorf("line %d: neither a request (timestamp, input_length, output_length, hash_ids) nor a conversation (turns or messages)", n)
			}
		}
		if err == io.EOF || limit > 0 && len(rows) >= limit {
			break
		}
	}
	if len(talks) > 0 && len(rows) > 0 {
		return nil, errors.New("requests and conversations in one trace")
	}
	t := fromConversations(talks, limit)
	if len(rows) > 0 {
		t = fromRows(rows)
	}
	if len(t.Rows) == 0 {
		return nil, errors.New("no requests")
	}
	return t, nil
}

// rawLine is one line of a trace file in any of its forms.
type rawLine struct {
	At     *float64 `json:"timestamp"` // ms
	Input  *float64 `json:"input_length"`
	Output float64  `json:"output_length"`
	IDs    rawIDs   `json:"hash_ids"`
	conversation
}

// rawIDs are the ids of blocks, whatever they are: numbers of any size and sign, or strings.
type rawIDs []uint64

// UnmarshalJSON names each id by the hash of its text.
func (ids *rawIDs) UnmarshalJSON(b []byte) error {
	var list []json.RawMessage
	if err := json.Unmarshal(b, &list); err != nil {
		return err
	}
	for _, id := range list {
		*ids = append(*ids, xxh3.Hash(id))
	}
	return nil
}

// rawRow is one request before its blocks are numbered.
type rawRow struct {
	At            float64 // ms
	Input, Output int     // tokens
	IDs           []uint64
}

// maxLength bounds a row: what is beyond it is a mistake, and would be simulated for hours.
const maxLength = 10_000_000 // tokens of a prompt or an answer

// row is the line's request; one without a prompt or an answer, as logs have
// them of requests that failed, counts as one of a token.
func (l *rawLine) row() (rawRow, error) {
	switch {
	case *l.Input < 0 || *l.Input > maxLength:
		return rawRow{}, fmt.Errorf("input_length %.0f: want 0 to %d", *l.Input, maxLength)
	case l.Output < 0 || l.Output > maxLength:
		return rawRow{}, fmt.Errorf("output_length %.0f: want 0 to %d", l.Output, maxLength)
	case math.Abs(*l.At) > 1e15: // ms since 1970 are 1.8e12
		return rawRow{}, fmt.Errorf("timestamp %g: want milliseconds", *l.At)
	}
	return rawRow{At: *l.At, Input: max(1, int(*l.Input)), Output: max(1, int(l.Output)), IDs: l.IDs}, nil
}

func fromRows(rows []rawRow) *Trace {
	slices.SortStableFunc(rows, func(a, b rawRow) int { return cmp.Compare(a.At, b.At) })
	t := newBuilder(blockSize(rows))
	for _, r := range rows {
		t.add(r.At, r.Input, r.Output, r.IDs)
	}
	return t.Trace
}

// usual is the size of a block in Mooncake's traces, in tokens.
const usual = 512

// blockSize finds the tokens of a block from prompts and their numbers of
// blocks.
func blockSize(rows []rawRow) int {
	lo, hi := 1.0, math.Inf(1) // (n-1)·size < input ≤ n·size
	for _, r := range rows {
		if n := float64(len(r.IDs)); n > 0 {
			lo = max(lo, float64(r.Input)/n)
			if n > 1 {
				hi = min(hi, float64(r.Input)/(n-1))
			}
		}
	}
	switch {
	case usual >= lo && usual < hi:
		return usual
	case lo >= hi:
		return likeliestSize(rows)
	}
	for size := 1; float64(size) < hi; size *= 2 {
		if float64(size) >= lo {
			return size
		}
	}
	return int(math.Ceil(lo))
}

// likeliestSize is the power of two that most rows fit, where they do not all
// agree with each other, or name whole blocks only.
func likeliestSize(rows []rawRow) int {
	fits := func(size int) (n int) {
		for _, r := range rows {
			if ids := len(r.IDs); ids > 0 && (ids == r.Input/size || ids == (r.Input+size-1)/size) {
				n++
			}
		}
		return n
	}
	best, most := usual, fits(usual)
	for size := 1; size <= 1<<20; size *= 2 {
		if n := fits(size); n > most {
			best, most = size, n
		}
	}
	return best
}

// builder numbers the blocks of a trace.
type builder struct {
	*Trace
	numbers map[uint64]int32
}

func newBuilder(blockTokens int) *builder {
	return &builder{Trace: &Trace{BlockTokens: blockTokens}, numbers: map[uint64]int32{}}
}

// add appends a request whose blocks are named by ids. They are chained here:
// an id counts together with all before it.
func (b *builder) add(at float64, input, output int, ids []uint64) {
	ids = ids[:min(len(ids), (input+b.BlockTokens-1)/b.BlockTokens)]
	row := Row{At: at, Input: input, Output: output, Blocks: make([]int32, len(ids)), number: len(b.Rows)}
	chain := uint64(0)
	for i, id := range ids {
		chain = mix(chain, id)
		n, ok := b.numbers[chain]
		if !ok {
			n = int32(len(b.numbers))
			b.numbers[chain] = n
		}
		row.Blocks[i] = n
	}
	b.Rows = append(b.Rows, row)
	b.Blocks = len(b.numbers)
}

// mix chains an id onto a hash.
func mix(chain, id uint64) uint64 {
	var p [8]byte
	for i := range p {
		p[i] = byte(id >> (8 * i))
	}
	return xxh3.HashSeed(p[:], chain)
}

// best is the share of prompt tokens that one infinite cache would have hit.
func (t *Trace) best() float64 {
	seen, hit, total := make([]bool, t.Blocks), 0, 0
	for _, r := range t.Rows {
		k := 0
		for k < len(r.Blocks) && seen[r.Blocks[k]] {
			k++
		}
		for _, b := range r.Blocks[k:] {
			seen[b] = true
		}
		hit += min(k*t.BlockTokens, r.Input-1)
		total += r.Input
	}
	return float64(hit) / float64(max(1, total))
}
