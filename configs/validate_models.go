package configs

import (
	"fmt"
	"net"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

func (v *validator) models() {
	if len(v.c.Models) == 0 {
		v.fail("models", "want at least one model")
	}
	names := map[string]string{} // name or alias → the key that holds it
	ids := map[string]string{}   // replica id → the key that holds it
	for i := range v.c.Models {
		key := fmt.Sprintf("models[%d]", i)
		m := &v.c.Models[i]
		v.modelNames(key, m, names)
		if m.Name == "" {
			v.sameUnnamed(key, m)
		}
		v.oneOf(key+".policy", m.Policy, policies)
		if m.SessionHeader != "" && !isToken(m.SessionHeader) {
			v.bad(key+".session_header", m.SessionHeader, "want the name of a header")
		}
		v.modelQueue(key+".queue", &m.Queue)
		v.limits(key+".limits", &m.Limits)
		v.modelTimeouts(key+".timeouts", &m.Timeouts)
		v.engines(key, m, ids)
	}
}

// sameUnnamed: which of several models without a name an engine serves is not
// known before it is asked, so they must not differ in their settings.
func (v *validator) sameUnnamed(key string, m *Model) {
	for i := range v.c.Models {
		first := &v.c.Models[i]
		if first.Name != "" {
			continue
		}
		a, b := *first, *m
		a.Engines, b.Engines = nil, nil
		if first != m && !reflect.DeepEqual(a, b) {
			v.fail(key, "name is missing: settings differ from those of models[%d], which has no name either", i)
		}
		return
	}
}

// modelNames: each name and alias stands for one model.
func (v *validator) modelNames(key string, m *Model, names map[string]string) {
	v.unique(key+".name", m.Name, names, v.given(key+".name", m.Name != ""))
	for i, alias := range m.Aliases {
		v.unique(fmt.Sprintf("%s.aliases[%d]", key, i), alias, names, true)
	}
	if m.Upstream != "" {
		v.name(key+".upstream", m.Upstream)
		if m.Name == "" {
			v.fail(key+".upstream", "has no use without %s.name: unnamed models keep the engines' names", key)
		}
	}
}

func (v *validator) unique(key, name string, names map[string]string, given bool) {
	if !given || v.failed[key] {
		return
	}
	v.name(key, name)
	if first, twice := names[name]; twice {
		v.bad(key, name, "%s has this name already%s", first, v.onLine(first))
		return
	}
	names[name] = key
}

func (v *validator) onLine(key string) string {
	if line := v.line(key); line > 0 {
		return fmt.Sprintf(" (line %d)", line)
	}
	return ""
}

func (v *validator) modelQueue(key string, q *Queue) {
	v.atLeast(key+".max_length", int64(q.MaxLength), 0)
	if q.MaxWait <= 0 {
		v.bad(key+".max_wait", q.MaxWait, "want a time above 0, as 30s; max_length: 0 turns the queue off")
	}
	v.notNegative(key+".waiting_credit", q.WaitingCredit)
	v.notNegativeTime(key+".head_hold", q.HeadHold)
}

func (v *validator) limits(key string, l *Limits) {
	for _, f := range []struct {
		rate, burst   string
		rateN, burstN int64
	}{
		{"requests_per_minute", "requests_burst", l.RequestsPerMinute, l.RequestsBurst},
		{"tokens_per_minute", "tokens_burst", l.TokensPerMinute, l.TokensBurst},
		{"input_tokens_per_minute", "input_tokens_burst", l.InputTokensPerMinute, l.InputTokensBurst},
		{"output_tokens_per_minute", "output_tokens_burst", l.OutputTokensPerMinute, l.OutputTokensBurst},
	} {
		v.atLeast(key+"."+f.rate, f.rateN, 0)
		v.atLeast(key+"."+f.burst, f.burstN, 0)
		if f.burstN > 0 && f.rateN == 0 {
			v.fail(key+"."+f.burst, "has no use without %s.%s", key, f.rate)
		}
	}
	v.atLeast(key+".concurrency", int64(l.Concurrency), 0)
}

// modelTimeouts: what concerns a connection before its model is known can be
// set for all only.
func (v *validator) modelTimeouts(key string, t *Timeouts) {
	for _, f := range []struct {
		name  string
		d     time.Duration
		model bool
	}{
		{"connect", t.Connect, true},
		{"first_token", t.FirstToken, true},
		{"idle", t.Idle, true},
		{"request", t.Request, true},
		{"drain", t.Drain, false},
		{"read_headers", t.ReadHeaders, false},
		{"read_body", t.ReadBody, false},
		{"write", t.Write, false},
		{"keep_alive", t.KeepAlive, false},
		{"engine_idle", t.EngineIdle, false},
	} {
		at := key + "." + f.name
		switch {
		case !f.model && v.given(at, f.d != 0):
			v.fail(at, "cannot be set for one model: want it in the global timeouts")
		case f.d < 0:
			v.bad(at, f.d, "want a time above 0, or 0 for the global one")
		}
	}
}

func (v *validator) engines(key string, m *Model, ids map[string]string) {
	if len(m.Engines) == 0 {
		switch {
		case !v.given(key+".engines", m.Engines != nil):
			v.fail(key, "engines is missing: want at least one, or [] when replicas come by the admin API alone")
		case !v.given(key+".name", m.Name != ""):
			v.fail(key, "name is missing: a model without engines has none to take it from")
		}
	}
	for i := range m.Engines {
		v.engine(fmt.Sprintf("%s.engines[%d]", key, i), &m.Engines[i], ids)
	}
}

func (v *validator) engine(key string, e *Engine, ids map[string]string) {
	v.source(key, e)
	v.replicaID(key, e, ids)
	if v.given(key+".kind", e.Kind != "") {
		v.oneOf(key+".kind", e.Kind, engineKinds)
	}
	if v.given(key+".resolve", e.Resolve != "") && e.Resolve != "dns" {
		v.bad(key+".resolve", e.Resolve, "want dns, or leave it out")
	}
	v.atLeast(key+".max_running", int64(e.MaxRunning), 0)
	v.atLeast(key+".kv_tokens", int64(e.KVTokens), 0)
	v.atLeast(key+".first_rank", int64(e.FirstRank), 0)
	v.oneOf(key+".dp_ranks", e.DPRanks, dpRankModes)
	if len(e.Roles) == 0 && v.given(key+".roles", false) {
		v.fail(key+".roles", "want %s, or leave it out for both", oneOf(engineRoles))
	}
	for i, role := range e.Roles {
		at := fmt.Sprintf("%s.roles[%d]", key, i)
		v.oneOf(at, role, engineRoles)
		if slices.Contains(e.Roles[:i], role) {
			v.bad(at, role, "given twice")
		}
	}
	v.engineTLS(key+".tls", e.TLS)
	if e.Launch != nil {
		v.launch(key+".launch", e.Launch, ids)
	}
	if e.Local != nil {
		v.local(key+".local", e.Local)
	}
}

// source: exactly one of the four.
func (v *validator) source(key string, e *Engine) {
	var found []string
	for _, s := range []struct {
		name string
		set  bool
	}{{"url", e.URL != ""}, {"file", e.File != ""}, {"launch", e.Launch != nil}, {"local", e.Local != nil}} {
		if v.given(key+"."+s.name, s.set) {
			found = append(found, s.name)
		}
	}
	if len(found) != 1 {
		got := "none of them"
		if len(found) > 1 {
			got = strings.Join(found, " and ")
		}
		v.fail(key, "want one of url, file, launch and local, got %s", got)
		return
	}
	switch found[0] {
	case "url":
		v.engineURL(key+".url", e.URL)
	case "file":
		if e.File == "" {
			v.bad(key+".file", e.File, "want the path of a file of targets")
		}
	}
	if e.Resolve != "" && found[0] != "url" {
		v.fail(key+".resolve", "has no use without url")
	}
}

func (v *validator) engineURL(key, raw string) {
	if v.failed[key] {
		return
	}
	u, ok := v.httpURL(key, raw, "http://10.0.0.1:30000")
	if ok && strings.TrimRight(u.Path, "/") == "/v1" {
		v.bad(key, raw, "want the engine's root, without /v1")
	}
}

// replicaID: ids are paths of the admin API and labels of metrics, so each
// stands for one source of replicas.
func (v *validator) replicaID(key string, e *Engine, ids map[string]string) {
	id, at := e.ID, key+".id"
	given := v.given(at, id != "")
	if !given {
		id, at = hostPort(e.URL), key+".url"
		if id == "" {
			return
		}
	} else if id == "" || len(id) > 300 || strings.ContainsFunc(id, func(r rune) bool {
		return !isLetterOrDigit(r) && !strings.ContainsRune("._-:[]", r)
	}) {
		v.bad(at, id, "want 1 to 300 letters, digits and any of . _ - : [ ]")
		return
	}
	first, twice := ids[id]
	switch {
	case !twice:
		ids[id] = at
	case given:
		v.bad(at, id, "two replicas with one id: %s has it already%s", first, v.onLine(first))
	default:
		v.fail(at, "two replicas with one id, %s: %s has it already%s; give one of them an id of its own", v.show(at, id), first, v.onLine(first))
	}
}

func (v *validator) launch(key string, l *Launch, ids map[string]string) {
	v.atLeast(key+".replicas", int64(l.Replicas), 1)
	if strings.TrimSpace(l.Command) == "" {
		v.fail(key, "launch without command: want command: \"sglang serve --model-path m --port {port}\" or the like")
	} else if _, err := l.Words(); err != nil {
		v.fail(key+".command", "%v", err) // without it: it may hold a secret
	} else if !strings.Contains(l.Command, "{port}") && (l.Port == 0 || l.Replicas > 1) {
		v.fail(key+".command", "want {port} in it, where each child gets its own")
	}
	if l.Port < 0 || l.Port > 65535 || l.Port > 0 && l.Port+l.Replicas-1 > 65535 {
		v.bad(key+".port", l.Port, "want 0, or a port up to 65535 for each of %d children", l.Replicas)
	} else if l.Port > 0 {
		v.ownPorts(key+".port", l, ids)
	}
	if n := len(l.Devices); n > 0 && l.Replicas > 0 && n%l.Replicas != 0 {
		v.fail(key+".devices", "%d devices for %d children: want the same number for each", n, l.Replicas)
	}
	for name := range l.Env {
		if !namePattern.MatchString(name) {
			v.fail(key+".env", "%s: want a variable's name, letters, digits and _ only", quote(name))
		}
	}
	v.positiveTime(key+".start_timeout", l.StartTimeout)
	v.positiveTime(key+".stop_timeout", l.StopTimeout)
}

// ownPorts: of two children on one port the second would never start, and the
// first be taken for both.
func (v *validator) ownPorts(key string, l *Launch, ids map[string]string) {
	for port := l.Port; port < l.Port+l.Replicas; port++ {
		at := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		if first, twice := ids[at]; twice {
			v.bad(key, l.Port, "%s has port %d already%s", first, port, v.onLine(first))
			return
		}
		ids[at] = key
	}
}

func (v *validator) local(key string, l *LocalPool) {
	if l.Replicas < 1 || l.Replicas > 1024 {
		v.bad(key+".replicas", l.Replicas, "want 1 to 1024")
	}
	v.oneOf(key+".profile", l.Profile, profiles)
	v.atLeast(key+".kv_tokens", int64(l.KVTokens), 0)
	v.atLeast(key+".max_running", int64(l.MaxRunning), 0)
	v.positiveNumber(key+".time_scale", l.TimeScale)
}

func isLetterOrDigit(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
}

// isToken says whether s can be a header's name.
func isToken(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return !isLetterOrDigit(r) && !strings.ContainsRune("!#$%&'*+-.^_`|~", r)
	})
}
