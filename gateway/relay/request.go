package relay

import (
	"strconv"
	"strings"
	"time"

	"github.com/valyala/fasthttp"
)

// Request is what one attempt sends. It is only read, so the attempts of one
// request may share it.
type Request struct {
	// Method defaults to POST.
	Method string
	// Path is the path and query, as they go over the wire, after the URL's own path.
	Path string
	// Header is the client's: all of it is sent on but what belongs to one
	// connection, names a body's length or encoding, or carries a key. nil: none.
	Header *fasthttp.RequestHeader
	// Drop names further headers of the client that are not sent on, in lower case.
	Drop []string
	// Set are further headers, in place of the client's of the same name.
	Set []Header
	// Body is sent piece after piece, without being copied into one buffer
	// where it is large. It must not change until the exchange is over.
	Body [][]byte
	// Dialect is how a stream of this endpoint ends.
	Dialect Dialect
	// Streamed: the client asked for a stream, so the first-token and idle
	// deadlines apply.
	Streamed bool
	// DropUsage: include_usage was added to the request, so the event that
	// holds nothing but usage is taken out of the answer.
	DropUsage bool
	// Whole: the answer is read to its end, whatever its size up to
	// Options.MaxWhole, and never streamed.
	Whole bool
	// Choices is how many answers there are to each prompt of a /generate request,
	// and Answers how many in all: more than one say their usage one by one.
	Choices, Answers int
	// Once: the request must not reach an engine twice, so it is not sent again
	// on a fresh connection when an idle one turns out to be closed.
	Once bool
	// Pace is told the time between two pieces of a stream. nil: nobody is.
	Pace Pace
}

// Pace takes the time between two pieces of a stream: one event, or several
// that came together.
type Pace interface{ InterToken(time.Duration) }

// Header is one header line.
type Header struct{ Name, Value string }

// method is what the request line says.
func (r *Request) method() string { return withDefault(r.Method, fasthttp.MethodPost) }

func (r *Request) isHead() bool { return r.Method == fasthttp.MethodHead }

// bodyLen is the length of all pieces.
func (r *Request) bodyLen() int {
	n := 0
	for _, b := range r.Body {
		n += len(b)
	}
	return n
}

// appendHead appends the request line and the headers for that engine.
func (r *Request) appendHead(dst []byte, u *Upstream) []byte {
	dst = append(dst, r.method()...)
	dst = append(dst, ' ')
	dst = append(dst, u.prefix...)
	dst = append(dst, r.Path...)
	dst = append(dst, " HTTP/1.1\r\n"...)
	dst = appendLine(dst, "Host", u.host)
	if u.auth != "" {
		dst = appendLine(dst, "Authorization", u.auth)
	}
	dst = append(dst, "Accept-Encoding: identity\r\n"...) // a compressed answer cannot be looked into
	for _, h := range r.Set {
		dst = appendLine(dst, h.Name, h.Value)
	}
	if n := r.bodyLen(); n > 0 || r.method() == fasthttp.MethodPost || r.Method == fasthttp.MethodPut || r.Method == fasthttp.MethodPatch {
		dst = append(dst, "Content-Length: "...)
		dst = strconv.AppendInt(dst, int64(n), 10)
		dst = append(dst, "\r\n"...)
	}
	if r.Header != nil {
		dst = r.appendClient(dst)
	}
	return append(dst, "\r\n"...)
}

// appendClient appends the client's headers that are sent on.
func (r *Request) appendClient(dst []byte) []byte {
	var named []byte // what the Connection header names belongs to the client's connection
	if v := r.Header.Peek(fasthttp.HeaderConnection); len(v) > 0 {
		named = v
	}
	for k, v := range r.Header.All() {
		if r.keeps(k, named) {
			dst = append(dst, k...)
			dst = append(dst, ": "...)
			dst = append(dst, v...)
			dst = append(dst, "\r\n"...)
		}
	}
	return dst
}

// keeps reports whether a header of the client of that name is sent on.
func (r *Request) keeps(name, connection []byte) bool {
	var buf [32]byte // longer than every name that is known here
	if len(name) <= len(buf) && ownedHeader(lower(buf[:0], name)) {
		return false
	}
	for _, d := range r.Drop {
		if equalFold(name, d) {
			return false
		}
	}
	for _, h := range r.Set {
		if equalFold(name, h.Name) {
			return false
		}
	}
	return len(connection) == 0 || !listNames(connection, name)
}

// ownedHeader reports whether a header, in lower case, belongs to one
// connection or is written by the gateway itself.
func ownedHeader(name []byte) bool {
	switch string(name) {
	case "host", "content-length", "accept-encoding", "expect",
		"authorization", "x-api-key", "proxy-authorization",
		"connection", "proxy-connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade":
		return true
	}
	return false
}

func lower(dst, s []byte) []byte {
	for _, c := range s {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		dst = append(dst, c)
	}
	return dst
}

func equalFold(a []byte, b string) bool {
	return len(a) == len(b) && strings.EqualFold(string(a), b) // no allocation: the string does not escape
}

// listNames reports whether the comma-separated list names that header.
func listNames(list, name []byte) bool {
	for part := range strings.SplitSeq(string(list), ",") {
		if equalFold(name, strings.TrimSpace(part)) {
			return true
		}
	}
	return false
}

func appendLine(dst []byte, name, value string) []byte {
	dst = append(dst, name...)
	dst = append(dst, ": "...)
	dst = append(dst, value...)
	return append(dst, "\r\n"...)
}

// joinBelow is the size of a request up to which its pieces are copied behind
// its headers and written at once; larger ones are written from where they are.
const joinBelow = 16 << 10

// send writes the request. x.head keeps its buffer for the next one.
func (x *exchange) send(now time.Time) error {
	r, c := x.req, x.conn
	x.head = r.appendHead(x.head[:0], x.up)
	if err := c.armWrite(x.limit.at, now); err != nil {
		return err
	}
	n := r.bodyLen()
	if n == 0 || len(x.head)+n <= joinBelow {
		for _, b := range r.Body {
			x.head = append(x.head, b...)
		}
		_, err := c.Write(x.head)
		return err
	}
	if c.secure { // each write is a record of its own; there is nothing to gather
		if _, err := c.Write(x.head); err != nil {
			return err
		}
		for _, b := range r.Body {
			if _, err := c.Write(b); err != nil {
				return err
			}
		}
		return nil
	}
	x.pieces = append(x.pieces[:0], x.head)
	x.pieces = append(x.pieces, r.Body...)
	bufs := x.pieces // WriteTo consumes the slice header it is called on
	_, err := bufs.WriteTo(c.Conn)
	clear(x.pieces)
	return err
}
