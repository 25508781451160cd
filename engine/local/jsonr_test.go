package local

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"
)

func FuzzUnquoteAgreesWithEncodingJSON(f *testing.F) {
	for _, s := range []string{`"a\nb\u00e9\ud83c\udf0a\ud83c x\\\"\/\b\f"`, "\"\xff\xe6\xb0\"", `""`, `"\uD83C\u0041"`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var want string
		if len(raw) == 0 || raw[0] != '"' || json.Unmarshal(raw, &want) != nil {
			t.Skip()
		}
		if got, ok := unquote(trim(raw)); !ok || got != want {
			t.Errorf("unquote(%q): got %q, %v, want %q", raw, got, ok, want)
		}
	})
}

func FuzzReadIDsAgreesWithEncodingJSON(f *testing.F) {
	for _, s := range []string{"[]", "[1]", " [ 1 , 2,3 ]", "[4294967295]", "[4294967296]", "[-1]", "[1.5]", `["x"]`, "[[1]]", "[00]"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		if !json.Valid(raw) {
			t.Skip() // it only ever sees valid JSON
		}
		var want []uint32
		err := json.Unmarshal(raw, &want)
		got, ok := readIDs(trim(raw))
		if isList := trim(raw)[0] == '['; ok != (err == nil && isList) && !slices.Contains(raw, 'n') { // null is 0 to encoding/json
			t.Errorf("readIDs(%s): got %v, %v, encoding/json %v, %v", raw, got, ok, want, err)
		}
		if ok && !slices.Equal(got, want) {
			t.Errorf("readIDs(%s): got %v, want %v", raw, got, want)
		}
	})
}

func FuzzElementsAgreesWithEncodingJSON(f *testing.F) {
	for _, s := range []string{"[]", `["a","b,]"]`, `[[1,2],[3]]`, `[{"a":[1]},"\"]"]`, " [ 1 , 2 ] "} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var want []json.RawMessage
		if !json.Valid(raw) || json.Unmarshal(raw, &want) != nil || trim(raw)[0] != '[' {
			t.Skip()
		}
		got, ok := elements(trim(raw))
		if !ok || len(got) != len(want) {
			t.Fatalf("elements(%s): got %d, %v, want %d", raw, len(got), ok, len(want))
		}
		for i := range got {
			if string(got[i]) != string(want[i]) {
				t.Errorf("elements(%s): element %d: got %s, want %s", raw, i, got[i], want[i])
			}
		}
	})
}

func FuzzRequestBodies(f *testing.F) {
	for _, s := range []string{
		`{"messages":[{"role":"user","content":[{"type":"text","text":"x"}]}],"stop":["a"],"n":2,"stream":true,"logprobs":true,"top_logprobs":2}`,
		`{"prompt":[[1,2],[3]],"echo":true,"logprobs":1,"max_tokens":0,"best_of":3,"stop":null,"seed":-1}`,
		`{"prompt":["a","b"],"max_tokens":null,"temperature":null,"prompt_logprobs":2}`,
		`{"text":["a"],"sampling_params":[{"n":2,"stop":"x"}],"return_logprob":[true],"logprob_start_len":[0],"top_logprobs_num":1}`,
		`{"input_ids":[5,6],"sampling_params":null,"return_logprob":true,"logprob_start_len":-1}`,
	} {
		f.Add([]byte(s))
	}
	s, err := New(Options{ContextLen: 1000})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(s.Close)
	f.Fuzz(func(t *testing.T, body []byte) {
		for name, parse := range map[string]func() (*call, error){
			"chat":       func() (*call, error) { return s.parse(body, true) },
			"completion": func() (*call, error) { return s.parse(body, false) },
			"generate":   func() (*call, error) { return s.parseNative(body) },
		} {
			c, err := parse()
			if err != nil {
				if e, ok := errors.AsType[*apiError](err); !ok || e.status < 400 || e.status > 499 || e.message == "" {
					t.Errorf("%s of %q: got %v, want a 4xx that says what is wrong", name, body, err)
				}
				continue
			}
			if len(c.prompts) == 0 || c.n < 1 || c.bestOf < c.n || c.how.TopP <= 0 {
				t.Errorf("%s of %q: got %+v", name, body, c)
			}
			for _, p := range c.prompts {
				if n := len(p.tokens); n == 0 || n > 1000 {
					t.Errorf("%s of %q: a prompt of %d tokens", name, body, n)
				}
			}
		}
	})
}

func FuzzAppendStringIsValidJSON(f *testing.F) {
	f.Add("a\"b\\c\n\x00\x1f 水 \xff\xe6\xb0")
	f.Fuzz(func(t *testing.T, s string) {
		var got string
		b := appendString(nil, s)
		if err := json.Unmarshal(b, &got); err != nil {
			t.Fatalf("appendString(%q) = %s: %v", s, b, err)
		}
		quoted, _ := json.Marshal(s)
		var want string
		if err := json.Unmarshal(quoted, &want); err != nil || got != want {
			t.Errorf("appendString(%q): reads back as %q, want %q", s, got, want)
		}
	})
}
