package sse

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
)

// split cuts text into events, fed size bytes at a time.
func split(t testing.TB, text string, size int) (events []string, rest string) {
	t.Helper()
	s := NewSplitter(0)
	for len(text) > 0 {
		n := min(size, len(text))
		if err := s.Feed([]byte(text[:n])); err != nil {
			t.Fatalf("Feed: %v", err)
		}
		text = text[n:]
		for ev := s.Next(); ev != nil; ev = s.Next() {
			events = append(events, string(ev))
		}
	}
	return events, string(s.Rest())
}

func TestEventsComeOutWholeAndByteForByte(t *testing.T) {
	for _, c := range []struct {
		name, text string
		events     []string
		rest       string
	}{
		{"LF", "data: a\n\ndata: b\n\n", []string{"data: a\n\n", "data: b\n\n"}, ""},
		{"CR LF", "data: a\r\n\r\ndata: b\r\n\r\n", []string{"data: a\r\n\r\n", "data: b\r\n\r\n"}, ""},
		{"CR", "data: a\r\rdata: b\r\r", []string{"data: a\r\r", "data: b\r\r"}, ""},
		{"several lines", "event: x\ndata: a\ndata: b\nid: 1\n\n", []string{"event: x\ndata: a\ndata: b\nid: 1\n\n"}, ""},
		{"comment", ": keep\n\ndata: a\n\n", []string{": keep\n\n", "data: a\n\n"}, ""},
		{"byte order mark", "\xef\xbb\xbfdata: a\n\n", []string{"\xef\xbb\xbfdata: a\n\n"}, ""},
		{"byte order mark alone on a line", "\xef\xbb\xbf\ndata: a\n\n", []string{"\xef\xbb\xbf\ndata: a\n\n"}, ""},
		{"more blank lines", "\n\ndata: a\n\n\n\ndata: b\n\n\n", []string{"\n\ndata: a\n\n", "\n\ndata: b\n\n"}, "\n"},
		{"no blank line at the end", "data: a\n\ndata: [DONE]\n", []string{"data: a\n\n"}, "data: [DONE]\n"},
		{"cut in a line", "data: a\n\ndata: {\"x", []string{"data: a\n\n"}, "data: {\"x"},
		{"mixed", "data: a\r\n\ndata: b\n\n", []string{"data: a\r\n\n", "data: b\n\n"}, ""},
	} {
		for size := 1; size <= len(c.text); size++ {
			events, rest := split(t, c.text, size)
			if strings.Join(events, "|") != strings.Join(c.events, "|") || rest != c.rest {
				t.Errorf("%s, %d bytes at a time:\n got %q rest %q\nwant %q rest %q", c.name, size, events, rest, c.events, c.rest)
			}
		}
	}
}

func TestAnUnfinishedEventIsTold(t *testing.T) {
	for rest, blank := range map[string]bool{"": true, "\n": true, "\r\n": true, "\xef\xbb\xbf": true, "data: x": false, "data: x\n": false, ":": false, "\xef": false} {
		if Blank([]byte(rest)) != blank {
			t.Errorf("Blank(%q) = %v, want %v", rest, !blank, blank)
		}
	}
}

func TestAnEventBeyondTheBoundIsAnError(t *testing.T) {
	for _, text := range []string{"data: " + strings.Repeat("x", 100) + "\n\n", "data: " + strings.Repeat("x", 100)} {
		for _, size := range []int{1, 7, 1000} {
			s, err := NewSplitter(64), error(nil)
			for r := strings.NewReader(text); err == nil; {
				_, err = s.Fill(io.LimitReader(r, int64(size)))
			}
			if !errors.Is(err, ErrTooLong) {
				t.Errorf("%d bytes at a time: got %v, want ErrTooLong", size, err)
			}
		}
	}
	s := NewSplitter(64)
	if err := s.Feed([]byte(strings.Repeat("data: 0123456789\n\n", 100))); err != nil || s.Ready() != 100 {
		t.Errorf("many small events at once: %v, %d ready, want none and 100", err, s.Ready())
	}
}

func TestReadyEventsLieNextToEachOther(t *testing.T) {
	s := NewSplitter(0)
	text := "data: 1\n\ndata: 2\n\ndata: 3\n\ndata"
	if n, err := s.Fill(strings.NewReader(text)); n != len(text) || err != nil {
		t.Fatalf("Fill: %d, %v", n, err)
	}
	if s.Ready() != 3 {
		t.Fatalf("Ready() = %d, want 3", s.Ready())
	}
	first := s.Next()
	n := len(first)
	for ev := s.Next(); ev != nil; ev = s.Next() {
		n += len(ev)
	}
	if got := string(s.buf[:n]); got != strings.TrimSuffix(text, "data") || &s.buf[0] != &first[0] {
		t.Errorf("got %q", got)
	}
}

func TestSplittingAllocatesNothingPerEvent(t *testing.T) {
	s := NewSplitter(1 << 20)
	chunk := []byte(strings.Repeat(`data: {"id":"x","choices":[{"index":0,"delta":{"content":"tok"}}],"usage":null}`+"\n\n", 3))
	var r bytes.Reader
	n := testing.AllocsPerRun(500, func() {
		r.Reset(chunk)
		if _, err := s.Fill(&r); err != nil {
			t.Fatal(err)
		}
		for ev := s.Next(); ev != nil; ev = s.Next() {
			if e := Parse(ev, nil); !e.HasData || Look(e.Data).Error != nil {
				t.Fatal(string(ev))
			}
		}
	})
	if n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
}

func TestParseTakesAnEventApart(t *testing.T) {
	scratch := []byte(nil)
	for text, want := range map[string]string{
		"data: a\n\n":                           "|a|true",
		"data:a\r\n\r\n":                        "|a|true",
		"\n\xef\xbb\xbf":                        "||false",
		"\xef\xbb\xbfdata: a\n\n":               "|a|true",
		"event: ping\n\n":                       "ping||false",
		"event: e\rdata: a\rdata:  b\rdata\r\r": "e|a\n b\n|true",
		": comment\n\n":                         "||false",
		"data\n\n":                              "||true",
		"data: [DONE]":                          "|[DONE]|true",
	} {
		e := Parse([]byte(text), &scratch)
		got := string(e.Name) + "|" + string(e.Data) + "|" + map[bool]string{true: "true", false: "false"}[e.HasData]
		if got != want {
			t.Errorf("Parse(%q) = %q, want %q", text, got, want)
		}
	}
}

func TestLookTellsWhatARelayMustKnow(t *testing.T) {
	for text, want := range map[string]Payload{
		`[DONE]`:   {Done: true, Usage: NoUsage()},
		` [DONE] `: {Done: true, Usage: NoUsage()},
		`{"choices":[{"delta":{"content":"error [DONE]"}}],"error":null,"usage":null}`:                                                   {HasChoices: true, Usage: NoUsage()},
		`{"choices":[ ],"usage":{"prompt_tokens":2,"total_tokens":4,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":1}}}`: {HasChoices: true, EmptyChoices: true, HasUsage: true, Usage: Usage{2, 2, 4, 1}},
		`{"error":{"message":"no","code":503}}`:                                                                          {Error: []byte(`{"message":"no","code":503}`), Status: 503, Message: []byte("no"), Usage: NoUsage()},
		`{"error":"gone","code":"500"}`:                                                                                  {Error: []byte(`"gone"`), Status: 500, Message: []byte("gone"), Usage: NoUsage()},
		`{"object":"error","message":"bad","type":"BadRequestError","param":null,"code":400}`:                            {Type: []byte("BadRequestError"), Error: []byte(`{"object":"error","message":"bad","type":"BadRequestError","param":null,"code":400}`), Status: 400, Message: []byte("bad"), Usage: NoUsage()},
		`{"type":"error","error":{"type":"overloaded_error","message":"busy"}}`:                                          {Type: []byte("error"), Error: []byte(`{"type":"overloaded_error","message":"busy"}`), Message: []byte("busy"), Usage: NoUsage()},
		`{"type":"message_start","message":{"usage":{"input_tokens":1,"output_tokens":2,"cache_read_input_tokens":12}}}`: {Type: []byte("message_start"), HasUsage: true, Usage: Usage{13, 2, 15, 12}},
		`{"type":"response.completed","response":{"error":null,"usage":{"input_tokens":13,"input_tokens_details":{"cached_tokens":12},"output_tokens":0,"total_tokens":13}}}`: {Type: []byte("response.completed"), HasUsage: true, Usage: Usage{13, 0, 13, 12}},
		`{"text":"x","meta_info":{"prompt_tokens":5,"completion_tokens":1,"cached_tokens":4}}`:                                                                                {HasUsage: true, Usage: Usage{5, 1, 6, 4}},
		`not json`: {Usage: NoUsage()},
		``:         {Usage: NoUsage()},
	} {
		got := Look([]byte(text))
		if !equal(got, want) {
			t.Errorf("Look(%s)\n got %+v\nwant %+v", text, got, want)
		}
	}
}

func equal(a, b Payload) bool {
	return a.Done == b.Done && string(a.Type) == string(b.Type) && string(a.Error) == string(b.Error) && a.Status == b.Status && string(a.Message) == string(b.Message) &&
		a.HasChoices == b.HasChoices && a.EmptyChoices == b.EmptyChoices && a.HasUsage == b.HasUsage && a.Usage == b.Usage
}

func TestUsageOfWholeAnswers(t *testing.T) {
	pad := `{"id":"x","choices":[{"text":"\"usage\": {\"prompt_tokens\":99} ` + strings.Repeat("x", 3*tail) + `"}]`
	for text, want := range map[string]Usage{
		pad + `,"usage":{"prompt_tokens":5,"completion_tokens":1,"total_tokens":6},"metadata":{"a":[{}]} } `:                                                                          {5, 1, 6, -1},
		pad + `,"usage":{"prompt_tokens":5,"completion_tokens":1,"total_tokens":6},"metadata":{"usage":{"prompt_tokens":7}}}`:                                                         {5, 1, 6, -1},
		`{"usage":{"prompt_tokens":5,"total_tokens":5},"data":"` + strings.Repeat("x", 2*tail) + `"}`:                                                                                 {5, -1, 5, -1},
		`[{"text":"a","meta_info":{"prompt_tokens":2,"completion_tokens":1,"cached_tokens":1}},{"text":"b","meta_info":{"prompt_tokens":3,"completion_tokens":1,"cached_tokens":0}}]`: {5, 2, 7, 1},
		`{"results":[],"usage":{"total_tokens":9}}`: {9, -1, 9, -1},
	} {
		if got, ok := BodyUsage([]byte(text), 1); !ok || got != want {
			t.Errorf("BodyUsage(%.40s…%s) = %+v, %v, want %+v", text, text[max(0, len(text)-90):], got, ok, want)
		}
	}
	for _, text := range []string{``, `{}`, `{"usage":null}`, `{"a":{"usage":{"prompt_tokens":1}}}`, `<html>`, `{"usage":{"prompt_tokens":1}`} {
		if got, ok := BodyUsage([]byte(text), 1); ok && text != `{"usage":{"prompt_tokens":1}` {
			t.Errorf("BodyUsage(%s) = %+v, want none", text, got)
		}
	}
}

// The search goes from the end on in windows: none may be missed at their borders, nor an earlier one be taken.
func TestTheLastUsageIsFoundWhereverItStands(t *testing.T) {
	const key = `"usage"`
	for size := range 1100 {
		text := strings.Repeat("x", 300) + key + strings.Repeat("x", size)
		for _, text := range []string{text, key + text, text[:300+size], text[:len(text)-size] + key + text[len(text)-size:], `"usage` + text[307:]} {
			if got, want := lastUsage([]byte(text)), strings.LastIndex(text, key); got != want {
				t.Errorf("lastUsage(%d bytes, %d after it) = %d, want %d", len(text), size, got, want)
			}
		}
	}
}

// TestRecordedStreamsSplit runs over what real engines sent.
func TestRecordedStreamsSplit(t *testing.T) {
	shared := os.Getenv("PENSTOCK_SHARED")
	if shared == "" {
		shared = filepath.Join("..", "..", "..", "shared")
	}
	files, _ := filepath.Glob(filepath.Join(shared, "engines", "record", "*", "c*-stream*.txt"))
	if len(files) == 0 {
		t.Skip("no recordings: ../shared/engines/record is not beside the checkout")
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, stream, _ := strings.Cut(string(text), "\ndata: ")
		stream = "data: " + strings.TrimRight(stream, "\n") + "\n\n"
		s := NewSplitter(1 << 20)
		r := iotest.HalfReader(strings.NewReader(stream))
		var usage Usage
		var done bool
		var out strings.Builder
		for {
			_, err := s.Fill(r)
			for ev := s.Next(); ev != nil; ev = s.Next() {
				p := Look(Parse(ev, nil).Data)
				usage.Merge(p.Usage)
				done = done || p.Done
				out.Write(ev)
			}
			if err != nil {
				break
			}
		}
		if out.String() != stream || !done || usage.Prompt < 1 || usage.Completion < 1 {
			t.Errorf("%s: same bytes %v, done %v, usage %+v", file, out.String() == stream, done, usage)
		}
	}
}

func FuzzSplitter(f *testing.F) {
	for _, text := range []string{"data: a\n\ndata: b\r\n\r\n", "\xef\xbb\xbf\r\rdata\r\r\n", "event: x\rdata: y\r\rdata: z\n\r\n"} {
		f.Add(text, uint8(3))
	}
	f.Fuzz(func(t *testing.T, text string, size uint8) {
		whole, wholeRest := split(t, text, max(1, len(text)))
		events, rest := split(t, text, int(size)+1)
		if got := strings.Join(events, "") + rest; got != text {
			t.Fatalf("got %q, want the bytes that came in: %q", got, text)
		}
		// A CR that ends a chunk may end its event before an LF that belongs to it is there.
		for i := 1; i <= len(events); i++ {
			at := &rest
			if i < len(events) {
				at = &events[i]
			}
			if strings.HasSuffix(events[i-1], "\r") && strings.HasPrefix(*at, "\n") {
				events[i-1] += "\n"
				*at = (*at)[1:]
			}
		}
		if strings.Join(events, "|") != strings.Join(whole, "|") || rest != wholeRest {
			t.Fatalf("%d bytes at a time:\n got %q rest %q\nwant %q rest %q", size+1, events, rest, whole, wholeRest)
		}
		for _, ev := range events {
			Look(Parse([]byte(ev), nil).Data)
		}
		BodyUsage([]byte(text), 1)
		if got, want := lastUsage([]byte(text)), strings.LastIndex(text, `"usage"`); got != want {
			t.Errorf("lastUsage(%q) = %d, want %d", text, got, want)
		}
	})
}

func BenchmarkEvent(b *testing.B) {
	s := NewSplitter(1 << 20)
	chunk := []byte(`data: {"id":"chatcmpl-b2ca4a7c00fbcb3a","object":"chat.completion.chunk","created":1796033756,"model":"tiny","choices":[{"index":0,"delta":{"content":"def"},"logprobs":null,"finish_reason":null,"token_ids":null}]}` + "\n\n")
	b.SetBytes(int64(len(chunk)))
	b.ReportAllocs()
	for b.Loop() {
		if err := s.Feed(chunk); err != nil {
			b.Fatal(err)
		}
		Look(Parse(s.Next(), nil).Data)
	}
}

func BenchmarkBodyUsage50MB(b *testing.B) {
	text := []byte(`{"choices":[{"text":"` + strings.Repeat("0123456789", 5<<20) + `"}],"usage":{"prompt_tokens":5,"completion_tokens":1,"total_tokens":6}}`)
	for b.Loop() {
		if _, ok := BodyUsage(text, 1); !ok {
			b.Fatal("none")
		}
	}
}

// BenchmarkBodyUsage1KB is the usage of a short answer.
func BenchmarkBodyUsage1KB(b *testing.B) {
	text := []byte(`{"id":"1","object":"chat.completion","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"` +
		strings.Repeat("water ", 120) + `"},"finish_reason":"stop"}],"usage":{"prompt_tokens":64,"completion_tokens":150,"total_tokens":214,"prompt_tokens_details":null}}`)
	for b.Loop() {
		if _, ok := BodyUsage(text, 1); !ok {
			b.Fatal("none")
		}
	}
}
