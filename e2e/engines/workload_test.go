package engines

import (
	"encoding/binary"
	"encoding/json"
	"hash/fnv"
	"net/http"
	"testing"

	"penstock/e2e/harness"
)

const (
	// longestTurn in tokens: a session ends before the first turn beyond it, for
	// every router alike. The engines take 16,384 with the answer.
	longestTurn = 15000
	// answerTokens are few: decoding says nothing about routing.
	answerTokens = 8
	// blockTokens is the block size of the engines.
	blockTokens = 32
)

// conversation is a recorded session: its messages as they were sent.
type conversation []json.RawMessage

// conversations reads the first n sessions of a trace, which have turns or messages.
func conversations(t *testing.T, file string, n int) (all []conversation) {
	t.Helper()
	for _, line := range harness.Sessions(t, file, n) {
		var row struct {
			Turns    []struct{ User, Assistant string }
			Messages []json.RawMessage
		}
		if err := json.Unmarshal(line, &row); err != nil {
			t.Fatal(err)
		}
		talk := conversation(row.Messages)
		for _, turn := range row.Turns {
			talk = append(talk, message(t, "user", turn.User), message(t, "assistant", turn.Assistant))
		}
		all = append(all, talk)
	}
	return all
}

// alternate puts two lists together, each at its own pace, so that both are
// played from the first session to the last.
func alternate(a, b []conversation) (all []conversation) {
	for i, j := 0, 0; i < len(a) || j < len(b); {
		if j == len(b) || i < len(a) && i*len(b) <= j*len(a) {
			all, i = append(all, a[i]), i+1
		} else {
			all, j = append(all, b[j]), j+1
		}
	}
	return all
}

func message(t *testing.T, role, content string) json.RawMessage {
	return json.RawMessage(encode(t, map[string]string{"role": role, "content": content}))
}

// turns are the prompts of a session: all that was said before each of the
// assistant's messages.
func (c conversation) turns(t *testing.T) (prompts []conversation) {
	t.Helper()
	for i, raw := range c {
		var m struct{ Role string }
		if err := json.Unmarshal(raw, &m); err != nil {
			t.Fatal(err)
		}
		if m.Role == "assistant" {
			prompts = append(prompts, c[:i])
		}
	}
	return prompts
}

// workload is what every router gets alike.
type workload struct {
	sessions         [][]string // bodies of requests, in order
	requests, tokens int
	ceiling          float64 // hit rate of one infinite cache
}

// prepare makes requests of conversations, up to their first turn that is too
// long. The engine itself counts the tokens.
func prepare(t *testing.T, e *engine, talks []conversation) workload {
	t.Helper()
	var w workload
	hits, known := 0, infiniteCache{}
	for _, talk := range talks {
		var session []string
		for _, messages := range talk.turns(t) {
			ids := tokenize(t, e, messages)
			if len(ids) > longestTurn {
				break
			}
			hits += known.take(ids)
			w.tokens += len(ids)
			session = append(session, encode(t, map[string]any{
				"model": modelName, "messages": messages, "max_tokens": answerTokens, "temperature": 0,
			}))
		}
		w.requests += len(session)
		w.sessions = append(w.sessions, session)
	}
	w.ceiling = float64(hits) / float64(w.tokens)
	return w
}

func tokenize(t *testing.T, e *engine, messages conversation) []uint32 {
	t.Helper()
	status, body := send(t, http.MethodPost, e.url+"/tokenize", encode(t, map[string]any{"model": modelName, "messages": messages}))
	var answer struct{ Tokens []uint32 }
	if err := json.Unmarshal([]byte(body), &answer); err != nil || status != http.StatusOK || len(answer.Tokens) == 0 {
		t.Fatalf("tokenizing: %d %v %.300s", status, err, body)
	}
	return answer.Tokens
}

// infiniteCache holds the chained hashes of all blocks that it ever saw.
type infiniteCache map[uint64]bool

// take returns how many tokens of a prompt are cached, and caches the rest. As
// in the engine, a prompt's last token is computed in any case.
func (c infiniteCache) take(ids []uint32) (hit int) {
	chain := fnv.New64a()
	all := true
	for end := blockTokens; end <= len(ids); end += blockTokens {
		_ = binary.Write(chain, binary.LittleEndian, ids[end-blockTokens:end])
		sum := chain.Sum64()
		all = all && c[sum]
		if all && end < len(ids) {
			hit = end
		}
		c[sum] = true
	}
	return hit
}
