package local

import (
	"encoding/json"
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
