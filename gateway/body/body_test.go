package body

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

func mustParse(t testing.TB, ep Endpoint, text string) *View {
	t.Helper()
	v := new(View)
	if err := Parse(ep, []byte(text), v); err != nil {
		t.Fatalf("Parse(%s) = %v, want no error", text, err)
	}
	return v
}

func TestParseReadsWhatTheGatewayActsOn(t *testing.T) {
	v := mustParse(t, Chat, ` {"model":"org\/m\u00e9","messages":[{"role":"user","content":"hi"}],"stream":true,
		"stream_options":{"x":1,"include_usage":true},"n":3,"max_tokens":7,"max_completion_tokens":9,"max_output_tokens":11,
		"logprobs":true,"top_logprobs":4,"user":"u1","prompt_cache_key":"s1","unknown":{"a":[1,2,{"b":null}]}} `)
	got := fmt.Sprintln(string(v.Model), v.Stream, v.IncludeUsage, v.N, v.BestOf, v.MaxTokens, v.Logprobs, v.TopLogprobs, string(v.User), string(v.Session), v.MessageCount(), v.PromptCount())
	if want := "org/mé true true 3 1 9 0 4 u1 s1 1 1\n"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	v = mustParse(t, Completions, `{"prompt":[[1,2,3],[4 , 5]],"echo":true,"logprobs":0,"max_tokens":0,"prompt_logprobs":-1,"n":2,"best_of":2}`)
	got = fmt.Sprintln(v.Model == nil, v.Echo, v.Logprobs, v.MaxTokens, v.PromptLogprobs == AllLogprobs, len(v.Prompts), v.TokenIDs, v.Prompts[1].Tokens, v.N, v.BestOf)
	if want := "true true 0 0 true 2 5 2 2 2\n"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	v = mustParse(t, Generate, `{"text":["a","b"],"sampling_params":[{"max_new_tokens":5,"n":2},{"max_new_tokens":9}],"return_logprob":[false,true],"logprob_start_len":[-1,0],"top_logprobs_num":2,"image_data":["x",["y","z"]]}`)
	got = fmt.Sprintln(len(v.Prompts), v.MaxTokens, v.N, v.ReturnLogprob, v.LogprobStartLen, v.TopLogprobsNum, v.Media)
	if want := "2 9 2 true 0 2 3\n"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestNullIsAsGoodAsLeftOut(t *testing.T) {
	v := mustParse(t, Completions, `{"model":null,"prompt":"x","stream":null,"n":null,"max_tokens":null,"logprobs":null,"echo":null,"stream_options":null,"user":null,"priority":null}`)
	if v.Model != nil || v.Stream || v.N != 1 || v.MaxTokens != -1 || v.Logprobs != -1 || v.Echo || v.EngineField() != "" {
		t.Errorf("got %+v, want the defaults", v)
	}
}

func TestEngineFieldsAreReported(t *testing.T) {
	for _, name := range []string{"routed_dp_rank", "data_parallel_rank", "disagg_prefill_dp_rank", "priority", "bootstrap_room", "bootstrap_host", "cache_salt", "extra_key", "kv_transfer_params"} {
		v := mustParse(t, Completions, `{"prompt":"x","`+name+`":"3"}`)
		if got := v.EngineField(); got != name {
			t.Errorf("%s: got %q", name, got)
		}
	}
	if got := mustParse(t, Completions, `{"prompt":"x","rank_by":1,"seed":1}`).EngineField(); got != "" {
		t.Errorf("a body without engine fields: got %q", got)
	}
}

func TestBadBodiesNameTheParameter(t *testing.T) {
	chat := func(fields string) string { return `{"messages":[{"role":"user","content":"x"}],` + fields + `}` }
	comp := func(fields string) string { return `{"prompt":"x",` + fields + `}` }
	for _, c := range []struct {
		ep                        Endpoint
		text, param, code, substr string
	}{
		{Chat, ``, "", CodeInvalidJSON, "unexpected end"},
		{Chat, `[]`, "", CodeInvalidJSON, "not a JSON object"},
		{Chat, `{"model": "tiny", `, "", CodeInvalidJSON, "at byte 18"},
		{Chat, chat(`"a":1`) + `x`, "", CodeInvalidJSON, "after the JSON object"},
		{Chat, chat(`"a":` + strings.Repeat("[", 200)), "", CodeInvalidJSON, "nested too deeply"},
		{Chat, `{"model":"m"}`, "messages", CodeMissing, "Missing required parameter: 'messages'."},
		{Chat, `{"messages":null}`, "messages", CodeMissing, "messages"},
		{Chat, `{"messages":[]}`, "messages", CodeInvalidValue, "empty array"},
		{Chat, `{"messages":"hi"}`, "messages", CodeInvalidValue, "expected an array of objects, but got a string instead"},
		{Chat, `{"messages":["hi"]}`, "messages[0]", CodeInvalidValue, "expected an object, but got a string"},
		{Chat, `{"messages":[{"role":"user","content":"x"},{"content":"y"}]}`, "messages[1].role", CodeMissing, "messages[1].role"},
		{Chat, `{"messages":[{"role":"user","content":5}]}`, "messages[0].content", CodeInvalidValue, "but got an integer"},
		{Chat, `{"messages":[{"role":7}]}`, "messages[0].role", CodeInvalidValue, "expected a string"},
		{Chat, `{"messages":[{"role":"user","role":"system"}]}`, "messages[0].role", CodeInvalidValue, "more than once"},
		{Chat, chat(`"model":5`), "model", CodeInvalidValue, "Invalid type for 'model': expected a string, but got an integer instead."},
		{Chat, chat(`"stream":"true"`), "stream", CodeInvalidValue, "expected a boolean, but got a string"},
		{Chat, chat(`"stream":1`), "stream", CodeInvalidValue, "expected a boolean, but got an integer"},
		{Chat, chat(`"stream_options":true`), "stream_options", CodeInvalidValue, "expected an object"},
		{Chat, chat(`"stream_options":{"include_usage":1}`), "stream_options.include_usage", CodeInvalidValue, "expected a boolean"},
		{Chat, chat(`"stream_options":{"include_usage":true,"include_usage":false}`), "stream_options.include_usage", CodeInvalidValue, "more than once"},
		{Chat, chat(`"max_tokens":"5"`), "max_tokens", CodeInvalidValue, "Invalid type for 'max_tokens': expected an integer, but got a string instead."},
		{Chat, chat(`"max_tokens":1.5`), "max_tokens", CodeInvalidValue, "but got a decimal number instead"},
		{Chat, chat(`"max_tokens":-1`), "max_tokens", CodeInvalidValue, "Invalid 'max_tokens': integer below minimum value. Expected a value >= 0, but got -1 instead."},
		{Chat, chat(`"max_tokens":99999999999999999999`), "max_tokens", CodeInvalidValue, "integer above maximum value"},
		{Chat, chat(`"max_completion_tokens":-99999999999999999999`), "max_completion_tokens", CodeInvalidValue, "integer below minimum value"},
		{Chat, chat(`"n":0`), "n", CodeInvalidValue, "integer below minimum value. Expected a value >= 1"},
		{Chat, chat(`"n":1000000`), "n", CodeInvalidValue, "Expected a value <= 1024, but got 1000000"},
		{Chat, chat(`"logprobs":1`), "logprobs", CodeInvalidValue, "expected a boolean"},
		{Chat, chat(`"tools":{}`), "tools", CodeInvalidValue, "expected an array"},
		{Chat, chat(`"model":"a","model":"b"`), "model", CodeInvalidValue, "more than once"},
		{Chat, chat(`"mod\u0065l":"b"`), "model", CodeInvalidValue, "spelled with escapes"},
		{Chat, chat(`"bootstrap\u005froom":"b"`), "bootstrap_room", CodeInvalidValue, "spelled with escapes"},
		{Completions, `{"prompt":""}`, "prompt", CodeInvalidValue, "empty string"},
		{Completions, `{"prompt":[]}`, "prompt", CodeInvalidValue, "empty array"},
		{Completions, `{"prompt":["a",""]}`, "prompt", CodeInvalidValue, "empty string"},
		{Completions, `{"prompt":[[1],[]]}`, "prompt[1]", CodeInvalidValue, "empty array"},
		{Completions, `{"prompt":["a",1]}`, "prompt[1]", CodeInvalidValue, "expected a string like the first element"},
		{Completions, `{"prompt":[1,"a"]}`, "prompt[1]", CodeInvalidValue, "expected a token id, but got a string"},
		{Completions, `{"prompt":[1,-2]}`, "prompt[1]", CodeInvalidValue, "expected a token id, but got an integer"},
		{Completions, `{"prompt":[1,2.5]}`, "prompt[1]", CodeInvalidValue, "expected a token id, but got a decimal number"},
		{Completions, `{"prompt":[1,02]}`, "", CodeInvalidJSON, "expected a comma"},
		{Completions, `{"prompt":[{}]}`, "prompt", CodeInvalidValue, "but got an object"},
		{Completions, `{"prompt":5}`, "prompt", CodeInvalidValue, "expected a string or an array"},
		{Completions, comp(`"logprobs":true`), "logprobs", CodeInvalidValue, "expected an integer, but got a boolean"},
		{Completions, comp(`"logprobs":-1`), "logprobs", CodeInvalidValue, "integer below minimum value"},
		{Completions, comp(`"echo":"yes"`), "echo", CodeInvalidValue, "expected a boolean"},
		{Completions, comp(`"best_of":0`), "best_of", CodeInvalidValue, "integer below minimum value"},
		{Embeddings, `{}`, "input", CodeMissing, "input"},
		{Embeddings, `{"input":""}`, "input", CodeInvalidValue, "empty string"},
		{Generate, `{}`, "text", CodeMissing, "text"},
		{Generate, `{"text":"x","sampling_params":{"max_new_tokens":-3}}`, "sampling_params.max_new_tokens", CodeInvalidValue, "below minimum"},
		{Generate, `{"text":"x","sampling_params":[{},{"n":0}]}`, "sampling_params.n", CodeInvalidValue, "below minimum"},
		{Responses, `{"input":""}`, "input", CodeInvalidValue, "empty string"},
	} {
		var e *Error
		err := Parse(c.ep, []byte(c.text), new(View))
		if !errors.As(err, &e) {
			t.Errorf("%s: got %v, want an *Error", c.text, err)
			continue
		}
		if e.Param != c.param || e.Code != c.code || !strings.Contains(e.Message, c.substr) {
			t.Errorf("%.80s\n got param %q code %s message %s\nwant param %q code %s message with %q", c.text, e.Param, e.Code, e.Message, c.param, c.code, c.substr)
		}
	}
}

func TestMediaAndTextAreCountedApart(t *testing.T) {
	image := `{"type":"image_url","image_url":{"url":"data:image/png;base64,` + strings.Repeat("A", 5000) + `"}}`
	for text, want := range map[string][2]int{
		`{"messages":[{"role":"user","content":"hello"}]}`:                                                           {0, 5},
		`{"messages":[{"role":"user","content":[{"type":"text","text":"hello"},` + image + `]}]}`:                    {1, 5},
		`{"messages":[{"role":"user","content":[` + image + `,` + image + `]}]}`:                                     {2, 0},
		`{"messages":[{"role":"user","content":[{"image_url":"http://x/y.png"},"hey"]}]}`:                            {1, 5},
		`{"messages":[{"role":"user","content":[{"type":"input_audio","input_audio":{"data":"AAAA"}}]}]}`:            {1, 0},
		`{"messages":[{"role":"user","content":[{"type":"tool_result","content":[` + image + `]}]}]}`:                {1, 33},
		`{"messages":[{"role":"user","content":[{"type":"image","source":{"type":"base64","data":"AAAAAAAAAA"}}]}]}`: {1, 0},
	} {
		v := mustParse(t, Chat, text)
		if got := [2]int{v.Media, v.TextBytes}; got != want {
			t.Errorf("%.120s: got media and text %v, want %v", text, got, want)
		}
	}
}

func TestAViewIsReusedWithoutAllocation(t *testing.T) {
	text := []byte(`{"model":"m","messages":[{"role":"system","content":"s"},{"role":"user","content":[{"type":"text","text":"a\nb"}]}],"stream":true,"max_tokens":5}`)
	v, e, segs := new(View), new(Edits), Segments(nil)
	rank, model := []byte("3"), []byte(`"up/m"`)
	n := testing.AllocsPerRun(100, func() {
		if err := Parse(Chat, text, v); err != nil {
			t.Fatal(err)
		}
		v.Key(discard{})
		e.Reset()
		e.Set("model", model)
		e.Set("routed_dp_rank", rank)
		e.SetIncludeUsage()
		segs = v.Apply(e, segs[:0])
	})
	if n != 0 {
		t.Errorf("got %v allocations for view, key and edits, want 0", n)
	}
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }
func (discard) Token(uint64)                {}
func (discard) Media(uint64)                {}

// recorder keeps a key's stream as text, to compare.
type recorder struct{ strings.Builder }

func (r *recorder) Token(id uint64)   { fmt.Fprintf(r, "<%d>", id) }
func (r *recorder) Media(hash uint64) { fmt.Fprintf(r, "<media %x>", hash) }

func keyOf(t testing.TB, ep Endpoint, text string) string {
	t.Helper()
	var r recorder
	mustParse(t, ep, text).Key(&r)
	return r.String()
}

func TestAConversationsKeyExtendsItsEarlierKey(t *testing.T) {
	tools := `"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}]`
	turns := []string{
		`{"role":"system","content":"You are…\nnice."}`,
		`{"role":"user","content":[{"type":"text","text":"look"},{"type":"image_url","image_url":{"url":"data:AAAA"}}]}`,
		`{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"a\": 1}"}}]}`,
		`{"role":"tool","tool_call_id":"c1","content":"42"}`,
		`{"role":"assistant","content":"It is 42."}`,
		`{"role":"user","content":"Thanks"}`,
	}
	before := ""
	for n := 1; n <= len(turns); n++ {
		key := keyOf(t, Chat, `{"model":"m",`+tools+`,"messages":[`+strings.Join(turns[:n], ",")+`]}`)
		after := keyOf(t, Chat, `{"messages": [`+strings.Join(turns[:n], " , ")+`] , `+strings.ReplaceAll(tools, ",", " ,\n")+`, "temperature":1}`)
		if !strings.HasPrefix(key, before) || len(key) <= len(before) {
			t.Fatalf("turn %d: key %q does not extend %q", n, key, before)
		}
		if key != after {
			t.Fatalf("turn %d: order and white space changed the key:\n%q\n%q", n, key, after)
		}
		before = key
	}
}

func TestTheSameTextHasTheSameKeyHoweverItIsSent(t *testing.T) {
	same := func(ep Endpoint, texts ...string) {
		t.Helper()
		for _, text := range texts[1:] {
			if got, want := keyOf(t, ep, text), keyOf(t, ep, texts[0]); got != want {
				t.Errorf("keys differ:\n%s: %q\n%s: %q", text, got, texts[0], want)
			}
		}
	}
	same(Chat, `{"messages":[{"role":"user","content":"é😀/\n"}]}`,
		`{"messages":[{"content":"\u00e9\ud83d\ude00\/\u000a","role":"user"}]}`,
		`{"messages":[{"role":"user","content":[{"type":"text","text":"é😀/\n"}]}]}`,
		`{"messages":[{"role":"user","content":[{"type":"text","text":"é😀/\n","cache_control":{"type":"ephemeral"}}]}]}`,
		`{"messages":[{"role":"user","content":["é😀/\n"]}]}`)
	same(Chat, `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:a/b"}}]}]}`,
		`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{ "url":"data:a\/b" }}]}]}`)
	same(Messages, `{"system":"s","messages":[{"role":"user","content":"hi"}]}`,
		`{"messages":[{"role":"user","content":[{"type":"text","text":"hi","cache_control":{"type":"ephemeral"}}]}],"system":[{"type":"text","text":"s","cache_control":{}}]}`)
	same(Responses, `{"input":"hi"}`, `{"input":[{"role":"user","content":"hi"}]}`, `{"input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"hi"}]}]}`)
	same(Completions, `{"prompt":"C:\\users\\/x \"q\" \\\u00e9 \/ \u0001\u001F \b\f\n\r\t tail of some length"}`,
		`{"prompt":"C:\u005cusers\u005c/x \u0022q\u0022 \\é / \u0001\u001f \u0008\u000c\u000a\u000d\u0009 tail of some length"}`)
	same(Completions, `{"prompt":"a\tb"}`, `{"prompt":["a\u0009b"]}`)
	same(Completions, `{"prompt":[1,2,3]}`, `{"prompt":[ [ 1 , 2 ,3 ] ]}`)
}

func TestDifferentPromptsHaveDifferentKeys(t *testing.T) {
	seen := map[string]string{}
	for _, text := range []string{
		`{"messages":[{"role":"user","content":"a"}]}`,
		`{"messages":[{"role":"system","content":"a"}]}`,
		`{"messages":[{"role":"user","content":"a"},{"role":"user","content":""}]}`,
		`{"messages":[{"role":"user","content":"a"}],"tools":[{"name":"f"}]}`,
		`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:AAAA"}}]}]}`,
		`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:AAAB"}}]}]}`,
		`{"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":"x"}]}]}`,
		`{"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":"y"}]}]}`,
	} {
		key := keyOf(t, Chat, text)
		if other, ok := seen[key]; ok {
			t.Errorf("%s and %s have the same key %q", text, other, key)
		}
		seen[key] = text
	}
}

func TestPromptsOfABatchAreKeyedOneByOne(t *testing.T) {
	v := mustParse(t, Completions, `{"prompt":["ab","c\nd"]}`)
	for i, want := range []string{"ab", `c\nd`} {
		var r recorder
		v.KeyPrompt(&r, i)
		if r.String() != want {
			t.Errorf("prompt %d: got key %q, want %q", i, r.String(), want)
		}
	}
	var r recorder
	mustParse(t, Completions, `{"prompt":[[7,18446],[9]]}`).KeyPrompt(&r, 0)
	if r.String() != "<7><18446>" {
		t.Errorf("token ids: got key %q", r.String())
	}
}

func TestEditsChangeTheirFieldsAndNothingElse(t *testing.T) {
	set := func(kv ...string) func(*Edits) {
		return func(e *Edits) {
			for i := 0; i < len(kv); i += 2 {
				if kv[i+1] == "" {
					e.Delete(kv[i])
				} else {
					e.Set(kv[i], []byte(kv[i+1]))
				}
			}
		}
	}
	usage := func(e *Edits) { e.SetIncludeUsage() }
	list := func(e *Edits) { e.SetList("prompt", []byte(`"x","y"`)) }
	for _, c := range []struct {
		text string
		edit func(*Edits)
		want string
	}{
		{`{"prompt":"x","model":"a"}`, set(), `{"prompt":"x","model":"a"}`},
		{`{"prompt":"x", "model" : "a" }`, set("model", `"b/c"`), `{"prompt":"x", "model" : "b/c" }`},
		{`{"prompt":"x"}`, set("routed_dp_rank", `3`), `{"prompt":"x","routed_dp_rank":3}`},
		{`{"prompt":"x" } `, set("routed_dp_rank", `3`, "a", "[]"), `{"prompt":"x","routed_dp_rank":3,"a":[] } `},
		{`{"echo":true,"prompt":"x","n":1}`, set("echo", ""), `{"prompt":"x","n":1}`},
		{`{"echo":true, "prompt":"x" , "n":1}`, set("prompt", ""), `{"echo":true,  "n":1}`},
		{`{"echo":true,"prompt":"x","n":1 }`, set("n", ""), `{"echo":true,"prompt":"x" }`},
		{`{"echo":true,"prompt":"x","n":1 }`, set("n", "", "prompt", ""), `{"echo":true }`},
		{`{"echo":true,"prompt":"x","n":1}`, set("n", "", "echo", ""), `{"prompt":"x"}`},
		{`{"echo":true,"prompt":"x","n":1}`, set("n", "", "echo", "", "prompt", ""), `{}`},
		{`{ "echo":true,"prompt":"x","n":1 }`, set("n", "", "echo", "", "prompt", "", "model", `"m"`), `{"model":"m" }`},
		{`{"echo":true,"prompt":"x","n":1}`, set("n", "", "model", `"m"`), `{"echo":true,"prompt":"x","model":"m"}`},
		{`{"other":true,"prompt":"x"}`, set("other", "", "nothere", ""), `{"prompt":"x"}`},
		{`{"prompt":"x","other":[1]}`, set("other", "", "new", "1"), `{"prompt":"x","new":1}`},
		{`{"prompt":["w","x","y"],"n":1}`, list, `{"prompt":["x","y"],"n":1}`},
		{`{"prompt":"x"}`, usage, `{"prompt":"x","stream_options":{"include_usage":true}}`},
		{`{"prompt":"x","stream_options":null}`, usage, `{"prompt":"x","stream_options":{"include_usage":true}}`},
		{`{"prompt":"x","stream_options":{ }}`, usage, `{"prompt":"x","stream_options":{"include_usage":true }}`},
		{`{"prompt":"x","stream_options":{"a":1}}`, usage, `{"prompt":"x","stream_options":{"include_usage":true,"a":1}}`},
		{`{"stream_options":{"a":1,"include_usage": false},"prompt":"x"}`, usage, `{"stream_options":{"a":1,"include_usage": true},"prompt":"x"}`},
	} {
		v, e := mustParse(t, Completions, c.text), new(Edits)
		c.edit(e)
		segs := v.Apply(e, nil)
		if got := string(segs.AppendTo(nil)); got != c.want || segs.Len() != len(c.want) {
			t.Errorf("%s\n got %s\nwant %s", c.text, got, c.want)
		}
	}
}

func TestAFormsModelIsReadAndReplaced(t *testing.T) {
	form := func(model string) string {
		return "--xyz\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\nContent-Type: audio/wav\r\n\r\nRIFF\r\n\x00--xy\r\n" +
			"--xyz\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\n" + model + "\r\n" +
			"--xyz\r\nContent-Disposition: form-data; name=\"stream\"\r\n\r\nTrue\r\n--xyz--\r\n"
	}
	v, e := mustParse(t, Audio, form("whisper")), new(Edits)
	if string(v.Model) != "whisper" || !v.Stream || v.Media != 1 {
		t.Errorf("got model %q, stream %v, media %d, want whisper, true, 1", v.Model, v.Stream, v.Media)
	}
	e.Set("model", []byte(`"up/whisper"`))
	e.Set("routed_dp_rank", []byte("1"))
	if got, want := string(v.Apply(e, nil).AppendTo(nil)), form("up/whisper"); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	for _, text := range []string{"", "--xyz", "--xyz\r\n", "--xyz\r\n\r\n\r\n", "hello"} {
		if err := Parse(Audio, []byte(text), v); err == nil {
			t.Errorf("%q: no error", text)
		}
	}
	if v = mustParse(t, Audio, `{"model":"m"}`); string(v.Model) != "m" {
		t.Errorf("JSON: got model %q", v.Model)
	}
}

func TestAFormsNamesAreReadAsEnginesReadThem(t *testing.T) {
	part := func(headers, value string) string { return "--xyz\r\n" + headers + "\r\n\r\n" + value + "\r\n" }
	for _, headers := range []string{
		`Content-Disposition: form-data; name=model`, // as .NET writes it
		`content-disposition:form-data;NAME="model"`,
		"X-Note: filename=a.wav\r\nContent-Disposition: form-data; name=\"model\"",
		"Content-Type: text/plain; name=\"x\"\r\nContent-Disposition: form-data; name=\"model\"",
	} {
		text := part(headers, "m") + part(`Content-Disposition: form-data; name=file; filename=my talk.wav`, "RIFF") + "--xyz--\r\n"
		if v := mustParse(t, Audio, text); string(v.Model) != "m" || v.Media != 1 {
			t.Errorf("%s: got model %q, media %d, want m, 1", headers, v.Model, v.Media)
		}
		twice := part(`Content-Disposition: form-data; name="model"`, "allowed") + text
		if err := Parse(Audio, []byte(twice), new(View)); err == nil {
			t.Errorf("%s: a second model was let by", headers)
		}
		steering := part(strings.Replace(headers, "model", "priority", 1), "1") + "--xyz--\r\n"
		if v := mustParse(t, Audio, steering); v.EngineField() != "priority" {
			t.Errorf("%s: what steers the engine was let by", headers)
		}
	}
	if err := Parse(Audio, []byte(part("Content-Type: text/plain", "m")+"--xyz--\r\n"), new(View)); err == nil {
		t.Error("a part without a name was let by")
	}
}

func TestSegmentsReadAsTheyAre(t *testing.T) {
	var r Reader
	segs := Segments{[]byte("ab"), []byte("cde"), nil, []byte("f")}
	for range 2 {
		r.Reset(segs)
		var got []byte
		p := make([]byte, 4)
		for {
			n, err := r.Read(p)
			got = append(got, p[:n]...)
			if err != nil {
				break
			}
		}
		if string(got) != "abcdef" {
			t.Errorf("got %q", got)
		}
	}
	var b strings.Builder
	r.Reset(segs)
	if n, err := r.WriteTo(&b); n != 6 || err != nil || b.String() != "abcdef" {
		t.Errorf("WriteTo: %d, %v, %q", n, err, b.String())
	}
}

func TestFieldNamesAndFieldsAgree(t *testing.T) {
	for f := unknown + 1; f < fieldCount; f++ {
		if got := fieldOf([]byte(fieldName(f))); got != f {
			t.Errorf("field %d has the name %q, which names field %d", f, fieldName(f), got)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{
		`{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true,"stream_options":{"include_usage":false},"n":2}`,
		`{"model":"a\u0062","prompt":["x","y"],"echo":true,"logprobs":1,"max_tokens":0,"other":[{"b":1e5}]}`,
		`{"prompt":[[1,2],[3]],"user":"u","cache_salt":"s"}`, `{"input":[1,2,3]}`, `{"text":"x","sampling_params":{"n":2}}`,
		`{"input":[{"type":"message","role":"user","content":[{"type":"input_image","image_url":"x"}]},{"type":"function_call_output","output":"x"}],"instructions":"i"}`,
	} {
		for ep := Other; ep <= Audio; ep++ {
			f.Add(uint8(ep), []byte(s))
		}
	}
	f.Fuzz(func(t *testing.T, ep uint8, b []byte) {
		v := new(View)
		err := Parse(Endpoint(ep%uint8(Audio+1)), b, v)
		if err != nil {
			var e *Error
			if !errors.As(err, &e) || e.Message == "" {
				t.Fatalf("not an *Error with a message: %v", err)
			}
			if e.Code == CodeInvalidJSON && json.Valid(b) && !strings.Contains(e.Message, "deeply") && !strings.Contains(e.Message, "not a JSON object") {
				t.Fatalf("valid JSON refused: %q: %v", b, err)
			}
			return
		}
		if v.multipart {
			return
		}
		var want map[string]any
		if err := json.Unmarshal(b, &want); err != nil {
			t.Fatalf("invalid JSON accepted: %q: %v", b, err)
		}
		checkValues(t, v, want)
		var r recorder
		v.Key(&r)
		for i := range v.PromptCount() {
			v.KeyPrompt(discard{}, i)
		}
		checkEdits(t, v, want)
	})
}

func checkValues(t *testing.T, v *View, want map[string]any) {
	if m, ok := want["model"].(string); ok && strings.ToValidUTF8(m, "") == m && !strings.Contains(m, "\ufffd") && m != string(v.Model) {
		t.Fatalf("model: got %q, want %q", v.Model, m)
	}
	if s, _ := want["stream"].(bool); s != v.Stream {
		t.Fatalf("stream: got %v, want %v", v.Stream, s)
	}
	if n, ok := want["n"].(float64); ok && v.Endpoint != Generate && int(n) != v.N {
		t.Fatalf("n: got %v, want %v", v.N, n)
	}
	options, _ := want["stream_options"].(map[string]any)
	if u, _ := options["include_usage"].(bool); u != v.IncludeUsage {
		t.Fatalf("include_usage: got %v, want %v", v.IncludeUsage, u)
	}
}

func checkEdits(t *testing.T, v *View, want map[string]any) {
	e := new(Edits)
	e.Set("model", []byte(`"new"`))
	e.Set("routed_dp_rank", []byte(`7`))
	e.Delete("n")
	e.Delete("stream")
	e.SetIncludeUsage()
	want["model"], want["routed_dp_rank"] = "new", 7.0
	delete(want, "n")
	delete(want, "stream")
	if o, ok := want["stream_options"].(map[string]any); ok {
		o["include_usage"] = true
	} else {
		want["stream_options"] = map[string]any{"include_usage": true}
	}
	out := v.Apply(e, nil).AppendTo(nil)
	var got map[string]any
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatalf("edits made invalid JSON of %q: %q: %v", v.Body, out, err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("edits of %q: got %q, want %v", v.Body, out, want)
	}
}

func chatBody(size int, parts bool) []byte {
	var b strings.Builder
	b.WriteString(`{"model":"m","stream":true,"messages":[{"role":"system","content":"You help."}`)
	line := `def f(x):\n    return \"x\" + str(x)  # a comment of some length here\n`
	for b.Len() < size {
		text := strings.Repeat(line, 60)
		if parts {
			fmt.Fprintf(&b, `,{"role":"user","content":[{"type":"text","text":"%s"}]}`, text)
		} else {
			fmt.Fprintf(&b, `,{"role":"user","content":"%s"}`, text)
		}
	}
	b.WriteString(`],"max_tokens":100}`)
	return []byte(b.String())
}

func BenchmarkParse(b *testing.B)       { benchmark(b, Chat, chatBody(1<<20, false), false) }
func BenchmarkParseAndKey(b *testing.B) { benchmark(b, Chat, chatBody(1<<20, false), true) }
func BenchmarkParseAndKeyParts(b *testing.B) {
	benchmark(b, Chat, chatBody(1<<20, true), true)
}

func BenchmarkParseAndKeyEscaped(b *testing.B) {
	benchmark(b, Completions, []byte(`{"prompt":"`+strings.Repeat(`\u65e5\u672c\u8a9e `, 50000)+`"}`), true)
}
func BenchmarkParseAndKey1K(b *testing.B) { benchmark(b, Chat, chatBody(1<<10, false), true) }
func BenchmarkParseAndKeyTokens(b *testing.B) {
	benchmark(b, Completions, []byte(`{"prompt":[`+strings.Repeat("12345, ", 150000)+`1]}`), true)
}

func benchmark(b *testing.B, ep Endpoint, text []byte, key bool) {
	v := new(View)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if err := Parse(ep, text, v); err != nil {
			b.Fatal(err)
		}
		if key {
			v.Key(discard{})
		}
	}
}

func BenchmarkEdits(b *testing.B) {
	text := chatBody(1<<20, false)
	v, e, segs := new(View), new(Edits), Segments(nil)
	if err := Parse(Chat, text, v); err != nil {
		b.Fatal(err)
	}
	rank := []byte("3")
	b.ReportAllocs()
	for b.Loop() {
		e.Reset()
		e.Set("routed_dp_rank", rank)
		e.SetIncludeUsage()
		segs = v.Apply(e, segs[:0])
	}
}
