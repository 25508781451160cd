package relay

// frame takes the body out of the bytes of an HTTP/1.1 answer, whatever the
// pieces in which they come. It holds no bytes itself.
type frame struct {
	kind  frameKind
	state chunkState
	left  int64 // bytes left of the body, or of the chunk
	extra int   // bytes of chunk extensions and trailers so far
	ended bool  // the whole body has been seen
}

type frameKind uint8

const (
	frameNone    frameKind = iota // no body
	frameLength                   // Content-Length bytes
	frameChunked                  // chunks
	frameClose                    // until the connection closes
)

type chunkState uint8

const (
	chunkSize chunkState = iota // at a chunk's size; left counts up
	chunkDigits
	chunkExt     // in an extension, which is ignored
	chunkSizeLF  // at the LF after the size
	chunkData    // in the data
	chunkDataCR  // at the CR after the data
	chunkDataLF  // at the LF after it
	chunkTrailer // at the start of a trailer line
	chunkInLine  // in a trailer line
	chunkEndLF   // at the LF of the last, empty line
)

const (
	maxChunkSize  = 1 << 40
	maxChunkExtra = 16 << 10
)

// start begins a body. length is as fasthttp has it: -1 is chunked, -2 is until
// the connection closes.
func (f *frame) start(length int) {
	*f = frame{}
	switch {
	case length >= 0:
		f.kind, f.left, f.ended = frameLength, int64(length), length == 0
	case length == -1:
		f.kind = frameChunked
	default:
		f.kind = frameClose
	}
}

// none says that there is no body.
func (f *frame) none() { *f = frame{ended: true} }

// next takes the next piece of the body from in: data is it, used is how much
// of in has been dealt with, framing included. data is empty when in is used up
// or the body has ended; what follows the end is not touched.
func (f *frame) next(in []byte) (data []byte, used int, err error) {
	switch f.kind {
	case frameChunked:
		return f.nextChunk(in)
	case frameLength:
		n := int(min(int64(len(in)), f.left))
		f.left -= int64(n)
		f.ended = f.left == 0
		return in[:n], n, nil
	case frameClose:
		return in, len(in), nil
	}
	return nil, 0, nil
}

// nextChunk is next for chunks: one small state machine over their framing,
// since every read can end anywhere.
func (f *frame) nextChunk(in []byte) (data []byte, used int, err error) {
	for used < len(in) && !f.ended {
		if f.state == chunkData {
			n := int(min(int64(len(in)-used), f.left))
			f.left -= int64(n)
			if f.left == 0 {
				f.state = chunkDataCR
			}
			return in[used : used+n], used + n, nil
		}
		if err := f.step(in[used]); err != nil {
			return nil, used, err
		}
		used++
	}
	return nil, used, nil
}

// step takes one byte of framing.
func (f *frame) step(c byte) error {
	ok := true
	switch f.state {
	case chunkSize, chunkDigits:
		ok = f.digit(c)
	case chunkExt:
		ok = c != '\n' && f.countExtra()
		if c == '\r' {
			f.state = chunkSizeLF
		}
	case chunkSizeLF:
		ok = c == '\n'
		f.state = chunkData
		if f.left == 0 {
			f.state = chunkTrailer
		}
	case chunkDataCR:
		ok = c == '\r'
		f.state = chunkDataLF
	case chunkDataLF:
		ok = c == '\n'
		f.state = chunkSize
	case chunkTrailer:
		ok = f.countExtra()
		f.state = chunkInLine
		if c == '\r' {
			f.state = chunkEndLF
		}
	case chunkInLine:
		ok = f.countExtra()
		if c == '\n' {
			f.state = chunkTrailer
		}
	case chunkEndLF:
		ok = c == '\n'
		f.ended = true
	}
	if !ok {
		return errChunk
	}
	return nil
}

// digit takes one byte of a chunk's size.
func (f *frame) digit(c byte) bool {
	var d byte
	switch {
	case '0' <= c && c <= '9':
		d = c - '0'
	case 'a' <= c|0x20 && c|0x20 <= 'f':
		d = c | 0x20 - 'a' + 10
	case f.state == chunkSize:
		return false // no digit at all
	case c == '\r':
		f.state = chunkSizeLF
		return true
	case c == ';' || c == ' ' || c == '\t':
		f.state = chunkExt
		return true
	default:
		return false
	}
	f.state = chunkDigits
	f.left = f.left<<4 | int64(d)
	return f.left <= maxChunkSize
}

// countExtra bounds what is read beside the body.
func (f *frame) countExtra() bool {
	f.extra++
	return f.extra <= maxChunkExtra
}
