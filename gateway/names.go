package gateway

import (
	"maps"
	"slices"
	"strings"
	"time"

	"penstock/engine"
)

// target is what a model name that a client sends stands for.
type target struct {
	pool *pool
	lora string // the name of an adapter, or of a further model of the same engines; empty: the model itself
	// apart: a further model, which a key may use only if it may use that name.
	apart bool
}

// table is every name that clients may use, as of one moment.
type table struct {
	names map[string]target
	list  []modelEntry // in the order of /v1/models
}

// modelEntry is one model of /v1/models.
type modelEntry struct {
	id, root, parent string
	maxModelLen      int
	created          time.Time
}

// rebuild makes the table of names. The lock is held.
func (p *pools) rebuild() {
	t := &table{names: map[string]target{}}
	for _, name := range slices.Sorted(maps.Keys(p.byName)) {
		pl := p.byName[name]
		t.add(pl, p.byName, p.namedNowhere(name))
		for _, alias := range p.aliases(pl) {
			if _, taken := t.names[alias]; !taken {
				t.names[alias] = target{pool: pl}
			}
		}
	}
	p.current.Store(t)
}

// refresh makes the table of names anew: adapters came or went.
func (p *pools) refresh() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rebuild()
}

// aliases are a pool's other names. Those of an entry without a name belong to
// the first model that its engines serve.
func (p *pools) aliases(pl *pool) []string { return pl.config.Load().Aliases }

// add lists a pool's model, and what else its engines serve: adapters and, for
// a model that the configuration does not name, further models. Such a one has
// the pool's replicas and queue but prefixes of its own, unless it is only
// another name: its root is then the same.
func (t *table) add(pl *pool, pools map[string]*pool, unnamed bool) {
	e := modelEntry{id: pl.name, created: pl.created}
	further := map[string]engine.ModelInfo{}
	for _, m := range *pl.members.Load() {
		e.maxModelLen = max(e.maxModelLen, m.engine.MaxModelLen())
		for _, s := range m.engine.Served() {
			switch {
			case s.Parent != "", unnamed && s.ID != pl.name:
				further[s.ID] = s
			case e.root == "" && s.ID == pl.name:
				e.root = s.Root
			}
		}
	}
	t.names[pl.name] = target{pool: pl}
	t.list = append(t.list, e)
	for _, id := range slices.Sorted(maps.Keys(further)) {
		_, taken := t.names[id]
		if _, pooled := pools[id]; taken || pooled {
			continue
		}
		f := further[id]
		entry := modelEntry{id: id, root: f.Root, maxModelLen: f.MaxModelLen, created: pl.created}
		tg := target{pool: pl, lora: id}
		switch {
		case f.Parent != "":
			entry.parent = pl.name
		case e.root != "" && f.Root == e.root:
			tg.lora = ""
		default:
			tg.apart = true
		}
		t.names[id] = tg
		t.list = append(t.list, entry)
	}
}

// defaultModel is the alias of requests that name no model.
const defaultModel = "default"

// find is what a model's name stands for. Without a name it is the alias
// "default", or the only model. Its errors name what the client may use.
func (p *pools) find(name string, c *client) (target, error) {
	t := p.current.Load()
	if name != "" {
		if tg, ok := t.names[name]; ok {
			return tg, nil
		}
		return target{}, modelNotFound(name, t.seenBy(c))
	}
	if tg, ok := t.names[defaultModel]; ok {
		return tg, nil
	}
	if len(t.list) == 1 {
		return t.names[t.list[0].id], nil
	}
	if len(t.list) == 0 {
		return target{}, noReplica("")
	}
	return target{}, invalid("missing_required_parameter", "model", "The request names no model, and there are several: %s.", strings.Join(ids(t.seenBy(c)), ", "))
}

// seenBy are the models that a client may use, in the order of /v1/models:
// those listed, and of the aliases the ones that its key names.
func (t *table) seenBy(c *client) (seen []modelEntry) {
	for _, e := range t.list {
		if c.allows(e.id) || e.parent != "" && c.allows(e.parent) {
			seen = append(seen, e)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.models)) {
		if e, ok := t.entry(name); ok && !slices.Contains(ids(seen), name) {
			seen = append(seen, e)
		}
	}
	return seen
}

// entry is the model as that name shows it, which may be an alias.
func (t *table) entry(name string) (modelEntry, bool) {
	tg, ok := t.names[name]
	for _, e := range t.list {
		if ok && (e.id == name || tg.lora == "" && e.id == tg.pool.name) {
			e.id = name
			return e, true
		}
	}
	return modelEntry{}, false
}

func ids(entries []modelEntry) []string {
	ids := make([]string, len(entries))
	for i, e := range entries {
		ids[i] = e.id
	}
	return ids
}

func modelNotFound(name string, seen []modelEntry) *Error {
	const most = 20
	msg := "The model '" + clip(name, 200) + "' does not exist here."
	if len(seen) > 0 && len(seen) <= most {
		msg += " There are: " + strings.Join(ids(seen), ", ") + "."
	}
	return &Error{Status: 404, Type: typeInvalid, Code: "model_not_found", Param: "model", Message: msg}
}

func clip(s string, n int) string {
	if len(s) > n {
		return s[:n] + "…"
	}
	return s
}
