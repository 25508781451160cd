package local

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"math"

	"github.com/valyala/fasthttp"

	"penstock/engine/local/sched"
)

// dimensions of an embedding unless the request asks for others.
const (
	dimensions    = 256
	maxDimensions = 4096
)

type embedWire struct {
	Model      string          `json:"model"`
	Input      json.RawMessage `json:"input"`
	Encoding   string          `json:"encoding_format"`
	Dimensions *int            `json:"dimensions"`
	DPRank     *int            `json:"routed_dp_rank"`
}

// reader is a task that only reads its prompt.
type reader struct{ done chan struct{} }

func (r *reader) Prefilled(int)        { close(r.done) }
func (r *reader) Next() (uint32, bool) { return 0, true }
func (r *reader) Signal()              {}

// serveEmbeddings answers with hashed vectors: equal texts have equal ones,
// texts that share words similar ones. It costs the scheduler a prefill.
func (s *Server) serveEmbeddings(ctx *fasthttp.RequestCtx) error {
	var w embedWire
	if err := json.Unmarshal(ctx.PostBody(), &w); err != nil {
		return jsonError(err)
	}
	c := &call{model: w.Model, rank: -1}
	if err := s.checkModel(c, nil); err != nil {
		return err
	}
	if w.DPRank != nil && s.opts.Kind == SGLang {
		c.rank, c.ranked = *w.DPRank, true
	}
	if err := s.readRank(ctx, c); err != nil {
		return err
	}
	size := dimensions
	if w.Dimensions != nil {
		size = *w.Dimensions
	}
	if size < 1 || size > maxDimensions {
		return badRequest("dimensions", "dimensions: expected 1 to %d, got %d.", maxDimensions, size)
	}
	if w.Encoding != "" && w.Encoding != "float" && w.Encoding != "base64" {
		return badRequest("encoding_format", "encoding_format: expected float or base64, got %q.", w.Encoding)
	}
	var err error
	if c.prompts, err = s.completionPrompts(w.Input); err != nil {
		return badRequest("input", "input: expected a string, a list of strings, a list of token ids or a list of lists of token ids, none of them empty.")
	}
	if err := s.checkLength(c); err != nil {
		return err
	}
	return s.embed(ctx, c, size, w.Encoding == "base64")
}

func (s *Server) embed(ctx *fasthttp.RequestCtx, c *call, size int, packed bool) error {
	id, rid := s.newID(ctx, c)
	x := &exchange{srv: s, call: c, id: id, rid: rid, wake: make(chan struct{}, 1), left: make(chan struct{})}
	x.fault = s.fault()
	if answered, err := x.suffer(ctx); answered || err != nil {
		return err
	}
	s.live.add(x, ctx.Conn())
	defer x.end()
	readers := make([]*reader, len(c.prompts))
	for i, p := range c.prompts {
		readers[i] = &reader{make(chan struct{})}
		t := &sched.Task{Prompt: p.tokens, Fresh: true, Private: true, Seq: readers[i]}
		if err := x.submit(t, s.pick(c.rank)); err != nil {
			return err
		}
	}
	for _, r := range readers {
		select {
		case <-r.done:
		case <-x.left:
			return errLeft
		case <-s.closing:
			return errLeft
		}
	}
	answer(ctx, x.embeddings(nil, size, packed))
	return nil
}

func (x *exchange) embeddings(b []byte, size int, packed bool) []byte {
	b = append(b, `{"object":"list","data":[`...)
	total := 0
	for i, p := range x.call.prompts {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"object":"embedding","index":`...)
		b = append(appendInt(b, i), `,"embedding":`...)
		b = append(appendVector(b, vector(p.tokens, size), packed), '}')
		total += len(p.tokens)
	}
	b = appendString(append(b, `],"model":`...), x.modelName())
	b = appendInt(append(b, `,"usage":{"prompt_tokens":`...), total)
	b = appendInt(append(b, `,"total_tokens":`...), total)
	return append(b, "}}"...)
}

// vector hashes tokens and pairs of tokens into size dimensions, with length one.
func vector(tokens []uint32, size int) []float32 {
	sums := make([]float64, size)
	add := func(feature uint64) {
		h := feature * 0x9E3779B97F4A7C15
		h ^= h >> 32
		h *= 0xD6E8FEB86659FD93
		sums[h>>1%uint64(size)] += 1 - 2*float64(h&1)
	}
	for i, w := range tokens {
		add(uint64(w) + 1)
		if i > 0 {
			add(uint64(tokens[i-1])<<32 | uint64(w) | 1<<63)
		}
	}
	norm := 0.0
	for _, v := range sums {
		norm += v * v
	}
	norm = max(math.Sqrt(norm), 1e-12)
	out := make([]float32, size)
	for i, v := range sums {
		out[i] = float32(v / norm)
	}
	return out
}

func appendVector(b []byte, v []float32, packed bool) []byte {
	if packed {
		raw := make([]byte, 0, 4*len(v))
		for _, f := range v {
			raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(f))
		}
		b = append(b, '"')
		b = base64.StdEncoding.AppendEncode(b, raw)
		return append(b, '"')
	}
	b = append(b, '[')
	for i, f := range v {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendFloat(b, float64(f))
	}
	return append(b, ']')
}
