package configs

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"strings"
	"time"
)

// DefaultAlias is the alias that serves requests which name no model.
const DefaultAlias = "default"

// KeySum is the SHA-256 of the key that a client presents: computed from the
// key itself, or given as such.
func KeySum(k Key) [sha256.Size]byte {
	if k.Key != "" {
		return sha256.Sum256([]byte(k.Key))
	}
	var sum [sha256.Size]byte
	// Validated: 64 hexadecimal digits.
	_, _ = hex.Decode(sum[:], []byte(k.SHA256))
	return sum
}

// EffectiveWeight is the key's share with its priority counted in.
func (k *Key) EffectiveWeight() float64 {
	w := cmp.Or(k.Weight, 1)
	switch k.Priority {
	case "high":
		return w * 4
	case "batch":
		return w / 4
	}
	return w
}

// ExpiresAt is the instant from which the key is refused; false: never.
func (k *Key) ExpiresAt() (time.Time, bool) {
	if k.Expires == "" {
		return time.Time{}, false
	}
	t, err := parseExpires(k.Expires)
	return t, err == nil
}

// Expired says whether the key is refused at now.
func (k *Key) Expired(now time.Time) bool {
	t, ok := k.ExpiresAt()
	return ok && !now.Before(t)
}

func parseExpires(s string) (time.Time, error) {
	if t, err := time.Parse(time.DateOnly, s); err == nil {
		return t, nil
	}
	return time.Parse(time.RFC3339, s)
}

// QueueFor is the queue's setting for requests of k, nil for a client without
// a key: the key's where it has one, else the model's. HeadHold is the model's
// alone.
func (m *Model) QueueFor(k *Key) Queue {
	q := m.Queue
	if k == nil {
		return q
	}
	q.MaxLength = cmp.Or(k.Queue.MaxLength, q.MaxLength)
	q.MaxWait = cmp.Or(k.Queue.MaxWait, q.MaxWait)
	q.WaitingCredit = cmp.Or(k.Queue.WaitingCredit, q.WaitingCredit)
	return q
}

// LimitsFor are k's own limits on the model called name: what its model_limits
// hold under the model's name or under one of its aliases.
func (k *Key) LimitsFor(m *Model) (Limits, bool) {
	if l, ok := k.ModelLimits[m.Name]; ok {
		return l, true
	}
	for _, alias := range m.Aliases {
		if l, ok := k.ModelLimits[alias]; ok {
			return l, true
		}
	}
	return Limits{}, false
}

// Warnings are what is allowed but seldom meant, a line each, for the log and
// for penstock check.
func (c *Config) Warnings() []string {
	var w []string
	if len(c.Keys) == 0 && !loopback(c.Listen) {
		w = append(w, fmt.Sprintf("listen: %s takes requests from other machines, and without keys from anybody", c.Listen))
	}
	if c.Admin.Listen != "" && c.Admin.Key == "" && !loopback(c.Admin.Listen) {
		w = append(w, fmt.Sprintf("admin.listen: %s takes requests from other machines, and without admin.key from anybody", c.Admin.Listen))
	}
	for _, f := range c.files() {
		if _, err := os.Stat(*f.path); err != nil {
			w = append(w, fmt.Sprintf("%s: %v", f.key, err))
		}
	}
	for i := range c.Models {
		for j := range c.Models[i].Engines {
			if e := &c.Models[i].Engines[j]; e.TLS != (EngineTLS{}) && strings.HasPrefix(strings.ToLower(e.URL), "http://") {
				w = append(w, fmt.Sprintf("models[%d].engines[%d].tls: not used, since the URL is of http; write https://", i, j))
			}
		}
	}
	for i := range c.Keys {
		if k := &c.Keys[i]; k.Expired(time.Now()) {
			w = append(w, fmt.Sprintf("keys[%d].expires: the key of %s expired on %s", i, k.Name, k.Expires))
		}
	}
	return append(w, c.unused()...)
}

// unused are the settings that others leave no effect.
func (c *Config) unused() []string {
	var w []string
	wait := func(key string, wait, request time.Duration) {
		if wait >= request {
			w = append(w, fmt.Sprintf("%s: %s leaves no time for an answer, timeouts.request (%s) bounds both together", key, wait, request))
		}
	}
	longest := c.Timeouts.Request
	for i := range c.Models {
		m := &c.Models[i]
		key, request := fmt.Sprintf("models[%d].queue", i), cmp.Or(m.Timeouts.Request, c.Timeouts.Request)
		longest = max(longest, request)
		if c.Limits.Mode == "auto" && m.Queue.MaxLength != defaultMaxLength {
			w = append(w, fmt.Sprintf("%s.max_length: %d is not used, limits.mode auto derives it from the engines", key, m.Queue.MaxLength))
		}
		wait(key+".max_wait", m.Queue.MaxWait, request)
	}
	for i := range c.Keys {
		wait(fmt.Sprintf("keys[%d].queue.max_wait", i), c.Keys[i].Queue.MaxWait, longest)
	}
	return w
}

type namedFile struct {
	key  string
	path *string
}

// files are the files that c names, where they stand in c.
func (c *Config) files() []namedFile {
	var all []namedFile
	add := func(key string, path *string) {
		if *path != "" {
			all = append(all, namedFile{key, path})
		}
	}
	tls := func(key string, t *EngineTLS) {
		add(key+".ca", &t.CA)
		add(key+".cert", &t.Cert)
		add(key+".key", &t.Key)
	}
	add("tls.cert", &c.TLS.Cert)
	add("tls.key", &c.TLS.Key)
	tls("redis.tls", &c.Redis.TLS)
	for i := range c.Models {
		for j := range c.Models[i].Engines {
			e := &c.Models[i].Engines[j]
			at := fmt.Sprintf("models[%d].engines[%d]", i, j)
			add(at+".file", &e.File)
			tls(at+".tls", &e.TLS)
		}
	}
	return all
}

// loopback says whether addr is reachable from this machine only.
func loopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
