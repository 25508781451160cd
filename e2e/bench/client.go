package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// conn is a connection that sends one request after the other. It does as
// little as can be, so that the machine is left to what is measured.
type conn struct {
	addr string
	c    net.Conn
	r    *bufio.Reader
	head []byte
}

func dial(addr string) (*conn, error) {
	c, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		return nil, err
	}
	return &conn{addr: addr, c: c, r: bufio.NewReaderSize(c, 32<<10)}, nil
}

func (c *conn) close() { _ = c.c.Close() }

// answerTimeout bounds one request: nothing here takes that long.
const answerTimeout = 60 * time.Second

func (c *conn) send(body []byte) error {
	_ = c.c.SetDeadline(time.Now().Add(answerTimeout))
	c.head = append(c.head[:0], "POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nUser-Agent: bench\r\nAccept: */*\r\nAuthorization: Bearer "+apiKey+"\r\nContent-Type: application/json\r\nContent-Length: "...)
	c.head = strconv.AppendInt(c.head, int64(len(body)), 10)
	c.head = append(c.head, "\r\n\r\n"...)
	if len(body) < 4096 {
		c.head = append(c.head, body...)
		_, err := c.c.Write(c.head)
		return err
	}
	bufs := net.Buffers{c.head, body}
	_, err := bufs.WriteTo(c.c)
	return err
}

// header reads status and headers; length is -1 for a chunked body.
func (c *conn) header() (length int, err error) {
	line, err := c.r.ReadSlice('\n')
	if err != nil {
		return 0, err
	}
	if len(line) < 12 || string(line[9:12]) != "200" {
		rest, _ := c.r.Peek(min(c.r.Buffered(), 600))
		return 0, fmt.Errorf("status %.40q: %.600q", line, rest)
	}
	length = -2
	for {
		if line, err = c.r.ReadSlice('\n'); err != nil {
			return 0, err
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			break
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		switch {
		case asciiIs(name, "content-length"):
			length, err = strconv.Atoi(string(bytes.TrimSpace(value)))
			if err != nil {
				return 0, err
			}
		case asciiIs(name, "transfer-encoding"):
			length = -1
		}
	}
	if length == -2 {
		return 0, errors.New("an answer without a length")
	}
	return length, nil
}

func asciiIs(b []byte, name string) bool {
	return len(b) == len(name) && strings.EqualFold(string(b), name)
}

// whole sends a request and reads a whole answer; it returns its length.
func (c *conn) whole(body []byte) (int, error) {
	if err := c.send(body); err != nil {
		return 0, err
	}
	n, err := c.header()
	if err != nil || n >= 0 {
		_, err2 := c.r.Discard(max(n, 0))
		return n, errors.Join(err, err2)
	}
	total := 0
	err = c.chunks(func(b []byte) { total += len(b) })
	return total, err
}

// stream sends a request and calls seen for each event, with the time that it
// bears (ns; 0: none).
func (c *conn) stream(body []byte, seen func(sent int64)) error {
	if err := c.send(body); err != nil {
		return err
	}
	n, err := c.header()
	if err != nil {
		return err
	}
	if n >= 0 {
		return errors.New("a stream with a length")
	}
	var rest []byte
	done := false
	err = c.chunks(func(b []byte) {
		if len(rest) > 0 {
			b = append(rest, b...)
		}
		for {
			event, after, ok := bytes.Cut(b, []byte("\n\n"))
			if !ok {
				break
			}
			done = done || bytes.HasPrefix(event, []byte("data: [DONE]"))
			if seen != nil {
				seen(int64(number(event[max(0, len(event)-40):], `"t":`)))
			}
			b = after
		}
		rest = append(rest[:0], b...)
	})
	if err == nil && !done {
		err = errors.New("a stream without its end marker")
	}
	return err
}

// chunks reads a chunked body to its end.
func (c *conn) chunks(data func([]byte)) error {
	for {
		line, err := c.r.ReadSlice('\n')
		if err != nil {
			return err
		}
		n, err := strconv.ParseInt(string(bytes.TrimSpace(line)), 16, 64)
		if err != nil {
			return err
		}
		for left := int(n); left > 0; {
			if c.r.Buffered() == 0 {
				if _, err := c.r.Peek(1); err != nil {
					return unexpected(err)
				}
			}
			b, _ := c.r.Peek(min(left, c.r.Buffered()))
			data(b)
			left -= len(b)
			if _, err := c.r.Discard(len(b)); err != nil {
				return err
			}
		}
		if _, err := c.r.Discard(2); err != nil {
			return unexpected(err)
		}
		if n == 0 {
			return nil
		}
	}
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
