package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"penstock/e2e/faulty"
	"penstock/e2e/harness"
)

// sdkConfig has one engine, which fails as each request asks it to.
const sdkConfig = `
max_event: 256KiB
timeouts: {connect: 10s, first_token: 3s, idle: 3s, request: 6s}
models: [{name: m, engines: [{url: %q, kind: openai}]}]
`

// raised is what an SDK made of one fault.
type raised struct {
	Fault  string `json:"fault"`
	Stream bool   `json:"stream"`
	Raised string `json:"raised"` // the exception's name; "": none
	Text   string `json:"text"`
}

// key names one fault as asked for.
func (r raised) key() string { return fmt.Sprintf("%s/%t", r.Fault, r.Stream) }

// TestFaultsInThreeSDKs holds all three against every fault, and documents what
// they raise on each kind of answer.
func TestFaultsInThreeSDKs(t *testing.T) {
	python := harness.Python(t, client("python", "requirements.txt"))
	node, nodeDir := harness.Node(t, client("node", "package.json"))
	faults := slices.DeleteFunc(faulty.Matrix(bigEvent), func(f faulty.Fault) bool { return f.Stream == nil })
	engine := faulty.Start(t, faulty.Serving("m", faulty.ByName(faults)))
	engine.SetPatience(time.Second)
	gateway := harness.Serve(t, fmt.Sprintf(sdkConfig, engine.URL))
	names := make([]string, len(faults))
	for i, f := range faults {
		names[i] = f.Name
	}
	env := []string{"BASE_URL=" + gateway.URL + "/v1", "FAULTS=" + strings.Join(names, ",")}
	script := installed(t, nodeDir, client("node", "faults.mjs"))

	var got [3]map[string]raised // by SDK
	var plain map[string]reply
	var wg sync.WaitGroup
	wg.Go(func() { got[0] = runSDK(t, env, python, client("python", "faults.py")) })
	wg.Go(func() { got[1] = runSDK(t, env, node, script) })
	wg.Go(func() { got[2] = goSDK(t, gateway, names) })
	wg.Go(func() { plain = plainHTTP(t, gateway, names) })
	wg.Wait()

	rows := map[string][3]string{}
	for key, r := range plain {
		row := clientGets(r)
		for i, sdk := range [...]string{"Python", "Node", "Go"} {
			said, ok := got[i][key]
			if !ok {
				t.Errorf("%s: %s reported nothing", key, sdk)
				continue
			}
			if bad := r.status != 200 || !r.clean; bad == (said.Raised == "") {
				t.Errorf("%s: the client gets %s; %s raised %q after %q", key, row, sdk, said.Raised, said.Text)
			}
			cells := rows[row]
			if cells[i] != "" && cells[i] != named(said.Raised) {
				t.Errorf("%s: %s raised %q, on another fault that looks the same %s", key, sdk, said.Raised, cells[i])
			}
			cells[i] = named(said.Raised)
			rows[row] = cells
		}
	}
	checkDocs(t, "exceptions", sdkTable(rows))
	harness.Eventually(t, faultSlack, "everything is given back", func() error { return atRest(gateway.Admin) })
}

func named(raised string) string {
	if raised == "" {
		return "nothing"
	}
	return "`" + raised + "`"
}

func sdkTable(rows map[string][3]string) string {
	var b strings.Builder
	b.WriteString("| the client gets | Python raises | Node throws | Go returns |\n|---|---|---|---|\n")
	for _, row := range slices.Sorted(maps.Keys(rows)) {
		c := rows[row]
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", row, c[0], c[1], c[2])
	}
	return b.String()
}

// runSDK runs a script that writes one line of JSON for each case.
func runSDK(t *testing.T, env []string, program string, args ...string) map[string]raised {
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Env = append(os.Environ(), env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Errorf("%v: %v\n%s", cmd.Args, err, stderr.String())
	}
	found := map[string]raised{}
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		var r raised
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Errorf("%v wrote %q", cmd.Args, lines.Text())
		}
		found[r.key()] = r
	}
	return found
}

// forEach runs f for every fault, streamed and not, at once.
func forEach[T any](names []string, f func(fault string, stream bool) T) map[string]T {
	var mu sync.Mutex
	var wg sync.WaitGroup
	found := map[string]T{}
	for _, name := range names {
		for _, stream := range []bool{true, false} {
			wg.Go(func() {
				v := f(name, stream)
				mu.Lock()
				found[raised{Fault: name, Stream: stream}.key()] = v
				mu.Unlock()
			})
		}
	}
	wg.Wait()
	return found
}

func goSDK(t *testing.T, gateway *harness.Process, names []string) map[string]raised {
	c := openai.NewClient(option.WithBaseURL(gateway.URL+"/v1"), option.WithAPIKey("none"), option.WithMaxRetries(0))
	return forEach(names, func(fault string, stream bool) raised {
		params := openai.ChatCompletionNewParams{
			Model: "m", Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage(faulty.Marker(fault))},
		}
		r := raised{Fault: fault, Stream: stream}
		var err error
		if stream {
			s := c.Chat.Completions.NewStreaming(t.Context(), params)
			for s.Next() {
				r.Text += s.Current().Choices[0].Delta.Content
			}
			err = s.Err()
			s.Close()
		} else {
			_, err = c.Chat.Completions.New(t.Context(), params)
		}
		if _, ok := errors.AsType[*openai.Error](err); ok {
			r.Raised = "*openai.Error"
		} else if err != nil {
			r.Raised = "error"
		}
		return r
	})
}

// plainHTTP is what the answers are.
func plainHTTP(t *testing.T, gateway *harness.Process, names []string) map[string]reply {
	return forEach(names, func(fault string, stream bool) reply {
		body := fmt.Sprintf(`{"model":"m","stream":%t,"messages":[{"role":"user","content":%q}]}`, stream, faulty.Marker(fault))
		resp, err := http.Post(gateway.URL+"/v1/chat/completions", "application/json", strings.NewReader(body))
		if err != nil {
			t.Error(err)
			return reply{}
		}
		defer resp.Body.Close()
		r := reply{status: resp.StatusCode, retryAfter: resp.Header.Get("Retry-After")}
		r.body, r.err = io.ReadAll(resp.Body)
		r.clean, r.code = r.err == nil, errorCode(r.body)
		return r
	})
}
