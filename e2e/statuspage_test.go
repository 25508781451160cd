package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"image/png"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"penstock/e2e/harness"
)

// browser is one page of a headless Chromium.
type browser struct {
	t   *testing.T
	ctx context.Context

	mu       sync.Mutex
	messages []string // of the console: none is expected
}

func startBrowser(t *testing.T) *browser {
	t.Helper()
	program := harness.Program(t, "chromium")
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.DisableGPU)
	if os.Getuid() == 0 { // as in CI's container
		options = append(options, chromedp.NoSandbox)
	}
	ctx, stop := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(stop)
	ctx, leave := chromedp.NewContext(ctx)
	t.Cleanup(leave)
	b := &browser{t: t, ctx: ctx}
	// The first action starts the browser, which lives as long as its context:
	// its time limit is the test binary's.
	drive(b, ctx, chromedp.EmulateViewport(1280, 800))
	go func() {
		for m, err := range chromedp.Console(ctx) {
			if err != nil {
				return
			}
			b.mu.Lock()
			b.messages = append(b.messages, fmt.Sprint(m))
			b.mu.Unlock()
		}
	}()
	return b
}

// drive runs one action.
func drive[T any](b *browser, ctx context.Context, a chromedp.Action[T]) T {
	b.t.Helper()
	v, err := chromedp.Run(ctx, a)
	if err != nil {
		b.t.Fatal(err)
	}
	return v
}

// act runs actions within a minute: the machine may be compiling something else.
func (b *browser) act(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
	defer cancel()
	for _, a := range actions {
		drive(b, ctx, a)
	}
}

// js evaluates an expression.
func js[T any](b *browser, expression string) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
	defer cancel()
	return drive(b, ctx, chromedp.Evaluate[T](expression))
}

// text is what an element shows; "" where there is none.
func (b *browser) text(selector string) string {
	b.t.Helper()
	return strings.TrimSpace(js[string](b, fmt.Sprintf(`(document.querySelector(%q)?.innerText ?? "")`, selector)))
}

// shows waits until an element's text is, or begins with, what is wanted.
func (b *browser) shows(selector, want string) {
	b.t.Helper()
	harness.Eventually(b.t, 10*time.Second, selector+" shows "+want, func() error {
		if got := b.text(selector); !strings.HasPrefix(got, want) {
			return fmt.Errorf("it shows %q", got)
		}
		return nil
	})
}

// figureCell is the selector of a figure of a row.
func figureCell(row, label string) string { return row + ` td[data-label="` + label + `"]` }

const pageConfig = `
models:
  - name: m
    engines: [{url: %q, id: one}, {url: %q, id: two}]
    limits: {tokens_per_minute: 3000000}
keys:
  - {name: team, key: "${TEAM}", weight: 2, limits: {requests_per_minute: 6000, tokens_per_minute: 600000, concurrency: 64}}
  - {name: evals, key: "${EVALS}", limits: {requests_per_minute: 60, requests_burst: 5}}
admin: {key: "${ADMIN}"}
`

// pageLoad is some requests of each key: streams, and refusals of one.
func pageLoad(t *testing.T, gateway *harness.Process) {
	t.Helper()
	for i := range 24 {
		body := encode(t, map[string]any{
			"model": "m", "stream": i%3 > 0, "max_tokens": 12,
			"messages": []map[string]string{say("system", story(0, 400)), say("user", story(i, 20))},
		})
		post(t, gateway.URL+"/v1/chat/completions", string(body), "Authorization", "Bearer key-team")
	}
	for range 9 {
		post(t, gateway.URL+"/v1/completions", `{"model":"m","prompt":"hello","max_tokens":2}`, "Authorization", "Bearer key-evals")
	}
	post(t, gateway.URL+"/v1/completions", `{"model":"m","prompt":"hello","max_tokens":2}`, "Authorization", "Bearer key-wrong")
}

// TestStatusPage drives the page in a browser. Its parts share one gateway and
// go on from each other.
func TestStatusPage(t *testing.T) {
	b := startBrowser(t)
	for name, key := range map[string]string{"TEAM": "key-team", "EVALS": "key-evals", "ADMIN": "key-admin"} {
		t.Setenv(name, key)
	}
	args := []string{"--model", "m", "--profile", "qwen3-30b", "--time-scale", "20"}
	one, two := harness.Engine(t, args...), harness.Engine(t, args...)
	gateway := harness.Serve(t, fmt.Sprintf(pageConfig, one.URL, two.URL))
	pageLoad(t, gateway)
	b.act(chromedp.Navigate(gateway.Admin + "/"))
	b.shows("#link", "live")

	part := func(name string, test func(*browser)) {
		t.Run(name, func(t *testing.T) { test(&browser{t: t, ctx: b.ctx}) })
	}
	part("figures equal the API's", func(b *browser) { figuresEqual(b, gateway) })
	part("looks right", looksRight)
	part("accessible", accessible)
	part("actions need the key and work", actionsWork)
	part("keyboard", keyboardWorks)
	part("a killed replica turns red within 3 s", func(b *browser) { killedTurnsRed(b, gateway, two) })
	part("a gateway that is gone is told", func(b *browser) {
		gateway.Kill()
		b.shows("#link", "not connected")
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range b.messages {
		if !strings.Contains(m, "401") && !strings.Contains(m, "ERR_") { // those were provoked
			t.Errorf("console: %s", m)
		}
	}
}

// figuresEqual compares what the page shows with /replicas, /limits and /metrics.
func figuresEqual(b *browser, gateway *harness.Process) {
	t := b.t
	var replicas []struct {
		ID            string   `json:"id"`
		InFlight      int      `json:"in_flight"`
		MaxRunning    int      `json:"max_running"`
		RequestsTotal int      `json:"requests_total"`
		FailuresTotal int      `json:"failures_total"`
		HitActual     *float64 `json:"hit_actual"`
		HitPredicted  *float64 `json:"hit_predicted"`
	}
	fetch(t, gateway.Admin+"/replicas", &replicas)
	page := string(fetch(t, gateway.Admin+"/metrics", nil))
	for _, r := range replicas {
		row := `tr[data-id="` + r.ID + `"]`
		b.shows(figureCell(row, "Requests"), fmt.Sprint(r.RequestsTotal))
		b.shows(figureCell(row, "Errors"), fmt.Sprint(r.FailuresTotal))
		b.shows(figureCell(row, "In flight"), fmt.Sprintf("%d of %s", r.InFlight, grouped(r.MaxRunning)))
		b.shows(figureCell(row, "Cache hits"), hits(r.HitActual, r.HitPredicted))
		b.shows(figureCell(row, "State"), "healthy")
		if want := fmt.Sprintf("penstock_replica_requests_total{model=\"m\",replica=%q} %d\n", r.ID, r.RequestsTotal); !strings.Contains(page, want) {
			t.Errorf("/metrics lacks %s", want)
		}
	}
	if n := replicas[0].RequestsTotal + replicas[1].RequestsTotal; n != 24+5 {
		t.Errorf("the replicas had %d requests, want 29", n)
	}
	b.shows(`tr[data-key="evals"] .chip`, "requests 4")
	if want := `penstock_limit_refusals_total{key="evals",reason="requests"} 4`; !strings.Contains(page, want) {
		t.Errorf("/metrics lacks %s", want)
	}
	b.shows(`tr[data-key="team"] .limit:nth-child(3) .row`, "at once\n0 of 64")
	b.shows("#trouble li:nth-child(1) .what", "Refused: over a limit (4 requests)")
	b.shows("#trouble li:nth-child(2) .what", "Refused: no valid key (1 request)")
	b.shows("#summary", "Both replicas take requests. 0 requests running, none waiting.")

	// The chart: what ended in the last five seconds, here all of it or, later, nothing.
	if n := js[int](b, `document.querySelectorAll(".chart .plot path:not(.area)").length`); n != 10 {
		t.Errorf("the charts have %d lines, want 10", n)
	}
	harness.Eventually(t, 5*time.Second, "the line of requests has points", func() error {
		if d := js[string](b, `document.querySelector(".chart .plot path:not(.area)").getAttribute("d")`); !strings.Contains(d, "L") {
			return fmt.Errorf("it is %q", d)
		}
		return nil
	})
}

// hits is the share of cached tokens as the page writes it.
func hits(actual, predicted *float64) string {
	if actual == nil {
		return "–"
	}
	return fmt.Sprintf("%.0f %%\nexpected %.0f %%", math.Round(100**actual), math.Round(100**predicted))
}

func grouped(n int) string {
	s := fmt.Sprint(n)
	if len(s) > 3 {
		s = s[:len(s)-3] + "," + s[len(s)-3:]
	}
	return s
}

// fetch reads a path of the admin listener, as JSON if into is given.
func fetch(t *testing.T, url string, into any) []byte {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var text bytes.Buffer
	if _, err := text.ReadFrom(resp.Body); err != nil {
		t.Fatal(err)
	}
	if into != nil {
		if err := json.Unmarshal(text.Bytes(), into); err != nil {
			t.Fatalf("%s: %v in %s", url, err, text.Bytes())
		}
	}
	return text.Bytes()
}

// contrast finds text that is too faint: below 4.5 to 1 against what is behind it.
const contrast = `(() => {
  const light = (c) => { const [r, g, b] = c.match(/[\d.]+/g).map((v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = (e) => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor; if (!/, 0\)$/.test(c)) return c; } return "rgb(255, 255, 255)"; };
  const faint = new Set();
  for (const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT); walk.nextNode();) {
    const e = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || !e.checkVisibility() || e.closest(".hidden, .skip")) continue;
    const a = light(getComputedStyle(e).color), b = light(behind(e));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) faint.add(walk.currentNode.data.trim() + " " + ratio.toFixed(1));
  }
  return [...faint].join("; ");
})()`

// looksRight takes the pictures, into PENSTOCK_SCREENSHOTS if that is set, and
// checks what can be checked without eyes.
func looksRight(b *browser) {
	t := b.t
	dir := os.Getenv("PENSTOCK_SCREENSHOTS")
	if dir == "" {
		dir = t.TempDir()
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, scheme := range []string{"light", "dark"} {
		for _, size := range [][2]int64{{1280, 800}, {390, 844}} {
			name := fmt.Sprintf("status-%dx%d-%s.png", size[0], size[1], scheme)
			b.act(chromedp.EmulateViewport(size[0], size[1]))
			media := emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}}
			if _, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, media); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
			picture := drive(b, ctx, chromedp.CaptureScreenshot())
			cancel()
			if c, err := png.DecodeConfig(bytes.NewReader(picture)); err != nil || int64(c.Width) != size[0] || int64(c.Height) != size[1] {
				t.Errorf("%s: %v, %v", name, c, err)
			}
			if err := os.WriteFile(filepath.Join(dir, name), picture, 0o600); err != nil {
				t.Fatal(err)
			}
			if wide := js[int](b, "document.documentElement.scrollWidth"); int64(wide) > size[0] {
				t.Errorf("%s: the page is %d wide and must be scrolled sideways", name, wide)
			}
			if faint := js[string](b, contrast); faint != "" {
				t.Errorf("%s: too faint: %s", name, faint)
			}
			if small := js[string](b, `[...document.querySelectorAll("button")].filter((e) => e.checkVisibility() && e.getBoundingClientRect().height < 28).map((e) => e.innerText).join()`); small != "" {
				t.Errorf("%s: buttons too small to hit: %s", name, small)
			}
		}
	}
	b.act(chromedp.EmulateViewport(1280, 800))
}

// accessible checks that all that can be used has a name, and tables their roles.
func accessible(b *browser) {
	for what, expression := range map[string]string{
		"without a name":           `[...document.querySelectorAll("button, a, input, [tabindex='0']")].filter((e) => e.checkVisibility() && !(e.innerText.trim() || e.getAttribute("aria-label") || e.labels?.length)).map((e) => e.outerHTML).join()`,
		"named alike":              `(() => { const n = [...document.querySelectorAll("button")].filter((e) => e.checkVisibility()).map((e) => e.getAttribute("aria-label") ?? e.innerText); return n.filter((x, i) => n.indexOf(x) < i).join(); })()`,
		"images without alt":       `[...document.querySelectorAll("img:not([alt])")].map((e) => e.outerHTML).join()`,
		"labelled by what is gone": `[...document.querySelectorAll("[aria-labelledby]")].filter((e) => !document.getElementById(e.getAttribute("aria-labelledby"))).map((e) => e.outerHTML).join()`,
		"rows without role":        `[...document.querySelectorAll("tr:not([role=row])")].map((e) => e.outerHTML).join()`,
		"a language":               `document.documentElement.lang === "en" ? "" : "none"`,
	} {
		if got := js[string](b, expression); got != "" {
			b.t.Errorf("%s: %s", what, got)
		}
	}
}

// actionsWork drains, undrains, resets and reloads, asked for the key once.
func actionsWork(b *browser) {
	t := b.t
	drain := `tr[data-id="one"] button`
	b.act(chromedp.Click(chromedp.CSS(drain), chromedp.NodeVisible), chromedp.WaitVisible(chromedp.CSS("#ask")))
	b.shows("#ask-title", "Drain one?")
	b.act(chromedp.SendKeys(chromedp.CSS("#key"), "nonsense"+kb.Enter))
	b.shows("#ask-error", "That is not the admin key.")
	b.shows(figureCell(`tr[data-id="one"]`, "State"), "healthy")
	b.act(chromedp.SendKeys(chromedp.CSS("#key"), "key-admin"+kb.Enter))
	b.shows(figureCell(`tr[data-id="one"]`, "State"), "draining")
	b.shows("#summary", "1 of 2 replicas take no requests: one.")
	b.shows("#toast", "one gets no new requests.")

	confirm := func(selector, title, done string) {
		t.Helper()
		b.act(chromedp.Click(chromedp.CSS(selector), chromedp.NodeVisible))
		b.shows("#ask-title", title)
		if js[bool](b, `document.getElementById("ask-key").checkVisibility()`) {
			t.Errorf("%s the key is asked for again", title)
		}
		b.act(chromedp.Click(chromedp.CSS("#ask-ok")))
		b.shows("#toast", done)
	}
	confirm(drain, "Undrain one?", "one takes requests again.")
	b.shows(figureCell(`tr[data-id="one"]`, "State"), "healthy")
	b.shows(`tr[data-key="evals"] .limit .row`, "requests a minute\n")
	confirm(`tr[data-key="evals"] button`, "Reset the limits of evals?", "The limits of evals start afresh.")
	b.shows(`tr[data-key="evals"] .limit .row`, "requests a minute\n0 of 5")
	confirm("#reload", "Reload the configuration?", "The configuration is in force.")

	b.act(chromedp.Reload())
	b.shows("#link", "live")
	b.act(chromedp.Click(chromedp.CSS(drain), chromedp.NodeVisible))
	b.shows("#ask-title", "Drain one?")
	if !js[bool](b, `document.getElementById("ask-key").checkVisibility() && document.getElementById("key").value === ""`) {
		t.Errorf("after the page was loaded anew it still knows the key")
	}
	if n := js[int](b, `localStorage.length + sessionStorage.length + document.cookie.length`); n != 0 {
		t.Errorf("the page has stored something")
	}
	b.act(chromedp.KeyEvent(kb.Escape), chromedp.WaitNotVisible(chromedp.CSS("#ask")))
}

// keyboardWorks goes through the page without a mouse.
func keyboardWorks(b *browser) {
	t := b.t
	const active = `(document.activeElement.getAttribute("aria-label") ?? document.activeElement.innerText)`
	b.act(chromedp.Reload())
	b.shows("#link", "live")
	b.act(chromedp.KeyEvent(kb.Tab))
	if got := js[string](b, active); got != "Skip to the replicas" {
		t.Errorf("the first stop is %q, want the skip link", got)
	}
	b.act(chromedp.KeyEvent(kb.Enter))
	for range 3 {
		b.act(chromedp.KeyEvent(kb.Tab))
		if js[string](b, active) == "Drain two" {
			break
		}
	}
	if got := js[string](b, active); got != "Drain two" {
		t.Fatalf("tabbing on from the replicas' heading ends at %q, want Drain two", got)
	}
	before := js[string](b, `document.querySelector("#about").innerText`)
	harness.Eventually(t, 10*time.Second, "the page goes on", func() error {
		if js[string](b, `document.querySelector("#about").innerText`) == before {
			return fmt.Errorf("no update")
		}
		return nil
	})
	if got := js[string](b, active); got != "Drain two" {
		t.Errorf("an update moved the focus to %q", got)
	}
	b.act(chromedp.KeyEvent(kb.Enter))
	b.shows("#ask-title", "Drain two?")
	if got := js[string](b, `document.activeElement.id`); got != "key" {
		t.Errorf("the dialog's focus is on %q, want the key", got)
	}
	b.act(chromedp.KeyEvent(kb.Escape), chromedp.WaitNotVisible(chromedp.CSS("#ask")))
	if got := js[string](b, active); got != "Drain two" {
		t.Errorf("after Escape the focus is on %q, want where it was", got)
	}
	js[chromedp.Void](b, `document.querySelector(".plot").focus()`)
	b.act(chromedp.KeyEvent(kb.ArrowLeft))
	if got := b.text(".chart .when"); !regexp.MustCompile(`^\d+ s ago$`).MatchString(got) {
		t.Errorf("arrow left in a chart shows %q, want the time of a point", got)
	}
	b.act(chromedp.KeyEvent(kb.Escape))
}

// killedTurnsRed kills an engine under a small load: what fails there has it
// probed at once. Without any, the third probe finds out, after 2.8 s at most.
func killedTurnsRed(b *browser, gateway, engine *harness.Process) {
	const row = `tr[data-id="two"]`
	calm := js[string](b, `getComputedStyle(document.querySelector('`+row+` td')).backgroundColor`)
	killed := time.Now()
	engine.Kill()
	n := 0
	harness.Eventually(b.t, 10*time.Second, "the row turns red", func() error {
		n++
		post(b.t, gateway.URL+"/v1/completions", fmt.Sprintf(`{"model":"m","prompt":%q,"max_tokens":1}`, story(n, 9)), "Authorization", "Bearer key-team")
		state := js[string](b, `document.querySelector('`+row+`').dataset.state`)
		color := js[string](b, `getComputedStyle(document.querySelector('`+row+` td')).backgroundColor`)
		if state != "unhealthy" || color == calm {
			return fmt.Errorf("state %s, %s", state, color)
		}
		return nil
	})
	if took := time.Since(killed); took > 3*time.Second {
		b.t.Errorf("it took %v, want 3 s at most", took)
	} else {
		b.t.Logf("red after %v", took.Round(time.Millisecond))
	}
	b.shows("#summary", "1 of 2 replicas take no requests: two.")
	b.shows("#trouble li:nth-child(1) .what", "Replica two does not answer")
	b.shows("#trouble li:nth-child(1) .text", "") // there is a reason
	if got := b.text("#trouble li:nth-child(1) .text"); !strings.Contains(got, "refused") {
		b.t.Errorf("the reason shown is %q, want the refused connection", got)
	}
}
