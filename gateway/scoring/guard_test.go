package scoring

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"penstock/gateway/body"
)

func isMissing(err error, reason string) bool {
	m, ok := errors.AsType[*Missing](err)
	return ok && strings.Contains(m.Reason, reason)
}

func TestAnswersWithoutPromptLogprobsAreRefusedWithTheReason(t *testing.T) {
	good := string(recorded(t, "vllm/c-echo-lp1-max1").answer)
	request := recorded(t, "vllm/c-echo-lp1-max1").request
	swap := func(old, new string) string {
		if !strings.Contains(good, old) {
			t.Fatalf("the recording lacks %s", old)
		}
		return strings.Replace(good, old, new, 1)
	}
	lps := `[null,-11.270120620727539,-11.880231857299805,-12.194788932800293,-9.745959281921387,-3.447669506072998]`
	tops := `[null,{" main":-11.270120620727539," the":-2.4654335975646973},{"(":-11.880231857299805," even":-2.8685131072998047},{"x":-12.194788932800293,"unpack":-3.210413694381714},{"):":-9.745959281921387,"face":-2.5350217819213867},{"utable":-3.447669506072998}]`
	for _, c := range []struct{ name, answer, reason string }{
		{"generated tokens only", `{"choices":[{"index":0,"text":"utable","logprobs":{"text_offset":[12],"token_logprobs":[-3.4],"tokens":["utable"],"top_logprobs":[{"utable":-3.4}]}}],"usage":{"prompt_tokens":5,"total_tokens":6,"completion_tokens":1}}`, "expected one for each of 5 tokens"},
		{"generated tokens only, no usage", `{"choices":[{"index":0,"text":"utable","logprobs":{"text_offset":[12],"token_logprobs":[-3.4],"tokens":["utable"],"top_logprobs":[{"utable":-3.4}]}}]}`, "does not begin with null"},
		{"no logprobs", `{"choices":[{"index":0,"text":"x","logprobs":null}]}`, "prompt 0 has no logprobs"},
		{"no choices", `{"choices":[]}`, "0 choices, expected 1"},
		{"choices null", `{"choices":null}`, "choices is null"},
		{"empty arrays", `{"choices":[{"index":0,"text":"x","logprobs":{"tokens":[],"token_logprobs":[],"top_logprobs":[]}}]}`, "is empty"},
		{"null top maps", swap(tops, `[null,null,null,null,null,null]`), "top_logprobs of prompt 0 is null or empty for token 1"},
		{"one null top map", swap(`{"x":-12.194788932800293,"unpack":-3.210413694381714}`, `null`), "is null or empty for token 3"},
		{"empty top maps", swap(tops, `[null,{},{},{ },{},{}]`), "top_logprobs of prompt 0 is null or empty for token 1"},
		{"no top maps", swap(tops, `null`), "has no top_logprobs"},
		{"short top maps", swap(tops, `[null,{"a":-1}]`), "2 top_logprobs but 6 token_logprobs"},
		{"short arrays", swap(lps, `[null,-11.2,-3.4]`), "expected one for each of 5 tokens"},
		{"short tokens", swap(`["def"," main","(","x","):","utable"]`, `["def"]`), "1 tokens but 6 token_logprobs"},
		{"NaN", swap(`-11.880231857299805,-12`, `NaN,-12`), "NaN in place of a number"},
		{"-Infinity", swap(`-11.880231857299805,-12`, `-Infinity,-12`), "Infinity in place of a number"},
		{"NaN as a string", swap(`-11.880231857299805,-12`, `"NaN",-12`), "holds no value for token 2"},
		{"null", swap(`-11.880231857299805,-12`, `null,-12`), "holds no value for token 2"},
		{"first not null", swap(`[null,-11.270120620727539,-11.88`, `[-1.5,-11.270120620727539,-11.88`), "does not begin with null"},
		{"zeros", swap(lps, `[null,0,0.0,-0.0,0e5,-3.447669506072998]`), "every log-probability of prompt 0 is 0"},
		{"usage says more", swap(`"prompt_tokens":5`, `"prompt_tokens":7`), "expected one for each of 7 tokens"},
		{"index twice", strings.Replace(good, `"index":0`, `"index":1`, 1), "indexes"},
	} {
		j := jobOf(t, request)
		for _, kind := range []string{KindOpenAI, KindVLLM, KindLocal, KindSGLang} {
			if got, err := through(&j, kind, []byte(c.answer)); !isMissing(err, c.reason) {
				t.Errorf("%s (%s): got %s, error %v, want it found missing since %s", c.name, kind, got, err, c.reason)
			}
		}
	}
	j := jobOf(t, request)
	for _, text := range []string{``, `<html>`, good[:len(good)-10], good + "x"} {
		if _, err := through(&j, KindOpenAI, []byte(text)); err == nil || isMissing(err, "") {
			t.Errorf("%.20s…: got %v, want an error that says it is no JSON", text, err)
		}
	}
}

func TestGeneratesEmptyListsOfAlternativesAreRefused(t *testing.T) {
	// Written out, each map would hold the prompt's own token alone, and the harness would take it for the likeliest.
	j := jobOf(t, `{"prompt":"a b","echo":true,"logprobs":1,"max_tokens":0}`)
	answer := `{"text":"","meta_info":{"prompt_tokens":2,"input_token_logprobs":[[null,1,"a"],[-1.5,2," b"]],"input_top_logprobs":[null,[]]}}`
	if got, err := through(&j, KindSGLang, []byte(answer)); !isMissing(err, "input_top_logprobs of prompt 0 is null or empty for token 1") {
		t.Errorf("got %s, error %v", got, err)
	}
}

func TestTheIDsOfAPromptCountItsTokens(t *testing.T) {
	// Each of two prompts is short by one token in turn, and the sum in usage would not show which.
	j := jobOf(t, `{"prompt":[[1,2,3],[4,5,6]],"echo":true,"logprobs":0,"max_tokens":1}`)
	c := func(i int, lps string) string {
		n := strings.Count(lps, ",") + 1
		tokens := strings.TrimSuffix(strings.Repeat(`"x",`, n), ",")
		return fmt.Sprintf(`{"index":%d,"text":"x","logprobs":{"tokens":[%s],"token_logprobs":[%s]}}`, i, tokens, lps)
	}
	good, short := "null,-1,-2,-3", "null,-1"
	if _, err := through(&j, KindOpenAI, []byte(`{"choices":[`+c(0, good)+`,`+c(1, good)+`]}`)); err != nil {
		t.Errorf("whole: %v", err)
	}
	if _, err := through(&j, KindOpenAI, []byte(`{"choices":[`+c(0, good)+`,`+c(1, short)+`]}`)); !isMissing(err, "token_logprobs of prompt 1 has 2 elements, expected one for each of 3 tokens") {
		t.Errorf("short: %v", err)
	}
}

func TestPromptLogprobsAreGuarded(t *testing.T) {
	sglang := recorded(t, "sglang/c-promptlogprobs")
	j := jobOf(t, sglang.request)
	if _, err := through(&j, KindSGLang, sglang.answer); !isMissing(err, "prompt 0 has no prompt_logprobs") {
		t.Errorf("SGLang ignores it: got %v", err)
	}
	chat := New(view(t, body.Chat, recorded(t, "vllm/chat-promptlogprobs").request))
	if _, err := through(&chat, KindVLLM, recorded(t, "vllm/c-promptlogprobs").answer); !isMissing(err, "has no prompt_logprobs") {
		t.Errorf("chat without: got %v", err)
	}
}
