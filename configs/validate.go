package configs

import (
	"fmt"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The values that a key may have, in the order in which messages list them.
var (
	policies     = []string{"prefix", "least_load", "round_robin", "random_two", "session"}
	engineKinds  = []string{"sglang", "vllm", "openai", "local"}
	engineRoles  = []string{"chat", "scoring"}
	dpRankModes  = []string{"auto", "off"}
	profiles     = []string{"instant", "qwen3-30b", "glm52-dp4"}
	priorities   = []string{"high", "normal", "batch"}
	onRateLimits = []string{"refuse", "wait"}
	limitModes   = []string{"explicit", "auto"}
	onErrors     = []string{"local", "open", "closed"}
	logFormats   = []string{"text", "json"}
	logLevels    = []string{"debug", "info", "warn", "error"}
)

// validator checks values after decoding. What the decoder has already
// complained about is not complained about again.
type validator struct {
	*problems
	c     *Config
	lines map[string]int // nil for a configuration made in code
}

// bad reports the value at key with what was expected of it.
func (v *validator) bad(key string, value any, format string, args ...any) {
	v.fail(key, "%s: %s", v.show(key, value), fmt.Sprintf(format, args...))
}

// fail reports a mistake at key whose value must not or need not be shown.
func (v *validator) fail(key, format string, args ...any) {
	v.add(v.line(key), key, "%s", fmt.Sprintf(format, args...))
}

// show is a value as the file has it: a reference is shown as a reference.
func (v *validator) show(key string, value any) string {
	switch t := value.(type) {
	case string:
		if r, ok := v.c.refs[key]; ok {
			return quote(r.source)
		}
		return quote(t)
	case time.Duration:
		return formatDuration(t)
	}
	return fmt.Sprint(value)
}

func (v *validator) line(key string) int { return lineAt(v.lines, key) }

// given says whether the file holds key; isSet answers for what was made in
// code.
func (v *validator) given(key string, isSet bool) bool {
	_, ok := v.lines[key]
	return ok || isSet
}

func (v *validator) config() {
	c := v.c
	v.listener("listen", c.Listen)
	v.pairOfFiles("tls", c.TLS.Cert, c.TLS.Key)
	v.positive("max_body", int64(c.MaxBody))
	v.atLeast("max_headers", int64(c.MaxHeaders), 1<<10)
	v.positive("max_event", int64(c.MaxEvent))
	v.positive("max_connections", int64(c.MaxConnections))
	if c.Admin.Listen != "" {
		v.listener("admin.listen", c.Admin.Listen)
		if samePort(c.Listen, c.Admin.Listen) {
			v.bad("admin.listen", c.Admin.Listen, "the clients' listener has this port: want another one")
		}
	}
	v.models()
	v.keys()
	v.global()
	v.redis()
	v.timeouts()
	v.health()
	v.failures()
	v.tuning()
	v.browsers()
	v.observability()
}

func (v *validator) global() {
	g := &v.c.Limits
	v.oneOf("limits.mode", g.Mode, limitModes)
	v.positive("limits.default_output_tokens", int64(g.DefaultOutputTokens))
	v.atLeast("limits.tokens_per_image", int64(g.TokensPerImage), 0)
	v.positive("limits.max_keys", int64(g.MaxKeys))
}

func (v *validator) redis() {
	r := &v.c.Redis
	v.oneOf("redis.on_error", r.OnError, onErrors)
	v.positiveTime("redis.timeout", r.Timeout)
	v.atLeast("redis.gateways", int64(r.Gateways), 0)
	v.engineTLS("redis.tls", r.TLS)
	if r.Prefix == "" || strings.ContainsAny(r.Prefix, "{} \t") {
		v.bad("redis.prefix", r.Prefix, "want text without spaces and braces")
	}
	if r.URL == "" {
		if v.given("redis.url", false) {
			v.bad("redis.url", "", "want redis://host:port/0, or leave redis out")
		}
		for key, set := range map[string]bool{"username": r.Username != "", "password": r.Password != "", "master_name": r.MasterName != ""} {
			if set {
				v.fail("redis."+key, "has no use without redis.url")
			}
		}
		return
	}
	for part := range strings.SplitSeq(r.URL, ",") {
		v.redisURL(strings.TrimSpace(part))
	}
}

// passwordFromEnv finds a URL's password that is not written in the file.
var passwordFromEnv = regexp.MustCompile(`^\$\{[^}]*\}|://[^/@]*:[^/@]*\$\{[^}]*\}[^/@]*@`)

// redisURL checks one of the addresses; a password in it must come from the
// environment, and it is never shown.
func (v *validator) redisURL(raw string) {
	u, err := url.Parse(raw)
	if err != nil || !slices.Contains([]string{"redis", "rediss"}, u.Scheme) || u.Hostname() == "" {
		v.fail("redis.url", "want redis://host:port/0 or rediss://host:port/0, several separated by commas")
		return
	}
	if _, has := u.User.Password(); has {
		if v.lines != nil && !passwordFromEnv.MatchString(v.c.refs["redis.url"].source) {
			v.fail("redis.url", "a secret may not stand in the file: want the password as redis.password: ${NAME}")
		} else if v.c.Redis.Password != "" {
			v.fail("redis.password", "redis.url has a password too: want one of them")
		}
	}
	v.port("redis.url", u.Port())
	if db := strings.Trim(u.Path, "/"); db != "" {
		if n, err := strconv.Atoi(db); err != nil || n < 0 {
			v.fail("redis.url", "the database: want a number, as redis://host:6379/0")
		}
	}
}

func (v *validator) timeouts() {
	t := &v.c.Timeouts
	for _, f := range []struct {
		name string
		d    time.Duration
	}{
		{"connect", t.Connect},
		{"first_token", t.FirstToken},
		{"idle", t.Idle},
		{"request", t.Request},
		{"drain", t.Drain},
		{"read_headers", t.ReadHeaders},
		{"read_body", t.ReadBody},
		{"write", t.Write},
		{"keep_alive", t.KeepAlive},
		{"engine_idle", t.EngineIdle},
	} {
		if f.name == "drain" && f.d == 0 {
			continue // streams are cut at once
		}
		v.positiveTime("timeouts."+f.name, f.d)
	}
}

func (v *validator) health() {
	h := &v.c.Health
	v.positiveTime("health.interval", h.Interval)
	v.positiveTime("health.timeout", h.Timeout)
	v.positive("health.unhealthy", int64(h.Unhealthy))
	v.positive("health.healthy", int64(h.Healthy))
	v.positiveTime("health.load_interval", h.LoadInterval)
	v.positiveTime("health.load_timeout", h.LoadTimeout)
	v.positiveTime("health.refresh_interval", h.RefreshInterval)
	v.positiveTime("health.resolve_interval", h.ResolveInterval)
	if h.Path != "" && !strings.HasPrefix(h.Path, "/") {
		v.bad("health.path", h.Path, "want a path that begins with /")
	}
}

// failures checks what decides on breakers and retries.
func (v *validator) failures() {
	b := &v.c.Breaker
	v.positive("breaker.failures", int64(b.Failures))
	v.positive("breaker.min_requests", int64(b.MinRequests))
	v.positive("breaker.trials", int64(b.Trials))
	v.positiveTime("breaker.window", b.Window)
	v.positiveTime("breaker.open", b.Open)
	if b.Ratio <= 0 || b.Ratio > 1 {
		v.bad("breaker.ratio", b.Ratio, "want a share above 0, at most 1")
	}
	r := &v.c.Retry
	v.positive("retry.attempts", int64(r.Attempts))
	v.share("retry.budget", r.Budget)
	v.notNegative("retry.min_per_second", r.MinPerSecond)
}

// tuning checks the router's and the scoring lane's numbers.
func (v *validator) tuning() {
	r := &v.c.Routing
	if r.BlockTokens < 1 || r.BlockTokens > 65536 {
		v.bad("routing.block_tokens", r.BlockTokens, "want 1 to 65536")
	}
	v.positiveNumber("routing.index_factor", r.IndexFactor)
	v.notNegative("routing.stream_weight", r.StreamWeight)
	v.notNegative("routing.balance_weight", r.BalanceWeight)
	v.notNegativeTime("routing.step_time", r.StepTime)
	v.notNegativeTime("routing.max_hold", r.MaxHold)
	v.atLeast("routing.running_allowance", int64(r.RunningAllowance), 0)
	s := &v.c.Scoring
	v.positive("scoring.max_in_flight_tokens", int64(s.MaxInFlightTokens))
	v.positive("scoring.beside_chat_tokens", int64(s.BesideChatTokens))
	v.positiveTime("scoring.max_wait", s.MaxWait)
	v.positive("scoring.split_tokens", int64(s.SplitTokens))
}

func (v *validator) browsers() {
	for i, origin := range v.c.CORS.Origins {
		key := fmt.Sprintf("cors.origins[%d]", i)
		if u, err := url.Parse(origin); origin != "*" && (err != nil || u.Scheme == "" || u.Host == "" || u.Path != "") {
			v.bad(key, origin, "want * or an origin, as https://app.example.com")
		}
	}
	v.notNegativeTime("cors.max_age", v.c.CORS.MaxAge)
}

func (v *validator) observability() {
	t := &v.c.Tracing
	if t.Endpoint != "" {
		v.httpURL("tracing.endpoint", t.Endpoint, "http://127.0.0.1:4318")
	}
	v.share("tracing.sample", t.Sample)
	l := &v.c.Log
	v.oneOf("log.format", l.Format, logFormats)
	v.oneOf("log.level", l.Level, logLevels)
	v.share("log.sample_success", l.SampleSuccess)
}

// --- rules that many keys share ---

func (v *validator) oneOf(key, value string, choices []string) {
	if slices.Contains(choices, value) {
		return
	}
	if near, ok := nearest(value, choices); ok {
		v.bad(key, value, "did you mean %s? want %s", near, oneOf(choices))
		return
	}
	v.bad(key, value, "want %s", oneOf(choices))
}

func (v *validator) positive(key string, n int64) { v.atLeast(key, n, 1) }

func (v *validator) atLeast(key string, n, least int64) {
	if n < least {
		v.bad(key, n, "want %d or more", least)
	}
}

func (v *validator) positiveTime(key string, d time.Duration) {
	if d <= 0 {
		v.bad(key, d, "want a time above 0, as 30s")
	}
}

func (v *validator) share(key string, f float64) {
	if f < 0 || f > 1 {
		v.bad(key, f, "want a share from 0 to 1")
	}
}

func (v *validator) notNegative(key string, f float64) {
	if f < 0 {
		v.bad(key, f, "want 0 or more")
	}
}

func (v *validator) notNegativeTime(key string, d time.Duration) {
	if d < 0 {
		v.bad(key, d, "want 0 or more")
	}
}

func (v *validator) positiveNumber(key string, f float64) {
	if f <= 0 {
		v.bad(key, f, "want a number above 0")
	}
}

// listener checks an address to listen on; port 0 is any free one.
func (v *validator) listener(key, addr string) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil || strings.ContainsAny(host, "/@ ") {
		v.bad(key, addr, "want host:port, as 127.0.0.1:8080")
		return
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		v.bad(key, addr, "want a port from 0 to 65535")
	}
}

// port checks a URL's port, which may be left out.
func (v *validator) port(key, port string) {
	if port == "" {
		return
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		v.fail(key, "the port: want 1 to 65535")
	}
}

// httpURL checks an http or https URL without credentials. The value is shown
// only where it holds none.
func (v *validator) httpURL(key, raw, example string) (*url.URL, bool) {
	u, err := url.Parse(raw)
	switch {
	case strings.Contains(raw, "@"):
		v.fail(key, "credentials in a URL: want it without them, as %s", example)
	case raw == "":
		v.fail(key, "want a URL, as %s", example)
	case !strings.Contains(raw, "://"):
		v.bad(key, raw, "a URL without scheme: want http:// or https:// before it, as %s", example)
	case err != nil:
		v.bad(key, raw, "not a URL: want one as %s", example)
	case u.Scheme != "http" && u.Scheme != "https":
		v.bad(key, raw, "the scheme: want http or https")
	case u.Hostname() == "":
		v.bad(key, raw, "a URL without host: want one as %s", example)
	case !isHost(u.Hostname()):
		v.bad(key, raw, "the host: want a name or an address, as %s", example)
	case u.RawQuery != "" || u.Fragment != "":
		v.bad(key, raw, "a URL with a query or fragment: want it without")
	default:
		v.port(key, u.Port())
		return u, true
	}
	return nil, false
}

// isHost admits names and addresses of both kinds.
func isHost(s string) bool {
	return len(s) <= 253 && !strings.ContainsFunc(s, func(r rune) bool { return !isLetterOrDigit(r) && !strings.ContainsRune("._-:", r) })
}

// pairOfFiles: a certificate is nothing without its key.
func (v *validator) pairOfFiles(key, cert, private string) {
	switch {
	case cert != "" && private == "":
		v.fail(key+".cert", "a certificate without its key: want %s.key too", key)
	case cert == "" && private != "":
		v.fail(key+".key", "a key without its certificate: want %s.cert too", key)
	}
}

func (v *validator) engineTLS(key string, t EngineTLS) { v.pairOfFiles(key, t.Cert, t.Key) }

// samePort says whether two listeners would take the same port on the same or
// on all addresses.
func samePort(a, b string) bool {
	hostA, portA, errA := net.SplitHostPort(a)
	hostB, portB, errB := net.SplitHostPort(b)
	if errA != nil || errB != nil || portA != portB || portA == "0" {
		return false
	}
	anywhere := func(h string) bool { return h == "" || h == "0.0.0.0" || h == "::" }
	return hostA == hostB || anywhere(hostA) || anywhere(hostB)
}

// name checks what appears in logs, metrics and paths.
func (v *validator) name(key, value string) {
	if value == "" || len(value) > 256 || strings.TrimSpace(value) != value || strings.ContainsFunc(value, isControl) {
		v.bad(key, value, "want 1 to 256 bytes of text without control characters or space around it")
	}
}
