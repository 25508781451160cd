package configs

import (
	"cmp"
	"net"
	"net/url"
	"reflect"
	"strings"
	"time"
)

// What a key is when the file is silent. Each type sets its own fields; the
// decoder starts from these and puts the file's values over them, so that an
// explicit 0 or false stays what the file says.

type defaulter interface{ setDefaults() }

// newDefault is a pointer to a t as it is when the file is silent.
func newDefault(t reflect.Type) reflect.Value {
	p := reflect.New(t)
	fillDefaults(p.Elem())
	return p
}

func fillDefaults(v reflect.Value) {
	if v.Kind() != reflect.Struct {
		return
	}
	for _, i := range fieldsOf(v.Type()).index {
		fillDefaults(v.Field(i))
	}
	if d, ok := reflect.TypeAssert[defaulter](v.Addr()); ok {
		d.setDefaults()
	}
}

func (c *Config) setDefaults() {
	c.Listen = "127.0.0.1:8080"
	c.MaxBody = 64 << 20
	c.MaxHeaders = 16 << 10
	c.MaxEvent = 16 << 20
	c.MaxConnections = 65536
	c.Timeouts = Timeouts{
		Connect: 2 * time.Second, FirstToken: 10 * time.Minute, Idle: 5 * time.Minute, Request: time.Hour,
		Drain: 25 * time.Second, ReadHeaders: 10 * time.Second, ReadBody: 30 * time.Second,
		Write: time.Minute, KeepAlive: 75 * time.Second, EngineIdle: 4 * time.Second,
	}
}

func (a *Admin) setDefaults() { a.Listen = "127.0.0.1:9090" }

// defaultMaxLength is how many may wait for a model.
const defaultMaxLength = 1000

func (m *Model) setDefaults() {
	m.Policy = "prefix"
	m.Queue = Queue{MaxLength: defaultMaxLength, MaxWait: 30 * time.Second, WaitingCredit: 0.085, HeadHold: 5 * time.Second}
}

func (e *Engine) setDefaults() { e.DPRanks = "auto" }

func (l *Launch) setDefaults() {
	l.Replicas = 1
	l.Preflight = true
	l.StartTimeout = 30 * time.Minute
	l.StopTimeout = 10 * time.Second
}

func (l *LocalPool) setDefaults() {
	l.Replicas = 4
	l.Profile = "instant"
	l.TimeScale = 1
}

func (k *Key) setDefaults() {
	k.Weight = 1
	k.Priority = "normal"
	k.OnRateLimit = "refuse"
}

func (g *Global) setDefaults() {
	g.Mode = "explicit"
	g.DefaultOutputTokens = 512
	g.TokensPerImage = 1000
	g.MaxKeys = 100_000
}

func (r *Redis) setDefaults() {
	r.OnError = "local"
	r.Timeout = 50 * time.Millisecond
	r.Prefix = "penstock"
	r.SharePlacements = true
}

func (h *Health) setDefaults() {
	h.Interval = 2 * time.Second
	h.Timeout = 2 * time.Second
	h.Unhealthy = 3
	h.Healthy = 1
	h.LoadInterval = time.Second
	h.LoadTimeout = time.Second
	h.RefreshInterval = 30 * time.Second
	h.ResolveInterval = 10 * time.Second
}

func (b *Breaker) setDefaults() {
	*b = Breaker{Failures: 5, Ratio: 0.5, MinRequests: 20, Window: 30 * time.Second, Open: 5 * time.Second, Trials: 2}
}

func (r *Retry) setDefaults() { *r = Retry{Attempts: 3, Budget: 0.2, MinPerSecond: 10} }

func (r *Routing) setDefaults() {
	*r = Routing{
		BlockTokens: 64, IndexFactor: 1.1, StreamWeight: 0.02, BalanceWeight: 0.5,
		StepTime: 16 * time.Millisecond, MaxHold: 5 * time.Second,
	}
}

func (s *Scoring) setDefaults() {
	*s = Scoring{MaxInFlightTokens: 16384, BesideChatTokens: 2048, MaxWait: 4 * time.Minute, SplitTokens: 2048}
}

func (c *CORS) setDefaults() { c.MaxAge = time.Hour }

func (t *Tracing) setDefaults() { t.Sample = 0.01 }

func (l *Log) setDefaults() {
	*l = Log{Format: "text", Level: "info", Access: true, SampleSuccess: 1}
}

// defaultModels is what is served when the file names no models.
func defaultModels() []Model {
	m := *newDefault(reflect.TypeFor[Model]()).Interface().(*Model)
	m.Name = "penstock-local"
	e := *newDefault(reflect.TypeFor[Engine]()).Interface().(*Engine)
	e.Local = newDefault(reflect.TypeFor[LocalPool]()).Interface().(*LocalPool)
	m.Engines = []Engine{e}
	return []Model{m}
}

// inherit writes down what follows from other keys: a model's time-outs from
// the global ones, bursts from rates, ids from URLs, and a key's settings from
// the first entry of its name. It changes nothing the second time. What
// depends on both a model and a key is answered by methods (QueueFor).
func (c *Config) inherit() {
	for i := range c.Models {
		m := &c.Models[i]
		m.Timeouts.Connect = cmp.Or(m.Timeouts.Connect, c.Timeouts.Connect)
		m.Timeouts.FirstToken = cmp.Or(m.Timeouts.FirstToken, c.Timeouts.FirstToken)
		m.Timeouts.Idle = cmp.Or(m.Timeouts.Idle, c.Timeouts.Idle)
		m.Timeouts.Request = cmp.Or(m.Timeouts.Request, c.Timeouts.Request)
		m.Limits.inherit()
		for j := range m.Engines {
			m.Engines[j].inherit()
		}
	}
	for i := range c.Keys {
		k := &c.Keys[i]
		k.SHA256 = strings.ToLower(k.SHA256)
		k.Limits.inherit()
		for name, l := range k.ModelLimits {
			l.inherit()
			k.ModelLimits[name] = l
		}
	}
}

func (l *Limits) inherit() {
	l.RequestsBurst = cmp.Or(l.RequestsBurst, l.RequestsPerMinute)
	l.TokensBurst = cmp.Or(l.TokensBurst, l.TokensPerMinute)
	l.InputTokensBurst = cmp.Or(l.InputTokensBurst, l.InputTokensPerMinute)
	l.OutputTokensBurst = cmp.Or(l.OutputTokensBurst, l.OutputTokensPerMinute)
}

func (e *Engine) inherit() {
	if len(e.Roles) == 0 {
		e.Roles = []string{"chat", "scoring"}
	}
	if e.URL == "" {
		return
	}
	e.URL = strings.TrimRight(e.URL, "/")
	if e.ID == "" && e.Resolve == "" {
		e.ID = hostPort(e.URL)
	}
}

// hostPort is a URL's authority with its port written out; empty for what is
// no URL.
func hostPort(raw string) string {
	u, err := url.Parse(raw)
	if err != nil || u.Hostname() == "" {
		return ""
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return net.JoinHostPort(u.Hostname(), port)
}
