package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"penstock/e2e/harness"
	"penstock/engine/local/lm"
)

// Interactive chat with and without scoring beside it, on engines a few times as fast as the deployment that their
// profile was fitted to. The shares are those of real chat: long first turns, short later ones.
const (
	laneScale  = 3
	chatUsers  = 24
	chatTalks  = 2 // of each, one after another
	chatTurns  = 5
	scoreCount = 512
	scoreSize  = 2048
)

// chatFigures are what users saw.
type chatFigures struct {
	mu             sync.Mutex
	firsts         []time.Duration // to each first token
	prompt, cached int
}

func (f *chatFigures) note(first time.Duration, prompt, cached int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.firsts = append(f.firsts, first)
	f.prompt += prompt
	f.cached += cached
}

func (f *chatFigures) at(q float64) time.Duration {
	s := slices.Sorted(slices.Values(f.firsts))
	if len(s) == 0 {
		return 0
	}
	return s[min(len(s)-1, int(q*float64(len(s))))]
}

func (f *chatFigures) hits() float64 { return float64(f.cached) / float64(max(1, f.prompt)) }

func (f *chatFigures) String() string {
	return fmt.Sprintf("%d turns, TTFT p50 %v, p99 %v, hit rate %.1f %%", len(f.firsts), f.at(0.5).Round(time.Millisecond), f.at(0.99).Round(time.Millisecond), 100*f.hits())
}

// chat has users talk, with pauses between the turns. What is said differs between phases in its words alone.
func chat(t *testing.T, url string, phase int) *chatFigures {
	t.Helper()
	f := &chatFigures{}
	var wg sync.WaitGroup
	for user := range chatUsers {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(7, uint64(user)))
			for talk := range chatTalks {
				id := 100000*phase + 100*user + talk
				messages := []map[string]string{say("user", proseText(id, []int{500, 900, 1500, 3000, 6000}[rnd.IntN(5)]))}
				for turn := range chatTurns {
					think := time.Duration(rnd.ExpFloat64() * float64(500*time.Millisecond))
					if turn == 0 {
						think = time.Duration(rnd.Float64() * float64(4*time.Second)) // people do not all come at once
					}
					pause := time.NewTimer(think)
					select {
					case <-t.Context().Done():
						pause.Stop()
						return
					case <-pause.C:
					}
					text, err := chatTurn(t.Context(), url, messages, f)
					if err != nil {
						t.Errorf("chat: %v", err)
						return
					}
					messages = append(messages, say("assistant", text), say("user", proseText(id, 150)))
				}
			}
		})
	}
	wg.Wait()
	return f
}

// chatTurn asks once, streamed.
func chatTurn(ctx context.Context, url string, messages []map[string]string, f *chatFigures) (text string, err error) {
	body, err := json.Marshal(map[string]any{
		"model": localModel, "messages": messages, "max_tokens": 16, "temperature": 0, "stream": true, "stream_options": map[string]bool{"include_usage": true},
	})
	if err != nil {
		return "", err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	began := time.Now()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	var first time.Duration
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok || data == "[DONE]" {
			continue
		}
		var c struct {
			Choices []struct{ Delta struct{ Content string } }
			Usage   *struct {
				Prompt  int `json:"prompt_tokens"`
				Details struct {
					Cached int `json:"cached_tokens"`
				} `json:"prompt_tokens_details"`
			}
		}
		if err := json.Unmarshal([]byte(data), &c); err != nil {
			return "", fmt.Errorf("%w in %.200s", err, data)
		}
		for _, choice := range c.Choices {
			if first == 0 && choice.Delta.Content != "" {
				first = time.Since(began)
			}
			text += choice.Delta.Content
		}
		if c.Usage != nil && first > 0 {
			f.note(first, c.Usage.Prompt, c.Usage.Details.Cached)
		}
	}
	if resp.StatusCode != http.StatusOK || text == "" {
		return "", fmt.Errorf("status %d, text %q, %v", resp.StatusCode, text, lines.Err()) //nolint:errorlint // it may be nil
	}
	return text, nil
}

// scoring is the load beside chat: 512 requests of 2,048 tokens, all sent at once.
type scoring struct {
	stop  context.CancelFunc // gives up those that are still under way
	wg    sync.WaitGroup
	began time.Time
	ended atomic.Int64 // answered whole
}

var scoreBodies = sync.OnceValue(func() []string {
	bodies := make([]string, scoreCount)
	for i := range bodies {
		bodies[i] = `{"model":"` + localModel + `","prompt":` + idList(i, scoreSize) + `,"echo":true,"logprobs":0,"max_tokens":1,"temperature":0}`
	}
	return bodies
})

func startScoring(t *testing.T, url string) *scoring {
	t.Helper()
	bodies := scoreBodies()
	s := &scoring{began: time.Now()}
	ctx, stop := context.WithCancel(t.Context())
	s.stop = stop
	t.Cleanup(stop)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: -1}}
	for i, body := range bodies {
		s.wg.Go(func() {
			status, n, err := sendScore(ctx, client, url, body)
			if ctx.Err() == nil && (err != nil || status != http.StatusOK || n < 8*scoreSize) {
				t.Errorf("scoring request %d: status %d, %d bytes, %v", i, status, n, err)
			} else if ctx.Err() == nil {
				s.ended.Add(1)
			}
		})
	}
	return s
}

// underWay waits until all have been sent and the first ones are answered.
func (s *scoring) underWay(t *testing.T) {
	t.Helper()
	harness.Eventually(t, time.Minute, "the first scores", func() error {
		if n := s.ended.Load(); n < 8 {
			return fmt.Errorf("%d scored", n)
		}
		return nil
	})
}

// wait waits for all answers.
func (s *scoring) wait() time.Duration {
	s.wg.Wait()
	return time.Since(s.began)
}

func sendScore(ctx context.Context, client *http.Client, url, body string) (status int, size int64, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/completions", strings.NewReader(body))
	if err != nil {
		return 0, 0, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, 0, err
	}
	defer resp.Body.Close()
	n, err := io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, n, err
}

// idList is a prompt of random ids.
func idList(n, size int) string {
	rnd := rand.New(rand.NewPCG(11, uint64(n)))
	b := []byte{'['}
	for i := range size {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(3+rnd.IntN(lm.Shared().Size()-3)), 10)
	}
	return string(append(b, ']'))
}

// laneEngine is so many replicas with the pace of a real deployment.
func laneEngine(t *testing.T, replicas int, scale float64) *harness.Process {
	t.Helper()
	return harness.Engine(t, "--kind", "vllm", "--dp", strconv.Itoa(replicas), "--profile", "qwen3-30b", "--time-scale", strconv.FormatFloat(scale, 'g', -1, 64), "--log-level", "warn")
}

// laneGateway serves them; lane is the settings of scoring.
func laneGateway(t *testing.T, engines, lane string) *harness.Process {
	t.Helper()
	return harness.Serve(t, fmt.Sprintf("models: [{name: penstock-local, engines: [%s]}]\nscoring: {%s}\nlog: {access: false}\n", engines, lane))
}

// TestScoringDoesNotHoldUpChat puts 512 scoring requests of 2,048 tokens beside interactive chat. The lane keeps the
// 99th percentile of the time to chat's first token within 20 % of that without them; with the lane off it does not.
func TestScoringDoesNotHoldUpChat(t *testing.T) {
	e := laneEngine(t, 4, laneScale)
	engines := fmt.Sprintf("{url: %s}", e.URL)
	const rounds = 3 // a busy machine has tails of its own: the promise has to hold in one
	var rises []float64
	for round := range rounds {
		g := laneGateway(t, engines, "max_wait: 4m")
		alone := chat(t, g.URL, 10*round+1)
		s := startScoring(t, g.URL)
		s.underWay(t)
		beside := chat(t, g.URL, 10*round+2)
		meanwhile := s.ended.Load()
		took := s.wait()
		rise := risen(alone, beside)
		t.Logf("chat alone:        %v", alone)
		t.Logf("beside scoring:    %v (%+.0f %%); %d of %d scored meanwhile, all in %v", beside, 100*rise, meanwhile, scoreCount, took.Round(time.Millisecond))
		if d := alone.hits() - beside.hits(); d > 0.03 {
			t.Errorf("chat's hit rate fell by %.1f points beside scoring, want at most 3", 100*d)
		}
		wantAtRest(t, g)
		if round == 0 {
			off := laneGateway(t, engines, "max_in_flight_tokens: 1000000000, beside_chat_tokens: 1000000000")
			s := startScoring(t, off.URL)
			s.underWay(t)
			crowded := chat(t, off.URL, 3)
			s.stop()
			s.wait()
			t.Logf("with the lane off: %v (%+.0f %%)", crowded, 100*risen(alone, crowded))
			if risen(alone, crowded) < rise {
				t.Errorf("the lane made it worse: p99 TTFT rose by %.0f %%, without the lane by %.0f %%", 100*rise, 100*risen(alone, crowded))
			}
		}
		if rise < 0.2 || harness.Race {
			return
		}
		rises = append(rises, rise)
	}
	t.Errorf("chat's p99 TTFT rose by the shares of %.2f beside scoring, want less than 0.20", rises)
}

// risen is by what share the 99th percentile rose.
func risen(from, to *chatFigures) float64 { return float64(to.at(0.99))/float64(from.at(0.99)) - 1 }

// TestReservedReplicasKeepScoringFromChat: with roles, chat does not meet scoring at all.
func TestReservedReplicasKeepScoringFromChat(t *testing.T) {
	talkers, scorers := laneEngine(t, 4, laneScale), laneEngine(t, 2, laneScale)
	g := laneGateway(t, fmt.Sprintf("{url: %s, id: talker, roles: [chat]}, {url: %s, id: scorer, roles: [scoring]}", talkers.URL, scorers.URL), "max_wait: 4m")
	alone := chat(t, g.URL, 1)
	s := startScoring(t, g.URL)
	beside := chat(t, g.URL, 2)
	meanwhile := s.ended.Load()
	s.stop()
	s.wait()
	t.Logf("chat alone:  %v", alone)
	t.Logf("and beside:  %v; %d scored meanwhile", beside, meanwhile)
	// Two runs of chat differ by a point or so by themselves.
	if d := 100 * (alone.hits() - beside.hits()); d > 2 || d < -2 {
		t.Errorf("chat's hit rate changed by %.1f points, want it unchanged", -d)
	}
	if meanwhile < 20 {
		t.Errorf("%d requests were scored on the reserved replicas, want them busy", meanwhile)
	}
	wantAtRest(t, g)
}
