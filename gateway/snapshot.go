package gateway

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"slices"
	"time"

	"github.com/valyala/fasthttp"

	"penstock/configs"
)

// snapshot is everything that a reload replaces. It is immutable; a request
// loads the current one once and keeps it to its end.
type snapshot struct {
	cfg      *configs.Config
	hash     string
	loadedAt time.Time
	clients  map[[sha256.Size]byte]*client // by the key's hash; empty: open to all
	byName   map[string]*client
	names    []string // clients' names in the order of the file
}

// client is who sends a request, as limits, logs and metrics know it. All
// active keys of one name are one client.
type client struct {
	name    string
	key     configs.Key
	share   float64 // weight × priority's factor: its part of a full engine
	models  map[string]struct{}
	expires time.Time
	hash    [sha256.Size]byte
}

// anonymous is the client of a gateway without keys.
const anonymous = "anonymous"

func newSnapshot(cfg *configs.Config, now time.Time) *snapshot {
	s := &snapshot{
		cfg: cfg, hash: cfg.Hash(), loadedAt: now,
		clients: make(map[[sha256.Size]byte]*client, len(cfg.Keys)),
		byName:  make(map[string]*client, len(cfg.Keys)),
	}
	for i := range cfg.Keys {
		c := newClient(&cfg.Keys[i])
		s.clients[c.hash] = c
		if _, ok := s.byName[c.name]; !ok {
			s.names = append(s.names, c.name)
			s.byName[c.name] = c
		}
	}
	if len(cfg.Keys) == 0 {
		c := &client{name: anonymous, share: 1}
		c.key.Weight = 1
		s.byName[anonymous] = c
		s.names = []string{anonymous}
	}
	return s
}

func newClient(k *configs.Key) *client {
	c := &client{name: k.Name, key: *k, share: k.EffectiveWeight()}
	c.hash = configs.KeySum(*k)
	c.key.Key = "" // only the hash is kept
	if len(k.Models) > 0 {
		c.models = make(map[string]struct{}, len(k.Models))
		for _, m := range k.Models {
			c.models[m] = struct{}{}
		}
	}
	c.expires, _ = k.ExpiresAt()
	return c
}

// identify finds the client whose key the request carries.
func (s *snapshot) identify(ctx *fasthttp.RequestCtx, now time.Time) (*client, error) {
	if len(s.clients) == 0 {
		return s.byName[anonymous], nil
	}
	if keys := ctx.Request.Header.PeekAll(fasthttp.HeaderAuthorization); slices.ContainsFunc(keys, func(k []byte) bool { return !bytes.Equal(k, keys[0]) }) {
		return nil, invalid("invalid_request", "", "The request has two Authorization headers that differ.")
	}
	key := presentedKey(ctx)
	if len(key) == 0 {
		return nil, &Error{
			Status: fasthttp.StatusUnauthorized, Type: typeInvalid, Code: "invalid_api_key",
			Message: "No API key was given. Send it as \"Authorization: Bearer KEY\".",
		}
	}
	sum := sha256.Sum256(key)
	// The map is keyed by the hash, so its timing tells nothing of any key.
	c, ok := s.clients[sum]
	if !ok || subtle.ConstantTimeCompare(sum[:], c.hash[:]) != 1 {
		return nil, &Error{Status: fasthttp.StatusUnauthorized, Type: typeInvalid, Code: "invalid_api_key", Message: "The API key is not known to this gateway."}
	}
	if !c.expires.IsZero() && !now.Before(c.expires) {
		return nil, &Error{
			Status: fasthttp.StatusUnauthorized, Type: typeInvalid, Code: "invalid_api_key",
			Message: "The API key of " + c.name + " expired at " + c.expires.UTC().Format(time.RFC3339) + ".",
		}
	}
	return c, nil
}

// presentedKey is the key that the request carries: a bearer token, or
// x-api-key as Anthropic's clients send it. "Bearer " with nothing after it is no key.
func presentedKey(ctx *fasthttp.RequestCtx) []byte {
	const scheme = "bearer"
	h := ctx.Request.Header.Peek("Authorization")
	if len(h) > len(scheme) && asciiEqualFold(h[:len(scheme)], scheme) && (h[len(scheme)] == ' ' || h[len(scheme)] == '\t') {
		if key := trimSpace(h[len(scheme):]); len(key) > 0 {
			return key
		}
	}
	return trimSpace(ctx.Request.Header.Peek("X-Api-Key"))
}

// mayUse reports whether the client may use what a name that it asked for stands for.
func (c *client) mayUse(tg target, asked string) bool {
	return c.allows(asked) || !tg.apart && c.allows(tg.pool.name)
}

// allows reports whether the client's key names the model, or none.
func (c *client) allows(model string) bool {
	if c.models == nil {
		return true
	}
	_, ok := c.models[model]
	return ok
}
