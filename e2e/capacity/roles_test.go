package capacity

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const (
	roleVariable = "PENSTOCK_CAPACITY_ROLE"
	planVariable = "PENSTOCK_CAPACITY_PLAN"
	// pace is the time between two events of an active stream.
	pace = 200 * time.Millisecond
)

// plan is what a client is to do.
type plan struct {
	URL          string
	Idle, Active int
	Hold         time.Duration
}

// result is what it saw.
type result struct {
	Open, Failed, Lost, Events int
	P50, P99, Max              time.Duration
}

// TestRole is a process that startRole starts, and else nothing.
func TestRole(t *testing.T) {
	switch os.Getenv(roleVariable) {
	case "engine":
		serve(t)
	case "client":
		var p plan
		if err := json.Unmarshal([]byte(os.Getenv(planVariable)), &p); err != nil {
			t.Fatal(err)
		}
		(&client{plan: p}).run()
	default:
		t.Skip("a process of the other test")
	}
}

// serve is the engine, until standard input ends.
func serve(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println(ln.Addr())
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go answerAll(c)
		}
	}()
	_, _ = io.Copy(io.Discard, os.Stdin)
}

func answerAll(c net.Conn) {
	defer c.Close()
	br := bufio.NewReaderSize(c, 1<<10)
	for {
		line, body, err := readRequest(br)
		if err != nil {
			return
		}
		switch {
		case strings.HasPrefix(line, "GET /v1/models"):
			const models = `{"object":"list","data":[{"id":"m","object":"model"}]}`
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(models), models)
		case strings.HasPrefix(line, "GET"):
			fmt.Fprint(c, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
		default:
			stream(c, bytes.Contains(body, []byte("active")))
			return
		}
	}
}

func readRequest(br *bufio.Reader) (line string, body []byte, err error) {
	length := 0
	for first := true; ; first = false {
		l, err := br.ReadString('\n')
		if err != nil {
			return "", nil, err
		}
		if first {
			line = l
		}
		if l == "\r\n" {
			break
		}
		if v, ok := strings.CutPrefix(strings.ToLower(l), "content-length:"); ok {
			length, _ = strconv.Atoi(strings.TrimSpace(v))
		}
	}
	body = make([]byte, length)
	_, err = io.ReadFull(br, body)
	return line, body, err
}

// stream sends one event, and, to an active one, more of them for ever. Each
// holds its number and when it was sent.
func stream(c net.Conn, active bool) {
	fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
	var buf []byte
	for n := 0; ; n++ {
		ev := fmt.Sprintf(`data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{"index":0,"delta":{"content":" token"},"finish_reason":null}],"n":%d,"at":%d}`+"\n\n", n, time.Now().UnixNano())
		buf = fmt.Appendf(buf[:0], "%x\r\n%s\r\n", len(ev), ev)
		if _, err := c.Write(buf); err != nil {
			return
		}
		if !active {
			_, _ = io.Copy(io.Discard, c)
			return
		}
		<-time.After(pace)
	}
}

// client opens streams and reads them.
type client struct {
	plan

	measuring          atomic.Bool
	failed, lost, open atomic.Int64

	mu   sync.Mutex
	late []time.Duration
}

func (c *client) run() {
	slots := make(chan struct{}, 64)
	var opening sync.WaitGroup
	for i := range c.Idle + c.Active {
		slots <- struct{}{}
		opening.Go(func() {
			defer func() { <-slots }()
			c.start(i, i < c.Active)
		})
	}
	opening.Wait()
	fmt.Println("open")
	c.measuring.Store(true)
	<-time.After(c.Hold)
	c.measuring.Store(false)
	out, err := json.Marshal(c.result())
	if err != nil {
		panic(err)
	}
	fmt.Println(string(out))
	_, _ = io.Copy(io.Discard, os.Stdin) // the streams stay open until then
}

func (c *client) result() result {
	c.mu.Lock()
	defer c.mu.Unlock()
	slices.Sort(c.late)
	r := result{Open: int(c.open.Load()), Failed: int(c.failed.Load()), Lost: int(c.lost.Load()), Events: len(c.late)}
	if n := len(c.late); n > 0 {
		r.P50, r.P99, r.Max = c.late[n/2], c.late[n*99/100], c.late[n-1]
	}
	return r
}

// start opens one stream, up to its first event, and has it read on.
func (c *client) start(i int, active bool) {
	conn, err := net.DialTimeout("tcp", strings.TrimPrefix(c.URL, "http://"), time.Minute)
	if err != nil {
		c.fail(i, err)
		return
	}
	kind := "idle"
	if active {
		kind = "active"
	}
	body := fmt.Sprintf(`{"model":"m","stream":true,"max_tokens":100,"messages":[{"role":"user","content":"%d %s"}]}`, i, kind)
	fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	br := bufio.NewReaderSize(conn, 1<<10)
	_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
	if _, _, err := nextEvent(br); err != nil {
		c.fail(i, err)
		return
	}
	_ = conn.SetReadDeadline(time.Time{})
	c.open.Add(1)
	go c.readOn(i, conn, br)
}

// readOn reads until the process ends; a stream that ends before has failed.
func (c *client) readOn(i int, conn net.Conn, br *bufio.Reader) {
	defer conn.Close()
	for want := 1; ; want++ {
		n, at, err := nextEvent(br)
		if err != nil {
			c.open.Add(-1)
			c.fail(i, err)
			return
		}
		if n != want {
			c.lost.Add(1)
			want = n
		}
		if c.measuring.Load() {
			d := time.Since(time.Unix(0, at))
			c.mu.Lock()
			c.late = append(c.late, d)
			c.mu.Unlock()
		}
	}
}

func (c *client) fail(i int, err error) {
	if c.failed.Add(1) < 5 {
		fmt.Fprintf(os.Stderr, "stream %d: %v\n", i, err)
	}
}

// nextEvent reads to the end of the next event.
func nextEvent(br *bufio.Reader) (n int, at int64, err error) {
	for {
		line, err := br.ReadString('\n')
		if err != nil {
			return 0, 0, err
		}
		if !strings.HasPrefix(line, "data: ") {
			if strings.HasPrefix(line, "{") {
				return 0, 0, fmt.Errorf("%s", line)
			}
			continue
		}
		var ev struct {
			N  *int  `json:"n"`
			At int64 `json:"at"`
		}
		if err := json.Unmarshal([]byte(line[len("data: "):]), &ev); err != nil || ev.N == nil {
			return 0, 0, fmt.Errorf("event %q: %w", line, err)
		}
		return *ev.N, ev.At, nil
	}
}
