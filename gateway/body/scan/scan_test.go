package scan

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

var texts = []string{
	``, ` `, `null`, `nul`, `nulll`, `true`, `tru`, `false`, `falsy`, `0`, `-0`, `-`, `01`, `1.`, `1.5`, `1.5e`, `1e+9`, `1E-`, `.5`, `+1`,
	`""`, `"`, `"a`, `"\n"`, `"\x"`, `"\u12"`, `"\u12g4"`, `"\ud83d\ude00"`, `"\ud83d"`, "\"\x01\"", "\"\x7f\"", "\"\xff\"", `"0123456789abcdef\"0123456"`,
	`[]`, `[ ]`, `[1]`, `[1,]`, `[,1]`, `[1 2]`, `[1,2`, `[[[]]]`, `[}`, `{]`, `{}`, `{ }`, `{"a":1}`, `{"a":1,}`, `{"a" 1}`, `{"a":}`, `{a:1}`, `{"a":1 "b":2}`,
	`{"a":[{"b":{}}, "c" , null ] , "d":-1.25e3}`, `{"a":1}x`, ` {"a":1} `, "\ufeff{}", "\v1", `nan`, `NaN`, `[1]]`,
	strings.Repeat("[", 128) + strings.Repeat("]", 128),
	strings.Repeat(`{"a":`, 128) + "1" + strings.Repeat("}", 128),
}

func TestValidAgreesWithEncodingJSON(t *testing.T) {
	for _, text := range texts {
		err := Valid([]byte(text))
		if want := json.Valid([]byte(text)); (err == nil) != want {
			t.Errorf("Valid(%q) = %v, encoding/json says valid = %v", text, err, want)
		}
	}
}

func TestDepthBeyondTheLimitIsRefusedWithoutOverflow(t *testing.T) {
	for _, open := range []string{"[", `{"a":`} {
		for _, n := range []int{MaxDepth + 1, 1 << 20} {
			err := Valid([]byte(strings.Repeat(open, n)))
			if err == nil || err.Reason != "nested too deeply" {
				t.Errorf("%d times %q: got %v, want nested too deeply", n, open, err)
			}
		}
	}
}

func TestErrorsNameTheirPlace(t *testing.T) {
	for text, want := range map[string]string{
		`{"a":1,}`:    "at byte 7: expected an object key in double quotes",
		`{"model": "`: "at byte 11: unexpected end of the JSON text inside a string",
		`{"model": `:  "at byte 10: unexpected end of the JSON text",
		`[1 2]`:       "at byte 3: expected a comma or ] after an array's element",
		`"\q"`:        "at byte 1: unknown escape inside a string",
	} {
		if err := Valid([]byte(text)); err == nil || err.Error() != want {
			t.Errorf("Valid(%q) = %v, want %s", text, err, want)
		}
	}
}

func TestWalkVisitsEveryMember(t *testing.T) {
	b := []byte(`{"a": 1 , "b\n":[1, 2],"c":{} }`)
	var got []string
	w := Walk(b, 0)
	for w.Next() {
		got = append(got, string(w.Key)+"="+string(b[w.Start:w.End]))
	}
	if s := strings.Join(got, ";"); s != `a=1;b\n=[1, 2];c={}` || w.Err != nil || w.Offset() != len(b) {
		t.Errorf("got %q, error %v, offset %d of %d", s, w.Err, w.Offset(), len(b))
	}
}

// visit reads a value with a cursor alone.
func visit(c *Cursor) {
	switch c.Kind() {
	case Obj:
		for c.Open('{'); c.Next(); {
			c.Key()
			visit(c)
		}
	case Arr:
		for c.Open('['); c.Next(); {
			visit(c)
		}
	default:
		c.Skip()
	}
}

func TestCursorAgreesWithEncodingJSON(t *testing.T) {
	for _, text := range texts {
		c := NewCursor([]byte(text))
		visit(c)
		c.End()
		if want := json.Valid([]byte(text)); (c.Err == nil) != want {
			t.Errorf("a cursor over %q: %v, encoding/json says valid = %v", text, c.Err, want)
		}
	}
}

func FuzzValue(f *testing.F) {
	for _, text := range texts {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		err := Valid(b)
		want := json.Valid(b)
		if err != nil && err.Reason == "nested too deeply" {
			return
		}
		c := NewCursor(b)
		visit(c)
		c.End()
		if (c.Err == nil) != want {
			t.Fatalf("a cursor over %q: %v, encoding/json says valid = %v", b, c.Err, want)
		}
		if (err == nil) != want {
			t.Fatalf("Valid(%q) = %v, encoding/json says valid = %v", b, err, want)
		}
		if i := Space(b, 0); want && b[i] == '"' && utf8.Valid(b) {
			var s string
			if err := json.Unmarshal(b, &s); err != nil {
				t.Fatal(err)
			}
			end, _, _ := String(b, i)
			if got := AppendDecoded(nil, b[i+1:end-1]); string(got) != s {
				t.Fatalf("decoding %q: got %q, want %q", b, got, s)
			}
		}
	})
}

func BenchmarkValue(b *testing.B) {
	text := append(append([]byte(`{"messages":[{"role":"user","content":"`), bytes.Repeat([]byte(`The quick brown fox, \"quoted\", jumps.\n`), 25000)...), `"}]}`...)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if err := Valid(text); err != nil {
			b.Fatal(err)
		}
	}
}
