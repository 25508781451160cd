package scoring

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"penstock/gateway/body"
)

// FuzzCheck holds that no answer makes a panic, and that what passes is written as valid JSON.
func FuzzCheck(f *testing.F) {
	requests := []string{
		`{"model":"tiny","prompt":"def main(x):","echo":true,"logprobs":1,"max_tokens":1}`,
		`{"model":"tiny","prompt":["def main","import os"],"echo":true,"logprobs":0,"max_tokens":0}`,
		`{"model":"tiny","prompt":[[444,2947,10,90,307],[444,2947,10]],"echo":true,"logprobs":1,"max_tokens":0}`,
		`{"model":"tiny","prompt":"def main","prompt_logprobs":1,"max_tokens":1}`,
	}
	for _, name := range []string{"sglang/c-echo-lp1-max1", "vllm/c-echo-lp1-max1", "sglang/c-echo-lp5-max1-list", "sglang/g-listids-max0", "sglang/g-text-max0", "vllm/c-promptlogprobs", "sglang/c-unicode"} {
		for i := range requests {
			f.Add(recorded(f, name).answer, uint8(i), uint8(0))
			f.Add(recorded(f, name).answer, uint8(i), uint8(1))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte, request, kind uint8) {
		j := jobOf(t, requests[int(request)%len(requests)])
		got, err := through(&j, []string{KindSGLang, KindVLLM, KindOpenAI}[kind%3], b)
		if err != nil {
			if strings.Contains(err.Error(), "bytes were written") {
				t.Fatal(err)
			}
			return
		}
		if !json.Valid(got) {
			t.Fatalf("%s\nbecame invalid JSON: %s", b, got)
		}
	})
}

// large is an answer of about size bytes for one prompt.
func large(size int) (request string, answer []byte) {
	var lps, tokens, tops, offs strings.Builder
	n := 0
	for ; tops.Len()*2 < size; n++ {
		if n > 0 {
			for _, b := range []*strings.Builder{&lps, &tokens, &tops, &offs} {
				b.WriteString(",")
			}
		}
		fmt.Fprintf(&tokens, `"tok%d"`, n%1000)
		offs.WriteString("-1")
		if n == 0 {
			lps.WriteString("null")
			tops.WriteString("null")
			continue
		}
		lps.WriteString("-11.270120620727539")
		tops.WriteString(`{" the":-2.4654335975646973," even":-2.8674986362457275}`)
	}
	return `{"prompt":"x","echo":true,"logprobs":2,"max_tokens":1}`,
		fmt.Appendf(nil, `{"id":"x","choices":[{"index":0,"text":"x","logprobs":{"text_offset":[%s],"token_logprobs":[%s],"tokens":[%s],"top_logprobs":[%s]}}],"usage":{"prompt_tokens":%d}}`, offs.String(), lps.String(), tokens.String(), tops.String(), n-1)
}

func BenchmarkLargeAnswer(b *testing.B) {
	request, text := large(20 << 20)
	for _, kind := range []string{KindLocal, KindSGLang} {
		b.Run(kind, func(b *testing.B) {
			j := jobOf(b, request)
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				r := j.Request(kind, whole(&j), new(body.Edits), nil)
				a, err := j.Check(&r, text)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := j.Merge([]*Answer{a}, MergeOptions{}).WriteTo(discard{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }
