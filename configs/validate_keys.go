package configs

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

func (v *validator) keys() {
	known := v.modelsByName()
	owners := map[[sha256.Size]byte]int{} // the key's hash → index of the first entry with it
	first := map[string]int{}             // name → index of its first entry
	for i := range v.c.Keys {
		at := fmt.Sprintf("keys[%d]", i)
		k := &v.c.Keys[i]
		v.name(at+".name", k.Name)
		if v.secretOfKey(at, k) {
			v.unshared(at, i, owners)
		}
		if j, again := first[k.Name]; again {
			v.sameSettings(at, i, j)
		} else {
			first[k.Name] = i
			v.keySettings(at, k, known)
		}
		if _, err := parseExpires(k.Expires); err != nil && v.given(at+".expires", k.Expires != "") {
			v.bad(at+".expires", k.Expires, "want a day, as 2027-01-31, or a time, as 2027-01-31T12:00:00Z")
		}
	}
}

// secretOfKey: exactly one of key and sha256. It says whether there is a
// usable one. Neither is ever shown: people put keys into the wrong field.
func (v *validator) secretOfKey(at string, k *Key) bool {
	hasKey, hasHash := v.given(at+".key", k.Key != ""), v.given(at+".sha256", k.SHA256 != "")
	switch {
	case hasKey && hasHash:
		v.fail(at, "has both key and sha256: want one of them")
	case !hasKey && !hasHash:
		v.fail(at, "has neither key nor sha256: want key: ${NAME}, or sha256: the key's hash")
	case hasHash:
		if b, err := hex.DecodeString(k.SHA256); err != nil || len(b) != sha256.Size {
			v.fail(at+".sha256", "not a SHA-256 hash: want 64 hexadecimal digits, as printed by: printf %%s \"$KEY\" | sha256sum")
			return false
		}
	}
	return hasKey != hasHash && !v.failed[at+".key"] && !v.failed[at+".sha256"]
}

// unshared: one key is one client's.
func (v *validator) unshared(at string, i int, owners map[[sha256.Size]byte]int) {
	sum := KeySum(v.c.Keys[i])
	j, shared := owners[sum]
	if !shared {
		owners[sum] = i
		return
	}
	before := fmt.Sprintf("keys[%d]", j)
	if v.c.Keys[j].Name == v.c.Keys[i].Name {
		v.fail(at, "the same key as %s%s: want it once", before, v.onLine(before))
		return
	}
	v.fail(at, "the same key as %s, %s%s: want a key for each name", before, v.show(before+".name", v.c.Keys[j].Name), v.onLine(before))
}

// keySettings checks what the entries of one name share.
func (v *validator) keySettings(at string, k *Key, known map[string]string) {
	v.positiveNumber(at+".weight", k.Weight)
	v.oneOf(at+".priority", k.Priority, priorities)
	v.oneOf(at+".on_rate_limit", k.OnRateLimit, onRateLimits)
	v.limits(at+".limits", &k.Limits)
	v.keyQueue(at+".queue", &k.Queue)
	if len(k.Models) == 0 && v.given(at+".models", false) {
		v.fail(at+".models", "an empty list allows none: want at least one, or leave it out for all")
	}
	for i, m := range k.Models {
		v.knownModel(fmt.Sprintf("%s.models[%d]", at, i), m, known)
	}
	limited := map[string]string{}
	for _, m := range slices.Sorted(maps.Keys(k.ModelLimits)) {
		key := at + ".model_limits." + m
		v.knownModel(key, m, known)
		if other, twice := limited[known[m]]; twice && known != nil {
			v.fail(key, "%s is the same model: want its limits once", quote(other))
		}
		limited[known[m]] = m
		if len(k.Models) > 0 && known != nil && !v.allowed(k, m, known) {
			v.fail(key, "%s is not among this key's models", quote(m))
		}
		l := k.ModelLimits[m]
		v.limits(key, &l)
	}
	if strings.ContainsFunc(k.CacheSalt, isControl) {
		v.fail(at+".cache_salt", "want text without control characters")
	}
}

// allowed says whether k's models hold m, under any of its names.
func (v *validator) allowed(k *Key, m string, known map[string]string) bool {
	return slices.ContainsFunc(k.Models, func(allowed string) bool {
		return allowed == m || known[m] != "" && known[allowed] == known[m]
	})
}

func (v *validator) keyQueue(key string, q *Queue) {
	v.atLeast(key+".max_length", int64(q.MaxLength), 0)
	if q.MaxWait < 0 {
		v.bad(key+".max_wait", q.MaxWait, "want a time above 0, or 0 for the model's")
	}
	v.notNegative(key+".waiting_credit", q.WaitingCredit)
	if v.given(key+".head_hold", q.HeadHold != 0) {
		v.fail(key+".head_hold", "cannot be set for one key: want it in the model's queue")
	}
}

// modelsByName maps names and aliases to names; nil when some model takes its
// name from the engines, so that any name may turn out to be right.
func (v *validator) modelsByName() map[string]string {
	known := map[string]string{}
	for i := range v.c.Models {
		m := &v.c.Models[i]
		if m.Name == "" {
			return nil
		}
		known[m.Name] = m.Name
		for _, alias := range m.Aliases {
			known[alias] = m.Name
		}
	}
	return known
}

func (v *validator) knownModel(key, name string, known map[string]string) {
	if _, ok := known[name]; ok || known == nil && name != "" {
		return
	}
	names := slices.Sorted(maps.Keys(known))
	if len(names) == 0 {
		v.fail(key, "unknown model %s: models has none", v.show(key, name))
		return
	}
	if near, ok := nearest(name, names); ok {
		v.fail(key, "unknown model %s: did you mean %s?", v.show(key, name), near)
		return
	}
	v.fail(key, "unknown model %s: want %s", v.show(key, name), oneOf(names))
}

// keyOwn are the fields that each entry of a name has of its own.
var keyOwn = []string{"name", "key", "sha256", "expires"}

// shareSettings gives entry i the settings of the first entry of its name,
// when the file says nothing else of it: rotation needs a key, not a copy.
func shareSettings(keys []Key, lines map[string]int) {
	first := map[string]int{}
	for i := range keys {
		j, again := first[keys[i].Name]
		if !again {
			first[keys[i].Name] = i
			continue
		}
		own := slices.ContainsFunc(fieldsOf(reflect.TypeFor[Key]()).names, func(f string) bool {
			_, given := lines[fmt.Sprintf("keys[%d].%s", i, f)]
			return given && !slices.Contains(keyOwn, f)
		})
		if !own {
			shared := keys[j]
			shared.Key, shared.SHA256, shared.Expires = keys[i].Key, keys[i].SHA256, keys[i].Expires
			keys[i] = shared
		}
	}
}

// sameSettings: several keys of one name are one client, with one set of limits.
func (v *validator) sameSettings(at string, i, j int) {
	a, b := reflect.ValueOf(v.c.Keys[i]), reflect.ValueOf(v.c.Keys[j])
	f := fieldsOf(a.Type())
	for _, name := range f.names {
		if slices.Contains(keyOwn, name) || reflect.DeepEqual(a.Field(f.index[name]).Interface(), b.Field(f.index[name]).Interface()) {
			continue
		}
		before := fmt.Sprintf("keys[%d]", j)
		v.fail(at+"."+name, "differs from %s of the same name%s: want the settings of a name once", before, v.onLine(before))
	}
}
