package lm

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestEncodeThenDecodeIsTheSameBytes(t *testing.T) {
	m := Shared()
	for _, s := range []string{
		"", " ", "a", "The gate opens.", "  two  spaces  and\n\n\tlines\r\n", "naïve Zoë → 水 🌊 e\u0301",
		"\xff\xfe\x80 not UTF-8 \xe6\xb0", strings.Repeat("a", 1000), strings.Repeat("水", 100), "12345678901234567890",
		"<|im_start|>user<|im_end|>", "<|im_star", "<||><|", Text(),
	} {
		if got := string(m.Decode(nil, m.Encode(nil, s))); got != s {
			t.Errorf("Encode(%.40q): decodes to %.40q", s, got)
		}
		if got := string(m.Decode(nil, m.EncodePlain(nil, s))); got != s {
			t.Errorf("EncodePlain(%.40q): decodes to %.40q", s, got)
		}
	}
}

func FuzzEncodeThenDecode(f *testing.F) {
	for _, s := range []string{"The gate", " 水\xff", "<|im_end|>x", "\t \n  9"} {
		f.Add(s)
	}
	m := Shared()
	f.Fuzz(func(t *testing.T, s string) {
		tokens := m.Encode(nil, s)
		if got := string(m.Decode(nil, tokens)); got != s {
			t.Errorf("Encode(%q) = %v, decodes to %q", s, tokens, got)
		}
		for _, id := range m.EncodePlain(nil, s) {
			if Special(id) {
				t.Errorf("EncodePlain(%q) holds the special token %d", s, id)
			}
		}
		var d Detok
		var got []byte
		for _, id := range tokens {
			got = d.Append(got, m.Text(id))
			if !utf8.Valid(got) {
				t.Fatalf("text of the tokens of %q so far: %q, want whole characters only", s, got)
			}
		}
		got = d.Flush(got)
		if utf8.ValidString(s) && string(got) != s {
			t.Errorf("text of the tokens of %q: got %q", s, got)
		}
		var whole Detok
		if want := whole.Flush(whole.Append(nil, s)); !bytes.Equal(got, want) {
			t.Errorf("text of %q in pieces: got %q, want as in one piece %q", s, got, want)
		}
	})
}

func TestSpecialTextsAreTokensOnlyWhereAskedFor(t *testing.T) {
	m := Shared()
	s := "x<|im_start|>y<|endoftext|>"
	count := func(tokens []uint32) (n int) {
		for _, id := range tokens {
			if Special(id) {
				n++
			}
		}
		return n
	}
	if got := count(m.Encode(nil, s)); got != 2 {
		t.Errorf("Encode(%q): got %d special tokens, want 2", s, got)
	}
	if got := count(m.EncodePlain(nil, s)); got != 0 {
		t.Errorf("EncodePlain(%q): got %d special tokens, want 0", s, got)
	}
}

func TestDetokReplacesWhatIsNoUTF8(t *testing.T) {
	for _, tc := range []struct{ in, want string }{
		{"a\xffb", "a\uFFFDb"},
		{"\xe6\xb0a", "\uFFFDa"},
		{"\xe6\xb0", "\uFFFD"},
		{"\xf0\x9f\x8c\x8a", "🌊"},
		{"\x80\x80", "\uFFFD\uFFFD"},
		{"\xed\xa0\x80", "\uFFFD\uFFFD\uFFFD"},
		{"\xe6\xe6\xb0\xb4", "\uFFFD水"},
	} {
		var d Detok
		var got []byte
		for i := range len(tc.in) { // byte by byte, as the smallest tokens come
			got = d.Append(got, tc.in[i:i+1])
		}
		if got = d.Flush(got); string(got) != tc.want {
			t.Errorf("text of %q: got %q, want %q", tc.in, got, tc.want)
		}
	}
}

func TestTrainingDependsOnTheTextOnly(t *testing.T) {
	a, b := Train(documents(), VocabSize), Train(documents(), VocabSize)
	if a.Size() != b.Size() {
		t.Fatalf("two trainings: got %d and %d tokens, want the same", a.Size(), b.Size())
	}
	for id := range a.Size() {
		if a.Text(uint32(id)) != b.Text(uint32(id)) {
			t.Fatalf("token %d of two trainings: got %q and %q, want the same", id, a.Text(uint32(id)), b.Text(uint32(id)))
		}
	}
}

func BenchmarkEncode(b *testing.B) {
	m := Shared()
	s := Text()
	dst := make([]uint32, 0, len(s))
	b.SetBytes(int64(len(s)))
	b.ReportAllocs()
	for b.Loop() {
		dst = m.Encode(dst[:0], s)
	}
	b.ReportMetric(float64(len(s))/float64(len(dst)), "bytes/token")
}

func BenchmarkBuild(b *testing.B) {
	docs := documents()
	for b.Loop() {
		Build(docs, VocabSize, Order)
	}
}
